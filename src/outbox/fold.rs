//! Folding: never-written records that their budget cannot pay in time become one digest record.

use std::time::Duration;

use super::account::{AccountId, Order};
use super::digest::Digest;
use super::record::{Attempt, Occurrences, Phase, Record};
use super::{Forgotten, Identity, Outbox, WrittenAs};
use crate::clock::{Mono, Now};
use crate::correlator::{Key, RecordId};

/// Digests draw their record numbers from the upper half of the range, correlators from the lower.
pub(super) const FIRST_DIGEST: u64 = 1 << 63;

impl super::account::Account {
    /// When more never-written records will have reached `max_age` than there are tokens for, should nothing else happen: the
    /// others are written as they are when their turn comes, however long the upstream is down.
    pub(super) fn folds_at(&self, max_age: Duration, now: Mono) -> Option<Mono> {
        let tokens = self.tokens(now);
        if self.foldable_len() <= tokens {
            return None;
        }
        self.foldable_by_age().nth(tokens).map(|order| order.since.after(max_age))
    }
}

impl Outbox {
    /// Too many never-written records wait for one budget: all that its tokens of this moment cannot pay fold.
    pub(super) fn fold_excess(&mut self, account: AccountId, now: Now) {
        let tokens = self.accounts.peek(account.0).map_or(0, |account| account.tokens(now.mono));
        let excess: Vec<Order> = self.foldable(account).skip(tokens).collect();
        self.fold(account, &excess, now);
    }

    /// Never-written records that have waited for their maximum age fold.
    pub(super) fn fold_aged(&mut self, account: AccountId, now: Now) {
        let max_age = self.settings.digest_max_age;
        let aged: Vec<Order> = self.foldable(account).filter(|order| order.since.after(max_age) <= now.mono).collect();
        // With a token at hand the oldest is written as it is.
        let tokens = self.accounts.peek(account.0).map_or(0, |account| account.tokens(now.mono));
        if aged.len() > tokens {
            self.fold(account, &aged, now);
        }
    }

    /// Before the process ends: every budget's never-written records become one write, so that none is lost.
    ///
    /// The remaining writes are made without waiting for tokens or intervals, and whatever is offered from now on too.
    pub fn drain(&mut self, now: Now) {
        self.draining = true;
        let accounts: Vec<AccountId> = self.accounts.iter().map(|(id, _)| AccountId(id)).collect();
        for account in accounts {
            let foldable: Vec<Order> = self.foldable(account).collect();
            if foldable.len() > 1 {
                self.fold(account, &foldable, now);
            }
        }
        let waiting: Vec<RecordId> = self
            .records
            .iter()
            .filter(|(_, record)| matches!(record.phase, Phase::Cooling | Phase::Queued(_)))
            .map(|(id, _)| id)
            .collect();
        for id in waiting {
            self.unqueue(id);
            self.enqueue(id, now);
        }
    }

    /// Gives up what is left, at the end of a drain. Returns the occurrences that are lost with it.
    pub fn abandon(&mut self) -> Occurrences {
        let mut lost = Occurrences::default();
        for record in self.records.values() {
            lost.merge(record.waiting());
        }
        let seed = self.jitter.u64(..);
        *self = self.another(seed);
        lost
    }

    fn foldable(&self, account: AccountId) -> impl Iterator<Item = Order> + '_ {
        self.accounts.peek(account.0).into_iter().flat_map(super::account::Account::foldable)
    }

    /// Takes a record out of its account's queue.
    pub(super) fn unqueue(&mut self, id: RecordId) {
        let Some(record) = self.records.get_mut(id) else { return };
        let Phase::Queued(order) = record.phase else { return };
        record.phase = Phase::Cooling;
        if let Some(account) = self.accounts.peek_mut(record.account.0) {
            account.remove(order);
        }
    }

    fn fold(&mut self, account_id: AccountId, orders: &[Order], now: Now) {
        let mut occurrences = 0;
        let mut since = now.mono;
        for order in orders {
            self.unqueue(order.record);
            let Some(record) = self.take(order.record) else { continue };
            self.note(order.record);
            self.bytes -= record.size;
            since = since.min(record.since);
            occurrences += record.pending.total();
            self.forgotten.push(Forgotten { source: record.source, key: record.key, record: order.record });
            let Some(account) = self.accounts.peek_mut(account_id.0) else { continue };
            account.members -= 1;
            let before = account.digest.as_ref().map_or(0, |digest| digest.size());
            let digest = account.digest.get_or_insert_with(|| {
                self.next_digest += 1;
                Box::new(Digest::new(RecordId(FIRST_DIGEST + self.next_digest), &record.event, now))
            });
            digest.fold(&record.event, record.pending, &self.settings);
            self.bytes.replace(before, digest.size());
        }
        if occurrences > 0 {
            self.owe_digest(account_id, occurrences, since, now);
        }
    }

    /// Lets the digest's record carry what has folded since.
    fn owe_digest(&mut self, account_id: AccountId, occurrences: u64, since: Mono, now: Now) {
        let Some(account) = self.accounts.peek_mut(account_id.0) else { return };
        let Some(digest) = account.digest.as_mut() else { return };
        let (id, mut event) = (digest.record, digest.event.clone());
        if let Some(record) = self.records.get_mut(id) {
            let before = record.size;
            record.absorb(&mut event, Identity::Unknown, || true);
            self.bytes.replace(before, record.size);
        } else {
            account.members += 1;
            let size = event.approximate_size();
            self.bytes += size;
            let source = account.source;
            let record = Record {
                source,
                // A digest has no observation: nobody looks under this key.
                key: Key(0),
                account: account_id,
                event,
                rest: None,
                size,
                stored: digest.stored,
                base: digest.base.clone(),
                attempt: Attempt::default(),
                pending: Occurrences::default(),
                since,
                newest: now.mono,
                next_write: now.mono,
                phase: Phase::Settled,
                paid: false,
                ambiguous: false,
                look_first: false,
                refusal: None,
                tries: 0,
                failing_since: None,
                timer_set: false,
                is_digest: true,
                varies: true,
                replaced: false,
                writer: None,
            };
            self.put(id, record);
        }
        self.hold_until_kept(id);
        // It takes the place of the longest-waiting record that it stands for.
        self.owe(id, Occurrences::of(WrittenAs::Digest, occurrences), since, now);
    }
}
