//! The certificate of a run, two files in a folder. Eventweir and the bare server serve it, and the generator trusts
//! it.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rcgen::CertifiedKey;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The certificate.
pub(crate) const CERTIFICATE: &str = "cert.pem";
/// Its key.
pub(crate) const KEY: &str = "key.pem";

/// Writes a certificate of the type that eventweir's `tls.selfSigned` makes (ECDSA P-256).
///
/// # Errors
/// When the folder is not writable.
pub(crate) fn write(folder: &Path) -> anyhow::Result<()> {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    fs::write(folder.join(CERTIFICATE), cert.pem())?;
    Ok(fs::write(folder.join(KEY), signing_key.serialize_pem())?)
}

/// Returns the bare server's configuration.
///
/// # Errors
/// When the files cannot be used.
pub(crate) fn server(folder: &Path) -> anyhow::Result<Arc<ServerConfig>> {
    let chain = vec![CertificateDer::from_pem_file(folder.join(CERTIFICATE))?];
    let key = PrivateKeyDer::from_pem_file(folder.join(KEY))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    Ok(Arc::new(builder.with_single_cert(chain, key)?))
}

/// Returns the generator's configuration.
///
/// # Errors
/// When the file cannot be used.
pub(crate) fn client(folder: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join(CERTIFICATE))?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots);
    Ok(Arc::new(builder.with_no_client_auth()))
}
