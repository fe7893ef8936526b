//! The writer: an Event as a Go apiserver writes it, member for member, straight into a buffer. No tree, no formatter.
//!
//! Members follow the order of the Go structs; some are there even when empty (`source:{}`, `eventTime:null`). Text is escaped
//! as Go escapes it: `<`, `>`, `&`, U+2028 and U+2029 too.

use smol_str::SmolStr;

use super::{go, scan};
use crate::event::{
    ApiGroup, Event, EventSeries, EventSource, MicroTime, ObjectMeta, ObjectReference, OwnerReference, RareMeta, Time,
};

/// Appends the whole document, kind and apiVersion first.
pub fn write_json(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    let head: &[u8] = match group {
        ApiGroup::Core => br#"{"kind":"Event","apiVersion":"v1","#,
        ApiGroup::Events => br#"{"kind":"Event","apiVersion":"events.k8s.io/v1","#,
    };
    out.extend_from_slice(head);
    members(group, event, out);
}

/// Appends the event as an item of a list: without kind and apiVersion.
pub fn write_item(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    out.push(b'{');
    members(group, event, out);
}

/// Everything after the head, up to and including the closing brace.
fn members(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    out.extend_from_slice(br#""metadata":"#);
    object_meta(&event.metadata, out);
    match group {
        ApiGroup::Core => core_members(event, out),
        ApiGroup::Events => events_members(event, out),
    }
    out.push(b'}');
}

fn core_members(event: &Event, out: &mut Vec<u8>) {
    out.extend_from_slice(br#","involvedObject":"#);
    reference(&event.involved_object, out);
    optional_text(br#","reason":"#, &event.reason, out);
    optional_text(br#","message":"#, &event.message, out);
    out.extend_from_slice(br#","source":"#);
    source(&event.source, out);
    out.extend_from_slice(br#","firstTimestamp":"#);
    time_or_null(event.first_timestamp, out);
    out.extend_from_slice(br#","lastTimestamp":"#);
    time_or_null(event.last_timestamp, out);
    if event.count != 0 {
        out.extend_from_slice(br#","count":"#);
        integer(event.count.into(), out);
    }
    optional_text(br#","type":"#, &event.event_type, out);
    out.extend_from_slice(br#","eventTime":"#);
    micro_time_or_null(event.event_time, out);
    if let Some(series) = &event.series {
        out.extend_from_slice(br#","series":{"#);
        if series.count != 0 {
            out.extend_from_slice(br#""count":"#);
            integer(series.count.into(), out);
            out.push(b',');
        }
        last_observed(series, out);
    }
    optional_text(br#","action":"#, &event.action, out);
    related(event, out);
    out.extend_from_slice(br#","reportingComponent":"#);
    text(&event.reporting_controller, out);
    out.extend_from_slice(br#","reportingInstance":"#);
    text(&event.reporting_instance, out);
}

fn events_members(event: &Event, out: &mut Vec<u8>) {
    out.extend_from_slice(br#","eventTime":"#);
    micro_time_or_null(event.event_time, out);
    if let Some(series) = &event.series {
        out.extend_from_slice(br#","series":{"count":"#);
        integer(series.count.into(), out);
        out.push(b',');
        last_observed(series, out);
    }
    optional_text(br#","reportingController":"#, &event.reporting_controller, out);
    optional_text(br#","reportingInstance":"#, &event.reporting_instance, out);
    optional_text(br#","action":"#, &event.action, out);
    optional_text(br#","reason":"#, &event.reason, out);
    out.extend_from_slice(br#","regarding":"#);
    reference(&event.involved_object, out);
    related(event, out);
    optional_text(br#","note":"#, &event.message, out);
    optional_text(br#","type":"#, &event.event_type, out);
    out.extend_from_slice(br#","deprecatedSource":"#);
    source(&event.source, out);
    out.extend_from_slice(br#","deprecatedFirstTimestamp":"#);
    time_or_null(event.first_timestamp, out);
    out.extend_from_slice(br#","deprecatedLastTimestamp":"#);
    time_or_null(event.last_timestamp, out);
    if event.count != 0 {
        out.extend_from_slice(br#","deprecatedCount":"#);
        integer(event.count.into(), out);
    }
}

fn last_observed(series: &EventSeries, out: &mut Vec<u8>) {
    out.extend_from_slice(br#""lastObservedTime":"#);
    micro_time_or_null(series.last_observed_time, out);
    out.push(b'}');
}

fn related(event: &Event, out: &mut Vec<u8>) {
    if let Some(related) = &event.related {
        out.extend_from_slice(br#","related":"#);
        reference(related, out);
    }
}

/// An object whose members may all be missing: the comma belongs to all but the first.
struct Object<'o> {
    out: &'o mut Vec<u8>,
    first: bool,
}

impl<'o> Object<'o> {
    fn open(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, first: true }
    }

    /// Starts a member; `name` must need no escaping.
    fn name(&mut self, name: &str) -> &mut Vec<u8> {
        if !self.first {
            self.out.push(b',');
        }
        self.first = false;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    fn text(&mut self, name: &str, value: &str) {
        if !value.is_empty() {
            text(value, self.name(name));
        }
    }

    fn time(&mut self, name: &str, value: Option<Time>) {
        if value.is_some() {
            time_or_null(value, self.name(name));
        }
    }

    fn close(self) {
        self.out.push(b'}');
    }
}

/// The metadata of an event, as it also stands in a `PartialObjectMetadata`.
pub(crate) fn object_meta(meta: &ObjectMeta, out: &mut Vec<u8>) {
    let rare = meta.rare.as_deref();
    let mut object = Object::open(out);
    object.text("name", &meta.name);
    if let Some(rare) = rare {
        object.text("generateName", &rare.generate_name);
    }
    object.text("namespace", &meta.namespace);
    if let Some(rare) = rare {
        object.text("selfLink", &rare.self_link);
    }
    object.text("uid", &meta.uid);
    object.text("resourceVersion", &meta.resource_version);
    if let Some(rare) = rare
        && rare.generation != 0
    {
        integer(rare.generation, object.name("generation"));
    }
    object.time("creationTimestamp", meta.creation_timestamp);
    if let Some(rare) = rare {
        rare_meta(rare, &mut object);
    }
    if let Some(fields) = &meta.managed_fields {
        object.name("managedFields").extend_from_slice(go::escaped(fields).as_bytes());
    }
    object.close();
}

fn rare_meta(rare: &RareMeta, object: &mut Object<'_>) {
    object.time("deletionTimestamp", rare.deletion_timestamp);
    if let Some(seconds) = rare.deletion_grace_period_seconds {
        integer(seconds, object.name("deletionGracePeriodSeconds"));
    }
    for (name, map) in [("labels", &rare.labels), ("annotations", &rare.annotations)] {
        if !map.is_empty() {
            string_map(map, object.name(name));
        }
    }
    if !rare.owner_references.is_empty() {
        list(&rare.owner_references, object.name("ownerReferences"), owner);
    }
    if !rare.finalizers.is_empty() {
        list(&rare.finalizers, object.name("finalizers"), |finalizer, out| text(finalizer, out));
    }
}

fn string_map(map: &std::collections::BTreeMap<SmolStr, SmolStr>, out: &mut Vec<u8>) {
    let mut separator = b'{';
    for (key, value) in map {
        out.push(separator);
        text(key, out);
        out.push(b':');
        text(value, out);
        separator = b',';
    }
    out.push(b'}');
}

fn list<T>(items: &[T], out: &mut Vec<u8>, item: impl Fn(&T, &mut Vec<u8>)) {
    out.push(b'[');
    for (index, element) in items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        item(element, out);
    }
    out.push(b']');
}

/// An owner reference, as it also stands in a 422's cause.
pub(in crate::event) fn owner(owner: &OwnerReference, out: &mut Vec<u8>) {
    let members =
        [("apiVersion", &owner.api_version), ("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)];
    let mut object = Object::open(out);
    for (name, member) in members {
        text(member, object.name(name));
    }
    for (name, flag) in [("controller", owner.controller), ("blockOwnerDeletion", owner.block_owner_deletion)] {
        if let Some(flag) = flag {
            object.name(name).extend_from_slice(if flag { b"true" } else { b"false" });
        }
    }
    object.close();
}

/// Several owner references, as they stand in a 422's cause.
pub(in crate::event) fn owners(owners: &[OwnerReference], out: &mut Vec<u8>) {
    list(owners, out, owner);
}

/// Several texts as a JSON list.
pub(in crate::event) fn texts(texts: &[SmolStr], out: &mut Vec<u8>) {
    list(texts, out, |item, out| text(item, out));
}

fn reference(object: &ObjectReference, out: &mut Vec<u8>) {
    let mut members = Object::open(out);
    members.text("kind", &object.kind);
    members.text("namespace", &object.namespace);
    members.text("name", &object.name);
    members.text("uid", &object.uid);
    members.text("apiVersion", &object.api_version);
    members.text("resourceVersion", &object.resource_version);
    members.text("fieldPath", &object.field_path);
    members.close();
}

fn source(source: &EventSource, out: &mut Vec<u8>) {
    let mut members = Object::open(out);
    members.text("component", &source.component);
    members.text("host", &source.host);
    members.close();
}

fn optional_text(name: &[u8], value: &str, out: &mut Vec<u8>) {
    if !value.is_empty() {
        out.extend_from_slice(name);
        text(value, out);
    }
}

fn time_or_null(time: Option<Time>, out: &mut Vec<u8>) {
    match time {
        Some(time) if time != Time::ZERO => {
            out.push(b'"');
            time.write(out);
            out.push(b'"');
        }
        _ => out.extend_from_slice(b"null"),
    }
}

fn micro_time_or_null(time: Option<MicroTime>, out: &mut Vec<u8>) {
    match time {
        Some(time) if time != MicroTime::ZERO => {
            out.push(b'"');
            time.write(out);
            out.push(b'"');
        }
        _ => out.extend_from_slice(b"null"),
    }
}

/// A number.
pub(crate) fn integer(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// A string, quoted and escaped as Go's encoder does with its HTML escaping on.
pub(crate) fn text(value: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let bytes = value.as_bytes();
    let mut rest = bytes;
    loop {
        let (before, after) = rest.split_at(scan::verbatim(rest));
        out.extend_from_slice(before);
        let Some((&byte, tail)) = after.split_first() else { break };
        rest = escape(byte, tail, out);
    }
    out.push(b'"');
}

/// Writes one special byte, which may begin U+2028 or U+2029; returns what is left.
fn escape<'t>(byte: u8, tail: &'t [u8], out: &mut Vec<u8>) -> &'t [u8] {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        8 => out.extend_from_slice(b"\\b"),
        12 => out.extend_from_slice(b"\\f"),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0xe2 => match tail {
            [0x80, last @ (0xa8 | 0xa9), left @ ..] => {
                out.extend_from_slice(if *last == 0xa8 { b"\\u2028" } else { b"\\u2029" });
                return left;
            }
            _ => out.push(byte),
        },
        _ => {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    tail
}
