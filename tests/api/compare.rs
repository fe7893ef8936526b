//! Compares answers with recorded ones: documents, order of members, texts, placeholders and protobuf.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;

use eventweir::event::{ApiGroup, json, protobuf};
use eventweir::status::Status;
use serde_json::{Map, Value};

/// The values of the placeholders of one case, and how its answers are compared.
pub(crate) struct Known {
    values: BTreeMap<String, String>,
    correlates: bool,
}

/// Whether the order of members is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Kept,
    Any,
}

impl Known {
    /// Returns an empty state. With `correlates`, events are compared as records.
    pub(crate) fn new(correlates: bool) -> Self {
        Self { values: BTreeMap::new(), correlates }
    }

    /// Sets whether the next events are compared as records.
    pub(crate) fn expect_records(&mut self, correlates: bool) {
        self.correlates = correlates;
    }

    /// Replaces placeholders by their values.
    pub(crate) fn fill(&self, text: &str) -> String {
        self.values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Compares documents.
    pub(crate) fn document(&mut self, expected: &Value, given: &Value, order: Order) -> Result<(), String> {
        let mut expected = without_managed(expected);
        take_messages(&mut expected, given);
        if self.correlates {
            as_records(&mut expected);
        }
        // A member that only a record has is appended at the end.
        let order = if self.correlates { Order::Any } else { order };
        self.value(&expected, given, order).map_err(|fault| format!("{fault}\n    in {given}"))
    }

    /// Compares values member by member.
    pub(crate) fn value(&mut self, expected: &Value, given: &Value, order: Order) -> Result<(), String> {
        match (expected, given) {
            (Value::Object(left), Value::Object(right)) => {
                let keys = |members: &Map<String, Value>| {
                    let mut keys: Vec<String> = members.keys().cloned().collect();
                    if order == Order::Any {
                        keys.sort();
                    }
                    keys
                };
                if keys(left) != keys(right) {
                    return Err(format!("members {:?} instead of {:?}", keys(right), keys(left)));
                }
                left.iter().try_for_each(|(name, member)| {
                    self.value(member, &right[name], order).map_err(|fault| format!("{name}: {fault}"))
                })
            }
            (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
                left.iter().zip(right).enumerate().try_for_each(|(index, (left, right))| {
                    self.value(left, right, order).map_err(|fault| format!("[{index}] {fault}"))
                })
            }
            (Value::String(left), Value::String(right)) => self.text(left, right),
            _ if expected == given => Ok(()),
            _ => Err(format!("{given} instead of {expected}")),
        }
    }

    /// Compares texts.
    pub(crate) fn text(&mut self, pattern: &str, given: &str) -> Result<(), String> {
        let fault = || format!("{given:?} instead of {pattern:?}");
        let (mut pattern_rest, mut given_rest) = (pattern, given);
        while let Some((before, name, after)) = placeholder(pattern_rest) {
            given_rest = given_rest.strip_prefix(before).ok_or_else(fault)?;
            let literal = placeholder(after).map_or(after, |(before, ..)| before);
            let end = if literal.is_empty() { given_rest.len() } else { given_rest.find(literal).ok_or_else(fault)? };
            let (value, rest) = given_rest.split_at(end);
            self.bind(name, value)?;
            (pattern_rest, given_rest) = (after, rest);
        }
        if pattern_rest == given_rest { Ok(()) } else { Err(fault()) }
    }

    /// Binds a value to a placeholder. Equal names have equal values, and different names different ones.
    fn bind(&mut self, name: &str, value: &str) -> Result<(), String> {
        if value.is_empty() {
            return Err(format!("{name} is empty"));
        }
        let Some((kind, _)) = name.split_once(':') else { return Ok(()) };
        if let Some(known) = self.values.get(name) {
            return if known == value { Ok(()) } else { Err(format!("{name} is {value:?} instead of {known:?}")) };
        }
        if let Some((other, _)) = self.values.iter().find(|(other, known)| other.starts_with(kind) && *known == value) {
            return Err(format!("{name} is {value:?}, as {other} is"));
        }
        self.values.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// Compares the text of an answer.
    pub(crate) fn answer_text(&mut self, expected: &str, given: &str) -> Result<(), String> {
        self.text(&text_without_managed(expected), given)
    }

    /// Compares documents in YAML, ignoring layout.
    pub(crate) fn yaml(&mut self, expected: &str, given: &str) -> Result<(), String> {
        if given.starts_with('{') || !given.ends_with('\n') {
            return Err(format!("not written as YAML: {given:?}"));
        }
        let read = |text| serde_saphyr::from_str::<Value>(text).map_err(|error| format!("{error}: {text:?}"));
        self.document(&read(expected)?, &read(given)?, Order::Kept)
    }

    /// Compares a protobuf message with its recorded form.
    pub(crate) fn protobuf(&mut self, decoded: &Value, given: &[u8]) -> Result<(), String> {
        let (version, kind, raw) = envelope(given).ok_or("no envelope")?;
        let wanted = &decoded["envelope"];
        if wanted["apiVersion"] != version || wanted["kind"] != kind {
            return Err(format!("{kind} of {version} instead of {wanted}"));
        }
        if kind == "Status" {
            let mut status: Status = serde_json::from_value(decoded["object"].clone()).unwrap();
            take_messages_of_protobuf(&mut status, &raw).ok_or("no Status")?;
            let mut expected = Vec::new();
            protobuf::write_status(&status, &mut expected);
            return if expected == given { Ok(()) } else { Err(format!("{:?}", String::from_utf8_lossy(given))) };
        }
        let group = if version == "events.k8s.io/v1" { ApiGroup::Events } else { ApiGroup::Core };
        let shown = shown(group, &version, &kind, &raw)?;
        self.document(&decoded["object"], &shown, Order::Kept)
    }
}

/// Returns the JSON of an envelope's object.
fn shown(group: ApiGroup, version: &str, kind: &str, raw: &[u8]) -> Result<Value, String> {
    let is_list = kind.ends_with("List");
    let inner = in_envelope(group, if is_list { "EventList" } else { "Event" }, raw);
    let mut out = Vec::new();
    if is_list {
        let list = event_list(group, &inner).ok_or("no list")?;
        json::write_list(group, &list, &mut out);
    } else {
        let decoded = protobuf::decode(group, &inner).map_err(|error| format!("{error:?}"))?;
        json::write_json(group, &decoded.event, &mut out);
    }
    let mut shown: Value = serde_json::from_slice(&out).unwrap();
    if kind.starts_with("Partial") {
        shown["kind"] = kind.into();
        shown["apiVersion"] = version.into();
        if is_list {
            for item in shown["items"].as_array_mut().unwrap() {
                item.as_object_mut().unwrap().retain(|member, _| member == "metadata");
            }
        } else {
            let members = shown.as_object_mut().unwrap();
            members.retain(|member, _| ["kind", "apiVersion", "metadata"].contains(&member.as_str()));
        }
    }
    Ok(shown)
}

/// Returns apiVersion, kind and object of `k8s\0` and a `runtime.Unknown`.
fn envelope(bytes: &[u8]) -> Option<(String, String, Vec<u8>)> {
    let unknown = fields(bytes.strip_prefix(b"k8s\0")?)?;
    let meta = fields(unknown.get(&1)?)?;
    let text = |number| Some(String::from_utf8(meta.get(&number)?.clone()).unwrap());
    Some((text(1)?, text(2)?, unknown.get(&2).cloned().unwrap_or_default()))
}

/// Decodes a list of events.
pub(crate) fn event_list(group: ApiGroup, bytes: &[u8]) -> Option<json::EventList> {
    let mut list = json::EventList::default();
    for (number, field) in every_field(&envelope(bytes)?.2)? {
        if number == 2 {
            let decoded = protobuf::decode(group, &in_envelope(group, "Event", &field)).ok()?;
            list.items.push(decoded.event);
            continue;
        }
        for (number, value) in every_field(&field)? {
            match number {
                2 => list.resource_version = std::str::from_utf8(&value).ok()?.into(),
                3 => list.continue_token = std::str::from_utf8(&value).ok()?.into(),
                4 => list.remaining_item_count = Some(i64::from_be_bytes(value.try_into().ok()?)),
                _ => {}
            }
        }
    }
    Some(list)
}

/// Returns type and object of a `WatchEvent`.
pub(crate) fn watch_event(frame: &[u8]) -> Option<(String, Vec<u8>)> {
    let event = fields(frame)?;
    let object = fields(event.get(&2)?)?;
    Some((String::from_utf8(event.get(&1)?.clone()).ok()?, object.get(&1)?.clone()))
}

fn in_envelope(group: ApiGroup, kind: &str, raw: &[u8]) -> Vec<u8> {
    let meta = [field(1, group.api_version().as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, raw)].concat()
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let (mut field, mut length) = (vec![(number << 3) | 2], bytes.len());
    while length >= 0x80 {
        field.push(u8::try_from(length & 0x7f).unwrap() | 0x80);
        length >>= 7;
    }
    field.push(u8::try_from(length).unwrap());
    [&field, bytes].concat()
}

/// Returns the fields of a message by number; of several, the last.
fn fields(message: &[u8]) -> Option<BTreeMap<u64, Vec<u8>>> {
    Some(every_field(message)?.into_iter().collect())
}

/// Returns the fields of a message with their numbers: bytes, and numbers as 8 bytes.
fn every_field(mut message: &[u8]) -> Option<Vec<(u64, Vec<u8>)>> {
    let mut fields = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        let number = varint(&mut message)?;
        match tag & 7 {
            0 => fields.push((tag >> 3, number.to_be_bytes().to_vec())),
            2 => {
                let (value, rest) = message.split_at_checked(usize::try_from(number).ok()?)?;
                fields.push((tag >> 3, value.to_vec()));
                message = rest;
            }
            _ => return None,
        }
    }
    Some(fields)
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Returns the first placeholder of a text, with the text before and after it.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    const NAMES: [&str; 12] = [
        "<rv:",
        "<uid:",
        "<name:",
        "<continue:",
        "<etag:",
        "<time>",
        "<age>",
        "<date>",
        "<uuid>",
        "<n>",
        "<port>",
        "<random>",
    ];
    let start = NAMES.iter().filter_map(|name| text.find(name)).min()?;
    let (before, rest) = text.split_at(start);
    let (name, after) = rest.split_at(rest.find('>')? + 1);
    Some((before, name, after))
}

/// Converts events to records: they have a count of at least 1, and a lastTimestamp in place of the series and the eventTime of
/// new-style events (`docs/semantics.md`).
fn as_records(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(as_records),
        Value::Object(members) => {
            let (count, last) = if members.contains_key("involvedObject") {
                ("count", "lastTimestamp")
            } else if members.contains_key("regarding") {
                ("deprecatedCount", "deprecatedLastTimestamp")
            } else {
                return members.values_mut().for_each(as_records);
            };
            let series = members.shift_remove("series").unwrap_or_default();
            let totals = [members.get(count).and_then(Value::as_i64), series["count"].as_i64(), Some(1)];
            members.insert(count.to_owned(), totals.into_iter().flatten().max().into());
            let observed = series["lastObservedTime"].as_str().or(members["eventTime"].as_str()).map(str::to_owned);
            if let (Value::Null, Some(observed)) = (&members[last], observed) {
                members[last] = format!("{}Z", observed.split('.').next().unwrap()).into();
            }
        }
        _ => {}
    }
}

/// Replaces the recorded messages of a refusal and its causes by eventweir's own, which must not be empty. The rest of a refusal
/// is compared.
pub(crate) fn take_messages(expected: &mut Value, given: &Value) {
    if expected["type"] == "ERROR" {
        return take_messages(&mut expected["object"], &given["object"]);
    }
    if expected["kind"] != "Status" || expected["status"] != "Failure" {
        return;
    }
    let take = |expected: &mut Value, given: &Value| {
        if given["message"].as_str().is_some_and(|message| !message.is_empty()) {
            expected["message"] = given["message"].clone();
        }
    };
    take(expected, given);
    let causes = expected.pointer_mut("/details/causes").and_then(Value::as_array_mut);
    for (index, cause) in causes.into_iter().flatten().enumerate() {
        take(cause, &given["details"]["causes"][index]);
    }
}

/// As [`take_messages`], for a Status in protobuf.
fn take_messages_of_protobuf(expected: &mut Status, given: &[u8]) -> Option<()> {
    const MESSAGE: u64 = 3;
    const DETAILS: u64 = 5;
    const CAUSES: u64 = 4;
    const CAUSE_MESSAGE: u64 = 2;
    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).ok().filter(|text| !text.is_empty());
    let status = every_field(given)?;
    for (number, bytes) in &status {
        match *number {
            MESSAGE => expected.message = text(bytes)?,
            DETAILS => {
                let causes = every_field(bytes)?.into_iter().filter(|(number, _)| *number == CAUSES);
                let expected = expected.details.as_mut()?.causes.iter_mut();
                for (expected, (_, cause)) in expected.zip(causes) {
                    expected.message = text(fields(&cause)?.get(&CAUSE_MESSAGE)?)?;
                }
            }
            _ => {}
        }
    }
    Some(())
}

/// Returns a recorded document without `managedFields`, which the embedded store does not have.
fn without_managed(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().filter(|(name, _)| *name != "managedFields");
            Value::Object(kept.map(|(name, member)| (name.clone(), without_managed(member))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_managed).collect()),
        other => other.clone(),
    }
}

/// Returns the text of an answer, without `managedFields` if it is JSON, with the same white space.
fn text_without_managed(text: &str) -> String {
    if let Ok(json) = serde_json::from_str::<Value>(text)
        && json.is_object()
    {
        let json = without_managed(&json);
        return match text.contains("\n  ") {
            true => serde_json::to_string_pretty(&json).unwrap() + if text.ends_with('\n') { "\n" } else { "" },
            false => json.to_string() + "\n",
        };
    }
    text.to_owned()
}
