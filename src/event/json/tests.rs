//! What is decoded, refused and written, by example; the vectors in `tests/wire.rs` have the rest.

use proptest::prelude::*;

use super::super::{core_v1, events_v1};
use super::*;
use crate::event::{
    EventSeries, EventSource, ManagedFields, MicroTime, ObjectMeta, ObjectReference, OwnerReference, RareMeta, Time,
};

/// Decodes at core/v1 and checks the refusal's message.
fn refused(body: &str, message: &str) {
    let error = core_v1::decode(body.as_bytes()).unwrap_err();
    assert_eq!(error.status.message, message, "{body}");
    assert_eq!((error.status.code, error.status.reason.as_str()), (400, "BadRequest"), "{body}");
}

fn written(event: &Event) -> String {
    let mut out = Vec::new();
    core_v1::write_json(event, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn empty_events_still_have_the_members_that_go_always_writes() {
    assert_eq!(
        written(&Event::default()),
        r#"{"kind":"Event","apiVersion":"v1","metadata":{},"involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"reportingComponent":"","reportingInstance":""}"#
    );
    let mut out = Vec::new();
    events_v1::write_item(&Event::default(), &mut out);
    assert_eq!(
        String::from_utf8(out).unwrap(),
        r#"{"metadata":{},"eventTime":null,"regarding":{},"deprecatedSource":{},"deprecatedFirstTimestamp":null,"deprecatedLastTimestamp":null}"#
    );
}

#[test]
fn text_is_escaped_as_go_escapes_it() {
    let event = Event { message: "<&>\u{2028}\u{2029}\u{2030}\"\\\u{1}\n\u{7f}é".into(), ..Event::default() };
    let shown = written(&event);
    let expected = concat!(r#""message":"\u003c\u0026\u003e\u2028\u2029"#, "\u{2030}", r#"\"\\\u0001\n"#, "\u{7f}é\"");
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn strings_are_repaired_as_go_repairs_them() {
    let check = |body: &[u8], message: &str| {
        assert_eq!(core_v1::decode(body).unwrap().event.message, message);
    };
    check(b"{\"message\":\"a\xff\xe4\xb8z\"}", "a\u{fffd}\u{fffd}\u{fffd}z");
    check(br#"{"message":"\ud83d\ude00\ud83d\u0041\udc00\t\/"}"#, "\u{1f600}\u{fffd}A\u{fffd}\t/");
    check(br#"{"message":"\ud83d\ud83d\ude00"}"#, "\u{fffd}\u{1f600}");
}

#[test]
fn types_are_told_with_gos_words() {
    let in_event =
        |fault: &str| format!("Event in version \"v1\" cannot be handled as a Event: json: cannot unmarshal {fault}");
    refused(r#"{"count":"3"}"#, &in_event("string into Go struct field Event.count of type int32"));
    refused(r#"{"count":2.0}"#, &in_event("number 2.0 into Go struct field Event.count of type int32"));
    refused(
        r#"{"series":{"count":true}}"#,
        &in_event("bool into Go struct field EventSeries.series.count of type int32"),
    );
    refused(r#"{"series":3}"#, &in_event("number into Go struct field Event.series of type v1.EventSeries"));
    refused(r#"{"metadata":[]}"#, &in_event("array into Go struct field Event.metadata of type v1.ObjectMeta"));
    refused(
        r#"{"metadata":{"uid":1}}"#,
        &in_event("number into Go struct field ObjectMeta.metadata.uid of type types.UID"),
    );
    refused(
        r#"{"metadata":{"labels":{"a":1}}}"#,
        &in_event("number into Go struct field ObjectMeta.metadata.labels of type string"),
    );
    refused(
        r#"{"metadata":{"ownerReferences":[{"name":{}}]}}"#,
        &in_event("object into Go struct field OwnerReference.metadata.ownerReferences.name of type string"),
    );
    // The first fault is told, but for a time's, which ends the decode.
    refused(r#"{"count":"3","reason":4}"#, &in_event("string into Go struct field Event.count of type int32"));
    refused(
        r#"{"count":"3","firstTimestamp":4,"lastTimestamp":"x"}"#,
        &in_event("number into Go struct field Event.firstTimestamp of type string"),
    );
}

#[test]
fn null_is_no_value_and_the_last_duplicate_wins() {
    let body = br#"{"reason":"A","reason":null,"source":{"component":"c"},"source":{"host":"h"},"series":{"count":3},
        "series":null,"count":2,"count":null,"metadata":{"labels":{"a":null},"finalizers":["x","y"],"finalizers":["z"]}}"#;
    let decoded = core_v1::decode(body).unwrap();
    let event = decoded.event;
    assert_eq!((event.reason.as_str(), event.count, event.series), ("A", 2, None));
    assert_eq!(event.source, EventSource { component: "c".into(), host: "h".into() });
    let rare = event.metadata.rare.unwrap();
    assert_eq!(rare.labels.get("a").map(AsRef::as_ref), Some(""));
    assert_eq!(rare.finalizers, ["z"]);
    let faults: Vec<String> = decoded.strict_faults.iter().map(ToString::to_string).collect();
    let expected =
        ["reason", "source", "series", "count", "metadata.finalizers"].map(|f| format!("duplicate field \"{f}\""));
    assert_eq!(faults, expected);
}

#[test]
fn strict_faults_have_full_paths_and_are_told_once() {
    let body = br#"{"x":1,"x":2,"metadata":{"ownerReferences":[{},{"y":[1],"uid":"a","uid":"b"}],"managedFields":[{"z":0}]},"KIND":"Event"}"#;
    let faults: Vec<String> = core_v1::decode(body).unwrap().strict_faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "unknown field \"x\"",
            "unknown field \"metadata.ownerReferences[1].y\"",
            "duplicate field \"metadata.ownerReferences[1].uid\"",
            "unknown field \"KIND\"",
        ]
    );
}

#[test]
fn kinds_and_versions_are_checked_in_the_apiservers_order() {
    let other = "the API version in the data (events.k8s.io/v1) does not match the expected API version (v1)";
    refused(r#"{"apiVersion":"events.k8s.io/v1","note":"n"}"#, other);
    refused(
        r#"{"apiVersion":"events.k8s.io/v1","note":1}"#,
        "Event in version \"v1\" cannot be handled as a Event: json: cannot unmarshal number into Go struct field \
         Event.note of type string",
    );
    refused(
        r#"{"kind":"Foo","count":"x"}"#,
        "Foo in version \"v1\" cannot be handled as a Event: no kind \"Foo\" is registered for version \"v1\" in scheme \
         \"pkg/runtime/scheme.go:111\"",
    );
    refused(
        r#"{"Kind":"Pod"}"#,
        "Pod in version \"v1\" cannot be handled as a Event: converting (v1.Pod) to (core.Event): unknown conversion",
    );
    refused(
        r#"{"apiVersion":"a/b/c"}"#,
        "the object provided is unrecognized (must be of type Event): unexpected GroupVersion string: a/b/c \
         ({\"apiVersion\":\"a/b/c\"})",
    );
    let decoded = core_v1::decode(br#"{"kind":"Event"}"#).unwrap();
    assert_eq!(decoded.event.type_meta, Some(ApiGroup::Core));
    assert_eq!(core_v1::decode(b"null").unwrap().event, Event::default());
}

#[test]
fn gos_own_text_is_found_whatever_stands_around_it() {
    let fault = |body: &str| core_v1::decode(body.as_bytes()).unwrap_err().fault().to_owned();
    let not_a_string = "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind \
                        of type string";
    assert_eq!(fault(r#"{"kind":7}"#), not_a_string);
    assert_eq!(fault(r#"{"kind":7,"reason":" (a)"}"#), not_a_string);
    assert_eq!(
        fault(r#"{"kind":"A in version \"v1\" cannot be handled as a Event: ","count":"x"}"#),
        "no kind \"A in version \\\"v1\\\" cannot be handled as a Event: \" is registered for version \"v1\" in scheme \
         \"pkg/runtime/scheme.go:111\"",
    );
}

#[test]
fn nesting_is_bounded_as_in_go() {
    let body = |depth: usize| format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(core_v1::decode(body(9_999).as_bytes()).is_ok());
    refused(
        &body(10_000),
        "the object provided is unrecognized (must be of type Event): couldn't get version/kind; json parse error: invalid \
         character '[' exceeded max depth ({\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[ ...)",
    );
}

#[test]
fn lists_are_read_and_written() {
    let body = br#"{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"c","remainingItemCount":3},"items":[{"metadata":{"name":"a"},"involvedObject":{},"source":{},"firstTimestamp":null,"lastTimestamp":null,"eventTime":null,"reportingComponent":"","reportingInstance":""}]}"#;
    let list = core_v1::list_from_json(body).unwrap();
    assert_eq!((list.resource_version.as_str(), list.continue_token.as_str()), ("7", "c"));
    assert_eq!((list.remaining_item_count, list.items.len()), (Some(3), 1));
    let mut out = Vec::new();
    core_v1::write_list(&list, &mut out);
    assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(body));
    let mut out = Vec::new();
    events_v1::write_list(&EventList::default(), &mut out);
    assert_eq!(
        String::from_utf8_lossy(&out),
        r#"{"kind":"EventList","apiVersion":"events.k8s.io/v1","metadata":{},"items":[]}"#
    );
}

fn text<T: From<String> + std::fmt::Debug>() -> impl Strategy<Value = T> {
    prop_oneof![Just(String::new()), "[ -~]{1,40}", any::<String>()].prop_map(T::from)
}

fn time() -> impl Strategy<Value = Option<Time>> {
    // Years 1 to 9999 without the zero time, which is "not set".
    proptest::option::of((Time::ZERO.0 + 1..253_402_300_800_i64).prop_map(Time))
}

fn micro_time() -> impl Strategy<Value = Option<MicroTime>> {
    proptest::option::of((MicroTime::ZERO.0 + 1..253_402_300_800_000_000_i64).prop_map(MicroTime))
}

fn reference() -> impl Strategy<Value = ObjectReference> {
    [text(), text(), text(), text(), text(), text(), text()].prop_map(
        |[kind, namespace, name, uid, api_version, resource_version, field_path]| ObjectReference {
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
    ([text(), text(), text(), text()], any::<Option<bool>>(), any::<Option<bool>>()).prop_map(
        |([api_version, kind, name, uid], controller, block_owner_deletion)| OwnerReference {
            api_version,
            kind,
            name,
            uid,
            controller,
            block_owner_deletion,
        },
    )
}

/// What is read, and not what it says, is kept.
fn managed_fields() -> impl Strategy<Value = ManagedFields> {
    let entry = "{\"manager\":\"m\",\"fieldsV1\":{\"f:reason\":{},\"z\":[1,null,\"<\u{2028}é\"]}}";
    // An empty list is none in protobuf.
    (0..3_usize).prop_map(move |number| (number > 0).then(|| format!("[{}]", vec![entry; number].join(",")).into()))
}

fn rare() -> impl Strategy<Value = Option<Box<RareMeta>>> {
    let pairs = || proptest::collection::btree_map(text(), text(), 0..3);
    (
        (text(), text(), any::<i64>(), time(), any::<Option<i64>>()),
        (pairs(), pairs()),
        proptest::collection::vec(owner(), 0..3),
        proptest::collection::vec(text(), 0..3),
    )
        .prop_map(|(first, (labels, annotations), owner_references, finalizers)| {
            let (generate_name, self_link, generation, deletion_timestamp, deletion_grace_period_seconds) = first;
            let rare = RareMeta {
                generate_name,
                self_link,
                generation,
                deletion_timestamp,
                deletion_grace_period_seconds,
                labels,
                annotations,
                owner_references,
                finalizers,
            };
            (rare != RareMeta::default()).then(|| Box::new(rare))
        })
}

/// Any event that can be written.
pub(in crate::event) fn event() -> impl Strategy<Value = Event> {
    let metadata = ([text(), text(), text(), text()], time(), managed_fields(), rare()).prop_map(
        |([name, namespace, resource_version, uid], creation_timestamp, managed_fields, rare)| ObjectMeta {
            name,
            namespace,
            resource_version,
            uid,
            creation_timestamp,
            managed_fields,
            rare,
        },
    );
    let series =
        (any::<i32>(), micro_time()).prop_map(|(count, last_observed_time)| EventSeries { count, last_observed_time });
    (
        (metadata, reference(), proptest::option::of(reference()), proptest::option::of(series)),
        [text(), text(), text(), text(), text(), text(), text(), text()],
        (time(), time(), micro_time(), any::<i32>()),
    )
        .prop_map(|((metadata, involved_object, related, series), texts, times)| {
            let [reason, message, component, host, event_type, action, reporting_controller, reporting_instance] =
                texts;
            let (first_timestamp, last_timestamp, event_time, count) = times;
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
                related: related.map(Box::new),
                reporting_controller,
                reporting_instance,
            }
        })
}

proptest! {
    #[test]
    fn decode_of_encode_is_identity(event in event()) {
        for group in [ApiGroup::Core, ApiGroup::Events] {
            let mut out = Vec::new();
            write_json(group, &event, &mut out);
            let decoded = decode(group, &out, Strictness::Refuse).unwrap();
            prop_assert_eq!(&decoded.event, &Event { type_meta: Some(group), ..event.clone() });
            // What we write is JSON to others too.
            prop_assert!(serde_json::from_slice::<serde_json::Value>(&out).is_ok());
        }
    }

    #[test]
    fn decode_takes_any_bytes(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _outcome = decode(ApiGroup::Core, &body, Strictness::Report).is_ok();
    }

    #[test]
    fn reader_and_scanner_agree_on_broken_documents(event in event(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut body = Vec::new();
        write_json(ApiGroup::Core, &event, &mut body);
        let at = at.index(body.len());
        body[at] = byte;
        let ours = decode(ApiGroup::Core, &body, Strictness::Report);
        let malformed = |error: &DecodeError| error.status.message.contains("json parse error: invalid character")
            || error.status.message.contains("json parse error: unexpected end");
        prop_assert_eq!(ours.as_ref().is_err_and(|error| malformed(error)), syntax::is_malformed(&body));
        body.truncate(at);
        prop_assert!(decode(ApiGroup::Core, &body, Strictness::Report).is_err());
    }
}
