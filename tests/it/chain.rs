//! An eventweir whose kubeconfig names another eventweir.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use axum::response::Response;
use http::{Method, Request};
use hyper::body::Incoming;
use serde_json::json;

use super::support::app::{Program, start, start_with_kubeconfig};
use super::support::behind::{Behind, answer, created};
use super::support::events::event;
use super::support::http::EVENTS;

/// Fault: the other one accepted the event with an answer that has no version, so that each try of the create counted.
#[tokio::test]
async fn an_eventweir_refuses_the_writes_of_another_one() {
    let central = start("upstream: {embedded: {maxBytes: 1Mi}}\n").await;
    let edge = before(&central).await;
    edge.client().await.post(&event("node-1", "web-0", "R", "m")).await;
    edge.until("two writes have failed", || {
        edge.clock.advance(Duration::from_millis(500));
        edge.app.metrics_text().contains("eventweir_upstream_up 0")
    })
    .await;
    let path = "/eventweir/v1/explain?namespace=shop&object=pod/web-0";
    let answer = edge.client().await.send("GET", path, &[], b"").await.json();
    assert!(answer["answer"]["text"].to_string().contains("an eventweir cannot write to this one"), "{answer}");
    assert_eq!(edge.balance().total_waiting(), 1);
    // Neither does a patch of a record that both know.
    let mut client = central.client().await;
    let agent = [("User-Agent", "eventweir/0.1.0"), ("Content-Type", "application/merge-patch+json")];
    let patch = json!({ "count": 2 }).to_string();
    let reply = client.send("PATCH", &format!("{EVENTS}/web-0.1"), &agent, patch.as_bytes()).await;
    assert_eq!((reply.status, reply.header("Retry-After")), (503, Some("10")), "{}", reply.text());
    assert_eq!(client.send("GET", EVENTS, &agent[..1], b"").await.status, 200);
    let balance = central.balance();
    assert_eq!(balance.ledger.received(), balance.ledger.total_rejected());
    assert!(central.stored().await.is_empty());
}

/// With pass-through, the writes of another eventweir reach the API server as they are.
#[tokio::test]
async fn pass_through_forwards_the_writes_of_another_eventweir() {
    async fn handle(request: Request<Incoming>) -> Response {
        if request.method() == Method::POST { created(request).await } else { answer(200, "{}") }
    }
    let behind = Behind::plain(handle).await;
    let central = behind.program("", "").await;
    let edge = before(&central).await;
    edge.client().await.post(&event("node-1", "web-0", "R", "m")).await;
    edge.settle().await;
    let passed_on = behind.passed_on();
    let lines: Vec<_> = passed_on.iter().map(|seen| (&*seen.line, seen.header("authorization"))).collect();
    assert_eq!(lines, [(&*format!("POST {EVENTS}?fieldManager=eventweir"), Some("Bearer edge"))]);
    assert_eq!(edge.balance().ledger.total_written(), 1);
    assert_eq!(central.balance().ledger.received(), 0);
}

/// Starts a program whose kubeconfig names another one.
async fn before(central: &Program) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", central.app.address()) } }],
        "users": [{ "name": "u", "user": { "token": "edge" } }],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    start_with_kubeconfig(&path, "upstream: {kind: apiserver, history: off}\n").await
}
