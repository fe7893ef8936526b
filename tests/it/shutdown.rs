//! Shutdown: waiting occurrences are written before the program ends, or counted as lost.

use std::time::Duration;

use eventweir::clock::Clock;
use eventweir::outbox::{DIGEST_REASON, LostReason};

use super::support::app::{Program, start_before};
use super::support::bench::Bench;
use super::support::events::{START, event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::Client;

const TIGHT: &str = "shards: 1\ncorrelation: {burstSize: 2, qps: 0.001}\nshutdown: {drainTimeout: 20s}\n";

async fn start(yaml: &str) -> (Program, FakeApiserver) {
    let fake = FakeApiserver::new(Clock::simulated(START));
    (start_before(&fake, yaml).await, fake)
}

fn offer(program: &Program, event: eventweir::event::Event) {
    assert!(program.app.shards().accept(event, 1).is_ok());
    program.balance();
}

#[tokio::test(start_paused = true)]
async fn a_stop_writes_deferred_records_and_folds_several_into_one_digest() {
    let (program, fake) = start(TIGHT).await;
    for number in 0..10 {
        offer(&program, event("node-1", "web-0", &format!("Reason{number}"), "m"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    offer(&program, event("node-1", "web-0", "Reason5", "m"));
    assert_eq!(fake.shown(), 2);
    let balance = program.stop().await;
    assert_eq!((balance.ledger.total_written(), balance.ledger.total_lost()), (11, 0));
    let events = fake.events();
    let digest: Vec<_> = events.iter().filter(|event| event.reason == DIGEST_REASON).map(|event| event.count).collect();
    assert_eq!((digest, events.len(), fake.shown()), (vec![9], 3, 11));
}

/// Fault: the digest waited for a commit, which came only after `spool.commitInterval`. The drain ended before that, and
/// left it in the spool.
#[tokio::test(start_paused = true)]
async fn a_stop_writes_what_waits_for_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (program, fake) =
        start(&format!("{TIGHT}spool: {{dir: {:?}, commitInterval: 1m}}\n", folder.path().join("spool"))).await;
    for number in 0..10 {
        offer(&program, event("node-1", "web-0", &format!("Reason{number}"), "m"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(fake.shown(), 2);
    let (clock, before) = (fake.clock(), fake.clock().now().mono);
    let balance = program.app.stop().await;
    assert_eq!((balance.ledger.total_written(), balance.total_waiting()), (10, 0));
    assert_eq!((fake.events().len(), fake.shown()), (3, 10));
    assert!(clock.now().mono.since(before) < Duration::from_secs(10));
}

/// Fault: what could be written at once still was, as a digest.
#[tokio::test(start_paused = true)]
async fn without_time_to_drain_a_stop_writes_nothing_more() {
    let (program, fake) = start(&TIGHT.replace("20s", "0s")).await;
    for number in 0..5 {
        offer(&program, event("node-1", "web-0", &format!("Reason{number}"), "m"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(fake.shown(), 2);
    let balance = program.stop().await;
    assert_eq!((balance.ledger.total_written(), balance.ledger.lost(LostReason::Shutdown)), (2, 3));
    assert_eq!((fake.shown(), fake.events().len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_stop_patches_repeats_that_wait_for_a_token_or_an_interval() {
    let (program, fake) = start(TIGHT).await;
    for _ in 0..2 {
        offer(&program, plain());
        offer(&program, event("node-2", "web-1", "Pulled", "pulled"));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    // One waits for a token, the other for its interval.
    offer(&program, plain());
    offer(&program, event("node-3", "web-2", "Pulled", "pulled"));
    tokio::time::sleep(Duration::from_millis(10)).await;
    offer(&program, event("node-3", "web-2", "Pulled", "pulled"));
    assert_eq!(fake.shown(), 5);
    let balance = program.stop().await;
    assert_eq!((balance.ledger.total_written(), balance.ledger.total_lost()), (7, 0));
    assert_eq!((fake.shown(), fake.events().len()), (7, 3));
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_retries() {
    let (program, fake) = start(TIGHT).await;
    fake.fail_next(&[Fault::Before(500), Fault::HangAfter, Fault::TooMany(Some(3))]);
    offer(&program, plain());
    tokio::time::sleep(Duration::from_millis(10)).await;
    let balance = program.stop().await;
    assert_eq!((balance.ledger.total_written(), fake.shown()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn occurrences_not_written_before_the_deadline_are_counted_as_lost() {
    let (program, fake) = start(TIGHT).await;
    offer(&program, event("node-1", "web-1", "Pulled", "pulled"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    fake.set_up(false);
    for number in 0..10 {
        offer(&program, event("node-1", "web-0", &format!("Reason{number}"), "m"));
        offer(&program, event("node-1", "web-1", "Pulled", "pulled"));
    }
    let balance = program.stop().await;
    assert_eq!((balance.ledger.total_written(), fake.shown()), (1, 1));
    assert_eq!(balance.ledger.lost(LostReason::Shutdown), 20);
}

#[tokio::test(start_paused = true)]
async fn a_missing_answer_does_not_delay_the_stop() {
    let (program, fake) = start(TIGHT).await;
    fake.plan(|_| Fault::Hang);
    offer(&program, plain());
    tokio::time::sleep(Duration::from_millis(10)).await;
    let balance = program.stop().await;
    assert_eq!(balance.ledger.lost(LostReason::Unknown), 1);
}

/// A client that keeps its connection sends its next request as soon as it has an answer.
#[tokio::test]
async fn a_busy_client_is_answered_until_its_connection_is_refused() {
    let fake = FakeApiserver::new(Clock::system());
    let program = start_before(&fake, "shutdown: {drainTimeout: 10s, grace: 200ms}\n").await;
    let address = program.app.address();
    let mut idle = program.client().await;
    idle.get("/version").await;
    let app = std::sync::Arc::clone(&program.app);
    let mut stopping = tokio::task::JoinSet::new();
    let (mut answered, mut moved) = (0, 0);
    let mut client = Some(program.client().await);
    while let Some(connected) = &mut client {
        let reply = connected.post(&plain()).await;
        assert_eq!(reply.status, 201);
        answered += 1;
        if answered == 3 {
            let app = std::sync::Arc::clone(&app);
            stopping.spawn(async move { app.stop().await });
        }
        if reply.header("Connection") == Some("close") {
            moved += 1;
            client = Client::try_connect(address).await;
        }
    }
    assert!(moved > 1, "late connections are taken, and asked to go as well");
    let balance = stopping.join_next().await.unwrap().unwrap();
    assert_eq!((balance.ledger.total_written(), balance.ledger.total_lost()), (answered, 0));
    assert_eq!(fake.shown(), answered);
}

#[tokio::test(start_paused = true)]
async fn without_connections_the_stop_does_not_wait_for_late_ones() {
    let fake = FakeApiserver::new(Clock::simulated(START));
    let program = start_before(&fake, "shutdown: {drainTimeout: 1h, grace: 1m}\n").await;
    let (clock, before) = (fake.clock(), fake.clock().now().mono);
    program.stop().await;
    assert!(clock.now().mono.since(before) < Duration::from_secs(30));
}

/// Fault: without connections the drain had only what the timeout is longer than the grace, which had not been used.
#[tokio::test(start_paused = true)]
async fn without_connections_the_drain_has_the_whole_timeout() {
    let fake = FakeApiserver::new(Clock::simulated(START));
    let program = start_before(&fake, "shutdown: {drainTimeout: 2m, grace: 1m}\n").await;
    fake.set_up(false);
    offer(&program, plain());
    let comes_back = async {
        tokio::time::sleep(Duration::from_secs(80)).await;
        fake.set_up(true);
    };
    let (balance, ()) = tokio::join!(program.stop(), comes_back);
    assert_eq!((balance.ledger.total_written(), fake.shown()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_hurried_does_not_wait_for_the_upstream() {
    let fake = FakeApiserver::new(Clock::simulated(START));
    let program = start_before(&fake, "shutdown: {drainTimeout: 10m, grace: 0s}\n").await;
    fake.set_up(false);
    offer(&program, plain());
    let (app, clock) = (std::sync::Arc::clone(&program.app), fake.clock());
    let before = clock.now().mono;
    let hurry = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        app.hurry();
    };
    let (balance, ()) = tokio::join!(program.stop(), hurry);
    assert_eq!(balance.ledger.lost(LostReason::Shutdown), 1);
    assert!(clock.now().mono.since(before) < Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn delivery_that_is_cut_off_leaves_everything_in_the_outbox() {
    let mut bench = Bench::new();
    bench.fake.set_latency(Duration::from_secs(1));
    for object in 0..50 {
        bench.offer(event("node-1", &format!("web-{object}"), "Pulled", "pulled"));
    }
    bench.pass(Duration::from_millis(500)).await;
    bench.stop().await;
    assert_eq!(bench.balance().total_waiting(), 50);
    bench.check();
    bench.shards.abandon();
    // The limit of requests in flight.
    assert_eq!((bench.lost(LostReason::Unknown), bench.lost(LostReason::Shutdown)), (32, 18));
    assert_eq!(bench.balance().total_waiting(), 0);
    bench.check();
}
