//! Reads and decodes a request's body: Content-Type, size and time limits. `event` decodes the content.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::error::Error as _;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use http_body_util::LengthLimitError;
use tokio::time::timeout;

use super::form::Media;
use super::rejection::Rejection;
use super::{Settings, yaml};
use crate::event::json::{self, Decoded, FieldValidation};
use crate::event::{ApiGroup, protobuf};
use crate::ledger::RejectReason;
use crate::status::Status;

/// Returns the media type that Content-Type states. A missing one means JSON: Python's client relies on that.
pub(super) fn media(headers: &HeaderMap) -> Result<Media, Rejection> {
    let content_type = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("?"));
    if matches!(content_type, "" | "application/json") {
        return Ok(Media::Json);
    }
    Media::named(media_type(content_type)).ok_or_else(|| {
        let message = "the body of the request was in an unknown format - accepted media types include: application/json, \
                       application/yaml, application/vnd.kubernetes.protobuf";
        Rejection::new(RejectReason::MediaType, Status::new(415, "UnsupportedMediaType", message))
    })
}

/// Decodes the body of a request in `group`.
pub(super) fn event(
    group: ApiGroup,
    media: Media,
    body: &[u8],
    validation: FieldValidation,
) -> Result<Decoded, Rejection> {
    let decoded = match media {
        Media::Json => json::decode(group, body, validation),
        Media::Protobuf => protobuf::decode(group, body),
        // LIMIT: unlike the API server, a duplicate key in YAML is not reported; the last one wins.
        Media::Yaml => match yaml::to_json(body) {
            Ok(json) => json::decode(group, &json, validation),
            Err(fault) => {
                let message = format!("the body is not YAML: {fault}");
                return Err(Rejection::new(RejectReason::Malformed, Status::bad_request(message)));
            }
        },
    };
    decoded.map_err(|error| Rejection::new(RejectReason::Malformed, error.status))
}

/// Returns the media type without its parameters.
pub(super) fn media_type(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

/// Reads a body up to the limits.
pub(super) async fn read(body: Body, settings: &Settings) -> Result<Bytes, Rejection> {
    // LIMIT: bytes and time; a body over the size is refused with 413, one over the time with 408.
    match timeout(settings.request_timeout, to_bytes(body, settings.max_body_bytes.get())).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) if error.source().is_some_and(|source| source.is::<LengthLimitError>()) => {
            let message = format!("Request entity too large: limit is {}", settings.max_body_bytes);
            Err(Rejection::new(RejectReason::TooLarge, Status::new(413, "RequestEntityTooLarge", message)))
        }
        Ok(Err(error)) => {
            let message = format!("the body of the request could not be read: {error}");
            Err(Rejection::new(RejectReason::Unread, Status::bad_request(message)))
        }
        Err(_elapsed) => {
            let message = "the body of the request did not arrive in time";
            Err(Rejection::new(RejectReason::Unread, Status::new(408, "Timeout", message)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings { max_body_bytes: std::num::NonZeroUsize::new(10).unwrap(), ..Settings::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_refused_in_time() {
        let settings = settings();
        let stuck = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        let rejection = read(stuck, &settings).await.unwrap_err();
        assert_eq!((rejection.reason, rejection.status.code), (RejectReason::Unread, 408));
        let rejection = read(Body::from("12345678901"), &settings).await.unwrap_err();
        assert_eq!((rejection.reason, rejection.status.code), (RejectReason::TooLarge, 413));
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
                Err(rejection) => assert_eq!((rejection.reason, expected.len()), (RejectReason::TooLarge, 11)),
            }
        }
    }
}
