//! Patches of an event as a client wrote them: what they make of it, or the apiserver's refusal in words of our own.
//!
//! A patch is applied to the event as its API group shows it, and the result decoded again, as
//! `k8s.io/apiserver/pkg/endpoints/handlers/patch.go` does. What an update may change is checked by `validate`, the version by
//! `upstream/store`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod operations;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::json::{self, FieldValidation, Strictness};
use super::{ApiGroup, Event, validate};
use crate::status::{Status, StatusCause, StatusDetails};

/// The kinds of patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7386.
    Merge,
    /// Kubernetes' own.
    StrategicMerge,
}

/// What a patch made of an event.
#[derive(Debug, Clone, PartialEq)]
pub struct Patched {
    /// The event as it shall be.
    pub event: Event,
    /// What its client is warned of: members that are unknown or given twice.
    pub warnings: Vec<String>,
}

type Result<T> = std::result::Result<T, Box<Status>>;

impl PatchType {
    const ALL: [Self; 3] = [Self::Json, Self::Merge, Self::StrategicMerge];

    /// Its Content-Type.
    #[must_use]
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::StrategicMerge => "application/strategic-merge-patch+json",
        }
    }

    /// The kind of patch that this Content-Type, without its parameters, announces.
    #[must_use]
    pub fn named(media_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|patch| patch.media_type() == media_type)
    }
}

/// Applies the patch `body` to `current` as `group` shows it.
///
/// # Errors
/// The apiserver's 400 for a body that is no patch or names another event, 413 for too many operations, 422 for operations that
/// do not apply and for a result that is no event, 500 for directives that do not exist.
pub fn apply(
    patch: PatchType,
    body: &[u8],
    group: ApiGroup,
    validation: FieldValidation,
    current: &Event,
) -> Result<Patched> {
    let mut shown = Vec::new();
    json::write_json(group, current, &mut shown);
    let mut document = json::tree(&shown).map_err(|fault| Status::new(500, "", fault))?.value;
    let read = json::tree(body).map_err(|fault| unreadable(&fault))?;
    let mut faults: Vec<String> = read.duplicates.iter().map(ToString::to_string).collect();
    match (patch, read.value) {
        (PatchType::Json, Value::Array(list)) => faults.extend(operations::carry_out(&mut document, list)?),
        (PatchType::Merge, patch @ Value::Object(_)) => json_patch::merge(&mut document, &patch),
        (PatchType::StrategicMerge, Value::Object(patch)) => by_strategy(&mut document, patch)?,
        (PatchType::StrategicMerge, Value::Null) => {}
        (PatchType::Json, _) => return Err(unreadable("a JSON patch is a list of operations")),
        (PatchType::Merge | PatchType::StrategicMerge, _) => return Err(unreadable("it is no object")),
    }
    let text = document.to_string();
    let decoded = json::decode(group, text.as_bytes(), Strictness::Report).map_err(|error| no_event(error.fault()))?;
    let mut unknown: Vec<String> = decoded.strict_faults.iter().map(ToString::to_string).collect();
    unknown.sort_unstable();
    faults.extend(unknown);
    if validation == FieldValidation::Strict && !faults.is_empty() {
        return Err(no_event(&format!("strict decoding error: {}", faults.join(", "))));
    }
    let mut event = decoded.event;
    check_identity(&mut event, current)?;
    let warnings = if validation == FieldValidation::Warn { faults } else { Vec::new() };
    Ok(Patched { event, warnings })
}

fn by_strategy(document: &mut Value, patch: Map<String, Value>) -> Result<()> {
    let Value::Object(event) = document else { return Ok(()) };
    strategic::merge(event, patch)?;
    // COMPAT(apiserver): whatever a strategic merge patch says of these, the event keeps its type.
    event.remove("kind");
    event.remove("apiVersion");
    Ok(())
}

/// 400 for a body that is no patch.
fn unreadable(fault: &str) -> Box<Status> {
    Box::new(Status::bad_request(format!("the patch cannot be read: {fault}")))
}

/// 422 for a patch after which there is no event.
fn no_event(fault: &str) -> Box<Status> {
    let message = format!("Invalid value: {fault}");
    let text = format!("the event is invalid after the patch: {fault}");
    let cause = StatusCause { reason: "FieldValueInvalid".to_owned(), message, field: "patch".to_owned() };
    let details = StatusDetails { causes: vec![cause], ..StatusDetails::default() };
    Box::new(Status::new(422, "Invalid", text).with_details(details))
}

/// Refuses a patch that makes another event of it.
fn check_identity(event: &mut Event, current: &Event) -> Result<()> {
    validate::adopt_namespace(event, &current.metadata.namespace)?;
    let name = current.metadata.name.as_str();
    let message = match event.metadata.name.as_str() {
        given if given == name => return Ok(()),
        "" => format!("the name of the object ({name} based on URL) was undeterminable: name must be provided"),
        given => format!("the name of the object ({given}) does not match the name on the URL ({name})"),
    };
    Err(Box::new(Status::bad_request(message)))
}
