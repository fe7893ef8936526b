//! A shard's settings.

use std::num::NonZeroUsize;

use crate::{explain, outbox};

/// Settings of a shard. Limits apply to all shards together.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// LIMIT: tracked sources. At the limit, a shard above its even part evicts its least recently used source with all
    /// its history. Default 10,000.
    pub max_sources: NonZeroUsize,
    /// LIMIT: entries of all correlators' caches together. At the limit, a shard above its even part evicts its least
    /// recently used source. Default 1,000,000.
    pub max_tracked_keys: NonZeroUsize,
    /// Settings of the outbox.
    pub outbox: outbox::Settings,
    /// Settings of `explain`. Default: nothing is kept; the configuration file has another default.
    pub explain: explain::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_sources: const { NonZeroUsize::new(10_000).unwrap() },
            max_tracked_keys: const { NonZeroUsize::new(1_000_000).unwrap() },
            outbox: outbox::Settings::default(),
            explain: explain::Settings::default(),
        }
    }
}
