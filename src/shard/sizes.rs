//! Sizes of one shard, and of all shards together.

/// Numbers of what a shard holds, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sizes {
    /// Sources tracked.
    pub sources: usize,
    /// Entries in all correlators' caches.
    pub tracked_keys: usize,
    /// Entries that the limits of those caches have evicted so far, with their source or alone.
    pub evicted_keys: u64,
    /// Records in the outbox.
    pub records: usize,
    /// Bytes in the outbox.
    pub bytes: usize,
    /// Budgets that are not full.
    pub budgets: usize,
    /// Groups with waiting records or with a storm record.
    pub groups: usize,
    /// Events that are known to have folded into storm records.
    pub folded: usize,
    /// Client lines kept.
    pub lines: usize,
}
