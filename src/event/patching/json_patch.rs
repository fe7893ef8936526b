//! JSON patch (RFC 6902), as `gopkg.in/evanphx/json-patch.v4/patch.go` understands it: laxer than the RFC, which is why no
//! library for it is used. A member that is not there can be replaced, an index may count from the end, and a copy of nothing
//! is null.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use serde_json::{Map, Value};

/// LIMIT: operations of one patch; more are refused with 413.
pub(super) const OPERATIONS_MAX: usize = 10_000;
/// LIMIT: bytes that all copies of one patch make together; a patch that copies more does not apply.
const COPIED_BYTES_MAX: usize = 3 << 20;
/// LIMIT: how deep a patched document may be; copies and moves could nest without end, and a tree is walked by recursion.
const DEPTH_MAX: usize = 256;

/// The patch does not apply. The apiserver says no more about it either.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inapplicable;

/// Carries out all operations, or none that matters: a document that was not patched to the end is of no use.
pub(super) fn apply(document: &mut Value, operations: &[Value]) -> Result<(), Inapplicable> {
    let mut patching = Patching { copied: 0, depth: depth(document) };
    for operation in operations {
        let Value::Object(operation) = operation else { return Err(Inapplicable) };
        patching.carry_out(document, operation)?;
    }
    if let Value::Object(members) = document {
        // As Go writes a map; refusals quote the document, and unknown members are told in its order.
        members.sort_keys();
    }
    Ok(())
}

struct Patching {
    /// Bytes copied so far.
    copied: usize,
    /// The document is not deeper than this.
    depth: usize,
}

impl Patching {
    fn carry_out(&mut self, document: &mut Value, operation: &Map<String, Value>) -> Result<(), Inapplicable> {
        let text = |name: &str| operation.get(name).and_then(Value::as_str).ok_or(Inapplicable);
        // A copy, because the patch is told of when the result cannot be decoded. A missing value is null.
        let value = || operation.get("value").cloned().unwrap_or_default();
        match text("op")? {
            "add" => {
                let value = value();
                let depth = depth(&value);
                self.place(document, text("path")?, value, depth)
            }
            "remove" => remove(document, text("path")?).map(drop),
            "replace" => self.replace(document, text("path")?, value()),
            "move" => {
                let moved = remove(document, text("from")?)?;
                self.place(document, text("path")?, moved, self.depth)
            }
            "copy" => {
                let copy = get(document, text("from")?)?.cloned().unwrap_or_default();
                self.copied = self.copied.saturating_add(copy.to_string().len());
                if self.copied > COPIED_BYTES_MAX {
                    return Err(Inapplicable);
                }
                self.place(document, text("path")?, copy, self.depth)
            }
            "test" => {
                let path = text("path")?;
                let found = if path.is_empty() { Some(&*document) } else { get(document, path)? };
                let expected = operation.get("value").unwrap_or(&Value::Null);
                if found.unwrap_or(&Value::Null) == expected { Ok(()) } else { Err(Inapplicable) }
            }
            _ => Err(Inapplicable),
        }
    }

    /// Adds a value that is not deeper than `added`.
    fn place(&mut self, document: &mut Value, path: &str, value: Value, added: usize) -> Result<(), Inapplicable> {
        match find(document, path)? {
            (Value::Object(members), key) => drop(members.insert(key, value)),
            (Value::Array(elements), key) if key == "-" => elements.push(value),
            (Value::Array(elements), key) => {
                let index = index(&key, elements.len().saturating_add(1))?;
                elements.insert(index, value);
            }
            _ => return Err(Inapplicable),
        }
        self.deepen(document, path, added)
    }

    fn replace(&mut self, document: &mut Value, path: &str, value: Value) -> Result<(), Inapplicable> {
        let added = depth(&value);
        if path.is_empty() {
            if !(value.is_object() || value.is_array()) {
                return Err(Inapplicable);
            }
            *document = value;
            self.depth = added;
            return Ok(());
        }
        match find(document, path)? {
            // COMPAT(apiserver): also where there is no such member.
            (Value::Object(members), key) => drop(members.insert(key, value)),
            (Value::Array(elements), key) => {
                let index = index(&key, elements.len())?;
                *elements.get_mut(index).ok_or(Inapplicable)? = value;
            }
            _ => return Err(Inapplicable),
        }
        self.deepen(document, path, added)
    }

    /// Something came to stand at `path`. It is looked at only when it may be too deep, since that takes a walk.
    fn deepen(&mut self, document: &Value, path: &str, added: usize) -> Result<(), Inapplicable> {
        self.depth = self.depth.max(added.saturating_add(path.matches('/').count()));
        if self.depth > DEPTH_MAX {
            self.depth = depth(document);
        }
        if self.depth > DEPTH_MAX { Err(Inapplicable) } else { Ok(()) }
    }
}

/// How many objects and arrays stand within each other. Recursion: the caller sees to it that it ends in time.
fn depth(value: &Value) -> usize {
    let below = match value {
        Value::Object(members) => members.values().map(depth).max(),
        Value::Array(elements) => elements.iter().map(depth).max(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return 0,
    };
    below.unwrap_or(0).saturating_add(1)
}

/// The container of what `path` names, and its key there.
fn find<'d>(document: &'d mut Value, path: &str) -> Result<(&'d mut Value, String), Inapplicable> {
    // COMPAT(apiserver): what stands before the first slash is not looked at.
    let (_, path) = path.split_once('/').ok_or(Inapplicable)?;
    let (parents, key) = path.rsplit_once('/').map_or((None, path), |(parents, key)| (Some(parents), key));
    let mut container = document;
    for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
        let part = unescaped(part);
        container = match container {
            Value::Object(members) => members.get_mut(&part).ok_or(Inapplicable)?,
            Value::Array(elements) => {
                let index = index(&part, elements.len())?;
                elements.get_mut(index).ok_or(Inapplicable)?
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Err(Inapplicable),
        };
    }
    Ok((container, unescaped(key)))
}

fn get<'d>(document: &'d mut Value, path: &str) -> Result<Option<&'d Value>, Inapplicable> {
    match find(document, path)? {
        (Value::Object(members), key) => Ok(members.get(&key)),
        (Value::Array(elements), key) => {
            let index = index(&key, elements.len())?;
            Ok(elements.get(index))
        }
        _ => Err(Inapplicable),
    }
}

fn remove(document: &mut Value, path: &str) -> Result<Value, Inapplicable> {
    match find(document, path)? {
        (Value::Object(members), key) => members.remove(&key).ok_or(Inapplicable),
        (Value::Array(elements), key) => {
            let index = index(&key, elements.len())?;
            Ok(elements.remove(index))
        }
        _ => Err(Inapplicable),
    }
}

/// An index below `length`; a negative one counts from there.
fn index(key: &str, length: usize) -> Result<usize, Inapplicable> {
    let given: isize = key.parse().map_err(|_not_a_number| Inapplicable)?;
    let found = if given < 0 { length.checked_sub(given.unsigned_abs()) } else { usize::try_from(given).ok() };
    found.filter(|index| *index < length).ok_or(Inapplicable)
}

/// Go's replacer goes over the text once, so that `~01` is `~1`.
fn unescaped(part: &str) -> String {
    part.split("~0").map(|piece| piece.replace("~1", "/")).collect::<Vec<_>>().join("~")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "rows of a table read better without references")]
    fn check(document: Value, operations: Value, expected: Option<Value>) {
        let mut patched = document;
        let Value::Array(operations) = operations else { panic!("no list") };
        let applied = apply(&mut patched, &operations);
        assert_eq!(applied.ok().map(|()| patched), expected, "{operations:?}");
    }

    #[test]
    fn operations_are_carried_out() {
        let document = || json!({"a": 1, "l": [1, 2], "o": {"x/y": 1, "~": 2}});
        let one = |operation: Value, expected: Value| check(document(), json!([operation]), Some(expected));
        let with = |name: &str, value: Value| {
            let mut document = document();
            document[name] = value;
            document
        };
        one(json!({"op": "add", "path": "/b", "value": {}}), with("b", json!({})));
        one(json!({"op": "add", "path": "/l/1", "value": 9}), with("l", json!([1, 9, 2])));
        one(json!({"op": "add", "path": "/l/-", "value": 9}), with("l", json!([1, 2, 9])));
        one(json!({"op": "add", "path": "/l/-1", "value": 9}), with("l", json!([1, 2, 9])));
        one(json!({"op": "add", "path": "/b"}), with("b", Value::Null));
        one(json!({"op": "replace", "path": "/b", "value": 9}), with("b", json!(9)));
        one(json!({"op": "replace", "path": "/l/-1", "value": 9}), with("l", json!([1, 9])));
        one(json!({"op": "replace", "path": "", "value": {}}), json!({}));
        one(json!({"op": "remove", "path": "/o/x~1y"}), with("o", json!({"~": 2})));
        one(json!({"op": "remove", "path": "/o/~0"}), with("o", json!({"x/y": 1})));
        one(json!({"op": "copy", "from": "/none", "path": "/b"}), with("b", Value::Null));
        one(json!({"op": "move", "from": "/a", "path": "/l/0"}), json!({"l": [1, 1, 2], "o": {"x/y": 1, "~": 2}}));
        one(json!({"op": "test", "path": "/none", "value": null}), document());
        one(json!({"op": "test", "path": "", "value": document()}), document());
    }

    #[test]
    fn what_does_not_apply_is_refused() {
        for operation in [
            json!({"op": "explode", "path": "/a"}),
            json!({"path": "/a"}),
            json!({"op": "add", "path": "", "value": {}}),
            json!({"op": "add", "value": {}}),
            json!({"op": "add", "path": "/none/b", "value": 1}),
            json!({"op": "add", "path": "/a/b", "value": 1}),
            json!({"op": "add", "path": "/l/4", "value": 1}),
            json!({"op": "replace", "path": "/l/2", "value": 1}),
            json!({"op": "replace", "path": "", "value": 1}),
            json!({"op": "remove", "path": "/none"}),
            json!({"op": "remove", "path": "/l/x"}),
            json!({"op": "remove", "path": "/l/-3"}),
            json!({"op": "move", "from": "/none", "path": "/b"}),
            json!({"op": "copy", "from": "", "path": "/b"}),
            json!({"op": "test", "path": "/a", "value": 2}),
            json!(null),
            json!(1),
        ] {
            check(json!({"a": 1, "l": [1, 2]}), json!([operation]), None);
        }
    }

    fn repeated(operations: &[Value], times: usize) -> Value {
        (0..times).flat_map(|_| operations.to_vec()).collect()
    }

    #[test]
    fn a_patch_cannot_nest_or_copy_without_end() {
        let nest = json!({"op": "copy", "from": "/a", "path": "/a/b"});
        check(json!({"a": {}}), Value::Array(vec![nest; DEPTH_MAX + 1]), None);
        let nest =
            [json!({"op": "add", "path": "/b", "value": {}}), json!({"op": "move", "from": "/a", "path": "/b/a"})];
        let back = [json!({"op": "move", "from": "/b", "path": "/a"})];
        let round: Vec<Value> = nest.into_iter().chain(back).collect();
        check(json!({"a": {}}), repeated(&round, DEPTH_MAX), None);
        // Shallow copies and moves may be many.
        let round =
            [json!({"op": "move", "from": "/a", "path": "/b"}), json!({"op": "move", "from": "/b", "path": "/a"})];
        check(json!({"a": {}}), repeated(&round, OPERATIONS_MAX / 2), Some(json!({"a": {}})));
        let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        check(json!({"a": ["x".repeat(1024)]}), Value::Array(vec![double; 20]), None);
    }
}
