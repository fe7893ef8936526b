//! Pass-through: events that the API server has got from a client, and on which eventweir or a replica counts since.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use eventweir::event::Event;
use eventweir::outbox::LostReason;
use serde_json::json;

use super::support::app::{APISERVER, Program, start, start_with_kubeconfig};
use super::support::behind::{Behind, answer};
use super::support::events::event;
use super::support::http::{Client, EVENTS};

/// Starts a program in pass-through in front of an API server, with more configuration.
async fn before(apiserver: &Program, more: &str) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", apiserver.app.address()) } }],
        "users": [{ "name": "u", "user": { "token": "ours" } }],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let yaml = format!("upstream: {{kind: apiserver}}\npassthrough: {{enabled: on, insecure: true}}\n{more}");
    let program = start_with_kubeconfig(&path, &yaml).await;
    program.until_news("relist", 1.0).await;
    program
}

/// Starts a program whose outbox is full, and passes on an event that it has no room for. Returns the event, and an
/// equal one of another client.
async fn with_an_event_passed_on(apiserver: &Program) -> (Program, [Event; 2]) {
    let more = "outbox: {maxRecords: 1, sourcePercent: 100}\ncorrelation: {burstSize: 1}\n";
    let program = before(apiserver, more).await;
    let client = &mut program.client().await;
    let other = || event("node-1", "web-0", "Other", "m");
    assert_eq!(client.post(&other()).await.outcome(), Some("created"));
    program.until("it is written", || program.balance().ledger.total_written() == 1).await;
    // It waits for its object's next token.
    assert_eq!(client.post(&other()).await.outcome(), Some("deferred"));
    let [mine, equal] = [(); 2].map(|()| event("node-1", "web-0", "Mine", "m"));
    assert_eq!((client.post(&mine).await.status, passed_on(&program).await), (201, 1.0));
    program.until_news("stored", 2.0).await;
    (program, [mine, equal])
}

/// Returns the number of writes that were passed on.
async fn passed_on(program: &Program) -> f64 {
    program.metrics().await["eventweir_passthrough_requests_total{kind=\"fallback\"}"]
}

fn path(event: &Event) -> String {
    format!("{EVENTS}/{}", event.metadata.name)
}

/// Patches an event like client-go: if it is missing, the event is posted. Returns the codes of the answers.
async fn count(client: &mut Client, event: &Event, count: i32) -> Vec<u16> {
    let patched = client.patch(&event.metadata.name, &json!({"count": count})).await.status;
    if patched != 404 {
        return vec![patched];
    }
    vec![patched, client.post(&Event { count, ..event.clone() }).await.status]
}

/// Returns the count of the event that was passed on, while it exists.
async fn shown(apiserver: &Program) -> Vec<i32> {
    let stored = apiserver.stored().await.into_iter();
    stored.filter(|event| event.reason == "Mine").map(|event| event.count).collect()
}

/// Fault: the API server deleted it without eventweir, which created it again with the occurrence that waited.
#[tokio::test]
async fn an_event_that_was_passed_on_and_is_counted_is_not_created_again_after_its_deletion() {
    let apiserver = start(APISERVER).await;
    let (program, [mine, equal]) = with_an_event_passed_on(&apiserver).await;
    let client = &mut program.client().await;
    assert_eq!(client.post(&equal).await.outcome(), Some("deferred"));
    assert_eq!((shown(&apiserver).await, program.balance().total_waiting()), (vec![1], 2));
    assert_eq!(client.send("DELETE", &path(&mine), &[], b"").await.status, 200);
    program.settle().await;
    assert!(shown(&apiserver).await.is_empty());
    assert_eq!(program.balance().ledger.lost(LostReason::Deleted), 1);
    program.stop().await;
}

/// Fault: the API server replaced the count of all clients by the total of this one.
#[tokio::test]
async fn a_patch_of_an_event_that_was_passed_on_hides_no_occurrence_of_others() {
    for is_written in [true, false] {
        let apiserver = start(APISERVER).await;
        let (program, [mine, equal]) = with_an_event_passed_on(&apiserver).await;
        let client = &mut program.client().await;
        // Nothing else counts on it yet.
        assert_eq!(count(client, &mine, 2).await, [200]);
        program.until_news("stored", 3.0).await;
        assert_eq!((shown(&apiserver).await, passed_on(&program).await), (vec![2], 2.0));
        assert_eq!(client.post(&equal).await.outcome(), Some("deferred"));
        if is_written {
            program.settle().await;
        }
        assert_eq!(count(client, &mine, 3).await, [404, 201], "{is_written}");
        assert_eq!(count(client, &mine, 4).await, [200]);
        program.settle().await;
        assert_eq!((shown(&apiserver).await, passed_on(&program).await), (vec![5], 2.0), "{is_written}");
        program.stop().await;
    }
}

/// Fault: each replica counted the other one's occurrences of the client once more.
#[tokio::test]
async fn a_client_of_an_event_that_was_passed_on_may_change_between_replicas() {
    let apiserver = start(APISERVER).await;
    let (one, [mine, _]) = with_an_event_passed_on(&apiserver).await;
    let two = before(&apiserver, "").await;
    let clients = &mut [one.client().await, two.client().await];
    for (total, replica, codes) in [(2, 1, &[404, 201][..]), (3, 0, &[404, 201]), (4, 1, &[200]), (5, 0, &[200])] {
        assert_eq!(count(&mut clients[replica], &mine, total).await, codes, "{total}");
        for program in [&one, &two] {
            program.settle().await;
        }
        assert_eq!(shown(&apiserver).await, [total]);
    }
    assert_eq!(passed_on(&one).await, 1.0);
    for program in [one, two] {
        program.stop().await;
    }
}

/// Fault: a replica that could not ask about the caller passed the patch on, and it replaced the count of all clients.
#[tokio::test]
async fn a_change_of_an_event_that_a_replica_counts_waits_for_the_review_of_its_caller() {
    let (known, other) = ("Bearer known", "Bearer other");
    for (token, method, has_tag, expected) in [
        (known, "PATCH", true, (503, Some("1"), 1)),
        (known, "DELETE", true, (503, Some("1"), 1)),
        (known, "PATCH", false, (200, None, 2)),
        // It is not known that the API server accepts this token.
        (other, "PATCH", true, (200, None, 2)),
    ] {
        let behind = Behind::plain(move |request| {
            let is_review = request.uri().path().ends_with("reviews");
            let annotations = if has_tag { json!({"tally.eventweir/it.0.0": "5@1"}) } else { json!({}) };
            let metadata =
                json!({"name": "a", "namespace": "shop", "resourceVersion": "7", "annotations": annotations});
            let stored = json!({"kind": "Event", "apiVersion": "v1", "metadata": metadata}).to_string();
            async move { if is_review { answer(500, "{}") } else { answer(200, stored) } }
        })
        .await;
        let program = behind.program("", "auth: {outageTTL: 0s, tokenReview: {enabled: true, cacheTTL: 0s}}\n").await;
        let client = &mut program.client().await;
        assert_eq!(client.send("GET", "/api/v1/pods", &[("Authorization", known)], b"").await.status, 200);
        let headers = [("Authorization", token), ("Content-Type", "application/merge-patch+json")];
        let body = if method == "PATCH" { &b"{\"count\":4}"[..] } else { b"" };
        let reply = client.send(method, &format!("{EVENTS}/a"), &headers, body).await;
        let case = format!("{token} {method} {has_tag}: {}", reply.text());
        assert_eq!((reply.status, reply.header("Retry-After"), behind.passed_on().len()), expected, "{case}");
        program.stop().await;
    }
}
