//! Replays what Kubernetes' own code says to creates and updates of Events (`vectors/validation`): decode, then checks.
//! With `EVENTWEIR_VECTORS` set, the files of that folder are replayed too.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are not in tests for clippy")]

use std::path::{Path, PathBuf};

use eventweir::event::{ApiGroup, Event, core_v1, events_v1, validate};
use eventweir::status::Status;
use serde_json::Value;

/// The admission plugin's file is replayed elsewhere.
const NOT_OURS: &str = "040_event_rate_limit";

fn folders() -> Vec<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/validation");
    #[expect(clippy::disallowed_methods, reason = "the tests' one setting")]
    let more = std::env::var("EVENTWEIR_VECTORS").ok().map(|folder| Path::new(&folder).join("validation"));
    std::iter::once(ours).chain(more).collect()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .filter(|path| !path.file_stem().is_some_and(|name| name.to_string_lossy().starts_with(NOT_OURS)))
        .collect();
    files.sort();
    files
}

/// How a request ends.
#[derive(Debug, PartialEq)]
enum Outcome {
    Accepted,
    Refused(Value),
    Undecodable(String),
}

fn decode(group: ApiGroup, object: &Value) -> Result<Event, Box<core_v1::DecodeError>> {
    let body = serde_json::to_vec(object).unwrap();
    let decoded = match group {
        ApiGroup::Core => core_v1::decode(&body),
        ApiGroup::Events => events_v1::decode(&body),
    };
    decoded.map(|decoded| decoded.event)
}

fn outcome(case: &Value) -> Outcome {
    let group = match case["api"].as_str().unwrap() {
        "v1" => ApiGroup::Core,
        "events.k8s.io/v1" => ApiGroup::Events,
        other => panic!("no such group: {other}"),
    };
    let mut event = match decode(group, &case["object"]) {
        Ok(event) => event,
        Err(error) => {
            let prefix = "Event in version \"v1\" cannot be handled as a Event: ";
            return Outcome::Undecodable(error.status.message.strip_prefix(prefix).unwrap().to_owned());
        }
    };
    match check(group, case, &mut event) {
        Ok(()) => Outcome::Accepted,
        Err(status) => Outcome::Refused(as_recorded(&status)),
    }
}

fn check(group: ApiGroup, case: &Value, event: &mut Event) -> Result<(), Box<Status>> {
    validate::adopt_namespace(event, case["namespace"].as_str().unwrap())?;
    match case["verb"].as_str().unwrap() {
        "create" => {
            if event.metadata.name.is_empty()
                && let Some(rare) = event.metadata.rare.as_deref()
                && !rare.generate_name.is_empty()
            {
                event.metadata.name = format!("{}xxxxx", rare.generate_name).into();
            }
            validate::create(group, event)?;
            validate::unversioned(event)
        }
        "update" => validate::update(group, &decode(group, &case["old"]).unwrap(), event),
        other => panic!("no such verb: {other}"),
    }
}

/// The vectors show a Status without kind and apiVersion.
fn as_recorded(status: &Status) -> Value {
    let mut document: Value = serde_json::from_slice(&status.to_json()).unwrap();
    let members = document.as_object_mut().unwrap();
    members.shift_remove("kind");
    members.shift_remove("apiVersion");
    document
}

#[test]
fn creates_and_updates_are_answered_as_kubernetes_answers_them() {
    let mut replayed = 0;
    let mut faults = Vec::new();
    for file in folders().iter().flat_map(|folder| files(folder)) {
        let lines = std::fs::read_to_string(&file).unwrap();
        for line in lines.lines().skip(1) {
            let case: Value = serde_json::from_str(line).unwrap();
            let expected = match case["outcome"].as_str().unwrap() {
                "ok" => Outcome::Accepted,
                "rejected" => Outcome::Refused(case["status"].clone()),
                "decode_error" => Outcome::Undecodable(case["decodeError"].as_str().unwrap().to_owned()),
                other => panic!("no such outcome: {other}"),
            };
            let ours = outcome(&case);
            if ours != expected {
                faults.push(format!("{} {}\n  want {expected:?}\n  have {ours:?}", file.display(), case["name"]));
            }
            replayed += 1;
        }
    }
    assert!(faults.is_empty(), "{} of {replayed} cases differ:\n{}", faults.len(), faults.join("\n"));
    assert!(replayed >= 150, "only {replayed} cases were found");
}
