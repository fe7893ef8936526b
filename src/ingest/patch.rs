//! PATCH: the growing counts of clients that correlate by themselves.
//!
//! client-go patches `count`, `lastTimestamp` and `message` of an event that it posted before; these three are understood, and
//! each unit of growth is an occurrence that passes through the shared correlator. Other members are refused for now.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::aliases::Growth;
use super::decode::Refusal;
use super::{Face, create, decode, respond};
use crate::event::{Event, Time};
use crate::ledger::RejectReason;
use crate::status::{Status, StatusDetails};

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

/// `PATCH /api/v1/namespaces/{namespace}/events/{name}`
pub(super) async fn patch(
    State(face): State<Face>,
    Path((namespace, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    match read(&face, &headers, body).await {
        Ok(growth) => grow(&face, &namespace, &name, &growth),
        Err((reason, status)) => face.reject(reason, &status),
    }
}

async fn read(face: &Face, headers: &HeaderMap, body: Body) -> Result<Growth, Refusal> {
    decode::accepts_json(headers)?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if ![STRATEGIC_MERGE, MERGE].contains(&decode::media_type(content_type)) {
        let status = Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
        return Err((RejectReason::MediaType, Box::new(status.with_details(StatusDetails::default()))));
    }
    let body = decode::read(body, &face.0.settings).await?;
    growth(&body).map_err(|message| (RejectReason::Malformed, Box::new(Status::bad_request(message))))
}

/// What the patch changes, or why it is refused.
fn growth(body: &[u8]) -> Result<Growth, String> {
    let patch: Value = serde_json::from_slice(body).map_err(|error| format!("error decoding patch: {error}"))?;
    let Value::Object(members) = patch else { return Err("error decoding patch: not an object".to_owned()) };
    let mut growth = Growth::default();
    for (member, value) in members {
        match (member.as_str(), value) {
            ("count", Value::Number(number)) => {
                let count = number.as_i64().and_then(|count| i32::try_from(count).ok());
                growth.count = Some(count.ok_or_else(|| format!("count: {number} is no 32-bit integer"))?);
            }
            ("lastTimestamp", Value::Null) => growth.last_timestamp = Some(None),
            ("lastTimestamp", Value::String(text)) => {
                let time = Time::parse(&text).map_err(|error| format!("lastTimestamp: \"{text}\": {error}"))?;
                growth.last_timestamp = Some(Some(time));
            }
            ("message", Value::String(text)) => growth.message = Some(text.into()),
            (member, value) => {
                return Err(format!(
                    "{member}: {value}: only count (an integer), lastTimestamp (a time or null) and message (a string) \
                     of an event can be patched"
                ));
            }
        }
    }
    Ok(growth)
}

fn grow(face: &Face, namespace: &str, name: &str, growth: &Growth) -> Response {
    // A name never seen, or forgotten: client-go answers a 404 by posting the whole event again.
    let Some((told, grown)) = face.0.aliases.grow(namespace, name, growth) else {
        return respond::refusal(&Status::not_found("", "events", name));
    };
    if grown == 0 {
        return respond::event(StatusCode::OK, &told, None, &[]);
    }
    // Should the event begin a record, then with what is new and not with what others have counted before.
    let fresh = Event { count: i32::try_from(grown).unwrap_or(i32::MAX), ..told.clone() };
    let Ok(accepted) = face.0.shards.accept(fresh, grown) else {
        face.0.aliases.shrink(namespace, name, grown);
        return create::full();
    };
    face.0.metrics.count_outcome(accepted.outcome, u64::from(grown));
    face.0.event_log.write(&told, grown, accepted.outcome, face.0.shards.clock().now());
    respond::event(StatusCode::OK, &told, Some(accepted.outcome), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_gos_patch_is_understood_and_others_are_refused_by_name() {
        let read = growth(br#"{"count":3,"lastTimestamp":"2026-11-21T00:15:20Z","message":"m"}"#).unwrap();
        assert_eq!((read.count, read.message.as_deref()), (Some(3), Some("m")));
        assert_eq!(read.last_timestamp.unwrap().unwrap().to_string(), "2026-11-21T00:15:20Z");
        assert_eq!(growth(br#"{"count":2,"lastTimestamp":null}"#).unwrap().last_timestamp, Some(None));
        for (body, named) in [
            (r#"{"count":"3"}"#, "count"),
            (r#"{"count":3000000000}"#, "count"),
            (r#"{"lastTimestamp":"yesterday"}"#, "lastTimestamp"),
            (r#"{"reason":"R"}"#, "reason"),
            ("[]", "not an object"),
            ("{", "decoding patch"),
        ] {
            assert!(growth(body.as_bytes()).unwrap_err().contains(named), "{body}");
        }
    }
}
