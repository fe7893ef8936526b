//! Protobuf (`application/vnd.kubernetes.protobuf`) of both groups to and from [`Event`]. client-go's newer event
//! recorder sends it, and kubectl requests it. Does no I/O and does not validate events (`validate` does).
//!
//! A walk over the schema instead of a protobuf library, because Go writes empty members, and accepts some bodies that
//! a library refuses. Mirrors `k8s.io/apimachinery/pkg/runtime/serializer/protobuf`, the `generated.pb.go` of the
//! messages, and `endpoints/handlers/create.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod delete_options;
mod fields;
mod managed_fields;
mod reader;
#[cfg(test)]
mod tests;
mod write;
mod writer;

pub use delete_options::{DeleteOptions, decode_delete_options};
pub use write::{write, write_list, write_partial, write_partial_list, write_status, write_success, write_watch_frame};

use smol_str::SmolStr;

use super::json::{self, Decoded, unhandled};
use super::{ApiGroup, Event};
use crate::status::Status;
use reader::{DecodeError, fields};
use write::PREFIX;

/// Decodes a request's body in `group`. Ignores unknown fields, whatever `fieldValidation` is, without a warning.
///
/// # Errors
/// The apiserver's 400 for a body that is not protobuf of Kubernetes, is truncated, or has another kind or version.
pub fn decode(group: ApiGroup, body: &[u8]) -> Result<Decoded, Box<Status>> {
    let refused = |fault| Status::bad_request(format!("the body is not an object in protobuf: {fault}"));
    let envelope = Envelope::read(body).map_err(refused)?;
    envelope.check_kind(group)?;
    let mut event = Event::default();
    fields::object(group, envelope.raw, &mut event).map_err(|fault| unhandled(&fault.to_string()))?;
    if !(envelope.kind.is_empty() && envelope.api_version.is_empty()) {
        event.type_meta = Some(group);
    }
    Ok(Decoded { event, warnings: Vec::new() })
}

/// A decoded envelope: four bytes, then `runtime.Unknown` with apiVersion, kind and the object's bytes.
#[derive(Debug, Default)]
struct Envelope<'b> {
    api_version: SmolStr,
    kind: SmolStr,
    raw: &'b [u8],
}

impl<'b> Envelope<'b> {
    fn read(body: &'b [u8]) -> Result<Self, DecodeError> {
        let data = body.strip_prefix(PREFIX).ok_or(DecodeError::NoPrefix)?;
        if data.is_empty() {
            return Err(DecodeError::OnlyPrefix);
        }
        let mut envelope = Self::default();
        fields(data, |field| match field.number {
            1 => fields(field.bytes()?, |field| match field.number {
                1 => field.string(&mut envelope.api_version),
                2 => field.string(&mut envelope.kind),
                _ => field.skip(),
            }),
            2 => field.bytes().map(|raw| envelope.raw = raw),
            // contentEncoding and contentType are ignored.
            3 | 4 => field.bytes().map(drop),
            _ => field.skip(),
        })?;
        Ok(envelope)
    }

    /// Refuses an object that is not an Event of the group. Accepts a missing version, as `copyKindDefaults` does, and
    /// one behind two slashes.
    fn check_kind(&self, group: ApiGroup) -> Result<(), Box<Status>> {
        let version = match self.api_version.split_once('/') {
            None => self.api_version.as_str(),
            Some((_, rest)) if rest.contains('/') => "",
            Some((_, version)) => version,
        };
        json::check_kind(group, &self.kind, if version.is_empty() { "" } else { &self.api_version })
    }
}
