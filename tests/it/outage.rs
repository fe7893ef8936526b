//! An hour without an upstream under load.

use std::time::Duration;

use eventweir::{outbox, shard};

use super::support::bench::{Bench, Options};
use super::support::events::event;
use super::support::fake::Fault;
use super::support::log::Log;

const SECONDS: u64 = 3_600;

/// Returns objects, and events per second; `EVENTWEIR_FULL_OUTAGE=1` means 1.8 million events, minutes without
/// optimisation.
fn scale() -> (u64, u64) {
    if std::env::var_os("EVENTWEIR_FULL_OUTAGE").is_some() { (20_000, 500) } else { (500, 50) }
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_outage_costs_no_memory_and_ends_without_a_stampede() {
    let (objects, per_second) = scale();
    let mut bench = Bench::with(Options { shards: Some(2), ..Options::default() });
    bench.fake.set_up(false);
    bench.fake.set_latency(Duration::from_millis(10));
    let mut working_set = None;
    for second in 0..SECONDS {
        for index in 0..per_second {
            let object = (second * per_second + index) % objects;
            bench.offer(event(&format!("node-{}", object % 10), &format!("web-{object}"), "BackOff", "restarting"));
        }
        bench.pass(Duration::from_secs(1)).await;
        if second == 60 {
            working_set = Some(bench.shards.sizes());
        }
    }
    assert_eq!(Some(bench.shards.sizes()), working_set, "memory grows with the length of the outage");
    assert_eq!(bench.balance().total_waiting(), SECONDS * per_second);

    let during = bench.fake.seen();
    // After the first failed requests, one probe every two and a half to five seconds.
    let probes: Vec<_> = during.iter().filter(|seen| seen.at.0 > 60_000_000_000).collect();
    assert!(probes.len() < 1_500, "{} probes in an hour", probes.len());
    for pair in probes.windows(2) {
        assert!(pair[1].at.since(pair[0].at) >= Duration::from_millis(2_500));
    }

    bench.fake.set_up(true);
    bench.settle().await;
    let after = bench.fake.seen().split_off(during.len());
    assert_eq!(after.len() as u64, objects, "one write for each record");
    // One probe; only its answer opens the gate.
    assert!(after[1].at.since(after[0].at) >= Duration::from_millis(10));
    assert!(bench.fake.most_in_flight() <= 32);
    // 32 at a time, 10 ms each.
    for window in after.windows(33) {
        assert!(window[32].at.since(window[0].at) >= Duration::from_millis(10));
    }
    bench.finish().await;
}

/// An API server ends the connection after a 401, so the next request fails in another way.
#[tokio::test(start_paused = true)]
async fn the_log_names_the_failure_that_began_an_outage() {
    let log = Log::capture();
    let mut bench = Bench::with(Options::default());
    let first = std::sync::atomic::AtomicBool::new(true);
    bench.fake.plan(move |_| {
        if first.swap(false, std::sync::atomic::Ordering::Relaxed) { Fault::Before(401) } else { Fault::Unavailable(1) }
    });
    bench.offer(event("node-1", "web-0", "BackOff", "restarting"));
    bench.pass(Duration::from_secs(5)).await;
    let text = log.text();
    let line = text.lines().find(|line| line.contains("the upstream is down")).unwrap_or_default();
    assert!(line.contains("\"unauthorized\"") && line.contains("; then server_error: "), "{line}");
    bench.fake.plan(|_| Fault::None);
    bench.settle().await;
    bench.finish().await;
}

/// A policy of one namespace answers 403, while the writes of others succeed.
#[tokio::test(start_paused = true)]
async fn the_log_quotes_a_forbidden_write_at_most_once_a_minute() {
    let log = Log::capture();
    let mut bench = Bench::with(Options::default());
    bench.fake.plan(|seen| if seen.object == "web-0" { Fault::Before(403) } else { Fault::None });
    bench.offer(event("node-1", "web-0", "BackOff", "restarting"));
    for number in 1..50 {
        bench.offer(event("node-1", &format!("web-{number}"), "BackOff", "restarting"));
        bench.pass(Duration::from_secs(1)).await;
    }
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("forbids eventweir to write")).collect();
    assert!(lines.len() == 1 && lines[0].contains("as the test asked"), "{lines:?}");
    bench.fake.plan(|_| Fault::None);
    bench.settle().await;
    bench.finish().await;
}

/// Fault: a record at its maximum age with a token set its timer to a past time, forever. Delivery never returned,
/// and held the lock of its shard.
#[tokio::test(start_paused = true)]
async fn delivery_recovers_from_an_outage_longer_than_the_fold_age() {
    let mut bench = Bench::new();
    bench.fake.set_up(false);
    for object in 0..100 {
        bench.offer(event("node-1", &format!("web-{object}"), "BackOff", "restarting"));
        bench.pass(Duration::from_secs(1)).await;
    }
    for reason in 0..60 {
        bench.offer(event("node-1", "web-0", &format!("Reason{reason}"), "m"));
        bench.pass(Duration::from_secs(1)).await;
    }
    for _ in 0..3 * 60 {
        bench.pass(Duration::from_secs(60)).await;
    }
    bench.fake.set_up(true);
    bench.finish().await;
}

/// Faults: records that a 503 had met first were lost at the first 429 after the outage, without a try in it; and all were
/// if the first answers after it were 429.
#[tokio::test(start_paused = true)]
async fn the_time_without_answers_does_not_count_after_an_outage_that_began_with_an_answer() {
    for are_all_refused in [false, true] {
        let outbox = outbox::Settings { max_age: Duration::from_secs(60), ..outbox::Settings::default() };
        let shard = shard::Settings { outbox, ..shard::Settings::default() };
        let mut bench = Bench::with(Options { shard, ..Options::default() });
        bench.fake.plan(|_| Fault::Unavailable(0));
        // More than the probes of the outage.
        for number in 0..200 {
            if number == 3 && !are_all_refused {
                bench.pass(Duration::from_millis(5)).await;
                bench.fake.set_up(false);
            }
            bench.offer(event("node-1", &format!("web-{number}"), "BackOff", "restarting"));
        }
        bench.pass(Duration::from_secs(if are_all_refused { 20 } else { 0 })).await;
        bench.fake.set_up(false);
        bench.pass(Duration::from_secs(150)).await;
        let mut refused = 0;
        bench.fake.plan(move |seen| {
            let is_first = are_all_refused || ["web-0", "web-1", "web-2"].contains(&seen.object.as_str());
            let is_refused = is_first && refused < 3;
            refused += usize::from(is_refused);
            if is_refused { Fault::TooMany(None) } else { Fault::None }
        });
        bench.fake.set_up(true);
        bench.settle().await;
        assert_eq!(bench.balance().ledger.total_written(), 200, "{are_all_refused}");
        bench.finish().await;
    }
}
