//! The envelope of an object: four bytes, then `runtime.Unknown` with apiVersion, kind and the object's bytes.

use super::reader::{DecodeError, fields};
use super::write::PREFIX;
use crate::event::ApiGroup;
use crate::event::json;
use crate::status::Status;
use smol_str::SmolStr;

/// A decoded envelope with an encoded object.
#[derive(Debug, Default)]
pub(super) struct Envelope<'b> {
    pub(super) api_version: SmolStr,
    pub(super) kind: SmolStr,
    pub(super) raw: &'b [u8],
}

impl<'b> Envelope<'b> {
    pub(super) fn read(body: &'b [u8]) -> Result<Self, DecodeError> {
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
            3 => field.bytes().map(drop),
            4 => field.bytes().map(drop),
            _ => field.skip(),
        })?;
        Ok(envelope)
    }

    /// Refuses an object that is not an Event of the group. Accepts a missing version, as `copyKindDefaults` does, and
    /// one behind two slashes.
    pub(super) fn check_kind(&self, group: ApiGroup) -> Result<(), Box<Status>> {
        let version = match self.api_version.split_once('/') {
            None => self.api_version.as_str(),
            Some((_, rest)) if rest.contains('/') => "",
            Some((_, version)) => version,
        };
        json::check_kind(group, &self.kind, if version.is_empty() { "" } else { &self.api_version })
    }
}
