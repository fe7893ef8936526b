//! Runs: repeats of a record within a second. They are counted here first and added to the store together.
//!
//! Hot: most occurrences are such repeats, and the store's data of their object is rarely in the processor's cache.

use super::marks::Marks;
use super::{Spot, Verdict};
use crate::clock::{Mono, Now};
use crate::outbox::RecordId;

/// LIMIT: runs of a shard; a further run ends the run in its slot.
const PLACES: usize = 512;

/// The longest duration of a run, in nanoseconds. All runs are added to the store before any read.
const LONGEST: i64 = 1_000_000_000;

/// Occurrences of one record with the same verdict.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) record: RecordId,
    pub(super) verdict: Verdict,
    pub(super) marks: Marks,
    pub(super) spot: Spot,
    /// The number of the rule that their event matches.
    pub(super) rule: Option<usize>,
    pub(super) began: Mono,
    /// When the newest was received.
    pub(super) last: Now,
    /// The number of occurrences not yet added to the store.
    pub(super) untold: u32,
}

/// The runs of a shard.
#[derive(Debug, Default)]
pub(super) struct Runs {
    // Indexed by the record's number; empty until the first run begins.
    places: Vec<Option<Run>>,
}

#[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
const fn place(record: RecordId) -> usize {
    record.0 as usize % PLACES
}

impl Runs {
    /// Bytes of the slots, which the first run allocates.
    pub(super) const BYTES: usize = PLACES * size_of::<Option<Run>>();

    /// Returns the record's run that an event continues.
    pub(super) fn find(&self, record: RecordId, marks: Marks, now: Now) -> Option<&Run> {
        let run = self.places.get(place(record))?.as_ref()?;
        (run.record == record && run.marks == marks && now.mono.nanos_since(run.began) < LONGEST).then_some(run)
    }

    /// Continues the run of a record if the verdict is the same. Returns `false` if there is no such run.
    pub(super) fn go_on(&mut self, record: RecordId, verdict: Verdict, number: u32, now: Now) -> bool {
        let run = self.places.get_mut(place(record)).and_then(Option::as_mut);
        let Some(run) = run.filter(|run| run.record == record && run.verdict == verdict) else { return false };
        run.untold = run.untold.saturating_add(number);
        run.last = now;
        true
    }

    /// Begins a run, and returns the run that was in its slot.
    pub(super) fn begin(&mut self, run: Run) -> Option<Run> {
        if self.places.is_empty() {
            self.places.resize(PLACES, None);
        }
        self.places[place(run.record)].replace(run)
    }

    /// Ends and returns the run of a record.
    pub(super) fn end(&mut self, record: RecordId) -> Option<Run> {
        self.places.get_mut(place(record))?.take_if(|run| run.record == record)
    }

    /// Takes the numbers that are not yet added to the store; the runs continue.
    pub(super) fn untold(&mut self) -> Vec<Run> {
        let mut untold = Vec::new();
        for run in self.places.iter_mut().flatten().filter(|run| run.untold > 0) {
            untold.push(*run);
            run.untold = 0;
        }
        untold
    }

    /// Ends all runs.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there are no runs.
    pub(super) const fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
