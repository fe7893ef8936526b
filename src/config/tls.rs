//! Reading of what the listeners need: TLS, the authorities of client certificates, the admin port's web configuration.

use std::path::PathBuf;

use super::section::Section;
use super::{Auth, Tls, admin_web, values};
use crate::server::Address;
use crate::server::tls::{self, MinVersion, Part};

pub(super) const MIN_VERSION: [(&str, MinVersion); 2] =
    [("VersionTLS12", MinVersion::Tls12), ("VersionTLS13", MinVersion::Tls13)];

pub(super) fn tls(section: &mut Section<'_>) -> Tls {
    let default = Tls::default();
    let files = (path(section, "certFile"), path(section, "keyFile"));
    if section.has("certFile") != section.has("keyFile") {
        let (given, missing) = if section.has("certFile") { ("certFile", "keyFile") } else { ("keyFile", "certFile") };
        section.conflict(given, &format!("is given without {missing}; allowed: both, or neither"));
    }
    let min_version = section.value("minVersion", default.min_version, values::choice(&MIN_VERSION));
    let cipher_suites = section.value("cipherSuites", default.cipher_suites, values::cipher_suites);
    let (self_signed_dir, self_signed_hosts) = section.within("selfSigned", |section| {
        (path(section, "dir"), section.value("hosts", default.self_signed_hosts, values::hosts))
    });
    if section.has("certFile") && self_signed_dir.is_some() {
        section.conflict("certFile", "is given beside selfSigned.dir; allowed: one of them");
    }
    let files = match files {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        _ => None,
    };
    Tls { files, min_version, cipher_suites, self_signed_dir, self_signed_hosts }
}

pub(super) fn auth(section: &mut Section<'_>) -> Auth {
    Auth { client_ca_file: path(section, "clientCAFile") }
}

/// Reports what does not go together, and files that cannot be used.
pub(super) fn check(section: &mut Section<'_>, listen: &Address, tls: &Tls, auth: &Auth) {
    let Some(settings) = tls.settings(auth) else {
        if auth.client_ca_file.is_some() {
            section.conflict_at(
                &["auth", "clientCAFile"],
                "needs TLS; allowed: with tls.certFile (--tls-cert-file) or tls.selfSigned.dir",
            );
        }
        return;
    };
    if let Address::Unix(_) = listen {
        section.conflict(
            "listen",
            "is a Unix domain socket, which has no TLS; allowed with tls: an IP address and a port",
        );
    }
    if !section.checks_files() {
        return;
    }
    for fault in tls::check(&settings).err().into_iter().flatten() {
        let path: &[&str] = match fault.part {
            Part::Certificate => &["tls", "certFile"],
            Part::Key => &["tls", "keyFile"],
            Part::ClientCa => &["auth", "clientCAFile"],
            Part::Dir => &["tls", "selfSigned", "dir"],
            Part::Hosts => &["tls", "selfSigned", "hosts"],
        };
        let allowed = match fault.part {
            Part::Certificate => "a file with a certificate in PEM, and those between it and its authority",
            Part::Key => "a file with the private key of tls.certFile in PEM",
            Part::ClientCa => "a file with certificates of authorities in PEM",
            Part::Dir => "a folder that can be written, empty or with the ca.crt and ca.key of an earlier start",
            Part::Hosts => "names and IP addresses",
        };
        section.conflict_at(path, &format!("cannot be used: {}; allowed: {allowed}", fault.reason));
    }
}

/// The path of the admin port's web configuration; reports what is wrong in that file.
pub(super) fn web_config_file(section: &mut Section<'_>) -> Option<PathBuf> {
    let file = path(section, "adminWebConfigFile")?;
    if section.checks_files()
        && let Err(errors) = admin_web::load_for_start(&file)
    {
        section.report(errors);
    }
    Some(file)
}

fn path(section: &mut Section<'_>, key: &'static str) -> Option<PathBuf> {
    section.optional(key, values::text(4096)).map(|path| PathBuf::from(path.as_str()))
}
