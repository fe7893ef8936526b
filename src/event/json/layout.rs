//! How a body spells its event. Most are Go's, member for member as our own writer would write the event again: then the answer to
//! a create is the body itself, without a look at what stands in it.
//!
//! The decoder notices on its way whatever is spelled otherwise (`Reader::deviate`); it is better too strict than too lenient.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::ops::Range;

/// How a body is laid out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Layout {
    /// As [`write_json`](super::write_json) writes the event, but for this part, which it leaves out, and perhaps for letters that
    /// it escapes.
    AsWritten(Range<usize>),
    /// In any other way.
    #[default]
    Other,
}

impl Layout {
    /// What [`write_json`](super::write_json) makes of the event that was decoded from `body`, if that can be told.
    #[must_use]
    pub fn document(&self, body: &[u8]) -> Option<Vec<u8>> {
        let Self::AsWritten(left_out) = self else { return None };
        let body = body.strip_suffix(b"\n").unwrap_or(body);
        let (before, after) = (body.get(..left_out.start)?, body.get(left_out.end..)?);
        // U+2028 and U+2029 begin with this byte, and so do many that are not escaped.
        if memchr::memchr3(b'<', b'>', b'&', body).is_some() || memchr::memchr(0xe2, body).is_some() {
            return None;
        }
        // Just what is needed with the end of a line, so that nobody has to shorten it.
        let mut document = Vec::with_capacity(before.len().saturating_add(after.len()).saturating_add(1));
        document.extend_from_slice(before);
        document.extend_from_slice(after);
        Some(document)
    }
}
