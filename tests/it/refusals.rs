//! What the upstream refuses for good is lost under its reason, and the next occurrence starts anew.

use eventweir::outbox::{LostReason, RefusalReason};

use super::support::bench::Bench;
use super::support::events::plain;
use super::support::fake::Fault;

#[tokio::test(start_paused = true)]
async fn a_refused_create_is_lost_with_its_reason_and_the_next_occurrence_is_created() {
    for (code, reason) in
        [(403, RefusalReason::Forbidden), (413, RefusalReason::TooLarge), (422, RefusalReason::Invalid)]
    {
        let mut bench = Bench::new();
        bench.fake.fail_next(&[Fault::Before(code)]);
        bench.offer(plain());
        bench.settle().await;
        assert_eq!(bench.fake.take_methods(), ["POST"], "{code} is not tried again");
        assert_eq!((bench.lost(LostReason::Refused(reason)), bench.balance().ledger.total_lost()), (1, 1), "{code}");
        bench.offer(plain());
        bench.settle().await;
        assert_eq!(bench.fake.take_methods(), ["POST"], "{code}");
        assert_eq!((bench.fake.shown(), bench.balance().ledger.total_written()), (1, 1), "{code}");
        bench.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_patch_loses_only_what_it_carried() {
    for (code, reason) in [(403, RefusalReason::Forbidden), (422, RefusalReason::Invalid)] {
        let mut bench = Bench::new();
        bench.offer(plain());
        bench.settle().await;
        bench.fake.fail_next(&[Fault::Before(code)]);
        for _ in 0..3 {
            bench.offer(plain());
        }
        bench.settle().await;
        assert_eq!(bench.lost(LostReason::Refused(reason)), 3, "{code}");
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
async fn occurrences_that_came_during_a_refused_request_try_on_their_own() {
    let mut bench = Bench::new();
    bench.fake.fail_next(&[Fault::Before(403)]);
    bench.fake.set_latency(std::time::Duration::from_millis(100));
    bench.offer(plain());
    bench.pass(std::time::Duration::from_millis(50)).await;
    bench.offer(plain());
    bench.offer(plain());
    bench.settle().await;
    assert_eq!(bench.lost(LostReason::Refused(RefusalReason::Forbidden)), 1);
    assert_eq!((bench.fake.shown(), bench.balance().ledger.total_written()), (2, 2));
    bench.check();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_no_outage() {
    let mut bench = Bench::new();
    bench.fake.plan(|seen| if seen.object == "bad" { Fault::Before(403) } else { Fault::None });
    for number in 0..20 {
        bench.offer(super::support::events::event("node-1", "bad", &format!("R{number}"), "m"));
        bench.offer(super::support::events::event("node-1", &format!("good-{number}"), "R", "m"));
    }
    bench.settle().await;
    let seen = bench.fake.seen();
    assert!(seen.last().is_some_and(|last| last.at.since(seen[0].at) < std::time::Duration::from_millis(50)));
    assert_eq!(bench.fake.shown(), 20);
    assert_eq!(bench.lost(LostReason::Refused(RefusalReason::Forbidden)), 20);
    bench.check();
}
