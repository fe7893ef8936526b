//! Protobuf (`application/vnd.kubernetes.protobuf`), both groups: the wire form <-> [`Event`]. What client-go's newer event
//! recorder sends unasked and what kubectl asks for. Never touches I/O, and never judges an event (that is `validate`).
//!
//! Written by hand over the members' list (`event/schema`), because Go does what a protobuf library does not: it writes empty
//! members, and its readers take some bodies that others refuse. Mirrors `k8s.io/apimachinery/pkg/runtime/serializer/protobuf`, the
//! `generated.pb.go` of the messages, and `endpoints/handlers/create.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod delete_options;
mod envelope;
mod fields;
mod managed_fields;
mod partial;
mod reader;
#[cfg(test)]
mod tests;
mod write;
mod writer;

pub use delete_options::{DeleteOptions, decode_delete_options};
pub use partial::{write_partial, write_partial_list};
pub use write::{write, write_list, write_status, write_watch_frame};

use super::core_v1::{DecodeError, Decoded, EventList};
use super::{ApiGroup, Event};
use crate::status::Status;
use envelope::Envelope;

/// What a watch tells.
#[derive(Debug, Clone, Copy)]
pub enum WatchEvent<'e> {
    /// The event is new, or was there when the watch began.
    Added(&'e Event),
    /// It has changed.
    Modified(&'e Event),
    /// It is gone; this is what it was last.
    Deleted(&'e Event),
    /// Nothing but how far the watch has come: an event with a resource version.
    Bookmark(&'e Event),
    /// The watch cannot go on.
    Error(&'e Status),
}

impl WatchEvent<'_> {
    /// The `type` of the watch's event.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Added(_) => "ADDED",
            Self::Modified(_) => "MODIFIED",
            Self::Deleted(_) => "DELETED",
            Self::Bookmark(_) => "BOOKMARK",
            Self::Error(_) => "ERROR",
        }
    }
}

/// Decodes a request's body that came by `group`. Unknown fields are passed over without a word, whatever
/// `fieldValidation` says: `strict_faults` is always empty.
///
/// # Errors
/// The apiserver's 400 for a body that is no protobuf of Kubernetes, breaks off, or is of another kind or version.
pub fn decode(group: ApiGroup, body: &[u8]) -> Result<Decoded, Box<DecodeError>> {
    let envelope = read(body)?;
    envelope.check_kind(group)?;
    let mut event = Event::default();
    fields::object(group, envelope.raw, &mut event).map_err(|fault| DecodeError::unhandled(&fault.to_string()))?;
    if !(envelope.kind.is_empty() && envelope.api_version.is_empty()) {
        event.type_meta = Some(group);
    }
    let (kind, api_version) = (envelope.kind, envelope.api_version);
    Ok(Decoded { event, strict_faults: Vec::new(), kind, api_version })
}

/// Reads an `EventList` from an apiserver's answer; kind and apiVersion are not looked at.
///
/// # Errors
/// When the body is no protobuf of Kubernetes or breaks off.
pub fn decode_list(group: ApiGroup, body: &[u8]) -> Result<EventList, Box<DecodeError>> {
    let envelope = read(body)?;
    let mut list = EventList::default();
    fields::list(group, envelope.raw, &mut list).map_err(|fault| DecodeError::bad_request(fault.to_string()))?;
    Ok(list)
}

fn read(body: &[u8]) -> Result<Envelope<'_>, Box<DecodeError>> {
    Envelope::read(body)
        .map_err(|fault| DecodeError::bad_request(format!("the body is no object in protobuf: {fault}")))
}
