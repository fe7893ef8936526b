//! Whatever a body says, the decoder's short ways (keys that stand where Go writes them, strings without escapes, times in
//! UTC) must come to what the long ways come to.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// A document that can be written in two ways.
#[derive(Debug, Clone)]
enum Document {
    /// Anything but the others, as it is written.
    Scalar(&'static str),
    Text(String),
    Array(Vec<Self>),
    Object(Vec<(&'static str, Self)>),
}

impl Document {
    /// As Go writes it; or with every letter escaped and with white space wherever it may stand.
    fn write(&self, spelled_out: bool, out: &mut String) {
        let space = if spelled_out { " \n\t" } else { "" };
        out.push_str(space);
        match self {
            Self::Scalar(text) => out.push_str(text),
            Self::Text(text) => write_string(text, spelled_out, out),
            Self::Array(elements) => {
                out.push('[');
                for (index, element) in elements.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    element.write(spelled_out, out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (key, value)) in members.iter().enumerate() {
                    out.push_str(if index > 0 { "," } else { "" });
                    out.push_str(space);
                    write_string(key, spelled_out, out);
                    out.push_str(space);
                    out.push(':');
                    value.write(spelled_out, out);
                }
                out.push('}');
            }
        }
        out.push_str(space);
    }
}

fn write_string(text: &str, spelled_out: bool, out: &mut String) {
    if !spelled_out {
        out.push_str(&serde_json::to_string(text).unwrap());
        return;
    }
    out.push('"');
    for unit in text.encode_utf16() {
        write!(out, "\\u{unit:04x}").unwrap();
    }
    out.push('"');
}

/// In the order of Go's structs, or near it: the short way is about that.
const KEYS: &[&str] = &[
    "kind",
    "apiVersion",
    "metadata",
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "labels",
    "ownerReferences",
    "controller",
    "managedFields",
    "manager",
    "time",
    "fieldsV1",
    "involvedObject",
    "fieldPath",
    "reason",
    "message",
    "source",
    "component",
    "host",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "series",
    "lastObservedTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
    "regarding",
    "note",
    "deprecatedSource",
    "deprecatedCount",
    "reportingController",
    "Kind",
    "nam",
    "names",
    "",
    "\u{212a}ind",
];

const SCALARS: &[&str] = &["null", "true", "0", "7", "-3", "2147483648", "1.5", "1e2", "\"2026-03-01T08:00:00Z\""];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("Event".to_owned()),
        Just("v1".to_owned()),
        Just("events.k8s.io/v1".to_owned()),
        Just("2026-03-01T08:00:00.000001Z".to_owned()),
        Just("2026-02-29T08:00:00Z".to_owned()),
        "[ -~]{0,30}",
        any::<String>(),
    ]
}

fn document() -> impl Strategy<Value = Document> {
    let leaf = prop_oneof![prop::sample::select(SCALARS).prop_map(Document::Scalar), text().prop_map(Document::Text)];
    leaf.prop_recursive(4, 60, 12, |inner| {
        let object = (any::<bool>(), prop::collection::vec((0..KEYS.len(), inner.clone()), 0..12)).prop_map(
            |(in_order, mut members)| {
                if in_order {
                    members.sort_by_key(|(key, _)| *key);
                }
                Document::Object(members.into_iter().map(|(key, value)| (KEYS[key], value)).collect())
            },
        );
        prop_oneof![3 => object, 1 => prop::collection::vec(inner, 0..3).prop_map(Document::Array)]
    })
}

/// All that comes of a pass, faults or not.
fn outcome(
    group: ApiGroup,
    body: &str,
) -> (Option<String>, LentEvent<'_>, TypeMeta<'_>, Option<String>, Vec<StrictFault>) {
    let mut event = LentEvent::default();
    let mut pass = Pass::into(&mut event);
    let refusal = pass.run(group, body.as_bytes()).err().map(|error| error.fault().to_owned());
    let Pass { type_meta, fault, strict_faults, .. } = pass;
    (refusal, event, type_meta, fault, strict_faults)
}

/// Parts of an event as Go writes it, and others that are nearly so; whether the former.
const PARTS: &[(bool, &str)] = &[
    (true, r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a","#),
    (true, r#""namespace":"d""#),
    (false, r#","resourceVersion":"7""#),
    (true, r#","creationTimestamp":null"#),
    (true, r#"},"involvedObject":{"kind":"Pod""#),
    (false, r#","name":null"#),
    (true, r#"},"reason":"Back\"Off\"\n""#),
    (false, r#","message":"<a&b>""#),
    (false, ",\"message\":\"\u{e4}\u{2028}\u{7f}\""),
    (false, r#","message":"\u0041\/""#),
    (false, r#","message":"""#),
    (true, r#","source":{}"#),
    (true, r#","firstTimestamp":null"#),
    (true, r#","lastTimestamp":"2026-03-01T08:00:00Z""#),
    (false, r#","lastTimestamp":"2026-03-01T8:00:00.5Z""#),
    (false, r#","lastTimestamp":"0001-01-01T00:00:00Z""#),
    (true, r#","count":1"#),
    (false, r#","count":-0"#),
    (true, r#","type":"Normal""#),
    (true, r#","eventTime":"2026-03-01T08:00:00.000000Z""#),
    (false, r#","eventTime":"2026-03-01T08:00:00.000000+00:00""#),
    (false, r#","series":{"count":1,"lastObservedTime":null}"#),
    (false, r#","related":{"kind":"Pod"}"#),
    (true, r#","reportingComponent":"""#),
    (true, r#","reportingInstance":"i""#),
    (false, " "),
    (false, r#","kind":"Event""#),
    (true, "}\n"),
];

/// The parts that Go writes, and others in place of up to two of them.
fn nearly_canonical() -> Vec<String> {
    let places = 0..PARTS.len();
    let body = |first: usize, second: usize| {
        let is_there = |&(place, (usual, _)): &(usize, &(bool, &str))| *usual != (place == first || place == second);
        PARTS.iter().enumerate().filter(is_there).map(|(_, (_, part))| *part).collect()
    };
    places.clone().flat_map(|first| places.clone().map(move |second| body(first, second))).collect()
}

/// Any members, as Go writes them.
fn any_body() -> impl Strategy<Value = String> {
    prop::collection::vec((prop::sample::select(KEYS), document()), 0..20).prop_map(|members| {
        let mut body = String::new();
        Document::Object(members).write(false, &mut body);
        body
    })
}

/// The document that a body was found to be laid out as, beside what is written of its event.
fn documents(group: ApiGroup, body: &str) -> Option<(String, String)> {
    let decoded = decode(group, body.as_bytes(), Strictness::Report).ok()?;
    let document = decoded.layout.document(body.as_bytes())?;
    let mut written = Vec::new();
    write_json(group, &decoded.event, &mut written);
    Some((String::from_utf8(document).unwrap(), String::from_utf8(written).unwrap()))
}

#[test]
fn what_go_writes_is_known_as_written() {
    let body: String = PARTS.iter().filter(|(usual, _)| *usual).map(|(_, part)| *part).collect();
    for body in [body.replace(r#","creationTimestamp":null"#, ""), body] {
        let (document, written) = documents(ApiGroup::Core, &body).unwrap();
        assert_eq!(document, written);
    }
    let body = r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"a"},"eventTime":null,"regarding":{},"deprecatedSource":{},"deprecatedFirstTimestamp":null,"deprecatedLastTimestamp":null}"#;
    let (document, written) = documents(ApiGroup::Events, body).unwrap();
    assert_eq!(document, written);
    let known = nearly_canonical().iter().filter_map(|body| documents(ApiGroup::Core, body)).collect::<Vec<_>>();
    // Those without a part that may be missing, and with an object that is related.
    assert!((10..100).contains(&known.len()), "{}", known.len());
    for (document, written) in known {
        assert_eq!(document, written);
    }
}

proptest! {
    #[test]
    fn what_is_known_as_written_is_written(body in any_body()) {
        for group in [ApiGroup::Core, ApiGroup::Events] {
            if let Some((document, written)) = documents(group, &body) {
                prop_assert_eq!(document, written);
            }
        }
    }

    #[test]
    fn short_and_long_ways_meet(members in prop::collection::vec((prop::sample::select(KEYS), document()), 0..20)) {
        let document = Document::Object(members);
        let (mut short, mut long) = (String::new(), String::new());
        document.write(false, &mut short);
        document.write(true, &mut long);
        for group in [ApiGroup::Core, ApiGroup::Events] {
            prop_assert_eq!(outcome(group, &short), outcome(group, &long), "{}", short);
        }
    }
}
