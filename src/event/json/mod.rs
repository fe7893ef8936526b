//! JSON, both groups: the wire form <-> [`Event`]. Never touches I/O, and never judges an event (that is `validate`).
//!
//! `serde_json` reads, and visitors that walk over the members' list (`event/schema.rs`) put what it finds straight into an
//! Event. Accepted is what the apiserver accepts; the texts of refusals are our own.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod list;
mod read;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod write;

use serde_json::error::Category;
use smol_str::SmolStr;

pub(super) use list::list_from_json;
pub(crate) use list::write_list_meta;
pub use list::{EventList, Many, write_list};
pub(super) use text::lossy;
pub use text::repaired;
pub(super) use tree::tree;
#[cfg(test)]
pub(crate) use write::escape;
pub(crate) use write::{integer as write_integer, object_meta as write_meta, text as write_text};
pub use write::{write_item, write_json};

use crate::event::{ApiGroup, Event};
use crate::status::Status;
use read::Pass;

/// A body, decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The event. Its `type_meta` is set when the body carried a kind or an apiVersion.
    pub event: Event,
    /// Unknown and duplicate members, in the order of the document: a `Warning` header each, or one refusal under `Strict`.
    pub strict_faults: Vec<StrictFault>,
    /// `kind` as the body gave it; empty when it gave none.
    pub kind: SmolStr,
    /// `apiVersion` as the body gave it; empty when it gave none.
    pub api_version: SmolStr,
}

/// A member that a strict decode refuses and a lenient one ignores.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StrictFault {
    /// What is wrong with it.
    pub kind: StrictFaultKind,
    /// Its path: `metadata.labels.a`.
    pub path: String,
}

/// What is wrong with a member under strict decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StrictFaultKind {
    /// The type has no such member.
    Unknown,
    /// The object has it twice.
    Duplicate,
}

impl std::fmt::Display for StrictFault {
    /// As the apiserver's `Warning` text: `unknown field "metadata.extra"`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.kind {
            StrictFaultKind::Unknown => "unknown",
            StrictFaultKind::Duplicate => "duplicate",
        };
        write!(f, "{what} field {:?}", self.path)
    }
}

/// What a client wants done about unknown and duplicate members (`fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    /// Nothing.
    Ignore,
    /// It is warned of them.
    Warn,
    /// They refuse its request.
    Strict,
}

/// A body that the apiserver would not decode, with the Status for its client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .status.message)]
pub struct DecodeError {
    /// 400 `BadRequest`.
    pub status: Status,
}

impl DecodeError {
    /// What is wrong with the body.
    pub(super) fn fault(&self) -> &str {
        &self.status.message
    }

    /// The refusal of an Event that cannot be read.
    pub(super) fn unhandled(fault: &str) -> Box<Self> {
        Self::bad_request(format!("Event in version \"v1\" cannot be handled as a Event: {fault}"))
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Box<Self> {
        Box::new(Self { status: Status::bad_request(message) })
    }
}

/// What becomes of unknown and duplicate members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// They are reported beside the event.
    Report,
    /// They refuse the body.
    Refuse,
}

/// Decodes a body that came by `group`.
///
/// # Errors
/// 400 for a body that is not JSON, has members of a wrong type, or is of another kind or version; and for strict faults where
/// they refuse.
pub fn decode(group: ApiGroup, body: &[u8], strictness: Strictness) -> Result<Decoded, Box<DecodeError>> {
    let (mut event, mut pass) = (Event::default(), Pass::new(group));
    let read = read::document(&repaired(body), &mut event, &mut pass);
    if let Err(error) = &read
        && error.classify() != Category::Data
    {
        return Err(DecodeError::bad_request(format!("the body is not JSON: {error}")));
    }
    let Pass { stated: [kind, api_version], fault_at, strict: strict_faults, .. } = pass;
    check_kind(group, &kind, &api_version)?;
    if let Err(error) = read {
        // The path says where, also of a document that its client has not seen: an event after a patch.
        let fault = error.to_string();
        let fault = fault.rsplit_once(" at line ").map_or(fault.as_str(), |(fault, _position)| fault);
        return Err(DecodeError::unhandled(&match fault_at.unwrap_or_default().as_str() {
            "" => fault.to_owned(),
            at => format!("{at}: {fault}"),
        }));
    }
    if strictness == Strictness::Refuse && !strict_faults.is_empty() {
        let faults: Vec<String> = strict_faults.iter().map(ToString::to_string).collect();
        return Err(DecodeError::unhandled(&format!("strict decoding error: {}", faults.join(", "))));
    }
    if !(kind.is_empty() && api_version.is_empty()) {
        event.type_meta = Some(group);
    }
    Ok(Decoded { event, strict_faults, kind, api_version })
}

/// As [`decode`], without what a strict decode refuses.
///
/// # Errors
/// As those of [`decode`].
pub fn decode_event(group: ApiGroup, body: &[u8]) -> Result<Event, Box<DecodeError>> {
    decode(group, body, Strictness::Report).map(|decoded| decoded.event)
}

/// Refuses what is no Event of `group`. What is not said is taken from the API group, also the version of a group that is its own.
pub(super) fn check_kind(group: ApiGroup, kind: &str, api_version: &str) -> Result<(), Box<DecodeError>> {
    let (stated, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let is_served = match version {
        "" => stated.is_empty() || stated == group.name(),
        version => stated == group.name() && version == "v1",
    };
    if is_served && matches!(kind, "" | "Event") {
        return Ok(());
    }
    let expected = group.api_version();
    Err(DecodeError::bad_request(format!(
        "expected an object of kind Event and apiVersion {expected}, found kind {kind:?} and apiVersion {api_version:?}"
    )))
}
