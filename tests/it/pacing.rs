//! Number and spacing of requests to the upstream.

use std::time::Duration;

use eventweir::correlator::Rate;
use eventweir::deliver::GateSettings;
use eventweir::outbox;
use eventweir::shard;

use super::support::bench::{Bench, Options};
use super::support::events::{event, plain};
use super::support::fake::Fault;

#[tokio::test(start_paused = true)]
async fn a_thousand_repeats_in_one_second_are_one_create_and_one_patch_an_interval() {
    for (interval, most) in [(250, 6), (1_000, 3), (10_000, 2)] {
        let interval = Duration::from_millis(interval);
        let outbox = outbox::Settings { coalesce_interval: interval, ..outbox::Settings::default() };
        let shard = shard::Settings { outbox, ..shard::Settings::default() };
        let mut bench = Bench::with(Options { shard, ..Options::default() });
        for _ in 0..1_000 {
            bench.offer(plain());
            bench.pass(Duration::from_millis(1)).await;
        }
        bench.settle().await;
        let seen = bench.fake.seen();
        assert_eq!(seen.iter().filter(|seen| seen.method == http::Method::POST).count(), 1);
        assert!(seen.len() <= most, "{} requests", seen.len());
        for pair in seen.windows(2) {
            assert!(pair[1].at.since(pair[0].at) >= interval);
        }
        bench.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn occurrences_during_a_request_wait_for_it() {
    let mut bench = Bench::new();
    bench.fake.set_latency(Duration::from_secs(4));
    for _ in 0..40 {
        bench.offer(plain());
        bench.pass(Duration::from_millis(100)).await;
    }
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), ["POST", "PATCH"]);
    assert_eq!(bench.fake.most_per_record(), 1);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_stay_within_the_limit() {
    for max_in_flight in [1, 4, 32] {
        let gate = GateSettings { max_in_flight, ..GateSettings::default() };
        let mut bench = Bench::with(Options { gate, shards: Some(2), ..Options::default() });
        bench.fake.set_latency(Duration::from_millis(100));
        for object in 0..100 {
            bench.offer(event(&format!("node-{}", object % 5), &format!("web-{object}"), "Pulled", "pulled"));
        }
        bench.settle().await;
        assert_eq!(bench.fake.most_in_flight(), max_in_flight, "the limit holds, and is used");
        bench.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_rate_of_requests_holds_in_any_interval() {
    let gate = GateSettings { rate: Some(Rate { qps: 10.0, burst: 5 }), ..GateSettings::default() };
    let mut bench = Bench::with(Options { gate, ..Options::default() });
    for object in 0..60 {
        bench.offer(event("node-1", &format!("web-{object}"), "Pulled", "pulled"));
    }
    bench.settle().await;
    let seen = bench.fake.seen();
    for (first, from) in seen.iter().enumerate() {
        for (last, to) in seen.iter().enumerate().skip(first) {
            let allowed = to.at.since(from.at).as_secs_f64().mul_add(10.0, 5.0);
            assert!(f64::from(u32::try_from(last - first + 1).unwrap_or(u32::MAX)) <= allowed + 0.001);
        }
    }
    let whole = seen[59].at.since(seen[0].at);
    assert!(whole < Duration::from_millis(5_600), "the rate is used: {whole:?}");
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn while_the_upstream_is_down_one_probe_is_sent_with_doubling_backoff() {
    let mut bench = Bench::new();
    bench.fake.plan(|_| Fault::Before(503));
    bench.offer(plain());
    bench.pass(Duration::from_millis(20)).await;
    for object in 0..50 {
        bench.offer(event("node-1", &format!("web-{object}"), "Pulled", "pulled"));
    }
    bench.pass(Duration::from_secs(60)).await;
    assert_eq!(bench.fake.most_in_flight(), 1, "probes come one by one");
    let seen = bench.fake.seen();
    assert!(seen.len() < 30, "{} requests in a minute", seen.len());
    for (failures, pair) in seen.windows(2).enumerate() {
        let full = Duration::from_millis(100 << failures.min(6)).min(Duration::from_secs(5));
        assert!(pair[1].at.since(pair[0].at) >= full / 2, "pause {failures}");
    }
    bench.fake.plan(|_| Fault::None);
    bench.finish().await;
}

/// Fault: answers to requests from before the outage counted as the probe's, and a second probe was sent.
#[tokio::test(start_paused = true)]
async fn late_answers_from_before_the_outage_send_no_second_probe() {
    let mut bench = Bench::new();
    let mut number = 0;
    // One fails at once; the probe after it hangs; nine fail meanwhile.
    bench.fake.plan(move |_| {
        number += 1;
        match number {
            1 => Fault::Before(503),
            2..=10 => Fault::LateBefore(503, 3),
            _ => Fault::Hang,
        }
    });
    for object in 0..10 {
        bench.offer(event("node-1", &format!("web-{object}"), "Pulled", "pulled"));
    }
    bench.pass(Duration::from_secs(2)).await;
    assert_eq!(bench.fake.seen().len(), 11, "ten requests and a probe");
    bench.pass(Duration::from_secs(7)).await;
    assert_eq!(bench.fake.seen().len(), 11, "the probe is still on its way");
    bench.fake.plan(|_| Fault::None);
    bench.finish().await;
}
