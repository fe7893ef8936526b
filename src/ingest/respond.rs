//! Answers in the apiserver's form.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, WARNING, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::form::{Form, Include, Media, MetaVersion, View};
use super::{indent, partial, table, yaml};
use crate::event::LentEvent;
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
    // Room for the other headers at once.
    let mut headers = HeaderMap::with_capacity(6);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(media.name()));
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    *response.headers_mut() = headers;
    response
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

/// A refusal, as JSON. It is dressed as the client asked ([`super::dress`]).
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

/// What is answered with.
#[derive(Clone, Copy)]
enum Shown<'a> {
    One(&'a LentEvent<'a>),
    Many(&'a EventList),
}

/// An event; `outcome` when it has been taken in.
pub(super) fn event(
    form: Form,
    code: StatusCode,
    event: &LentEvent<'_>,
    outcome: Option<Outcome>,
    warnings: &[String],
) -> Response {
    let response = shown(form, code, Shown::One(event));
    match outcome {
        Some(outcome) => taken(response, outcome, warnings),
        None => warned(response, warnings),
    }
}

/// The answer to an occurrence that has been taken in.
pub(super) fn taken(mut response: Response, outcome: Outcome, warnings: &[String]) -> Response {
    response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.label()));
    warned(response, warnings)
}

fn warned(mut response: Response, warnings: &[String]) -> Response {
    for warning in warnings {
        warn(&mut response, warning);
    }
    response
}

/// Adds a warning, as Go's quoted-string: the text in quotes, with quotes and backslashes escaped (`net.NewWarningHeader`).
pub(super) fn warn(response: &mut Response, warning: &str) {
    let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        response.headers_mut().append(WARNING, value);
    }
}

/// A list of events.
pub(super) fn list(form: Form, list: &EventList) -> Response {
    shown(form, StatusCode::OK, Shown::Many(list))
}

fn shown(form: Form, code: StatusCode, shown: Shown<'_>) -> Response {
    let mut body = Vec::with_capacity(1024);
    let out = &mut body;
    let is_protobuf = form.media == Media::Protobuf;
    match (shown, form.view) {
        (Shown::One(_), View::PartialList(_)) => {
            return refusal(&mismatch("PartialObjectMetadataList", "is not a list (*core.Event)"));
        }
        (Shown::Many(_), View::Partial(_)) => {
            return refusal(&mismatch("PartialObjectMetadata", "is a list (*core.EventList)"));
        }
        (Shown::One(event), View::Whole) if is_protobuf => protobuf::write(form.group, event, out),
        (Shown::One(event), View::Whole) => json::write_json(form.group, event, out),
        (Shown::One(event), View::Partial(version)) if is_protobuf => {
            protobuf::write_partial(version.api_version(), event, out);
        }
        (Shown::One(event), View::Partial(version)) => partial::write(version, event, out),
        (Shown::Many(list), View::Whole) if is_protobuf => protobuf::write_list(form.group, list, out),
        (Shown::Many(list), View::Whole) => json::write_list(form.group, list, out),
        (Shown::Many(list), View::PartialList(version)) if is_protobuf => {
            protobuf::write_partial_list(version.api_version(), list, out);
        }
        (Shown::Many(list), View::PartialList(version)) => partial::write_list(version, list, out),
        (Shown::One(event), View::Table(version, include)) => write_table(form, version, include, &one(event), out),
        (Shown::Many(list), View::Table(version, include)) => write_table(form, version, include, list, out),
    }
    if is_protobuf { bytes(code, form.media, body) } else { document(code, form.media, form.pretty, body) }
}

/// A table, which is never negotiated in protobuf.
fn write_table(form: Form, version: MetaVersion, include: Include, list: &EventList, out: &mut Vec<u8>) {
    let columns = table::Columns::Described;
    table::write(&table::Table { group: form.group, version, include, columns, now: form.now }, list, out);
}

/// One event as a list, for its table. A copy, because tables are asked for by people.
pub(super) fn one(event: &LentEvent<'_>) -> EventList {
    let resource_version = event.metadata.resource_version.to_smolstr();
    EventList { resource_version, items: vec![event.clone().kept()], ..EventList::default() }
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
