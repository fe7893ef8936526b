//! Reads and checks what the listeners need: TLS, the authorities of client certificates, the admin port's web
//! configuration.

use std::path::PathBuf;

use super::section::Section;
use super::{Files, Tls, admin_web, is_read_once, values};
use crate::server::Address;
use crate::server::tls::{self, MinVersion, Part};

const MIN_VERSION: [(&str, MinVersion); 2] = [("VersionTLS12", MinVersion::Tls12), ("VersionTLS13", MinVersion::Tls13)];

pub(super) fn tls(section: &mut Section<'_>, tls: &mut Tls) {
    let (mut certificate, mut key) = tls.files.take().unzip();
    section.set_optional("certFile", &mut certificate, &values::path());
    section.set_optional("keyFile", &mut key, &values::path());
    if section.has("certFile") != section.has("keyFile") {
        let (given, missing) = if section.has("certFile") { ("certFile", "keyFile") } else { ("keyFile", "certFile") };
        section.conflict(given, &format!("is given without {missing}; allowed: both, or neither"));
    }
    tls.files = certificate.zip(key);
    section.set("minVersion", &mut tls.min_version, &values::choice(&MIN_VERSION));
    section.set_list("cipherSuites", &mut tls.cipher_suites, &values::cipher_suites());
    section.within("selfSigned", |section| {
        section.set_optional("dir", &mut tls.self_signed_dir, &values::path());
        section.set("hosts", &mut tls.self_signed_hosts, &values::hosts());
    });
    if section.has("certFile") && tls.self_signed_dir.is_some() {
        section.conflict("certFile", "is given together with selfSigned.dir; allowed: one of them");
    }
}

/// Reports settings that conflict, and files that cannot be used.
pub(super) fn check(section: &mut Section<'_>, listen: &Address, tls: &Tls) {
    let default = Tls::default();
    if tls.self_signed_dir.is_none() && tls.self_signed_hosts != default.self_signed_hosts {
        section.conflict("tls.selfSigned.hosts", "needs tls.selfSigned.dir; allowed: with it");
    }
    let Some(settings) = tls.settings() else {
        for (key, is_set) in [
            ("auth.clientCAFile", tls.client_ca_file.is_some()),
            ("tls.minVersion", tls.min_version != default.min_version),
            ("tls.cipherSuites", tls.cipher_suites != default.cipher_suites),
        ] {
            if is_set {
                section.conflict(key, "needs TLS; allowed: with tls.certFile (--tls-cert-file) or tls.selfSigned.dir");
            }
        }
        return;
    };
    if let Address::Unix(_) = listen {
        section.conflict(
            "listen",
            "is a Unix domain socket, which has no TLS; allowed with tls: an IP address and a port",
        );
    }
    report_files(section, &settings, |part| match part {
        Part::Certificate => {
            ("tls.certFile", "a file with a certificate in PEM, and those between it and its authority")
        }
        Part::Key => ("tls.keyFile", "a file with the private key of tls.certFile in PEM"),
        Part::ClientCa => ("auth.clientCAFile", "a file with certificates of authorities in PEM"),
        Part::Dir => (
            "tls.selfSigned.dir",
            "a folder that can be written, empty or with the ca.crt and ca.key of an earlier start",
        ),
        Part::Hosts => ("tls.selfSigned.hosts", "names and IP addresses"),
    });
}

/// Reports the files of a listener that cannot be used, if files are to be checked. `place` returns the key of a part,
/// and what is allowed.
pub(super) fn report_files(
    section: &Section<'_>,
    settings: &tls::Settings,
    place: fn(Part) -> (&'static str, &'static str),
) {
    let faults = if section.checks_files() { tls::check(settings).err() } else { None };
    for fault in faults.into_iter().flatten() {
        let (key, allowed) = place(fault.part);
        section.conflict(key, &format!("cannot be used: {}; allowed: {allowed}", fault.reason));
    }
}

/// Reads the path of the admin port's web configuration, and reports what is wrong in that file.
pub(super) fn web_config_file(section: &mut Section<'_>, file: &mut Option<PathBuf>) {
    section.set_optional("adminWebConfigFile", file, &values::path());
    let Some(file) = file.as_deref().filter(|_| section.checks_files()) else { return };
    if is_read_once(file) {
        section.conflict("adminWebConfigFile", &format!("{}; allowed: a file of at most 1 MiB", admin_web::READ_ONCE));
    } else {
        section.file("adminWebConfigFile", file, |raw| admin_web::read(raw, file, Files::Checked));
    }
}
