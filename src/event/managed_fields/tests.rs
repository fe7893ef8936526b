//! Accounts as recorded, and what holds for every set.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::set::Field;
use super::*;
use crate::event::json::decode_event;
use crate::event::{ApiGroup, Event, EventSeries};

fn event(door: ApiGroup, body: &Value) -> Event {
    decode_event(door, body.to_string().as_bytes()).unwrap()
}

/// The account as the API shows it.
fn shown(account: &ManagedFields) -> Value {
    let mut event = Event::default();
    event.metadata.managed_fields.clone_from(account);
    let mut body = Vec::new();
    crate::event::json::write_json(ApiGroup::Core, &event, &mut body);
    serde_json::from_slice::<Value>(&body).unwrap()["metadata"]["managedFields"].clone()
}

/// The same with an account by `manager` as of `time`.
fn written(door: ApiGroup, old: Option<&Event>, mut new: Event, manager: &str, time: i64) -> Event {
    new.metadata.managed_fields = update(door, old, &new, manager, Time(time));
    new
}

fn managers(event: &Event) -> Vec<(String, String, i64)> {
    let entries = event.metadata.managed_fields.iter().flat_map(|entries| entries.iter());
    let each = entries.map(|entry| {
        let fields = entry.fields.as_deref().unwrap_or_default();
        (entry.manager.to_string(), fields.to_owned(), entry.time.map_or(-1, |Time(seconds)| seconds))
    });
    each.collect()
}

fn entry(manager: &str, fields: &str, time: i64) -> (String, String, i64) {
    (manager.to_owned(), fields.to_owned(), time)
}

#[test]
fn creates_are_accounted_for_as_recorded() {
    let mut checked = 0;
    for vectors in [
        include_str!("../../../tests/vectors/api/create-core.jsonl"),
        include_str!("../../../tests/vectors/api/create-group.jsonl"),
        include_str!("../../../tests/vectors/api/create-times.jsonl"),
        include_str!("../../../tests/vectors/api/cross.jsonl"),
    ] {
        for line in vectors.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let steps = case["steps"].as_array().unwrap().iter();
            for step in steps.filter(|step| step["request"]["method"] == "POST" && step["response"]["status"] == 201) {
                let (path, body) = (step["request"]["path"].as_str().unwrap(), &step["request"]["body"]);
                let expected = &step["response"]["body"]["metadata"]["managedFields"];
                if !path.ends_with("/events") || body["kind"] != "Event" || expected.is_null() {
                    continue;
                }
                let door = if path.starts_with("/apis/") { ApiGroup::Events } else { ApiGroup::Core };
                // Whose name that is, is another topic.
                let manager = expected[0]["manager"].as_str().unwrap();
                let mut account = shown(&update(door, None, &event(door, body), manager, Time(1)));
                account[0]["time"] = "<time>".into();
                // Texts, because the order counts.
                assert_eq!(account.to_string(), expected.to_string(), "{}", case["id"]);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 59);
}

#[test]
fn a_writer_owns_what_it_changed_and_others_lose_it() {
    let created = written(ApiGroup::Core, None, event(ApiGroup::Core, &json!({"count": 1, "reason": "A"})), "a", 1);
    assert_eq!(managers(&created), [entry("a", r#"{"f:count":{},"f:reason":{}}"#, 1)]);
    let counted = written(ApiGroup::Core, Some(&created), Event { count: 2, ..created.clone() }, "b", 2);
    assert_eq!(managers(&counted), [entry("a", r#"{"f:reason":{}}"#, 1), entry("b", r#"{"f:count":{}}"#, 2)]);
    // Who changes nothing owns nothing more, and its time stays.
    let same = written(ApiGroup::Core, Some(&counted), counted.clone(), "c", 3);
    assert_eq!(same, counted);
    // What is removed is owned by nobody, and no time is renewed for it.
    let removed = written(ApiGroup::Core, Some(&counted), Event { count: 0, ..counted.clone() }, "a", 4);
    assert_eq!(managers(&removed), [entry("a", r#"{"f:reason":{}}"#, 1)]);
    // A time set to null is a value, unlike an empty text.
    let timed = Event { last_timestamp: Some(Time(7)), ..removed.clone() };
    let timed = written(ApiGroup::Core, Some(&removed), timed, "b", 5);
    let untimed = written(ApiGroup::Core, Some(&timed), Event { last_timestamp: None, ..timed.clone() }, "a", 6);
    assert_eq!(managers(&untimed), [entry("a", r#"{"f:lastTimestamp":{},"f:reason":{}}"#, 6)]);
}

#[test]
fn a_write_through_the_other_door_ends_the_account() {
    let old = json!({"count": 1, "reason": "A", "involvedObject": {"name": "x"}});
    let created = written(ApiGroup::Core, None, event(ApiGroup::Core, &old), "a", 1);
    // Recorded as cross-put-group-on-core: nothing changed, and nobody owns anything.
    let untouched = written(ApiGroup::Events, Some(&created), created.clone(), "a", 2);
    assert_eq!(untouched.metadata.managed_fields, None);
    let series = Some(EventSeries { count: 2, last_observed_time: None });
    let changed = written(ApiGroup::Events, Some(&created), Event { series, ..created.clone() }, "a", 2);
    let expected = r#"{"f:series":{".":{},"f:count":{},"f:lastObservedTime":{}}}"#;
    assert_eq!(managers(&changed), [entry("a", expected, 2)]);
    // An account once ended is not begun again.
    let later = Event { count: 9, ..untouched.clone() };
    assert_eq!(written(ApiGroup::Core, Some(&untouched), later, "b", 3).metadata.managed_fields, None);
}

#[test]
fn what_a_client_sends_is_the_account_that_its_write_goes_on_from() {
    let created = written(ApiGroup::Core, None, event(ApiGroup::Core, &json!({"count": 1, "reason": "A"})), "a", 1);
    let check = |sent: Value, expected: &[(String, String, i64)]| {
        let mut body = json!({"count": 2, "reason": "A"});
        body["metadata"] = json!({"managedFields": sent});
        let written = written(ApiGroup::Core, Some(&created), event(ApiGroup::Core, &body), "b", 2);
        assert_eq!(managers(&written), expected, "{body}");
    };
    let kept = [entry("a", r#"{"f:reason":{}}"#, 1), entry("b", r#"{"f:count":{}}"#, 2)];
    check(Value::Null, &kept);
    // Reset.
    check(json!([]), &[]);
    check(json!([{}]), &[]);
    // Not readable.
    check(json!([{"manager": "x", "operation": "Update", "apiVersion": "v1"}]), &kept);
    check(json!([{"manager": "x", "operation": "Create", "apiVersion": "v1", "fieldsType": "FieldsV1"}]), &kept);
    let entry_of_x = json!({"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
        "fieldsV1": {"f:reason": {}, "f:unknown": {}, "f:count": {}}});
    check(json!([entry_of_x]), &[entry("x", r#"{"f:reason":{}}"#, -1), entry("b", r#"{"f:count":{}}"#, 2)]);
}

fn applied(
    live: Option<&Event>,
    document: &Value,
    manager: &str,
    force: bool,
    time: i64,
) -> Result<Event, Vec<Conflict>> {
    let event = event(ApiGroup::Core, document);
    Application { door: ApiGroup::Core, document, event: &event, manager, force }.merge(live, Time(time))
}

#[test]
fn an_applier_owns_what_it_applies_and_loses_what_it_applies_no_more() {
    let first =
        json!({"reason": "A", "series": {"count": 2}, "metadata": {"labels": {"a": "1"}, "finalizers": ["x/y"]}});
    let created = applied(None, &first, "m", false, 1).unwrap();
    let metadata = r#""f:metadata":{"f:finalizers":{"v:\"x/y\"":{}},"f:labels":{"f:a":{}}},"f:reason":{}"#;
    assert_eq!(managers(&created), [entry("m", &format!(r#"{{{metadata},"f:series":{{"f:count":{{}}}}}}"#), 1)]);
    // The same again changes nothing, not even a time.
    assert_eq!(applied(Some(&created), &first, "m", false, 2), Ok(created.clone()));
    let labelled = json!({"reason": "A", "metadata": {"labels": {"b": "2"}}});
    let changed = applied(Some(&created), &labelled, "m", false, 3).unwrap();
    let rare = changed.metadata.rare.as_deref().unwrap();
    assert_eq!((rare.labels.len(), rare.labels["b"].as_str(), rare.finalizers.len()), (1, "2", 0));
    assert_eq!((changed.series.as_ref(), changed.reason.as_str()), (None, "A"));
    assert_eq!(managers(&changed), [entry("m", r#"{"f:metadata":{"f:labels":{"f:b":{}}},"f:reason":{}}"#, 3)]);
    // What another applier wants too stays.
    let shared = applied(Some(&changed), &json!({"reason": "A"}), "n", false, 4).unwrap();
    let left = applied(Some(&shared), &json!({"metadata": {}}), "m", false, 5).unwrap();
    assert_eq!((left.reason.as_str(), left.metadata.rare.as_deref()), ("A", None));
    assert_eq!(managers(&left), [entry("n", r#"{"f:reason":{}}"#, -1)]);
}

#[test]
fn what_others_own_is_taken_by_force_only() {
    let created = written(ApiGroup::Core, None, event(ApiGroup::Core, &json!({"count": 1, "reason": "A"})), "a", 1);
    let wanted = json!({"count": 2, "reason": "B", "message": "m"});
    let conflicts = applied(Some(&created), &wanted, "m", false, 2).unwrap_err();
    let expected = Conflict { manager: r#""a" using v1"#.into(), paths: vec![".count".into(), ".reason".into()] };
    assert_eq!(conflicts, [expected]);
    let forced = applied(Some(&created), &wanted, "m", true, 2).unwrap();
    assert_eq!(managers(&forced), [entry("m", r#"{"f:count":{},"f:message":{},"f:reason":{}}"#, 2)]);
    // An equal value is owned together.
    let shared = applied(Some(&created), &json!({"count": 1}), "m", false, 2).unwrap();
    assert_eq!(
        managers(&shared),
        [entry("m", r#"{"f:count":{}}"#, -1), entry("a", r#"{"f:count":{},"f:reason":{}}"#, 1)]
    );
    // Where nobody is known, what is there belongs to somebody before.
    let unknown = Event { count: 1, ..Event::default() };
    let conflicts = applied(Some(&unknown), &json!({"count": 2}), "m", false, 2).unwrap_err();
    assert_eq!(conflicts[0].manager, r#""before-first-apply" using v1"#);
}

#[test]
fn tens_of_thousands_of_finalizers_and_owners_are_applied_and_removed() {
    // Each looked for among all others took minutes of a debug build, under the lock of the embedded store.
    let uid = |number: u32| format!("u{number:05}");
    let owner = |number| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid(number)});
    let of = |numbers: std::ops::Range<u32>| {
        let finalizers: Vec<String> = numbers.clone().map(|number| format!("x/f{number:05}")).collect();
        json!({"metadata": {"finalizers": finalizers, "ownerReferences": numbers.map(owner).collect::<Vec<_>>()}})
    };
    let created = applied(None, &of(0..40_000), "m", false, 1).unwrap();
    let half = applied(Some(&created), &of(20_000..60_000), "m", false, 2).unwrap();
    let rare = half.metadata.rare.as_deref().unwrap();
    let expected: Vec<String> = (20_000..60_000).map(uid).collect();
    let owners: Vec<&str> = rare.owner_references.iter().map(|owner| owner.uid.as_str()).collect();
    let finalizers: Vec<String> = rare.finalizers.iter().map(|name| name.replace("x/f", "u")).collect();
    assert!(owners == expected && finalizers == expected, "{} {}", owners.len(), finalizers.len());
}

#[test]
fn old_updates_are_merged_into_one() {
    let mut event = written(ApiGroup::Core, None, Event::default(), "m", 0);
    for number in 0..12 {
        let mut next = event.clone();
        next.metadata.rare.get_or_insert_default().labels.insert(format!("l{number:02}").into(), "x".into());
        event = written(
            ApiGroup::Core,
            if number == 0 { None } else { Some(&event) },
            next,
            &format!("m{number:02}"),
            number,
        );
    }
    let entries = managers(&event);
    assert_eq!(entries.len(), 10);
    let merged = r#"{"f:metadata":{"f:labels":{".":{},"f:l00":{},"f:l01":{},"f:l02":{}}}}"#;
    assert_eq!(entries[0], entry("ancient-changes", merged, 2));
    assert_eq!(entries[1].0, "m03");
}

#[test]
fn a_claim_is_told_from_an_account() {
    let claim = claim("m", ApiGroup::Events);
    assert_eq!(claimed(&claim), Some((&"m".into(), ApiGroup::Events)));
    let account = update(ApiGroup::Core, None, &Event { count: 1, ..Event::default() }, "m", Time(1));
    assert_eq!((claimed(&account), claimed(&None)), (None, None));
}

fn field_set() -> impl Strategy<Value = FieldSet> {
    let fields = prop_oneof![
        Just(Field::Reason),
        Just(Field::Source),
        Just(Field::SourceHost),
        Just(Field::SeriesCount),
        Just(Field::InvolvedObject),
        Just(Field::GenerateName),
        Just(Field::Labels)
    ];
    let keys = prop_oneof![
        Just(Field::Labels),
        Just(Field::Annotations),
        Just(Field::Finalizers),
        Just(Field::OwnerReferences)
    ];
    let keys = (keys, "[a-c<\"\\\\.]{1,2}");
    (proptest::collection::vec(fields, 0..5), proptest::collection::vec(keys, 0..5)).prop_map(|(fields, keys)| {
        let mut set = FieldSet::default();
        fields.into_iter().for_each(|field| set.insert(field));
        keys.into_iter().for_each(|(container, key)| set.insert_key(container, &key.into()));
        set
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let texts = proptest::collection::vec("[a-b]?", 6);
    let labels = proptest::collection::btree_map("[a-c]", "[x-y]", 0..3);
    (texts, 0..3_i32, proptest::option::of(0..3_i32), proptest::option::of(0..3_i64), labels).prop_map(
        |(texts, count, series, time, labels)| {
            let mut event = Event {
                reason: texts[0].as_str().into(),
                message: texts[1].as_str().into(),
                reporting_controller: texts[2].as_str().into(),
                count,
                series: series.map(|count| EventSeries { count, last_observed_time: None }),
                last_timestamp: time.map(Time),
                ..Event::default()
            };
            event.source.host = texts[3].as_str().into();
            event.involved_object.name = texts[4].as_str().into();
            if !labels.is_empty() {
                let rare = event.metadata.rare.get_or_insert_default();
                rare.labels = labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
            }
            event
        },
    )
}

fn door() -> impl Strategy<Value = ApiGroup> {
    prop_oneof![Just(ApiGroup::Core), Just(ApiGroup::Events)]
}

fn owned(event: &Event, door: ApiGroup) -> FieldSet {
    let entries = event.metadata.managed_fields.iter().flat_map(|entries| entries.iter());
    let sets = entries.map(|entry| FieldSet::parse(door, entry.fields.as_deref().unwrap()).unwrap());
    sets.fold(FieldSet::default(), |all, set| all.union(&set))
}

proptest! {
    #[test]
    fn sets_are_sets(a in field_set(), b in field_set(), c in field_set()) {
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.union(&b).difference(&c), a.difference(&c).union(&b.difference(&c)));
        prop_assert_eq!(a.intersection(&b), a.difference(&a.difference(&b)));
        prop_assert!(a.difference(&a).is_empty());
    }

    #[test]
    fn what_is_rendered_is_read_again(set in field_set(), door in door()) {
        prop_assert_eq!(FieldSet::parse(door, &set.render(door)), Some(set));
    }

    #[test]
    fn every_field_that_changed_has_one_owner(a in any_event(), b in any_event(), door in door()) {
        let created = written(door, None, a, "a", 1);
        let all = Comparison::of(door, &Event::default(), &created).taken;
        prop_assert_eq!(owned(&created, door), all);
        let (first, second) = (created.clone(), Event { metadata: created.metadata.clone(), ..b });
        let changed = written(door, Some(&first), second, "b", 2);
        let found = Comparison::of(door, &first, &changed);
        let entries = managers(&changed);
        if created.metadata.managed_fields.is_none() {
            prop_assert!(entries.is_empty());
        } else {
            let kept = owned(&created, door).difference(&found.removed).union(&found.taken);
            prop_assert_eq!(owned(&changed, door), kept);
            let total: usize = entries.iter().map(|(_, fields, _)| fields.matches("{}").count()).sum();
            let once = owned(&changed, door).paths(door).len();
            prop_assert_eq!(total, once);
        }
    }

    #[test]
    fn a_write_that_changes_nothing_leaves_everything(a in any_event(), door in door()) {
        let created = written(door, None, a, "a", 1);
        prop_assert_eq!(written(door, Some(&created), created.clone(), "b", 2), created);
    }
}
