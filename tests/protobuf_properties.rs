//! What holds for every event and every body in protobuf: decode of encode is identity, JSON says the same, and nothing a
//! client sends ends in a panic.

use std::collections::BTreeMap;

use eventweir::event::{
    ApiGroup, Event, EventSeries, EventSource, ManagedFields, MicroTime, ObjectMeta, ObjectReference, OwnerReference,
    RareMeta, Time, core_v1, events_v1, protobuf,
};
use proptest::prelude::*;
use smol_str::SmolStr;

fn text<T: From<String> + std::fmt::Debug>() -> impl Strategy<Value = T> {
    prop_oneof![
        Just(String::new()),
        "[a-z]{1,30}",
        ".{0,40}",
        proptest::collection::vec(any::<char>(), 0..300).prop_map(String::from_iter),
    ]
    .prop_map(T::from)
}

/// Years 0 to 9999 without the zero time, which means none.
fn time() -> impl Strategy<Value = Option<Time>> {
    proptest::option::of((-62_167_219_200_i64..=253_402_300_799).prop_map(Time))
        .prop_map(|time| time.filter(|&time| time != Time::ZERO))
}

fn micro_time() -> impl Strategy<Value = Option<MicroTime>> {
    proptest::option::of((-62_167_219_200_000_000_i64..=253_402_300_799_999_999).prop_map(MicroTime))
        .prop_map(|time| time.filter(|&time| time != MicroTime::ZERO))
}

fn reference() -> impl Strategy<Value = ObjectReference> {
    (text(), text(), text(), text(), text(), text(), text()).prop_map(
        |(kind, namespace, name, uid, api_version, resource_version, field_path)| ObjectReference {
            kind,
            namespace,
            name,
            uid,
            api_version,
            resource_version,
            field_path,
        },
    )
}

fn owner() -> impl Strategy<Value = OwnerReference> {
    (text(), text(), text(), text(), any::<Option<bool>>(), any::<Option<bool>>()).prop_map(
        |(api_version, kind, name, uid, controller, block_owner_deletion)| OwnerReference {
            api_version,
            kind,
            name,
            uid,
            controller,
            block_owner_deletion,
        },
    )
}

fn map() -> impl Strategy<Value = BTreeMap<SmolStr, SmolStr>> {
    proptest::collection::btree_map(text(), text(), 0..4)
}

fn managed_fields() -> impl Strategy<Value = ManagedFields> {
    let full = r#"{"manager":"m","operation":"Update","apiVersion":"v1","time":"2024-05-01T10:00:00Z","fieldsType":"FieldsV1",
        "fieldsV1":{"f:count":{},"f:aé<":{".":{}}}}"#;
    let other = r#"{"fieldsV1":{},"subresource":"status"}"#;
    // An empty list is not written.
    proptest::collection::vec(prop_oneof![Just("{}"), Just(full), Just(other)], 0..3).prop_map(|list| {
        let carried = format!("[{}]", list.join(",")).replace("\n        ", "");
        (!list.is_empty()).then(|| carried.into())
    })
}

fn rare() -> impl Strategy<Value = Option<Box<RareMeta>>> {
    let names = (text(), text(), any::<i64>(), time(), any::<Option<i64>>());
    let lists = (map(), map(), proptest::collection::vec(owner(), 0..3), proptest::collection::vec(text(), 0..3));
    let rare = (names, lists).prop_map(|(names, lists)| {
        let (generate_name, self_link, generation, deletion_timestamp, deletion_grace_period_seconds) = names;
        let (labels, annotations, owner_references, finalizers) = lists;
        Box::new(RareMeta {
            generate_name,
            self_link,
            generation,
            deletion_timestamp,
            deletion_grace_period_seconds,
            labels,
            annotations,
            owner_references,
            finalizers,
        })
    });
    // Nothing in the box means no box.
    proptest::option::of(rare).prop_map(|rare| rare.filter(|rare| **rare != RareMeta::default()))
}

fn metadata() -> impl Strategy<Value = ObjectMeta> {
    (text(), text(), text(), text(), time(), managed_fields(), rare()).prop_map(
        |(name, namespace, resource_version, uid, creation_timestamp, managed_fields, rare)| ObjectMeta {
            name,
            namespace,
            resource_version,
            uid,
            creation_timestamp,
            managed_fields,
            rare,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let series =
        (any::<i32>(), micro_time()).prop_map(|(count, last_observed_time)| EventSeries { count, last_observed_time });
    let old = (text(), text(), time(), time(), any::<i32>());
    let new = (micro_time(), proptest::option::of(series), text(), text(), text());
    let related = proptest::option::of(reference().prop_map(Box::new));
    (metadata(), reference(), related, (text(), text(), text()), old, new).prop_map(
        |(metadata, involved_object, related, (reason, message, event_type), old, new)| {
            let (component, host, first_timestamp, last_timestamp, count) = old;
            let (event_time, series, action, reporting_controller, reporting_instance) = new;
            Event {
                type_meta: None,
                metadata,
                involved_object,
                reason,
                message,
                source: EventSource { component, host },
                first_timestamp,
                last_timestamp,
                count,
                event_type,
                event_time,
                series,
                action,
                related,
                reporting_controller,
                reporting_instance,
            }
        },
    )
}

fn group() -> impl Strategy<Value = ApiGroup> {
    prop_oneof![Just(ApiGroup::Core), Just(ApiGroup::Events)]
}

fn written(group: ApiGroup, event: &Event) -> Vec<u8> {
    let mut out = Vec::new();
    protobuf::write(group, event, &mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn decode_of_encode_is_identity(group in group(), event in event()) {
        let body = written(group, &event);
        let decoded = protobuf::decode(group, &body).unwrap();
        prop_assert!(decoded.strict_faults.is_empty());
        let event = Event { type_meta: Some(group), ..event };
        prop_assert_eq!(&decoded.event, &event);
        prop_assert_eq!(written(group, &decoded.event), body);
    }

    #[test]
    fn json_and_protobuf_say_the_same(group in group(), event in event()) {
        let mut json = Vec::new();
        let from_json = match group {
            ApiGroup::Core => {
                core_v1::write_json(&event, &mut json);
                core_v1::decode(&json)
            }
            ApiGroup::Events => {
                events_v1::write_json(&event, &mut json);
                events_v1::decode(&json)
            }
        };
        let body = written(group, &event);
        prop_assert_eq!(protobuf::decode(group, &body).unwrap(), from_json.unwrap());
    }

    #[test]
    fn lists_come_back(group in group(), items in proptest::collection::vec(event(), 0..4), version in text(),
        next in text(), remaining in any::<Option<i64>>())
    {
        let list = core_v1::EventList {
            resource_version: version,
            continue_token: next,
            remaining_item_count: remaining,
            items,
        };
        let mut body = Vec::new();
        protobuf::write_list(group, &list, &mut body);
        prop_assert_eq!(protobuf::decode_list(group, &body).unwrap(), list);
    }

    #[test]
    fn a_body_that_breaks_off_is_refused(group in group(), event in event(), cut in any::<prop::sample::Index>()) {
        let body = written(group, &event);
        // Whole fields are missing without anybody noticing: the two empty texts at the end, and all but the type.
        let only_type = 4 + 2 + 2 + group.api_version().len() + 2 + "Event".len();
        let end = cut.index(body.len() - 4);
        prop_assume!(end != only_type);
        prop_assert!(protobuf::decode(group, &body[..end]).is_err(), "{end}");
    }

    #[test]
    fn no_body_makes_it_panic(group in group(), event in event(), noise in any::<Vec<u8>>(),
        at in any::<prop::sample::Index>(), byte in any::<u8>(), prefixed in any::<bool>())
    {
        let mut bodies = vec![noise.clone(), [b"k8s\0".as_slice(), &noise].concat()];
        let raw = [b"k8s\0\x12".as_slice(), &[u8::try_from(noise.len() & 0x7f).unwrap()], &noise].concat();
        bodies.push(raw);
        let mut changed = written(group, &event);
        let at = at.index(changed.len());
        if prefixed { changed[at] = byte } else { changed.insert(at, byte) }
        bodies.push(changed);
        for body in bodies {
            if let Ok(decoded) = protobuf::decode(group, &body) {
                let again = written(group, &decoded.event);
                let again = protobuf::decode(group, &again).unwrap();
                prop_assert_eq!(again.event.metadata.name, decoded.event.metadata.name);
            }
            drop(protobuf::decode_list(group, &body));
            drop(protobuf::decode_delete_options(&body));
        }
    }
}
