//! Exact writes: every occurrence counts once on its record, despite lost answers, late writes and other writers of the
//! same record.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use eventweir::correlator::{Naming, Settings};
use eventweir::event::Event;
use eventweir::outbox::LostReason;
use http::Method;

use super::support::bench::{Bench, Options};
use super::support::events::{event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::seeds::{Seed, fresh_seeds};

fn writer(name: &'static str) -> Options {
    Options { writer: Some(name), ..Options::default() }
}

/// Returns the tags of the only event: the writer and its number of occurrences.
fn tags(fake: &FakeApiserver) -> Vec<(String, u64)> {
    let [event] = <[Event; 1]>::try_from(fake.events()).unwrap();
    let rare = event.metadata.rare.unwrap_or_default();
    let count = |value: &str| value.split('@').next().unwrap().parse().unwrap();
    let tags = rare.annotations.iter();
    tags.filter_map(|(name, value)| Some((name.strip_prefix("tally.eventweir/")?.to_owned(), count(value)))).collect()
}

/// The second write of a record meets `faults`. Checks the requests, and that all four occurrences show.
async fn patch_under(faults: &[Fault], requests: &[&str]) {
    let mut bench = Bench::with(writer("a"));
    bench.offer(plain());
    bench.settle().await;
    bench.fake.take_methods();
    bench.fake.fail_next(faults);
    for _ in 0..3 {
        bench.offer(plain());
    }
    bench.settle().await;
    // Late writes have been applied by then.
    bench.pass(Duration::from_secs(600)).await;
    assert_eq!(bench.fake.take_methods(), requests, "{faults:?}");
    assert_eq!((bench.fake.shown(), bench.fake.events().len()), (4, 1), "{faults:?}");
    assert_eq!(tags(&bench.fake), [("a.0.0".to_owned(), 4)], "{faults:?}");
    bench.offer(plain());
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn without_faults_the_requests_are_the_same_as_without_tags() {
    patch_under(&[], &["PATCH"]).await;
    patch_under(&[Fault::TooMany(None)], &["PATCH", "PATCH"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_patch_with_a_lost_answer_is_looked_up_before_it_is_repeated() {
    for fault in [Fault::After(500), Fault::After(504), Fault::HangAfter, Fault::ResetAfter, Fault::GarbledAfter] {
        patch_under(&[fault], &["PATCH", "GET"]).await;
        // The read fails too.
        patch_under(&[fault, Fault::Before(503)], &["PATCH", "GET", "GET"]).await;
    }
    for fault in [Fault::Before(500), Fault::Hang] {
        patch_under(&[fault], &["PATCH", "GET", "PATCH"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_patch_changes_nothing_after_a_newer_one() {
    patch_under(&[Fault::LateAfter(300)], &["PATCH", "GET", "PATCH"]).await;
    // Late, but before the newer patch: that one gets a conflict, and finds its own state.
    patch_under(&[Fault::LateAfter(12), Fault::None, Fault::LateAfter(20)], &["PATCH", "GET", "PATCH", "GET"]).await;
}

#[tokio::test(start_paused = true)]
async fn counts_of_other_writers_are_kept() {
    for fault in [Fault::None, Fault::After(500), Fault::Before(500), Fault::HangAfter, Fault::LateAfter(12)] {
        let mut bench = Bench::with(writer("a"));
        bench.offer(plain());
        bench.settle().await;
        bench.fake.fail_next(&[fault]);
        bench.fake.count_on(&bench.fake.events()[0], 10);
        for _ in 0..3 {
            bench.offer(plain());
        }
        bench.pass(Duration::from_secs(1)).await;
        // A repeat while the result of the patch is unknown.
        bench.fake.count_on(&bench.fake.events()[0], 100);
        bench.settle().await;
        assert_eq!(bench.fake.shown(), 114, "{fault:?}");
        assert_eq!(tags(&bench.fake)[0].1, 4, "{fault:?}");
        bench.offer(plain());
        bench.settle().await;
        assert_eq!(bench.fake.shown(), 115, "{fault:?}");
        assert_eq!(bench.balance().ledger.total_written(), 5);
        bench.check();
    }
}

#[tokio::test(start_paused = true)]
async fn a_create_that_was_applied_and_then_refused_counts_as_written() {
    let mut bench = Bench::with(writer("a"));
    bench.fake.fail_next(&[Fault::After(500), Fault::Before(422)]);
    bench.offer(plain());
    bench.finish().await;
    // A create that was not applied is lost with the refusal's reason, once it can no longer be applied.
    let mut bench = Bench::with(writer("a"));
    bench.fake.fail_next(&[Fault::Before(500), Fault::Before(422)]);
    bench.offer(plain());
    bench.settle().await;
    assert_eq!(bench.fake.take_methods(), ["POST", "POST", "GET", "GET"]);
    assert_eq!(bench.lost(LostReason::Invalid), 1);
    bench.check();
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_read_patches_are_repeated_blindly_after_five_minutes() {
    let mut bench = Bench::with(writer("a"));
    bench.offer(plain());
    bench.settle().await;
    bench.fake.fail_next(&[Fault::After(500)]);
    bench.fake.plan(|seen| if seen.method == Method::GET { Fault::Before(403) } else { Fault::None });
    let before = bench.fake.seen().len();
    for _ in 0..3 {
        bench.offer(plain());
    }
    bench.settle().await;
    let seen = bench.fake.seen();
    let [patch, reads @ .., again] = &seen[before..] else { panic!("{seen:?}") };
    assert_eq!((&patch.method, &again.method), (&Method::PATCH, &Method::PATCH));
    assert!(reads.len() > 5 && reads.iter().all(|seen| seen.method == Method::GET), "{reads:?}");
    let minutes = again.at.since(reads[0].at).as_secs_f64() / 60.0;
    assert!((5.0..5.1).contains(&minutes), "{minutes}");
    assert_eq!(tags(&bench.fake), [("a.0.0".to_owned(), 4)]);
    bench.finish().await;
}

/// Fault: the 403 of an API server that has just started was final for a read, and the patch without a version that
/// followed removed another writer's occurrences.
#[tokio::test(start_paused = true)]
async fn a_read_that_is_refused_for_a_moment_is_repeated() {
    let mut first = Bench::with(writer("a"));
    let mut second = Bench::over(first.fake.clone(), writer("b"));
    let (event, fake) = (plain(), first.fake.clone());
    for bench in [&mut first, &mut second] {
        bench.offer(event.clone());
        bench.settle().await;
    }
    first.pass(Duration::from_secs(10)).await;
    let before = fake.seen().len();
    fake.fail_next(&[Fault::After(500), Fault::Before(403), Fault::Before(403)]);
    first.offer(event.clone());
    while fake.seen().len() < before + 3 {
        first.pass(Duration::from_millis(1)).await;
    }
    for _ in 0..3 {
        second.offer(event.clone());
    }
    second.pass(Duration::from_millis(20)).await;
    assert_eq!(second.balance().total_waiting(), 0);
    first.settle().await;
    second.settle().await;
    let written = |bench: &Bench| bench.balance().ledger.total_written();
    assert_eq!((written(&first), written(&second), fake.shown()), (2, 4, 6));
}

#[tokio::test(start_paused = true)]
async fn occurrences_deferred_beyond_the_maximum_age_are_lost_as_expired() {
    let mut bench = Bench::with(writer("a"));
    bench.fake.plan(|_| Fault::TooMany(None));
    bench.offer(plain());
    bench.pass(Duration::from_secs(3_500)).await;
    assert_eq!(bench.balance().total_waiting(), 1);
    bench.offer(plain());
    bench.pass(Duration::from_secs(3_500)).await;
    assert_eq!(bench.balance().total_waiting(), 2, "the newest occurrence counts");
    bench.settle().await;
    assert_eq!(bench.lost(LostReason::Expired), 2);
    bench.check();
}

#[tokio::test(start_paused = true)]
async fn tags_of_ended_writers_are_removed() {
    const WRITERS: [&str; 5] = ["a", "b", "c", "d", "e"];
    let fake = Bench::new().fake.clone();
    let same = plain();
    let mut most = 0;
    for name in WRITERS {
        let mut bench = Bench::over(fake.clone(), writer(name));
        bench.offer(same.clone());
        bench.settle().await;
        most = most.max(tags(&fake).len());
        // After a week, no spool of an ended writer is expected back.
        bench.pass(Duration::from_secs(4 * 86_400)).await;
        bench.offer(same.clone());
        bench.settle().await;
        bench.stop().await;
    }
    assert_eq!(fake.shown(), 10);
    assert!(most < WRITERS.len(), "{:?}", tags(&fake));
}

/// Fault: the first records of two shards had equal tags, so that one was taken for the other and its occurrence
/// was lost.
#[tokio::test(start_paused = true)]
async fn records_of_two_shards_under_one_name_have_tags_of_their_own() {
    let mut bench = Bench::with(Options { shards: Some(3), ..writer("a") });
    for node in 0..9 {
        let mut event = event(&format!("node-{node}"), "web", "BackOff", "restarting");
        event.metadata.name = "web.1".into();
        bench.offer(event);
    }
    bench.settle().await;
    assert_eq!((bench.balance().ledger.total_written(), bench.fake.shown()), (9, 9));
}

/// Two processes report equal events under equal names to one upstream with random faults.
async fn two_writers(seed: u64) {
    let seed = Seed(seed);
    let mut rng = fastrand::Rng::with_seed(seed.0);
    let mut first = Bench::with(writer("a"));
    let mut second = Bench::over(first.fake.clone(), writer("b"));
    let events: Vec<Event> = (0..5).map(|n| event("node-1", &format!("web-{n}"), "BackOff", "restarting")).collect();
    let mut faults = rng.fork();
    first.fake.plan(move |_| match faults.u32(..100) {
        0..5 => Fault::TooMany(None),
        5..10 => Fault::Before(500),
        10..20 => Fault::After(500),
        20..25 => Fault::ResetAfter,
        25..28 => Fault::HangAfter,
        28..30 => Fault::Hang,
        30..35 => Fault::LateAfter(faults.u64(1..60)),
        35..37 => Fault::GarbledAfter,
        _ => Fault::None,
    });
    for _ in 0..1_000 {
        let writer = if rng.bool() { &mut first } else { &mut second };
        writer.offer(events[rng.usize(..events.len())].clone());
        match rng.u32(..50) {
            0 => first.fake.set_up(rng.u32(..3) > 0),
            1 => first.pass(Duration::from_secs(rng.u64(..400))).await,
            2..25 => second.pass(Duration::from_millis(rng.u64(..700))).await,
            _ => {}
        }
    }
    first.fake.set_up(true);
    first.settle().await;
    second.settle().await;
    first.pass(Duration::from_secs(600)).await;
    assert_eq!(first.fake.shown(), 1_000);
    assert_eq!(first.fake.events().len(), 5);
    for bench in [&first, &second] {
        let balance = bench.balance();
        assert_eq!((balance.ledger.total_written(), balance.ledger.total_lost()), (bench.accepted, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn two_writers_of_the_same_records_never_disturb_each_others_counts() {
    for seed in [1, 2, 3, 4, 5].into_iter().chain(fresh_seeds()) {
        two_writers(seed).await;
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_with_deterministic_names_share_one_record() {
    let options = |name| {
        let correlator = Settings { naming: Naming::Deterministic, ..Settings::default() };
        Options { correlator, ..writer(name) }
    };
    let mut first = Bench::with(options("a"));
    let mut second = Bench::over(first.fake.clone(), options("b"));
    for _ in 0..4 {
        first.offer(plain());
        second.offer(plain());
        first.pass(Duration::from_secs(2)).await;
    }
    // Both combine the same messages.
    for number in 0..12 {
        for bench in [&mut first, &mut second] {
            bench.offer(event("node-1", "web-1", "FailedMount", &format!("volume {number}")));
        }
        first.pass(Duration::from_secs(2)).await;
    }
    first.settle().await;
    second.settle().await;
    let events = first.fake.events();
    assert_eq!((events.len(), first.fake.shown()), (11, 32));
    assert!(events.iter().any(|event| event.reason == "BackOff" && event.count == 8));
    assert_eq!(first.balance().ledger.total_written() + second.balance().ledger.total_written(), 32);
}
