//! The two API groups in front of one store, and events that are repaired on arrival.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use eventweir::clock::Clock;
use serde_json::{Value, json};

use super::support::app::{Program, start, start_before};
use super::support::events::{START, plain};
use super::support::fake::{FakeApiserver, MANAGED};
use super::support::http::{Client, EVENTS, json as json_of};

const NEW: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const JSON: (&str, &str) = ("Content-Type", "application/json");
const STRATEGIC: (&str, &str) = ("Content-Type", "application/strategic-merge-patch+json");
const MERGE: (&str, &str) = ("Content-Type", "application/merge-patch+json");

fn new_style(name: &str) -> Value {
    json!({
        "kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": { "name": name },
        "regarding": { "kind": "Pod", "name": "web-0", "namespace": "shop" },
        "reason": "BackOff", "note": "restarting", "type": "Warning", "action": "Restart",
        "eventTime": "2026-03-01T08:00:00.000000Z",
        "reportingController": "example.com/kubelet", "reportingInstance": "node-1",
    })
}

async fn send(client: &mut Client, method: &str, path: &str, kind: (&str, &str), body: &Value, code: u16) -> Value {
    let reply = client.send(method, path, &[kind], body.to_string().as_bytes()).await;
    assert_eq!(reply.status, code, "{}", reply.text());
    reply.json()
}

/// Returns count and lastTimestamp of the only record.
async fn only(program: &Program) -> (i32, String) {
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!(stored.len(), 1, "{stored:?}");
    (stored[0].count, stored[0].last_timestamp.unwrap().to_string())
}

#[tokio::test]
async fn a_series_of_client_go_counts_its_occurrences_and_is_read_in_both_api_groups() {
    let program = start("").await;
    let client = &mut program.client().await;
    send(client, "POST", NEW, JSON, &new_style("web-0.1"), 201).await;
    for (count, time) in [(2, "08:00:30"), (2, "08:00:30"), (60, "08:30:00")] {
        let series = json!({ "series": { "count": count, "lastObservedTime": format!("2026-03-01T{time}.000000Z") } });
        let told = send(client, "PATCH", &format!("{NEW}/web-0.1"), STRATEGIC, &series, 200).await;
        assert_eq!(told["series"]["count"], count, "the client's own line");
    }
    assert_eq!(only(&program).await, (60, "2026-03-01T08:30:00Z".to_owned()));
    let old = client.get(EVENTS).await.json();
    let new = client.get(NEW).await.json();
    assert_eq!((&old["items"][0]["count"], &old["items"][0]["message"]), (&json!(60), &json!("restarting")));
    assert_eq!((&new["items"][0]["deprecatedCount"], &new["items"][0]["note"]), (&json!(60), &json!("restarting")));
    assert_eq!(new["apiVersion"], "events.k8s.io/v1");
    let missing = client.get(&format!("{NEW}/nobody")).await.json();
    assert_eq!(missing["message"], "events.events.k8s.io \"nobody\" not found");
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_written()), (60, 60));
}

/// Fault: if client-go sent an event and its series at once and the series came first, the first occurrence
/// counted twice.
#[tokio::test]
async fn a_series_that_overtakes_its_first_occurrence_includes_it() {
    let program = start("").await;
    let client = &mut program.client().await;
    let first = new_style("web-0.1");
    let mut series = first.clone();
    series["series"] = json!({ "count": 2, "lastObservedTime": "2026-03-01T08:00:30.000000Z" });
    send(client, "POST", NEW, JSON, &series, 201).await;
    let told = send(client, "POST", NEW, JSON, &first, 201).await;
    assert_eq!(told["series"]["count"], 2);
    // The client counts on from the series.
    let patch = json!({ "series": { "count": 5, "lastObservedTime": "2026-03-01T08:01:00.000000Z" } });
    send(client, "PATCH", &format!("{NEW}/web-0.1"), STRATEGIC, &patch, 200).await;
    assert_eq!(only(&program).await.0, 5);
    // An event with another time is a separate occurrence.
    let mut later = first;
    later["eventTime"] = json!("2026-03-01T09:00:00.000000Z");
    send(client, "POST", NEW, JSON, &later, 201).await;
    assert_eq!(only(&program).await.0, 6);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_written()), (6, 6));
}

/// Fault: client-go's broadcaster sends its series again at its start and each half an hour. If its patch got 404, each
/// POST of the same series counted once more.
#[tokio::test]
async fn a_series_that_is_posted_again_brings_what_it_has_grown_by() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut series = new_style("web-0.1");
    for (count, shown) in [(2, 2), (2, 2), (5, 5), (2, 5), (5, 5), (6, 6)] {
        series["series"] = json!({ "count": count, "lastObservedTime": "2026-03-01T08:00:30.000000Z" });
        let told = send(client, "POST", NEW, JSON, &series, 201).await;
        assert_eq!((&told["series"]["count"], only(&program).await.0), (&json!(shown), shown));
    }
    // A series that began at another time brings at least one.
    series["eventTime"] = json!("2026-03-01T09:00:00.000000Z");
    series["series"]["count"] = json!(2);
    send(client, "POST", NEW, JSON, &series, 201).await;
    assert_eq!(only(&program).await.0, 7);
}

#[tokio::test]
async fn a_merge_patch_of_the_whole_event_is_an_upsert() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut event = new_style("web-0.1");
    // kube-rs after a restart of eventweir: the name is unknown, so its whole count counts here.
    event["series"] = json!({ "count": 7, "lastObservedTime": "2026-03-01T08:00:30.000000Z" });
    send(client, "PATCH", &format!("{NEW}/web-0.1?"), MERGE, &event, 200).await;
    event["series"]["count"] = json!(9);
    send(client, "PATCH", &format!("{NEW}/web-0.1?"), MERGE, &event, 200).await;
    assert_eq!(only(&program).await.0, 9);
    event["metadata"]["name"] = json!("other");
    send(client, "PATCH", &format!("{NEW}/unseen"), MERGE, &event, 400).await;
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_rejected(), ledger.total_written()), (10, 1, 9));
}

#[tokio::test]
async fn events_that_the_apiserver_would_refuse_are_repaired_with_a_warning() {
    let program = start("ingest: {messageBytes: 200}\n").await;
    let client = &mut program.client().await;
    let mut event = new_style("Not A Name");
    event["note"] = json!("ä".repeat(600));
    event["reportingInstance"] = json!("i".repeat(129));
    event["eventTime"] = Value::Null;
    let reply = client.send("POST", NEW, &[JSON], event.to_string().as_bytes()).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert_eq!(reply.headers("Warning").count(), 4);
    assert_eq!(reply.json()["note"].as_str().unwrap().len(), 1024);
    let old = json!({
        "metadata": { "name": "web-0.2" }, "involvedObject": { "kind": "Pod", "name": "web-0", "namespace": "shop" },
        "message": "m".repeat(300), "reason": "R", "type": "Normal",
    });
    let told = send(client, "POST", EVENTS, JSON, &old, 201).await;
    assert_eq!(told["message"].as_str().unwrap().len(), 200);
    program.settle().await;
    assert_eq!(program.metrics().await["eventweir_ingest_repairs_total{what=\"message\"}"], 2.0);
    assert_eq!(program.stop().await.ledger.total_written(), 2);
    let strict = start("ingest: {repair: off}\n").await;
    let client = &mut strict.client().await;
    send(client, "POST", NEW, JSON, &event, 422).await;
    assert_eq!(strict.stop().await.ledger.total_rejected(), 1);
}

/// Fault: the repeat has the whole message. It counted on a second record, with a message of any length.
#[tokio::test]
async fn the_message_of_a_repeat_is_repaired_as_that_of_its_event() {
    let program = start("ingest: {messageBytes: 200}\n").await;
    let client = &mut program.client().await;
    let old = json!({
        "metadata": { "name": "web-0.2" }, "involvedObject": { "kind": "Pod", "name": "web-0", "namespace": "shop" },
        "message": "m".repeat(300), "reason": "R", "type": "Normal", "count": 1,
    });
    send(client, "POST", EVENTS, JSON, &old, 201).await;
    let mut new = new_style("web-0.3");
    new["note"] = json!("n".repeat(1025));
    send(client, "POST", NEW, JSON, &new, 201).await;
    // As client-go and kube-rs repeat them.
    let repeat = json!({ "count": 2, "lastTimestamp": "2026-03-01T08:00:30Z", "message": "m".repeat(300) });
    new["series"] = json!({ "count": 2, "lastObservedTime": "2026-03-01T08:00:30.000000Z" });
    for (path, kind, body) in
        [(format!("{EVENTS}/web-0.2"), STRATEGIC, &repeat), (format!("{NEW}/web-0.3"), MERGE, &new)]
    {
        let reply = client.send("PATCH", &path, &[kind], body.to_string().as_bytes()).await;
        let warnings: Vec<&str> = reply.headers("Warning").collect();
        assert_eq!((reply.status, warnings.len()), (200, 1), "{} {warnings:?}", reply.text());
    }
    program.settle().await;
    let mut stored: Vec<_> = program.stored().await.iter().map(|event| (event.message.len(), event.count)).collect();
    stored.sort_unstable();
    assert_eq!(stored, [(200, 2), (1024, 2)]);
    assert_eq!(program.metrics().await["eventweir_ingest_repairs_total{what=\"message\"}"], 4.0);
    program.stop().await;
    // As the API server.
    let strict = start("ingest: {repair: off}\n").await;
    let client = &mut strict.client().await;
    let mut new = new_style("web-0.4");
    send(client, "POST", NEW, JSON, &new, 201).await;
    new["note"] = json!("n".repeat(1025));
    new["series"] = json!({ "count": 2, "lastObservedTime": "2026-03-01T08:00:30.000000Z" });
    let status = send(client, "PATCH", &format!("{NEW}/web-0.4"), MERGE, &new, 422).await;
    assert!(status["message"].as_str().unwrap().contains("can have at most 1024 characters"), "{status}");
    assert_eq!(strict.stop().await.ledger.total_rejected(), 1);
}

/// Fault: each repeat had another name, and counted the whole series again. As kube-rs reports on a ClusterRole: it
/// patches the event that it has sent, not the one in the answer.
#[tokio::test]
async fn an_event_with_a_repaired_name_counts_each_of_its_occurrences_once() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut event = new_style("system:x.1a");
    let first = send(client, "POST", NEW, JSON, &event, 201).await;
    for count in 2..5 {
        event["series"] = json!({ "count": count, "lastObservedTime": "2026-03-01T08:00:30.000000Z" });
        let told = send(client, "PATCH", &format!("{NEW}/system:x.1a"), MERGE, &event, 200).await;
        assert_eq!(told["metadata"]["name"], first["metadata"]["name"]);
        assert_eq!(only(&program).await.0, count);
    }
    // As a client that posts its series again.
    event["series"]["count"] = json!(7);
    send(client, "POST", NEW, JSON, &event, 201).await;
    assert_eq!(only(&program).await.0, 7);
    assert_eq!(program.stop().await.ledger.received(), 7);
}

#[tokio::test]
async fn events_without_a_count_are_one_occurrence_each() {
    let program = start("").await;
    let client = &mut program.client().await;
    for name in ["a", "b", "c"] {
        // As kopf posts: old timestamps and eventTime, no count, never a patch.
        let mut event = new_style(name);
        event["metadata"] = json!({ "generateName": "kopf-event-" });
        send(client, "POST", NEW, JSON, &event, 201).await;
    }
    assert_eq!(only(&program).await.0, 3);
    program.stop().await;
}

#[tokio::test]
async fn managed_fields_of_the_apiserver_are_shown_in_every_form() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    let event = plain();
    client.post(&event).await;
    program.settle().await;
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let managed: Value = serde_json::from_str(MANAGED).unwrap();
    for path in [&path, &path.replace("/api/v1", "/apis/events.k8s.io/v1")] {
        assert_eq!(client.get(path).await.json()["metadata"]["managedFields"], managed);
    }
    assert_eq!(client.get(EVENTS).await.json()["items"][0]["metadata"]["managedFields"], managed);
    let mut get = async |accept| client.send("GET", &path, &[("Accept", accept)], b"").await;
    let yaml = get("application/yaml").await.text();
    assert!(yaml.contains("\n  managedFields:\n  - apiVersion: v1\n    fieldsType: FieldsV1\n"), "{yaml}");
    let protobuf = get("application/vnd.kubernetes.protobuf").await;
    // The third member is the version, followed by the type and by the fields as JSON in a nested message.
    let entry = b"\x0a\x01m\x12\x06Update\x1a\x02v1\x32\x08FieldsV1\x3a\x10\x0a\x0e{\"f:count\":{}}\x42\x00";
    assert!(protobuf.bytes().windows(entry.len()).any(|bytes| bytes == entry), "{:?}", protobuf.bytes().escape_ascii());
    program.stop().await;
}

#[tokio::test]
async fn uncorrelated_writes_carry_the_clients_field_manager() {
    let managers = async |yaml: &str| {
        let fake = FakeApiserver::new(Clock::manual(START));
        let program = start_before(&fake, yaml).await;
        let client = &mut program.client().await;
        let (posted, batched) = (plain(), plain());
        let path = format!("{EVENTS}?fieldManager=tool");
        assert_eq!(client.send("POST", &path, &[JSON], &json_of(&posted)).await.status, 201);
        let path = "/eventweir/v1/events?fieldManager=tool";
        assert_eq!(client.send("POST", path, &[JSON], &json_of(&batched)).await.status, 200);
        program.settle().await;
        let path = format!("{EVENTS}/{}?fieldManager=tool", posted.metadata.name);
        let label = json!({"metadata": {"labels": {"a": "b"}}});
        send(client, "PATCH", &path, MERGE, &label, 200).await;
        send(client, "PUT", &path, JSON, &serde_json::from_slice(&json_of(&posted)).unwrap(), 200).await;
        program.stop().await;
        let writes = fake.seen().into_iter().filter(|seen| seen.method != "GET");
        writes.map(|seen| format!("{} {}", seen.method, seen.manager)).collect::<Vec<_>>()
    };
    assert_eq!(managers("correlation: {enabled: false}\n").await, ["POST tool", "POST tool", "PATCH tool", "PUT tool"]);
    let correlated = managers("outbox: {coalesceInterval: 0s}\n").await;
    assert_eq!(correlated.first().map(String::as_str), Some("POST eventweir"));
    assert!(correlated.ends_with(&["PATCH tool".to_owned(), "PUT tool".to_owned()]), "{correlated:?}");
}

#[tokio::test]
async fn normalized_messages_that_differ_in_a_number_are_one_event() {
    let program = start("correlation: {messages: normalized}\n").await;
    let client = &mut program.client().await;
    let posted = ["pulled in 3s", "pulled in 4.5s", "failed", "pulled in 12s"];
    for message in posted {
        let event = json!({
            "involvedObject": { "kind": "Pod", "name": "web-0", "namespace": "shop" },
            "message": message, "reason": "Pulled", "type": "Normal", "metadata": { "generateName": "web-0." },
        });
        send(client, "POST", EVENTS, JSON, &event, 201).await;
    }
    program.settle().await;
    let mut shown: Vec<_> =
        program.stored().await.iter().map(|event| (event.count, event.message.to_string())).collect();
    shown.sort();
    assert_eq!(shown, [(1, "failed".to_owned()), (3, "pulled in 12s".to_owned())]);
}
