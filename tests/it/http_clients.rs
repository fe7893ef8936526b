//! Clients with their own correlator, such as client-go: POST, then PATCH of growing counts under their own name.

use serde_json::json;

use super::support::app::start;
use super::support::events::plain;
use super::support::http::EVENTS;

#[tokio::test]
async fn growing_counts_are_occurrences() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let name = event.metadata.name.as_str();
    client.post(&event).await;
    for (count, occurrences) in [(2, 1), (3, 1), (7, 4), (7, 0), (5, 0)] {
        let before = program.balance().ledger.received();
        let patch = json!({"count": count, "lastTimestamp": "2026-03-01T08:10:00Z", "message": event.message.as_str()});
        let reply = client.patch(name, &patch).await;
        assert_eq!(reply.status, 200);
        assert_eq!((&reply.json()["count"], &reply.json()["metadata"]["name"]), (&json!(count), &json!(name)));
        assert_eq!(reply.outcome(), (occurrences > 0).then_some("counted"));
        assert_eq!(program.balance().ledger.received() - before, occurrences, "to {count}");
    }
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count), (1, 7));
    assert_eq!(stored[0].last_timestamp.unwrap().to_string(), "2026-03-01T08:10:00Z");
    assert_eq!(program.stop().await.ledger.total_written(), 7);
}

#[tokio::test]
async fn two_clients_count_on_one_record_under_their_own_names() {
    let program = start("").await;
    let (mine, yours) = (&mut program.client().await, &mut program.client().await);
    let (my_event, your_event) = (plain(), plain());
    let (my_name, your_name) = (my_event.metadata.name.as_str(), your_event.metadata.name.as_str());
    assert_ne!(my_name, your_name);
    assert_eq!(mine.post(&my_event).await.outcome(), Some("created"));
    assert_eq!(yours.post(&your_event).await.outcome(), Some("counted"));
    for count in 2..=4 {
        let reply = mine.patch(my_name, &json!({"count": count})).await;
        assert_eq!((reply.outcome(), &reply.json()["count"]), (Some("counted"), &json!(count)));
        let reply = yours.patch(your_name, &json!({"count": count * 10})).await;
        assert_eq!((reply.outcome(), &reply.json()["count"]), (Some("counted"), &json!(count * 10)));
    }
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count), (1, 44));
    // Both names show the record with both counts.
    for name in [my_name, your_name] {
        let shown = mine.get(&format!("{EVENTS}/{name}")).await.json();
        assert_eq!((&shown["count"], &shown["metadata"]["name"]), (&json!(44), &json!(name)));
    }
    assert_eq!(program.stop().await.ledger.total_written(), 44);
}

#[tokio::test]
async fn a_patch_of_an_unknown_name_is_answered_404() {
    let program = start("").await;
    let client = &mut program.client().await;
    let reply = client.patch("nobody.1", &json!({"count": 3})).await;
    let status = reply.json();
    assert_eq!((reply.status, &status["reason"]), (404, &json!("NotFound")));
    assert_eq!(status["message"], "events \"nobody.1\" not found");
    assert_eq!((&status["details"]["name"], &status["details"]["kind"]), (&json!("nobody.1"), &json!("events")));
    assert_eq!(program.balance().ledger.received(), 0);
    program.stop().await;
}

#[tokio::test]
async fn a_malformed_patch_is_refused_and_counted_only_if_it_may_be_an_occurrence() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let path = format!("{EVENTS}/{}", event.metadata.name);
    client.post(&event).await;
    program.settle().await;
    for (kind, body, code) in [
        ("application/json", r#"{"count":2}"#, 415),
        ("application/strategic-merge-patch+json", r#"{"count":"2"}"#, 422),
        ("application/merge-patch+json", "{", 400),
        ("application/json-patch+json", "{}", 400),
    ] {
        let reply = client.send("PATCH", &path, &[("Content-Type", kind)], body.as_bytes()).await;
        assert_eq!(reply.status, code, "{kind} {body}");
    }
    let reply =
        client.send("PATCH", &path, &[("Content-Type", "application/merge-patch+json")], br#"{"count":2}"#).await;
    assert_eq!((reply.status, reply.outcome()), (200, Some("counted")));
    program.settle().await;
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.total_written(), ledger.total_rejected()), (2, 1));
}

#[tokio::test]
async fn an_evicted_alias_is_answered_404() {
    let program = start("ingest: {maxAliases: 2}\n").await;
    let client = &mut program.client().await;
    let events = [plain(), plain(), plain()];
    for event in &events {
        client.post(event).await;
    }
    assert_eq!(client.patch(&events[0].metadata.name, &json!({"count": 2})).await.status, 404);
    assert_eq!(client.patch(&events[2].metadata.name, &json!({"count": 2})).await.status, 200);
    program.settle().await;
    assert_eq!(program.stop().await.ledger.total_written(), 4);
}
