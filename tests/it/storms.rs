//! Reads of objects whose events are folded into a storm record.

use std::time::Duration;

use serde_json::Value;

use super::support::app::{Program, start, start_before};
use super::support::events::warning;
use super::support::fake::FakeApiserver;
use super::support::http::{Client, EVENTS, json};

const CONFIG: &str = "correlation: {groupBurstSize: 1, groupQps: 0.05}\n";

/// 40 pods in a storm, of which one has an event of its own.
async fn storm() -> (Program, Client) {
    let program = start(CONFIG).await;
    let mut client = program.client().await;
    for pod in 0..40 {
        let host = format!("node-{}", pod % 7);
        client.post(&warning(&host, &format!("pod-{pod}"), "FailedMount", "no such volume")).await;
    }
    let is_storm = || {
        program.clock.advance(Duration::from_millis(100));
        program.app.metrics_text().contains("eventweir_outbox_storms 1")
            && program.balance().waiting.iter().sum::<u64>() == 0
    };
    program.until("all is shown", is_storm).await;
    (program, client)
}

/// Fault: an hour after an event had folded, its growth still began a record by the right to patch alone.
#[tokio::test]
async fn growth_of_a_folded_event_needs_the_right_to_create_once_the_storm_has_ended() {
    let fake = FakeApiserver::manual();
    let policy = "[{users: [alice], verbs: [create]}, {users: [alice, bob], verbs: [patch]}]";
    let auth = format!("auth: {{tokenReview: {{enabled: true}}, policy: {policy}}}");
    let program = start_before(&fake, &format!("{CONFIG}upstream: {{kind: apiserver, history: off}}\n{auth}\n")).await;
    fake.know("alice", "alice");
    fake.know("bob", "bob");
    let client = &mut program.client().await;
    let mut newest = String::new();
    for pod in 0..40 {
        let event = warning(&format!("node-{}", pod % 7), &format!("pod-{pod}"), "FailedMount", "no such volume");
        newest = format!("{EVENTS}/{}", event.metadata.name);
        let posted = client.send("POST", EVENTS, &[("Authorization", "Bearer alice")], &json(&event)).await;
        assert_eq!(posted.status, 201);
    }
    let until = async |storms: &str, tick| {
        let ends = || {
            program.clock.advance(tick);
            program.app.metrics_text().contains(&format!("eventweir_outbox_storms {storms}"))
                && program.balance().waiting.iter().sum::<u64>() == 0
        };
        program.until(storms, ends).await;
    };
    until("1", Duration::from_millis(100)).await;
    let kind = ("Content-Type", "application/strategic-merge-patch+json");
    let headers = [("Authorization", "Bearer bob"), kind];
    assert_eq!(client.send("PATCH", &newest, &headers, br#"{"count": 2}"#).await.status, 200);
    until("0", Duration::from_secs(5)).await;
    let before = fake.all().len();
    assert_eq!(client.send("PATCH", &newest, &headers, br#"{"count": 3}"#).await.status, 404);
    program.settle().await;
    assert_eq!(fake.all().len(), before);
    program.stop().await;
}

async fn listed(client: &mut Client, query: &str) -> Value {
    let reply = client.get(&format!("{EVENTS}?{query}")).await;
    assert_eq!(reply.status, 200, "{query}");
    reply.json()
}

#[tokio::test]
async fn reads_of_a_folded_object_find_its_events() {
    let (program, mut client) = storm().await;
    let own = program.stored().await;
    let storms: Vec<_> = own.iter().filter(|event| event.message.starts_with("storm: ")).collect();
    assert_eq!((storms.len(), storms[0].count), (1, 39), "{own:?}");
    // It happens again, and its count is two.
    client.post(&warning("node-4", "pod-39", "FailedMount", "still no such volume")).await;
    program
        .until("it folds", || {
            program.clock.advance(Duration::from_millis(500));
            program.balance().waiting.iter().sum::<u64>() == 0
        })
        .await;

    let of_pod = "fieldSelector=involvedObject.name%3Dpod-39,involvedObject.kind%3DPod";
    let list = listed(&mut client, of_pod).await;
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 1, "{list}");
    let event = &items[0];
    assert_eq!(
        (&event["count"], &event["message"], &event["reason"]),
        (&2.into(), &"still no such volume".into(), &"FailedMount".into())
    );
    let mark = &event["metadata"]["annotations"]["eventweir.io/folded-into"];
    assert_eq!(mark, storms[0].metadata.name.as_str());
    assert_eq!(event["metadata"].get("resourceVersion"), None, "the upstream does not hold it");
    // By its name, too.
    let name = event["metadata"]["name"].as_str().unwrap().to_owned();
    let reply = client.get(&format!("{EVENTS}/{name}")).await;
    assert_eq!((reply.status, &reply.json()["count"]), (200, &2.into()));

    // kubectl reads pages; the last one has the event, within its limit.
    let all = |list: &Value| list["items"].as_array().unwrap().len();
    assert_eq!(all(&listed(&mut client, &format!("{of_pod}&limit=500")).await), 1);
    // Not in other lists, in lists of a version, or in a watch.
    for query in
        ["fieldSelector=involvedObject.name%3Dpod-0", "fieldSelector=involvedObject.name%3Dpod-99", "limit=500", ""]
    {
        let list = listed(&mut client, query).await;
        let folded = list.to_string().contains("folded-into");
        assert!(!folded, "{query}");
    }
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    assert_eq!(all(&listed(&mut client, &format!("{of_pod}&resourceVersion={version}")).await), 0);
    // Fault: any number of conditions was checked for each folded event, while deliveries waited.
    for (conditions, events) in [(30, 1), (31, 0)] {
        let many = ",type!%3DOther".repeat(conditions);
        assert_eq!(all(&listed(&mut client, &format!("{of_pod}{many}")).await), events, "{conditions}");
    }
    program.stop().await;
}
