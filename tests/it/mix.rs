//! Random occurrences against a random upstream: whatever its faults except refusals, it shows all accepted occurrences
//! at the end.

use std::time::Duration;

use eventweir::correlator::{self, Correlation};
use eventweir::deliver::GateSettings;
use eventweir::event::Event;
use eventweir::outbox::{self, LostReason};
use eventweir::shard;

use super::support::bench::{Bench, Options, policy};
use super::support::events::{event, warning};
use super::support::fake::Fault;
use super::support::seeds::{Seed, fresh_seeds};

const OCCURRENCES: usize = 2_000;

fn fault(rng: &mut fastrand::Rng) -> Fault {
    match rng.u32(..100) {
        0..6 => Fault::TooMany(None),
        6..8 => Fault::TooMany(Some(1)),
        8..12 => Fault::Before(500),
        12..15 => Fault::Before(503),
        15..20 => Fault::After(500),
        20..23 => Fault::After(504),
        23..26 => Fault::ResetAfter,
        26..28 => Fault::HangAfter,
        28..30 => Fault::Hang,
        30..31 => Fault::GarbledAfter,
        31..32 => Fault::LateAfter(rng.u64(1..60)),
        32..36 => Fault::Taken,
        36..40 => Fault::Deleted,
        _ => Fault::None,
    }
}

fn occurrence(rng: &mut fastrand::Rng) -> Event {
    let host = format!("node-{}", rng.u32(..4));
    let object = format!("web-{}", rng.u32(..6));
    let reason = format!("Reason{}", rng.u32(..5));
    // Few reasons and many messages, so that some events are combined.
    let message = format!("message {}", if rng.bool() { 0 } else { rng.u32(..15) });
    if rng.u32(..4) == 0 {
        warning(&host, &object, &reason, &message)
    } else {
        event(&host, &object, &reason, &message)
    }
}

/// A random upstream, with random limits of delivery and random rules.
fn bench(rng: &mut fastrand::Rng, writer: Option<&'static str>) -> Bench {
    let gate = GateSettings { max_in_flight: rng.usize(1..16), ..GateSettings::default() };
    let correlator = rules(rng);
    let options = Options { correlator, gate, shards: Some(rng.usize(1..4)), writer, ..Options::default() };
    let bench = Bench::with(options);
    let mut faults = rng.fork();
    bench.fake.plan(move |seen| match fault(&mut faults) {
        // Only a patch shows that the program takes the event for stored.
        Fault::Deleted if seen.method != http::Method::PATCH => Fault::None,
        // Without a tally it cannot be detected: docs/semantics.md.
        Fault::LateAfter(_) if writer.is_none() => Fault::GarbledAfter,
        fault => fault,
    });
    bench
}

/// Rules under which nothing is dropped.
fn rules(rng: &mut fastrand::Rng) -> correlator::Settings {
    let settings = correlator::Settings::default();
    match rng.u32(..8) {
        0 => correlator::Settings { correlation: Correlation::Off, ..settings },
        1 => correlator::Settings { burst_size: 1, qps: 0.001, ..settings },
        2 => settings,
        _ => correlator::Settings { burst_size: 6, qps: 0.02, ..settings },
    }
}

async fn some_traffic(bench: &mut Bench, rng: &mut fastrand::Rng, reloads: bool) {
    for _ in 0..OCCURRENCES {
        bench.offer(occurrence(rng));
        match rng.u32(..50) {
            0 => bench.fake.set_up(rng.u32(..3) > 0),
            1 => bench.pass(Duration::from_secs(rng.u64(..40))).await,
            2 if reloads && rng.u32(..4) == 0 => {
                let interval = Duration::from_millis(rng.u64(..3_000));
                let outbox = outbox::Settings { coalesce_interval: interval, ..outbox::Settings::default() };
                let settings = shard::Settings { outbox, ..shard::Settings::default() };
                bench.shards.reload(&settings, policy(rules(rng)));
            }
            3..25 => bench.pass(Duration::from_millis(rng.u64(..700))).await,
            _ => {}
        }
    }
}

async fn run(seed: u64, reloads: bool) {
    for writer in [None, Some("a")] {
        let seed = Seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed.0);
        let mut bench = bench(&mut rng, writer);
        some_traffic(&mut bench, &mut rng, reloads).await;
        bench.fake.set_up(true);
        bench.settle().await;
        // Late writes have been applied by then.
        bench.pass(Duration::from_secs(60)).await;
        bench.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn counts_upstream_equal_occurrences_accepted() {
    // The last seed: two records of one object, renamed at the same time, got one name.
    for seed in [1, 2, 42, 0xdead_beef, 14_804_639_893_185_433_042, 17_361_891_009_477_177_489] {
        run(seed, false).await;
    }
    for seed in fresh_seeds() {
        run(seed, false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn reloads_in_between_change_no_count() {
    for seed in [3, 4] {
        run(seed, true).await;
    }
    for seed in fresh_seeds() {
        run(seed, true).await;
    }
}

/// The program stops at any time: occurrences that are not known to be written are counted as lost.
#[tokio::test(start_paused = true)]
async fn at_any_stop_every_occurrence_is_written_or_counted_as_lost() {
    for seed in [5, 6].into_iter().chain(fresh_seeds()) {
        let seed = Seed(seed);
        let mut rng = fastrand::Rng::with_seed(seed.0);
        let mut bench = bench(&mut rng, Some("a"));
        some_traffic(&mut bench, &mut rng, false).await;
        bench.fake.set_up(rng.bool());
        bench.shards.drain();
        bench.check();
        bench.pass(Duration::from_secs(rng.u64(..30))).await;
        bench.stop().await;
        bench.shards.abandon();
        bench.check();
        let balance = bench.balance();
        assert_eq!(balance.total_waiting(), 0);
        let (written, unknown) = (balance.ledger.total_written(), bench.lost(LostReason::Unknown));
        assert_eq!(written + unknown + bench.lost(LostReason::Shutdown), bench.accepted);
        // Beside the known writes only unanswered ones may exist, and none twice.
        bench.pass(Duration::from_secs(60)).await;
        assert!((written..=written + unknown).contains(&bench.fake.shown()), "{balance:?}");
        assert!(bench.try_offer(occurrence(&mut rng)).is_err(), "nothing is taken after the end");
    }
}
