//! Replays the recorded creates of a real apiserver (`vectors/api/create-*.jsonl`, and those of `EVENTWEIR_VECTORS` where set)
//! through decode, checks and encode: what is refused, with which words; which warnings are given; what the created event
//! looks like, member for member in order.
#![expect(clippy::unwrap_used, reason = "helpers of tests are not in tests for clippy")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use eventweir::event::{ApiGroup, Event, RareMeta, core_v1, events_v1, validate};
use eventweir::status::Status;
use serde_json::Value;

const FILES: &[&str] = &["create-core", "create-body", "create-times", "create-group"];

/// Cases that need more than decode, checks and encode, by the part they need.
const LEFT_OUT: &[(&str, &[&str])] = &[
    ("405: the table of paths and verbs", &["create-core-post-all-namespaces", "create-core-post-all-namespaces-nons"]),
    ("404: the table of paths", &["create-group-beta-path"]),
    ("which namespaces exist", &["create-core-ns-missing", "create-core-ns-terminating", "create-group-ns-missing"]),
    ("the checks of the query's parameters", &["create-core-manager-unprintable", "create-core-dry-run-bad"]),
    ("a request's time limit", &["create-core-timeout-tiny"]),
    ("the store's size limits", &["create-body-large-over-etcd", "create-body-large-over-etcd-request"]),
    ("415: media types of bodies", &["create-body-ct-form", "create-body-ct-malformed", "create-body-ct-patch"]),
    ("YAML bodies", &["create-body-ct-yaml", "create-body-ct-yaml-bool"]),
    ("YAML answers", &["create-body-accept-yaml", "create-body-error-yaml"]),
    (
        "406: media types of answers",
        &["create-body-accept-html", "create-body-accept-cbor", "create-body-accept-406-error"],
    ),
    ("tables and partial metadata", &["create-body-accept-table", "create-body-accept-partial"]),
];

/// Cases of which only the creates before the named step are replayed: the rest reads what the store holds.
const LATER_STEPS_LEFT_OUT: &[(&str, usize)] =
    &[("create-core-twice", 1), ("create-core-dry-run", 1), ("create-group-twice", 1)];

fn expand(value: &mut Value) {
    match value {
        Value::String(text) => *text = expand_runs(text),
        Value::Array(items) => items.iter_mut().for_each(expand),
        Value::Object(members) => members.values_mut().for_each(expand),
        _ => {}
    }
}

/// Writes `<run:LETTER*COUNT>` out.
fn expand_runs(text: &str) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("<run:") {
        let (run, after) = after.split_once('>').unwrap();
        let (letter, count) = run.rsplit_once('*').unwrap();
        expanded.push_str(before);
        expanded.push_str(&letter.repeat(count.parse().unwrap()));
        rest = after;
    }
    expanded + rest
}

fn folders() -> Vec<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/api");
    #[expect(clippy::disallowed_methods, reason = "the tests' one setting")]
    let more = std::env::var("EVENTWEIR_VECTORS").ok().map(|folder| Path::new(&folder).join("api"));
    std::iter::once(ours).chain(more).collect()
}

fn cases() -> Vec<Value> {
    let files =
        folders().into_iter().flat_map(|folder| FILES.iter().map(move |file| folder.join(format!("{file}.jsonl"))));
    let lines = files.flat_map(|file| {
        let text = std::fs::read_to_string(file).unwrap();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    });
    lines
        .map(|line| {
            let mut case = serde_json::from_str(&line).unwrap();
            expand(&mut case);
            case
        })
        .collect()
}

fn body(request: &Value) -> Vec<u8> {
    if let Some(text) = request["bodyText"].as_str() {
        return text.as_bytes().to_vec();
    }
    if let Some(repeat) = request["bodyRepeat"].as_object() {
        let part = |name: &str| repeat[name].as_str().unwrap_or_default();
        let count = usize::try_from(repeat["count"].as_u64().unwrap()).unwrap();
        return format!("{}{}{}", part("prefix"), part("unit").repeat(count), part("suffix")).into_bytes();
    }
    if let Some(text) = request["bodyBase64"].as_str() {
        return base64(text);
    }
    serde_json::to_vec(&request["body"]).unwrap()
}

fn base64(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bits = 0_u32;
    let mut count = 0;
    let mut bytes = Vec::new();
    for letter in text.bytes().filter(|&letter| letter != b'=') {
        let value = LETTERS.iter().position(|&known| known == letter).unwrap();
        bits = (bits << 6) | u32::try_from(value).unwrap();
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).unwrap());
        }
    }
    bytes
}

/// The answer to one create: the event as JSON with its warnings, or the Status.
fn answer(request: &Value) -> Result<(Value, Vec<String>), Box<Status>> {
    let path = request["path"].as_str().unwrap();
    let group = if path.starts_with("/apis/events.k8s.io/") { ApiGroup::Events } else { ApiGroup::Core };
    let query = request["query"].as_str().unwrap_or_default();
    let body = body(request);
    let strict = query.contains("fieldValidation=Strict");
    let decoded = match (group, strict) {
        (ApiGroup::Core, false) => core_v1::decode(&body),
        (ApiGroup::Core, true) => core_v1::decode_strict(&body),
        (ApiGroup::Events, false) => events_v1::decode(&body),
        (ApiGroup::Events, true) => events_v1::decode_strict(&body),
    };
    let decoded = decoded.map_err(|error| error.status.clone())?;
    let mut warnings: Vec<String> = decoded.strict_faults.iter().map(|fault| warning(&fault.to_string())).collect();
    if query.contains("fieldValidation=Ignore") {
        warnings.clear();
    }
    let mut event = decoded.event;
    let namespace = path.split_once("/namespaces/").map_or("", |(_, rest)| rest.split('/').next().unwrap());
    validate::adopt_namespace(&mut event, namespace)?;
    generate_name(&mut event);
    validate::create(group, &event)?;
    validate::unversioned(&event)?;
    Ok((shown(group, event), warnings))
}

fn warning(text: &str) -> String {
    format!("299 - \"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// As the server does, with five fixed letters in place of random ones.
fn generate_name(event: &mut Event) {
    let Some(rare) = event.metadata.rare.as_deref() else { return };
    if event.metadata.name.is_empty() && !rare.generate_name.is_empty() {
        let base: String = rare.generate_name.chars().take(58).collect();
        event.metadata.name = format!("{base}xxxxx").into();
    }
}

/// What the server would store and show, without the members it sets itself.
fn shown(group: ApiGroup, mut event: Event) -> Value {
    event.metadata.uid = "".into();
    event.metadata.resource_version = "".into();
    event.metadata.creation_timestamp = None;
    event.metadata.managed_fields = None;
    if let Some(rare) = event.metadata.rare.take() {
        event.metadata.rare = Some(Box::new(RareMeta {
            self_link: "".into(),
            deletion_timestamp: None,
            deletion_grace_period_seconds: None,
            ..*rare
        }));
    }
    let mut out = Vec::new();
    match group {
        ApiGroup::Core => core_v1::write_json(&event, &mut out),
        ApiGroup::Events => events_v1::write_json(&event, &mut out),
    }
    serde_json::from_slice(&out).unwrap()
}

/// The recorded event without the members that the server sets.
fn without_server_members(recorded: &Value) -> Value {
    let mut event = recorded.clone();
    let Some(metadata) = event["metadata"].as_object_mut() else { return event };
    for member in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        metadata.shift_remove(member);
    }
    event
}

/// Compares one answer with the recorded one; texts are compared so that the order of members counts.
fn compare(request: &Value, response: &Value) -> Result<(), String> {
    let (code, ours, warnings) = match answer(request) {
        Ok((event, warnings)) => (201, event, warnings),
        Err(status) => (u64::from(status.code), serde_json::from_slice(&status.to_json()).unwrap(), Vec::new()),
    };
    let recorded =
        if response["status"] == 201 { without_server_members(&response["body"]) } else { response["body"].clone() };
    let same = |ours: &str| {
        let recorded = recorded.to_string();
        // A made name ends with five letters nobody knows.
        let recorded = if ours.contains("xxxxx") {
            recorded.replace("<random>", "xxxxx").replace("\"<name:1>\"", &made_name(ours))
        } else {
            recorded
        };
        ours == recorded
    };
    let told: Vec<&str> =
        response["warnings"].as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect();
    if response["status"] == code && same(&ours.to_string()) && warnings == told {
        return Ok(());
    }
    Err(format!("want {} {told:?} {recorded}\n  have {code} {warnings:?} {ours}", response["status"]))
}

fn made_name(ours: &str) -> String {
    serde_json::from_str::<Value>(ours).unwrap()["metadata"]["name"].to_string()
}

#[test]
fn creates_are_answered_as_recorded() {
    let left_out: BTreeMap<&str, &str> =
        LEFT_OUT.iter().flat_map(|(reason, ids)| ids.iter().map(|&id| (id, *reason))).collect();
    let later: BTreeMap<&str, usize> = LATER_STEPS_LEFT_OUT.iter().copied().collect();
    let (mut replayed, mut skipped, mut cut) = (0, BTreeSet::new(), BTreeSet::new());
    let mut faults = Vec::new();
    for case in cases() {
        let id = case["id"].as_str().unwrap();
        if left_out.contains_key(id) {
            skipped.insert(id.to_owned());
            continue;
        }
        let steps = case["steps"].as_array().unwrap();
        let end = later.get(id).copied().unwrap_or(steps.len());
        if end < steps.len() {
            cut.insert(id.to_owned());
        }
        for (index, step) in steps[..end].iter().enumerate() {
            if step["request"]["method"] != "POST" {
                faults.push(format!("{id} step {index} is no create"));
            } else if let Err(fault) = compare(&step["request"], &step["response"]) {
                faults.push(format!("{id} step {index}: {}\n  {fault}", case["note"]));
            }
        }
        replayed += 1;
    }
    assert!(faults.is_empty(), "{} steps of {replayed} cases differ:\n{}", faults.len(), faults.join("\n"));
    assert_eq!((skipped.len(), cut.len()), (left_out.len(), later.len()), "a listed case is missing from the files");
    println!("{replayed} cases replayed, {} of them in part, {} left out", cut.len(), skipped.len());
}
