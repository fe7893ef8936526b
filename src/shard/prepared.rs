//! What an event tells of itself: its source, its keys and the settings that hold for it.
//!
//! Hot: hashing takes as long as most of what is done with the hashes, and needs no shard; so it is done before one is locked.

use crate::correlator::{Correlation, Key, KeySecret, Keys, Policy, Settings};
use crate::event::LentEvent;

/// What is known of an event before its shard is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared<'p> {
    pub(super) source: Key,
    pub(super) keys: Keys,
    /// What its event key leaves out; see [`KeySecret::rest`].
    pub(super) rest: Option<u64>,
    pub(super) settings: &'p Settings,
}

impl<'p> Prepared<'p> {
    pub(super) fn new(secret: KeySecret, event: &mut LentEvent<'_>, policy: &'p Policy) -> Self {
        let settings = policy.select(event);
        let (source, keys) = (secret.source(event), secret.keys(event, settings));
        if settings.correlation == Correlation::On {
            // A record is written in our name; only where it is its client's own does the client's claim go with it.
            event.metadata.managed_fields = None;
        }
        Self { source, keys, rest: secret.rest(event), settings }
    }
}
