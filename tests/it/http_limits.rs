//! Ingest at its limits and at shutdown.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use eventweir::app::ConfigSource;
use eventweir::clock::Clock;
use eventweir::config::Overrides;
use eventweir::event::Event;
use eventweir::ledger::RejectReason;
use serde_json::json;
use tokio::task::JoinSet;

use super::support::app::{Program, start, start_before, start_from};
use super::support::events::{START, event, plain};
use super::support::fake::FakeApiserver;
use super::support::http::{Client, EVENTS, json as json_of};
use super::support::log::Log;

#[tokio::test]
async fn a_full_outbox_answers_429_and_accepts_repeats() {
    let fake = FakeApiserver::new(Clock::manual(START));
    fake.set_up(false);
    // The sources are in different shards, which share the limit.
    let program = start_before(&fake, "shards: 64\noutbox: {maxRecords: 3, sourcePercent: 100}\n").await;
    let client = &mut program.client().await;
    let pulled = |object: u8| event(&format!("node-{object}"), &format!("web-{object}"), "Pulled", "pulled");
    let events: Vec<_> = (0..3).map(pulled).collect();
    for event in &events {
        assert_eq!(client.post(event).await.status, 201);
    }
    let reply = client.post(&pulled(3)).await;
    let status = reply.json();
    assert_eq!((reply.status, reply.header("Retry-After"), reply.outcome()), (429, Some("1"), None));
    assert_eq!((&status["kind"], &status["reason"]), (&json!("Status"), &json!("TooManyRequests")));
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(program.balance().ledger.rejected(RejectReason::Full), 1);
    assert_eq!(client.post(&pulled(0)).await.outcome(), Some("counted"));
    assert_eq!(client.patch(&events[1].metadata.name, &json!({"count": 6})).await.status, 200);
    let ready = program.admin().await.get("/readyz").await;
    // Repeats are still accepted.
    assert!(ready.text().contains("[+]accepting ok") && ready.text().contains("upstream down"), "{}", ready.text());
    assert_eq!(program.admin().await.get("/livez").await.status, 200);
    fake.set_up(true);
    program.settle().await;
    assert_eq!(fake.shown(), 9);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_written(), ledger.total_rejected()), (10, 9, 1));
}

/// Waits until the outbox has no records.
async fn empty(program: &Program) {
    let is_empty = || {
        program.clock.advance(Duration::from_secs(1));
        program.app.shards().sizes().records == 0
    };
    program.until("there is room", is_empty).await;
}

/// Guards against: a total or a growth refused by a full outbox is lost, or counted twice when the client repeats it.
#[tokio::test]
async fn what_a_full_outbox_has_refused_counts_once_when_repeated() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "shards: 1\noutbox: {maxRecords: 1}\n").await;
    let client = &mut program.client().await;
    let mine = event("node-1", "web-0", "Pulled", "pulled");
    assert_eq!(client.post(&mine).await.status, 201);
    program.settle().await;
    empty(&program).await;
    // The other event takes the place. Because of its message the patch begins a new record.
    fake.set_up(false);
    assert_eq!(client.post(&event("node-1", "web-1", "Pulled", "pulled")).await.status, 201);
    let patch = json!({"count": 3, "message": "pulled again"});
    assert_eq!(client.patch(&mine.metadata.name, &patch).await.status, 429);
    assert_eq!(client.patch(&mine.metadata.name, &patch).await.status, 429);
    let total = Event { count: 3, ..event("node-1", "web-2", "Pulled", "pulled") };
    assert_eq!(client.post(&total).await.status, 429);
    fake.set_up(true);
    program.settle().await;
    empty(&program).await;
    assert_eq!(client.patch(&mine.metadata.name, &patch).await.status, 200);
    assert_eq!(client.patch(&mine.metadata.name, &patch).await.status, 200);
    program.settle().await;
    empty(&program).await;
    assert_eq!(client.post(&total).await.status, 201);
    program.settle().await;
    assert_eq!(fake.shown(), 7);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.total_written(), ledger.rejected(RejectReason::Full)), (7, 7));
}

#[tokio::test]
async fn connections_over_the_limit_wait_until_one_ends() {
    let program = start("ingest: {maxConnections: 2}\n").await;
    let (mut first, mut second) = (program.client().await, program.client().await);
    assert_eq!(first.post(&plain()).await.status, 201);
    assert_eq!(second.post(&plain()).await.status, 201);
    let mut third = program.client().await;
    let mut posting = JoinSet::new();
    posting.spawn(async move { third.post(&plain()).await.status });
    // The third would be answered before later requests of the two that are served.
    for _ in 0..20 {
        assert_eq!(first.post(&plain()).await.status, 201);
        assert_eq!(second.get(EVENTS).await.status, 200);
    }
    assert_eq!(program.metrics().await["eventweir_ingest_connections"], 2.0);
    assert!(posting.try_join_next().is_none());
    drop(first);
    assert_eq!(posting.join_next().await.unwrap().unwrap(), 201);
    program.settle().await;
    assert_eq!(program.stop().await.ledger.total_written(), 23);
}

#[tokio::test]
async fn a_watch_frees_its_place_when_its_client_disconnects() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let program = start("ingest: {maxWatches: 1}\n").await;
    let watch = format!("{EVENTS}?watch=true");
    for leaves in [true, false] {
        let mut stream = tokio::net::TcpStream::connect(program.app.address()).await.unwrap();
        stream.write_all(format!("GET {watch} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).await.unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        assert_eq!(program.client().await.get(&watch).await.status, 429);
        if leaves {
            drop(stream);
        } else {
            stream.shutdown().await.unwrap();
        }
        program.until_metric("eventweir_ingest_watches", |open| open == 0.0).await;
    }
    program.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_under_load_loses_no_accepted_event() {
    for _ in 0..5 {
        let program = start("shards: 2\n").await;
        let answered = Arc::new(AtomicU64::new(0));
        let mut clients = JoinSet::new();
        for number in 0..8 {
            let (mut client, answered) = (program.client().await, Arc::clone(&answered));
            clients.spawn(async move {
                let headers = [("Content-Type", "application/json")];
                for object in 0_u32.. {
                    let event = event(&format!("node-{number}"), &format!("web-{}", object % 30), "Pulled", "pulled");
                    match client.exchange("POST", EVENTS, &headers, &json_of(&event)).await {
                        Ok(reply) if reply.status == 201 => answered.fetch_add(1, Ordering::Relaxed),
                        Ok(_) | Err(_) => return,
                    };
                }
            });
        }
        program.until("traffic", || answered.load(Ordering::Relaxed) > 200).await;
        let balance = program.app.stop().await;
        while clients.join_next().await.is_some() {}
        assert!(balance.is_exact(), "{balance:?}");
        let ledger = &balance.ledger;
        assert_eq!((balance.total_waiting(), ledger.total_lost()), (0, 0));
        assert!(ledger.total_written() >= answered.load(Ordering::Relaxed), "{balance:?}");
        let shown: i32 = program.stored().await.iter().map(|event| event.count).sum();
        assert_eq!(u64::try_from(shown).unwrap(), ledger.total_written());
        assert_eq!(program.balance(), balance, "something was taken after the end");
    }
}

#[tokio::test]
async fn after_the_stop_all_connections_are_closed() {
    let program = start("").await;
    let mut client = program.client().await;
    assert_eq!(client.post(&plain()).await.status, 201);
    let address = program.app.address();
    program.stop().await;
    assert!(client.exchange("GET", EVENTS, &[], b"").await.is_err());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_client_that_disconnects_within_its_body_is_one_unread_occurrence() {
    use tokio::io::AsyncWriteExt as _;
    let program = start("").await;
    let mut stream = tokio::net::TcpStream::connect(program.app.address()).await.unwrap();
    let head = format!(
        "POST {EVENTS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    // Its request is being read once a later connection is answered.
    Client::connect(program.app.address()).await.get(EVENTS).await;
    drop(stream);
    program.until("it is noticed", || program.balance().ledger.rejected(RejectReason::Unread) == 1).await;
    assert_eq!(program.stop().await.ledger.received(), 1);
}

#[tokio::test]
async fn memory_that_the_container_does_not_have_is_warned_of() {
    for (yaml, container, expected) in [
        ("memory: 8Gi", Some(1536 << 20), 1),
        ("memory: 1536Mi", Some(1536 << 20), 0),
        ("memory: 8Gi", None, 0),
        ("memory: container", Some(1536 << 20), 0),
    ] {
        let log = Log::capture();
        let overrides = Overrides { container_memory: container.and_then(NonZeroUsize::new), ..Overrides::default() };
        start_from(yaml, ConfigSource { overrides, ..ConfigSource::default() }).await.stop().await;
        let text = log.text();
        let warned = text.lines().filter(|line| line.contains("WARN") && line.contains("above the container's limit"));
        assert_eq!(warned.count(), expected, "{yaml}, {container:?}: {text}");
    }
}
