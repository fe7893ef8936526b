//! A shard's settings.

use std::num::NonZeroUsize;

use crate::outbox;

/// Settings of a shard.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// LIMIT: sources tracked; the one heard of longest ago is forgotten with all its history. Default 10,000 in all.
    pub max_sources: NonZeroUsize,
    /// LIMIT: entries of all correlators' caches together; beyond it the source heard of longest ago is forgotten. Default
    /// 1,000,000 in all.
    pub max_tracked_keys: NonZeroUsize,
    /// Settings of the outbox.
    pub outbox: outbox::Settings,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_sources: const { NonZeroUsize::new(10_000).unwrap() },
            max_tracked_keys: const { NonZeroUsize::new(1_000_000).unwrap() },
            outbox: outbox::Settings::default(),
        }
    }
}

impl Settings {
    /// The share of one of `shards` shards.
    #[must_use]
    pub fn share(&self, shards: NonZeroUsize) -> Self {
        let part = |whole: NonZeroUsize| NonZeroUsize::new(whole.get().div_ceil(shards.get())).unwrap_or(whole);
        Self {
            max_sources: part(self.max_sources),
            max_tracked_keys: part(self.max_tracked_keys),
            outbox: outbox::Settings {
                max_records: part(self.outbox.max_records),
                max_bytes: part(self.outbox.max_bytes),
                max_budgets: part(self.outbox.max_budgets),
                ..self.outbox.clone()
            },
        }
    }
}
