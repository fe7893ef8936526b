//! The face that components talk to: the apiserver's own paths for Events, over HTTP.
//!
//! A request meets: the table of paths below, [`decode`] (Accept, Content-Type, size, JSON), the apiserver's validation, then
//! its shard. Reads go to the upstream. Every refusal is a `Status` in the apiserver's words; nothing refused is recorded, but
//! for the ledger.

mod aliases;
mod create;
mod decode;
mod metrics;
mod patch;
mod read;
mod respond;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::routing::{get, on};

pub use aliases::Aliases;
pub use metrics::Metrics;

use crate::event_log::EventLog;
use crate::ledger::RejectReason;
use crate::shard::Shards;
use crate::status::Status;
use crate::upstream::Upstream;

/// Settings of the face.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// LIMIT: bytes of a body; larger ones are refused with 413.
    pub max_body_bytes: usize,
    /// Longest time for a body to arrive.
    pub request_timeout: Duration,
}

/// What every request handler has at hand.
#[derive(Debug, Clone)]
pub struct Face(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    shards: Shards,
    upstream: Upstream,
    aliases: Aliases,
    metrics: Metrics,
    event_log: EventLog,
}

impl Face {
    /// A face in front of these shards and this upstream.
    #[must_use]
    pub fn new(
        settings: Settings,
        shards: Shards,
        upstream: Upstream,
        aliases: Aliases,
        metrics: Metrics,
        event_log: EventLog,
    ) -> Self {
        Self(Arc::new(Inner { settings, shards, upstream, aliases, metrics, event_log }))
    }

    /// The table of path and verb.
    pub fn router(&self) -> Router {
        let collection = get(read::list).post(create::create).fallback(method_not_allowed);
        let item = get(read::get).patch(patch::patch).fallback(method_not_allowed);
        // HEAD is refused like any other method; `get` would answer it.
        let refused = |methods| on(methods, method_not_allowed);
        Router::new()
            .route(
                "/api/v1/namespaces/{namespace}/events",
                refused(axum::routing::MethodFilter::HEAD).merge(collection),
            )
            .route(
                "/api/v1/namespaces/{namespace}/events/{name}",
                refused(axum::routing::MethodFilter::HEAD).merge(item),
            )
            .route(
                "/api/v1/events",
                refused(axum::routing::MethodFilter::HEAD).merge(get(read::list_all).fallback(method_not_allowed)),
            )
            .fallback(respond::page_not_found)
            .with_state(self.clone())
            .layer(axum::middleware::from_fn_with_state(self.clone(), count))
    }

    /// Refuses what may have been an occurrence, and says so in the ledger.
    fn reject(&self, reason: RejectReason, status: &Status) -> Response {
        self.0.shards.reject(reason, 1);
        respond::refusal(status)
    }
}

/// 405 in the apiserver's words.
async fn method_not_allowed() -> Response {
    respond::refusal(
        &Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_details(crate::status::StatusDetails::default()),
    )
}

/// Outermost, so that every answer is counted, refusals and unknown paths included.
async fn count(State(face): State<Face>, request: Request, next: axum::middleware::Next) -> Response {
    let verb = match *request.method() {
        Method::POST => metrics::Verb::Post,
        Method::GET => metrics::Verb::Get,
        Method::PATCH => metrics::Verb::Patch,
        _ => metrics::Verb::Other,
    };
    let response = next.run(request).await;
    face.0.metrics.count_request(verb, response.status().as_u16());
    response
}
