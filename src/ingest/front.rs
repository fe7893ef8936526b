//! What every request goes through, and the short way of the one that comes most.
//!
//! Hot: a POST of one event does not go by the table of paths, whose layers cost as much as the event itself (allocations,
//! moved futures). Whatever is unusual in its head goes by the table; a test holds the answers of both ways against each other.
//! What few requests need is boxed, so that the future of the others stays small: it is moved for each of them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{Method, Request};
use axum::response::Response;
use axum::{BoxError, Router};
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::asked::Asked;
use super::decode::RequestBody;
use super::dress::Dress;
use super::{Face, create, deadline, metrics, respond};

/// The face as a server asks it; clones are cheap.
#[derive(Debug, Clone)]
pub struct Front(Arc<Ways>);

#[derive(Debug)]
struct Ways {
    face: Face,
    paths: Router,
}

impl Face {
    /// All paths, and what stands around them.
    #[must_use]
    pub fn front(&self) -> Front {
        Front(Arc::new(Ways { face: self.clone(), paths: self.paths() }))
    }
}

impl Front {
    /// Answers a request.
    pub fn answer<B>(&self, request: Request<B>) -> impl Future<Output = Response> + Send + use<B>
    where
        B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let ways = Arc::clone(&self.0);
        async move { ways.answer(request).await }
    }
}

impl Ways {
    /// Answers a request. From the outermost: the answer is counted, it is dressed, and it is made in the client's time.
    async fn answer(&self, request: Request<impl RequestBody>) -> Response {
        let verb = match *request.method() {
            Method::POST => metrics::Verb::Post,
            Method::GET => metrics::Verb::Get,
            Method::PATCH => metrics::Verb::Patch,
            Method::PUT => metrics::Verb::Put,
            Method::DELETE => metrics::Verb::Delete,
            _ => metrics::Verb::Other,
        };
        let dress = Dress::of(&request);
        let response = match deadline::of(&self.face, &request) {
            Ok(None) => self.route(request, &dress).await,
            // What the request has asked of the upstream by then may still be done.
            Ok(Some(time)) => timeout(time, Box::pin(self.route(request, &dress)))
                .await
                .unwrap_or_else(|_elapsed| respond::out_of_time()),
            Err(refusal) => refusal,
        };
        let response = dress.put_on(response).await;
        self.face.0.metrics.count_request(verb, response.status().as_u16());
        response
    }

    async fn route(&self, mut request: Request<impl RequestBody>, dress: &Dress) -> Response {
        match Asked::of_create(&mut request, dress.usual) {
            Some(asked) => create::create(State(self.face.clone()), asked, request.into_body()).await,
            None => Box::pin(by_path(&self.paths, request.map(Body::new))).await,
        }
    }
}

/// By the table of paths.
async fn by_path(paths: &Router, request: Request<Body>) -> Response {
    let answered: Result<Response, Infallible> = paths.clone().oneshot(request).await;
    answered.unwrap_or_else(|never| match never {})
}
