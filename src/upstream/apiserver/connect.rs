//! Builds the client of an API server, and classifies its errors.

use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::uri::Scheme;
use http::{HeaderMap, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use kube::client::middleware::BaseUriLayer;
use kube::client::{AuthError, Body, ConfigExt as _};
use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, ServiceExt as _};

use super::forward::Forwarder;
use super::plugin::Plugin;
use super::renewed::{Identity, Renewed};
use super::shared_connections::SharedConnections;
use super::transport::{NoConnection, Protocols, https_connector, is_spared, is_unprocessed};
use super::{Apiserver, Metrics};
use crate::clock::{Clock, Mono};
use crate::event::{ApiGroup, cut};
use crate::upstream::answer::Failure;

/// Settings of an API server as the upstream; the defaults are in [`Settings::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The kubeconfig. Default: `$KUBECONFIG`, then `~/.kube/config`, then the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: the current one.
    pub context: Option<String>,
    /// LIMIT: duration of a request, with the body of its answer; then it counts as lost. Default 10 s.
    pub timeout: Duration,
    /// The API group of clients' reads and deletions. Default core/v1.
    pub group: ApiGroup,
}

impl Default for Settings {
    fn default() -> Self {
        Self { kubeconfig: None, context: None, timeout: Duration::from_secs(10), group: ApiGroup::Core }
    }
}

/// The error of building a client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("reading the kubeconfig {}", .path.as_deref().unwrap_or_else(|| "of the environment".as_ref()).display())]
    Kubeconfig {
        /// The file, if one was named.
        path: Option<PathBuf>,
        /// The cause.
        source: Unread,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error("looking for a kubeconfig or a service account")]
    Infer(#[source] Unread),
    /// The token file cannot be read.
    #[error("reading the token file {}", .path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// TLS or credentials could not be set up.
    #[error("preparing the client for the API server")]
    Client(#[source] Unread),
    /// The `tls-server-name` of the kubeconfig is not a name.
    #[error("the TLS server name {0:?} is not valid")]
    ServerName(String),
    /// The cluster's URL has no scheme or no host.
    #[error("the API server's URL {} names no host", without_user(.0))]
    Address(Uri),
    /// The kubeconfig has changed, and names another API server than at the start.
    #[error("the kubeconfig now names another API server: {}", without_user(.0))]
    Moved(Uri),
    /// The kubeconfig or the environment names a proxy.
    #[error("the API server would be reached through the proxy {}; proxies are not supported (see NO_PROXY)", without_user(.0))]
    Proxy(Uri),
}

/// Returns the text of an URL without the user and the password that it may have.
fn without_user(uri: &Uri) -> String {
    let text = uri.to_string();
    let user = uri.authority().and_then(|authority| authority.as_str().rsplit_once('@')).map(|(user, _)| user);
    user.map_or(text.clone(), |user| text.replacen(&format!("{user}@"), "", 1))
}

/// Why a kubeconfig cannot be used. Not the lines of the file that an error of its YAML quotes: they may have a token.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unread(String);

impl Unread {
    fn because(error: &impl std::error::Error) -> Self {
        let text = error.to_string();
        // kube quotes paths twice.
        Self(text.lines().next().unwrap_or_default().replace("'\"", "'").replace("\"'", "'"))
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        let of_plugin = if let kube::Error::Auth(auth) = &error { plugin(auth) } else { None };
        Self::Client(of_plugin.map_or_else(|| Unread::because(&error), Unread))
    }
}

/// Returns the text of an exec plugin's failure, without its standard output, which may have a token.
fn plugin(error: &AuthError) -> Option<String> {
    match error {
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said = said.lines().next().map_or(String::new(), |line| format!(": {line}"));
            Some(format!("the kubeconfig's exec plugin failed ({}){said}", out.status))
        }
        AuthError::AuthExecParse(_) => {
            Some("the output of the kubeconfig's exec plugin is no ExecCredential".to_owned())
        }
        _ => None,
    }
}

/// kube's layers, which add headers. Answers a request with its headers.
pub(super) type Layers = BoxCloneSyncService<http::Request<Body>, Response<()>, BoxError>;

/// Our credentials.
#[derive(Debug)]
pub(super) enum Credentials {
    /// They do not change.
    Lasting(Layers),
    /// They are those of a plugin, which kube runs before its token expires.
    Plugin(Arc<Plugin>),
}

impl Credentials {
    pub(super) fn of(config: &kube::Config) -> Result<Self, Error> {
        let auth_layer = checked(|| config.auth_layer())?;
        let mirror = async |request: http::Request<Body>| {
            let mut answer = Response::new(());
            *answer.headers_mut() = request.into_parts().0.headers;
            Ok::<_, BoxError>(answer)
        };
        let layers = ServiceBuilder::new()
            .option_layer(auth_layer)
            .layer(config.extra_headers_layer()?)
            .map_err(BoxError::from)
            .service_fn(mirror);
        let (layers, auth) = (Layers::new(layers), &config.auth_info);
        let has_plugin = auth.exec.is_some() || auth.auth_provider.is_some();
        Ok(if has_plugin { Self::Plugin(Plugin::new(layers)) } else { Self::Lasting(layers) })
    }

    /// Returns the headers of a request.
    ///
    /// # Errors
    /// When an exec plugin fails.
    pub(super) async fn headers(&self, now: Mono) -> Result<HeaderMap, BoxError> {
        match self {
            Self::Lasting(layers) => {
                Ok(layers.clone().oneshot(http::Request::new(Body::empty())).await?.into_parts().0.headers)
            }
            Self::Plugin(plugin) => plugin.headers(now).await,
        }
    }
}

/// Our credentials, and connections with our client certificate.
#[derive(Debug)]
struct Link {
    cluster: Uri,
    credentials: Credentials,
    connections: SharedConnections,
}

impl Link {
    fn new(config: &kube::Config, timeout: Duration) -> Result<Self, Error> {
        let (credentials, https) = (Credentials::of(config)?, https_connector(config, Protocols::All, timeout)?);
        Ok(Self {
            cluster: config.cluster_url.clone(),
            credentials,
            connections: SharedConnections::over(https, timeout),
        })
    }
}

/// Returns what kube makes of a configuration. It panics for a token that no header can have, of the kubeconfig or of its
/// exec plugin.
pub(crate) fn checked<T>(make: impl FnOnce() -> kube::Result<T>) -> Result<T, Error> {
    let made = catch_unwind(AssertUnwindSafe(make)).map_err(|_panic| {
        Error::Client(Unread("the kubeconfig's token has characters that a header cannot have".to_owned()))
    });
    Ok(made??)
}

impl Apiserver {
    /// Reads the configuration of `settings` and builds a client. Sends nothing yet. Needs a tokio runtime.
    ///
    /// These are kube's layers without its transport, log and retries: the outbox retries, and kube would hide each 429,
    /// 503 and 504.
    ///
    /// # Errors
    /// When the configuration cannot be read or is not sufficient for a client.
    pub async fn connect(settings: &Settings, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        let forwarder = Some(Forwarder::new(settings, Identity::Callers, &clock).await?);
        let link = Renewed::new(settings, Identity::Ours, &clock, Link::new).await?;
        let cluster = link.current().await.cluster.clone();
        tracing::info!(url = without_user(&cluster), "the upstream is an API server");
        let send = move |mut request: http::Request<Body>| {
            let renewed = Arc::clone(&link);
            async move {
                let link = renewed.current().await;
                let headers = link.credentials.headers(renewed.now()).await;
                let headers = headers.inspect_err(|fault| renewed.failed(&link, &**fault))?;
                request.headers_mut().extend(headers);
                let (permit, transport) = link.connections.permit();
                let answer = transport.send(request).await?;
                if answer.status() == StatusCode::UNAUTHORIZED {
                    renewed.refused(&link);
                }
                // The body of a watch keeps its permit.
                let keep = move |frame| {
                    let _seat = &permit;
                    frame
                };
                Ok::<_, BoxError>(answer.map(|body| body.map_frame(keep)))
            }
        };
        let service = ServiceBuilder::new().layer(BaseUriLayer::new(cluster)).service_fn(send);
        Ok(Self { forwarder, ..Self::behind(service, settings, clock, metrics) })
    }
}

pub(crate) async fn config(settings: &Settings) -> Result<kube::Config, Error> {
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    let failed = |error: KubeconfigError| unread(settings.kubeconfig.as_deref(), &error);
    let kubeconfig = match &settings.kubeconfig {
        Some(path) => Some(Kubeconfig::read_from(path).map_err(failed)?),
        None => merged(&kubectls())?,
    };
    let mut config = match kubeconfig {
        Some(kubeconfig) => kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)?,
        None if settings.context.is_some() => kube::Config::from_kubeconfig(&options).await.map_err(failed)?,
        None => kube::Config::incluster().map_err(|error| Error::Infer(unfound(&error)))?,
    };
    if let Some(proxy) = config.proxy_url.take().filter(|proxy| !is_spared(&config.cluster_url, proxy)) {
        return Err(Error::Proxy(proxy));
    }
    match (config.cluster_url.scheme(), config.cluster_url.authority()) {
        (Some(_), Some(_)) => Ok(config),
        _ => Err(Error::Address(config.cluster_url)),
    }
}

fn unread(path: Option<&Path>, error: &KubeconfigError) -> Error {
    let source = match error {
        // The path once.
        KubeconfigError::ReadConfig(cause, _) if path.is_some() => Unread::because(cause),
        _ => Unread::because(error),
    };
    Error::Kubeconfig { path: path.map(Path::to_owned), source }
}

/// Says where the pod's service account was looked for, which kube does not.
fn unfound(error: &InClusterError) -> Unread {
    let place = match error {
        InClusterError::ReadEnvironmentVariable(_)
        | InClusterError::ParseClusterPort(_)
        | InClusterError::ParseClusterUrl(_) => "",
        InClusterError::ReadDefaultNamespace(_)
        | InClusterError::ReadCertificateBundle(_)
        | InClusterError::ParseCertificates(_) => {
            "/var/run/secrets/kubernetes.io/serviceaccount cannot be used (see automountServiceAccountToken): "
        }
    };
    Unread(format!("no kubeconfig exists, and {place}{}", Unread::because(error)))
}

/// Returns the paths of kubectl's kubeconfig.
fn kubectls() -> Vec<PathBuf> {
    let list = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let named: Vec<_> = std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect();
    // In a pod, the home may be that of another user, or no folder.
    let usual =
        || std::env::home_dir().map(|home| home.join(".kube").join("config")).filter(|path| path.metadata().is_ok());
    if named.is_empty() { usual().into_iter().collect() } else { named }
}

/// Returns the kubeconfig of the files that exist; `None` if none does. One that cannot be used is an error, as for kubectl:
/// kube would take the pod's own cluster instead.
fn merged(paths: &[PathBuf]) -> Result<Option<Kubeconfig>, Error> {
    let mut merged: Option<Kubeconfig> = None;
    for path in paths {
        match Kubeconfig::read_from(path) {
            Err(KubeconfigError::ReadConfig(cause, _)) if cause.kind() == ErrorKind::NotFound => {}
            read => {
                let both = read.and_then(|read| merged.take().unwrap_or_default().merge(read));
                merged = Some(both.map_err(|error| unread(Some(path), &error))?);
            }
        }
    }
    Ok(merged)
}

/// Logs what others on the network can do because of the configuration. A refusal would break a service mesh, which
/// encrypts plain HTTP itself.
pub(super) fn warn_of(config: &kube::Config, identity: Identity) {
    // The other one has the same API server.
    if identity == Identity::Callers {
        return;
    }
    let url = &config.cluster_url;
    let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_local = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
    if url.scheme() == Some(&Scheme::HTTP) && !is_local {
        tracing::warn!(
            url = without_user(url),
            "tokens and events for the API server are not encrypted: its URL is HTTP"
        );
    }
    if config.accept_invalid_certs {
        tracing::warn!("the API server's certificate is not verified: the kubeconfig has insecure-skip-tls-verify");
    }
}

/// An error, of which some types are known.
type AnyError = dyn std::error::Error + 'static;

/// Returns an error and its causes, the innermost last.
pub(super) fn causes(fault: &AnyError) -> impl Iterator<Item = &AnyError> {
    std::iter::successors(Some(fault), |error| error.source())
}

/// Returns the text of the innermost cause, or of an exec plugin's failure. The outer texts only repeat it, and kube's
/// has the whole status.
pub(crate) fn cause_of(fault: &AnyError) -> String {
    let of_plugin = causes(fault).find_map(|error| error.downcast_ref().and_then(plugin));
    of_plugin.unwrap_or_else(|| causes(fault).last().map_or_else(String::new, words))
}

/// Returns the text of a cause, in words of an API server and not of kube's.
fn words(error: &AnyError) -> String {
    match error.downcast_ref::<Box<Status>>() {
        // kube's reason for an answer that is no Status.
        Some(status) if status.reason == "Failed to parse error data" => {
            format!("{} {}", status.code, cut(status.message.trim(), 200)).trim_end().to_owned()
        }
        Some(status) if status.message.is_empty() => status.reason.clone(),
        Some(status) => status.message.clone(),
        None if error.is::<serde_json::Error>() => "the answer is not an API server's".to_owned(),
        None => error.to_string(),
    }
}

/// An error that several requests get.
#[derive(Debug, Clone)]
pub(super) struct Shared(Arc<dyn std::error::Error + Send + Sync>);

impl From<BoxError> for Shared {
    fn from(error: BoxError) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Shared {
    fn source(&self) -> Option<&AnyError> {
        Some(&*self.0)
    }
}

/// Classifies an error by whether the request was sent, and not left unprocessed. In doubt it may have been carried out.
pub(super) fn classify(fault: &AnyError) -> Failure {
    let is_refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    let is_unsent = |error: &AnyError| {
        error.is::<NoConnection>()
            || error.downcast_ref().is_some_and(hyper_util::client::legacy::Error::is_connect)
            || error.downcast_ref().is_some_and(is_refused)
    };
    let mut classified: fn(String) -> Failure = if is_unprocessed(fault) { Failure::NotSent } else { Failure::Lost };
    for error in causes(fault) {
        if error.is::<AuthError>() {
            classified = Failure::NoCredentials;
        } else if is_unsent(error) {
            classified = Failure::NotSent;
        }
    }
    classified(cause_of(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_without_a_token_is_told_where_it_was_looked_for() {
        let absent = InClusterError::ReadDefaultNamespace(ErrorKind::NotFound.into());
        let outside = InClusterError::ReadEnvironmentVariable(std::env::VarError::NotPresent);
        for (error, is_named) in [(absent, true), (outside, false)] {
            let text = unfound(&error).to_string();
            assert!(text.starts_with("no kubeconfig exists, and "), "{text}");
            assert_eq!(text.contains("/serviceaccount cannot be used"), is_named, "{text}");
            assert!(text.ends_with(&error.to_string()), "{text}");
        }
    }
}
