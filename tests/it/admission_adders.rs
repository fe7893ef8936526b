//! Admission of clients that do not count what was refused: kube-rs' `Recorder`, and programs that add to a count which
//! they have read.

use std::time::Duration;

use eventweir::event::{Event, EventSeries, MicroTime, Time};

use super::admission::{Cluster, ON, UNWATCHED, new_style};
use super::support::events::{START, plain};

/// Fault: kube-rs' `Recorder` counts only what was accepted, so it sends the count of a refused series again with each
/// further occurrence. These vanished.
#[tokio::test]
async fn a_client_that_does_not_count_what_was_refused_has_each_occurrence_counted() {
    for yaml in [ON, UNWATCHED] {
        let mut cluster = Cluster::new(yaml).await;
        let mine = new_style("up");
        let name = &mine.metadata.name;
        assert_eq!(cluster.create(&mine).await, 201);
        assert_eq!(cluster.patch(name, |event| event.series = at(2, 1)).await, 200);
        for second in 2..=5 {
            assert_eq!(cluster.patch(name, |event| event.series = at(3, second)).await, 409, "{yaml}");
            // The API server asks again if the object has changed meanwhile.
            assert_eq!(cluster.patch(name, |event| event.series = at(3, second)).await, 409, "{yaml}");
        }
        assert_eq!(cluster.shown().await, 6, "{yaml}");
        for second in 6..=9 {
            cluster.program.clock.advance(Duration::from_secs(61));
            assert_eq!(cluster.patch(name, |event| event.series = at(3, second)).await, 403, "{yaml}");
            assert_eq!(cluster.shown().await, i32::try_from(second).unwrap() + 1, "{yaml}");
        }
        cluster.program.stop().await;
    }
}

/// Fault: occurrences of such a client vanished until its clock, which had been set back, was where it had been.
#[tokio::test]
async fn occurrences_of_a_client_whose_clock_was_set_back_are_counted() {
    let mut cluster = Cluster::new(ON).await;
    let mine = new_style("up");
    let name = &mine.metadata.name;
    assert_eq!(cluster.create(&mine).await, 201);
    assert_eq!(cluster.patch(name, |event| event.series = at(2, 1_000)).await, 200);
    assert_eq!(cluster.patch(name, |event| event.series = at(3, 1_001)).await, 409);
    assert_eq!(cluster.shown().await, 3);
    for (second, shown) in [(500, 4), (501, 5), (300, 6)] {
        for _ in 0..2 {
            // The API server asks again if the object has changed meanwhile.
            assert!(matches!(cluster.patch(name, |event| event.series = at(3, second)).await, 403 | 409));
        }
        assert_eq!(cluster.shown().await, shown, "{second}");
    }
    // An earlier request that is late is no occurrence: `tools/events` retries one for two and a half minutes.
    assert!(matches!(cluster.patch(name, |event| event.series = at(3, 150)).await, 403 | 409));
    assert_eq!(cluster.shown().await, 6);
    cluster.program.stop().await;
}

fn add(event: &mut Event, second: i64) {
    event.count += 1;
    event.last_timestamp = Some(Time::from_unix_nanos(START + second * 1_000_000_000));
}

/// Fault: a client that reads the count and writes it plus one was counted once, until eventweir had written its record.
#[tokio::test]
async fn a_client_that_adds_to_a_count_which_it_reads_has_each_occurrence_counted() {
    for yaml in [ON, UNWATCHED] {
        let mut cluster = Cluster::new(yaml).await;
        let mine = plain();
        assert_eq!(cluster.create(&mine).await, 201);
        for second in 1..=4 {
            for _ in 0..2 {
                // The API server asks again if the object has changed meanwhile.
                assert_eq!(cluster.patch(&mine.metadata.name, |event| add(event, second)).await, 409, "{yaml}");
            }
        }
        assert_eq!(cluster.shown().await, 5, "{yaml}");
        assert_eq!(cluster.patch(&mine.metadata.name, |event| add(event, 5)).await, 409, "{yaml}");
        assert_eq!(cluster.shown().await, 6, "{yaml}");
        cluster.ends(6).await;
    }
}

#[tokio::test]
async fn an_occurrence_beyond_the_limits_counts_when_the_same_request_is_sent_again() {
    let mut cluster = Cluster::new(&format!("{ON}limits: [{{type: Namespace, qps: 1, burst: 1}}]\n")).await;
    let mine = plain();
    assert_eq!(cluster.create(&mine).await, 201);
    for (second, waits, code) in [(1, 1, 409), (2, 0, 429), (2, 1, 409), (2, 1, 409)] {
        cluster.program.clock.advance(Duration::from_secs(waits));
        let newer = |event: &mut Event| {
            event.count = 2;
            event.last_timestamp = Some(Time::from_unix_nanos(START + second * 1_000_000_000));
        };
        assert_eq!(cluster.patch(&mine.metadata.name, newer).await, code, "{second} {waits}");
    }
    assert_eq!(cluster.shown().await, 3);
    cluster.ends(3).await;
}

#[tokio::test]
async fn a_client_that_does_not_count_what_was_refused_counts_beside_others_and_after_a_restart() {
    let mut cluster = Cluster::new(ON).await;
    let mine = new_style("up");
    assert_eq!(cluster.create(&mine).await, 201);
    for second in 1..=4 {
        assert_eq!(cluster.create(&Event { metadata: plain().metadata, ..mine.clone() }).await, 409);
        assert_eq!(cluster.shown().await, 2 * i32::try_from(second).unwrap());
        assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = at(2, second)).await, 403);
    }
    assert_eq!((cluster.shown().await, cluster.stored().await.len()), (9, 1));
    let Cluster { apiserver, program, .. } = cluster;
    program.stop().await;
    let mut cluster = Cluster::over(apiserver, ON).await;
    // The next process does not know the time of the last one.
    for (second, shown) in [(5, 9), (6, 10), (7, 11)] {
        assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = at(2, second)).await, 403);
        assert_eq!(cluster.shown().await, shown);
    }
    cluster.program.stop().await;
}

/// Returns a series whose last occurrence was at this second.
fn at(count: i32, second: i64) -> Option<EventSeries> {
    let last_observed_time = Some(MicroTime::from_unix_nanos(START + second * 1_000_000_000));
    Some(EventSeries { count, last_observed_time })
}
