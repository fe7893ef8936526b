//! Bodies that no client in Go writes, and what the generated Go code of `k8s.io/api` 0.36.3 makes of them: each row's right side
//! was taken from it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::event::schema::tests::{Choices, Make};
use crate::event::schema::{Object, with_access};
use crate::event::{OwnerReference, core_v1};

fn body(raw: &[u8]) -> Vec<u8> {
    let length = raw.len();
    let mut body = b"k8s\0\x0a\x0b\x0a\x02v1\x12\x05Event\x12".to_vec();
    body.push(u8::try_from(length).ok().filter(|&length| length < 0x80).unwrap());
    body.extend_from_slice(raw);
    body
}

/// Checks the members that an event has beside those that every event shows.
fn reads(raw: &[u8], members: &str) {
    let body = body(raw);
    let decoded = decode(ApiGroup::Core, &body).unwrap();
    let mut shown = Vec::new();
    core_v1::write_json(&decoded.event, &mut shown);
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
        error.status,
        Status::bad_request(format!("Event in version \"v1\" cannot be handled as a Event: {fault}")),
        "{raw:x?}"
    );
}

#[test]
fn messages_that_stand_there_twice_are_merged_and_times_replaced() {
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

/// Fault: nanoseconds of more than a second led out of the years that JSON can carry. What is beyond them Go does not write.
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
        // Within the range by what carries.
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
fn unknown_fields_are_passed_over_and_maps_are_read_loosely() {
    reads(b"\xa3\x01\x08\x01\xab\x01\xac\x01\xa4\x01", r#"{}"#);
    reads(b"\xa1\x01\x00\x00\x00\x00\x00\x00\x00\x00\xa5\x01\x00\x00\x00\x00", r#"{}"#);
    reads(b"\x0a\x08Z\x06\x08\x01k\x10\x01v", r#"{"metadata":{"labels":{"k":"v"}}}"#);
    reads(b"\x0a\x07Z\x02\x0a\x03\x0a\x01x", r#"{"metadata":{"name":"x","labels":{"\n\u0001x":""}}}"#);
}

#[test]
fn faults_are_told_with_gos_words() {
    refused(b"B\x00", "proto: wrong wireType = 2 for field Count");
    refused(b" \x01", "proto: wrong wireType = 0 for field Message");
    refused(b"\x84\x01", "proto: Event: wiretype end group for non-group");
    refused(b"\x02\x00", "proto: Event: illegal tag 0 (wire type 2)");
    refused(b"\x82\x80\x80\x80@", "proto: Event: illegal tag -2147483648 (wire type 17179869186)");
    refused(b"\xa6\x01", "proto: illegal wireType 6");
    refused(b"\xa7\x01", "proto: illegal wireType 7");
    refused(b"@\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "proto: integer overflow");
    refused(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "proto: integer overflow");
    refused(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "proto: negative length found during unmarshaling");
    refused(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "proto: negative length found during unmarshaling");
    refused(b"\x22\x05ab", "unexpected EOF");
    refused(b"\xa3\x01\x08\x01", "unexpected EOF");
    refused(b"\xa1\x01\x00\x00\x00\x00\x00\x00\x00", "unexpected EOF");
    refused(b"\x0a\x03Z\x01\x1c", "proto: unexpected end of group");
    refused(b"\x0a\x0bZ\x01\x1d\x00\x00\x00\x00\x00\x00\x00\x00", "unexpected EOF");
    refused(b"\x0a\x02\x08\x01", "proto: wrong wireType = 0 for field Name");
    refused(b"Z\x04\x12\x02\x0a\x00", "proto: wrong wireType = 2 for field Seconds");
}

#[test]
fn what_the_envelope_leaves_open_is_taken_from_the_door() {
    let envelope = |api_version: &str, kind: &str| {
        let mut body = b"k8s\0".to_vec();
        writer::message(1, &mut body, |out| {
            writer::text(1, api_version, out);
            writer::text(2, kind, out);
        });
        body
    };
    let check = |group, api_version: &str, kind: &str, is_taken: bool| {
        let body = envelope(api_version, kind);
        match decode(group, &body) {
            Ok(decoded) => {
                assert!(is_taken, "{api_version} {kind}");
                assert_eq!((decoded.kind.as_str(), decoded.api_version.as_str()), (kind, api_version));
                let is_told = !(kind.is_empty() && api_version.is_empty());
                assert_eq!(decoded.event.type_meta, is_told.then_some(group));
            }
            Err(error) => {
                assert!(!is_taken, "{api_version} {kind}: {error}");
                assert!(error.status.message.starts_with("expected an object of kind Event"), "{error}");
            }
        }
    };
    let (core, events) = (ApiGroup::Core, ApiGroup::Events);
    for group in [core, events] {
        for api_version in ["", "/", "a/b/c", "events.k8s.io/", group.api_version()] {
            check(group, api_version, "", true);
            check(group, api_version, "Event", true);
            check(group, api_version, "Pod", false);
        }
        check(group, "foo/v1", "", false);
        check(group, "events.k8s.io/v1beta1", "Event", false);
    }
    check(core, "/v1", "Event", true);
    check(core, "events.k8s.io/v1", "", false);
    check(events, "v1", "Event", false);
}

#[test]
fn a_body_without_envelope_is_refused() {
    for body in [&b""[..], b"k8s", b"k8s\0", br#"{"kind":"Event"}"#] {
        let error = decode(ApiGroup::Core, body).unwrap_err();
        assert!(error.status.message.starts_with("the body is no object in protobuf: "), "{error}");
    }
}

#[test]
fn delete_options_are_read() {
    let raw = b"\x08\x1e\x12\x07\x0a\x01u\x12\x0242\x18\x00\x22\x0aBackground*\x03All0\x01";
    assert_eq!(
        decode_delete_options(&body(raw)).unwrap(),
        DeleteOptions {
            grace_period_seconds: Some(30),
            uid: Some("u".into()),
            resource_version: Some("42".into()),
            orphan_dependents: Some(false),
            propagation_policy: Some("Background".into()),
            dry_run: vec!["All".into()],
        }
    );
    assert_eq!(decode_delete_options(b"k8s").unwrap_err().status.code, 400);
}

#[test]
fn watch_frames_have_their_length_in_front() {
    let mut out = b"before".to_vec();
    write_watch_frame(ApiGroup::Events, WatchEvent::Bookmark(&Event::default()), &mut out);
    let (length, frame) = out.strip_prefix(b"before").unwrap().split_first_chunk::<4>().unwrap();
    assert_eq!(usize::try_from(u32::from_be_bytes(*length)).unwrap(), frame.len());
    assert!(frame.starts_with(b"\x0a\x08BOOKMARK\x12"), "{frame:x?}");
}

/// The fields of a message as they stand there, by number.
fn by_number(mut message: &[u8]) -> BTreeMap<u64, Vec<u8>> {
    fn varint(message: &mut &[u8]) -> u64 {
        let last = message.iter().position(|byte| byte & 0x80 == 0).unwrap();
        let (number, rest) = message.split_at(last.checked_add(1).unwrap());
        *message = rest;
        number.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f))
    }
    let mut found = BTreeMap::new();
    while !message.is_empty() {
        let (tag, number) = (varint(&mut message), varint(&mut message));
        let length = if tag & 7 == 2 { usize::try_from(number).unwrap() } else { 0 };
        let (bytes, rest) = message.split_at(length);
        found.insert(tag >> 3, [&number.to_be_bytes(), bytes].concat());
        message = rest;
    }
    found
}

#[test]
fn members_have_the_numbers_of_the_schema() {
    /// Sets one member after the other of what `reach` finds in an event; its message stands at these numbers in the event's,
    /// in core/v1 and in events.k8s.io/v1.
    fn check<T: Object>(paths: [&[u64]; 2], reach: impl Fn(&mut Event) -> &mut T) {
        for (group, path) in [ApiGroup::Core, ApiGroup::Events].into_iter().zip(paths) {
            let message = |event: &Event| {
                let mut body = Vec::new();
                write(group, event, &mut body);
                let event = by_number(Envelope::read(&body).unwrap().raw);
                path.iter().fold(event, |message, number| by_number(&message[number][8..]))
            };
            let mut plain = Event::default();
            reach(&mut plain);
            for member in T::members(group) {
                let mut event = plain.clone();
                let choices = &mut Choices::all(7);
                with_access!(&member.slot, access => *(access.get_mut)(reach(&mut event)) = Make::make(choices));
                let (plain, set) = (message(&plain), message(&event));
                let changed = set.into_iter().filter(|(number, bytes)| plain.get(number) != Some(bytes));
                let changed: Vec<u64> = changed.map(|(number, _)| number).collect();
                assert_eq!(changed, [u64::from(member.number(group))], "{}", member.name(group));
            }
        }
    }
    check([&[]; 2], |event| event);
    check([&[1]; 2], |event| &mut event.metadata);
    check([&[2], &[8]], |event| &mut event.involved_object);
    check([&[5], &[12]], |event| &mut event.source);
    check([&[11], &[3]], |event| event.series.get_or_insert_default());
    check([&[1, 13]; 2], |event| {
        let owners = &mut event.metadata.rare.get_or_insert_default().owner_references;
        owners.resize_with(1, OwnerReference::default);
        &mut owners[0]
    });
}
