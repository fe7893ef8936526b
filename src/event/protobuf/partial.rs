//! Metadata alone: `PartialObjectMetadata` and its list, of `meta.k8s.io`.

use super::write::{envelope, list_meta, object};
use super::writer::message;
use crate::event::core_v1::EventList;
use crate::event::{ApiGroup, Event, ObjectMeta};

fn fields(metadata: &ObjectMeta, out: &mut Vec<u8>) {
    message(1, out, |out| object(ApiGroup::Core, metadata, out));
}

/// Appends an event's metadata with its envelope; `api_version` is one of `meta.k8s.io`.
pub fn write_partial(api_version: &str, event: &Event, out: &mut Vec<u8>) {
    envelope(api_version, "PartialObjectMetadata", out, |out| fields(&event.metadata, out));
}

/// Appends the metadata of a list and of its events, with its envelope.
pub fn write_partial_list(api_version: &str, list: &EventList, out: &mut Vec<u8>) {
    envelope(api_version, "PartialObjectMetadataList", out, |out| {
        message(1, out, |out| {
            list_meta(&list.resource_version, &list.continue_token, list.remaining_item_count, out);
        });
        for item in &list.items {
            message(2, out, |out| fields(&item.metadata, out));
        }
    });
}
