//! Runs: repeats of a record within a few seconds of one minute. They are counted here first and added to the store together.
//!
//! Hot: most occurrences are such repeats, and the store's data of their object is rarely in the processor's cache.

use std::collections::{HashMap, VecDeque};

use smol_str::SmolStr;

use super::history::{heap, short};
use super::marks::Marks;
use super::recent::minute;
use super::{Settings, Spot, Verdict};
use crate::clock::{Mono, Now};
use crate::correlator::{Key, KeySecret};
use crate::event::Event;
use crate::limits::Share;
use crate::outbox::{Kind, RecordId};

/// The longest duration of a run, in nanoseconds. All runs are added to the store before any read, but until then its object
/// keeps its place in the order of use.
const LONGEST: i64 = 4_000_000_000;

/// Bytes of an entry of the table, with its byte of control.
const ENTRY: usize = size_of::<(RecordId, Run)>() + 1;

/// Occurrences of one record with the same verdict.
///
/// A cache line with its record's number: it is all that most repeats read.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) verdict: Verdict,
    /// The number of occurrences, without those that began it.
    pub(super) number: u32,
    /// Half of the newest event's key.
    repeat: u64,
    /// The hash of the newest message.
    pub(super) message: u64,
    began: Mono,
    /// When the newest was received.
    pub(super) last: Now,
    pub(super) of: Box<Origin>,
}

/// What a run has of the event that began it, and the messages that differ from that event's.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) kind: Kind,
    pub(super) spot: Spot,
    pub(super) marks: Marks,
    /// The number of the rule that the event matches.
    pub(super) rule: Option<usize>,
    /// The newest distinct messages, each with its hash, without those that the store has.
    // LIMIT: `Settings::messages`.
    pub(super) messages: VecDeque<(u64, SmolStr)>,
}

impl Origin {
    fn bytes(&self) -> usize {
        let texts = self.messages.iter().map(|(_, text)| heap(text)).sum::<usize>();
        size_of::<Self>() + self.messages.capacity() * size_of::<(u64, SmolStr)>() + texts
    }
}

/// The runs of a shard.
#[derive(Debug, Default)]
pub(super) struct Runs {
    // LIMIT: a quarter of `Settings::max_bytes` over all shards; beyond it the shards with the largest parts end all runs.
    runs: HashMap<RecordId, Run, foldhash::fast::FixedState>,
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

    /// Whether there is no room for another run.
    pub(super) fn are_full(&self, settings: &Settings) -> bool {
        self.bytes.is_over(settings.max_bytes.get() / 4)
    }

    /// Adds occurrences of a record to its run, and keeps their message. Returns `false` if they continue no run.
    ///
    /// `repeat` is the event's key, if events with an equal one have the same message, which is `message`.
    pub(super) fn receive(
        &mut self,
        (record, repeat): (RecordId, Option<Key>),
        (event, message, number): (&Event, &SmolStr, u32),
        secret: KeySecret,
        settings: &Settings,
        now: Now,
    ) -> bool {
        let Some(run) = self.runs.get_mut(&record) else { return false };
        if now.mono.nanos_since(run.began) >= LONGEST || minute(now.mono) != minute(run.began) {
            return false;
        }
        let repeat = repeat.map(Key::half);
        if repeat != Some(run.repeat) {
            let marks = Marks::with(secret, event, message);
            if !run.of.marks.are_of_one_fact(marks) || self.bytes.is_over(settings.max_bytes.get() / 4) {
                return false;
            }
            if marks.message != run.message && !run.of.messages.iter().any(|(known, _)| *known == marks.message) {
                let before = run.of.bytes();
                let most = if run.of.kind == Kind::Plain { 1 } else { settings.messages.max(1) };
                while run.of.messages.len() >= most {
                    run.of.messages.pop_front();
                }
                run.of.messages.push_back((marks.message, short(message)));
                let after = run.of.bytes();
                self.origins = self.origins - before + after;
                self.bytes.replace(before, after);
            }
            run.message = marks.message;
            run.repeat = repeat.unwrap_or_default();
        }
        run.number = run.number.saturating_add(number);
        run.last = now;
        true
    }

    /// Whether received occurrences, if they are still in the record's run, have its verdict. Otherwise takes them back.
    pub(super) fn agrees(&mut self, record: RecordId, verdict: Verdict, number: u32) -> bool {
        let Some(run) = self.runs.get_mut(&record).filter(|run| run.verdict != verdict) else { return true };
        run.number = run.number.saturating_sub(number);
        false
    }

    /// Begins a run of a record that has none.
    pub(super) fn begin(&mut self, record: (RecordId, Option<Key>), verdict: Verdict, of: Origin, now: Now) {
        let (record, repeat) = (record.0, record.1.map_or(0, Key::half));
        let (message, began) = (of.marks.message, now.mono);
        self.origins += of.bytes();
        let run = Run { verdict, number: 0, repeat, message, began, last: now, of: Box::new(of) };
        self.runs.insert(record, run);
        self.count_bytes();
    }

    /// Ends and returns the run of a record.
    pub(super) fn end(&mut self, record: RecordId) -> Option<Run> {
        let run = self.runs.remove(&record)?;
        self.origins -= run.of.bytes();
        self.count_bytes();
        Some(run)
    }

    /// Ends and returns all runs.
    pub(super) fn end_all(&mut self) -> impl Iterator<Item = (RecordId, Run)> + use<> {
        let runs = std::mem::take(&mut self.runs);
        self.origins = 0;
        self.count_bytes();
        runs.into_iter()
    }

    fn count_bytes(&mut self) {
        let entries = match self.runs.capacity() {
            0 => 0,
            capacity => (capacity + 1).next_power_of_two(),
        };
        self.bytes.set(entries * ENTRY + self.origins);
    }
}
