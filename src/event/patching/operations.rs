//! The operations of a JSON patch (RFC 6902), applied by `json_patch` within limits.

use json_patch::{PatchOperation, patch_unsafe};
use serde_json::Value;

use super::{Result, unreadable};
use crate::event::cut;
use crate::event::json::STRICT_FAULTS_MAX;
use crate::status::{Status, StatusDetails};

/// LIMIT: operations of one patch; more are refused with 413.
pub(super) const OPERATIONS_MAX: usize = 10_000;
/// LIMIT: bytes of all copies and moves of one patch; a patch with more does not apply.
const CARRIED_BYTES_MAX: usize = 3 << 20;
/// LIMIT: elements of all lists that operations add to or remove from, each counted as often as it may have to be moved;
/// a patch with more does not apply.
const SHIFTED_MAX: usize = 20_000_000;
/// LIMIT: depth of a patched document; a patch that exceeds it does not apply. Trees are walked by recursion.
pub(super) const DEPTH_MAX: usize = 256;
/// LIMIT: bytes of a fault that quotes the patch; the rest is cut.
const FAULT_BYTES_MAX: usize = 1024;

/// Applies all operations. Returns their unknown members, up to [`STRICT_FAULTS_MAX`]. Do not use the document after an
/// error.
pub(super) fn carry_out(document: &mut Value, operations: Vec<Value>) -> Result<Vec<String>> {
    if operations.len() > OPERATIONS_MAX {
        let number = operations.len();
        let text = format!("the patch has {number} operations; at most {OPERATIONS_MAX} are allowed");
        return Err(Box::new(Status::new(413, "RequestEntityTooLarge", text)));
    }
    if !operations.iter().all(Value::is_object) {
        return Err(unreadable("an operation is not an object"));
    }
    for name in ["op", "path", "from"] {
        // COMPAT(apiserver): null counts as absent.
        let is_text = |value: &Value| value.is_string() || value.is_null();
        if !operations.iter().filter_map(|operation| operation.get(name)).all(is_text) {
            return Err(unreadable(&format!("{name} of an operation is not a text")));
        }
    }
    let (mut unknown, mut work) = (Vec::new(), Work::default());
    for (index, operation) in operations.into_iter().enumerate() {
        let names = operation.as_object().into_iter().flat_map(serde_json::Map::keys);
        let others = names.filter(|name| !["op", "path", "from", "value"].contains(&name.as_str()));
        let others = others.take(STRICT_FAULTS_MAX.saturating_sub(unknown.len()));
        unknown.extend(others.map(|name| format!("json patch unknown field \"[{index}].{name}\"")));
        one(document, operation, &mut work).map_err(|fault| inapplicable(index, &fault))?;
    }
    Ok(unknown)
}

/// The work that the operations of a patch have caused, for its limits.
#[derive(Debug, Default)]
struct Work {
    carried: usize,
    shifted: usize,
}

fn one(document: &mut Value, operation: Value, work: &mut Work) -> std::result::Result<(), String> {
    let operation: PatchOperation = serde_json::from_value(operation).map_err(|fault| fault.to_string())?;
    let from = if let PatchOperation::Move(moving) = &operation { Some(&moving.from) } else { None };
    if !matches!(operation, PatchOperation::Replace(_) | PatchOperation::Test(_)) {
        let lists = from.into_iter().map(|from| &**from).chain([operation.path()]).filter_map(|path| path.parent());
        let lists = lists.filter_map(|list| document.pointer(list.as_str())?.as_array());
        work.shifted = lists.fold(work.shifted, |sum, list| sum.saturating_add(list.len()));
        if work.shifted > SHIFTED_MAX {
            return Err(format!("operations move more than {SHIFTED_MAX} elements of lists"));
        }
    }
    let placed = match &operation {
        PatchOperation::Add(add) => Some(&add.value),
        PatchOperation::Replace(replace) => Some(&replace.value),
        PatchOperation::Copy(copy) => document.pointer(copy.from.as_str()),
        PatchOperation::Move(moving) => document.pointer(moving.from.as_str()),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => None,
    };
    if let Some(value) = placed {
        if matches!(operation, PatchOperation::Copy(_) | PatchOperation::Move(_)) {
            work.carried = work.carried.saturating_add(value.to_string().len());
        }
        if work.carried > CARRIED_BYTES_MAX {
            return Err(format!("copies and moves have more than {CARRIED_BYTES_MAX} bytes"));
        }
        if depth(value).saturating_add(operation.path().count()) > DEPTH_MAX {
            return Err(format!("the event would be nested deeper than {DEPTH_MAX}"));
        }
    }
    patch_unsafe(document, &[operation]).map_err(|fault| format!("path '{}': {}", fault.path, fault.kind))
}

/// Returns the depth of nested objects and arrays.
fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Object(members) => members.values().map(depth).max(),
        Value::Array(elements) => elements.iter().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    below.unwrap_or(0).saturating_add(1)
}

/// Returns the apiserver's 422, which has no cause.
fn inapplicable(index: usize, fault: &str) -> Box<Status> {
    let text = format!("operation {index} of the patch does not apply: {}", cut(fault, FAULT_BYTES_MAX));
    Box::new(Status::new(422, "Invalid", text).with_details(StatusDetails::default()))
}
