//! Patches that tell of occurrences: the growing counts of clients that correlate by themselves.
//!
//! client-go patches `count`, `lastTimestamp` and `message` of an event that it posted before, or the `series` of a new-style
//! one; kube-rs sends the whole event with its series as a merge patch. Each unit of growth is an occurrence that passes
//! through the shared correlator.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use crate::event::json::{self, Strictness};
use crate::event::patching::PatchType;
use crate::event::{ApiGroup, Event, EventSeries, MicroTime, Time};
use crate::ingest::aliases::Growth;
use crate::ingest::asked::Asked;
use crate::ingest::form::Form;
use crate::ingest::{Face, ack, create, not_found, respond};
use crate::ledger::RejectReason;
use crate::status::Status;

/// What a patch means.
#[derive(Debug, PartialEq)]
pub(super) enum Meaning {
    /// New occurrences.
    Growth(Growth),
    /// The whole event as its client sees it now.
    Whole(Box<Event>),
    /// What it says.
    Plain,
}

/// What a patch means to somebody who counts occurrences.
pub(super) fn meaning(patch_type: PatchType, group: ApiGroup, body: &[u8]) -> Meaning {
    if patch_type == PatchType::Merge
        && let Ok(decoded) = json::decode(group, body, Strictness::Report)
        && !decoded.event.involved_object.kind.is_empty()
    {
        return Meaning::Whole(Box::new(decoded.event.kept()));
    }
    match growth(group, body) {
        // A count or series that grows tells of occurrences; a new message alone does not.
        Some(growth) if patch_type != PatchType::Json && (growth.count.is_some() || growth.series.is_some()) => {
            Meaning::Growth(growth)
        }
        Some(_) | None => Meaning::Plain,
    }
}

/// What the patch adds to a line of occurrences; `None` when it says anything else.
fn growth(group: ApiGroup, body: &[u8]) -> Option<Growth> {
    let Value::Object(members) = serde_json::from_slice(body).ok()? else { return None };
    let mut growth = Growth::default();
    for (member, value) in members {
        match (group, member.as_str(), value) {
            (_, "series", Value::Object(series)) => growth.series = Some(series_of(&series)?),
            (ApiGroup::Core, "count", value) => growth.count = Some(integer(&value)?),
            (ApiGroup::Core, "lastTimestamp", Value::Null) => growth.last_timestamp = Some(None),
            (ApiGroup::Core, "lastTimestamp", Value::String(text)) => {
                growth.last_timestamp = Some(Some(Time::parse(&text).ok()?));
            }
            (ApiGroup::Core, "message", Value::String(text)) => growth.message = Some(text.into()),
            _ => return None,
        }
    }
    Some(growth)
}

fn series_of(members: &serde_json::Map<String, Value>) -> Option<EventSeries> {
    let mut series = EventSeries::default();
    for (member, value) in members {
        match (member.as_str(), value) {
            ("count", value) => series.count = integer(value)?,
            ("lastObservedTime", Value::String(text)) => series.last_observed_time = Some(MicroTime::parse(text).ok()?),
            _ => return None,
        }
    }
    Some(series)
}

fn integer(value: &Value) -> Option<i32> {
    i32::try_from(value.as_i64()?).ok()
}

/// Counts on under a name that is known here.
pub(super) async fn grow(face: &Face, asked: &Asked, form: Form, growth: &Growth) -> Response {
    let Asked { namespace, name, .. } = asked;
    let ack = match ack::wanted(face, &asked.headers) {
        Ok(ack) => ack,
        Err((reason, status)) => return face.reject(reason, &status),
    };
    // A name never seen, or forgotten, whether or not the upstream has such an event: client-go answers a 404 by posting the
    // whole event again, and then it counts here.
    let Some((told, grown)) = face.0.aliases.grow(namespace, name, growth) else {
        return respond::refusal(&not_found(form.group, name));
    };
    if grown == 0 {
        return respond::event(form, StatusCode::OK, &told, None, &[]);
    }
    // Should the event begin a record, then with what is new and not with what others have counted before.
    let mut fresh = Event { count: i32::try_from(grown).unwrap_or(i32::MAX), ..told.clone() };
    create::tell_last_seen(&mut fresh);
    let Ok(accepted) = face.0.shards.accept(fresh, grown) else {
        face.0.aliases.shrink(namespace, name, grown);
        return create::full();
    };
    face.note(Some(&told), grown, accepted.outcome);
    let unkept: Vec<String> = ack::kept(face, ack).await.into_iter().collect();
    respond::event(form, StatusCode::OK, &told, Some(accepted.outcome), &unkept)
}

/// A whole event as a patch: its client has no other way when the event is missing, so then it is posted.
pub(super) async fn upsert(face: &Face, asked: &Asked, form: Form, mut event: Event) -> Response {
    let Asked { namespace, name, .. } = asked;
    let growth = Growth {
        count: Some(event.count),
        last_timestamp: Some(event.last_timestamp),
        message: Some(event.message.to_smolstr()),
        series: event.series.clone(),
    };
    if face.0.aliases.get(namespace, name).is_some() {
        return grow(face, asked, form, &growth).await;
    }
    if event.metadata.name.is_empty() {
        event.metadata.name = name.as_str().into();
    }
    if event.metadata.name != name.as_str() {
        let message =
            format!("the name of the object ({}) does not match the name on the URL ({name})", event.metadata.name);
        return face.reject(RejectReason::Invalid, &Status::bad_request(message));
    }
    match create::admit(face, form.group, namespace, &mut event) {
        Ok(repairs) => {
            let warnings: Vec<String> = repairs.into_iter().map(|repair| repair.warning().to_owned()).collect();
            create::take(face, asked, form, StatusCode::OK, &mut event, None, &warnings).end().await
        }
        Err((reason, status)) => face.reject(reason, &status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth_of(group: ApiGroup, body: &str) -> Option<Growth> {
        match meaning(PatchType::StrategicMerge, group, body.as_bytes()) {
            Meaning::Growth(growth) => Some(growth),
            Meaning::Plain => None,
            Meaning::Whole(event) => panic!("{event:?}"),
        }
    }

    #[test]
    fn client_gos_patch_is_understood_and_others_are_plain() {
        let read = growth_of(ApiGroup::Core, r#"{"count":3,"lastTimestamp":"2026-11-21T00:15:20Z","message":"m"}"#);
        let read = read.unwrap();
        assert_eq!((read.count, read.message.as_deref()), (Some(3), Some("m")));
        assert_eq!(read.last_timestamp.unwrap().unwrap().to_string(), "2026-11-21T00:15:20Z");
        let read = growth_of(ApiGroup::Core, r#"{"count":2,"lastTimestamp":null}"#).unwrap();
        assert_eq!(read.last_timestamp, Some(None));
        for body in [
            r#"{"count":"3"}"#,
            r#"{"count":3000000000}"#,
            r#"{"count":3,"lastTimestamp":"yesterday"}"#,
            r#"{"count":3,"reason":"R"}"#,
            r#"{"count":3,"metadata":{"labels":{"a":"b"}}}"#,
            r#"{"message":"m"}"#,
            "{}",
            "null",
            "[]",
            "{",
        ] {
            assert_eq!(growth_of(ApiGroup::Core, body), None, "{body}");
        }
        assert_eq!(meaning(PatchType::Json, ApiGroup::Core, br#"{"count":3}"#), Meaning::Plain);
    }

    #[test]
    fn a_series_is_understood_at_both_doors_and_a_count_only_at_core_v1() {
        let patch = r#"{"series":{"count":2,"lastObservedTime":"2026-03-01T08:00:30.000000Z"}}"#;
        for group in [ApiGroup::Core, ApiGroup::Events] {
            assert_eq!(growth_of(group, patch).unwrap().series.unwrap().count, 2);
        }
        assert_eq!(growth_of(ApiGroup::Events, r#"{"count":3}"#), None);
        assert_eq!(growth_of(ApiGroup::Events, r#"{"series":{"lastObservedTime":"2026-03-01T08:00:30Z"}}"#), None);
        assert_eq!(growth_of(ApiGroup::Events, r#"{"series":{"count":2,"$patch":"replace"}}"#), None);
    }

    #[test]
    fn a_merge_patch_with_the_object_is_a_whole_event() {
        let body = br#"{"involvedObject":{"kind":"Pod"},"count":2}"#;
        assert!(matches!(meaning(PatchType::Merge, ApiGroup::Core, body), Meaning::Whole(event) if event.count == 2));
        assert_eq!(meaning(PatchType::StrategicMerge, ApiGroup::Core, body), Meaning::Plain);
    }
}
