//! The admin port's `--web.config.file`: the format of Prometheus' exporter-toolkit, read as strictly as our own file.

use std::path::Path;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::raw::{Node, Value};
use super::section::{Collector, Section};
use super::{Errors, Overrides, values};
use crate::admin::Web;
use crate::server::tls::{self, CipherSuite, Identity, MinVersion, Part};

const MIN_VERSION: [(&str, MinVersion); 2] = [("TLS12", MinVersion::Tls12), ("TLS13", MinVersion::Tls13)];

/// What is done about client certificates. Certificates that nobody verifies are of no use, and are not asked for.
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

/// The headers that answers may be given.
const HEADERS: [&str; 5] = [
    "Content-Security-Policy",
    "Strict-Transport-Security",
    "X-Content-Type-Options",
    "X-Frame-Options",
    "X-XSS-Protection",
];

/// What the file says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AdminWeb {
    /// How TLS is spoken; without it in plain.
    pub tls: Option<tls::Settings>,
    /// Users and headers.
    pub web: Web,
}

/// Reads the file.
///
/// # Errors
/// Everything that is wrong with it, at once.
pub fn load_web(path: &Path) -> Result<AdminWeb, Errors> {
    load(path, false)
}

/// Does the same, and also looks whether the files that it names can be used.
pub(super) fn load_for_start(path: &Path) -> Result<AdminWeb, Errors> {
    load(path, true)
}

fn load(path: &Path, checks_files: bool) -> Result<AdminWeb, Errors> {
    let raw = super::read_raw(Some(path))?;
    let name = raw.file().to_owned();
    let (root, twice) = raw.overlaid(&Overrides::default());
    let collector = Collector::new(&name, twice, checks_files);
    let folder = path.parent().unwrap_or(Path::new(""));
    let file = read(&collector, &root, folder);
    let errors = collector.into_errors();
    if errors.is_empty() { Ok(file) } else { Err(errors) }
}

fn read(collector: &Collector, root: &Node, folder: &Path) -> AdminWeb {
    collector.read(root, String::new(), |section| {
        let tls = section.has("tls_server_config");
        let settings = section.within("tls_server_config", |section| tls_settings(section, folder, tls));
        let users = section.entries("basic_auth_users", hash).into_iter().collect();
        let headers = section.within("http_server_config", |section| section.within("headers", headers));
        AdminWeb { tls: settings, web: Web { users, headers } }
    })
}

fn tls_settings(section: &mut Section<'_>, folder: &Path, is_given: bool) -> Option<tls::Settings> {
    let mut file = |key| section.optional(key, values::text(4096)).map(|path| folder.join(path.as_str()));
    let (certificate, key, client_ca) = (file("cert_file"), file("key_file"), file("client_ca_file"));
    let client_auth = section.value("client_auth_type", ClientAuth::None, values::choice(&CLIENT_AUTH));
    let min_version = section.value("min_version", MinVersion::Tls12, values::choice(&MIN_VERSION));
    let cipher_suites = section.value("cipher_suites", Vec::<CipherSuite>::new(), values::cipher_suites);
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
                "needs client_auth_type: RequireAndVerifyClientCert or VerifyClientCertIfGiven",
            );
        }
        (ClientAuth::IfGiven | ClientAuth::Required, None) => {
            section.conflict("client_auth_type", "needs client_ca_file");
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
    if section.checks_files() {
        for fault in tls::check(&settings).err().into_iter().flatten() {
            let (key, allowed) = match fault.part {
                Part::Certificate => ("cert_file", "a file with a certificate in PEM"),
                Part::ClientCa => ("client_ca_file", "a file with certificates of authorities in PEM"),
                Part::Key | Part::Dir | Part::Hosts => ("key_file", "a file with the private key of cert_file in PEM"),
            };
            section.conflict(key, &format!("cannot be used: {}; allowed: {allowed}", fault.reason));
        }
    }
    Some(settings)
}

fn hash(value: &Value) -> Result<String, String> {
    let text = values::text(100)(value).ok().filter(|text| Web::is_usable(text));
    text.map(|text| text.to_string())
        .ok_or_else(|| format!("a bcrypt hash such as htpasswd -nB makes, of a cost of at most {}", Web::COST_MAX))
}

fn headers(section: &mut Section<'_>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for name in HEADERS {
        let value = section.optional(name, |value| {
            let text = values::text(4096)(value)?;
            HeaderValue::from_str(&text).map_err(|_invalid| "the value of a header".to_owned())
        });
        if let (Some(value), Ok(name)) = (value, HeaderName::try_from(name)) {
            headers.insert(name, value);
        }
    }
    headers
}
