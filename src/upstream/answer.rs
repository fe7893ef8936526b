//! The table from the result of a request to the outbox's [`Answer`]. One function, [`judge`], is used for the API
//! server and the embedded store. client-go drops an event on any API status (`recordEvent` in
//! `tools/record/event.go`); this table retries temporary faults.
//!
//! Only the `Status` of a failure that fits the request is final. The error page of a proxy is no answer about the
//! event. Neither does the answer of an API server that does not serve events yet. Such requests are retried.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize as _;
use serde_json::Value;
use smol_str::SmolStr;

use super::Verb;
use crate::event::cut;
use crate::outbox::{Answer, Applied, Fault, LostReason, Refusal, Retry};
use crate::status::Status;

/// LIMIT: longest `Retry-After`; longer ones are reduced to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// LIMIT: bytes of an upstream's message, for logs and for the texts of statuses; the rest is cut.
const MESSAGE_BYTES_MAX: usize = 1024;

/// An answer other than 2xx: its status, and when to retry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denial {
    /// The upstream's Status, or one made from the text of another body. Its `code` is the HTTP status.
    pub(super) status: Status,
    /// Whether the body was the Status of a failure with the code of the answer. Only an API server sends that.
    pub(super) is_status: bool,
    /// The upstream's `Retry-After`, within the limit.
    pub(super) after: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The answer was not 2xx.
    Denied(Box<Denial>),
    /// The request cannot be built: a name is too long for a URL.
    Unsendable(String),
    Deadline,
    /// The request was not sent: no connection, or a failed TLS handshake. Or the API server has left it unprocessed.
    NotSent(String),
    /// A token file or an exec plugin gave no credentials. The request was not sent.
    NoCredentials(String),
    /// The connection broke when the request may have been sent.
    Lost(String),
    /// A 2xx whose body could not be read.
    Unreadable(String),
}

impl Failure {
    pub(super) fn words(&self) -> &str {
        match self {
            Self::Denied(denial) => &denial.status.message,
            Self::Deadline => "no answer in time",
            Self::Unsendable(text)
            | Self::NotSent(text)
            | Self::NoCredentials(text)
            | Self::Lost(text)
            | Self::Unreadable(text) => text,
        }
    }

    /// Returns the beginning of its words.
    pub(super) fn cause(&self) -> SmolStr {
        cut(self.words(), MESSAGE_BYTES_MAX)
    }
}

impl Denial {
    /// Parses an answer other than 2xx.
    pub(super) fn read(code: StatusCode, headers: &http::HeaderMap, body: &[u8]) -> Self {
        // Not every refusal has a Status: 429 is plain text, and 504 a Status with Content-Type text/plain.
        let document: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut status = Status::deserialize(&document).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(body);
            Status::new(0, "", if text.trim().is_empty() { code.to_string() } else { text.trim().to_owned() })
        });
        let has = |name: &str, text: &str| document.get(name).and_then(Value::as_str) == Some(text);
        let is_status = has("kind", "Status") && has("status", "Failure") && status.code == code.as_u16();
        status.code = code.as_u16();
        status.message = shorten(status.message);
        // With it, a client that lists in pages continues after a 410.
        let token = document.pointer("/metadata/continue").and_then(Value::as_str).unwrap_or_default();
        token.clone_into(&mut status.continue_token);
        let header = headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Self::new(status, is_status, header)
    }

    fn new(status: Status, is_status: bool, header_seconds: Option<u64>) -> Self {
        let details = status.details.as_ref().map(|details| u64::from(details.retry_after_seconds));
        let seconds = header_seconds.or(details.filter(|&seconds| seconds != 0));
        Self { status, is_status, after: seconds.map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX)) }
    }
}

impl From<Status> for Box<Denial> {
    fn from(status: Status) -> Self {
        Self::new(Denial::new(status, true, None))
    }
}

/// Classifies a failure. This is the table.
pub(super) fn judge(verb: Verb, failure: &Failure) -> Answer {
    // A read changes nothing.
    let perhaps = if verb.writes() { Applied::Perhaps } else { Applied::No };
    let retry = |fault, applied| Answer::Retry(Retry::new(fault, applied));
    match failure {
        Failure::Denied(denial) => judge_denial(verb, denial, perhaps),
        Failure::Unsendable(text) => {
            let status = Box::new(Status::bad_request(text.clone()));
            Answer::Refused(Refusal { reason: LostReason::Invalid, status })
        }
        Failure::Deadline => retry(Fault::Timeout, perhaps),
        Failure::NotSent(_) => retry(Fault::Transport, Applied::No),
        Failure::NoCredentials(_) => retry(Fault::Unauthorized, Applied::No),
        Failure::Lost(_) => retry(Fault::Transport, perhaps),
        Failure::Unreadable(_) => retry(Fault::BadAnswer, perhaps),
    }
}

fn judge_denial(verb: Verb, denial: &Denial, perhaps: Applied) -> Answer {
    let Denial { status, is_status, after } = denial;
    let refused = |reason| Answer::Refused(Refusal { reason, status: Box::new(status.clone()) });
    let retry = |fault, applied| Answer::Retry(Retry { after: *after, ..Retry::new(fault, applied) });
    let about = status.details.as_ref().map_or("", |details| details.kind.as_str());
    match (status.code, status.reason.as_str()) {
        // These are temporary, with or without a Status. An API server's 429 is plain text.
        (401, _) => retry(Fault::Unauthorized, Applied::No),
        (408 | 504, _) => retry(Fault::Timeout, perhaps),
        (429, _) => retry(Fault::Overloaded, Applied::No),
        (500, _) if *is_status && too_large_for_etcd(&status.message) => refused(LostReason::TooLarge),
        (500, _) if *is_status && status.message.contains("resourceVersion should not be set") => {
            refused(LostReason::Invalid)
        }
        // A load balancer without a backend. The API server's own answer to a panic is plain text too, but a 500.
        (502 | 503, _) if !is_status => retry(Fault::NotApiserver, perhaps),
        (500..=599, _) => retry(Fault::ServerError, perhaps),
        _ if !is_status => retry(Fault::NotApiserver, perhaps),
        (400 | 405 | 406 | 415 | 422, _) => refused(LostReason::Invalid),
        // Admission plugins use reasons of their own, so the reason is ignored.
        (403, _) if status.has_cause("NamespaceTerminating") => refused(LostReason::NamespaceGone),
        (403, _) => refused(LostReason::Forbidden),
        (404, "NotFound") if verb == Verb::Create && about == "namespaces" => refused(LostReason::NamespaceGone),
        (404, "NotFound") if verb != Verb::Create && matches!(about, "" | "events" | "namespaces") => Answer::Missing,
        // The resource is not served, or not yet.
        (404, _) => retry(Fault::NotApiserver, perhaps),
        // A 409 of a create means that the name exists, also without a reason. The outbox then reads the record.
        (409, reason) if verb == Verb::Create && reason != "Conflict" => Answer::Exists,
        (409, _) => retry(Fault::Conflict, Applied::No),
        (413, _) => refused(LostReason::TooLarge),
        (400..=499, _) => refused(LostReason::Refused),
        _ => retry(Fault::NotApiserver, perhaps),
    }
}

/// Whether the message is that of a size limit of etcd or gRPC, which is a 500 without a reason. Another
/// `ResourceExhausted`, "database space exceeded", is temporary.
fn too_large_for_etcd(message: &str) -> bool {
    message.contains("etcdserver: request is too large") || message.contains("message larger than max")
}

/// Converts the failure of a client's request to the Status for the client, with `Retry-After` if the answer had it, or
/// if a request that changed nothing is answered with 429 or 503: clients repeat these only with it.
pub(super) fn status_of(verb: Verb, failure: Failure) -> Status {
    let (after, changes_nothing) = match judge(verb, &failure) {
        Answer::Retry(Retry { after, applied, .. }) => (after, applied == Applied::No),
        _ => (None, false),
    };
    let status = match failure {
        // Not passed on: a client would take it for a refusal of its own.
        Failure::Denied(denial) if denial.status.code == 401 => {
            Status::new(503, "ServiceUnavailable", "the API server refuses eventweir's own credentials")
        }
        Failure::Denied(denial) if denial.is_status || matches!(denial.status.code, 408 | 429 | 500..=599) => {
            denial.status
        }
        // Not passed on: a client would take it for the API server's answer, and delete or post again.
        Failure::Denied(denial) => {
            let Status { code, message, .. } = denial.status;
            Status::new(503, "ServiceUnavailable", shorten(format!("not an API server's answer: {code} {message}")))
        }
        Failure::Unsendable(text) => Status::bad_request(shorten(text)),
        Failure::Deadline => Status::new(504, "Timeout", "the upstream did not answer in time"),
        Failure::NotSent(text) | Failure::NoCredentials(text) | Failure::Lost(text) => {
            Status::new(503, "ServiceUnavailable", shorten(format!("the upstream cannot be reached: {text}")))
        }
        Failure::Unreadable(text) => {
            Status::new(500, "InternalError", shorten(format!("the upstream's answer cannot be read: {text}")))
        }
    };
    if after.is_none() && !(changes_nothing && matches!(status.code, 429 | 503)) {
        return status;
    }
    let seconds = after.map_or(1, |after| after.as_secs().max(1));
    status.with_retry_after(u32::try_from(seconds).unwrap_or(u32::MAX))
}

fn shorten(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{StatusCause, StatusDetails};

    fn denied(code: u16, reason: &str, message: &str) -> Failure {
        Failure::Denied(Status::new(code, reason, message).into())
    }

    fn retry(fault: Fault, applied: Applied) -> Answer {
        Answer::Retry(Retry::new(fault, applied))
    }

    #[test]
    fn each_status_has_its_answer() {
        use LostReason::{Forbidden, Invalid, NamespaceGone, Refused, TooLarge};
        use Verb::{Create, Get, Patch};
        let elsewhere = |applied| retry(Fault::NotApiserver, applied);
        let check = |verb, code, reason: &str, message: &str, expected: Answer| {
            assert_eq!(judge(verb, &denied(code, reason, message)), expected, "{verb:?} {code} {reason}");
        };
        // A refusal has the upstream's own words.
        let check_refused = |verb, code, reason: &str, message: &str, why| {
            let status = Box::new(Status::new(code, reason, message));
            check(verb, code, reason, message, Answer::Refused(Refusal { reason: why, status }));
        };
        for code in [400, 405, 406, 415, 422] {
            check_refused(Create, code, "", "m", Invalid);
            check_refused(Patch, code, "", "m", Invalid);
        }
        check(Create, 401, "Unauthorized", "m", retry(Fault::Unauthorized, Applied::No));
        check_refused(Create, 403, "Forbidden", "m", Forbidden);
        let cause = StatusCause { reason: "NamespaceTerminating".into(), message: String::new(), field: String::new() };
        let details = StatusDetails { causes: vec![cause], ..StatusDetails::default() };
        let status = Status::new(403, "Forbidden", "m").with_details(details);
        let gone = Refusal { reason: NamespaceGone, status: Box::new(status.clone()) };
        assert_eq!(judge(Create, &Failure::Denied(status.into())), Answer::Refused(gone));
        let about = |kind: &str| Status::not_found("", kind, "x");
        let gone = Refusal { reason: NamespaceGone, status: Box::new(about("namespaces")) };
        for (verb, kind, expected) in [
            (Create, "namespaces", Answer::Refused(gone)),
            (Create, "events", elsewhere(Applied::Perhaps)),
            (Patch, "events", Answer::Missing),
            (Get, "namespaces", Answer::Missing),
            (Get, "pods", elsewhere(Applied::No)),
        ] {
            assert_eq!(judge(verb, &Failure::Denied(about(kind).into())), expected, "{verb:?} {kind}");
        }
        check(Patch, 404, "NotFound", "m", Answer::Missing);
        check(Get, 404, "NotFound", "m", Answer::Missing);
        check(Create, 404, "NotFound", "the server could not find the requested resource", elsewhere(Applied::Perhaps));
        check(Patch, 404, "", "m", elsewhere(Applied::Perhaps));
        check(Create, 409, "AlreadyExists", "m", Answer::Exists);
        check(Create, 409, "", "m", Answer::Exists);
        check(Create, 409, "Conflict", "m", retry(Fault::Conflict, Applied::No));
        check(Patch, 409, "Conflict", "m", retry(Fault::Conflict, Applied::No));
        check_refused(Create, 413, "RequestEntityTooLarge", "m", TooLarge);
        check(Create, 429, "TooManyRequests", "m", retry(Fault::Overloaded, Applied::No));
        for code in [408, 504] {
            check(Create, code, "Timeout", "m", retry(Fault::Timeout, Applied::Perhaps));
            check(Get, code, "Timeout", "m", retry(Fault::Timeout, Applied::No));
        }
        let etcd = "etcdserver: request is too large";
        check_refused(Create, 500, "", etcd, TooLarge);
        let grpc =
            "rpc error: code = ResourceExhausted desc = trying to send message larger than max (2097999 vs. 2097152)";
        check_refused(Create, 500, "", grpc, TooLarge);
        let full = "etcdserver: mvcc: database space exceeded";
        check(Create, 500, "", full, retry(Fault::ServerError, Applied::Perhaps));
        let version = "resourceVersion should not be set on objects to be created";
        check_refused(Create, 500, "", version, Invalid);
        for code in [500, 502, 503, 599] {
            check(Create, code, "", "m", retry(Fault::ServerError, Applied::Perhaps));
            check(Get, code, "", "m", retry(Fault::ServerError, Applied::No));
        }
        for code in [402, 410, 418, 451] {
            check_refused(Create, code, "", "m", Refused);
        }
        for code in [300, 301, 307, 600] {
            check(Create, code, "", "m", elsewhere(Applied::Perhaps));
        }
    }

    #[test]
    fn only_a_status_of_a_failure_is_final() {
        let page = "<html><body><h1>404 Not Found</h1></body></html>";
        let status = |kind: &str, status: &str, code: u16| {
            let details = r#""details":{"kind":"namespaces"}"#;
            format!(r#"{{"kind":"{kind}","status":"{status}","reason":"NotFound",{details},"code":{code}}}"#)
        };
        let no_verdicts = [
            (403, "default backend - 403".to_owned()),
            (404, page.to_owned()),
            (404, String::new()),
            (404, r#"{"error":"no such route","code":404}"#.to_owned()),
            (404, status("Problem", "Failure", 404)),
            (404, status("Status", "Success", 404)),
            (404, status("Status", "Failure", 403)),
            (400, page.to_owned()),
            (409, page.to_owned()),
            (413, page.to_owned()),
            (422, String::new()),
            (502, page.to_owned()),
            (503, page.to_owned()),
        ];
        for (code, body) in no_verdicts {
            let code = StatusCode::from_u16(code).unwrap();
            for (verb, applied) in [(Verb::Create, Applied::Perhaps), (Verb::Get, Applied::No)] {
                let denial = Denial::read(code, &http::HeaderMap::new(), body.as_bytes());
                let answer = judge(verb, &Failure::Denied(denial.clone().into()));
                assert_eq!(answer, retry(Fault::NotApiserver, applied), "{verb:?} {code} {body}");
                let shown = if code == 502 { 502 } else { 503 };
                assert_eq!(status_of(verb, Failure::Denied(denial.into())).code, shown, "{code} {body}");
            }
        }
        let body = status("Status", "Failure", 404);
        let denial = Denial::read(StatusCode::NOT_FOUND, &http::HeaderMap::new(), body.as_bytes());
        assert!(matches!(judge(Verb::Create, &Failure::Denied(denial.into())), Answer::Refused(_)));
        // A gateway's page with the text of etcd is not a Status.
        let text = b"etcdserver: request is too large";
        let denial = Denial::read(StatusCode::INTERNAL_SERVER_ERROR, &http::HeaderMap::new(), text);
        assert_eq!(judge(Verb::Create, &Failure::Denied(denial.into())), retry(Fault::ServerError, Applied::Perhaps));
    }

    #[test]
    fn each_failure_without_an_answer_has_its_answer_and_its_status() {
        let check = |failure: Failure, fault, write, code, reason: &str| {
            assert_eq!(judge(Verb::Patch, &failure), retry(fault, write), "{failure:?}");
            assert_eq!(judge(Verb::Get, &failure), retry(fault, Applied::No), "{failure:?}");
            let status = status_of(Verb::Get, failure);
            assert_eq!((status.code, status.reason.as_str()), (code, reason));
        };
        check(Failure::Deadline, Fault::Timeout, Applied::Perhaps, 504, "Timeout");
        check(Failure::NotSent("x".into()), Fault::Transport, Applied::No, 503, "ServiceUnavailable");
        check(Failure::NoCredentials("x".into()), Fault::Unauthorized, Applied::No, 503, "ServiceUnavailable");
        check(Failure::Lost("x".into()), Fault::Transport, Applied::Perhaps, 503, "ServiceUnavailable");
        check(Failure::Unreadable("x".into()), Fault::BadAnswer, Applied::Perhaps, 500, "InternalError");
        let answer = judge(Verb::Patch, &Failure::Unsendable("m".into()));
        assert!(matches!(answer, Answer::Refused(Refusal { reason: LostReason::Invalid, .. })), "{answer:?}");
    }

    #[test]
    fn retry_after_is_read_from_header_and_details_and_limited() {
        let check = |header: Option<&str>, body: &str, expected: Option<u64>| {
            let mut headers = http::HeaderMap::new();
            if let Some(value) = header {
                headers.insert(http::header::RETRY_AFTER, value.parse().unwrap());
            }
            let denial = Denial::read(StatusCode::TOO_MANY_REQUESTS, &headers, body.as_bytes());
            assert_eq!(denial.after, expected.map(Duration::from_secs), "{header:?} {body}");
        };
        let details = r#"{"details":{"retryAfterSeconds":7},"code":429}"#;
        check(None, "Too many requests, please try again later.\n", None);
        check(Some("1"), "Too many requests, please try again later.\n", Some(1));
        check(Some("0"), "", Some(0));
        check(None, details, Some(7));
        check(Some("3"), details, Some(3));
        check(Some("Wed, 21 Oct 2026 07:28:00 GMT"), details, Some(7));
        check(Some("86400"), "", Some(300));
        check(Some("-1"), "", None);
        check(None, r#"{"details":{"retryAfterSeconds":0},"code":429}"#, None);
    }

    #[test]
    fn other_bodies_become_the_message() {
        let check = |body: &[u8], expected: &str| {
            let denial = Denial::read(StatusCode::GATEWAY_TIMEOUT, &http::HeaderMap::new(), body);
            assert_eq!((denial.status.message.as_str(), denial.status.code), (expected, 504));
        };
        check(br#"{"metadata":{},"status":"Failure","message":"m","reason":"Timeout","code":503}"#, "m");
        check(b"upstream timed out\n", "upstream timed out");
        check(b"", "504 Gateway Timeout");
        check("é".repeat(600).as_bytes(), &"é".repeat(512));
    }

    /// Fault: a client that listed in pages had to begin again after a compaction.
    #[test]
    fn an_expired_list_can_be_continued() {
        let body = br#"{"kind":"Status","metadata":{"continue":"t"},"status":"Failure","reason":"Expired","code":410}"#;
        let denial = Denial::read(StatusCode::GONE, &http::HeaderMap::new(), body);
        let status = status_of(Verb::List, Failure::Denied(denial.into()));
        assert_eq!((status.code, status.continue_token.as_str()), (410, "t"));
    }

    #[test]
    fn clients_get_refusals_as_a_status() {
        let check = |failure, code, reason: &str| {
            let status = status_of(Verb::Get, failure);
            assert_eq!((status.code, status.reason.as_str()), (code, reason));
        };
        check(Failure::Denied(Status::not_found("", "events", "x").into()), 404, "NotFound");
        check(denied(401, "Unauthorized", "Unauthorized"), 503, "ServiceUnavailable");
        check(Failure::Unsendable("x".into()), 400, "BadRequest");
    }

    #[test]
    fn clients_may_repeat_what_an_overloaded_or_absent_apiserver_has_not_carried_out() {
        let check = |verb, failure: Failure, expected: u32| {
            let text = format!("{verb:?} {failure:?}");
            let seconds = status_of(verb, failure).details.map_or(0, |details| details.retry_after_seconds);
            assert_eq!(seconds, expected, "{text}");
        };
        let denied = |code: u16, after: Option<&'static str>| {
            let headers = after.map(|after| (http::header::RETRY_AFTER, after.parse().unwrap()));
            let code = StatusCode::from_u16(code).unwrap();
            Failure::Denied(Denial::read(code, &headers.into_iter().collect(), b"Too many requests").into())
        };
        for verb in [Verb::Get, Verb::List, Verb::Update] {
            check(verb, denied(429, Some("7")), 7);
            check(verb, denied(429, Some("0")), 1);
            check(verb, denied(429, None), 1);
            check(verb, denied(503, Some("7")), 7);
            check(verb, denied(401, None), 1);
            check(verb, Failure::NotSent("x".into()), 1);
            check(verb, Failure::NoCredentials("x".into()), 1);
            check(verb, denied(500, None), 0);
            check(verb, Failure::Deadline, 0);
        }
        // An update may have been carried out.
        for (verb, expected) in [(Verb::List, 1), (Verb::Update, 0)] {
            check(verb, Failure::Lost("x".into()), expected);
            check(verb, denied(503, None), expected);
        }
    }
}
