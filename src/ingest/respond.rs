//! Answers in the apiserver's form.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, WARNING};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::form::{Form, Media};
use crate::event::Event;
use crate::event::json::{self, EventList};
use crate::shard::Outcome;
use crate::status::Status;

/// What became of an occurrence, for whoever looks.
const OUTCOME: HeaderName = HeaderName::from_static("eventweir-outcome");

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A document, which ends in a newline as the apiserver's do.
fn document(code: StatusCode, mut json: Vec<u8>) -> Response {
    json.push(b'\n');
    (code, [(CONTENT_TYPE, JSON)], Body::from(json)).into_response()
}

/// A refusal. 429 carries `Retry-After`, without which clients give up.
pub(super) fn refusal(status: &Status) -> Response {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = document(code, status.to_json());
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// What was asked for is done, and there is no object to show.
pub(super) fn success(details: &crate::status::StatusDetails) -> Response {
    document(StatusCode::OK, crate::status::success_json(details))
}

/// An event; `outcome` when it has been taken in.
pub(super) fn event(
    form: Form,
    code: StatusCode,
    event: &Event,
    outcome: Option<Outcome>,
    warnings: &[String],
) -> Response {
    let mut response = match form.media {
        Media::Json => {
            let mut body = Vec::with_capacity(1024);
            json::write_json(form.group, event, &mut body);
            document(code, body)
        }
    };
    if let Some(outcome) = outcome {
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.label()));
    }
    for warning in warnings {
        // Go's quoted-string: the text in quotes, with quotes and backslashes escaped (`net.NewWarningHeader`).
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// A list of events.
pub(super) fn list(form: Form, list: &EventList) -> Response {
    match form.media {
        Media::Json => {
            let mut body = Vec::new();
            json::write_list(form.group, list, &mut body);
            document(StatusCode::OK, body)
        }
    }
}

/// Off the API the apiserver answers in plain text.
pub(super) async fn page_not_found() -> Response {
    (StatusCode::NOT_FOUND, "404 page not found\n").into_response()
}
