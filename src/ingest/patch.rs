//! PATCH: the growing counts of clients that correlate by themselves.
//!
//! client-go patches `count`, `lastTimestamp` and `message` of an event that it posted before, or the `series` of a new-style
//! one; kube-rs sends the whole event with its series as a merge patch. Each unit of growth is an occurrence that passes
//! through the shared correlator. Other members are refused for now.

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::aliases::Growth;
use super::decode::Refusal;
use super::form::Form;
use super::{Face, ack, create, decode, not_found, respond};
use crate::event::json::{self, Strictness};
use crate::event::{ApiGroup, Event, EventSeries, MicroTime, Time};
use crate::ledger::RejectReason;
use crate::status::{Status, StatusDetails};

const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";

/// What a patch asks for.
#[derive(Debug, PartialEq)]
enum Meaning {
    /// Some members that tell of new occurrences.
    Growth(Growth),
    /// The whole event as its client sees it now.
    Whole(Box<Event>),
}

/// `PATCH …/namespaces/{namespace}/events/{name}`
pub(super) async fn patch(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let (form, meaning) = match read(&face, group, query.as_deref(), &headers, body).await {
        Ok(read) => read,
        Err((reason, status)) => return face.reject(reason, &status),
    };
    match meaning {
        Meaning::Growth(growth) => grow(&face, form, &namespace, &name, &growth, &headers).await,
        Meaning::Whole(event) => upsert(&face, form, &namespace, &name, *event, &headers).await,
    }
}

async fn read(
    face: &Face,
    group: ApiGroup,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Form, Meaning), Refusal> {
    let form = face.form(group, query, headers)?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = decode::media_type(content_type);
    if ![STRATEGIC_MERGE, MERGE].contains(&media) {
        let status = Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
        return Err((RejectReason::MediaType, Box::new(status.with_details(StatusDetails::default()))));
    }
    let body = decode::read(body, &face.0.settings).await?;
    if media == MERGE
        && let Ok(decoded) = json::decode(group, &body, Strictness::Report)
        && !decoded.event.involved_object.kind.is_empty()
    {
        return Ok((form, Meaning::Whole(Box::new(decoded.event))));
    }
    let growth =
        growth(group, &body).map_err(|message| (RejectReason::Malformed, Box::new(Status::bad_request(message))))?;
    Ok((form, Meaning::Growth(growth)))
}

/// What the patch changes, or why it is refused.
fn growth(group: ApiGroup, body: &[u8]) -> Result<Growth, String> {
    let patch: Value = serde_json::from_slice(body).map_err(|error| format!("error decoding patch: {error}"))?;
    let Value::Object(members) = patch else { return Err("error decoding patch: not an object".to_owned()) };
    let mut growth = Growth::default();
    for (member, value) in members {
        match (group, member.as_str(), value) {
            (_, "series", Value::Object(series)) => growth.series = Some(series_of(&series)?),
            (ApiGroup::Core, "count", value) => growth.count = Some(integer("count", &value)?),
            (ApiGroup::Core, "lastTimestamp", Value::Null) => growth.last_timestamp = Some(None),
            (ApiGroup::Core, "lastTimestamp", Value::String(text)) => {
                let time = Time::parse(&text).map_err(|error| format!("lastTimestamp: \"{text}\": {error}"))?;
                growth.last_timestamp = Some(Some(time));
            }
            (ApiGroup::Core, "message", Value::String(text)) => growth.message = Some(text.into()),
            (_, member, value) => {
                return Err(format!(
                    "{member}: {value}: only series, and through core/v1 count (an integer), lastTimestamp (a time or \
                     null) and message (a string) of an event can be patched"
                ));
            }
        }
    }
    Ok(growth)
}

fn series_of(members: &serde_json::Map<String, Value>) -> Result<EventSeries, String> {
    let mut series = EventSeries::default();
    for (member, value) in members {
        match (member.as_str(), value) {
            ("count", value) => series.count = integer("series.count", value)?,
            ("lastObservedTime", Value::String(text)) => {
                let time =
                    MicroTime::parse(text).map_err(|error| format!("series.lastObservedTime: \"{text}\": {error}"))?;
                series.last_observed_time = Some(time);
            }
            (member, value) => return Err(format!("series.{member}: {value}: not a member of a series")),
        }
    }
    Ok(series)
}

fn integer(member: &str, value: &Value) -> Result<i32, String> {
    let integer = value.as_i64().and_then(|number| i32::try_from(number).ok());
    integer.ok_or_else(|| format!("{member}: {value} is no 32-bit integer"))
}

async fn grow(face: &Face, form: Form, namespace: &str, name: &str, growth: &Growth, headers: &HeaderMap) -> Response {
    let ack = match ack::wanted(face, headers) {
        Ok(ack) => ack,
        Err((reason, status)) => return face.reject(reason, &status),
    };
    // A name never seen, or forgotten: client-go answers a 404 by posting the whole event again.
    let Some((told, grown)) = face.0.aliases.grow(namespace, name, growth) else {
        return respond::refusal(&not_found(form.group, name));
    };
    if grown == 0 {
        return respond::event(form, StatusCode::OK, &told, None, &[]);
    }
    // Should the event begin a record, then with what is new and not with what others have counted before.
    let fresh = Event { count: i32::try_from(grown).unwrap_or(i32::MAX), ..create::as_occurrence(told.clone()) };
    let Ok(accepted) = face.0.shards.accept(fresh, grown) else {
        face.0.aliases.shrink(namespace, name, grown);
        return create::full();
    };
    face.0.metrics.count_outcome(accepted.outcome, u64::from(grown));
    face.0.event_log.write(&told, grown, accepted.outcome, face.0.shards.clock().now());
    let unkept: Vec<String> = ack::kept(face, ack).await.into_iter().collect();
    respond::event(form, StatusCode::OK, &told, Some(accepted.outcome), &unkept)
}

/// A whole event as a patch: its client has no other way when the event is missing, so then it is posted.
async fn upsert(
    face: &Face,
    form: Form,
    namespace: &str,
    name: &str,
    mut event: Event,
    headers: &HeaderMap,
) -> Response {
    let growth = Growth {
        count: Some(event.count),
        last_timestamp: Some(event.last_timestamp),
        message: Some(event.message.clone()),
        series: event.series.clone(),
    };
    if face.0.aliases.get(namespace, name).is_some() {
        return grow(face, form, namespace, name, &growth, headers).await;
    }
    if event.metadata.name.is_empty() {
        event.metadata.name = name.into();
    }
    if event.metadata.name != name {
        let message =
            format!("the name of the object ({}) does not match the name on the URL ({name})", event.metadata.name);
        return face.reject(RejectReason::Invalid, &Status::bad_request(message));
    }
    match create::admit(face, form.group, namespace, &mut event) {
        Ok(repairs) => {
            let warnings: Vec<String> = repairs.into_iter().map(|repair| repair.warning().to_owned()).collect();
            create::take(face, form, StatusCode::OK, event, &warnings, headers).await
        }
        Err((reason, status)) => face.reject(reason, &status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_gos_patch_is_understood_and_others_are_refused_by_name() {
        let read =
            growth(ApiGroup::Core, br#"{"count":3,"lastTimestamp":"2026-11-21T00:15:20Z","message":"m"}"#).unwrap();
        assert_eq!((read.count, read.message.as_deref()), (Some(3), Some("m")));
        assert_eq!(read.last_timestamp.unwrap().unwrap().to_string(), "2026-11-21T00:15:20Z");
        assert_eq!(growth(ApiGroup::Core, br#"{"count":2,"lastTimestamp":null}"#).unwrap().last_timestamp, Some(None));
        for (body, named) in [
            (r#"{"count":"3"}"#, "count"),
            (r#"{"count":3000000000}"#, "count"),
            (r#"{"lastTimestamp":"yesterday"}"#, "lastTimestamp"),
            (r#"{"reason":"R"}"#, "reason"),
            ("[]", "not an object"),
            ("{", "decoding patch"),
        ] {
            assert!(growth(ApiGroup::Core, body.as_bytes()).unwrap_err().contains(named), "{body}");
        }
    }

    #[test]
    fn a_series_is_understood_at_both_doors_and_a_count_only_at_core_v1() {
        let patch = br#"{"series":{"count":2,"lastObservedTime":"2026-03-01T08:00:30.000000Z"}}"#;
        for group in [ApiGroup::Core, ApiGroup::Events] {
            assert_eq!(growth(group, patch).unwrap().series.unwrap().count, 2);
        }
        assert!(growth(ApiGroup::Events, br#"{"count":3}"#).unwrap_err().starts_with("count"));
        assert!(growth(ApiGroup::Events, br#"{"series":{"lastObservedTime":"2026-03-01T08:00:30Z"}}"#).is_err());
    }
}
