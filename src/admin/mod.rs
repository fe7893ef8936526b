//! Metrics, health and reload, on a port of their own.
//!
//! Liveness tells whether the loops turn, readiness whether events can be accepted. An upstream that is down makes neither
//! fail: events wait in the outbox, and a restart would only lose them. Nor does one that forbids us to write: no other
//! replica would be allowed to. The body of the answer tells of both.

mod collector;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use prometheus::Registry;
use tokio::sync::Notify;

pub use collector::ShardCollector;

use crate::deliver::Monitor;
use crate::history;
use crate::metrics;
use crate::shard::{Settings, Shards};
use crate::upstream::Verb;

/// Delivery's loop turns every five seconds at the least; after this long it counts as stuck.
const STUCK: Duration = Duration::from_secs(30);

/// What the admin endpoints look at.
#[derive(Debug, Clone)]
pub struct Admin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    shards: Shards,
    monitor: Monitor,
    history: history::Monitor,
    limits: ArcSwap<Settings>,
    draining: AtomicBool,
    reload: Notify,
}

impl Admin {
    /// Endpoints over these parts.
    #[must_use]
    pub fn new(
        registry: Registry,
        shards: Shards,
        monitor: Monitor,
        history: history::Monitor,
        limits: Settings,
    ) -> Self {
        let (draining, reload) = (AtomicBool::new(false), Notify::new());
        let limits = ArcSwap::from_pointee(limits);
        Self(Arc::new(Inner { registry, shards, monitor, history, limits, draining, reload }))
    }

    /// The table of paths: Kubernetes' names and Prometheus' names for the same things.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/metrics", get(scrape))
            .route("/livez", get(livez))
            .route("/healthz", get(livez))
            .route("/-/healthy", get(livez))
            .route("/readyz", get(readyz))
            .route("/-/ready", get(readyz))
            .route("/-/reload", post(reload))
            .with_state(self.clone())
    }

    /// Takes over reloaded limits.
    pub fn set_limits(&self, limits: Settings) {
        self.0.limits.store(Arc::new(limits));
    }

    /// From now on new events go elsewhere.
    pub fn start_draining(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
    }

    /// Waits until somebody asks for a reload.
    pub async fn reload_asked(&self) {
        self.0.reload.notified().await;
    }

    fn checks(&self) -> [(&'static str, bool); 3] {
        let sizes = self.0.shards.sizes();
        let limits = self.0.limits.load();
        let outbox = &limits.outbox;
        let room = sizes.records < outbox.max_records.get() && sizes.bytes < outbox.max_bytes.get();
        let accepting = !self.0.draining.load(Ordering::Relaxed);
        [("accepting", accepting), ("outbox-has-room", room), ("history", self.0.history.is_ready())]
    }

    /// How the upstream answers.
    fn upstream(&self) -> String {
        let monitor = &self.0.monitor;
        let forbidden = Verb::OF_DELIVERY.into_iter().filter(|verb| monitor.is_forbidden(*verb));
        let forbidden: Vec<_> = forbidden.map(Verb::label).collect();
        if !monitor.is_up() {
            "down: events wait in the outbox".to_owned()
        } else if !forbidden.is_empty() {
            format!("forbidden: it answers 403 to {} of events", forbidden.join(", "))
        } else {
            "up".to_owned()
        }
    }

    fn is_live(&self) -> bool {
        let now = self.0.shards.clock().now().mono;
        now.since(self.0.monitor.last_turn()) < STUCK
    }
}

async fn scrape(State(admin): State<Admin>) -> Response {
    let text = metrics::render(&admin.0.registry);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn livez(State(admin): State<Admin>) -> Response {
    verdict(&[("delivery-turns", admin.is_live())], None)
}

async fn readyz(State(admin): State<Admin>) -> Response {
    verdict(&admin.checks(), Some(&admin.upstream()))
}

async fn reload(State(admin): State<Admin>) -> Response {
    admin.0.reload.notify_one();
    (StatusCode::ACCEPTED, "reload asked for; see the log and eventweir_config_last_reload_successful\n")
        .into_response()
}

/// One line a check, in the form of the apiserver's verbose health answers.
fn verdict(checks: &[(&str, bool)], upstream: Option<&str>) -> Response {
    let mut text = String::new();
    for (name, passed) in checks {
        text.push_str(if *passed { "[+]" } else { "[-]" });
        text.push_str(name);
        text.push_str(if *passed { " ok\n" } else { " failed\n" });
    }
    if let Some(upstream) = upstream {
        text.push_str("upstream ");
        text.push_str(upstream);
        text.push('\n');
    }
    let passed = checks.iter().all(|(_, passed)| *passed);
    let code = if passed { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, text).into_response()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::{KeySecret, Policy};
    use crate::event::Event;
    use crate::outbox::GateSettings;

    #[test]
    fn readiness_goes_by_reloaded_limits() {
        let mut limits = Settings::default();
        limits.outbox.max_records = NonZeroUsize::MIN;
        let (clock, secret) = (Clock::manual(0), KeySecret(1, 2));
        let shards = Shards::new(NonZeroUsize::MIN, &limits, Policy::default(), clock, secret, 1);
        let monitor = Monitor::new(GateSettings::default());
        let history = history::Monitor::new(&Registry::new(), history::Mode::Off).unwrap();
        let admin = Admin::new(Registry::new(), shards.clone(), monitor, history, limits.clone());
        shards.accept(Event::default(), 1).unwrap();
        assert_eq!(admin.checks(), [("accepting", true), ("outbox-has-room", false), ("history", true)]);
        limits.outbox.max_records = const { NonZeroUsize::new(2).unwrap() };
        admin.set_limits(limits);
        assert_eq!(admin.checks(), [("accepting", true), ("outbox-has-room", true), ("history", true)]);
    }
}
