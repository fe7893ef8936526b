//! The parts of [`Config`](super::Config) that no other module owns, with their defaults.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use smol_str::SmolStr;

use crate::correlator::Policy;

/// The program's own log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// How lines look. Default text.
    pub format: LogFormat,
    /// A level, or directives such as `info,eventweir::upstream=debug`. Default `info`.
    pub level: SmolStr,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Where every occurrence is written as a JSON line, as client-go's `StartLogging` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventLog {
    /// Nowhere.
    None,
    /// Standard output.
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

/// Where records live, and how hard it may be pressed.
#[derive(Debug, Clone, PartialEq)]
pub struct Upstream {
    /// Which of the two implementations. Default embedded.
    pub backend: Backend,
    /// Deadline of one request. Default 10 s.
    pub timeout: Duration,
    /// LIMIT: requests in flight, over all shards; further ones wait in the outbox. Default 32.
    pub max_in_flight: NonZeroUsize,
    /// Most requests per second. Default `None`: unlimited.
    pub rate: Option<Rate>,
    /// How the apiserver is found; used when `backend` is `Apiserver`.
    pub kubeconfig: Kubeconfig,
    /// The embedded store; used when `backend` is `Embedded`.
    pub embedded: Embedded,
}

/// The two implementations of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The store inside this process.
    Embedded,
    /// A kube-apiserver.
    Apiserver,
}

/// A token bucket over all requests to the upstream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests per second.
    pub qps: f32,
    /// Requests at once after a pause.
    pub burst: u32,
}

/// How the apiserver is found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Kubeconfig {
    /// The file. Default `None`: what kubectl would use, or the service account inside a cluster.
    pub path: Option<PathBuf>,
    /// The context of the file. Default `None`: its current context.
    pub context: Option<SmolStr>,
}

/// The embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Embedded {
    /// Age at which a record is forgotten. Default 1 h, the apiserver's `--event-ttl`.
    pub ttl: Duration,
    /// Namespaces that exist. Default each that is named.
    pub namespaces: Namespaces,
    /// LIMIT: records held; at the limit new ones are refused. Default 1,000,000.
    pub max_events: NonZeroUsize,
}

/// Namespaces of the embedded store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    /// Every namespace exists once it is named.
    Auto,
    /// These exist, and no others.
    List(Vec<SmolStr>),
}

/// How events are correlated.
#[derive(Debug, Clone, PartialEq)]
pub struct Correlation {
    /// Base settings and rules.
    pub policy: Policy,
    /// LIMIT: sources that are tracked; the one idle for longest is forgotten. Default 10,000.
    pub max_sources: NonZeroUsize,
    /// LIMIT: keys that are tracked, over all sources and caches. Default 1,000,000.
    pub max_tracked_keys: NonZeroUsize,
}

/// What clients may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingest {
    /// LIMIT: bytes of a request's body; larger ones are refused with 413. Default 3 MiB, as the apiserver.
    pub max_body_bytes: NonZeroUsize,
    /// LIMIT: connections at once; further ones wait to be accepted. Default 10,000.
    pub max_connections: NonZeroUsize,
    /// Longest time for a request's header and body to arrive. Default 60 s.
    pub request_timeout: Duration,
    /// LIMIT: names under which clients know events whose record has another name; the oldest is forgotten. Default 100,000.
    pub max_aliases: NonZeroUsize,
}

/// The orderly stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shutdown {
    /// Longest time to write what waits. Default 20 s; zero writes nothing more.
    pub drain_timeout: Duration,
}

/// Number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shards {
    /// One per core.
    Auto,
    /// This many.
    Fixed(NonZeroUsize),
}

impl Shards {
    /// The number on a machine with `cores`.
    #[must_use]
    pub const fn count(self, cores: NonZeroUsize) -> NonZeroUsize {
        match self {
            Self::Auto => cores,
            Self::Fixed(number) => number,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: SmolStr::new_static("info") }
    }
}

impl Default for Upstream {
    fn default() -> Self {
        Self {
            backend: Backend::Embedded,
            timeout: Duration::from_secs(10),
            max_in_flight: const { NonZeroUsize::new(32).unwrap() },
            rate: None,
            kubeconfig: Kubeconfig::default(),
            embedded: Embedded::default(),
        }
    }
}

impl Default for Embedded {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(3600),
            namespaces: Namespaces::Auto,
            max_events: const { NonZeroUsize::new(1_000_000).unwrap() },
        }
    }
}

impl Default for Correlation {
    fn default() -> Self {
        Self {
            policy: Policy::default(),
            max_sources: const { NonZeroUsize::new(10_000).unwrap() },
            max_tracked_keys: const { NonZeroUsize::new(1_000_000).unwrap() },
        }
    }
}

impl Default for Ingest {
    fn default() -> Self {
        Self {
            max_body_bytes: const { NonZeroUsize::new(3 << 20).unwrap() },
            max_connections: const { NonZeroUsize::new(10_000).unwrap() },
            request_timeout: Duration::from_secs(60),
            max_aliases: const { NonZeroUsize::new(100_000).unwrap() },
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(20) }
    }
}
