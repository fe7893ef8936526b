//! TLS of a listener: certificates that are reloaded when their files change, client certificates, and handshakes with
//! a timeout.
//!
//! A new file that cannot be used changes nothing: the old certificates stay active, an error is logged and a metric
//! counts it. Open connections keep their certificates.

mod ciphers;
mod files;
mod names;
mod self_signed;

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGaugeVec, Registry};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use ciphers::CipherSuite;
pub use files::{FileError, Part};

use super::newest::Newest;
use super::{LogPause, PeerCertificate};
use crate::clock::Now;
use crate::metrics::Registrar;
use files::{Contents, Loaded};

/// Timeout of a handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// LIMIT: handshakes at once; beyond it the oldest is ended, so that half-open ones cannot lock other clients out.
pub const MAX_HANDSHAKES: usize = 1024;
/// Interval between checks of the files.
pub const POLL: Duration = Duration::from_secs(10);

/// Answer of Go's server to plain HTTP.
const PLAIN: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    Client sent an HTTP request to an HTTPS server.\n";
/// LIMIT: bytes of a plain request that are read before its connection is closed.
const PLAIN_BYTES: u64 = 64 << 10;

/// TLS settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Certificate and key.
    pub identity: Identity,
    /// Oldest accepted version.
    pub min_version: MinVersion,
    /// Suites of TLS 1.2; empty for all. Those of TLS 1.3 cannot be chosen, as in Go.
    pub cipher_suites: Vec<CipherSuite>,
    /// Authorities of client certificates; without them no client certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub requires_certificate: bool,
}

/// Certificate and key of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// PEM files.
    Files {
        /// Certificate and intermediate certificates.
        certificate: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// Generated at start, signed by an own authority.
    SelfSigned {
        /// Folder of the authority: `ca.crt`, for clients, and `ca.key`.
        dir: PathBuf,
        /// Names and IP addresses in the certificate.
        hosts: Vec<String>,
    },
}

/// Oldest accepted version of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// Limits of a listener's handshakes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Timeout of one handshake.
    pub timeout: Duration,
    /// LIMIT: handshakes at once; beyond it the oldest is ended.
    pub at_once: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { timeout: HANDSHAKE_TIMEOUT, at_once: MAX_HANDSHAKES }
    }
}

/// TLS of a listener.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    config: ArcSwap<ServerConfig>,
    /// Hash of the files as last read, usable or not, and the seconds in which the active certificate is used.
    read: Mutex<(u64, Option<Range<i64>>)>,
    /// Running handshakes.
    handshakes: Newest,
    timeout: Duration,
    metrics: Metrics,
    log_pause: LogPause,
}

/// Checks whether the files of `settings` can be used. Changes no file.
///
/// # Errors
/// All faults.
pub fn check(settings: &Settings) -> Result<(), Vec<FileError>> {
    let contents = Contents::read(settings);
    match &settings.identity {
        Identity::Files { .. } => contents.load(settings, Now::default()).map(drop),
        Identity::SelfSigned { dir, hosts } => {
            let mut faults = self_signed::check(dir, hosts).err().unwrap_or_default();
            faults.extend(contents.check_client_ca(settings).err());
            if faults.is_empty() { Ok(()) } else { Err(faults) }
        }
    }
}

/// Returns why handshakes fail at this time although the files of `settings` can be used. A generated certificate is
/// not checked, because that would make it.
pub fn doubts(settings: &Settings, now: Now) -> Vec<String> {
    match settings.identity {
        Identity::Files { .. } => Contents::read(settings).load(settings, now).map(|loaded| loaded.doubts),
        Identity::SelfSigned { .. } => Ok(Vec::new()),
    }
    .unwrap_or_default()
}

impl Tls {
    /// Reads the files, or generates a certificate.
    ///
    /// # Errors
    /// All faults.
    pub fn new(settings: Settings, limits: Limits, now: Now, metrics: Metrics) -> Result<Self, Vec<FileError>> {
        let contents = Contents::read(&settings);
        let hash = contents.hash();
        let Loaded { config, expires, used, doubts } = contents.load(&settings, now)?;
        metrics.active(expires, &doubts);
        Ok(Self(Arc::new(Inner {
            settings,
            config: ArcSwap::new(config),
            read: Mutex::new((hash, used)),
            handshakes: Newest::new(limits.at_once),
            timeout: limits.timeout,
            metrics,
            log_pause: LogPause::default(),
        })))
    }

    /// Reads the files again, and applies changes that can be used.
    pub fn reread(&self, now: Now) {
        let Inner { settings, config, read, metrics, .. } = &*self.0;
        let (contents, mut read) = (Contents::read(settings), read.lock());
        let hash = contents.hash();
        let is_old = read.1.as_ref().is_some_and(|used| !used.contains(&now.wall_seconds()));
        if hash == read.0 && !is_old {
            return;
        }
        read.0 = hash;
        match contents.load(settings, now) {
            Ok(Loaded { config: new, expires, used, doubts }) => {
                config.store(new);
                read.1 = used;
                tracing::info!(listener = metrics.listener, "new certificates are active");
                metrics.active(expires, &doubts);
            }
            Err(faults) => {
                metrics.failed();
                for FileError { part, reason } in faults {
                    let (listener, part) = (metrics.listener, part.label());
                    tracing::error!(listener, part, %reason, "new certificates cannot be used; the old ones stay active");
                }
            }
        }
    }

    /// Performs the handshake with a client. Logs and counts a failure, except of a client that sends nothing, such as
    /// the probe of a load balancer.
    ///
    /// # Errors
    /// When it fails, times out, is ended at the limit of handshakes, or when the client does not speak TLS.
    pub(super) async fn shake(
        &self,
        mut stream: TcpStream,
        address: SocketAddr,
    ) -> io::Result<(TlsStream<TcpStream>, Option<PeerCertificate>)> {
        let (handshake, mut has_begun) = (self.0.handshakes.enter(), false);
        let shaking = timeout(self.0.timeout, async {
            let mut first = [0];
            has_begun = stream.peek(&mut first).await? > 0;
            // A handshake begins with 22.
            if first[0].is_ascii_uppercase() {
                let _left = refuse_plain(&mut stream).await;
                return Err(io::Error::new(io::ErrorKind::Unsupported, "the client spoke HTTP without TLS"));
            }
            TlsAcceptor::from(self.0.config.load_full()).accept(stream).await
        });
        let stream = tokio::select! {
            biased;
            () = handshake.ended.cancelled() => Err(io::Error::other("too many handshakes; the oldest are ended")),
            shaken = shaking => shaken.map_err(io::Error::from).flatten(),
        };
        let stream = stream.inspect_err(|error| {
            if has_begun {
                self.note_failure(address, error);
            }
        })?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| names::read(chain.first()?));
        Ok((stream, certificate))
    }

    fn note_failure(&self, address: SocketAddr, error: &io::Error) {
        let Inner { metrics, log_pause, .. } = &*self.0;
        let reason = Failure::of(error);
        metrics.failures[reason as usize].inc();
        if log_pause.is_over() {
            let (listener, reason) = (metrics.listener, reason.label());
            tracing::warn!(listener, %address, reason, %error, "a TLS handshake failed");
        }
    }
}

labelled! {
    /// Reason for which a handshake failed.
    enum Failure {
        /// The client's certificate is missing or refused.
        Certificate = "certificate",
        /// The client has ended it with an alert, as when it does not trust the listener's certificate.
        Client = "client",
        /// The client spoke HTTP without TLS.
        Plain = "plain",
        Timeout = "timeout",
        Other = "other",
    }
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => Self::Certificate,
            Some(rustls::Error::AlertReceived(_)) => Self::Client,
            _ if error.kind() == io::ErrorKind::Unsupported => Self::Plain,
            _ if error.kind() == io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Other,
        }
    }
}

/// Answers a client that speaks plain HTTP, and waits until it has read the answer.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(PLAIN).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(PLAIN_BYTES), &mut tokio::io::sink()).await.map(drop)
}

/// Metrics of one listener.
#[derive(Debug, Clone)]
pub struct Metrics {
    listener: &'static str,
    last_reload_successful: IntGaugeVec,
    expiry: IntGaugeVec,
    /// By [`Failure`].
    failures: [IntCounter; Failure::ALL.len()],
}

impl Metrics {
    /// Registers the metrics of all listeners with TLS, one series each.
    pub fn new(registry: &Registry, listeners: impl IntoIterator<Item = &'static str>) -> Vec<Self> {
        let make = Registrar(registry);
        let last_reload_successful = make.gauges(
            "eventweir_tls_last_reload_successful",
            "0 while the newest certificate files cannot be used, so that the old ones are active.",
            &["listener"],
        );
        let expiry = make.gauges(
            "eventweir_tls_certificate_expiry_timestamp_seconds",
            "Expiry of the listener's certificate, in seconds since 1970.",
            &["listener"],
        );
        let failures = make.counters(
            "eventweir_tls_handshake_failures_total",
            "Failed TLS handshakes of clients.",
            &["listener", "reason"],
        );
        let of = |listener| {
            let (last_reload_successful, expiry) = (last_reload_successful.clone(), expiry.clone());
            let failures = Failure::ALL.map(|reason| failures.with_label_values(&[listener, reason.label()]));
            Self { listener, last_reload_successful, expiry, failures }
        };
        listeners.into_iter().map(of).collect()
    }

    fn failed(&self) {
        self.last_reload_successful.with_label_values(&[self.listener]).set(0);
    }

    /// Notes that a certificate is active that expires `at` these seconds since 1970. Logs why handshakes fail with it.
    fn active(&self, at: i64, doubts: &[String]) {
        for reason in doubts {
            tracing::warn!(listener = self.listener, %reason, "TLS handshakes will fail");
        }
        self.last_reload_successful.with_label_values(&[self.listener]).set(1);
        self.expiry.with_label_values(&[self.listener]).set(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_fail_outside_of_the_validity_and_with_the_suites_of_another_key() {
        let folder = tempfile::tempdir().unwrap();
        let [certificate, key] = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
        let (mut params, own) = (rcgen::CertificateParams::default(), rcgen::KeyPair::generate().unwrap());
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
        std::fs::write(&certificate, params.self_signed(&own).unwrap().pem()).unwrap();
        std::fs::write(&key, own.serialize_pem()).unwrap();
        let told = |suite: &str, min_version, day: i64| {
            let settings = Settings {
                identity: Identity::Files { certificate: certificate.clone(), key: key.clone() },
                min_version,
                cipher_suites: CipherSuite::of(suite).into_iter().collect(),
                client_ca: None,
                requires_certificate: false,
            };
            let reasons = doubts(&settings, Now { wall: day * 86_400_000_000_000, ..Now::default() }).join("; ");
            reasons.replace(&format!("{}: ", certificate.display()), "")
        };
        let (rsa, ecdsa) = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256");
        let unfit =
            "has a key that no chosen cipher suite of TLS 1.2 is for, so clients without TLS 1.3 cannot connect";
        for (suite, version, day, expected) in [
            ("", MinVersion::Tls12, 18_262, ""),
            ("", MinVersion::Tls12, 18_261, "is not valid before 2020-01-01T00:00:00Z, so clients will refuse it"),
            ("", MinVersion::Tls12, 18_629, "has expired at 2021-01-01T00:00:00Z, so clients will refuse it"),
            (ecdsa, MinVersion::Tls12, 18_262, ""),
            (rsa, MinVersion::Tls12, 18_262, unfit),
            ("TLS_AES_128_GCM_SHA256", MinVersion::Tls12, 18_262, unfit),
            (rsa, MinVersion::Tls13, 18_262, ""),
        ] {
            assert_eq!(told(suite, version, day), expected, "{suite} {version:?} {day}");
        }
    }

    #[test]
    fn a_generated_certificate_is_renewed_before_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            identity: Identity::SelfSigned { dir: folder.path().to_owned(), hosts: vec!["localhost".to_owned()] },
            min_version: MinVersion::Tls12,
            cipher_suites: Vec::new(),
            client_ca: None,
            requires_certificate: false,
        };
        let metrics = Metrics::new(&prometheus::Registry::new(), ["main"]).remove(0);
        let at = |days: i64| Now { wall: days * 86_400_000_000_000, ..Now::default() };
        let tls = Tls::new(settings, Limits::default(), at(20_000), metrics).unwrap();
        let seen = |days: i64| {
            tls.reread(at(days));
            Arc::as_ptr(&tls.0.config.load_full())
        };
        let [first, second, third, fourth] = [20_001, 20_200, 20_300, 20_400].map(seen);
        assert!(first == second && second != third && third == fourth);
        // Fault: with a clock that was set back, clients refused it as not yet valid.
        assert_ne!(fourth, seen(20_298));
    }
}
