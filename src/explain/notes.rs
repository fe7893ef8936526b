//! What a shard reports to the store: occurrences that arrive, the decisions about them, and what becomes of records.

use std::num::NonZeroU64;

use smol_str::SmolStr;

use super::{Hashes, Verdict};
use crate::correlator::{Key, RecordId};
use crate::event::Event;
use crate::outbox::Kind;

/// The place of a fact: its object and its number within the object.
#[derive(Debug, Clone, Copy)]
pub struct FactRef {
    /// Its object.
    pub object: Key,
    pub(super) fact: usize,
    /// The hash of the fact at that number.
    pub(super) hash: u64,
    pub(super) group: usize,
}

/// Occurrences that arrive, and count on a record.
#[derive(Debug)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Arrival<'e> {
    pub record: RecordId,
    /// The event's key, if events with an equal one have the same message.
    pub repeat: Option<Key>,
    /// The caller that has reported them, or empty.
    pub caller: &'e str,
    pub event: &'e Event,
    /// Its message before it was combined.
    pub message: SmolStr,
    /// Number of occurrences.
    pub number: u32,
}

impl Arrival<'_> {
    pub(super) fn repeat(&self) -> Option<NonZeroU64> {
        self.repeat.and_then(|key| NonZeroU64::new(key.half()))
    }
}

/// Received occurrences of a record.
#[derive(Debug)]
pub enum Received {
    /// Occurrences that are counted in the record's run, which has this verdict.
    InRun(Verdict),
    /// Occurrences that are counted at the place of their fact.
    At {
        /// The place.
        fact_ref: FactRef,
        /// The event's hashes.
        hashes: Hashes,
        /// See [`Arrival::message`].
        message: SmolStr,
        /// A part of the key in [`Arrival`].
        repeat: Option<NonZeroU64>,
    },
}

/// A decision about occurrences, and its circumstances.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Ruling<'c> {
    pub verdict: Verdict,
    /// Number of occurrences.
    pub number: u32,
    pub record: RecordId,
    pub kind: Kind,
    /// The caller that has reported the occurrences, or empty.
    pub caller: &'c str,
    pub source: Key,
    /// The correlator's key of the record, and the budget that pays; `None` if the event is not correlated.
    pub keys: Option<(Key, Key)>,
    /// `None` if the correlator does not pay (only `suppression: drop` does); otherwise whether it paid.
    pub paid: Option<bool>,
    /// The number of the matching rule.
    pub rule: Option<usize>,
    /// The record's count before the occurrences.
    pub before: i32,
}

/// What became of a fact's occurrences: an answer of the upstream, a refusal or a deletion.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Remark<'t> {
    pub verdict: Verdict,
    /// Its reason, if the verdict alone does not say it.
    pub why: &'static str,
    /// Number of occurrences.
    pub number: u64,
    /// Their record, if they have one.
    pub record: Option<RecordId>,
    /// The upstream's answer, or the text of the response to the client.
    pub text: &'t str,
}

/// Lost occurrences of a digest or storm record.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "their names say it")]
pub struct LostFolds {
    pub into: RecordId,
    /// Number of occurrences.
    pub number: u64,
    /// The occurrences that the upstream shows, of those that the record has counted.
    pub settled: u64,
    pub why: &'static str,
}

/// A record as the upstream has stored it.
#[derive(Debug, Clone, Copy)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Written<'w> {
    pub record: RecordId,
    pub kind: Kind,
    pub name: &'w SmolStr,
    pub message: &'w SmolStr,
    pub count: i64,
    /// The occurrences that the write has added.
    pub number: u64,
}
