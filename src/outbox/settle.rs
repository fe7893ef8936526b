//! Applies an answer of the upstream to a record, its queue, the ledger and its correlator. `upstream_state.rs` decides
//! what the answer means; this file carries it out.

use super::forget::overtaken;
use super::record::{Kind, Phase, Record, Sent};
use super::upstream_state::{Call, Effect, Fact, Facts, Mark, Tags, UpstreamState, step};
use super::{Answer, Applied, Fault, Outbox, Refusal, Retry, Ticket, TicketOutcome};
use crate::clock::Now;
use crate::correlator::{Key, RecordId, Settled, record_name};
use crate::event::repair::{self, Objection, Repair};
use crate::event::{ApiGroup, Event};
use crate::ledger::{LostReason, Occurrences};
use crate::status::Status;

/// Result of an answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settlement {
    /// Occurrences that the upstream now shows.
    pub written: Occurrences,
    /// Lost occurrences, and the reason.
    pub lost: Option<(LostReason, Occurrences)>,
    /// Feedback for the correlator of the record's source.
    pub feedback: Option<Feedback>,
    /// Tickets of waiting clients, and their answers.
    pub resolved: Vec<(Ticket, TicketOutcome)>,
    /// Repairs of a refused record, which is written again.
    pub repairs: Vec<Repair>,
}

/// Feedback for a correlator about a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    /// The source.
    pub source: Key,
    /// The correlator's key of the record.
    pub key: Key,
    /// The record.
    pub record: RecordId,
    /// What happened.
    pub settled: Settled,
}

impl Record {
    fn feedback(&self, record: RecordId, settled: Settled) -> Option<Feedback> {
        Some(Feedback { source: self.source, key: self.key, record, settled })
    }
}

/// LIMIT: requests of a record in a row without a pause: patch, create, read, create.
const IMMEDIATE_TRIES: u32 = 4;

impl Outbox {
    /// Applies the answer to a write that [`next_write`](Self::next_write) returned.
    pub fn settle(&mut self, id: RecordId, answer: Answer, now: Now) -> Settlement {
        let (tags, refuses_taken) = (self.tags, self.tickets.refuses_taken(id));
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        let Phase::InFlight(sent) = record.phase else { return Settlement::default() };
        let is_as_before =
            matches!(&answer, Answer::Retry(Retry { applied: Applied::No, fault, .. }) if *fault != Fault::Conflict);
        let is_refused =
            matches!((&answer, &record.upstream), (Answer::Exists, UpstreamState::Absent)) && refuses_taken;
        // A create was answered that the name is taken, and there is nothing. A webhook may refuse with 409.
        let is_stuck = matches!((&answer, &record.upstream), (Answer::Missing, UpstreamState::Taken { .. }));
        record.note_failure(&answer, now.mono);
        let fact = if is_refused {
            let status = Box::new(Status::already_exists("", "events", &record.event.metadata.name));
            Fact::Refused(Refusal { reason: LostReason::Exists, status })
        } else if record.waits_for_rights(sent.call, &answer, now.mono) {
            Fact::Retry(Applied::No)
        } else {
            fact(record, sent, &answer, now)
        };
        if let (Fact::Conflict, Call::Patch) = (&fact, sent.call) {
            // It was not executed, so a count that it would have written shows nothing.
            record.sent = sent.before;
        }
        let facts = Facts {
            now: now.mono,
            tags: if record.tag.is_none() { Tags::Off } else { tags },
            settled: record.settled(),
            in_flight: sent.occurrences.total(),
            sent: record.sent,
            adopts: !record.kind.folds(),
        };
        if let (Fact::Stored(seen), Call::Create | Call::Patch) = (&fact, sent.call)
            && record.tag.is_some()
        {
            self.tags = if seen.is_tagged { Tags::Kept } else { Tags::Unproven };
        }
        let upstream = std::mem::take(&mut record.upstream);
        let (upstream, effect) = match step(upstream, sent.call, fact, &facts) {
            (upstream, effect) if sent.is_overtaken => overtaken(upstream, effect),
            stepped => stepped,
        };
        (record.upstream, record.phase) = (upstream, Phase::Cooling);
        if let UpstreamState::Sent { until } = record.upstream {
            record.create_until = Some(until);
        }
        if !matches!(effect, Effect::Stored { .. }) {
            // They wait again, for the next request or until they are given up.
            record.pending.merge(sent.occurrences);
        }
        let (found, retry) = match answer {
            Answer::Stored(found) => (Some(found), None),
            Answer::Retry(retry) => (None, Some(retry)),
            Answer::Missing | Answer::Exists | Answer::Refused(_) => (None, None),
        };
        if !is_as_before || sent.is_overtaken {
            self.note(id);
        }
        match effect {
            Effect::Stored { arrived, moved } => self.hold(id, sent, arrived, moved, found.as_deref(), now),
            Effect::Again => is_stuck.then(|| self.expire(id, sent, now)).flatten().unwrap_or_else(|| {
                self.ask_again(id, now);
                Settlement::default()
            }),
            Effect::Later => self.later(id, sent, retry.as_ref(), now),
            Effect::Rename { is_gone } => self.rename(id, is_gone, now),
            Effect::Lost(loss) => self.repair(id, sent, &loss, now).unwrap_or_else(|| self.lose(id, sent, &loss, now)),
            Effect::Forget => self.give_up_deleted(id, now),
        }
    }

    /// Applies that the upstream holds the record as `found`, with `arrived` of the sent occurrences.
    fn hold(
        &mut self,
        id: RecordId,
        sent: Sent,
        arrived: u64,
        moved: i64,
        found: Option<&Event>,
        now: Now,
    ) -> Settlement {
        let own_tag = self.own_tag(id);
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        record.move_count(moved);
        if let Some(found) = found {
            record.read_lines(found, sent.group);
        }
        if let (Some(found), ApiGroup::Core) = (found, sent.group) {
            record.follow_times(found);
        }
        if let (Some(found), Call::Create) = (found, sent.call) {
            // A webhook may have changed it.
            record.event.metadata.name = found.metadata.name.clone();
        }
        let mut rest = sent.occurrences;
        let written = rest.take_first(arrived);
        if arrived > 0 {
            record.failing_since = None;
        }
        record.pending.merge(rest);
        if rest.total() > 0 && record.has_expired(self.settings.max_age, now.mono) {
            let refused = Sent { occurrences: rest, call: Call::Patch, ..sent };
            return Settlement { written, ..self.lose(id, refused, &expired(), now) };
        }
        let was_plain = record.tag.is_none();
        let is_switched = record.switches_tag(own_tag);
        let feedback = record.feedback(id, stored(record, moved));
        let mut settlement = Settlement { written, feedback, ..Settlement::default() };
        if rest.total() > 0 || sent.is_overtaken {
            self.ask_again(id, now);
            return settlement;
        }
        record.end_write();
        let owes = record.owes();
        if owes {
            self.enqueue_when_due(id, now);
        } else if record.goes_at() <= now.mono || self.draining {
            self.remove(id, now);
        } else {
            record.phase = Phase::Settled;
            self.settled += 1;
            self.set_record_timer(id);
        }
        if is_switched && (owes || was_plain) {
            // The spool's entry still has the earlier tag. Without one, it would be written again as it is.
            self.hold_until_kept(id);
        }
        if let Some(found) = found {
            self.tickets.resolve(id, || TicketOutcome::Written(Box::new(found.clone())), &mut settlement);
        }
        settlement
    }

    /// Queues the next request of the record at once; the write has paid already.
    fn ask_again(&mut self, id: RecordId, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.tries >= IMMEDIATE_TRIES {
            self.pause_for(id, None, now);
            return;
        }
        record.tries += 1;
        self.enqueue(id, now);
    }

    /// Repeats a failed try after a pause, unless the record is too old for an upstream that answers.
    fn later(&mut self, id: RecordId, sent: Sent, retry: Option<&Retry>, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        if let UpstreamState::Waiting { until, .. } = record.upstream
            && until > now.mono
        {
            record.phase = Phase::Backoff(until);
            self.set_record_timer(id);
            return Settlement::default();
        }
        let answers = retry.is_some_and(|retry| retry.fault.is_answer());
        answers.then(|| self.expire(id, sent, now)).flatten().unwrap_or_else(|| {
            self.pause_for(id, retry, now);
            Settlement::default()
        })
    }

    /// Applies that the upstream answers again. The time without answers does not count towards `max_age`, also for
    /// records that were not tried in it.
    pub fn end_silence(&mut self) {
        self.records.values_mut().for_each(|record| record.failing_since = None);
    }

    /// Gives up the sent occurrences if the upstream has not accepted the record for too long. `None` if it is tried
    /// again, or has to be read first.
    fn expire(&mut self, id: RecordId, sent: Sent, now: Now) -> Option<Settlement> {
        let max_age = self.settings.max_age;
        self.records.get(&id).filter(|record| record.has_expired(max_age, now.mono))?;
        self.note(id);
        let record = self.records.get_mut(&id)?;
        match record.upstream {
            // First it is read whether an earlier try was executed.
            UpstreamState::Sent { until } if record.tag.is_some() => {
                record.upstream = UpstreamState::Taken { until: Some(until), loss: Some(expired()) };
                None
            }
            UpstreamState::Absent | UpstreamState::Stored(_) | UpstreamState::Sent { .. } => {
                Some(self.lose(id, sent, &expired(), now))
            }
            UpstreamState::Taken { .. }
            | UpstreamState::Unsure { .. }
            | UpstreamState::Waiting { .. }
            | UpstreamState::Unwanted(_)
            | UpstreamState::Admitted { .. } => None,
        }
    }

    /// Queues the next request of the record after a pause.
    fn pause_for(&mut self, id: RecordId, retry: Option<&Retry>, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        record.tries = record.tries.saturating_add(1);
        let pause = record.pause(self.jitter.f64(), &self.settings, now.mono);
        let asked = retry.and_then(|retry| retry.after).unwrap_or_default();
        record.phase = Phase::Backoff(now.mono.after(pause.max(asked)));
        self.set_record_timer(id);
    }

    /// Renames the record, because another writer has its name. It begins again with all occurrences if the upstream has
    /// none of them any more, otherwise with the unacknowledged ones.
    fn rename(&mut self, id: RecordId, is_gone: bool, now: Now) -> Settlement {
        // Not only the time, because two records of one object may be renamed at the same time.
        let wall = now.wall.wrapping_add(i64::from(self.jitter.u32(1..)));
        let own_tag = self.own_tag(id);
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        if record.is_inherited || !is_gone {
            record.take_own_tag(own_tag);
            record.total = record.pending.total();
            record.event.count = i32::try_from(record.total).unwrap_or(i32::MAX);
        }
        record.event.metadata.name = record_name(&record.event.involved_object.name, Now { wall, ..now });
        (record.sent, record.create_until) = (Mark::default(), None);
        let feedback = record.feedback(id, Settled::BegunAgain { count: record.event.count });
        self.ask_again(id, now);
        self.hold_until_kept(id);
        Settlement { feedback, ..Settlement::default() }
    }

    /// Repairs a record that the upstream has refused as invalid or too large, and writes it again. Each repair is tried
    /// once. Returns `None` if the refusal names nothing that can be repaired.
    fn repair(&mut self, id: RecordId, sent: Sent, loss: &Refusal, now: Now) -> Option<Settlement> {
        let record = self.records.get_mut(&id).filter(|_| self.settings.repair)?;
        let causes = loss.status.details.iter().flat_map(|details| &details.causes);
        let fields: Vec<&str> = causes.map(|cause| cause.field.as_str()).collect();
        let objection = match loss.reason {
            LostReason::Invalid => Objection::Fields(&fields),
            LostReason::TooLarge => Objection::TooLarge,
            _ => return None,
        };
        let name = record.event.metadata.name.clone();
        let repairs = match (record.upstream.held(), sent.group) {
            (None, _) => repair::refused(&mut record.event, &objection, now.wall),
            // A patch can have no other fault, and none at all in events.k8s.io.
            (Some(_), ApiGroup::Core) => repair::refused_message(&mut record.event, &objection).into_iter().collect(),
            (Some(_), ApiGroup::Events) => Vec::new(),
        };
        if repairs.is_empty() {
            return None;
        }
        record.repaired.extend(&repairs);
        record.measure(&mut self.usage);
        let is_renamed = record.event.metadata.name != name;
        self.ask_again(id, now);
        if is_renamed {
            self.hold_until_kept(id);
        }
        Some(Settlement { repairs, ..Settlement::default() })
    }

    /// Applies a final refusal: the sent occurrences are lost, and later ones may begin a new try.
    fn lose(&mut self, id: RecordId, sent: Sent, loss: &Refusal, now: Now) -> Settlement {
        let own_tag = self.own_tag(id);
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        let settled = record.settled();
        // A read has all occurrences in flight, and the refused write had fewer.
        let number = match (sent.call, record.kind) {
            (_, Kind::Digest | Kind::Storm) => record.pending.total(),
            (Call::Read, _) => record.sent.tag.saturating_sub(settled).min(record.pending.total()),
            _ => sent.occurrences.total(),
        };
        let mut lost = record.pending.take_first(number);
        record.total -= lost.total();
        if record.kind.folds() {
            lost.merge(std::mem::take(&mut record.later));
        }
        let is_switched = record.switches_tag(own_tag);
        record.end_write();
        let is_stored = record.upstream.held().is_some();
        let left = record.waiting().total();
        if is_stored {
            record.move_count(-i64::try_from(lost.total()).unwrap_or(i64::MAX));
        } else {
            record.event.count = i32::try_from(record.total.saturating_add(record.later.total())).unwrap_or(i32::MAX);
        }
        let settled = if is_stored || left > 0 { Settled::CountReset(record.event.count) } else { Settled::Forgotten };
        let feedback = record.feedback(id, settled);
        if left > 0 {
            record.sent = Mark { count: record.sent.count, tag: record.settled() };
            self.enqueue_when_due(id, now);
            if is_switched {
                // The spool's entry still has the earlier tag.
                self.hold_until_kept(id);
            }
        } else {
            self.drop_digest(id);
            self.remove(id, now);
        }
        let mut settlement = Settlement { lost: Some((loss.reason, lost)), feedback, ..Settlement::default() };
        self.tickets.resolve(id, || TicketOutcome::Refused(loss.clone()), &mut settlement);
        settlement
    }

    /// Gives up a record that a client has deleted.
    fn give_up_deleted(&mut self, id: RecordId, now: Now) -> Settlement {
        let Some(record) = self.records.get(&id) else { return Settlement::default() };
        let lost = record.waiting();
        let feedback = record.feedback(id, Settled::Forgotten);
        self.drop_digest(id);
        self.remove_deleted(id, now);
        // Their clients get no other answer.
        drop(self.tickets.drop_record(id));
        let lost = (lost.total() > 0).then_some((LostReason::Deleted, lost));
        Settlement { lost, feedback, ..Settlement::default() }
    }
}

/// Returns the loss of occurrences whose write the upstream has postponed for too long.
fn expired() -> Refusal {
    let status = Status::new(504, "Timeout", "the upstream has postponed the write for longer than outbox.maxAge");
    Refusal { reason: LostReason::Expired, status: Box::new(status) }
}

/// Reduces an answer to the fact that `upstream_state.rs` needs.
fn fact(record: &Record, sent: Sent, answer: &Answer, now: Now) -> Fact {
    match answer {
        Answer::Stored(found) => Fact::Stored(record.see(found, sent.group, now)),
        Answer::Missing => Fact::Missing,
        Answer::Exists => Fact::Exists,
        Answer::Refused(refusal) => Fact::Refused(refusal.clone()),
        Answer::Retry(Retry { fault: Fault::Conflict, .. }) => Fact::Conflict,
        Answer::Retry(retry) => Fact::Retry(retry.applied),
    }
}

fn stored(record: &Record, count_moved: i64) -> Settled {
    Settled::Stored {
        name: record.event.metadata.name.clone(),
        resource_version: record.upstream.held().map(|held| held.version.clone()).unwrap_or_default(),
        first_timestamp: record.event.first_timestamp,
        count_moved: i32::try_from(count_moved).unwrap_or(if count_moved < 0 { i32::MIN } else { i32::MAX }),
        tag: Some(if record.is_inherited { 0 } else { record.settled() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlator::Rate;
    use crate::outbox::{GroupSettings, Offer, Request, Settings};

    const HOUR: i64 = 3_600_000_000_000;
    const OVERLOADED: Answer = Answer::Retry(Retry::new(Fault::Overloaded, Applied::No));

    fn offer(outbox: &mut Outbox, (source, number): (u128, u64), now: Now) {
        let mut event = Event { count: 1, ..Event::default() };
        event.metadata.name = format!("n{number}").into();
        outbox.offer(Offer { source: Key(source), ..Offer::of(number, None) }, event, now);
    }

    /// Fault: an open breaker of a namespace let the spool write each of its records again every few seconds.
    #[test]
    fn a_postponed_write_changes_no_entry_of_the_spool() {
        let mut outbox = Outbox::new(Settings::default(), 0);
        outbox.keep_journal();
        offer(&mut outbox, (1, 1), Now::at(0));
        outbox.take_changes();
        let id = outbox.next_write(Now::at(0)).unwrap().record;
        outbox.settle(id, OVERLOADED, Now::at(0));
        assert!(!outbox.has_changes());
        let id = outbox.next_write(Now::at(HOUR / 2)).unwrap().record;
        assert!(outbox.settle(id, OVERLOADED, Now::at(2 * HOUR)).lost.is_some());
        assert!(outbox.has_changes());
    }

    /// Fault: what had come after a refused write waited for the coalescing interval, beyond the drain's deadline.
    #[test]
    fn in_a_drain_the_rest_of_a_refused_record_is_tried_at_once() {
        let mut outbox =
            Outbox::new(Settings { coalesce_interval: std::time::Duration::from_secs(60), ..Settings::default() }, 0);
        offer(&mut outbox, (1, 1), Now::at(0));
        let id = outbox.next_write(Now::at(0)).unwrap().record;
        offer(&mut outbox, (1, 1), Now::at(0));
        outbox.drain(Now::at(0));
        let status = Box::new(Status::bad_request("no"));
        outbox.settle(id, Answer::Refused(Refusal { reason: LostReason::Invalid, status }), Now::at(0));
        assert!(outbox.next_write(Now::at(0)).is_some());
    }

    /// Fault: a record that was not tried during an outage was lost at the first 429 after it.
    #[test]
    fn the_time_without_answers_does_not_count_towards_the_age() {
        for (is_silent, is_lost) in [(false, true), (true, false)] {
            let mut outbox = Outbox::new(Settings::default(), 0);
            offer(&mut outbox, (1, 1), Now::at(0));
            for at in [0, 2 * HOUR] {
                if is_silent && at > 0 {
                    outbox.end_silence();
                }
                let id = outbox.next_write(Now::at(at)).unwrap().record;
                let settlement = outbox.settle(id, OVERLOADED, Now::at(at));
                assert_eq!(settlement.lost.is_some(), is_lost && at > 0, "{is_silent} {at}");
            }
        }
    }

    /// Fault: while the upstream was slower than the ceiling, new records of other sources waited for all staged ones.
    #[test]
    fn staged_records_and_others_take_turns() {
        let ceiling = Some(Rate { qps: 1.0, burst: 100 });
        let groups = GroupSettings { ceiling, ..GroupSettings::default() };
        let mut outbox = Outbox::new(Settings { groups, ..Settings::default() }, 0);
        for number in 0..120 {
            offer(&mut outbox, (1, number), Now::at(0));
        }
        while outbox.next_write(Now::at(0)).is_some() {}
        let later = Now::at(HOUR);
        offer(&mut outbox, (2, 1000), later);
        let next: Vec<_> = (0..2).filter_map(|_| outbox.next_write(later)).collect();
        assert!(next.iter().any(|write| write.record == RecordId(1000)), "{next:?}");
        assert!(next.iter().all(|write| matches!(write.request, Request::Create { .. })));
    }
}
