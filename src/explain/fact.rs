//! Facts: the reasons that a source reports about an object, with what became of their occurrences.

use std::collections::HashMap;

use smol_str::SmolStr;

use super::Recent;
use crate::clock::Now;
use crate::correlator::{Key, RecordId};
use crate::outbox::Reach;

/// The state of a digest or storm record, which the shard that has it knows.
#[derive(Debug, Clone, Copy)]
pub struct StormState {
    /// The occurrences that the upstream shows, of those that it counts.
    pub settled: u64,
    /// The wait reason of its next write.
    pub why: &'static str,
    /// The reason for which all others were lost.
    pub lost: Option<&'static str>,
}

/// The states of storm records that are live, or were lost lately.
pub type StormStates = HashMap<RecordId, StormState>;

/// Recent numbers of a fact.
#[derive(Debug, Default, Clone, Copy)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Rates {
    pub received: Recent,
    pub writes: Recent,
}

/// A reason that a source reports about the object.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the members of an event")]
pub struct Fact {
    pub reason: SmolStr,
    pub event_type: SmolStr,
    pub component: SmolStr,
    pub host: SmolStr,
    /// The caller that has reported the newest occurrences; empty if it is not known.
    pub caller: SmolStr,
    /// Occurrences that were accepted, or refused because the outbox was full.
    pub received: u64,
    /// Occurrences that found no token under `suppression: drop`.
    pub dropped: u64,
    /// Occurrences that were refused.
    pub rejected: u64,
    /// Refused changes of its events, which are not occurrences.
    pub refused_changes: u64,
    /// Occurrences that the upstream has shown in a write that carried them.
    pub shown: u64,
    /// Occurrences that have folded into a digest or storm record.
    pub folded: u64,
    /// Those of them that were shown when the newest have folded, at least.
    pub(super) folded_shown: u64,
    /// The record that those have folded into.
    pub into: Option<RecordId>,
    /// The occurrences that this record had counted with the newest of them.
    pub(super) folded_until: u64,
    /// Occurrences lost for another reason than an empty budget, by reason.
    // LIMIT: the reasons of the ledger.
    pub lost: Vec<(&'static str, u64)>,
    /// Tokens spent on it.
    pub spent: u64,
    pub first_received: i64,
    pub last_received: i64,
    pub last_shown: Option<i64>,
    /// Source, budget, and whether the correlator pays.
    pub budget: Option<(Key, Key, bool)>,
    /// The index of its group of similar events in the store.
    pub group: usize,
    /// The hash of its reason, type and source.
    pub(super) hash: u64,
    pub rates: Rates,
}

impl Fact {
    pub(super) fn receive(&mut self, number: u32, now: Now) {
        if self.received == 0 {
            self.first_received = now.wall;
        }
        self.received += u64::from(number);
        self.last_received = self.last_received.max(now.wall);
        self.rates.received.add(now.mono, number);
    }

    /// Counts occurrences that have folded into a record, which has this reach with them.
    pub(super) fn fold(&mut self, into: RecordId, number: u64, reach: Reach) {
        let unshown = if self.into == Some(into) { self.unshown(reach.settled) } else { 0 };
        self.folded_shown = self.folded - unshown;
        (self.folded, self.into, self.folded_until) = (self.folded + number, Some(into), reach.counted);
    }

    /// Counts the folded occurrences that were lost with their record, which has shown `settled`. Returns their number.
    pub(super) fn lose_folded(&mut self, settled: u64, why: &'static str) -> u64 {
        let lost = self.unshown(settled);
        self.folded -= lost;
        self.folded_shown = self.folded;
        self.lose(lost, why);
        lost
    }

    pub(super) fn lose(&mut self, number: u64, why: &'static str) {
        match self.lost.iter_mut().find(|(known, _)| *known == why) {
            Some((_, lost)) => *lost += number,
            None if number > 0 => self.lost.push((why, number)),
            None => {}
        }
    }

    /// The number of lost occurrences.
    pub fn lost(&self) -> u64 {
        self.lost.iter().map(|(_, number)| number).sum()
    }

    /// Returns the folded occurrences that their record does not show, at most. It has shown the first `settled` that it
    /// counts, which may be of other facts.
    pub fn unshown(&self, settled: u64) -> u64 {
        (self.folded - self.folded_shown).min(self.folded_until.saturating_sub(settled))
    }

    /// Whether a client has reported anything about it.
    pub const fn is_reported(&self) -> bool {
        self.received + self.refused_changes > 0
    }

    /// Its source in words.
    pub fn source(&self) -> String {
        super::tap::source(&self.component, &self.host)
    }
}
