//! Persistence across restarts: changes of all shards for the spool, and records of an earlier process.

use parking_lot::Mutex;

use super::storms::HOME;
use super::{Shard, Shards};
use crate::clock::Now;
use crate::correlator::{Correlator, Fold, Policy, Rate, RecordId};
use crate::outbox::{Changes, Entry, Kind};

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
            self.put_line(self.secret.source(&entry.event), &entry.event.metadata, line);
        }
        let settings = policy.select(&entry.event);
        let record = if entry.kind.folds() { self.outbox.digest_id() } else { RecordId(self.next_record) };
        self.next_record += 1;
        self.explain.restore(record, &entry, now);
        // After a client's DELETE without an answer, the next occurrence begins a new record.
        if entry.may_be_deleted {
            self.explain.ended(self.secret.subject(&entry.event), record);
        }
        if !entry.kind.folds() && !entry.may_be_deleted {
            let (secret, cache_size) = (self.secret, policy.lru_cache_size(entry.event.component()));
            let correlator = self.sources.get_or_insert_mut(entry.source, || Correlator::new(secret, cache_size));
            correlator.cache_size = cache_size;
            let before = correlator.tracked_keys();
            correlator.remember(entry.key, record, &entry.event, entry.stored);
            self.tracked_keys.replace(before, correlator.tracked_keys());
            self.trim();
        }
        let rate = Rate { qps: settings.qps, burst: settings.burst_size };
        self.outbox.restore(record, entry, rate, settings.messages, now);
    }
}

impl Shards {
    /// Notes changes from now on, for [`take_changes`](Self::take_changes).
    pub fn keep_journal(&self) {
        self.each(|shard, _| shard.keep_journal());
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

    /// Lets the records continue that waited for a commit.
    pub fn resume_held(&self, held: &[Vec<RecordId>]) {
        for (index, held) in held.iter().enumerate().filter(|(_, held)| !held.is_empty()) {
            self.with(index, |shard, now| shard.changes_kept(held, now));
            self.wake();
        }
    }

    /// Resumes held records unpersisted, while nothing can be persisted.
    pub fn go_on_unkept(&self) {
        self.each(|shard, now| shard.outbox.go_on_unkept(now));
        self.wake();
    }

    /// Marks all records as changed, because changes could not be persisted.
    pub fn change_all(&self) {
        self.each(|shard, _| shard.outbox.change_all());
    }

    /// Restores a record of an earlier process.
    pub fn restore(&self, entry: Entry) {
        let policy = self.policy();
        self.with(self.shard_for(&entry.event, entry.source), |shard, now| shard.restore(entry, now, &policy));
        self.wake();
    }

    /// Returns an entry under the keys of this process. A record with a repaired message gets that message's keys. The
    /// budget of a digest or storm record begins again.
    #[must_use]
    pub fn rekeyed(&self, mut entry: Entry) -> Entry {
        let (secret, policy) = (self.0.secret, self.policy());
        entry.source = secret.source(&entry.event);
        if !entry.kind.folds() {
            let fold = if entry.kind == Kind::Combined { Fold::Combined } else { Fold::Counted };
            let (key, spam) = secret.of_record(&entry.event, fold, policy.select(&entry.event));
            entry.key = key;
            entry.budget = entry.budget.map(|_| spam);
        }
        entry
    }

    /// Closes all shards without giving up unsettled records: they are persisted for the next process. Later occurrences
    /// are refused.
    pub fn close(&self) {
        for shard in &self.0.shards {
            shard.lock().closed = true;
        }
        self.0.waiters.lock().senders.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::{Key, KeySecret};
    use crate::event::{Event, RareMeta};
    use crate::outbox::{Answer, Applied, DIGEST_REASON, Fault, Occurrences, Request, Retry, STORM_MARK, WrittenAs};
    use crate::shard::{self, Lookup};

    fn stored(version: &str, count: i32) -> Event {
        let mut event = Event { count, reason: "BackOff".into(), ..Event::default() };
        event.metadata.name = "a".into();
        event.metadata.resource_version = version.into();
        event
    }

    /// Fault: the write counted twice. A process with plain writes had sent it, and the next one, with exact writes, took
    /// its effect for another writer's.
    #[test]
    fn a_plain_write_in_doubt_counts_once_in_an_exact_process() {
        let (policy, at) = (Policy::default(), |seconds: i64| Now::at(seconds * 1_000_000_000));
        let shard = || Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        let mut plain = shard();
        plain.keep_journal();
        plain.accept(stored("", 1), 1, at(1), &policy).unwrap();
        let write = plain.next_write(at(1)).unwrap();
        plain.settle(write.record, Answer::Stored(Box::new(stored("5", 1))), at(1));
        plain.accept(stored("", 1), 2, at(1), &policy).unwrap();
        assert!(matches!(plain.next_write(at(3)).unwrap().request, Request::Patch { .. }));
        let (_, entry) = plain.take_changes().records.pop().unwrap();

        let mut exact = shard();
        exact.identify("me");
        // Another record has shown that tags are kept.
        let mut other = Event { reason: "Other".into(), ..stored("", 1) };
        other.metadata.name = "b".into();
        exact.accept(other, 1, at(4), &policy).unwrap();
        exact.write_all(at(4));
        exact.restore(*entry.unwrap(), at(5), &policy);
        // The plain write was executed.
        let mut held = stored("6", 3);
        let conflict = Answer::Retry(Retry::new(Fault::Conflict, Applied::No));
        for second in 5..15 {
            while let Some(write) = exact.next_write(at(second)) {
                let answer = match write.request {
                    Request::Patch { claim: Some(claim), .. } if claim.resource_version != "6" => conflict.clone(),
                    Request::Patch { patch, .. } => {
                        held.count = patch.count;
                        Answer::Stored(Box::new(held.clone()))
                    }
                    _ => Answer::Stored(Box::new(held.clone())),
                };
                exact.settle(write.record, answer, at(second));
            }
        }
        assert_eq!((held.count, exact.owes()), (3, false));
        assert_eq!((exact.balance().ledger.total_written(), exact.balance().is_exact()), (3, true));
    }

    /// Fault: a client's DELETE did not find it, and its next write created the deleted event again.
    #[test]
    fn a_restored_storm_record_or_digest_is_found_by_its_name() {
        let count = NonZeroUsize::new(8).unwrap();
        let owing = |kind, source: u128, secret| {
            let clock = Clock::manual(1_000_000_000);
            let shards = Shards::new(count, &shard::Settings::default(), Policy::default(), clock, secret, 1);
            let mut event = stored("5", 3);
            if kind == Kind::Storm {
                let annotations = [(STORM_MARK.into(), "Pod".into())].into();
                event.metadata.rare = Some(Box::new(RareMeta { annotations, ..RareMeta::default() }));
            } else {
                event.reason = DIGEST_REASON.into();
            }
            let (source, owed) = (Key(source << 64), Occurrences::of(WrittenAs::Created, 1));
            let (stored, tag, settled) = (true, "me.1".into(), 2);
            (shards, Entry { source, kind, event, stored, tag, settled, owed, ..Entry::default() })
        };
        for source in 0..8 {
            let (shards, entry) = owing(Kind::Storm, source, KeySecret(1, 2));
            let event = entry.event.clone();
            shards.restore(entry);
            assert!(shards.pause(&event, "a", Lookup::Name).is_some(), "{source}");
            // The spool has the keys of another secret.
            let (shards, entry) = owing(Kind::Digest, source, KeySecret(3, 4));
            let event = entry.event.clone();
            shards.restore(shards.rekeyed(entry));
            assert!(shards.pause(&event, "a", Lookup::Name).is_some(), "{source}");
        }
    }

    /// Fault: this was told by the message, although a rule may have another prefix now, and an event of a client may
    /// begin with it.
    #[test]
    fn an_entry_of_other_keys_is_of_a_combined_record_by_its_kind() {
        let policy = Policy::default();
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        shard.keep_journal();
        shard.accept(stored("", 1), 1, Now::at(1), &policy).unwrap();
        let (_, entry) = shard.take_changes().records.pop().unwrap();
        let entry = *entry.unwrap();
        let (one, settings, clock) = (NonZeroUsize::MIN, shard::Settings::default(), Clock::manual(1));
        let shards = Shards::new(one, &settings, policy, clock, KeySecret(3, 4), 1);
        let key = |kind, message: &str| {
            let event = Event { message: message.into(), ..stored("", 1) };
            shards.rekeyed(Entry { kind, event, ..entry.clone() }).key
        };
        let prefix = "(combined from similar events): ";
        assert_eq!(key(Kind::Combined, "a"), key(Kind::Combined, prefix));
        assert_ne!(key(Kind::Plain, prefix), key(Kind::Combined, prefix));
    }
}
