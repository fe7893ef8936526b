//! Answers: what the upstream's reply does to a record, its place in the ledger, and what its correlator has to know.

use smol_str::SmolStr;

use super::claim::{Base, tally};
use super::group::{count, spelled};
use super::identity;
use super::record::{Call, Occurrences, Phase, Record, Sent};
use super::{Answer, Applied, Fate, Fault, Outbox, Refusal, RefusalReason, Retry, Ticket};
use crate::clock::Now;
use crate::correlator::{Key, RecordId, Settled, record_name};
use crate::event::repair::Repair;
use crate::event::{ApiGroup, Event};
use crate::status::Status;

/// What an answer settled.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settlement {
    /// Occurrences that the upstream now shows.
    pub written: Occurrences,
    /// Occurrences that are lost for good, and why.
    pub lost: Option<(LostReason, Occurrences)>,
    /// What the correlator of the record's source has to know.
    pub feedback: Option<Feedback>,
    /// Clients that waited for this, and what they are told.
    pub resolved: Vec<(Ticket, Fate)>,
    /// What was mended of a record that the upstream had refused; it is written again.
    pub repairs: Vec<Repair>,
}

/// What a correlator has to know of a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Feedback {
    /// The source.
    pub source: Key,
    /// Where the correlator remembers the record.
    pub key: Key,
    /// The record.
    pub record: RecordId,
    /// What happened.
    pub settled: Settled,
}

/// Why occurrences are lost; the ledger's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LostReason {
    /// Their budget was empty under `suppression: drop`.
    Suppressed,
    /// The upstream refused their record for good.
    Refused(RefusalReason),
    /// The drain's deadline passed.
    Shutdown,
    /// A client deleted their record before they were written.
    Deleted,
    /// The upstream kept putting their record off until the newest of them was older than `max_age`.
    Expired,
}

impl LostReason {
    /// Every reason, for zero-initialised metrics.
    pub const ALL: [Self; 10] = [
        Self::Suppressed,
        Self::Refused(RefusalReason::Invalid),
        Self::Refused(RefusalReason::Forbidden),
        Self::Refused(RefusalReason::NamespaceGone),
        Self::Refused(RefusalReason::TooLarge),
        Self::Refused(RefusalReason::Exists),
        Self::Refused(RefusalReason::Other),
        Self::Shutdown,
        Self::Deleted,
        Self::Expired,
    ];

    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Suppressed => "suppressed",
            Self::Refused(reason) => reason.label(),
            Self::Shutdown => "shutdown",
            Self::Deleted => "deleted",
            Self::Expired => "expired",
        }
    }
}

/// Times a record may be asked for again without a pause: patch, create, read, create.
const IMMEDIATE_TRIES: u32 = 4;

impl Outbox {
    /// Takes the answer to a write that [`next_write`](Self::next_write) returned.
    pub fn settle(&mut self, id: RecordId, answer: Answer, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        let Phase::InFlight(sent) = record.phase else { return Settlement::default() };
        record.phase = Phase::Cooling;
        self.note(id);
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        match (answer, sent.call) {
            (Answer::Stored(found), Call::Read) => self.settle_read(id, sent, &found, now),
            (Answer::Stored(stored), Call::Create | Call::Patch) => self.acknowledge(id, sent, &stored, now),
            (Answer::Exists, Call::Create) if !record.ambiguous && self.tickets.refuses_taken(id) => {
                let status = Box::new(Status::already_exists("", "events", &record.event.metadata.name));
                self.refuse(id, sent, &Refusal { reason: RefusalReason::Exists, status }, now)
            }
            (Answer::Exists, Call::Create) => self.look(id, sent, now),
            (Answer::Missing, Call::Patch | Call::Read) => {
                if let Some(refusal) = record.refusal.take() {
                    return self.refuse(id, sent, &refusal, now);
                }
                record.stored = false;
                record.look_first = false;
                record.base.gone();
                self.try_again(id, sent, now);
                Settlement::default()
            }
            (Answer::Refused(refusal), Call::Read) => self.refuse_read(id, sent, &refusal, now),
            (Answer::Refused(refusal), Call::Create | Call::Patch) if record.ambiguous && self.annotation.is_some() => {
                // An earlier try may have been stored before things changed.
                record.refusal = Some(Box::new(refusal));
                self.look(id, sent, now)
            }
            (Answer::Refused(refusal), Call::Create | Call::Patch) => self.refuse(id, sent, &refusal, now),
            (Answer::Retry(Retry { fault: Fault::Conflict, .. }), Call::Patch) if self.annotation.is_some() => {
                self.look(id, sent, now)
            }
            (Answer::Retry(retry), Call::Create | Call::Patch | Call::Read) => self.retry(id, sent, retry, now),
            // Answers that do not fit their request; the answer table makes none of them.
            (Answer::Exists, Call::Patch | Call::Read) | (Answer::Missing, Call::Create) => {
                self.back_off(id, sent, None, now);
                Settlement::default()
            }
        }
    }

    /// The upstream holds what was sent.
    fn acknowledge(&mut self, id: RecordId, sent: Sent, stored: &Event, now: Now) -> Settlement {
        // Another writer or admission may have moved the count; the difference is theirs and stays.
        let moved = count(sent.group, stored).saturating_sub(sent.count);
        self.hold(id, sent, stored, moved, now)
    }

    /// Reads the record before anything else is asked.
    fn look(&mut self, id: RecordId, sent: Sent, now: Now) -> Settlement {
        if let Some(record) = self.records.get_mut(&id) {
            record.look_first = true;
        }
        self.try_again(id, sent, now);
        Settlement::default()
    }

    /// A try failed in passing: once more after a pause, unless it has become too old for an upstream that is there.
    fn retry(&mut self, id: RecordId, sent: Sent, retry: Retry, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        let perhaps = retry.applied == Applied::Perhaps;
        match sent.call {
            Call::Create => record.ambiguous |= perhaps,
            // A blind repeat is good enough where nobody else writes: the count in it is absolute.
            Call::Patch if self.annotation.is_some() && perhaps => {
                record.ambiguous = true;
                record.look_first = true;
            }
            Call::Patch | Call::Read => {}
        }
        let answers = matches!(retry.fault, Fault::Overloaded | Fault::ServerError);
        // The time that a record waited for its budget is not the upstream's doing.
        let since = (*record.failing_since.get_or_insert(now.mono)).max(record.newest);
        if answers && since.after(self.settings.max_age) <= now.mono {
            return self.give_up_on(id, sent, now);
        }
        self.back_off(id, sent, Some(retry), now);
        Settlement::default()
    }

    /// The record's name is taken: by the record itself, or by a stranger.
    fn settle_read(&mut self, id: RecordId, sent: Sent, found: &Event, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        record.look_first = false;
        let found_count = count(sent.group, found);
        if !identity::is_same_record(&spelled(sent.group, &record.event, now), found, record.varies, now) {
            // A stranger has the name: ours gets another one.
            // Not the plain time: two records of one object that are renamed in one instant must not meet.
            let wall = now.wall.wrapping_add(i64::from(self.jitter.u32(1..)));
            let name = record_name(&record.event.involved_object.name, Now { wall, ..now });
            record.event.metadata.name = name;
            record.ambiguous = false;
            record.stored = false;
            record.base.gone();
            self.try_again(id, sent, now);
            self.hold_until_kept(id);
            return Settlement::default();
        }
        if let Some(annotation) = record.writer.clone().or_else(|| self.annotation.clone()) {
            return self.settle_tally(id, sent, found, &annotation, now);
        }
        if record.ambiguous && found_count >= sent.count {
            // Our own create, whose answer was lost.
            return self.hold(id, sent, found, found_count.saturating_sub(sent.count), now);
        }
        // Ours, with an older count; or the same event from before this process: its occurrences come on top.
        let moved = if record.ambiguous { 0 } else { found_count };
        record.event.count = record.event.count.saturating_add(moved);
        adopt(record, found, sent.group);
        record.base.follow(found, None);
        let feedback = Some(feedback(id, record, found, moved));
        self.try_again(id, sent, now);
        Settlement { feedback, ..Settlement::default() }
    }

    /// The record as it stands, after a write whose fate is unknown, or somebody else's: our own tally on it tells what of ours
    /// it holds already, and the rest comes on top of whatever others have counted.
    fn settle_tally(&mut self, id: RecordId, sent: Sent, found: &Event, annotation: &SmolStr, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        let own = tally(found, annotation);
        let found_count = count(sent.group, found);
        let arrived = own.saturating_sub(record.base.tally);
        // What the count is if nobody else has moved it. Without a tally it holds everything that was acknowledged: it is as
        // we left it, or somebody has created it again with what we both knew.
        let held = if own == 0 { record.base.tally } else { own };
        let missing = record.attempt.tally.saturating_sub(held);
        let expected = if found.metadata.resource_version == record.base.version {
            found_count
        } else {
            record.attempt.count.saturating_sub_unsigned(missing)
        };
        let moved = found_count.saturating_sub(expected);
        let mut rest = sent.occurrences;
        let written = rest.take_first(u64::from(arrived));
        if rest.total() == 0 {
            return self.hold(id, Sent { occurrences: written, ..sent }, found, moved, now);
        }
        record.event.count = record.event.count.saturating_add(moved);
        adopt(record, found, sent.group);
        record.ambiguous = false;
        record.refusal = None;
        record.base.follow(found, Some(annotation));
        let feedback = Some(feedback(id, record, found, moved));
        self.try_again(id, Sent { occurrences: rest, ..sent }, now);
        Settlement { written, feedback, ..Settlement::default() }
    }

    /// Reading is refused. Without the right to read, a patch is repeated blindly, as client-go does; a taken name is lost.
    fn refuse_read(&mut self, id: RecordId, sent: Sent, refusal: &Refusal, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        if let Some(earlier) = record.refusal.take() {
            return self.refuse(id, sent, &earlier, now);
        }
        if !record.stored {
            return self.refuse(id, sent, refusal, now);
        }
        record.look_first = false;
        record.base.version = SmolStr::default();
        self.try_again(id, sent, now);
        Settlement::default()
    }

    /// The upstream holds the record as `stored`; its count is by `moved` ahead of ours.
    fn hold(&mut self, id: RecordId, sent: Sent, stored: &Event, moved: i32, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        record.event.count = record.event.count.saturating_add(moved);
        adopt(record, stored, sent.group);
        let is_switched = record.writer.take().is_some();
        if is_switched {
            // Whatever the process before us has sent was for an older version: from here on we count under our own name.
            record.base = Base::default();
        }
        record.base.follow(stored, self.annotation.as_ref());
        record.paid = false;
        record.ambiguous = false;
        record.refusal = None;
        record.tries = 0;
        record.failing_since = None;
        let feedback = Some(feedback(id, record, stored, moved));
        let owes = record.pending.total() > 0;
        match (owes, record.next_write <= now.mono || self.draining) {
            (true, true) => self.enqueue(id, now),
            (true, false) => self.set_record_timer(id),
            (false, true) => self.remove(id, now),
            (false, false) => {
                record.phase = Phase::Settled;
                self.set_record_timer(id);
            }
        }
        if is_switched && owes {
            // What is kept still says that this is counted under the earlier name.
            self.hold_until_kept(id);
        }
        let mut settlement = Settlement { written: sent.occurrences, feedback, ..Settlement::default() };
        self.tickets.resolve(id, || Fate::Written(Box::new(stored.clone())), &mut settlement);
        settlement
    }

    /// Sends the record again at once, in another way; the write has paid already.
    pub(super) fn try_again(&mut self, id: RecordId, sent: Sent, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        if record.tries >= IMMEDIATE_TRIES {
            self.back_off(id, sent, None, now);
            return;
        }
        record.tries += 1;
        record.pending.merge(sent.occurrences);
        self.enqueue(id, now);
    }

    /// Sends the record again after a pause.
    fn back_off(&mut self, id: RecordId, sent: Sent, retry: Option<Retry>, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        record.pending.merge(sent.occurrences);
        record.tries = record.tries.saturating_add(1);
        let pause = Record::backoff(record.tries, self.jitter.f64(), &self.settings);
        let asked = retry.and_then(|retry| retry.after).unwrap_or_default();
        record.phase = Phase::Backoff(now.mono.after(pause.max(asked)));
        // One may be set for the end of the coalescing interval, which a drain does not wait for.
        record.timer_set = false;
        self.set_record_timer(id);
    }

    /// Refused for good, unless it can be mended: what was sent is lost, what has come since may try on its own.
    fn refuse(&mut self, id: RecordId, sent: Sent, refusal: &Refusal, now: Now) -> Settlement {
        if let Some(mended) = self.mend(id, sent, refusal, now) {
            return mended;
        }
        self.lose(id, sent, LostReason::Refused(refusal.reason), refusal, now)
    }

    /// The upstream answers, but not with what was asked, for longer than anybody wants to know of the occurrences.
    fn give_up_on(&mut self, id: RecordId, sent: Sent, now: Now) -> Settlement {
        let status = Box::new(Status::new(504, "Timeout", "the upstream has put the event off for too long"));
        self.lose(id, sent, LostReason::Expired, &Refusal { reason: RefusalReason::Other, status }, now)
    }

    fn lose(&mut self, id: RecordId, sent: Sent, reason: LostReason, refusal: &Refusal, now: Now) -> Settlement {
        let Some(record) = self.records.get_mut(&id) else { return Settlement::default() };
        let mut lost = sent.occurrences;
        if record.is_digest {
            lost.merge(record.pending.take());
        }
        record.look_first = false;
        record.ambiguous = false;
        record.refusal = None;
        record.paid = false;
        record.tries = 0;
        record.failing_since = None;
        let lost_count = i32::try_from(lost.total()).unwrap_or(i32::MAX);
        let left = i32::try_from(record.pending.total()).unwrap_or(i32::MAX);
        let count = if record.stored { record.event.count.saturating_sub(lost_count) } else { left };
        let settled = if record.stored || left > 0 { Settled::CountReset(count) } else { Settled::Forgotten };
        let feedback = Some(Feedback { source: record.source, key: record.key, record: id, settled });
        record.event.count = count;
        if left > 0 {
            self.set_record_timer(id);
        } else {
            let (account, is_digest) = (record.account, record.is_digest);
            self.remove(id, now);
            if is_digest && let Some(account) = self.accounts.peek_mut(&account.0) {
                self.bytes -= account.digest.take().map_or(0, |digest| digest.size());
            }
        }
        let mut settlement = Settlement { lost: Some((reason, lost)), feedback, ..Settlement::default() };
        self.tickets.resolve(id, || Fate::Refused(refusal.clone()), &mut settlement);
        settlement
    }
}

/// What the upstream alone decides becomes the record's own.
fn adopt(record: &mut Record, stored: &Event, group: ApiGroup) {
    record.event.metadata.name = stored.metadata.name.clone();
    if group == ApiGroup::Core {
        record.event.first_timestamp = stored.first_timestamp;
    }
    record.stored = true;
}

fn feedback(id: RecordId, record: &Record, stored: &Event, count_moved: i32) -> Feedback {
    let settled = Settled::Stored {
        name: stored.metadata.name.clone(),
        resource_version: stored.metadata.resource_version.clone(),
        first_timestamp: record.event.first_timestamp,
        count_moved,
        // The correlator knows of our own tally only.
        tally: if record.writer.is_none() { record.base.tally } else { 0 },
    };
    Feedback { source: record.source, key: record.key, record: id, settled }
}
