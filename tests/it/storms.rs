//! Reads of objects whose events are folded into a storm record.

use std::time::Duration;

use serde_json::Value;

use super::support::app::{Program, start};
use super::support::events::warning;
use super::support::http::{Client, EVENTS};

/// 40 pods in a storm, of which one has an event of its own.
async fn storm() -> (Program, Client) {
    let program = start("correlation: {groupBurstSize: 1, groupQps: 0.05}\n").await;
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
    program.stop().await;
}
