//! Records that a client deletes or replaces. eventweir pauses the record while it asks the upstream, then forgets or
//! follows the record. The DELETE or PUT itself is not an occurrence. Waiting occurrences of a deleted record are lost
//! with it (`lost{deleted}`), and the next occurrence begins a new record.

use std::time::Duration;

use smol_str::SmolStr;

use super::shared::Details;
use super::storms::is_storm;
use super::{Found, Shard, Shards};
use crate::clock::Now;
use crate::correlator::{Candidate, Counts, Key, Observation, Policy, RecordId, Settled};
use crate::event::Event;
use crate::explain::LostFolds;
use crate::outbox::{
    self, DIGEST_REASON, Line, LostReason, Rebased, RecordView, Settlement, Ticket, TicketOutcome, line_checksum,
};

/// How a name refers to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// The client's name for its event: the record that counts the event, whatever that record's name is.
    Alias,
    /// The same name, after the upstream has answered that it has no event of it: also the combined record that may
    /// count the event.
    Unstored,
    /// The record's own name.
    Name,
}

/// A record and where its shard keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handle {
    pub(super) source: Key,
    /// The record's key in the correlator; `None` for a digest.
    pub(super) key: Option<Key>,
    pub(super) record: RecordId,
    /// The object, for `explain`.
    pub(super) object: Key,
    /// Its name upstream.
    pub name: SmolStr,
    /// Whether the upstream is known to hold it.
    pub stored: bool,
    /// What is known of its event.
    pub(super) details: Details,
}

/// Interval between two checks whether a record's request is still in flight.
const LOOK: Duration = Duration::from_millis(5);

impl Shard {
    /// Pauses the record that `name` refers to, for an event of this content. Nothing of the record is sent until
    /// [`release`](Self::release), [`forget_record`](Self::forget_record) or [`follow`](Self::follow).
    pub fn pause(&mut self, event: &Event, name: &str, by: Lookup, now: Now, policy: &Policy) -> Option<Handle> {
        let handle = self.locate(event, name, by, now, policy);
        let unknown = || {
            let mut named = self.outbox.named(&event.metadata.namespace, name);
            let record = named.find(|record| self.is_meant(*record, event, by, now, policy))?;
            self.handle_of(record, event, name)
        };
        let mut handle = handle.or_else(|| if by == Lookup::Alias { None } else { unknown() })?;
        self.pause_itself(&mut handle, event, by);
        Some(handle)
    }

    /// Whether `found`, the upstream's event of a record's name, is of the record. Another writer may have changed it,
    /// so that its content does not lead to the record, or have given the name of the deleted record to another event.
    /// `None` if nothing shows it.
    fn is_of(&self, record: RecordId, name: &str, found: &Event, now: Now, policy: &Policy) -> Option<bool> {
        if self.locate(found, name, Lookup::Name, now, policy).is_some_and(|led| led.record == record) {
            return Some(true);
        }
        let by_tag = || outbox::has_any_tag(found).then(|| self.outbox.tag_count(record, found).is_some());
        self.outbox.is_of(record, found, now).or_else(by_tag)
    }

    /// Whether a record of an event's name, to which its content does not lead, is the event's.
    pub(super) fn is_meant(&self, record: RecordId, event: &Event, by: Lookup, now: Now, policy: &Policy) -> bool {
        match by {
            // The upstream's event is not of a record that only asks for its name.
            Lookup::Name => self.outbox.is_of(record, event, now) == Some(true),
            // A record that its correlator knows is another event's.
            Lookup::Alias | Lookup::Unstored => !self.is_correlated(record, now, policy),
        }
    }

    /// Whether the correlator of a record knows it.
    fn is_correlated(&self, record: RecordId, now: Now, policy: &Policy) -> bool {
        let Some(RecordView { event, .. }) = self.outbox.view(record) else { return false };
        let known = self.locate(event, &event.metadata.name, Lookup::Name, now, policy);
        known.is_some_and(|known| known.record == record)
    }

    /// Returns a record that its correlator does not know: it has left it before the outbox, was never correlated, or is a
    /// digest of an earlier process.
    pub(super) fn handle_of(&self, record: RecordId, event: &Event, name: &str) -> Option<Handle> {
        let seen = self.outbox.view(record)?;
        let (source, object) = (self.secret.source(event), self.secret.subject(event));
        let stored = seen.shown.is_some();
        Some(Handle { source, key: None, record, object, name: name.into(), stored, details: Details::default() })
    }

    pub(super) fn locate(&self, event: &Event, name: &str, by: Lookup, now: Now, policy: &Policy) -> Option<Handle> {
        let (source, object) = (self.secret.source(event), self.secret.subject(event));
        // A digest or storm record has no key in a correlator, but a copy that a client has posted has one.
        if by == Lookup::Name
            && (event.reason == DIGEST_REASON || is_storm(event))
            && let Some(record) = self.outbox.digest(event, name)
        {
            let name = name.into();
            return Some(Handle { source, key: None, record, object, name, stored: true, details: Details::default() });
        }
        let (key, observation, seen) = self.resolve(event, name, by, now, policy)?;
        let (record, key) = (observation.record, Some(key));
        let (name, stored) = seen
            .map_or((&observation.name, observation.stored), |seen| (&seen.event.metadata.name, seen.shown.is_some()));
        let details = Details { shown: seen.is_none().then_some(observation.count.into()), ..Details::default() };
        Some(Handle { source, key, record, object, name: name.clone(), stored, details })
    }

    /// Returns the record that `name` refers to: the one of that name, otherwise the first that counts the event.
    fn resolve(
        &self,
        event: &Event,
        name: &str,
        by: Lookup,
        now: Now,
        policy: &Policy,
    ) -> Option<(Key, &Observation, Option<RecordView<'_>>)> {
        let correlator = self.sources.peek(&self.secret.source(event))?;
        let mut routed = None;
        for Candidate { key, observation, counts } in correlator.candidates(event, now, policy.select(event)) {
            let seen = self.outbox.view(observation.record);
            let found = (key, observation, seen);
            if seen.map_or(&observation.name, |seen| &seen.event.metadata.name) == name {
                return Some(found);
            }
            let leads = match by {
                Lookup::Name => false,
                Lookup::Alias => counts == Counts::Yes,
                Lookup::Unstored => counts != Counts::No,
            };
            if leads {
                routed.get_or_insert(found);
            }
        }
        routed
    }

    /// Returns the record that the client's name of `event` refers to.
    fn find_named(&self, event: &Event, by: Lookup, now: Now, policy: &Policy) -> Option<Found> {
        let (_, observation, _) = self.resolve(event, &event.metadata.name, by, now, policy)?;
        Some(self.found(observation))
    }

    /// Resumes the record unchanged.
    pub fn release(&mut self, handle: &Handle, now: Now) {
        handle.records().for_each(|record| self.outbox.resume(record, now));
        // It may have folded.
        self.forget_folded(now);
    }

    /// Forgets a deleted record: its waiting occurrences are lost, and the next occurrence begins a new record.
    /// Returns the tickets of clients that waited for it.
    pub fn forget_record(&mut self, handle: &Handle, now: Now) -> Vec<Ticket> {
        let seen = self.outbox.view(handle.record).map(|seen| (seen.kind, seen.settled));
        let (lost, mut waiting) = self.outbox.forget(handle.record, now);
        self.lose(LostReason::Deleted, lost.total(), now);
        if let Some((kind, settled)) = seen {
            let (number, why) = (lost.total(), LostReason::Deleted.label());
            let lost = LostFolds { into: handle.record, number, settled, why };
            self.note_lost_folded(handle.object, kind, lost);
        }
        self.note_deletion(handle, lost.total(), now);
        self.begin_deletion(handle.record, &handle.details.uid);
        self.notify_correlator(handle, &Settled::Forgotten);
        waiting.extend(handle.details.others.iter().flat_map(|other| self.forget_record(other, now)));
        waiting
    }

    /// Handles a client's DELETE without an answer. Owed occurrences are written if the record still exists; the next
    /// occurrence begins a new record. Returns the tickets of clients that waited for it.
    pub fn doubt(&mut self, handle: &Handle, now: Now) -> Vec<Ticket> {
        let alone = Handle { details: Details::default(), ..handle.clone() };
        let mut waiting = Vec::new();
        if self.outbox.doubt(handle.record, now) {
            self.explain.ended(handle.object, handle.record);
            self.notify_correlator(handle, &Settled::Forgotten);
        } else {
            waiting = self.forget_record(&alone, now);
        }
        waiting.extend(handle.details.others.iter().flat_map(|other| self.doubt(other, now)));
        waiting
    }

    /// Follows a replacement of the record by `stored`. Waiting occurrences are added to its count. If the client
    /// stated a number of occurrences, only those that it does not include. Returns the tickets of clients that waited
    /// for the others.
    pub fn follow(&mut self, handle: &Handle, stored: &Event, line: Line, now: Now) -> Vec<Ticket> {
        let count = outbox::count(stored);
        let noticed = self.notice(handle.record, None, now);
        let Rebased { moved, written, awaited } =
            self.outbox.rebase(handle.record, stored, line, handle.details.before.as_ref(), now).unwrap_or_else(|| {
                self.notify_correlator(handle, &Settled::CountReset(count));
                Rebased::default()
            });
        self.ledger.write(written);
        if let Some(noticed) = noticed {
            self.note_answer(handle.record, &noticed, &Settlement { written, ..Settlement::default() }, now);
        }
        // A PUT may bring back an older tag.
        let tag = self.outbox.tag_count(handle.record, stored).or_else(|| self.outbox.settled(handle.record));
        self.notify_correlator(handle, &Settled::stored(stored, moved, tag));
        handle.records().for_each(|record| self.outbox.resume(record, now));
        awaited
    }

    pub(super) fn notify_correlator(&mut self, handle: &Handle, settled: &Settled) {
        if let Some(key) = handle.key {
            self.change_correlator(handle.source, |correlator| correlator.settle(key, handle.record, settled));
        }
    }
}

/// A paused record; dropping this resumes it.
#[derive(Debug)]
pub struct PausedRecord {
    pub(super) shards: Shards,
    pub(super) shard: usize,
    pub(super) handle: Handle,
    /// Whether the pause has ended, because the record was forgotten or follows the client's change.
    has_ended: bool,
    /// How it was found.
    by: Lookup,
    /// The client's line under the requested name.
    line: Key,
    /// The count that the upstream was known to show before the client's request, if that is known.
    shown: Option<i64>,
}

impl Shards {
    /// Pauses the record that `name` refers to; see [`Shard::pause`].
    #[must_use]
    pub fn pause(&self, event: &Event, name: &str, by: Lookup) -> Option<PausedRecord> {
        let policy = self.policy();
        let shard = self.shard_of(event);
        let handle = self.with(shard, |shard, now| shard.pause(event, name, by, now, &policy))?;
        Some(self.paused((shard, handle), event, name, by))
    }

    pub(super) fn paused(
        &self,
        (shard, handle): (usize, Handle),
        event: &Event,
        name: &str,
        by: Lookup,
    ) -> PausedRecord {
        let secret = self.0.secret;
        let line = secret.line(secret.source(event), &event.metadata.namespace, name, line_checksum(event));
        PausedRecord { shards: self.clone(), shard, handle, has_ended: false, by, line, shown: None }
    }

    /// Returns the record that a client's name refers to, for the event that the client was shown under it: as
    /// [`pause`](Self::pause) finds it, if its correlator knows it.
    pub fn find_named(&self, posted: &Event, by: Lookup) -> Option<Found> {
        let policy = self.policy();
        self.look(self.shard_of(posted), |shard| shard.find_named(posted, by, self.clock().now(), &policy))
    }

    /// Whether `stored`, the upstream's event of the name of the record that `posted` has led to, is of the record.
    pub fn is_of(&self, posted: &Event, found: &Found, stored: &Event) -> bool {
        self.shows(self.shard_of(posted), (found.record, &found.name), stored).unwrap_or(found.stored)
    }

    /// Does as [`Outbox::count_on`](outbox::Outbox::count_on), for the record that `posted` has led to.
    pub fn count_on(&self, posted: &Event, record: RecordId, stored: &Event) -> Option<i32> {
        self.look(self.shard_of(posted), |shard| shard.outbox.count_on(record, stored))
    }

    /// Does as [`Shard::is_of`].
    fn shows(&self, shard: usize, (record, name): (RecordId, &str), stored: &Event) -> Option<bool> {
        let (policy, now) = (self.policy(), self.clock().now());
        self.look(shard, |shard| shard.is_of(record, name, stored, now, &policy))
    }
}

impl PausedRecord {
    /// The record's name upstream.
    pub fn name(&self) -> SmolStr {
        self.handle.name.clone()
    }

    /// Whether the upstream was known to hold the record when it was paused.
    pub fn is_stored(&self) -> bool {
        self.handle.stored
    }

    /// Whether the upstream's event has led to the record, so that it has its name.
    pub fn is_found_by_name(&self) -> bool {
        self.by == Lookup::Name
    }

    /// Returns what a change to `stored` states about the total of the name's client: nothing if it leaves the count of the
    /// upstream. The client's total may have more, which waits, or less, if others count too.
    pub fn stated(&self, stored: &Event, line: Line) -> Line {
        if self.shown == Some(outbox::count(stored).into()) { Line::Unstated } else { line }
    }

    /// Whether `stored`, the upstream's event of the record's name, is of the record. If so, notes its count: the known one
    /// may be older.
    pub fn sees(&mut self, stored: &Event) -> bool {
        let Handle { record, name, stored: is_stored, .. } = &self.handle;
        let is_of = self.shards.shows(self.shard, (*record, name), stored).unwrap_or(*is_stored);
        if is_of {
            self.shown = Some(outbox::count(stored).into());
            let details = &mut self.handle.details;
            details.before = self.shards.look(self.shard, |shard| shard.outbox.before(self.handle.record, stored));
            details.uid = stored.metadata.uid.clone();
        }
        is_of
    }

    /// Waits until no request of the record is in flight, so that the client's request comes after it. Then notes the
    /// count that the upstream shows.
    ///
    /// LIMIT: waits for at most `limit`; a create that hangs for longer may still be executed after a delete.
    pub async fn quiet(&mut self, limit: Duration) {
        let quiet = async {
            while self.shards.look(self.shard, |shard| shard.is_in_flight(&self.handle)) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let _in_time = tokio::time::timeout(limit, quiet).await;
        let Handle { record, details, .. } = &mut self.handle;
        details.before = None;
        let view = |shard: &Shard| shard.outbox.view(*record).map_or(details.shown, |seen| seen.shown);
        self.shown = self.shards.look(self.shard, view);
    }

    /// Forgets the deleted record.
    pub fn forget(mut self) {
        let line = self.line;
        let waiting = self.end(|shard, handle, now| {
            shard.end_line(line);
            shard.forget_record(handle, now)
        });
        self.shards.dismiss(&waiting);
    }

    /// Handles a DELETE without an answer: reads the record before anything else is written, and forgets it if it is
    /// gone.
    pub fn doubt(mut self) {
        let waiting = self.end(Shard::doubt);
        self.shards.dismiss(&waiting);
        self.shards.wake();
    }

    /// Follows a replacement of the record by `stored`; see [`Shard::follow`]. With tags, one that leaves the count says
    /// nothing about what has arrived.
    pub fn follow(mut self, stored: &Event, line: Line) {
        let is_by_tags = line == Line::Stated && outbox::has_any_tag(stored);
        let line = if is_by_tags { self.stated(stored, line) } else { line };
        let mut news = Vec::new();
        let awaited = self.end(|shard, handle, now| {
            news = shard.take_aside(handle);
            shard.follow(handle, stored, line, now)
        });
        news.iter().for_each(|event| self.shards.apply_watch(event));
        self.shards
            .answer(awaited.into_iter().map(|ticket| (ticket, TicketOutcome::Written(Box::new(stored.clone())))));
        self.shards.wake();
    }

    /// Ends the pause by `act`. Returns the tickets of the clients that need not wait any more.
    fn end(&mut self, act: impl FnOnce(&mut Shard, &Handle, Now) -> Vec<Ticket>) -> Vec<Ticket> {
        self.has_ended = true;
        let Self { shards, shard, handle, .. } = &*self;
        shards.settling(*shard, |shard| shard.event(handle.record), |shard, now| act(shard, handle, now))
    }
}

impl Drop for PausedRecord {
    fn drop(&mut self) {
        if !self.has_ended {
            let news = self.shards.with(self.shard, |shard, now| {
                let news = shard.take_aside(&self.handle);
                shard.release(&self.handle, now);
                news
            });
            news.iter().for_each(|event| self.shards.apply_watch(event));
            self.shards.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::KeySecret;
    use crate::outbox::{Answer, Applied, Fault, Request, Retry, Write};
    use crate::shard;

    fn event(name: &str) -> Event {
        let mut event = Event { count: 1, reason: "BackOff".into(), message: "m".into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.metadata.name = name.into();
        event.involved_object.name = "web-0".into();
        event
    }

    fn stored(request: Request) -> Answer {
        match request {
            Request::Create { event, .. } => Answer::Stored(event),
            Request::Patch { .. } | Request::Read { .. } | Request::Delete { .. } => Answer::Missing,
        }
    }

    fn setup() -> (Shard, Policy) {
        (Shard::new(KeySecret(1, 2), shard::Settings::default(), 1), Policy::default())
    }

    /// A shard whose first record has a create in flight.
    fn in_flight() -> (Shard, Policy, Now, Write) {
        let ((mut shard, policy), now) = (setup(), Now::at(1_000_000_000));
        shard.accept(event("a"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        (shard, policy, now, write)
    }

    #[test]
    fn a_held_record_sends_nothing_and_goes_on_when_released() {
        let (mut shard, policy, now, write) = in_flight();
        let handle = shard.pause(&event("a"), "a", Lookup::Alias, now, &policy).unwrap();
        assert!(shard.outbox.is_in_flight(handle.record));
        shard.settle(write.record, stored(write.request), now);
        assert!(!shard.outbox.is_in_flight(handle.record));
        shard.accept(event("b"), 1, now, &policy).unwrap();
        let later = Now::at(3_600_000_000_000);
        assert_eq!(shard.next_write(later), None);
        assert!(shard.balance().is_exact());
        shard.release(&handle, later);
        assert!(matches!(shard.next_write(later).unwrap().request, Request::Patch { patch, .. } if patch.count == 2));
    }

    /// Fault: a DELETE of an event whose key was evicted deleted the combined record of its group, and so did one of an
    /// event that had been counted by itself before the group's window ended.
    #[test]
    fn only_the_names_of_combined_events_lead_to_a_combined_record() {
        let policy = Policy::from(crate::correlator::Settings {
            lru_cache_size: NonZeroUsize::MIN,
            max_events: NonZeroUsize::new(2).unwrap(),
            ..crate::correlator::Settings::default()
        });
        let (mut shard, now) = (setup().0, Now::at(1_000_000_000));
        let combined = Event { message: "other".into(), ..event("b") };
        shard.accept(event("a"), 1, now, &policy).unwrap();
        shard.accept(combined.clone(), 1, now, &policy).unwrap();
        let leads = |event: &Event, now| {
            let is_led = |by| shard.locate(event, &event.metadata.name, by, now, &policy).is_some();
            [Lookup::Alias, Lookup::Unstored, Lookup::Name].map(is_led)
        };
        assert_eq!((leads(&event("a"), now), leads(&combined, now)), ([false; 3], [true, true, false]));
        // What came in an earlier window may be either.
        let later = Now::at(3_600_000_000_000);
        assert_eq!((leads(&event("a"), later), leads(&combined, later)), ([false, true, false], [false, true, false]));
    }

    #[test]
    fn a_record_that_is_held_twice_goes_on_after_the_second_release() {
        let (mut shard, policy) = setup();
        let now = Now::at(1_000_000_000);
        shard.accept(event("a"), 1, now, &policy).unwrap();
        let handle = shard.pause(&event("a"), "a", Lookup::Alias, now, &policy).unwrap();
        shard.pause(&event("a"), "a", Lookup::Name, now, &policy).unwrap();
        shard.release(&handle, now);
        assert_eq!(shard.next_write(now), None);
        shard.release(&handle, now);
        assert!(shard.next_write(now).is_some());
    }

    #[test]
    fn a_forgotten_record_is_lost_even_in_flight_and_the_next_occurrence_begins_anew() {
        let (mut shard, policy, now, write) = in_flight();
        shard.accept(event("b"), 2, now, &policy).unwrap();
        // Two clients delete it at once; the first answer forgets it.
        let handle = shard.pause(&event("b"), "b", Lookup::Alias, now, &policy).unwrap();
        let second = shard.pause(&event("a"), "a", Lookup::Name, now, &policy).unwrap();
        assert_eq!(handle, second);
        shard.forget_record(&handle, now);
        shard.release(&second, now);
        assert_eq!(shard.settle(write.record, Answer::Missing, now), crate::outbox::Settlement::default());
        let balance = shard.balance();
        assert!(balance.is_exact());
        assert_eq!((balance.ledger.lost(LostReason::Deleted), balance.total_waiting()), (3, 0));
        shard.accept(event("c"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        assert!(
            matches!(write.request, Request::Create { event, .. } if event.metadata.name == "c" && event.count == 1)
        );
    }

    #[test]
    fn a_replaced_record_counts_on_with_what_waits_on_top() {
        let (mut shard, policy, now, write) = in_flight();
        shard.settle(write.record, stored(write.request), now);
        shard.accept(event("b"), 2, now, &policy).unwrap();
        let handle = shard.pause(&event("a"), "a", Lookup::Name, now, &policy).unwrap();
        shard.follow(&handle, &Event { count: 10, message: "theirs".into(), ..event("a") }, Line::Unstated, now);
        shard.accept(event("c"), 1, now, &policy).unwrap();
        assert_eq!(shard.pending().map(|(event, _)| event.count).max(), Some(13));
        let later = Now::at(3_600_000_000_000);
        let write = shard.next_write(later).unwrap();
        // With the message of the occurrence, which the replaced record's key does not determine.
        assert!(matches!(write.request, Request::Patch { patch, .. } if patch.count == 13 && patch.message == "m"));
        assert!(shard.balance().is_exact());
    }

    /// Fault: after a replacement or a repair, the clients' lines of a record took memory that no limit counted.
    #[test]
    fn the_lines_of_a_replaced_record_count_against_the_limit_of_bytes() {
        let ((mut shard, policy), now) = (setup(), Now::at(1_000_000_000));
        shard.identify("me");
        shard.accept(event("a"), 1, now, &policy).unwrap();
        let (stored, before) = (shard.pending().next().unwrap().0.clone(), shard.sizes().bytes);
        let handle = shard.pause(&stored, "a", Lookup::Name, now, &policy).unwrap();
        shard.follow(&handle, &stored, Line::Unstated, now);
        assert_eq!(shard.sizes().bytes, before);
    }

    /// Fault: what the PUT includes counted twice. The watch had shown it before its answer, as another writer's part.
    #[test]
    fn a_replacement_that_the_watch_shows_before_its_answer_counts_once() {
        for (stated, is_followed) in [(5, true), (5, false), (1, false)] {
            let shards = Shards::of(1, Policy::default(), Clock::manual(1_000_000_000));
            let now = Now::at(1_000_000_000);
            shards.with(0, |shard, _| shard.identify("me"));
            shards.accept(event("a"), 1).unwrap();
            let mut put = shards.with(0, |shard, _| shard.write_all(now)).pop().unwrap();
            shards.accept(event("a"), 4).unwrap();
            let held = shards.pause(&put, "a", Lookup::Name).unwrap();
            (put.count, put.metadata.resource_version) = (stated, "6".into());
            shards.apply_watch(&put);
            if is_followed {
                held.follow(&put, Line::Stated);
            } else {
                drop(held);
            }
            let written = shards.with(0, |shard, _| shard.write_all(Now::at(3_600_000_000_000)));
            let counts: Vec<i32> = written.iter().map(|event| event.count).collect();
            // Without an answer, it may have been another writer's.
            let expected = if is_followed { vec![] } else { vec![stated + 4] };
            assert_eq!(counts, expected, "{stated} {is_followed}");
            assert!(shards.balance().is_exact());
        }
    }

    /// Fault: the retry patched it again, and restored a record that another writer had deleted.
    #[test]
    fn a_refused_create_that_a_client_has_written_is_not_tried_again() {
        let (mut shard, policy, now, write) = in_flight();
        let later = Retry::new(Fault::Overloaded, Applied::No);
        shard.settle(write.record, Answer::Retry(later), now);
        let handle = shard.pause(&event("a"), "a", Lookup::Alias, now, &policy).unwrap();
        let mut stored = event("a");
        stored.metadata.resource_version = "7".into();
        shard.follow(&handle, &stored, Line::Created, now);
        assert_eq!(shard.next_write(Now::at(3_600_000_000_000)), None);
        let balance = shard.balance();
        assert_eq!((balance.ledger.total_written(), balance.total_waiting()), (1, 0));
    }

    /// Fault: with plain writes it began again with count 1, as if this process had not counted on it.
    #[test]
    fn a_labelled_record_that_another_writer_deletes_is_created_with_its_running_count() {
        let (mut shard, policy, now, write) = in_flight();
        shard.settle(write.record, stored(write.request), now);
        // Its coalescing interval ends.
        let now = Now::at(3_600_000_000_000);
        assert_eq!(shard.next_write(now), None);
        let mut labelled = event("a");
        labelled.metadata.resource_version = "7".into();
        let handle = shard.pause(&labelled, "a", Lookup::Name, now, &policy).unwrap();
        shard.follow(&handle, &labelled, Line::Unstated, now);
        labelled.metadata.resource_version = "8".into();
        shard.apply_deletion(&labelled, now, &policy);
        shard.accept(event("b"), 1, now, &policy).unwrap();
        let write = shard.next_write(now).unwrap();
        assert!(matches!(write.request, Request::Create { event, .. } if event.count == 2));
    }
}
