//! Answers in the API server's format.

use std::collections::HashSet;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderName, RETRY_AFTER, WARNING, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::forwarded_change::Kept;
use super::negotiate::{AnswerFormat, Media, View};
use super::table::{self, Columns, Table};
use super::{indent, partial_metadata, yaml};
use crate::event::Event;
use crate::event::json::{self, EventList};
use crate::event::protobuf;
use crate::shard::Outcome;
use crate::status::{Status, StatusDetails, success_json};

/// The header with the outcome of an occurrence.
const OUTCOME: HeaderName = HeaderName::from_static("eventweir-outcome");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const NO_SNIFF: HeaderValue = HeaderValue::from_static("nosniff");

pub(super) fn bytes(code: StatusCode, media: Media, body: impl Into<Body>) -> Response {
    (code, [(CONTENT_TYPE, HeaderValue::from_static(media.label()))], body.into()).into_response()
}

/// Returns a document, given as compact JSON, in JSON or YAML. Like the API server's, compact JSON ends in a newline
/// and indented JSON does not.
pub(super) fn document(code: StatusCode, media: Media, pretty: bool, mut json: Vec<u8>) -> Response {
    match media {
        Media::Json | Media::Protobuf if pretty => bytes(code, Media::Json, indent::indented(&json)),
        Media::Json | Media::Protobuf => {
            json.push(b'\n');
            bytes(code, Media::Json, json)
        }
        Media::Yaml => bytes(code, media, yaml::from_json(&json)),
    }
}

/// Returns a refusal as JSON; ingest's layer `finish` encodes it in the client's format. 429 carries `Retry-After`,
/// without which clients give up.
pub fn refusal(status: &Status) -> Response {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = document(code, Media::Json, false, go_escaped(&status.to_json()));
    let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if seconds > 0 {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response.extensions_mut().insert(Refused(status.clone().into()));
    response
}

/// The Status of a refusal, as an extension of its response.
#[derive(Debug, Clone)]
pub(super) struct Refused(pub(super) std::sync::Arc<Status>);

/// Escapes the characters that Go's JSON escapes in strings.
pub(super) fn go_escaped(json: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(json.len());
    json::escape(&String::from_utf8_lossy(json), &mut escaped);
    escaped
}

/// Returns a `Success` Status, for a request without an object to show.
pub(super) fn success(format: AnswerFormat, details: StatusDetails) -> Response {
    if format.media != Media::Protobuf {
        return encoded(format, StatusCode::OK, success_json(&details));
    }
    let mut body = Vec::new();
    protobuf::write_success(details, &mut body);
    encoded(format, StatusCode::OK, body)
}

/// Returns a body of this format: protobuf, or compact JSON.
fn encoded(format: AnswerFormat, code: StatusCode, body: Vec<u8>) -> Response {
    match format.media {
        Media::Protobuf => bytes(code, format.media, body),
        Media::Json | Media::Yaml => document(code, format.media, format.pretty, body),
    }
}

/// Returns an event, with `outcome` if it was accepted.
pub(super) fn event(format: AnswerFormat, code: StatusCode, event: &Event, outcome: Option<Outcome>) -> Response {
    let mut response = if let View::PartialList(_) = format.view {
        mismatch("PartialObjectMetadataList", "is not a list (*core.Event)")
    } else {
        let mut body = Vec::with_capacity(1024);
        write_event(format, Columns::Described, event, &mut body);
        encoded(format, code, body)
    };
    if let Some(outcome) = outcome {
        response.headers_mut().insert(OUTCOME, HeaderValue::from_static(outcome.label()));
    }
    response
}

/// Adds warnings to an answer. COMPAT(apiserver): a refusal has them too, once the body is decoded.
pub(super) fn warned(mut response: Response, warnings: &[String]) -> Response {
    for warning in bounded(warnings) {
        warn(&mut response, warning);
    }
    response
}

/// LIMIT: characters of a request's warnings. Beyond it, each warning is cut to [`CUT_LETTERS`], and those still beyond
/// it are dropped. Warnings contain names from the client, and not every proxy passes large headers.
const WARNINGS_LETTERS_MAX: usize = 4 * 1024;
const CUT_LETTERS: usize = 256;

/// Returns the warnings that a header can carry, in their limits.
pub(super) fn carried(warnings: &[String]) -> Vec<String> {
    let carried = bounded(warnings).into_iter().filter(|text| !text.contains(char::is_control));
    carried.map(str::to_owned).collect()
}

/// Deduplicates warnings and cuts them to the API server's limits
/// (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`).
fn bounded(warnings: &[String]) -> Vec<&str> {
    let mut seen = HashSet::new();
    let all: Vec<&str> =
        warnings.iter().map(String::as_str).filter(|text| !text.is_empty() && seen.insert(*text)).collect();
    let mut letters = 0_usize;
    let over = all.iter().position(|text| {
        letters = letters.saturating_add(counted_letters(text));
        letters > WARNINGS_LETTERS_MAX
    });
    let Some(over) = over else { return all };
    let cut = |text| str::char_indices(text).nth(CUT_LETTERS).map_or(text, |(end, _)| text.split_at(end).0);
    let mut letters = 0_usize;
    all.into_iter()
        .map(cut)
        .enumerate()
        .take_while(|(index, text)| {
            // COMPAT(apiserver): the warning that exceeds the limit is still sent.
            let is_kept = *index <= over || letters < WARNINGS_LETTERS_MAX;
            letters = letters.saturating_add(counted_letters(text));
            is_kept
        })
        .map(|(_, text)| text)
        .collect()
}

/// Returns the characters of a warning; 0 for one that a header cannot carry.
fn counted_letters(text: &str) -> usize {
    if text.contains(char::is_control) { 0 } else { text.chars().count() }
}

/// Adds a warning as Go's quoted-string: in quotes, with quotes and backslashes escaped (`net.NewWarningHeader`).
pub(super) fn warn(response: &mut Response, warning: &str) {
    if warning.contains(char::is_control) {
        return;
    }
    let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
    if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
        response.headers_mut().append(WARNING, value);
    }
}

pub(super) fn list(format: AnswerFormat, list: &EventList) -> Response {
    let AnswerFormat { group, view, media, now, .. } = format;
    let mut body = Vec::with_capacity(1024);
    let out = &mut body;
    match (view, media) {
        (View::Partial(_), _) => {
            return mismatch("PartialObjectMetadata", "is a list (*core.EventList)");
        }
        (View::Whole, Media::Protobuf) => protobuf::write_list(group, list, out),
        (View::Whole, Media::Json | Media::Yaml) => json::write_list(group, list, out),
        (View::PartialList(version), Media::Protobuf) => {
            protobuf::write_partial_list(version.label(), list, out);
        }
        (View::PartialList(version), Media::Json | Media::Yaml) => partial_metadata::write_list(version, list, out),
        // A table is never negotiated in protobuf.
        (View::Table(version, include), _) => {
            let columns = Columns::Described;
            table::write(&Table { group, version, include, columns, now }, list, out);
        }
    }
    encoded(format, StatusCode::OK, body)
}

/// Appends an event in the view of the format, as protobuf or as JSON. `columns` is for a table.
pub(super) fn write_event(format: AnswerFormat, columns: Columns, event: &Event, out: &mut Vec<u8>) {
    let AnswerFormat { group, view, media, now, .. } = format;
    match (view, media) {
        (View::Whole, Media::Protobuf) => protobuf::write(group, event, out),
        (View::Whole, Media::Json | Media::Yaml) => json::write_json(group, event, out),
        (View::Partial(version) | View::PartialList(version), Media::Protobuf) => {
            protobuf::write_partial(version.label(), event, out);
        }
        (View::Partial(version) | View::PartialList(version), Media::Json | Media::Yaml) => {
            partial_metadata::write(version, event, out);
        }
        (View::Table(version, include), _) => {
            // A copy: tables are requested by people, so rarely.
            let resource_version = event.metadata.resource_version.clone();
            let one = EventList { resource_version, items: vec![event.clone()], ..EventList::default() };
            table::write(&Table { group, version, include, columns, now }, &one, out);
        }
    }
}

/// Refuses to show the result of a request in a format that it cannot have. The request is carried out, as by the API
/// server, so it is not passed on.
fn mismatch(requested: &str, but: &str) -> Response {
    let message = format!("you requested {requested}, but the requested object {but}");
    let mut response = refusal(&Status::new(406, "NotAcceptable", message));
    response.extensions_mut().insert(Kept);
    response
}

/// Returns a plain text, as the API server does outside of its API.
pub(super) fn text(code: StatusCode, text: &'static str) -> Response {
    (code, [(CONTENT_TYPE, TEXT), (X_CONTENT_TYPE_OPTIONS, NO_SNIFF)], text).into_response()
}

/// Returns 504 for a request that exceeded its client's timeout.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `number` different texts of `letters` characters.
    fn texts(number: usize, letters: usize) -> Vec<String> {
        (0..number).map(|index| format!("{index:ä<letters$}")).collect()
    }

    #[test]
    fn warnings_are_cut_and_left_out_as_the_apiserver_does_it() {
        let kept = |warnings: &[String]| -> Vec<usize> {
            bounded(warnings).into_iter().map(|text| text.chars().count()).collect()
        };
        assert_eq!(kept(&[]), [0; 0]);
        assert_eq!(kept(&texts(1, 4096)), [4096]);
        assert_eq!(kept(&texts(1, 4097)), [256]);
        assert_eq!(kept(&[texts(2, 2048), texts(1, 3)].concat()), [256, 256, 3], "all are cut");
        assert_eq!(kept(&texts(16, 256)), [256; 16]);
        assert_eq!(kept(&texts(100, 256)), [256; 17], "the one that is too many, and no more");
        assert_eq!(kept(&texts(100, 2_000)), [256; 16]);
        assert_eq!(kept(&[texts(20, 2_000), texts(20, 2_000)].concat()), [256; 16]);
        assert_eq!(kept(&[texts(3, 9), vec![String::new()], texts(3, 9)].concat()), [9; 3], "each once");
        // A warning that no header can carry does not count.
        let controls = format!("\n{}", "x".repeat(4096));
        assert_eq!(kept(&[vec![controls], texts(1, 4096)].concat()), [4097, 4096]);
    }

    #[test]
    fn json_is_escaped_as_go_does_it() {
        let escaped = go_escaped("{\"a\":\"<b> & \u{2028}\u{2029}\u{2030}ä\"}".as_bytes());
        let expected = "{\"a\":\"\\u003cb\\u003e \\u0026 \\u2028\\u2029\u{2030}ä\"}";
        assert_eq!(String::from_utf8(escaped).unwrap(), expected);
    }

    #[test]
    fn a_warning_that_no_header_of_gos_can_carry_is_none() {
        let warnings = ["a\u{85}b".to_owned(), "a\tb".to_owned(), "\"ä\\".to_owned()];
        let response = warned(Response::new(Body::empty()), &warnings);
        let headers: Vec<_> = response.headers().get_all(WARNING).iter().map(HeaderValue::as_bytes).collect();
        assert_eq!(headers, [r#"299 - "\"ä\\""#.as_bytes()]);
    }
}
