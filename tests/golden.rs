//! Replays what was recorded from the real client-go (`tests/vectors`, described in its README) through the correlator, step
//! by step and without a difference. If `EVENTWEIR_VECTORS` names a folder with the same sub-folders, from there too.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

use eventweir::clock::{Mono, Now};
use eventweir::correlator::{
    Correlator, CountOverflow, Decision, Field, Key, KeyEncoding, KeySecret, Patch, Rate, RecordId, Settings, Settled,
    Suppression, TokenBucket, Verdict,
};
use eventweir::event::{ApiGroup, Event, json};
use eventweir::upstream::patch_document;
use serde_json::{Map, Value, json};

/// The recorded files of one kind, from the project's own copy and from `EVENTWEIR_VECTORS`.
fn files(kind: &str) -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let mut folders = vec![own.join(kind)];
    if let Some(more) = std::env::var_os("EVENTWEIR_VECTORS").map(PathBuf::from) {
        // A misspelled folder would be left out.
        let entries = std::fs::read_dir(&more).unwrap_or_else(|error| panic!("{}: {error}", more.display()));
        let mut names = entries.map(|entry| entry.unwrap().file_name());
        assert!(names.any(|name| own.join(name).is_dir()), "{}: no folder of a known kind", more.display());
        folders.extend(Some(more.join(kind)).filter(|folder| folder.is_dir()));
    }
    let mut files = Vec::new();
    for folder in folders {
        for entry in std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display())) {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                files.push(path);
            }
        }
    }
    files.sort();
    assert!(!files.is_empty(), "no vectors of kind {kind}");
    files
}

/// The lines of a file: a header and at least one step.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 1, "{}: no step", path.display());
    lines
}

/// Fails if there is a member that the replay would leave out.
fn only(value: &Value, known: &[&str]) {
    let mut names = value.as_object().unwrap().keys();
    assert_eq!(names.find(|name| !known.contains(&name.as_str())), None, "{value}");
}

/// Unix nanoseconds of an RFC 3339 time with up to nine digits of fraction.
fn nanos(at: &Value) -> i64 {
    let timestamp: jiff::Timestamp = at.as_str().unwrap().parse().unwrap();
    i64::try_from(timestamp.as_nanosecond()).unwrap()
}

/// A number that the header writes in the shortest form of a 32-bit float.
fn f32_of(number: &Value) -> f32 {
    number.to_string().parse().unwrap()
}

fn fields(names: &Value) -> Vec<Field> {
    let name =
        |name: &Value| Field::ALL.into_iter().find(|field| *name == field.label()).unwrap_or_else(|| panic!("{name}"));
    names.as_array().unwrap().iter().map(name).collect()
}

/// Options that every file has.
const OPTIONS: [&str; 5] = ["lruCacheSize", "burstSize", "qps", "maxEvents", "maxIntervalInSeconds"];
/// Options of some files, which `requires` names.
const MORE_OPTIONS: [&str; 4] = ["spamKey", "aggregateKey", "messagePrefix", "countOverflow"];

fn settings(header: &Value) -> Settings {
    let options = &header["options"];
    only(options, &[&OPTIONS[..], &MORE_OPTIONS[..3]].concat());
    for name in header["requires"].as_array().into_iter().flatten() {
        assert!(MORE_OPTIONS.contains(&name.as_str().unwrap()), "required: {name}");
    }
    let size = |name: &str| NonZeroUsize::new(usize::try_from(options[name].as_u64().unwrap()).unwrap()).unwrap();
    let mut settings = Settings {
        suppression: Suppression::Drop,
        key_encoding: KeyEncoding::Concatenated,
        lru_cache_size: size("lruCacheSize"),
        burst_size: u32::try_from(options["burstSize"].as_u64().unwrap()).unwrap(),
        qps: f32_of(&options["qps"]),
        max_events: size("maxEvents"),
        max_interval: Duration::from_secs(options["maxIntervalInSeconds"].as_u64().unwrap()),
        count_overflow: CountOverflow::Wrap,
        ..Settings::default()
    };
    if let Some(prefix) = options.get("messagePrefix") {
        settings.message_prefix = prefix.as_str().unwrap().into();
    }
    if let Some(names) = options.get("spamKey") {
        settings.spam_key = fields(names);
    }
    if let Some(keys) = options.get("aggregateKey") {
        settings.aggregate_key = fields(&keys["group"]);
        settings.local_key = fields(&keys["local"]);
    }
    settings
}

fn event_of(value: &Value) -> Event {
    json::decode_event(ApiGroup::Core, value.to_string().as_bytes())
        .unwrap_or_else(|error| panic!("{error:?}: {value}"))
}

fn event_value(event: &Event) -> Value {
    let mut out = Vec::new();
    // An event without type meta is a list item, which has none either.
    if event.type_meta.is_some() {
        json::write_json(ApiGroup::Core, event, &mut out);
    } else {
        json::write_item(ApiGroup::Core, event, &mut out);
    }
    serde_json::from_slice(&out).unwrap()
}

/// Drops members that are null, `""`, `0`, `false` or `{}`, as the README asks before events are compared.
fn compact(value: &Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept = members.iter().map(|(key, value)| (key.clone(), compact(value))).filter(|(_, value)| {
                !matches!(value, Value::Null | Value::Bool(false))
                    && *value != json!("")
                    && *value != json!(0)
                    && *value != json!({})
            });
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

/// client-go's patch for a repeat.
fn patch_value(decision: &Decision, event: &Event) -> Value {
    if decision.known.count == 0 {
        return Value::Null;
    }
    serde_json::from_str(&patch_document(&Patch::of(event), None, ApiGroup::Core)).unwrap()
}

/// What a step gave, in the form of the vectors: `skip`, `event`, `patch`, `write`.
fn result_of(decision: &Decision, event: &Event) -> Value {
    if decision.verdict == Verdict::Drop {
        return json!({ "skip": true, "event": null, "patch": null, "write": null });
    }
    // client-go's delivery starts with a PATCH if the resulting count is above 1 (`tools/record/event.go`, `recordEvent`).
    let write = if event.count > 1 { "patch" } else { "create" };
    json!({ "skip": false, "event": compact(&event_value(event)), "patch": patch_value(decision, event), "write": write })
}

fn expected(result: &Value) -> Value {
    only(result, &["skip", "event", "patch", "write", "err"]);
    assert_eq!(result["err"], Value::Null);
    json!({ "skip": result["skip"], "event": compact(&result["event"]), "patch": result["patch"], "write": result["write"] })
}

const SECRET: KeySecret = KeySecret(1, 2);

struct Replay {
    correlator: Correlator,
    settings: Settings,
    next_record: u64,
    /// The newest record of each key.
    records: HashMap<Key, RecordId>,
}

impl Replay {
    fn new(header: &Value) -> Self {
        let (settings, records) = (settings(header), HashMap::new());
        let correlator = Correlator::new(SECRET, settings.lru_cache_size);
        Self { correlator, settings, next_record: 0, records }
    }

    fn correlate(&mut self, step: &Value) -> Value {
        only(step, &["op", "at", "event", "result"]);
        let now = Now::at(nanos(&step["at"]));
        let mut event = event_of(&step["event"]);
        let keys = SECRET.keys(&event, &self.settings);
        let decision = self.correlator.correlate(&mut event, &keys, 1, now, &self.settings, &mut self.next_record);
        self.records.insert(decision.key, decision.record);
        result_of(&decision, &event)
    }

    /// Replaces the observation under the event key of the stored event, as client-go's `UpdateState` does.
    ///
    /// COMPAT(client-go): a combined event was counted under another key (`EventCorrelator.UpdateState`). Its own
    /// observation therefore stays unchanged, and an extra entry is used (V 062, 071). The proxy avoids both, because it
    /// settles under the key of the decision.
    fn update_state(&mut self, stored: &Event) {
        let key = SECRET.keys(stored, &self.settings).event;
        let next_record = &mut self.next_record;
        let record = *self.records.entry(key).or_insert_with(|| {
            *next_record += 1;
            RecordId(*next_record - 1)
        });
        self.correlator.settle(key, record, &Settled::Forgotten);
        self.correlator.remember(key, record, stored, true);
    }
}

#[test]
fn correlator_equals_client_go() {
    for path in files("correlator") {
        let lines = lines(&path);
        let mut replay = Replay::new(&lines[0]);
        for (number, step) in lines.iter().enumerate().skip(1) {
            let place = format!("{}:{}", path.display(), number + 1);
            match step["op"].as_str().unwrap() {
                "correlate" => {
                    let result = replay.correlate(step);
                    assert_eq!(result, expected(&step["result"]), "{place}\n{step}");
                }
                "update_state" => replay.update_state(&event_of(&step["event"])),
                "final_store" => {}
                other => panic!("{place}: unknown step {other}"),
            }
        }
    }
}

#[test]
fn where_client_go_is_not_deterministic_the_correlator_takes_one_of_its_ways() {
    for path in files("correlator_any") {
        let lines = lines(&path);
        let mut replay = Replay::new(&lines[0]);
        let mut results = Vec::new();
        let mut legal = Vec::new();
        for step in &lines[1..] {
            match step["op"].as_str().unwrap() {
                "correlate" => results.push(replay.correlate(step)),
                "one_of" => legal.push(step["results"].as_array().unwrap().iter().map(expected).collect::<Vec<_>>()),
                other => panic!("{}: unknown step {other}", path.display()),
            }
        }
        assert!(legal.contains(&results), "{}: not a legal trace: {results:#?}", path.display());
    }
}

#[test]
fn token_bucket_equals_client_go() {
    for path in files("token_bucket") {
        let lines = lines(&path);
        let rate =
            Rate { qps: f32_of(&lines[0]["qps"]), burst: u32::try_from(lines[0]["burst"].as_u64().unwrap()).unwrap() };
        assert_eq!(Some(f64::from(rate.qps)), lines[0]["qpsAsFloat64"].as_f64(), "{}", path.display());
        let mut bucket = TokenBucket::default();
        for (number, step) in lines.iter().enumerate().skip(1) {
            only(step, &["at", "accept"]);
            let now = Mono(nanos(&step["at"]));
            assert_eq!(json!(bucket.take(rate, now)), step["accept"], "{}:{}", path.display(), number + 1);
        }
    }
}
