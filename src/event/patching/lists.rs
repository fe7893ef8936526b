//! The lists of a strategic merge patch: an Event has finalizers, a set, and ownerReferences, matched by their uid. Mirrors
//! `mergeSlice` and what it calls in `k8s.io/apimachinery/pkg/util/strategicpatch/patch.go`, but finds elements by a table.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::schema::{ListStrategy, Schema};
use super::shown::shown;
use super::strategic::{self, inapplicable, internal, unknown_directive};
use crate::status::Status;

const DIRECTIVE: &str = "$patch";

/// Merges `patch` into `current`; `deletes` when its elements are to be taken away.
pub(super) fn merge(
    current: &mut Vec<Value>,
    patch: &mut Vec<Value>,
    schema: Schema,
    strategy: ListStrategy,
    deletes: bool,
) -> Result<(), Box<Status>> {
    if strategy == ListStrategy::Replace && !deletes {
        current.clone_from(patch);
        return Ok(());
    }
    if current.is_empty() && patch.is_empty() {
        return Ok(());
    }
    let is_objects = element_kind(current, patch)? == "map[string]interface {}";
    if !is_objects && deletes {
        let gone: HashSet<String> = patch.iter().map(Value::to_string).collect();
        current.retain(|element| !gone.contains(&element.to_string()));
        return Ok(());
    }
    let mut told = std::mem::take(patch);
    let mut merged = current.clone();
    if is_objects {
        let ListStrategy::MergeBy(key) = strategy else {
            return Err(internal(format!("cannot merge lists without merge key for {}", schema.go_name())));
        };
        told = directed(current, told, key)?;
        merged = matched(current.clone(), &mut told, key, schema)?;
    } else {
        merged.extend(told.iter().cloned());
        let mut seen = HashSet::new();
        merged.retain(|element| seen.insert(element.to_string()));
    }
    // What the patch tells of stands in its order, the rest in the old one.
    *current = ordered(merged, &told, current, strategy)?;
    *patch = told;
    Ok(())
}

/// Obeys the elements of `patch` that are directives, and returns the others.
fn directed(current: &mut Vec<Value>, patch: Vec<Value>, key: &'static str) -> Result<Vec<Value>, Box<Status>> {
    let (mut told, mut replaces) = (Vec::new(), false);
    for element in patch {
        let Value::Object(members) = &element else { continue };
        let Some(directive) = members.get(DIRECTIVE) else {
            told.push(element);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let gone = members.get(key).ok_or_else(|| no_merge_key(&element, key))?;
                current.retain(|kept| kept.get(key) != Some(gone));
            }
            Some("replace") => replaces = true,
            Some("merge") => return Err(internal("merging lists cannot yet be specified in the patch".to_owned())),
            _ => return Err(unknown_directive(directive, members)),
        }
    }
    if replaces {
        *current = std::mem::take(&mut told);
    }
    Ok(told)
}

/// Merges each object into the first one of the same key, or adds it.
fn matched(
    mut merged: Vec<Value>,
    patch: &mut [Value],
    key: &'static str,
    schema: Schema,
) -> Result<Vec<Value>, Box<Status>> {
    let mut places: HashMap<String, usize> = HashMap::new();
    for (place, element) in merged.iter().enumerate() {
        if let Some(found) = element.get(key) {
            places.entry(found.to_string()).or_insert(place);
        }
    }
    for element in patch {
        let found = element.get(key).ok_or_else(|| no_merge_key(element, key))?.to_string();
        let place = *places.entry(found).or_insert(merged.len());
        match (merged.get_mut(place), element) {
            (Some(Value::Object(current)), Value::Object(told)) => strategic::merge(current, told, schema)?,
            (_, element) => merged.push(element.clone()),
        }
    }
    Ok(merged)
}

/// `merged`, those that `order` names in its order, and the others in that of `before`; the two interleave as `before` has
/// them, and what is new comes as early as it may.
pub(super) fn ordered(
    merged: Vec<Value>,
    order: &[Value],
    before: &[Value],
    strategy: ListStrategy,
) -> Result<Vec<Value>, Box<Status>> {
    let (order, before) = (places(order, strategy)?, places(before, strategy)?);
    let mut named = Vec::new();
    let mut others = Vec::new();
    for element in merged {
        let key = key_of(&element, strategy)?;
        let old = before.get(&key).copied();
        match order.get(&key) {
            Some(place) => named.push((*place, old, element)),
            None => others.push((old, element)),
        }
    }
    named.sort_by_key(|(place, _, _)| *place);
    others.sort_by_key(|(old, _)| *old);
    let mut all = Vec::new();
    let mut others = others.into_iter().peekable();
    for (_, place, element) in named {
        let earlier = |old: &Option<usize>| matches!((old, place), (Some(old), Some(place)) if *old < place);
        while let Some((_, other)) = others.next_if(|(old, _)| earlier(old)) {
            all.push(other);
        }
        all.push(element);
    }
    all.extend(others.map(|(_, other)| other));
    Ok(all)
}

/// Whether the patch's list follows the order that the patch gives for it.
pub(super) fn check_order(patch: &[Value], order: &[Value], strategy: ListStrategy) -> Result<(), Box<Status>> {
    if patch.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for element in patch {
        if element.get(DIRECTIVE).is_some() {
            continue;
        }
        let key = key_of(element, strategy)?;
        loop {
            let Some(next) = rest.next() else {
                let [patch, order] = [patch, order].map(|list| shown(&Value::Array(list.to_vec())));
                let text =
                    format!("The order in patch list:\n{patch}\n doesn't match $setElementOrder list:\n{order}\n");
                return Err(internal(text));
            };
            if key_of(next, strategy)? == key {
                break;
            }
        }
    }
    Ok(())
}

/// Where each element stands first.
fn places(list: &[Value], strategy: ListStrategy) -> Result<HashMap<String, usize>, Box<Status>> {
    let mut places = HashMap::new();
    for (place, element) in list.iter().enumerate() {
        places.entry(key_of(element, strategy)?).or_insert(place);
    }
    Ok(places)
}

fn key_of(element: &Value, strategy: ListStrategy) -> Result<String, Box<Status>> {
    match (strategy, element) {
        (ListStrategy::MergeBy(key), Value::Object(members)) => {
            members.get(key).map(Value::to_string).ok_or_else(|| no_merge_key(element, key))
        }
        (ListStrategy::MergeBy(_), other) => {
            Err(internal(format!("expected a map[string]interface {{}}, but received a {}", go_type(other))))
        }
        (ListStrategy::MergeSet | ListStrategy::Replace, other) => Ok(other.to_string()),
    }
}

/// The Go type of all elements of two lists.
pub(super) fn element_kind(left: &[Value], right: &[Value]) -> Result<&'static str, Box<Status>> {
    let mut kinds = left.iter().chain(right).map(go_type);
    let first = kinds.next().ok_or_else(|| internal("no elements in any of the given slices".to_owned()))?;
    if first == "[]interface {}" {
        return Err(inapplicable());
    }
    if kinds.any(|kind| kind != first) {
        let [left, right] = [left, right].map(|list| shown(&Value::Array(list.to_vec())));
        return Err(internal(format!("list element types are not identical: [{left} {right}]")));
    }
    Ok(first)
}

fn no_merge_key(element: &Value, key: &str) -> Box<Status> {
    internal(format!("map: {} does not contain declared merge key: {key}", shown(element)))
}

/// The Go type that a value is read as.
pub(super) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}
