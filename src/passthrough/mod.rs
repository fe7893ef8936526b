//! Pass-through: eventweir stands where the apiserver stood. Writes of events go to the event half, everything else goes on
//! to the apiserver as it came: with the caller's own token, without a limit of size or time, without being kept.
//!
//! A request is told apart by method and path, before anything is parsed (`path`). What the event half cannot take goes on
//! too (`events`): a component never loses an event because eventweir stands there. What the apiserver would refuse as well is
//! refused by the event half.
//!
//! What a web page of another origin makes a browser send is refused first, whatever it asks for.
//!
//! Here nobody is authenticated: the apiserver does that with the caller's token, and for events the layers of the event
//! half do. An event that these refuse does not go on.

mod body;
mod events;
mod headers;
mod metrics;
mod names;
mod path;
mod proxy;
mod refusal;
mod upgrade;

use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt as _, service_fn};

pub use metrics::Metrics;

use crate::server::{Answer, Origins};
use crate::upstream::apiserver::Forwarder;
use metrics::Kind;
use names::Names;
use path::Place;

/// Settings of pass-through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// LIMIT: requests at the apiserver at once, watches included; further ones are refused with 429.
    pub max_in_flight: NonZeroUsize,
    /// LIMIT: upgraded connections at once; further ones are refused with 429.
    pub max_upgrades: NonZeroUsize,
    /// LIMIT: bytes of an event that are kept until the event half has answered; a larger body goes on.
    pub max_body_bytes: usize,
    /// Longest time for an event's body to arrive; a later one goes on.
    pub body_timeout: Duration,
}

/// Tells requests apart and sends them on; clones share limits and connections.
#[derive(Debug, Clone)]
pub struct Passthrough(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    forwarder: Forwarder,
    metrics: Metrics,
    in_flight: Arc<Semaphore>,
    upgrades: Arc<Semaphore>,
    passed_on: Names,
    /// Where a task per tunnel is spawned.
    tasks: TaskTracker,
    /// Ends watches and tunnels.
    stop: CancellationToken,
}

impl Passthrough {
    /// Pass-through to the apiserver of `forwarder`, until `stop`.
    #[must_use]
    pub fn new(
        settings: Settings,
        forwarder: Forwarder,
        metrics: Metrics,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let [in_flight, upgrades] = [settings.max_in_flight, settings.max_upgrades]
            .map(|most| Arc::new(Semaphore::new(most.get().min(Semaphore::MAX_PERMITS))));
        Self(Arc::new(Inner {
            settings,
            forwarder,
            metrics,
            in_flight,
            upgrades,
            passed_on: Names::new(),
            tasks,
            stop,
        }))
    }

    /// Answers every request of these origins, with `face` for events.
    pub fn service<S: Answer>(
        self,
        face: S,
        origins: Origins,
    ) -> impl Service<Request<Body>, Response = Response, Error = Infallible, Future: Send + 'static> + Clone + Send + Sync
    {
        let face = Arc::new(face);
        service_fn(move |request: Request<Body>| {
            let (parts, body) = request.into_parts();
            let refusal = origins.refusal(&parts.uri, &parts.headers);
            let (passthrough, face) = (self.clone(), Arc::clone(&face));
            async move {
                let Some(reason) = refusal else {
                    return Ok(passthrough.answer(&face, Request::from_parts(parts, body)).await);
                };
                passthrough.0.metrics.count(Kind::Refused);
                Ok(refusal::response(&refusal::foreign(reason)))
            }
        })
    }

    async fn answer<S: Answer>(&self, face: &Arc<S>, request: Request<Body>) -> Response {
        let place = Place::of(request.method(), request.uri().path());
        match place {
            Place::Ours => {
                self.0.metrics.count(Kind::Events);
                ask(face, request).await
            }
            // Whether the caller may act as somebody else is the apiserver's to say.
            Place::Write if headers::impersonates(request.headers()) => self.forward(request).await,
            // By itself, so that the future of the others stays small.
            Place::Write => Box::pin(self.write(face, request)).await,
            Place::Apiserver | Place::Event if request.method() == Method::CONNECT => {
                self.0.metrics.count(Kind::Refused);
                refusal::response(&refusal::connect())
            }
            Place::Apiserver | Place::Event if headers::asks_for_upgrade(request.headers()) => {
                Box::pin(self.tunnel(request)).await
            }
            Place::Event => Box::pin(self.read_event(face, request)).await,
            Place::Apiserver => self.forward(request).await,
        }
    }
}

/// Asks the event half.
async fn ask<S: Answer>(face: &Arc<S>, request: Request<Body>) -> Response {
    let Ok(response) = S::clone(face).oneshot(request).await;
    response
}
