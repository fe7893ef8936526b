//! The members of an Event in either group's spelling, decoded into the one model.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::decoder::{Decoder, Path};
use super::meta;
use super::reader::{Kind, Malformed};
use super::sniff::TypeMeta;
use crate::event::{ApiGroup, Event, EventSeries, EventSource, ObjectReference};

/// A member of the Event itself.
#[derive(Debug, Clone, Copy)]
enum Member {
    Kind,
    ApiVersion,
    Metadata,
    InvolvedObject,
    Reason,
    Message,
    Source,
    FirstTimestamp,
    LastTimestamp,
    Count,
    Type,
    EventTime,
    Series,
    Action,
    Related,
    ReportingController,
    ReportingInstance,
}

fn member(group: ApiGroup, key: &str) -> Option<Member> {
    let common = match key {
        "kind" => Member::Kind,
        "apiVersion" => Member::ApiVersion,
        "metadata" => Member::Metadata,
        "reason" => Member::Reason,
        "type" => Member::Type,
        "eventTime" => Member::EventTime,
        "series" => Member::Series,
        "action" => Member::Action,
        "related" => Member::Related,
        "reportingInstance" => Member::ReportingInstance,
        _ => {
            return match group {
                ApiGroup::Core => core_member(key),
                ApiGroup::Events => events_member(key),
            };
        }
    };
    Some(common)
}

fn core_member(key: &str) -> Option<Member> {
    Some(match key {
        "involvedObject" => Member::InvolvedObject,
        "message" => Member::Message,
        "source" => Member::Source,
        "firstTimestamp" => Member::FirstTimestamp,
        "lastTimestamp" => Member::LastTimestamp,
        "count" => Member::Count,
        "reportingComponent" => Member::ReportingController,
        _ => return None,
    })
}

fn events_member(key: &str) -> Option<Member> {
    Some(match key {
        "regarding" => Member::InvolvedObject,
        "note" => Member::Message,
        "deprecatedSource" => Member::Source,
        "deprecatedFirstTimestamp" => Member::FirstTimestamp,
        "deprecatedLastTimestamp" => Member::LastTimestamp,
        "deprecatedCount" => Member::Count,
        "reportingController" => Member::ReportingController,
        _ => return None,
    })
}

/// Decodes the members of an Event object into `event`; `type_meta` takes what its kind and apiVersion say.
pub(super) fn event(
    decoder: &mut Decoder<'_>,
    at: &Path<'_>,
    group: ApiGroup,
    type_meta: &mut TypeMeta,
    event: &mut Event,
) -> Result<(), Malformed> {
    let mut seen = 0;
    decoder.members(|decoder, key| {
        let Some(member) = member(group, key) else {
            // The sniff for kind and apiVersion does not mind capitals; the decode does.
            let start = decoder.reader.offset();
            decoder.unknown(at, key)?;
            return type_meta.sniff(key, decoder.reader.since(start));
        };
        decoder.check_duplicate(at, key, &mut seen, member as u32);
        let at = Path::field(at, "Event", key);
        match member {
            Member::Kind | Member::ApiVersion => {
                let start = decoder.reader.offset();
                decoder.reader.skip()?;
                type_meta.sniff(key, decoder.reader.since(start))
            }
            Member::Metadata => meta::object_meta(decoder, &at, &mut event.metadata),
            Member::InvolvedObject => reference(decoder, &at, &mut event.involved_object),
            Member::Reason => decoder.string(&at, &mut event.reason),
            Member::Message => decoder.string(&at, &mut event.message),
            Member::Source => source(decoder, &at, &mut event.source),
            Member::FirstTimestamp => decoder.time(&at, &mut event.first_timestamp),
            Member::LastTimestamp => decoder.time(&at, &mut event.last_timestamp),
            Member::Count => decoder.integer(&at, "int32", &mut event.count),
            Member::Type => decoder.string(&at, &mut event.event_type),
            Member::EventTime => decoder.micro_time(&at, &mut event.event_time),
            Member::Series => series(decoder, &at, &mut event.series),
            Member::Action => decoder.string(&at, &mut event.action),
            Member::Related => related(decoder, &at, &mut event.related),
            Member::ReportingController => decoder.string(&at, &mut event.reporting_controller),
            Member::ReportingInstance => decoder.string(&at, &mut event.reporting_instance),
        }
    })
}

fn related(decoder: &mut Decoder<'_>, at: &Path<'_>, slot: &mut Option<Box<ObjectReference>>) -> Result<(), Malformed> {
    if decoder.is_null()? {
        *slot = None;
        return Ok(());
    }
    reference(decoder, at, slot.get_or_insert_default())
}

fn reference(decoder: &mut Decoder<'_>, at: &Path<'_>, object: &mut ObjectReference) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.ObjectReference")? {
        return Ok(());
    }
    let mut seen = 0;
    decoder.members(|decoder, key| {
        let (member, slot) = match key {
            "kind" => (0, &mut object.kind),
            "namespace" => (1, &mut object.namespace),
            "name" => (2, &mut object.name),
            "uid" => (3, &mut object.uid),
            "apiVersion" => (4, &mut object.api_version),
            "resourceVersion" => (5, &mut object.resource_version),
            "fieldPath" => (6, &mut object.field_path),
            _ => return decoder.unknown(at, key),
        };
        decoder.check_duplicate(at, key, &mut seen, member);
        let go_type = if member == 3 { "types.UID" } else { "string" };
        decoder.string_of(&Path::field(at, "ObjectReference", key), go_type, slot)
    })
}

fn source(decoder: &mut Decoder<'_>, at: &Path<'_>, source: &mut EventSource) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.EventSource")? {
        return Ok(());
    }
    let mut seen = 0;
    decoder.members(|decoder, key| {
        let (member, slot) = match key {
            "component" => (0, &mut source.component),
            "host" => (1, &mut source.host),
            _ => return decoder.unknown(at, key),
        };
        decoder.check_duplicate(at, key, &mut seen, member);
        decoder.string(&Path::field(at, "EventSource", key), slot)
    })
}

fn series(decoder: &mut Decoder<'_>, at: &Path<'_>, slot: &mut Option<EventSeries>) -> Result<(), Malformed> {
    if decoder.is_null()? {
        *slot = None;
        return Ok(());
    }
    // Go makes the pointer's target before it looks at the value.
    let series = slot.get_or_insert_default();
    if decoder.reader.kind()? != Kind::Object {
        return decoder.mismatch(at, "v1.EventSeries");
    }
    let mut seen = 0;
    decoder.members(|decoder, key| match key {
        "count" => {
            decoder.check_duplicate(at, key, &mut seen, 0);
            decoder.integer(&Path::field(at, "EventSeries", key), "int32", &mut series.count)
        }
        "lastObservedTime" => {
            decoder.check_duplicate(at, key, &mut seen, 1);
            decoder.micro_time(&Path::field(at, "EventSeries", key), &mut series.last_observed_time)
        }
        _ => decoder.unknown(at, key),
    })
}
