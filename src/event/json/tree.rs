//! A whole document as a tree, as `sigs.k8s.io/json` reads one into Go's `interface{}`: for patches, whose members mean
//! something only beside the event that they change.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use serde_json::{Map, Number, Value};

use super::StrictFault;
use super::decoder::Decoder;
use super::path::Path;
use super::reader::{Kind, Malformed};
use super::syntax;

/// LIMIT: open objects and arrays within each other; more are refused. Go allows 10,000, but a tree is walked by recursion.
pub(crate) const TREE_DEPTH_MAX: usize = 128;

/// A document, read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tree {
    /// What it says; of a member given twice the last one counts.
    pub(crate) value: Value,
    /// The members given twice.
    pub(crate) duplicates: Vec<StrictFault>,
}

/// Reads a document.
///
/// # Errors
/// Go's text for the first fault of a document that is malformed, too deep, or has a number that no float64 holds.
pub(crate) fn tree(body: &[u8]) -> Result<Tree, String> {
    let mut decoder = Decoder::new(body);
    let mut fault = None;
    let read = value(&mut decoder, &Path::ROOT, 0, &mut fault).and_then(|value| {
        decoder.reader.end()?;
        Ok(value)
    });
    match (read, fault) {
        (_, Some(fault)) => Err(fault),
        (Err(Malformed), None) => Err(syntax::fault(body)),
        (Ok(value), None) => Ok(Tree { value, duplicates: decoder.finish().1 }),
    }
}

fn value(
    decoder: &mut Decoder<'_>,
    at: &Path<'_>,
    depth: usize,
    fault: &mut Option<String>,
) -> Result<Value, Malformed> {
    if depth >= TREE_DEPTH_MAX {
        fault.get_or_insert_with(|| "exceeded max depth".to_owned());
        return Err(Malformed);
    }
    let below = depth.saturating_add(1);
    Ok(match decoder.reader.kind()? {
        Kind::Object => {
            let mut members = Map::new();
            decoder.members(|decoder, key| {
                let member = value(decoder, &Path::key(at, key), below, fault)?;
                if members.insert(key.to_owned(), member).is_some() {
                    decoder.duplicate(&Path::key(at, key));
                }
                Ok(())
            })?;
            members.into()
        }
        Kind::Array => {
            let mut elements = Vec::new();
            let mut more = decoder.reader.enter_array()?;
            while more {
                elements.push(value(decoder, &Path::index(at, elements.len()), below, fault)?);
                more = decoder.reader.next_element()?;
            }
            elements.into()
        }
        Kind::String => decoder.reader.string()?.into_owned().into(),
        Kind::Number => {
            let literal = decoder.reader.number()?;
            number(literal).unwrap_or_else(|| {
                fault.get_or_insert_with(|| {
                    format!("json: cannot unmarshal number {literal} into Go value of type float64")
                });
                Value::Null
            })
        }
        Kind::Bool => decoder.reader.boolean()?.into(),
        Kind::Null => {
            decoder.reader.null()?;
            Value::Null
        }
    })
}

/// An int64 where it is one, else a float64.
fn number(literal: &str) -> Option<Value> {
    if let Ok(integer) = literal.parse::<i64>() {
        return Some(integer.into());
    }
    Number::from_f64(literal.parse().ok()?).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_read_as_go_reads_them() {
        let read = tree(br#" {"a":[1,2.5,-0,null,true],"b":{"c":"\u00e9\ud800"},"n":9223372036854775808} "#).unwrap();
        let expected = json!({"a": [1, 2.5, 0, null, true], "b": {"c": "é\u{fffd}"}, "n": 9_223_372_036_854_775_808.0});
        assert_eq!(read.value, expected);
        assert!(read.duplicates.is_empty());
        let read = tree(br#"{"a":1,"b":[{"c":1,"c":2}],"a":2}"#).unwrap();
        assert_eq!(read.value, json!({"a": 2, "b": [{"c": 2}]}));
        let told: Vec<String> = read.duplicates.iter().map(ToString::to_string).collect();
        assert_eq!(told, [r#"duplicate field "b[0].c""#, r#"duplicate field "a""#]);
    }

    #[test]
    fn what_is_no_document_is_refused_in_gos_words() {
        let check = |body: &str, fault: &str| assert_eq!(tree(body.as_bytes()).unwrap_err(), fault, "{body}");
        check("", "unexpected end of JSON input");
        check(r#"{"count""#, "unexpected end of JSON input");
        check("{} x", "invalid character 'x' after top-level value");
        check("[1e400]", "json: cannot unmarshal number 1e400 into Go value of type float64");
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(tree(deep(TREE_DEPTH_MAX).as_bytes()).is_ok());
        check(&deep(TREE_DEPTH_MAX + 1), "exceeded max depth");
    }
}
