//! The fields of an Event under either group's numbers, read into the one model.
//!
//! A message field that stands there twice is merged, as Go's generated code does it: what the second one carries counts,
//! and Kubernetes' own writers carry everything. See `k8s.io/api/{core,events}/v1/generated.proto`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::meta;
use super::reader::{Fault, Field, fields};
use crate::event::core_v1::EventList;
use crate::event::{ApiGroup, Event, EventSeries, EventSource, MicroTime, ObjectReference, Time};

/// Reads an Event.
pub(super) fn event(group: ApiGroup, data: &[u8], event: &mut Event) -> Result<(), Fault> {
    match group {
        ApiGroup::Core => fields(data, "Event", |field| core_field(field, event)),
        ApiGroup::Events => fields(data, "Event", |field| events_field(field, event)),
    }
}

fn core_field<'b>(field: &mut Field<'_, 'b>, event: &mut Event) -> Result<(), Fault> {
    match field.number {
        1 => meta::object_meta(field.bytes("ObjectMeta")?, &mut event.metadata),
        2 => reference(field.bytes("InvolvedObject")?, &mut event.involved_object),
        3 => field.string("Reason", &mut event.reason),
        4 => field.string("Message", &mut event.message),
        5 => source(field.bytes("Source")?, &mut event.source),
        6 => time(field.bytes("FirstTimestamp")?, &mut event.first_timestamp),
        7 => time(field.bytes("LastTimestamp")?, &mut event.last_timestamp),
        8 => field.integer("Count").map(|count| event.count = count),
        9 => field.string("Type", &mut event.event_type),
        10 => micro_time(field.bytes("EventTime")?, &mut event.event_time),
        11 => series(field.bytes("Series")?, event.series.get_or_insert_default()),
        12 => field.string("Action", &mut event.action),
        13 => reference(field.bytes("Related")?, event.related.get_or_insert_default()),
        14 => field.string("ReportingController", &mut event.reporting_controller),
        15 => field.string("ReportingInstance", &mut event.reporting_instance),
        _ => field.skip(),
    }
}

fn events_field<'b>(field: &mut Field<'_, 'b>, event: &mut Event) -> Result<(), Fault> {
    match field.number {
        1 => meta::object_meta(field.bytes("ObjectMeta")?, &mut event.metadata),
        2 => micro_time(field.bytes("EventTime")?, &mut event.event_time),
        3 => series(field.bytes("Series")?, event.series.get_or_insert_default()),
        4 => field.string("ReportingController", &mut event.reporting_controller),
        5 => field.string("ReportingInstance", &mut event.reporting_instance),
        6 => field.string("Action", &mut event.action),
        7 => field.string("Reason", &mut event.reason),
        8 => reference(field.bytes("Regarding")?, &mut event.involved_object),
        9 => reference(field.bytes("Related")?, event.related.get_or_insert_default()),
        10 => field.string("Note", &mut event.message),
        11 => field.string("Type", &mut event.event_type),
        12 => source(field.bytes("DeprecatedSource")?, &mut event.source),
        13 => time(field.bytes("DeprecatedFirstTimestamp")?, &mut event.first_timestamp),
        14 => time(field.bytes("DeprecatedLastTimestamp")?, &mut event.last_timestamp),
        15 => field.integer("DeprecatedCount").map(|count| event.count = count),
        _ => field.skip(),
    }
}

fn reference(data: &[u8], object: &mut ObjectReference) -> Result<(), Fault> {
    fields(data, "ObjectReference", |field| match field.number {
        1 => field.string("Kind", &mut object.kind),
        2 => field.string("Namespace", &mut object.namespace),
        3 => field.string("Name", &mut object.name),
        4 => field.string("UID", &mut object.uid),
        5 => field.string("APIVersion", &mut object.api_version),
        6 => field.string("ResourceVersion", &mut object.resource_version),
        7 => field.string("FieldPath", &mut object.field_path),
        _ => field.skip(),
    })
}

fn source(data: &[u8], source: &mut EventSource) -> Result<(), Fault> {
    fields(data, "EventSource", |field| match field.number {
        1 => field.string("Component", &mut source.component),
        2 => field.string("Host", &mut source.host),
        _ => field.skip(),
    })
}

fn series(data: &[u8], series: &mut EventSeries) -> Result<(), Fault> {
    fields(data, "EventSeries", |field| match field.number {
        1 => field.integer("Count").map(|count| series.count = count),
        2 => micro_time(field.bytes("LastObservedTime")?, &mut series.last_observed_time),
        _ => field.skip(),
    })
}

/// Reads an `EventList`.
pub(super) fn list(group: ApiGroup, data: &[u8], list: &mut EventList) -> Result<(), Fault> {
    fields(data, "EventList", |field| match field.number {
        1 => fields(field.bytes("ListMeta")?, "ListMeta", |field| match field.number {
            2 => field.string("ResourceVersion", &mut list.resource_version),
            3 => field.string("Continue", &mut list.continue_token),
            4 => field.long("RemainingItemCount").map(|count| list.remaining_item_count = Some(count)),
            _ => field.skip(),
        }),
        2 => {
            let mut item = Event::default();
            event(group, field.bytes("Items")?, &mut item)?;
            list.items.push(item);
            Ok(())
        }
        _ => field.skip(),
    })
}

/// LIMIT: times outside the years 0 to 9999, which JSON cannot carry either, are moved to that range's ends.
const SECONDS_MIN: i64 = -62_167_219_200;
const SECONDS_MAX: i64 = 253_402_300_799;
const MICROS_MIN: i64 = SECONDS_MIN * 1_000_000;
const MICROS_MAX: i64 = SECONDS_MAX * 1_000_000 + 999_999;

/// Reads a `metav1.Time`: seconds; the nanoseconds are not looked at.
pub(super) fn time(data: &[u8], slot: &mut Option<Time>) -> Result<(), Fault> {
    let seconds = timestamp(data)?.map(|(seconds, _nanos)| seconds.clamp(SECONDS_MIN, SECONDS_MAX));
    *slot = seconds.map(Time).filter(|&time| time != Time::ZERO);
    Ok(())
}

/// Reads a `metav1.MicroTime`.
// COMPAT(apiserver): an explicit zero time is kept and counts as set, as in JSON.
fn micro_time(data: &[u8], slot: &mut Option<MicroTime>) -> Result<(), Fault> {
    *slot = timestamp(data)?.map(|(seconds, nanos)| {
        // Go cuts towards zero and lets what is over or under a second carry, also into the range and out of it.
        let micros = seconds.saturating_mul(1_000_000).saturating_add(i64::from(nanos / 1_000));
        MicroTime(micros.clamp(MICROS_MIN, MICROS_MAX))
    });
    Ok(())
}

/// Seconds and nanoseconds; an empty message is no time, one without seconds is of 1970.
fn timestamp(data: &[u8]) -> Result<Option<(i64, i32)>, Fault> {
    if data.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    fields(data, "Timestamp", |field| match field.number {
        1 => field.long("Seconds").map(|number| seconds = number),
        2 => field.integer("Nanos").map(|number| nanos = number),
        _ => field.skip(),
    })?;
    Ok(Some((seconds, nanos)))
}
