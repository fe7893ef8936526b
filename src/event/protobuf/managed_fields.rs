//! Converts `managedFields` between protobuf and the JSON in an event.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::fields::time;
use super::reader::{DecodeError, fields};
use super::write;
use super::writer::{bytes, message, text};
use crate::event::json::check_values;
use crate::event::{ELEMENTS_MAX, ManagedFields, Time};

/// The field number in `ObjectMeta`.
const NUMBER: i32 = 17;

/// An entry. LIMIT: `fieldsV1` that is not JSON, nests deeper than `serde_json` reads (128), or has very many values, is
/// dropped; the apiserver makes none of them.
#[derive(Debug, Serialize, Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Entry {
    #[serde(skip_serializing_if = "String::is_empty")]
    manager: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    operation: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    fields_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fields_v1: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "String::is_empty")]
    subresource: String,
}

/// Decodes the entries of an object's metadata into the JSON of an event.
pub(super) fn read(metadata: &[u8]) -> Result<ManagedFields, DecodeError> {
    let mut entries = Vec::new();
    fields(metadata, |field| match field.number {
        NUMBER if entries.len() >= ELEMENTS_MAX => Err(DecodeError::Elements(NUMBER)),
        NUMBER => entry(field.bytes()?).map(|entry| entries.push(entry)),
        _ => field.skip(),
    })?;
    Ok(serde_json::to_string(&entries).ok().filter(|_| !entries.is_empty()).map(Into::into))
}

fn entry(data: &[u8]) -> Result<Entry, DecodeError> {
    let mut entry = Entry::default();
    fields(data, |field| {
        match field.number {
            1 => entry.manager = field.text()?.into(),
            2 => entry.operation = field.text()?.into(),
            3 => entry.api_version = field.text()?.into(),
            4 => {
                let mut at = None;
                time(field.bytes()?, &mut at)?;
                entry.time = at.map(|at: Time| at.to_string());
            }
            6 => entry.fields_type = field.text()?.into(),
            7 => fields(field.bytes()?, |field| match field.number {
                1 => {
                    let json = Some(field.bytes()?).filter(|json| check_values(json).is_ok());
                    let value: Option<Value> = json.and_then(|json| serde_json::from_slice(json).ok());
                    entry.fields_v1 = value.and_then(|value| RawValue::from_string(value.to_string()).ok());
                    Ok(())
                }
                _ => field.skip(),
            })?,
            8 => entry.subresource = field.text()?.into(),
            _ => field.skip()?,
        }
        Ok(())
    })?;
    Ok(entry)
}

/// Encodes the JSON of an event. Writes nothing if it is not a list of entries.
pub(super) fn write_carried(carried: &str, out: &mut Vec<u8>) {
    for entry in serde_json::from_str::<Vec<Entry>>(carried).unwrap_or_default() {
        message(NUMBER.cast_unsigned(), out, |out| {
            text(1, &entry.manager, out);
            text(2, &entry.operation, out);
            text(3, &entry.api_version, out);
            if let Some(at) = entry.time.as_deref().and_then(|at| Time::parse(at).ok()) {
                write::time(4, Some(at), out);
            }
            text(6, &entry.fields_type, out);
            if let Some(fields) = &entry.fields_v1 {
                message(7, out, |out| bytes(1, fields.get().as_bytes(), out));
            }
            text(8, &entry.subresource, out);
        });
    }
}
