//! Reads the admin port's `--web.config.file` in the format of Prometheus' exporter-toolkit, as strictly as our own
//! file.

use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value as Json;

use super::section::Section;
use super::tls::report_files;
use super::values::{self, Form};
use super::{Errors, Files, Overrides, RawConfig};
use crate::admin::Web;
use crate::server::tls::{self, Identity, MinVersion, Part};

const MIN_VERSION: [(&str, MinVersion); 2] = [("TLS12", MinVersion::Tls12), ("TLS13", MinVersion::Tls13)];

/// Whether client certificates are requested. The types that request one without verifying it are not supported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientAuth {
    None,
    IfGiven,
    Required,
}

const CLIENT_AUTH: [(&str, ClientAuth); 3] = [
    ("NoClientCert", ClientAuth::None),
    ("VerifyClientCertIfGiven", ClientAuth::IfGiven),
    ("RequireAndVerifyClientCert", ClientAuth::Required),
];

/// The headers that answers may have.
const HEADERS: [&str; 5] = [
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
];

/// The settings of the file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AdminWeb {
    /// TLS; `None` for plain HTTP.
    pub tls: Option<tls::Settings>,
    /// Users and headers.
    pub web: Web,
}

/// The error of a pipe. Its second reading would be empty: without users and TLS.
pub(super) const READ_ONCE: &str = "is not a regular file, and it is read again while the program runs";

/// Reads the file.
///
/// # Errors
/// Everything that is wrong with it, at once. Also a pipe, which the program cannot read again.
pub fn load_web(path: &Path) -> Result<AdminWeb, Errors> {
    if super::is_read_once(path) {
        return Err(super::fault(path, READ_ONCE));
    }
    read(super::read_raw(Some(path), &Overrides::default())?, path, Files::Read)
}

/// Reads what the file at `path` has.
pub(super) fn read(raw: RawConfig, path: &Path, files: Files) -> Result<AdminWeb, Errors> {
    let folder = path.parent().unwrap_or(Path::new(""));
    raw.read_through(&Overrides::default(), files, |section| {
        let is_given = section.has("tls_server_config");
        let tls = section.within("tls_server_config", |section| tls_settings(section, folder, is_given));
        let users = section.secrets("basic_auth_users", &hash()).into_iter().collect();
        let headers = section.within("http_server_config", |section| section.within("headers", headers));
        AdminWeb { tls, web: Web { users, headers } }
    })
}

fn tls_settings(section: &mut Section<'_>, folder: &Path, is_given: bool) -> Option<tls::Settings> {
    let mut file = |key| section.given(key, &values::path()).map(|path| folder.join(path));
    let (certificate, key, client_ca) = (file("cert_file"), file("key_file"), file("client_ca_file"));
    let client_auth = section.given("client_auth_type", &values::choice(&CLIENT_AUTH)).unwrap_or(ClientAuth::None);
    let min_version = section.given("min_version", &values::choice(&MIN_VERSION)).unwrap_or(MinVersion::Tls12);
    let cipher_suites = section.given("cipher_suites", &values::cipher_suites()).unwrap_or_default();
    if !is_given {
        return None;
    }
    for missing in ["cert_file", "key_file"].into_iter().filter(|key| !section.has(key)) {
        section.conflict("", &format!("{missing} is missing; allowed: with cert_file and key_file"));
    }
    match (client_auth, &client_ca) {
        (ClientAuth::None, Some(_)) => {
            section.conflict(
                "client_ca_file",
                "needs another client_auth_type; allowed: with RequireAndVerifyClientCert or VerifyClientCertIfGiven",
            );
        }
        (ClientAuth::IfGiven | ClientAuth::Required, None) => {
            section.conflict("client_auth_type", "needs client_ca_file; allowed without it: NoClientCert");
        }
        _ => {}
    }
    let settings = tls::Settings {
        identity: Identity::Files { certificate: certificate?, key: key? },
        min_version,
        cipher_suites,
        client_ca,
        requires_certificate: client_auth == ClientAuth::Required,
    };
    report_files(section, &settings, |part| match part {
        Part::Certificate => ("cert_file", "a file with a certificate in PEM"),
        Part::ClientCa => ("client_ca_file", "a file with certificates of authorities in PEM"),
        Part::Key | Part::Dir | Part::Hosts => ("key_file", "a file with the private key of cert_file in PEM"),
    });
    Some(settings)
}

fn hash() -> Form<'static, String> {
    Form::of_text(
        Json::Null,
        format!("a bcrypt hash such as htpasswd -nB makes, of a cost of at most {}", Web::COST_MAX),
        |text| (text.len() <= 100 && Web::is_usable(text)).then(|| text.to_owned()),
        |_secret| Json::Null,
    )
}

fn headers(section: &mut Section<'_>) -> HeaderMap {
    let read = |text: &str| HeaderValue::from_str(text).ok().filter(|_| (1..=values::TEXT_MAX).contains(&text.len()));
    let value = Form::of_text(Json::Null, "the value of a header", read, |_value| Json::Null);
    let mut headers = HeaderMap::new();
    for name in HEADERS {
        if let (Some(value), Ok(name)) = (section.given(name, &value), HeaderName::try_from(name)) {
            headers.insert(name, value);
        }
    }
    headers
}
