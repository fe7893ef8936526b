//! Services that answer requests, and tower layers made of async functions, without the three allocations per layer of
//! `axum::middleware::from_fn`.

use std::convert::Infallible;

use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt as _;
use tower::layer::layer_fn;
use tower::{Layer, Service, service_fn};

/// A service that answers requests: a router, or layers around one.
pub trait Answer:
    Service<Request, Response = Response, Error = Infallible, Future: Send + 'static> + Clone + Send + Sync + 'static
{
    /// Answers the request.
    fn run(mut self, request: Request) -> impl Future<Output = Response> + Send + 'static {
        // Always ready: neither the layers here nor the router wait before they take a request.
        self.call(request).map(|Ok(response)| response)
    }
}

impl<S> Answer for S where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Returns a layer that calls `function` with a clone of `state`, the request and the wrapped service.
pub fn layer<T, F, N, A>(state: T, function: F) -> impl Layer<N, Service = impl Answer>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(T, Request, N) -> A + Clone + Send + Sync + 'static,
    N: Answer,
    A: Future<Output = Response> + Send + 'static,
{
    layer_fn(move |next: N| {
        let (state, function) = (state.clone(), function.clone());
        service_fn(move |request| function(state.clone(), request, next.clone()).map(Ok::<_, Infallible>))
    })
}
