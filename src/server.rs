//! Serves a router on a listener: HTTP/1.1 and HTTP/2 with prior knowledge, a limit of connections, and an orderly end.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use prometheus::IntGauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;

/// Pause after a failed accept (out of file descriptors, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a listener is served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// LIMIT: connections at once; further ones wait in the kernel's queue to be accepted.
    pub max_connections: usize,
    /// Longest time for a request's header to arrive.
    pub header_timeout: Duration,
    /// Longest time for running requests once the end has come; then connections are cut.
    pub close_timeout: Duration,
}

/// Serves until `stop` is cancelled; then accepts nothing more, and returns when every connection has come to its end.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    settings: Settings,
    connections: IntGauge,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(settings.header_timeout);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(settings.header_timeout));
    let limit = Arc::new(Semaphore::new(settings.max_connections));
    let graceful = GracefulShutdown::new();
    loop {
        let permit = tokio::select! {
            () = stop.cancelled() => break,
            permit = Arc::clone(&limit).acquire_owned() => permit,
        };
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(ready(stream)), service(&router));
        let connection = graceful.watch(connection.into_owned());
        let connections = connections.clone();
        connections.inc();
        tasks.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended abnormally");
            }
            connections.dec();
            drop(permit);
        });
    }
    drop(listener);
    if tokio::time::timeout(settings.close_timeout, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests were still running at the end; their connections are cut");
    }
}

fn ready(stream: TcpStream) -> TcpStream {
    // Small answers must not wait for more; a socket that refuses the option still works.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    stream
}

fn service(
    router: &Router,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = axum::response::Response,
    Error = Infallible,
    Future = impl Future<Output = Result<axum::response::Response, Infallible>> + Send + 'static,
> + Clone
+ Send
+ 'static {
    let router = router.clone();
    service_fn(move |request: Request<Incoming>| router.clone().oneshot(request.map(Body::new)))
}
