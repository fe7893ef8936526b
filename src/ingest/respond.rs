//! Answers in the apiserver's form.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, WARNING, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::form::{Form, Media, View};
use super::{indent, partial, table, yaml};
use crate::event::Event;
use crate::event::json::{self, EventList};
use crate::event::protobuf;
use crate::shard::Outcome;
use crate::status::Status;

/// What became of an occurrence, for whoever looks.
const OUTCOME: HeaderName = HeaderName::from_static("eventweir-outcome");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");

/// An answer of this media type.
pub(super) fn bytes(code: StatusCode, media: Media, body: impl Into<Body>) -> Response {
    (code, [(CONTENT_TYPE, HeaderValue::from_static(media.name()))], body.into()).into_response()
}

/// A document that is at hand as compact JSON, as JSON or YAML. One line of JSON ends in a newline as the apiserver's do,
/// indented JSON does not.
pub(super) fn document(code: StatusCode, media: Media, pretty: bool, mut json: Vec<u8>) -> Response {
    match media {
        Media::Json | Media::Protobuf if pretty => bytes(code, Media::Json, indent::indented(&json)),
        Media::Json | Media::Protobuf => {
            json.push(b'\n');
            bytes(code, Media::Json, json)
        }
        Media::Yaml => {
            let value: Value = serde_json::from_slice(&json).unwrap_or_default();
            bytes(code, media, yaml::from_json(&value))
        }
    }
}

/// A refusal, as JSON. The outermost layer dresses it as the client asked ([`super::dress`]).
/// 429 carries `Retry-After`, without which clients give up.
pub(super) fn refusal(status: &Status) -> Response {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = document(code, Media::Json, false, go_escaped(&status.to_json()));
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(Refused(status.clone().into()));
    response
}

/// The refusal that a response tells of.
#[derive(Debug, Clone)]
pub(super) struct Refused(pub(super) std::sync::Arc<Status>);

/// Go's JSON keeps these three out of texts, where alone they can stand in a compact document.
pub(super) fn go_escaped(json: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(json.len());
    for byte in json {
        match byte {
            b'<' => escaped.extend_from_slice(br"\u003c"),
            b'>' => escaped.extend_from_slice(br"\u003e"),
            b'&' => escaped.extend_from_slice(br"\u0026"),
            other => escaped.push(*other),
        }
    }
    escaped
}

/// What was asked for is done, and there is no object to show.
pub(super) fn success(details: &crate::status::StatusDetails) -> Response {
    document(StatusCode::OK, Media::Json, false, crate::status::success_json(details))
}

/// An event; `outcome` when it has been taken in.
pub(super) fn event(
    form: Form,
    code: StatusCode,
    event: &Event,
    outcome: Option<Outcome>,
    warnings: &[String],
) -> Response {
    let mut body = Vec::with_capacity(1024);
    let mut response = match (form.view, form.media) {
        (View::PartialList(_), _) => {
            return refusal(&mismatch("PartialObjectMetadataList", "is not a list (*core.Event)"));
        }
        (View::Whole, Media::Protobuf) => {
            protobuf::write(form.group, event, &mut body);
            bytes(code, form.media, body)
        }
        (View::Partial(version), Media::Protobuf) => {
            protobuf::write_partial(version.api_version(), event, &mut body);
            bytes(code, form.media, body)
        }
        (View::Whole, Media::Json | Media::Yaml) => {
            json::write_json(form.group, event, &mut body);
            document(code, form.media, form.pretty, body)
        }
        (View::Partial(version), Media::Json | Media::Yaml) => {
            partial::write(version, event, &mut body);
            document(code, form.media, form.pretty, body)
        }
        (View::Table(version, include), _) => {
            let list = one(event);
            table::write(
                &table::Table {
                    group: form.group,
                    version,
                    include,
                    columns: table::Columns::Described,
                    now: form.now,
                },
                &list,
                &mut body,
            );
            document(code, form.media, form.pretty, body)
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
    let mut body = Vec::new();
    let code = StatusCode::OK;
    match (form.view, form.media) {
        (View::Partial(_), _) => refusal(&mismatch("PartialObjectMetadata", "is a list (*core.EventList)")),
        (View::Whole, Media::Protobuf) => {
            protobuf::write_list(form.group, list, &mut body);
            bytes(code, form.media, body)
        }
        (View::PartialList(version), Media::Protobuf) => {
            protobuf::write_partial_list(version.api_version(), list, &mut body);
            bytes(code, form.media, body)
        }
        (View::Whole, Media::Json | Media::Yaml) => {
            json::write_list(form.group, list, &mut body);
            document(code, form.media, form.pretty, body)
        }
        (View::PartialList(version), Media::Json | Media::Yaml) => {
            partial::write_list(version, list, &mut body);
            document(code, form.media, form.pretty, body)
        }
        (View::Table(version, include), _) => {
            table::write(
                &table::Table {
                    group: form.group,
                    version,
                    include,
                    columns: table::Columns::Described,
                    now: form.now,
                },
                list,
                &mut body,
            );
            document(code, form.media, form.pretty, body)
        }
    }
}

/// One event as a list, for its table. A copy, because tables are asked for by people.
pub(super) fn one(event: &Event) -> EventList {
    let resource_version = event.metadata.resource_version.clone();
    EventList { resource_version, items: vec![event.clone()], ..EventList::default() }
}

fn mismatch(requested: &str, but: &str) -> Status {
    Status::new(406, "NotAcceptable", format!("you requested {requested}, but the requested object {but}"))
}

/// A plain text, as the apiserver gives it off the API.
pub(super) fn text(code: StatusCode, text: &'static str) -> Response {
    (code, [(CONTENT_TYPE, TEXT), (X_CONTENT_TYPE_OPTIONS, NO_SNIFF)], text).into_response()
}

/// 504 for a request whose client gave it too little time.
///
/// COMPAT(apiserver): a Status without kind and apiVersion, labelled as text, whatever the client accepts.
pub(super) fn out_of_time() -> Response {
    const BODY: &str = concat!(
        r#"{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","#,
        r#""reason":"Timeout","details":{},"code":504}"#,
        "\n"
    );
    (StatusCode::GATEWAY_TIMEOUT, [(CONTENT_TYPE, TEXT)], BODY).into_response()
}
