//! Strategic merge patch: objects are merged member by member, and directives in the patch say where they are not. Mirrors
//! `k8s.io/apimachinery/pkg/util/strategicpatch/patch.go` (`mergeMap`), and its refusals in `handlers/patch.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use serde_json::{Map, Value};

use super::lists;
use super::schema::{ListStrategy, Schema};
use super::shown::shown;
use crate::status::{Status, StatusDetails};

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList";
const ELEMENT_ORDER: &str = "$setElementOrder";

type Object = Map<String, Value>;

/// Merges `patch` into `original`. Directives leave the patch on the way, as they do in Go, where refusals show what is left.
///
/// # Errors
/// The apiserver's 400, 422 or 500 for directives that make no sense.
pub(super) fn merge(original: &mut Object, patch: &mut Object, schema: Schema) -> Result<(), Box<Status>> {
    if let Some(directive) = patch.get(DIRECTIVE) {
        match directive.as_str() {
            Some("replace") => {
                patch.remove(DIRECTIVE);
                // A copy: the patch is shown in refusals.
                original.clone_from(patch);
            }
            Some("delete") => original.clear(),
            _ => return Err(unknown_directive(directive, patch)),
        }
        return Ok(());
    }
    retain_keys(original, patch)?;
    order_elements(original, patch, schema)?;
    for (name, value) in &mut *patch {
        let (name, deletes) = match name.strip_prefix(DELETE_FROM_LIST) {
            Some(rest) => {
                let rest = rest.strip_prefix('/').ok_or_else(|| bad_format("primitive list"))?;
                (rest, !rest.is_empty())
            }
            None => (name.as_str(), false),
        };
        if value.is_null() {
            original.remove(name);
            continue;
        }
        match (original.get_mut(name), value) {
            (Some(Value::Object(current)), Value::Object(value)) => {
                let (below, _) = member(schema, name)?;
                merge(current, value, below)?;
            }
            (Some(Value::Array(current)), Value::Array(value)) => {
                let (below, strategy) = member(schema, name)?;
                lists::merge(current, value, below, strategy, deletes)?;
            }
            (_, _) if deletes => {}
            (_, value) => {
                discard_nulls(value);
                match without_directives(value) {
                    Some(kept) => drop(original.insert(name.to_owned(), kept)),
                    None => drop(original.remove(name)),
                }
            }
        }
    }
    Ok(())
}

/// `$retainKeys`: members of the original that it does not name are removed.
fn retain_keys(original: &mut Object, patch: &mut Object) -> Result<(), Box<Status>> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(names) = directive else { return Err(bad_format("retainKeys")) };
    let names: std::collections::HashSet<&str> = names.iter().filter_map(Value::as_str).collect();
    let told = patch.iter().filter(|(name, value)| {
        !(value.is_null() || name.starts_with(DELETE_FROM_LIST) || name.starts_with(ELEMENT_ORDER))
    });
    for (name, _) in told {
        if !names.contains(name.as_str()) {
            return Err(bad_format("retainKeys"));
        }
    }
    original.retain(|name, _| names.contains(name.as_str()));
    Ok(())
}

/// `$setElementOrder/LIST`: the list is merged at once and put into this order.
fn order_elements(original: &mut Object, patch: &mut Object, schema: Schema) -> Result<(), Box<Status>> {
    let directives: Vec<String> = patch.keys().filter(|name| name.starts_with(ELEMENT_ORDER)).cloned().collect();
    for directive in directives {
        let Some(order) = patch.remove(&directive) else { continue };
        let order = list(order)?;
        let name = directive.strip_prefix(ELEMENT_ORDER).and_then(|rest| rest.strip_prefix('/'));
        let name = name.ok_or_else(|| bad_format("setElementOrder list"))?;
        let before = original.get(name).cloned().map(list).transpose()?;
        let mut told = patch.get(name).cloned().map(list).transpose()?;
        let (below, strategy) = member(schema, name)?;
        lists::check_order(told.as_deref().unwrap_or_default(), &order, strategy)?;
        let merged = match (&before, &mut told) {
            (None, None) => continue,
            // A copy: the order of what was there counts below.
            (Some(before), None) => before.clone(),
            (None, Some(told)) => told.iter().filter_map(without_directives).collect(),
            (Some(before), Some(told)) => {
                let mut merged = before.clone();
                lists::merge(&mut merged, told, below, strategy, false)?;
                merged
            }
        };
        let before = before.unwrap_or_default();
        lists::element_kind(&before, told.as_deref().unwrap_or_default())?;
        let ordered = lists::ordered(merged, &order, &before, strategy)?;
        original.insert(name.to_owned(), ordered.into());
        patch.remove(name);
    }
    Ok(())
}

/// Members that are null say nothing where there is nothing to remove.
fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(discard_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(discard_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The value without objects that carry a directive; `None` for such an object itself.
fn without_directives(value: &Value) -> Option<Value> {
    match value {
        Value::Object(members) if members.contains_key(DIRECTIVE) => None,
        Value::Object(members) => {
            let kept = members.iter().filter_map(|(name, value)| Some((name.clone(), without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(elements) => Some(elements.iter().filter_map(without_directives).collect()),
        other => Some(other.clone()),
    }
}

fn member(schema: Schema, name: &str) -> Result<(Schema, ListStrategy), Box<Status>> {
    schema.member(name).ok_or_else(|| {
        let text = format!("unable to find api field in struct {} for the json field \"{name}\"", schema.go_name());
        internal(text)
    })
}

fn list(value: Value) -> Result<Vec<Value>, Box<Status>> {
    match value {
        Value::Array(elements) => Ok(elements),
        other => Err(internal(format!("expected a []interface {{}}, but received a {}", lists::go_type(&other)))),
    }
}

/// The refusal of a `$patch` that is none of those that there are.
pub(super) fn unknown_directive(directive: &Value, within: &Object) -> Box<Status> {
    // Go's `%s` of what is no text.
    let unlike = || format!("%!s({}={})", lists::go_type(directive), shown(directive));
    let told = directive.as_str().map_or_else(unlike, str::to_owned);
    internal(format!("unknown patch type: {told} in map: {}", shown(&Value::Object(within.clone()))))
}

fn bad_format(of: &str) -> Box<Status> {
    Box::new(Status::bad_request(format!("invalid patch format of {of}")))
}

/// A fault that the apiserver does not expect, and answers as its own.
pub(super) fn internal(text: String) -> Box<Status> {
    Box::new(Status::new(500, "", text))
}

/// A 422 that does not say why.
pub(super) fn inapplicable() -> Box<Status> {
    let text = "the server rejected our request due to an error in our request";
    Box::new(Status::new(422, "Invalid", text).with_details(StatusDetails::default()))
}
