//! History: applies the upstream's records, read by LIST and WATCH, so that further occurrences count on them. After a
//! restart, a repeat counts on the record of the earlier process. An expired record is created, not patched in vain.

use std::collections::HashSet;
use std::hash::BuildHasher as _;

use foldhash::quality::RandomState;

use super::Shard;
use super::pause::Lookup;
use super::storms::is_storm;
use crate::clock::Now;
use crate::correlator::{Correlation, Correlator, Observation, Policy, Settled, namespace_tag};
use crate::event::Event;
use crate::outbox::{self, Answer, DIGEST_REASON, WatchEffect};

/// LIMIT: listed events whose names are kept for the duration of a list. After a longer list, no record is taken for
/// deleted; a patch notices it.
const LISTED_MAX: usize = 4_000_000;

/// The result of a finished LIST.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Hashes of the names of the listed events, with their namespaces: core/v1 does not limit a name.
    // LIMIT: `LISTED_MAX`.
    names: HashSet<u64>,
    hasher: RandomState,
    /// How many more names are kept.
    room: usize,
    /// The newest version in the list.
    newest: u64,
}

impl Default for Listed {
    fn default() -> Self {
        Self { names: HashSet::new(), hasher: RandomState::default(), room: LISTED_MAX, newest: 0 }
    }
}

impl Listed {
    /// Adds an event of the list.
    pub fn add(&mut self, event: &Event) {
        self.newest = self.newest.max(event.metadata.resource_version.parse().unwrap_or(0));
        self.room = self.room.saturating_sub(1);
        if self.room > 0 {
            self.names.insert(self.key(namespace_tag(&event.metadata.namespace), &event.metadata.name));
        }
    }

    /// Whether the list is newer than the record's version and does not contain the record.
    fn misses(&self, observation: &Observation) -> bool {
        let Observation { name, namespace, resource_version, .. } = observation;
        self.room > 0
            && resource_version.parse::<u64>().is_ok_and(|version| version <= self.newest)
            && !self.names.contains(&self.key(*namespace, name))
    }

    fn key(&self, namespace: u32, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }
}

impl Shard {
    /// Applies `event`, which the upstream holds.
    pub fn apply_watch(&mut self, event: &Event, now: Now, policy: &Policy) {
        let settings = policy.select(event);
        // A digest of this process continues from its own state; a digest of an earlier process is left to expire.
        if settings.correlation == Correlation::Off || event.reason == DIGEST_REASON {
            return;
        }
        self.read_lines(event);
        let count = outbox::count(event);
        if let Some(handle) = self.locate(event, &event.metadata.name, Lookup::Name, now, policy) {
            if self.outbox.arrive(handle.record) {
                self.settle(handle.record, Answer::Stored(Box::new(event.clone())), now);
                // Its next write may be due.
                self.wakes_delivery = true;
                return;
            }
            if self.outbox.set_aside(handle.record, event) {
                return;
            }
            let tag = self.outbox.tag_count(handle.record, event);
            match self.outbox.apply_watch(handle.record, event, now) {
                WatchEffect::Ignored | WatchEffect::Gone => {}
                WatchEffect::Moved(count_moved) => {
                    let settled = Settled::stored(event, count_moved, self.outbox.settled(handle.record));
                    self.notify_correlator(&handle, &settled);
                }
                WatchEffect::Absent => {
                    if let Some(key) = handle.key {
                        self.change_correlator(handle.source, |correlator| {
                            correlator.apply_watch(key, event, count, tag);
                        });
                    }
                }
            }
            return;
        }
        self.note_rival(event, count, now, settings);
        self.adopt(event, count, policy);
    }

    /// Adopts a record that this process does not know, but no storm record: its key changes with each write.
    fn adopt(&mut self, event: &Event, count: i32, policy: &Policy) {
        let is_unwanted = is_storm(event) || self.is_deleted(event);
        if count < 1 || is_unwanted || self.tracked_keys.all() >= self.settings.max_tracked_keys.get() {
            return;
        }
        let source = self.secret.source(event);
        if !self.sources.contains(&source) {
            if self.source_count.all() >= self.settings.max_sources.get() {
                return;
            }
            self.sources.put_last(source, Correlator::new(self.secret, policy.lru_cache_size(event.component())));
            self.source_count.set(self.sources.len());
        }
        if let Some(correlator) = self.sources.peek_mut(&source) {
            let (settings, before) = (policy.select(event), correlator.tracked_keys());
            correlator.cache_size = policy.lru_cache_size(event.component());
            correlator.adopt(event, count, settings, &mut self.next_record, |id| self.outbox.view(id).is_some());
            self.tracked_keys.replace(before, correlator.tracked_keys());
        }
    }

    /// Applies the deletion of `event` from the upstream.
    pub fn apply_deletion(&mut self, event: &Event, now: Now, policy: &Policy) {
        let handle = self.locate(event, &event.metadata.name, Lookup::Name, now, policy);
        let Some(handle) = handle else { return self.end_deletion(event) };
        let version = &event.metadata.resource_version;
        let learned = self.outbox.apply_deletion(handle.record, version, now);
        let mut is_gone = learned != WatchEffect::Ignored;
        if learned == WatchEffect::Absent
            && let Some(key) = handle.key
        {
            self.change_correlator(handle.source, |correlator| is_gone = correlator.apply_deletion(key, version));
        }
        if is_gone {
            self.explain.gone(handle.object, handle.record);
        }
        self.forget_folded(now);
    }

    /// Applies a LIST that replaces a broken WATCH: records that are older than the list and not in it are gone.
    pub fn apply_list(&mut self, listed: &Listed, now: Now) {
        let outbox = &mut self.outbox;
        let version = listed.newest.to_string();
        let (mut tracked_keys, mut gone) = (0, HashSet::new());
        for (_, correlator) in self.sources.iter_mut() {
            correlator.apply_list(|observation| {
                if !listed.misses(observation) {
                    return false;
                }
                let learned = outbox.apply_deletion(observation.record, &version, now);
                if learned != WatchEffect::Ignored {
                    gone.insert(observation.record);
                }
                learned == WatchEffect::Absent
            });
            tracked_keys += correlator.tracked_keys();
        }
        self.tracked_keys.set(tracked_keys);
        self.explain.all_gone(&gone);
        self.forget_folded(now);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::correlator::{KeySecret, NAME_BYTES_MAX, Naming, Settings};
    use crate::explain::{Explanation, Query, StormStates};
    use crate::outbox::{Applied, Fault, Request, Retry, Write};
    use crate::shard;

    const NO_ANSWER: Answer = Answer::Retry(Retry::new(Fault::Timeout, Applied::Perhaps));
    const CONFLICT: Answer = Answer::Retry(Retry::new(Fault::Conflict, Applied::No));

    fn event(version: &str) -> Event {
        let mut event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.metadata.name = "a".into();
        event.metadata.resource_version = version.into();
        event.involved_object.name = "web-0".into();
        event
    }

    /// An event of which the upstream shows this count and tag; the count is also its version.
    fn tagged(count: i32, tag: &str) -> Event {
        let mut event = Event { count, ..event(tag) };
        let rare = event.metadata.rare.get_or_insert_default();
        rare.annotations.insert("tally.eventweir/me.0".into(), tag.into());
        event
    }

    fn shard(base: Settings) -> (Shard, Policy) {
        let policy = Policy::from(base);
        let outbox = crate::outbox::Settings {
            coalesce_interval: std::time::Duration::ZERO,
            max_records: NonZeroUsize::new(100).unwrap(),
            ..crate::outbox::Settings::default()
        };
        let settings = shard::Settings { outbox, ..shard::Settings::default() };
        (Shard::new(KeySecret(1, 2), settings, 1), policy)
    }

    /// A stored record, and a repeat of it that waits for its budget.
    fn waiting() -> (Shard, Policy) {
        let (mut shard, policy) = shard(Settings { burst_size: 1, qps: 1.0, ..Settings::default() });
        let now = Now::at(1_000_000_000);
        shard.accept(event(""), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        shard.settle(write.record, Answer::Stored(Box::new(event("5"))), now);
        shard.accept(event(""), 2, now, &policy).unwrap();
        assert_eq!(shard.next_write(now), None);
        (shard, policy)
    }

    #[test]
    fn history_is_not_taken_if_a_limit_is_reached() {
        // The key of the event and the key of its group.
        const KEYS_OF_ONE: NonZeroUsize = NonZeroUsize::new(2).unwrap();
        let one = NonZeroUsize::MIN;
        for limit in ["maxSources", "maxTrackedKeys", "lruCacheSize", ""] {
            let lru_cache_size = if limit == "lruCacheSize" { one } else { NonZeroUsize::new(9).unwrap() };
            let (mut shard, policy) = shard(Settings { lru_cache_size, ..Settings::default() });
            let settings = match limit {
                "maxSources" => shard::Settings { max_sources: one, ..shard.settings.clone() },
                "maxTrackedKeys" => shard::Settings { max_tracked_keys: KEYS_OF_ONE, ..shard.settings.clone() },
                _ => shard.settings.clone(),
            };
            shard.settings = settings;
            let now = Now::at(1_000_000_000);
            shard.accept(event(""), 1, now, &policy).unwrap();
            let before = shard.sizes();
            let mut other = event("5");
            other.metadata.name = "b".into();
            other.involved_object.name = "web-1".into();
            if limit == "maxSources" {
                other.source.host = "node-1".into();
            }
            shard.apply_watch(&other, now, &policy);
            let after = shard.sizes();
            let is_taken = (after.sources, after.tracked_keys) != (before.sources, before.tracked_keys);
            assert_eq!(is_taken, limit.is_empty(), "{limit}");
        }
    }

    /// Fault: each tracked key kept a name of up to 3 MiB, which no limit counts.
    #[test]
    fn no_long_name_is_kept_with_a_key() {
        let long = |text: &str| smol_str::SmolStr::new(text.repeat(3 << 20));
        for naming in [Naming::Client, Naming::Deterministic] {
            let (mut shard, policy) =
                shard(Settings { max_events: NonZeroUsize::new(2).unwrap(), naming, ..Settings::default() });
            let now = Now::at(1_000_000_000);
            shard.identify("me");
            let names = |shard: &mut Shard, message: &str| {
                let mut posted = Event { message: message.into(), ..event("") };
                (posted.metadata.name, posted.involved_object.name) = (long("n"), long("o"));
                shard.accept(posted, 1, now, &policy).unwrap();
                let Some(Write { request: Request::Create { event, .. }, record }) = shard.next_write(now) else {
                    unreachable!("each is a new record");
                };
                let name = event.metadata.name.clone();
                assert!(event.metadata.rare.as_ref().unwrap().annotations.values().all(|value| value.len() < 100));
                shard.settle(record, Answer::Stored(event), now);
                name
            };
            for (message, is_combined) in [("a", false), ("b", true)] {
                let name = names(&mut shard, message);
                assert!(name.len() < NAME_BYTES_MAX && name.starts_with("oo"), "{is_combined} {}", name.len());
            }
            let mut stored = Event { reason: "Other".into(), ..event("7") };
            stored.metadata.name = long("n");
            let before = shard.sizes().tracked_keys;
            shard.apply_watch(&stored, now, &policy);
            assert_eq!(shard.sizes().tracked_keys, before);
        }
    }

    #[test]
    fn a_list_that_is_too_long_misses_nothing() {
        let (mut shard, _) = waiting();
        let now = Now::at(3_000_000_000);
        let mut listed = Listed { room: 2, ..Listed::default() };
        for name in ["b", "c", "d"] {
            let mut other = event("9");
            other.metadata.name = name.into();
            listed.add(&other);
        }
        assert_eq!(listed.names.len(), 1);
        shard.apply_list(&listed, now);
        assert!(matches!(shard.next_write(now).unwrap().request, Request::Patch { .. }));
    }

    /// Fault: it was among the records that can fold without having been counted there.
    #[test]
    fn a_record_that_goes_while_it_waits_for_its_budget_is_created_with_its_running_count() {
        let later = Now::at(3_000_000_000);
        for relist in [false, true] {
            let (mut shard, policy) = waiting();
            if relist {
                let mut listed = Listed::default();
                listed.add(&Event { metadata: event("9").metadata, ..Event::default() });
                listed.names.clear();
                shard.apply_list(&listed, later);
            } else {
                shard.apply_deletion(&event("6"), later, &policy);
            }
            let write = shard.next_write(later).unwrap();
            assert!(matches!(write.request, Request::Create { event, .. } if event.count == 3));
            assert!(shard.balance().is_exact());
        }
    }

    #[test]
    fn explain_says_that_a_record_has_expired_until_it_is_written_again() {
        let mut settings = shard::Settings::default();
        settings.explain.enabled = true;
        let (mut shard, policy) = (Shard::new(KeySecret(1, 2), settings, 1), Policy::default());
        let text = |shard: &mut Shard, at| {
            let query = Query { name: "web-0".to_owned(), ..Query::default() };
            let known = shard.explain(&query, Now::at(at), &policy, &StormStates::default());
            Explanation::new(&query, vec![known], crate::explain::Upstream::Up, at).answer.text
        };
        let is_stored = |shard: &mut Shard, version: &str, count, at| {
            shard.accept(event(""), 1, Now::at(at), &Policy::default()).unwrap();
            let write = shard.next_write(Now::at(at)).unwrap();
            shard.settle(write.record, Answer::Stored(Box::new(Event { count, ..event(version) })), Now::at(at));
        };
        is_stored(&mut shard, "5", 1, 1);
        assert_eq!(text(&mut shard, 1), "1 of 1 occurrences are shown, in a.");
        let mut at = 1;
        for (count, leaves_outbox, is_listed) in
            [(1, true, false), (2, false, false), (3, true, true), (4, false, true)]
        {
            let version = 10 * i64::from(count);
            if leaves_outbox {
                at += 3_000_000_000;
                assert_eq!(shard.next_write(Now::at(at)), None);
            }
            if is_listed {
                let listed = Listed { newest: u64::MAX, ..Listed::default() };
                shard.apply_list(&listed, Now::at(at));
            } else {
                shard.apply_deletion(&event(&version.to_string()), Now::at(at), &Policy::default());
            }
            let case = format!("{leaves_outbox} {is_listed}");
            let gone = format!(
                "{count} of {count} occurrences were shown, in a. The API server has it no longer: it expired or was deleted."
            );
            assert_eq!(text(&mut shard, at), gone, "{case}");
            at += 6_000_000_000;
            is_stored(&mut shard, &(version + 1).to_string(), count + 1, at);
            let more = count + 1;
            assert_eq!(text(&mut shard, at), format!("{more} of {more} occurrences are shown, in a."), "{case}");
        }
    }

    /// Fault: it was said to be gone.
    #[test]
    fn explain_does_not_believe_old_news_of_a_deletion() {
        let mut settings = shard::Settings::default();
        settings.explain.enabled = true;
        let (mut shard, policy) = (Shard::new(KeySecret(1, 2), settings, 1), Policy::default());
        shard.accept(event(""), 1, Now::at(1), &policy).unwrap();
        let write = shard.next_write(Now::at(1)).unwrap();
        shard.settle(write.record, Answer::Stored(Box::new(event("7"))), Now::at(1));
        let later = Now::at(3_000_000_000);
        assert_eq!(shard.next_write(later), None);
        shard.apply_deletion(&event("6"), later, &policy);
        let query = Query { name: "web-0".to_owned(), ..Query::default() };
        let known = shard.explain(&query, later, &policy, &StormStates::default());
        assert_eq!(known.objects[0].records[0].state, "settled");
    }

    /// Fault: the record was created once more, with its running count.
    #[test]
    fn news_of_a_deletion_that_come_after_the_record_was_created_again_are_old() {
        let (mut shard, policy) = waiting();
        let (now, later) = (Now::at(3_000_000_000), Now::at(9_000_000_000));
        let write = shard.next_write(now).unwrap();
        shard.settle(write.record, Answer::Missing, now);
        let write = shard.next_write(now).unwrap();
        assert!(matches!(write.request, Request::Create { .. }));
        shard.settle(write.record, Answer::Stored(Box::new(Event { count: 3, ..event("7") })), now);
        shard.accept(event(""), 1, now, &policy).unwrap();
        shard.apply_deletion(&event("6"), now, &policy);
        let write = shard.next_write(later).unwrap();
        assert!(matches!(write.request, Request::Patch { patch, .. } if patch.count == 4));
    }

    /// Fault: the record was believed stored while another namespace had a record of the same name.
    #[test]
    fn a_list_misses_a_record_whose_name_another_namespace_has() {
        let (mut shard, policy) = shard(Settings::default());
        let now = Now::at(1_000_000_000);
        let (here, mut there) = (Event { count: 40, ..event("5") }, event("9"));
        there.metadata.namespace = "other".into();
        for event in [&here, &there] {
            shard.apply_watch(event, now, &policy);
        }
        let mut listed = Listed::default();
        listed.add(&there);
        shard.apply_list(&listed, now);
        for (mut event, begins) in [(event(""), true), (Event { metadata: there.metadata.clone(), ..event("") }, false)]
        {
            event.metadata.resource_version = "".into();
            shard.accept(event, 1, now, &policy).unwrap();
            let request = shard.next_write(now).unwrap().request;
            assert_eq!(matches!(request, Request::Create { event, .. } if event.count == 1), begins);
        }
    }

    #[test]
    fn what_is_stored_at_the_other_door_without_its_source_is_not_known_again() {
        let mut old_style = Event { event_type: "Normal".into(), ..event("") };
        old_style.source.component = "kubelet".into();
        let mut new_style = Event {
            event_time: Some(crate::event::MicroTime(5)),
            action: "Pull".into(),
            event_type: "Normal".into(),
            ..event("")
        };
        new_style.reporting_controller = "kubelet".into();
        new_style.reporting_instance = "node-1".into();
        for (event, outcome) in [(old_style, shard::Outcome::Created), (new_style, shard::Outcome::Counted)] {
            let outbox = crate::outbox::Settings {
                group: crate::outbox::UpstreamGroup::Events,
                ..crate::outbox::Settings::default()
            };
            let settings = shard::Settings { outbox, ..shard::Settings::default() };
            let (mut shard, policy) = (Shard::new(KeySecret(1, 2), settings, 1), Policy::default());
            let mut stored = crate::event::conversion::to_events_v1(&event, 7);
            stored.metadata.resource_version = "5".into();
            shard.apply_watch(&stored, Now::at(1), &policy);
            assert_eq!(shard.accept(event, 1, Now::at(2), &policy).unwrap().outcome, outcome);
        }
    }

    #[test]
    fn news_that_are_old_or_our_own_move_nothing() {
        let (mut shard, policy) = waiting();
        let later = Now::at(3_000_000_000);
        for version in ["4", "5"] {
            shard.apply_watch(&Event { count: 50, ..event(version) }, later, &policy);
        }
        let write = shard.next_write(later).unwrap();
        assert!(matches!(write.request, Request::Patch { patch, .. } if patch.count == 3));
    }

    /// Fault: the write counted twice. An earlier process had sent it. This process read the record before the write
    /// arrived, and then took it for the write of another writer.
    #[test]
    fn a_write_of_an_earlier_process_that_arrives_late_is_not_taken_for_somebody_elses() {
        let (now, later) = (Now::at(1_000_000_000), Now::at(3_000_000_000));
        let (mut earlier, policy) = shard(Settings::default());
        earlier.identify("me");
        earlier.keep_journal();
        for count in 1..=2 {
            earlier.accept(event(""), 1, now, &policy).unwrap();
            let write = earlier.next_write(now).unwrap();
            if count == 1 {
                earlier.settle(write.record, Answer::Stored(Box::new(tagged(1, "1"))), now);
            }
        }
        let (_, entry) = earlier.take_changes().records.pop().unwrap();
        let (mut shard, policy) = shard(Settings::default());
        shard.identify("later");
        shard.restore(*entry.unwrap(), later, &policy);
        let id = shard.next_write(later).unwrap().record;
        shard.settle(id, NO_ANSWER, later);
        let later = Now::at(9_000_000_000);
        assert!(matches!(shard.next_write(later).unwrap().request, Request::Read { .. }));
        shard.settle(id, Answer::Stored(Box::new(tagged(1, "1"))), later);
        shard.apply_watch(&tagged(2, "2"), later, &policy);
        let Request::Patch { patch, claim, .. } = shard.next_write(later).unwrap().request else { unreachable!() };
        let claim = claim.unwrap();
        assert_eq!((patch.count, claim.value.as_str(), claim.resource_version.as_str()), (2, "2@9", "1"));
        shard.settle(id, CONFLICT, later);
        assert!(matches!(shard.next_write(later).unwrap().request, Request::Read { .. }));
        shard.settle(id, Answer::Stored(Box::new(tagged(2, "2"))), later);
        assert_eq!(shard.next_write(later), None);
        assert_eq!((shard.balance().ledger.total_written(), shard.balance().is_exact()), (1, true));
    }

    /// Fault: the lastTimestamp went back to that of this process's older occurrence.
    #[test]
    fn a_write_that_waited_keeps_another_writers_newer_time() {
        let (now, later) = (Now::at(1_000_000_000), Now::at(3_000_000_000));
        let at = |seconds, event| Event { last_timestamp: Some(crate::event::Time(seconds)), ..event };
        for is_watched in [false, true] {
            let (mut shard, policy) = shard(Settings::default());
            shard.identify("me");
            shard.apply_watch(&at(1, event("5")), now, &policy);
            shard.accept(at(2, event("")), 1, now, &policy).unwrap();
            let newer = at(7, Event { count: 2, ..event("6") });
            if is_watched {
                shard.apply_watch(&newer, now, &policy);
            } else {
                let write = shard.next_write(now).unwrap();
                shard.settle(write.record, CONFLICT, now);
                let read = shard.next_write(now).unwrap();
                shard.settle(read.record, Answer::Stored(Box::new(newer)), now);
            }
            let Request::Patch { patch, .. } = shard.next_write(later).unwrap().request else { unreachable!() };
            assert_eq!((patch.count, patch.last_timestamp), (3, Some(crate::event::Time(7))), "{is_watched}");
        }
    }

    /// Fault: with plain writes, a watch event of our own patch counted its occurrences again while its answer was
    /// lost.
    #[test]
    fn a_plain_write_in_doubt_is_not_taken_for_another_writers() {
        let (mut shard, policy) = waiting();
        let (now, later) = (Now::at(3_000_000_000), Now::at(9_000_000_000));
        let id = shard.next_write(now).unwrap().record;
        shard.settle(id, NO_ANSWER, now);
        shard.apply_watch(&Event { count: 3, ..event("6") }, now, &policy);
        let write = shard.next_write(later).unwrap();
        assert!(matches!(write.request, Request::Patch { patch, .. } if patch.count == 3));
    }

    /// Fault: an occurrence was missing. A writer without tags had raised the count as our patch would have, and until
    /// an answer has shown a tag, such a count passed for ours.
    #[test]
    fn after_a_conflict_another_writers_count_is_not_taken_for_ours() {
        let (mut shard, policy) = shard(Settings::default());
        shard.identify("me");
        let now = Now::at(1_000_000_000);
        shard.apply_watch(&Event { count: 3, ..event("5") }, now, &policy);
        shard.accept(event(""), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        assert!(matches!(write.request, Request::Patch { patch, .. } if patch.count == 4));
        shard.settle(write.record, CONFLICT, now);
        assert!(matches!(shard.next_write(now).unwrap().request, Request::Read { .. }));
        shard.settle(write.record, Answer::Stored(Box::new(Event { count: 4, ..event("6") })), now);
        let write = shard.next_write(now).unwrap();
        assert!(matches!(write.request, Request::Patch { patch, .. } if patch.count == 5));
        assert_eq!(shard.balance().ledger.total_written(), 0);
    }

    /// Fault: occurrences written since were missing from the count. A list shows the record again without its
    /// deletion.
    #[test]
    fn a_create_that_is_carried_out_late_after_a_deletion_takes_nothing_back() {
        let later = Now::at(9_000_000_000);
        for waits in [false, true] {
            let base = Settings { burst_size: 3, qps: 1.0, ..Settings::default() };
            let (mut shard, policy) = shard(base);
            shard.identify("me");
            let now = Now::at(1_000_000_000);
            for count in 1..=3_i32 {
                shard.accept(event(""), 1, now, &policy).unwrap();
                let write = shard.next_write(now).unwrap();
                let stored = tagged(count, &count.to_string());
                shard.settle(write.record, Answer::Stored(Box::new(stored)), now);
            }
            if waits {
                shard.accept(event(""), 1, now, &policy).unwrap();
                assert_eq!(shard.next_write(now), None);
            }
            let mut late = tagged(1, "1");
            late.metadata.resource_version = "8".into();
            shard.apply_watch(&late, later, &policy);
            if !waits {
                shard.accept(event(""), 1, later, &policy).unwrap();
            }
            let Request::Patch { patch, claim, .. } = shard.next_write(later).unwrap().request else { unreachable!() };
            let claim = claim.unwrap();
            assert_eq!(
                (patch.count, claim.value.as_str(), claim.resource_version.as_str()),
                (4, "4@9", "8"),
                "{waits}"
            );
        }
    }

    /// Fault: an occurrence whose record folded at once left that record in its object's history, and a run of it.
    #[test]
    fn a_record_that_folds_at_once_is_not_known() {
        let mut settings = shard::Settings::default();
        (settings.explain.enabled, settings.outbox.digest_after) = (true, 2);
        let policy = Policy::from(Settings { qps: 1e-6, burst_size: 1, ..Default::default() });
        let mut shard = Shard::new(KeySecret(1, 2), settings, 1);
        let at = Now::at(1);
        for reason in ["R1", "R2", "R3", "R4", "R4", "R4"] {
            shard.accept(Event { reason: reason.into(), ..event("") }, 1, at, &policy).unwrap();
            while shard.next_write(at).is_some() {}
        }
        let query = Query { name: "web-0".to_owned(), ..Query::default() };
        let known = shard.explain(&query, at, &policy, &StormStates::default());
        let object = &known.objects[0];
        let forms: Vec<_> = object.records.iter().map(|record| (record.form, &*record.reason)).collect();
        assert_eq!(forms, [("single", "R1"), ("digest", "R2")], "{object:?}");
    }
}
