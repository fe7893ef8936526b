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
fn outcome(group: ApiGroup, body: &str) -> (Option<String>, Event, TypeMeta, Option<String>, Vec<StrictFault>) {
    let mut event = Event::default();
    let mut pass = Pass::into(&mut event);
    let refusal = pass.run(group, body.as_bytes()).err().map(|error| error.fault().to_owned());
    let Pass { type_meta, fault, strict_faults, .. } = pass;
    (refusal, event, type_meta, fault, strict_faults)
}

proptest! {
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
