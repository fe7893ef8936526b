//! Deletions and replacements from outside: a record is kept back while the upstream is asked, then forgotten, or goes on from
//! what the upstream holds now. So a delete is never overwritten by a write that was already owed.

use super::fold::FIRST_DIGEST;
use super::record::{Occurrences, Phase};
use super::{Outbox, Ticket};
use crate::clock::Now;
use crate::correlator::RecordId;
use crate::event::Event;

impl Outbox {
    /// Lets no write of this record go until [`resume`](Self::resume) or [`forget`](Self::forget); one that is on its way
    /// stays so. Pauses of one record are counted.
    pub fn pause(&mut self, id: RecordId) {
        *self.paused.entry(id).or_insert(0) += 1;
        self.unqueue(id);
    }

    /// Whether a request of this record is on its way.
    #[must_use]
    pub fn is_in_flight(&self, id: RecordId) -> bool {
        self.records.get(&id).is_some_and(|record| matches!(record.phase, Phase::InFlight(_)))
    }

    /// Ends a pause; what was kept back is owed again.
    pub fn resume(&mut self, id: RecordId, now: Now) {
        if self.end_pause(id) {
            return;
        }
        let draining = self.draining;
        let Some(record) = self.records.get(&id) else { return };
        let (account, is_digest) = (record.account, record.is_digest);
        if !matches!(record.phase, Phase::Cooling) {
            // It is on its way, or waits for its next try.
        } else if record.pending.total() == 0 {
            self.remove(id, now);
        } else if draining || record.next_write <= now.mono {
            if is_digest && self.journal.on {
                self.end_hold(account, now.mono);
            }
            self.enqueue(id, now);
        } else {
            self.set_record_timer(id);
        }
        if is_digest {
            // What had aged meanwhile did not fold.
            self.set_account_timer(account, now.mono);
        }
    }

    /// Ends a pause by letting the record go with all that it owes; an answer that still comes means nothing any more.
    /// Returns the occurrences that are given up, and who waited for them.
    pub fn forget(&mut self, id: RecordId, now: Now) -> (Occurrences, Vec<Ticket>) {
        self.end_pause(id);
        self.unqueue(id);
        let lost = self.records.get(&id).map(|record| record.waiting()).unwrap_or_default();
        self.note(id);
        self.remove(id, now);
        if id.0 >= FIRST_DIGEST {
            for (_, account) in self.accounts.iter_mut() {
                if account.digest.as_ref().is_some_and(|digest| digest.record == id) {
                    self.bytes -= account.digest.take().map_or(0, |digest| digest.size());
                }
            }
        }
        (lost, self.tickets.drop_record(id))
    }

    /// Somebody replaced the record upstream by `stored`: what waits comes on top of it. Returns by how much its count moved;
    /// `None` when nothing of it is here.
    pub fn rebase(&mut self, id: RecordId, stored: &Event) -> Option<i32> {
        self.note(id);
        let record = self.records.get_mut(&id)?;
        let waiting = i32::try_from(record.waiting().total()).unwrap_or(i32::MAX);
        let count = self.settings.group.count(stored).saturating_add(waiting);
        let moved = count.saturating_sub(record.event.count);
        let last_timestamp = record.event.last_timestamp.max(stored.last_timestamp);
        record.event = Event { count, last_timestamp, type_meta: None, ..stored.clone() };
        record.stored = true;
        record.base.follow(stored, record.writer.as_ref().or(self.annotation.as_ref()));
        record.ambiguous = false;
        record.look_first = false;
        record.refusal = None;
        let size = record.event.approximate_size();
        self.bytes.replace(record.size, size);
        record.size = size;
        Some(moved)
    }

    /// How many occurrences the record that is stored as `stored` tells of.
    #[must_use]
    pub fn count(&self, stored: &Event) -> i32 {
        self.settings.group.count(stored)
    }

    /// The digest of this name. Looks at every budget: only for the rare delete of a digest.
    #[must_use]
    pub fn digest(&self, namespace: &str, name: &str) -> Option<RecordId> {
        let digests = self.accounts.iter().filter_map(|(_, account)| account.digest.as_ref());
        let mut ids = digests.map(|digest| (digest.record, self.records.get(&digest.record), &digest.event));
        ids.find_map(|(id, record, event)| {
            let metadata = &record.map_or(event, |record| &record.event).metadata;
            (metadata.namespace == namespace && metadata.name == name).then_some(id)
        })
    }

    /// The name of a record that is here, and whether the upstream holds it.
    #[must_use]
    pub fn name(&self, id: RecordId) -> Option<(smol_str::SmolStr, bool)> {
        self.records.get(&id).map(|record| (record.event.metadata.name.clone(), record.stored))
    }

    /// Whether the record is still paused by somebody else.
    fn end_pause(&mut self, id: RecordId) -> bool {
        let Some(pauses) = self.paused.get_mut(&id) else { return false };
        *pauses -= 1;
        if *pauses == 0 {
            self.paused.remove(&id);
            return false;
        }
        true
    }
}
