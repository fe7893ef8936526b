//! Final refusals of the upstream: the occurrences are lost with the reason, and the next one begins a new record.

use std::time::Duration;

use eventweir::correlator;
use eventweir::event::repair::Repair;
use eventweir::event::{Event, MicroTime};
use eventweir::outbox::{self, DIGEST_REASON, LostReason};
use eventweir::shard;

use super::support::bench::{Bench, Options};
use super::support::events::{START, event, plain};
use super::support::fake::Fault;

fn repairs(bench: &Bench, repair: Repair) -> f64 {
    bench.metric("eventweir_upstream_repairs_total", Some(repair.label()))
}

#[tokio::test(start_paused = true)]
async fn a_refused_create_is_lost_with_its_reason_and_the_next_occurrence_is_created() {
    for (code, reason) in [(404, LostReason::NamespaceGone), (413, LostReason::TooLarge), (422, LostReason::Invalid)] {
        let mut bench = Bench::new();
        bench.fake.fail_next(&[Fault::Before(code)]);
        bench.offer(plain());
        bench.settle().await;
        assert_eq!(bench.fake.take_methods(), ["POST"], "{code} is not tried again");
        assert_eq!((bench.lost(reason), bench.balance().ledger.total_lost()), (1, 1), "{code}");
        bench.offer(plain());
        bench.settle().await;
        assert_eq!(bench.fake.take_methods(), ["POST"], "{code}");
        assert_eq!((bench.fake.shown(), bench.balance().ledger.total_written()), (1, 1), "{code}");
        bench.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_patch_loses_only_its_own_occurrences() {
    for (code, reason) in [(413, LostReason::TooLarge), (422, LostReason::Invalid)] {
        let mut bench = Bench::new();
        bench.offer(plain());
        bench.settle().await;
        bench.fake.fail_next(&[Fault::Before(code)]);
        for _ in 0..3 {
            bench.offer(plain());
        }
        bench.settle().await;
        assert_eq!(bench.lost(reason), 3, "{code}");
        assert_eq!(bench.fake.shown(), 1, "{code}");
        for _ in 0..2 {
            bench.offer(plain());
        }
        bench.settle().await;
        assert_eq!((bench.fake.shown(), bench.fake.events().len()), (3, 1), "{code}: lost ones are not counted later");
        assert_eq!(bench.balance().ledger.total_written(), 3, "{code}");
        bench.check();
    }
}

#[tokio::test(start_paused = true)]
async fn occurrences_during_a_refused_request_are_sent_separately() {
    let mut bench = Bench::new();
    bench.fake.fail_next(&[Fault::Before(422)]);
    bench.fake.set_latency(Duration::from_millis(100));
    bench.offer(plain());
    bench.pass(Duration::from_millis(50)).await;
    bench.offer(plain());
    bench.offer(plain());
    bench.settle().await;
    assert_eq!(bench.lost(LostReason::Invalid), 1);
    assert_eq!((bench.fake.shown(), bench.balance().ledger.total_written()), (2, 2));
    bench.check();
}

/// Returns an event that the API group refuses; the fake apiserver enforces the real one's rules.
fn invalid() -> Event {
    let mut event = Event {
        event_time: Some(MicroTime(START / 1000)),
        reporting_controller: "kubelet".into(),
        reporting_instance: "i".repeat(200).into(),
        action: "Pull".into(),
        message: "m".repeat(2000).into(),
        ..plain()
    };
    event.metadata.name = "a/b".into();
    event
}

#[tokio::test(start_paused = true)]
async fn an_invalid_write_is_repaired_and_counts_on() {
    for writer in [None, Some("w")] {
        let mut bench = Bench::with(Options { writer, ..Options::default() });
        // core/v1 reports a fault of the name only if the rest is valid.
        for fault in [Fault::None, Fault::ResetAfter, Fault::HangAfter] {
            bench.fake.fail_next(&[fault]);
            bench.offer(invalid());
            bench.settle().await;
            bench.pass(Duration::from_secs(10)).await;
        }
        let events = bench.fake.events();
        assert_eq!((events.len(), events[0].count, events[0].message.len()), (1, 3, 1024), "{writer:?}");
        assert_eq!((events[0].reporting_instance.len(), events[0].metadata.name.contains('/')), (128, false));
        for repair in Repair::ALL {
            let expected = match repair {
                // A patch carries the newest message.
                Repair::Message => 3.0,
                Repair::ReportingInstance | Repair::Name => 1.0,
                Repair::EventTime | Repair::Style | Repair::Metadata => 0.0,
            };
            assert_eq!(repairs(&bench, repair), expected, "{repair:?}");
        }
        bench.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_too_large_write_is_cut_once_and_then_lost() {
    let long = || Event { message: "m".repeat(100_000).into(), ..plain() };
    let mut bench = Bench::new();
    bench.fake.fail_next(&[Fault::Before(413)]);
    bench.offer(long());
    bench.settle().await;
    assert_eq!(bench.fake.events()[0].message.len(), 1024);
    // A repeat while the record is known: it stays cut.
    bench.offer(long());
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), ["POST", "POST", "PATCH"]);
    assert_eq!((repairs(&bench, Repair::Message), bench.fake.shown()), (1.0, 2));
    // Later it is sent whole, and is cut again.
    bench.pass(Duration::from_secs(10)).await;
    bench.fake.fail_next(&[Fault::Before(413), Fault::Before(413)]);
    bench.offer(long());
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), ["PATCH", "PATCH"]);
    assert_eq!((bench.lost(LostReason::TooLarge), bench.fake.shown()), (1, 2));
    assert_eq!(repairs(&bench, Repair::Message), 2.0);
    bench.check();
}

#[tokio::test(start_paused = true)]
async fn without_repair_a_refused_write_is_lost_at_once() {
    let outbox = outbox::Settings { repair: false, ..outbox::Settings::default() };
    let shard = shard::Settings { outbox, ..shard::Settings::default() };
    let mut bench = Bench::with(Options { shard, ..Options::default() });
    // Fault: a reload changed it here, and not in the answers to clients.
    bench.shards.reload(&shard::Settings::default(), correlator::Policy::default());
    bench.offer(invalid());
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), ["POST"]);
    assert_eq!(bench.lost(LostReason::Invalid), 1);
    bench.check();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_not_an_outage() {
    let mut bench = Bench::new();
    bench.fake.plan(|seen| if seen.object == "bad" { Fault::Before(422) } else { Fault::None });
    for number in 0..20 {
        bench.offer(event("node-1", "bad", &format!("R{number}"), "m"));
        bench.offer(event("node-1", &format!("good-{number}"), "R", "m"));
    }
    bench.settle().await;
    let seen = bench.fake.seen();
    assert!(seen.last().is_some_and(|last| last.at.since(seen[0].at) < Duration::from_millis(50)));
    assert_eq!(bench.fake.shown(), 20);
    assert_eq!(bench.lost(LostReason::Invalid), 20);
    bench.check();
}

#[tokio::test(start_paused = true)]
async fn a_refused_digest_loses_its_occurrences_and_the_next_one_starts_at_zero() {
    let outbox = outbox::Settings { digest_after: 4, ..outbox::Settings::default() };
    let shard = shard::Settings { outbox, ..shard::Settings::default() };
    let correlator = correlator::Settings { burst_size: 1, qps: 0.01, ..correlator::Settings::default() };
    let mut bench = Bench::with(Options { correlator, shard, ..Options::default() });
    let mut refused = false;
    bench.fake.plan(move |seen| {
        if seen.reason == DIGEST_REASON && !std::mem::replace(&mut refused, true) {
            return Fault::Before(422);
        }
        Fault::None
    });
    for number in 0..40 {
        bench.offer(event("node-1", "web-0", &format!("Reason{number}"), "m"));
        bench.pass(Duration::from_secs(7)).await;
    }
    bench.settle().await;
    let lost = bench.lost(LostReason::Invalid);
    assert!(lost >= 5, "{lost}");
    assert_eq!(bench.balance().ledger.total_written() + lost, 40);
    assert_eq!(bench.fake.shown() + lost, 40);
    assert!(bench.fake.events().iter().any(|event| event.reason == DIGEST_REASON));
    bench.check();
}

/// Fault: a starting apiserver answers 403 until it knows all roles, and events of that time were lost.
#[tokio::test(start_paused = true)]
async fn a_403_is_final_five_minutes_after_a_records_first() {
    let forbidden = LostReason::Forbidden;
    let mut bench = Bench::new();
    bench.fake.plan(|_| Fault::Before(403));
    bench.offer(plain());
    bench.pass(Duration::from_secs(299)).await;
    assert_eq!((bench.lost(forbidden), bench.balance().total_waiting()), (0, 1));
    bench.fake.plan(|_| Fault::None);
    bench.finish().await;

    let mut bench = Bench::new();
    bench.offer(plain());
    bench.settle().await;
    bench.fake.plan(|_| Fault::Before(403));
    bench.offer(plain());
    bench.settle().await;
    let seen = bench.fake.seen();
    let tried = seen[seen.len() - 1].at.since(seen[1].at);
    assert!((300..306).contains(&tried.as_secs()), "{tried:?}");
    assert!(seen.len() < 150, "{} requests in five minutes", seen.len());
    assert_eq!((bench.lost(forbidden), bench.fake.shown()), (1, 1));
    bench.check();
}

/// The same with other faults of the upstream.
#[tokio::test(start_paused = true)]
async fn refusals_among_other_faults_lose_exactly_the_reported_occurrences() {
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let correlator = correlator::Settings { burst_size: 4, qps: 0.05, ..correlator::Settings::default() };
        let mut bench = Bench::with(Options { correlator, ..Options::default() });
        let mut faults = rng.fork();
        bench.fake.plan(move |_| match faults.u32(..10) {
            0 => Fault::Before(422),
            1 => Fault::Before(500),
            2 => Fault::TooMany(None),
            _ => Fault::None,
        });
        for _ in 0..400 {
            let object = format!("web-{}", rng.u32(..5));
            bench.offer(event("node-1", &object, &format!("Reason{}", rng.u32(..6)), "m"));
            bench.pass(Duration::from_millis(rng.u64(..900))).await;
        }
        bench.settle().await;
        let lost = bench.lost(LostReason::Invalid);
        assert!(lost > 0);
        assert_eq!(bench.fake.shown(), bench.balance().ledger.total_written(), "seed {seed}");
        assert_eq!(bench.balance().ledger.total_written() + lost, bench.accepted, "seed {seed}");
        bench.check();
    }
}
