//! The memory that the program may take, and the limits that follow from it.

use std::num::NonZeroUsize;

use super::Config;
use super::raw::Value;
use super::values::{self, Form};
use crate::upstream::store;
use crate::{outbox, shard};

/// Memory of the program itself, with its connections and requests.
const PROGRAM: usize = 64 << 20;
/// Memory of everything that grows, with every limit at its default and reached
/// ([performance.md](../../docs/performance.md)).
const DEFAULTS: usize = 1472 << 20;
/// LIMIT: how many times its default a limit may become. Larger ones are beyond what their keys allow.
const MULTIPLE: usize = 64;
/// Memory for each list that is read and encoded at once.
const LIST: usize = 256 << 20;
/// The least that `explain.maxBytes` allows.
pub(super) const EXPLAIN_MIN: NonZeroUsize = NonZeroUsize::new(1 << 20).unwrap();
/// Least and most memory that can be configured.
const ALLOWED: std::ops::RangeInclusive<usize> = 96 << 20..=1 << 44;

/// The memory that the program may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// The container's memory; without a limit of the container, every limit has its default.
    #[default]
    Container,
    /// Every limit has its default.
    Unlimited,
    /// This many bytes.
    Bytes(NonZeroUsize),
}

const NAMED: [(&str, Memory); 2] = [("container", Memory::Container), ("unlimited", Memory::Unlimited)];

pub(super) fn memory() -> Form<'static, Memory> {
    let (named, size) = (values::choice(&NAMED), values::size(ALLOWED));
    let allowed = format!("container, unlimited, or {}", size.allowed());
    let read = move |value: &Value| named.read(value).or_else(|| size.read(value).map(Memory::Bytes));
    Form::new(values::mixed(), allowed, read, |memory| match memory {
        Memory::Bytes(bytes) => values::size(ALLOWED).write(bytes),
        named => values::choice(&NAMED).write(named),
    })
}

impl Memory {
    /// Returns the bytes to divide, in a container with this much memory.
    pub(super) fn bytes(self, container: Option<NonZeroUsize>) -> Option<NonZeroUsize> {
        match self {
            Self::Container => container,
            Self::Unlimited => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// Sets the limits of what grows, which the file may then set one by one, in proportion to the memory.
pub(super) fn divide(config: &mut Config, bytes: NonZeroUsize) {
    let part = bytes.get().saturating_sub(PROGRAM).clamp(PROGRAM / 4, MULTIPLE * DEFAULTS) as u128;
    let shard::Settings { max_sources, max_tracked_keys, outbox, explain } = &mut config.shard;
    let outbox::Settings { max_records, max_bytes, max_budgets, .. } = outbox;
    let store::Settings { max_events, max_bytes: store_bytes, max_changes, .. } = &mut config.upstream.store;
    for limit in [
        max_sources,
        max_tracked_keys,
        max_records,
        max_bytes,
        max_budgets,
        max_events,
        store_bytes,
        max_changes,
        &mut config.ingest.max_aliases,
        &mut config.ingest.max_list_bytes,
        &mut config.ingest.max_read_bytes,
        &mut explain.max_bytes,
    ] {
        let scaled = (limit.get() as u128).saturating_mul(part).checked_div(DEFAULTS as u128).unwrap_or_default();
        let scaled = usize::try_from(scaled).unwrap_or(usize::MAX);
        *limit = NonZeroUsize::new(scaled).unwrap_or(NonZeroUsize::MIN);
    }
    explain.max_bytes = explain.max_bytes.max(EXPLAIN_MIN);
    let max_lists = &mut config.ingest.max_lists;
    *max_lists = NonZeroUsize::new(bytes.get() / LIST).unwrap_or(NonZeroUsize::MIN).min(*max_lists);
}

/// Returns the kernel's memory limit of the container that the program runs in (cgroup v2, or v1).
pub fn container_memory() -> Option<NonZeroUsize> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let text = files.into_iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    // Without a limit: `max`, or in v1 a number beyond any memory.
    text.trim().parse().ok().filter(|bytes: &NonZeroUsize| bytes.get() < 1 << 50)
}
