//! Bodies on their way: an event's, kept up to a limit; everything else's, as it comes.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use prometheus::{IntCounter, IntGauge};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::sleep;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::BoxError;

use crate::upstream::apiserver::{Outgoing, Seat};

/// A body that was begun to be read.
pub(super) enum Kept {
    /// The whole.
    Whole(Bytes),
    /// It is too large or too slow: what was read, and the rest.
    Begun(Bytes, Body),
    /// It broke off.
    Broken(axum::Error),
}

/// Reads a body up to `limit` bytes and for as long as `time`.
pub(super) async fn keep(mut body: Body, limit: usize, time: Duration) -> Kept {
    if body.size_hint().lower() > u64::try_from(limit).unwrap_or(u64::MAX) {
        return Kept::Begun(Bytes::new(), body);
    }
    let mut late = pin!(sleep(time));
    let mut read = Bytes::new();
    let mut several = BytesMut::new();
    loop {
        let is_over = read.len().max(several.len()) > limit;
        let frame = async {
            tokio::select! {
                biased;
                frame = body.frame() => Some(frame),
                () = &mut late => None,
            }
        };
        let frame = if is_over { None } else { frame.await };
        let whole = |read: Bytes, several: BytesMut| if several.is_empty() { read } else { several.freeze() };
        match frame {
            None => return Kept::Begun(whole(read, several), body),
            Some(None) => return Kept::Whole(whole(read, several)),
            Some(Some(Err(fault))) => return Kept::Broken(fault),
            Some(Some(Ok(frame))) => match frame.into_data() {
                // Most bodies come in one piece, which is not copied.
                Ok(piece) if read.is_empty() && several.is_empty() => read = piece,
                Ok(piece) => {
                    if several.is_empty() {
                        several.extend_from_slice(&std::mem::take(&mut read));
                    }
                    several.extend_from_slice(&piece);
                }
                Err(_trailers) => {}
            },
        }
    }
}

/// A body that is at hand.
pub(super) fn whole(bytes: Bytes) -> Outgoing {
    Either::Left(Full::new(bytes))
}

/// A body as it comes.
pub(super) fn streamed(body: Body) -> Outgoing {
    if body.is_end_stream() {
        return whole(Bytes::new());
    }
    Either::Right(body.map_err(BoxError::from).boxed_unsync())
}

/// A body of which `first` was read.
pub(super) fn begun(first: Bytes, rest: Body) -> Outgoing {
    Either::Right(Begun { first, rest }.map_err(BoxError::from).boxed_unsync())
}

struct Begun {
    first: Bytes,
    rest: Body,
}

impl HttpBody for Begun {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.first.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.first)))));
        }
        Pin::new(&mut self.rest).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, first) = (self.rest.size_hint(), self.first.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(first));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(first));
        }
        hint
    }
}

/// A place among the requests in flight, and its part of the gauge.
#[derive(Debug)]
pub(super) struct Place {
    gauge: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    pub(super) fn new(gauge: IntGauge, permit: OwnedSemaphorePermit) -> Self {
        gauge.inc();
        Self { gauge, _permit: permit }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

/// The body of the apiserver's answer, as it comes.
pub(super) struct Answered {
    pub(super) body: Incoming,
    pub(super) bytes: IntCounter,
    /// Ends a watch when the program stops.
    pub(super) stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    pub(super) _place: Place,
    pub(super) _seat: Option<Seat>,
}

/// The program stops.
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
        Body::from_stream(futures_util::stream::iter(pieces))
    }

    async fn all(kept: Kept) -> (bool, String) {
        let (is_whole, bytes) = match kept {
            Kept::Whole(bytes) => (true, bytes),
            Kept::Begun(first, rest) => (false, begun(first, rest).collect().await.unwrap().to_bytes()),
            Kept::Broken(fault) => panic!("{fault}"),
        };
        (is_whole, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_body_over_the_limit_goes_on_whole() {
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
            let (was_whole, text) = all(keep(body, 10, SOON).await).await;
            assert_eq!(was_whole, is_whole, "{text}");
            assert!(text.is_empty() || text.len() >= expected && "1234567890123".starts_with(&text), "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_late_goes_on_as_it_comes() {
        let late = futures_util::stream::unfold(0, |number| async move {
            sleep(Duration::from_secs(number * 7)).await;
            (number < 3).then(|| (Ok::<_, std::io::Error>(format!("{number}")), number + 1))
        });
        let kept = keep(Body::from_stream(late), 10, Duration::from_secs(10)).await;
        assert!(matches!(&kept, Kept::Begun(first, _) if first == "01"));
        assert_eq!(all(kept).await, (false, "012".to_owned()));
    }
}
