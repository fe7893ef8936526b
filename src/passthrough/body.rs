//! Request and response bodies: an event's is buffered up to a limit, all others are streamed.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, BodyStream, Either, Full, StreamBody};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use prometheus::IntCounter;
use tokio::time::sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::BoxError;

use crate::server::Place;
use crate::upstream::apiserver::{Outgoing, Seat};

/// Result of buffering a body.
pub(super) enum Buffered {
    /// The whole body.
    Whole(Bytes),
    /// The body is too large or too slow: the bytes that were read, and the rest.
    Begun(Bytes, Body),
    /// Reading failed.
    Broken(axum::Error),
}

/// Reads a body up to `limit` bytes and for at most `time`.
pub(super) async fn buffer(mut body: Body, limit: usize, time: Duration) -> Buffered {
    let mut read = BytesMut::new();
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Buffered::Begun(read.freeze(), body);
    }
    let mut late = pin!(sleep(time));
    while read.len() <= limit {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = &mut late => break,
        };
        match frame.map(|frame| frame.map(Frame::into_data)) {
            None => return Buffered::Whole(read.freeze()),
            Some(Err(fault)) => return Buffered::Broken(fault),
            Some(Ok(Ok(data))) => read.extend_from_slice(&data),
            Some(Ok(Err(_trailers))) => {}
        }
    }
    Buffered::Begun(read.freeze(), body)
}

/// Wraps a buffered body.
pub(super) fn whole(bytes: Bytes) -> Outgoing {
    Either::Left(Full::new(bytes))
}

/// Wraps a body that is streamed.
pub(super) fn streamed(body: Body) -> Outgoing {
    if body.is_end_stream() {
        return whole(Bytes::new());
    }
    Either::Right(body.map_err(BoxError::from).boxed_unsync())
}

/// Wraps a body of which `first` was read already.
pub(super) fn begun(first: Bytes, rest: Body) -> Outgoing {
    let first = (!first.is_empty()).then(|| Ok(Frame::data(first)));
    let frames = stream::iter(first).chain(BodyStream::new(rest));
    Either::Right(StreamBody::new(frames).map_err(BoxError::from).boxed_unsync())
}

/// A streamed response body of the apiserver. Holds its place and seat until it is dropped.
pub(super) struct Answered {
    pub(super) body: Incoming,
    pub(super) bytes: IntCounter,
    /// Ends a watch when the program stops.
    pub(super) stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    pub(super) _place: Place,
    pub(super) _seat: Option<Seat>,
}

/// Ends a watch: the program stops.
#[derive(Debug, thiserror::Error)]
#[error("eventweir is stopping")]
struct Stopping;

impl HttpBody for Answered {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(stopped) = &mut self.stopped
            && stopped.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Some(Err(Stopping.into())));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(data) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.bytes.inc_by(data.len() as u64);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BoxError::from)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(pieces: &[&'static str]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok::<_, std::io::Error>(*piece)).collect();
        Body::from_stream(stream::iter(pieces))
    }

    /// Returns whether the body was buffered whole, and all of its text.
    async fn all(buffered: Buffered) -> (bool, String) {
        let (is_whole, bytes) = match buffered {
            Buffered::Whole(bytes) => (true, bytes),
            Buffered::Begun(first, rest) => (false, begun(first, rest).collect().await.unwrap().to_bytes()),
            Buffered::Broken(fault) => panic!("{fault}"),
        };
        (is_whole, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_forwarded_whole() {
        const SOON: Duration = Duration::from_secs(60);
        for (body, is_whole) in [
            (pieces(&[]), true),
            (pieces(&["12345", "", "67890"]), true),
            (Body::from("1234567890"), true),
            (Body::from("12345678901"), false),
            (pieces(&["12345678901"]), false),
            (pieces(&["12345", "67890", "1", "23"]), false),
        ] {
            let expected = if is_whole { 10 } else { 11 };
            let (was_whole, text) = all(buffer(body, 10, SOON).await).await;
            assert_eq!(was_whole, is_whole, "{text}");
            assert!(text.is_empty() || text.len() >= expected && "1234567890123".starts_with(&text), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_body_is_streamed() {
        let late = stream::unfold(0, |number| async move {
            sleep(Duration::from_secs(number * 7)).await;
            (number < 3).then(|| (Ok::<_, std::io::Error>(format!("{number}")), number + 1))
        });
        let buffered = buffer(Body::from_stream(late), 10, Duration::from_secs(10)).await;
        assert!(matches!(&buffered, Buffered::Begun(first, _) if first == "01"));
        assert_eq!(all(buffered).await, (false, "012".to_owned()));
    }
}
