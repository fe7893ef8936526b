//! How much memory the program may take, and the limits that follow from it.

use std::num::NonZeroUsize;

use super::raw::Value;
use super::values;
use crate::upstream::store;
use crate::{outbox, shard};

/// What the program itself takes, its connections and requests included.
const PROGRAM: usize = 64 << 20;
/// What is full with every limit at its default ([performance.md](../../docs/performance.md)).
const DEFAULTS: usize = 1472 << 20;
/// Least memory that can be configured, and the most.
const ALLOWED: std::ops::RangeInclusive<usize> = 96 << 20..=1 << 44;

/// How much memory the program may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// What the container has; where it has no limit, every limit has its default.
    #[default]
    Container,
    /// Every limit has its default.
    Unlimited,
    /// So many bytes.
    Bytes(NonZeroUsize),
}

pub(super) const NAMED: [(&str, Memory); 2] = [("container", Memory::Container), ("unlimited", Memory::Unlimited)];

pub(super) fn memory(value: &Value) -> Result<Memory, String> {
    let named = values::choice(&NAMED)(value);
    named
        .or_else(|_| values::size(ALLOWED)(value).map(Memory::Bytes))
        .map_err(|size| format!("container, unlimited, or {size}"))
}

impl Memory {
    /// The bytes to divide, in a container that has so many.
    pub(super) fn bytes(self, container: Option<NonZeroUsize>) -> Option<NonZeroUsize> {
        match self {
            Self::Container => container,
            Self::Unlimited => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// The limits that hold what grows, which the file may set one by one.
pub(super) struct Limits<'l> {
    pub(super) shard: &'l mut shard::Settings,
    pub(super) store: &'l mut store::Settings,
    pub(super) max_aliases: &'l mut NonZeroUsize,
}

impl Limits<'_> {
    /// Divides so many bytes in the proportions of the defaults.
    pub(super) fn divide(self, bytes: NonZeroUsize) {
        let part = bytes.get().saturating_sub(PROGRAM).max(PROGRAM / 4) as u128;
        let scale = |limit: &mut NonZeroUsize| {
            let scaled = (limit.get() as u128).saturating_mul(part).checked_div(DEFAULTS as u128).unwrap_or_default();
            let scaled = usize::try_from(scaled).unwrap_or(usize::MAX);
            *limit = NonZeroUsize::new(scaled).unwrap_or(NonZeroUsize::MIN);
        };
        let shard::Settings { max_sources, max_tracked_keys, outbox, explain } = self.shard;
        let outbox::Settings { max_records, max_bytes, max_budgets, .. } = outbox;
        let store::Settings { max_events, max_bytes: store_bytes, max_changes, .. } = self.store;
        for limit in
            [max_sources, max_tracked_keys, max_records, max_bytes, max_budgets, max_events, store_bytes, max_changes]
        {
            scale(limit);
        }
        scale(self.max_aliases);
        scale(&mut explain.max_bytes);
    }
}

/// The memory of the container that the program runs in, as the kernel limits it (cgroup v2, or v1).
#[must_use]
pub fn container_memory() -> Option<NonZeroUsize> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let text = files.into_iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    // Without a limit: `max`, or in v1 a number beyond any memory.
    text.trim().parse().ok().filter(|bytes: &NonZeroUsize| bytes.get() < 1 << 50)
}
