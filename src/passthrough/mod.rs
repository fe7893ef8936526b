//! Pass-through: eventweir at the address of the apiserver. Ingest answers writes of events. All other requests are
//! forwarded to the apiserver unchanged: with the caller's own token, without limits of size or time, without
//! buffering. A caller that has only a certificate is impersonated, if that is enabled.
//!
//! Method and path decide the route before anything is parsed. A write that ingest cannot take is forwarded too
//! (`events`), so that no component loses an event to eventweir. Ingest refuses writes that the apiserver would
//! refuse as well.
//!
//! Requests that a web page of another origin makes a browser send are refused first, on every path.
//!
//! Pass-through authenticates only callers that it impersonates, and callers of events before it reads them. The
//! apiserver authenticates others by their token. The layers of ingest authorise callers of events. An event that these
//! layers refuse is not forwarded.

mod body;
mod events;
mod forward;
mod headers;
mod impersonate;
mod metrics;
mod tokens;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::service_fn;

pub use impersonate::Callers;
pub use metrics::Metrics;

use crate::event::ApiGroup;
use crate::server::{Answer, FairPlaces, Origins};
use crate::status::Status;
use crate::upstream::apiserver::{is_impersonation, is_of_eventweir};
use events::Names;
use headers::Via;
use metrics::Kind;
use tokens::Tokens;

/// Settings of pass-through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// LIMIT: requests in flight to the apiserver, watches included; further ones, and those over half for one caller,
    /// are refused with 429.
    pub max_in_flight: NonZeroUsize,
    /// LIMIT: upgraded connections at once; further ones, and those over half for one caller, are refused with 429.
    pub max_upgrades: NonZeroUsize,
    /// LIMIT: bytes of an event that are buffered until ingest has answered; a larger body is forwarded.
    pub max_body_bytes: usize,
    /// Timeout for the body of an event; a later one is forwarded.
    pub body_timeout: Duration,
}

/// Routes requests and forwards them. Clones share limits and connections.
#[derive(Debug, Clone)]
pub struct Passthrough(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    callers: Callers,
    tokens: Tokens,
    via: Via,
    metrics: Metrics,
    in_flight: FairPlaces,
    upgrades: FairPlaces,
    /// Bytes of buffered events, which ingest counts too. A body without a place is forwarded.
    bodies: FairPlaces,
    forwarded: Names,
    /// Runs one task per tunnel.
    tasks: TaskTracker,
    /// Ends watches and tunnels.
    stop: CancellationToken,
}

impl Passthrough {
    /// Pass-through to the apiserver of `callers`, until `stop`.
    pub fn new(
        settings: Settings,
        callers: Callers,
        metrics: Metrics,
        bodies: FairPlaces,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        Self(Arc::new(Inner {
            settings,
            callers,
            tokens: Tokens::new(),
            via: Via::random(),
            in_flight: FairPlaces::new(settings.max_in_flight, metrics.in_flight.clone()),
            upgrades: FairPlaces::new(settings.max_upgrades, metrics.tunnels.clone()),
            metrics,
            bodies,
            forwarded: Names::new(),
            tasks,
            stop,
        }))
    }

    /// Returns the service that answers requests of these origins, with `ingest` for events.
    pub fn service<S: Answer>(self, ingest: S, origins: Origins) -> impl Answer {
        let ingest = Arc::new(ingest);
        service_fn(move |request: Request<Body>| {
            let refusal = origins.refusal(request.uri(), request.headers());
            let (passthrough, ingest) = (self.clone(), Arc::clone(&ingest));
            async move {
                let mut counted = passthrough.0.metrics.begin();
                let (kind, response) = match refusal {
                    Some(reason) => refuse(&Status::new(403, "Forbidden", reason)),
                    None => passthrough.answer(&ingest, request).await,
                };
                counted.is(kind);
                Ok(response)
            }
        })
    }

    async fn answer<S: Answer>(&self, ingest: &Arc<S>, request: Request<Body>) -> Answered {
        if self.0.via.is_in(request.headers()) {
            return refuse(&loop_detected());
        }
        match Route::of(request.method(), request.uri().path()) {
            Route::Ours => (Kind::Events, S::clone(ingest).run(request).await),
            // Only the apiserver can authorise impersonation. Another eventweir has merged its events already.
            Route::Write if request.headers().keys().any(is_impersonation) || is_of_eventweir(request.headers()) => {
                self.forward(request).await
            }
            // Boxed, so that the future of the other routes stays small.
            Route::Write => Box::pin(self.write(ingest, request)).await,
            Route::Apiserver | Route::Event if request.method() == Method::CONNECT => {
                let message = "the server does not allow this method on the requested resource";
                refuse(&Status::new(405, "MethodNotAllowed", message))
            }
            Route::Apiserver | Route::Event if headers::asks_for_upgrade(request.headers()) => {
                Box::pin(self.tunnel(request)).await
            }
            Route::Event => Box::pin(self.read_event(ingest, request)).await,
            Route::Apiserver => self.forward(request).await,
        }
    }
}

/// An answer, and the result that it is counted as.
type Answered = (Kind, Response);

/// A refusal without an answer of the apiserver, and the result that it is counted as.
type Unanswered = (Kind, Box<Status>);

fn refuse(status: &Status) -> Answered {
    (Kind::Refused, forward::refusal(status))
}

/// 508: the request has come back.
fn loop_detected() -> Status {
    let message = "eventweir: the address of the API server leads back to this eventweir; give it the API server's own \
                   (--kubeconfig, or KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT of its container)";
    Status::new(508, "LoopDetected", message)
}

/// Returns the answer to a client whose request could not be forwarded.
fn unanswered((kind, status): Unanswered) -> Answered {
    (kind, forward::refusal(&status))
}

/// Destination of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// A write of an event: ingest, or the apiserver where ingest cannot take it.
    Write,
    /// A read of one event: the apiserver, or ingest if the apiserver has no event of this name. Ingest may have
    /// answered a client with a name that only eventweir knows.
    Event,
    /// A path that no apiserver has: ingest alone.
    Ours,
    /// Anything else: the apiserver.
    Apiserver,
}

impl Route {
    fn of(method: &Method, path: &str) -> Self {
        if path.starts_with("/eventweir/") {
            return Self::Ours;
        }
        let Some(events) = Events::of(path) else { return Self::Apiserver };
        let is_one = events.name.is_some();
        match *method {
            Method::POST if !is_one => Self::Write,
            Method::DELETE => Self::Write,
            Method::PATCH | Method::PUT if is_one => Self::Write,
            Method::GET if is_one => Self::Event,
            _ => Self::Apiserver,
        }
    }
}

/// The events of a namespace, or one of them, as a path names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Events<'a> {
    group: ApiGroup,
    namespace: &'a str,
    name: Option<&'a str>,
}

impl<'a> Events<'a> {
    /// Parses a path; `None` if it names no events of a namespace. Like the routes of ingest, it resolves no escapes.
    fn of(path: &'a str) -> Option<Self> {
        let (group, rest) =
            [(ApiGroup::Core, "/api/v1/namespaces/"), (ApiGroup::Events, "/apis/events.k8s.io/v1/namespaces/")]
                .into_iter()
                .find_map(|(group, prefix)| Some((group, path.strip_prefix(prefix)?)))?;
        let (namespace, rest) = rest.split_once('/').filter(|(namespace, _)| !namespace.is_empty())?;
        let rest = rest.strip_prefix("events")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let name = match rest.strip_prefix('/') {
            None if rest.is_empty() => None,
            Some(name) if !name.is_empty() && !name.contains('/') => Some(name),
            _ => return None,
        };
        Some(Self { group, namespace, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ingest_gets_writes_of_events_and_the_apiserver_all_else() {
        let check = |method: Method, path: &str, route| assert_eq!(Route::of(&method, path), route, "{method} {path}");
        for group in ["/api/v1", "/apis/events.k8s.io/v1"] {
            let events = format!("{group}/namespaces/shop/events");
            check(Method::POST, &events, Route::Write);
            check(Method::POST, &format!("{events}/"), Route::Write);
            check(Method::DELETE, &events, Route::Write);
            check(Method::GET, &events, Route::Apiserver);
            check(Method::GET, &format!("{group}/watch/namespaces/shop/events"), Route::Apiserver);
            check(Method::GET, &format!("{group}/events"), Route::Apiserver);
            check(Method::PUT, &events, Route::Apiserver);
            for method in [Method::PATCH, Method::PUT, Method::DELETE] {
                check(method, &format!("{events}/a.b"), Route::Write);
            }
            check(Method::GET, &format!("{events}/a.b"), Route::Event);
            check(Method::HEAD, &format!("{events}/a.b"), Route::Apiserver);
            check(Method::POST, &format!("{events}/a.b"), Route::Apiserver);
            check(Method::PATCH, &format!("{events}/a.b/status"), Route::Apiserver);
            check(Method::POST, &format!("{events}2"), Route::Apiserver);
            check(Method::POST, &format!("{events}//"), Route::Apiserver);
            check(Method::POST, &format!("{group}/namespaces//events"), Route::Apiserver);
        }
        check(Method::POST, "/api/v1/namespaces/shop/pods", Route::Apiserver);
        check(Method::POST, "/apis/apps/v1/namespaces/shop/events", Route::Apiserver);
        check(Method::GET, "/apis", Route::Apiserver);
        check(Method::POST, "/eventweir/v1/events", Route::Ours);
    }
}
