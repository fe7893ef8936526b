//! Patches applied to one event: the particulars of lists and directives, refusals, and laws that hold for any patch.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn event() -> Event {
    let body = json!({
        "metadata": {
            "name": "p", "namespace": "shop", "finalizers": ["a/1", "a/2", "a/3"],
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"},
                {"apiVersion": "v1", "kind": "Pod", "name": "y", "uid": "2"},
            ],
        },
        "involvedObject": {"kind": "Pod", "name": "web-0", "namespace": "shop"},
        "reason": "BackOff", "message": "m", "count": 2, "type": "Warning",
        "source": {"component": "kubelet", "host": "node-1"},
    });
    json::decode(ApiGroup::Core, body.to_string().as_bytes(), Strictness::Refuse).unwrap().event
}

fn patched(patch: PatchType, body: &Value, validation: FieldValidation) -> Result<Patched> {
    apply(patch, body.to_string().as_bytes(), ApiGroup::Core, validation, &event())
}

/// The metadata that a strategic merge patch of it makes.
#[expect(clippy::needless_pass_by_value, reason = "rows of a table read better without references")]
fn metadata(patch: Value) -> std::result::Result<Value, (u16, String)> {
    let patched = patched(PatchType::StrategicMerge, &json!({"metadata": patch}), FieldValidation::Warn);
    let event = patched.map_err(|status| (status.code, status.message))?.event;
    let mut shown = Vec::new();
    json::write_json(ApiGroup::Core, &event, &mut shown);
    Ok(serde_json::from_slice::<Value>(&shown).unwrap()["metadata"].clone())
}

#[test]
fn finalizers_are_a_set_with_new_ones_first() {
    let check = |patch: Value, expected: &[&str]| {
        assert_eq!(metadata(patch).unwrap()["finalizers"], json!(expected));
    };
    check(json!({"finalizers": ["b/1", "a/2"]}), &["b/1", "a/1", "a/2", "a/3"]);
    check(json!({"finalizers": ["b/2", "b/1"]}), &["b/2", "b/1", "a/1", "a/2", "a/3"]);
    check(json!({"$deleteFromPrimitiveList/finalizers": ["a/2", "b/1"]}), &["a/1", "a/3"]);
    check(json!({"$setElementOrder/finalizers": ["a/3", "a/1"]}), &["a/2", "a/3", "a/1"]);
    check(
        json!({"$setElementOrder/finalizers": ["a/3", "b/1", "a/1"], "finalizers": ["b/1"]}),
        &["a/2", "a/3", "b/1", "a/1"],
    );
    assert_eq!(metadata(json!({"finalizers": null})).unwrap().get("finalizers"), None);
    let kept = metadata(json!({"$retainKeys": ["name", "namespace"]})).unwrap();
    assert_eq!(kept, json!({"name": "p", "namespace": "shop"}));
}

#[test]
fn owners_are_matched_by_uid() {
    let check = |patch: Value, expected: &[(&str, &str)]| {
        let metadata = metadata(patch).unwrap();
        let owners = metadata["ownerReferences"].as_array().cloned().unwrap_or_default();
        let owners: Vec<_> = owners.iter().map(|owner| (owner["uid"].as_str(), owner["name"].as_str())).collect();
        let expected: Vec<_> = expected.iter().map(|(uid, name)| (Some(*uid), Some(*name))).collect();
        assert_eq!(owners, expected);
    };
    check(json!({"ownerReferences": [{"uid": "2", "name": "z"}]}), &[("1", "x"), ("2", "z")]);
    check(json!({"ownerReferences": [{"uid": "3", "name": "z"}]}), &[("3", "z"), ("1", "x"), ("2", "y")]);
    check(json!({"ownerReferences": [{"uid": "1", "$patch": "delete"}]}), &[("2", "y")]);
    check(json!({"ownerReferences": [{"$patch": "replace"}, {"uid": "2", "name": "z"}]}), &[("2", "z")]);
    check(json!({"$setElementOrder/ownerReferences": [{"uid": "2"}, {"uid": "1"}]}), &[("2", "y"), ("1", "x")]);
}

#[test]
fn directives_that_make_no_sense_are_refused() {
    let check = |patch: Value, code: u16, text: &str| {
        let (told, message) = metadata(patch.clone()).unwrap_err();
        assert!(told == code && message.contains(text), "{patch}: {told} {message}");
    };
    check(json!({"$patch": "merge"}), 500, "unknown patch type: merge in map: map[$patch:merge]");
    check(json!({"$patch": 1}), 500, "unknown patch type: %!s(int64=1) in map: map[$patch:1]");
    check(json!({"$patch": "delete"}), 400, "name must be provided");
    check(json!({"$retainKeys": 1}), 400, "invalid patch format of retainKeys");
    check(json!({"$retainKeys": ["name"], "labels": {}}), 400, "invalid patch format of retainKeys");
    check(json!({"$deleteFromPrimitiveList": ["x"]}), 400, "invalid patch format of primitive list");
    check(json!({"$setElementOrder": ["x"]}), 400, "invalid patch format of setElementOrder list");
    check(json!({"$setElementOrder/none": ["x"]}), 500, "unable to find api field in struct ObjectMeta");
    check(json!({"$setElementOrder/finalizers": "x"}), 500, "expected a []interface {}, but received a string");
    check(json!({"$setElementOrder/finalizers": ["a"], "finalizers": ["b"]}), 500, "The order in patch list");
    check(json!({"finalizers": [["x"]]}), 500, "list element types are not identical: [[a/1 a/2 a/3] [[x]]]");
    check(json!({"finalizers": [1]}), 500, "list element types are not identical: [[a/1 a/2 a/3] [1]]");
    check(json!({"ownerReferences": [{}]}), 500, "does not contain declared merge key: uid");
    check(json!({"ownerReferences": [{"$patch": "merge"}]}), 500, "merging lists cannot yet be specified");
    check(json!({"ownerReferences": [{"$patch": "x", "uid": "1"}]}), 500, "unknown patch type: x");
}

#[test]
fn what_is_no_event_afterwards_is_quoted() {
    let check = |patch, body: Value, text: &str| {
        let status = patched(patch, &body, FieldValidation::Warn).unwrap_err();
        assert!(status.code == 422 && status.message.contains(text), "{body}: {}", status.message);
    };
    let fault = r#""map[count:x]": unrecognized type: int32"#;
    check(PatchType::StrategicMerge, json!({"count": "x"}), fault);
    let fault = r#"\"count\":\"x\","#;
    check(PatchType::Merge, json!({"count": "x"}), fault);
    let fault = "json: cannot unmarshal string into Go struct field Event.count of type int32";
    check(PatchType::Merge, json!({"count": "x"}), fault);
    check(PatchType::Json, json!([{"op": "add", "path": "/count", "value": "x"}]), fault);
    check(PatchType::Json, json!([{"op": "replace", "path": "", "value": []}]), "cannot unmarshal array");
    check(PatchType::Merge, json!({"kind": "Pod"}), "converting (v1.Pod) to (core.Event): unknown conversion");
}

#[test]
fn field_validation_tells_warns_or_keeps_silent() {
    let body = json!({"zz": 1, "source": {"aa": 1}});
    for patch in [PatchType::StrategicMerge, PatchType::Merge] {
        let warned = patched(patch, &body, FieldValidation::Warn).unwrap();
        assert_eq!(warned.warnings, [r#"unknown field "source.aa""#, r#"unknown field "zz""#]);
        assert!(patched(patch, &body, FieldValidation::Ignore).unwrap().warnings.is_empty());
        let refused = patched(patch, &body, FieldValidation::Strict).unwrap_err();
        let text = r#"strict decoding error: unknown field "source.aa", unknown field "zz""#;
        assert!(refused.code == 422 && refused.message.ends_with(text), "{}", refused.message);
    }
    let body = json!([{"op": "test", "path": "/count", "value": 2, "x": 1}]);
    let warned = patched(PatchType::Json, &body, FieldValidation::Warn).unwrap();
    assert_eq!(warned.warnings, [r#"json patch unknown field "[0].x""#]);
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"});
    let twice = json!({"metadata": {"ownerReferences": [owner, owner]}});
    let warned = patched(PatchType::Merge, &twice, FieldValidation::Ignore).unwrap();
    assert!(warned.warnings[0].ends_with("duplicate UID(s) observed: 1"), "{:?}", warned.warnings);
    assert_eq!(warned.event.metadata.rare.unwrap().owner_references.len(), 1);
}

#[test]
fn patches_that_cannot_be_read_are_400() {
    let check = |patch, body: &str, validation, text: &str| {
        let status = apply(patch, body.as_bytes(), ApiGroup::Core, validation, &event()).unwrap_err();
        assert_eq!((status.code, status.message.as_str()), (400, text), "{body}");
    };
    use FieldValidation::{Ignore, Warn};
    let list = "json: cannot unmarshal array into Go value of type map[string]interface {}";
    check(PatchType::StrategicMerge, "[1]", Warn, list);
    check(PatchType::Merge, "null", Warn, "Invalid JSON Patch");
    check(PatchType::Merge, "{", Ignore, "Invalid JSON Patch");
    check(PatchType::Merge, "1", Warn, &format!("error decoding patch: {}", list.replace("array", "number")));
    check(PatchType::Json, "{}", Ignore, "json: cannot unmarshal object into Go value of type jsonpatch.Patch");
    check(PatchType::Json, "[1]", Ignore, "json: cannot unmarshal number into Go value of type jsonpatch.Operation");
    let fault =
        "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string";
    check(PatchType::Json, r#"[{"op":1}]"#, Warn, fault);
}

/// Documents that look like patches: names and texts are mostly ones that mean something.
fn document() -> impl Strategy<Value = Value> {
    let name = || {
        prop::sample::select(vec![
            "metadata",
            "labels",
            "finalizers",
            "ownerReferences",
            "uid",
            "name",
            "source",
            "series",
            "count",
            "message",
            "component",
            "eventTime",
            "op",
            "path",
            "from",
            "value",
            "$patch",
            "$retainKeys",
            "$setElementOrder/finalizers",
            "$setElementOrder/ownerReferences",
            "$deleteFromPrimitiveList/finalizers",
            "x",
        ])
    };
    let text = prop::sample::select(vec![
        "",
        "a",
        "p",
        "1",
        "delete",
        "replace",
        "merge",
        "/metadata",
        "/metadata/finalizers/-",
        "/metadata/finalizers/-1",
        "/source/x",
        "add",
        "remove",
        "move",
        "copy",
        "test",
        "finalizers",
        "2024-05-01T10:00:00Z",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e30..1e30).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name(), inner), 0..6)
                .prop_map(|members| members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()),
        ]
    })
}

fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2048) }
}

const TYPES: [PatchType; 3] = [PatchType::Json, PatchType::Merge, PatchType::StrategicMerge];

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_is_sent_is_applied_or_refused(body in document(), at_core in any::<bool>(), strict in any::<bool>()) {
        let group = if at_core { ApiGroup::Core } else { ApiGroup::Events };
        let validation = if strict { FieldValidation::Strict } else { FieldValidation::Ignore };
        for patch in TYPES {
            match apply(patch, body.to_string().as_bytes(), group, validation, &event()) {
                Ok(patched) => prop_assert_eq!(patched.event.metadata.name, "p"),
                Err(status) => prop_assert!([400, 413, 422, 500].contains(&status.code)),
            }
        }
    }

    #[test]
    fn a_merge_patch_leaves_nothing_to_do(document in document(), patch in document()) {
        let (Value::Object(mut once), Value::Object(patch)) = (document, patch) else { return Ok(()) };
        merge::merge(&mut once, patch.clone());
        for (name, value) in &patch {
            match value {
                Value::Null => prop_assert!(!once.contains_key(name)),
                Value::Object(_) | Value::Array(_) => prop_assert!(once.contains_key(name)),
                leaf => prop_assert_eq!(once.get(name), Some(leaf)),
            }
        }
        let mut again = once.clone();
        merge::merge(&mut again, Map::new());
        prop_assert_eq!(&again, &once);
    }

    #[test]
    fn a_patch_without_operations_and_directives_is_idempotent(body in document()) {
        let body = body.to_string();
        for patch in [PatchType::Merge, PatchType::StrategicMerge] {
            if patch == PatchType::StrategicMerge && body.contains('$') {
                continue;
            }
            let once = |current: &Event| {
                apply(patch, body.as_bytes(), ApiGroup::Core, FieldValidation::Ignore, current)
            };
            if let Ok(first) = once(&event()) {
                let mut second = once(&first.event).unwrap().event;
                second.type_meta = first.event.type_meta;
                prop_assert_eq!(second, first.event, "{}", body);
            }
        }
    }
}

#[test]
fn a_patch_of_nothing_or_of_the_event_itself_changes_nothing() {
    let current = event();
    let mut own = Vec::new();
    json::write_json(ApiGroup::Core, &current, &mut own);
    let own = String::from_utf8(own).unwrap();
    for (patch, body) in [
        (PatchType::Json, "[]"),
        (PatchType::Json, "null"),
        (PatchType::Merge, "{}"),
        (PatchType::Merge, own.as_str()),
        (PatchType::StrategicMerge, "{}"),
        (PatchType::StrategicMerge, "null"),
        (PatchType::StrategicMerge, own.as_str()),
    ] {
        let patched = apply(patch, body.as_bytes(), ApiGroup::Core, FieldValidation::Strict, &current).unwrap();
        assert_eq!(Event { type_meta: None, ..patched.event }, current, "{patch:?} {body}");
    }
}
