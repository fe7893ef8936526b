//! Admission: occurrences that their clients are about to write to the upstream themselves. What begins a record may be created by
//! its client, if it could be written at once; everything else is counted and written here, and its client is refused.

use std::time::Duration;

use super::prepared::Prepared;
use super::{Accepted, Full, Outcome, Shard, Shards};
use crate::clock::Now;
use crate::correlator::Policy;
use crate::event::Event;

/// Who writes the record of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writer {
    /// Its client, for the first time.
    Client,
    /// We.
    Us,
}

/// Why an occurrence could not be looked at, so that its client has to write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unable {
    /// There is no room for a new record; the ledger has it as rejected.
    Full,
    /// The shard was busy for too long; nothing is counted.
    Late,
}

impl Shard {
    /// Accepts occurrences of an event, and lets its client write it if it begins a record `as_it_is`.
    fn admit(
        &mut self,
        prepared: &Prepared<'_>,
        event: Event,
        occurrences: u32,
        as_it_is: bool,
        now: Now,
    ) -> Result<(Accepted, Writer), Full> {
        let name = event.metadata.name.clone();
        let accepted = self.accept_prepared(prepared, event, occurrences, now)?;
        let is_its_own = as_it_is
            && accepted.outcome == Outcome::Created
            && self.outbox.name(accepted.counts_on).is_some_and(|(known, _)| known == name);
        let writer =
            if is_its_own && self.outbox.carry(accepted.counts_on, now) { Writer::Client } else { Writer::Us };
        Ok((accepted, writer))
    }
}

impl Shards {
    /// Accepts occurrences of an event that its client is about to write. The client may do so where the event begins a record, stands
    /// for these occurrences `as_it_is`, and has its tokens.
    ///
    /// # Errors
    /// When nothing could be counted within `limit`.
    pub fn admit(
        &self,
        policy: &Policy,
        event: Event,
        occurrences: u32,
        as_it_is: bool,
        limit: Duration,
    ) -> Result<(Accepted, Writer), Unable> {
        let prepared = Prepared::new(self.0.secret, &event, policy);
        let shard = &self.0.shards[self.shard_of_source(prepared.source)];
        let mut shard = shard.try_lock_for(limit).ok_or(Unable::Late)?;
        let admitted = shard.admit(&prepared, event, occurrences, as_it_is, self.0.clock.now());
        self.note_changes(&shard);
        drop(shard);
        if admitted.as_ref().is_ok_and(|(accepted, _)| accepted.wakes_delivery) {
            self.wake();
        }
        admitted.map_err(|_full| Unable::Full)
    }
}
