//! Strategic merge patch of an Event: objects merge, and lists are replaced, except `finalizers`, which is a set, and
//! `ownerReferences`, whose elements are matched by `uid`. After `k8s.io/apimachinery/pkg/util/strategicpatch/patch.go`
//! (`mergeMap`).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Result;
use crate::status::Status;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM_LIST: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";
/// The merge key of list elements that are objects.
const MERGE_KEY: &str = "uid";

type Object = Map<String, Value>;

/// Merges `patch` into `original`.
///
/// # Errors
/// The apiserver's 400 or 500 for unknown and malformed directives.
pub(super) fn merge(original: &mut Object, mut patch: Object) -> Result<()> {
    match directive(patch.remove(DIRECTIVE).as_ref())? {
        Directive::Merge => {}
        Directive::Replace => original.clear(),
        Directive::Delete => {
            original.clear();
            return Ok(());
        }
    }
    if let Some(names) = patch.remove(RETAIN_KEYS) {
        let Value::Array(names) = names else { return Err(no_list(RETAIN_KEYS)) };
        let names: HashSet<&str> = names.iter().filter_map(Value::as_str).collect();
        let is_named =
            |name: &str| names.contains(name) || name.starts_with(DELETE_FROM_LIST) || name.starts_with(ELEMENT_ORDER);
        if patch.iter().any(|(name, value)| !value.is_null() && !is_named(name)) {
            let text = format!("the {RETAIN_KEYS} of a strategic merge patch names all members beside it");
            return Err(Box::new(Status::bad_request(text)));
        }
        original.retain(|name, _| names.contains(name.as_str()));
    }
    let orders = orders(original, &mut patch)?;
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM_LIST) {
            let Value::Array(gone) = value else { return Err(no_list(DELETE_FROM_LIST)) };
            if let Some(Value::Array(current)) = original.get_mut(list) {
                let gone: HashSet<String> = gone.iter().map(Value::to_string).collect();
                current.retain(|element| !gone.contains(&element.to_string()));
            }
            continue;
        }
        match (original.get_mut(&name), value) {
            (_, Value::Null) => drop(original.remove(&name)),
            (Some(Value::Object(current)), Value::Object(patch)) => merge(current, patch)?,
            (Some(Value::Array(current)), Value::Array(patch)) if is_merged(&name) => merge_list(current, patch)?,
            (_, value) => match fresh(value) {
                Some(value) => drop(original.insert(name, value)),
                None => drop(original.remove(&name)),
            },
        }
    }
    for Order { list, stated, former } in orders {
        if let Some(Value::Array(elements)) = original.get_mut(&list) {
            arrange(elements, &stated, &former);
        }
    }
    Ok(())
}

/// Whether the elements of this list are merged.
fn is_merged(list: &str) -> bool {
    matches!(list, "finalizers" | "ownerReferences")
}

/// Places of elements in a list, by their keys.
type Places = HashMap<String, usize>;

/// The `$setElementOrder` of a list: the stated places, and those before the patch.
struct Order {
    list: String,
    stated: Places,
    former: Places,
}

/// Takes the orders of lists from the patch.
fn orders(original: &Object, patch: &mut Object) -> Result<Vec<Order>> {
    let names: Vec<String> = patch.keys().filter(|name| name.starts_with(ELEMENT_ORDER)).cloned().collect();
    let take = |name: String| {
        let (_, list) = name.split_at(ELEMENT_ORDER.len());
        let (Some(Value::Array(stated)), true) = (patch.remove(&name), is_merged(list)) else {
            return Err(internal(&format!("{name} is not the order of a list with merged elements")));
        };
        let stated = places(&stated);
        let patched = patch.get(list).and_then(Value::as_array).into_iter().flatten();
        let patched = patched.filter(|element| element.get(DIRECTIVE).is_none());
        let found: Vec<_> = patched.map(|element| stated.get(&key_of(element))).collect();
        if found.contains(&None) || !found.is_sorted() {
            return Err(internal(&format!("the elements of {list} are not in the order that {name} states")));
        }
        let former = original.get(list).and_then(Value::as_array).map_or_else(Places::new, |former| places(former));
        Ok(Order { list: list.to_owned(), stated, former })
    };
    names.into_iter().map(take).collect()
}

fn places(elements: &[Value]) -> Places {
    let mut places = Places::new();
    for (place, element) in elements.iter().enumerate() {
        places.entry(key_of(element)).or_insert(place);
    }
    places
}

/// Orders a merged list (`normalizeElementOrder`): the `stated` elements by their places, and each other one before the
/// first of these that followed it in the `former` list.
fn arrange(elements: &mut Vec<Value>, stated: &Places, former: &Places) {
    let keyed = std::mem::take(elements).into_iter().map(|element| (key_of(&element), element));
    let (mut first, others): (Vec<_>, Vec<_>) = keyed.partition(|(key, _)| stated.contains_key(key));
    first.sort_by_key(|(key, _)| stated.get(key).copied());
    let mut first = first.into_iter().peekable();
    for (key, other) in others {
        let place = former.get(&key);
        let is_before =
            |next: &(String, Value)| place.is_none() || former.get(&next.0).is_none_or(|next| Some(next) < place);
        while let Some((_, next)) = first.next_if(is_before) {
            elements.push(next);
        }
        elements.push(other);
    }
    elements.extend(first.map(|(_, next)| next));
}

/// Returns the value of a member that did not exist, without nulls; `None` for an object with a directive, which has nothing
/// to direct (`removeDirectives`).
fn fresh(value: Value) -> Option<Value> {
    match value {
        Value::Object(members) if members.get(DIRECTIVE).is_some_and(|directive| !directive.is_null()) => None,
        Value::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| !value.is_null());
            Some(kept.filter_map(|(name, value)| Some((name, fresh(value)?))).collect::<Object>().into())
        }
        Value::Array(elements) => Some(elements.into_iter().filter_map(fresh).collect()),
        other => Some(other),
    }
}

/// Merges a set of plain values, or of objects with a merge key.
fn merge_list(current: &mut Vec<Value>, patch: Vec<Value>) -> Result<()> {
    if patch.iter().any(|element| element.get(DIRECTIVE).is_some_and(|directive| directive == "replace")) {
        current.clear();
    }
    let (stated, former) = (places(&patch), places(current));
    let mut known = former.clone();
    let mut gone = HashSet::new();
    for mut element in patch {
        let stated = element.as_object_mut().and_then(|members| members.remove(DIRECTIVE));
        let key = key_of(&element);
        match directive(stated.as_ref())? {
            Directive::Replace => {}
            Directive::Delete | Directive::Merge if element.is_object() && element.get(MERGE_KEY).is_none() => {
                return Err(internal(&format!("an element of the patch's list has no {MERGE_KEY}")));
            }
            Directive::Delete => drop(gone.insert(key)),
            Directive::Merge => {
                let found = known.get(&key).and_then(|place| current.get_mut(*place));
                match (found, element) {
                    (Some(Value::Object(found)), Value::Object(element)) => merge(found, element)?,
                    (Some(_), _) => {}
                    (None, element) => {
                        known.insert(key, current.len());
                        current.extend(fresh(element));
                    }
                }
            }
        }
    }
    current.retain(|element| !gone.contains(&key_of(element)));
    arrange(current, &stated, &former);
    Ok(())
}

fn key_of(element: &Value) -> String {
    element.get(MERGE_KEY).unwrap_or(element).to_string()
}

/// The directive of an object.
enum Directive {
    Merge,
    Replace,
    Delete,
}

fn directive(stated: Option<&Value>) -> Result<Directive> {
    match stated.map(Value::as_str) {
        None => Ok(Directive::Merge),
        Some(Some("replace")) => Ok(Directive::Replace),
        Some(Some("delete")) => Ok(Directive::Delete),
        Some(_) => Err(internal("a $patch directive of an object is \"replace\" or \"delete\"")),
    }
}

fn no_list(directive: &str) -> Box<Status> {
    Box::new(Status::bad_request(format!("the {directive} of a strategic merge patch is a list")))
}

/// COMPAT(apiserver): a 500 without a reason.
fn internal(text: &str) -> Box<Status> {
    Box::new(Status::new(500, "", text))
}
