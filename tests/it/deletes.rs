//! DELETE of names that clients chose.

use eventweir::ledger::Balance;
use eventweir::outbox::LostReason;
use serde_json::json;

use super::support::app::start;
use super::support::events::plain;
use super::support::http::{EVENTS, json as json_of};

fn deleted(balance: &Balance) -> u64 {
    balance.ledger.lost(LostReason::Deleted)
}

#[tokio::test]
async fn nothing_of_the_name_is_left_when_its_client_has_changed_the_message() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let path = format!("{EVENTS}/{}", event.metadata.name);
    client.post(&event).await;
    program.settle().await;
    let reply = client.patch(&event.metadata.name, &json!({"count": 2, "message": "another"})).await;
    assert_eq!(reply.status, 200);
    program.settle().await;
    assert_eq!(program.stored().await.len(), 2);
    // What still waits for the former record goes with it.
    client.post(&plain()).await;
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    assert_eq!(client.get(&path).await.status, 404);
    assert!(program.stored().await.is_empty());
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 404);
    program.settle().await;
    assert!(program.stored().await.is_empty());
    // Both begin anew.
    client.post(&event).await;
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count), (1, 1));
    let balance = program.stop().await;
    let told = balance.ledger.total_written() + deleted(&balance);
    assert_eq!((balance.ledger.received(), told), (4, 4));
}

#[tokio::test]
async fn a_strangers_event_of_the_same_name_stays() {
    let program = start("").await;
    let mut stranger = plain();
    stranger.reason = "Strange".into();
    let path = format!("{EVENTS}/{}", stranger.metadata.name);
    let headers = [("Content-Type", "application/json")];
    assert_eq!(program.client().await.send("PUT", &path, &headers, &json_of(&stranger)).await.status, 201);
    let client = &mut program.client().await;
    let mut mine = plain();
    mine.metadata.name = stranger.metadata.name.clone();
    client.post(&mine).await;
    program.settle().await;
    assert_eq!(program.stored().await.len(), 2);
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    let left = program.stored().await;
    assert_eq!((left.len(), left[0].reason.as_str()), (1, "Strange"));
    program.stop().await;
}

#[tokio::test]
async fn a_collection_leaves_alone_what_its_selector_does_not_name() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let name = event.metadata.name.as_str();
    client.post(&event).await;
    program.settle().await;
    client.patch(name, &json!({"count": 2, "message": "another"})).await;
    program.settle().await;
    // The name's client counts on the other record by now, which stays and goes on.
    let path = format!("{EVENTS}?fieldSelector=metadata.name%3D{name}");
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    let mut again = plain();
    again.message = "another".into();
    client.post(&again).await;
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count, stored[0].message.as_str()), (1, 2, "another"));
    let balance = program.stop().await;
    assert_eq!(deleted(&balance), 0);
}
