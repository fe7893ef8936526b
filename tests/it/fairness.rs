//! Order of writes: sources in turn, Warning before Normal except for every eighth turn, and new records first in a
//! budget.

use std::time::Duration;

use eventweir::correlator::{self, Rate};
use eventweir::deliver::GateSettings;
use eventweir::outbox::{self, GroupSettings};
use eventweir::shard;

use super::support::bench::{Bench, Options};
use super::support::events::{event, plain, warning};

#[tokio::test(start_paused = true)]
async fn a_source_with_one_object_does_not_wait_for_one_with_a_thousand() {
    for shards in [1, 3] {
        let gate = GateSettings { max_in_flight: 2, ..GateSettings::default() };
        let mut bench = Bench::with(Options { gate, shards: Some(shards), ..Options::default() });
        for object in 0..1_000 {
            bench.offer(event("flooding", &format!("web-{object}"), "BackOff", "restarting"));
        }
        bench.offer(event("quiet", "db-0", "Pulled", "pulled"));
        bench.settle().await;
        let place = bench.fake.seen().iter().position(|seen| seen.object == "db-0");
        assert!(place.is_some_and(|place| place < 3), "{place:?} with {shards} shards");
        bench.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn warnings_go_first_when_the_upstream_comes_back() {
    for shards in [1, 3] {
        let mut bench = Bench::with(Options { shards: Some(shards), ..Options::default() });
        bench.fake.set_up(false);
        bench.offer(plain());
        bench.pass(Duration::from_secs(10)).await;
        for object in 0..60 {
            bench.offer(event(&format!("node-{}", object % 7), &format!("web-{object}"), "Pulled", "pulled"));
        }
        // Later than the others, so that only their type puts them first.
        bench.pass(Duration::from_millis(1)).await;
        for object in 0..15 {
            bench.offer(warning(&format!("node-{}", object % 7), &format!("web-{object}"), "Failed", "failed"));
        }
        let before = bench.fake.seen().len();
        bench.fake.set_up(true);
        bench.settle().await;
        let after = bench.fake.seen().split_off(before);
        let order: Vec<bool> = after.iter().map(|seen| seen.is_warning).collect();
        // They get all turns but every eighth.
        let last = order.iter().rposition(|is_warning| *is_warning).unwrap();
        let normal = order[..last].iter().filter(|is_warning| !**is_warning).count();
        assert!(normal <= 2 + shards, "with {shards} shards: {order:?}");
        assert!(order[..7].iter().all(|is_warning| *is_warning), "with {shards} shards: {order:?}");
        bench.finish().await;
    }
}

/// Fault: a Normal event waited for as long as Warnings came.
#[tokio::test(start_paused = true)]
async fn a_normal_event_is_written_despite_constant_warnings() {
    for shards in [1, 3] {
        let gate = GateSettings { max_in_flight: 1, ..GateSettings::default() };
        let mut bench = Bench::with(Options { gate, shards: Some(shards), ..Options::default() });
        bench.fake.set_latency(Duration::from_millis(10));
        for object in 0..20 {
            bench.offer(warning(&format!("node-{object}"), "web", "Failed", "failed"));
        }
        bench.pass(Duration::from_millis(5)).await;
        bench.offer(plain());
        let before = bench.fake.seen().len();
        for object in 20..400 {
            bench.offer(warning(&format!("node-{object}"), "web", "Failed", "failed"));
            bench.pass(Duration::from_millis(10)).await;
        }
        let seen = bench.fake.seen();
        assert!(seen.len() >= 380, "Warnings took every turn");
        let turns = seen[before..].iter().position(|seen| !seen.is_warning).unwrap() + 1;
        assert!(turns <= 8 * shards, "{turns} turns with {shards} shards");
        bench.finish().await;
    }
}

/// Fault: a shard whose Normal events waited for the upstream's budget had no eighth turn. Without budgets of
/// groups the Warnings of a source passed its Normal events.
#[tokio::test(start_paused = true)]
async fn a_normal_event_is_written_despite_warnings_that_wait_for_tokens() {
    const SHARDS: usize = 3;
    let rate = |qps| Some(Rate { qps, burst: 1 });
    for (ceiling, group) in [(rate(50.0), None), (rate(50.0), rate(20.0)), (None, rate(20.0))] {
        // Each one belongs to another shard.
        for warnings in [[0, 1], [0, 5], [1, 5]] {
            for normal in [0, 1, 5] {
                let groups =
                    GroupSettings { ceiling, fold_after: Duration::from_secs(600), ..GroupSettings::default() };
                let outbox = outbox::Settings { groups, ..outbox::Settings::default() };
                let mut bench = Bench::with(Options {
                    gate: GateSettings { max_in_flight: 1, ..GateSettings::default() },
                    correlator: correlator::Settings { group, ..correlator::Settings::default() },
                    shard: shard::Settings { outbox, ..shard::Settings::default() },
                    shards: Some(SHARDS),
                    ..Options::default()
                });
                let mut before = 0;
                for round in 0..150 {
                    if round == 30 {
                        before = bench.fake.seen().len();
                        bench.offer(event(&format!("node-{normal}"), "web", "Pulled", "pulled"));
                    }
                    for node in warnings {
                        let reason = format!("Failed{}", round % 20);
                        bench.offer(warning(&format!("node-{node}"), &format!("web-{round}"), &reason, "failed"));
                    }
                    bench.pass(Duration::from_millis(10)).await;
                }
                let seen = bench.fake.seen();
                let turns = seen[before..].iter().position(|seen| !seen.is_warning).map(|turns| turns + 1);
                let is_soon = turns.is_some_and(|turns| turns <= 8 * SHARDS);
                assert!(
                    is_soon,
                    "{turns:?} turns: {ceiling:?} {group:?}, Warnings of {warnings:?}, the other of {normal}"
                );
            }
        }
    }
}

/// Fault: repeats of the noisy object took tokens first, and each rare warning waited up to 26 minutes.
#[tokio::test(start_paused = true)]
async fn rare_warnings_beside_a_noisy_one_get_the_first_token() {
    let correlator = correlator::Settings { burst_size: 1, qps: 1.0 / 300.0, ..correlator::Settings::default() };
    let mut bench = Bench::with(Options { correlator, ..Options::default() });
    for tick in 0..340_u32 {
        bench.offer(warning("node-1", "web-0", "BackOff", "restarting"));
        if tick % 29 == 28 && tick < 295 {
            bench.offer(warning("node-1", "web-0", &format!("Rare{}", tick / 29), "m"));
        }
        bench.pass(Duration::from_secs(10)).await;
    }
    let seen = bench.fake.seen();
    let reasons: Vec<&str> = seen.iter().map(|seen| seen.reason.as_str()).collect();
    let rare: Vec<String> = (0..10).map(|number| format!("Rare{number}")).collect();
    assert_eq!(reasons[0], "BackOff");
    assert_eq!(reasons[1..11], rare, "a patch has no reason here");
    assert_eq!(reasons[11..], [""], "then the noisy one's count");
    bench.finish().await;
}
