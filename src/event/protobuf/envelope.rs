//! What an object comes in: four bytes, then `runtime.Unknown`, which says what the object is. And who says no to which of it:
//! the apiserver's words for a body without an envelope and for one of another kind or version.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::reader::{Fault, fields};
use super::write::PREFIX;
use crate::event::ApiGroup;
use crate::event::core_v1::DecodeError;
use crate::event::json::{self, Strictness};
use smol_str::SmolStr;

/// An envelope, read, its object not yet.
#[derive(Debug, Default)]
pub(super) struct Envelope<'b> {
    pub(super) api_version: SmolStr,
    pub(super) kind: SmolStr,
    pub(super) raw: &'b [u8],
}

impl<'b> Envelope<'b> {
    pub(super) fn read(body: &'b [u8]) -> Result<Self, Fault> {
        if body.is_empty() {
            return Err(Fault::Empty);
        }
        let data = body.strip_prefix(PREFIX).ok_or(Fault::NoPrefix)?;
        if data.is_empty() {
            return Err(Fault::OnlyPrefix);
        }
        let mut envelope = Self::default();
        fields(data, "Unknown", |field| match field.number {
            1 => fields(field.bytes("TypeMeta")?, "TypeMeta", |field| match field.number {
                1 => field.string("APIVersion", &mut envelope.api_version),
                2 => field.string("Kind", &mut envelope.kind),
                _ => field.skip(),
            }),
            2 => field.bytes("Raw").map(|raw| envelope.raw = raw),
            // Which encoding and type the object has is told, and not looked at.
            3 => field.bytes("ContentEncoding").map(drop),
            4 => field.bytes("ContentType").map(drop),
            _ => field.skip(),
        })?;
        Ok(envelope)
    }

    /// What the object is; what the envelope leaves open is taken from the door (`copyKindDefaults`).
    pub(super) fn identity(&self, door: ApiGroup) -> Identity<'_> {
        let kind = if self.kind.is_empty() { "Event" } else { self.kind.as_str() };
        let (group, version) = split_version(&self.api_version);
        let (group, version) = if version.is_empty() { split_version(door.api_version()) } else { (group, version) };
        Identity { kind, group, version }
    }
}

/// Group and version; nothing of an apiVersion with two slashes.
fn split_version(api_version: &str) -> (&str, &str) {
    match api_version.split_once('/') {
        None => ("", api_version),
        Some((_, rest)) if rest.contains('/') => ("", ""),
        Some(both) => both,
    }
}

/// A kind and version.
#[derive(Debug)]
pub(super) struct Identity<'e> {
    kind: &'e str,
    group: &'e str,
    version: &'e str,
}

impl Identity<'_> {
    /// Whose Event it is; `None` for what is no Event.
    pub(super) fn event_group(&self) -> Option<ApiGroup> {
        match (self.kind, self.group, self.version) {
            ("Event", "", "v1") => Some(ApiGroup::Core),
            // v1beta1 is no longer served, but still known, and has the same fields.
            ("Event", "events.k8s.io", "v1" | "v1beta1") => Some(ApiGroup::Events),
            _ => None,
        }
    }

    /// Whether it is an Event as the door serves them.
    pub(super) fn fits(&self, door: ApiGroup) -> bool {
        self.version == "v1" && self.event_group() == Some(door)
    }

    /// The refusal of an Event that cannot be read.
    pub(super) fn unhandled(&self, fault: &Fault) -> Box<DecodeError> {
        DecodeError::unhandled(self.kind, self.version, &fault.to_string())
    }

    /// The refusal of what does not fit the door. JSON has the table of the apiserver's kinds and the words for it, and gives
    /// them to a body of nothing but kind and version.
    pub(super) fn refusal(&self, door: ApiGroup) -> Box<DecodeError> {
        let group_version =
            if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) };
        let body = serde_json::json!({"apiVersion": group_version, "kind": self.kind}).to_string();
        match json::decode(door, body.as_bytes(), Strictness::Report) {
            Err(refusal) => refusal,
            Ok(_fits) => DecodeError::bad_request(format!("no Event of {}", door.api_version())),
        }
    }
}
