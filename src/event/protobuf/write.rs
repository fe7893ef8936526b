//! Encoder of an Event, a list, partial metadata, a Status and a watch's frame, like Go: it writes empty strings,
//! numbers and structs, and an unset time as an empty message, but no empty pointer, list or map. An Event is a walk
//! over the schema.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::managed_fields;
use super::writer::{integer, message, text};
use crate::event::json::EventList;
use crate::event::schema::{Object, is_empty, with_access};
use crate::event::{ApiGroup, Event, EventSeries, ManagedFields, MicroTime, ObjectReference, Time, WatchEvent};
use crate::status::{Status, StatusDetails};

/// The bytes before every object.
pub(super) const PREFIX: &[u8] = b"k8s\0";

/// Appends the envelope of an object, `runtime.Unknown`. `write` appends the object's fields.
fn envelope(api_version: &str, kind: &str, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(PREFIX);
    message(1, out, |out| {
        text(1, api_version, out);
        text(2, kind, out);
    });
    message(2, out, write);
    text(3, "", out); // contentEncoding
    text(4, "", out); // contentType
}

/// Appends an Event in its envelope.
pub fn write(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    envelope(group.api_version(), "Event", out, |out| object(group, event, out));
}

/// Appends an `EventList` in its envelope.
pub fn write_list(group: ApiGroup, list: &EventList, out: &mut Vec<u8>) {
    envelope(group.api_version(), "EventList", out, |out| {
        message(1, out, |out| list_meta(list, out));
        for item in &list.items {
            message(2, out, |out| object(group, item, out));
        }
    });
}

/// Appends the Status of a failure in its envelope.
pub fn write_status(status: &Status, out: &mut Vec<u8>) {
    write_outcome("Failure", status, out);
}

/// Appends a `Success` Status.
pub fn write_success(details: StatusDetails, out: &mut Vec<u8>) {
    write_outcome("Success", &Status::new(0, "", "").with_details(details), out);
}

fn write_outcome(outcome: &str, status: &Status, out: &mut Vec<u8>) {
    envelope("v1", "Status", out, |out| {
        let metadata = EventList { continue_token: status.continue_token.as_str().into(), ..EventList::default() };
        message(1, out, |out| list_meta(&metadata, out));
        text(2, outcome, out);
        text(3, &status.message, out);
        text(4, &status.reason, out);
        if let Some(details) = &status.details {
            message(5, out, |out| status_details(details, out));
        }
        integer(6, status.code.into(), out);
    });
}

/// Appends a watch's frame: its length in four bytes, then the `WatchEvent` with the object, which `write` appends in its
/// envelope.
pub fn write_watch_frame(event: &WatchEvent, out: &mut Vec<u8>, write: impl FnOnce(&Event, &mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    text(1, event.label(), out);
    message(2, out, |out| {
        message(1, out, |out| match event.shown() {
            Ok(event) => write(event, out),
            Err(status) => write_status(status, out),
        });
    });
    if let Some((length, frame)) = out.get_mut(start..).and_then(<[u8]>::split_first_chunk_mut::<4>) {
        // LIMIT: 4 GiB, a thousand times the largest event.
        *length = u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes();
    }
}

/// Appends the fields of an object.
fn object<T: Object>(group: ApiGroup, object: &T, out: &mut Vec<u8>) {
    for member in T::by_number(group) {
        let number = member.number(group);
        with_access!(&member.slot, access => {
            let value = (access.get)(object);
            if !(member.is_pointer() && is_empty(value)) {
                value.write(number, group, out);
            }
        });
    }
}

trait Write {
    fn write(&self, number: u32, group: ApiGroup, out: &mut Vec<u8>);
}

impl<T: Object> Write for T {
    fn write(&self, number: u32, group: ApiGroup, out: &mut Vec<u8>) {
        message(number, out, |out| object(group, self, out));
    }
}

/// Implements [`Write`] for types that one expression encodes.
macro_rules! by_value {
    ($($value:ty: |$given:ident, $number:ident, $out:ident| $write:expr);+ $(;)?) => {
        $(impl Write for $value {
            fn write(&self, $number: u32, _group: ApiGroup, $out: &mut Vec<u8>) {
                let $given = self;
                $write;
            }
        })+
    };
}
by_value!(
    SmolStr: |given, number, out| text(number, given, out);
    i32: |given, number, out| integer(number, i64::from(*given), out);
    i64: |given, number, out| integer(number, *given, out);
    bool: |given, number, out| integer(number, i64::from(*given), out);
    Option<Time>: |given, number, out| time(number, *given, out);
    Option<MicroTime>: |given, number, out| micro_time(number, *given, out);
    ManagedFields: |given, _number, out| managed_fields::write_carried(given.as_deref().unwrap_or("[]"), out);
    BTreeMap<SmolStr, SmolStr>: |given, number, out| for (key, value) in given {
        message(number, out, |out| {
            text(1, key, out);
            text(2, value, out);
        });
    };
);

impl<T: Write> Write for Vec<T> {
    fn write(&self, number: u32, group: ApiGroup, out: &mut Vec<u8>) {
        self.iter().for_each(|item| item.write(number, group, out));
    }
}

/// Implements [`Write`] for pointers of Go.
macro_rules! optional {
    ($($value:ty),+) => {
        $(impl Write for Option<$value> {
            fn write(&self, number: u32, group: ApiGroup, out: &mut Vec<u8>) {
                self.iter().for_each(|value| value.write(number, group, out));
            }
        })+
    };
}
optional!(i64, bool, EventSeries);

impl Write for Option<Box<ObjectReference>> {
    fn write(&self, number: u32, group: ApiGroup, out: &mut Vec<u8>) {
        self.iter().for_each(|object| (**object).write(number, group, out));
    }
}

/// Appends the metadata of one event as a `PartialObjectMetadata`; `api_version` is one of `meta.k8s.io`.
pub fn write_partial(api_version: &str, event: &Event, out: &mut Vec<u8>) {
    let metadata = &event.metadata;
    let write = |out: &mut Vec<u8>| message(1, out, |out| object(ApiGroup::Core, metadata, out));
    envelope(api_version, "PartialObjectMetadata", out, write);
}

/// Appends the metadata of a list and of its events as a `PartialObjectMetadataList`.
pub fn write_partial_list(api_version: &str, list: &EventList, out: &mut Vec<u8>) {
    envelope(api_version, "PartialObjectMetadataList", out, |out| {
        message(1, out, |out| list_meta(list, out));
        for item in &list.items {
            message(2, out, |out| message(1, out, |out| object(ApiGroup::Core, &item.metadata, out)));
        }
    });
}

/// Appends the fields of a list's metadata, which a Status has too.
fn list_meta(list: &EventList, out: &mut Vec<u8>) {
    text(1, "", out); // selfLink
    text(2, &list.resource_version, out);
    text(3, &list.continue_token, out);
    if let Some(count) = list.remaining_item_count {
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
