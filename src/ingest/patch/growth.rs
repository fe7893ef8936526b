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
    Whole(Box<Event>, Named),
    /// What it says.
    Plain,
}

/// What a whole event says of its line, but for the series. A patch changes nothing that it does not name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Named {
    count: bool,
    last_timestamp: bool,
    message: bool,
}

/// What a patch means to somebody who counts occurrences.
pub(super) fn meaning(patch_type: PatchType, group: ApiGroup, body: &[u8]) -> Meaning {
    if patch_type == PatchType::Merge
        && let Some(named) = whole(group, body)
        && let Ok(decoded) = json::decode(group, body, Strictness::Report)
    {
        return Meaning::Whole(Box::new(decoded.event.kept()), named);
    }
    match growth(group, body) {
        // A count or series that grows tells of occurrences; a new message alone does not.
        Some(growth) if patch_type != PatchType::Json && (growth.count.is_some() || growth.series.is_some()) => {
            Meaning::Growth(growth)
        }
        Some(_) | None => Meaning::Plain,
    }
}

/// What the patch says of a line of occurrences when it is a whole event: one that says what has happened, to what, and how
/// often. Any other merge patch is an order to change what it names.
fn whole(group: ApiGroup, body: &[u8]) -> Option<Named> {
    let document: Value = serde_json::from_slice(body).ok()?;
    let (object, count, last_timestamp, message) = match group {
        ApiGroup::Core => ("involvedObject", "count", "lastTimestamp", "message"),
        ApiGroup::Events => ("regarding", "deprecatedCount", "deprecatedLastTimestamp", "note"),
    };
    let tells = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    let counts = !document[count].is_null() || !document["series"].is_null();
    let is_whole = counts && tells(&document["reason"]) && tells(&document[object]["kind"]);
    let names = |member| document.get(member).is_some();
    is_whole.then(|| Named { count: names(count), last_timestamp: names(last_timestamp), message: names(message) })
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
pub(super) async fn upsert(face: &Face, asked: &Asked, form: Form, mut event: Event, named: Named) -> Response {
    let Asked { namespace, name, .. } = asked;
    let growth = Growth {
        count: named.count.then_some(event.count),
        last_timestamp: named.last_timestamp.then_some(event.last_timestamp),
        message: named.message.then(|| event.message.to_smolstr()),
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
            Meaning::Whole(event, _) => panic!("{event:?}"),
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

    /// Fault: any merge patch with the object's kind was taken for a whole event, and what it did not name for emptied.
    #[test]
    fn a_merge_patch_of_what_makes_an_event_and_its_line_is_a_whole_event() {
        let named = |group, body: &str| match meaning(PatchType::Merge, group, body.as_bytes()) {
            Meaning::Whole(_, Named { count, last_timestamp, message }) => Some((count, last_timestamp, message)),
            Meaning::Growth(growth) => panic!("{body}: {growth:?}"),
            Meaning::Plain => None,
        };
        let core = r#"{"involvedObject":{"kind":"Pod"},"reason":"R","count":2}"#;
        let events = r#"{"regarding":{"kind":"Pod"},"reason":"R","note":null,"series":{"count":2}}"#;
        assert_eq!(named(ApiGroup::Core, core), Some((true, false, false)));
        assert_eq!(named(ApiGroup::Events, events), Some((false, false, true)));
        assert_eq!(meaning(PatchType::StrategicMerge, ApiGroup::Core, core.as_bytes()), Meaning::Plain);
        for (group, body) in [
            (ApiGroup::Core, r#"{"involvedObject":{"kind":"Pod"},"count":2}"#),
            (ApiGroup::Core, r#"{"involvedObject":{"kind":"Pod"},"reason":"R","series":null}"#),
            (ApiGroup::Core, r#"{"involvedObject":{"kind":""},"reason":"R","count":2}"#),
            (ApiGroup::Core, r#"{"involvedObject":{"kind":"Pod"},"reason":"R","count":"2"}"#),
            (ApiGroup::Core, events),
            (ApiGroup::Events, core),
            (ApiGroup::Events, "[]"),
        ] {
            assert_eq!(named(group, body), None, "{body}");
        }
    }
}
