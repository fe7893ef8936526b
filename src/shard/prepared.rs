//! Properties of an event that need no shard: its source, its keys and its settings.
//!
//! Hot: hashing takes about as long as the work under a shard's lock, so it is done before the lock is taken.

use std::num::NonZeroUsize;

use crate::correlator::{Key, KeySecret, Keys, Policy, Settings};
use crate::event::Event;

/// Bytes of a caller's name that `explain` keeps.
const CALLER_BYTES: usize = 256;

#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared<'p> {
    pub(super) source: Key,
    pub(super) keys: Keys,
    pub(super) settings: &'p Settings,
    /// The size of the caches of the source.
    pub(super) cache_size: NonZeroUsize,
    /// The number of the rule that the settings come from.
    pub(super) rule: Option<usize>,
    /// The name of the caller; empty if it is not known.
    // LIMIT: `CALLER_BYTES`; a longer name is cut.
    pub(super) caller: &'p str,
}

impl<'p> Prepared<'p> {
    pub(super) fn new(secret: KeySecret, event: &Event, policy: &'p Policy, caller: &'p str) -> Self {
        let (rule, settings) = policy.rule(event);
        let (source, keys) = (secret.source(event), secret.keys(event, settings));
        let (caller, _) = caller.split_at(caller.floor_char_boundary(CALLER_BYTES));
        let cache_size = policy.lru_cache_size(event.component());
        Self { source, keys, settings, cache_size, rule, caller }
    }
}
