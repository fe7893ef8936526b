//! `upstream.group`: records are written through the configured API group as valid events, with exact totals. The fake
//! apiserver enforces the rules of the API group of each request.

use eventweir::correlator::{self, Correlation};
use eventweir::event::{ApiGroup, Event, MicroTime, conversion};
use eventweir::outbox::{self, UpstreamGroup};
use eventweir::shard;
use serde_json::json;

use super::support::app::{start, start_before};
use super::support::bench::{Bench, Options};
use super::support::events::{START, event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::EVENTS;

const GROUPS: [UpstreamGroup; 3] = [UpstreamGroup::Preserve, UpstreamGroup::Core, UpstreamGroup::Events];

fn new_style(name: &str) -> Event {
    let mut event = Event {
        event_time: Some(MicroTime(START / 1000)),
        reporting_controller: "example.com/scheduler".into(),
        reporting_instance: "scheduler-0".into(),
        action: "Binding".into(),
        ..event("", name, "FailedScheduling", "0/3 nodes are available")
    };
    (event.source.component, event.first_timestamp, event.last_timestamp, event.count) =
        (Default::default(), None, None, 0);
    event
}

fn bench(group: UpstreamGroup) -> Bench {
    let outbox = outbox::Settings { group, ..outbox::Settings::default() };
    Bench::with(Options { shard: shard::Settings { outbox, ..shard::Settings::default() }, ..Options::default() })
}

/// Returns the API group through which each style is written.
fn doors(group: UpstreamGroup) -> (ApiGroup, ApiGroup) {
    match group {
        UpstreamGroup::Preserve => (ApiGroup::Core, ApiGroup::Events),
        UpstreamGroup::Core => (ApiGroup::Core, ApiGroup::Core),
        UpstreamGroup::Events => (ApiGroup::Events, ApiGroup::Events),
    }
}

/// Returns the member with the count of an event of this style.
fn check(event: &Event, door: ApiGroup, count: i32) {
    assert_eq!(conversion::occurrences(event), count, "{event:?}");
    match door {
        ApiGroup::Core => assert_eq!((event.count, event.series.is_some()), (count, false), "{event:?}"),
        ApiGroup::Events => {
            let series = event.series.as_ref().map_or(1, |series| series.count);
            assert_eq!((event.count, series, event.event_time.is_some()), (0, count, true), "{event:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn records_are_written_through_the_configured_api_group() {
    for group in GROUPS {
        let mut bench = bench(group);
        for _ in 0..3 {
            bench.offer(plain());
            bench.offer(new_style("web-1"));
            bench.settle().await;
        }
        let (old, new) = doors(group);
        for seen in bench.fake.seen() {
            let expected = if seen.name.starts_with("web-0") { old } else { new };
            assert_eq!(seen.group, expected, "{group:?}: {seen:?}");
        }
        let events = bench.fake.events();
        let [first, second] = events.as_slice() else { panic!("{events:?}") };
        check(first, old, 3);
        check(second, new, 3);
        bench.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answers_taken_names_and_deletions_lose_nothing_in_either_group() {
    for group in GROUPS {
        for fault in [Fault::HangAfter, Fault::ResetAfter, Fault::Taken, Fault::Deleted, Fault::TooMany(None)] {
            let mut bench = bench(group);
            bench.fake.fail_next(&[fault]);
            for event in [plain as fn() -> Event, || new_style("web-1")] {
                bench.offer(event());
                bench.settle().await;
                // A deletion removes the count; the record is created again.
                bench.fake.fail_next(&[fault]);
                bench.offer(event());
                bench.settle().await;
            }
            let shown: Vec<i32> = bench.fake.events().iter().map(conversion::occurrences).collect();
            assert_eq!(shown, [2, 2], "{group:?} {fault:?}");
            bench.finish().await;
        }
    }
}

/// Fault: after a lost answer to its create, a record was patched under the name that events.k8s.io does not accept,
/// and then created again and read, without end.
#[tokio::test(start_paused = true)]
async fn a_record_with_a_name_of_core_v1_is_patched_under_its_stored_name() {
    let mut bench = bench(UpstreamGroup::Events);
    let mut old_style = plain();
    old_style.metadata.name = "Web_0.1".into();
    bench.fake.fail_next(&[Fault::ResetAfter]);
    for _ in 0..2 {
        bench.offer(old_style.clone());
        bench.pass(std::time::Duration::from_secs(60)).await;
    }
    assert_eq!((bench.fake.shown(), bench.fake.all().len()), (2, 1));
    assert!(bench.fake.seen().len() < 10, "{:?}", bench.fake.take_methods());
    bench.finish().await;
}

#[tokio::test(start_paused = true)]
async fn combined_records_and_digests_keep_their_totals() {
    for group in GROUPS {
        let mut bench = bench(group);
        for number in 0..60 {
            bench.offer(event("node-1", "web-0", "BackOff", &format!("message {number}")));
            bench.offer(event("node-1", "web-0", &format!("Reason{number}"), &"long ".repeat(400)));
        }
        bench.finish().await;
    }
}

/// Fault: without correlation, the second event of a name counted on a record that shows one, as if it showed none.
#[tokio::test(start_paused = true)]
async fn without_correlation_equal_events_of_one_name_are_shown() {
    for group in GROUPS {
        let outbox = outbox::Settings { group, ..outbox::Settings::default() };
        let shard = shard::Settings { outbox, ..shard::Settings::default() };
        let correlator = correlator::Settings { correlation: Correlation::Off, ..correlator::Settings::default() };
        let mut bench = Bench::with(Options { correlator, shard, writer: Some("a"), ..Options::default() });
        for first in [plain(), new_style("web-1")] {
            for _ in 0..3 {
                bench.offer(first.clone());
                bench.settle().await;
            }
        }
        assert_eq!(bench.fake.shown(), 6, "{group:?} {:?}", bench.fake.events());
        bench.finish().await;
    }
}

/// Includes `preserve`, which events.k8s.io would not allow.
#[tokio::test(start_paused = true)]
async fn the_message_of_a_combined_new_style_record_follows_its_events() {
    for group in GROUPS {
        let mut bench = bench(group);
        for number in 0..12 {
            bench.offer(Event { message: format!("message {number}").into(), ..new_style("web-1") });
        }
        bench.settle().await;
        bench.offer(Event { message: "the newest".into(), ..new_style("web-1") });
        bench.settle().await;
        let events = bench.fake.events();
        let combined = events.iter().find(|event| event.message.starts_with("(combined")).unwrap();
        let by_count = group != UpstreamGroup::Events;
        let shown = (combined.event_time.is_some(), combined.count > 1, combined.series.is_none());
        assert_eq!(shown, (true, by_count, by_count), "{combined:?}");
        assert_eq!(combined.message.ends_with("the newest"), by_count, "{combined:?}");
        bench.finish().await;
    }
}

/// Returns the event as an item of a list.
fn strip(mut event: serde_json::Value) -> serde_json::Value {
    if let Some(members) = event.as_object_mut() {
        members.retain(|member, _| !["kind", "apiVersion"].contains(&member.as_str()));
    }
    event
}

#[tokio::test]
async fn clients_see_equal_events_for_either_group() {
    for group in ["preserve", "core", "events"] {
        let yaml = format!("upstream: {{group: {group}}}\n");
        let fake = FakeApiserver::manual();
        let programs = [start(&yaml).await, start_before(&fake, &yaml).await];
        for program in programs {
            let client = &mut program.client().await;
            let event = plain();
            let name = event.metadata.name.as_str();
            assert_eq!(client.post(&event).await.status, 201);
            program.settle().await;
            assert_eq!(client.patch(name, &json!({"count": 4})).await.status, 200);
            let owed = client.get(&format!("{EVENTS}/{name}")).await.json();
            program.settle().await;
            let written = client.get(&format!("{EVENTS}/{name}")).await.json();
            let member = if group == "events" { "/series/count" } else { "/count" };
            assert_eq!(owed.pointer(member), Some(&json!(4)), "{group}: {owed}");
            assert_eq!(written.pointer(member), Some(&json!(4)), "{group}: {written}");
            let listed = client.get(&format!("{EVENTS}?fieldSelector=involvedObject.name%3Dweb-0")).await.json();
            assert_eq!((listed.pointer("/items/0"), listed.pointer("/items/1")), (Some(&strip(written)), None));
            let dry = client.post_with(&plain(), "?dryRun=All").await;
            assert_eq!(dry.status, 201, "{group}: {}", dry.text());
            assert_eq!(program.stop().await.ledger.total_written(), 4);
        }
        // A role may name that group alone.
        let doors: Vec<ApiGroup> = fake.seen().iter().map(|seen| seen.group).collect();
        let only = if group == "events" { ApiGroup::Events } else { ApiGroup::Core };
        assert!(doors.len() >= 5 && doors.iter().all(|door| *door == only), "{group}: {doors:?}");
    }
}
