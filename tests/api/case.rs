//! The recorded cases: files, bodies, and abbreviated long texts.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use eventweir::event::json;
use eventweir::event::{ApiGroup, protobuf};
use serde_json::Value;

/// Placeholders that make the recorded bytes of a body unusable.
const CARRIED: [&str; 3] = ["<rv:", "<uid:", "<name:"];

/// Returns the folder of the vectors of this kind, and that of `EVENTWEIR_VECTORS` if set.
fn folders(kind: &str) -> Vec<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(kind);
    #[expect(clippy::disallowed_methods, reason = "the tests' one setting")]
    let more = std::env::var("EVENTWEIR_VECTORS").ok().map(|folder| Path::new(&folder).join(kind));
    std::iter::once(ours).chain(more).collect()
}

/// Returns the lines of all files of this kind with the names of their files, without duplicates.
pub(crate) fn lines(kind: &str) -> Vec<(String, Value)> {
    let mut paths = Vec::new();
    for folder in folders(kind) {
        let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        paths.extend(files);
    }
    let mut seen = BTreeSet::new();
    let mut lines = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        for line in std::fs::read_to_string(&path).unwrap().lines() {
            if seen.insert(format!("{name} {line}")) {
                let mut value = serde_json::from_str(line).unwrap();
                expand(&mut value);
                lines.push((name.clone(), value));
            }
        }
    }
    lines
}

fn expand(value: &mut Value) {
    match value {
        Value::String(text) if text.contains("<run:") => *text = expand_runs(text),
        Value::Array(items) => items.iter_mut().for_each(expand),
        Value::Object(members) => members.values_mut().for_each(expand),
        _ => {}
    }
}

/// Expands `<run:LETTER*COUNT>`.
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

/// Returns the API group of a path.
pub(crate) fn group_of(path: &str) -> ApiGroup {
    if path.starts_with("/apis/") { ApiGroup::Events } else { ApiGroup::Core }
}

/// Returns the body of a request. `fill` replaces placeholders by values of earlier answers; `number` is the index in a burst.
pub(crate) fn body(request: &Value, fill: impl Fn(&str) -> String, number: usize) -> Vec<u8> {
    if let Some(text) = request["bodyText"].as_str() {
        return fill(text).into_bytes();
    }
    if let Some(repeat) = request["bodyRepeat"].as_object() {
        let part = |name: &str| repeat[name].as_str().unwrap_or_default();
        let count = usize::try_from(repeat["count"].as_u64().unwrap()).unwrap();
        return format!("{}{}{}", part("prefix"), part("unit").repeat(count), part("suffix")).into_bytes();
    }
    if let Some(text) = request["bodyBase64"].as_str() {
        let object = request["decoded"]["object"].to_string();
        if !CARRIED.iter().any(|placeholder| object.contains(placeholder)) {
            return BASE64_STANDARD.decode(text).unwrap();
        }
        let group = group_of(request["path"].as_str().unwrap());
        let event = json::decode_event(group, fill(&object).as_bytes()).unwrap();
        let mut body = Vec::new();
        protobuf::write(group, &event, &mut body);
        return body;
    }
    let text = request.get("body").map(|body| fill(&body.to_string())).unwrap_or_default();
    text.replace("{i}", &number.to_string()).into_bytes()
}
