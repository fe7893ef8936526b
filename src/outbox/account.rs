//! One budget: its tokens, and the records that wait to pay with them.

use std::collections::BTreeSet;

use super::digest::Digest;
use crate::clock::Mono;
use crate::correlator::{Key, Rate, RecordId, TokenBucket};

/// Which budget pays for a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AccountId {
    /// Of a source whose writes are paid already (`suppression: drop`) or free (no correlation).
    Prepaid(Key),
    /// Of a source's spam key.
    Budget(Key, Key),
}

/// Warning before Normal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Warning,
    Normal,
}

impl Class {
    pub(super) const fn of(is_warning: bool) -> Self {
        if is_warning { Self::Warning } else { Self::Normal }
    }
}

/// Place of a record among those of its account: Warning first, then the one that has waited longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) class: Class,
    pub(super) since: Mono,
    pub(super) record: RecordId,
}

/// A budget and its queue.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) source: Key,
    /// Tokens; `None` for a prepaid account.
    bucket: Option<(TokenBucket, Rate)>,
    /// Records that may be written at once.
    // LIMIT: here and in `owed` together as many as the outbox has records, `max_records`.
    paid: BTreeSet<Order>,
    /// Records that need a token.
    owed: BTreeSet<Order>,
    /// How many of `owed` were never written and can fold.
    pub(super) foldable: usize,
    /// Records in the outbox that belong here, whatever their phase.
    pub(super) members: usize,
    /// In which ready queue the account stands.
    pub(super) filed: Option<Class>,
    /// The account's timer.
    pub(super) timer: Option<Mono>,
    /// The digest, once something has folded.
    pub(super) digest: Option<Box<Digest>>,
}

impl Account {
    pub(super) fn new(id: AccountId, rate: Option<Rate>) -> Self {
        let (AccountId::Prepaid(source) | AccountId::Budget(source, _)) = id;
        Self {
            source,
            bucket: rate.map(|rate| (TokenBucket::default(), rate)),
            paid: BTreeSet::new(),
            owed: BTreeSet::new(),
            foldable: 0,
            members: 0,
            filed: None,
            timer: None,
            digest: None,
        }
    }

    /// A reload may have changed how the budget fills.
    pub(super) fn set_rate(&mut self, new: Rate) {
        if let Some((_, rate)) = &mut self.bucket {
            *rate = new;
        }
    }

    pub(super) fn insert(&mut self, order: Order, paid: bool) {
        if paid {
            self.paid.insert(order)
        } else {
            self.owed.insert(order)
        };
    }

    pub(super) fn remove(&mut self, order: Order) {
        if !self.paid.remove(&order) {
            self.owed.remove(&order);
        }
    }

    pub(super) fn owed(&self) -> impl Iterator<Item = Order> + '_ {
        self.owed.iter().copied()
    }

    /// Whole tokens at `now`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "floored, non-negative, at most the burst"
    )]
    pub(super) fn tokens(&self, now: Mono) -> usize {
        self.bucket.as_ref().map_or(0, |(bucket, rate)| bucket.tokens(*rate, now).max(0.0) as usize)
    }

    /// The best class that could be written at `now`.
    pub(super) fn ready(&self, now: Mono) -> Option<Class> {
        let paid = self.paid.first().map(|order| order.class);
        let owed = self.owed.first().filter(|_| self.next_token(now) == Some(now)).map(|order| order.class);
        match (paid, owed) {
            (Some(paid), Some(owed)) => Some(paid.min(owed)),
            (paid, owed) => paid.or(owed),
        }
    }

    /// Takes the record to write at `now`, and its token if it has to pay.
    pub(super) fn pop(&mut self, now: Mono) -> Option<RecordId> {
        let paid = self.paid.first().copied();
        let owed = self.owed.first().copied();
        let pay = match (paid, owed) {
            (Some(paid), Some(owed)) => owed < paid,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if pay
            && let (Some(order), Some((bucket, rate))) = (owed, &mut self.bucket)
            && bucket.take(*rate, now)
        {
            self.owed.remove(&order);
            return Some(order.record);
        }
        self.paid.pop_first().map(|order| order.record)
    }

    /// When the next token comes: `now` if there is one, `None` if never.
    pub(super) fn next_token(&self, now: Mono) -> Option<Mono> {
        self.bucket.as_ref().and_then(|(bucket, rate)| bucket.next_token(*rate, now))
    }

    pub(super) fn waits_for_token(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Nothing is owed here and the bucket is as good as new: the account can be forgotten. Otherwise when it will be.
    pub(super) fn idle_at(&self, now: Mono) -> Option<Mono> {
        match &self.bucket {
            None => Some(now),
            Some((bucket, rate)) => bucket.full_at(*rate, now),
        }
    }
}
