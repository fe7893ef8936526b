//! From a request to a checked body: Content-Type, size and time limits. What stands in it is `event`'s.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use axum::BoxError;
use axum::body::{Bytes, HttpBody};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::error::Elapsed;

use super::form::Media;
use super::{Settings, yaml};
use crate::event::json::{self, Decoded, Strictness};
use crate::event::{ApiGroup, protobuf};
use crate::ledger::RejectReason;
use crate::status::Status;

/// The body of a request, as a server hands it over or boxed by axum.
pub trait RequestBody: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send {}

impl<B> RequestBody for B where B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send {}

/// A refusal before the body was an event, and how the ledger calls it.
pub(super) type Refusal = (RejectReason, Box<Status>);

/// What a body is by its own word. No Content-Type means JSON, as Python's client relies on.
pub(super) fn media(headers: &HeaderMap) -> Result<Media, Refusal> {
    let content_type = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("?"));
    if matches!(content_type, "" | "application/json") {
        return Ok(Media::Json);
    }
    Media::named(media_type(content_type)).ok_or_else(|| {
        let message = "the body of the request was in an unknown format - accepted media types include: application/json, \
                       application/yaml, application/vnd.kubernetes.protobuf";
        (RejectReason::MediaType, Box::new(Status::new(415, "UnsupportedMediaType", message)))
    })
}

/// Decodes a body that came through the door of `group`.
pub(super) fn event(group: ApiGroup, media: Media, body: &[u8], strictness: Strictness) -> Result<Decoded, Refusal> {
    let decoded = match media {
        Media::Json => json::decode(group, body, strictness),
        Media::Protobuf => protobuf::decode(group, body),
        // LIMIT: unlike the apiserver we do not tell of a key given twice in YAML; the last one counts.
        Media::Yaml => match yaml::to_json(body) {
            Ok(json) => json::decode(group, &json, strictness),
            Err(fault) => {
                let message = format!(
                    "the object provided is unrecognized (must be of type Event): {fault} ({})",
                    json::go::summary(body)
                );
                return Err((RejectReason::Malformed, Box::new(Status::bad_request(message))));
            }
        },
    };
    decoded.map_err(|error| (RejectReason::Malformed, Box::new(error.status)))
}

/// The type without its parameters.
pub(super) fn media_type(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

/// Reads a body up to the limits.
pub(super) async fn read(body: impl RequestBody, settings: &Settings) -> Result<Bytes, Refusal> {
    // LIMIT: bytes and time; a body over the size is refused with 413, one over the time with 408.
    let whole = pin!(whole(Limited::new(body, settings.max_body_bytes)));
    match in_time(settings.request_timeout, whole).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let message = format!("Request entity too large: limit is {}", settings.max_body_bytes);
            Err((RejectReason::TooLarge, Box::new(Status::new(413, "RequestEntityTooLarge", message))))
        }
        Ok(Err(error)) => {
            let message = format!("the body of the request could not be read: {error}");
            Err((RejectReason::Unread, Box::new(Status::bad_request(message))))
        }
        Err(_elapsed) => {
            let message = "the body of the request did not arrive in time";
            Err((RejectReason::Unread, Box::new(Status::new(408, "Timeout", message))))
        }
    }
}

/// As [`tokio::time::timeout`], but without a timer for what is there at the second look, as most bodies are: a server begins to
/// hand a body over when it is looked for. Setting a timer and taking it back takes the lock of all timers, twice.
async fn in_time<T>(limit: Duration, mut awaited: Pin<&mut impl Future<Output = T>>) -> Result<T, Elapsed> {
    let mut has_looked = false;
    let looks = poll_fn(|context| match awaited.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if has_looked => Poll::Ready(None),
        Poll::Pending => {
            has_looked = true;
            context.waker().wake_by_ref();
            Poll::Pending
        }
    });
    if let Some(output) = looks.await {
        return Ok(output);
    }
    // Boxed, because a timer is large and this is seldom.
    Box::pin(tokio::time::timeout(limit, awaited)).await
}

/// A body in one piece. One that comes so, as small ones do, is not copied.
async fn whole<B>(mut body: B) -> Result<Bytes, B::Error>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    let Some(first) = body.frame().await else { return Ok(Bytes::new()) };
    let first = first?.into_data().unwrap_or_default();
    if body.is_end_stream() {
        return Ok(first);
    }
    let mut whole = Vec::from(first);
    while let Some(frame) = body.frame().await {
        whole.extend_from_slice(&frame?.into_data().unwrap_or_default());
    }
    Ok(whole.into())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn settings() -> Settings {
        Settings {
            max_body_bytes: 10,
            request_timeout: std::time::Duration::from_secs(60),
            max_watches: std::num::NonZeroUsize::MIN,
            ack: crate::ingest::Ack::Accepted,
            repair: crate::ingest::Repair::Off,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_refused_in_time() {
        let settings = settings();
        let stuck = Body::from_stream(tokio_stream_pending());
        let (reason, status) = read(stuck, &settings).await.unwrap_err();
        assert_eq!((reason, status.code), (RejectReason::Unread, 408));
        let (reason, status) = read(Body::from("12345678901"), &settings).await.unwrap_err();
        assert_eq!((reason, status.code), (RejectReason::TooLarge, 413));
        assert_eq!(read(Body::from("1234567890"), &settings).await.unwrap(), "1234567890");
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_read_as_one() {
        let settings = settings();
        for pieces in [vec![], vec![""], vec!["12345", "", "67890"], vec!["", "1"], vec!["123456", "78901"]] {
            let expected = pieces.concat();
            let stream = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
            match read(Body::from_stream(stream), &settings).await {
                Ok(body) => assert_eq!(body, expected),
                Err((reason, _)) => assert_eq!((reason, expected.len()), (RejectReason::TooLarge, 11)),
            }
        }
    }

    fn tokio_stream_pending() -> impl futures_core::Stream<Item = Result<Bytes, std::io::Error>> {
        struct Pending;
        impl futures_core::Stream for Pending {
            type Item = Result<Bytes, std::io::Error>;
            fn poll_next(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Self::Item>> {
                std::task::Poll::Pending
            }
        }
        Pending
    }
}
