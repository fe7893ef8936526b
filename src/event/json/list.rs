//! Lists of events: written as answers to LIST, read from a real apiserver's answers.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use smol_str::SmolStr;

use super::decoder::Decoder;
use super::path::Path;
use super::reader::{Kind, Malformed};
use super::sniff::TypeMeta;
use super::write::{integer, text, write_item};
use super::{DecodeError, fields, syntax, unrecognized};
use crate::event::{ApiGroup, Event};

/// An `EventList` of either group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventList {
    /// Version of the store the list shows.
    pub resource_version: SmolStr,
    /// Token for the next page; empty on the last one.
    pub continue_token: SmolStr,
    /// How many events follow after this page, where the server says so.
    pub remaining_item_count: Option<i64>,
    /// The events, without kind and apiVersion.
    pub items: Vec<Event>,
}

/// Appends a list. `items` is `[]` when there is none.
pub fn write_list(group: ApiGroup, list: &EventList, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"kind":"EventList","apiVersion":""#);
    out.extend_from_slice(group.api_version().as_bytes());
    out.extend_from_slice(br#"","metadata":"#);
    write_list_meta(list, out);
    out.extend_from_slice(br#","items":["#);
    let mut items = list.items.iter();
    if let Some(item) = items.next() {
        write_item(group, item, out);
    }
    for item in items {
        out.push(b',');
        write_item(group, item, out);
    }
    out.extend_from_slice(b"]}");
}

/// Appends a list's metadata.
pub(crate) fn write_list_meta(list: &EventList, out: &mut Vec<u8>) {
    out.push(b'{');
    let start = out.len();
    let name = |name: &[u8], out: &mut Vec<u8>| {
        if out.len() > start {
            out.push(b',');
        }
        out.extend_from_slice(name);
    };
    if !list.resource_version.is_empty() {
        name(br#""resourceVersion":"#, out);
        text(&list.resource_version, out);
    }
    if !list.continue_token.is_empty() {
        name(br#""continue":"#, out);
        text(&list.continue_token, out);
    }
    if let Some(count) = list.remaining_item_count {
        name(br#""remainingItemCount":"#, out);
        integer(count, out);
    }
    out.push(b'}');
}

/// Reads a list; kind and apiVersion are not looked at, unknown members are passed over.
pub(in crate::event) fn list_from_json(group: ApiGroup, body: &[u8]) -> Result<EventList, Box<DecodeError>> {
    let mut decoder = Decoder::new(body);
    let mut list = EventList::default();
    if document(&mut decoder, group, &mut list).is_err() {
        return Err(unrecognized(body, &syntax::fault(body)));
    }
    match decoder.finish() {
        (Some(fault), _strict) => Err(DecodeError::bad_request(fault)),
        (None, _strict) => Ok(list),
    }
}

fn document(decoder: &mut Decoder<'_>, group: ApiGroup, list: &mut EventList) -> Result<(), Malformed> {
    if decoder.is_object(&Path::ROOT, "v1.EventList")? {
        decoder.members(|decoder, key| {
            let at = Path::field(&Path::ROOT, "EventList", key);
            match key {
                "metadata" => metadata(decoder, &at, list),
                "items" => items(decoder, &at, group, &mut list.items),
                _ => decoder.reader.skip(),
            }
        })?;
    }
    decoder.reader.end()
}

fn metadata(decoder: &mut Decoder<'_>, at: &Path<'_>, list: &mut EventList) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.ListMeta")? {
        return Ok(());
    }
    decoder.members(|decoder, key| {
        let at = Path::field(at, "ListMeta", key);
        match key {
            "resourceVersion" => decoder.string(&at, &mut list.resource_version),
            "continue" => decoder.string(&at, &mut list.continue_token),
            "remainingItemCount" => decoder.optional_integer(&at, &mut list.remaining_item_count),
            _ => decoder.reader.skip(),
        }
    })
}

fn items(decoder: &mut Decoder<'_>, at: &Path<'_>, group: ApiGroup, items: &mut Vec<Event>) -> Result<(), Malformed> {
    if decoder.is_null()? {
        items.clear();
        return Ok(());
    }
    if decoder.reader.kind()? != Kind::Array {
        return decoder.mismatch(at, "[]v1.Event");
    }
    let mut more = decoder.reader.enter_array()?;
    while more {
        let mut event = Event::default();
        let at = Path::index(at, items.len());
        if decoder.is_object(&at, "v1.Event")? {
            fields::event(decoder, &at, group, &mut TypeMeta::default(), &mut event)?;
        }
        items.push(event);
        more = decoder.reader.next_element()?;
    }
    Ok(())
}
