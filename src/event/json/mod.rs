//! JSON, both groups: the wire form <-> [`Event`]. Never touches I/O, and never judges an event (that is `validate`).
//!
//! Decoding mirrors the apiserver's path through `serializer/json` and `endpoints/handlers/create.go`: a sniff for kind and
//! apiVersion, the typed decode, conversion to the internal Event, strict faults, and last the version against the door.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod decoder;
mod fields;
pub(crate) mod go;
mod kinds;
mod list;
mod many;
mod meta;
mod path;
mod reader;
mod scan;
mod sniff;
mod syntax;
#[cfg(test)]
mod tests;
mod tree;
mod unescape;
#[cfg(test)]
mod ways;
mod write;

use std::ops::Range;

use smol_str::SmolStr;

pub(super) use list::list_from_json;
pub(crate) use list::write_list_meta;
pub use list::{EventList, write_list};
pub use many::{Items, Many};
pub(super) use tree::tree;
pub(crate) use write::{integer as write_integer, object_meta as write_meta, text as write_text};
pub(super) use write::{owner as write_owner, owners as write_owners, texts as write_texts};
pub use write::{write_item, write_json};

use crate::event::{ApiGroup, Event};
use crate::status::Status;
use decoder::Decoder;
use kinds::Registration;
use path::Path;
use reader::Kind;
use sniff::TypeMeta;

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
        write!(f, "{what} field {}", go::quote(&self.path))
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

/// A body that the apiserver would not decode, with the Status it would answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .status.message)]
pub struct DecodeError {
    /// 400 `BadRequest`.
    pub status: Status,
    /// Where in the status' message Go's own text stands.
    fault: Range<usize>,
}

impl DecodeError {
    /// Go's own text, without what the handler of a create puts around it.
    pub(super) fn fault(&self) -> &str {
        self.status.message.get(self.fault.clone()).unwrap_or_default()
    }

    pub(super) fn bad_request(message: String) -> Box<Self> {
        Box::new(Self { fault: 0..message.len(), status: Status::bad_request(message) })
    }

    /// Go's text, with what the handler of a create puts around it.
    fn around(before: &str, fault: &str, after: &str) -> Box<Self> {
        let end = before.len().saturating_add(fault.len());
        Box::new(Self { status: Status::bad_request([before, fault, after].concat()), fault: before.len()..end })
    }

    /// The refusal of an Event that cannot be read: `Event in version "v1" cannot be handled as a Event: …`.
    pub(super) fn unhandled(kind: &str, version: &str, fault: &str) -> Box<Self> {
        let version = go::quote(version);
        Self::around(&format!("{kind} in version {version} cannot be handled as a Event: "), fault, "")
    }

    /// The refusal of a body that does not say what it is.
    pub(super) fn unrecognized(body: &[u8], fault: &str) -> Box<Self> {
        let summary = format!(" ({})", go::summary(body));
        Self::around("the object provided is unrecognized (must be of type Event): ", fault, &summary)
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

/// Go's text for the first syntax fault of a body that is not JSON.
#[must_use]
pub fn syntax_fault(body: &[u8]) -> String {
    syntax::fault(body)
}

/// Decodes a body that came through the door of `group`.
///
/// # Errors
/// The apiserver's 400 for a body that is not JSON, has members of a wrong type, or is of another kind or version; and for
/// strict faults where they refuse.
pub fn decode(group: ApiGroup, body: &[u8], strictness: Strictness) -> Result<Decoded, Box<DecodeError>> {
    let mut event = Event::default();
    let mut pass = Pass::into(&mut event);
    pass.run(group, body)?;
    let registration = kinds::register(group, &pass.type_meta, body)?;
    let stated = match registration {
        Registration::Event { group } => group,
        Registration::EventBeta => ApiGroup::Events,
        Registration::Other => group,
    };
    if stated != group {
        // An Event of the other group is decoded as what it says it is: its own faults come before the mismatch.
        event = Event::default();
        pass = Pass::into(&mut event);
        pass.run(stated, body)?;
    }
    pass.check(group, strictness, registration)?;
    let (TypeMeta { kind, api_version, .. }, strict_faults) = (pass.type_meta, pass.strict_faults);
    Ok(Decoded { event, strict_faults, kind, api_version })
}

/// As [`decode`], without what a strict decode refuses.
///
/// # Errors
/// As those of [`decode`].
pub fn decode_event(group: ApiGroup, body: &[u8]) -> Result<Event, Box<DecodeError>> {
    decode(group, body, Strictness::Report).map(|decoded| decoded.event)
}

/// One pass over a body.
#[derive(Debug)]
struct Pass<'e> {
    event: &'e mut Event,
    type_meta: TypeMeta,
    fault: Option<String>,
    strict_faults: Vec<StrictFault>,
}

impl<'e> Pass<'e> {
    fn into(event: &'e mut Event) -> Self {
        Self { event, type_meta: TypeMeta::default(), fault: None, strict_faults: Vec::new() }
    }

    fn run(&mut self, group: ApiGroup, body: &[u8]) -> Result<(), Box<DecodeError>> {
        let mut decoder = Decoder::new(body);
        if document(&mut decoder, group, &mut self.type_meta, self.event).is_err() {
            return Err(unrecognized(body, &syntax::fault(body)));
        }
        if let Some(fault) = &self.type_meta.fault {
            return Err(unrecognized(body, fault));
        }
        (self.fault, self.strict_faults) = decoder.finish();
        Ok(())
    }

    /// What the apiserver says to a body that it could read.
    fn check(
        &mut self,
        group: ApiGroup,
        strictness: Strictness,
        registration: Registration,
    ) -> Result<(), Box<DecodeError>> {
        let identity = || kinds::identity(group, &self.type_meta);
        let (Registration::Event { .. } | Registration::EventBeta) = registration else {
            let identity = identity();
            return Err(identity.unhandled(&format!(
                "converting ({}.{}) to (core.Event): unknown conversion",
                identity.version, identity.kind
            )));
        };
        if let Some(fault) = &self.fault {
            return Err(identity().unhandled(fault));
        }
        if strictness == Strictness::Refuse && !self.strict_faults.is_empty() {
            let faults: Vec<String> = self.strict_faults.iter().map(ToString::to_string).collect();
            return Err(identity().unhandled(&format!("strict decoding error: {}", faults.join(", "))));
        }
        if registration != (Registration::Event { group }) {
            return Err(DecodeError::bad_request(format!(
                "the API version in the data ({}) does not match the expected API version ({})",
                identity().group_version(),
                group.api_version()
            )));
        }
        if !(self.type_meta.kind.is_empty() && self.type_meta.api_version.is_empty()) {
            self.event.type_meta = Some(group);
        }
        Ok(())
    }
}

fn document(
    decoder: &mut Decoder<'_>,
    group: ApiGroup,
    type_meta: &mut TypeMeta,
    event: &mut Event,
) -> Result<(), reader::Malformed> {
    match decoder.reader.kind()? {
        Kind::Object => fields::event(decoder, &Path::ROOT, group, type_meta, event)?,
        // `null` is an empty event.
        Kind::Null => decoder.reader.null()?,
        kind => {
            type_meta.fault = Some(format!(
                "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \
                 \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                kind.go_name()
            ));
            decoder.reader.skip()?;
        }
    }
    decoder.reader.end()
}

/// The refusal of a body whose kind could not be read.
fn unrecognized(body: &[u8], fault: &str) -> Box<DecodeError> {
    DecodeError::unrecognized(body, &format!("couldn't get version/kind; json parse error: {fault}"))
}
