//! Pass-through with authentication: unauthorised events are refused, and events that cannot be reviewed are forwarded.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::response::Response;
use eventweir::ledger::RejectReason;
use http::{Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::support::app::{DEADLINE, Program};
use super::support::behind::{Behind, OURS, answer, created};
use super::support::events::event;
use super::support::http::{Client, EVENTS, Reply, json as json_of};

const TOKENS: &str = "auth: {tokenReview: {enabled: true}, subjectAccessReview: {enabled: true}}\n\
    shutdown: {drainTimeout: 0s}\n";
/// Limit of token reviews in flight.
const REVIEWS: usize = 64;

/// Reads a review.
async fn question(request: Request<Incoming>) -> Value {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

/// Answers like an apiserver with the users `writer` and `reader`, of which only the first may write events.
async fn with_users(request: Request<Incoming>) -> Response {
    let is_ours = request.headers().get("Authorization").is_some_and(|value| value == OURS);
    match (is_ours, request.uri().path(), request.method()) {
        (true, "/apis/authentication.k8s.io/v1/tokenreviews", _) => {
            let mut review = question(request).await;
            let token = review["spec"]["token"].as_str().unwrap();
            let is_known = ["writer", "reader"].contains(&token);
            review["status"] = json!({"authenticated": is_known, "user": {"username": token}});
            answer(201, review.to_string())
        }
        (true, "/apis/authorization.k8s.io/v1/subjectaccessreviews", _) => {
            let mut review = question(request).await;
            review["status"] = json!({"allowed": review["spec"]["user"] == "writer"});
            answer(201, review.to_string())
        }
        (true, _, &Method::POST) => created(request).await,
        (true, ..) => answer(404, "{}"),
        (false, ..) => answer(200, "the apiserver's"),
    }
}

async fn send(client: &mut Client, method: &str, path: &str, token: &str) -> Reply {
    let (authorization, body) = (format!("Bearer {token}"), json_of(&event("node-1", "web-0", "R", "m")));
    let body = if method == "POST" { &body[..] } else { b"" };
    client.send(method, path, &[("Authorization", &authorization)], body).await
}

async fn fallbacks(program: &Program) -> f64 {
    program.metrics().await["eventweir_passthrough_requests_total{kind=\"fallback\"}"]
}

#[tokio::test]
async fn an_event_of_an_unauthorised_caller_is_not_forwarded() {
    let behind = Behind::plain(with_users).await;
    let program = behind.program("", TOKENS).await;
    let client = &mut program.client().await;
    assert_eq!(send(client, "POST", EVENTS, "writer").await.outcome(), Some("created"));
    for (token, code, reason) in [("nobody", 401, "Unauthorized"), ("reader", 403, "Forbidden")] {
        let reply = send(client, "POST", EVENTS, token).await;
        let status = reply.json();
        assert_eq!((reply.status, &status["kind"], &status["reason"]), (code, &"Status".into(), &reason.into()));
    }
    let none = client.send("POST", EVENTS, &[], &json_of(&event("node-1", "web-0", "R", "m"))).await;
    assert_eq!(none.status, 401);
    let forbidden = send(client, "POST", EVENTS, "reader").await.json();
    let message =
        r#"events is forbidden: User "reader" cannot create resource "events" in API group "" in the namespace "shop""#;
    assert_eq!(forbidden["message"], message);
    assert!(behind.passed_on().is_empty(), "{:?}", behind.passed_on());
    // A change of an event needs the caller's own rights, which only the apiserver knows.
    let one = format!("{EVENTS}/a");
    assert_eq!(send(client, "DELETE", &one, "reader").await.text(), "the apiserver's");
    assert_eq!(behind.passed_on()[0].header("authorization"), Some("Bearer reader"));
    // All other requests are forwarded.
    assert_eq!(send(client, "GET", "/api/v1/pods", "nobody").await.text(), "the apiserver's");
    assert_eq!(fallbacks(&program).await, 0.0);
    program.settle().await;
    program.app.stop().await;
}

/// Sends an event whose body has one byte of 1,000, and returns the connection.
async fn unfinished(program: &Program, token: &str) -> TcpStream {
    let mut stream = TcpStream::connect(program.app.address()).await.unwrap();
    let head = format!("POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n");
    stream.write_all(format!("{head}Content-Length: 1000\r\n\r\n{{").as_bytes()).await.unwrap();
    stream
}

/// Fault: unfinished bodies of clients without credentials took all room, and others' events were not merged.
#[tokio::test]
async fn the_body_of_an_unknown_caller_is_not_waited_for() {
    let behind = Behind::plain(|request| async move {
        match question(request).await["spec"]["token"].as_str() {
            // The apiserver does not answer.
            Some("unreviewed") => answer(500, "{}"),
            _ => answer(201, json!({"status": {"authenticated": false}}).to_string()),
        }
    })
    .await;
    let program = behind.program("", TOKENS).await;
    let mut refused = unfinished(&program, "nobody").await;
    let mut code = [0; 12];
    tokio::time::timeout(DEADLINE, refused.read_exact(&mut code)).await.unwrap().unwrap();
    assert_eq!(&code, b"HTTP/1.1 401");
    let forwarded = unfinished(&program, "unreviewed").await;
    program.until("it is forwarded", || behind.passed_on().len() == 1).await;
    assert_eq!(program.metrics().await["eventweir_ingest_read_bytes"], 0.0);
    assert_eq!(program.balance().ledger.rejected(RejectReason::Denied), 2);
    drop(forwarded);
    program.app.stop().await;
}

#[tokio::test]
async fn an_event_whose_caller_cannot_be_reviewed_is_forwarded() {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let behind = Behind::plain(move |request| {
        let up = up.load(Ordering::Relaxed);
        async move {
            let is_ours = request.headers().get("Authorization").is_some_and(|value| value == OURS);
            match (is_ours, up) {
                (false, _) => answer(201, "stored"),
                (true, false) => answer(500, "{}"),
                (true, true) => std::future::pending().await,
            }
        }
    })
    .await;
    let program = behind.program("", TOKENS).await;
    let client = &mut program.client().await;
    // The apiserver does not answer reviews.
    assert_eq!(send(client, "POST", EVENTS, "caller").await.text(), "stored");
    // Reviews are slow, and too many are in flight.
    is_up.store(true, Ordering::Relaxed);
    let mut waiting = JoinSet::new();
    for number in 0..REVIEWS {
        let mut client = program.client().await;
        waiting.spawn(async move { send(&mut client, "POST", EVENTS, &format!("caller-{number}")).await.status });
    }
    let reviews = || behind.seen().iter().filter(|seen| seen.is_ours() && seen.line.contains("tokenreviews")).count();
    program.until("all are asked about", || reviews() == REVIEWS + 1).await;
    let last = tokio::time::timeout(DEADLINE, send(client, "POST", EVENTS, "another")).await.unwrap();
    assert_eq!((last.status, last.text()), (201, "stored".to_owned()));
    assert_eq!(fallbacks(&program).await, 2.0);
    assert!(behind.passed_on().iter().any(|seen| seen.header("authorization") == Some("Bearer another")));
    drop(waiting);
    program.app.stop().await;
}

/// Fault: the name of such an event was not kept, its PATCH was answered 404, and its client posted its total once more.
#[tokio::test]
async fn a_change_of_an_event_whose_caller_could_not_be_reviewed_is_forwarded() {
    let is_up = Arc::new(AtomicBool::new(true));
    let up = Arc::clone(&is_up);
    let behind = Behind::plain(move |request| {
        let up = up.load(Ordering::Relaxed);
        async move {
            let is_ours = request.headers().get("Authorization").is_some_and(|value| value == OURS);
            match (is_ours, request.method()) {
                (true, _) if up => with_users(request).await,
                (true, _) => answer(500, "{}"),
                (false, &Method::POST) => answer(201, "stored"),
                (false, _) => answer(200, "the apiserver's"),
            }
        }
    })
    .await;
    let policy = "auth: {outageTTL: 0s, tokenReview: {enabled: true, cacheTTL: 0s}, \
        subjectAccessReview: {enabled: true}}\n\
        shutdown: {drainTimeout: 0s}\n";
    let program = behind.program("", policy).await;
    let client = &mut program.client().await;
    // The API server has accepted the first token, and a review the second.
    for (token, method, path) in [("reader", "GET", "/api/v1/pods"), ("writer", "POST", EVENTS)] {
        assert!(send(client, method, path, token).await.status < 300);
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", &*bearer), ("Content-Type", "application/json")];
        let event = event("node-1", "web-0", "R", "m");
        is_up.store(false, Ordering::Relaxed);
        assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&event)).await.text(), "stored");
        is_up.store(true, Ordering::Relaxed);
        let one = format!("{EVENTS}/{}", event.metadata.name);
        let headers = [headers[0], ("Content-Type", "application/merge-patch+json")];
        assert_eq!(client.send("PATCH", &one, &headers, br#"{"count":2}"#).await.text(), "the apiserver's", "{token}");
    }
    program.app.stop().await;
}

/// Time is paused, and passes while the review is pending.
#[tokio::test(start_paused = true)]
async fn an_event_whose_review_does_not_end_is_forwarded() {
    let behind = Behind::plain(|request: Request<Incoming>| async move {
        let is_ours = request.headers().get("Authorization").is_some_and(|value| value == OURS);
        if is_ours { std::future::pending().await } else { answer(201, "stored") }
    })
    .await;
    let program = behind.program("", TOKENS).await;
    let reply = send(&mut program.client().await, "POST", EVENTS, "caller").await;
    assert_eq!((reply.status, reply.text()), (201, "stored".to_owned()));
    assert_eq!(fallbacks(&program).await, 1.0);
    assert_eq!(behind.passed_on()[0].header("authorization"), Some("Bearer caller"));
    program.app.stop().await;
}
