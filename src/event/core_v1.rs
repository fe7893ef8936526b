//! core/v1: an [`Event`] as JSON under `/api/v1`. The work is done in `json`, which both groups share.

use super::json::{self, Strictness};
use super::{ApiGroup, Event};

pub use super::json::{DecodeError, Decoded, EventList, StrictFault, StrictFaultKind};

const GROUP: ApiGroup = ApiGroup::Core;

/// Appends the whole document, kind and apiVersion first, without a newline.
pub fn write_json(event: &Event, out: &mut Vec<u8>) {
    json::write_json(GROUP, event, out);
}

/// Appends the event as an item of a list: without kind and apiVersion.
pub fn write_item(event: &Event, out: &mut Vec<u8>) {
    json::write_item(GROUP, event, out);
}

/// Appends an `EventList`.
pub fn write_list(list: &EventList, out: &mut Vec<u8>) {
    json::write_list(GROUP, list, out);
}

/// Decodes a request's body; unknown and duplicate members are reported beside the event (`fieldValidation` Warn, Ignore).
///
/// # Errors
/// The apiserver's 400 for a body that is not JSON, has members of a wrong type, or is of another kind or version.
pub fn decode(body: &[u8]) -> Result<Decoded, Box<DecodeError>> {
    json::decode(GROUP, body, Strictness::Report)
}

/// Decodes a request's body; unknown and duplicate members are errors (`fieldValidation` Strict).
///
/// # Errors
/// As [`decode`], and the apiserver's 400 for strict faults.
pub fn decode_strict(body: &[u8]) -> Result<Decoded, Box<DecodeError>> {
    json::decode(GROUP, body, Strictness::Refuse)
}

/// Reads an event from an apiserver's answer.
///
/// # Errors
/// As [`decode`].
pub fn from_json(body: &[u8]) -> Result<Event, Box<DecodeError>> {
    json::decode_event(GROUP, body)
}

/// Reads an `EventList` from an apiserver's answer.
///
/// # Errors
/// When the body is not JSON or has members of a wrong type.
pub fn list_from_json(body: &[u8]) -> Result<EventList, Box<DecodeError>> {
    json::list_from_json(GROUP, body)
}
