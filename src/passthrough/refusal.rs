//! What pass-through itself refuses, as the apiserver would say it.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use crate::status::Status;
use crate::upstream::apiserver::Unanswered;

/// Seconds after which a client may try again.
const RETRY_AFTER_SECONDS: u32 = 1;

/// As a response.
pub(super) fn response(status: &Status) -> Response {
    let mut body = status.to_json();
    body.push(b'\n');
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// 429: a limit is reached.
pub(super) fn full(key: &str) -> Status {
    Status::too_many_requests(
        format!("Too many requests: eventweir's {key} is reached, please try again later"),
        RETRY_AFTER_SECONDS,
    )
}

/// 401: the client proves who it is to us alone.
pub(super) fn certificate_alone() -> Status {
    let message = "Unauthorized: eventweir sends requests on with the caller's token, and cannot do so with a client \
                   certificate; use a token, or reach the apiserver directly";
    Status::new(401, "Unauthorized", message)
}

/// 403: a request that a web page of another origin may have made a browser send.
pub(super) fn foreign(reason: &str) -> Status {
    Status::new(403, "Forbidden", reason)
}

/// 405: a tunnel to anywhere is not ours to give.
pub(super) fn connect() -> Status {
    Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
}

/// The apiserver has not answered. Only what was not sent may be repeated by any client.
pub(super) fn unanswered(fault: &Unanswered) -> Status {
    let message = format!("eventweir: {fault}");
    match fault {
        Unanswered::Path(_) => Status::bad_request(message),
        Unanswered::NotSent(_) => {
            let mut status = Status::too_many_requests(message, RETRY_AFTER_SECONDS);
            (status.code, status.reason) = (503, "ServiceUnavailable".to_owned());
            status
        }
        Unanswered::Lost(_) => Status::new(502, "ServiceUnavailable", message),
    }
}
