//! Applies clients' own patches to an event. A patch is applied to the event's JSON in its API group, and the result is
//! decoded again, as in `k8s.io/apiserver/pkg/endpoints/handlers/patch.go`. Refusals have the apiserver's codes and our
//! own texts. `validate` checks what an update may change, `upstream/store` the version.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod operations;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

/// The result of a patch, which is a decoded document.
pub use super::json::Decoded as Patched;
use super::json::{self, FieldValidation};
use super::{ApiGroup, Event, validate};
use crate::status::{Status, StatusCause, StatusDetails};

labelled! {
    /// The kinds of patch, by their Content-Type.
    pub enum PatchType {
        /// RFC 6902.
        Json = "application/json-patch+json",
        /// RFC 7386.
        Merge = "application/merge-patch+json",
        /// Kubernetes' own.
        StrategicMerge = "application/strategic-merge-patch+json",
    }
}

type Result<T> = std::result::Result<T, Box<Status>>;

impl PatchType {
    /// Returns the kind with this Content-Type, which has no parameters.
    pub fn named(media_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|patch| patch.label() == media_type)
    }
}

/// Applies the patch `body` to `current` in `group`.
///
/// # Errors
/// The apiserver's 400 for a body that is not a patch or names another event, 413 for too many operations, 422 for
/// operations that do not apply and for a result that is not an event, 500 for unknown directives.
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
    let mut faults = read.duplicates;
    match (patch, read.value) {
        (PatchType::Json, Value::Array(list)) => faults.extend(operations::carry_out(&mut document, list)?),
        (PatchType::Merge, patch @ Value::Object(_)) => json_patch::merge(&mut document, &patch),
        (PatchType::StrategicMerge, Value::Object(patch)) => by_strategy(&mut document, patch)?,
        (PatchType::StrategicMerge, Value::Null) => {}
        (PatchType::Json, _) => return Err(unreadable("a JSON patch is a list of operations")),
        (PatchType::Merge | PatchType::StrategicMerge, _) => return Err(unreadable("it is not an object")),
    }
    let text = document.to_string();
    let decoded = json::decode(group, text.as_bytes(), FieldValidation::Warn);
    let Patched { mut event, warnings: mut unknown } = decoded.map_err(|error| no_event(&error.message))?;
    unknown.sort_unstable();
    faults.extend(unknown);
    if validation == FieldValidation::Strict && !faults.is_empty() {
        return Err(no_event(&format!("strict decoding error: {}", faults.join(", "))));
    }
    validate::adopt_path(&mut event, &current.metadata.namespace, &current.metadata.name)?;
    let warnings = if validation == FieldValidation::Warn { faults } else { Vec::new() };
    Ok(Patched { event, warnings })
}

fn by_strategy(document: &mut Value, patch: Map<String, Value>) -> Result<()> {
    let Value::Object(event) = document else { return Ok(()) };
    strategic::merge(event, patch)?;
    // COMPAT(apiserver): a strategic merge patch cannot change the type of the event.
    for name in ["kind", "apiVersion"] {
        if event.remove(name).is_some_and(|value| !value.is_string()) {
            return Err(no_event(&format!("{name} is not a text")));
        }
    }
    Ok(())
}

/// Returns the 400 for a body that is not a patch.
fn unreadable(fault: &str) -> Box<Status> {
    Box::new(Status::bad_request(format!("the patch cannot be read: {fault}")))
}

/// Returns the 422 for a result that is not an event.
fn no_event(fault: &str) -> Box<Status> {
    let message = format!("Invalid value: {fault}");
    let text = format!("the event is invalid after the patch: {fault}");
    let cause = StatusCause { reason: "FieldValueInvalid".to_owned(), message, field: "patch".to_owned() };
    let details = StatusDetails { causes: vec![cause], ..StatusDetails::default() };
    Box::new(Status::new(422, "Invalid", text).with_details(details))
}
