//! Serves HTTP/1.1 and HTTP/2 on a listener, plain or over TLS: limits connections, times clients out, shuts down in
//! order.
//!
//! Shutdown has two steps, because closing an idle connection races with a request that its client may be sending.
//! First every answer over HTTP/1.1 carries `Connection: close`, and new connections are still accepted. Then idle
//! connections are closed; HTTP/2 connections get a GOAWAY.

mod listen;
mod origin;
mod peer;
mod stream;
#[cfg(test)]
mod tests;
pub mod tls;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::TryFutureExt as _;
use futures_util::future::Either;
use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, Version};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::{Builder, UpgradeableConnection};
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::{Service, ServiceExt as _};

pub use listen::{Address, Listener, SocketFile, may_bind};
pub use origin::{ACCEPT_HOSTS, Origins};
pub use peer::{Peer, PeerCertificate};

use listen::Accepted;
use stream::ClientStream;
use tls::Tls;

/// Pause after a failed accept, for example without a free file descriptor, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest time to answer the requests of connections that were accepted last.
const LINGER: Duration = Duration::from_millis(250);
/// Longest time for an HTTP/2 client to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Limits of a listener.
#[derive(Debug, Clone)]
pub struct Settings {
    /// LIMIT: connections at once; further ones wait in the kernel's queue to be accepted.
    pub max_connections: usize,
    /// Longest wait for a client: for the whole header of a request, over HTTP/1.1 also for the next request to begin,
    /// and for the client to read more of its answer.
    pub client_timeout: Duration,
    /// Longest time for running requests after `End::stop`; then connections are cut.
    pub close_timeout: Duration,
}

/// When a listener shuts down.
#[derive(Debug, Clone)]
pub struct End {
    /// From here on answers ask their clients to close; without any connection serving ends.
    pub closing: CancellationToken,
    /// From here on nothing is accepted, and idle connections are closed.
    pub stop: CancellationToken,
}

impl From<CancellationToken> for End {
    /// Shuts down in one step.
    fn from(stop: CancellationToken) -> Self {
        Self { closing: stop.clone(), stop }
    }
}

/// What answers the requests: a router, or layers around one.
pub trait Answer:
    Service<Request<Body>, Response = Response, Error = Infallible, Future: Send + 'static> + Clone + Send + Sync + 'static
{
}

impl<S> Answer for S where
    S: Service<Request<Body>, Response = Response, Error = Infallible, Future: Send + 'static>
        + Clone
        + Send
        + Sync
        + 'static
{
}

/// A listener and how it is served.
#[derive(Debug)]
pub struct Server {
    /// Where clients connect to.
    pub listener: Listener,
    /// How TLS is spoken with clients that come over TCP; without it they speak in plain.
    pub tls: Option<Tls>,
    /// Its limits.
    pub settings: Settings,
    /// Counts open connections.
    pub connections: IntGauge,
    /// Where a task per connection is spawned.
    pub tasks: TaskTracker,
    /// When it shuts down.
    pub end: End,
}

impl Server {
    /// Serves until its end, and returns once all connections are closed or `close_timeout` has passed.
    pub async fn serve(self, service: impl Answer) {
        self.serve_over(std::convert::identity, service).await;
    }

    /// Serves over the stream that `wrap` makes of a plain connection over TCP.
    async fn serve_over<S>(self, wrap: impl Fn(TcpStream) -> S, answer: impl Answer)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { listener, tls, settings, connections, tasks, end } = self;
        let limit = Arc::new(Semaphore::new(settings.max_connections));
        let (open, stop) = (TaskTracker::new(), CancellationToken::new());
        let builder = builder(&settings);
        let take = |accepted: Accepted, permit: OwnedSemaphorePermit| {
            // A token has a lock; each connection has its own.
            let (closing, stop) = (end.closing.child_token(), stop.child_token());
            let client = Client { builder: builder.clone(), timeout: settings.client_timeout, closing, stop };
            let (answer, connections) = (answer.clone(), connections.clone());
            connections.inc();
            let served = match (accepted, tls.clone()) {
                (Accepted::Unix(stream), _) => Either::Left(client.serve(stream, Peer::default(), answer)),
                (Accepted::Tcp(stream, address), None) => {
                    // Small answers must not wait for more; without the option they still arrive.
                    let _best_effort = stream.set_nodelay(true);
                    let peer = Peer { address: Some(address), ..Peer::default() };
                    Either::Right(Either::Left(client.serve(wrap(stream), peer, answer)))
                }
                (Accepted::Tcp(stream, address), Some(tls)) => {
                    let _best_effort = stream.set_nodelay(true);
                    Either::Right(Either::Right(client.serve_tls(tls, stream, address, answer)))
                }
            };
            tasks.spawn(open.track_future(async move {
                if let Err(error) = served.await {
                    tracing::debug!(%error, "a connection ended abnormally");
                }
                connections.dec();
                drop(permit);
            }));
        };
        let is_announced = accept(&listener, &limit, &end, &open, &take).await;
        if is_announced {
            // Connected clients have not been refused, and may have sent a request.
            for accepted in listener.queued() {
                let Ok(permit) = Arc::clone(&limit).try_acquire_owned() else { break };
                take(accepted, permit);
            }
        } else {
            drop(listener);
        }
        open.close();
        if is_announced {
            let _in_time = timeout(LINGER, open.wait()).await;
        }
        stop.cancel();
        if timeout(settings.close_timeout, open.wait()).await.is_err() {
            tracing::warn!("requests were still running at the end; their connections are cut");
        }
    }
}

/// How a client is served.
struct Client {
    builder: Builder<TokioExecutor>,
    timeout: Duration,
    closing: CancellationToken,
    stop: CancellationToken,
}

/// Why a connection ended abnormally.
type Fault = Box<dyn std::error::Error + Send + Sync>;

impl Client {
    async fn serve<S>(self, stream: S, peer: Peer, answer: impl Answer) -> Result<(), Fault>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        let service = service(answer, peer, self.closing, Arc::clone(&progress));
        let stream = ClientStream::new(stream, self.timeout, Arc::clone(&progress));
        let connection = self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        drive(connection, &progress, self.timeout, self.stop).await
    }

    async fn serve_tls(
        self,
        tls: Tls,
        stream: TcpStream,
        address: SocketAddr,
        answer: impl Answer,
    ) -> Result<(), Fault> {
        // Nobody has asked anything yet.
        let Some(shaken) = self.stop.run_until_cancelled(tls.shake(stream)).await else { return Ok(()) };
        let (stream, certificate) = shaken?;
        self.serve(stream, Peer { address: Some(address), certificate, is_tls: true }, answer).await
    }
}

/// Accepts connections until the end. Returns whether clients have been asked to close before.
async fn accept(
    listener: &Listener,
    limit: &Arc<Semaphore>,
    end: &End,
    open: &TaskTracker,
    take: impl Fn(Accepted, OwnedSemaphorePermit),
) -> bool {
    let mut is_announced = false;
    loop {
        let accepting = async {
            let permit = Arc::clone(limit).acquire_owned().await.expect("it is never closed");
            (listener.accept().await, permit)
        };
        let accepted = tokio::select! {
            biased;
            () = end.stop.cancelled() => return is_announced,
            () = end.closing.cancelled(), if !is_announced => {
                is_announced = true;
                if open.is_empty() {
                    return is_announced;
                }
                continue;
            }
            accepted = accepting => accepted,
        };
        match accepted {
            (Ok(accepted), permit) => take(accepted, permit),
            (Err(error), _) => {
                tracing::warn!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn builder(settings: &Settings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(settings.client_timeout);
    // A client may close its side after a request, and still reads the answer.
    builder.http1().half_close(true);
    // Header and body in pieces: otherwise hyper would copy an answer, however large, because of `is_write_vectored`.
    builder.http1().writev(true);
    builder.http2().timer(TokioTimer::new());
    builder.http2().keep_alive_interval(settings.client_timeout).keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// What the requests of a connection have shown of it.
#[derive(Debug, Default)]
struct Progress {
    /// The version of the first request.
    version: OnceLock<Version>,
    /// Whether the answer is to a GET over HTTP/1.1 and its length is unknown: a watch.
    is_watched: AtomicBool,
}

/// Adapts `answer` to hyper, and tells it of the peer. Once `closing` is cancelled, its answers ask their clients to close
/// the connection.
fn service(
    answer: impl Answer,
    peer: Peer,
    closing: CancellationToken,
    progress: Arc<Progress>,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response,
    Error = Infallible,
    Future = impl Future<Output = Result<Response, Infallible>> + Send + 'static,
> {
    service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let (version, is_get) = (request.version(), request.method() == Method::GET);
        progress.version.get_or_init(|| version);
        progress.is_watched.store(false, Ordering::Relaxed);
        let (closing, progress) = (closing.clone(), Arc::clone(&progress));
        answer.clone().oneshot(request.map(Body::new)).map_ok(move |mut response| {
            if version < Version::HTTP_2 {
                // An upgrade has set the header already.
                if closing.is_cancelled() {
                    response.headers_mut().entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
                }
                let is_watch = is_get && response.body().size_hint().exact().is_none();
                progress.is_watched.store(is_watch, Ordering::Relaxed);
            }
            response
        })
    })
}

/// Drives a connection to its end. The header of its first request has to arrive within `timeout`: hyper's own limit
/// starts only after the protocol is known. After `stop` the connection is closed as soon as it is idle.
async fn drive<S, V>(
    connection: UpgradeableConnection<'static, TokioIo<ClientStream<S>>, V, TokioExecutor>,
    progress: &Progress,
    timeout: Duration,
    stop: CancellationToken,
) -> Result<(), Fault>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: hyper::service::Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send + 'static>,
{
    let (mut connection, mut late, mut stopped) = (pin!(connection), pin!(sleep(timeout)), pin!(stop.cancelled()));
    let (mut is_ending, mut has_yielded) = (false, false);
    poll_fn(|context| {
        let version = progress.version.get();
        // Over HTTP/2 the first of several answers wakes the connection, and each would be a write of its own. So other
        // tasks that are ready run first, once per wakeup.
        if version == Some(&Version::HTTP_2) && !has_yielded {
            has_yielded = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        has_yielded = false;
        if version.is_none() && late.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err("no request arrived in time".into()));
        }
        if !is_ending && stopped.as_mut().poll(context).is_ready() {
            is_ending = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    })
    .await
}
