//! `timeout=`: how long a client lets its request take. After `k8s.io/apiserver/pkg/endpoints/filters/request_deadline.go` and
//! `k8s.io/apiserver/pkg/server/filters/timeout.go`.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tokio::time::timeout;

use super::{Face, options, respond};
use crate::event::json::go;
use crate::status::Status;

/// Less than a timer can tell from nothing: such a request is not begun.
const LEAST: Duration = Duration::from_millis(1);

/// Ends a request when the time that its client gave it is over. A layer.
pub(super) async fn deadline(State(face): State<Face>, request: Request, next: Next) -> Response {
    let asked = request.uri().query().and_then(options::timeout);
    let Some(asked) = asked.filter(|_| !is_watch(&request)) else { return next.run(request).await };
    let limit = match duration(&asked) {
        // LIMIT: the request's own time; a longer one is cut to it.
        Ok(Duration::ZERO) => face.0.settings.request_timeout,
        Ok(limit) => limit.min(face.0.settings.request_timeout),
        Err(fault) => {
            let message = format!("invalid timeout specified in the request URL - {fault}");
            return respond::refusal(&Status::bad_request(message));
        }
    };
    if limit < LEAST {
        return respond::out_of_time();
    }
    // What the request has asked of the upstream by then may still be done.
    timeout(limit, next.run(request)).await.unwrap_or_else(|_elapsed| respond::out_of_time())
}

/// Watches end by `timeoutSeconds`.
fn is_watch(request: &Request) -> bool {
    let path = request.uri().path();
    path.contains("/watch/") || path.ends_with("/events") && options::asks_for_watch(request.uri().query())
}

/// `time.ParseDuration`, without its signs: what would be negative is over before it begins.
fn duration(text: &str) -> Result<Duration, String> {
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
    let invalid = || format!("time: invalid duration {}", go::quote(text));
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let number: f64 = number.parse().map_err(|_not_a_number| invalid())?;
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {}", go::quote(text)));
        }
        let (_, size) = UNITS
            .into_iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(|| format!("time: unknown unit {} in duration {}", go::quote(unit), go::quote(text)))?;
        seconds += number * size;
        rest = after;
    }
    if is_negative {
        return Ok(Duration::from_nanos(1));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_too_long| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (text, millis) in
            [("1s", 1000), ("1m30s", 90_000), ("1.5s", 1500), ("300ms", 300), ("0", 0), ("2h", 7_200_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert!(duration("1us").unwrap() < LEAST && duration("-5s").unwrap() < LEAST);
        for (text, fault) in [
            ("abc", "time: invalid duration \"abc\""),
            ("5", "time: missing unit in duration \"5\""),
            ("5y", "time: unknown unit \"y\" in duration \"5y\""),
            ("1s2", "time: missing unit in duration \"1s2\""),
            ("-", "time: invalid duration \"-\""),
        ] {
            assert_eq!(duration(text), Err(fault.to_owned()), "{text}");
        }
    }
}
