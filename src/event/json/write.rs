//! Encodes an Event as a Go API server does, member for member, straight into a buffer. Iterates over the schema.
//!
//! Text is escaped as Go escapes it: `<`, `>`, `&`, U+2028 and U+2029 too.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use smol_str::SmolStr;

use crate::event::schema::{Object, is_empty, with_access};
use crate::event::{ApiGroup, Event, MicroTime, ObjectMeta, ObjectReference, Time};

/// Appends the whole document, kind and apiVersion first.
pub fn write_json(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"kind":"Event","apiVersion":""#);
    out.extend_from_slice(group.api_version().as_bytes());
    out.push(b'"');
    members(group, event, out);
    out.push(b'}');
}

/// Appends the event as an item of a list: without kind and apiVersion.
pub fn write_item(group: ApiGroup, event: &Event, out: &mut Vec<u8>) {
    event.write(group, out);
}

/// Appends the metadata of an event, which a `PartialObjectMetadata` has too.
pub(crate) fn object_meta(meta: &ObjectMeta, out: &mut Vec<u8>) {
    meta.write(ApiGroup::Core, out);
}

/// Appends the members of an open object.
fn members<T: Object>(group: ApiGroup, object: &T, out: &mut Vec<u8>) {
    for member in T::members(group) {
        with_access!(&member.slot, access => {
            let value = (access.get)(object);
            if member.is_always_written(group) || !is_empty(value) {
                name(member.name(group), out);
                value.write(group, out);
            }
        });
    }
}

/// Appends the name of the next member of an open object; `name` must need no escaping.
pub(super) fn name(name: &str, out: &mut Vec<u8>) {
    if out.last() != Some(&b'{') {
        out.push(b',');
    }
    out.push(b'"');
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

trait Write {
    fn write(&self, group: ApiGroup, out: &mut Vec<u8>);
}

impl<T: Object> Write for T {
    fn write(&self, group: ApiGroup, out: &mut Vec<u8>) {
        out.push(b'{');
        members(group, self, out);
        out.push(b'}');
    }
}

/// Implements [`Write`] for types that one expression encodes.
macro_rules! by_value {
    ($($value:ty: |$given:ident, $group:ident, $out:ident| $write:expr);+ $(;)?) => {
        $(impl Write for $value {
            fn write(&self, $group: ApiGroup, $out: &mut Vec<u8>) {
                let $given = self;
                $write;
            }
        })+
    };
}
by_value!(
    SmolStr: |given, _group, out| text(given, out);
    i32: |given, _group, out| integer((*given).into(), out);
    i64: |given, _group, out| integer(*given, out);
    bool: |given, _group, out| out.extend_from_slice(if *given { b"true" } else { b"false" });
    Box<ObjectReference>: |given, group, out| (**given).write(group, out);
    Time: |given, _group, out| time(given, &Time::ZERO, out);
    MicroTime: |given, _group, out| time(given, &MicroTime::ZERO, out);
    // JSON that is kept as text.
    Arc<str>: |given, _group, out| escape(given, out);
);

/// `null` for a pointer of Go that points to nothing.
impl<T: Write> Write for Option<T> {
    fn write(&self, group: ApiGroup, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.write(group, out),
            None => out.extend_from_slice(b"null"),
        }
    }
}

impl<T: Write> Write for Vec<T> {
    fn write(&self, group: ApiGroup, out: &mut Vec<u8>) {
        array(self, out, |item, out| item.write(group, out));
    }
}

impl Write for BTreeMap<SmolStr, SmolStr> {
    fn write(&self, _group: ApiGroup, out: &mut Vec<u8>) {
        out.push(b'{');
        for (index, (key, value)) in self.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            text(key, out);
            out.push(b':');
            text(value, out);
        }
        out.push(b'}');
    }
}

/// Appends an array, of which `element` appends one element.
pub(crate) fn array<T>(items: impl IntoIterator<Item = T>, out: &mut Vec<u8>, element: impl Fn(T, &mut Vec<u8>)) {
    out.push(b'[');
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        element(item, out);
    }
    out.push(b']');
}

/// Appends a time in quotes; Go's zero time is `null`.
fn time<T: PartialEq + Display>(time: &T, zero: &T, out: &mut Vec<u8>) {
    let shown = if time == zero { "null".to_owned() } else { format!("\"{time}\"") };
    out.extend_from_slice(shown.as_bytes());
}

pub(crate) fn integer(number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Appends a string, quoted and escaped as Go's encoder does with its HTML escaping on.
pub(crate) fn text(value: &str, out: &mut Vec<u8>) {
    // Without an early exit, so that many bytes are compared at once.
    let is_special = value.bytes().fold(false, |is_special, byte| is_special | !stands_as_it_is(byte));
    if !is_special {
        out.push(b'"');
        out.extend_from_slice(value.as_bytes());
        out.push(b'"');
        return;
    }
    // A text cannot fail to be written.
    escape(&serde_json::to_string(value).unwrap_or_default(), out);
}

/// Whether JSON contains this byte unescaped in any string; most strings of an event have no other bytes.
const fn stands_as_it_is(byte: u8) -> bool {
    !matches!(byte, 0..=0x1f | b'"' | b'\\' | b'<' | b'>' | b'&' | LINE_SEPARATOR)
}

/// The first byte of U+2028, U+2029 and some other characters.
const LINE_SEPARATOR: u8 = 0xe2;

/// Appends JSON, and escapes the characters that Go escapes for HTML. They occur in strings only.
pub(crate) fn escape(json: &str, out: &mut Vec<u8>) {
    let special = |c: char| matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
    let mut rest = json;
    while let Some((before, after)) = rest.find(special).and_then(|at| rest.split_at_checked(at)) {
        out.extend_from_slice(before.as_bytes());
        let mut letters = after.chars();
        let code = letters.next().map_or(0, u32::from);
        out.extend_from_slice(format!("\\u{code:04x}").as_bytes());
        rest = letters.as_str();
    }
    out.extend_from_slice(rest.as_bytes());
}
