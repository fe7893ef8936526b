//! Authorities, certificates, and clients that trust them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::client::ClientConnection;
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::events::START;
use super::http::Client;

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub(crate) struct Certificate {
    pub(crate) der: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "authority");
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn der(&self) -> &CertificateDer<'static> {
        self.0.der()
    }

    pub(crate) fn pem(&self) -> String {
        pem("CERTIFICATE", self.der())
    }

    /// Issues a certificate for `localhost` and 127.0.0.1.
    pub(crate) fn server(&self) -> Certificate {
        let mut params = CertificateParams::new(["localhost", "127.0.0.1"].map(str::to_owned)).unwrap();
        params.not_after = date_time_ymd(2100, 1, 1);
        self.sign(&params)
    }

    /// Issues a certificate of a user in these groups, at most two.
    pub(crate) fn client(&self, name: &str, groups: &[&str]) -> Certificate {
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(2100, 1, 1);
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        // rcgen keeps one value per type, but takes two names of a type as two types.
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        for (kind, group) in types.into_iter().zip(groups) {
            params.distinguished_name.push(kind, *group);
        }
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Certificate {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Certificate { der: certificate.der().clone(), key: key.serialize_der() }
    }
}

impl Certificate {
    /// Writes `tls.crt` and `tls.key`.
    pub(crate) fn write(&self, folder: &Path) {
        std::fs::write(folder.join("tls.crt"), pem("CERTIFICATE", &self.der)).unwrap();
        std::fs::write(folder.join("tls.key"), pem("PRIVATE KEY", &self.key)).unwrap();
    }
}

pub(crate) fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
}

/// Time of the tests, at which their certificates are valid.
#[derive(Debug)]
struct Then;

impl TimeProvider for Then {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_nanos(START.unsigned_abs())))
    }
}

/// TLS settings of a client.
pub(crate) struct Trust {
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) versions: Vec<&'static SupportedProtocolVersion>,
    pub(crate) protocol: &'static str,
    pub(crate) certificate: Option<Certificate>,
}

impl Trust {
    pub(crate) fn of(authority: &CertificateDer<'_>) -> Self {
        let authority = authority.clone().into_owned();
        Self { authority, versions: rustls::ALL_VERSIONS.to_vec(), protocol: "http/1.1", certificate: None }
    }

    /// Connects to `localhost` at this address.
    pub(crate) async fn connect(&self, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        self.connect_as("localhost", address).await
    }

    pub(crate) async fn connect_as(&self, name: &str, address: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(address).await?;
        self.connector().connect(ServerName::try_from(name.to_owned()).unwrap(), stream).await
    }

    fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.clone()).unwrap();
        let config = ClientConfig::builder_with_details(Arc::new(ring::default_provider()), Arc::new(Then))
            .with_protocol_versions(&self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match &self.certificate {
            Some(Certificate { der, key }) => {
                let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.clone()));
                config.with_client_auth_cert(vec![der.clone()], key).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![self.protocol.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(config))
    }
}

/// Files of a listener with client certificates.
pub(crate) struct Files {
    folder: TempDir,
    pub(crate) server: Authority,
    pub(crate) clients: Authority,
}

impl Files {
    pub(crate) fn new() -> Self {
        let (folder, server, clients) = (tempfile::tempdir().unwrap(), Authority::new(), Authority::new());
        server.server().write(folder.path());
        std::fs::write(folder.path().join("clients.crt"), clients.pem()).unwrap();
        Self { folder, server, clients }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the section `tls`.
    pub(crate) fn tls(&self) -> String {
        let dir = self.path().display();
        format!("tls: {{certFile: {dir}/tls.crt, keyFile: {dir}/tls.key}}\n")
    }

    /// Returns a certificate of a node.
    pub(crate) fn node(&self) -> Certificate {
        self.clients.client("system:node:node-1", &["system:nodes"])
    }

    pub(crate) async fn connect(&self, certificate: Option<Certificate>, address: SocketAddr) -> Client {
        let trust = Trust { certificate, ..Trust::of(self.server.der()) };
        Client::over(trust.connect(address).await.unwrap())
    }
}

/// Returns the certificate of the server.
pub(crate) fn shown(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    let connection: &ClientConnection = stream.get_ref().1;
    connection.peer_certificates().unwrap()[0].clone().into_owned()
}
