//! Answers over HTTP/2 that wait for their client. Its pings are answered although it reads nothing, so the stream's
//! own timeout never ends.

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

/// The answers of one connection whose client has not taken their last piece.
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of checks.
    checks: u64,
    /// Number of answers.
    answers: u64,
    /// For each answer that waits for its client, the number of checks when it began to.
    // LIMIT: `STREAMS`.
    waiting: HashMap<u64, u64>,
}

impl Answers {
    /// Returns the body in pieces. The next one is made when the client has taken the last one.
    pub(super) fn pieces(self: &Arc<Self>, body: Body) -> Body {
        let mut state = self.0.lock();
        state.answers += 1;
        let number = state.answers;
        drop(state);
        let body = Pieces { body, rest: Bytes::new(), number, answers: Arc::clone(self) };
        body.wait();
        Body::new(body)
    }

    /// Whether an answer has waited for its client since [`CHECKS`] checks. Call this that often within the timeout.
    pub(super) fn check(&self) -> bool {
        let mut state = self.0.lock();
        state.checks += 1;
        let checks = state.checks;
        state.waiting.values().any(|since| since + u64::from(CHECKS) < checks)
    }
}

/// The body of an answer.
struct Pieces {
    body: Body,
    /// Bytes of the body's last frame that are not yet handed out.
    rest: Bytes,
    number: u64,
    answers: Arc<Answers>,
}

impl Pieces {
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

impl Drop for Pieces {
    fn drop(&mut self) {
        self.go_on();
    }
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
                self.go_on();
                return Poll::Pending;
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) => self.rest = data,
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        self.wait();
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
