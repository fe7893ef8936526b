//! Serves HTTP/1.1 and HTTP/2 on a listener, plain or over TLS: limits connections, times clients out, and shuts down
//! in two steps.
//!
//! Closing an idle connection races with a request that its client may be sending. So in the first step every answer
//! over HTTP/1.1 carries `Connection: close`, and new connections are still accepted. In the second step idle
//! connections are closed; HTTP/2 connections get a GOAWAY.

mod answers;
mod descriptors;
mod layer;
mod listen;
mod newest;
mod origin;
mod places;
mod reading;
mod stream;
#[cfg(test)]
mod tests;
pub mod tls;

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::FutureExt as _;
use futures_util::future::Either;
use http::header::CONNECTION;
use http::{HeaderValue, Method, Request, StatusCode, Version};
use hyper::body::{Body as _, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::{Builder, UpgradeableConnection};
use parking_lot::Mutex;
use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use descriptors::raise_descriptors;
pub use layer::{Answer, layer};
pub use listen::{Address, Listener, SocketFile, bind_tcp, may_bind};
pub use origin::{ACCEPT_HOSTS, Origins};
pub use places::{FairPlace, FairPlaces};
pub use reading::{Read, Reading, Unread, read};

use answers::{Answers, CHECKS};
use listen::Accepted;
use newest::Newest;
use stream::{ClientStream, Noted};
use tls::Tls;

/// Pause after a failed accept, for example without a free file descriptor, so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two log lines about failed accepts, and between two about failed handshakes.
const LOG_PAUSE: Duration = Duration::from_secs(60);
/// Timeout for the requests of the connections that were accepted last.
const LINGER: Duration = Duration::from_millis(250);
/// Bytes of a header over HTTP/1.1. The longest URI has 64 KiB.
const HEADER_BYTES: usize = 96 << 10;
/// LIMIT: fields of a request's header over HTTP/2, as hyper's over HTTP/1.1; 431 beyond it. HPACK sends one in a byte,
/// and it takes a hundred bytes of memory.
const HEADER_FIELDS: usize = 100;
/// LIMIT: unread bytes of one request's body over HTTP/2, and of all bodies of one connection. They wait in hyper, outside
/// of the limits of bodies, and hyper's default is 1 MiB each. The price: a body arrives at 128 KiB per round trip, and two
/// bodies that are not read stop the others of their connection. A client without TCP_NODELAY sends some 3 MB per
/// second, because each window ends in a wait for a delayed acknowledgement.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// Timeout for an HTTP/2 client to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Limits of a listener.
#[derive(Debug, Clone)]
pub struct Settings {
    /// LIMIT: connections at once.
    pub max_connections: usize,
    /// What becomes of a connection beyond them.
    pub beyond: OverLimit,
    /// LIMIT: requests at once over one HTTP/2 connection, announced in SETTINGS; further ones are refused unprocessed.
    pub streams: u32,
    /// Timeout for a client to send the whole header of a request, to begin its next request, and to read more of its
    /// answer. Over HTTP/2, up to a quarter more.
    pub client_timeout: Duration,
    /// Timeout for running requests after `End::stop`; then connections are cut.
    pub close_timeout: Duration,
}

/// What becomes of a connection beyond the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverLimit {
    /// It waits in the kernel's accept queue.
    Waits,
    /// It is accepted, and the oldest one is cut, so that no client can lock others out.
    EndsOldest,
}

/// Tokens that shut a listener down.
#[derive(Debug, Clone)]
pub struct End {
    /// First step: answers ask their clients to close. If no connection is open, serving ends.
    pub closing: CancellationToken,
    /// Second step: no connection is accepted, and idle connections are closed.
    pub stop: CancellationToken,
}

impl From<CancellationToken> for End {
    /// Shuts down in one step.
    fn from(stop: CancellationToken) -> Self {
        Self { closing: stop.clone(), stop }
    }
}

/// Peer of a connection. Each request has it among its extensions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Address of the peer; absent for a Unix domain socket.
    pub address: Option<SocketAddr>,
    /// Client certificate, verified against the client CA.
    pub certificate: Option<PeerCertificate>,
}

/// Subject and expiry of a client certificate, as the apiserver reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The subject's common name: the user.
    pub common_name: String,
    /// The subject's organizations: the groups.
    pub organizations: Vec<String>,
    /// Expiry in seconds since 1970. A connection may outlive it.
    pub expires: i64,
}

/// A listener and its settings.
#[derive(Debug)]
pub struct Server {
    /// Listener for clients.
    pub listener: Listener,
    /// TLS for clients over TCP; without it the connections are plain.
    pub tls: Option<Tls>,
    /// Limits of the listener.
    pub settings: Settings,
    /// Counts open connections.
    pub connections: IntGauge,
    /// Runs one task per connection.
    pub tasks: TaskTracker,
    /// Shuts the listener down.
    pub end: End,
}

impl Server {
    /// Serves until shutdown, and returns once all connections are closed or `close_timeout` has passed.
    pub async fn serve(self, answer: impl Answer) {
        let Self { listener, tls, settings, connections, tasks, end } = self;
        let (at_once, newest) = match settings.beyond {
            OverLimit::Waits => (settings.max_connections, None),
            OverLimit::EndsOldest => (Semaphore::MAX_PERMITS, Some(Newest::new(settings.max_connections))),
        };
        let limit = Arc::new(Semaphore::new(at_once));
        // The semaphore is the limit.
        let places = FairPlaces::new(NonZeroUsize::MAX, connections);
        let (open, stop) = (TaskTracker::new(), CancellationToken::new());
        let builder = builder(&settings);
        let take = |accepted: Accepted, permit: OwnedSemaphorePermit| {
            // A token has a lock; each connection has its own.
            let (closing, stop) = (end.closing.child_token(), stop.child_token());
            let client = Client { builder: builder.clone(), timeout: settings.client_timeout, closing, stop };
            let (answer, place, tls) = (answer.clone(), places.force("", 1), tls.clone());
            let entered = newest.as_ref().map(Newest::enter);
            tasks.spawn(open.track_future(async move {
                let serving = client.serve_accepted(accepted, tls, answer);
                let served = match &entered {
                    Some(entered) => entered.ended.run_until_cancelled(serving).await,
                    None => Some(serving.await),
                }
                .unwrap_or_else(|| Err("too many connections; the oldest are ended".into()));
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended abnormally");
                }
                // After a panic too.
                drop((place, permit, entered));
            }));
        };
        let is_announced = accept(&listener, &limit, &end, &open, &take).await;
        if is_announced {
            // These clients are connected, and may have sent a request.
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
            tracing::warn!("requests are still running after the close timeout; their connections are cut");
        }
    }
}

/// Settings of one connection.
struct Client {
    builder: Builder<TokioExecutor>,
    timeout: Duration,
    closing: CancellationToken,
    stop: CancellationToken,
}

/// Reason for which a connection ended abnormally.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl Client {
    async fn serve_accepted(self, accepted: Accepted, tls: Option<Tls>, answer: impl Answer) -> Result<(), BoxError> {
        // Boxed, so that a connection takes no memory for the other kinds.
        match (accepted, tls) {
            (Accepted::Unix(stream), _) => Box::pin(self.serve(stream, Peer::default(), answer)).await,
            (Accepted::Tcp(stream, address), None) => {
                let peer = Peer { address: Some(address), certificate: None };
                Box::pin(self.serve(stream, peer, answer)).await
            }
            (Accepted::Tcp(stream, address), Some(tls)) => {
                let serving = async move {
                    // A client in its handshake has not sent a request, so it is cut at once.
                    let shaken = self.stop.run_until_cancelled(tls.shake(stream, address)).await;
                    let Some((stream, certificate)) = shaken.transpose()? else { return Ok(()) };
                    self.serve(stream, Peer { address: Some(address), certificate }, answer).await
                };
                Box::pin(serving).await
            }
        }
    }

    async fn serve<S>(self, stream: S, peer: Peer, answer: impl Answer) -> Result<(), BoxError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        let service = service(answer, peer, self.closing, Arc::clone(&progress));
        let stream = ClientStream::new(stream, self.timeout, Arc::clone(&progress));
        let connection = self.builder.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
        drive(connection, &progress, self.timeout, self.stop).await
    }
}

/// Accepts connections until shutdown. Returns whether clients were asked to close before.
async fn accept(
    listener: &Listener,
    limit: &Arc<Semaphore>,
    end: &End,
    open: &TaskTracker,
    take: impl Fn(Accepted, OwnedSemaphorePermit),
) -> bool {
    let (mut is_announced, log_pause) = (false, LogPause::default());
    let is_local = listener.local().is_ok_and(|address| address.is_local());
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
                // Other machines may not know yet that this server ends.
                if open.is_empty() && is_local {
                    return is_announced;
                }
                continue;
            }
            accepted = accepting => accepted,
        };
        match accepted {
            (Ok(accepted), permit) => take(accepted, permit),
            (Err(error), _) => {
                if log_pause.is_over() {
                    tracing::warn!(%error, "a connection could not be accepted");
                }
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Lets one log line through per [`LOG_PAUSE`].
#[derive(Debug, Default)]
struct LogPause(Mutex<Option<Pin<Box<Sleep>>>>);

impl LogPause {
    /// Whether a line may be logged now. If so, the next pause begins.
    fn is_over(&self) -> bool {
        let mut pause = self.0.lock();
        let is_over = pause.as_mut().is_none_or(|pause| pause.now_or_never().is_some());
        if is_over {
            *pause = Some(Box::pin(sleep(LOG_PAUSE)));
        }
        is_over
    }
}

fn builder(settings: &Settings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(settings.client_timeout);
    // A client may close its side after a request and still read the answer.
    builder.http1().half_close(true);
    // LIMIT: bytes of a request's header over HTTP/1.1, of any client; 431 beyond it. Over HTTP/2, hyper allows 16 KiB.
    builder.http1().max_buf_size(HEADER_BYTES);
    // Header and body in pieces: otherwise hyper would copy each answer, because of `is_write_vectored`.
    builder.http1().writev(true);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(settings.streams);
    // LIMIT: cancelled requests that were not yet begun; beyond it the connection is closed. A client may cancel all of
    // its requests at once, as with Go's server.
    builder.http2().max_pending_accept_reset_streams(settings.streams as usize);
    builder.http2().initial_stream_window_size(STREAM_WINDOW_BYTES);
    builder.http2().initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    builder.http2().keep_alive_interval(settings.client_timeout).keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// Marks an answer that turns the connection into a tunnel. The timeout for reading ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tunnel;

/// Marks an answer of unknown length that ends by itself: unlike that of a watch, its client may close its side before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finite;

/// State of a connection, as its requests have shown it.
#[derive(Debug, Default)]
struct Progress {
    /// The version of the first request.
    version: OnceLock<Version>,
    /// Whether the answer is a watch: to a GET over HTTP/1.1, of unknown length, and not marked as [`Finite`].
    is_watched: AtomicBool,
    /// Whether the request's body has not been read to its end, over HTTP/1.1.
    is_unread: AtomicBool,
    /// Whether the connection is a tunnel, which has no timeout.
    is_tunnel: AtomicBool,
    /// Requests over HTTP/2, and their answers that wait for the client.
    answers: Arc<Answers>,
}

/// Adapts `answer` to hyper and adds the peer to each request. Once `closing` is cancelled, answers ask their clients
/// to close the connection.
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
        let (version, is_get) = (request.version(), request.method() == Method::GET);
        progress.version.get_or_init(|| version);
        let running = (version == Version::HTTP_2).then(|| progress.answers.begin());
        if request.headers().len() > HEADER_FIELDS {
            let mut refusal = Response::default();
            *refusal.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            return Either::Left(ready(Ok(refusal)));
        }
        request.extensions_mut().insert(peer.clone());
        progress.is_watched.store(false, Ordering::Relaxed);
        let has_body = version < Version::HTTP_2 && !request.body().is_end_stream();
        progress.is_unread.store(has_body, Ordering::Relaxed);
        let (closing, progress) = (closing.clone(), Arc::clone(&progress));
        let request = if has_body {
            request.map(|body| Body::new(Noted { body, progress: Arc::clone(&progress) }))
        } else {
            request.map(Body::new)
        };
        // Boxed, so that an idle connection takes no memory for a request.
        Either::Right(Box::pin(answer.clone().run(request)).map(move |mut response| {
            let Some(running) = running else {
                // An upgrade has set the header already.
                if closing.is_cancelled() {
                    response.headers_mut().entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
                }
                let is_finite = response.extensions().get::<Finite>().is_some();
                let is_watch = is_get && !is_finite && response.body().size_hint().exact().is_none();
                progress.is_watched.store(is_watch, Ordering::Relaxed);
                let is_tunnel = response.extensions().get::<Tunnel>().is_some();
                progress.is_tunnel.store(is_tunnel, Ordering::Relaxed);
                return Ok(response);
            };
            Ok(response.map(|body| running.pieces(body)))
        }))
    })
}

/// Drives a connection until it closes. The header of its first request must arrive within `timeout`: hyper's own limit
/// starts only once the protocol is known. Over HTTP/2, more of each answer must be read within it, and the next
/// request must begin, as hyper demands it over HTTP/1.1. After `stop` the connection is closed as soon as it is idle.
async fn drive<S, V>(
    connection: UpgradeableConnection<'static, TokioIo<ClientStream<S>>, V, TokioExecutor>,
    progress: &Progress,
    timeout: Duration,
    stop: CancellationToken,
) -> Result<(), BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    V: hyper::service::Service<Request<Incoming>, Response = Response, Error = Infallible, Future: Send + 'static>,
{
    let (mut connection, mut late, mut stopped) = (pin!(connection), pin!(sleep(timeout)), pin!(stop.cancelled()));
    let (mut is_ending, mut has_yielded) = (false, false);
    let mut check = pin!(sleep(timeout / CHECKS));
    poll_fn(|context| {
        let version = progress.version.get();
        while version == Some(&Version::HTTP_2) && check.as_mut().poll(context).is_ready() {
            if progress.answers.check() {
                return Poll::Ready(Err("the client has not read more of an answer in time".into()));
            }
            match progress.answers.idle_timeouts() {
                0 => {}
                // What the client has sent meanwhile is answered.
                1 if !is_ending => {
                    is_ending = true;
                    connection.as_mut().graceful_shutdown();
                }
                1 => {}
                _ => return Poll::Ready(Err("the client has not sent a request in time".into())),
            }
            check.set(sleep(timeout / CHECKS));
        }
        // Over HTTP/2 the first of several answers wakes the connection, and each would be a write of its own. Other
        // ready tasks therefore run first, once per wakeup.
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
