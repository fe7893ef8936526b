//! Who goes first: every source in turn, Warning before Normal.

use std::time::Duration;

use eventweir::outbox::GateSettings;

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
        // Later than the others, so that only their type can put them first.
        bench.pass(Duration::from_millis(1)).await;
        for object in 0..15 {
            bench.offer(warning(&format!("node-{}", object % 7), &format!("web-{object}"), "Failed", "failed"));
        }
        let before = bench.fake.seen().len();
        bench.fake.set_up(true);
        bench.settle().await;
        let after = bench.fake.seen().split_off(before);
        let order: Vec<bool> = after.iter().map(|seen| seen.is_warning).collect();
        let warnings = order.iter().take_while(|is_warning| **is_warning).count();
        assert_eq!(warnings, 15, "with {shards} shards: {order:?}");
        bench.finish().await;
    }
}
