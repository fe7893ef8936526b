//! Wiring: starts the program from a checked configuration and bound listeners; reloads, drains and stops it.

mod listeners;
mod reload;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use prometheus::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{self, Access};
use crate::admin::{self, Admin};
use crate::clock::Clock;
use crate::config::{self, Config, Writes};
use crate::correlator::KeySecret;
use crate::deliver::{self, DeliveryStatus};
use crate::event_log::EventLog;
use crate::history;
use crate::ingest::{self, Aliases, Ingest};
use crate::ledger::Balance;
use crate::metrics::{Metrics, Registrar};
use crate::passthrough::{self, Passthrough};
use crate::server::{self, FairPlaces};
use crate::shadow::{self, Shadow};
use crate::shard::Shards;
use crate::spool::{Beginning, Spool};
use crate::status::Status;
use crate::upstream::{self, Apiserver, Embedded, Upstream};

use listeners::Secured;
pub use listeners::{Listeners, doubts};

/// LIMIT: requests at once over one HTTP/2 connection of clients.
const STREAMS: u32 = 200;
/// LIMIT: connections to the admin port; beyond it the oldest is ended, so that probes are always answered.
const ADMIN_CONNECTIONS: usize = 64;
/// LIMIT: requests at once over one HTTP/2 connection to the admin port. Each may have all metrics in memory.
const ADMIN_STREAMS: u32 = 4;
/// Timeout for running requests after the listener is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout for the last tasks, if running requests have used up theirs.
const LAST_TASKS: Duration = Duration::from_secs(1);

/// Why the program cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be listened on.
    #[error("listening on {address} ({key})")]
    Listen {
        /// Key of the address, and its flag.
        key: &'static str,
        /// The address.
        address: server::Address,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The certificates of a listener cannot be used.
    #[error("reading certificates: {0}")]
    Tls(String),
    /// The web configuration of the admin port has changed since it was checked, and is wrong.
    #[error("reading the web configuration: {0}")]
    Web(#[from] config::Errors),
    /// The client of the apiserver cannot be created.
    #[error("connecting to the API server")]
    Upstream(#[from] upstream::apiserver::Error),
    /// Pass-through has no apiserver.
    #[error("setting up pass-through: the upstream is not an API server that is reached over the network")]
    Passthrough,
    /// The operating system gives no random numbers, which secrets need.
    #[error("drawing random numbers")]
    Random(#[source] getrandom::Error),
}

/// A running program.
#[derive(Debug)]
pub struct App {
    config: Mutex<Config>,
    /// The configuration at the start; its keys that need a restart are still active.
    started_with: Config,
    source: ConfigSource,
    shards: Shards,
    spool: Option<Spool>,
    upstream: Upstream,
    access: Access,
    shadow: Shadow,
    delivery: DeliveryStatus,
    history: history::HistoryStatus,
    metrics: Metrics,
    registry: Registry,
    admin: Admin,
    tasks: TaskTracker,
    /// Cancelled when clients are asked to close their connections.
    closing: CancellationToken,
    stop_serving: CancellationToken,
    /// Cancelled when the last client request has been answered, after `stop_serving`.
    served: CancellationToken,
    stop_delivery: CancellationToken,
    /// Cancelled before the last commit of the spool.
    stop_spool: CancellationToken,
    stop_admin: CancellationToken,
    /// Cancelled when the stop must not wait any longer.
    hurry: CancellationToken,
    /// Cancelled when a task ended before the stop.
    broken: CancellationToken,
    secured: Secured,
    address: server::Address,
    admin_address: SocketAddr,
}

/// File and flags of the configuration, for reloads.
#[derive(Debug, Clone, Default)]
pub struct ConfigSource {
    /// The configuration file, if any.
    pub path: Option<PathBuf>,
    /// The flags that override it.
    pub overrides: config::Overrides,
}

/// Connects to the upstream of `config`.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub async fn connect(config: &Config, clock: &Clock, metrics: upstream::Metrics) -> Result<Upstream, Error> {
    Ok(match config.upstream.backend {
        config::Backend::Embedded => {
            Upstream::Embedded(Embedded::new(config.upstream.store.clone(), clock.clone(), metrics))
        }
        config::Backend::Apiserver => {
            let settings = &config.upstream.apiserver;
            let apiserver = Apiserver::connect(settings, clock.clone(), metrics).await?;
            Upstream::Apiserver(if config.passthrough.enabled && config.passthrough.impersonate {
                apiserver.impersonating(settings).await?
            } else {
                apiserver
            })
        }
    })
}

impl App {
    /// Starts the program. Tests pass their own listeners, upstream and clock.
    ///
    /// # Errors
    /// When a metric is registered twice, or a listener has no address.
    pub fn start(
        config: Config,
        source: ConfigSource,
        listeners: Listeners,
        upstream: Upstream,
        registry: Registry,
        clock: Clock,
    ) -> Result<Arc<Self>, Error> {
        let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let secret = secret()?;
        let beginning = Beginning::of(&config.spool, secret, &registry);
        let secret = beginning.as_ref().map_or(secret, Beginning::secret);
        let count = config.shards.count(cores);
        let shards = Shards::new(count, &config.shard, config.policy.clone(), clock, secret, fastrand::u64(..));
        if matches!(upstream, Upstream::Apiserver(_)) && config.upstream.writes == Writes::Exact {
            shards.identify(&instance()?);
        }
        let spool = beginning.map(|beginning| beginning.restore(&shards));
        let (shadow, runner) = Shadow::new(shards.clone(), self::secret()?);
        let delivery = DeliveryStatus::new(config.gate, &registry);
        let metrics = Metrics::new(&registry);
        let access = access(&config, &upstream, shards.clock().clone(), &registry)?;
        let mode = match upstream {
            Upstream::Apiserver(_) => config.upstream.history,
            Upstream::Embedded(_) => history::Mode::Off,
        };
        let history = history::HistoryStatus::new(&registry, mode);
        let (address, admin_address) = listeners.addresses(&config)?;
        let secured = Secured::new(&config, shards.clock().now(), &registry)?;
        let admin_access = admin::Access {
            origins: listeners::origins(&config, &admin_address.into()),
            is_open: !admin_address.ip().to_canonical().is_loopback() && !secured.admin_requires_certificate(),
        };
        let admin = Admin::new(registry.clone(), shards.clone(), delivery.clone(), history.clone(), admin_access);
        let app = Arc::new(Self {
            address,
            admin_address,
            admin,
            secured,
            history,
            started_with: config.clone(),
            config: Mutex::new(config),
            source,
            shards,
            spool,
            upstream,
            access,
            shadow,
            delivery,
            metrics,
            registry,
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
            stop_serving: CancellationToken::new(),
            served: CancellationToken::new(),
            stop_delivery: CancellationToken::new(),
            stop_spool: CancellationToken::new(),
            stop_admin: CancellationToken::new(),
            hurry: CancellationToken::new(),
            broken: CancellationToken::new(),
        });
        app.run(listeners, runner)?;
        app.warn_of_address();
        app.warn_of_memory();
        Ok(app)
    }

    /// Logs an address that is probably a mistake.
    fn warn_of_address(&self) {
        let address = &self.address;
        if let (server::Address::Tcp(_), true, 1) = (address, address.is_local(), std::process::id()) {
            tracing::info!(listen = %address, "process 1 of a container listens on loopback, which only its pod can reach; \
                with authenticated callers or --insecure-listen, --listen '[::]:8080' listens on all addresses");
        }
        let access = &self.started_with.access;
        if address.is_local() || access.authenticates() && access.authorizes() {
            return;
        }
        if access.authenticates() && !access.anonymous {
            tracing::warn!(listen = %address, "other machines reach this address, and each known caller may do everything \
                there, without auth.subjectAccessReview and auth.policy");
        } else {
            tracing::warn!(listen = %address, "other machines reach this address, and callers are not authenticated there");
        }
    }

    /// Logs a memory that the kernel does not give.
    fn warn_of_memory(&self) {
        let (config::Memory::Bytes(memory), Some(limit)) =
            (self.started_with.memory, self.source.overrides.container_memory)
        else {
            return;
        };
        if memory > limit {
            tracing::warn!(
                memory,
                limit,
                "memory is above the container's limit: during an outage the kernel may end the \
                program before it refuses events with 429"
            );
        }
    }

    fn run(self: &Arc<Self>, listeners: Listeners, runner: shadow::Runner) -> Result<(), Error> {
        let config = self.config.lock().clone();
        self.metrics.config_loaded(&config.hash(), self.shards.clock().now().wall_seconds());
        self.admin.set_config(config.to_yaml());
        self.admin.set_web(self.secured.web());
        let event_log = self.start_event_log(&config);
        let ingest_metrics = ingest::Metrics::new(&self.registry);
        let aliases = Aliases::new(config.ingest.max_aliases, secret()?);
        let connections = ingest_metrics.connections.clone();
        let (shards, upstream) = (self.shards.clone(), self.upstream.clone());
        let shared = ingest::Shared {
            access: self.access.clone(),
            tasks: self.tasks.clone(),
            stop: self.stop_serving.clone(),
            listed: self.history.ready(),
            spool: self.spool.clone(),
            shadow: self.shadow.clone(),
            upstream_up: self.delivery.up(),
        };
        let mut ingest = Ingest::new(config.ingest, shards, upstream, aliases, ingest_metrics, event_log, shared);
        if config.admission.enabled {
            ingest = ingest.admitting(config.admission.settings.clone());
        }
        Registrar(&self.registry).register(ingest.aliases_gauge());
        let limits = server::Settings {
            max_connections: config.ingest.max_connections.get(),
            beyond: server::OverLimit::Waits,
            streams: STREAMS,
            client_timeout: config.ingest.request_timeout,
            close_timeout: CLOSE_TIMEOUT,
        };
        let server = server::Server {
            listener: listeners.ingest,
            tls: self.secured.ingest.clone(),
            settings: limits.clone(),
            connections,
            tasks: self.tasks.clone(),
            end: server::End { closing: self.closing.clone(), stop: self.stop_serving.clone() },
        };
        let (passthrough, served) = (self.passthrough(&config, ingest.bodies())?, self.served.clone());
        let origins = listeners::origins(&config, &self.address);
        self.admin.set_ingest(ingest.clone());
        let ingest = ingest.service(origins.clone());
        self.guard(async move {
            match passthrough {
                Some(passthrough) => server.serve(passthrough.service(ingest, origins)).await,
                None => server.serve(ingest).await,
            }
            served.cancel();
        });
        self.serve_admin(listeners.admin, &limits);
        self.follow_files();
        if let Some(spool) = self.spool.clone() {
            self.guard(spool.run(self.shards.clone(), self.stop_spool.clone()));
        }
        let (shards, upstream) = (self.shards.clone(), self.upstream.clone());
        self.guard(deliver::run(
            shards,
            upstream,
            self.delivery.clone(),
            self.stop_delivery.clone(),
            fastrand::u64(..),
        ));
        self.guard(runner.run(self.stop_delivery.clone()));
        self.shadow.set(config.shadow);
        self.follow_upstream();
        let (address, admin) = (&self.address, self.admin_address);
        let upstream = if matches!(self.upstream, Upstream::Embedded(_)) { "embedded" } else { "apiserver" };
        tracing::info!(listen = %address, admin = %admin, upstream, tls = self.secured.ingest.is_some(), "listening");
        Ok(())
    }

    /// Starts following the events of an apiserver, or expiring those of the embedded store.
    fn follow_upstream(self: &Arc<Self>) {
        if let Upstream::Apiserver(apiserver) = &self.upstream
            && self.history.mode() != history::Mode::Off
        {
            let following = history::follow(apiserver.clone(), self.shards.clone(), self.history.clone());
            let stop = self.stop_delivery.clone();
            let following = async move { stop.run_until_cancelled(following).await.unwrap_or(()) };
            if self.history.mode() == history::Mode::List {
                // It ends with the list. A panic cancels `broken`, as in `guard`.
                let guard = self.broken.clone().drop_guard();
                self.tasks.spawn(async move {
                    following.await;
                    guard.disarm();
                });
            } else {
                self.guard(following);
            }
        }
        if let Upstream::Embedded(embedded) = &self.upstream {
            let (embedded, stop) = (embedded.clone(), self.stop_delivery.clone());
            self.guard(async move { stop.run_until_cancelled(embedded.expire_forever()).await.unwrap_or(()) });
        }
    }

    fn serve_admin(self: &Arc<Self>, listener: TcpListener, limits: &server::Settings) {
        let admin = server::Server {
            listener: listener.into(),
            tls: self.secured.admin.clone(),
            settings: server::Settings {
                max_connections: ADMIN_CONNECTIONS,
                beyond: server::OverLimit::EndsOldest,
                streams: ADMIN_STREAMS,
                ..limits.clone()
            },
            connections: prometheus::IntGauge::new("unregistered", "connections of the admin port")
                .expect("a valid name"),
            tasks: self.tasks.clone(),
            end: self.stop_admin.clone().into(),
        };
        self.guard(admin.serve(self.admin.service()));
    }

    /// Creates the pass-through, if it is enabled. Its metrics are registered in any case.
    fn passthrough(&self, config: &Config, bodies: FairPlaces) -> Result<Option<Passthrough>, Error> {
        let metrics = passthrough::Metrics::new(&self.registry);
        if !config.passthrough.enabled {
            return Ok(None);
        }
        let Upstream::Apiserver(apiserver) = &self.upstream else { return Err(Error::Passthrough) };
        let forwarder = apiserver.forwarder().ok_or(Error::Passthrough)?.clone();
        let settings = passthrough::Settings {
            max_in_flight: config.passthrough.max_in_flight,
            max_upgrades: config.passthrough.max_upgrades,
            max_body_bytes: config.ingest.max_body_bytes.get(),
            body_timeout: config.ingest.request_timeout,
        };
        let impersonator = apiserver.impersonator().cloned();
        let callers = passthrough::Callers { access: self.access.clone(), forwarder, impersonator };
        let (tasks, stop) = (self.tasks.clone(), self.stop_serving.clone());
        Ok(Some(Passthrough::new(settings, callers, metrics, bodies, tasks, stop)))
    }

    /// Runs a task that must not end before the stop. If it does, the program ends: a restarted pod is better than one
    /// with a dead part.
    fn guard(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let broken = self.broken.clone();
        let stopping = [self.closing.clone(), self.stop_delivery.clone(), self.stop_admin.clone()];
        // The guard also cancels `broken` when the task panics, because it is dropped then.
        let guard = broken.drop_guard();
        self.tasks.spawn(async move {
            task.await;
            if stopping.iter().any(CancellationToken::is_cancelled) {
                guard.disarm();
            }
        });
    }

    fn start_event_log(self: &Arc<Self>, config: &Config) -> EventLog {
        let Some(target) = config.event_log.clone() else { return EventLog::none() };
        let (log, writing) = EventLog::new(target, &self.registry, self.stop_admin.clone());
        self.guard(writing);
        log
    }

    /// Returns the TCP address to which components post; an unspecified one with a Unix domain socket.
    pub fn address(&self) -> SocketAddr {
        self.address.tcp().unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Returns the address of the admin port.
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    /// Returns the shards.
    pub const fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Returns the upstream.
    pub const fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Returns all metrics in Prometheus' text format.
    pub fn metrics_text(&self) -> String {
        crate::metrics::render(&self.registry)
    }

    /// Returns the active log level.
    pub fn log_level(&self) -> smol_str::SmolStr {
        self.config.lock().log.level.clone()
    }

    /// Waits until a task ends although the program was not asked to stop.
    pub async fn broken(&self) {
        self.broken.cancelled().await;
    }

    /// Ends the drain of a [`stop`](Self::stop) and its wait for requests at once: what still waits counts as after the
    /// timeout.
    pub fn hurry(&self) {
        self.hurry.cancel();
    }

    /// Stops in order: asks clients to close their connections, accepts no more requests, and writes what waits until
    /// the deadline. The rest stays in the spool, or is counted as lost without one. Returns the final balance;
    /// occurrences that wait in it are in the spool.
    pub async fn stop(&self) -> Balance {
        let config::Shutdown { drain_timeout: timeout, grace } = self.config.lock().shutdown;
        let deadline = tokio::time::sleep(timeout);
        let occurrences = self.shards.balance().total_waiting();
        tracing::info!(occurrences, ?timeout, "stopping; what waits is written until the timeout, or Ctrl-C");
        self.admin.start_draining();
        self.closing.cancel();
        // Without connections, serving on a local address ends at once. Occurrences that arrive meanwhile still need their
        // budget.
        let grace = grace.min(timeout / 2);
        if !grace.is_zero() {
            let served = self.hurry.run_until_cancelled(self.served.cancelled());
            let _served = tokio::time::timeout(grace, served).await;
        }
        self.stop_serving.cancel();
        if !timeout.is_zero() {
            self.delivery.drain();
            self.shards.drain();
            self.spool.iter().for_each(Spool::hurry);
            let drained = async {
                // Occurrences of running requests still belong to the drain.
                self.served.cancelled().await;
                while self.shards.owe() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::select! {
                () = drained => {}
                () = deadline => {}
                () = self.hurry.cancelled() => {}
            }
        }
        self.stop_delivery.cancel();
        self.shards.close();
        let (kept, waited) = match &self.spool {
            Some(spool) => {
                let waited = self.end_requests().await;
                self.stop_spool.cancel();
                (spool.finish(&self.shards).await, waited)
            }
            None => (false, Duration::ZERO),
        };
        let occurrences = self.shards.balance().total_waiting();
        if kept && occurrences > 0 {
            tracing::warn!(occurrences, "occurrences are left in the spool; the next start writes them");
        } else if occurrences > 0 && self.spool.is_some() {
            // Not counted one by one: the last commit has an older state of some of their records.
            tracing::error!(
                occurrences,
                "occurrences count as lost: neither the upstream nor the spool stored them before the deadline; the next \
                 start writes those that an earlier commit has"
            );
        } else if occurrences > 0 {
            tracing::error!(occurrences, "occurrences are lost: the upstream did not store them before the deadline");
        }
        if !kept {
            self.shards.abandon();
        }
        let balance = self.shards.balance();
        self.stop_admin.cancel();
        self.tasks.close();
        // Connections end when their clients close them.
        let rest = CLOSE_TIMEOUT.saturating_sub(waited).max(LAST_TASKS);
        if tokio::time::timeout(rest, self.tasks.wait()).await.is_err() {
            tracing::debug!("some tasks were still running at the end");
        }
        let ledger = &balance.ledger;
        let (received, written, lost) = (ledger.received(), ledger.total_written(), ledger.total_lost());
        tracing::info!(received, rejected = ledger.total_rejected(), written, lost, "stopped");
        balance
    }

    /// Waits for the requests that still run, unless the stop must not wait. A DELETE or PUT among them must be in the
    /// last commit before it is answered: otherwise the next start would undo it. Returns the time that it took.
    async fn end_requests(&self) -> Duration {
        let clock = self.shards.clock();
        let before = clock.now().mono;
        let served = self.hurry.run_until_cancelled(self.served.cancelled());
        let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, served).await;
        clock.now().mono.since(before)
    }
}

/// Creates the access control of the listener; it asks the apiserver, if that is the upstream.
fn access(config: &Config, upstream: &Upstream, clock: Clock, registry: &Registry) -> Result<Access, Error> {
    let ask: access::Ask = match upstream {
        Upstream::Apiserver(apiserver) => {
            let apiserver = apiserver.clone();
            Arc::new(move |review, question| {
                let apiserver = apiserver.clone();
                Box::pin(async move { apiserver.review(review.path(), &question).await })
            })
        }
        Upstream::Embedded(_) => Arc::new(|_, _| {
            let status = Status::new(501, "NotImplemented", "the embedded store answers no reviews");
            Box::pin(std::future::ready(Err(status)))
        }),
    };
    Ok(Access::new(config.access.clone(), ask, clock, secret()?, access::Metrics::new(registry)))
}

/// Returns this process's name on the records that it writes, unique among all processes.
fn instance() -> Result<String, Error> {
    Ok(format!("{:032x}", u128::from_ne_bytes(random()?)))
}

/// Draws a secret, which cannot be guessed from the names that are written upstream either.
fn secret() -> Result<KeySecret, Error> {
    Ok(KeySecret(u64::from_ne_bytes(random()?), u64::from_ne_bytes(random()?)))
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(Error::Random)?;
    Ok(bytes)
}
