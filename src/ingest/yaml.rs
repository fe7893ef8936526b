//! Converts YAML bodies to JSON for the decoder, and JSON answers to YAML.
//!
//! Both follow YAML 1.1, like `sigs.k8s.io/yaml` in the apiserver: `yes` is a boolean, and `010` is eight.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::BTreeMap;

use serde::Deserialize as _;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use serde_saphyr::{DuplicateKeyPolicy, budget, options, ser_options};

// LIMIT: a document beyond one of these is refused with 400. Aliases and merge keys count as their expansion.
const DEPTH_MAX: usize = 64;
const VALUES_MAX: usize = 10_000;
const MERGE_KEYS_MAX: usize = 100;
/// Bytes by which the expanded texts may be longer than the body.
const REPEATED_BYTES_MAX: usize = 1 << 20;

/// Converts the YAML in `body` to JSON. The last of duplicate keys counts.
pub(super) fn to_json(body: &[u8]) -> Result<Vec<u8>, String> {
    let options = options! {
        budget: budget! {
            max_depth: DEPTH_MAX,
            max_nodes: VALUES_MAX,
            max_merge_keys: MERGE_KEYS_MAX,
            max_recorded_anchor_events: VALUES_MAX * 2,
            max_total_scalar_bytes: body.len().saturating_add(REPEATED_BYTES_MAX),
        },
        duplicate_keys: DuplicateKeyPolicy::LastWins,
        emit_comments: false,
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let mut first = None;
    let read = serde_saphyr::with_deserializer_from_slice_with_options(body, options, |yaml| {
        first = Some(Value::deserialize(yaml)?);
        Ok(())
    });
    // COMPAT(apiserver): all bytes after the first document are ignored.
    if let (None, Err(error)) = (&first, read) {
        return Err(format!("yaml: {error}"));
    }
    let mut document = first.unwrap_or_default();
    write_whole(&mut document);
    serde_json::to_vec(&document).map_err(|error| error.to_string())
}

/// Removes the fraction of whole numbers, as Go does: `count: 2.0` is 2 in JSON.
fn write_whole(value: &mut Value) {
    match value {
        Value::Number(number) if number.is_f64() => {
            let digits = number.as_f64().filter(|float| float.fract() == 0.0).map(|float| format!("{float:.0}"));
            if let Some(whole) = digits.and_then(|digits| digits.parse::<i64>().ok()) {
                *number = whole.into();
            }
        }
        Value::Array(elements) => elements.iter_mut().for_each(write_whole),
        Value::Object(members) => members.values_mut().for_each(write_whole),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Converts a JSON document to YAML, with sorted members. Converts members of the document and elements of its
/// lists one by one: the tree of a long list takes ten times its memory.
pub(super) fn from_json(json: &[u8]) -> String {
    let value = |json: &RawValue| serde_json::from_str::<Value>(json.get()).unwrap_or_default();
    let Ok(members) = serde_json::from_slice::<BTreeMap<&str, &RawValue>>(json) else {
        return from_value(serde_json::from_slice(json).unwrap_or_default());
    };
    let mut yaml = String::new();
    for (name, member) in members {
        match serde_json::from_str::<Vec<&RawValue>>(member.get()) {
            Ok(elements) if !elements.is_empty() => {
                // The name as it is written before a list.
                let empty = from_value(Value::from_iter([(name, Value::Array(Vec::new()))]));
                yaml.push_str(empty.trim_end().trim_end_matches("[]").trim_end());
                yaml.push('\n');
                for element in elements {
                    for (number, line) in from_value(value(element)).lines().enumerate() {
                        yaml.push_str(if number == 0 { "- " } else { "  " });
                        yaml.push_str(line);
                        yaml.push('\n');
                    }
                }
            }
            _ => yaml.push_str(&from_value(Value::from_iter([(name, value(member))]))),
        }
    }
    if yaml.is_empty() { from_value(Value::Object(Map::new())) } else { yaml }
}

fn from_value(mut document: Value) -> String {
    document.sort_all_objects();
    // Go's parser rejects a block that begins with a tab.
    let options = ser_options! { prefer_block_scalars: false };
    // If the writer fails: JSON is valid YAML.
    serde_saphyr::to_string_with_options(&document, options).unwrap_or_else(|_| document.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(yaml: &str) -> Result<Value, String> {
        to_json(yaml.as_bytes()).map(|json| serde_json::from_slice(&json).unwrap())
    }

    #[test]
    fn scalars_are_read_as_by_the_apiserver() {
        let words = "[yes, Off, y, ~, '~', 0x1f, 010, -0o17, 1_000, 2.0, 1e3, 2.5, 12:30:45, 2024-05-01]";
        let meant = json!([true, false, true, null, "~", 31, 8, -15, 1000, 2, 1000, 2.5, "12:30:45", "2024-05-01"]);
        assert_eq!(read(words), Ok(meant));
        let merged = "a: 1\nb: &b {c: 2, d: 3}\na: {<<: *b, d: !!str 4}\n---\nother: {";
        assert_eq!(read(merged), Ok(json!({"b": {"c": 2, "d": 3}, "a": {"d": "4", "c": 2}})));
        assert_eq!(read("# nothing\n"), Ok(Value::Null));
        for refused in [&b"a: {"[..], b"a: *b", b"a: &a [*a]", b"[a]: b", b"a: 1e999", b"a: \0", b"a: \xff"] {
            assert!(to_json(refused).unwrap_err().starts_with("yaml: "));
        }
    }

    #[test]
    fn the_expansion_of_a_document_is_limited() {
        let nested = |depth| "[".repeat(depth) + &"]".repeat(depth);
        let values = |number| format!("[{}]", "1,".repeat(number - 1));
        let merging = |keys| format!("[&a {{b: 1}}, {}]", "{<<: *a},".repeat(keys));
        let repeating = |bytes| format!("[&a {}, *a]", "x".repeat(bytes));
        let anchored = |depth| "&a [".repeat(depth) + &values(VALUES_MAX / 10) + &"]".repeat(depth);
        // Each line expands to ten times the one before.
        let line = |n| format!("a{n}: &a{n} [{}]\n", format!("*a{},", n - 1).repeat(10));
        let laughing = |lines| "a0: &a0 x\n".to_owned() + &(1..lines).map(line).collect::<String>();
        for (fits, exceeds) in [
            (nested(DEPTH_MAX), nested(DEPTH_MAX + 1)),
            (values(VALUES_MAX), values(VALUES_MAX + 1)),
            (merging(MERGE_KEYS_MAX), merging(MERGE_KEYS_MAX + 1)),
            (repeating(REPEATED_BYTES_MAX), repeating(REPEATED_BYTES_MAX + 20)),
            (anchored(10), anchored(30)),
            (laughing(4), laughing(9)),
        ] {
            assert!(read(&fits).is_ok(), "{fits:.40}");
            assert!(read(&exceeds).unwrap_err().contains("budget"), "{exceeds:.40}");
        }
    }

    #[test]
    fn texts_that_look_like_other_scalars_are_quoted() {
        let words = "yes No ON off y N true FALSE null ~ 1 -1 +1 010 0o7 0x1f 0b1 1_000 .5 5. 1e3 .inf .NaN 12:30:45 \
                     2024-05-01 2024-05-01T10:00:00Z << = - ? : --- ... &a *a !a #a @a `a %a |a >a [a {a ,a 'a \"a";
        let others = ["", " a", "a ", "\ta", "a\n", "\na", "a\nb", "a: b", "a #b", "- a", "a:", "\0", "\u{feff}a"];
        for text in words.split(' ').chain(others) {
            let yaml = from_value(json!({ "k": text, text: "v" }));
            let is_quoted = |line: &str| line.trim_start_matches("k: ").starts_with(['"', '\'']);
            assert!(yaml.is_ascii() && yaml.lines().count() == 2 && yaml.lines().all(is_quoted), "{yaml}");
        }
        let plain = json!({"b": ["spec.containers{web}", "kubelet, node-1"], "a": {"c": null}});
        assert_eq!(
            from_json(plain.to_string().as_bytes()),
            "a:\n  c: null\nb:\n- spec.containers{web}\n- kubelet, node-1\n"
        );
    }

    const TEXT: &str = r#"(yes|~|1e3|12:30| #|: |- |[ \n\t\r'"\\]|.){0,6}"#;

    proptest! {
        #[test]
        fn documents_survive_a_round_trip(a in TEXT, b in TEXT, n: i64, m: u64, real in prop::num::f64::NORMAL) {
            let inner = json!({ a.as_str(): b, "b": [a, { b.as_str(): n }, [b, m]] });
            let document = json!({ a.as_str(): [inner, real, true, null, {}, []] });
            let yaml = from_json(document.to_string().as_bytes());
            prop_assert_eq!(&yaml, &from_value(document.clone()));
            let mut expected = document;
            write_whole(&mut expected);
            prop_assert_eq!(read(&yaml), Ok(expected), "{}", &yaml);
        }
    }
}
