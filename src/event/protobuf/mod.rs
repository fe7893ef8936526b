//! Protobuf (`application/vnd.kubernetes.protobuf`) of both groups to and from [`Event`]. client-go's newer event
//! recorder sends it, and kubectl requests it. Does no I/O and does not validate events (`validate` does).
//!
//! A walk over the schema instead of a protobuf library, because Go writes empty members, and accepts some bodies that
//! a library refuses. Mirrors `k8s.io/apimachinery/pkg/runtime/serializer/protobuf`, the `generated.pb.go` of the
//! messages, and `endpoints/handlers/create.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod delete_options;
mod envelope;
mod fields;
mod managed_fields;
mod reader;
#[cfg(test)]
mod tests;
mod write;
mod writer;

pub use delete_options::{DeleteOptions, decode_delete_options};
pub use write::{write, write_list, write_partial, write_partial_list, write_status, write_success, write_watch_frame};

use super::json::{Decoded, unhandled};
use super::{ApiGroup, Event};
use crate::status::Status;
use envelope::Envelope;

/// Decodes a request's body in `group`. Ignores unknown fields, whatever `fieldValidation` is, without a warning.
///
/// # Errors
/// The apiserver's 400 for a body that is not protobuf of Kubernetes, is truncated, or has another kind or version.
pub fn decode(group: ApiGroup, body: &[u8]) -> Result<Decoded, Box<Status>> {
    let envelope = read(body)?;
    envelope.check_kind(group)?;
    let mut event = Event::default();
    fields::object(group, envelope.raw, &mut event).map_err(|fault| unhandled(&fault.to_string()))?;
    if !(envelope.kind.is_empty() && envelope.api_version.is_empty()) {
        event.type_meta = Some(group);
    }
    Ok(Decoded { event, warnings: Vec::new() })
}

fn read(body: &[u8]) -> Result<Envelope<'_>, Box<Status>> {
    Envelope::read(body)
        .map_err(|fault| Status::bad_request(format!("the body is not an object in protobuf: {fault}")).into())
}
