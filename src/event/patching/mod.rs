//! Patches of an event as a client wrote them: what they make of it, with the apiserver's words for what they cannot.
//!
//! A patch is applied to the event as it is shown at the client's door, and the result decoded again, as
//! `k8s.io/apiserver/pkg/endpoints/handlers/patch.go` does. What an update may change is not looked at here (`validate`), nor
//! whether the version is the stored one (`upstream/store`). Apply patches are another matter.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod convert;
mod json_patch;
mod lists;
mod merge;
mod schema;
mod shown;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use super::json::{self, FieldValidation, Strictness, go};
use super::{ApiGroup, Event, OwnerReference, validate};
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

/// Applies the patch `body` to `current`, at the door of `group`.
///
/// # Errors
/// The apiserver's 400 for what is no patch or names another event, 413 for too many operations, 422 for what is no event
/// afterwards, 500 for directives that make no sense.
pub fn apply(
    patch: PatchType,
    body: &[u8],
    group: ApiGroup,
    validation: FieldValidation,
    current: &Event,
) -> Result<Patched> {
    let mut shown = Vec::new();
    json::write_json(group, current, &mut shown);
    let shown = json::tree(&shown).map_err(strategic::internal)?.value;
    let (mut event, faults) = match patch {
        PatchType::Json => by_operations(body, group, validation, shown)?,
        PatchType::Merge => by_merge(body, group, validation, shown)?,
        PatchType::StrategicMerge => by_strategy(body, group, validation, shown)?,
    };
    check_identity(&mut event, current)?;
    let mut warnings = if validation == FieldValidation::Warn { faults } else { Vec::new() };
    warnings.extend(dedup_owners(&mut event));
    Ok(Patched { event, warnings })
}

fn by_operations(
    body: &[u8],
    group: ApiGroup,
    validation: FieldValidation,
    mut document: Value,
) -> Result<(Event, Vec<String>)> {
    let strict = validation != FieldValidation::Ignore;
    let bad = |fault: &str| {
        let before = if strict { "error decoding patch: " } else { "" };
        Box::new(Status::bad_request(format!("{before}{fault}")))
    };
    let (list_type, item_type) = if strict {
        ("[]handlers.jsonPatchOp", "handlers.jsonPatchOp")
    } else {
        ("jsonpatch.Patch", "jsonpatch.Operation")
    };
    let read = json::tree(body).map_err(|fault| bad(&fault))?;
    let operations = match read.value {
        Value::Array(operations) => operations,
        Value::Null => Vec::new(),
        other => return Err(bad(&mismatch(&other, list_type))),
    };
    let mut faults = Vec::new();
    for (index, operation) in operations.iter().enumerate() {
        let members = match operation {
            Value::Object(members) => members,
            Value::Null => continue,
            other => return Err(bad(&mismatch(other, item_type))),
        };
        for (name, value) in members.iter().filter(|_| strict) {
            match name.as_str() {
                "op" | "path" | "from" if !(value.is_string() || value.is_null()) => {
                    let fault = format!("Go struct field jsonPatchOp.{name} of type string");
                    return Err(bad(&format!("json: cannot unmarshal {} into {fault}", kind_name(value))));
                }
                "op" | "path" | "from" | "value" => {}
                other => faults.push(format!("json patch unknown field {}", go::quote(&format!("[{index}].{other}")))),
            }
        }
    }
    faults.extend(read.duplicates.iter().map(|fault| format!("json patch {fault}")));
    if operations.len() > json_patch::OPERATIONS_MAX {
        let message = format!(
            "Request entity too large: The allowed maximum operations in a JSON patch is {}, got {}",
            json_patch::OPERATIONS_MAX,
            operations.len()
        );
        return Err(Box::new(Status::new(413, "RequestEntityTooLarge", message)));
    }
    json_patch::apply(&mut document, &operations).map_err(|_inapplicable| strategic::inapplicable())?;
    decode(group, validation, &document, faults)
}

fn by_merge(
    body: &[u8],
    group: ApiGroup,
    validation: FieldValidation,
    document: Value,
) -> Result<(Event, Vec<String>)> {
    const INVALID: &str = "Invalid JSON Patch";
    let strict = validation != FieldValidation::Ignore;
    let bad = |fault: &str| {
        let message = if strict { format!("error decoding patch: {fault}") } else { INVALID.to_owned() };
        Box::new(Status::bad_request(message))
    };
    let read = json::tree(body).map_err(|fault| bad(&fault))?;
    let faults = read.duplicates.iter().map(ToString::to_string).collect();
    match (document, read.value) {
        (Value::Object(mut merged), Value::Object(patch)) => {
            merge::merge(&mut merged, patch);
            decode(group, validation, &merged.into(), faults)
        }
        (_, Value::Null) => Err(Box::new(Status::bad_request(INVALID))),
        // Without the strict look at it a list takes the event's place, and is no event.
        (_, list @ Value::Array(_)) if !strict => decode(group, validation, &list, faults),
        (_, other) => Err(bad(&mismatch(&other, "map[string]interface {}"))),
    }
}

fn by_strategy(
    body: &[u8],
    group: ApiGroup,
    validation: FieldValidation,
    document: Value,
) -> Result<(Event, Vec<String>)> {
    let bad = |fault: String| Box::new(Status::bad_request(fault));
    let read = json::tree(body).map_err(bad)?;
    let mut patch = match read.value {
        Value::Object(members) => members,
        Value::Null => Map::new(),
        other => return Err(bad(mismatch(&other, "map[string]interface {}"))),
    };
    let Value::Object(mut merged) = document else { return Err(bad("no object".to_owned())) };
    strategic::merge(&mut merged, &mut patch, schema::Schema::Event)?;
    let refused = |patch: Map<String, Value>, fault: &str| invalid(&shown::shown(&Value::Object(patch)), fault);
    let mut merged = Value::Object(merged);
    let unknown = match convert::convert(group, &mut merged) {
        Ok(unknown) => unknown,
        Err(fault) => return Err(refused(patch, &fault)),
    };
    let faults: Vec<String> = read.duplicates.iter().map(ToString::to_string).chain(unknown).collect();
    if validation == FieldValidation::Strict && !faults.is_empty() {
        return Err(refused(patch, &format!("strict decoding error: {}", faults.join(", "))));
    }
    if let Value::Object(members) = &mut merged {
        // The Go value has a type of its own, and what these say is not looked at.
        members.remove("kind");
        members.remove("apiVersion");
    }
    match json::decode_event(group, merged.to_string().as_bytes()) {
        Ok(event) => Ok((event, faults)),
        Err(error) => Err(refused(patch, error.fault())),
    }
}

/// Decodes a patched document as the body of a request is, but with other words.
fn decode(
    group: ApiGroup,
    validation: FieldValidation,
    document: &Value,
    mut faults: Vec<String>,
) -> Result<(Event, Vec<String>)> {
    let text = document.to_string();
    let refused = |fault: &str| invalid(&go::escaped(&text), fault);
    let decoded = json::decode(group, text.as_bytes(), Strictness::Report).map_err(|error| refused(error.fault()))?;
    faults.extend(decoded.strict_faults.iter().map(ToString::to_string));
    if validation == FieldValidation::Strict && !faults.is_empty() {
        return Err(refused(&format!("strict decoding error: {}", faults.join(", "))));
    }
    Ok((decoded.event, faults))
}

/// 422 for a patch after which there is no event. COMPAT(apiserver): of no kind and no name.
fn invalid(value: &str, fault: &str) -> Box<Status> {
    let message = format!("Invalid value: {}: {fault}", go::quote(value));
    let text = format!(" \"\" is invalid: patch: {message}");
    let cause = StatusCause { reason: "FieldValueInvalid".to_owned(), message, field: "patch".to_owned() };
    let details = StatusDetails { causes: vec![cause], ..StatusDetails::default() };
    Box::new(Status::new(422, "Invalid", text).with_details(details))
}

fn mismatch(value: &Value, go_type: &str) -> String {
    format!("json: cannot unmarshal {} into Go value of type {go_type}", kind_name(value))
}

const fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A patch changes an event, it does not make it another one.
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

/// Owners told twice are told once; the warning names them.
fn dedup_owners(event: &mut Event) -> Option<String> {
    let rare = event.metadata.rare.as_deref_mut()?;
    let (mut kept, mut twice): (Vec<OwnerReference>, Vec<String>) = (Vec::new(), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for owner in std::mem::take(&mut rare.owner_references) {
        if !seen.insert(owner.uid.clone()) && kept.contains(&owner) {
            twice.push(owner.uid.to_string());
        } else {
            kept.push(owner);
        }
    }
    rare.owner_references = kept;
    (!twice.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner \
             references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) \
             observed: {}",
            twice.join(", ")
        )
    })
}
