//! Repeats of a record within a second: counted here, and told to the store together.
//!
//! Hot: most occurrences are such repeats, and what the store keeps of their object is rarely in the processor's cache.

use super::marks::Marks;
use super::{Spot, Verdict};
use crate::clock::{Mono, Now};
use crate::outbox::RecordId;

/// LIMIT: runs of a shard; a further one ends that in its place.
const PLACES: usize = 512;

/// Nanoseconds that a run lasts at most. Before anything is asked of the store, it is told of all runs.
const LONGEST: i64 = 1_000_000_000;

/// Occurrences of one record that were decided alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) record: RecordId,
    pub(super) verdict: Verdict,
    pub(super) marks: Marks,
    pub(super) spot: Spot,
    /// The rule of their event.
    pub(super) rule: Option<usize>,
    pub(super) began: Mono,
    /// When the newest was received.
    pub(super) last: Now,
    /// How many the store has not been told of.
    pub(super) untold: u32,
}

/// The runs of a shard.
#[derive(Debug, Default)]
pub(super) struct Runs {
    // By the record's number; empty until the first one begins.
    places: Vec<Option<Run>>,
}

#[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
const fn place(record: RecordId) -> usize {
    record.0 as usize % PLACES
}

impl Runs {
    /// Bytes that they take once there is one.
    pub(super) const BYTES: usize = PLACES * size_of::<Option<Run>>();

    /// The run of a record that an event goes on with.
    pub(super) fn find(&self, record: RecordId, marks: Marks, now: Now) -> Option<&Run> {
        let run = self.places.get(place(record))?.as_ref()?;
        (run.record == record && run.marks == marks && now.mono.nanos_since(run.began) < LONGEST).then_some(run)
    }

    /// Goes on with the run of a record where the verdict is the same. `false` where there is none.
    pub(super) fn go_on(&mut self, record: RecordId, verdict: Verdict, number: u32, now: Now) -> bool {
        let run = self.places.get_mut(place(record)).and_then(Option::as_mut);
        let Some(run) = run.filter(|run| run.record == record && run.verdict == verdict) else { return false };
        run.untold = run.untold.saturating_add(number);
        run.last = now;
        true
    }

    /// Begins a run, and returns the one that was in its place.
    pub(super) fn begin(&mut self, run: Run) -> Option<Run> {
        if self.places.is_empty() {
            self.places.resize(PLACES, None);
        }
        self.places[place(run.record)].replace(run)
    }

    /// Ends the run of a record.
    pub(super) fn end(&mut self, record: RecordId) -> Option<Run> {
        self.places.get_mut(place(record))?.take_if(|run| run.record == record)
    }

    /// What the store has not been told of; the runs go on.
    pub(super) fn untold(&mut self) -> Vec<Run> {
        let mut untold = Vec::new();
        for run in self.places.iter_mut().flatten().filter(|run| run.untold > 0) {
            untold.push(*run);
            run.untold = 0;
        }
        untold
    }

    /// Ends all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there may be any.
    pub(super) const fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
