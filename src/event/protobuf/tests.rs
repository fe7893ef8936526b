//! Bodies that no client in Go writes, and what the generated Go code of `k8s.io/api` 0.36.3 makes of them: each row's right side
//! was taken from it.

use serde_json::{Value, json};

use super::*;
use crate::event::core_v1;

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
    let check = |group, api_version: &str, kind: &str, refusal: Option<&str>| {
        let body = envelope(api_version, kind);
        let told = decode(group, &body).map_err(|error| error.status.message.clone());
        assert_eq!(told.as_ref().err().map(String::as_str), refusal, "{api_version} {kind}");
        if let Ok(decoded) = told {
            assert_eq!((decoded.kind.as_str(), decoded.api_version.as_str()), (kind, api_version));
            assert_eq!(decoded.event.type_meta, Some(group).filter(|_| !(kind.is_empty() && api_version.is_empty())));
        }
    };
    let (core, events) = (ApiGroup::Core, ApiGroup::Events);
    for group in [core, events] {
        for api_version in ["", "/", "a/b/c", "events.k8s.io/", group.api_version()] {
            check(group, api_version, "", None);
            check(group, api_version, "Event", None);
        }
    }
    check(core, "/v1", "Event", None);
    let mismatch = |data, expected| {
        format!("the API version in the data ({data}) does not match the expected API version ({expected})")
    };
    check(core, "events.k8s.io/v1", "", Some(&mismatch("events.k8s.io/v1", "v1")));
    check(core, "events.k8s.io/v1beta1", "Event", Some(&mismatch("events.k8s.io/v1beta1", "v1")));
    check(events, "events.k8s.io/v1beta1", "Event", Some(&mismatch("events.k8s.io/v1beta1", "events.k8s.io/v1")));
    check(events, "v1", "Event", Some(&mismatch("v1", "events.k8s.io/v1")));
    let pod =
        "Pod in version \"v1\" cannot be handled as a Event: converting (v1.Pod) to (core.Event): unknown conversion";
    check(core, "", "Pod", Some(pod));
    let foo = "Event in version \"v1\" cannot be handled as a Event: no kind \"Event\" is registered for version \"foo/v1\" \
               in scheme \"pkg/runtime/scheme.go:111\"";
    check(core, "foo/v1", "", Some(foo));
}

#[test]
fn a_body_without_envelope_is_shown_in_part() {
    let check = |body: &[u8], shown: &str| {
        let error = decode(ApiGroup::Core, body).unwrap_err();
        let message = format!("the object provided is unrecognized (must be of type Event): {shown}");
        assert_eq!(error.status.message, message);
    };
    let no_prefix = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";
    check(b"", "empty data (<empty>)");
    check(b"k8s", &format!("{no_prefix} (6b3873)"));
    check(br#"{"kind":"Event"}"#, &format!(r#"{no_prefix} ({{"kind":"Event"}})"#));
    check(&[b'{'; 31], &format!("{no_prefix} ({} ...)", "{".repeat(30)));
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
