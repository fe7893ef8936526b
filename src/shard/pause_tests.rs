//! Records that only their names lead to: their correlator does not know them, or not under the keys of their event.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::{Handle, Lookup, Shard, Shards};
use crate::clock::{Clock, Now};
use crate::correlator::{Correlation, KeySecret, Policy, Settings, Suppression};
use crate::event::Event;
use crate::outbox::{Answer, DIGEST_REASON, Line, LostReason, Request, STORM_MARK, Write};

fn event(name: &str) -> Event {
    let mut event = Event { count: 1, reason: "BackOff".into(), message: "m".into(), ..Event::default() };
    event.metadata.name = name.into();
    event
}

fn shard() -> Shard {
    Shard::new(KeySecret(1, 2), super::Settings::default(), 1)
}

/// Fault: a client's DELETE did not find the record, and the next write created the deleted event again.
#[test]
fn a_record_whose_key_was_evicted_is_found_by_its_name() {
    let policy = Policy::from(Settings { lru_cache_size: NonZeroUsize::MIN, ..Settings::default() });
    let (mut shard, now) = (shard(), Now::at(1_000_000_000));
    shard.accept(event("a"), 1, now, &policy).unwrap();
    let stored = shard.write_all(now).pop().unwrap();
    shard.accept(event("a"), 1, now, &policy).unwrap();
    shard.accept(Event { message: "other".into(), ..event("b") }, 1, now, &policy).unwrap();
    let handle = shard.pause(&stored, "a", Lookup::Name, now, &policy).unwrap();
    assert!(handle.stored);
    shard.forget_record(&handle, now);
    let written = shard.write_all(Now::at(3_600_000_000_000));
    assert!(written.iter().all(|event| event.metadata.name == "b"), "{written:?}");
    assert_eq!(shard.balance().ledger.lost(LostReason::Deleted), 1);
    assert!(shard.balance().is_exact());
}

/// A shard with two records that the upstream holds as one event `a`, and its event: the key of the first was evicted. It
/// owes one occurrence, and the other one nothing.
fn sharing() -> (Shard, Policy, Now, Event) {
    let policy = Policy::from(Settings { lru_cache_size: NonZeroUsize::MIN, ..Settings::default() });
    let (mut shard, now) = (shard(), Now::at(1_000_000_000));
    shard.identify("me");
    shard.accept(event("a"), 1, now, &policy).unwrap();
    let mut stored = shard.write_all(now).pop().unwrap();
    for name in ["a", "b", "a"] {
        let message = if name == "b" { "other" } else { "m" };
        shard.accept(Event { message: message.into(), ..event(name) }, 1, now, &policy).unwrap();
    }
    while let Some(Write { record, request }) = shard.next_write(now) {
        let answer = match request {
            Request::Create { event, .. } if event.metadata.name == "a" => Answer::Exists,
            Request::Create { event, .. } => Answer::Stored(event),
            Request::Read { .. } => Answer::Stored(Box::new(stored.clone())),
            Request::Patch { patch, claim, .. } => {
                let claim = claim.unwrap();
                (stored.count, stored.metadata.resource_version) = (patch.count, "6".into());
                stored.metadata.rare.get_or_insert_default().annotations.insert(claim.tag, claim.value);
                Answer::Stored(Box::new(stored.clone()))
            }
            Request::Delete { .. } => unreachable!("nothing is deleted"),
        };
        shard.settle(record, answer, now);
    }
    assert_eq!((stored.count, shard.balance().total_waiting()), (2, 1));
    (shard, policy, now, stored)
}

/// Pauses both records of `stored`, as a DELETE does.
fn pause_both(shard: &mut Shard, stored: &Event, by: Lookup, now: Now, policy: &Policy) -> [Option<Handle>; 1] {
    let mut handles = [shard.pause(stored, "a", by, now, policy)];
    shard.pause_others(&mut handles, &[stored], now, policy);
    handles
}

/// Fault: only one of them was forgotten, and the next write of the other one created the deleted event again.
#[test]
fn a_delete_ends_all_records_of_the_event() {
    for by in [Lookup::Alias, Lookup::Name] {
        for is_listed in [false, true] {
            let (mut shard, policy, now, stored) = sharing();
            let [handle] = if is_listed {
                [shard.pause_listed(&[&stored], by, now, &policy).pop().unwrap()]
            } else {
                pause_both(&mut shard, &stored, by, now, &policy)
            };
            let later = Now::at(3_600_000_000_000);
            assert_eq!(shard.next_write(later), None, "it is paused");
            shard.forget_record(&handle.unwrap(), later);
            assert_eq!(shard.write_all(later), [], "{by:?} {is_listed}");
            assert_eq!(shard.balance().ledger.lost(LostReason::Deleted), 1);
            assert!(shard.balance().is_exact());
        }
    }
}

/// The other ones go on after a refused DELETE.
#[test]
fn a_refused_delete_releases_all_records_of_the_event() {
    let (mut shard, policy, now, stored) = sharing();
    let [handle] = pause_both(&mut shard, &stored, Lookup::Alias, now, &policy);
    shard.release(&handle.unwrap(), now);
    let write = shard.next_write(Now::at(3_600_000_000_000)).unwrap();
    assert!(matches!(write.request, Request::Patch { .. }), "{write:?}");
}

/// Fault: its DELETE was 404, and the event was written later.
#[test]
fn a_waiting_event_without_a_key_is_found_once_the_upstream_has_none_of_its_name() {
    let evicted = Settings { lru_cache_size: NonZeroUsize::MIN, ..Settings::default() };
    let off = Settings { correlation: Correlation::Off, ..Settings::default() };
    for settings in [evicted, off] {
        let (mut shard, policy, now) = (shard(), Policy::from(settings), Now::at(1_000_000_000));
        shard.accept(event("a"), 1, now, &policy).unwrap();
        shard.accept(Event { reason: "Other".into(), ..event("b") }, 1, now, &policy).unwrap();
        assert_eq!(shard.pause(&event("a"), "a", Lookup::Alias, now, &policy), None);
        let handle = shard.pause(&event("a"), "a", Lookup::Unstored, now, &policy).unwrap();
        shard.forget_record(&handle, now);
        let written = shard.write_all(now);
        assert!(written.iter().all(|event| event.metadata.name == "b"), "{written:?}");
        assert_eq!(shard.balance().ledger.lost(LostReason::Deleted), 1);
    }
}

/// A client's PUT that creates the event may store it without our tag.
#[test]
fn what_a_client_has_written_itself_counts_on_after_its_event_is_gone() {
    let (mut shard, policy, now) = (shard(), Policy::default(), Now::at(1_000_000_000));
    shard.accept(event("a"), 1, now, &policy).unwrap();
    let handle = shard.pause(&event("a"), "a", Lookup::Unstored, now, &policy).unwrap();
    let mut stored = event("a");
    stored.metadata.resource_version = "5".into();
    shard.follow(&handle, &stored, Line::Created, now);
    let later = Now::at(3_600_000_000_000);
    assert_eq!(shard.next_write(later), None);
    shard.apply_deletion(&stored, later, &policy);
    shard.accept(event("a"), 1, later, &policy).unwrap();
    assert_eq!(shard.write_all(later).pop().unwrap().count, 2);
}

/// Fault: under `suppression: drop`, its next write created the deleted event again, because it was not found by the
/// stored event, which lacks the reporting fields.
#[test]
fn a_combined_record_is_found_by_its_stored_event() {
    let (suppression, max_events) = (Suppression::Drop, NonZeroUsize::MIN);
    let policy = Policy::from(Settings { suppression, max_events, ..Settings::default() });
    let (mut shard, now, later) = (shard(), Now::at(1_000_000_000), Now::at(3_600_000_000_000));
    shard.identify("me");
    let accept = |shard: &mut Shard| {
        let mut event = Event { reporting_controller: "kubelet".into(), ..Event::default() };
        event.source.component = "kubelet".into();
        shard.accept(event, 1, now, &policy).unwrap();
    };
    accept(&mut shard);
    let mut stored = shard.write_all(now).pop().unwrap();
    stored.metadata.resource_version = "1".into();
    let before = shard.sizes().tracked_keys;
    shard.apply_watch(&stored, now, &policy);
    assert_eq!(shard.sizes().tracked_keys, before);
    accept(&mut shard);
    let handle = shard.pause(&stored, &stored.metadata.name, Lookup::Name, now, &policy).unwrap();
    assert_eq!(shard.next_write(later), None);
    shard.forget_record(&handle, later);
    accept(&mut shard);
    let write = shard.next_write(later).unwrap();
    assert!(matches!(write.request, Request::Create { event, .. } if event.count == 1));
}

/// Fault: it was lost, although the upstream shows it. What the watch showed of it was set aside.
#[test]
fn what_was_admitted_arrives_during_a_delete_without_an_answer() {
    let shards = Shards::of(1, Policy::default(), Clock::manual(1_000_000_000));
    shards.admit(&Policy::default(), event("a"), 1, true, Duration::from_secs(1), "").unwrap();
    let held = shards.pause(&event("a"), "a", Lookup::Alias).unwrap();
    let mut stored = event("a");
    stored.metadata.resource_version = "7".into();
    shards.apply_watch(&stored);
    held.doubt();
    let ledger = shards.balance().ledger;
    assert_eq!((ledger.total_written(), ledger.total_lost()), (1, 0));
}

/// Faults: a DELETE did not find such an event, which was written later. Its deletion upstream was not noticed.
#[test]
fn a_copy_of_a_storm_record_or_digest_that_a_client_posts_is_found() {
    let clock = Clock::manual(1_000_000_000);
    let shards = Shards::of(8, Policy::default(), clock.clone());
    for (number, is_storm) in (0..16).zip([true, false].into_iter().cycle()) {
        let mut copy = event(&format!("a{number}"));
        copy.source.host = format!("node-{number}").into();
        if is_storm {
            copy.metadata.rare.get_or_insert_default().annotations.insert(STORM_MARK.into(), "Pod".into());
        } else {
            copy.reason = DIGEST_REASON.into();
        }
        let name = copy.metadata.name.clone();
        shards.accept(copy.clone(), 1).unwrap();
        assert!(shards.pause(&copy, &name, Lookup::Alias).is_some(), "{number}");
        let written = (0..8).find_map(|index| shards.with(index, Shard::write_all).pop());
        let mut stored = Event { metadata: written.unwrap().metadata, ..copy.clone() };
        stored.metadata.resource_version = "5".into();
        assert!(shards.find(&copy).unwrap().stored, "{number}");
        clock.advance(Duration::from_secs(10));
        for index in 0..8 {
            shards.with(index, |shard, now| assert_eq!(shard.next_write(now), None));
        }
        assert_eq!(shards.pause(&stored, &name, Lookup::Name).unwrap().name(), name);
        shards.apply_deletion(&stored);
        assert!(shards.find(&copy).unwrap().is_gone, "{number}");
    }
}

/// Fault: the tap was silent about what no write of eventweir has settled.
#[test]
fn the_tap_reports_what_clients_delete_and_write() {
    let shards = Shards::of(1, Policy::default(), Clock::manual(1_000_000_000));
    let mut lines = shards.tap().read(crate::explain::Selector::default());
    let mut next = || lines.try_recv().map(|line| (line.verdict, line.why, line.occurrences)).ok();
    let hold = || shards.pause(&event("a"), "a", Lookup::Alias).unwrap();
    shards.accept(event("a"), 2).unwrap();
    hold().forget();
    assert_eq!([next(), next()], [Some(("lost", "deleted", 2)), None]);
    shards.accept(event("a"), 3).unwrap();
    let mut stored = event("a");
    (stored.count, stored.metadata.resource_version) = (3, "7".into());
    hold().follow(&stored, Line::Created);
    assert_eq!([next(), next()], [Some(("written", "", 3)), None]);
    hold().forget();
    shards.admit(&Policy::default(), event("a"), 1, true, Duration::from_secs(1), "").unwrap();
    shards.apply_watch(&Event { count: 1, ..stored });
    assert_eq!([next(), next()], [Some(("written", "", 1)), None]);
}

/// Fault: its next occurrence counted on the record that had folded, and was shown twice.
#[test]
fn a_record_that_folds_when_it_is_released_is_forgotten() {
    let policy = Policy::from(Settings { burst_size: 1, qps: 0.0, ..Settings::default() });
    let outbox = crate::outbox::Settings { digest_after: 3, ..Default::default() };
    let settings = super::Settings { outbox, ..super::Settings::default() };
    let (mut shard, now) = (Shard::new(KeySecret(1, 2), settings, 1), Now::at(1_000_000_000));
    let numbered = |number: usize| Event { reason: format!("r{number}").into(), ..event(&format!("n{number}")) };
    for number in 0..4 {
        shard.accept(numbered(number), 1, now, &policy).unwrap();
    }
    let handle = shard.pause(&numbered(3), "n3", Lookup::Alias, now, &policy).unwrap();
    shard.accept(numbered(4), 1, now, &policy).unwrap();
    assert_eq!(shard.sizes().records, 5);
    shard.release(&handle, now);
    assert_eq!(shard.sizes().records, 2, "the first, and the digest");
    assert_eq!(shard.find(&numbered(3), now, &policy), None);
}
