//! Serves a router on a listener: HTTP/1.1 and HTTP/2 with prior knowledge, a limit of connections, and an orderly end.
//!
//! The end has two steps, because an idle connection cannot be closed without racing the request that its client may be
//! sending: first every answer over HTTP/1.1 tells its client to close, while late connections are still taken; then what
//! is idle is closed. HTTP/2 has GOAWAY for that.

mod patience;
mod stream;

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use axum::response::Response;
use futures_util::FutureExt as _;
use http::header::CONNECTION;
use http::{HeaderValue, Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::{Builder, UpgradeableConnection};
use prometheus::IntGauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use patience::{Activity, Answering, Patience};
use stream::Stream;

/// Pause after a failed accept (out of file descriptors, say), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Longest time for the requests of connections that came in the last instant.
const LINGER: Duration = Duration::from_millis(250);

/// How a listener is served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// LIMIT: connections at once; further ones wait in the kernel's queue to be accepted.
    pub max_connections: usize,
    /// Longest time for a request's header to arrive; it may be a quarter more. Over HTTP/1.1 also for the next request to begin.
    pub header_timeout: Duration,
    /// Longest time for running requests once the end has come; then connections are cut.
    pub close_timeout: Duration,
}

/// When a listener ends.
#[derive(Debug, Clone)]
pub struct End {
    /// From here on answers ask their clients to close; with nobody connected it is the end already.
    pub closing: CancellationToken,
    /// The end.
    pub stop: CancellationToken,
}

impl From<CancellationToken> for End {
    /// An end without notice.
    fn from(stop: CancellationToken) -> Self {
        Self { closing: stop.clone(), stop }
    }
}

/// Serves until its end; then accepts nothing more, and returns when every connection has come to its own.
// The answer's future has no box around it: it lies in its connection.
pub async fn serve<A, F>(
    listener: TcpListener,
    answer: A,
    settings: Settings,
    connections: IntGauge,
    tasks: TaskTracker,
    end: End,
) where
    A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response> + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    // `patience` looks after heads, and `stream` puts pieces together.
    builder.http1().header_read_timeout(None).writev(true);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(settings.header_timeout));
    let limit = Arc::new(Semaphore::new(settings.max_connections));
    let open = TaskTracker::new();
    let stop = Stop::default();
    // Not the token itself: looking at that takes a lock, and every request looks.
    let closing = Arc::new(AtomicBool::new(false));
    let pause = patience::pause(settings.header_timeout);
    let take = |stream: TcpStream, permit| {
        let activity = Arc::new(Activity::default());
        let service = service(answer.clone(), Arc::clone(&closing), Arc::clone(&activity));
        let stream = Stream { tcp: ready(stream), activity: Arc::clone(&activity) };
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let (connection, stop) = (connection.into_owned(), stop.clone());
        let connections = connections.clone();
        connections.inc();
        tasks.spawn(open.track_future(async move {
            if let Err(error) = drive(connection, stop, activity, pause).await {
                tracing::debug!(%error, "a connection ended abnormally");
            }
            connections.dec();
            drop(permit);
        }));
    };
    let mut is_closing = false;
    loop {
        let accepting = async {
            let permit = Arc::clone(&limit).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            biased;
            () = end.stop.cancelled() => break,
            () = end.closing.cancelled(), if !is_closing => {
                is_closing = true;
                closing.store(true, Ordering::Relaxed);
                if open.is_empty() {
                    break;
                }
                continue;
            }
            accepted = accepting => accepted,
        };
        match accepted {
            Ok((stream, _)) => take(stream, permit),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    if is_closing {
        // Whoever is connected has not been refused, and may have sent a request.
        for stream in queued(listener) {
            let Ok(permit) = Arc::clone(&limit).try_acquire_owned() else { break };
            take(stream, Ok(permit));
        }
    } else {
        drop(listener);
    }
    open.close();
    if is_closing {
        let _in_time = tokio::time::timeout(LINGER, open.wait()).await;
    }
    stop.come();
    if tokio::time::timeout(settings.close_timeout, open.wait()).await.is_err() {
        tracing::warn!("requests were still running at the end; their connections are cut");
    }
}

/// The time for connections to come to an orderly end.
#[derive(Debug, Clone, Default)]
struct Stop {
    has_come: Arc<AtomicBool>,
    token: CancellationToken,
}

impl Stop {
    fn come(&self) {
        // Before anybody is woken.
        self.has_come.store(true, Ordering::Release);
        self.token.cancel();
    }
}

/// Drives a connection to its end, or until it has asked nothing for too long.
///
/// Hot: hyper-util's `GracefulShutdown` looks at each poll whether the end has come, and so takes a lock that all connections share.
/// Here a connection's task is woken by the end, and looks at a flag otherwise.
async fn drive<S>(
    connection: UpgradeableConnection<'static, TokioIo<Stream>, S, TokioExecutor>,
    stop: Stop,
    activity: Arc<Activity>,
    pause: Duration,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: hyper::service::Service<
            Request<Incoming>,
            Response = Response<Answering>,
            Error = Infallible,
            Future: Send + 'static,
        >,
{
    let (mut connection, mut stopped) = (pin!(connection), pin!(stop.token.cancelled()));
    let (mut is_listening, mut is_ending) = (false, false);
    let timer = pin!(tokio::time::sleep(pause));
    let mut patience = Patience::new(Arc::clone(&activity), pause, timer);
    let mut has_yielded = false;
    poll_fn(|context| {
        // Over HTTP/2 the first answer of several wakes the connection, and each would be a write of its own. So whatever is
        // about to run has its turn first.
        if activity.is_http2() && !has_yielded {
            has_yielded = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        has_yielded = false;
        if patience.is_over(context) {
            return Poll::Ready(Err("nothing was asked in time".into()));
        }
        // A task has one waker for all its life, so once is enough to be woken.
        if !is_ending && (!is_listening || stop.has_come.load(Ordering::Acquire)) {
            is_listening = true;
            if stopped.as_mut().poll(context).is_ready() {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
        connection.as_mut().poll(context)
    })
    .await
}

/// The connections that wait to be accepted by a listener that ends. Asked of the system itself, since tokio may not have
/// heard of them yet.
fn queued(listener: TcpListener) -> impl Iterator<Item = TcpStream> {
    let listener = listener.into_std().ok();
    std::iter::from_fn(move || {
        let (stream, _) = listener.as_ref()?.accept().ok()?;
        stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream)).ok()
    })
}

fn ready(stream: TcpStream) -> TcpStream {
    // Small answers must not wait for more; a socket that refuses the option still works.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    stream
}

/// As hyper wants it. An answer asks its client to close its connection once `closing` is set.
fn service<A, F>(
    answer: A,
    closing: Arc<AtomicBool>,
    activity: Arc<Activity>,
) -> impl hyper::service::Service<
    Request<Incoming>,
    Response = Response<Answering>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Answering>, Infallible>> + Send + 'static,
>
where
    A: Fn(Request<Incoming>) -> F,
    F: Future<Output = Response> + Send + 'static,
{
    service_fn(move |request: Request<Incoming>| {
        let (closing, version) = (Arc::clone(&closing), request.version());
        let busy = activity.begin(version);
        // No async block, in which the answer's future would lie twice.
        answer(request).map(move |mut response| {
            // An upgrade has a word of its own there, and HTTP/2 no such header.
            if closing.load(Ordering::Relaxed) && version < Version::HTTP_2 {
                response.headers_mut().entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
            }
            Ok(response.map(|body| Answering { body, busy }))
        })
    })
}
