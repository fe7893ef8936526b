//! Each fault of the upstream alone, on a create and on a patch: the requests that follow, and the count in the end.

use std::time::Duration;

use super::support::bench::{Bench, Options};
use super::support::events::{event, plain};
use super::support::fake::Fault;

/// The first write of a record meets `faults`; these requests are made, and five occurrences are shown as five.
async fn create_under(faults: &[Fault], requests: &[&str]) {
    let mut bench = Bench::new();
    bench.fake.fail_next(faults);
    bench.offer(plain());
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), requests, "{faults:?}");
    assert_eq!(bench.fake.shown(), 1, "{faults:?}");
    for _ in 0..4 {
        bench.offer(plain());
    }
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), ["PATCH"], "{faults:?}");
    assert_eq!(bench.fake.events().len(), 1, "{faults:?}");
    bench.finish().await;
}

/// The second write of a record meets `faults`.
async fn patch_under(faults: &[Fault], requests: &[&str]) {
    let mut bench = Bench::new();
    bench.offer(plain());
    bench.settle().await;
    bench.fake.take_methods();
    bench.fake.fail_next(faults);
    for _ in 0..3 {
        bench.offer(plain());
    }
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), requests, "{faults:?}");
    assert_eq!((bench.fake.shown(), bench.fake.events().len()), (4, 1), "{faults:?}");
    bench.offer(plain());
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), ["PATCH"], "{faults:?}");
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_faults_a_record_is_one_create_and_then_patches() {
    create_under(&[], &["POST"]).await;
    patch_under(&[], &["PATCH"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_not_applied_is_sent_again() {
    let denied = [401, 409, 500, 503, 504].map(Fault::Before);
    for fault in denied.into_iter().chain([Fault::TooMany(None), Fault::TooMany(Some(2)), Fault::Hang]) {
        create_under(&[fault], &["POST", "POST"]).await;
        create_under(&[fault, fault, fault], &["POST", "POST", "POST", "POST"]).await;
        patch_under(&[fault], &["PATCH", "PATCH"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_was_applied_without_an_answer_is_found_and_counted_once() {
    let faults = [
        Fault::After(500),
        Fault::After(503),
        Fault::After(504),
        Fault::HangAfter,
        Fault::ResetAfter,
        Fault::GarbledAfter,
    ];
    for fault in faults {
        create_under(&[fault], &["POST", "POST", "GET"]).await;
        // The read fails as well.
        create_under(&[fault, Fault::None, Fault::Before(500)], &["POST", "POST", "GET", "GET"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_was_applied_without_an_answer_is_idempotent() {
    let faults = [
        Fault::After(500),
        Fault::After(503),
        Fault::After(504),
        Fault::HangAfter,
        Fault::ResetAfter,
        Fault::GarbledAfter,
    ];
    for fault in faults {
        patch_under(&[fault], &["PATCH", "PATCH"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn occurrences_that_come_while_a_creates_fate_is_unknown_are_patched_onto_it() {
    let mut bench = Bench::new();
    bench.fake.fail_next(&[Fault::HangAfter]);
    bench.offer(plain());
    bench.pass(Duration::from_secs(5)).await;
    for _ in 0..6 {
        bench.offer(plain());
    }
    bench.settle().await;
    // The create that is repeated would write seven; the event that is found has one.
    assert_eq!(bench.fake.take_methods(), ["POST", "POST", "GET", "PATCH"]);
    assert_eq!(bench.fake.events().len(), 1);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_name_that_a_stranger_has_is_given_up_and_the_strangers_event_left_alone() {
    create_under(&[Fault::Taken], &["POST", "GET", "POST"]).await;
    // Even when the stranger came while the fate of the first create was unknown.
    create_under(&[Fault::Before(500), Fault::Taken], &["POST", "POST", "GET", "POST"]).await;
    // And a stranger after a stranger.
    create_under(&[Fault::Taken, Fault::None, Fault::Taken], &["POST", "GET", "POST", "GET", "POST"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_event_from_before_a_restart_is_adopted_with_its_count() {
    let mut bench = Bench::new();
    let event = plain();
    bench.offer(event.clone());
    bench.settle().await;
    bench.stop().await;
    // Another process, which knows nothing yet, hears the event under the same name.
    let mut again = Bench::over(bench.fake.clone(), Options::default());
    again.offer(event);
    again.settle().await;
    assert_eq!(again.fake.take_methods(), ["POST", "POST", "GET", "PATCH"]);
    assert_eq!((again.fake.shown(), again.fake.events().len()), (2, 1));
    assert_eq!(again.balance().ledger.total_written(), 1);
    again.check();
}

#[tokio::test(start_paused = true)]
async fn an_event_that_somebody_deleted_is_created_again_with_its_whole_count() {
    patch_under(&[Fault::Deleted], &["PATCH", "POST"]).await;
    // And its name is taken at once.
    patch_under(&[Fault::Deleted, Fault::Taken], &["PATCH", "POST", "GET", "POST"]).await;
    patch_under(&[Fault::Deleted, Fault::HangAfter], &["PATCH", "POST", "POST", "GET"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_deleted_while_nothing_is_owed_is_created_again_by_its_next_occurrence() {
    let mut bench = Bench::new();
    for _ in 0..3 {
        bench.offer(plain());
    }
    bench.settle().await;
    bench.fake.delete(&bench.fake.events()[0]);
    assert_eq!(bench.fake.shown(), 0);
    bench.pass(Duration::from_secs(60)).await;
    bench.offer(plain());
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_refused_for_a_while_loses_nothing() {
    let mut bench = Bench::new();
    bench.offer(plain());
    bench.settle().await;
    bench.fake.set_up(false);
    for second in 0..30 {
        bench.offer(plain());
        bench.offer(event("node-1", &format!("web-{second}"), "BackOff", "restarting"));
        bench.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(bench.balance().total_waiting(), 60);
    bench.fake.set_up(true);
    bench.settle().await;
    assert_eq!(bench.fake.events().len(), 30);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_task_panics_is_one_whose_answer_was_lost() {
    create_under(&[Fault::PanicAfter], &["POST", "POST", "GET"]).await;
    patch_under(&[Fault::PanicAfter], &["PATCH", "PATCH"]).await;
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_waited_for() {
    let mut bench = Bench::new();
    bench.fake.fail_next(&[Fault::TooMany(Some(7))]);
    bench.offer(plain());
    bench.settle().await;
    let seen = bench.fake.seen();
    assert!(seen[1].at.since(seen[0].at) >= Duration::from_secs(7));
    assert!(seen[1].at.since(seen[0].at) <= Duration::from_secs(8));
    bench.finish().await;
}
