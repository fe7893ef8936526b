//! Credentials and authorities in files that are replaced before they expire: the token of a pod's service account, or
//! the client certificate of a kubeconfig. The files are read every minute, and after a 401 before the next request, so
//! that a rotation does not delay delivery.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::Uri;
use kube::config::AuthInfo;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::connect::{Error, Settings, cause_of, config, warn_of};
use super::plugin::is_of_another_kind;
use crate::clock::{Clock, Mono};

/// Interval between reads of the files; kube's and client-go's for a token. kube also renews a token this long before its
/// expiry.
pub(super) const AGE_MAX: Duration = Duration::from_secs(60);
/// LIMIT: shortest interval between runs of an exec plugin whose credentials are refused or expire. Its client certificate
/// is renewed only when refused, so not behind a proxy that refuses an expired one in the TLS handshake.
pub(super) const PLUGIN_PAUSE: Duration = Duration::from_secs(10);

/// Whose credentials requests carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identity {
    /// Ours, from the kubeconfig.
    Ours,
    /// The caller's, which are in each request.
    Callers,
}

/// State that is built from a kubeconfig, and built again when its files change.
#[derive(Debug)]
pub(super) struct Renewed<T> {
    settings: Settings,
    identity: Identity,
    clock: Clock,
    make: fn(&kube::Config, Duration) -> Result<T, Error>,
    current: ArcSwap<T>,
    /// The time of the next read.
    due: AtomicI64,
    /// Whether the API server has refused the current credentials.
    refused: AtomicBool,
    /// Locked while the files are read.
    made: Mutex<Made>,
}

/// The input of `current`, and the time when it was built.
#[derive(Debug)]
struct Made {
    cluster: Uri,
    is_in_cluster: bool,
    hash: u64,
    at: Mono,
    /// Why the newest read failed, for the log.
    fault: Option<String>,
}

impl<T: Send + Sync + 'static> Renewed<T> {
    pub(super) async fn new(
        settings: &Settings,
        identity: Identity,
        clock: &Clock,
        make: fn(&kube::Config, Duration) -> Result<T, Error>,
    ) -> Result<Arc<Self>, Error> {
        let (config, hash) = load(settings, identity).await?;
        let current = ArcSwap::from_pointee(make(&config, settings.timeout)?);
        warn_of(&config, identity);
        let (at, is_in_cluster) = (clock.now().mono, is_in_cluster(&config));
        Ok(Arc::new(Self {
            settings: settings.clone(),
            identity,
            clock: clock.clone(),
            make,
            current,
            due: AtomicI64::new(at.after(AGE_MAX).0),
            refused: AtomicBool::new(false),
            made: Mutex::new(Made { cluster: config.cluster_url, is_in_cluster, hash, at, fault: None }),
        }))
    }

    /// Returns what was made of the newest files. While one request reads them, others use what there is.
    pub(super) async fn current(self: &Arc<Self>) -> Arc<T> {
        let now = self.now();
        if self.due.load(Ordering::Relaxed) <= now.0 {
            let (renewed, runtime) = (Arc::clone(self), Handle::current());
            // On another thread, which may run an exec plugin, and goes on if this request ends before.
            let _ended = spawn_blocking(move || runtime.block_on(renewed.renew(now))).await;
        }
        self.current.load_full()
    }

    pub(super) fn now(&self) -> Mono {
        self.clock.now().mono
    }

    async fn renew(&self, now: Mono) {
        let Ok(mut made) = self.made.try_lock() else { return };
        if self.due.load(Ordering::Relaxed) > now.0 {
            return;
        }
        match self.read(&mut made, now).await {
            Ok(new) => {
                made.fault = None;
                if let Some(new) = new {
                    tracing::info!("the credentials or authorities for the API server have changed");
                    self.current.store(Arc::new(new));
                }
            }
            // The known ones may still be valid; if not, the next 401 causes another read.
            Err(error) => {
                let cause = cause_of(&error);
                if made.fault.as_ref() != Some(&cause) {
                    tracing::warn!(%error, cause, "the kubeconfig's credentials cannot be taken");
                    made.fault = Some(cause);
                }
            }
        }
        self.refused.store(false, Ordering::Relaxed);
        self.due.store(now.after(AGE_MAX).0, Ordering::Relaxed);
    }

    async fn read(&self, made: &mut Made, now: Mono) -> Result<Option<T>, Error> {
        // A pipe has no second text, and might block.
        if self.settings.kubeconfig.as_ref().is_some_and(|path| path.exists() && !path.is_file()) {
            return Ok(None);
        }
        let (config, hash) = load(&self.settings, self.identity).await?;
        // Another context was chosen; its credentials are not for this API server.
        if config.cluster_url != made.cluster || is_in_cluster(&config) != made.is_in_cluster {
            return Err(Error::Moved(config.cluster_url));
        }
        let is_plugin = config.auth_info.exec.is_some();
        let runs_plugin = is_plugin && self.refused.load(Ordering::Relaxed) && now.since(made.at) >= PLUGIN_PAUSE;
        if hash == made.hash && !runs_plugin {
            return Ok(None);
        }
        made.at = now;
        let new = (self.make)(&config, self.settings.timeout)?;
        warn_of(&config, self.identity);
        made.hash = hash;
        Ok(Some(new))
    }

    /// Records that the API server refused a request with 401. If `used` is the current one, the next request reads the
    /// files.
    pub(super) fn refused(&self, used: &Arc<T>) {
        if Arc::ptr_eq(&self.current.load(), used) {
            self.refused.store(true, Ordering::Relaxed);
            self.due.store(self.now().0, Ordering::Relaxed);
        }
    }

    /// Records that `used` could give no credentials. If its exec plugin has others now, that is as a refusal.
    pub(super) fn failed(&self, used: &Arc<T>, fault: &(dyn std::error::Error + 'static)) {
        if is_of_another_kind(fault) {
            self.refused(used);
        }
    }
}

/// Whether the configuration is that of a pod, which no kubeconfig has.
const fn is_in_cluster(config: &kube::Config) -> bool {
    config.root_cert_file.is_some()
}

/// Reads the configuration and the files that it names. Returns also a hash of what may change in them.
async fn load(settings: &Settings, identity: Identity) -> Result<(kube::Config, u64), Error> {
    let mut config = config(settings).await?;
    match identity {
        Identity::Ours => take_token(&mut config.auth_info).await?,
        Identity::Callers => config.auth_info = AuthInfo::default(),
    }
    let mut hasher = DefaultHasher::new();
    (&config.root_cert, &config.tls_server_name, config.accept_invalid_certs).hash(&mut hasher);
    let auth = &config.auth_info;
    // A value's hash does not depend on the order of its members, which differs from read to read.
    serde_json::to_value(auth).ok().hash(&mut hasher);
    for path in [&auth.client_certificate, &auth.client_key].into_iter().flatten() {
        tokio::fs::read(path).await.ok().hash(&mut hasher);
    }
    Ok((config, hasher.finish()))
}

/// Replaces a token file by its token, if kube would use it: kube prefers all other credentials. kube also does not cut
/// the line break at its end. An empty file is an error, because an API server takes an empty token for an anonymous
/// request, and answers 403.
async fn take_token(auth: &mut AuthInfo) -> Result<(), Error> {
    let has_password = auth.username.is_some() && auth.password.is_some();
    if auth.auth_provider.is_some() || has_password || auth.token.is_some() {
        return Ok(());
    }
    let Some(path) = auth.token_file.take() else { return Ok(()) };
    let read = tokio::fs::read_to_string(&path).await.and_then(|text| match text.trim() {
        "" => Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")),
        token => Ok(token.to_owned()),
    });
    auth.token = Some(read.map_err(|source| Error::Token { path: path.into(), source })?.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::write_kubeconfig;
    use super::*;

    const START: i64 = 1_772_352_000_000_000_000;

    /// Returns the token, the one of an exec plugin included.
    fn token(config: &kube::Config, _: Duration) -> Result<String, Error> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let Some(exec) = &config.auth_info.exec else {
            return Ok(text(&serde_json::to_value(&config.auth_info).unwrap()["token"]));
        };
        let ran = std::process::Command::new(exec.command.as_ref().unwrap()).args(exec.args.as_ref().unwrap()).output();
        Ok(String::from_utf8(ran.unwrap().stdout).unwrap())
    }

    struct Run {
        folder: tempfile::TempDir,
        clock: Clock,
        renewed: Arc<Renewed<String>>,
    }

    impl Run {
        async fn start(user: &Value, identity: Identity) -> Self {
            let (folder, clock) = (tempfile::tempdir().unwrap(), Clock::manual(START));
            let path = folder.path().join("kubeconfig");
            write_kubeconfig(&path, &json!({ "server": "https://kube:6443" }), user);
            std::fs::write(folder.path().join("token"), "one\n").unwrap();
            let settings = Settings { kubeconfig: Some(path), ..Settings::default() };
            let renewed = Renewed::new(&settings, identity, &clock, token).await.unwrap();
            Self { folder, clock, renewed }
        }

        fn write(&self, server: &str, user: &Value) {
            write_kubeconfig(&self.folder.path().join("kubeconfig"), &json!({ "server": server }), user);
        }

        async fn current(&self) -> String {
            self.renewed.current().await.as_ref().clone()
        }

        /// Returns the next one after so much time, and after a 401 with the present one.
        async fn after_a_refusal(&self, time: Duration) -> String {
            self.renewed.refused(&self.renewed.current().await);
            self.clock.advance(time);
            self.current().await
        }
    }

    #[tokio::test]
    async fn files_are_read_again_after_a_minute_and_after_a_refusal() {
        let run = Run::start(&json!({"tokenFile": "token"}), Identity::Ours).await;
        let old = run.renewed.current().await;
        let rotate = |token: &str| std::fs::write(run.folder.path().join("token"), token).unwrap();
        rotate("two");
        run.clock.advance(AGE_MAX.saturating_sub(Duration::from_nanos(1)));
        assert_eq!(run.current().await, "one");
        run.clock.advance(Duration::from_nanos(1));
        assert_eq!(run.current().await, "two");
        rotate("three");
        run.renewed.refused(&old);
        assert_eq!(run.current().await, "two", "a late refusal of the old one");
        assert_eq!(run.after_a_refusal(Duration::ZERO).await, "three");
        // Data in the kubeconfig are renewed as files are.
        run.write("https://kube:6443", &json!({"token": "four"}));
        assert_eq!(run.after_a_refusal(Duration::ZERO).await, "four");
    }

    #[tokio::test]
    async fn what_cannot_be_used_replaces_nothing() {
        let run = Run::start(&json!({"token": "one"}), Identity::Ours).await;
        let same = run.renewed.current().await;
        run.write("https://other:6443", &json!({"token": "two"}));
        assert_eq!(run.after_a_refusal(Duration::ZERO).await, "one", "another API server's");
        std::fs::write(run.folder.path().join("kubeconfig"), "half a").unwrap();
        assert_eq!(run.after_a_refusal(Duration::ZERO).await, "one");
        std::fs::remove_file(run.folder.path().join("kubeconfig")).unwrap();
        assert_eq!(run.after_a_refusal(Duration::ZERO).await, "one");
        let made = std::process::Command::new("mkfifo").arg(run.folder.path().join("kubeconfig")).status().unwrap();
        assert!(made.success());
        assert_eq!(run.after_a_refusal(Duration::ZERO).await, "one", "a pipe would block");
        std::fs::remove_file(run.folder.path().join("kubeconfig")).unwrap();
        run.write("https://kube:6443", &json!({"token": "one"}));
        run.after_a_refusal(Duration::ZERO).await;
        assert!(Arc::ptr_eq(&same, &run.renewed.current().await), "what has not changed is not made again");
    }

    /// Fault: requests were anonymous for a minute, and refused with 403.
    #[tokio::test]
    async fn an_empty_token_file_replaces_no_token() {
        let run = Run::start(&json!({"tokenFile": "token"}), Identity::Ours).await;
        for (text, expected) in [("", "one"), (" \n", "one"), ("two\n", "two"), ("", "two")] {
            std::fs::write(run.folder.path().join("token"), text).unwrap();
            run.clock.advance(AGE_MAX);
            assert_eq!(run.current().await, expected, "{text:?}");
        }
        let refused = Renewed::new(&run.renewed.settings, Identity::Ours, &run.clock, token).await.unwrap_err();
        assert_eq!(cause_of(&refused), "it is empty");
    }

    #[tokio::test]
    async fn a_request_that_ends_before_the_files_are_read_loses_nothing() {
        let run = Run::start(&json!({"token": "one"}), Identity::Ours).await;
        run.write("https://kube:6443", &json!({"token": "two"}));
        run.clock.advance(AGE_MAX);
        let _ended = futures_util::FutureExt::now_or_never(run.renewed.current());
        while run.renewed.current.load().as_str() != "two" {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn callers_have_their_own_credentials() {
        let run = Run::start(&json!({"tokenFile": "token"}), Identity::Callers).await;
        let old = run.renewed.current().await;
        std::fs::write(run.folder.path().join("token"), "two").unwrap();
        run.clock.advance(AGE_MAX);
        assert!(old.is_empty() && Arc::ptr_eq(&old, &run.renewed.current().await));
        let path = run.folder.path().join("kubeconfig");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace(r#""server""#, r#""certificate-authority-data":"bmV3","server""#)).unwrap();
        run.clock.advance(AGE_MAX);
        assert!(!Arc::ptr_eq(&old, &run.renewed.current().await), "other authorities");
    }

    #[tokio::test]
    async fn an_exec_plugin_runs_again_after_refusals_but_not_for_each() {
        let count = "echo >>\"$0\"; wc -l <\"$0\" | tr -d ' \n'";
        let folder = tempfile::tempdir().unwrap();
        let args = json!(["-c", count, folder.path().join("runs")]);
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": args, "interactiveMode": "Never",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}]});
        let run = Run::start(&json!({"exec": exec}), Identity::Ours).await;
        assert_eq!(run.after_a_refusal(PLUGIN_PAUSE.saturating_sub(Duration::from_nanos(1))).await, "1");
        assert_eq!(run.after_a_refusal(Duration::from_nanos(1)).await, "2");
        assert_eq!(run.after_a_refusal(Duration::ZERO).await, "2");
        for _ in 0..8 {
            run.clock.advance(AGE_MAX);
            assert_eq!(run.current().await, "2", "its credentials are valid");
        }
    }
}
