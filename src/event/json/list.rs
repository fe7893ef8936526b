//! Documents with several events: an `EventList`, which answers a LIST, and the document of a batch.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::read::{Pass, document};
use super::text::repaired;
use super::write::{array, integer, name, text, write_item};
use super::{ApiGroup, Event};
use crate::status::Status;

/// An `EventList` of either group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventList {
    /// Version of the store that the list shows.
    pub resource_version: SmolStr,
    /// Token for the next page; empty on the last one.
    pub continue_token: SmolStr,
    /// Number of events after this page, if the server knows it.
    pub remaining_item_count: Option<i64>,
    /// The events, without kind and apiVersion.
    pub items: Vec<Event>,
}

/// Appends a list. `items` is `[]` when it is empty.
pub fn write_list(group: ApiGroup, list: &EventList, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"kind":"EventList","apiVersion":""#);
    out.extend_from_slice(group.api_version().as_bytes());
    out.extend_from_slice(br#"","metadata":"#);
    write_list_meta(list, out);
    out.extend_from_slice(br#","items":"#);
    array(&list.items, out, |item, out| write_item(group, item, out));
    out.push(b'}');
}

/// Appends a list's metadata.
pub(crate) fn write_list_meta(list: &EventList, out: &mut Vec<u8>) {
    out.push(b'{');
    for (key, value) in [("resourceVersion", &list.resource_version), ("continue", &list.continue_token)] {
        if !value.is_empty() {
            name(key, out);
            text(value, out);
        }
    }
    if let Some(count) = list.remaining_item_count {
        name("remainingItemCount", out);
        integer(count, out);
    }
    out.push(b'}');
}

/// A list whose events are not decoded yet.
#[derive(Default, Deserialize)]
#[serde(default)]
struct List<'j> {
    metadata: Option<ListMeta>,
    #[serde(borrow)]
    items: Option<Vec<&'j RawValue>>,
}

/// Decodes a list. Ignores its kind, apiVersion and unknown members.
///
/// # Errors
/// 400 when the body is not JSON or has members of a wrong type.
pub fn list_from_json(group: ApiGroup, body: &[u8]) -> Result<EventList, Box<Status>> {
    let refused = |fault: serde_json::Error| Status::bad_request(format!("an EventList cannot be read: {fault}"));
    let json = repaired(body);
    let list: List<'_> = serde_json::from_str(&json).map_err(refused)?;
    let metadata = list.metadata.unwrap_or_default();
    let mut items = Vec::with_capacity(list.items.as_ref().map_or(0, Vec::len));
    for item in list.items.unwrap_or_default() {
        let mut event = Event::default();
        document(item.get(), &mut event, &mut Pass::new(group)).map_err(refused)?;
        items.push(event);
    }
    Ok(EventList {
        resource_version: metadata.resource_version.unwrap_or_default().into(),
        continue_token: metadata.continue_.unwrap_or_default().into(),
        remaining_item_count: metadata.remaining_item_count,
        items,
    })
}

/// The events of a document as undecoded JSON. Each is decoded by itself, so that an invalid one does not affect the
/// others.
#[derive(Debug)]
pub struct Many<'j> {
    /// The group that a list states for its events.
    pub group: Option<ApiGroup>,
    /// Their array, or null.
    items: &'j str,
}

impl<'j> Many<'j> {
    /// Parses an array, or an object with `items`: an `EventList`, or a `List` as kubectl prints it. The last one of
    /// duplicate members wins.
    ///
    /// # Errors
    /// Returns a description of the fault of an invalid document.
    pub fn read(json: &'j str) -> Result<Self, String> {
        let fault = |fault: serde_json::Error| fault.to_string();
        if json.trim_start().starts_with('[') {
            let _elements: Vec<IgnoredAny> = serde_json::from_str(json).map_err(fault)?;
            return Ok(Self { group: None, items: json });
        }
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(json).map_err(fault)?;
        let items = members.get("items").ok_or("there are no items")?;
        // Go writes an empty list as null.
        let _elements: Option<Vec<IgnoredAny>> = serde_json::from_str(items.get()).map_err(fault)?;
        let version = members.get("apiVersion").and_then(|version| serde_json::from_str::<String>(version.get()).ok());
        let group = [ApiGroup::Core, ApiGroup::Events]
            .into_iter()
            .find(|group| version.as_deref() == Some(group.api_version()));
        Ok(Self { group, items: items.get() })
    }

    /// Returns the JSON of each event, in order. Lazily, because references to all items of an array of numbers would
    /// take eight times its memory.
    pub fn items(&self) -> impl Iterator<Item = &'j str> + use<'j> {
        let mut rest = self.items.trim_ascii_start().strip_prefix('[').unwrap_or_default();
        std::iter::from_fn(move || {
            rest = rest.trim_start_matches(|c: char| c == ',' || c.is_ascii_whitespace());
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
            let item = values.next()?.ok()?;
            rest = rest.get(values.byte_offset()..)?;
            Some(item.get())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<(Option<ApiGroup>, Vec<&str>), String> {
        let many = Many::read(body)?;
        Ok((many.group, many.items().collect()))
    }

    #[test]
    fn items_are_kept_as_they_are() {
        let some = |group, items: &[&'static str]| Ok((group, items.to_vec()));
        assert_eq!(
            read(" [ {\"a\":[1,{}]} ,\n null,\"\\ud83d\",1e999 ]\n"),
            some(None, &[r#"{"a":[1,{}]}"#, "null", r#""\ud83d""#, "1e999"])
        );
        assert_eq!(read("[]"), some(None, &[]));
        let list = r#"{"kind":"EventList","items":[{"b":2}],"apiVersion":"events.k8s.io/v1","metadata":{"items":[3]}}"#;
        assert_eq!(read(list), some(Some(ApiGroup::Events), &[r#"{"b":2}"#]));
        assert_eq!(read(r#"{"apiVersion":"v1","items":null}"#), some(Some(ApiGroup::Core), &[]));
        assert_eq!(read(r#"{"apiVersion":7,"items":[1],"items":[2]}"#), some(None, &["2"]));
        let deep = format!("[{}{}]", "[".repeat(9000), "]".repeat(9000));
        assert_eq!(read(&deep).unwrap().1.len(), 1);
    }

    #[test]
    fn a_document_without_items_is_refused() {
        for body in ["{}", "1", "null", r#"{"items":{}}"#, "", "[1,", "[1] 2"] {
            assert!(read(body).is_err(), "{body}");
        }
        assert!(read(&"[".repeat(20_000)).is_err());
    }
}
