//! Requests over HTTP/2, and answers that wait for their client. Its pings are answered although it reads and asks
//! nothing, so the stream's own timeout never ends.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

/// Bytes of a piece: a client that reads as much within the timeout is not closed.
const PIECE: usize = 16 << 10;
/// Checks within the timeout.
pub(super) const CHECKS: u32 = 4;

/// The requests of one connection, and the answers whose client has not taken their last piece.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    checks: u64,
    requests: u64,
    /// Requests that are not answered to the end.
    // LIMIT: `Settings::streams`.
    open: u64,
    /// The number of checks when a request ended last.
    ended: u64,
    /// For each answer that waits for its client, the number of checks when it began to.
    // LIMIT: `Settings::streams`.
    waiting: HashMap<u64, u64>,
}

impl Answers {
    pub(super) fn begin(self: &Arc<Self>) -> Running {
        let mut state = self.0.lock();
        state.requests += 1;
        state.open += 1;
        Running { number: state.requests, answers: Arc::clone(self) }
    }

    /// Whether an answer has waited for its client since [`CHECKS`] checks. Call this that often within the timeout.
    pub(super) fn check(&self) -> bool {
        let mut state = self.0.lock();
        state.checks += 1;
        let checks = state.checks;
        state.waiting.values().any(|since| since + u64::from(CHECKS) < checks)
    }

    /// How often the timeout has passed without any request, by the checks.
    pub(super) fn idle_timeouts(&self) -> u64 {
        let state = self.0.lock();
        let idle = if state.open > 0 { 0 } else { (state.checks - state.ended).saturating_sub(1) };
        idle / u64::from(CHECKS)
    }
}

/// A request, until its answer has ended.
pub(super) struct Running {
    number: u64,
    answers: Arc<Answers>,
}

impl Running {
    /// Returns the body of the answer in pieces. The next one is made when the client has taken the last one.
    pub(super) fn pieces(self, body: Body) -> Body {
        self.wait();
        Body::new(Pieces { body, rest: Bytes::new(), running: self })
    }

    /// Notes that the client has to take what was handed out.
    fn wait(&self) {
        let mut state = self.answers.0.lock();
        let checks = state.checks;
        state.waiting.insert(self.number, checks);
    }

    /// Notes that the client waits for us, or that the answer has ended.
    fn go_on(&self) {
        self.answers.0.lock().waiting.remove(&self.number);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.answers.0.lock();
        state.waiting.remove(&self.number);
        state.open -= 1;
        state.ended = state.checks;
    }
}

/// The body of an answer.
struct Pieces {
    body: Body,
    /// Bytes of the body's last frame that are not yet handed out.
    rest: Bytes,
    running: Running,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
                self.running.go_on();
                return Poll::Pending;
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        self.running.wait();
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut with_rest = SizeHint::new();
        with_rest.set_lower(hint.lower() + rest);
        if let Some(upper) = hint.upper() {
            with_rest.set_upper(upper + rest);
        }
        with_rest
    }
}
