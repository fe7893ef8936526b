//! Bodies that no client in Go writes, each with what the generated Go code of `k8s.io/api` 0.36.3 makes of it; and
//! properties of every event and every body. `tests/api/protobuf.rs` replays recorded bodies.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::event::json as event_json;
use crate::event::schema::tests::event;
use crate::status::Status;

fn body(raw: &[u8]) -> Vec<u8> {
    let length = raw.len();
    let mut body = b"k8s\0\x0a\x0b\x0a\x02v1\x12\x05Event\x12".to_vec();
    body.push(u8::try_from(length).ok().filter(|&length| length < 0x80).unwrap());
    body.extend_from_slice(raw);
    body
}

/// Checks the members beside those that every event has.
fn reads(raw: &[u8], members: &str) {
    let body = body(raw);
    let decoded = decode(ApiGroup::Core, &body).unwrap();
    let mut shown = Vec::new();
    event_json::write_json(ApiGroup::Core, &decoded.event, &mut shown);
    let mut expected = json!({
        "kind": "Event", "apiVersion": "v1", "metadata": {}, "involvedObject": {}, "source": {}, "firstTimestamp": null,
        "lastTimestamp": null, "eventTime": null, "reportingComponent": "", "reportingInstance": "",
    });
    let members: serde_json::Map<String, Value> = serde_json::from_str(members).unwrap();
    expected.as_object_mut().unwrap().extend(members);
    assert_eq!(serde_json::from_slice::<Value>(&shown).unwrap(), expected, "{raw:x?}");
}

fn refused(raw: &[u8], fault: &str) {
    let error = decode(ApiGroup::Core, &body(raw)).unwrap_err();
    assert_eq!(
        *error,
        Status::bad_request(format!("Event in version \"v1\" cannot be handled as a Event: {fault}")),
        "{raw:x?}"
    );
}

#[test]
fn messages_that_occur_twice_are_merged_and_times_replaced() {
    reads(
        b"Z\x02\x08\x05Z\x04\x12\x02\x08\x07",
        r#"{"series":{"count":5,"lastObservedTime":"1970-01-01T00:00:07.000000Z"}}"#,
    );
    reads(b"\x12\x08\x0a\x03Pod\x1a\x01a\x12\x03\x1a\x01b", r#"{"involvedObject":{"kind":"Pod","name":"b"}}"#);
    reads(
        b"\x0a\x0b\x0a\x01nZ\x06\x0a\x01k\x12\x01v\x0a\x09\x1a\x02nsZ\x03\x0a\x01l",
        r#"{"metadata":{"name":"n","namespace":"ns","labels":{"k":"v","l":""}}}"#,
    );
    reads(b"R\x05\x08\x05\x10\xb8\x17R\x02\x08\x06", r#"{"eventTime":"1970-01-01T00:00:06.000000Z"}"#);
    reads(b"2\x02\x08\x052\x00", r#"{}"#);
}

#[test]
fn numbers_are_cut_and_carried_as_in_go() {
    reads(b"R\x0b\x10\xa4\xf4\xff\xff\xff\xff\xff\xff\xff\x01", r#"{"eventTime":"1969-12-31T23:59:59.999999Z"}"#);
    reads(b"R\x0d\x08\x80\x92\xb8\xc3\x98\xfe\xff\xff\xff\x01\x10\x00", r#"{}"#);
    reads(b"@\x89\x80\x80\x80 ", r#"{"count":9}"#);
    reads(b"@\xf9\xff\xff\xff\xff\xff\xff\xff\xff\x01", r#"{"count":-7}"#);
}

/// Fault: nanoseconds beyond one second led to years that JSON cannot represent, and that Go does not write.
#[test]
fn times_of_other_years_are_moved_to_the_ends() {
    const FIRST: &str = "0000-01-01T00:00:00.000000Z";
    const LAST: &str = "9999-12-31T23:59:59.999999Z";
    let (first, last) = (-62_167_219_200, 253_402_300_799);
    for (seconds, nanos, shown) in [
        (last, i32::MAX, LAST),
        (last + 1, 0, LAST),
        (i64::MAX, i32::MAX, LAST),
        (first, -1_000, FIRST),
        (first - 1, 0, FIRST),
        (i64::MIN, i32::MIN, FIRST),
        // Within the range after the carry.
        (last, 999_999_999, LAST),
        (last + 1, -1_000, LAST),
        (last - 2, i32::MAX, "9999-12-31T23:59:59.147483Z"),
        (first - 1, 1_000_000_000, FIRST),
        (first - 1, 1_500_000_000, "0000-01-01T00:00:00.500000Z"),
    ] {
        let mut field = Vec::new();
        writer::message(10, &mut field, |out| {
            writer::integer(1, seconds, out);
            writer::integer(2, nanos.into(), out);
        });
        reads(&field, &json!({ "eventTime": shown }).to_string());
    }
}

#[test]
fn unknown_fields_are_skipped_and_wire_types_in_maps_ignored() {
    reads(b"\xa3\x01\x08\x01\xab\x01\xac\x01\xa4\x01", r#"{}"#);
    reads(b"\xa1\x01\x00\x00\x00\x00\x00\x00\x00\x00\xa5\x01\x00\x00\x00\x00", r#"{}"#);
    reads(b"\x0a\x08Z\x06\x08\x01k\x10\x01v", r#"{"metadata":{"labels":{"k":"v"}}}"#);
}

/// Fault: as in Go, key and value could extend beyond their entry, so that each entry could own a copy of the rest.
#[test]
fn an_entry_of_a_map_contains_its_key_and_value() {
    refused(b"\x0a\x07Z\x02\x0a\x03\x0a\x01x", "a value is cut off");
    refused(b"\x0a\x09Z\x02\x12\x05\x0a\x03abc", "a value is cut off");
}

/// Fault: lists of empty elements took up to sixty times the memory of their body.
#[test]
fn lists_in_metadata_have_a_limit() {
    for (number, element) in [(13, b"j\x00".as_slice()), (14, b"r\x00"), (17, b"\x8a\x01\x00")] {
        let decoded = |elements: usize| {
            let mut body = b"k8s\0".to_vec();
            writer::message(2, &mut body, |out| {
                writer::message(1, out, |out| out.extend_from_slice(&element.repeat(elements)));
            });
            decode(ApiGroup::Core, &body).map_err(|error| error.message)
        };
        assert!(decoded(10_000).is_ok(), "{number}");
        let fault = format!(
            "Event in version \"v1\" cannot be handled as a Event: field {number} has more than 10000 elements"
        );
        assert_eq!(decoded(10_001).unwrap_err(), fault);
    }
}

#[test]
fn what_go_refuses_is_refused_and_its_field_named() {
    refused(b"B\x00", "field 8 has wire type 2");
    refused(b" \x01", "field 4 has wire type 0");
    refused(b"\x84\x01", "a group ends that did not begin");
    refused(b"\x02\x00", "0 is not a field number");
    refused(b"\x82\x80\x80\x80@", "-2147483648 is not a field number");
    refused(b"\xa6\x01", "field 20 has wire type 6");
    refused(b"\xa7\x01", "field 20 has wire type 7");
    refused(b"@\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "a number has more than 64 bits");
    refused(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "a number has more than 64 bits");
    refused(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "a length has more than 63 bits");
    refused(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "a length has more than 63 bits");
    refused(b"\x22\x05ab", "a value is cut off");
    refused(b"\xa3\x01\x08\x01", "a value is cut off");
    refused(b"\xa1\x01\x00\x00\x00\x00\x00\x00\x00", "a value is cut off");
    refused(b"\x0a\x03Z\x01\x1c", "a group ends that did not begin");
    refused(b"\x0a\x0bZ\x01\x1d\x00\x00\x00\x00\x00\x00\x00\x00", "a value is cut off");
    refused(b"\x0a\x02\x08\x01", "field 1 has wire type 0");
    refused(b"Z\x04\x12\x02\x0a\x00", "field 1 has wire type 2");
}

#[test]
fn a_version_after_two_slashes_or_without_letters_is_none() {
    for (api_version, is_taken) in [("a/b/c", true), ("foo/", true), ("/v1", true), ("foo/v1", false)] {
        let mut body = b"k8s\0".to_vec();
        writer::message(1, &mut body, |out| writer::text(1, api_version, out));
        assert_eq!(decode(ApiGroup::Core, &body).is_ok(), is_taken, "{api_version}");
    }
}

#[test]
fn delete_options_are_read() {
    let raw = b"\x08\x1e\x12\x07\x0a\x01u\x12\x0242\x18\x00\x22\x0aBackground*\x03All0\x01";
    let options = [b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x20".as_slice(), raw].concat();
    assert_eq!(
        decode_delete_options(&options).unwrap(),
        DeleteOptions {
            grace_period_seconds: Some(30),
            uid: Some("u".into()),
            resource_version: Some("42".into()),
            orphan_dependents: Some(false),
            propagation_policy: Some("Background".into()),
            dry_run: vec!["All".into()],
        }
    );
    assert_eq!(decode_delete_options(&body(raw)).unwrap_err().code, 400, "an Event");
    assert_eq!(decode_delete_options(b"k8s").unwrap_err().code, 400);
}

#[test]
fn members_that_no_recorded_answer_has_have_the_numbers_of_the_schema() {
    // From deletionGracePeriodSeconds on; the owner's apiVersion is its fifth field.
    let rest = b"\x50\x03b\x06\x0a\x01a\x12\x01bj\x10\x0a\x01k\x1a\x01n\x22\x01u*\x01v0\x018\x00r\x01f";
    let raw = [b"\x0a\x2b\x12\x01g\x22\x01s\x38\x01\x4a\x02\x08\x02".as_slice(), rest, b"j\x03:\x01p"].concat();
    reads(
        &raw,
        r#"{"metadata":{"generateName":"g","selfLink":"s","generation":1,"deletionTimestamp":"1970-01-01T00:00:02Z",
            "deletionGracePeriodSeconds":3,"annotations":{"a":"b"},"finalizers":["f"],"ownerReferences":[{"apiVersion":"v",
            "kind":"k","name":"n","uid":"u","controller":true,"blockOwnerDeletion":false}]},"related":{"fieldPath":"p"}}"#,
    );
    let mut written = Vec::new();
    write(ApiGroup::Core, &decode(ApiGroup::Core, &body(&raw)).unwrap().event, &mut written);
    assert!(written.windows(rest.len()).any(|part| part == rest), "{written:x?}");
}

fn group() -> impl Strategy<Value = ApiGroup> {
    prop_oneof![Just(ApiGroup::Core), Just(ApiGroup::Events)]
}

fn written(group: ApiGroup, event: &Event) -> Vec<u8> {
    let mut out = Vec::new();
    write(group, event, &mut out);
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn decode_of_encode_is_identity_and_json_says_the_same(group in group(), event in event()) {
        let body = written(group, &event);
        let decoded = decode(group, &body).unwrap();
        prop_assert_eq!(written(group, &decoded.event), body);
        let mut json = Vec::new();
        event_json::write_json(group, &event, &mut json);
        prop_assert_eq!(&decoded, &event_json::decode(group, &json, event_json::FieldValidation::Strict).unwrap());
        prop_assert_eq!(decoded.event, Event { type_meta: Some(group), ..event });
    }

    #[test]
    fn a_body_that_breaks_off_is_refused(group in group(), event in event(), cut in any::<prop::sample::Index>()) {
        let body = written(group, &event);
        // A body may end after a whole field: before the two empty texts at the end, and after the type.
        let only_type = [4, 2, 2, group.api_version().len(), 2, "Event".len()].into_iter().sum::<usize>();
        let end = cut.index(body.len().saturating_sub(4));
        prop_assume!(end != only_type);
        prop_assert!(decode(group, &body[..end]).is_err(), "{end}");
    }

    #[test]
    fn no_body_makes_it_panic(group in group(), event in event(), noise in any::<Vec<u8>>(),
        at in any::<prop::sample::Index>(), byte in any::<u8>(), replaces in any::<bool>())
    {
        let raw = [b"k8s\0\x12".as_slice(), &[u8::try_from(noise.len() & 0x7f).unwrap()], &noise].concat();
        let mut changed = written(group, &event);
        let at = at.index(changed.len());
        if replaces { changed[at] = byte } else { changed.insert(at, byte) }
        for body in [[b"k8s\0".as_slice(), &noise].concat(), noise, raw, changed] {
            if let Ok(decoded) = decode(group, &body) {
                let again = decode(group, &written(group, &decoded.event)).unwrap();
                prop_assert_eq!(again.event.metadata.name, decoded.event.metadata.name);
            }
            drop(decode_delete_options(&body));
        }
    }
}
