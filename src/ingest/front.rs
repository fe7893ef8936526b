//! What every request goes through, and the short way of the one that comes most.
//!
//! Hot: a POST of one event does not go by the table of paths, whose layers cost as much as the event itself (allocations,
//! moved futures). Whatever is unusual in its head goes by the table; a test holds the answers of both ways against each other.
//! What few requests need is boxed, so that the future of the others stays small: it is moved for each of them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use axum::response::Response;
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

/// Which way a request goes.
#[expect(clippy::large_enum_variant, reason = "nearly every request goes the first")]
enum Way<B> {
    /// A POST of one event.
    Create(Asked, B),
    /// Whatever else is asked.
    Other(Boxed),
}

type Boxed = Pin<Box<dyn Future<Output = Response> + Send>>;

impl Face {
    /// All paths, and what stands around them.
    #[must_use]
    pub fn front(&self) -> Front {
        Front(Arc::new(Ways { face: self.clone(), paths: self.paths() }))
    }
}

impl Front {
    /// Answers a request. From the outermost: the answer is counted, it is dressed, and it is made in the client's time.
    pub fn answer<B: RequestBody + 'static>(
        &self,
        request: Request<B>,
    ) -> impl Future<Output = Response> + Send + use<B> {
        let ways = Arc::clone(&self.0);
        let verb = metrics::Verb::of(request.method());
        let dress = Dress::of(&request);
        // Before the future is there: what is moved within one lies in it twice.
        let mut way = ways.way(request, &dress);
        async move {
            let mut response = ways.go(&mut way).await;
            dress.put_on(&mut response).await;
            ways.face.0.metrics.count_request(verb, response.status().as_u16());
            response
        }
    }
}

impl Ways {
    fn way<B: RequestBody + 'static>(self: &Arc<Self>, request: Request<B>, dress: &Dress) -> Way<B> {
        match deadline::of(&self.face, &request) {
            Ok(None) => self.route(request, dress),
            // What the request has asked of the upstream by then may still be done.
            Ok(Some(time)) => {
                let (ways, mut way) = (Arc::clone(self), self.route(request, dress));
                Way::Other(Box::pin(async move {
                    timeout(time, ways.go(&mut way)).await.unwrap_or_else(|_elapsed| respond::out_of_time())
                }))
            }
            Err(refusal) => Way::Other(Box::pin(std::future::ready(refusal))),
        }
    }

    fn route<B: RequestBody + 'static>(&self, mut request: Request<B>, dress: &Dress) -> Way<B> {
        match Asked::of_create(&mut request, dress.usual) {
            Some(asked) => Way::Create(asked, request.into_body()),
            None => Way::Other(Box::pin(by_path(self.paths.clone(), request.map(Body::new)))),
        }
    }

    async fn go<B: RequestBody>(&self, way: &mut Way<B>) -> Response {
        match way {
            Way::Create(asked, body) => create::answer(&self.face, asked, body).await,
            Way::Other(answer) => answer.await,
        }
    }
}

/// By the table of paths.
async fn by_path(paths: Router, request: Request<Body>) -> Response {
    let answered: Result<Response, Infallible> = paths.oneshot(request).await;
    answered.unwrap_or_else(|never| match never {})
}
