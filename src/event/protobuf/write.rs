//! An Event, a list, a Status and a watch's frame as Go writes them: every string, number and struct even when it is empty,
//! an unset time as an empty message; a pointer, a list and a map only when there is something.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::writer::{integer, message, text};
use super::{WatchEvent, managed_fields};
use crate::event::core_v1::EventList;
use crate::event::{
    ApiGroup, Event, EventSeries, EventSource, MicroTime, ObjectMeta, ObjectReference, OwnerReference, RareMeta, Time,
};
use crate::status::{Status, StatusDetails};

/// What stands in front of every object.
pub(super) const PREFIX: &[u8] = b"k8s\0";

/// Appends an object in its envelope, `runtime.Unknown`. `write` appends the object's fields.
pub(super) fn envelope(api_version: &str, kind: &str, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(PREFIX);
    message(1, out, |out| {
        text(1, api_version, out);
        text(2, kind, out);
    });
    message(2, out, write);
    text(3, "", out); // contentEncoding
    text(4, "", out); // contentType
}

/// Appends an Event with its envelope.
pub fn write(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    envelope(group.api_version(), "Event", out, |out| event_fields(group, event, out));
}

/// Appends an `EventList` with its envelope.
pub fn write_list(group: ApiGroup, list: &EventList, out: &mut Vec<u8>) {
    envelope(group.api_version(), "EventList", out, |out| {
        message(1, out, |out| {
            list_meta(&list.resource_version, &list.continue_token, list.remaining_item_count, out);
        });
        for item in &list.items {
            message(2, out, |out| event_fields(group, item, out));
        }
    });
}

/// Appends a failure's Status with its envelope.
pub fn write_status(status: &Status, out: &mut Vec<u8>) {
    envelope("v1", "Status", out, |out| {
        message(1, out, |out| list_meta("", &status.continue_token, None, out));
        text(2, "Failure", out);
        text(3, &status.message, out);
        text(4, &status.reason, out);
        if let Some(details) = &status.details {
            message(5, out, |out| status_details(details, out));
        }
        integer(6, status.code.into(), out);
    });
}

/// Appends a watch's frame: its length in four bytes, then the `WatchEvent`, whose object has an envelope of its own.
pub fn write_watch_frame(group: ApiGroup, event: WatchEvent<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    text(1, event.name(), out);
    message(2, out, |out| {
        message(1, out, |out| match event {
            WatchEvent::Added(event)
            | WatchEvent::Modified(event)
            | WatchEvent::Deleted(event)
            | WatchEvent::Bookmark(event) => write(group, event, out),
            WatchEvent::Error(status) => write_status(status, out),
        });
    });
    if let Some((length, frame)) = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut::<4>) {
        // LIMIT: 4 GiB, a thousand times the largest event.
        *length = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes();
    }
}

fn event_fields(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    message(1, out, |out| object_meta(&event.metadata, out));
    match group {
        ApiGroup::Core => core_fields(event, out),
        ApiGroup::Events => events_fields(event, out),
    }
}

fn core_fields(event: &Event, out: &mut Vec<u8>) {
    message(2, out, |out| reference(&event.involved_object, out));
    text(3, &event.reason, out);
    text(4, &event.message, out);
    message(5, out, |out| source(&event.source, out));
    time(6, event.first_timestamp, out);
    time(7, event.last_timestamp, out);
    integer(8, event.count.into(), out);
    text(9, &event.event_type, out);
    micro_time(10, event.event_time, out);
    if let Some(given) = &event.series {
        message(11, out, |out| series(given, out));
    }
    text(12, &event.action, out);
    if let Some(related) = &event.related {
        message(13, out, |out| reference(related, out));
    }
    text(14, &event.reporting_controller, out);
    text(15, &event.reporting_instance, out);
}

fn events_fields(event: &Event, out: &mut Vec<u8>) {
    micro_time(2, event.event_time, out);
    if let Some(given) = &event.series {
        message(3, out, |out| series(given, out));
    }
    text(4, &event.reporting_controller, out);
    text(5, &event.reporting_instance, out);
    text(6, &event.action, out);
    text(7, &event.reason, out);
    message(8, out, |out| reference(&event.involved_object, out));
    if let Some(related) = &event.related {
        message(9, out, |out| reference(related, out));
    }
    text(10, &event.message, out);
    text(11, &event.event_type, out);
    message(12, out, |out| source(&event.source, out));
    time(13, event.first_timestamp, out);
    time(14, event.last_timestamp, out);
    integer(15, event.count.into(), out);
}

fn reference(object: &ObjectReference, out: &mut Vec<u8>) {
    text(1, &object.kind, out);
    text(2, &object.namespace, out);
    text(3, &object.name, out);
    text(4, &object.uid, out);
    text(5, &object.api_version, out);
    text(6, &object.resource_version, out);
    text(7, &object.field_path, out);
}

fn source(source: &EventSource, out: &mut Vec<u8>) {
    text(1, &source.component, out);
    text(2, &source.host, out);
}

fn series(series: &EventSeries, out: &mut Vec<u8>) {
    integer(1, series.count.into(), out);
    micro_time(2, series.last_observed_time, out);
}

pub(super) fn object_meta(meta: &ObjectMeta, out: &mut Vec<u8>) {
    let rare = meta.rare.as_deref();
    text(1, &meta.name, out);
    text(2, rare.map_or("", |rare| &rare.generate_name), out);
    text(3, &meta.namespace, out);
    text(4, rare.map_or("", |rare| &rare.self_link), out);
    text(5, &meta.uid, out);
    text(6, &meta.resource_version, out);
    integer(7, rare.map_or(0, |rare| rare.generation), out);
    time(8, meta.creation_timestamp, out);
    if let Some(rare) = rare {
        rare_meta(rare, out);
    }
    if let Some(fields) = &meta.managed_fields {
        managed_fields::write_carried(fields, out);
    }
}

fn rare_meta(rare: &RareMeta, out: &mut Vec<u8>) {
    if rare.deletion_timestamp.is_some() {
        time(9, rare.deletion_timestamp, out);
    }
    if let Some(seconds) = rare.deletion_grace_period_seconds {
        integer(10, seconds, out);
    }
    string_map(11, &rare.labels, out);
    string_map(12, &rare.annotations, out);
    for owner in &rare.owner_references {
        message(13, out, |out| owner_reference(owner, out));
    }
    for finalizer in &rare.finalizers {
        text(14, finalizer, out);
    }
}

fn string_map(number: u32, map: &BTreeMap<SmolStr, SmolStr>, out: &mut Vec<u8>) {
    for (key, value) in map {
        message(number, out, |out| {
            text(1, key, out);
            text(2, value, out);
        });
    }
}

fn owner_reference(owner: &OwnerReference, out: &mut Vec<u8>) {
    text(1, &owner.kind, out);
    text(3, &owner.name, out);
    text(4, &owner.uid, out);
    text(5, &owner.api_version, out);
    for (number, flag) in [(6, owner.controller), (7, owner.block_owner_deletion)] {
        if let Some(flag) = flag {
            integer(number, flag.into(), out);
        }
    }
}

pub(super) fn list_meta(
    resource_version: &str,
    continue_token: &str,
    remaining_item_count: Option<i64>,
    out: &mut Vec<u8>,
) {
    text(1, "", out); // selfLink
    text(2, resource_version, out);
    text(3, continue_token, out);
    if let Some(count) = remaining_item_count {
        integer(4, count, out);
    }
}

fn status_details(details: &StatusDetails, out: &mut Vec<u8>) {
    text(1, &details.name, out);
    text(2, &details.group, out);
    text(3, &details.kind, out);
    for cause in &details.causes {
        message(4, out, |out| {
            text(1, &cause.reason, out);
            text(2, &cause.message, out);
            text(3, &cause.field, out);
        });
    }
    integer(5, details.retry_after_seconds.into(), out);
    text(6, &details.uid, out);
}

pub(super) fn time(number: u32, time: Option<Time>, out: &mut Vec<u8>) {
    timestamp(number, time.filter(|&time| time != Time::ZERO).map(|Time(seconds)| (seconds, 0)), out);
}

fn micro_time(number: u32, time: Option<MicroTime>, out: &mut Vec<u8>) {
    let set = time.filter(|&time| time != MicroTime::ZERO);
    let parts =
        set.map(|MicroTime(micros)| (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000).saturating_mul(1_000)));
    timestamp(number, parts, out);
}

fn timestamp(number: u32, parts: Option<(i64, i64)>, out: &mut Vec<u8>) {
    message(number, out, |out| {
        if let Some((seconds, nanos)) = parts {
            integer(1, seconds, out);
            integer(2, nanos, out);
        }
    });
}
