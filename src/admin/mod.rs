//! The admin port: metrics, health, the page, the effective configuration and reload.
//!
//! Liveness reports whether the delivery loop runs, readiness whether events can be accepted. Neither fails while the
//! upstream is down: events wait in the outbox, and a restart would only lose them. Neither fails when the upstream
//! forbids writes: no other replica would be allowed to write. The body of the answer reports both.

mod page;
mod web;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use parking_lot::Mutex;
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tokio::sync::Notify;
use tower::ServiceBuilder;

pub use web::Web;

use crate::deliver::DeliveryStatus;
use crate::history;
use crate::ingest::Ingest;
use crate::metrics::{self, Registrar};
use crate::server::{Answer, Origins, layer};
use crate::shard::{self, Shards};
use crate::upstream::Verb;
use web::Passwords;

/// The delivery loop runs at least every five seconds; after this time it counts as stuck.
const STUCK: Duration = Duration::from_secs(30);

const LIVE: [&str; 3] = ["/livez", "/healthz", "/-/healthy"];
const READY: [&str; 2] = ["/readyz", "/-/ready"];

/// The admin endpoints. Clones share one state.
#[derive(Debug, Clone)]
pub struct Admin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    shards: Shards,
    delivery: DeliveryStatus,
    history: history::HistoryStatus,
    draining: AtomicBool,
    reload: Notify,
    access: Access,
    web: ArcSwap<Web>,
    passwords: Passwords,
    /// The active configuration, as YAML.
    config: ArcSwap<String>,
    /// The part that answers the page's queries about events.
    ingest: OnceLock<Ingest>,
}

/// Reads the shards in the instant of a scrape.
#[derive(Debug)]
struct ShardCollector {
    shards: Shards,
    metrics: Mutex<shard::Metrics>,
}

impl Collector for ShardCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The descriptions are behind the lock. A collector without any is registered unchecked, which is fine for
        // names that nothing else uses.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.metrics.lock().collect(&self.shards, &self.shards.settings())
    }
}

/// Protection of the port.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// The accepted hosts and web origins of requests.
    pub origins: Origins,
    /// Whether other machines reach it without a client certificate, so that only passwords protect it.
    pub is_open: bool,
}

impl Admin {
    /// Creates the endpoints of these parts, and registers the metrics of the shards.
    pub fn new(
        registry: Registry,
        shards: Shards,
        delivery: DeliveryStatus,
        history: history::HistoryStatus,
        access: Access,
    ) -> Self {
        Registrar(&registry).register(ShardCollector { shards: shards.clone(), metrics: Mutex::default() });
        Self(Arc::new(Inner {
            passwords: Passwords::new(),
            registry,
            shards,
            delivery,
            history,
            draining: AtomicBool::new(false),
            reload: Notify::new(),
            access,
            web: ArcSwap::default(),
            config: ArcSwap::default(),
            ingest: OnceLock::new(),
        }))
    }

    /// Returns the layers that every request passes, from the outermost, and the router.
    pub fn service(&self) -> impl Answer + use<> {
        ServiceBuilder::new()
            // Adds the configured headers to every answer.
            .layer(layer(self.clone(), with_headers))
            // Refuses requests that a web page of another origin makes a browser send.
            .layer(layer(self.clone(), of_our_origin))
            // Authenticates every request but those for health.
            .layer(layer(self.clone(), authenticated))
            .service(self.router())
    }

    /// The table of paths, with the names of both Kubernetes and Prometheus.
    fn router(&self) -> Router {
        let router = Router::new()
            .route("/", get(page::overview))
            .route("/explain", get(page::explain))
            .route("/page.css", get(async || page::asset("text/css; charset=utf-8", page::CSS)))
            .route("/page.js", get(async || page::asset("text/javascript; charset=utf-8", page::SCRIPT)))
            .route("/icon.svg", get(async || page::asset("image/svg+xml", page::ICON)))
            .route("/metrics", get(scrape))
            .route("/config", get(config))
            .route("/-/reload", post(reload));
        let router = LIVE.iter().fold(router, |router, path| router.route(path, get(livez)));
        READY.iter().fold(router, |router, path| router.route(path, get(readyz))).with_state(self.clone())
    }

    /// Replaces users and headers.
    pub fn set_web(&self, web: Web) {
        self.0.web.store(Arc::new(web));
    }

    /// Sets the part that answers the page's queries about events.
    pub fn set_ingest(&self, ingest: Ingest) {
        self.0.ingest.get_or_init(|| ingest);
    }

    /// Whether every caller is authenticated, or on this machine. Only then the page shows events, and `/-/reload` is
    /// on.
    fn knows_callers(&self) -> bool {
        !self.0.access.is_open || !self.0.web.load().users.is_empty()
    }

    /// Replaces the configuration that is shown.
    pub fn set_config(&self, yaml: String) {
        self.0.config.store(Arc::new(yaml));
    }

    /// Makes readiness fail, so that new events go to other replicas.
    pub fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    /// Waits until a reload is requested.
    pub async fn reload_asked(&self) {
        self.0.reload.notified().await;
    }

    /// Returns the checks of readiness, each with its state if it has passed. A full outbox is none of them: repeats of
    /// known records need no room, and other replicas are full too while the upstream is away.
    fn checks(&self) -> [(&'static str, Option<&'static str>); 2] {
        let history = &self.0.history;
        let known = if history.is_synced() || history.mode() == history::Mode::Off { "ok" } else { "not followed" };
        [
            ("accepting", Some("ok").filter(|_| !self.is_draining())),
            ("history", Some(known).filter(|_| history.is_ready())),
        ]
    }

    fn upstream(&self) -> String {
        let delivery = &self.0.delivery;
        let forbidden = Verb::OF_DELIVERY.into_iter().filter(|verb| delivery.is_forbidden(*verb));
        let forbidden: Vec<_> = forbidden.map(Verb::label).collect();
        if !delivery.is_up() {
            "down: events wait in the outbox".to_owned()
        } else if !delivery.is_tried() {
            "not tried yet: nothing has been written".to_owned()
        } else if !forbidden.is_empty() {
            format!("forbidden: it answers 403 to {} of events", forbidden.join(", "))
        } else {
            "up".to_owned()
        }
    }

    fn is_live(&self) -> bool {
        let now = self.0.shards.clock().now().mono;
        now.since(self.0.delivery.last_turn()) < STUCK
    }
}

async fn scrape(State(admin): State<Admin>) -> Response {
    let text = metrics::render(&admin.0.registry);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn livez(State(admin): State<Admin>) -> Response {
    verdict(&[("delivery-turns", admin.is_live().then_some("ok"))], None)
}

async fn readyz(State(admin): State<Admin>) -> Response {
    verdict(&admin.checks(), Some(&admin.upstream()))
}

async fn config(State(admin): State<Admin>) -> Response {
    let text = admin.0.config.load().as_str().to_owned();
    ([(header::CONTENT_TYPE, "application/yaml; charset=utf-8")], text).into_response()
}

async fn reload(State(admin): State<Admin>) -> Response {
    if !admin.knows_callers() {
        return (
            StatusCode::FORBIDDEN,
            "reload is off: other machines reach this port without authentication; see --web.config.file\n",
        )
            .into_response();
    }
    if admin.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "eventweir is stopping, and reads no configuration any more\n")
            .into_response();
    }
    admin.0.reload.notify_one();
    (StatusCode::ACCEPTED, "reload requested; see the log and eventweir_config_last_reload_successful\n")
        .into_response()
}

async fn with_headers(admin: Admin, request: Request, next: impl Answer) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in &admin.0.web.load().headers {
        response.headers_mut().insert(name, value.clone());
    }
    response
}

async fn of_our_origin(admin: Admin, request: Request, next: impl Answer) -> Response {
    match admin.0.access.origins.refusal(request.uri(), request.headers()) {
        Some(reason) => (StatusCode::FORBIDDEN, format!("{reason}\n")).into_response(),
        None => next.run(request).await,
    }
}

async fn authenticated(admin: Admin, request: Request, next: impl Answer) -> Response {
    let web = admin.0.web.load_full();
    let is_health = LIVE.iter().chain(&READY).any(|path| *path == request.uri().path());
    if web.users.is_empty() || is_health || admin.0.passwords.are_right(&web, request.headers()).await {
        return next.run(request).await;
    }
    let mut response = (StatusCode::UNAUTHORIZED, "Unauthorized\n").into_response();
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Basic"));
    response
}

/// Formats one line per check, as the apiserver's verbose health answers.
fn verdict(checks: &[(&str, Option<&str>)], upstream: Option<&str>) -> Response {
    let mut text = String::new();
    for (name, passed) in checks {
        text += &passed.map_or_else(|| format!("[-]{name} failed\n"), |state| format!("[+]{name} {state}\n"));
    }
    if let Some(upstream) = upstream {
        text += &format!("upstream {upstream}\n");
    }
    let passed = checks.iter().all(|(_, passed)| passed.is_some());
    let code = if passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, text).into_response()
}
