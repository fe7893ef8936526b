//! Reads and decodes a request's body: Content-Type, size and time limits. `event` decodes the content.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};

use super::negotiate::Media;
use super::rejection::Rejection;
use super::{Settings, yaml};
use crate::event::json::{self, Decoded, FieldValidation};
use crate::event::{ApiGroup, cut, protobuf};
use crate::ledger::RejectReason;
use crate::server::{self, FairPlaces, Read, Unread};
use crate::status::Status;

/// Returns the media type that Content-Type states. A missing one means JSON: Python's client relies on that.
pub(super) fn media(headers: &HeaderMap) -> Result<Media, Rejection> {
    if headers.get(CONTENT_TYPE).is_none_or(HeaderValue::is_empty) {
        return Ok(Media::Json);
    }
    let media_type = media_type(headers);
    Media::named(media_type).ok_or_else(|| {
        let accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
        Rejection::new(RejectReason::MediaType, unknown_format("body of the request", media_type, accepted))
    })
}

/// Returns the refusal of a body, or another `part`, of this media type.
pub(super) fn unknown_format(part: &str, media_type: &str, accepted: &str) -> Status {
    let found = cut(media_type, 64);
    let message = format!("the {part} was in an unknown format, {found:?} - accepted media types include: {accepted}");
    Status::new(415, "UnsupportedMediaType", message)
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
    decoded.map_err(|error| Rejection::new(RejectReason::Malformed, error))
}

/// Returns the Content-Type without its parameters; empty if there is none.
pub(super) fn media_type(headers: &HeaderMap) -> &str {
    let content_type = headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap_or("?"));
    content_type.split(';').next().unwrap_or_default().trim()
}

/// Reads a caller's body up to the limits. It counts in the places until the answer.
pub(super) async fn read(body: Body, settings: &Settings, places: (&FairPlaces, &str)) -> Result<Bytes, Rejection> {
    // LIMIT: bytes and time. A body over the size is refused with 413, and one over the time with 408. One for which
    // all bodies together, or those of its caller, leave no room is refused with 429.
    let (reason, status) =
        match server::read(body, settings.max_body_bytes.get(), settings.request_timeout, places).await {
            Read::Whole(body) => return Ok(body),
            Read::Begun(why, ..) => {
                let reason = match why {
                    Unread::TooLarge => RejectReason::TooLarge,
                    Unread::Late => RejectReason::Unread,
                    Unread::Full => RejectReason::Limited,
                };
                (reason, incomplete(why, settings.max_body_bytes.get()))
            }
            Read::Broken(error) => {
                let message = format!("the body of the request could not be read: {error}");
                (RejectReason::Unread, Status::bad_request(message))
            }
        };
    Err(Rejection::new(reason, status))
}

/// Returns the refusal of a body that is not read to its end, with this limit of its bytes.
pub fn incomplete(why: Unread, limit: usize) -> Status {
    match why {
        Unread::TooLarge => {
            Status::new(413, "RequestEntityTooLarge", format!("Request entity too large: limit is {limit}"))
        }
        Unread::Late => Status::new(408, "Timeout", "the body of the request did not arrive in time"),
        Unread::Full => no_room(),
    }
}

/// Returns the refusal of a body for which all bodies together leave no room.
pub(super) fn no_room() -> Status {
    Status::too_many_requests(
        "Too many requests: their bodies leave no room for another one, please try again later",
        1,
    )
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use prometheus::IntGauge;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_cannot_be_read_is_refused_with_the_reason() {
        let number = |number| NonZeroUsize::new(number).unwrap();
        let settings = Settings { max_body_bytes: number(10), ..Settings::default() };
        let read = async |body: Body, most| {
            let places = FairPlaces::new(number(most), IntGauge::new("bytes", "a test's").unwrap());
            let _other = places.take("", 1).filter(|_| most == 1);
            let read = read(body, &settings, (&places, "")).await;
            read.map_err(|rejection| (rejection.reason, rejection.status.code))
        };
        let stuck = Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>());
        assert_eq!(read(stuck, 9999).await, Err((RejectReason::Unread, 408)));
        assert_eq!(read(Body::from("12345678901"), 9999).await, Err((RejectReason::TooLarge, 413)));
        assert_eq!(read(Body::from("1234567890"), 9999).await, Ok("1234567890".into()));
        assert_eq!(read(Body::from("1"), 1).await, Err((RejectReason::Limited, 429)));
        let broken = Body::from_stream(futures_util::stream::iter([Err::<Bytes, _>(std::io::Error::other("broken"))]));
        assert_eq!(read(broken, 9999).await, Err((RejectReason::Unread, 400)));
    }
}
