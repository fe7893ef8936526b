//! Request and response bodies, as they are sent on.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, BodyStream, Either, Full, StreamBody};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use prometheus::IntCounter;
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::BoxError;

use crate::server::FairPlace;
use crate::upstream::apiserver::{Outgoing, StreamPermit};

/// Bytes of the end of an answer that wait for their client without a place. Others' places must not depend on a client
/// that does not read: the Status of a 401 is shorter.
const SHORT: usize = 4 << 10;

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

/// A streamed response body of the apiserver.
pub(super) struct Streamed {
    pub(super) body: Incoming,
    pub(super) bytes: IntCounter,
    /// Ends a watch when the program stops.
    pub(super) stopped: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Kept until the client has all of it, or all but the last [`SHORT`] bytes.
    pub(super) place: Option<(FairPlace, Option<StreamPermit>)>,
}

/// Ends a watch: the program stops.
#[derive(Debug, thiserror::Error)]
#[error("eventweir is stopping")]
struct Stopping;

impl HttpBody for Streamed {
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
            if data.len() <= SHORT && (self.body.is_end_stream() || self.body.size_hint().exact() == Some(0)) {
                self.place = None;
            }
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
