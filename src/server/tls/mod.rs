//! TLS at a listener: certificates that are read again when their files change, client certificates, handshakes with a
//! deadline.
//!
//! A new file that cannot be used changes nothing: what is in force stays, an error is logged and a metric counts it.
//! Connections keep what they began with.

mod ciphers;
mod files;
mod handshakes;
mod metrics;
mod names;
mod self_signed;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use ciphers::CipherSuite;
pub use files::{Fault, Part};
pub use metrics::Metrics;

use super::PeerCertificate;
use crate::clock::Now;
use files::{Contents, Digest, Loaded};
use handshakes::Handshakes;

/// Longest time for a handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// LIMIT: handshakes at once; beyond it the oldest is ended, so that half-open ones keep nobody out.
pub const MAX_HANDSHAKES: usize = 1024;
/// How often files are looked at.
pub const POLL: Duration = Duration::from_secs(10);

/// The first byte of a handshake.
const HANDSHAKE: u8 = 22;
/// What Go's server answers to plain HTTP.
const PLAIN: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    Client sent an HTTP request to an HTTPS server.\n";
/// LIMIT: bytes of a plain request that are read before its connection is closed.
const PLAIN_BYTES: u64 = 64 << 10;

/// How a listener speaks TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What it proves to be.
    pub identity: Identity,
    /// The oldest version that is spoken.
    pub min_version: MinVersion,
    /// Suites of TLS 1.2; empty for all that are known. Those of TLS 1.3 are not a choice, as in Go.
    pub cipher_suites: Vec<CipherSuite>,
    /// The authorities of client certificates; without them none is asked for.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub requires_certificate: bool,
}

/// The certificate of a listener and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// Of these files, in PEM.
    Files {
        /// The certificate, and those between it and its authority.
        certificate: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// Made at the start, by an authority of our own.
    SelfSigned {
        /// Where the authority is kept: `ca.crt`, for clients, and `ca.key`.
        dir: PathBuf,
        /// The names and IP addresses that it is good for.
        hosts: Vec<String>,
    },
}

/// The oldest version of TLS that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MinVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

/// What a listener's handshakes may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Longest time for one.
    pub timeout: Duration,
    /// LIMIT: how many at once; beyond it the oldest is ended.
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
    /// What was last read, whether it could be used or not, and when what is in force is to be made again.
    read: Mutex<(Digest, Option<i64>)>,
    handshakes: Handshakes,
    timeout: Duration,
    metrics: Metrics,
}

/// Looks whether everything that `settings` name can be used. Changes no file.
///
/// # Errors
/// Everything that is wrong.
pub fn check(settings: &Settings) -> Result<(), Vec<Fault>> {
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

impl Tls {
    /// Reads the files, or makes a certificate.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn new(settings: Settings, limits: Limits, now: Now, metrics: Metrics) -> Result<Self, Vec<Fault>> {
        let contents = Contents::read(&settings);
        let digest = contents.digest();
        let Loaded { config, expires, renew_at } = contents.load(&settings, now)?;
        metrics.expires(expires);
        Ok(Self(Arc::new(Inner {
            settings,
            config: ArcSwap::new(config),
            read: Mutex::new((digest, renew_at)),
            handshakes: Handshakes::new(limits.at_once),
            timeout: limits.timeout,
            metrics,
        })))
    }

    /// Reads the files again, and takes over what has changed if it can be used.
    pub fn reread(&self, now: Now) {
        let Inner { settings, config, read, metrics, .. } = &*self.0;
        let (contents, mut read) = (Contents::read(settings), read.lock());
        let digest = contents.digest();
        let is_old = read.1.is_some_and(|renew_at| now.wall_seconds() >= renew_at);
        if digest == read.0 && !is_old {
            return;
        }
        read.0 = digest;
        match contents.load(settings, now) {
            Ok(Loaded { config: new, expires, renew_at }) => {
                config.store(new);
                read.1 = renew_at;
                metrics.expires(expires);
                tracing::info!(listener = metrics.listener(), "new certificates are in force");
            }
            Err(faults) => {
                metrics.failed();
                for Fault { part, reason } in faults {
                    let (listener, part) = (metrics.listener(), part.label());
                    tracing::error!(listener, part, %reason, "new certificates cannot be used; the old stay in force");
                }
            }
        }
    }

    /// Carries out the handshake with a client.
    ///
    /// # Errors
    /// When it fails, takes too long or has to make room for others, or when the client does not speak TLS.
    pub(super) async fn shake(
        &self,
        mut stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Option<PeerCertificate>)> {
        let place = self.0.handshakes.begin();
        let shaking = timeout(self.0.timeout, async {
            let mut first = [0];
            stream.peek(&mut first).await?;
            if first[0].is_ascii_uppercase() && first[0] != HANDSHAKE {
                refuse_plain(&mut stream).await?;
                return Err(io::Error::other("the client spoke HTTP without TLS"));
            }
            TlsAcceptor::from(self.0.config.load_full()).accept(stream).await
        });
        let stream = tokio::select! {
            biased;
            () = place.ended() => Err(io::Error::other("too many handshakes; the oldest are ended")),
            shaken = shaking => shaken.map_err(io::Error::from).flatten(),
        }?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| names::read(chain.first()?));
        Ok((stream, certificate))
    }
}

/// Answers a client that speaks HTTP, and waits until it has read that.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(PLAIN).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(PLAIN_BYTES), &mut tokio::io::sink()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_of_our_own_is_made_again_before_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            identity: Identity::SelfSigned { dir: folder.path().to_owned(), hosts: vec!["localhost".to_owned()] },
            min_version: MinVersion::Tls12,
            cipher_suites: Vec::new(),
            client_ca: None,
            requires_certificate: false,
        };
        let metrics = Metrics::new(&prometheus::Registry::new(), ["main"]).unwrap().remove(0);
        let at = |days: i64| Now { wall: days * 86_400_000_000_000, ..Now::default() };
        let tls = Tls::new(settings, Limits::default(), at(20_000), metrics).unwrap();
        let seen = |days: i64| {
            tls.reread(at(days));
            Arc::as_ptr(&tls.0.config.load_full())
        };
        let [first, second, third, fourth] = [20_001, 20_200, 20_300, 20_400].map(seen);
        assert!(first == second && second != third && third == fourth);
    }
}
