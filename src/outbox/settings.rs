//! The outbox's settings.

use std::num::NonZeroUsize;
use std::time::Duration;

use super::{GroupSettings, Kind, UpstreamGroup};

/// Settings of the outbox; the defaults are in [`Settings::default`].
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Shortest time between two writes of one record; the first write of a record is immediate. Default 1 s; zero
    /// writes every change.
    pub coalesce_interval: Duration,
    /// LIMIT: records waiting or in flight, over all shards. At the limit new records are refused with 429. Default
    /// 100,000.
    pub max_records: NonZeroUsize,
    /// LIMIT: percent of the part of `max_records` that other sources leave free, which one source may fill. Its
    /// further new records are refused with 429. Default 50.
    pub source_percent: NonZeroUsize,
    /// LIMIT: bytes of waiting events, over all shards. At the limit new records are refused with 429. Default 256 MiB.
    pub max_bytes: NonZeroUsize,
    /// LIMIT: budgets over all shards. At the limit, a shard above its even part evicts its least recently used budget,
    /// which then counts as full. Default 1,000,000.
    pub max_budgets: NonZeroUsize,
    /// Never-written records that may wait for one budget before they fold into a digest. Default 32.
    pub digest_after: usize,
    /// Age at which a never-written record that waits for its budget folds into a digest. Default 1 h (the upstream's
    /// TTL).
    pub digest_max_age: Duration,
    /// LIMIT: bytes of a digest's message. Default 1,024 (what the apiserver allows in new-style events).
    pub digest_message_bytes: usize,
    /// LIMIT: reasons that one digest names; further ones are counted together. Default 64.
    pub digest_reasons: usize,
    /// First pause after a failed write; doubles with each failure. Default 100 ms.
    pub first_backoff: Duration,
    /// Limit of retries while the upstream answers 429, 5xx, or 409 without an end. It begins with the record's newest
    /// occurrence or the first of these answers, whichever is later. Afterwards its occurrences are lost as `expired`.
    /// No limit while the upstream does not answer at all. Default 1 h (the upstream's TTL).
    pub max_age: Duration,
    /// Longest pause between tries of one record, and of probes while the upstream is down. Default 5 s.
    pub max_backoff: Duration,
    /// Whether a record that the upstream refuses as invalid or too large is repaired and written again. Default yes. A
    /// reload does not change it.
    pub repair: bool,
    /// Settings of the group budgets and the ceiling.
    pub groups: GroupSettings,
    /// The API group in which records are written. Default core/v1. A reload does not change it.
    pub group: UpstreamGroup,
}

impl Settings {
    /// Returns the shortest time between two writes of one record.
    pub(super) fn interval(&self, kind: Kind) -> Duration {
        let fold_after = if kind == Kind::Storm { self.groups.fold_after } else { Duration::ZERO };
        self.coalesce_interval.max(fold_after)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            coalesce_interval: Duration::from_secs(1),
            max_records: const { NonZeroUsize::new(100_000).unwrap() },
            source_percent: const { NonZeroUsize::new(50).unwrap() },
            max_bytes: const { NonZeroUsize::new(256 << 20).unwrap() },
            max_budgets: const { NonZeroUsize::new(1_000_000).unwrap() },
            digest_after: 32,
            digest_max_age: Duration::from_secs(3600),
            digest_message_bytes: 1024,
            digest_reasons: 64,
            first_backoff: Duration::from_millis(100),
            max_age: Duration::from_secs(3600),
            max_backoff: Duration::from_secs(5),
            repair: true,
            groups: GroupSettings::default(),
            group: UpstreamGroup::Core,
        }
    }
}
