//! Examples and properties of decoding and writing. `tests/api` replays recorded ones.

use proptest::prelude::*;

use super::*;
use crate::event::EventSource;
use crate::event::schema::tests::event;

/// Decodes in core/v1 and checks the refusal's message.
fn refused(body: &str, message: &str) {
    let error = decode(ApiGroup::Core, body.as_bytes(), FieldValidation::Warn).unwrap_err();
    assert_eq!(error.message, message, "{body}");
    assert_eq!((error.code, error.reason.as_str()), (400, "BadRequest"), "{body}");
}

fn written(event: &Event) -> String {
    let mut out = Vec::new();
    write_json(ApiGroup::Core, event, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn text_is_escaped_as_go_escapes_it() {
    let event = Event { message: "<&>\u{2028}\u{2029}\u{2030}\"\\\u{1}\n\u{7f}é".into(), ..Event::default() };
    let shown = written(&event);
    let expected = concat!(r#""message":"\u003c\u0026\u003e\u2028\u2029"#, "\u{2030}", r#"\"\\\u0001\n"#, "\u{7f}é\"");
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn a_member_of_a_wrong_type_is_reported_with_its_path() {
    let check = |body: &str, fault: &str| {
        refused(body, &format!("Event in version \"v1\" cannot be handled as a Event: {fault}"));
    };
    check(r#"{"count":"3"}"#, r#"count: expected a whole number of 32 bits, found "3""#);
    check(r#"{"metadata":{"labels":{"a":1}}}"#, "metadata.labels.a: invalid type: integer `1`, expected a string");
    check(
        r#"{"metadata":{"ownerReferences":[{},{"name":{}}]}}"#,
        "metadata.ownerReferences[1].name: invalid type: map, expected a string",
    );
    check(
        r#"{"firstTimestamp":"yesterday"}"#,
        r#"firstTimestamp: "yesterday" is not a time such as 2026-01-02T15:04:05Z"#,
    );
}

#[test]
fn null_is_no_value_and_the_last_duplicate_wins() {
    let body = br#"{"reason":"A","reason":null,"source":{"component":"c"},"source":{"host":"h"},"series":{"count":3},
        "series":null,"count":2,"count":null,"metadata":{"labels":{"a":null},"finalizers":["x","y"],"finalizers":["z"]}}"#;
    let decoded = decode(ApiGroup::Core, body, FieldValidation::Warn).unwrap();
    let event = decoded.event;
    assert_eq!((event.reason.as_str(), event.count, event.series), ("A", 2, None));
    assert_eq!(event.source, EventSource { component: "c".into(), host: "h".into() });
    let rare = event.metadata.rare.unwrap();
    assert_eq!(rare.labels.get("a").map(AsRef::as_ref), Some(""));
    assert_eq!(rare.finalizers, ["z"]);
    let expected =
        ["reason", "source", "series", "count", "metadata.finalizers"].map(|f| format!("duplicate field \"{f}\""));
    assert_eq!(decoded.warnings, expected);
}

#[test]
fn strict_faults_have_full_paths_and_are_reported_once() {
    let body = br#"{"x":1,"x":2,"metadata":{"ownerReferences":[{},{"y":[1],"uid":"a","uid":"b"}],"managedFields":[{"z":0}]},"KIND":"Event"}"#;
    let decoded = decode(ApiGroup::Core, body, FieldValidation::Warn).unwrap();
    assert_eq!(
        decoded.warnings,
        [
            "unknown field \"x\"",
            "unknown field \"metadata.ownerReferences[1].y\"",
            "duplicate field \"metadata.ownerReferences[1].uid\"",
            "unknown field \"KIND\"",
        ]
    );
}

/// `tests/api` replays other kinds and versions.
#[test]
fn only_events_of_the_api_group_are_accepted() {
    let expected = "expected an object of kind Event and apiVersion v1, found";
    for (kind, api_version) in [("", "events.k8s.io/"), ("", "a/b/c"), ("event", "v1"), ("EventList", "v1")] {
        let found = format!("{expected} kind {kind:?} and apiVersion {api_version:?}");
        refused(&format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","count":"x"}}"#), &found);
        // The API server ignores case here.
        refused(&format!(r#"{{"Kind":"{kind}","APIVERSION":"{api_version}"}}"#), &found);
    }
    for (group, stated, type_meta) in [
        (ApiGroup::Core, r#"{"kind":"Event","apiVersion":"/v1"}"#, Some(ApiGroup::Core)),
        (ApiGroup::Core, r#"{"apiVersion":"/"}"#, Some(ApiGroup::Core)),
        (ApiGroup::Core, r#"{"kind":null}"#, None),
        (ApiGroup::Events, r#"{"apiVersion":"events.k8s.io/"}"#, Some(ApiGroup::Events)),
    ] {
        let decoded = decode(group, stated.as_bytes(), FieldValidation::Warn).unwrap();
        assert_eq!(decoded.event.type_meta, type_meta, "{stated}");
    }
}

/// Fault: lists of empty elements took up to sixty times the memory of their body.
#[test]
fn lists_in_metadata_have_a_limit_in_clients_bodies() {
    for (member, element) in [("ownerReferences", "{}"), ("finalizers", "\"\""), ("managedFields", "1")] {
        let body =
            |elements: usize| format!(r#"{{"metadata":{{"{member}":[{}]}}}}"#, vec![element; elements].join(","));
        assert!(decode(ApiGroup::Core, body(10_000).as_bytes(), FieldValidation::Warn).is_ok(), "{member}");
        let text = "Event in version \"v1\" cannot be handled as a Event";
        refused(&body(10_001), &format!("{text}: metadata.{member}: a list has more than 10000 elements"));
        // What the upstream stores must be read.
        assert!(decode_event(ApiGroup::Core, body(10_001).as_bytes()).is_ok(), "{member}");
    }
}

/// Fault: their tree took some seventy times the memory of the body.
#[test]
fn managed_fields_with_very_many_values_are_dropped() {
    let decoded = |values| {
        let body = format!(r#"{{"metadata":{{"managedFields":[[{}]]}}}}"#, vec!["1"; values].join(","));
        let decoded = decode(ApiGroup::Core, body.as_bytes(), FieldValidation::Warn).unwrap();
        decoded.event.metadata.managed_fields.map_or(0, |fields| fields.len())
    };
    assert_eq!([decoded(90_000), decoded(200_000)], [180_003, 0]);
}

#[test]
fn invalid_json_is_reported_with_line_and_column() {
    refused("", "the body is not JSON: EOF while parsing a value at line 1 column 0");
    let body: &[u8] = b"\x1f\x8b\x08";
    let error = decode(ApiGroup::Core, body, FieldValidation::Warn).unwrap_err();
    assert_eq!(error.message, "the body is not JSON: it is compressed, and must not be");
    refused("{}\nx", "the body is not JSON: trailing characters at line 2 column 1");
    refused("{\"count\":1,}", "the body is not JSON: trailing comma at line 1 column 12");
    // Unknown members are skipped without recursion.
    let body = |depth: usize| format!("{{\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
    assert!(decode(ApiGroup::Core, body(9_999).as_bytes(), FieldValidation::Warn).is_ok());
    assert!(decode(ApiGroup::Core, "[".repeat(20_000).as_bytes(), FieldValidation::Warn).is_err());
}

/// Reverses the order of the members of each object.
fn reverse(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::Object(members) => {
            *members = std::mem::take(members).into_iter().rev().collect();
            members.values_mut().for_each(reverse);
        }
        serde_json::Value::Array(elements) => elements.iter_mut().for_each(reverse),
        _ => {}
    }
}

/// Drops `fieldsV1`, which keeps its own order.
fn without_managed_fields(mut event: Event) -> Event {
    event.metadata.managed_fields = None;
    event
}

proptest! {
    #[test]
    fn decode_of_encode_is_identity(event in event()) {
        for group in [ApiGroup::Core, ApiGroup::Events] {
            let mut out = Vec::new();
            write_json(group, &event, &mut out);
            let decoded = decode(group, &out, FieldValidation::Strict).unwrap();
            prop_assert_eq!(&decoded.event, &Event { type_meta: Some(group), ..event.clone() });
            // Other parsers accept the document, and the order of members has no meaning.
            let mut document: serde_json::Value = serde_json::from_slice(&out).unwrap();
            reverse(&mut document);
            let reversed = decode(group, document.to_string().as_bytes(), FieldValidation::Strict).unwrap();
            prop_assert_eq!(without_managed_fields(reversed.event), without_managed_fields(decoded.event));
        }
    }

    #[test]
    fn decode_accepts_or_refuses_any_bytes(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _outcome = decode(ApiGroup::Core, &body, FieldValidation::Ignore).is_ok();
    }

    #[test]
    fn a_truncated_body_is_refused(event in event(), at in any::<prop::sample::Index>()) {
        let mut body = Vec::new();
        write_json(ApiGroup::Core, &event, &mut body);
        body.truncate(at.index(body.len()));
        prop_assert!(decode(ApiGroup::Core, &body, FieldValidation::Ignore).is_err());
    }
}
