//! Parses a document into a tree, for patches: their members need not be those of an Event.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::read::{Pass, Path, Seed, document};
use super::text::repaired;
use crate::event::ApiGroup;

/// A parsed document.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tree {
    /// Its content; the last one of duplicate members wins.
    pub(crate) value: Value,
    /// The duplicate members.
    pub(crate) duplicates: Vec<String>,
}

/// Parses a document. LIMIT: `serde_json` refuses objects and arrays that are nested 128 deep; Go allows 10,000.
///
/// # Errors
/// States where the document is malformed or too deep, or has a number that is out of range for a float64.
pub(crate) fn tree(body: &[u8]) -> Result<Tree, String> {
    // The names in a tree belong to no group.
    let (mut value, mut pass) = (Value::Null, Pass::new(ApiGroup::Core));
    document(&repaired(body), &mut value, &mut pass).map_err(|error| error.to_string())?;
    Ok(Tree { value, duplicates: pass.strict })
}

impl Seed<'_, Value> {
    fn set<E>(self, value: impl Into<Value>) -> Result<(), E> {
        *self.into = value.into();
        Ok(())
    }
}

impl<'de> Visitor<'de> for Seed<'_, Value> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.set(Value::Null)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<(), E> {
        self.set(truth)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.set(number)
    }

    /// As in Go, a number beyond an int64 is a float64.
    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        match i64::try_from(number) {
            Ok(number) => self.set(number),
            Err(_large) => self.visit_f64(number as f64),
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.set(Number::from_f64(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.set(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        let mut elements = Vec::<Value>::new();
        Seed { into: &mut elements, at: self.at, pass: &mut *self.pass }.visit_seq(list)?;
        self.set(elements)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            let at = Path::Name(self.at, &name);
            let mut member = Value::Null;
            map.next_value_seed(Seed { into: &mut member, at: &at, pass: &mut *self.pass })?;
            if members.insert(name.to_string(), member).is_some() {
                self.pass.strict_fault("duplicate", &at);
            }
        }
        self.set(members)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Fault: each duplicate below a long name had the whole name, also one that was known already. A body of 1 MiB took
    /// minutes, and another one gigabytes.
    #[test]
    fn a_long_path_is_cut_in_its_faults_and_all_have_a_limit() {
        let name = "k".repeat(100_000);
        let body = |members: String| format!(r#"{{"{name}":{{{members}}},"b":1,"b":2}}"#);
        let read =
            tree(body((0..50).map(|n| format!(r#""{n}":0,"{n}":0,"#)).collect::<String>() + r#""c":0"#).as_bytes());
        let duplicates = read.unwrap().duplicates;
        assert_eq!(duplicates.len(), 1, "the names below it are beyond the cut");
        assert!(duplicates.iter().map(String::len).sum::<usize>() < 5_000);
        // Few are within the limit, and named.
        let read = tree(body(r#""c":0,"c":0"#.to_owned()).as_bytes()).unwrap();
        assert_eq!(read.duplicates.last().map(String::as_str), Some("duplicate field \"b\""));
    }

    #[test]
    fn documents_are_parsed_as_go_parses_them() {
        let read = tree(br#" {"a":[1,2.5,-7,null,true],"b":{"c":"\u00e9\ud800"},"n":9223372036854775808} "#).unwrap();
        let expected =
            json!({"a": [1, 2.5, -7, null, true], "b": {"c": "é\u{fffd}"}, "n": 9_223_372_036_854_775_808.0});
        assert_eq!(read.value, expected);
        assert!(read.duplicates.is_empty());
        let read = tree(br#"{"a":1,"b":[{"c":1,"c":2}],"a":2}"#).unwrap();
        assert_eq!(read.value, json!({"a": 2, "b": [{"c": 2}]}));
        assert_eq!(read.duplicates, [r#"duplicate field "b[0].c""#, r#"duplicate field "a""#]);
    }

    #[test]
    fn invalid_documents_are_refused() {
        for body in ["", r#"{"count""#, "{} x", "[1e400]"] {
            assert!(tree(body.as_bytes()).is_err(), "{body}");
        }
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(tree(deep(127).as_bytes()).is_ok());
        assert!(tree(deep(128).as_bytes()).is_err());
    }
}
