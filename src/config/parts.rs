//! The sections of [`Config`](super::Config) that no other module owns, with their defaults.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use smol_str::SmolStr;

use crate::history;
use crate::server::tls::{self, CipherSuite, Identity, MinVersion};
use crate::upstream::{apiserver, store};

/// TLS for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// Files of a certificate and its key. Without these and `self_signed_dir` there is no TLS.
    pub files: Option<(PathBuf, PathBuf)>,
    /// The oldest version that is accepted. Default 1.2.
    pub min_version: MinVersion,
    /// Cipher suites of TLS 1.2. Default all supported ones.
    pub cipher_suites: Vec<CipherSuite>,
    /// The folder of a self-signed authority, used instead of `files`.
    pub self_signed_dir: Option<PathBuf>,
    /// Names and addresses in a self-signed certificate. Default `localhost`, `127.0.0.1` and `::1`.
    pub self_signed_hosts: Vec<SmolStr>,
    /// The authorities of client certificates, `auth.clientCAFile` in the file. Without them the listener requests no
    /// certificate.
    pub client_ca_file: Option<PathBuf>,
}

impl Tls {
    /// Returns the settings of the listener; `None` without TLS.
    pub fn settings(&self) -> Option<tls::Settings> {
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
            client_ca: self.client_ca_file.clone(),
            requires_certificate: false,
        })
    }
}

/// The program's own log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Format of a line. Default text.
    pub format: LogFormat,
    /// A level, or directives such as `info,eventweir::upstream=debug`. Default `info`.
    pub level: SmolStr,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The upstream, which stores records.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Upstream {
    /// Which implementation. Default embedded.
    pub backend: Backend,
    /// The apiserver; used when `backend` is `Apiserver`.
    pub apiserver: apiserver::Settings,
    /// How records are written to an apiserver. Default exact.
    pub writes: Writes,
    /// How to follow the events that an apiserver stores. Default watch.
    pub history: history::Mode,
    /// The embedded store; used when `backend` is `Embedded`.
    pub store: store::Settings,
}

/// The implementations of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// The store inside this process.
    #[default]
    Embedded,
    /// A kube-apiserver.
    Apiserver,
}

/// How records are written to an apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Writes {
    /// With this process's tag on each record, and with the version that a patch was computed from: every occurrence
    /// counts once, even when answers are lost and other writers change the record.
    #[default]
    Exact,
    /// As client-go writes them, byte for byte.
    Plain,
}

/// Pass-through of requests to the apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passthrough {
    /// Whether all requests but those for events are passed to the apiserver. Default off.
    pub enabled: bool,
    /// Whether callers that are not authenticated may write events. Default `false`.
    pub insecure: bool,
    /// Whether callers that have only a client certificate are impersonated. Default `false`.
    pub impersonate: bool,
    /// LIMIT: concurrent requests to the apiserver; further ones get 429. Default 10,000.
    pub max_in_flight: NonZeroUsize,
    /// LIMIT: concurrent upgraded connections; further ones get 429. Default 1,000.
    pub max_upgrades: NonZeroUsize,
}

/// The admission webhook for events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Admission {
    /// Whether the webhook is served. Default off.
    pub enabled: bool,
    /// How it answers.
    pub settings: crate::ingest::Admission,
}

/// The orderly stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shutdown {
    /// Timeout for writing what waits. Default 20 s; zero writes nothing more.
    pub drain_timeout: Duration,
    /// How long clients are asked to close their connections, before idle ones are closed. It is a part of
    /// `drain_timeout`, at most half of it. Default 1 s.
    pub grace: Duration,
}

/// Number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shards {
    /// Eight per core, at most 64, but at least one per core.
    Auto,
    /// A fixed number.
    Fixed(NonZeroUsize),
}

impl Shards {
    /// Shards per core, so that two threads seldom wait for the same lock.
    const PER_CORE: usize = 8;
    /// Upper end of `Auto`: delivery scans all shards, and more of them do not reduce waiting any further.
    const AUTO_MAX: usize = 64;

    /// Returns the number on a machine with `cores`.
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
            client_ca_file: None,
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Text, level: SmolStr::new_static("info") }
    }
}

impl Default for Passthrough {
    fn default() -> Self {
        Self {
            enabled: false,
            insecure: false,
            impersonate: false,
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
