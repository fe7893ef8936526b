//! Deletions and replacements by clients. A record is paused while the upstream executes them. Then it is forgotten, or it
//! continues from the stored event. So an owed write never overwrites a deletion.

use smol_str::SmolStr;

use super::budget::Budget;
use super::record::{Phase, Record};
use super::upstream_state::{Call, Effect, IfMissing, Then, UpstreamState};
use super::{Outbox, Ticket, count, digest, has_any_tag};
use crate::clock::Now;
use crate::correlator::{RecordId, is_newer};
use crate::event::Event;
use crate::ledger::Occurrences;

/// The effect of a client's replacement on a record.
#[derive(Debug, Default, PartialEq)]
pub struct Rebased {
    /// Change of the record's count.
    pub moved: i32,
    /// The waiting occurrences that the client has written.
    pub written: Occurrences,
    /// Tickets of the clients that waited for these, if no other ones wait.
    pub awaited: Vec<Ticket>,
}

/// Whether a client's change of an event has a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The change has a count, which includes the occurrences that GET had shown.
    Stated,
    /// The change has a count, and has created the event.
    Created,
    /// The change has other members only.
    Unstated,
}

/// A record's event upstream, as it was read before a client's change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Before {
    version: SmolStr,
    count: i32,
    /// The record's occurrences that it includes by its tag, if it has the tag.
    own: Option<u64>,
}

impl Record {
    /// Removes and returns the waiting occurrences that `stored`, with a client's `count`, includes: those in its tag, and
    /// as many as its count is above the one `before`; all if it is below. Others have arrived since the client has read
    /// the event, or it has read the event upstream.
    fn take_included(&mut self, stored: &Event, count: i32, line: Line, before: Option<&Before>) -> Occurrences {
        let waiting = self.waiting().total();
        // An answer that came later shows more.
        let is_newest = |version| !self.upstream.held().is_some_and(|held| is_newer(&held.version, version));
        let before = before.filter(|before| line == Line::Stated && is_newest(&before.version));
        let read = before.and_then(|before| before.own);
        let own = self.tag_on(stored).max(read).unwrap_or(0);
        // An event that was there is that of a create without an answer. The change may have removed its tag.
        let is_of_create = line == Line::Stated && matches!(self.upstream, UpstreamState::Sent { .. });
        let created = if is_of_create && read.is_none() { self.in_doubt() } else { 0 };
        let arrived = own.saturating_sub(self.settled()).max(created).min(waiting);
        let known = i64::from(self.event.count) - i64::try_from(waiting - arrived).unwrap_or(i64::MAX);
        // Only the tag says how much of a write in doubt the event had included.
        let before = before.filter(|before| before.own.is_some() || !self.may_have_arrived());
        let written = before.map_or(known, |before| before.count.into());
        let included = u64::try_from(i64::from(count) - written).map_or(waiting, |more| arrived + more);
        let mut taken = self.pending.take_first(included);
        taken.merge(self.later.take_first(included - taken.total()));
        taken
    }
}

/// Returns the step after the answer to a request that a DELETE without an answer has overtaken: the record is read, and
/// forgotten if it is gone.
pub(super) fn overtaken(upstream: UpstreamState, effect: Effect) -> (UpstreamState, Effect) {
    match (upstream, effect) {
        (UpstreamState::Stored(held) | UpstreamState::Unsure { held, .. }, effect) => {
            (UpstreamState::Unsure { held, if_missing: IfMissing::Forget }, effect)
        }
        // It is gone, or another event has its name.
        (UpstreamState::Absent, Effect::Again | Effect::Rename { .. }) => (UpstreamState::Absent, Effect::Forget),
        other => other,
    }
}

impl Outbox {
    /// Sends no further write of this record until [`resume`](Self::resume) or [`forget`](Self::forget). A request in
    /// flight continues. Pauses of one record are counted.
    pub fn pause(&mut self, id: RecordId) {
        self.paused.entry(id).or_default().count += 1;
        self.unqueue(id);
    }

    /// Notes that the upstream is asked to delete a paused record. If the process is killed before the answer, the next
    /// one reads the record first, and forgets it if it is gone.
    pub fn expect_deletion(&mut self, id: RecordId) {
        if let Some(pause) = self.paused.get_mut(&id) {
            pause.is_deleting = true;
            self.note(id);
        }
    }

    /// Sets aside a watch event of a paused record. The client's own change appears in the watch too, and is followed with
    /// the waiting occurrences that it includes. Returns `false` if the record is not paused.
    pub fn set_aside(&mut self, id: RecordId, event: &Event) -> bool {
        let Some(pause) = self.paused.get_mut(&id) else { return false };
        pause.news = Some(Box::new(event.clone()));
        true
    }

    /// Returns what was set aside: after the pause, it is learned.
    pub fn take_aside(&mut self, id: RecordId) -> Option<Box<Event>> {
        self.paused.get_mut(&id)?.news.take()
    }

    /// Whether a request of this record is in flight.
    pub fn is_in_flight(&self, id: RecordId) -> bool {
        self.records.get(&id).is_some_and(|record| matches!(record.phase, Phase::InFlight(_)))
    }

    /// Ends a pause, and owes the paused write again.
    pub fn resume(&mut self, id: RecordId, now: Now) {
        if self.end_pause(id) {
            return;
        }
        let draining = self.draining;
        let Some(record) = self.records.get_mut(&id) else { return };
        let (budget, is_digest) = (record.budget, record.kind.folds());
        let call = record.upstream.call(now.mono);
        // The client's change may have brought what was to be tried again.
        let is_done = !record.owes()
            && match record.phase {
                Phase::Cooling => !matches!(call, Some(Call::Read | Call::Delete)),
                Phase::Backoff(_) => call == Some(Call::Patch),
                Phase::Settled | Phase::Queued(_) | Phase::Staged(_) | Phase::InFlight(_) => false,
            };
        if is_done && record.create_until.is_some_and(|until| until > now.mono) {
            // Its deletion depends on the create in limbo.
            record.phase = Phase::Settled;
            self.set_record_timer(id);
        } else if is_done {
            self.remove(id, now);
        } else if !matches!(record.phase, Phase::Cooling) {
            // It is in flight, or waits for its next try.
        } else if draining || record.next_write <= now.mono {
            if is_digest && self.journal.on {
                self.end_hold(budget, now.mono);
            }
            self.enqueue(id, now);
        } else {
            self.set_record_timer(id);
        }
        if is_digest {
            // Nothing folded during the pause.
            self.set_budget_timer(budget, now.mono);
        }
    }

    /// Ends a pause after a client has deleted the record: removes it with all that it owes. An answer in flight has no
    /// effect any more. Returns the lost occurrences, and the tickets of clients that waited for them.
    pub fn forget(&mut self, id: RecordId, now: Now) -> (Occurrences, Vec<Ticket>) {
        // The watch event is older than the deletion.
        drop(self.take_aside(id));
        self.end_pause(id);
        self.unqueue(id);
        let lost = self.records.get(&id).map(|record| record.waiting()).unwrap_or_default();
        self.note(id);
        self.drop_digest(id);
        self.remove_deleted(id, now);
        (lost, self.tickets.drop_record(id))
    }

    /// Ends the digest `id`, if it is one: what folds next in its budget begins another one.
    pub(super) fn drop_digest(&mut self, id: RecordId) {
        let budget = self.digests.remove(&id).and_then(|budget| self.budgets.peek_mut(&budget.0));
        if let Some(digest) = budget.and_then(Budget::take_digest) {
            self.usage.resize_digest(digest.size(), 0);
        }
    }

    /// Removes a record that a client has deleted, and all that waits of it. While a create of it may still be executed,
    /// it stays to delete what that creates.
    pub(super) fn remove_deleted(&mut self, id: RecordId, now: Now) {
        let in_limbo = self.records.get_mut(&id).and_then(|record| Some((record.limbo(now)?, record)));
        let Some((until, record)) = in_limbo else { return self.remove(id, now) };
        (record.pending, record.later) = (Occurrences::default(), Occurrences::default());
        record.total = record.settled();
        record.upstream = UpstreamState::Waiting { until, then: Then::Delete };
        // Its deletion waits for no token, and takes none from what is to be shown.
        (record.paid, record.has_passed) = (true, true);
        record.phase = Phase::Backoff(until);
        self.set_record_timer(id);
    }

    /// Ends a pause after a client's DELETE that got no answer: the record is read first, and forgotten if it is gone.
    /// What comes next begins another record, or another digest.
    /// Returns `false` for a record that the upstream is not known to hold, which can be forgotten at once.
    pub fn doubt(&mut self, id: RecordId, now: Now) -> bool {
        self.note(id);
        let Some(record) = self.records.get_mut(&id) else { return false };
        let (UpstreamState::Stored(held) | UpstreamState::Unsure { held, .. }) = &record.upstream else { return false };
        record.upstream = UpstreamState::Unsure { held: held.clone(), if_missing: IfMissing::Forget };
        match &mut record.phase {
            // It owes a read.
            Phase::Settled => record.phase = Phase::Cooling,
            Phase::InFlight(sent) => sent.is_overtaken = true,
            Phase::Cooling | Phase::Queued(_) | Phase::Staged(_) | Phase::Backoff(_) => {}
        }
        self.drop_digest(id);
        self.resume(id, now);
        true
    }

    /// Returns what `found`, the upstream's event of a record, shows before a client's change; `None` if the record is not
    /// in the outbox.
    pub fn before(&self, id: RecordId, found: &Event) -> Option<Before> {
        let own = self.records.get(&id)?.tag_on(found);
        Some(Before { version: found.metadata.resource_version.clone(), count: count(found), own })
    }

    /// Continues from `stored`, by which a client has replaced the record upstream. With a count it includes the waiting
    /// occurrences that GET had shown: as many as its count is above the one `before`, or without it above the known one.
    /// Without a count it may show a write in doubt, so the record is read before the next write. Returns `None` if the
    /// record is not in the outbox.
    pub fn rebase(
        &mut self,
        id: RecordId,
        stored: &Event,
        line: Line,
        before: Option<&Before>,
        now: Now,
    ) -> Option<Rebased> {
        self.note(id);
        let count = count(stored);
        let record = self.records.get_mut(&id)?;
        let is_in_doubt = line == Line::Unstated && record.may_have_arrived();
        let written = match line {
            Line::Stated | Line::Created => record.take_included(stored, count, line, before),
            Line::Unstated => Occurrences::default(),
        };
        let waiting = i32::try_from(record.waiting().total()).unwrap_or(i32::MAX);
        let count_with_waiting = if is_in_doubt { record.event.count } else { count.saturating_add(waiting) };
        let moved = count_with_waiting.saturating_sub(record.event.count);
        let last_timestamp = record.event.last_timestamp.max(stored.last_timestamp);
        record.event = Event { count: count_with_waiting, last_timestamp, type_meta: None, ..stored.clone() };
        if !is_in_doubt {
            // A PUT may bring back an older tag. The record continues from that one.
            let tag = record.tag_on(stored).unwrap_or_else(|| record.settled());
            record.total = tag + record.unsettled().total();
            record.upstream = UpstreamState::Stored(record.held(stored, tag, now));
        }
        record.measure(&mut self.usage);
        let awaited = if waiting == 0 { self.tickets.drop_record(id) } else { Vec::new() };
        Some(Rebased { moved, written, awaited })
    }

    /// Returns the records of this name in the outbox. Iterates over all records: only for DELETE and PUT.
    pub fn named(&self, namespace: &str, name: &str) -> impl Iterator<Item = RecordId> {
        self.events().filter(move |(_, event)| event.is_named(namespace, name)).map(|(id, _)| id)
    }

    /// Returns the desired states of all records.
    pub fn events(&self) -> impl Iterator<Item = (RecordId, &Event)> {
        self.records.iter().map(|(id, record)| (*id, &record.event))
    }

    /// Returns the digest or storm record that this process continues under this name, for its `event` upstream.
    pub fn digest(&self, event: &Event, name: &str) -> Option<RecordId> {
        let namespace = &event.metadata.namespace;
        let is_it = |id: &RecordId| {
            self.digests.contains_key(id) && self.digest_event(*id).is_some_and(|known| known.is_named(namespace, name))
        };
        let of_name = digest::number(name).filter(is_it);
        // It may have been renamed. Only without tags, all digests are searched.
        of_name.or_else(|| match has_any_tag(event) {
            true => self.own_records(event).find(is_it),
            false => self.digests.keys().copied().find(is_it),
        })
    }

    /// Returns the event of a digest or storm record that this process continues.
    pub(super) fn digest_event(&self, id: RecordId) -> Option<&Event> {
        if let Some(record) = self.records.get(&id) {
            return Some(&record.event);
        }
        Some(&self.budgets.peek(&self.digests.get(&id)?.0)?.digest()?.event)
    }

    /// Ends one pause. Returns whether another one remains.
    fn end_pause(&mut self, id: RecordId) -> bool {
        let Some(pause) = self.paused.get_mut(&id) else { return false };
        pause.count -= 1;
        if pause.count == 0 {
            if self.paused.remove(&id).is_some_and(|pause| pause.is_deleting) {
                self.note(id);
            }
            return false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlator::{Rate, Settled};
    use crate::outbox::{Answer, Applied, Fault, Offer, Request, Retry, Settings, Write};

    fn stored(version: &str, count: i32) -> Answer {
        let mut event = Event { count, ..Event::default() };
        (event.metadata.name, event.metadata.resource_version) = ("n1".into(), version.into());
        Answer::Stored(Box::new(event))
    }

    fn at(second: i64) -> Now {
        Now::at(second * 1_000_000_000)
    }

    /// An outbox that has sent the create of a record at 0 s, and what it creates, as version 1.
    fn creating(rate: Option<Rate>) -> (Outbox, RecordId, Event) {
        let mut outbox = Outbox::new(Settings::default(), 0);
        outbox.identify("me");
        outbox.offer(Offer::of(1, rate), Event { count: 1, ..Event::default() }, at(0));
        let Write { record, request: Request::Create { mut event, .. } } = outbox.next_write(at(0)).unwrap() else {
            unreachable!("it is new")
        };
        event.metadata.resource_version = "1".into();
        (outbox, record, *event)
    }

    /// Fault: the answer made the record known again, and its next write created the deleted event again.
    #[test]
    fn a_delete_without_an_answer_is_not_undone_by_the_answer_to_an_earlier_patch() {
        let retry = |applied, fault| Answer::Retry(Retry::new(fault, applied));
        let perhaps = retry(Applied::Perhaps, Fault::Timeout);
        let conflict = retry(Applied::No, Fault::Conflict);
        for (answer, written, lost) in
            [(stored("2", 2), 1, 0), (perhaps, 0, 1), (conflict, 0, 1), (Answer::Missing, 0, 1)]
        {
            let mut outbox = Outbox::new(Settings::default(), 0);
            let event = Event { count: 1, ..Event::default() };
            outbox.offer(Offer::of(1, None), event.clone(), at(0));
            let id = outbox.next_write(at(1)).unwrap().record;
            outbox.settle(id, stored("1", 1), at(1));
            outbox.offer(Offer::of(1, None), Event { count: 2, ..event }, at(2));
            assert!(matches!(outbox.next_write(at(10)).unwrap().request, Request::Patch { .. }));
            outbox.pause(id);
            assert!(outbox.doubt(id, at(11)), "{answer:?}");
            let settlement = outbox.settle(id, answer.clone(), at(12));
            let mut totals = (settlement.written.total(), settlement.lost.map_or(0, |(_, lost)| lost.total()));
            if let Some(write) = outbox.next_write(at(100)) {
                assert!(matches!(write.request, Request::Read { .. }), "{answer:?}: {:?}", write.request);
                totals.1 += outbox.settle(id, Answer::Missing, at(100)).lost.map_or(0, |(_, lost)| lost.total());
            }
            assert_eq!(totals, (written, lost), "{answer:?}");
            assert_eq!(outbox.next_write(at(1000)), None, "{answer:?}");
        }
    }

    /// Fault: another writer's part, which the watch or a PUT had shown, was added once more by the read.
    #[test]
    fn after_a_delete_in_doubt_another_writers_part_counts_once() {
        for is_put in [false, true] {
            let (mut outbox, id, mut object) = creating(None);
            outbox.settle(id, Answer::Stored(Box::new(object.clone())), Now::at(1));
            (object.count, object.metadata.resource_version) = (5, "2".into());
            outbox.pause(id);
            if is_put {
                outbox.rebase(id, &object, Line::Stated, None, Now::at(2));
            } else {
                outbox.apply_watch(id, &object, Now::at(2));
            }
            assert!(outbox.doubt(id, Now::at(3)));
            let write = outbox.next_write(Now::at(10_000_000_000)).unwrap();
            assert!(matches!(write.request, Request::Read { .. }), "{write:?}");
            let read = outbox.settle(id, Answer::Stored(Box::new(object)), Now::at(10_000_000_000));
            let settled = read.feedback.map(|feedback| feedback.settled);
            assert!(matches!(settled, Some(Settled::Stored { count_moved: 0, .. })), "{is_put}: {settled:?}");
        }
    }

    /// Fault: the sum with what waits overflowed.
    #[test]
    fn a_tag_that_a_clients_put_has_made_too_large_is_written_again() {
        let (mut outbox, id, mut object) = creating(None);
        outbox.settle(id, Answer::Stored(Box::new(object.clone())), at(0));
        outbox.offer(Offer::of(1, None), Event { count: 2, ..Event::default() }, at(0));
        let annotations = &mut object.metadata.rare.as_mut().unwrap().annotations;
        annotations.values_mut().for_each(|value| *value = format!("{}@1", u64::MAX).into());
        outbox.pause(id);
        outbox.rebase(id, &object, Line::Unstated, None, at(1));
        outbox.resume(id, at(1));
        let Request::Patch { patch, claim, .. } = outbox.next_write(at(10)).unwrap().request else {
            panic!("it is on")
        };
        assert_eq!((patch.count, &*claim.unwrap().value), (2, "2@10"));
    }

    /// Fault: the deleted event stayed, because the deletion of its late create waited for a token of an empty budget.
    #[test]
    fn the_deletion_of_a_late_create_waits_for_no_token() {
        let (mut outbox, id, object) = creating(Some(Rate { qps: 0.0, burst: 1 }));
        let retry = Retry::new(Fault::Timeout, Applied::Perhaps);
        outbox.settle(id, Answer::Retry(retry), at(0));
        // The second try finds the first one's event.
        assert!(matches!(outbox.next_write(at(2)).unwrap().request, Request::Create { .. }));
        outbox.settle(id, Answer::Exists, at(2));
        assert!(matches!(outbox.next_write(at(2)).unwrap().request, Request::Read { .. }));
        outbox.settle(id, Answer::Stored(Box::new(object.clone())), at(2));
        outbox.pause(id);
        outbox.forget(id, at(10));
        assert!(matches!(outbox.next_write(at(100)).unwrap().request, Request::Read { .. }));
        outbox.settle(id, Answer::Stored(Box::new(object)), at(100));
        assert!(matches!(outbox.next_write(at(100)).unwrap().request, Request::Delete { .. }));
        outbox.settle(id, Answer::Missing, at(101));
        assert_eq!((outbox.next_write(at(1000)), outbox.record_count()), (None, 0));
    }

    /// Fault: after a client's PUT, nothing was known of the create in limbo, which restored the event after a DELETE. A
    /// released DELETE ended the deletion of what it had created.
    #[test]
    fn a_create_in_limbo_is_deleted_after_a_clients_put_and_delete() {
        let (mut outbox, id, object) = creating(None);
        let retry = Retry::new(Fault::Timeout, Applied::Perhaps);
        outbox.settle(id, Answer::Retry(retry), at(0));
        outbox.pause(id);
        outbox.rebase(id, &object, Line::Created, None, at(1));
        outbox.resume(id, at(1));
        assert_eq!(outbox.next_write(at(30)), None);
        outbox.pause(id);
        outbox.forget(id, at(30));
        assert!(matches!(outbox.next_write(at(100)).unwrap().request, Request::Read { .. }));
        outbox.settle(id, Answer::Stored(Box::new(object)), at(100));
        outbox.pause(id);
        outbox.resume(id, at(101));
        assert!(matches!(outbox.next_write(at(101)).unwrap().request, Request::Delete { .. }));
        outbox.settle(id, Answer::Missing, at(102));
        assert_eq!((outbox.next_write(at(1000)), outbox.record_count()), (None, 0));
    }
}
