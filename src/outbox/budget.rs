//! One budget: its tokens, and the records that wait for them.

use std::collections::BTreeSet;

use super::digest::Digest;
use super::ready::NORMAL_TURN;
use crate::clock::Mono;
use crate::correlator::{Key, Rate, RecordId, TokenBucket};

/// The key of a budget: one number for a source and its spam key, which keeps the many budgets and timers small. Both
/// are uniform secret hashes, and so is their mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct BudgetId(pub(super) Key);

/// Distinguishes the budgets of groups from others.
const GROUP: u128 = 0x5707_0000;

impl BudgetId {
    /// Returns the budget of a source whose writes are paid already (`suppression: drop`) or free (no correlation).
    pub(super) const fn prepaid(source: Key) -> Self {
        Self(Key(!source.0))
    }

    /// Returns the budget of a source's spam key.
    pub(super) const fn of_spam_key(source: Key, spam_key: Key) -> Self {
        Self(Key(source.0 ^ spam_key.0.rotate_left(64)))
    }

    /// Returns the budget of a group's storm record, for which the group's budget pays.
    pub(super) const fn of_group(group: Key) -> Self {
        Self(Key(group.0 ^ GROUP))
    }

    /// Returns the group that the id was made from.
    pub(super) const fn group(self) -> Key {
        Key(self.0.0 ^ GROUP)
    }

    /// Returns the spam key that the id was made from.
    pub(super) const fn spam_key(self, source: Key) -> Key {
        Key((self.0.0 ^ source.0).rotate_right(64))
    }
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

/// Priority of a record for the next token of its budget or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The digest or storm record: one write shows many.
    Digest,
    /// A record that the upstream has never shown.
    NeverShown,
    /// A record that the upstream shows with an older count, or one that needs no token.
    Shown,
}

/// Position of a record in its budget or group: by rank, then Warning first, then the longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) rank: Rank,
    pub(super) class: Class,
    pub(super) since: Mono,
    pub(super) record: RecordId,
}

impl Order {
    /// Returns the lower bound of the Normal records of a rank.
    const fn first_normal(rank: Rank) -> Self {
        Self { rank, class: Class::Normal, since: Mono(i64::MIN), record: RecordId(0) }
    }
}

/// A budget and its queue.
#[derive(Debug)]
pub(super) struct Budget {
    /// The ready queue that has the budget.
    pub(super) filed: Option<Class>,
    /// Warnings taken since the last Normal record that needed no token.
    warnings: u8,
    /// Whether a reload may have changed the rate: that of the next event applies since then.
    is_outdated: bool,
    /// Number of records in the outbox with this budget, in any phase.
    pub(super) members: u32,
    pub(super) source: Key,
    /// Tokens; `None` for a prepaid budget.
    bucket: Option<(TokenBucket, Rate)>,
    /// Its queue, `None` while empty: most budgets only wait to be full again.
    queue: Option<Box<Queue>>,
    pub(super) timer: Option<Mono>,
}

/// The records that wait in a budget, and its digest.
#[derive(Debug, Default)]
struct Queue {
    /// Records that may be written at once.
    // LIMIT: the three sets together have at most `max_records` records.
    paid: BTreeSet<Order>,
    /// Records that need a token.
    owed: BTreeSet<Order>,
    /// Records that need a token, were never written and can fold. They have a set of their own, so that finding them
    /// needs no access to the scattered records.
    foldable: BTreeSet<Order>,
    /// The digest, once a record was folded.
    digest: Option<Box<Digest>>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.paid.is_empty() && self.owed.is_empty() && self.foldable.is_empty() && self.digest.is_none()
    }
}

/// How a record waits in its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Can be written at once.
    Paid,
    /// Needs a token.
    Owed,
    /// Needs a token, and can fold instead.
    Foldable,
}

/// Merges two sorted sequences.
fn merged(one: impl Iterator<Item = Mono>, other: impl Iterator<Item = Mono>) -> impl Iterator<Item = Mono> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if second < first => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    })
}

impl Budget {
    /// Returns a budget of `source`, which is prepaid without a `rate`.
    pub(super) fn new(source: Key, rate: Option<Rate>) -> Self {
        Self {
            source,
            bucket: rate.map(|rate| (TokenBucket::default(), rate)),
            queue: None,
            members: 0,
            filed: None,
            warnings: 0,
            is_outdated: false,
            timer: None,
        }
    }

    /// Sets the rate, which a reload may have changed or which another rule has. The tokens stay.
    pub(super) fn set_rate(&mut self, new: Rate, now: Mono) {
        let is_counted = std::mem::take(&mut self.is_outdated);
        if let Some((bucket, rate)) = &mut self.bucket
            && *rate != new
        {
            if !is_counted {
                bucket.count(*rate, now);
            }
            *rate = new;
        }
    }

    /// Counts the tokens of a budget without records, because a reload may have changed its rate. Until its next event
    /// comes, it is removed as at the old rate.
    pub(super) fn outdate(&mut self, now: Mono) {
        if self.members == 0
            && !std::mem::replace(&mut self.is_outdated, true)
            && let Some((bucket, rate)) = &mut self.bucket
        {
            bucket.count(*rate, now);
        }
    }

    pub(super) fn fills_otherwise(&self, new: Rate) -> bool {
        self.bucket.as_ref().is_some_and(|(_, rate)| *rate != new)
    }

    pub(super) const fn is_prepaid(&self) -> bool {
        self.bucket.is_none()
    }

    pub(super) fn insert(&mut self, order: Order, place: Place) {
        let queue = self.queue.get_or_insert_default();
        match place {
            Place::Paid => queue.paid.insert(order),
            Place::Owed => queue.owed.insert(order),
            Place::Foldable => queue.foldable.insert(order),
        };
    }

    pub(super) fn remove(&mut self, order: Order) {
        if let Some(queue) = &mut self.queue
            && !queue.paid.remove(&order)
            && !queue.owed.remove(&order)
        {
            queue.foldable.remove(&order);
        }
        self.queue.take_if(|queue| queue.is_empty());
    }

    pub(super) fn digest(&self) -> Option<&Digest> {
        self.queue.as_ref()?.digest.as_deref()
    }

    pub(super) fn digest_mut(&mut self) -> Option<&mut Digest> {
        self.queue.as_mut()?.digest.as_deref_mut()
    }

    pub(super) fn digest_or(&mut self, make: impl FnOnce() -> Digest) -> &mut Digest {
        self.queue.get_or_insert_default().digest.get_or_insert_with(|| Box::new(make()))
    }

    pub(super) fn take_digest(&mut self) -> Option<Box<Digest>> {
        let digest = self.queue.as_mut()?.digest.take();
        self.queue.take_if(|queue| queue.is_empty());
        digest
    }

    pub(super) fn foldable_len(&self) -> usize {
        self.queue.as_ref().map_or(0, |queue| queue.foldable.len())
    }

    /// Returns the records that can fold, in queue order.
    pub(super) fn foldable(&self) -> impl Iterator<Item = Order> + '_ {
        self.queue.iter().flat_map(|queue| queue.foldable.iter().copied())
    }

    /// Returns the records that need a token.
    pub(super) fn owed(&self) -> impl Iterator<Item = Order> + '_ {
        self.queue.iter().flat_map(|queue| queue.owed.iter().chain(&queue.foldable).copied())
    }

    /// Returns since when the `place`-th oldest record that can fold has waited, counted from 0.
    pub(super) fn foldable_since(&self, place: usize) -> Option<Mono> {
        let foldable = self.queue.as_ref().map(|queue| &queue.foldable).filter(|foldable| place < foldable.len())?;
        let end = Order::first_normal(Rank::NeverShown);
        let [warning, normal] = [foldable.range(..end), foldable.range(end..)].map(|all| all.map(|order| order.since));
        merged(warning, normal).nth(place)
    }

    /// Returns the next record that can be written at once, and the next that needs a token.
    fn first(&self) -> (Option<Order>, Option<Order>) {
        let Some(queue) = &self.queue else { return (None, None) };
        let owed = [queue.owed.first(), queue.foldable.first()].into_iter().flatten().min();
        let is_due = usize::from(self.warnings) + 1 >= NORMAL_TURN;
        let normal = if is_due { queue.paid.range(Order::first_normal(Rank::Shown)..).next() } else { None };
        (normal.or_else(|| queue.paid.first()).copied(), owed.copied())
    }

    /// Returns the whole tokens at `now`.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "floored, non-negative, at most the burst"
    )]
    pub(super) fn tokens(&self, now: Mono) -> usize {
        self.bucket.as_ref().map_or(0, |(bucket, rate)| bucket.tokens(*rate, now).max(0.0) as usize)
    }

    /// Returns the class of the record that would be written at `now`.
    pub(super) fn ready(&self, now: Mono) -> Option<Class> {
        let (paid, owed) = self.first();
        let owed = owed.filter(|_| self.next_token(now) == Some(now));
        [paid, owed].into_iter().flatten().min().map(|order| order.class)
    }

    /// Removes and returns the record to write at `now`, and takes its token if it has to pay.
    pub(super) fn pop(&mut self, now: Mono) -> Option<RecordId> {
        let (paid, owed) = self.first();
        let pay = match (paid, owed) {
            (Some(paid), Some(owed)) => owed < paid,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        if pay
            && let (Some(order), Some((bucket, rate))) = (owed, &mut self.bucket)
            && bucket.take(*rate, now)
        {
            self.remove(order);
            return Some(order.record);
        }
        let order = paid?;
        self.warnings = if order.class == Class::Warning { self.warnings.saturating_add(1) } else { 0 };
        self.remove(order);
        Some(order.record)
    }

    /// Removes a record from the queue if it can be written at once, without a token that another record waits for.
    /// Returns whether it can.
    pub(super) fn pay_for(&mut self, order: Order, now: Mono) -> bool {
        let Some(queue) = &self.queue else { return false };
        let (is_paid, waiting) = (queue.paid.contains(&order), queue.owed.len() + queue.foldable.len());
        let pays = is_paid
            || self.tokens(now) >= waiting
                && self.bucket.as_mut().is_some_and(|(bucket, rate)| bucket.take(*rate, now));
        if pays {
            self.remove(order);
        }
        pays
    }

    /// Returns when the next token comes: `now` if there is one, `None` if never.
    pub(super) fn next_token(&self, now: Mono) -> Option<Mono> {
        self.bucket.as_ref().and_then(|(bucket, rate)| bucket.next_token(*rate, now))
    }

    pub(super) fn waits_for_token(&self) -> bool {
        self.queue.as_ref().is_some_and(|queue| !queue.owed.is_empty() || !queue.foldable.is_empty())
    }

    /// Returns when the bucket is full, so that a budget without records can be removed.
    pub(super) fn idle_at(&self, now: Mono) -> Option<Mono> {
        match &self.bucket {
            None => Some(now),
            Some((bucket, rate)) => bucket.full_at(*rate, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_time_of_each_foldable_record_is_found_whatever_its_class(
            orders in proptest::collection::btree_set((any::<bool>(), 0..9_i64, 0..99_u64), 0..20),
        ) {
            let order = |&(is_warning, since, record)| {
                let (rank, class) = (Rank::NeverShown, Class::of(is_warning));
                Order { rank, class, since: Mono(since), record: RecordId(record) }
            };
            let orders: Vec<Order> = orders.iter().map(order).collect();
            let mut budget = Budget::new(Key(1), None);
            orders.iter().for_each(|order| budget.insert(*order, Place::Foldable));
            let mut expected: Vec<Mono> = orders.iter().map(|order| order.since).collect();
            expected.sort_unstable();
            let found: Vec<Mono> = (0..).map_while(|place| budget.foldable_since(place)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    fn order(rank: Rank, class: Class, record: u64) -> Order {
        Order { rank, class, since: Mono(i64::try_from(record).unwrap()), record: RecordId(record) }
    }

    #[test]
    fn the_first_token_is_the_digests_and_the_next_are_for_what_was_never_shown() {
        let mut budget = Budget::new(Key(1), Some(Rate { qps: 1.0, burst: 9 }));
        budget.insert(order(Rank::Shown, Class::Warning, 1), Place::Owed);
        budget.insert(order(Rank::Shown, Class::Normal, 2), Place::Owed);
        budget.insert(order(Rank::NeverShown, Class::Normal, 3), Place::Foldable);
        budget.insert(order(Rank::NeverShown, Class::Warning, 5), Place::Foldable);
        budget.insert(order(Rank::NeverShown, Class::Warning, 4), Place::Foldable);
        budget.insert(order(Rank::Digest, Class::Normal, 6), Place::Owed);
        let taken: Vec<u64> = std::iter::from_fn(|| budget.pop(Mono(0))).map(|record| record.0).collect();
        assert_eq!(taken, [6, 4, 5, 3, 1, 2]);
    }

    /// Fault: without budgets all records of a source are in one budget, and Warnings delayed Normal ones without end.
    #[test]
    fn where_nothing_has_to_pay_every_eighth_turn_is_a_normal_records() {
        let mut budget = Budget::new(Key(1), None);
        budget.insert(order(Rank::Shown, Class::Normal, 0), Place::Paid);
        let turn = (1..).find(|turn| {
            budget.insert(order(Rank::Shown, Class::Warning, *turn), Place::Paid);
            budget.pop(Mono(0)) == Some(RecordId(0))
        });
        assert_eq!(turn, Some(8));
    }
}
