//! What goes in and out of the outbox towards the correlators: a decision's record offered for writing, and a record to forget.

use crate::correlator::{Fold, Key, Rate, RecordId};
use crate::event::Event;

/// A decision's record, offered for writing.
#[derive(Debug)]
pub struct Offer {
    /// The record.
    pub record: RecordId,
    /// Its source.
    pub source: Key,
    /// Where the correlator remembers it.
    pub key: Key,
    /// Its desired state.
    pub event: Event,
    /// How many occurrences the event brings.
    pub occurrences: u32,
    /// How they show.
    pub fold: Fold,
    /// Whether the upstream is known to hold the record.
    pub stored: bool,
    /// Who pays.
    pub payment: Payment,
}

/// Who pays for the write of an offer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Payment {
    /// The correlator has, or it is free.
    Paid,
    /// The record, when its budget has a token.
    Owed {
        /// The spam key.
        budget: Key,
        /// How the budget fills.
        rate: Rate,
    },
}

/// A record that its correlator has to forget: the next occurrence begins a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forgotten {
    /// Its source.
    pub source: Key,
    /// Where the correlator remembers it.
    pub key: Key,
    /// The record.
    pub record: RecordId,
}
