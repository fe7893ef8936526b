//! Random occurrences against a random upstream: whatever it does short of refusing, it shows in the end what was accepted.

use std::time::Duration;

use eventweir::correlator;
use eventweir::event::Event;
use eventweir::outbox::GateSettings;

use super::support::bench::{Bench, Options};
use super::support::events::{event, warning};
use super::support::fake::Fault;

const OCCURRENCES: usize = 2_000;

/// Names the seed when the test fails with it.
struct Seed(u64);

impl Drop for Seed {
    #[expect(clippy::print_stderr, reason = "a failure has to tell how to repeat it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.0);
        }
    }
}

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
        30..32 => Fault::GarbledAfter,
        32..36 => Fault::Taken,
        36..40 => Fault::Deleted,
        _ => Fault::None,
    }
}

fn occurrence(rng: &mut fastrand::Rng) -> Event {
    let host = format!("node-{}", rng.u32(..4));
    let object = format!("web-{}", rng.u32(..6));
    let reason = format!("Reason{}", rng.u32(..5));
    // Few reasons and many messages, so that some are combined.
    let message = format!("message {}", if rng.bool() { 0 } else { rng.u32(..15) });
    if rng.u32(..4) == 0 {
        warning(&host, &object, &reason, &message)
    } else {
        event(&host, &object, &reason, &message)
    }
}

async fn run(seed: u64) {
    let seed = Seed(seed);
    let mut rng = fastrand::Rng::with_seed(seed.0);
    let correlator = correlator::Settings { burst_size: 6, qps: 0.02, ..correlator::Settings::default() };
    let gate = GateSettings { max_in_flight: rng.usize(1..16), ..GateSettings::default() };
    let options = Options { correlator, gate, shards: Some(rng.usize(1..4)), ..Options::default() };
    let mut bench = Bench::with(options);
    let mut faults = rng.fork();
    bench.fake.plan(move |seen| match fault(&mut faults) {
        // Only a patch shows that the proxy believes that the event is there.
        Fault::Deleted if seen.method != http::Method::PATCH => Fault::None,
        fault => fault,
    });
    for _ in 0..OCCURRENCES {
        bench.offer(occurrence(&mut rng));
        match rng.u32(..50) {
            0 => bench.fake.set_up(rng.u32(..3) > 0),
            1 => bench.pass(Duration::from_secs(rng.u64(..40))).await,
            2..25 => bench.pass(Duration::from_millis(rng.u64(..700))).await,
            _ => {}
        }
    }
    bench.fake.set_up(true);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn counts_upstream_equal_occurrences_accepted() {
    for seed in [1, 2, 3, 42, 0xdead_beef] {
        run(seed).await;
    }
    run(fastrand::u64(..)).await;
}
