//! JSON merge patch (RFC 7386), with the particulars of `gopkg.in/evanphx/json-patch.v4/merge.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use serde_json::{Map, Value};

/// Merges `patch` into `document`. Members that are looked into end up in alphabetical order, in which unknown ones are told.
pub(super) fn merge(document: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (name, mut value) in patch {
        if value.is_null() {
            document.remove(&name);
            continue;
        }
        match document.get_mut(&name) {
            None | Some(Value::Null) => {
                prune(&mut value);
                document.insert(name, value);
            }
            Some(current) => merge_value(current, value),
        }
    }
    document.sort_keys();
}

fn merge_value(current: &mut Value, mut patch: Value) {
    match (&mut *current, patch) {
        (Value::Object(members), Value::Object(patch)) => return merge(members, patch),
        // COMPAT(apiserver): a list is taken as it is only in the place of an object; elsewhere nulls leave its objects.
        (Value::Object(_), other) => patch = other,
        (_, other) => {
            patch = other;
            prune(&mut patch);
        }
    }
    *current = patch;
}

/// Removes the members that are null: where there was nothing, there is nothing to remove.
fn prune(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(prune);
            members.sort_keys();
        }
        Value::Array(elements) => elements.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "rows of a table read better without references")]
    fn check(document: Value, patch: Value, expected: Value) {
        let (Value::Object(mut merged), Value::Object(patch)) = (document, patch) else { panic!("no object") };
        merge(&mut merged, patch);
        assert_eq!(Value::Object(merged), expected);
    }

    #[test]
    fn merges_as_rfc_7386_says() {
        // Its appendix A, as far as both are objects.
        check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}));
        check(json!({"a": "b"}), json!({"a": null}), json!({}));
        check(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
        check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}));
        check(json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}}));
        check(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
        check(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}));
        check(json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}}));
    }

    #[test]
    fn lists_keep_their_nulls_but_not_always_those_of_their_objects() {
        check(json!({}), json!({"a": [null, {"b": null}]}), json!({"a": [null, {}]}));
        check(json!({"a": {}}), json!({"a": [null, {"b": null}]}), json!({"a": [null, {"b": null}]}));
    }
}
