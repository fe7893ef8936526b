//! The `timeout` parameter of a request. Mirrors `k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go` and
//! `k8s.io/apiserver/pkg/server/filters/timeout.go`.

use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;
use tokio::time::timeout;

use super::{Ingest, options, respond};
use crate::ledger::RejectReason;
use crate::server::Answer;
use crate::status::Status;

/// Resolution of the timer: a request with a shorter timeout is not started.
const LEAST: Duration = Duration::from_millis(1);

/// Go counts nanoseconds in an int64; in seconds, rounded up.
const LONGEST: f64 = 9_223_372_037.0;

/// Layer that ends a request after the timeout that its client has set.
pub(super) async fn deadline(ingest: Ingest, request: Request, next: impl Answer) -> Response {
    let asked = options::first(request.uri().query(), "timeout").filter(|text| !text.is_empty() && !is_watch(&request));
    let Some(asked) = asked else { return next.run(request).await };
    let limit = match duration(&asked) {
        // LIMIT: the request timeout; a longer value is cut to it.
        Some(Duration::ZERO) => ingest.0.settings.request_timeout,
        Some(limit) => limit.min(ingest.0.settings.request_timeout),
        None => {
            ingest.reject_unread(request.method(), request.uri(), RejectReason::Invalid);
            let message = format!("timeout: {asked:?} is not a duration such as 10s or 1m30s");
            return respond::refusal(&Status::bad_request(message));
        }
    };
    if limit < LEAST {
        return respond::out_of_time();
    }
    // The upstream may still carry the request out.
    timeout(limit, next.run(request)).await.unwrap_or_else(|_elapsed| respond::out_of_time())
}

/// Whether the request is a watch, which ends by `timeoutSeconds`.
fn is_watch(request: &Request) -> bool {
    let (reads, path) = ([Method::GET, Method::HEAD].contains(request.method()), request.uri().path());
    options::is_watch_path(path) || reads && path.ends_with("/events") && options::sets(request.uri().query(), "watch")
}

/// Parses a duration like Go's `time.ParseDuration`. COMPAT(apiserver): a negative one is as good as none, so it becomes zero.
fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 8] = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("\u{3bc}s", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let is_digit = |letter: char| letter.is_ascii_digit() || letter == '.';
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    loop {
        let (number, after) = rest.split_at(rest.find(|letter| !is_digit(letter))?);
        let (unit, after) = after.split_at(after.find(is_digit).unwrap_or(after.len()));
        let (_, size) = UNITS.into_iter().find(|(name, _)| *name == unit)?;
        seconds += number.parse::<f64>().ok()? * size;
        if after.is_empty() {
            break;
        }
        rest = after;
    }
    if seconds > LONGEST {
        return None;
    }
    if text.starts_with('-') { Some(Duration::ZERO) } else { Duration::try_from_secs_f64(seconds).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_is_not_that_of_a_watch() {
        let check = |uri: &str, expected| {
            let (method, uri) = uri.split_once(' ').unwrap_or(("GET", uri));
            let request = Request::builder().method(method).uri(uri).body(axum::body::Body::empty()).unwrap();
            assert_eq!(is_watch(&request), expected, "{uri}");
        };
        check("/api/v1/watch/namespaces/shop/events", true);
        check("/apis/events.k8s.io/v1/watch/events", true);
        check("/api/v1/namespaces/shop/events?watch=True", true);
        check("/api/v1/namespaces/shop/events/a?watch=1", false);
        // Fault: `watch` made every request one.
        check("POST /api/v1/namespaces/shop/events?watch=1", false);
        check("DELETE /api/v1/namespaces/shop/events?watch=1", false);
        // Fault: the name of the namespace made it a watch.
        check("/api/v1/namespaces/watch/events", false);
    }

    #[test]
    fn durations_are_parsed_like_gos() {
        for (text, millis) in
            [("1s", 1000), ("1m30s", 90_000), ("1.5s", 1500), ("300ms", 300), ("0", 0), ("2h", 7_200_000)]
        {
            assert_eq!(duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        assert!(duration("1us").unwrap() < LEAST);
        assert_eq!(duration("-5s"), Some(Duration::ZERO), "no timeout");
        assert!(duration("2562047h47m16.854775807s").is_some());
        // Fault: what an int64 of nanoseconds cannot have was a long timeout.
        for text in ["abc", "5", "5y", "1s2", "-", "", "+", ".s", "s", "2562048h", "-2562048h"] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
