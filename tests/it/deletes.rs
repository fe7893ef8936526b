//! DELETE of names that clients chose.

use eventweir::ledger::Balance;
use eventweir::outbox::LostReason;
use serde_json::json;

use super::support::app::start;
use super::support::events::{event, plain};
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

#[tokio::test]
async fn no_crash_brings_back_what_a_client_was_told_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = |dir: &std::path::Path| {
        // Only who waits makes it commit, and only the first record can be written.
        let spool = format!("spool: {{dir: {dir:?}, commitInterval: 1m}}\n");
        spool + "correlation: {burstSize: 1, qps: 0}\nshards: 1\nshutdown: {drainTimeout: 0s}\n"
    };
    for (round, path) in ["", "/owed"].into_iter().enumerate() {
        let (spool, copy) = (folder.path().join(format!("spool{round}")), folder.path().join(format!("copy{round}")));
        let program = start(&yaml(&spool)).await;
        let client = &mut program.client().await;
        client.post(&plain()).await;
        program.until("it is written", || program.balance().ledger.total_written() == 1).await;
        // For the collection something has to be there to count on.
        let mut owed = if path.is_empty() { plain() } else { event("node-1", "web-0", "Other", "m") };
        owed.metadata.name = "owed".into();
        let headers = [("Content-Type", "application/json"), ("Eventweir-Ack", "durable")];
        assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&owed)).await.status, 201);
        assert_eq!(client.send("DELETE", &format!("{EVENTS}{path}"), &[], b"").await.status, 200);
        // What a crash would leave now.
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(spool.join("spool.redb"), copy.join("spool.redb")).unwrap();
        program.app.stop().await;
        let program = start(&yaml(&copy)).await;
        assert_eq!(program.metrics().await["eventweir_spool_restored_occurrences_total"], 0.0, "{path}");
        program.stop().await;
    }
}
