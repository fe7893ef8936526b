//! The parts of [`Config`](super::Config) that no other module owns, with their defaults.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use smol_str::SmolStr;

use crate::correlator::Policy;
use crate::history;
use crate::ingest::{Ack, Repair};
use crate::server::tls::{self, CipherSuite, Identity, MinVersion};
use crate::shard;
use crate::upstream::{apiserver, store};

/// Default of the bytes that an old-style event's message keeps.
pub(super) const MESSAGE_BYTES: NonZeroUsize = const { NonZeroUsize::new(16 << 10).unwrap() };

/// TLS for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Files of a certificate and its key; without these and `self_signed_dir` clients speak in plain.
    pub files: Option<(PathBuf, PathBuf)>,
    /// The oldest version that is spoken. Default 1.2.
    pub min_version: MinVersion,
    /// Suites of TLS 1.2. Default all that are known.
    pub cipher_suites: Vec<CipherSuite>,
    /// The folder of an authority of our own, used instead of `files`.
    pub self_signed_dir: Option<PathBuf>,
    /// What a certificate of our own is good for. Default `localhost`, `127.0.0.1` and `::1`.
    pub self_signed_hosts: Vec<SmolStr>,
}

impl Tls {
    /// What the listener works with, with the authorities of client certificates; nothing where clients speak in plain.
    #[must_use]
    pub fn settings(&self, auth: &Auth) -> Option<tls::Settings> {
        let identity = match (&self.files, &self.self_signed_dir) {
            (Some((certificate, key)), _) => Identity::Files { certificate: certificate.clone(), key: key.clone() },
            (None, Some(dir)) => Identity::SelfSigned {
                dir: dir.clone(),
                hosts: self.self_signed_hosts.iter().map(ToString::to_string).collect(),
            },
            (None, None) => return None,
        };
        Some(tls::Settings {
            identity,
            min_version: self.min_version,
            cipher_suites: self.cipher_suites.clone(),
            client_ca: auth.client_ca_file.clone(),
            requires_certificate: false,
        })
    }
}

/// Who clients are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Auth {
    /// The authorities of client certificates; without them none is asked for.
    pub client_ca_file: Option<PathBuf>,
}

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

/// Where records live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    /// Which of the two implementations. Default embedded.
    pub backend: Backend,
    /// The apiserver; used when `backend` is `Apiserver`.
    pub apiserver: apiserver::Settings,
    /// How records are written to an apiserver. Default exact.
    pub writes: Writes,
    /// What is asked of an apiserver about the events that it holds. Default watch.
    pub history: history::Mode,
    /// The embedded store; used when `backend` is `Embedded`.
    pub store: store::Settings,
}

/// The two implementations of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// The store inside this process.
    Embedded,
    /// A kube-apiserver.
    Apiserver,
}

/// How records are written to an apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    /// With this process's own tally on each record and the version that a patch was made for: every occurrence counts once,
    /// although answers get lost and others write too.
    Exact,
    /// As client-go writes them, byte for byte.
    Plain,
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
    /// LIMIT: watches at once; further ones are refused with 429. Default 1,000.
    pub max_watches: NonZeroUsize,
    /// When a client is answered. Default accepted.
    pub ack: Ack,
    /// Whether events are mended that the apiserver would refuse. Default on, with messages of at most 16 KiB.
    pub repair: Repair,
}

/// A second configuration that is tried on the same events without writing.
#[derive(Debug, Clone, PartialEq)]
pub struct Shadow {
    /// Its file.
    pub file: PathBuf,
    /// Its rules.
    pub policy: Policy,
    /// Its limits and its outbox.
    pub shard: shard::Settings,
}

impl Shadow {
    /// What stands for a file that has not been read yet.
    pub(super) fn of_file(path: &str) -> Self {
        Self { file: PathBuf::from(path), policy: Policy::default(), shard: shard::Settings::default() }
    }
}

/// Standing where the apiserver stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passthrough {
    /// Whether everything but events goes on to the apiserver. Default off.
    pub enabled: bool,
    /// Whether callers may write events although nobody has asked who they are. Default `false`.
    pub insecure: bool,
    /// LIMIT: requests at the apiserver at once; further ones are refused with 429. Default 10,000.
    pub max_in_flight: NonZeroUsize,
    /// LIMIT: upgraded connections at once; further ones are refused with 429. Default 1,000.
    pub max_upgrades: NonZeroUsize,
}

/// Answering the apiserver's admission for events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// Whether it may ask. Default off.
    pub enabled: bool,
    /// How it is answered.
    pub settings: crate::ingest::Admission,
}

/// The orderly stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// Longest time to write what waits. Default 20 s; zero writes nothing more.
    pub drain_timeout: Duration,
    /// How long clients are asked to close their connections before idle ones are closed; at most half of `drain_timeout`,
    /// of which it is a part. Default 1 s.
    pub grace: Duration,
}

/// Number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shards {
    /// Eight a core, 64 at most, but never fewer than cores.
    Auto,
    /// This many.
    Fixed(NonZeroUsize),
}

impl Shards {
    /// Shards a core: so many that two threads seldom meet at the lock of one.
    const PER_CORE: usize = 8;
    /// Beyond so many, delivery would look through more of them than threads could meet.
    const AUTO_MAX: usize = 64;

    /// The number on a machine with `cores`.
    #[must_use]
    pub fn count(self, cores: NonZeroUsize) -> NonZeroUsize {
        match self {
            Self::Auto => {
                let many = cores.get().saturating_mul(Self::PER_CORE).min(Self::AUTO_MAX);
                NonZeroUsize::new(many).map_or(cores, |many| many.max(cores))
            }
            Self::Fixed(number) => number,
        }
    }
}

impl Default for Tls {
    fn default() -> Self {
        Self {
            files: None,
            min_version: MinVersion::Tls12,
            cipher_suites: Vec::new(),
            self_signed_dir: None,
            self_signed_hosts: ["localhost", "127.0.0.1", "::1"].map(SmolStr::new_static).to_vec(),
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
            apiserver: apiserver::Settings::default(),
            writes: Writes::Exact,
            history: history::Mode::Watch,
            store: store::Settings::default(),
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
            max_watches: const { NonZeroUsize::new(1_000).unwrap() },
            ack: Ack::Accepted,
            repair: Repair::On { message_bytes: MESSAGE_BYTES.get() },
        }
    }
}

impl Default for Passthrough {
    fn default() -> Self {
        Self {
            enabled: false,
            insecure: false,
            max_in_flight: const { NonZeroUsize::new(10_000).unwrap() },
            max_upgrades: const { NonZeroUsize::new(1_000).unwrap() },
        }
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { drain_timeout: Duration::from_secs(20), grace: Duration::from_secs(1) }
    }
}
