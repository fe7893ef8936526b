//! Encodes `PartialObjectMetadata` and its list as JSON.

use super::negotiate::MetaVersion;
use crate::event::Event;
use crate::event::json::{self, EventList};

/// Appends an event's metadata.
pub(super) fn write(version: MetaVersion, event: &Event, out: &mut Vec<u8>) {
    head("PartialObjectMetadata", version, out);
    json::write_meta(&event.metadata, out);
    out.push(b'}');
}

/// Appends the metadata of a list and of its events, each with its kind. COMPAT(apiserver): `null` for an empty list.
pub(super) fn write_list(version: MetaVersion, list: &EventList, out: &mut Vec<u8>) {
    head("PartialObjectMetadataList", version, out);
    json::write_list_meta(list, out);
    out.extend_from_slice(br#","items":"#);
    if list.items.is_empty() {
        return out.extend_from_slice(b"null}");
    }
    json::write_array(&list.items, out, |event, out| write(version, event, out));
    out.push(b'}');
}

/// Appends kind and apiVersion, up to the metadata.
pub(super) fn head(kind: &str, version: MetaVersion, out: &mut Vec<u8>) {
    for part in [r#"{"kind":""#, kind, r#"","apiVersion":""#, version.label(), r#"","metadata":"#] {
        out.extend_from_slice(part.as_bytes());
    }
}
