//! An own certificate authority, for a first try and for sidecars. It is stored in a folder, so that clients trust it
//! after a restart. The certificate that it signs is generated at each start and kept in memory.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::files::{FileError, Pair, Part, certificates, private_key, read};
use super::names;
use crate::clock::Now;

const CA: &str = "ca.crt";
const CA_KEY: &str = "ca.key";
const CA_NAME: &str = "eventweir CA";
const DAY: i64 = 86_400;
/// Validity of the authority.
const CA_DAYS: i64 = 3650;
/// Validity of a certificate, which is renewed after two thirds of it.
const DAYS: i64 = 365;

/// Checks the folder and the names. Changes nothing.
pub(super) fn check(dir: &Path, hosts: &[String]) -> Result<(), Vec<FileError>> {
    let mut faults = Vec::new();
    if !dir.is_dir() {
        faults.push(Part::Dir.fault(dir, "is not a folder"));
    } else if dir.join(CA).exists() {
        faults.extend(kept(dir).err());
    }
    let wrong = CertificateParams::new(hosts.to_vec()).err();
    faults.extend(wrong.map(|error| FileError { part: Part::Hosts, reason: error.to_string() }));
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

/// Generates a certificate for `hosts`, signed by the authority in `dir`, which is generated too if it is missing.
pub(super) fn pair(dir: &Path, hosts: &[String], now: Now) -> Result<Pair, Vec<FileError>> {
    check(dir, hosts)?;
    make(dir, hosts, now).map_err(|fault| vec![fault])
}

fn make(dir: &Path, hosts: &[String], now: Now) -> Result<Pair, FileError> {
    let wrong = |error: rcgen::Error| Part::Dir.fault(dir, error);
    let seconds = now.wall_seconds();
    let kept = if dir.join(CA).exists() { Some(kept(dir)?) } else { None };
    let is_good = |ca: &CertificateDer<'_>| names::expires(ca).is_some_and(|end| end > seconds + DAYS * DAY);
    let (authority, key) = match kept.filter(|(ca, _)| is_good(ca)) {
        Some(kept) => kept,
        None => new_authority(dir, seconds)?,
    };
    let issuer = Issuer::new(authority_params(seconds), key);
    let own_key = KeyPair::generate().map_err(wrong)?;
    let mut params = CertificateParams::new(hosts.to_vec()).map_err(wrong)?;
    params.distinguished_name = named("eventweir");
    last(&mut params, seconds, DAYS);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let own = params.signed_by(&own_key, &issuer).map_err(wrong)?;
    Ok(Pair {
        chain: vec![own.der().clone(), authority],
        key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(own_key.serialize_der())),
        // From its first second, because the clock may be set back.
        used: Some(seconds - DAY..seconds + DAYS * DAY / 3 * 2),
    })
}

/// Reads the authority in the folder.
fn kept(dir: &Path) -> Result<(CertificateDer<'static>, KeyPair), FileError> {
    let (ca, key) = (dir.join(CA), dir.join(CA_KEY));
    let authority = certificates(Part::Dir, &ca, &read(Part::Dir, &ca)?)?.swap_remove(0);
    let der = private_key(Part::Dir, &key, &read(Part::Dir, &key)?)?;
    let key = KeyPair::try_from(&der).map_err(|error| Part::Dir.fault(&key, format!("cannot be used: {error}")))?;
    let is_ours = names::read(&authority).is_some_and(|names| names.common_name == CA_NAME);
    if is_ours && names::has_key(&authority, key.public_key_raw()) {
        Ok((authority, key))
    } else {
        Err(Part::Dir.fault(&ca, "is not an authority that eventweir has generated, or ca.key is not its key"))
    }
}

fn new_authority(dir: &Path, seconds: i64) -> Result<(CertificateDer<'static>, KeyPair), FileError> {
    let key = KeyPair::generate().map_err(|error| Part::Dir.fault(dir, error))?;
    let authority = authority_params(seconds).self_signed(&key).map_err(|error| Part::Dir.fault(dir, error))?;
    // The certificate is written last, so that its key always exists.
    write(&dir.join(CA_KEY), &key.serialize_pem(), 0o600)?;
    write(&dir.join(CA), &authority.pem(), 0o644)?;
    Ok((authority.der().clone(), key))
}

/// Parameters of the authority's certificate. They also describe an older one, as far as its signatures need.
fn authority_params(seconds: i64) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(CA_NAME);
    last(&mut params, seconds, CA_DAYS);
    // It is kept, even if the clock was ahead when it was made.
    params.not_before = date_time_ymd(1970, 1, 1);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Sets the validity: `days` from now. It starts a day ago, because clocks differ.
fn last(params: &mut CertificateParams, seconds: i64, days: i64) {
    let after = |seconds: i64| Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
    params.not_before = date_time_ymd(1970, 1, 1) + after(seconds - DAY);
    params.not_after = date_time_ymd(1970, 1, 1) + after(seconds + days * DAY);
}

fn named(name: &str) -> rcgen::DistinguishedName {
    let mut named = rcgen::DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

/// Writes a file atomically.
fn write(path: &Path, pem: &str, mode: u32) -> Result<(), FileError> {
    let new = path.with_extension("new");
    let written = (|| {
        // A file left by an earlier attempt may have another mode.
        if new.exists() {
            fs::remove_file(&new)?;
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
        file.write_all(pem.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    })();
    written.map_err(|error| Part::Dir.fault(path, error))
}

#[cfg(test)]
mod tests {
    use x509_cert::der::Decode as _;

    use super::*;

    const NOW: i64 = 1_772_352_000;

    fn made(dir: &Path, seconds: i64) -> Result<Pair, Vec<FileError>> {
        pair(dir, &["localhost".to_owned(), "::1".to_owned()], Now { wall: seconds * 1_000_000_000, ..Now::default() })
    }

    #[test]
    fn an_authority_is_kept_while_it_outlives_its_certificates() {
        let folder = tempfile::tempdir().unwrap();
        let first = made(folder.path(), NOW).unwrap();
        let renew_at = first.used.unwrap().end;
        assert!(renew_at > NOW + 200 * DAY && renew_at < names::expires(&first.chain[0]).unwrap());
        let later = made(folder.path(), renew_at).unwrap();
        assert!(first.chain[1] == later.chain[1] && first.chain[0] != later.chain[0]);
        let last = made(folder.path(), NOW + (CA_DAYS - DAYS) * DAY).unwrap();
        assert_ne!(first.chain[1], last.chain[1]);
    }

    /// Fault: clients refused an authority that was made while the clock was ahead, also after every later start.
    #[test]
    fn an_authority_is_valid_at_earlier_times_too() {
        let folder = tempfile::tempdir().unwrap();
        let authority = made(folder.path(), NOW).unwrap().chain.swap_remove(1);
        let validity = x509_cert::Certificate::from_der(&authority).unwrap().tbs_certificate.validity;
        assert_eq!(validity.not_before.to_unix_duration(), Duration::ZERO);
    }

    #[test]
    fn a_foreign_authority_is_refused_and_an_interrupted_start_is_repeated() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [key, other_key] = [&folder, &other].map(|folder| folder.path().join(CA_KEY));
        fs::write(&key, "half a key").unwrap();
        made(folder.path(), NOW).unwrap();
        made(other.path(), NOW).unwrap();
        fs::copy(&other_key, &key).unwrap();
        let fault = check(folder.path(), &[]).unwrap_err().remove(0);
        assert!(fault.reason.contains("is not an authority that eventweir has generated"), "{}", fault.reason);
        fs::remove_file(&key).unwrap();
        assert_eq!(made(folder.path(), NOW).err().unwrap()[0].part, Part::Dir);
        let missing = made(&folder.path().join("missing"), NOW).err().unwrap();
        assert!(missing[0].reason.ends_with(": is not a folder"));
    }
}
