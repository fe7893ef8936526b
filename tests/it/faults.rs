//! Single faults of the upstream on a create and on a patch: the following requests and the final count.

use std::time::Duration;

use super::support::bench::{Bench, Options};
use super::support::events::{event, plain};
use super::support::fake::Fault;

/// Faults after which a write is applied and its answer is lost.
const LOST_ANSWERS: [Fault; 6] =
    [Fault::After(500), Fault::After(503), Fault::After(504), Fault::HangAfter, Fault::ResetAfter, Fault::GarbledAfter];

/// The first write of a record meets `faults`. Checks the requests, and that the count of five occurrences is five.
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
async fn a_write_that_was_not_applied_is_sent_again() {
    let denied = [401, 409, 500, 503, 504].map(Fault::Before);
    for fault in denied.into_iter().chain([Fault::TooMany(None), Fault::TooMany(Some(2)), Fault::Hang]) {
        create_under(&[fault], &["POST", "POST"]).await;
        create_under(&[fault, fault, fault], &["POST", "POST", "POST", "POST"]).await;
        patch_under(&[fault], &["PATCH", "PATCH"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_with_a_lost_answer_is_found_and_counted_once() {
    for fault in LOST_ANSWERS {
        create_under(&[fault], &["POST", "POST", "GET"]).await;
        // The read fails as well.
        create_under(&[fault, Fault::None, Fault::Before(500)], &["POST", "POST", "GET", "GET"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_patch_with_a_lost_answer_is_idempotent() {
    for fault in LOST_ANSWERS {
        patch_under(&[fault], &["PATCH", "PATCH"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn occurrences_during_an_unanswered_create_are_patched_onto_it() {
    let mut bench = Bench::new();
    bench.fake.fail_next(&[Fault::HangAfter]);
    bench.offer(plain());
    bench.pass(Duration::from_secs(5)).await;
    for _ in 0..6 {
        bench.offer(plain());
    }
    bench.settle().await;
    // The repeated create would write seven; the found event has one.
    assert_eq!(bench.fake.take_methods(), ["POST", "POST", "GET", "PATCH"]);
    assert_eq!(bench.fake.events().len(), 1);
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn a_taken_name_is_replaced_and_the_other_event_is_not_changed() {
    create_under(&[Fault::Taken], &["POST", "GET", "POST"]).await;
    // The name was taken while the result of the first create was unknown.
    create_under(&[Fault::Before(500), Fault::Taken], &["POST", "POST", "GET", "POST"]).await;
    // The next name is taken as well.
    create_under(&[Fault::Taken, Fault::None, Fault::Taken], &["POST", "GET", "POST", "GET", "POST"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_equal_event_from_before_a_restart_is_adopted_with_its_count() {
    let mut bench = Bench::new();
    let event = plain();
    bench.offer(event.clone());
    bench.settle().await;
    bench.stop().await;
    // A new process gets the event under the same name.
    let mut again = Bench::over(bench.fake.clone(), Options::default());
    again.offer(event);
    again.settle().await;
    assert_eq!(again.fake.take_methods(), ["POST", "POST", "GET", "PATCH"]);
    assert_eq!((again.fake.shown(), again.fake.events().len()), (2, 1));
    assert_eq!(again.balance().ledger.total_written(), 1);
    again.check();
}

#[tokio::test(start_paused = true)]
async fn an_event_deleted_by_another_writer_is_created_again_with_its_whole_count() {
    patch_under(&[Fault::Deleted], &["PATCH", "POST"]).await;
    // Its name is taken at once.
    patch_under(&[Fault::Deleted, Fault::Taken], &["PATCH", "POST", "GET", "POST"]).await;
    patch_under(&[Fault::Deleted, Fault::HangAfter], &["PATCH", "POST", "POST", "GET"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_deleted_while_idle_is_created_again_by_its_next_occurrence() {
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
async fn refused_connections_lose_nothing() {
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
async fn a_request_whose_task_panics_counts_as_a_lost_answer() {
    create_under(&[Fault::PanicAfter], &["POST", "POST", "GET"]).await;
    patch_under(&[Fault::PanicAfter], &["PATCH", "PATCH"]).await;
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected() {
    let mut bench = Bench::new();
    bench.fake.fail_next(&[Fault::TooMany(Some(7))]);
    bench.offer(plain());
    bench.settle().await;
    let seen = bench.fake.seen();
    assert!(seen[1].at.since(seen[0].at) >= Duration::from_secs(7));
    assert!(seen[1].at.since(seen[0].at) <= Duration::from_secs(8));
    bench.finish().await;
}
