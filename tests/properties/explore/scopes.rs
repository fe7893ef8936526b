//! Scopes of occurrences without totals, in one shard.

use std::num::NonZeroUsize;

use eventweir::correlator::{Naming, Settings};
use eventweir::event::Event;
use eventweir::shard;

use super::super::cluster::{Admission, plain_event};
use super::{Scope, explore, scope};

fn plain() -> Event {
    plain_event(0, "BackOff", "m")
}

/// The same event of another container, under its own name.
fn of_container(number: usize, message: &str) -> Event {
    plain_event(number, "Unhealthy", message)
}

fn of_instance(instance: &str) -> Event {
    Event { reporting_instance: instance.into(), ..plain() }
}

fn size(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap()
}

fn combining(max_events: usize) -> Settings {
    Settings { max_events: size(max_events), ..Settings::default() }
}

fn deterministic() -> Settings {
    Settings { naming: Naming::Deterministic, ..Settings::default() }
}

/// Without tokens, unwritten records fold in the drain.
fn without_tokens() -> Settings {
    Settings { burst_size: 0, qps: 0.05, ..Settings::default() }
}

#[test]
fn plain_repeats() {
    explore(&Scope {
        faults: 2,
        labels: true,
        crashes: true,
        depth: 9,
        ..scope("plain repeats", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn plain_repeats_that_are_refused_for_now() {
    explore(&Scope { faults: 2, busy: true, depth: 9, ..scope("429s", vec![(0, plain()), (0, plain())]) });
}

#[test]
fn combined_records_of_two_containers() {
    let script = (0..3).map(|number| (0, of_container(number, &number.to_string()))).collect();
    explore(&Scope { settings: combining(2), labels: true, ..scope("combined, two containers", script) });
}

#[test]
fn two_instances() {
    let script = vec![(0, of_instance("a")), (0, of_instance("b"))];
    explore(&Scope { labels: true, ..scope("two instances", script) });
}

#[test]
fn a_record_that_was_evicted_begins_again_under_its_name() {
    for naming in [Naming::Client, Naming::Deterministic] {
        let settings = Settings { lru_cache_size: size(1), naming, ..Settings::default() };
        let script = vec![(0, plain()), (0, plain_event(1, "Other", "o")), (0, plain()), (0, plain())];
        explore(&Scope { settings, depth: 9, ..scope("evicted", script) });
    }
}

#[test]
fn a_client_deletes_an_event_whose_key_was_evicted() {
    let settings = Settings { lru_cache_size: size(1), ..Settings::default() };
    let script = vec![(0, plain()), (0, plain()), (0, plain_event(1, "Other", "o")), (0, plain())];
    explore(&Scope { settings, client_deletes: true, depth: 8, ..scope("deleted, evicted", script) });
}

#[test]
fn a_drain_with_a_budget_for_each_reason() {
    use eventweir::correlator::{Field, SPAM_KEY};
    let spam_key = [&SPAM_KEY[..], &[Field::Reason]].concat();
    let script = ["A", "A", "B", "B"]
        .iter()
        .enumerate()
        .map(|(number, reason)| (0, plain_event(number, reason, &number.to_string())));
    explore(&Scope {
        settings: Settings { spam_key, ..without_tokens() },
        drains: true,
        ..scope("drain, budget per reason", script.collect())
    });
}

#[test]
fn a_drain_of_two_types() {
    let of = |kind: &str, number: usize| {
        (0, Event { event_type: kind.into(), ..plain_event(number, &format!("{kind}{number}"), "m") })
    };
    let script = vec![of("Normal", 0), of("Normal", 1), of("Warning", 2), of("Warning", 3)];
    explore(&Scope { settings: without_tokens(), drains: true, ..scope("drain, two types", script) });
}

#[test]
fn one_name_for_two_events() {
    let script = vec![(0, plain()), (0, plain_event(0, "Other", "o")), (0, plain()), (0, plain_event(0, "Other", "o"))];
    explore(&Scope { faults: 2, depth: 9, ..scope("one name for two events", script) });
}

#[test]
fn two_events_of_one_name_that_differ_in_their_action() {
    let of = |action: &str| {
        let event = Event { action: action.into(), event_time: Some(eventweir::event::MicroTime(5)), ..plain() };
        (0, Event { first_timestamp: None, last_timestamp: None, ..event })
    };
    explore(&Scope { depth: 9, ..scope("two actions", vec![of("Pull"), of("Push"), of("Pull")]) });
}

#[test]
fn combined_records_of_two_replicas_under_one_name() {
    let settings = Settings { naming: Naming::Deterministic, ..combining(1) };
    let script = vec![(0, of_container(0, "0")), (1, of_container(1, "1")), (0, of_container(2, "2"))];
    explore(&Scope { settings, processes: 2, lists: true, depth: 8, ..scope("combined, two replicas", script) });
}

#[test]
fn two_replicas_under_one_name() {
    let script = vec![(0, plain()), (1, plain()), (0, plain())];
    explore(&Scope {
        settings: deterministic(),
        processes: 2,
        labels: true,
        depth: 8,
        ..scope("two replicas", script)
    });
}

#[test]
fn two_replicas_that_crash_and_watch() {
    let script = vec![(0, plain()), (1, plain()), (0, plain())];
    explore(&Scope {
        settings: deterministic(),
        processes: 2,
        crashes: true,
        lists: true,
        watches: true,
        depth: 7,
        ..scope("two replicas, crash, watch", script)
    });
}

#[test]
fn a_source_that_was_evicted_and_reports_again() {
    let limits = shard::Settings { max_sources: size(1), ..shard::Settings::default() };
    let mut other = plain_event(7, "Other", "o");
    other.source.component = "scheduler".into();
    let script = vec![
        (0, plain()),
        (0, Event { metadata: plain_event(1, "", "").metadata, ..plain() }),
        (0, other),
        (0, plain()),
    ];
    explore(&Scope { limits, lists: true, watches: true, depth: 9, ..scope("source evicted", script) });
}

#[test]
fn a_record_of_an_earlier_process_whose_patch_is_in_limbo() {
    let script = vec![(0, of_instance("a")), (0, of_instance("b")), (0, of_instance("a"))];
    explore(&Scope { faults: 2, crashes: true, lists: true, depth: 9, ..scope("listed after a crash", script) });
}

#[test]
fn a_crash_before_the_commit() {
    let script = vec![(0, plain()), (0, plain()), (0, plain()), (0, plain())];
    explore(&Scope {
        faults: 2,
        crashes: true,
        commits_at_once: false,
        depth: 9,
        ..scope("crash before the commit", script)
    });
}

#[test]
fn admission_that_changes_the_message() {
    let admission = Admission::ChangesMessage;
    explore(&Scope {
        admission,
        faults: 2,
        labels: true,
        ..scope("admission changes", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn admission_that_strips_annotations() {
    let admission = Admission::StripsAnnotations;
    explore(&Scope {
        admission,
        faults: 1,
        ..scope("admission strips", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn another_event_under_the_name() {
    let other = Event { reason: "Other".into(), count: 3, ..plain() };
    let existing = vec![other];
    explore(&Scope { existing, faults: 2, ..scope("other event", vec![(0, plain()), (0, plain())]) });
}

#[test]
fn an_equal_earlier_event_under_the_name() {
    let existing = vec![Event { count: 3, ..plain() }];
    explore(&Scope {
        existing,
        faults: 2,
        lists: true,
        depth: 8,
        ..scope("earlier equal event", vec![(0, plain()), (0, plain())])
    });
}

#[test]
fn another_writer_counts_on_the_record() {
    explore(&Scope {
        counts: true,
        faults: 2,
        watches: true,
        depth: 8,
        ..scope("another writer", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn another_writer_deletes_the_record() {
    explore(&Scope {
        deletes: true,
        faults: 2,
        watches: true,
        depth: 8,
        ..scope("deleted by another", vec![(0, plain()), (0, plain()), (0, plain())])
    });
}

#[test]
fn another_event_that_is_deleted_while_a_create_is_in_limbo() {
    let existing = vec![Event { reason: "Other".into(), count: 3, ..plain() }];
    explore(&Scope {
        existing,
        deletes: true,
        faults: 3,
        depth: 8,
        ..scope("other event deleted", vec![(0, plain()), (0, plain())])
    });
}

#[test]
fn a_client_deletes_its_event() {
    let other = |number: usize| (0, Event { metadata: plain_event(number, "", "").metadata, ..plain() });
    explore(&Scope {
        client_deletes: true,
        faults: 2,
        depth: 8,
        ..scope("deleted by its client", vec![(0, plain()), other(1), other(2)])
    });
}
