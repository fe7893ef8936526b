//! Tower layers made of async functions, without the three allocations per layer of `axum::middleware::from_fn`.

use std::convert::Infallible;
use std::task::{Context, Poll};

use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::Map;
use tower::{Layer, Service};

/// The service behind a layer.
pub(super) trait Next:
    Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + Sync
{
    /// Answers the request.
    fn run(mut self, request: Request) -> impl Future<Output = Response> + Send {
        // Always ready: neither the layers here nor the router wait before they take a request.
        self.call(request).map(|Ok(response)| response)
    }
}

impl<S> Next for S where S: Service<Request, Response = Response, Error = Infallible, Future: Send> + Clone + Send + Sync
{}

/// Returns a layer that calls `function` with a clone of `state`, the request and the wrapped service.
pub(super) const fn layer<T, F>(state: T, function: F) -> Around<T, F> {
    Around { state, function }
}

/// A layer made by [`layer`].
#[derive(Debug, Clone)]
pub(super) struct Around<T, F> {
    state: T,
    function: F,
}

impl<T: Clone, F: Clone, N> Layer<N> for Around<T, F> {
    type Service = Within<T, F, N>;

    fn layer(&self, next: N) -> Self::Service {
        Within { around: self.clone(), next }
    }
}

/// A service behind a layer made by [`layer`].
#[derive(Debug, Clone)]
pub(super) struct Within<T, F, N> {
    around: Around<T, F>,
    next: N,
}

impl<T, F, N, Answer> Service<Request> for Within<T, F, N>
where
    T: Clone,
    F: Fn(T, Request, N) -> Answer,
    N: Clone,
    Answer: Future<Output = Response>,
{
    type Response = Response;
    type Error = Infallible;
    type Future = Map<Answer, fn(Response) -> Result<Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        (self.around.function)(self.around.state.clone(), request, self.next.clone()).map(Ok)
    }
}
