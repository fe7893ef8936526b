//! The table from what came back for a request to the [`Answer`] that the outbox understands. One function, [`judge`]; the
//! embedded store's failures go through the same table as the apiserver's. Unlike client-go (`recordEvent` in `tools/record/event.go`), which drops
//! an event on any API status, passing faults are told apart here.
//!
//! Final is only a `Status` of a failure that fits what was asked. A page of a load balancer or a proxy, and the answer of an
//! apiserver that does not serve events yet, say nothing of the event: the request is repeated.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::Verb;
use crate::outbox::{Answer, Applied, Fault, Refusal, RefusalReason, Retry};
use crate::status::Status;

/// LIMIT: longest `Retry-After` that is believed; longer ones are cut to this.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);
/// LIMIT: bytes of an upstream's message that are kept, for logs and for the texts of statuses.
const MESSAGE_BYTES_MAX: usize = 1024;

/// An answer other than 2xx: its status, and when to try again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denial {
    /// The upstream's Status; made up from the body's text where the body is none. Its `code` is the HTTP status.
    pub(super) status: Status,
    /// Whether the body was a Status of a failure with the code of the answer, which only an apiserver sends.
    pub(super) is_status: bool,
    /// The upstream's `Retry-After`, limited.
    pub(super) after: Option<Duration>,
}

/// Why no good answer came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The request was answered with something other than 2xx.
    Denied(Box<Denial>),
    /// No request can be made of it: a name too long for a URL.
    Unsendable(String),
    /// The deadline passed.
    Deadline,
    /// The request never left: no connection, a failed TLS handshake.
    NotSent(String),
    /// No credentials could be had: a token file or an exec plugin failed. The request never left.
    NoCredentials(String),
    /// The connection broke after the request may have left.
    Lost(String),
    /// A 2xx whose body could not be read.
    Unreadable(String),
}

impl Failure {
    /// What happened, in the words of whoever said so.
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
}

impl Denial {
    /// Reads an answer whose status is not 2xx.
    pub(super) fn read(code: StatusCode, headers: &http::HeaderMap, body: &[u8]) -> Self {
        // Not every refusal carries a Status: 429 is plain text, and 504 a Status labelled text/plain.
        let mut status: Status = serde_json::from_slice(body).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(body);
            Status::new(0, "", if text.trim().is_empty() { code.to_string() } else { text.trim().to_owned() })
        });
        let head: Head = serde_json::from_slice(body).unwrap_or_default();
        let is_status = head.kind == "Status" && head.status == "Failure" && status.code == code.as_u16();
        status.code = code.as_u16();
        status.message = shorten(status.message);
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

/// What tells a Status from other documents.
#[derive(Deserialize, Default)]
struct Head {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    status: String,
}

/// The table.
pub(super) fn judge(verb: Verb, failure: &Failure) -> Answer {
    // A read changes nothing, so nothing of it can have been applied.
    let perhaps = if verb.writes() { Applied::Perhaps } else { Applied::No };
    let retry = |fault, applied| Answer::Retry(Retry { after: None, applied, fault });
    match failure {
        Failure::Denied(denial) => judge_denial(verb, denial, perhaps),
        Failure::Unsendable(text) => {
            let status = Box::new(Status::bad_request(text.clone()));
            Answer::Refused(Refusal { reason: RefusalReason::Invalid, status })
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
    let retry = |fault, applied| Answer::Retry(Retry { after: *after, applied, fault });
    let about = status.details.as_ref().map_or("", |details| details.kind.as_str());
    match (status.code, status.reason.as_str()) {
        // These pass, whoever answers. An apiserver's 429 is plain text.
        (401, _) => retry(Fault::Unauthorized, Applied::No),
        (408 | 504, _) => retry(Fault::Timeout, perhaps),
        (429, _) => retry(Fault::Overloaded, Applied::No),
        (500, _) if *is_status && too_large_for_etcd(&status.message) => refused(RefusalReason::TooLarge),
        (500, _) if *is_status && status.message.contains("resourceVersion should not be set") => {
            refused(RefusalReason::Invalid)
        }
        (500..=599, _) => retry(Fault::ServerError, perhaps),
        _ if !is_status => retry(Fault::NotApiserver, perhaps),
        (400 | 405 | 406 | 415 | 422, _) => refused(RefusalReason::Invalid),
        // Admission may forbid in words of its own, so the reason is not looked at.
        (403, _) if status.has_cause("NamespaceTerminating") => refused(RefusalReason::NamespaceGone),
        (403, _) => refused(RefusalReason::Forbidden),
        (404, "NotFound") if verb == Verb::Create && about == "namespaces" => refused(RefusalReason::NamespaceGone),
        (404, "NotFound") if verb != Verb::Create && matches!(about, "" | "events" | "namespaces") => Answer::Missing,
        // The resource is not served: not yet, or not in this group.
        (404, _) => retry(Fault::NotApiserver, perhaps),
        // A taken name is the usual 409 of a create, a status without a reason included: reading it tells.
        (409, reason) if verb == Verb::Create && reason != "Conflict" => Answer::Exists,
        (409, _) => retry(Fault::Conflict, Applied::No),
        (413, _) => refused(RefusalReason::TooLarge),
        (400..=499, _) => refused(RefusalReason::Other),
        _ => retry(Fault::NotApiserver, perhaps),
    }
}

/// etcd's and gRPC's own limits come as a 500 without a reason. Not every `ResourceExhausted` is one of them: "database
/// space exceeded" passes when an operator makes room.
fn too_large_for_etcd(message: &str) -> bool {
    message.contains("etcdserver: request is too large") || message.contains("message larger than max")
}

/// A failure in the words of the API, for the readers behind eventweir.
pub(super) fn status_of(failure: Failure) -> Status {
    match failure {
        Failure::Denied(denial) if denial.is_status || matches!(denial.status.code, 401 | 408 | 429 | 500..=599) => {
            denial.status
        }
        // A client would take it for the apiserver's verdict, and delete or post again.
        Failure::Denied(denial) => {
            let Status { code, message, .. } = denial.status;
            Status::new(503, "ServiceUnavailable", shorten(format!("not an apiserver's answer: {code} {message}")))
        }
        Failure::Unsendable(text) => Status::bad_request(shorten(text)),
        Failure::Deadline => Status::new(504, "Timeout", "the upstream did not answer in time"),
        Failure::NotSent(text) | Failure::NoCredentials(text) | Failure::Lost(text) => {
            Status::new(503, "ServiceUnavailable", shorten(format!("the upstream cannot be reached: {text}")))
        }
        Failure::Unreadable(text) => {
            Status::new(500, "InternalError", shorten(format!("the upstream's answer cannot be read: {text}")))
        }
    }
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
        Answer::Retry(Retry { after: None, applied, fault })
    }

    #[test]
    fn each_status_has_its_answer() {
        use RefusalReason::{Forbidden, Invalid, NamespaceGone, Other, TooLarge};
        use Verb::{Create, Get, Patch};
        let elsewhere = |applied| retry(Fault::NotApiserver, applied);
        let check = |verb, code, reason: &str, message: &str, expected: Answer| {
            assert_eq!(judge(verb, &denied(code, reason, message)), expected, "{verb:?} {code} {reason}");
        };
        // A refusal carries the upstream's own words.
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
            check_refused(Create, code, "", "m", Other);
        }
        for code in [300, 301, 307, 600] {
            check(Create, code, "", "m", elsewhere(Applied::Perhaps));
        }
    }

    #[test]
    fn only_a_status_of_a_failure_is_a_verdict() {
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
        ];
        for (code, body) in no_verdicts {
            let code = StatusCode::from_u16(code).unwrap();
            for (verb, applied) in [(Verb::Create, Applied::Perhaps), (Verb::Get, Applied::No)] {
                let denial = Denial::read(code, &http::HeaderMap::new(), body.as_bytes());
                let answer = judge(verb, &Failure::Denied(denial.clone().into()));
                assert_eq!(answer, retry(Fault::NotApiserver, applied), "{verb:?} {code} {body}");
                assert_eq!(status_of(Failure::Denied(denial.into())).code, 503, "{code} {body}");
            }
        }
        let body = status("Status", "Failure", 404);
        let denial = Denial::read(StatusCode::NOT_FOUND, &http::HeaderMap::new(), body.as_bytes());
        assert!(matches!(judge(Verb::Create, &Failure::Denied(denial.into())), Answer::Refused(_)));
        // Too large is told by an apiserver, whatever the text of a gateway's page says.
        let denial = Denial::read(
            StatusCode::INTERNAL_SERVER_ERROR,
            &http::HeaderMap::new(),
            b"etcdserver: request is too large",
        );
        assert_eq!(judge(Verb::Create, &Failure::Denied(denial.into())), retry(Fault::ServerError, Applied::Perhaps));
    }

    #[test]
    fn a_terminating_namespace_is_gone() {
        let cause = StatusCause { reason: "NamespaceTerminating".into(), message: String::new(), field: String::new() };
        let details = StatusDetails { causes: vec![cause], ..StatusDetails::default() };
        let failure = Failure::Denied(Status::new(403, "Forbidden", "m").with_details(details).into());
        let answer = judge(Verb::Create, &failure);
        assert!(matches!(answer, Answer::Refused(Refusal { reason: RefusalReason::NamespaceGone, .. })), "{answer:?}");
    }

    #[test]
    fn what_cannot_be_asked_is_refused() {
        let answer = judge(Verb::Patch, &Failure::Unsendable("m".into()));
        assert!(matches!(answer, Answer::Refused(Refusal { reason: RefusalReason::Invalid, .. })), "{answer:?}");
    }

    #[test]
    fn each_failure_without_a_status_has_its_answer() {
        let check = |failure: Failure, fault, write, read| {
            assert_eq!(judge(Verb::Patch, &failure), retry(fault, write), "{failure:?}");
            assert_eq!(judge(Verb::Get, &failure), retry(fault, read), "{failure:?}");
        };
        check(Failure::Deadline, Fault::Timeout, Applied::Perhaps, Applied::No);
        check(Failure::NotSent("x".into()), Fault::Transport, Applied::No, Applied::No);
        check(Failure::NoCredentials("x".into()), Fault::Unauthorized, Applied::No, Applied::No);
        check(Failure::Lost("x".into()), Fault::Transport, Applied::Perhaps, Applied::No);
        check(Failure::Unreadable("x".into()), Fault::BadAnswer, Applied::Perhaps, Applied::No);
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
    fn bodies_that_are_no_status_are_told_as_text() {
        let check = |body: &[u8], expected: &str| {
            let denial = Denial::read(StatusCode::GATEWAY_TIMEOUT, &http::HeaderMap::new(), body);
            assert_eq!((denial.status.message.as_str(), denial.status.code), (expected, 504));
        };
        check(br#"{"metadata":{},"status":"Failure","message":"m","reason":"Timeout","code":503}"#, "m");
        check(b"upstream timed out\n", "upstream timed out");
        check(b"", "504 Gateway Timeout");
        check("é".repeat(600).as_bytes(), &"é".repeat(512));
    }

    #[test]
    fn readers_hear_of_failures_in_the_words_of_the_api() {
        let check = |failure, code, reason: &str| {
            let status = status_of(failure);
            assert_eq!((status.code, status.reason.as_str()), (code, reason));
        };
        check(Failure::Denied(Status::not_found("", "events", "x").into()), 404, "NotFound");
        check(Failure::Unsendable("x".into()), 400, "BadRequest");
        check(Failure::Deadline, 504, "Timeout");
        check(Failure::NotSent("x".into()), 503, "ServiceUnavailable");
        check(Failure::NoCredentials("x".into()), 503, "ServiceUnavailable");
        check(Failure::Lost("x".into()), 503, "ServiceUnavailable");
        check(Failure::Unreadable("x".into()), 500, "InternalError");
    }
}
