//! YAML as the apiserver reads and writes it: JSON in another dress, with the words of YAML 1.1.
//!
//! After `sigs.k8s.io/yaml`, which goes through JSON both ways, and `go.yaml.in/yaml/v2` (`emitterc.go`, `encode.go`,
//! `sorter.go`): sorted keys, lists not indented, lines folded behind column 80.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod read;
mod resolve;
mod scalar;

pub(super) use read::to_json;

use std::cmp::Ordering;

use serde_json::{Map, Value};

use scalar::Scalar;

/// Longest key that stands on the line of its value (`yaml_emitter_check_simple_key`).
const SIMPLE_KEY_MAX: usize = 128;

/// A JSON document as YAML, with its newline.
pub(super) fn from_json(document: &Value) -> String {
    let mut writer = Writer::default();
    match document {
        Value::Object(members) if !members.is_empty() => writer.mapping(members, 0),
        Value::Array(items) if !items.is_empty() => writer.sequence(items, 0),
        leaf => writer.leaf(leaf, 0),
    }
    writer.end_line();
    writer.out
}

/// Text and where its last line ends.
#[derive(Debug, Default)]
pub(super) struct Writer {
    out: String,
    column: usize,
}

impl Writer {
    fn put(&mut self, character: char) {
        self.out.push(character);
        self.column = self.column.saturating_add(1);
    }

    fn put_all(&mut self, text: &str) {
        text.chars().for_each(|character| self.put(character));
    }

    fn end_line(&mut self) {
        if self.column > 0 {
            self.break_line();
        }
    }

    fn break_line(&mut self) {
        self.out.push('\n');
        self.column = 0;
    }

    /// A new line, unless this one is empty, and its indentation.
    fn indent(&mut self, indent: usize) {
        self.end_line();
        (0..indent).for_each(|_| self.put(' '));
    }

    /// Members of an object, the first one where the line is.
    fn mapping(&mut self, members: &Map<String, Value>, indent: usize) {
        let mut sorted: Vec<_> = members.iter().collect();
        sorted.sort_by(|(left, _), (right, _)| natural(left, right));
        for (index, (key, value)) in sorted.into_iter().enumerate() {
            if index > 0 {
                self.indent(indent);
            }
            if key.len() > SIMPLE_KEY_MAX || key.contains('\n') {
                self.put_all("? ");
                Scalar::of(key).write(self, indent.saturating_add(2));
                self.indent(indent);
            } else {
                Scalar::of_key(key).write(self, indent);
            }
            self.put(':');
            self.value(value, indent);
        }
    }

    /// What follows a key: on its line, or below.
    fn value(&mut self, value: &Value, indent: usize) {
        match value {
            Value::Object(members) if !members.is_empty() => {
                let indent = indent.saturating_add(2);
                self.indent(indent);
                self.mapping(members, indent);
            }
            Value::Array(items) if !items.is_empty() => {
                self.indent(indent);
                self.sequence(items, indent);
            }
            leaf => {
                self.put(' ');
                self.leaf(leaf, indent.saturating_add(2));
            }
        }
    }

    /// Items of a list, the first one where the line is.
    fn sequence(&mut self, items: &[Value], indent: usize) {
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.indent(indent);
            }
            self.put_all("- ");
            let inner = indent.saturating_add(2);
            match item {
                Value::Object(members) if !members.is_empty() => self.mapping(members, inner),
                Value::Array(items) if !items.is_empty() => self.sequence(items, inner),
                leaf => self.leaf(leaf, inner),
            }
        }
    }

    fn leaf(&mut self, leaf: &Value, indent: usize) {
        match leaf {
            Value::String(text) => Scalar::of(text).write(self, indent),
            Value::Object(_) => self.put_all("{}"),
            Value::Array(_) => self.put_all("[]"),
            other => self.put_all(&other.to_string()),
        }
    }
}

/// The order of keys: digits by their number, letters behind everything else (`keyList.Less`).
fn natural(left: &str, right: &str) -> Ordering {
    let (a, b): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let Some(at) = a.iter().zip(&b).position(|(a, b)| a != b) else { return a.len().cmp(&b.len()) };
    let (Some(x), Some(y)) = (a.get(at), b.get(at)) else { return Ordering::Equal };
    match (x.is_alphabetic(), y.is_alphabetic()) {
        (true, true) => return x.cmp(y),
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    // A digit after others that are not all zeros is not leading: `10` and `1a`.
    let counts = (*x == '0' || *y == '0')
        && a.iter().take(at).rev().take_while(|digit| digit.is_ascii_digit()).any(|digit| *digit != '0');
    let number = |text: &[char]| -> (i64, usize) {
        let digits = text.iter().skip(at).map_while(|digit| digit.to_digit(10));
        digits.fold((i64::from(counts), 0), |(number, length), digit| {
            (number.wrapping_mul(10).wrapping_add(i64::from(digit)), length.saturating_add(1))
        })
    };
    number(&a).cmp(&number(&b)).then(x.cmp(y))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(json: &Value, expected: &str) {
        assert_eq!(from_json(json), expected);
        let read = to_json(expected.as_bytes()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&read).unwrap(), *json, "read back: {expected}");
    }

    #[test]
    fn documents_look_as_gos() {
        check(
            &json!({"b": [], "a": {}, "c": null, "d": [{"y": 1, "x": [1, [2, 3]]}]}),
            "a: {}\nb: []\nc: null\nd:\n- x:\n  - 1\n  - - 2\n    - 3\n  \"y\": 1\n",
        );
        check(&json!({"a10": 1, "a9": 2, ".": 3, "f:x": 4}), ".: 3\na9: 2\na10: 1\nf:x: 4\n");
        check(&json!("x"), "x\n");
    }

    #[test]
    fn texts_are_quoted_as_go_quotes_them() {
        let check = |text: &str, expected: &str| check(&json!({ "a": text }), &format!("a: {expected}\n"));
        check("", r#""""#);
        check("yes", r#""yes""#);
        check("12345678901", r#""12345678901""#);
        check("0x1f", r#""0x1f""#);
        check("1e3", r#""1e3""#);
        check("10:30", r#""10:30""#);
        check("2024-05-01T10:00:00Z", r#""2024-05-01T10:00:00Z""#);
        check("2024-05-01T10:00:00.123456Z", r#""2024-05-01T10:00:00.123456Z""#);
        check("2y203d", "2y203d");
        check("00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000001");
        check("spec.containers{web}", "spec.containers{web}");
        check("kubelet, node-1", "kubelet, node-1");
        check("a: b", "'a: b'");
        check("it's: x", "'it''s: x'");
        check("- x", "'- x'");
        check("-x", "-x");
        check("*x", "'*x'");
        check("a #b", "'a #b'");
        check(" x", "' x'");
        check("a\tb", r#""a\tb""#);
        check("😀", r#""\U0001F600""#);
        check("ü", "ü");
        check("a\nb", "|-\n  a\n  b");
        check("a \nb", r#""a \nb""#);
    }

    #[test]
    fn long_lines_are_folded() {
        let long = "Type of this event (Normal, Warning), new types could be added in the future";
        let expected =
            "- description: Type of this event (Normal, Warning), new types could be added in the\n    future\n";
        check(&json!([{ "description": long }]), expected);
    }
}
