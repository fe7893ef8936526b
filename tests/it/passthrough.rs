//! Pass-through: forwarded requests, events that ingest answers, and events that are forwarded because ingest cannot
//! take them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use eventweir::access::{self, Access};
use eventweir::clock::Clock;
use eventweir::correlator::KeySecret;
use eventweir::ledger::RejectReason;
use eventweir::passthrough::{Callers, Metrics, Passthrough, Settings};
use eventweir::server::{Answer, FairPlaces, Origins, Peer, PeerCertificate};
use eventweir::upstream::Upstream;
use futures_util::{StreamExt as _, stream};
use http::header::UPGRADE;
use http::{HeaderValue, Method, Request, Version};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prometheus::{IntGauge, Registry};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{ServiceExt as _, service_fn};

use super::passthrough_streams::{exec_over, line, shout};
use super::support::app::{DEADLINE, Program};
use super::support::behind::{Behind, OURS, answer, created};
use super::support::certificates::Trust;
use super::support::events::event;
use super::support::http::{Client, EVENTS, json as json_of};
use super::support::log::Log;

const CALLER: (&str, &str) = ("Authorization", "Bearer caller's");

async fn count(program: &Program, kind: &str) -> f64 {
    program.metrics().await[&format!("eventweir_passthrough_requests_total{{kind=\"{kind}\"}}")]
}

/// Keeps a pending write pending, and forbids all else.
async fn only_pending(request: &Request<Incoming>) -> http::Response<Body> {
    if request.method() == Method::POST {
        return std::future::pending().await;
    }
    answer(403, r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}"#)
}

fn is_ours(request: &Request<Incoming>) -> bool {
    request.headers().get("Authorization").is_some_and(|value| value == OURS)
}

#[tokio::test]
async fn requests_and_answers_are_forwarded_unchanged() {
    let gzip = b"\x1f\x8b\x08\x00not really\xff";
    let behind = Behind::plain(move |request| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let mut answer = answer(429, [gzip, &*body].concat());
        for (name, value) in [
            ("Retry-After", "17"),
            ("Content-Encoding", "gzip"),
            ("Audit-Id", "a-1"),
            ("Warning", "299 - \"one\""),
            ("Warning", "299 - \"two\""),
            ("Connection", "X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "timeout=5"),
        ] {
            answer.headers_mut().append(name, HeaderValue::from_static(value));
        }
        answer
    })
    .await;
    let program = behind.program("", "").await;
    let headers = [
        ("User-Agent", "kubectl/v1.37.0 (linux/amd64) kubernetes/abc"),
        CALLER,
        ("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io, application/json"),
        ("Connection", "keep-alive, X-Mine"),
        ("X-Mine", "1"),
        ("TE", "trailers"),
        ("Proxy-Authorization", "Basic x"),
        ("Proxy-Connection", "keep-alive"),
        ("Upgrade", "h2c"),
        ("Accept-Encoding", "gzip"),
        ("Impersonate-User", "jane"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Kubectl-Session", "0f0e \t \"x\""),
    ];
    let path = "/apis/apps/v1/namespaces/a%2Fb/deployments?fieldSelector=a%3Db,c=d&x=%e4";
    let reply = program.client().await.send("PUT", path, &headers, b"{\"a\": 1}").await;
    assert_eq!((reply.status, reply.bytes()), (429, &[gzip, &b"{\"a\": 1}"[..]].concat()[..]));
    for (name, value) in [("Retry-After", "17"), ("Content-Encoding", "gzip"), ("Audit-Id", "a-1")] {
        assert_eq!(reply.header(name), Some(value));
    }
    assert_eq!(reply.headers("Warning").collect::<Vec<_>>(), ["299 - \"one\"", "299 - \"two\""]);
    for hop in ["Connection", "X-Hop", "Keep-Alive"] {
        assert_eq!(reply.header(hop), None, "{hop}");
    }
    let seen = behind.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].line, format!("PUT {path}"));
    let dropped = ["Connection", "X-Mine", "TE", "Proxy-Authorization", "Proxy-Connection", "Upgrade"];
    let kept = headers.iter().filter(|(name, _)| !dropped.contains(name));
    let mut expected: Vec<(String, String)> =
        kept.map(|(name, value)| (name.to_lowercase(), (*value).to_owned())).collect();
    expected.insert(0, ("content-length".to_owned(), "8".to_owned()));
    expected.push(("via".to_owned(), seen[0].header("via").unwrap().to_owned()));
    expected.push(("host".to_owned(), behind.address.to_string()));
    assert_eq!(seen[0].headers, expected);
    assert_eq!(count(&program, "forwarded").await, 1.0);
    program.stop().await;
}

/// Fault: it forwarded the request to itself until all places were taken, 20,000 times a second.
#[tokio::test]
async fn a_request_that_comes_back_is_refused() {
    let behind = Behind::plain(async |request| {
        let mut returned = answer(200, "");
        let last = request.headers().get_all("via").iter().next_back().unwrap();
        returned.headers_mut().insert("via", last.clone());
        returned
    })
    .await;
    let program = behind.program("", "").await;
    let mut client = program.client().await;
    let reply = client.send("GET", "/version", &[CALLER, ("Via", "1.1 other")], b"").await;
    let ours = reply.header("via").unwrap().to_owned();
    assert!(ours.starts_with("1.1 eventweir-"), "{ours}");
    let both = format!("1.1 other, {ours}");
    for (method, path) in [("GET", "/version"), ("POST", EVENTS)] {
        let reply = client.send(method, path, &[CALLER, ("Via", &both)], b"").await;
        assert_eq!(reply.status, 508, "{}", reply.text());
        assert!(reply.text().contains("leads back to this eventweir"), "{}", reply.text());
    }
    assert_eq!((behind.seen().len(), count(&program, "refused").await), (1, 2.0));
    program.stop().await;
}

#[tokio::test]
async fn a_head_keeps_its_content_length_and_an_empty_answer_stays_empty() {
    let behind = Behind::plain(|request| async move {
        match *request.method() {
            Method::HEAD => answer(200, "12345"),
            Method::DELETE => answer(204, ""),
            _ => answer(304, ""),
        }
    })
    .await;
    let program = behind.program("", "").await;
    // Over one connection, so that a wrong body length breaks the next answer.
    let client = &mut program.client().await;
    for _ in 0..2 {
        let head = client.send("HEAD", "/api/v1/pods", &[CALLER], b"").await;
        assert_eq!((head.status, head.header("Content-Length")), (200, Some("5")));
        assert_eq!(client.send("DELETE", "/api/v1/namespaces/a/pods/b", &[CALLER], b"").await.status, 204);
        assert_eq!(client.send("GET", "/api/v1/pods", &[CALLER, ("If-None-Match", "\"a\"")], b"").await.status, 304);
        let asked = [CALLER, ("Expect", "100-continue")];
        assert_eq!(client.send("OPTIONS", "/", &asked, b"").await.status, 304);
    }
    assert_eq!(count(&program, "forwarded").await, 8.0);
    program.stop().await;
}

#[tokio::test]
async fn only_the_callers_token_is_forwarded_and_it_is_not_logged() {
    let log = Log::capture();
    let behind = Behind::tls(&["h2", "http/1.1"], |request| async move {
        if is_ours(&request) { created(request).await } else { answer(200, "{}") }
    })
    .await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    assert_eq!(client.send("GET", "/api/v1/pods", &[CALLER], b"").await.status, 200);
    assert_eq!(client.get("/version").await.status, 200);
    let body = json_of(&event("node-1", "web-0", "R", "m"));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &body).await.status, 201);
    program.settle().await;
    program.stop().await;
    let passed_on = behind.passed_on();
    let credentials: Vec<_> =
        passed_on.iter().map(|seen| (seen.header("authorization"), seen.has_certificate, seen.version)).collect();
    assert_eq!(credentials, [(Some(CALLER.1), false, Version::HTTP_2), (None, false, Version::HTTP_2)]);
    assert!(behind.seen().iter().any(|seen| seen.is_ours() && seen.has_certificate), "events are written as us");
    let logged = log.text();
    assert!(logged.contains("connected to the API server"), "the log was caught");
    let leaks: Vec<&str> =
        logged.lines().filter(|line| line.contains("eventweir") && line.contains("caller's")).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
}

/// Fault: the length of the body was forwarded without the body, which the API server then waited for.
#[tokio::test]
async fn a_get_of_an_event_with_a_body_is_forwarded_without_it() {
    let behind = Behind::plain(|request| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        answer(200, if body.is_empty() { "no body" } else { "a body" })
    })
    .await;
    let program = behind.program("", "").await;
    let shown = program.client().await.send("GET", &format!("{EVENTS}/a"), &[], b"{}").await;
    assert_eq!((shown.status, shown.text()), (200, "no body".to_owned()));
    assert_eq!(behind.seen()[0].header("content-length"), None);
    program.stop().await;
}

#[tokio::test]
async fn equal_events_are_one_create_and_the_apiserver_answers_reads() {
    let behind = Behind::plain(|request| async move {
        match (is_ours(&request), request.method()) {
            (true, &Method::POST) => created(request).await,
            (true, _) => answer(404, "{}"),
            (false, &Method::GET) if request.uri().path() == EVENTS => answer(200, "the apiserver's list"),
            (false, &Method::GET) => answer(404, "the apiserver knows no such name"),
            (false, _) => answer(500, "not for the apiserver"),
        }
    })
    .await;
    let program = behind.program("", "shutdown: {drainTimeout: 0s}\n").await;
    let client = &mut program.client().await;
    let events: Vec<_> = (0..10).map(|_| event("node-1", "web-0", "BackOff", "restarting")).collect();
    for event in &events {
        assert_eq!(client.post(event).await.status, 201);
    }
    // The record has the first name; the other names are aliases.
    let other = &events[7].metadata.name;
    assert_eq!(client.patch(other, &json!({"count": 3})).await.status, 200);
    let shown = client.get(&format!("{EVENTS}/{other}")).await;
    assert_eq!((shown.status, shown.json()["metadata"]["name"].as_str()), (200, Some(other.as_str())));
    let unknown = client.get(&format!("{EVENTS}/nobody's")).await;
    assert_eq!((unknown.status, unknown.text()), (404, "the apiserver knows no such name".to_owned()));
    assert_eq!(client.get(EVENTS).await.text(), "the apiserver's list");
    assert_eq!(client.send("POST", "/eventweir/v1/events", &[], b"").await.status, 200);
    let ours = behind.seen().into_iter().filter(|seen| seen.is_ours() && seen.line.starts_with("POST")).count();
    assert_eq!(ours, 1, "{:?}", behind.seen());
    assert_eq!((count(&program, "events").await, count(&program, "fallback").await), (12.0, 0.0));
    assert_eq!(count(&program, "forwarded").await, 3.0);
    program.app.stop().await;
}

#[tokio::test]
async fn an_event_that_ingest_cannot_take_is_forwarded() {
    let [is_up, is_kept] = [(); 2].map(|()| Arc::new(AtomicBool::new(true)));
    let (up, kept) = (Arc::clone(&is_up), Arc::clone(&is_kept));
    let behind = Behind::plain(move |request| {
        let (up, kept) = (Arc::clone(&up), Arc::clone(&kept));
        async move {
            if request.method() == Method::PATCH && !kept.load(Ordering::Relaxed) {
                return answer(404, "{}");
            }
            if is_ours(&request) {
                return only_pending(&request).await;
            }
            let body = request.into_body().collect().await.unwrap().to_bytes();
            if up.load(Ordering::Relaxed) { answer(201, format!("stored {}", body.len())) } else { answer(503, "down") }
        }
    })
    .await;
    let program = behind
        .program(
            "",
            "outbox: {maxRecords: 1, sourcePercent: 100}\ningest: {maxBodyBytes: 4Ki}\nshutdown: {drainTimeout: 0s}\n",
        )
        .await;
    let client = &mut program.client().await;
    let body = |object: &str| json_of(&event("node-1", object, "R", "m"));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &body("web-0")).await.outcome(), Some("created"));
    let stored = |length: usize| format!("stored {length}");
    // The outbox is full.
    let full = body("web-1");
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &full).await.text(), stored(full.len()));
    // An unsupported media type.
    let reply = client.send("POST", EVENTS, &[CALLER, ("Content-Type", "application/cbor")], b"\xd9\xd9\xf7").await;
    assert_eq!(reply.text(), stored(3));
    // Larger than the limit of a body.
    let large = "x".repeat(5000);
    assert_eq!(client.send("POST", EVENTS, &[CALLER], large.as_bytes()).await.text(), stored(5000));
    let pieces = [&large[..3000], &large[3000..]];
    assert_eq!(client.post_pieces(EVENTS, pieces.into_iter().map(str::as_bytes)).await.text(), stored(5000));
    assert_eq!(count(&program, "fallback").await, 4.0);
    // A patch of the forwarded event is forwarded too.
    let name =
        serde_json::from_slice::<serde_json::Value>(&full).unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    assert_eq!(client.patch(&name, &json!({"count": 2})).await.text(), stored(11));
    // The apiserver has deleted it, and ingest does not know it.
    is_kept.store(false, Ordering::Relaxed);
    assert_eq!(client.patch(&name, &json!({"count": 3})).await.status, 404);
    assert_eq!(client.patch(&name, &json!({"count": 3})).await.status, 404);
    let patches = behind.passed_on().iter().filter(|seen| seen.line.starts_with("PATCH")).count();
    assert_eq!((patches, count(&program, "fallback").await), (2, 6.0));
    let passed_on = behind.passed_on();
    assert_eq!(passed_on[0].header("authorization"), Some(CALLER.1));
    assert_eq!(passed_on[1].header("content-type"), Some("application/cbor"));
    // An event that the apiserver would refuse too is not forwarded.
    assert_eq!(client.send("POST", EVENTS, &[CALLER], b"{").await.status, 400);
    assert_eq!(client.send("POST", EVENTS, &[CALLER], b"{\"kind\":\"Pod\"}").await.status, 400);
    assert_eq!(behind.passed_on().len(), 6);
    // The apiserver's refusal is the client's answer.
    is_up.store(false, Ordering::Relaxed);
    let reply = client.send("POST", EVENTS, &[CALLER], &full).await;
    assert_eq!((reply.status, reply.text()), (503, "down".to_owned()));
    program.app.stop().await;
}

/// Fault: it was counted, and stored again by the API server: a list was asked for, and the answer is an event.
#[tokio::test]
async fn a_request_is_not_forwarded_after_it_was_carried_out() {
    let behind = Behind::plain(|request| async move {
        if is_ours(&request) && request.method() == Method::POST { created(request).await } else { answer(404, "{}") }
    })
    .await;
    let program = behind.program("", "shutdown: {drainTimeout: 0s}\n").await;
    let client = &mut program.client().await;
    let event = event("node-1", "web-0", "R", "m");
    let list = ("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let reply = client.send("POST", EVENTS, &[CALLER, list], &json_of(&event)).await;
    assert_eq!((reply.status, reply.outcome()), (406, Some("created")), "{}", reply.text());
    let strategic = ("Content-Type", "application/strategic-merge-patch+json");
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let reply = client.send("PATCH", &path, &[CALLER, list, strategic], b"{\"count\":2}").await;
    assert_eq!((reply.status, reply.outcome()), (406, Some("counted")), "{}", reply.text());
    assert!(behind.passed_on().is_empty(), "{:?}", behind.passed_on());
    assert_eq!(program.balance().ledger.received(), 2);
    program.app.stop().await;
}

/// Fault: ingest counts it a second time, and its 429 was the answer.
#[tokio::test]
async fn an_event_for_which_ingest_has_no_room_is_forwarded() {
    let behind = Behind::plain(|request| async move { answer(if is_ours(&request) { 404 } else { 201 }, "{}") }).await;
    let program = behind.program("", "ingest: {maxBodyBytes: 4096, maxReadBytes: 4096}\n").await;
    // It takes half of what two bodies may have.
    let begun =
        format!("POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4096\r\n\r\n{}", "x".repeat(4000));
    let mut other = tokio::net::TcpStream::connect(program.app.address()).await.unwrap();
    other.write_all(begun.as_bytes()).await.unwrap();
    program.until_metric("eventweir_ingest_read_bytes", |bytes| bytes >= 4000.0).await;
    let client = &mut program.client().await;
    let event = json_of(&event("node-1", "web-0", "R", &"m".repeat(2500)));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &event).await.status, 201);
    assert_eq!((behind.passed_on().len(), count(&program, "fallback").await), (1, 1.0));
    assert_eq!(program.balance().ledger.rejected(RejectReason::Limited), 1);
    // A change is not: its event may count other clients' occurrences.
    let change = [CALLER, ("Content-Type", "application/merge-patch+json")];
    let reply = client.send("PATCH", &format!("{EVENTS}/a"), &change, &[b' '; 3000]).await;
    assert_eq!((reply.status, behind.passed_on().len()), (429, 1));
    drop(other);
    program.app.stop().await;
}

/// Fault: changes of the event that was posted next under the name were forwarded, and set its count.
#[tokio::test]
async fn the_name_of_a_forwarded_event_is_free_after_its_deletion() {
    let behind = Behind::plain(|request| async move {
        if is_ours(&request) {
            only_pending(&request).await
        } else {
            answer(if request.method() == Method::POST { 201 } else { 200 }, "{}")
        }
    })
    .await;
    let full = "outbox: {maxRecords: 1, sourcePercent: 100}\nshutdown: {drainTimeout: 0s}\n";
    let program = behind.program("", full).await;
    let client = &mut program.client().await;
    let [first, other] = ["web-0", "web-1"].map(|object| event("node-1", object, "R", "m"));
    client.send("POST", EVENTS, &[CALLER], &json_of(&first)).await;
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &json_of(&other)).await.status, 201);
    let name = other.metadata.name.as_str();
    assert_eq!(client.send("DELETE", &format!("{EVENTS}/{name}"), &[CALLER], b"").await.status, 200);
    assert_eq!(client.patch(name, &json!({"count": 2})).await.status, 404);
    assert_eq!(behind.passed_on().len(), 2);
    program.app.stop().await;
}

#[tokio::test]
async fn a_change_that_eventweir_may_not_make_is_forwarded_with_the_callers_rights() {
    let behind = Behind::plain(|request| async move {
        match (is_ours(&request), request.method()) {
            (true, _) => {
                answer(403, r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}"#)
            }
            (false, &Method::DELETE) => answer(200, "deleted"),
            (false, _) => answer(500, ""),
        }
    })
    .await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    let reply = client.send("DELETE", &format!("{EVENTS}/a"), &[CALLER], b"").await;
    assert_eq!((reply.status, reply.text()), (200, "deleted".to_owned()));
    // Nothing remains uncounted, so no alert fires.
    assert_eq!((count(&program, "forwarded").await, count(&program, "fallback").await), (1.0, 0.0));
    // A request with impersonation is forwarded at once.
    let asked = behind.seen().len();
    let jane = [CALLER, ("Impersonate-User", "jane")];
    assert_eq!(client.send("DELETE", &format!("{EVENTS}/a"), &jane, b"").await.text(), "deleted");
    assert_eq!((behind.seen().len() - asked, count(&program, "forwarded").await), (1, 2.0));
    program.stop().await;
}

#[tokio::test]
async fn an_unreachable_apiserver_is_a_503_until_it_is_back() {
    let handler = |request| async move { if is_ours(&request) { created(request).await } else { answer(200, "{}") } };
    let behind = Behind::plain(handler).await;
    let address = behind.address;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    assert_eq!(client.get("/api").await.status, 200);
    drop(behind);
    // The pooled connection may break before it is known to be closed.
    let reply = client.get("/api").await;
    assert!([502, 503].contains(&reply.status), "{reply:?}");
    let reply = client.get("/api").await;
    let status = reply.json();
    assert_eq!(
        (reply.status, reply.header("Retry-After"), status["reason"].as_str()),
        (503, Some("1"), Some("ServiceUnavailable"))
    );
    assert_eq!(status["kind"], "Status");
    // Events are still accepted.
    let body = json_of(&event("node-1", "web-0", "R", "m"));
    assert_eq!(client.send("POST", EVENTS, &[CALLER], &body).await.status, 201);
    let behind = Behind::at(address, handler).await;
    assert_eq!(client.get("/api").await.status, 200);
    program.settle().await;
    assert!(behind.seen().iter().any(|seen| seen.is_ours() && seen.line.starts_with("POST")));
    program.stop().await;
}

const ONE: std::num::NonZeroUsize = std::num::NonZeroUsize::MIN;

/// The pass-through of a program, in front of a face that answers 201.
fn alone(program: &Program, bodies: FairPlaces) -> impl Answer {
    alone_with(program, bodies, access::Settings::default())
}

/// The same, with callers.
fn alone_with(program: &Program, bodies: FairPlaces, callers: access::Settings) -> impl Answer {
    let Upstream::Apiserver(apiserver) = program.app.upstream() else { unreachable!() };
    let settings = Settings { max_in_flight: ONE, max_upgrades: ONE, max_body_bytes: 1 << 10, body_timeout: DEADLINE };
    let face = service_fn(|_: Request<Body>| async { Ok(answer(201, "taken")) });
    let metrics = Metrics::new(&Registry::new());
    let forwarder = apiserver.forwarder().expect("an API server").clone();
    let ask: access::Ask = Arc::new(|_, _| Box::pin(std::future::pending()));
    let counted = access::Metrics::new(&Registry::new());
    let access = Access::new(callers, ask, Clock::simulated(0), KeySecret(7, 9), counted);
    let callers = Callers { access, forwarder, impersonator: None };
    let passthrough =
        Passthrough::new(settings, callers, metrics, bodies, TaskTracker::new(), CancellationToken::new());
    passthrough.service(face, Origins::any_host())
}

/// Fault: clients without credentials could keep any number of bodies in memory.
#[tokio::test]
async fn an_event_for_which_other_bodies_leave_no_room_is_forwarded() {
    let behind = Behind::plain(|_| async { answer(401, "{}") }).await;
    let program = behind.program("", "").await;
    let bodies = FairPlaces::new(ONE, IntGauge::new("bytes", "a test's").unwrap());
    let service = alone(&program, bodies.clone());
    for (is_taken, status) in [(false, 201), (true, 401), (false, 201)] {
        let other = is_taken.then(|| bodies.take("", 1).unwrap());
        let request = Request::post(EVENTS).header(CALLER.0, CALLER.1).body(Body::from("{}")).unwrap();
        let Ok(response) = service.clone().oneshot(request).await;
        assert_eq!(response.status(), status);
        drop(other);
    }
    assert_eq!(behind.seen().iter().filter(|seen| seen.line.starts_with("POST")).count(), 1);
    program.stop().await;
}

/// Fault: the API server replaced the count of the record, which has other clients' occurrences, by this client's total.
#[tokio::test]
async fn a_change_of_an_event_without_room_or_in_time_is_not_forwarded() {
    let behind = Behind::plain(|_| async { answer(200, "{}") }).await;
    let program = behind.program("", "").await;
    let bodies = FairPlaces::new(ONE, IntGauge::new("bytes", "a test's").unwrap());
    let service = alone(&program, bodies.clone());
    let change = async |method: &str, body: Body| {
        let request = Request::builder().method(method).uri(format!("{EVENTS}/a")).header(CALLER.0, CALLER.1);
        let Ok(response) = service.clone().oneshot(request.body(body).unwrap()).await;
        (response.status().as_u16(), response.headers().contains_key("Retry-After"))
    };
    let other = bodies.take("", 1).unwrap();
    for method in ["PATCH", "PUT", "DELETE"] {
        assert_eq!(change(method, Body::from("{}")).await, (429, true), "{method}");
    }
    drop(other);
    assert_eq!(change("PATCH", Body::from("{}")).await.0, 201, "ingest has it");
    tokio::time::pause();
    let late = Body::from_stream(stream::pending::<std::io::Result<String>>());
    assert_eq!(change("PATCH", late).await, (408, false));
    tokio::time::resume();
    assert!(behind.passed_on().is_empty());
    program.stop().await;
}

/// Fault: curl reported the reset of the stream, and not the refusal.
#[tokio::test]
async fn a_refused_body_is_read_over_http2() {
    let behind = Behind::plain(|_| async { answer(200, "{}") }).await;
    let program = behind.program("", "").await;
    let bodies = FairPlaces::new(ONE, IntGauge::new("bytes", "a test's").unwrap());
    let tokens = access::TokenReview { is_on: true, ..access::TokenReview::default() };
    let service = alone_with(&program, bodies, access::Settings { tokens, ..access::Settings::default() });
    for (version, is_read) in [(Version::HTTP_2, true), (Version::HTTP_11, false)] {
        let was_read = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&was_read);
        let body = Body::from_stream(stream::once(async move {
            noted.store(true, Ordering::Relaxed);
            Ok::<_, std::io::Error>("{}")
        }));
        // Without a token no review is needed.
        let request = Request::post(EVENTS).version(version).body(body).unwrap();
        let Ok(_) = service.clone().oneshot(request).await;
        assert_eq!(was_read.load(Ordering::Relaxed), is_read);
    }
    assert!(behind.passed_on().is_empty());
    program.stop().await;
}

#[tokio::test]
async fn a_client_with_only_a_certificate_is_refused_with_the_reason() {
    let behind = Behind::plain(|_| async { answer(200, "{}") }).await;
    let program = behind.program("", "").await;
    let service = alone(&program, FairPlaces::new(ONE, IntGauge::new("bytes", "a test's").unwrap()));
    let certificate = PeerCertificate { common_name: "jane".to_owned(), organizations: Vec::new(), expires: i64::MAX };
    let peer = Peer { certificate: Some(certificate), ..Peer::default() };
    let ask = async |method: &str, path: &str, headers: &[(&'static str, &'static str)]| {
        let mut request = Request::builder().method(method).uri(path).extension(peer.clone());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let Ok(response) = service.clone().oneshot(request.body(Body::empty()).unwrap()).await;
        let status = response.status().as_u16();
        (status, String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    };
    for headers in [&[][..], &[("Connection", "Upgrade"), ("Upgrade", "websocket")][..]] {
        let (status, text) = ask("GET", "/api/v1/pods", headers).await;
        assert!(status == 401 && text.contains("client certificate") && text.contains("\"Unauthorized\""), "{text}");
    }
    assert_eq!(ask("GET", "/api/v1/pods", &[CALLER]).await, (200, "{}".to_owned()));
    assert_eq!(ask("POST", EVENTS, &[]).await, (201, "taken".to_owned()), "events are written as us");
    assert_eq!(ask("CONNECT", "example.org:443", &[]).await.0, 405);
    program.stop().await;
}

#[tokio::test]
async fn requests_of_another_origin_are_refused_and_not_forwarded() {
    let behind = Behind::plain(|_| async { answer(200, "{}") }).await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    for foreign in [("Host", "evil.example"), ("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")] {
        for (method, path, upgrade) in [
            ("GET", "/api/v1/secrets", ""),
            ("POST", "/api/v1/namespaces/a/pods", ""),
            ("DELETE", EVENTS, ""),
            ("POST", EVENTS, ""),
            ("GET", "/eventweir/v1/events", ""),
            ("GET", "/api/v1/namespaces/a/pods/b/exec", "websocket"),
        ] {
            let mut headers = vec![CALLER, foreign];
            if !upgrade.is_empty() {
                headers.extend([("Connection", "Upgrade"), ("Upgrade", upgrade)]);
            }
            let reply = client.send(method, path, &headers, b"").await;
            assert_eq!(
                (reply.status, &reply.json()["reason"]),
                (403, &"Forbidden".into()),
                "{foreign:?} {method} {path}"
            );
        }
    }
    assert_eq!((behind.seen().len(), count(&program, "refused").await), (0, 18.0));
    // As Python's WebSocket client sends them.
    let host = program.app.address().to_string();
    let own = [CALLER, ("Host", &host), ("Origin", &format!("http://{host}"))];
    assert_eq!(client.send("GET", "/api/v1/pods", &own, b"").await.status, 200);
    program.stop().await;
}

#[tokio::test]
async fn requests_over_the_limit_are_refused_with_429() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let behind = Behind::plain(move |_| {
        let gate = Arc::clone(&opened);
        async move {
            gate.acquire().await.unwrap().forget();
            answer(200, "{}")
        }
    })
    .await;
    // One caller has half.
    let program = behind.program("maxInFlight: 4", "").await;
    let held: Vec<_> = [program.client().await, program.client().await]
        .into_iter()
        .map(|mut client: Client| {
            let mut tasks = JoinSet::new();
            tasks.spawn(async move { client.get("/api").await.status });
            tasks
        })
        .collect();
    program.until("two are there", || behind.seen().len() == 2).await;
    assert_eq!(program.metrics().await["eventweir_passthrough_in_flight"], 2.0);
    let client = &mut program.client().await;
    let reply = client.get("/api").await;
    assert_eq!((reply.status, reply.header("Retry-After")), (429, Some("1")));
    assert!(reply.text().contains("passthrough.maxInFlight"), "{}", reply.text());
    gate.add_permits(3);
    for tasks in held {
        assert_eq!(tasks.join_all().await, [200]);
    }
    assert_eq!(client.get("/api").await.status, 200);
    assert_eq!((count(&program, "forwarded").await, count(&program, "refused").await), (3.0, 1.0));
    assert_eq!(program.metrics().await["eventweir_passthrough_in_flight"], 0.0);
    program.stop().await;
}

#[tokio::test]
async fn more_watches_than_one_connection_allows_do_not_block_other_requests() {
    let behind = Behind::tls(&["h2", "http/1.1"], |request| async move {
        let is_watch = request.uri().query().is_some();
        answer(
            200,
            if is_watch {
                Body::from_stream(futures_util::stream::pending::<Result<String, String>>())
            } else {
                Body::from("{}")
            },
        )
    })
    .await;
    let program = behind.program("", "").await;
    let client = HyperClient::builder(TokioExecutor::new()).http2_only(true).build_http::<Body>();
    let get = |path: &str| {
        let uri = format!("http://{}{path}", program.app.address());
        let request = Request::get(uri).header(CALLER.0, CALLER.1).body(Body::empty()).unwrap();
        client.request(request)
    };
    let mut watches = Vec::new();
    for _ in 0..150 {
        watches.push(get("/api/v1/pods?watch=1").await.unwrap());
    }
    let answer = tokio::time::timeout(DEADLINE, get("/api/v1/pods")).await.unwrap().unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
    let seen = behind.passed_on();
    assert!(seen.iter().all(|seen| seen.version == Version::HTTP_2 && seen.header("host").is_none()));
    let connections: std::collections::BTreeSet<usize> = seen.iter().map(|seen| seen.connection).collect();
    // The first request shows that the token is accepted.
    assert_eq!((seen.len(), connections.len()), (151, 1 + 3));
    // The stop does not wait for watches.
    program.stop().await;
    let broken = watches.remove(0).into_body().collect().await;
    assert!(broken.is_err(), "a watch that is cut is no watch that has ended");
}

#[tokio::test]
async fn a_client_over_tls_needs_nothing_but_the_authority_and_its_token() {
    let behind = Behind::tls(&["h2", "http/1.1"], |request| async move {
        if is_ours(&request) {
            return created(request).await;
        }
        if request.headers().contains_key(UPGRADE) {
            return shout(request).await;
        }
        let watch = stream::once(async { Ok::<_, String>("a line\n") }).chain(stream::pending());
        answer(200, if request.uri().query().is_some() { Body::from_stream(watch) } else { Body::from("the list") })
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display();
    let yaml = format!("tls: {{selfSigned: {{dir: {dir}}}}}\nshutdown: {{drainTimeout: 0s}}\n");
    let program = behind.program("", &yaml).await;
    let address = program.app.address();
    let authority = CertificateDer::from_pem_file(folder.path().join("ca.crt")).unwrap();
    let connected = Trust { protocol: "h2", ..Trust::of(&authority) }.connect_as("127.0.0.1", address).await.unwrap();
    assert_eq!(connected.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(connected)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { connection.await.is_ok() });
    let send = |method: Method, path: &str, body: Vec<u8>| {
        let request = Request::builder().method(method).uri(format!("https://{address}{path}"));
        let request = request.header(CALLER.0, CALLER.1).header("Content-Type", "application/json");
        let (mut sender, request) = (sender.clone(), request.body(Body::from(body)).unwrap());
        async move { sender.send_request(request).await.unwrap() }
    };
    for _ in 0..10 {
        let body = json_of(&event("node-1", "web-0", "BackOff", "restarting"));
        assert_eq!(send(Method::POST, EVENTS, body).await.status(), 201);
    }
    let list = send(Method::GET, "/api/v1/pods", Vec::new()).await;
    assert_eq!((list.status().as_u16(), list.version()), (200, Version::HTTP_2));
    assert_eq!(list.into_body().collect().await.unwrap().to_bytes(), "the list");
    let mut watch = send(Method::GET, "/api/v1/pods?watch=1", Vec::new()).await;
    let first = tokio::time::timeout(DEADLINE, watch.frame()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "a line\n");
    // Tunnels need HTTP/1.1, so such a client opens another connection.
    let (mut tunnel, head) = exec_over(Trust::of(&authority).connect(address).await.unwrap()).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert_eq!(line(&mut tunnel).await, "hello\n");
    tunnel.write_all(b"ls\n").await.unwrap();
    assert_eq!(line(&mut tunnel).await, "LS\n");
    let ours = behind.seen().iter().filter(|seen| seen.is_ours() && seen.line.starts_with("POST")).count();
    assert_eq!((ours, count(&program, "events").await), (1, 10.0));
    for seen in behind.passed_on() {
        assert_eq!((seen.header("authorization"), seen.has_certificate), (Some(CALLER.1), false), "{seen:?}");
    }
    drop((watch, tunnel));
    program.app.stop().await;
}
