//! What an event tells of itself: its source, its keys and the settings that hold for it.
//!
//! Hot: hashing takes as long as most of what is done with the hashes, and needs no shard; so it is done before one is locked.

use crate::correlator::{Key, KeySecret, Keys, Policy, Settings};
use crate::event::Event;
use crate::explain::Marks;

/// What is known of an event before its shard is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared<'p> {
    pub(super) source: Key,
    pub(super) keys: Keys,
    pub(super) settings: &'p Settings,
    /// For `explain`.
    pub(super) marks: Marks,
    /// The rule that the settings are from.
    pub(super) rule: Option<usize>,
}

impl<'p> Prepared<'p> {
    pub(super) fn new(secret: KeySecret, event: &Event, policy: &'p Policy) -> Self {
        let (rule, settings) = policy.rule(event);
        let (source, keys) = (secret.source(event), secret.keys(event, settings));
        Self { source, keys, settings, marks: Marks::new(secret, event), rule }
    }
}
