//! Reads the files of the settings and builds the rustls configuration.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, version};

use super::{Identity, MinVersion, Settings, ciphers, names, self_signed};
use crate::clock::Now;

/// LIMIT: bytes of a file; a larger one is refused.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A fault of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError {
    /// Part of the settings.
    pub part: Part,
    /// Reason; begins with the path.
    pub reason: String,
}

labelled! {
    /// A part of the settings that names a file.
    pub enum Part {
        /// Certificate.
        Certificate = "certificate",
        /// Private key.
        Key = "key",
        /// Authorities of client certificates.
        ClientCa = "client CA",
        /// Folder of the own authority.
        Dir = "folder",
        /// Names in a generated certificate.
        Hosts = "hosts",
    }
}

impl Part {
    /// Makes a fault of this part.
    pub(super) fn fault(self, path: &Path, reason: impl std::fmt::Display) -> FileError {
        FileError { part: self, reason: format!("{}: {reason}", path.display()) }
    }
}

/// A usable configuration.
pub(super) struct Loaded {
    pub(super) config: Arc<ServerConfig>,
    /// Expiry of the certificate, in seconds since 1970.
    pub(super) expires: i64,
    /// Seconds in which a generated certificate is used. Outside of them it is renewed.
    pub(super) used: Option<Range<i64>>,
    /// Why handshakes fail although it is usable; each begins with the path of the certificate.
    pub(super) doubts: Vec<String>,
}

/// A certificate with its intermediates, and its key.
pub(super) struct Pair {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) used: Option<Range<i64>>,
}

/// Contents of the files, or the reasons for which they cannot be read.
pub(super) struct Contents {
    /// Certificate and key, if they are files.
    pair: Option<[Content; 2]>,
    client_ca: Option<Content>,
}

type Content = Result<Vec<u8>, FileError>;

impl Contents {
    pub(super) fn read(settings: &Settings) -> Self {
        let pair = match &settings.identity {
            Identity::Files { certificate, key } => Some([read(Part::Certificate, certificate), read(Part::Key, key)]),
            Identity::SelfSigned { .. } => None,
        };
        let client_ca = settings.client_ca.as_deref().map(|path| read(Part::ClientCa, path));
        Self { pair, client_ca }
    }

    /// Returns a hash that is equal for equal contents and equal faults.
    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for content in self.pair.iter().flatten().chain(&self.client_ca) {
            content.as_ref().map_or_else(|fault| fault.reason.as_bytes(), Vec::as_slice).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Builds the rustls configuration.
    pub(super) fn load(self, settings: &Settings, now: Now) -> Result<Loaded, Vec<FileError>> {
        let roots = match (self.client_ca, &settings.client_ca) {
            (Some(pem), Some(path)) => pem.and_then(|pem| authorities(path, &pem)).map(Some),
            _ => Ok(None),
        };
        let pair = match (&settings.identity, self.pair) {
            (Identity::Files { certificate, key }, Some(contents)) => pair([certificate, key], contents),
            (Identity::SelfSigned { dir, hosts }, _) => self_signed::pair(dir, hosts, now),
            (Identity::Files { .. }, None) => Err(Vec::new()),
        };
        match (pair, roots) {
            (Ok(pair), Ok(roots)) => configure(settings, pair, roots, now),
            (pair, roots) => Err(pair.err().into_iter().flatten().chain(roots.err()).collect()),
        }
    }

    /// Checks only the authorities of client certificates.
    pub(super) fn check_client_ca(self, settings: &Settings) -> Result<(), FileError> {
        match (self.client_ca, &settings.client_ca) {
            (Some(pem), Some(path)) => authorities(path, &pem?).map(drop),
            _ => Ok(()),
        }
    }
}

pub(super) fn read(part: Part, path: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| part.fault(path, error))?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| part.fault(path, error))?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= FILE_BYTES_MAX) {
        Ok(bytes)
    } else {
        Err(part.fault(path, "is larger than 1 MiB"))
    }
}

fn pair([certificate_path, key_path]: [&Path; 2], [certificate, key]: [Content; 2]) -> Result<Pair, Vec<FileError>> {
    let chain = certificate.and_then(|pem| certificates(Part::Certificate, certificate_path, &pem));
    let key = key.and_then(|pem| private_key(Part::Key, key_path, &pem));
    match (chain, key) {
        (Ok(chain), Ok(key)) => Ok(Pair { chain, key, used: None }),
        (chain, key) => Err(chain.err().into_iter().chain(key.err()).collect()),
    }
}

pub(super) fn certificates(part: Part, path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(part.fault(path, "holds no certificate in PEM")),
        Err(_damaged) => Err(part.fault(path, DAMAGED)),
    }
}

/// The reason for a certificate that is no X.509.
const UNREADABLE: &str = "holds no certificate that can be read";

/// The reason for PEM without an end, or with characters that are none of base64.
const DAMAGED: &str = "is cut off or damaged";

pub(super) fn private_key(part: Part, path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, FileError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
        let reason = match error {
            _ if pem.windows(9).any(|word| word == b"ENCRYPTED") => "has a password, which is not supported",
            pem::Error::NoItemsFound => "holds no private key in PEM",
            _ => DAMAGED,
        };
        part.fault(path, reason)
    })
}

/// Parses the authorities of client certificates.
fn authorities(path: &Path, pem: &[u8]) -> Result<RootCertStore, FileError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(Part::ClientCa, path, pem)? {
        roots.add(certificate).map_err(|_error| Part::ClientCa.fault(path, UNREADABLE))?;
    }
    Ok(roots)
}

fn configure(
    settings: &Settings,
    pair: Pair,
    roots: Option<RootCertStore>,
    now: Now,
) -> Result<Loaded, Vec<FileError>> {
    let provider = Arc::new(ciphers::provider(&settings.cipher_suites));
    let (certificate_path, key_path) = match &settings.identity {
        Identity::Files { certificate, key } => (certificate, key),
        Identity::SelfSigned { dir, .. } => (dir, dir),
    };
    let wrong = |part: Part, path, reason: String| vec![part.fault(path, reason)];
    let Pair { chain, key, used } = pair;
    let expires = chain.first().and_then(names::expires);
    let expires = expires.ok_or_else(|| wrong(Part::Certificate, certificate_path, UNREADABLE.to_owned()))?;
    let invalid = chain.first().and_then(|certificate| names::invalid(certificate, now.wall_seconds()));
    // Also compares the key with the certificate.
    let certified = CertifiedKey::from_der(chain, key, &provider)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => "does not go with the certificate".to_owned(),
            error => format!("cannot be used: {error}"),
        })
        .map_err(|reason| wrong(Part::Key, key_path, reason))?;
    let unfit = (settings.min_version == MinVersion::Tls12 && !ciphers::fit(&provider, &*certified.key)).then(|| {
        "has a key that no chosen cipher suite of TLS 1.2 is for, so clients without TLS 1.3 cannot connect".to_owned()
    });
    let doubts = invalid.into_iter().chain(unfit).map(|doubt| format!("{}: {doubt}", certificate_path.display()));
    let doubts = doubts.collect();
    let versions = match settings.min_version {
        MinVersion::Tls12 => &[&version::TLS13, &version::TLS12][..],
        MinVersion::Tls13 => &[&version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| wrong(Part::Certificate, certificate_path, error.to_string()))?;
    let builder = match (roots, &settings.client_ca) {
        (Some(roots), Some(path)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if settings.requires_certificate { verifier } else { verifier.allow_unauthenticated() };
            let verifier = verifier.build().map_err(|error| wrong(Part::ClientCa, path, error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
    config.alpn_protocols = [&b"h2"[..], b"http/1.1"].map(<[u8]>::to_vec).to_vec();
    Ok(Loaded { config: Arc::new(config), expires, used, doubts })
}
