//! Reads subject, expiry and key of a certificate.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use x509_cert::Certificate;
use x509_cert::attr::AttributeValue;
use x509_cert::der::asn1::{Ia5StringRef, ObjectIdentifier, PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::db::rfc4519::{COMMON_NAME, ORGANIZATION_NAME};
use x509_cert::der::{Decode as _, Tagged as _};

use crate::server::PeerCertificate;

/// Reads the subject as the apiserver does (`CommonNameUserConversion`); `None` without a common name.
pub(super) fn read(certificate: &CertificateDer<'_>) -> Option<PeerCertificate> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let expires = end(&certificate);
    let subject = certificate.tbs_certificate.subject;
    let values = |wanted: ObjectIdentifier| {
        let attributes = subject.0.iter().flat_map(|set| set.0.iter());
        attributes.filter(move |attribute| attribute.oid == wanted).map(|attribute| text(&attribute.value))
    };
    // Like Go, the last of several. If that cannot be read, an earlier one may be another user's.
    let common_name = values(COMMON_NAME).next_back().flatten().filter(|name| !name.is_empty())?;
    let organizations = values(ORGANIZATION_NAME).flatten().collect();
    Some(PeerCertificate { common_name, organizations, expires })
}

/// Returns the expiry of a certificate, in seconds since 1970.
pub(super) fn expires(certificate: &CertificateDer<'_>) -> Option<i64> {
    Certificate::from_der(certificate).ok().as_ref().map(end)
}

/// Returns why clients refuse a certificate `at` these seconds since 1970.
pub(super) fn invalid(certificate: &CertificateDer<'_>, at: i64) -> Option<String> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let (at, validity) = (Duration::from_secs(u64::try_from(at).ok()?), &certificate.tbs_certificate.validity);
    if at < validity.not_before.to_unix_duration() {
        Some(format!("is not valid before {}, so clients will refuse it", validity.not_before))
    } else if at > validity.not_after.to_unix_duration() {
        Some(format!("has expired at {}, so clients will refuse it", validity.not_after))
    } else {
        None
    }
}

fn end(certificate: &Certificate) -> i64 {
    let seconds = certificate.tbs_certificate.validity.not_after.to_unix_duration().as_secs();
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// Whether `key` is the public key of a certificate.
pub(super) fn has_key(certificate: &CertificateDer<'_>, key: &[u8]) -> bool {
    let certificate = Certificate::from_der(certificate);
    certificate.is_ok_and(|read| read.tbs_certificate.subject_public_key_info.subject_public_key.raw_bytes() == key)
}

fn text(value: &AttributeValue) -> Option<String> {
    use x509_cert::der::Tag;
    Some(match value.tag() {
        Tag::Utf8String => value.decode_as::<Utf8StringRef<'_>>().ok()?.as_str().to_owned(),
        Tag::PrintableString => value.decode_as::<PrintableStringRef<'_>>().ok()?.as_str().to_owned(),
        Tag::Ia5String => value.decode_as::<Ia5StringRef<'_>>().ok()?.as_str().to_owned(),
        Tag::TeletexString => value.decode_as::<TeletexStringRef<'_>>().ok()?.as_str().to_owned(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, DnValue, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(names: &[(DnType, DnValue)]) -> rcgen::Certificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.not_after = date_time_ymd(2030, 1, 1);
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), value.clone());
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap()
    }

    #[test]
    fn the_subject_is_read_as_the_apiserver_reads_it() {
        let utf8 = |text: &str| DnValue::Utf8String(text.to_owned());
        let printable = DnValue::PrintableString("system:nodes".try_into().unwrap_or_else(|_| unreachable!()));
        let named =
            certificate(&[(DnType::OrganizationName, printable), (DnType::CommonName, utf8("system:node:worker-0"))]);
        let expected = PeerCertificate {
            common_name: "system:node:worker-0".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            expires: 1_893_456_000,
        };
        assert_eq!(read(named.der()), Some(expected));
        assert_eq!(expires(named.der()), Some(1_893_456_000));
        let unnamed = certificate(&[(DnType::OrganizationName, utf8("system:masters"))]);
        assert_eq!(read(unnamed.der()), None);
        // rcgen takes the two names of one type as two types.
        let (bmp, again) = (DnValue::BmpString("bob".try_into().unwrap()), DnType::CustomDnType(vec![2, 5, 4, 3]));
        let named_twice = |last| certificate(&[(DnType::CommonName, utf8("admin")), (again.clone(), last)]);
        assert_eq!(read(named_twice(utf8("bob")).der()).unwrap().common_name, "bob");
        // Guards against: the apiserver reads this text, and would take the certificate for another user's.
        assert_eq!(read(named_twice(bmp).der()), None);
        assert_eq!(read(&CertificateDer::from(vec![1, 2, 3])), None);
    }
}
