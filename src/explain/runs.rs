//! Runs: repeats of a record within a few seconds of one minute. They are counted here first and added to the store together.
//!
//! Hot: most occurrences are such repeats, and the store's data of their object is rarely in the processor's cache.

use super::marks::Marks;
use super::recent::minute;
use super::{Spot, Verdict};
use crate::clock::{Mono, Now};
use crate::outbox::RecordId;

/// LIMIT: runs of a shard, a power of two; a further run ends the run in its slot. With less memory there are fewer, or none
/// below the least number.
const PLACES: (usize, usize) = (64, 2048);

/// The longest duration of a run, in nanoseconds. All runs are added to the store before any read, but until then its object
/// keeps its place in the order of use.
const LONGEST: i64 = 4_000_000_000;

/// Occurrences of one record with the same verdict: their place in the store.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) marks: Marks,
    pub(super) spot: Spot,
    /// The number of the rule that their event matches.
    pub(super) rule: Option<usize>,
}

/// What a repeat reads and changes of a run: apart from the rest, so that it stays in the processor's cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Count {
    pub(super) record: RecordId,
    pub(super) verdict: Verdict,
    /// The hash of the run's marks.
    mark: u64,
    began: Mono,
    /// When the newest was received.
    pub(super) last: Now,
    /// The number of occurrences not yet added to the store.
    pub(super) untold: u32,
}

/// The runs of a shard.
#[derive(Debug, Default)]
pub(super) struct Runs {
    // LIMIT: `PLACES`. Both are indexed by the record's number, and empty until the first run begins.
    counts: Vec<Option<Count>>,
    runs: Vec<Option<Run>>,
}

impl Runs {
    /// Bytes of a slot.
    const BYTES: usize = size_of::<Option<Count>>() + size_of::<Option<Run>>();

    /// Returns the bytes of the slots.
    pub(super) const fn bytes(&self) -> usize {
        self.counts.len() * Self::BYTES
    }

    /// Reserves slots within so many bytes, if it has none.
    pub(super) fn reserve(&mut self, bytes: usize) {
        let (least, most) = PLACES;
        let places = (bytes / Self::BYTES + 1).next_power_of_two() / 2;
        if self.counts.is_empty() && places >= least {
            self.counts.resize(places.min(most), None);
            self.runs.resize(places.min(most), None);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lower bits")]
    const fn place(&self, record: RecordId) -> usize {
        record.0 as usize & self.counts.len().wrapping_sub(1)
    }

    /// Whether an event continues the record's run.
    pub(super) fn has(&self, record: RecordId, marks: Marks, now: Now) -> bool {
        let count = self.counts.get(self.place(record)).and_then(Option::as_ref);
        count.is_some_and(|count| {
            count.record == record
                && count.mark == marks.hash()
                && now.mono.nanos_since(count.began) < LONGEST
                && minute(now.mono) == minute(count.began)
        })
    }

    /// Continues the run of a record if the verdict is the same. Returns `false` if there is no such run.
    pub(super) fn extend(&mut self, record: RecordId, verdict: Verdict, number: u32, now: Now) -> bool {
        let place = self.place(record);
        let count = self.counts.get_mut(place).and_then(Option::as_mut);
        let Some(count) = count.filter(|count| count.record == record && count.verdict == verdict) else {
            return false;
        };
        count.untold = count.untold.saturating_add(number);
        count.last = now;
        true
    }

    /// Begins a run, and returns the run that was in its slot.
    pub(super) fn begin(&mut self, record: RecordId, verdict: Verdict, run: Run, now: Now) -> Option<(Run, Count)> {
        let place = self.place(record);
        let count = Count { record, verdict, mark: run.marks.hash(), began: now.mono, last: now, untold: 0 };
        let ended = self.counts.get_mut(place)?.replace(count);
        self.runs[place].replace(run).zip(ended)
    }

    /// Ends and returns the run of a record.
    pub(super) fn end(&mut self, record: RecordId) -> Option<(Run, Count)> {
        let place = self.place(record);
        let count = self.counts.get_mut(place)?.take_if(|count| count.record == record)?;
        self.runs[place].take().zip(Some(count))
    }

    /// Takes the numbers that are not yet added to the store; the runs continue.
    pub(super) fn untold(&mut self) -> Vec<(Run, Count)> {
        let mut untold = Vec::new();
        for (run, count) in self.runs.iter().zip(&mut self.counts) {
            if let (Some(run), Some(count)) = (run, count)
                && count.untold > 0
            {
                untold.push((*run, *count));
                count.untold = 0;
            }
        }
        untold
    }

    /// Ends all runs.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Whether there are no slots.
    pub(super) const fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}
