//! PATCH of correlated events; `tests/api` replays the recorded answers of a real apiserver.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use eventweir::clock::Clock;
use eventweir::event::{Event, EventSource, MicroTime};
use eventweir::ledger::Why;
use eventweir::status::Status;
use http::{Method, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::support::app::{APISERVER, Program, start, start_before, start_behind};
use super::support::behind::{Behind, answer, created};
use super::support::events::{START, event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::{Client, EVENTS, json as json_of};

const STRATEGIC: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
const HISTORY_OFF: &str = "upstream: {history: off}\n";
const JSON: &str = "application/json-patch+json";

/// Sends a patch and returns the code and the answer.
async fn patch(client: &mut Client, name: &str, kind: &str, body: &Value) -> (u16, Value) {
    let path = format!("{EVENTS}/{name}");
    let reply = client.send("PATCH", &path, &[("Content-Type", kind)], body.to_string().as_bytes()).await;
    (reply.status, reply.json())
}

/// Replaces an event and returns the code.
async fn put(client: &mut Client, name: &str, event: &Event) -> u16 {
    let json = [("Content-Type", "application/json")];
    client.send("PUT", &format!("{EVENTS}/{name}"), &json, &json_of(event)).await.status
}

/// Starts a program with one record that two events count on; returns their names.
async fn shared_record(fake: &FakeApiserver) -> (Program, Client, String, String) {
    let program = start_before(fake, "").await;
    let mut client = program.client().await;
    let events = [plain(), plain()];
    for event in &events {
        client.post(event).await;
        program.settle().await;
    }
    let [mine, yours] = events.map(|event| event.metadata.name.to_string());
    (program, client, mine, yours)
}

/// Fault: the count that another client had left as it was became the total of the event's client, whose next totals
/// brought again what waited.
#[tokio::test]
async fn a_change_that_keeps_the_count_keeps_the_clients_total() {
    for (method, fault) in [("PUT", Fault::None), ("PUT", Fault::After(500)), ("PATCH", Fault::None)] {
        let fake = FakeApiserver::new(Clock::manual(START));
        let program = start_before(&fake, "outbox: {coalesceInterval: 1h}\n").await;
        let (client, event) = (&mut program.client().await, plain());
        client.post(&event).await;
        program.settle().await;
        let name = &event.metadata.name;
        assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 5})).await.0, 200);
        let stored = fake.events().remove(0);
        assert_eq!(stored.count, 1, "four wait");
        fake.plan(move |seen| if seen.method == method { fault } else { Fault::None });
        let code = if method == "PUT" {
            put(client, name, &stored).await
        } else {
            let same = json!([{"op": "replace", "path": "/count", "value": 1}]);
            patch(client, name, JSON, &same).await.0
        };
        assert_eq!(code, if fault == Fault::None { 200 } else { 500 });
        fake.plan(|_| Fault::None);
        assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 6})).await.0, 200);
        program.stop().await;
        assert_eq!(fake.shown(), 6, "{method}, {fault:?}");
    }
}

/// Fault: the count was compared with the one before a write without an answer.
#[tokio::test]
async fn a_put_that_keeps_the_count_of_a_write_without_an_answer_keeps_the_clients_total() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, HISTORY_OFF).await;
    let (client, event) = (&mut program.client().await, Event { count: 5, ..plain() });
    client.post(&event).await;
    program.settle().await;
    let name = &event.metadata.name;
    fake.plan(|seen| if seen.method == "PATCH" { Fault::After(500) } else { Fault::None });
    assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 8})).await.0, 200);
    program.clock.advance(Duration::from_secs(2));
    program.until("the write is carried out", || fake.events()[0].count == 8).await;
    fake.plan(|_| Fault::None);
    assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 12})).await.0, 200);
    let mut stored = fake.events().remove(0);
    stored.metadata.rare.get_or_insert_default().annotations.insert("a".into(), "b".into());
    assert_eq!(put(client, name, &stored).await, 200);
    assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 13})).await.0, 200);
    program.settle().await;
    let ledger = program.stop().await.ledger;
    assert_eq!((fake.shown(), ledger.total_written()), (13, 13));
}

/// Fault: what another writer had counted, unknown here, was taken for waiting occurrences that the PUT includes.
#[tokio::test]
async fn a_put_that_keeps_the_count_of_another_writer_includes_nothing_that_waits() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, HISTORY_OFF).await;
    let (client, event) = (&mut program.client().await, Event { count: 5, ..plain() });
    client.post(&event).await;
    program.settle().await;
    let (name, refused) = (&event.metadata.name, Arc::new(AtomicBool::new(false)));
    let patched = Arc::clone(&refused);
    fake.plan(move |seen| {
        let is_write = seen.method == "PATCH";
        patched.fetch_or(is_write, Ordering::Relaxed);
        if is_write { Fault::Before(500) } else { Fault::None }
    });
    assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 12})).await.0, 200);
    program.clock.advance(Duration::from_secs(2));
    program.until("the write is refused", || refused.load(Ordering::Relaxed)).await;
    fake.change(&fake.events()[0], |event| event.count += 3);
    let mut stored = fake.events().remove(0);
    stored.metadata.rare.get_or_insert_default().labels.insert("a".into(), "b".into());
    assert_eq!(put(client, name, &stored).await, 200);
    fake.plan(|_| Fault::None);
    assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 13})).await.0, 200);
    program.settle().await;
    let ledger = program.stop().await.ledger;
    assert_eq!((stored.count, fake.shown(), ledger.total_written()), (8, 16, 13));
}

#[tokio::test]
async fn a_label_is_set_on_a_shared_record_under_either_clients_name() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let (program, mut client, my_name, your_name) = shared_record(&fake).await;
    let (client, my_name, your_name) = (&mut client, my_name.as_str(), your_name.as_str());
    assert_eq!(patch(client, your_name, STRATEGIC, &json!({"count": 5})).await.0, 200);
    // Four occurrences wait while a label is set on the record.
    let labels = json!({"metadata": {"name": your_name, "labels": {"team": "a"}}});
    let (code, shown) = patch(client, your_name, MERGE, &labels).await;
    assert_eq!(
        (code, &shown["metadata"]["labels"]["team"], &shown["metadata"]["name"]),
        (200, &json!("a"), &json!(your_name))
    );
    let test = json!([
        {"op": "test", "path": "/metadata/name", "value": my_name},
        {"op": "add", "path": "/metadata/labels/more", "value": "b"},
    ]);
    assert_eq!(patch(client, my_name, JSON, &test).await.0, 200);
    // The counts of both clients are unchanged.
    for (name, count, occurrences) in [(my_name, 2, 1), (your_name, 6, 1), (your_name, 6, 0)] {
        let before = program.balance().ledger.received();
        let (code, shown) = patch(client, name, STRATEGIC, &json!({"count": count})).await;
        assert_eq!((code, &shown["metadata"]["labels"]["team"]), (200, &json!("a")));
        assert_eq!(program.balance().ledger.received() - before, occurrences, "{name}");
    }
    program.settle().await;
    let stored = fake.events();
    assert_eq!((stored.len(), stored[0].metadata.name.as_str(), stored[0].count), (1, my_name, 8));
    assert_eq!(stored[0].metadata.rare.as_ref().unwrap().labels.len(), 2);
    // The upstream's refusal names the client's event.
    let (code, status) = patch(client, your_name, STRATEGIC, &json!({"metadata": {"uid": "1"}})).await;
    assert_eq!((code, &status["details"]["name"]), (422, &json!(your_name)));
    assert_eq!(
        status["message"],
        format!("Event \"{your_name}\" is invalid: metadata.uid: Invalid value: \"1\": field is immutable")
    );
    let (code, status) = patch(client, your_name, STRATEGIC, &json!({"metadata": {"name": my_name, "uid": "1"}})).await;
    assert_eq!(code, 422, "{status}");
    assert_eq!(program.stop().await.ledger.total_written(), 8);
}

/// Fault: the refusals of a PUT and of a DELETE named the record.
#[tokio::test]
async fn a_refusal_names_the_event_as_its_client_does() {
    let program = start("").await;
    let client = &mut program.client().await;
    let [mine, mut yours] = [plain(), plain()];
    client.post(&mine).await;
    program.settle().await;
    client.post(&yours).await;
    program.settle().await;
    let name = yours.metadata.name.to_string();
    assert_ne!(mine.metadata.name, name);
    yours.metadata.resource_version = "1".into();
    let path = format!("{EVENTS}/{name}");
    let put = client.send("PUT", &path, &[("Content-Type", "application/json")], &json_of(&yours)).await;
    let dry = client.send("DELETE", &format!("{path}?uid=other&dryRun=All"), &[], b"").await;
    let delete = client.send("DELETE", &format!("{path}?uid=other"), &[], b"").await;
    for refusal in [put, dry, delete] {
        let status = refusal.json();
        assert_eq!((refusal.status, &status["details"]["name"]), (409, &json!(name)), "{status}");
        assert!(status["message"].as_str().unwrap().contains(&format!("\"{name}\"")), "{status}");
    }
    assert_eq!(program.stop().await.ledger.total_written(), 2);
}

#[tokio::test]
async fn an_apply_changes_the_record_that_its_name_leads_to() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let (program, mut client, my_name, your_name) = shared_record(&fake).await;
    let (client, my_name, your_name) = (&mut client, my_name.as_str(), your_name.as_str());
    let document = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": your_name}, "count": 10});
    let path = format!("{EVENTS}/{your_name}?fieldManager=me");
    let reply = client.send("PATCH", &path, &[("Content-Type", APPLY)], document.to_string().as_bytes()).await;
    let shown = reply.json();
    assert_eq!(
        (reply.status, &shown["metadata"]["name"], &shown["count"]),
        (200, &json!(your_name), &json!(10)),
        "{shown}"
    );
    // The record counts on from there.
    client.post(&plain()).await;
    program.settle().await;
    let stored = fake.events();
    assert_eq!((stored.len(), stored[0].metadata.name.as_str(), stored[0].count), (1, my_name, 11));
    assert_eq!(program.stop().await.ledger.total_written(), 3);
}

/// Fault: clients saw the API server's warnings about patches only.
#[tokio::test]
async fn the_apiservers_warnings_about_a_put_and_an_apply_are_passed_on() {
    let behind = Behind::plain(|request| async {
        if request.method() == Method::GET {
            return answer(404, Status::not_found("", "events", "a").to_json());
        }
        let mut response = created(request).await;
        response.headers_mut().insert("Warning", r#"299 - "a webhook's""#.parse().unwrap());
        response
    })
    .await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    let mut event = plain();
    event.metadata.name = "a".into();
    for (method, query, kind) in [("PUT", "", "application/json"), ("PATCH", "?fieldManager=m", APPLY)] {
        let path = format!("{EVENTS}/a{query}");
        let reply = client.send(method, &path, &[("Content-Type", kind)], &json_of(&event)).await;
        let warnings: Vec<&str> = reply.headers("Warning").collect();
        assert_eq!((reply.status, warnings), (201, vec![r#"299 - "a webhook's""#]), "{}", reply.text());
    }
    program.stop().await;
}

#[tokio::test]
async fn the_embedded_store_refuses_an_apply_and_names_the_alternative() {
    let program = start(APISERVER).await;
    let client = &mut program.client().await;
    let document = b"apiVersion: v1\nkind: Event\nmetadata: {name: new}\n";
    let path = format!("{EVENTS}/new?fieldManager=me");
    let reply = client.send("PATCH", &path, &[("Content-Type", APPLY)], document).await;
    let status = reply.json();
    assert_eq!((reply.status, &status["reason"]), (415, &json!("UnsupportedMediaType")), "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("server-side apply") && message.contains("--upstream apiserver"), "{message}");
    assert!(program.stored().await.is_empty());
    program.stop().await;
}

/// Fault: a merge patch with the object was taken for a whole event, and emptied all other members.
#[tokio::test]
async fn a_merge_patch_changes_only_its_members() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let name = event.metadata.name.as_str();
    client.post(&event).await;
    program.settle().await;
    let object = json!({"involvedObject": {"kind": "Pod", "fieldPath": "x"}, "metadata": {"labels": {"a": "b"}}});
    let (code, shown) = patch(client, name, MERGE, &object).await;
    assert_eq!(
        (code, &shown["involvedObject"]["fieldPath"], &shown["metadata"]["labels"]["a"]),
        (200, &json!("x"), &json!("b"))
    );
    assert_eq!((&shown["message"], &shown["count"]), (&json!("restarting"), &json!(1)), "{shown}");
    assert!(shown["lastTimestamp"].is_string(), "{shown}");
    assert_eq!(program.balance().ledger.received(), 1, "no occurrence");
    // A whole event is an occurrence, even with missing members.
    let whole = json!({"involvedObject": {"kind": "Pod"}, "reason": "BackOff", "count": 2});
    let (code, shown) = patch(client, name, MERGE, &whole).await;
    assert_eq!((code, &shown["message"], &shown["count"]), (200, &json!("restarting"), &json!(2)), "{shown}");
    assert!(shown["lastTimestamp"].is_string(), "{shown}");
    assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 3})).await.0, 200);
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count, stored[0].message.as_str()), (1, 3, "restarting"));
    assert_eq!(program.stop().await.ledger.total_written(), 3);
}

/// Fault: unknown members of a whole event were ignored without a warning.
#[tokio::test]
async fn unknown_members_of_a_whole_event_are_reported_like_those_of_any_patch() {
    let program = start("").await;
    let client = &mut program.client().await;
    let known = plain();
    client.post(&known).await;
    // For an unknown name the client's whole count counts.
    for (name, brought) in [(known.metadata.name.as_str(), 3), ("unseen", 4)] {
        let mut whole: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
        (whole["metadata"]["name"], whole["colour"]) = (json!(name), json!("red"));
        let mut send = async |validation: &str, count: i32| {
            whole["count"] = json!(count);
            let path = format!("{EVENTS}/{name}?fieldValidation={validation}");
            client.send("PATCH", &path, &[("Content-Type", MERGE)], whole.to_string().as_bytes()).await
        };
        let before = program.balance().ledger;
        let refused = send("Strict", 2).await;
        let told = refused.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(refused.status, 422, "{told}");
        assert_eq!(told, "the event is invalid after the patch: strict decoding error: unknown field \"colour\"");
        let warned = send("Warn", 2).await;
        assert_eq!((warned.status, warned.header("Warning")), (200, Some(r#"299 - "unknown field \"colour\"""#)));
        let ignored = send("Ignore", 3).await;
        assert_eq!((ignored.status, ignored.header("Warning"), ignored.outcome()), (200, None, Some("counted")));
        let after = program.balance().ledger;
        assert_eq!(
            (after.received() - before.received(), after.total_rejected() - before.total_rejected()),
            (brought, 1),
            "{name}"
        );
    }
    program.settle().await;
    program.stop().await;
}

#[tokio::test]
async fn a_record_counts_on_from_a_patched_count() {
    for kind in ["embedded", "fake"] {
        let fake = FakeApiserver::new(Clock::manual(START));
        let program = if kind == "fake" { start_before(&fake, "").await } else { start("").await };
        let shown = async || if kind == "fake" { fake.events() } else { program.stored().await };
        let client = &mut program.client().await;
        let event = plain();
        let name = event.metadata.name.as_str();
        client.post(&event).await;
        program.settle().await;
        let set = json!([{"op": "replace", "path": "/count", "value": 100}]);
        assert_eq!(patch(client, name, JSON, &set).await.1["count"], 100, "{kind}");
        client.post(&plain()).await;
        // The client's own count is 100 too.
        assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 102})).await.0, 200);
        program.settle().await;
        assert_eq!(shown().await[0].count, 103, "{kind}");
        assert_eq!(program.balance().ledger.received(), 4);
        // A dry run is not an occurrence.
        let path = format!("{EVENTS}/{name}?dryRun=All");
        let reply = client.send("PATCH", &path, &[("Content-Type", STRATEGIC)], br#"{"count":500}"#).await;
        assert_eq!((reply.status, &reply.json()["count"]), (200, &json!(500)));
        program.settle().await;
        assert_eq!((shown().await[0].count, program.balance().ledger.received()), (103, 4));
        program.stop().await;
    }
}

/// Fault: the record took its name and version from another server's JSON, which has none, and its later occurrences were
/// lost.
#[tokio::test]
async fn the_json_of_another_server_is_no_answer_about_an_event() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let (client, event) = (&mut program.client().await, plain());
    client.post(&event).await;
    for _ in 0..4 {
        client.post(&plain()).await;
    }
    program.settle().await;
    // The record leaves the outbox.
    program.clock.advance(Duration::from_secs(60));
    program.settle().await;
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let labels = json!({"metadata": {"labels": {"team": "a"}}}).to_string();
    let whole = String::from_utf8(json_of(&fake.events()[0])).unwrap();
    fake.plan(|_| Fault::Json);
    for (method, path, kind, body) in [
        ("PATCH", path.as_str(), MERGE, labels.as_str()),
        ("PATCH", &format!("{path}?fieldManager=me"), APPLY, &labels),
        ("PUT", &path, "application/json", &whole),
        ("GET", &path, "application/json", ""),
        ("GET", EVENTS, "application/json", ""),
        ("DELETE", EVENTS, "application/json", ""),
    ] {
        let reply = client.send(method, path, &[("Content-Type", kind)], body.as_bytes()).await;
        assert_eq!(reply.status, 500, "{method} {path}: {}", reply.text());
    }
    fake.plan(|_| Fault::None);
    client.post(&plain()).await;
    program.settle().await;
    assert_eq!((fake.events().len(), fake.shown()), (1, 6));
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.total_written(), ledger.total_lost()), (6, 0));
}

#[tokio::test]
async fn an_event_without_an_alias_is_patched_upstream_and_not_counted() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let event = plain();
    let name = event.metadata.name.as_str();
    let before = start_before(&fake, "").await;
    before.client().await.post(&event).await;
    before.settle().await;
    before.stop().await;
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    assert_eq!(patch(client, name, STRATEGIC, &json!({"count": 2})).await.0, 404);
    assert_eq!(patch(client, name, STRATEGIC, &json!({"reason": "Other"})).await.1["reason"], "Other");
    assert_eq!(patch(client, "none", STRATEGIC, &json!({"reason": "Other"})).await.0, 404);
    let none = "/apis/events.k8s.io/v1/namespaces/shop/events/none";
    let reply = client.send("PATCH", none, &[("Content-Type", JSON)], b"[]").await;
    assert_eq!(reply.json()["message"], "events.events.k8s.io \"none\" not found");
    assert_eq!((fake.events()[0].reason.as_str(), fake.events()[0].count), ("Other", 1));
    assert_eq!(program.stop().await.ledger.received(), 0);
}

/// Fault: it was 404, although the patch itself was made.
#[tokio::test]
async fn a_dry_run_patches_an_event_that_is_not_yet_created() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "correlation: {burstSize: 1, qps: 0}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    let event = Event { reason: "Other".into(), ..plain() };
    assert_eq!(client.post(&event).await.outcome(), Some("deferred"));
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let mut send = async |query: &str| {
        let body = br#"{"metadata":{"labels":{"team":"a"}}}"#;
        let reply = client.send("PATCH", &format!("{path}{query}"), &[("Content-Type", MERGE)], body).await;
        (reply.status, reply.json()["metadata"]["labels"]["team"].clone())
    };
    assert_eq!(send("?dryRun=All").await, (200, json!("a")));
    assert!(fake.events().iter().all(|event| event.reason != "Other"));
    assert_eq!(send("").await, (200, json!("a")));
    assert_eq!(fake.events().iter().filter(|event| event.reason == "Other").count(), 1);
    program.stop().await;
}

/// Fault: their tree took some seventy times the memory of the body.
#[tokio::test]
async fn a_patch_or_a_delete_of_very_many_values_is_refused() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    client.post(&event).await;
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let values = format!("{{\"x\":[{}1]}}", "1,".repeat(200_000));
    for (method, media) in [("PATCH", MERGE), ("PATCH", STRATEGIC), ("DELETE", "application/json")] {
        let refused = client.send(method, &path, &[("Content-Type", media)], values.as_bytes()).await;
        assert_eq!(refused.status, 413, "{method} {media}: {}", refused.text());
    }
    program.stop().await;
}

/// Fault: such a patch changed the record, and its occurrences were not counted. Clients whose texts are UTF-16 write a
/// half of a pair where they cut a message.
#[tokio::test]
async fn growth_with_half_of_a_surrogate_pair_is_counted() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    client.post(&event).await;
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let body = br#"{"count":3,"message":"cut \ud83d"}"#;
    let reply = client.send("PATCH", &path, &[("Content-Type", STRATEGIC)], body).await;
    assert_eq!((reply.status, &reply.json()["message"]), (200, &json!("cut \u{fffd}")));
    assert_eq!(program.stop().await.ledger.received(), 3);
}

#[tokio::test]
async fn a_patch_writes_an_event_that_waits_for_its_budget() {
    let program = start("correlation: {burstSize: 1, qps: 0}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    let waiting = event("node-1", "web-0", "Pulled", "pulled");
    let name = waiting.metadata.name.as_str();
    assert_eq!(client.post(&waiting).await.outcome(), Some("deferred"));
    client.post(&waiting).await;
    let (code, shown) = patch(client, name, STRATEGIC, &json!({"metadata": {"labels": {"a": "b"}}})).await;
    assert_eq!((code, &shown["metadata"]["labels"]["a"], &shown["count"]), (200, &json!("b"), &json!(2)));
    let stored = program.stored().await;
    let stored = stored.iter().find(|event| event.metadata.name == name).unwrap();
    assert_eq!((stored.count, stored.metadata.rare.as_ref().unwrap().labels.len()), (2, 1));
    assert_eq!(program.stop().await.ledger.received(), 3);
}

/// Fault: it was accepted, unlike the same patch of a stored event.
#[tokio::test]
async fn a_patch_of_a_waiting_event_obeys_the_rules_of_its_api_group() {
    let program = start("correlation: {burstSize: 1, qps: 0}\n").await;
    let client = &mut program.client().await;
    for event in [plain(), event("node-1", "web-0", "Pulled", "pulled")] {
        client.post(&event).await;
        let path = format!("/apis/events.k8s.io/v1/namespaces/shop/events/{}", event.metadata.name);
        let patch = json!({"deprecatedCount": 7}).to_string();
        let reply = client.send("PATCH", &path, &[("Content-Type", MERGE)], patch.as_bytes()).await;
        assert_eq!(reply.status, 422, "{}", reply.text());
    }
    assert_eq!(program.stop().await.ledger.received(), 2);
}

#[tokio::test]
async fn concurrent_patches_of_one_event_are_all_applied_without_conflicts() {
    let program = start(APISERVER).await;
    let event = plain();
    let path = format!("{EVENTS}/{}", event.metadata.name);
    program.client().await.post(&event).await;
    let mut patching = tokio::task::JoinSet::new();
    for number in 0..16 {
        let (mut client, path) = (program.client().await, path.clone());
        patching.spawn(async move {
            let body = json!({"metadata": {"labels": {format!("l{number}"): "x"}}}).to_string();
            client.send("PATCH", &path, &[("Content-Type", MERGE)], body.as_bytes()).await.status
        });
    }
    assert_eq!(patching.join_all().await, [200; 16]);
    assert_eq!(program.stored().await[0].metadata.rare.as_ref().unwrap().labels.len(), 16);
    program.stop().await;
}

#[tokio::test]
async fn options_and_media_types_are_refused_in_the_apiservers_order() {
    let program = start(APISERVER).await;
    let client = &mut program.client().await;
    let event = plain();
    client.post(&event).await;
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let cbor = ("Accept", "application/cbor");
    for (query, headers, body, code) in [
        ("force=true", vec![("Content-Type", "application/json"), cbor], "{", 415),
        ("force=true", vec![("Content-Type", MERGE), cbor], "{", 406),
        ("force=true", vec![("Content-Type", MERGE)], "{", 422),
        ("dryRun=Some", vec![("Content-Type", MERGE)], "{", 422),
        ("", vec![("Content-Type", MERGE)], "{", 400),
    ] {
        let reply = client.send("PATCH", &format!("{path}?{query}"), &headers, body.as_bytes()).await;
        assert_eq!(reply.status, code, "{query} {headers:?}");
    }
    assert_eq!(program.stop().await.ledger.total_rejected(), 0);
}

/// Fault: they counted twice. The patched event already showed the write whose answer was lost.
#[tokio::test]
async fn a_change_of_a_record_whose_write_is_in_doubt_counts_its_occurrences_once() {
    let label = json!({"metadata": {"labels": {"team": "a"}}});
    let replace = json!([{"op": "add", "path": "/metadata/labels", "value": {"team": "b"}}]);
    for (written_before, writes) in [(0, "exact"), (1, "exact"), (0, "plain"), (1, "plain")] {
        for (kind, body) in [(STRATEGIC, &label), (MERGE, &label), (JSON, &replace)] {
            let fake = FakeApiserver::manual();
            let yaml = format!("outbox: {{coalesceInterval: 0s}}\nupstream: {{writes: {writes}}}\n");
            let program = start_before(&fake, &yaml).await;
            let client = &mut program.client().await;
            let first = plain();
            for _ in 0..written_before {
                client.post(&first).await;
                program.until("it is written", || fake.shown() == 1).await;
            }
            fake.fail_next(&[Fault::After(500)]);
            client.post(&first).await;
            program.until("it waits", || program.balance().waiting[Why::Retry as usize] == 1).await;
            assert_eq!(fake.shown(), written_before + 1);
            assert_eq!(patch(client, &first.metadata.name, kind, body).await.0, 200);
            program.settle().await;
            assert_eq!(fake.shown(), written_before + 1, "{kind} {writes} after {written_before}");
            client.post(&first).await;
            program.settle().await;
            assert_eq!(fake.shown(), written_before + 2, "{kind} {writes} after {written_before}");
            assert_eq!(program.stop().await.ledger.total_written(), written_before + 2);
        }
    }
}

/// Fault: the occurrences that waited were missing, and so were the client's next ones. The apply was taken for one that
/// states the count.
#[tokio::test]
async fn an_apply_without_a_count_adds_and_removes_no_occurrences() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "outbox: {coalesceInterval: 1m}\n").await;
    let client = &mut program.client().await;
    let events = [plain(), plain()];
    client.post(&events[0]).await;
    program.until("it is written", || fake.shown() == 1).await;
    client.post(&events[1]).await;
    let [my_name, your_name] = events.map(|event| event.metadata.name.to_string());
    assert_eq!(patch(client, &your_name, STRATEGIC, &json!({"count": 4})).await.0, 200);
    assert_eq!((fake.shown(), program.balance().total_waiting()), (1, 4));
    let labels = json!({"team": "a"});
    let document = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": your_name, "labels": labels}});
    let path = format!("{EVENTS}/{your_name}?fieldManager=me");
    let reply = client.send("PATCH", &path, &[("Content-Type", APPLY)], document.to_string().as_bytes()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    program.settle().await;
    assert_eq!(fake.shown(), 5);
    // Each client counts on from its own total.
    for (name, count) in [(my_name, 2), (your_name, 5)] {
        assert_eq!(patch(client, &name, STRATEGIC, &json!({"count": count})).await.0, 200);
    }
    program.settle().await;
    assert_eq!(fake.shown(), 7);
    assert_eq!(program.stop().await.ledger.total_written(), 7);
}

/// Starts a program to which an event is posted five times, of which one is stored and four wait. Returns what GET
/// shows.
async fn four_waiting(fake: &FakeApiserver, history: &str) -> (Program, Client, Event, Value) {
    let program = start_before(fake, &format!("outbox: {{coalesceInterval: 1m}}\n{history}")).await;
    let mut client = program.client().await;
    let first = plain();
    client.post(&first).await;
    program.until("it is written", || fake.shown() == 1).await;
    for _ in 0..4 {
        client.post(&first).await;
    }
    let shown = client.get(&format!("{EVENTS}/{}", first.metadata.name)).await.json();
    assert_eq!((&shown["count"], fake.shown()), (&json!(5), 1));
    (program, client, first, shown)
}

/// Fault: it added the occurrences that the PUT had included. The tag of the event is older than its count.
#[tokio::test]
async fn a_write_in_doubt_after_a_put_adds_only_its_own_occurrences() {
    for fault in [Fault::Before(500), Fault::After(500)] {
        for waits in [false, true] {
            let fake = FakeApiserver::manual();
            let (program, mut client, first, shown) = four_waiting(&fake, "").await;
            let path = format!("{EVENTS}/{}", first.metadata.name);
            let headers = [("Content-Type", "application/json")];
            assert_eq!(client.send("PUT", &path, &headers, shown.to_string().as_bytes()).await.status, 200);
            if !waits {
                program.settle().await;
            }
            fake.fail_next(&[fault]);
            client.post(&first).await;
            program.settle().await;
            assert_eq!(fake.shown(), 6, "{fault:?} {waits}");
            program.stop().await;
        }
    }
}

/// Fault: the occurrences that a change without an answer had included were added to its count.
#[tokio::test]
async fn a_change_without_an_answer_includes_what_its_client_was_shown() {
    for fault in [Fault::ResetAfter, Fault::After(500), Fault::Before(500)] {
        for is_put in [true, false] {
            let fake = FakeApiserver::manual();
            let (program, mut client, first, shown) = four_waiting(&fake, "").await;
            let mut next = fault;
            fake.plan(
                move |seen| {
                    if seen.method == Method::GET { Fault::None } else { std::mem::replace(&mut next, Fault::None) }
                },
            );
            let name = &first.metadata.name;
            let status = if is_put {
                let headers = [("Content-Type", "application/json")];
                client.send("PUT", &format!("{EVENTS}/{name}"), &headers, shown.to_string().as_bytes()).await.status
            } else {
                patch(&mut client, name, JSON, &json!([{"op": "replace", "path": "/count", "value": 5}])).await.0
            };
            assert!(status >= 500, "{status}");
            program.settle().await;
            assert_eq!(fake.shown(), 5, "{fault:?} {is_put}");
            if fault != Fault::Before(500) {
                client.patch(name, &json!({ "count": 6 })).await;
                program.clock.advance(Duration::from_secs(60));
                program.settle().await;
                assert_eq!(fake.shown(), 6, "{fault:?} {is_put}, counted on");
            }
            program.stop().await;
        }
    }
}

/// Fault: an occurrence of a create without an answer was added to the smaller count. The PUT had removed its tag.
#[tokio::test]
async fn a_put_lowers_the_count_of_a_create_without_an_answer() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    fake.fail_next(&[Fault::After(500)]);
    let event = Event { count: 2, ..plain() };
    client.post(&event).await;
    program.until("it waits", || program.balance().waiting[Why::Retry as usize] == 2).await;
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let mut shown = client.get(&path).await.json();
    assert_eq!((&shown["count"], fake.shown()), (&json!(2), 2));
    shown["count"] = json!(1);
    let headers = [("Content-Type", "application/json")];
    assert_eq!(client.send("PUT", &path, &headers, shown.to_string().as_bytes()).await.status, 200);
    program.settle().await;
    assert_eq!(fake.shown(), 1);
    assert_eq!(program.stop().await.ledger.total_written(), 2);
}

/// Fault: they counted twice. The patch had written them, and they still waited.
#[tokio::test]
async fn a_patch_of_an_event_that_is_not_stored_writes_its_occurrences_once() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "correlation: {burstSize: 1, qps: 0}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    let waiting = event("node-1", "web-0", "Pulled", "pulled");
    for _ in 0..2 {
        client.post(&waiting).await;
    }
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(patch(client, &waiting.metadata.name, STRATEGIC, &label).await.0, 200);
    client.post(&waiting).await;
    // The drain writes what waits.
    assert_eq!(program.stop().await.ledger.total_written(), 4);
    assert_eq!(fake.shown(), 4);
}

/// Fault: occurrences that waited were missing, although the client had not seen them.
#[tokio::test]
async fn a_put_keeps_the_waiting_occurrences_that_its_count_does_not_include() {
    let fake = FakeApiserver::manual();
    for (count, expected) in [(1, 5), (2, 5), (4, 5), (5, 5), (7, 7)] {
        let (program, mut client, first, mut shown) = four_waiting(&fake, "").await;
        let path = format!("{EVENTS}/{}", first.metadata.name);
        shown["count"] = json!(count);
        let headers = [("Content-Type", "application/json")];
        assert_eq!(client.send("PUT", &path, &headers, shown.to_string().as_bytes()).await.status, 200);
        program.settle().await;
        assert_eq!(fake.shown(), expected, "{count}");
        assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
        assert_eq!(program.stop().await.ledger.total_written(), 5, "{count}");
    }
}

/// Faults: what another writer had counted, unknown here, was taken for waiting occurrences that the PUT includes. GET
/// showed the count without it.
#[tokio::test]
async fn a_put_includes_what_its_count_is_above_the_one_that_the_upstream_has() {
    for (count, is_whole, expected) in
        [(5, true, 8), (4, true, 8), (4, false, 8), (6, false, 8), (9, true, 9), (2, true, 2)]
    {
        let fake = FakeApiserver::manual();
        let (program, mut client, first, _) = four_waiting(&fake, HISTORY_OFF).await;
        let (name, case) = (&first.metadata.name, format!("{count} {is_whole}"));
        fake.change(&fake.events()[0], |event| event.count += 3);
        let shown = client.get(&format!("{EVENTS}/{name}")).await.json();
        assert_eq!((&shown["count"], fake.shown()), (&json!(8), 4), "{case}");
        let mut stored = fake.events().remove(0);
        stored.count = count;
        if !is_whole {
            // As its client has built it.
            stored.metadata.rare = None;
        }
        assert_eq!(put(&mut client, name, &stored).await, 200);
        program.settle().await;
        assert_eq!(fake.shown(), expected, "{case}");
        client.post(&first).await;
        program.clock.advance(Duration::from_secs(60));
        program.settle().await;
        assert_eq!(fake.shown(), expected + 1, "{case}");
        assert_eq!(program.stop().await.ledger.total_written(), 6, "{case}");
    }
}

/// Fault: they counted twice. The PUT had removed the tag that had shown them.
#[tokio::test]
async fn a_put_without_tags_counts_a_write_without_an_answer_once() {
    for fault in [Fault::After(500), Fault::Before(500)] {
        let fake = FakeApiserver::manual();
        let (program, mut client, first, _) = four_waiting(&fake, HISTORY_OFF).await;
        fake.plan(move |seen| if seen.method == Method::PATCH { fault } else { Fault::None });
        program.clock.advance(Duration::from_secs(60));
        program.until("it waits", || program.balance().waiting[Why::Retry as usize] == 4).await;
        fake.plan(|_| Fault::None);
        fake.change(&fake.events()[0], |event| event.count += 3);
        let name = &first.metadata.name;
        let shown = client.get(&format!("{EVENTS}/{name}")).await.json();
        assert_eq!(shown["count"], json!(8), "{fault:?}");
        let mut stored = fake.events().remove(0);
        stored.metadata.rare = None;
        assert_eq!(put(&mut client, name, &stored).await, 200);
        program.settle().await;
        assert_eq!(fake.shown(), 8, "{fault:?}");
        assert_eq!(program.stop().await.ledger.total_written(), 5, "{fault:?}");
    }
}

/// Fault: the record continued on the other event, whose count then included its occurrences.
#[tokio::test]
async fn a_change_under_a_name_that_another_event_has_taken_is_refused_and_ties_no_record_to_it() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "outbox: {coalesceInterval: 1m}\n").await;
    let client = &mut program.client().await;
    let first = plain();
    let name = first.metadata.name.as_str();
    client.post(&first).await;
    program.until("it is written", || program.balance().ledger.total_written() == 1).await;
    // A second occurrence waits, while an event with another message takes the name, in a batch whose names are not kept.
    client.post(&plain()).await;
    fake.delete(&fake.events()[0]);
    let mut other = event("node-1", "web-0", "BackOff", "another");
    other.metadata.name = name.into();
    assert_eq!(client.send("POST", "/eventweir/v1/events", &[], &json_of(&other)).await.status, 200);
    program.until("it is written", || program.balance().ledger.total_written() == 2).await;
    let labels = json!({"metadata": {"labels": {"team": "a"}}});
    assert_eq!(patch(client, name, MERGE, &labels).await.0, 409);
    program.settle().await;
    let mut shown: Vec<_> = fake.events().into_iter().map(|event| (event.message, event.count)).collect();
    shown.sort();
    assert_eq!(shown, [("another".into(), 1), (first.message.clone(), 1)]);
    // Its record has got another name.
    let (code, labelled) = patch(client, name, MERGE, &labels).await;
    assert_eq!((code, &labelled["count"], labelled["message"].as_str()), (200, &json!(1), Some(&*first.message)));
    program.stop().await;
}

/// Fault: history had read the changed event as another record of that name, so that each further change was refused.
#[tokio::test]
async fn an_event_whose_reason_a_client_has_changed_can_be_changed_again() {
    let apiserver = start(APISERVER).await;
    let program = start_behind(&apiserver, "upstream: {kind: apiserver, history: watch}\n").await;
    program.until_news("relist", 1.0).await;
    let client = &mut program.client().await;
    let first = plain();
    let name = first.metadata.name.as_str();
    client.post(&first).await;
    program.settle().await;
    assert_eq!(patch(client, name, MERGE, &json!({"reason": "Patched"})).await.0, 200);
    program.until_news("stored", 2.0).await;
    let label = |value: &str| json!({"metadata": {"labels": {"a": value}}});
    assert_eq!(patch(client, name, MERGE, &label("b")).await.0, 200);
    // Now it is a record that this process counts on.
    let mut again = event("node-1", "web-0", "Patched", &first.message);
    again.event_type = first.event_type.clone();
    client.post(&again).await;
    program.settle().await;
    let (code, shown) = patch(client, name, MERGE, &label("c")).await;
    assert_eq!((code, &shown["reason"], &shown["count"]), (200, &json!("Patched"), &json!(2)));
    client.post(&again).await;
    program.settle().await;
    let stored = apiserver.stored().await;
    assert_eq!((stored.len(), stored[0].count), (1, 3));
    program.stop().await;
    apiserver.stop().await;
}

/// Fault: a part of a series replaced the whole one, so that the count began again or the time was lost. An older time
/// set the record's back.
#[tokio::test]
async fn a_part_of_a_series_keeps_the_rest_and_no_time_goes_back() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    let mut event = plain();
    (event.count, event.first_timestamp, event.last_timestamp) = (0, None, None);
    event.event_time = Some(MicroTime::from_unix_nanos(START));
    (event.action, event.source) = ("A".into(), EventSource::default());
    (event.reporting_controller, event.reporting_instance) = ("example.com/c".into(), "c-1".into());
    let time = |seconds: i64| format!("2026-03-01T08:00:{seconds:02}.000000Z");
    assert_eq!(client.post(&event).await.status, 201);
    let name = event.metadata.name.as_str();
    for (series, count, seconds) in [
        (json!({"count": 5, "lastObservedTime": time(10)}), 5, 10),
        (json!({"lastObservedTime": time(20)}), 5, 20),
        (json!({"count": 6}), 6, 20),
        (json!({"count": 7, "lastObservedTime": time(15)}), 7, 20),
        (json!({"count": 8, "lastObservedTime": time(30)}), 8, 30),
    ] {
        let (code, shown) = patch(client, name, STRATEGIC, &json!({"series": series})).await;
        assert_eq!(
            (code, &shown["series"]),
            (200, &json!({"count": count, "lastObservedTime": time(seconds)})),
            "{series}"
        );
        program.settle().await;
        // A time alone is no occurrence.
        let last = if count == 5 { 10 } else { seconds };
        let stored = &fake.events()[0];
        assert_eq!((stored.count, stored.last_timestamp.unwrap().0), (count, START / 1_000_000_000 + last), "{series}");
    }
    let old_style = plain();
    client.post(&old_style).await;
    for last in [json!("2026-03-01T07:00:00Z"), json!(null)] {
        let body = json!({"count": 2, "lastTimestamp": last});
        let (code, shown) = patch(client, &old_style.metadata.name, STRATEGIC, &body).await;
        assert_eq!((code, &shown["lastTimestamp"]), (200, &json!("2026-03-01T08:00:00Z")));
    }
    program.settle().await;
    program.stop().await;
}

/// Fault: the name of a client that left before its answer kept the event as it was before the PUT.
#[tokio::test]
async fn a_put_whose_client_has_left_is_what_its_name_counts_on() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    let mut event = plain();
    client.post(&event).await;
    program.settle().await;
    (event.count, event.message) = (5, "another".into());
    let path = format!("{EVENTS}/{}", event.metadata.name);
    fake.set_latency(Duration::from_millis(500));
    // Over HTTP/1.1 a disconnected client looks like one that has closed its side and still reads.
    let stream = TokioIo::new(TcpStream::connect(program.app.address()).await.unwrap());
    let (mut impatient, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let put = Request::put(format!("http://localhost{path}")).header("Content-Type", "application/json");
    let put = put.body(Full::<Bytes>::from(json_of(&event))).unwrap();
    tokio::select! {
        reply = impatient.send_request(put) => panic!("answered: {reply:?}"),
        end = connection => panic!("disconnected: {end:?}"),
        () = program.until("it is sent", || fake.in_flight() == 1) => {}
    }
    drop(impatient);
    fake.set_latency(Duration::ZERO);
    program.until_metric("eventweir_ingest_connections", |open| open <= 1.0).await;
    program.until("it is carried out", || fake.shown() == 5).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (code, shown) = patch(client, &event.metadata.name, STRATEGIC, &json!({"count": 6})).await;
    assert_eq!((code, &shown["message"], &shown["count"]), (200, &json!("another"), &json!(6)));
    program.settle().await;
    assert_eq!((fake.events().len(), fake.shown()), (1, 6));
    program.stop().await;
}
