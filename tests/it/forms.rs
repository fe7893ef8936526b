//! What forms requests and answers take: recorded cases of a real apiserver, played over HTTP.
//!
//! Events that a case begins with are put into the store itself, so that correlation does not matter. What a create is
//! answered has no uid, resourceVersion, creationTimestamp and managedFields here, because its record is written later.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;

use eventweir::app::{App, ConfigSource, Listeners};
use eventweir::clock::Clock;
use eventweir::event::json::{self, Strictness};
use eventweir::event::{ApiGroup, Event, Time, protobuf};
use eventweir::upstream::{Embedded, Metrics, Upstream, Writer};
use prometheus::Registry;
use serde_json::Value;

use crate::support::app::config;
use crate::support::http::{Client, Reply};

/// 933 days after the recorded events: `2y203d`.
const NOW: &str = "2026-11-20T15:00:00Z";

const NO_COMPACTION: &str = "the embedded store is not compacted on demand";
const NO_TOKEN: &str = "the embedded store words a bad continue token in its own way";
const VERSION_ZERO: &str = "GET does not look at resourceVersion yet";
const PROTOBUF_DISCOVERY: &str = "discovery is not told in protobuf";
const OWN_VERSION: &str = "/version tells of eventweir";
const LIST_OPTIONS: &str = "options of a list are not validated yet";

/// Cases that are left out, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("discovery-version", OWN_VERSION),
    ("discovery-version-anonymous", OWN_VERSION),
    ("discovery-protobuf", PROTOBUF_DISCOVERY),
    ("get-rv-future", VERSION_ZERO),
    ("list-continue-bad", NO_TOKEN),
    ("list-continue-expired", NO_COMPACTION),
    ("list-rv-compacted", NO_COMPACTION),
    ("list-rv-match-alone", LIST_OPTIONS),
    ("list-rv-match-bad", LIST_OPTIONS),
    ("list-rv-bad", LIST_OPTIONS),
    ("list-limit-bad", LIST_OPTIONS),
    ("list-limit-negative", LIST_OPTIONS),
    ("list-initial-events", LIST_OPTIONS),
];

/// Of `create-body.jsonl` only what is about forms; the rest is `tests/wire.rs`'s.
const CREATES: [&str; 3] = ["create-body-ct-", "create-body-accept-", "create-body-error-yaml"];

struct Player {
    embedded: Embedded,
    client: Client,
    _app: Arc<App>,
}

/// What the placeholders of one case stand for.
type Bindings = BTreeMap<String, String>;

#[tokio::test]
async fn discovery_is_told_as_recorded() {
    play(include_str!("../vectors/api/discovery.jsonl"), |_| true, 18).await;
}

#[tokio::test]
async fn tables_look_as_recorded() {
    play(include_str!("../vectors/api/table.jsonl"), |_| true, 12).await;
}

#[tokio::test]
async fn events_are_read_as_recorded() {
    play(include_str!("../vectors/api/get.jsonl"), |_| true, 24).await;
}

#[tokio::test]
async fn lists_are_read_as_recorded() {
    play(include_str!("../vectors/api/list.jsonl"), |_| true, 45).await;
}

#[tokio::test]
async fn bodies_and_answers_take_the_recorded_forms() {
    let about_forms = |id: &str| CREATES.iter().any(|prefix| id.starts_with(prefix));
    play(include_str!("../vectors/api/create-body.jsonl"), about_forms, 18).await;
}

#[tokio::test]
async fn large_answers_are_compressed_when_asked_for() {
    let mut player = player().await;
    let mut event = Event { message: "m".repeat(200_000).into(), ..Event::default() };
    event.metadata.namespace = "shop".into();
    event.metadata.name = "large".into();
    player.embedded.access(|store, now| store.create(event, now)).unwrap();
    let path = "/api/v1/namespaces/shop/events";
    let plain = player.client.send("GET", path, &[], b"").await;
    assert_eq!(plain.header("Content-Encoding"), None);
    let packed = player.client.send("GET", path, &[("Accept-Encoding", "deflate, gzip;q=0.5")], b"").await;
    assert_eq!((packed.header("Content-Encoding"), packed.header("Vary")), (Some("gzip"), Some("Accept-Encoding")));
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(packed.bytes()), &mut unpacked).unwrap();
    assert_eq!(unpacked, plain.bytes());
    let small = player.client.send("GET", "/api", &[("Accept-Encoding", "gzip")], b"").await;
    assert_eq!(small.header("Content-Encoding"), None);
}

#[tokio::test]
async fn refusals_are_negotiated_and_never_hidden() {
    let mut player = player().await;
    let path = "/api/v1/namespaces/shop/events/none";
    let mut get = async |accept| player.client.send("GET", path, &[("Accept", accept)], b"").await;
    let reply = get("application/vnd.kubernetes.protobuf").await;
    assert_eq!((reply.status, reply.header("Content-Type")), (404, Some("application/vnd.kubernetes.protobuf")));
    assert!(reply.bytes().starts_with(b"k8s\0"));
    // A Table that nothing else can stand in for: the refusal is told in indented JSON.
    let reply = get("application/json;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!((reply.status, reply.header("Content-Type")), (404, Some("application/json")));
    assert!(reply.text().starts_with("{\n  \"kind\": \"Status\""), "{}", reply.text());
    let reply = get("application/yaml").await;
    assert!(reply.text().starts_with("apiVersion: v1\ncode: 404\ndetails:\n  kind: events\n"), "{}", reply.text());
}

#[tokio::test]
async fn protobuf_is_taken_and_answered() {
    const MEDIA: &str = "application/vnd.kubernetes.protobuf";
    let mut player = player().await;
    let mut event = Event { reason: "R".into(), message: "m".into(), ..Event::default() };
    event.metadata.name = "p".into();
    event.involved_object.namespace = "shop".into();
    let mut body = Vec::new();
    protobuf::write(ApiGroup::Core, &event, &mut body);
    let headers = [("Content-Type", MEDIA), ("Accept", "application/vnd.kubernetes.protobuf,application/json")];
    let path = "/api/v1/namespaces/shop/events";
    let reply = player.client.send("POST", path, &headers, &body).await;
    assert_eq!((reply.status, reply.header("Content-Type")), (201, Some(MEDIA)));
    let told = protobuf::decode(ApiGroup::Core, reply.bytes()).unwrap().event;
    assert_eq!((told.metadata.name.as_str(), told.message.as_str()), ("p", "m"));
    let reply = player.client.send("POST", path, &headers, b"k8s\0garbage").await;
    assert_eq!((reply.status, reply.header("Content-Type")), (400, Some(MEDIA)));
    let reply = player.client.send("POST", path, &[("Content-Type", "text/plain")], b"{}").await;
    assert_eq!(reply.status, 415);
}

async fn player() -> Player {
    let (config, registry) = (config(""), Registry::new());
    let clock = Clock::manual(Time::parse(NOW).unwrap().0 * 1_000_000_000);
    let metrics = Metrics::new(&registry).unwrap();
    let embedded = Embedded::new(config.upstream.store.clone(), clock.clone(), metrics);
    let listeners = Listeners::bind(&config).await.unwrap();
    let upstream = Upstream::Embedded(embedded.clone());
    let app = App::start(config, ConfigSource::default(), listeners, upstream, registry, clock).unwrap();
    Player { embedded, client: Client::connect(app.address()).await, _app: app }
}

async fn play(file: &str, chosen: impl Fn(&str) -> bool, expected: usize) {
    let mut player = player().await;
    let (mut played, mut faults) = (0, Vec::new());
    for line in file.lines() {
        // We give the address that the client named.
        let line = line.replace("127.0.0.1:<port>", "eventweir");
        let case: Value = serde_json::from_str(&line).unwrap();
        let id = case["id"].as_str().unwrap();
        if !chosen(id) || LEFT_OUT.iter().any(|(left_out, _)| *left_out == id) {
            continue;
        }
        let mut bindings = Bindings::new();
        let steps = case["steps"].as_array().unwrap();
        for (index, step) in steps.iter().enumerate() {
            let is_last = index + 1 == steps.len();
            let outcome = player.step(step, is_last, &mut bindings).await;
            if let Err(fault) = outcome {
                faults.push(format!("{id}, step {index}: {fault}"));
                break;
            }
        }
        played += 1;
    }
    assert!(faults.is_empty(), "{} of {played} cases:\n{}", faults.len(), faults.join("\n"));
    assert_eq!(played, expected);
}

impl Player {
    async fn step(&mut self, step: &Value, is_last: bool, bindings: &mut Bindings) -> Result<(), String> {
        let (request, response) = (&step["request"], &step["response"]);
        let path = request["path"].as_str().unwrap();
        let body = match (&request["body"], &request["bodyText"]) {
            (Value::Null, Value::Null) => Vec::new(),
            (Value::Null, text) => text.as_str().unwrap().as_bytes().to_vec(),
            (json, _) => json.to_string().into_bytes(),
        };
        let is_create = request["method"] == "POST" && response["status"] == 201;
        if is_create && !is_last {
            let group = if path.starts_with("/apis/") { ApiGroup::Events } else { ApiGroup::Core };
            let event = self.store(group, path, &body);
            let mut stored = Vec::new();
            json::write_json(group, &event, &mut stored);
            return same(&response["body"], &serde_json::from_slice(&stored).unwrap(), true, bindings);
        }
        let mut target = path.to_owned();
        if let Some(query) = request["query"].as_str() {
            target =
                target + "?" + &bindings.iter().fold(query.to_owned(), |text, (name, value)| text.replace(name, value));
        }
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, value) in request["headers"].as_object().unwrap() {
            let value = bindings
                .iter()
                .fold(value.as_str().unwrap().to_owned(), |text, (name, value)| text.replace(name, value));
            headers.push((name.clone(), value));
        }
        if !headers.iter().any(|(name, _)| name == "User-Agent") {
            headers.push(("User-Agent".to_owned(), "golden-client/1.0".to_owned()));
        }
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let reply = self.client.send(request["method"].as_str().unwrap(), &target, &headers, &body).await;
        check(response, &reply, is_create, bindings)
    }

    /// Puts an event into the store as its body says.
    fn store(&self, group: ApiGroup, path: &str, body: &[u8]) -> Event {
        let mut event = json::decode(group, body, Strictness::Report).unwrap().event;
        event.metadata.namespace = path.split('/').rev().nth(1).unwrap().into();
        let writer = Writer { manager: "golden-client".into(), group };
        self.embedded.access(|store, now| store.create_by(&writer, event, now)).unwrap()
    }
}

fn check(response: &Value, reply: &Reply, is_create: bool, bindings: &mut Bindings) -> Result<(), String> {
    if response["status"] != reply.status {
        return Err(format!("status {} instead of {}: {}", reply.status, response["status"], lossy(reply)));
    }
    for (name, value) in response["headers"].as_object().unwrap() {
        let given = reply.header(name).unwrap_or_default();
        same_text(value.as_str().unwrap(), given, bindings).map_err(|fault| format!("{name}: {fault}"))?;
    }
    let dropped: &[&str] =
        if is_create { &["uid", "resourceVersion", "creationTimestamp", "managedFields"] } else { &[] };
    if let Some(text) = response["bodyText"].as_str() {
        let given = reply.text();
        if response["filter"] == "openapi-paths" {
            // The documents are our own, and so are their hashes.
            let paths = |text: &str| serde_json::from_str::<Value>(text).unwrap()["paths"].as_object().unwrap().clone();
            let (expected, given) = (paths(text), paths(&given));
            return expected.keys().eq(given.keys()).then_some(()).ok_or_else(|| format!("{given:?}"));
        }
        return same_text(&expected_text(text, dropped), &given, bindings);
    }
    if let Some(decoded) = response["decoded"]["object"].as_object() {
        return same(&Value::Object(decoded.clone()), &decoded_reply(response, reply), true, bindings);
    }
    if response["body"].is_null() {
        return Ok(());
    }
    let given: Value = serde_json::from_slice(reply.bytes()).map_err(|error| format!("{error}: {}", lossy(reply)))?;
    let expected = without(&response["body"], dropped);
    if response["filter"] == "paths" {
        let all = given["paths"].as_array().unwrap();
        let missing = expected["paths"].as_array().unwrap().iter().any(|path| !all.contains(path));
        return if missing { Err(given.to_string()) } else { Ok(()) };
    }
    same(&expected, &given, response["filter"].is_null(), bindings)
}

fn lossy(reply: &Reply) -> String {
    String::from_utf8_lossy(reply.bytes()).chars().take(500).collect()
}

/// A protobuf answer as the JSON of the same object.
fn decoded_reply(response: &Value, reply: &Reply) -> Value {
    let envelope = &response["decoded"]["envelope"];
    let version = envelope["apiVersion"].as_str().unwrap();
    let group = if version == "events.k8s.io/v1" { ApiGroup::Events } else { ApiGroup::Core };
    let kind = envelope["kind"].as_str().unwrap();
    let head = [b"k8s\0\n", &[u8::try_from(version.len() + kind.len() + 4).unwrap()][..]].concat();
    assert!(reply.bytes().starts_with(&head), "{kind}: {:?}", reply.bytes());
    let mut out = Vec::new();
    if !kind.ends_with("List") {
        json::write_json(group, &protobuf::decode(group, reply.bytes()).unwrap().event, &mut out);
        return serde_json::from_slice(&out).unwrap();
    }
    json::write_list(group, &protobuf::decode_list(group, reply.bytes()).unwrap(), &mut out);
    let mut list: Value = serde_json::from_slice(&out).unwrap();
    if kind.starts_with("Partial") {
        list["kind"] = kind.into();
        list["apiVersion"] = version.into();
        for item in list["items"].as_array_mut().unwrap() {
            item.as_object_mut().unwrap().retain(|member, _| member == "metadata");
        }
    }
    list
}

/// The same without these members of any `metadata`.
fn without(value: &Value, names: &[&str]) -> Value {
    match value {
        Value::Object(members) => {
            let mut kept = serde_json::Map::new();
            for (name, member) in members {
                let mut member = without(member, names);
                if name == "metadata"
                    && let Value::Object(metadata) = &mut member
                {
                    metadata.retain(|name, _| !names.contains(&name.as_str()));
                }
                kept.insert(name.clone(), member);
            }
            Value::Object(kept)
        }
        Value::Array(items) => Value::Array(items.iter().map(|item| without(item, names)).collect()),
        other => other.clone(),
    }
}

/// A recorded text without what we cannot have, its white space kept.
fn expected_text(text: &str, dropped: &[&str]) -> String {
    if let Ok(json) = serde_json::from_str::<Value>(text)
        && json.is_object()
    {
        let json = without(&json, dropped);
        return match text.contains("\n  ") {
            true => serde_json::to_string_pretty(&json).unwrap(),
            false => json.to_string() + "\n",
        };
    }
    let mut kept = String::new();
    let mut inside: Option<usize> = None;
    for line in text.split_inclusive('\n') {
        let depth = line.len() - line.trim_start_matches(' ').len();
        if inside.is_some_and(|dropped| depth > dropped || (depth == dropped && line.trim_start().starts_with("- "))) {
            continue;
        }
        inside = dropped.iter().any(|name| line.trim_start().starts_with(&format!("{name}:"))).then_some(depth);
        // Those of the list's own metadata have other names.
        if inside.is_none() || depth == 0 {
            kept += line;
        }
    }
    kept
}

fn same(expected: &Value, given: &Value, ordered: bool, bindings: &mut Bindings) -> Result<(), String> {
    match (expected, given) {
        (Value::Object(left), Value::Object(right)) => {
            let keys = |members: &serde_json::Map<String, Value>| members.keys().cloned().collect::<Vec<_>>();
            let (mut expected, mut names) = (keys(left), keys(right));
            if !ordered {
                expected.sort();
                names.sort();
            }
            if expected != names {
                return Err(format!("members {names:?} instead of {expected:?}"));
            }
            left.iter().try_for_each(|(name, member)| {
                same(member, &right[name], ordered, bindings).map_err(|fault| format!("{name}: {fault}"))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            left.iter().zip(right).try_for_each(|(left, right)| same(left, right, ordered, bindings))
        }
        (Value::String(left), Value::String(right)) => same_text(left, right, bindings),
        _ if expected == given => Ok(()),
        _ => Err(format!("{given} instead of {expected}")),
    }
}

/// Compares a text that may have placeholders.
fn same_text(pattern: &str, given: &str, bindings: &mut Bindings) -> Result<(), String> {
    let fault = || format!("{given:?} instead of {pattern:?}");
    let (mut pattern_rest, mut given_rest) = (pattern, given);
    while let Some((before, name, after)) = placeholder(pattern_rest) {
        given_rest = given_rest.strip_prefix(before).ok_or_else(fault)?;
        let literal = placeholder(after).map_or(after, |(before, ..)| before);
        let end = if literal.is_empty() { given_rest.len() } else { given_rest.find(literal).ok_or_else(fault)? };
        let (value, rest) = given_rest.split_at(end);
        if name.contains(':') {
            let known = bindings.entry(name.to_owned()).or_insert_with(|| value.to_owned());
            if known != value {
                return Err(format!("{name} is {value:?} instead of {known:?}"));
            }
        }
        (pattern_rest, given_rest) = (after, rest);
    }
    if pattern_rest == given_rest { Ok(()) } else { Err(fault()) }
}

/// The first placeholder of a text, with what stands before and after it.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    const NAMES: [&str; 11] =
        ["<rv:", "<uid:", "<name:", "<continue:", "<etag:", "<time>", "<age>", "<date>", "<n>", "<port>", "<random>"];
    let start = NAMES.iter().filter_map(|name| text.find(name)).min()?;
    let (before, rest) = text.split_at(start);
    let (name, after) = rest.split_at(rest.find('>')? + 1);
    Some((before, name, after))
}
