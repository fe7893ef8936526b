//! JSON of both groups to and from [`Event`]. Does no I/O and does not validate events (`validate` does).
//!
//! `serde_json` parses, and visitors that iterate over the schema (`event/schema`) write the values into an Event.
//! Decoding accepts what the API server accepts; the texts of refusals are our own.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod list;
mod read;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod write;

use serde_json::error::Category;

pub(crate) use list::write_list_meta;
pub use list::{EventList, Many, list_from_json, write_list};
pub(super) use text::lossy;
pub use text::{check_values, is_printable, repaired};
pub(super) use tree::tree;
pub(crate) use write::{array as write_array, escape, object_meta as write_meta, text as write_text};
pub use write::{write_item, write_json};

use crate::event::{ApiGroup, ELEMENTS_MAX, Event};
use crate::status::Status;
use read::Pass;
pub(super) use read::STRICT_FAULTS_MAX;

/// A decoded body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The event. Its `type_meta` is set when the body had a kind or an apiVersion.
    pub event: Event,
    /// Warnings for the client, if it asks for them: the unknown and duplicate members in the order of the document, in
    /// the API server's words: `unknown field "metadata.extra"`.
    pub warnings: Vec<String>,
}

/// How a client's request treats unknown and duplicate members (`fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    /// Ignores them.
    Ignore,
    /// Warns the client.
    Warn,
    /// Refuses the request.
    Strict,
}

/// How a text that is compressed with gzip begins.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Returns the refusal of an Event that cannot be decoded.
pub(super) fn unhandled(fault: &str) -> Box<Status> {
    Status::bad_request(format!("Event in version \"v1\" cannot be handled as a Event: {fault}")).into()
}

/// Decodes a body in `group`.
///
/// # Errors
/// 400 for a body that is not JSON, has members of a wrong type or too long lists, or has another kind or version. Also
/// for strict faults if `validation` refuses them.
pub fn decode(group: ApiGroup, body: &[u8], validation: FieldValidation) -> Result<Decoded, Box<Status>> {
    let mut pass = Pass::new(group);
    pass.elements_max = ELEMENTS_MAX;
    decode_with(pass, body, validation)
}

fn decode_with(mut pass: Pass, body: &[u8], validation: FieldValidation) -> Result<Decoded, Box<Status>> {
    let (group, mut event) = (pass.group, Event::default());
    let decoded = read::document(&repaired(body), &mut event, &mut pass);
    if let Err(error) = &decoded
        && error.classify() != Category::Data
    {
        let why =
            if body.starts_with(&GZIP) { "it is compressed, and must not be".to_owned() } else { error.to_string() };
        return Err(Status::bad_request(format!("the body is not JSON: {why}")).into());
    }
    let Pass { stated: [kind, api_version], fault_at, strict, .. } = pass;
    check_kind(group, &kind, &api_version)?;
    if let Err(error) = decoded {
        // The path replaces line and column, because a client does not know the document that its patch resulted in.
        let fault = error.to_string();
        let fault = fault.rsplit_once(" at line ").map_or(fault.as_str(), |(fault, _position)| fault);
        return Err(unhandled(&match fault_at.unwrap_or_default().as_str() {
            "" => fault.to_owned(),
            at => format!("{at}: {fault}"),
        }));
    }
    if validation == FieldValidation::Strict && !strict.is_empty() {
        return Err(unhandled(&format!("strict decoding error: {}", strict.join(", "))));
    }
    if !(kind.is_empty() && api_version.is_empty()) {
        event.type_meta = Some(group);
    }
    let warnings = if validation == FieldValidation::Warn { strict } else { Vec::new() };
    Ok(Decoded { event, warnings })
}

/// Decodes an event of the upstream or the spool as [`decode`] does, but ignores strict faults, and reads lists of any
/// length: what is stored must be readable.
pub fn decode_event(group: ApiGroup, body: &[u8]) -> Result<Event, Box<Status>> {
    decode_with(Pass::new(group), body, FieldValidation::Ignore).map(|decoded| decoded.event)
}

/// Refuses an object that is not an Event of `group`. Accepts a missing kind or version, and the group without a
/// version.
pub(super) fn check_kind(group: ApiGroup, kind: &str, api_version: &str) -> Result<(), Box<Status>> {
    let (stated, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let is_served = match version {
        "" => stated.is_empty() || stated == group.name(),
        version => stated == group.name() && version == "v1",
    };
    if is_served && matches!(kind, "" | "Event") {
        return Ok(());
    }
    let expected = group.api_version();
    let found = format!("found kind {kind:?} and apiVersion {api_version:?}");
    let message = format!("expected an object of kind Event and apiVersion {expected}, {found}");
    Err(Status::bad_request(message).into())
}
