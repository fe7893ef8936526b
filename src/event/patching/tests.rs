//! Patches of one event: lists and directives, refusals, and properties of every patch. `tests/api` replays recorded
//! ones.

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
    json::decode(ApiGroup::Core, body.to_string().as_bytes(), FieldValidation::Strict).unwrap().event
}

fn patched(patch: PatchType, body: &Value, validation: FieldValidation) -> Result<Patched> {
    apply(patch, body.to_string().as_bytes(), ApiGroup::Core, validation, &event())
}

/// Returns the metadata after a strategic merge patch of it.
#[expect(clippy::needless_pass_by_value, reason = "rows of a table read better without references")]
fn metadata(patch: Value) -> std::result::Result<Value, (u16, String)> {
    let patched = patched(PatchType::StrategicMerge, &json!({"metadata": patch}), FieldValidation::Warn);
    let event = patched.map_err(|status| (status.code, status.message))?.event;
    let mut shown = Vec::new();
    json::write_json(ApiGroup::Core, &event, &mut shown);
    Ok(serde_json::from_slice::<Value>(&shown).unwrap()["metadata"].clone())
}

#[test]
fn elements_of_a_set_are_deleted_by_value() {
    let metadata = metadata(json!({"$deleteFromPrimitiveList/finalizers": ["a/2", "b/1"]})).unwrap();
    assert_eq!(metadata["finalizers"], json!(["a/1", "a/3"]));
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
    check(json!({"ownerReferences": [{"uid": "9", "$patch": "delete"}]}), &[("1", "x"), ("2", "y")]);
    check(json!({"ownerReferences": [{"$patch": "replace"}, {"uid": "2", "name": "z"}]}), &[("2", "z")]);
}

#[test]
fn directives_replace_and_delete_objects() {
    let source = |patch: Value| {
        let patched = patched(PatchType::StrategicMerge, &json!({"source": patch}), FieldValidation::Strict).unwrap();
        let source = patched.event.source;
        (source.component.to_string(), source.host.to_string())
    };
    assert_eq!(source(json!({"$patch": "replace", "component": "c"})), ("c".into(), String::new()));
    // Deleting a missing member does not create it.
    let patch = json!({"series": {"$patch": "delete"}, "related": {"name": "x", "uid": null}});
    let event = patched(PatchType::StrategicMerge, &patch, FieldValidation::Strict).unwrap().event;
    assert_eq!((event.series, event.related.unwrap().name.as_str()), (None, "x"));
}

#[test]
fn directives_that_make_no_sense_are_refused() {
    let check = |patch: Value, code: u16, text: &str| {
        let (given, message) = metadata(patch.clone()).unwrap_err();
        assert!(given == code && message.contains(text), "{patch}: {given} {message}");
    };
    check(json!({"$patch": 1}), 500, "\"replace\" or \"delete\"");
    check(json!({"$patch": "delete"}), 400, "name must be provided");
    check(json!({"$retainKeys": 1}), 400, "$retainKeys");
    check(json!({"$retainKeys": ["name"], "labels": {}}), 400, "$retainKeys");
    check(json!({"$deleteFromPrimitiveList/finalizers": "x"}), 400, "$deleteFromPrimitiveList");
    check(json!({"finalizers": [["x"]]}), 422, "metadata.finalizers[0]: invalid type: sequence");
    check(json!({"ownerReferences": [{}]}), 500, "no uid");
    check(json!({"ownerReferences": [{"$patch": "x", "uid": "1"}]}), 500, "\"replace\" or \"delete\"");
}

#[test]
fn a_result_that_is_not_an_event_is_refused_with_its_path() {
    for (patch, body, text) in [
        (PatchType::Merge, json!({"count": "x"}), "count: expected a whole number of 32 bits, found"),
        (PatchType::Json, json!([{"op": "replace", "path": "", "value": []}]), "invalid type: sequence"),
        (PatchType::Merge, json!({"kind": "Pod"}), "expected an object of kind Event"),
        (PatchType::StrategicMerge, json!({"kind": 1}), "kind is not a text"),
        (PatchType::StrategicMerge, json!({"apiVersion": {}}), "apiVersion is not a text"),
    ] {
        let status = patched(patch, &body, FieldValidation::Warn).unwrap_err();
        assert!(status.code == 422 && status.message.contains(text), "{body}: {}", status.message);
    }
}

#[test]
fn unknown_members_are_sorted_and_can_be_ignored() {
    let warnings = |validation| {
        let body = json!({"zz": 1, "source": {"aa": 1}});
        patched(PatchType::StrategicMerge, &body, validation).unwrap().warnings
    };
    assert_eq!(warnings(FieldValidation::Warn), [r#"unknown field "source.aa""#, r#"unknown field "zz""#]);
    assert!(warnings(FieldValidation::Ignore).is_empty());
}

#[test]
fn operations_that_do_not_apply_are_422_and_name_themselves() {
    let check = |operations: Value, text: &str| {
        let status = patched(PatchType::Json, &operations, FieldValidation::Warn).unwrap_err();
        assert!(status.code == 422 && status.message.contains(text), "{operations}: {}", status.message);
    };
    let good = json!({"op": "test", "path": "/count", "value": 2});
    check(
        json!([good, {"op": "explode", "path": "/count"}]),
        "operation 1 of the patch does not apply: unknown variant",
    );
    check(json!([{"op": "move", "from": "/none", "path": "/reason"}]), "\"from\" path is invalid");
    check(json!([{"op": "add", "path": "reason", "value": "x"}]), "operation 0");
    // As seen from kube-apiserver: the whole list is read before the first operation.
    for malformed in [json!({"op": 1}), json!({"path": {}}), json!({"from": [null]})] {
        let operations = json!([{"op": "test", "path": "/count", "value": 9}, malformed]);
        let status = patched(PatchType::Json, &operations, FieldValidation::Warn).unwrap_err();
        assert!(status.code == 400 && status.message.contains("is not a text"), "{malformed}: {}", status.message);
    }
    // A long path is cut.
    let path = format!("/{}", "x/".repeat(5000));
    let status = patched(PatchType::Json, &json!([{"op": "remove", "path": path}]), FieldValidation::Warn).unwrap_err();
    assert!(status.code == 422 && status.message.len() < 1100, "{}", status.message);
}

#[test]
fn a_patch_is_limited_in_depth_bytes_and_operations() {
    let check = |operations: Vec<Value>, code: u16, text: &str| {
        let status = patched(PatchType::Json, &operations.into(), FieldValidation::Ignore).unwrap_err();
        assert!(status.code == code && status.message.contains(text), "{}", status.message);
    };
    let nest = json!({"op": "copy", "from": "/source", "path": "/source/x"});
    check(vec![nest; operations::DEPTH_MAX], 422, "nested deeper");
    let round = [
        json!({"op": "add", "path": "/x", "value": {}}),
        json!({"op": "move", "from": "/source", "path": "/x/source"}),
        json!({"op": "move", "from": "/x", "path": "/source"}),
    ];
    check(round.iter().cycle().take(3 * operations::DEPTH_MAX).cloned().collect(), 422, "nested deeper");
    let double = json!({"op": "copy", "from": "/metadata", "path": "/metadata/x"});
    let fill = json!({"op": "add", "path": "/metadata/y", "value": "x".repeat(1 << 20)});
    check(vec![fill, double.clone(), double], 422, "copies and moves");
    let list = json!({"op": "add", "path": "/metadata/finalizers", "value": vec!["a/b"; 3_000]});
    let first = json!({"op": "move", "from": "/metadata/finalizers/0", "path": "/metadata/finalizers/2999"});
    check([vec![list], vec![first; 9_999]].concat(), 422, "elements of lists");
    let test = json!({"op": "test", "path": "/count", "value": 2});
    check(vec![test.clone(); operations::OPERATIONS_MAX + 1], 413, "10001 operations");
    assert!(patched(PatchType::Json, &vec![test; operations::OPERATIONS_MAX].into(), FieldValidation::Ignore).is_ok());
}

/// Fault: an operation of 3 MiB could have a hundred thousand unknown members, each with a warning.
#[test]
fn unknown_members_of_operations_are_reported_up_to_a_limit() {
    let mut operation = json!({"op": "test", "path": "/count", "value": 2});
    for number in 0..60 {
        operation[format!("x{number}")] = json!(1);
    }
    let warned = patched(PatchType::Json, &json!([operation, operation]), FieldValidation::Warn).unwrap().warnings;
    assert_eq!(warned.len(), 100);
    assert_eq!(warned.last().unwrap(), r#"json patch unknown field "[1].x39""#);
}

/// Generates documents that resemble patches, with meaningful names and texts.
fn document() -> impl Strategy<Value = Value> {
    const NAMES: &str = "metadata labels finalizers ownerReferences uid name source series count message component \
        eventTime op path from value $patch $retainKeys $setElementOrder/finalizers \
        $setElementOrder/ownerReferences $deleteFromPrimitiveList/finalizers x";
    const TEXTS: &str = "a p 1 delete replace merge /metadata /metadata/finalizers/- /metadata/finalizers/-1 /source/x \
        add remove move copy test finalizers 2024-05-01T10:00:00Z";
    let name = || prop::sample::select(NAMES.split(' ').collect::<Vec<_>>());
    let text = prop_oneof![1 => Just(""), 17 => prop::sample::select(TEXTS.split(' ').collect::<Vec<_>>())];
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

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_patch_is_applied_or_refused(body in document(), at_core in any::<bool>(), strict in any::<bool>()) {
        let group = if at_core { ApiGroup::Core } else { ApiGroup::Events };
        let validation = if strict { FieldValidation::Strict } else { FieldValidation::Ignore };
        for patch in PatchType::ALL {
            match apply(patch, body.to_string().as_bytes(), group, validation, &event()) {
                Ok(patched) => prop_assert_eq!(patched.event.metadata.name, "p"),
                Err(status) => prop_assert!([400, 413, 422, 500].contains(&status.code)),
            }
        }
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
