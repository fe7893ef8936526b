//! Runs: repeats of a record within a few seconds of one minute. They are counted here first and added to the store
//! together.
//!
//! Hot: most occurrences are such repeats, and the store's data of their object is rarely in the processor's cache.

use std::collections::HashMap;
use std::num::NonZeroU64;

use smol_str::SmolStr;

use super::hashes::{HashedText, Hashes};
use super::history::{Messages, heap};
use super::notes::Arrival;
use super::recent::minute;
use super::{FactRef, Settings, Verdict};
use crate::clock::{Mono, Now};
use crate::correlator::KeySecret;
use crate::limits::Share;
use crate::outbox::{Kind, RecordId};

/// The longest duration of a run, in nanoseconds. All runs are added to the store before any read, but until then its
/// object keeps its place in the order of use.
const LONGEST: i64 = 4_000_000_000;

const _: () = assert!(size_of::<(RecordId, Run)>() == 64, "a cache line");

/// Bytes of an entry of the table, with its byte of control.
const ENTRY: usize = size_of::<(RecordId, Run)>() + 1;

/// Occurrences of one record with the same verdict.
///
/// Most repeats read only this and its record's number, which together are a cache line.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) verdict: Verdict,
    /// The number of occurrences, without those that began it.
    pub(super) number: u32,
    /// The newest event's key, if events with an equal one have the same message.
    pub(super) repeat: Option<NonZeroU64>,
    /// The hash of the newest message.
    pub(super) message: u64,
    began: Mono,
    /// When the newest was received.
    pub(super) last: Now,
    pub(super) of: Box<Origin>,
}

/// Properties of the event that began a run, and the messages that differ from that event's.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) kind: Kind,
    pub(super) fact_ref: FactRef,
    pub(super) hashes: Hashes,
    /// The number of the rule that the event matches.
    pub(super) rule: Option<usize>,
    /// The messages that the store may not have.
    pub(super) messages: Messages,
    /// The caller that has reported the occurrences.
    pub(super) caller: SmolStr,
}

impl Origin {
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.messages.bytes() + heap(&self.caller)
    }
}

#[derive(Debug, Default)]
pub(super) struct Runs {
    // LIMIT: a quarter of `Settings::max_bytes` over all shards; beyond it the shards with the largest parts end all
    // runs.
    runs: HashMap<RecordId, Run, foldhash::fast::FixedState>,
    /// Entries for which the table has memory.
    entries: usize,
    /// Bytes of all origins.
    origins: usize,
    /// Bytes of everything.
    bytes: Share,
}

impl Runs {
    /// Creates an empty value. The limit applies to both together.
    pub(super) fn another(&self) -> Self {
        Self { bytes: self.bytes.another(), ..Self::default() }
    }

    /// Returns the bytes of everything.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes.own()
    }

    /// Whether the runs take more than they may.
    pub(super) fn are_full(&self, settings: &Settings) -> bool {
        self.bytes.is_over(settings.quarter())
    }

    /// Adds occurrences of a record to its run, and keeps their message. Returns the run's verdict, or `None` if they
    /// continue no run: another caller's do not.
    pub(super) fn receive(
        &mut self,
        arrival: &Arrival<'_>,
        secret: KeySecret,
        settings: &Settings,
        now: Now,
    ) -> Option<Verdict> {
        let Arrival { caller, event, ref message, number, .. } = *arrival;
        let run = self.runs.get_mut(&arrival.record)?;
        if now.mono.nanos_since(run.began) >= LONGEST || minute(now.mono) != minute(run.began) {
            return None;
        }
        // Without callers, nothing of the origin is read.
        if !caller.is_empty() && run.of.caller != caller {
            return None;
        }
        let repeat = arrival.repeat();
        if repeat.is_none() || repeat != run.repeat {
            let hashes = Hashes::with(secret, event, message);
            if !run.of.hashes.are_of_one_fact(hashes) {
                return None;
            }
            if hashes.message != run.message && !run.of.messages.has(hashes.message) {
                let before = run.of.bytes();
                let message = HashedText { text: message, hash: hashes.message };
                run.of.messages.push(run.of.kind, settings.messages, message);
                let after = run.of.bytes();
                self.origins = self.origins - before + after;
                self.bytes.replace(before, after);
                if self.bytes.is_over(settings.quarter()) {
                    return None;
                }
            }
            run.message = hashes.message;
            run.repeat = repeat;
        }
        run.number = run.number.saturating_add(number);
        run.last = now;
        Some(run.verdict)
    }

    /// Takes received occurrences back, if they are still in the record's run.
    pub(super) fn take_back(&mut self, record: RecordId, number: u32) {
        if let Some(run) = self.runs.get_mut(&record) {
            run.number = run.number.saturating_sub(number);
        }
    }

    /// Begins a run of a record that has none.
    pub(super) fn begin(
        &mut self,
        record: RecordId,
        repeat: Option<NonZeroU64>,
        verdict: Verdict,
        of: Origin,
        now: Now,
    ) {
        let (message, began) = (of.hashes.message, now.mono);
        self.origins += of.bytes();
        let run = Run { verdict, number: 0, repeat, message, began, last: now, of: Box::new(of) };
        self.runs.insert(record, run);
        self.count_bytes();
    }

    pub(super) fn end(&mut self, record: RecordId) -> Option<Run> {
        let run = self.runs.remove(&record)?;
        self.origins -= run.of.bytes();
        self.count_bytes();
        Some(run)
    }

    pub(super) fn end_all(&mut self) -> impl Iterator<Item = (RecordId, Run)> + use<> {
        let runs = std::mem::take(&mut self.runs);
        (self.entries, self.origins) = (0, 0);
        self.count_bytes();
        runs.into_iter()
    }

    fn count_bytes(&mut self) {
        // The table never shrinks, but its capacity counts no entry from which a run was removed.
        if self.runs.capacity() > 0 {
            self.entries = self.entries.max((self.runs.capacity() + 1).next_power_of_two());
        }
        self.bytes.set(self.entries * ENTRY + self.origins);
    }
}
