//! Runs of an exec plugin. kube would run it for each request while its token is about to expire.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use http::HeaderMap;
use kube::client::{AuthError, Body};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tower::{BoxError, ServiceExt as _};

use super::connect::{Layers, Shared, causes};
use super::renewed::{AGE_MAX, PLUGIN_PAUSE};
use crate::clock::Mono;

/// An exec plugin, whose credentials requests share.
#[derive(Debug)]
pub(super) struct Plugin {
    layers: Layers,
    state: watch::Sender<State>,
}

/// The newest run of the layers, which run the plugin if its token expires within a minute.
#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// The time when the newest run began.
    begun: Option<Mono>,
    /// The newest headers, and the time when their run began.
    headers: Option<(Mono, HeaderMap)>,
    /// The error of the newest run.
    fault: Option<Shared>,
}

impl Plugin {
    pub(super) fn new(layers: Layers) -> Arc<Self> {
        Arc::new(Self { layers, state: watch::Sender::default() })
    }

    /// Returns the headers of a request. At most every [`PLUGIN_PAUSE`] a request starts a run, which goes on if the
    /// request ends before. Others have the newest headers, whose token was valid for a minute more, or wait for the run.
    ///
    /// # Errors
    /// When the newest run has failed and there are no headers that may still be valid.
    pub(super) async fn headers(self: &Arc<Self>, now: Mono) -> Result<HeaderMap, BoxError> {
        if self.begins(now) {
            let (plugin, runtime) = (Arc::clone(self), Handle::current());
            spawn_blocking(move || plugin.run(&runtime, now));
        }
        let mut state = self.state.subscribe();
        let state = state.wait_for(|state| !state.is_running || state.valid(now).is_some()).await?;
        match (state.valid(now), &state.fault) {
            (Some(headers), _) => Ok(headers.clone()),
            (None, Some(fault)) => Err(fault.clone().into()),
            (None, None) => Err("the kubeconfig's exec plugin has not run".into()),
        }
    }

    /// Whether this request starts a run.
    // LIMIT: one at a time, and one per `PLUGIN_PAUSE`. A plugin that hangs delays all requests, as in client-go.
    fn begins(&self, now: Mono) -> bool {
        self.state.send_if_modified(|state| {
            let begins = !state.is_running && state.begun.is_none_or(|begun| now.since(begun) >= PLUGIN_PAUSE);
            if begins {
                (state.is_running, state.begun) = (true, Some(now));
            }
            begins
        })
    }

    fn run(&self, runtime: &Handle, now: Mono) {
        let request = http::Request::new(Body::empty());
        let run = || runtime.block_on(self.layers.clone().oneshot(request));
        let ran =
            catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_panic| Err("the exec plugin's run failed".into()));
        self.state.send_modify(|state| {
            state.is_running = false;
            state.fault = None;
            match ran {
                Ok(answer) => state.headers = Some((now, answer.into_parts().0.headers)),
                Err(fault) => state.fault = Some(Shared::from(fault)),
            }
        });
    }
}

impl State {
    /// Returns the newest headers, unless their token may have expired.
    fn valid(&self, now: Mono) -> Option<&HeaderMap> {
        let (made, headers) = self.headers.as_ref()?;
        (now.since(*made) < AGE_MAX).then_some(headers)
    }
}

/// Whether kube cannot use the plugin's newest output in place of the former one, but could from the start: it has no
/// expiry any more, or is a certificate.
pub(super) fn is_of_another_kind(fault: &(dyn std::error::Error + 'static)) -> bool {
    causes(fault).any(|error| matches!(error.downcast_ref(), Some(AuthError::UnrefreshableTokenResponse)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use prometheus::Registry;
    use serde_json::{Value, json};
    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;
    use tower::{BoxError, service_fn};

    use super::super::tests::{create, plugin, retry, without_cause, write_kubeconfig};
    use super::super::{Apiserver, Metrics, Settings};
    use super::{Layers, Plugin};
    use crate::clock::{Clock, Mono};
    use crate::outbox::{Applied, Fault};

    const START: i64 = 1_772_352_000_000_000_000;

    /// Returns a client of a closed port, whose kubeconfig stays.
    async fn connected(folder: &Path, user: &Value, clock: &Clock) -> Apiserver {
        let path = folder.join("kubeconfig");
        write_kubeconfig(&path, &json!({ "server": "http://127.0.0.1:1" }), user);
        let settings = Settings { kubeconfig: Some(path), ..Settings::default() };
        Apiserver::connect(&settings, clock.clone(), Metrics::new(&Registry::new())).await.unwrap()
    }

    /// A plugin that counts its runs in a file, and what it prints at the n-th run.
    fn counting(folder: &Path, outputs: &[&str]) -> (Value, impl Fn() -> usize + use<>) {
        let (runs, last) = (folder.join("runs"), outputs.len());
        for (number, output) in (1..).zip(outputs) {
            std::fs::write(folder.join(number.to_string()), output).unwrap();
        }
        let script = format!(
            "cd {} || exit; echo >>runs; n=$(wc -l <runs); test $n -le {last} || n={last}; . ./$((n))",
            folder.display()
        );
        (plugin(&script), move || std::fs::read_to_string(&runs).map_or(0, |text| text.lines().count()))
    }

    fn credential(status: &str) -> String {
        let head = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status""#;
        format!("echo '{head}:{status}}}'")
    }

    const EXPIRED: &str = r#"{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}"#;

    /// Fault: a plugin whose tokens live for less than a minute ran for each request.
    #[tokio::test]
    async fn an_exec_plugin_with_short_tokens_runs_every_ten_seconds_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let (user, runs) = counting(folder.path(), &[&credential(EXPIRED)]);
        let clock = Clock::manual(START);
        let apiserver = connected(folder.path(), &user, &clock).await;
        // kube runs it twice at the start. A later run delays nothing.
        for (seconds, expected) in [(0, 3), (9, 3), (1, 4), (5, 4)] {
            clock.advance(Duration::from_secs(seconds));
            for _ in 0..3 {
                assert_eq!(without_cause(apiserver.write(&create()).await), retry(Fault::Transport, Applied::No));
            }
            while runs() < expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(runs(), expected);
        }
    }

    /// Fault: each request that waited for a hanging plugin started it once more.
    #[tokio::test]
    async fn a_hanging_exec_plugin_runs_once() {
        let (runs, end) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (counted, ended) = (Arc::clone(&runs), Arc::clone(&end));
        let layers = Layers::new(service_fn(move |_request| {
            counted.fetch_add(1, Ordering::SeqCst);
            let ended = Arc::clone(&ended);
            async move {
                let _end = ended.acquire().await?;
                Err::<http::Response<()>, BoxError>("it has hung".into())
            }
        }));
        let plugin = Plugin::new(layers);
        let mut waiting = JoinSet::new();
        for now in [Mono(0), Mono(0).after(Duration::from_secs(60))] {
            // The run goes on.
            waiting.shutdown().await;
            for _ in 0..3 {
                let plugin = Arc::clone(&plugin);
                waiting.spawn(async move { plugin.headers(now).await.map_err(|fault| fault.to_string()) });
            }
            while plugin.state.receiver_count() < 3 {
                tokio::task::yield_now().await;
            }
        }
        end.add_permits(1);
        while let Some(answer) = waiting.join_next().await {
            assert_eq!(answer.unwrap(), Err("it has hung".to_owned()));
        }
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    /// Fault: until a restart, nothing was written.
    #[tokio::test]
    async fn an_exec_plugin_may_give_tokens_without_an_expiry_later() {
        let folder = tempfile::tempdir().unwrap();
        let (user, runs) =
            counting(folder.path(), &[&credential(EXPIRED), &credential(EXPIRED), &credential(r#"{"token":"t"}"#)]);
        let clock = Clock::manual(START);
        let apiserver = connected(folder.path(), &user, &clock).await;
        assert_eq!(without_cause(apiserver.write(&create()).await), retry(Fault::Unauthorized, Applied::No));
        clock.advance(Duration::from_secs(10));
        assert_eq!(
            without_cause(apiserver.write(&create()).await),
            retry(Fault::Transport, Applied::No),
            "it has credentials"
        );
        assert_eq!(runs(), 5);
    }
}
