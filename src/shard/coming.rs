//! An occurrence that is about to be accepted: what it will be counted on is fetched while its answer is made.
//!
//! Hot: what a shard knows of an event is in a dozen places of memory, most of them in no cache of the processor's own, and each is known
//! only when the one before has come. A batch has the next step of its other lines to do meanwhile (`shard/together/mod.rs`); a single
//! event has its answer, and the copy of it that is kept under its name.

use std::sync::Arc;

use arc_swap::Guard;

use super::prepared::Prepared;
use super::{Accepted, Full, Shard, Shards};
use crate::correlator::{Key, Keys, Policy, RecordId};
use crate::event::LentEvent;

/// Who is about to be accepted, and where.
#[derive(Debug)]
pub struct Coming<'s> {
    shards: &'s Shards,
    shard: usize,
    policy: Guard<Arc<Policy>>,
    source: Key,
    keys: Keys,
    /// Which record it will most likely count on, when that is known.
    record: Option<RecordId>,
}

impl Shards {
    /// Begins to fetch what `event` will be counted on. What its keys are made of must not change any more.
    #[must_use]
    pub fn expect(&self, event: &LentEvent<'_>) -> Coming<'_> {
        let policy = self.0.policy.load();
        let source = self.0.secret.source(event);
        let shard = self.shard_of_source(source);
        self.look_ahead(shard, |shard| shard.touch_correlator(source));
        let keys = self.0.secret.keys(event, policy.select(event));
        self.look_ahead(shard, |shard| shard.touch(source, &keys));
        Coming { shards: self, shard, policy, source, keys, record: None }
    }

    /// A shard that is locked now is left alone: this is not worth waiting for.
    fn look_ahead<T>(&self, shard: usize, look: impl FnOnce(&Shard) -> T) -> Option<T> {
        Some(look(&*self.0.shards[shard].try_lock()?))
    }
}

impl Coming<'_> {
    /// The next step: what [`Shards::expect`] has fetched tells where to look.
    pub fn approach(&self) {
        self.shards.look_ahead(self.shard, |shard| shard.approach(self.source, &self.keys));
    }

    /// The step after that.
    pub fn fetch(&mut self) {
        self.record = self.shards.look_ahead(self.shard, |shard| shard.fetch(self.source, &self.keys)).flatten();
    }

    /// The last step, after which there is little to be waited for.
    pub fn reach(&self) {
        if let Some(record) = self.record {
            self.shards.look_ahead(self.shard, |shard| shard.outbox.fetch(record));
        }
    }

    /// Whether the event counts on others.
    #[must_use]
    pub fn correlates(&self, event: &LentEvent<'_>) -> bool {
        self.policy.correlates(event)
    }

    /// As [`Shards::accept`]. What is left in `event` is no event any more, and for the caller to free.
    ///
    /// # Errors
    /// As those of [`Shards::accept`].
    pub fn accept(self, event: &mut LentEvent<'_>, occurrences: u32) -> Result<Accepted, Full> {
        let Self { shards, shard, policy, source, keys, record: _ } = self;
        let prepared = Prepared::of(source, keys, shards.0.secret, event, &policy);
        let mut locked = shards.0.shards[shard].lock();
        let accepted = locked.accept_prepared(&prepared, event, occurrences, shards.0.clock.now());
        shards.note_changes(&locked);
        drop(locked);
        if accepted.as_ref().is_ok_and(|accepted| accepted.wakes_delivery) {
            shards.wake();
        }
        accepted
    }
}

impl Shard {
    /// Has the correlator of a source fetched.
    fn touch_correlator(&self, source: Key) {
        if let Some(correlator) = self.sources.peek(source) {
            correlator.touch();
        }
    }

    /// Has the places fetched where the search for an event's account, group and observation begins.
    fn touch(&self, source: Key, keys: &Keys) {
        self.outbox.touch_account(source, keys.spam());
        if let Some(correlator) = self.sources.peek(source) {
            correlator.touch_keys(keys);
        }
    }

    /// Has those fetched that an event should have.
    fn approach(&self, source: Key, keys: &Keys) {
        self.outbox.approach_account(source, keys.spam());
        if let Some(correlator) = self.sources.peek(source) {
            correlator.approach_keys(keys);
        }
    }

    /// Has the rest of them fetched, and the place where the search for the record begins.
    fn fetch(&self, source: Key, keys: &Keys) -> Option<RecordId> {
        let correlator = self.sources.peek(source)?;
        let record = correlator.fetch(correlator.fetch_keys(keys))?;
        self.outbox.touch(record);
        Some(record)
    }
}
