//! The HTTP server without a network.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::body::Body;
use eventweir::access::{self, Access};
use eventweir::clock::Clock;
use eventweir::correlator::{KeySecret, Policy};
use eventweir::event_log::EventLog;
use eventweir::ingest::{self, Aliases, Ingest, Shared};
use eventweir::server::Origins;
use eventweir::shadow::Shadow;
use eventweir::shard::{self, Shards};
use eventweir::upstream::{Embedded, Metrics, Upstream, store};
use http::{Request, Response};
use http_body_util::BodyExt;
use tower::ServiceExt;

pub struct Fixture {
    face: Ingest,
    pub shards: Shards,
}

impl Fixture {
    pub fn new() -> Self {
        let registry = prometheus::Registry::new();
        let clock = Clock::simulated(1_772_352_000_000_000_000);
        let one = NonZeroUsize::MIN;
        let shards =
            Shards::new(one, &shard::Settings::default(), Policy::default(), clock.clone(), KeySecret(7, 9), 1);
        let metrics = Metrics::new(&registry);
        let store = store::Store::new(store::Settings::default(), 1);
        let ask: access::Ask = Arc::new(|_, _| Box::pin(std::future::pending()));
        let counted = access::Metrics::new(&registry);
        let access = Access::new(access::Settings::default(), ask, clock.clone(), KeySecret(1, 2), counted);
        let upstream = Upstream::Embedded(Embedded::with_store(store, clock, metrics));
        let settings = ingest::Settings {
            max_watches: one,
            max_list_bytes: NonZeroUsize::MAX,
            repair: NonZeroUsize::new(4096),
            ..ingest::Settings::default()
        };
        let metrics = ingest::Metrics::new(&registry);
        let (shadow, _) = Shadow::new(shards.clone(), KeySecret(7, 9));
        let listed = tokio_util::sync::CancellationToken::new();
        listed.cancel();
        let upstream_up = prometheus::IntGauge::new("up", "up").expect("a valid name");
        let (tasks, stop) = Default::default();
        let shared = Shared { access, tasks, stop, listed, spool: None, shadow, upstream_up };
        let aliases = Aliases::new(NonZeroUsize::new(16).expect("not zero"), KeySecret(8, 10));
        let face = Ingest::new(settings, shards.clone(), upstream, aliases, metrics, EventLog::none(), shared);
        Self { face, shards }
    }

    /// Sends a request and reads the whole answer.
    pub async fn send(&self, request: Request<Body>) -> Response<Vec<u8>> {
        let Ok(response) = self.face.service(Origins::any_host()).oneshot(request).await;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map(|body| body.to_bytes().to_vec()).unwrap_or_default();
        Response::from_parts(parts, body)
    }
}

/// Runs a task with a paused clock, which advances to the next timer at once.
pub fn run<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(task)
}
