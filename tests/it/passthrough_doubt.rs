//! Pass-through: what the API server has carried out for a client, or may have without an answer.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::body::{Body, Bytes};
use eventweir::event::Event;
use http::{HeaderValue, Method, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use super::support::behind::{Behind, OURS, answer, created};
use super::support::events::event;
use super::support::http::{EVENTS, json as json_of};

const CALLER: (&str, &str) = ("Authorization", "Bearer caller's");
const FORBIDDEN: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}"#;
const MISSING: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#;

fn is_ours(request: &Request<Incoming>) -> bool {
    request.headers().get("Authorization").is_some_and(|value| value == OURS)
}

/// Returns an answer with a longer header than any client reads, so that the connection breaks.
fn unreadable() -> http::Response<Body> {
    with_header(1 << 20)
}

fn with_header(bytes: usize) -> http::Response<Body> {
    let mut answer = answer(200, "{}");
    answer.headers_mut().insert("x", HeaderValue::try_from("x".repeat(bytes)).unwrap());
    answer
}

/// Fault: over HTTP/1.1, hyper's buffer of 400 KiB took what the API server sent to clients that did not read.
#[tokio::test]
async fn the_buffer_of_an_answer_over_http_1_is_bounded() {
    let behind = Behind::plain(|request| async move {
        let bytes = request.uri().path().rsplit('/').next().unwrap().parse().unwrap();
        with_header(bytes)
    })
    .await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    for (bytes, code) in [(100 << 10, 200), (200 << 10, 502)] {
        let reply = client.send("GET", &format!("/api/v1/pods/{bytes}"), &[CALLER], b"").await;
        assert_eq!(reply.status, code, "{bytes}");
    }
    program.stop().await;
}

/// Fault: the API server got it twice. The second time it could be 409 or 404 although the first one was carried out.
#[tokio::test]
async fn a_change_that_may_have_been_carried_out_is_not_forwarded() {
    let event = event("node-1", "web-0", "R", "m");
    let mut stored = event.clone();
    stored.metadata.resource_version = "7".into();
    let stored = json_of(&stored);
    let behind = Behind::plain(move |request| {
        let stored = stored.clone();
        async move {
            match (is_ours(&request), request.method()) {
                (true, &Method::GET) => answer(200, stored),
                (true, _) => unreadable(),
                (false, _) => answer(404, ""),
            }
        }
    })
    .await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    let (path, body) = (format!("{EVENTS}/{}", event.metadata.name), json_of(&event));
    for (method, body) in [("DELETE", &b""[..]), ("PUT", &body)] {
        let reply = client.send(method, &path, &[CALLER], body).await;
        assert_eq!((reply.status, reply.header("Retry-After")), (503, None), "{method}: {}", reply.text());
    }
    assert_eq!(behind.passed_on().len(), 0);
    program.stop().await;
}

/// Fault: the client got the 429 of ingest, sent the event again, and it was stored twice.
#[tokio::test]
async fn a_forwarded_event_whose_answer_is_lost_is_not_sent_again() {
    let behind = Behind::plain(|request| async move {
        // Pending writes stay pending.
        if is_ours(&request) { std::future::pending().await } else { unreadable() }
    })
    .await;
    let full = "outbox: {maxRecords: 1, sourcePercent: 100}\nshutdown: {drainTimeout: 0s}\n";
    let program = behind.program("", full).await;
    let client = &mut program.client().await;
    let body = |object: &str| json_of(&event("node-1", object, "R", "m"));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &body("web-0")).await.outcome(), Some("created"));
    let reply = client.send("POST", EVENTS, &[CALLER], &body("web-1")).await;
    assert_eq!((reply.status, reply.header("Retry-After")), (502, None), "{}", reply.text());
    assert_eq!(behind.passed_on().len(), 1);
    // Without a connection, nothing was stored.
    drop(behind);
    let reply = client.send("POST", EVENTS, &[CALLER], &body("web-2")).await;
    let reply = if reply.status == 502 { client.send("POST", EVENTS, &[CALLER], &body("web-2")).await } else { reply };
    assert_eq!((reply.status, reply.header("Retry-After")), (429, Some("1")));
    program.app.stop().await;
}

/// Fault: the record continued, and its next write created the event that the API server had deleted for the client.
#[tokio::test]
async fn an_event_that_the_api_server_deletes_for_its_client_is_not_created_again() {
    for (code, creates) in [(200, 1), (404, 1), (409, 2)] {
        let behind = Behind::plain(move |request| async move {
            match (is_ours(&request), request.method()) {
                (true, &Method::POST) => created(request).await,
                (true, &Method::DELETE) => answer(403, FORBIDDEN),
                (true, _) => answer(404, MISSING),
                (false, _) => answer(code, "{}"),
            }
        })
        .await;
        let program = behind.program("", "").await;
        let client = &mut program.client().await;
        let (event, repeat) = (event("node-1", "web-0", "R", "m"), event("node-1", "web-0", "R", "m"));
        assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&event)).await.outcome(), Some("created"));
        program.settle().await;
        assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&repeat)).await.outcome(), Some("counted"));
        // Fault: the API server knows no such name, and its 404 hid that only a right is missing.
        let alias = format!("{EVENTS}/{}", repeat.metadata.name);
        assert_eq!(client.send("DELETE", &alias, &[CALLER], b"").await.status, 403);
        assert_eq!(behind.passed_on().len(), 0);
        let path = format!("{EVENTS}/{}", event.metadata.name);
        assert_eq!(client.send("DELETE", &path, &[CALLER], b"").await.status, code);
        // The end writes what is owed.
        program.stop().await;
        let posts = behind.seen().iter().filter(|seen| seen.is_ours() && seen.line.starts_with("POST")).count();
        assert_eq!(posts, creates, "{code}");
    }
}

/// Fault: the record continued, and added occurrences to the count of the PUT that includes them. By the name of another
/// event that counts on the record, the PUT created a second event.
#[tokio::test]
async fn a_record_follows_a_put_that_the_api_server_carries_out_for_its_client() {
    // (code, patches of eventweir at the end)
    for (code, patches) in [(200, 0), (409, 1)] {
        let stored = Arc::<Mutex<Bytes>>::default();
        let behind = Behind::plain(move |request| {
            let stored = Arc::clone(&stored);
            async move {
                match (is_ours(&request), request.method()) {
                    (true, &Method::POST) => {
                        let body = created(request).await.into_body().collect().await.unwrap().to_bytes();
                        *stored.lock() = body.clone();
                        answer(201, body)
                    }
                    (true, &Method::PUT) => answer(403, FORBIDDEN),
                    (true, _) => answer(200, stored.lock().clone()),
                    (false, _) => {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        if code == 200 {
                            *stored.lock() = body.clone();
                        }
                        answer(code, body)
                    }
                }
            }
        })
        .await;
        let program = behind.program("", "outbox: {coalesceInterval: 1m}\n").await;
        let client = &mut program.client().await;
        let [first, mut second] = [(); 2].map(|()| event("node-1", "web-0", "R", "m"));
        assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&first)).await.outcome(), Some("created"));
        program.settle().await;
        assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&second)).await.outcome(), Some("counted"));
        let mut put = first.clone();
        (put.count, second.count) = (2, 2);
        put.metadata.uid = "u-1".into();
        put.metadata.resource_version = "8".into();
        let alias = format!("{EVENTS}/{}", second.metadata.name);
        assert_eq!(client.send("PUT", &alias, &[CALLER], &json_of(&second)).await.status, 403);
        assert_eq!(behind.passed_on().len(), 0);
        let path = format!("{EVENTS}/{}", first.metadata.name);
        assert_eq!(client.send("PUT", &path, &[CALLER], &json_of(&put)).await.status, code);
        // The end writes what is owed.
        program.stop().await;
        let ours = behind.seen().iter().filter(|seen| seen.is_ours() && seen.line.starts_with("PATCH")).count();
        assert_eq!(ours, patches, "{code}");
    }
}

/// Fault: the record continued when the client left, and added occurrences to the count of the PUT that includes them.
/// Over HTTP/2, because over HTTP/1.1 a client that has left looks like one that has closed its side and still reads.
#[tokio::test]
async fn a_record_follows_a_put_whose_client_has_left() {
    let (stored, gates) = (Arc::<Mutex<Bytes>>::default(), Arc::new([(); 2].map(|()| Semaphore::new(0))));
    let behind = {
        let (stored, gates) = (Arc::clone(&stored), Arc::clone(&gates));
        Behind::plain(move |request| {
            let (stored, gates) = (Arc::clone(&stored), Arc::clone(&gates));
            async move {
                match (is_ours(&request), request.method()) {
                    (true, &Method::PUT) => return answer(403, FORBIDDEN),
                    (true, &Method::POST) => {
                        let body = created(request).await.into_body().collect().await.unwrap().to_bytes();
                        *stored.lock() = body;
                    }
                    (true, _) => {}
                    (false, _) => {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        gates[0].add_permits(1);
                        gates[1].acquire().await.unwrap().forget();
                        *stored.lock() = body;
                    }
                }
                answer(200, stored.lock().clone())
            }
        })
        .await
    };
    let program = behind.program("", "outbox: {coalesceInterval: 1m}\n").await;
    let client = &mut program.client().await;
    let [first, second] = [(); 2].map(|()| event("node-1", "web-0", "R", "m"));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&first)).await.outcome(), Some("created"));
    program.settle().await;
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&second)).await.outcome(), Some("counted"));
    let mut put = first.clone();
    (put.count, put.metadata.uid, put.metadata.resource_version) = (2, "u-1".into(), "8".into());
    let uri = format!("http://localhost{EVENTS}/{}", first.metadata.name);
    let put = Request::put(uri)
        .header(CALLER.0, CALLER.1)
        .header("Content-Type", "application/json")
        .body(Full::new(Bytes::from(json_of(&put))));
    let stream = TokioIo::new(TcpStream::connect(program.app.address()).await.unwrap());
    let (mut impatient, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::select! {
        reply = impatient.send_request(put.unwrap()) => panic!("answered: {reply:?}"),
        end = connection => panic!("disconnected: {end:?}"),
        permit = gates[0].acquire() => permit.unwrap().forget(),
    }
    drop(impatient);
    program.until_metric("eventweir_ingest_connections", |open| open <= 1.0).await;
    gates[1].add_permits(1);
    // The end writes what is owed.
    program.stop().await;
    let patches = behind.seen().iter().filter(|seen| seen.is_ours() && seen.line.starts_with("PATCH")).count();
    assert_eq!(patches, 0);
}

/// How eventweir refuses a change in the next test.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Why {
    /// The API server forbids it to eventweir.
    Ours,
    /// `auth.policy` forbids it to the caller.
    Policy,
    /// The caller cannot be reviewed.
    Unreviewed,
}

/// Answers like an API server with one event, whose count any change of a client sets to 2. It forbids JSON patches to
/// eventweir, and reviews tokens while it is up.
async fn with_one_event(
    request: Request<Incoming>,
    stored: &Mutex<Option<Value>>,
    is_up: bool,
) -> http::Response<Body> {
    let (method, is_ours) = (request.method().clone(), is_ours(&request));
    let media = request.headers().get("Content-Type");
    let is_json_patch = media.is_some_and(|media| media == "application/json-patch+json");
    if request.uri().path().ends_with("/tokenreviews") {
        let status = json!({"authenticated": true, "user": {"username": "writer"}});
        return if is_up { answer(201, json!({"status": status}).to_string()) } else { answer(500, "{}") };
    }
    if is_ours && method == Method::POST {
        let body = created(request).await.into_body().collect().await.unwrap().to_bytes();
        *stored.lock() = serde_json::from_slice(&body).unwrap();
        return answer(201, body);
    }
    let is_dry = !request.into_body().collect().await.unwrap().to_bytes().is_empty();
    let mut stored = stored.lock();
    match (is_ours, &mut *stored) {
        (true, Some(_)) if is_json_patch => answer(403, FORBIDDEN),
        (_, None) => answer(404, MISSING),
        (false, Some(_)) if method == Method::DELETE && is_dry => answer(200, "{}"),
        (false, Some(_)) if method == Method::DELETE => {
            *stored = None;
            answer(200, "{}")
        }
        (is_ours, Some(event)) => {
            if !is_ours {
                event["count"] = 2.into();
            }
            answer(200, event.to_string())
        }
    }
}

/// Faults: after another refusal than the API server's to a PUT or a DELETE, the record continued: it added occurrences to a
/// count that includes them, and created a deleted event again. By the name of an event that counts on another record, a
/// DELETE was 404. Without a review, a client's own count replaced that of all clients.
#[tokio::test]
async fn a_record_follows_every_change_that_is_passed_on() {
    let policy = "auth: {outageTTL: 0s, tokenReview: {enabled: true, cacheTTL: 0s}, \
        policy: [{users: [writer], verbs: [create]}]}\n";
    let put = "application/json";
    for (why, method, media, body) in [
        (Why::Ours, "PATCH", "application/json-patch+json", r#"[{"op":"replace","path":"/count","value":2}]"#),
        (Why::Policy, "PATCH", "application/merge-patch+json", r#"{"count":2}"#),
        (Why::Policy, "PATCH", "application/apply-patch+yaml", "count: 2"),
        (Why::Policy, "PUT", put, ""),
        (Why::Policy, "DELETE", put, ""),
        (Why::Policy, "DELETE", put, r#"{"dryRun":["All"]}"#),
        (Why::Unreviewed, "PATCH", "application/merge-patch+json", r#"{"count":2}"#),
        (Why::Unreviewed, "PUT", put, ""),
        (Why::Unreviewed, "DELETE", put, ""),
    ] {
        let (case, is_dry) = (format!("{why:?} {method} {media} {body}"), body.contains("dryRun"));
        let (stored, is_up) = (Arc::<Mutex<Option<Value>>>::default(), Arc::new(AtomicBool::new(true)));
        let up = Arc::clone(&is_up);
        let behind = Behind::plain(move |request| {
            let (stored, is_up) = (Arc::clone(&stored), up.load(Ordering::Relaxed));
            async move { with_one_event(request, &stored, is_up).await }
        })
        .await;
        let auth = if why == Why::Ours { "" } else { policy };
        let program = behind.program("", &format!("{auth}outbox: {{coalesceInterval: 1m}}\n")).await;
        let client = &mut program.client().await;
        let headers = [CALLER, ("Content-Type", media)];
        let [first, second] = [(); 2].map(|()| event("node-1", "web-0", "R", "m"));
        let [path, alias] = [&first, &second].map(|event| format!("{EVENTS}/{}", event.metadata.name));
        let post = [CALLER, ("Content-Type", put)];
        assert_eq!(client.send("POST", EVENTS, &post, &json_of(&first)).await.outcome(), Some("created"), "{case}");
        program.settle().await;
        assert_eq!(client.send("POST", EVENTS, &post, &json_of(&second)).await.outcome(), Some("counted"), "{case}");
        is_up.store(why != Why::Unreviewed, Ordering::Relaxed);
        let body = if method == "PUT" { json_of(&Event { count: 2, ..first.clone() }) } else { body.into() };
        if matches!(method, "PUT" | "DELETE") {
            let reply = client.send(method, &alias, &headers, &body).await;
            assert_eq!(reply.status, if why == Why::Policy { 403 } else { 503 }, "{case}: {}", reply.text());
        }
        let reply = client.send(method, &path, &headers, &body).await;
        is_up.store(true, Ordering::Relaxed);
        let expected = if why == Why::Unreviewed { (503, Some("1"), 0) } else { (200, None, 1) };
        let passed_on = behind.passed_on().len();
        assert_eq!((reply.status, reply.header("Retry-After"), passed_on), expected, "{case}: {}", reply.text());
        // The end writes what is owed.
        program.stop().await;
        let is_write = |line: &str| line.starts_with("POST /api/v1/namespaces") || line.starts_with("PATCH");
        let writes = behind.seen().into_iter().filter(|seen| seen.is_ours() && is_write(&seen.line));
        let writes: Vec<String> = writes.map(|seen| seen.line).collect();
        let further = usize::from(why != Why::Policy || is_dry);
        assert_eq!(writes.len(), 1 + further, "{case}: {writes:?}");
    }
}

/// Fault: a patch of it was 404, because ingest did not know the generated name.
#[tokio::test]
async fn a_forwarded_event_is_known_by_the_name_that_the_api_server_has_generated() {
    const STORED: &str =
        r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"web.x1","namespace":"shop","resourceVersion":"7"}}"#;
    let behind = Behind::plain(|request| async move {
        match (is_ours(&request), request.method()) {
            // Pending writes stay pending.
            (true, &Method::POST) => std::future::pending().await,
            (true, _) => answer(200, STORED),
            (false, &Method::POST) => answer(201, STORED),
            (false, _) => answer(200, "patched"),
        }
    })
    .await;
    let full = "outbox: {maxRecords: 1, sourcePercent: 100}\nshutdown: {drainTimeout: 0s}\n";
    let program = behind.program("", full).await;
    let client = &mut program.client().await;
    let first = json_of(&event("node-1", "web-0", "R", "m"));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &first).await.outcome(), Some("created"));
    let mut second: Value = serde_json::from_slice(&json_of(&event("node-1", "web-1", "R", "m"))).unwrap();
    second["metadata"] = json!({"generateName": "web.", "namespace": "shop"});
    let reply = client.send("POST", EVENTS, &[CALLER], second.to_string().as_bytes()).await;
    assert_eq!((reply.status, reply.text()), (201, STORED.to_owned()));
    assert_eq!(client.patch("web.x1", &json!({"count": 2})).await.text(), "patched");
    program.app.stop().await;
}

/// Fault: a patch of it was 404, its client posted it again, and after the API server's 409 all repeats were lost.
#[tokio::test]
async fn a_forwarded_event_that_is_too_large_is_known_by_its_name() {
    let behind = Behind::plain(|request| async move {
        match *request.method() {
            Method::POST => answer(201, request.into_body().collect().await.unwrap().to_bytes()),
            _ if is_ours(&request) => answer(404, "{}"),
            _ => answer(200, "patched"),
        }
    })
    .await;
    let program = behind.program("", "ingest: {maxBodyBytes: 1Ki}\n").await;
    let client = &mut program.client().await;
    let large = event("node-1", "web-0", "R", &"x".repeat(5000));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&large)).await.status, 201);
    assert_eq!(client.patch(&large.metadata.name, &json!({"count": 2})).await.text(), "patched");
    program.stop().await;
}

/// Fault: the API server did not know the name, its client posted the event again, and it counted twice.
#[tokio::test]
async fn a_repeat_of_an_event_that_ingest_knows_waits_for_room() {
    let posts = AtomicUsize::new(0);
    let behind = Behind::plain(move |request| {
        let is_first = request.method() == Method::POST && posts.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            match is_ours(&request) {
                true if is_first => created(request).await,
                // Pending writes stay pending.
                true => std::future::pending().await,
                false => answer(404, "{}"),
            }
        }
    })
    .await;
    // The second event evicts the first from the correlator, so the repeat needs room.
    let full =
        "correlation: {lruCacheSize: 1}\noutbox: {maxRecords: 1, sourcePercent: 100}\nshutdown: {drainTimeout: 0s}\n";
    let program = behind.program("", full).await;
    let client = &mut program.client().await;
    let known = event("node-1", "web-0", "R", "m");
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&known)).await.outcome(), Some("created"));
    program.settle().await;
    let other = json_of(&event("node-1", "web-1", "R", "m"));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &other).await.outcome(), Some("created"));
    let path = format!("{EVENTS}/{}", known.metadata.name);
    let headers = [CALLER, ("Content-Type", "application/strategic-merge-patch+json")];
    let reply = client.send("PATCH", &path, &headers, br#"{"count":2}"#).await;
    assert_eq!((reply.status, reply.header("Retry-After")), (429, Some("1")), "{}", reply.text());
    assert_eq!(behind.passed_on().len(), 0);
    program.app.stop().await;
}
