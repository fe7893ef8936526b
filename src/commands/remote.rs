//! The client of a running eventweir.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryFutureExt as _;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::uri::Scheme;
use http::{HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::middleware::AuthLayer;
use kube::client::{Body, ConfigExt as _};
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tokio::net::UnixStream;
use tower::{BoxError, ServiceBuilder, service_fn};

use super::{Error, in_cluster, runtime};
use crate::cli::Remote;
use crate::explain::clean;
use crate::upstream::apiserver::{self, cause_of};

/// Longest wait for an answer, and for its end. The server may wait for an API server before it answers.
pub(super) const DEADLINE: Duration = Duration::from_secs(30);

/// Why a connection ended, if something between us and the server says so.
pub(super) type ConnectionError = Arc<Mutex<Option<String>>>;

/// A client of a running eventweir.
pub(super) struct Server {
    client: kube::Client,
    /// Its address, or its pod.
    pub(super) name: String,
    /// File of the token, which is replaced before the token expires.
    token_file: Option<PathBuf>,
    fault: ConnectionError,
}

impl Server {
    /// Connects to the only server, in a new runtime.
    pub(super) fn of(remote: &Remote) -> Result<(Self, tokio::runtime::Runtime), Error> {
        let runtime = runtime()?;
        let servers = runtime.block_on(Self::all(remote))?;
        let pods = servers.iter().filter_map(|server| server.name.rsplit('/').next()).collect::<Vec<_>>().join(", ");
        match <[Self; 1]>::try_from(servers) {
            Ok([server]) => Ok((server, runtime)),
            Err(_several) if remote.in_cluster.is_some() => {
                Err(Error::Input(format!("--in-cluster: name one of these by --pod: {pods}")))
            }
            Err(_several) => Err(Error::Input("--server: only `explain` accepts several".to_owned())),
        }
    }

    /// Connects to every server that the flags name.
    pub(super) async fn all(remote: &Remote) -> Result<Vec<Self>, Error> {
        match &remote.in_cluster {
            Some(service) => in_cluster::replicas(service, remote).await,
            None => remote.server.iter().map(|url| Self::connect(url, remote)).collect(),
        }
    }

    /// Connects; call it in a runtime.
    fn connect(url: &str, remote: &Remote) -> Result<Self, Error> {
        let socket = url.strip_prefix("unix:").map(PathBuf::from);
        let address: http::Uri = match socket {
            Some(_) => http::Uri::from_static("http://localhost"),
            None => uri_of("--server", url, &["http", "https"])?,
        };
        let mut config = kube::Config::new(address);
        config.root_cert = authorities(remote)?;
        credentials(&mut config, remote)?;
        let client = match socket {
            Some(path) => {
                let shared = Shared::of(config).map_err(|error| Error::Input(cause_of(&error)))?;
                shared.client(move || UnixStream::connect(path.clone()))
            }
            None => kube::Client::try_from(config)
                .map_err(|error| Error::Input(format!("--server {url}: {}", cause_of(&error))))?,
        };
        Ok(Self::new(client, url.to_owned(), ConnectionError::default(), remote))
    }

    pub(super) fn new(client: kube::Client, name: String, fault: ConnectionError, remote: &Remote) -> Self {
        Self { client, name, token_file: remote.token_file.clone(), fault }
    }

    /// Returns the namespace of the kubeconfig's context, otherwise `default`.
    pub(super) fn namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// Returns the answer's head if it is of this type, as eventweir's answers are.
    pub(super) async fn ask(
        &self,
        path: &str,
        query: &[(&str, &str)],
        content_type: &str,
    ) -> Result<http::Response<Body>, Error> {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        pairs.extend_pairs(query.iter().filter(|(_, value)| !value.is_empty()));
        let mut request = http::Request::get(format!("/eventweir/v1/{path}?{}", pairs.finish()));
        if let Some(path) = &self.token_file {
            let token = std::fs::read_to_string(path).map_err(|error| unusable("--token-file", path, &error))?;
            let header = HeaderValue::try_from(format!("Bearer {}", token.trim())).ok();
            let header = header.filter(|_| !token.trim().is_empty());
            let header = header.ok_or_else(|| unusable("--token-file", path, &"holds no token"))?;
            request = request.header(AUTHORIZATION, header);
        }
        let request = request.body(Body::empty()).map_err(|error| Error::Input(error.to_string()))?;
        let answer = match tokio::time::timeout(DEADLINE, self.client.send(request)).await {
            Ok(answer) => answer.map_err(|error| self.broken(unanswered(&error)))?,
            Err(_elapsed) => return Err(self.silent(&format!("no answer within {} s", DEADLINE.as_secs()))),
        };
        let code = answer.status();
        if code.is_success() {
            let is_ours =
                answer.headers().get(CONTENT_TYPE).is_some_and(|found| found.as_bytes() == content_type.as_bytes());
            return if is_ours { Ok(answer) } else { Err(self.silent(STRANGER)) };
        }
        let body = tokio::time::timeout(DEADLINE, answer.into_body().collect()).await;
        let body = body.ok().and_then(Result::ok).map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let refusal = refusal(code, &body) + advice(code);
        // The command line has a mistake if the server cannot read the request.
        let is_mistake = code == StatusCode::BAD_REQUEST;
        Err(if is_mistake { Error::Input(format!("{}: {refusal}", self.name)) } else { self.silent(&refusal) })
    }

    /// Returns the error of a connection that ended.
    pub(super) fn broken(&self, why: String) -> Error {
        let fault = self.fault.lock().take();
        self.silent(&fault.map_or(why, |fault| clean(&fault, 1000)))
    }

    /// Returns the error of a server that does not say what it was asked.
    pub(super) fn silent(&self, why: &str) -> Error {
        Error::NotReady(format!("{}: {why}", self.name))
    }

    pub(super) async fn document(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Error> {
        let body = self.ask(path, query, "application/json").await?.into_body().collect();
        let late = |_elapsed| self.silent(&format!("no end of the answer within {} s", DEADLINE.as_secs()));
        let body = tokio::time::timeout(DEADLINE, body).await.map_err(late)?;
        let body = body.map_err(|error| self.broken(cause_of(&error)))?.to_bytes();
        serde_json::from_slice(&body).map_err(|_not_json| self.silent(STRANGER))
    }
}

fn unusable(flag: &str, path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Input(format!("{flag} {}: {error}", path.display()))
}

/// The error of an answer that is not eventweir's.
pub(super) const STRANGER: &str = "the answer is not eventweir's; check the address";

/// Returns the address that an option names.
pub(super) fn uri_of(flag: &str, url: &str, schemes: &[&str]) -> Result<http::Uri, Error> {
    let is_fine = |uri: &http::Uri| {
        let authority = uri.authority().map_or("", http::uri::Authority::as_str);
        let is_known = uri.scheme_str().is_some_and(|scheme| schemes.contains(&scheme));
        let port = authority.rsplit_once(':').map(|(_, port)| port).filter(|_| !authority.ends_with(']'));
        is_known && !authority.contains('@') && port.is_none_or(|port| port.parse::<u16>().is_ok())
    };
    url.parse().ok().filter(is_fine).ok_or_else(|| {
        // A user's password is not repeated.
        let shown = if url.contains('@') { "an address with @" } else { url };
        let expected = schemes.iter().map(|scheme| format!("{scheme}://HOST:PORT")).collect::<Vec<_>>().join(", ");
        let or_socket = if flag == "--server" { " or unix:PATH" } else { "" };
        Error::Input(format!("{flag} {shown}: expected {expected}{or_socket}"))
    })
}

/// Returns why there is no answer, and what to do.
pub(super) fn unanswered(error: &(dyn std::error::Error + 'static)) -> String {
    let cause = cause_of(error);
    if cause.contains("corrupt message") {
        "the server does not use TLS; use http://".to_owned()
    } else if cause.contains("UnknownIssuer") {
        "the server's certificate is of an unknown authority; name it with --certificate-authority".to_owned()
    } else if cause.contains("Connection refused") {
        format!("{cause}; is eventweir running there?")
    } else {
        cause
    }
}

/// Returns the text of a refusal: the message of a Status, or plain text, as from a listener that expects TLS.
pub(super) fn refusal(code: StatusCode, body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status["message"].as_str().map_or_else(|| String::from_utf8_lossy(body), Cow::Borrowed);
    let message = clean(message.trim(), 1000);
    if message.is_empty() || code.canonical_reason() == Some(&message) {
        code.to_string()
    } else {
        format!("{code}: {message}")
    }
}

/// Returns what to do after a refusal.
const fn advice(code: StatusCode) -> &'static str {
    match code {
        StatusCode::UNAUTHORIZED => "; name a token with --token-file, or a certificate with --client-certificate",
        StatusCode::NOT_FOUND => "; check the address: that of `listen`, not of the admin port",
        _ => "",
    }
}

/// Returns the authorities of `--certificate-authority`.
pub(super) fn authorities(remote: &Remote) -> Result<Option<Vec<Vec<u8>>>, Error> {
    let Some(path) = &remote.certificate_authority else { return Ok(None) };
    let flag = "--certificate-authority";
    let pem = std::fs::read(path).map_err(|error| unusable(flag, path, &error))?;
    certificates(&pem).map(Some).ok_or_else(|| unusable(flag, path, &"holds no certificate in PEM"))
}

/// Returns the certificates of a file, if it has any and all can be read.
pub(super) fn certificates(pem: &[u8]) -> Option<Vec<Vec<u8>>> {
    let read = CertificateDer::pem_slice_iter(pem).map(|read| read.map(|certificate| certificate.to_vec()));
    read.collect::<Result<Vec<_>, _>>().ok().filter(|read| !read.is_empty())
}

/// Adds the client certificate of the flags.
pub(super) fn credentials(config: &mut kube::Config, remote: &Remote) -> Result<(), Error> {
    let auth = &mut config.auth_info;
    for (flag, path, name) in [
        ("--client-certificate", &remote.client_certificate, &mut auth.client_certificate),
        ("--client-key", &remote.client_key, &mut auth.client_key),
    ] {
        let Some(path) = path else { continue };
        // kube's error does not name the file.
        std::fs::File::open(path).map_err(|error| unusable(flag, path, &error))?;
        *name = Some(path.display().to_string());
    }
    Ok(())
}

/// TLS and credentials of connections to servers. An exec plugin that they come from runs once for all servers.
pub(super) struct Shared {
    config: kube::Config,
    auth: Option<AuthLayer>,
    tls: Option<(ClientConfig, Option<ServerName<'static>>)>,
}

impl Shared {
    pub(super) fn of(config: kube::Config) -> Result<Self, apiserver::Error> {
        let auth = apiserver::checked(|| config.auth_layer())?;
        let name = config.tls_server_name.clone().and_then(|name| ServerName::try_from(name).ok());
        let is_tls = config.cluster_url.scheme() == Some(&Scheme::HTTPS);
        let tls = is_tls.then(|| config.rustls_client_config()).transpose()?.map(|tls| (tls, name));
        Ok(Self { config, auth, tls })
    }

    /// Returns a client whose connections `connect` opens.
    pub(super) fn client<F>(&self, connect: impl Fn() -> F + Clone + Send + Sync + 'static) -> kube::Client
    where
        F: Future<Output = std::io::Result<UnixStream>> + Send + 'static,
    {
        let connect = service_fn(move |_: http::Uri| Box::pin(connect().map_ok(TokioIo::new)));
        let layers = ServiceBuilder::new().layer(self.config.base_uri_layer()).option_layer(self.auth.as_ref());
        let (layers, http) = (layers.map_err(BoxError::from), HttpClient::builder(TokioExecutor::new()));
        let namespace = &self.config.default_namespace;
        let Some((tls, name)) = self.tls.clone() else {
            return kube::Client::new(layers.service(http.build(connect)), namespace);
        };
        let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        if let Some(name) = name {
            builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        kube::Client::new(layers.service(http.build(builder.enable_http1().wrap_connector(connect))), namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> Remote {
        use clap::Parser as _;
        let cli = crate::cli::Cli::try_parse_from(["eventweir", "top"]).unwrap();
        let crate::cli::Command::Top(top) = cli.command else { unreachable!() };
        top.remote
    }

    /// Fault: a server that accepts and does not answer was waited for for ever.
    #[tokio::test(start_paused = true)]
    async fn an_answer_has_a_deadline() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let server = Server::connect(&format!("unix:{}", path.display()), &remote()).unwrap();
        let error = server.document("explain", &[]).await.unwrap_err().to_string();
        assert!(error.ends_with("socket: no answer within 30 s"), "{error}");
    }

    #[test]
    fn an_address_without_a_scheme_is_refused() {
        for url in ["localhost:8080", "eventweir", "ftp://localhost"] {
            let remote = Remote { server: vec![url.to_owned()], ..remote() };
            assert!(matches!(Server::of(&remote), Err(Error::Input(_))), "{url}");
        }
    }

    #[test]
    fn a_refusal_is_shown_with_what_to_do() {
        let text = "Client sent an HTTP request to an HTTPS server.";
        assert_eq!(refusal(StatusCode::BAD_REQUEST, text.as_bytes()), format!("400 Bad Request: {text}"));
        assert_eq!(refusal(StatusCode::FORBIDDEN, br#"{"message":"no\u001b"}"#), "403 Forbidden: no\u{fffd}");
        assert_eq!(
            refusal(StatusCode::NOT_FOUND, b"") + advice(StatusCode::NOT_FOUND),
            "404 Not Found; check the address: that of `listen`, not of the admin port"
        );
        let text = refusal(StatusCode::UNAUTHORIZED, br#"{"message":"Unauthorized"}"#);
        assert!((text + advice(StatusCode::UNAUTHORIZED)).starts_with("401 Unauthorized; name"));
    }
}
