//! Settings of the embedded store.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::time::Duration;

use smol_str::SmolStr;

/// Settings of the embedded store; the defaults are in [`Settings::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// TTL of an event after the last write that changed it. Default 1 h, as kube-apiserver's `--event-ttl`; with zero,
    /// only the limits evict events.
    pub ttl: Duration,
    /// The namespaces that exist. Default: every one.
    pub namespaces: Namespaces,
    /// LIMIT: stored events. At the limit, the event that would expire first is evicted and counted. Default 1,000,000.
    pub max_events: NonZeroUsize,
    /// LIMIT: bytes of stored events (`Event::approximate_size`). At the limit, the event that would expire first is
    /// evicted and counted. Default 1 GiB.
    pub max_bytes: NonZeroUsize,
    /// LIMIT: changes kept for watches. A watch from before them gets 410. Their bytes are limited to a quarter of
    /// `max_bytes`. Default 10,000.
    pub max_changes: NonZeroUsize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(3600),
            namespaces: Namespaces::Auto,
            max_events: const { NonZeroUsize::new(1_000_000).unwrap() },
            max_bytes: const { NonZeroUsize::new(1 << 30).unwrap() },
            max_changes: const { NonZeroUsize::new(10_000).unwrap() },
        }
    }
}

/// The namespaces in which events can be created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Namespaces {
    /// Every namespace exists.
    #[default]
    Auto,
    /// These exist, and `default` and `kube-system`.
    List(BTreeSet<SmolStr>),
}

impl Namespaces {
    /// Whether events can be created in the namespace.
    pub fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::Auto => true,
            Self::List(names) => matches!(namespace, "default" | "kube-system") || names.contains(namespace),
        }
    }
}
