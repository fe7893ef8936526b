//! Parses a document into a tree, for patches: their members need not be those of an Event.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::read::{Pass, Path};
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
    let mut pass = Pass::new(ApiGroup::Core);
    let json = repaired(body);
    let mut reader = serde_json::Deserializer::from_str(&json);
    let node = Node { at: Path::Root, pass: &mut pass };
    let value = node.deserialize(&mut reader).and_then(|value| reader.end().map(|()| value));
    value.map(|value| Tree { value, duplicates: pass.strict }).map_err(|error| error.to_string())
}

/// A value before it is parsed.
struct Node<'n> {
    at: Path<'n>,
    pass: &'n mut Pass,
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    /// As in Go, a number beyond an int64 is a float64.
    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        i64::try_from(number).map_or_else(|_large| self.visit_f64(number as f64), |number| Ok(number.into()))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut elements = Vec::new();
        let at = &self.at;
        while let Some(element) =
            list.next_element_seed(Node { at: Path::Index(at, elements.len()), pass: &mut *self.pass })?
        {
            elements.push(element);
        }
        Ok(elements.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            let at = Path::Name(&self.at, &name);
            let member = map.next_value_seed(Node { at, pass: &mut *self.pass })?;
            if members.insert(name.to_string(), member).is_some() {
                self.pass.duplicate(&at);
            }
        }
        Ok(members.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
