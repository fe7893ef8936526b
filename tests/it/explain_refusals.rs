//! Refusals are recorded with their objects for every kind of request; the last messages are written as an annotation.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use eventweir::event::Event;
use eventweir::ledger::RejectReason;
use serde_json::{Value, json};

use super::support::app::{Program, start, start_before};
use super::support::events::{event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::{EVENTS, json as text_of};

async fn ask(program: &Program, object: &str) -> Value {
    program.client().await.get(&format!("/eventweir/v1/explain?namespace=shop&object={object}")).await.json()
}

async fn told(program: &Program, object: &str) -> String {
    let answer = &ask(program, object).await["answer"];
    format!("{}: {}", answer["code"].as_str().unwrap(), answer["text"].as_str().unwrap())
}

#[tokio::test]
async fn a_refused_line_of_a_batch_is_recorded_with_its_object() {
    let program = start("limits: [{type: Namespace, qps: 1, burst: 1}]\n").await;
    let mut wrong = event("node-1", "web-1", "R", "m");
    wrong.involved_object.namespace = "other".into();
    let lines = [event("node-1", "web-0", "R", "m"), wrong, event("node-1", "web-2", "R", "m")];
    let body: Vec<u8> = lines.iter().flat_map(|event| text_of(event).into_iter().chain([b'\n'])).collect();
    let client = &mut program.client().await;
    assert_eq!(client.send("POST", "/eventweir/v1/events", &[], &body).await.status, 200);
    let text = told(&program, "pod/web-1").await;
    assert!(text.starts_with("rejected: Refused at 08:00:00Z: 1 occurrence (invalid)"), "{text}");
    let text = told(&program, "pod/web-2").await;
    assert!(text.starts_with("rejected: Refused at 08:00:00Z: 1 occurrence (limited)"), "{text}");
    // An unreadable event has no object.
    client.send("POST", "/eventweir/v1/events", &[], b"{nonsense\n").await;
    // Only a question about all namespaces shows numbers of all.
    let text = told(&program, "pod/web-9").await;
    assert!(text.contains("of 3 occurrences in its namespace since") && !text.contains("refused"), "{text}");
    let everywhere = program.client().await.get("/eventweir/v1/explain?object=pod/web-9").await.json();
    let text = everywhere["answer"]["text"].as_str().unwrap();
    assert!(text.contains("of 4 occurrences since"), "{text}");
    assert!(text.contains("1 occurrence was refused before the object could be read."), "{text}");
    program.stop().await;
}

#[tokio::test]
async fn a_body_that_names_another_namespace_than_its_path_leaves_no_trace_there() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut elsewhere = event("node-1", "web-0", "R", "m");
    elsewhere.metadata.namespace = "elsewhere".into();
    elsewhere.involved_object.namespace = "elsewhere".into();
    assert_eq!(client.send("POST", EVENTS, &[], &text_of(&elsewhere)).await.status, 400);
    let known = client.get("/eventweir/v1/explain?namespace=elsewhere&object=pod/web-0").await.json();
    assert_eq!((&known["answer"]["code"], &known["objects"]), (&json!("unknown"), &json!([])), "{known}");
    let metrics = program.metrics().await;
    assert!(metrics.keys().all(|sample| !sample.contains("namespace=\"elsewhere\"")), "{metrics:?}");
    assert_eq!(program.stop().await.ledger.rejected(RejectReason::Invalid), 1);
}

#[tokio::test]
async fn occurrences_of_a_patch_that_is_refused_are_counted_as_rejected() {
    let program = start("limits: [{type: Namespace, qps: 1, burst: 1}]\n").await;
    let client = &mut program.client().await;
    let first = plain();
    client.post(&first).await;
    let reply = client.patch(&first.metadata.name, &json!({ "count": 4 })).await;
    assert_eq!(reply.status, 429);
    let part = &ask(&program, "pod/web-0").await["objects"][0]["reasons"][0];
    assert_eq!((&part["received"], &part["rejected"]), (&json!(4), &json!(3)), "{part}");
    // An unavailable acknowledgement is refused before the event is counted.
    let path = format!("{EVENTS}/{}", first.metadata.name);
    let headers = [("Content-Type", "application/strategic-merge-patch+json"), ("Eventweir-Ack", "durable")];
    assert_eq!(client.send("PATCH", &path, &headers, br#"{"count":5}"#).await.status, 400);
    let part = &ask(&program, "pod/web-0").await["objects"][0]["reasons"][0];
    assert_eq!(part["rejected"], json!(4), "{part}");
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.rejected(RejectReason::Limited), ledger.rejected(RejectReason::Invalid)), (3, 1));
    let program = start("").await;
    let client = &mut program.client().await;
    let other = event("node-1", "web-1", "R", "m");
    assert_eq!(client.send("POST", EVENTS, &[("Eventweir-Ack", "durable")], &text_of(&other)).await.status, 400);
    assert!(told(&program, "pod/web-1").await.starts_with("rejected: Refused at "));
    assert_eq!(program.stop().await.ledger.rejected(RejectReason::Invalid), 1);
}

#[tokio::test]
async fn a_refused_change_is_recorded_and_is_not_an_occurrence() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    let first = plain();
    let path = format!("{EVENTS}/{}", first.metadata.name);
    fake.plan(|_| Fault::Before(403));
    assert_eq!(client.send("PUT", &path, &[], &text_of(&first)).await.status, 403);
    let text = told(&program, "pod/web-0").await;
    assert!(
        text.starts_with("rejected: No occurrence was received. A change of the event was refused at 08:00:00Z: PUT: "),
        "{text}"
    );
    let merge = [("Content-Type", "application/merge-patch+json")];
    fake.plan(|_| Fault::None);
    client.post(&plain()).await;
    program.settle().await;
    let second = plain();
    client.post(&second).await;
    program.settle().await;
    fake.plan(|_| Fault::Before(422));
    let path = format!("{EVENTS}/{}", second.metadata.name);
    let reply = client.send("PATCH", &path, &merge, br#"{"metadata":{"labels":{"a":"b"}}}"#).await;
    assert_eq!(reply.status, 422, "{}", reply.text());
    let document = ask(&program, "pod/web-0").await;
    let decisions = document["objects"][0]["decisions"].as_array().unwrap();
    let refused = decisions.iter().filter(|decision| decision["why"] == "change").collect::<Vec<_>>();
    assert!(refused.iter().any(|decision| decision["text"].as_str().unwrap().starts_with("PATCH: ")), "{refused:?}");
    assert_eq!(document["objects"][0]["reasons"][0]["received"], json!(2));
    assert_eq!(program.stop().await.ledger.received(), 2);
}

fn annotation(event: &Event) -> Option<Vec<String>> {
    let text = event.metadata.rare.as_ref()?.annotations.get("messages.eventweir/last")?;
    assert!(text.len() <= 60, "{text}");
    Some(serde_json::from_str(text).unwrap())
}

/// Some answers are lost, so that writes are repeated.
#[tokio::test]
async fn the_last_messages_are_written_with_other_writes() {
    for bytes in [0, 60] {
        let fake = FakeApiserver::manual();
        let program = start_before(&fake, &format!("explain: {{annotationBytes: {bytes}}}\n")).await;
        let number = std::sync::atomic::AtomicUsize::new(0);
        fake.plan(move |_| match number.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 5 {
            3 => Fault::After(500),
            _ => Fault::None,
        });
        let client = &mut program.client().await;
        for number in 0..25 {
            client.post(&event("node-1", "web-0", "R", &format!("message {number}"))).await;
            program.clock.advance(Duration::from_secs(2));
            program.settle().await;
        }
        assert_eq!(fake.shown(), 25);
        let events = fake.events();
        let kept: Vec<Vec<String>> = events.iter().filter_map(annotation).collect();
        if bytes == 0 {
            assert_eq!(kept, [] as [Vec<String>; 0]);
        } else {
            assert_eq!(kept, [["message 21", "message 22", "message 23", "message 24"]]);
        }
        program.stop().await;
    }
}
