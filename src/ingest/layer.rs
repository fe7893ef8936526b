//! Tower layers made of async functions, without the three allocations per layer of `axum::middleware::from_fn`.

use std::convert::Infallible;

use axum::extract::Request;
use axum::response::Response;
use futures_util::FutureExt as _;
use tower::layer::layer_fn;
use tower::{Layer, Service, service_fn};

/// The service behind a layer.
pub(super) trait Next:
    Service<Request, Response = Response, Error = Infallible, Future: Send + 'static> + Clone + Send + Sync + 'static
{
    /// Answers the request.
    fn run(mut self, request: Request) -> impl Future<Output = Response> + Send {
        // Always ready: neither the layers here nor the router wait before they take a request.
        self.call(request).map(|Ok(response)| response)
    }
}

impl<S> Next for S where
    S: Service<Request, Response = Response, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// Returns a layer that calls `function` with a clone of `state`, the request and the wrapped service.
pub(super) fn layer<T, F, N, Answer>(state: T, function: F) -> impl Layer<N, Service = impl Next>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(T, Request, N) -> Answer + Clone + Send + Sync + 'static,
    N: Next,
    Answer: Future<Output = Response> + Send + 'static,
{
    layer_fn(move |next: N| {
        let (state, function) = (state.clone(), function.clone());
        service_fn(move |request| function(state.clone(), request, next.clone()).map(Ok::<_, Infallible>))
    })
}
