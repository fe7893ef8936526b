//! Limits of the outbox, of the tables and of a budget.

use std::num::NonZeroUsize;
use std::time::Duration;

use eventweir::correlator::{self, Rate, Suppression};
use eventweir::ledger::RejectReason;
use eventweir::outbox::{self, DIGEST_REASON, LostReason};
use eventweir::shard::{self, Outcome};

use super::support::bench::{Bench, Options};
use super::support::events::{event, plain};

/// Several shards with shared limits.
fn outbox_of(outbox: outbox::Settings) -> Options {
    let shard = shard::Settings { outbox, ..shard::Settings::default() };
    Options { shard, shards: Some(8), ..Options::default() }
}

fn at(object: u32) -> eventweir::event::Event {
    event(&format!("node-{}", object % 2), &format!("web-{object}"), "BackOff", "restarting")
}

#[tokio::test(start_paused = true)]
async fn a_full_outbox_accepts_repeats_but_no_new_records() {
    let max_records = NonZeroUsize::new(10).unwrap_or(NonZeroUsize::MIN);
    let all = NonZeroUsize::new(100).unwrap_or(NonZeroUsize::MIN);
    let settings = outbox::Settings { max_records, source_percent: all, ..outbox::Settings::default() };
    let mut bench = Bench::with(outbox_of(settings));
    bench.fake.set_up(false);
    for object in 0..10 {
        bench.offer(at(object));
        bench.pass(Duration::from_millis(1)).await;
    }
    for object in 10..20 {
        assert!(bench.try_offer(at(object)).is_err(), "a new record");
        assert!(bench.try_offer(at(object - 10)).is_ok(), "a repeat");
    }
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!(bench.shards.sizes().records, 10);
    assert_eq!(bench.balance().ledger.rejected(RejectReason::Full), 10);
    bench.fake.set_up(true);
    bench.settle().await;
    bench.pass(Duration::from_secs(2)).await;
    assert!(bench.try_offer(at(15)).is_ok(), "there is room again");
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_source_that_floods_fills_its_own_share_only() {
    let max_records = NonZeroUsize::new(10).unwrap_or(NonZeroUsize::MIN);
    let mut bench = Bench::with(outbox_of(outbox::Settings { max_records, ..outbox::Settings::default() }));
    bench.fake.set_up(false);
    let flood = |object: u32| event("node-1", &format!("web-{object}"), "BackOff", "restarting");
    let taken = (0..100).filter(|object| bench.try_offer(flood(*object)).is_ok()).count();
    assert_eq!(taken, 5);
    let other =
        |host: u32, object: u32| event(&format!("node-{host}"), &format!("db-{object}"), "BackOff", "restarting");
    // A second source gets half of the rest, and others still find room.
    let taken = (0..5).filter(|object| bench.try_offer(other(2, *object)).is_ok()).count();
    assert_eq!(taken, 3);
    for object in 0..5 {
        assert!(bench.try_offer(flood(object)).is_ok(), "a repeat");
    }
    assert!(bench.try_offer(other(3, 9)).is_ok() && bench.try_offer(other(4, 9)).is_ok());
    assert!(bench.try_offer(other(5, 9)).is_err(), "now it is full");
    assert_eq!(bench.balance().ledger.rejected(RejectReason::Full), 98);
    bench.fake.set_up(true);
    bench.settle().await;
    bench.pass(Duration::from_secs(2)).await;
    assert!(bench.try_offer(flood(50)).is_ok(), "what was written takes no share");
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn bytes_are_limited_as_well() {
    let max_bytes = NonZeroUsize::new(1 << 20).unwrap_or(NonZeroUsize::MIN);
    let mut bench = Bench::with(outbox_of(outbox::Settings { max_bytes, ..outbox::Settings::default() }));
    bench.fake.set_up(false);
    let message = "x".repeat(10_000);
    let mut taken = |host| {
        let is_taken = |n: &u32| bench.try_offer(event(host, &format!("web-{n}"), "R", &message)).is_ok();
        (0..500).take_while(is_taken).count()
    };
    // A source takes half of what the others leave.
    let (one, other) = (taken("node-1"), taken("node-2"));
    assert!((40..=55).contains(&one) && (20..=28).contains(&other), "{one} and {other} of 10 kB each");
    for _ in 0..100 {
        assert!(bench.try_offer(event("node-1", "web-0", "R", &message)).is_ok(), "a repeat");
    }
    assert!(bench.shards.sizes().bytes < (1 << 20) + 20_000);
    bench.check();
    bench.fake.set_up(true);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn evicted_sources_lose_no_occurrence() {
    let one = NonZeroUsize::MIN;
    let shard = shard::Settings { max_sources: one, ..shard::Settings::default() };
    let mut bench = Bench::with(Options { shard, ..Options::default() });
    for round in 0..10 {
        for host in 0..5 {
            bench.offer(event(&format!("node-{host}"), &format!("web-{host}"), "BackOff", "restarting"));
        }
        bench.pass(Duration::from_millis(300 * round)).await;
        assert_eq!(bench.shards.sizes().sources, 1);
    }
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn shards_share_the_limits() {
    let [sources, keys] = [20, 100].map(|limit| NonZeroUsize::new(limit).unwrap_or(NonZeroUsize::MIN));
    let shard = shard::Settings { max_sources: sources, max_tracked_keys: keys, ..shard::Settings::default() };
    let mut bench = Bench::with(Options { shard, shards: Some(8), ..Options::default() });
    // One source may take nearly all.
    for object in 0..45 {
        bench.offer(event("node-1", &format!("web-{object}"), "BackOff", "restarting"));
    }
    assert_eq!(bench.shards.sizes().tracked_keys, 90);
    for host in 0..200 {
        bench.offer(event(&format!("node-{host}"), "web-0", "BackOff", "restarting"));
        // A shard below its share evicts nothing for one above its share.
        let sizes = bench.shards.sizes();
        assert!(sizes.sources <= 20 + 8 && sizes.tracked_keys <= 2 * 100, "{sizes:?}");
    }
    let sizes = bench.shards.sizes();
    assert!(sizes.sources >= 20 && sizes.tracked_keys <= 100, "{sizes:?}");
    // Each object has two; that of node-1 may have been tracked twice.
    let all = sizes.tracked_keys + usize::try_from(sizes.evicted_keys).unwrap();
    assert!([488, 490].contains(&all), "{sizes:?}");
    bench.settle().await;
    bench.finish().await;
}

/// Guards against: the first shards give up the whole excess and never get it back.
#[tokio::test(start_paused = true)]
async fn a_lowered_limit_takes_as_much_from_each_shard() {
    let limited = |sources: usize| {
        let max_sources = NonZeroUsize::new(sources).unwrap_or(NonZeroUsize::MIN);
        shard::Settings { max_sources, ..shard::Settings::default() }
    };
    let mut bench = Bench::with(Options { shard: limited(200), shards: Some(8), ..Options::default() });
    let report = |host: u32| event(&format!("node-{host}"), "web-0", "BackOff", "restarting");
    for host in 0..100 {
        bench.offer(report(host));
    }
    bench.settle().await;
    bench.shards.reload(&limited(16), correlator::Policy::default());
    for index in 0..8 {
        assert_eq!(bench.shards.look(index, |shard| shard.sizes().sources), 2, "shard {index}");
    }
    let counted = (0..100).rev().filter(|host| bench.offer(report(*host)).outcome == Outcome::Counted).count();
    assert_eq!(counted, 16, "the two heard of last go on in each");
    assert!(bench.shards.sizes().sources <= 16);
    bench.finish().await;
}

/// Fault: entries beyond a lowered `lruCacheSize`, and unused budgets after `drop` became `defer`, counted as tracked
/// until their source was evicted.
#[tokio::test(start_paused = true)]
async fn caches_shrink_with_a_reload() {
    let settings = |suppression, size| {
        let lru_cache_size = NonZeroUsize::new(size).unwrap();
        correlator::Settings { suppression, lru_cache_size, ..correlator::Settings::default() }
    };
    let correlator = settings(Suppression::Drop, 100);
    let mut bench = Bench::with(Options { correlator, shards: Some(1), ..Options::default() });
    for object in 0..10 {
        bench.offer(event("node-1", &format!("web-{object}"), "BackOff", "m"));
    }
    bench.settle().await;
    assert_eq!(bench.shards.sizes().tracked_keys, 30);
    for (suppression, size, expected) in
        [(Suppression::Drop, 4, 12), (Suppression::Defer, 4, 8), (Suppression::Defer, 100, 8)]
    {
        let base = settings(suppression, size).into();
        bench.shards.reload(&shard::Settings::default(), correlator::Policy { base, rules: Vec::new() });
        let sizes = bench.shards.sizes();
        // Six groups and six observations. Budgets that pay for nothing are no evictions.
        assert_eq!((sizes.tracked_keys, sizes.evicted_keys), (expected, 12));
    }
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn an_event_without_a_token_is_written_with_the_next_one() {
    let correlator = correlator::Settings { burst_size: 2, qps: 0.1, ..correlator::Settings::default() };
    let mut bench = Bench::with(Options { correlator, ..Options::default() });
    let mut outcomes = Vec::new();
    for number in 0..4 {
        outcomes.push(bench.offer(event("node-1", "web-0", &format!("Reason{number}"), "m")).outcome);
        bench.pass(Duration::from_millis(5)).await;
    }
    assert_eq!(outcomes, [Outcome::Created, Outcome::Created, Outcome::Deferred, Outcome::Deferred]);
    bench.pass(Duration::from_secs(5)).await;
    assert_eq!(bench.fake.shown(), 2);
    bench.pass(Duration::from_secs(6)).await;
    assert_eq!(bench.fake.shown(), 3);
    bench.pass(Duration::from_secs(10)).await;
    assert_eq!(bench.fake.shown(), 4);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn records_that_wait_too_long_for_a_token_fold_into_a_digest() {
    let mut bench = Bench::new();
    for number in 0..100 {
        bench.offer(event("node-1", "web-0", &format!("Reason{number}"), "m"));
    }
    bench.settle().await;
    let events = bench.fake.events();
    let digest = events.iter().find(|event| event.reason == DIGEST_REASON);
    assert!(digest.is_some_and(|digest| digest.count > 30 && digest.message.len() <= 1024));
    assert!(bench.fake.seen().len() < 100);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn more_than_a_thousand_records_of_one_group_fold_before_their_time() {
    // The first one has the token. At the limit, those that have waited longest fold, half of all.
    for (objects, storms, records) in [(1_001, 0, 1_001), (1_002, 1, 502)] {
        let group = Some(Rate { burst: 1, qps: 0.001 });
        let correlator = correlator::Settings { group, ..correlator::Settings::default() };
        let mut bench = Bench::with(Options { correlator, ..Options::default() });
        for object in 0..objects {
            bench.offer(event("node-1", &format!("web-{object}"), "BackOff", "restarting"));
        }
        bench.pass(Duration::from_secs(1)).await;
        assert_eq!((bench.shards.storms().groups, bench.shards.sizes().records), (storms, records));
        bench.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_occurrences_are_lost_and_counted() {
    let correlator = correlator::Settings { suppression: Suppression::Drop, ..correlator::Settings::default() };
    let mut bench = Bench::with(Options { correlator, ..Options::default() });
    for _ in 0..30 {
        bench.offer(plain());
        bench.pass(Duration::from_secs(2)).await;
    }
    bench.settle().await;
    assert_eq!(bench.lost(LostReason::Suppressed), 5);
    assert_eq!(bench.balance().ledger.total_written(), 25);
    // As in client-go, a dropped occurrence was counted before: the next write shows it.
    assert_eq!(bench.fake.shown(), 25);
    bench.check();
}
