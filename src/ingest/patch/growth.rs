//! Patches of growing counts, from clients with a correlator of their own.
//!
//! client-go patches `count`, `lastTimestamp` and `message` of an event that it has posted, or the `series` of a
//! new-style one. kube-rs sends the whole event with its series as a merge patch. Each unit of growth is an occurrence
//! for the shared correlator.

use std::num::NonZeroUsize;

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use crate::event::json::FieldValidation;
use crate::event::patching::{self, PatchType, Patched};
use crate::event::repair::{self, Repair};
use crate::event::{ApiGroup, Event, EventSeries, MicroTime, NEW_STYLE_MESSAGE_MAX, Time, validate};
use crate::ingest::aliases::Growth;
use crate::ingest::negotiate::AnswerFormat;
use crate::ingest::rejection::Rejection;
use crate::ingest::request_head::RequestHead;
use crate::ingest::{Ingest, ack, create, guard, respond};
use crate::shard::Outcome;
use crate::status::Status;
use crate::upstream::ClientPatch;

/// Meaning of a patch.
#[derive(Debug, PartialEq)]
pub(super) enum Meaning {
    /// New occurrences.
    Growth(Growth),
    /// The whole event in its newest state.
    Whole(Value),
    /// A change of the event.
    Plain,
}

/// Returns the meaning of a patch of a correlated event.
pub(super) fn meaning(patch_type: PatchType, group: ApiGroup, body: &[u8]) -> Meaning {
    let Ok(document) = serde_json::from_slice(body) else { return Meaning::Plain };
    if patch_type == PatchType::Merge && is_whole(group, &document) {
        return Meaning::Whole(document);
    }
    match growth(group, document) {
        // Only count and series show occurrences; a new message alone does not.
        Some(growth) if patch_type != PatchType::Json && (growth.count.is_some() || growth.series.is_some()) => {
            Meaning::Growth(growth)
        }
        Some(_) | None => Meaning::Plain,
    }
}

/// Returns an API group's names of count, last timestamp and message.
const fn names(group: ApiGroup) -> [&'static str; 3] {
    match group {
        ApiGroup::Core => ["count", "lastTimestamp", "message"],
        ApiGroup::Events => ["deprecatedCount", "deprecatedLastTimestamp", "note"],
    }
}

/// Whether a merge patch is a whole event: it has a reason, an object, and a count or series. Any other one is a
/// change.
fn is_whole(group: ApiGroup, document: &Value) -> bool {
    let object = match group {
        ApiGroup::Core => &document["involvedObject"],
        ApiGroup::Events => &document["regarding"],
    };
    let tells = |text: &Value| text.as_str().is_some_and(|text| !text.is_empty());
    let [count, ..] = names(group);
    let counts = !document[count].is_null() || !document["series"].is_null();
    counts && tells(&document["reason"]) && tells(&object["kind"])
}

/// Returns the line of a whole event, with the members that the document has. `patched` is the event after the patch.
fn stated(group: ApiGroup, document: &Value, patched: Event) -> Growth {
    let states = |member: &str| document.get(member).is_some();
    let [count, last_timestamp, message] = names(group);
    Growth {
        count: states(count).then_some(patched.count),
        last_timestamp: states(last_timestamp).then_some(patched.last_timestamp),
        message: states(message).then(|| patched.message.clone()),
        series: patched.series.filter(|_| states("series")),
    }
}

/// Reads the growth of a line of occurrences; `None` if the patch has other members.
fn growth(group: ApiGroup, document: Value) -> Option<Growth> {
    let Value::Object(members) = document else { return None };
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

/// Counts the growth of an alias.
pub(super) async fn grow(ingest: &Ingest, head: &RequestHead, format: AnswerFormat, growth: &Growth) -> Response {
    let mut growth = growth.clone();
    match repair(ingest, head, &mut growth) {
        Ok(repaired) => {
            ingest.0.metrics.count_repairs(repaired.as_slice());
            let warnings: Vec<String> = repaired.iter().map(|repair| repair.warning().to_owned()).collect();
            respond::warned(count(ingest, head, format, &growth).await, &warnings)
        }
        Err(rejection) => reject(ingest, ingest.0.aliases.get(&head.namespace, &head.name).as_ref(), &rejection),
    }
}

/// Repairs the message of a growth as that of the POST: with another message, it would begin a record of its own.
fn repair(ingest: &Ingest, head: &RequestHead, growth: &mut Growth) -> Result<Option<Repair>, Rejection> {
    let RequestHead { group, namespace, name, .. } = head;
    let most = ingest.0.settings.repair.map_or(usize::MAX, NonZeroUsize::get);
    let Some(message) = growth.message.as_mut().filter(|text| text.len() > most.min(NEW_STYLE_MESSAGE_MAX)) else {
        return Ok(None);
    };
    let Some(known) = ingest.0.aliases.get(namespace, name) else { return Ok(None) };
    if known.event_time.is_none() {
        return Ok(repair::message(message, most));
    }
    if ingest.0.settings.repair.is_none() {
        let posted = Event { message: message.clone(), ..known.clone() };
        validate::update(*group, &known, &posted).map_err(Rejection::invalid)?;
    }
    Ok(repair::message(message, NEW_STYLE_MESSAGE_MAX))
}

async fn count(ingest: &Ingest, head: &RequestHead, format: AnswerFormat, growth: &Growth) -> Response {
    let RequestHead { namespace, name, .. } = head;
    let ack = match ack::wanted(ingest, &head.headers) {
        Ok(ack) => ack,
        Err(rejection) => return reject(ingest, ingest.0.aliases.get(namespace, name).as_ref(), &rejection),
    };
    // Checked before the alias changes: a refused growth must not leave its message to the event's client.
    let caller = head.caller.as_ref();
    if caller.is_some()
        && let Some((posted, grown)) = ingest.0.aliases.preview(namespace, name, growth)
        && let Err(rejection) = ingest.may_grow(caller, format.group, &posted).await
    {
        let grown = ingest.new_of(&posted, grown.into());
        // A client posts its event again after a 404, and that is counted.
        if rejection.status.code != 404 {
            ingest.0.shards.reject(rejection.reason, grown.into());
            ingest.note_rejection(&posted, grown, &rejection);
        }
        return respond::refusal(&rejection.status);
    }
    // The alias is unknown or evicted; the upstream may have the event. After a 404 client-go posts the whole event
    // again, which is counted here.
    let Some((posted, grown)) = ingest.0.aliases.grow(namespace, name, growth) else {
        return respond::refusal(&Status::not_found(format.group.name(), "events", name));
    };
    let grown = ingest.new_of(&posted, grown.into());
    if grown == 0 {
        // What it repeats may wait for its commit.
        return ack::once_kept(ingest, ack, respond::event(format, StatusCode::OK, &posted, None)).await;
    }
    if let Err(rejection) = ingest.limit(caller, namespace, Some(&posted)) {
        ingest.take_back(&posted, grown);
        ingest.0.shards.reject(rejection.reason, grown.into());
        ingest.note_rejection(&posted, grown, &rejection);
        return respond::refusal(&rejection.status);
    }
    // The shard has already counted the refusal.
    let Ok(taken) = ingest.accept(&posted, grown, ack, head.user(), || head.claim()) else {
        ingest.take_back(&posted, grown);
        return create::full();
    };
    // The client keeps its own line, even if it begins a record.
    let answered = create::answered(ingest, format, StatusCode::OK, ack, &posted, taken, Outcome::Counted).await;
    answered.unwrap_or_else(|status| {
        ingest.take_back(&posted, grown);
        respond::refusal(&status)
    })
}

/// Rejects a possible occurrence, and records it with the event if that is known.
pub(super) fn reject(ingest: &Ingest, event: Option<&Event>, rejection: &Rejection) -> Response {
    if let Some(event) = event {
        ingest.note_rejection(event, 1, rejection);
    }
    ingest.reject(rejection)
}

/// Takes a whole event as a patch. If the event is missing it is created, because the client has no other way.
pub(super) async fn upsert(
    ingest: &Ingest,
    head: &RequestHead,
    format: AnswerFormat,
    patch: &ClientPatch,
    document: &Value,
    validation: FieldValidation,
) -> Response {
    let RequestHead { namespace, name, .. } = head;
    let posted = ingest.0.aliases.get(namespace, name);
    let is_known = posted.is_some();
    let current = posted.unwrap_or_else(|| {
        let mut event = Event::default();
        (event.metadata.namespace, event.metadata.name) = (namespace.as_str().into(), name.as_str().into());
        event
    });
    // Applied like any patch, with the apiserver's refusals and warnings.
    let patched = patching::apply(patch.patch_type, &patch.body, format.group, validation, &current);
    let Patched { mut event, mut warnings } = match patched {
        Ok(patched) => patched,
        Err(status) => return reject(ingest, is_known.then_some(&current), &Rejection::invalid(status)),
    };
    if is_known {
        let growth = stated(format.group, document, event);
        return respond::warned(grow(ingest, head, format, &growth).await, &warnings);
    }
    // A create needs more than the right to patch.
    let caller = head.caller.as_ref();
    if let Err(status) = ingest.may_create(caller, format.group, namespace).await {
        return reject(ingest, Some(&event), &guard::unasked(status));
    }
    match create::pass(ingest, caller, format.group, namespace, &mut event) {
        Ok(repairs) => {
            warnings.extend(repairs.into_iter().map(|repair| repair.warning().to_owned()));
            respond::warned(create::take(ingest, head, format, StatusCode::OK, event).await, &warnings)
        }
        Err(rejection) => reject(ingest, Some(&event), &rejection),
    }
}

#[cfg(test)]
mod tests {
    use smol_str::SmolStr;

    use super::*;

    fn growth_of(group: ApiGroup, body: &str) -> Option<Growth> {
        match meaning(PatchType::StrategicMerge, group, body.as_bytes()) {
            Meaning::Growth(growth) => Some(growth),
            Meaning::Plain => None,
            Meaning::Whole(_) => panic!("{body} is whole"),
        }
    }

    #[test]
    fn client_gos_patch_is_growth_and_others_are_plain() {
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
    fn a_series_is_growth_in_both_api_groups_and_a_count_only_in_core_v1() {
        let patch = r#"{"series":{"count":2,"lastObservedTime":"2026-03-01T08:00:30.000000Z"}}"#;
        for group in [ApiGroup::Core, ApiGroup::Events] {
            assert_eq!(growth_of(group, patch).unwrap().series.unwrap().count, 2);
        }
        assert_eq!(growth_of(ApiGroup::Events, r#"{"count":3}"#), None);
        assert_eq!(growth_of(ApiGroup::Events, r#"{"series":{"lastObservedTime":"2026-03-01T08:00:30Z"}}"#), None);
        assert_eq!(growth_of(ApiGroup::Events, r#"{"series":{"count":2,"$patch":"replace"}}"#), None);
    }

    /// Fault: any merge patch with the object's kind was taken for a whole event, and emptied all other members.
    #[test]
    fn a_merge_patch_with_reason_object_and_line_is_a_whole_event() {
        let core = r#"{"involvedObject":{"kind":"Pod"},"reason":"R","count":2}"#;
        let events = r#"{"regarding":{"kind":"Pod"},"reason":"R","note":null,"series":{"count":2}}"#;
        let meaning = |patch_type, group, body: &str| meaning(patch_type, group, body.as_bytes());
        let value = |body| serde_json::from_str::<Value>(body).unwrap();
        let whole = |body| Meaning::Whole(value(body));
        assert_eq!(meaning(PatchType::Merge, ApiGroup::Core, core), whole(core));
        assert_eq!(meaning(PatchType::Merge, ApiGroup::Events, events), whole(events));
        assert_eq!(meaning(PatchType::StrategicMerge, ApiGroup::Core, core), Meaning::Plain);
        for (group, body) in [
            (ApiGroup::Core, r#"{"involvedObject":{"kind":"Pod"},"count":2}"#),
            (ApiGroup::Core, r#"{"involvedObject":{"kind":"Pod"},"reason":"R","series":null}"#),
            (ApiGroup::Core, r#"{"involvedObject":{"kind":""},"reason":"R","count":2}"#),
            (ApiGroup::Core, events),
            (ApiGroup::Events, core),
            (ApiGroup::Events, "[]"),
        ] {
            assert_eq!(meaning(PatchType::Merge, group, body), Meaning::Plain, "{body}");
        }
        let patched = || Event { count: 2, series: Some(EventSeries::default()), ..Event::default() };
        let (count, message) = (Some(2), Some(SmolStr::default()));
        assert_eq!(stated(ApiGroup::Core, &value(core), patched()), Growth { count, ..Growth::default() });
        let expected = Growth { message, series: patched().series, ..Growth::default() };
        assert_eq!(stated(ApiGroup::Events, &value(events), patched()), expected);
    }
}
