//! The members of an Event in either group's spelling, decoded into the one model.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;

use super::decoder::{Decoder, Struct, members};
use super::meta;
use super::path::Path;
use super::reader::{Kind, Malformed};
use super::sniff::TypeMeta;
use smol_str::SmolStr;

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

const CORE: Struct<Member> = Struct {
    name: "Event",
    members: members! {
        "kind" => Member::Kind,
        "apiVersion" => Member::ApiVersion,
        "metadata" => Member::Metadata,
        "involvedObject" => Member::InvolvedObject,
        "reason" => Member::Reason,
        "message" => Member::Message,
        "source" => Member::Source,
        "firstTimestamp" => Member::FirstTimestamp,
        "lastTimestamp" => Member::LastTimestamp,
        "count" => Member::Count,
        "type" => Member::Type,
        "eventTime" => Member::EventTime,
        "series" => Member::Series,
        "action" => Member::Action,
        "related" => Member::Related,
        "reportingComponent" => Member::ReportingController,
        "reportingInstance" => Member::ReportingInstance,
    },
};

const EVENTS: Struct<Member> = Struct {
    name: "Event",
    members: members! {
        "kind" => Member::Kind,
        "apiVersion" => Member::ApiVersion,
        "metadata" => Member::Metadata,
        "eventTime" => Member::EventTime,
        "series" => Member::Series,
        "reportingController" => Member::ReportingController,
        "reportingInstance" => Member::ReportingInstance,
        "action" => Member::Action,
        "reason" => Member::Reason,
        "regarding" => Member::InvolvedObject,
        "related" => Member::Related,
        "note" => Member::Message,
        "type" => Member::Type,
        "deprecatedSource" => Member::Source,
        "deprecatedFirstTimestamp" => Member::FirstTimestamp,
        "deprecatedLastTimestamp" => Member::LastTimestamp,
        "deprecatedCount" => Member::Count,
    },
};

/// Decodes the members of an Event object into `event`; `type_meta` takes what its kind and apiVersion say.
pub(super) fn event<'a>(
    decoder: &mut Decoder<'a>,
    at: &Path<'_>,
    group: ApiGroup,
    type_meta: &mut TypeMeta,
    event: &mut Event,
) -> Result<(), Malformed> {
    let known = match group {
        ApiGroup::Core => &CORE,
        ApiGroup::Events => &EVENTS,
    };
    // Members that our writer never leaves out.
    let (mut always, _all) = match group {
        ApiGroup::Core => (0_u32, 8),
        ApiGroup::Events => (0_u32, 6),
    };
    decoder.fields(at, known, |decoder, at, member| {
        let Some(member) = member else {
            // The sniff for kind and apiVersion does not mind capitals; the decode does.
            let start = decoder.reader.offset();
            decoder.unknown(at)?;
            return type_meta.sniff(at.key_here(), decoder.reader.since(start));
        };
        let is_always_written = match member {
            Member::Metadata
            | Member::InvolvedObject
            | Member::Source
            | Member::FirstTimestamp
            | Member::LastTimestamp
            | Member::EventTime => true,
            Member::ReportingController | Member::ReportingInstance => group == ApiGroup::Core,
            _ => false,
        };
        always = always.saturating_add(u32::from(is_always_written));
        match member {
            Member::Kind | Member::ApiVersion => {
                // What the sniff makes of it, without a second look.
                if let Some(text) = decoder.reader.plain_string() {
                    let slot = match member {
                        Member::Kind => &mut type_meta.kind,
                        _ => &mut type_meta.api_version,
                    };
                    *slot = Cow::Borrowed(text).into();
                    return Ok(());
                }
                let start = decoder.reader.offset();
                decoder.reader.skip()?;
                type_meta.sniff(at.key_here(), decoder.reader.since(start))
            }
            Member::Metadata => meta::object_meta(decoder, at, &mut event.metadata),
            Member::InvolvedObject => reference(decoder, at, &mut event.involved_object),
            Member::Reason => decoder.string(at, &mut event.reason),
            Member::Message => decoder.string(at, &mut event.message),
            Member::Source => source(decoder, at, &mut event.source),
            Member::FirstTimestamp => decoder.time(at, &mut event.first_timestamp),
            Member::LastTimestamp => decoder.time(at, &mut event.last_timestamp),
            Member::Count => decoder.integer(at, "int32", &mut event.count),
            Member::Type => decoder.string(at, &mut event.event_type),
            Member::EventTime => decoder.micro_time(at, &mut event.event_time),
            Member::Series => {
                // Which of its members are written when they are empty is another matter in each group.
                series(decoder, at, &mut event.series)
            }
            Member::Action => decoder.string(at, &mut event.action),
            Member::Related => related(decoder, at, &mut event.related),
            Member::ReportingController if is_always_written => {
                decoder.string_or_empty(at, &mut event.reporting_controller)
            }
            Member::ReportingInstance if is_always_written => {
                decoder.string_or_empty(at, &mut event.reporting_instance)
            }
            Member::ReportingController => decoder.string(at, &mut event.reporting_controller),
            Member::ReportingInstance => decoder.string(at, &mut event.reporting_instance),
        }
    })?;
    Ok(())
}

fn related<'a>(
    decoder: &mut Decoder<'a>,
    at: &Path<'_>,
    slot: &mut Option<Box<ObjectReference>>,
) -> Result<(), Malformed> {
    if decoder.is_null()? {
        *slot = None;
        return Ok(());
    }
    reference(decoder, at, slot.get_or_insert_default())
}

/// A member that is a string, and its type in Go.
type InReference = (for<'m> fn(&'m mut ObjectReference) -> &'m mut SmolStr, &'static str);

const REFERENCE: Struct<InReference> = Struct {
    name: "ObjectReference",
    members: members! {
        "kind" => (|object| &mut object.kind, "string"),
        "namespace" => (|object| &mut object.namespace, "string"),
        "name" => (|object| &mut object.name, "string"),
        "uid" => (|object| &mut object.uid, "types.UID"),
        "apiVersion" => (|object| &mut object.api_version, "string"),
        "resourceVersion" => (|object| &mut object.resource_version, "string"),
        "fieldPath" => (|object| &mut object.field_path, "string"),
    },
};

fn reference<'a>(decoder: &mut Decoder<'a>, at: &Path<'_>, object: &mut ObjectReference) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.ObjectReference")? {
        return Ok(());
    }
    decoder.fields(at, &REFERENCE, |decoder, at, member| match member {
        Some((slot, go_type)) => decoder.string_of(at, go_type, slot(object)),
        None => decoder.unknown(at),
    })
}

/// As [`InReference`].
type InSource = (for<'m> fn(&'m mut EventSource) -> &'m mut SmolStr, &'static str);

const SOURCE: Struct<InSource> = Struct {
    name: "EventSource",
    members: members! {
        "component" => (|source| &mut source.component, "string"),
        "host" => (|source| &mut source.host, "string"),
    },
};

fn source<'a>(decoder: &mut Decoder<'a>, at: &Path<'_>, source: &mut EventSource) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.EventSource")? {
        return Ok(());
    }
    decoder.fields(at, &SOURCE, |decoder, at, member| match member {
        Some((slot, go_type)) => decoder.string_of(at, go_type, slot(source)),
        None => decoder.unknown(at),
    })
}

#[derive(Debug, Clone, Copy)]
enum SeriesMember {
    Count,
    LastObservedTime,
}

const SERIES: Struct<SeriesMember> = Struct {
    name: "EventSeries",
    members: members! { "count" => SeriesMember::Count, "lastObservedTime" => SeriesMember::LastObservedTime },
};

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
    decoder.fields(at, &SERIES, |decoder, at, member| match member {
        Some(SeriesMember::Count) => decoder.integer(at, "int32", &mut series.count),
        Some(SeriesMember::LastObservedTime) => decoder.micro_time(at, &mut series.last_observed_time),
        None => decoder.unknown(at),
    })
}
