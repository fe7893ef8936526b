//! Persistence across restarts: changes of all shards for the spool, and records of an earlier process.

use parking_lot::Mutex;

use super::storms::HOME;
use super::{Shard, Shards};
use crate::clock::Now;
use crate::correlator::{Correlator, Policy, Rate, RecordId};
use crate::outbox::{Changes, Entry};

impl Shard {
    /// Notes changes from now on; see [`Outbox::keep_journal`](crate::outbox::Outbox::keep_journal).
    pub fn keep_journal(&mut self) {
        self.outbox.keep_journal();
    }

    /// Takes the noted changes.
    pub fn take_changes(&mut self) -> Changes {
        self.outbox.take_changes()
    }

    /// Confirms that taken changes are persisted.
    pub fn changes_kept(&mut self, held: &[RecordId], now: Now) {
        self.outbox.changes_kept(held, now);
    }

    /// Restores a record of an earlier process: its write is owed, and repeats of its event count on it. The ledger
    /// counts its occurrences as received.
    pub fn restore(&mut self, entry: Entry, now: Now, policy: &Policy) {
        self.ledger.receive(entry.occurrences().total());
        for line in entry.lines.iter().chain(&entry.later_lines) {
            self.put_line(&entry.event.metadata.namespace, line);
        }
        let settings = policy.select(&entry.event);
        let record = if entry.kind.folds() { self.outbox.digest_id() } else { RecordId(self.next_record) };
        self.next_record += 1;
        self.explain.restore((record, entry.kind), &entry.event, entry.occurrences().total(), now);
        // After a client's DELETE without an answer, the next occurrence begins a new record.
        if !entry.kind.folds() && !entry.may_be_deleted {
            let secret = self.secret;
            let correlator = self.sources.get_or_insert_mut(entry.source, || Correlator::new(secret));
            let before = correlator.tracked_keys();
            correlator.remember(entry.key, record, &entry.event, entry.stored, settings);
            self.tracked_keys.replace(before, correlator.tracked_keys());
            self.trim();
        }
        let rate = Rate { qps: settings.qps, burst: settings.burst_size };
        self.outbox.restore(record, entry, rate, now);
    }

    /// Closes the shard without giving up unsettled records: they are persisted for the next process. Later occurrences
    /// are refused.
    pub fn close(&mut self) {
        self.closed = true;
    }
}

impl Shards {
    /// Notes changes from now on, for [`take_changes`](Self::take_changes).
    pub fn keep_journal(&self) {
        for shard in &self.0.shards {
            shard.lock().keep_journal();
        }
    }

    /// Waits until there are changes to take.
    pub async fn changed(&self) {
        while !self.0.shards.iter().any(|shard| shard.lock().outbox.has_changes()) {
            self.0.changed.notified().await;
        }
    }

    /// Takes the changes of all shards at one instant, because a record may leave one shard and fold in another.
    #[must_use]
    pub fn take_changes(&self) -> Vec<Changes> {
        let mut locked: Vec<_> = self.0.shards.iter().skip(HOME + 1).map(Mutex::lock).collect();
        locked.insert(HOME, self.0.shards[HOME].lock());
        locked.iter_mut().map(|shard| shard.take_changes()).collect()
    }

    /// Reports to each shard whether its changes are persisted.
    pub fn settle_changes(&self, changes: &[Changes], kept: bool) {
        for (index, changes) in changes.iter().enumerate() {
            self.with(index, |shard, now| {
                if kept {
                    shard.changes_kept(&changes.held, now);
                } else {
                    shard.outbox.changes_not_kept(changes, now);
                }
            });
        }
        if changes.iter().any(|changes| !changes.held.is_empty()) {
            self.wake();
        }
    }

    /// Resumes held records unpersisted, while nothing can be persisted.
    pub fn go_on_unkept(&self) {
        self.each(|shard, now| shard.outbox.go_on_unkept(now));
        self.wake();
    }

    /// Marks all records as changed.
    pub fn change_all(&self) {
        self.each(|shard, _| shard.outbox.change_all());
    }

    /// Restores a record of an earlier process.
    pub fn restore(&self, entry: Entry) {
        let policy = self.policy();
        let shard = self.shard_of_source(entry.source);
        self.with(shard, |shard, now| shard.restore(entry, now, &policy));
        self.wake();
    }

    /// Returns an entry under the keys of this process. A record with a repaired message gets that message's keys. The
    /// keys of a digest or storm record are its budget's, which begins again.
    #[must_use]
    pub fn rekeyed(&self, mut entry: Entry) -> Entry {
        if !entry.kind.folds() {
            let (secret, policy) = (self.0.secret, self.policy());
            let (key, spam) = secret.of_record(&entry.event, policy.select(&entry.event));
            (entry.source, entry.key) = (secret.source(&entry.event), key);
            entry.budget = entry.budget.map(|_| spam);
        }
        entry
    }

    /// Closes all shards without giving up unsettled records.
    pub fn close(&self) {
        for shard in &self.0.shards {
            shard.lock().close();
        }
        self.0.waiters.lock().senders.clear();
    }
}
