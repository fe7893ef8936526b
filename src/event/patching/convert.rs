//! From a patched tree to what can be decoded: the conversions and refusals of `runtime.DefaultUnstructuredConverter`, by which
//! a strategic merge patch becomes an event again. It is laxer with numbers than the JSON decoder, and has words of its own.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use serde_json::{Number, Value};

use super::lists::go_type;
use crate::event::{ApiGroup, MicroTime, Time};

/// A Go type, as far as the conversion minds.
#[derive(Debug, Clone, Copy)]
enum Type {
    /// A string, by the name of its Go type.
    Text(&'static str),
    Int32,
    Int64,
    Bool,
    Time,
    MicroTime,
    /// `map[string]string`
    TextMap,
    Struct(&'static [Member]),
    Slice(&'static Type),
    /// Kept as it is.
    Raw,
}

type Member = (&'static str, Type);

const TEXT: Type = Type::Text("string");

const REFERENCE: &[Member] = &[
    ("kind", TEXT),
    ("namespace", TEXT),
    ("name", TEXT),
    ("uid", Type::Text("types.UID")),
    ("apiVersion", TEXT),
    ("resourceVersion", TEXT),
    ("fieldPath", TEXT),
];
const SOURCE: &[Member] = &[("component", TEXT), ("host", TEXT)];
const SERIES: &[Member] = &[("count", Type::Int32), ("lastObservedTime", Type::MicroTime)];
const OWNER: &[Member] = &[
    ("apiVersion", TEXT),
    ("kind", TEXT),
    ("name", TEXT),
    ("uid", Type::Text("types.UID")),
    ("controller", Type::Bool),
    ("blockOwnerDeletion", Type::Bool),
];
const META: &[Member] = &[
    ("name", TEXT),
    ("generateName", TEXT),
    ("namespace", TEXT),
    ("selfLink", TEXT),
    ("uid", Type::Text("types.UID")),
    ("resourceVersion", TEXT),
    ("generation", Type::Int64),
    ("creationTimestamp", Type::Time),
    ("deletionTimestamp", Type::Time),
    ("deletionGracePeriodSeconds", Type::Int64),
    ("labels", Type::TextMap),
    ("annotations", Type::TextMap),
    ("ownerReferences", Type::Slice(&Type::Struct(OWNER))),
    ("finalizers", Type::Slice(&TEXT)),
    ("managedFields", Type::Slice(&Type::Raw)),
];
const CORE_EVENT: &[Member] = &[
    ("kind", TEXT),
    ("apiVersion", TEXT),
    ("metadata", Type::Struct(META)),
    ("involvedObject", Type::Struct(REFERENCE)),
    ("reason", TEXT),
    ("message", TEXT),
    ("source", Type::Struct(SOURCE)),
    ("firstTimestamp", Type::Time),
    ("lastTimestamp", Type::Time),
    ("count", Type::Int32),
    ("type", TEXT),
    ("eventTime", Type::MicroTime),
    ("series", Type::Struct(SERIES)),
    ("action", TEXT),
    ("related", Type::Struct(REFERENCE)),
    ("reportingComponent", TEXT),
    ("reportingInstance", TEXT),
];
const EVENTS_EVENT: &[Member] = &[
    ("kind", TEXT),
    ("apiVersion", TEXT),
    ("metadata", Type::Struct(META)),
    ("eventTime", Type::MicroTime),
    ("series", Type::Struct(SERIES)),
    ("reportingController", TEXT),
    ("reportingInstance", TEXT),
    ("action", TEXT),
    ("reason", TEXT),
    ("regarding", Type::Struct(REFERENCE)),
    ("related", Type::Struct(REFERENCE)),
    ("note", TEXT),
    ("type", TEXT),
    ("deprecatedSource", Type::Struct(SOURCE)),
    ("deprecatedFirstTimestamp", Type::Time),
    ("deprecatedLastTimestamp", Type::Time),
    ("deprecatedCount", Type::Int32),
];

/// Converts the tree in place, so that the event decoder takes it. Returns the unknown members, as they are told of.
///
/// # Errors
/// Go's text for the first value, in the order of the Go types, that cannot be converted.
pub(super) fn convert(group: ApiGroup, event: &mut Value) -> Result<Vec<String>, String> {
    let members = match group {
        ApiGroup::Core => CORE_EVENT,
        ApiGroup::Events => EVENTS_EVENT,
    };
    let mut unknown = Vec::new();
    one(event, Type::Struct(members), "", &mut unknown)?;
    unknown.sort();
    Ok(unknown)
}

fn one(value: &mut Value, into: Type, at: &str, unknown: &mut Vec<String>) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    match into {
        Type::Text(_) if value.is_string() => {}
        Type::Text(name) if value.is_i64() => return Err(format!("cannot convert int64 to {name}")),
        Type::Text(_) => return Err("unrecognized type: string".to_owned()),
        Type::Bool if value.is_boolean() => {}
        Type::Bool => return Err("unrecognized type: bool".to_owned()),
        Type::Int32 => {
            // COMPAT(apiserver): what is too large wraps.
            #[expect(clippy::cast_possible_truncation, reason = "as Go's conversion does")]
            let wrapped = integer(value, "int32")? as i32;
            *value = wrapped.into();
        }
        Type::Int64 => *value = integer(value, "int64")?.into(),
        Type::Time => time(value, |text| Time::parse(text).map(drop))?,
        Type::MicroTime => time(value, |text| MicroTime::parse(text).map(drop))?,
        Type::TextMap => {
            let kind = kind(value);
            let members = value.as_object_mut().ok_or_else(|| format!("cannot restore map from {kind}"))?;
            members.values_mut().try_for_each(|member| one(member, TEXT, at, unknown))?;
        }
        Type::Struct(known) => members(value, known, at, unknown)?,
        Type::Slice(of) => {
            let kind = kind(value);
            let elements = value.as_array_mut().ok_or_else(|| format!("cannot restore slice from {kind}"))?;
            for (index, element) in elements.iter_mut().enumerate() {
                one(element, *of, &format!("{at}[{index}]"), unknown)?;
            }
        }
        Type::Raw => {}
    }
    Ok(())
}

fn members(value: &mut Value, known: &[Member], at: &str, unknown: &mut Vec<String>) -> Result<(), String> {
    let kind = kind(value);
    let members = value.as_object_mut().ok_or_else(|| format!("cannot restore struct from: {kind}"))?;
    let dot = if at.is_empty() { "" } else { "." };
    for (name, into) in known {
        if let Some(member) = members.get_mut(*name) {
            one(member, *into, &format!("{at}{dot}{name}"), unknown)?;
        }
    }
    let others = members.keys().filter(|name| !known.iter().any(|(known, _)| known == name));
    unknown.extend(others.map(|name| format!("unknown field \"{at}{dot}{name}\"")));
    Ok(())
}

fn integer(value: &Value, into: &str) -> Result<i64, String> {
    if let Some(integer) = value.as_i64() {
        return Ok(integer);
    }
    match value.as_number().and_then(Number::as_f64) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "as Go's conversion does; what is too large is anything there"
        )]
        Some(float) if float.fract() == 0.0 => Ok(float as i64),
        Some(_) => Err(format!("cannot convert float64 to {into}")),
        None => Err(format!("unrecognized type: {into}")),
    }
}

fn time(value: &Value, parse: impl FnOnce(&str) -> Result<(), crate::event::TimeError>) -> Result<(), String> {
    match value {
        Value::String(text) => parse(text).map_err(|error| error.to_string()),
        other => {
            let kind = match other {
                Value::Bool(_) => "bool",
                Value::Number(_) => "number",
                Value::Array(_) => "array",
                Value::Object(_) => "object",
                Value::Null | Value::String(_) => "null",
            };
            Err(format!("json: cannot unmarshal {kind} into Go value of type string"))
        }
    }
}

/// Go's kind of the value's type.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
        other => go_type(other),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_taken_as_go_converts_them() {
        let check = |count: Value, expected: Result<Value, &str>| {
            let mut event = json!({"count": count});
            let converted = convert(ApiGroup::Core, &mut event).map(|_| event["count"].clone());
            assert_eq!(converted, expected.map_err(str::to_owned));
        };
        check(json!(2), Ok(json!(2)));
        check(json!(2.0), Ok(json!(2)));
        check(json!(3_000_000_000_i64), Ok(json!(-1_294_967_296)));
        check(json!(2.5), Err("cannot convert float64 to int32"));
        check(json!("2"), Err("unrecognized type: int32"));
        check(json!(true), Err("unrecognized type: int32"));
        check(Value::Null, Ok(Value::Null));
    }

    #[test]
    fn faults_are_told_in_the_order_of_the_go_types_and_unknown_members_in_the_alphabets() {
        let check = |mut event: Value, expected: &str| {
            assert_eq!(convert(ApiGroup::Core, &mut event).unwrap_err(), expected, "{event}");
        };
        check(json!({"count": "x", "metadata": 1}), "cannot restore struct from: int64");
        check(json!({"metadata": {"labels": "x"}}), "cannot restore map from string");
        check(json!({"metadata": {"labels": {"a": 1}}}), "cannot convert int64 to string");
        check(json!({"metadata": {"finalizers": {}}}), "cannot restore slice from map");
        check(json!({"metadata": {"uid": 1}}), "cannot convert int64 to types.UID");
        check(json!({"message": 1.5}), "unrecognized type: string");
        check(json!({"eventTime": 1}), "json: cannot unmarshal number into Go value of type string");
        check(json!({"kind": 1}), "cannot convert int64 to string");
        let mut event = json!({"z": 1, "source": {"b": 1}, "metadata": {"ownerReferences": [{}, {"x": 1}]}});
        assert_eq!(
            convert(ApiGroup::Core, &mut event).unwrap(),
            [r#"unknown field "metadata.ownerReferences[1].x""#, r#"unknown field "source.b""#, r#"unknown field "z""#]
        );
    }
}
