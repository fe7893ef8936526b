//! TLS for measurements: a certificate of its own for each run, and clients that trust just that.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Files of a certificate for `localhost` in this folder.
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Makes a certificate and its key, and returns the certificate's path.
///
/// # Errors
/// When the folder cannot be written to.
pub(crate) fn make(folder: &Path) -> anyhow::Result<std::path::PathBuf> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    std::fs::write(folder.join(KEY), made.signing_key.serialize_pem())?;
    let path = folder.join(CERTIFICATE);
    std::fs::write(&path, made.cert.pem())?;
    Ok(path)
}

/// A server's side, with the files that [`make`] wrote.
///
/// # Errors
/// When they cannot be read.
pub(crate) fn server(folder: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let certificate = CertificateDer::from_pem_file(folder.join(CERTIFICATE))?;
    let key = PrivateKeyDer::from_pem_file(folder.join(KEY))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_no_client_auth().with_single_cert(vec![certificate], key)?))
}

/// A client's side that trusts this certificate.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn client(certificate: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).with_context(|| certificate.display().to_string())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}
