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
use crate::ingest::asked::Asked;
use crate::ingest::form::Form;
use crate::ingest::rejection::Rejection;
use crate::ingest::{Face, ack, create, guard, respond};
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
pub(super) async fn grow(face: &Face, asked: &Asked, form: Form, growth: &Growth) -> Response {
    let mut growth = growth.clone();
    match repair(face, asked, &mut growth) {
        Ok(repaired) => {
            face.0.metrics.count_repairs(repaired.as_slice());
            let warnings: Vec<String> = repaired.iter().map(|repair| repair.warning().to_owned()).collect();
            respond::warned(count(face, asked, form, &growth).await, &warnings)
        }
        Err(rejection) => reject(face, face.0.aliases.get(&asked.namespace, &asked.name).as_ref(), &rejection),
    }
}

/// Repairs the message of a growth as that of the POST: with another message, it would begin a record of its own.
fn repair(face: &Face, asked: &Asked, growth: &mut Growth) -> Result<Option<Repair>, Rejection> {
    let Asked { group, namespace, name, .. } = asked;
    let most = face.0.settings.repair.map_or(usize::MAX, NonZeroUsize::get);
    let Some(message) = growth.message.as_mut().filter(|text| text.len() > most.min(NEW_STYLE_MESSAGE_MAX)) else {
        return Ok(None);
    };
    let Some(known) = face.0.aliases.get(namespace, name) else { return Ok(None) };
    if known.event_time.is_none() {
        return Ok(repair::message(message, most));
    }
    if face.0.settings.repair.is_none() {
        let told = Event { message: message.clone(), ..known.clone() };
        validate::update(*group, &known, &told).map_err(Rejection::invalid)?;
    }
    Ok(repair::message(message, NEW_STYLE_MESSAGE_MAX))
}

async fn count(face: &Face, asked: &Asked, form: Form, growth: &Growth) -> Response {
    let Asked { namespace, name, .. } = asked;
    let ack = match ack::wanted(face, &asked.headers) {
        Ok(ack) => ack,
        Err(rejection) => return reject(face, face.0.aliases.get(namespace, name).as_ref(), &rejection),
    };
    // Checked before the alias changes: a refused growth must not leave its message to the event's client.
    let caller = asked.caller.as_ref();
    if caller.is_some()
        && let Some((told, grown)) = face.0.aliases.preview(namespace, name, growth)
        && let Err(rejection) = face.may_grow(caller, form.group, &told).await
    {
        let grown = face.new_of(&told, grown.into());
        // A client posts its event again after a 404, and that is counted.
        if rejection.status.code != 404 {
            face.0.shards.reject(rejection.reason, grown.into());
            face.note_rejection(&told, grown, &rejection);
        }
        return respond::refusal(&rejection.status);
    }
    // The alias is unknown or evicted; the upstream may have the event. After a 404 client-go posts the whole event
    // again, which is counted here.
    let Some((told, grown)) = face.0.aliases.grow(namespace, name, growth) else {
        return respond::refusal(&Status::not_found(form.group.name(), "events", name));
    };
    let grown = face.new_of(&told, grown.into());
    if grown == 0 {
        return respond::event(form, StatusCode::OK, &told, None);
    }
    if let Err(rejection) = face.limit(caller, namespace, Some(&told)) {
        face.take_back(&told, grown);
        face.0.shards.reject(rejection.reason, grown.into());
        face.note_rejection(&told, grown, &rejection);
        return respond::refusal(&rejection.status);
    }
    // The shard has already counted the refusal.
    let Ok(taken) = face.accept(&told, grown, ack, asked.user(), || asked.claim()) else {
        face.take_back(&told, grown);
        return create::full();
    };
    // The client keeps its own line, even if it begins a record.
    let answered = create::answered(face, form, StatusCode::OK, ack, &told, taken, Outcome::Counted).await;
    answered.unwrap_or_else(|status| {
        face.take_back(&told, grown);
        respond::refusal(&status)
    })
}

/// Rejects a possible occurrence, and records it with the event if that is known.
pub(super) fn reject(face: &Face, event: Option<&Event>, rejection: &Rejection) -> Response {
    if let Some(event) = event {
        face.note_rejection(event, 1, rejection);
    }
    face.reject(rejection)
}

/// Takes a whole event as a patch. If the event is missing it is created, because the client has no other way.
pub(super) async fn upsert(
    face: &Face,
    asked: &Asked,
    form: Form,
    patch: &ClientPatch,
    document: &Value,
    validation: FieldValidation,
) -> Response {
    let Asked { namespace, name, .. } = asked;
    let told = face.0.aliases.get(namespace, name);
    let is_known = told.is_some();
    let current = told.unwrap_or_else(|| {
        let mut event = Event::default();
        (event.metadata.namespace, event.metadata.name) = (namespace.as_str().into(), name.as_str().into());
        event
    });
    // Applied like any patch, with the apiserver's refusals and warnings.
    let patched = patching::apply(patch.patch_type, &patch.body, form.group, validation, &current);
    let Patched { mut event, mut warnings } = match patched {
        Ok(patched) => patched,
        Err(status) => return reject(face, is_known.then_some(&current), &Rejection::invalid(status)),
    };
    if is_known {
        let growth = stated(form.group, document, event);
        return respond::warned(grow(face, asked, form, &growth).await, &warnings);
    }
    // A create needs more than the right to patch.
    let caller = asked.caller.as_ref();
    if let Err(status) = face.may_create(caller, form.group, namespace).await {
        return reject(face, Some(&event), &guard::unasked(status));
    }
    match create::pass(face, caller, form.group, namespace, &mut event) {
        Ok(repairs) => {
            warnings.extend(repairs.into_iter().map(|repair| repair.warning().to_owned()));
            respond::warned(create::take(face, asked, form, StatusCode::OK, event).await, &warnings)
        }
        Err(rejection) => reject(face, Some(&event), &rejection),
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
