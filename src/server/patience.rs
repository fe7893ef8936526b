//! How long a connection is waited for that asks nothing, or never ends to ask.
//!
//! Hot: hyper would set a timer for each request's head and take it back, both under the lock of all timers, and go once more round its
//! loop for that. Here a connection has one timer, which looks now and then whether a request has come since.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::Version;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::Sleep;

/// So many looks in a row have to find nothing. A connection is waited for a part longer than it has to be at most.
const LOOKS: u32 = 4;

/// What goes on in a connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    // Relaxed: whoever looks is the task that writes, but for HTTP/2, which writes once and for all.
    is_busy: AtomicBool,
    /// HTTP/2 looks after its connections by itself, with pings.
    is_http2: AtomicBool,
    /// Requests so far.
    begun: AtomicU32,
    /// Writes so far. An answer is still on its way when hyper has taken the end of its body, and its client may be slow.
    written: AtomicU32,
}

/// A request that is being answered.
#[derive(Debug)]
pub(super) struct Busy(Arc<Activity>);

impl Activity {
    /// A request's head has come.
    pub(super) fn begin(self: &Arc<Self>, version: Version) -> Busy {
        if version >= Version::HTTP_2 {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        self.is_busy.store(true, Ordering::Relaxed);
        self.begun.store(self.begun.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// The system has taken some of what is to be sent.
    pub(super) fn write(&self) {
        self.written.store(self.written.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether a request has come over HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::Relaxed);
    }
}

/// The body of an answer, which ends the request when it is sent or given up.
#[derive(Debug)]
pub(super) struct Answering {
    pub(super) body: Body,
    #[expect(dead_code, reason = "it ends when it is dropped")]
    pub(super) busy: Busy,
}

impl HttpBody for Answering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Who waits for a connection's next request.
#[derive(Debug)]
pub(super) struct Patience<'a> {
    activity: Arc<Activity>,
    pause: Duration,
    timer: Pin<&'a mut Sleep>,
    is_set: bool,
    /// Requests and writes at the last look.
    seen: (u32, u32),
    quiet: u32,
}

/// The time between two looks where a request may take `limit` to come.
pub(super) fn pause(limit: Duration) -> Duration {
    limit / LOOKS
}

impl<'a> Patience<'a> {
    /// `timer` sleeps for `pause`.
    pub(super) fn new(activity: Arc<Activity>, pause: Duration, timer: Pin<&'a mut Sleep>) -> Self {
        Self { activity, pause, timer, is_set: false, seen: (0, 0), quiet: 0 }
    }

    /// Whether it has come to its end. Wakes the task in time for that.
    pub(super) fn is_over(&mut self, context: &mut Context<'_>) -> bool {
        // A task has one waker for all its life, so the timer needs no look before it has fired.
        while !self.is_set || self.timer.is_elapsed() {
            if self.timer.as_mut().poll(context).is_pending() {
                self.is_set = true;
                return false;
            }
            if self.look() {
                return true;
            }
            let next = self.timer.deadline() + self.pause;
            self.timer.as_mut().reset(next);
            self.is_set = false;
        }
        false
    }

    fn look(&mut self) -> bool {
        let Activity { is_busy, is_http2: _, begun, written } = &*self.activity;
        let seen = (begun.load(Ordering::Relaxed), written.load(Ordering::Relaxed));
        let is_quiet = seen == self.seen && !is_busy.load(Ordering::Relaxed) && !self.activity.is_http2();
        self.seen = seen;
        self.quiet = if is_quiet { self.quiet + 1 } else { 0 };
        self.quiet >= LOOKS
    }
}

#[cfg(test)]
mod tests {
    use axum::response::Response;
    use futures_util::stream::once;
    use http::Request;
    use hyper::body::Incoming;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{sleep, timeout};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::super::{Settings, serve};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const HEAD: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

    /// A client of a server that takes `time` for its answers, and as long again for their bodies.
    async fn connected(time: Duration) -> TcpStream {
        connected_to(move |_: Request<Incoming>| async move {
            sleep(time).await;
            Response::new(Body::from_stream(once(async move {
                sleep(time).await;
                Ok::<_, std::convert::Infallible>("here")
            })))
        })
        .await
    }

    async fn connected_to<F>(answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static) -> TcpStream
    where
        F: Future<Output = Response> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = Settings { max_connections: 1, header_timeout: LIMIT, close_timeout: LIMIT };
        let idle = prometheus::IntGauge::new("unregistered", "connections").unwrap();
        let tasks = TaskTracker::new();
        tasks.spawn(serve(listener, answer, settings, idle, tasks.clone(), CancellationToken::new().into()));
        TcpStream::connect(address).await.unwrap()
    }

    async fn is_answered(client: &mut TcpStream) {
        client.write_all(HEAD).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"here\r\n0\r\n\r\n") {
            assert_ne!(client.read_buf(&mut answer).await.unwrap(), 0, "left in between");
        }
    }

    /// That the connection, which has been waited for `passed`, ends after the limit, and a quarter later at most.
    async fn ends(client: &mut TcpStream, passed: Duration) {
        let second = Duration::from_secs(1);
        assert!(timeout(LIMIT - passed - second, client.read(&mut [0; 10])).await.is_err(), "too early");
        let read = timeout(LIMIT / 4 + second * 2, client.read(&mut [0; 10])).await;
        assert_eq!(read.expect("in time").unwrap_or(0), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_nothing_is_left() {
        ends(&mut connected(Duration::ZERO).await, Duration::ZERO).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_ends_to_ask_is_left() {
        let mut client = connected(Duration::ZERO).await;
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        for _ in 0..11 {
            sleep(LIMIT / 12).await;
            client.write_all(b"A: b\r\n").await.unwrap();
        }
        ends(&mut client, LIMIT * 11 / 12).await;
    }

    /// More than the system takes at once, so that hyper has long had all of it when the client still reads.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_not_left_and_one_that_reads_nothing_is() {
        const LARGE: usize = 64 << 20;
        let mut client = connected_to(|_| async { Response::new(Body::from(vec![b'x'; LARGE])) }).await;
        client.write_all(HEAD).await.unwrap();
        let mut read = 0;
        while read < LARGE {
            let mut some = vec![0; 8 << 20];
            let count = client.read(&mut some).await.unwrap();
            assert_ne!(count, 0, "left after {read} bytes");
            read += count;
            sleep(LIMIT / 8).await;
        }
        client.write_all(HEAD).await.unwrap();
        sleep(LIMIT * 2).await;
        let mut rest = Vec::new();
        let _broken = client.read_to_end(&mut rest).await;
        assert!(rest.len() < LARGE, "it was waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_being_answered_is_not_left() {
        let mut client = connected(LIMIT * 3).await;
        for _ in 0..2 {
            is_answered(&mut client).await;
            sleep(LIMIT / 2).await;
        }
        is_answered(&mut client).await;
        ends(&mut client, Duration::ZERO).await;
    }
}
