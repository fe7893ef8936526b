//! Replays the recorded protobuf of a real apiserver: what bodies decode to, with which words they are refused, and that what
//! we write is the server's, byte by byte, in every file of `vectors/api` and of `EVENTWEIR_VECTORS` where set. The same cases over HTTP
//! are in `tests/api`; whatever holds for any event is in `tests/protobuf_properties.rs`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are not in tests for clippy")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use eventweir::event::protobuf::{self, WatchEvent};
use eventweir::event::{ApiGroup, Event, core_v1, events_v1, validate};
use eventweir::status::Status;
use serde_json::Value;

/// Requests whose answer needs more than decode, checks and encode, by the part they need. Their answers' bytes are compared
/// all the same.
const NEEDS_SERVER: &[(&str, &[(&str, usize)])] = &[
    ("what the store holds", &[("protobuf-exists", 1), ("protobuf-put", 0), ("protobuf-patch-answer", 0)]),
    ("the table of paths and verbs", &[("protobuf-missing", 0)]),
    ("the patch", &[("protobuf-patch-answer", 1)]),
    ("the cap on a body's size", &[("protobuf-large", 0)]),
    (
        "reads",
        &[
            ("protobuf-get", 1),
            ("protobuf-get", 2),
            ("protobuf-group-read-core", 1),
            ("protobuf-group-read-core", 2),
            ("protobuf-nanos", 1),
            ("protobuf-nanos", 2),
            ("protobuf-bad-utf8", 1),
            ("protobuf-list", 1),
        ],
    ),
    ("the JSON creates before a read", &[("protobuf-get", 0), ("protobuf-list", 0)]),
];

/// Bodies that are accepted, but are not what a writer in Go would have sent: they come out otherwise than they went in.
const UNUSUAL: &[&str] = &["protobuf-nanos", "protobuf-no-type", "protobuf-bad-utf8"];

fn folders() -> Vec<PathBuf> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/api");
    #[expect(clippy::disallowed_methods, reason = "the tests' one setting")]
    let more = std::env::var("EVENTWEIR_VECTORS").ok().map(|folder| Path::new(&folder).join("api"));
    std::iter::once(ours).chain(more).collect()
}

fn read(file: &Path) -> Vec<Value> {
    std::fs::read_to_string(file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The cases of the protobuf topic.
fn cases() -> Vec<Value> {
    folders().iter().flat_map(|folder| read(&folder.join("protobuf.jsonl"))).collect()
}

/// The cases of all topics that are there.
fn all_cases() -> Vec<Value> {
    let files = folders().into_iter().flat_map(|folder| {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "jsonl"));
        files.sort();
        files
    });
    files.flat_map(|file| read(&file)).collect()
}

fn base64(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).unwrap()
}

fn door(request: &Value) -> ApiGroup {
    let new = request["path"].as_str().unwrap().starts_with("/apis/events.k8s.io/");
    if new { ApiGroup::Events } else { ApiGroup::Core }
}

fn shown(group: ApiGroup, event: &Event) -> Value {
    let mut out = Vec::new();
    match group {
        ApiGroup::Core => core_v1::write_json(event, &mut out),
        ApiGroup::Events => events_v1::write_json(event, &mut out),
    }
    serde_json::from_slice(&out).unwrap()
}

fn written(group: ApiGroup, event: &Event) -> Vec<u8> {
    let mut out = Vec::new();
    protobuf::write(group, event, &mut out);
    out
}

/// Whether a recorded value and ours are the same, members in order; a placeholder stands for any text.
fn same(recorded: &Value, ours: &Value) -> bool {
    match (recorded, ours) {
        (Value::Object(recorded), Value::Object(ours)) => {
            recorded.len() == ours.len()
                && recorded
                    .iter()
                    .zip(ours)
                    .all(|((name, one), (other_name, other))| name == other_name && same(one, other))
        }
        (Value::Array(recorded), Value::Array(ours)) => {
            recorded.len() == ours.len() && recorded.iter().zip(ours).all(|(one, other)| same(one, other))
        }
        (Value::String(recorded), Value::String(ours)) => {
            recorded == ours || (recorded.starts_with('<') && recorded.ends_with('>'))
        }
        _ => recorded == ours,
    }
}

fn assert_same(at: &str, recorded: &Value, ours: &Value) {
    assert!(same(recorded, ours), "{at}\n  want {recorded}\n  have {ours}");
}

/// The recorded event without what the server sets.
fn as_sent(recorded: &Value) -> Value {
    let mut event = recorded.clone();
    let metadata = event["metadata"].as_object_mut().unwrap();
    for member in ["uid", "resourceVersion", "creationTimestamp", "managedFields"] {
        metadata.shift_remove(member);
    }
    event
}

/// The answer to a create or update as far as decode and checks go.
fn answer(request: &Value) -> Result<Event, Box<Status>> {
    let group = door(request);
    let body = base64(request["bodyBase64"].as_str().unwrap());
    let protobuf = request["headers"]["Content-Type"].as_str().unwrap().starts_with("application/vnd.kubernetes");
    let decoded = match group {
        _ if protobuf => protobuf::decode(group, &body),
        ApiGroup::Core => core_v1::decode(&body),
        ApiGroup::Events => events_v1::decode(&body),
    };
    let decoded = decoded.map_err(|error| error.status.clone())?;
    assert!(decoded.strict_faults.is_empty());
    let mut event = decoded.event;
    let (_, rest) = request["path"].as_str().unwrap().split_once("/namespaces/").unwrap();
    validate::adopt_namespace(&mut event, rest.split('/').next().unwrap())?;
    validate::create(group, &event)?;
    Ok(event)
}

#[test]
fn bodies_are_decoded_and_refused_as_recorded() {
    let left_out: BTreeSet<(&str, usize)> = NEEDS_SERVER.iter().flat_map(|(_, steps)| steps.iter().copied()).collect();
    let mut seen = BTreeSet::new();
    let mut replayed = 0;
    for case in cases() {
        let id = case["id"].as_str().unwrap();
        for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            if let Some(&listed) = left_out.iter().find(|&&listed| listed == (id, index)) {
                seen.insert(listed);
                continue;
            }
            let (request, response, at) = (&step["request"], &step["response"], format!("{id} step {index}"));
            let recorded = response.pointer("/decoded/object").unwrap_or(&response["body"]);
            match answer(request) {
                Ok(event) => {
                    assert!(matches!(response["status"].as_u64(), Some(200 | 201)), "{at}: {response}");
                    assert_same(&at, &as_sent(recorded), &shown(door(request), &event));
                    if !UNUSUAL.contains(&id) {
                        assert_same(&at, &request["decoded"]["object"], &shown(door(request), &event));
                        assert_eq!(
                            written(door(request), &event),
                            base64(request["bodyBase64"].as_str().unwrap()),
                            "{at}"
                        );
                    }
                }
                Err(status) => {
                    assert_eq!(response["status"], status.code, "{at}: {status:?}");
                    let ours = serde_json::from_slice(&status.to_json()).unwrap();
                    assert_same(&at, &without_messages(recorded), &without_messages(&ours));
                }
            }
            replayed += 1;
        }
    }
    assert_eq!(seen, left_out, "a listed step is missing from the files");
    println!("{replayed} steps replayed, {} left out", left_out.len());
}

/// A refusal without its messages, of which there is one: texts are eventweir's own.
fn without_messages(status: &Value) -> Value {
    let mut status = status.clone();
    let causes = status.pointer("/details/causes").and_then(Value::as_array).map_or(0, Vec::len);
    let paths = (0..causes).map(|index| format!("/details/causes/{index}/message"));
    for path in std::iter::once("/message".to_owned()).chain(paths) {
        let message = status.pointer_mut(&path).unwrap().take();
        assert!(message.as_str().is_some_and(|message| !message.is_empty()), "{path}");
    }
    status
}

/// Decodes a recorded object, compares it with its recorded JSON, writes it and compares the bytes. False for kinds that are
/// not ours.
fn written_again(at: &str, recorded: &[u8], decoded: &Value) -> bool {
    let api_version = decoded["envelope"]["apiVersion"].as_str().unwrap();
    let group = if api_version == "v1" { ApiGroup::Core } else { ApiGroup::Events };
    let object = &decoded["object"];
    let mut out = Vec::new();
    match decoded["envelope"]["kind"].as_str().unwrap() {
        "Event" => {
            let event = protobuf::decode(group, recorded).unwrap().event;
            assert_same(at, object, &shown(group, &event));
            protobuf::write(group, &event, &mut out);
            if at.contains("protobuf-bad-utf8") {
                // The server hands the bytes on as they came; ours are repaired, as both show them in JSON.
                assert_eq!(protobuf::decode(group, &out).unwrap().event, event, "{at}");
                return true;
            }
        }
        "EventList" => {
            let list = protobuf::decode_list(group, recorded).unwrap();
            let mut json = Vec::new();
            match group {
                ApiGroup::Core => core_v1::write_list(&list, &mut json),
                ApiGroup::Events => events_v1::write_list(&list, &mut json),
            }
            assert_same(at, object, &serde_json::from_slice(&json).unwrap());
            protobuf::write_list(group, &list, &mut out);
        }
        "Status" => {
            let status: Status = serde_json::from_value(object.clone()).unwrap();
            protobuf::write_status(&status, &mut out);
            if object.to_string().contains("\"<") {
                return true; // a time or a version stands in the message
            }
        }
        _ => return false,
    }
    assert_eq!(out, recorded, "{at}");
    true
}

#[test]
fn answers_are_written_byte_for_byte_as_the_apiserver_writes_them() {
    let (mut compared, mut frames_compared) = (0, 0);
    for case in all_cases() {
        for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let response = &step["response"];
            let at = format!("{} step {index}", case["id"]);
            if let Some(recorded) = response["bodyBase64"].as_str()
                && written_again(&at, &base64(recorded), &response["decoded"])
            {
                compared += 1;
            }
            for frame in response["frames"].as_array().into_iter().flatten() {
                if let Some(recorded) = frame["base64"].as_str() {
                    frame_again(&at, &base64(recorded), frame);
                    frames_compared += 1;
                }
            }
        }
    }
    assert!(compared >= 28 && frames_compared >= 6, "{compared} {frames_compared}");
    println!("{compared} answers and {frames_compared} frames compared");
}

/// A watch's frame as it is recorded, without its four bytes of length.
fn frame_again(at: &str, recorded: &[u8], frame: &Value) {
    let start = recorded.windows(4).position(|window| window == b"k8s\0").unwrap();
    let object = &recorded[start..];
    assert!(written_again(at, object, &frame["decoded"]), "{at}");
    let (event, status);
    let said = frame["type"].as_str().unwrap();
    let told = if said == "ERROR" {
        status = serde_json::from_value(frame["decoded"]["object"].clone()).unwrap();
        WatchEvent::Error(&status)
    } else {
        event = protobuf::decode(ApiGroup::Core, object).unwrap().event;
        match said {
            "ADDED" => WatchEvent::Added(&event),
            "MODIFIED" => WatchEvent::Modified(&event),
            "DELETED" => WatchEvent::Deleted(&event),
            "BOOKMARK" => WatchEvent::Bookmark(&event),
            _ => panic!("{at}: {said}"),
        }
    };
    let mut out = Vec::new();
    protobuf::write_watch_frame(ApiGroup::Core, told, &mut out);
    let (length, rest) = out.split_at(4);
    assert_eq!(usize::try_from(u32::from_be_bytes(length.try_into().unwrap())).unwrap(), rest.len(), "{at}");
    if !frame["decoded"]["object"].to_string().contains("\"message\":\"<") {
        assert_eq!(rest, recorded, "{at}");
    }
}

#[test]
fn both_roads_lead_to_the_same_event() {
    for case in cases() {
        for step in case["steps"].as_array().unwrap() {
            let (request, group) = (&step["request"], door(&step["request"]));
            let Some(object) = request.pointer("/decoded/object") else { continue };
            let body = base64(request["bodyBase64"].as_str().unwrap());
            let Ok(decoded) = protobuf::decode(group, &body) else { continue };
            let json = object.to_string();
            let mut other = match group {
                ApiGroup::Core => core_v1::decode(json.as_bytes()),
                ApiGroup::Events => events_v1::decode(json.as_bytes()),
            }
            .unwrap();
            // Of JSON only.
            if case["id"] == "protobuf-no-type" {
                other.event.type_meta = None;
                (other.kind, other.api_version) = ("".into(), "".into());
            }
            assert_eq!(decoded, other, "{}", case["id"]);
        }
    }
}
