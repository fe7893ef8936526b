//! How a client for the apiserver is made, and what its errors mean.

use std::path::PathBuf;
use std::time::Duration;

use kube::client::{AuthError, ClientBuilder};
use kube::config::{InferConfigError, KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::upstream::answer::Failure;

/// Settings of the apiserver as an upstream; the defaults are in [`Settings::default`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The kubeconfig to use. Default: `$KUBECONFIG`, `~/.kube/config`, else the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig. Default: its current one.
    pub context: Option<String>,
    /// LIMIT: how long a request may take, its answer's body included; then it counts as lost. Default 10 s.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { kubeconfig: None, context: None, timeout: Duration::from_secs(10) }
    }
}

/// Why there is no client for the apiserver.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("reading the kubeconfig {}", .path.as_deref().unwrap_or_else(|| "of the environment".as_ref()).display())]
    Kubeconfig {
        /// The file, where one was named.
        path: Option<PathBuf>,
        /// What is wrong with it.
        source: KubeconfigError,
    },
    /// Neither a kubeconfig nor a service account was found.
    #[error("looking for a kubeconfig or a service account")]
    Infer(#[source] InferConfigError),
    /// TLS or credentials could not be set up.
    #[error("preparing the client for the apiserver")]
    Client(#[source] Box<kube::Error>),
}

/// A client as `settings` describe it. Nothing is sent yet.
///
/// Tokens are renewed by kube: files every minute, exec plugins before they expire. LIMIT: a client *certificate* from an exec
/// plugin is not; when it expires, requests answer 401 until a restart. kube 5 speaks HTTP/1.1 only, so there are as many
/// connections as requests in flight.
pub(super) async fn client(settings: &Settings) -> Result<kube::Client, Error> {
    let mut config = config(settings).await?;
    // The outbox repeats, with what it knows; kube would hide each 429, 503 and 504 behind tries of its own.
    config.default_retry = false;
    config.connect_timeout = Some(settings.timeout);
    let builder = ClientBuilder::try_from(config).map_err(|source| Error::Client(Box::new(source)))?;
    Ok(builder.build())
}

async fn config(settings: &Settings) -> Result<kube::Config, Error> {
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    let failed = |source| Error::Kubeconfig { path: settings.kubeconfig.clone(), source };
    match (&settings.kubeconfig, &settings.context) {
        (Some(path), _) => {
            let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
            kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(failed)
        }
        (None, Some(_)) => kube::Config::from_kubeconfig(&options).await.map_err(failed),
        (None, None) => kube::Config::infer().await.map_err(Error::Infer),
    }
}

/// Tells errors before the request left from those after. In doubt it may have been carried out.
pub(super) fn classify(fault: &kube::Error) -> Failure {
    let mut text = String::new();
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(fault);
    let mut classified: fn(String) -> Failure = Failure::Lost;
    while let Some(error) = next {
        let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
        if error.is::<AuthError>() {
            classified = Failure::NoCredentials;
        } else if error.downcast_ref().is_some_and(hyper_util::client::legacy::Error::is_connect)
            || error.downcast_ref().is_some_and(refused)
        {
            classified = Failure::NotSent;
        }
        // The innermost says what happened; kube's own texts repeat it.
        text = error.to_string();
        next = error.source();
    }
    classified(text)
}
