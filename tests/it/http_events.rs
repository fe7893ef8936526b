//! POST, GET and LIST of valid events: answers, outcomes, warnings.

use std::time::Duration;

use eventweir::event::{Event, EventSource, MicroTime};
use eventweir::outbox::{DIGEST_REASON, LostReason};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::app::{start, start_before};
use super::support::events::{START, event, plain, warning};
use super::support::fake::FakeApiserver;
use super::support::http::{EVENTS, json as json_of};

fn count(event: &Event) -> i32 {
    event.count
}

#[tokio::test]
async fn an_event_is_answered_as_stored_and_its_repeats_are_counted() {
    let program = start("").await;
    let client = &mut program.client().await;
    let first = plain();
    let reply = client.post(&first).await;
    assert_eq!((reply.status, reply.outcome()), (201, Some("created")));
    let told = reply.json();
    assert_eq!((&told["kind"], &told["apiVersion"]), (&json!("Event"), &json!("v1")));
    assert_eq!(told["metadata"]["name"], first.metadata.name.as_str());
    assert_eq!(told["count"], 1);
    for _ in 0..4 {
        let reply = client.post(&plain()).await;
        assert_eq!((reply.status, reply.outcome()), (201, Some("counted")));
        assert_eq!(reply.json()["count"], 1, "each client is told of its own event");
    }
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!(stored.iter().map(count).collect::<Vec<_>>(), [5]);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_written()), (5, 5));
}

#[tokio::test]
async fn similar_events_are_combined() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut outcomes = Vec::new();
    for number in 0..15 {
        let reply = client.post(&event("node-1", "web-0", "Failed", &format!("attempt {number}"))).await;
        outcomes.push(reply.outcome().unwrap_or_default().to_owned());
    }
    assert_eq!(outcomes.iter().filter(|outcome| *outcome == "combined").count(), 6);
    program.settle().await;
    let stored = program.stored().await;
    let combined: Vec<_> = stored.iter().filter(|event| event.message.starts_with("(combined from")).collect();
    assert_eq!((combined.len(), combined[0].count, stored.len()), (1, 6, 10));
    assert!(combined[0].message.ends_with("attempt 14"));
    program.stop().await;
}

/// Python's client cannot read a list of events.k8s.io in which an event has no eventTime.
#[tokio::test]
async fn a_list_of_new_style_events_contains_new_style_combined_records_and_digests() {
    let program = start("outbox: {digest: {after: 3}}\n").await;
    let client = &mut program.client().await;
    let mut new_style = event("", "web-0", "Failed", "");
    new_style.event_time = Some(MicroTime(START / 1000));
    (new_style.first_timestamp, new_style.last_timestamp, new_style.count) = (None, None, 0);
    new_style.source = EventSource::default();
    new_style.reporting_controller = "example.com/job".into();
    new_style.reporting_instance = "job-0".into();
    new_style.action = "Run".into();
    for number in 0..60 {
        new_style.metadata.name = format!("a{number}").into();
        new_style.message = format!("attempt {number} {}", "x".repeat(1000)).into();
        new_style.reason = if number < 20 { "Failed".into() } else { format!("Reason{number}").into() };
        assert_eq!(client.post(&new_style).await.status, 201);
    }
    program.settle().await;
    let stored = program.stored().await;
    for reason in [DIGEST_REASON, "Failed"] {
        let folded: Vec<_> = stored.iter().filter(|event| event.reason == reason && event.count > 1).collect();
        assert_eq!(folded.len(), 1, "{reason}");
        assert_eq!(folded[0].reporting_controller, "example.com/job");
    }
    let list = client.get("/apis/events.k8s.io/v1/namespaces/shop/events").await.json();
    for event in list["items"].as_array().unwrap() {
        assert!(event["eventTime"].is_string() && event["action"].is_string(), "{event}");
        assert!(event["note"].as_str().unwrap().len() <= 1024);
    }
    program.stop().await;
}

/// kubectl reads the namespace of an event after a 404.
#[tokio::test]
async fn a_namespace_is_shown_if_the_store_has_it() {
    let yaml = "upstream: {embedded: {namespaces: [shop]}}\n";
    let fake = FakeApiserver::manual();
    let programs = [(start(yaml).await, [200, 404]), (start_before(&fake, "").await, [403, 403])];
    for (program, codes) in programs {
        let client = &mut program.client().await;
        for (name, code) in ["shop", "nowhere"].into_iter().zip(codes) {
            let reply = client.get(&format!("/api/v1/namespaces/{name}")).await;
            assert_eq!(reply.status, code);
            let shown = reply.json();
            let told = if code == 200 { &shown["metadata"]["name"] } else { &shown["details"]["name"] };
            assert_eq!(told, name, "{shown}");
        }
        program.stop().await;
    }
}

#[tokio::test]
async fn without_a_token_an_event_is_deferred_or_dropped_as_configured() {
    for (suppression, outcome, lost) in [("defer", "deferred", 0), ("drop", "dropped", 3)] {
        let program = start(&format!("correlation: {{burstSize: 2, qps: 0, suppression: {suppression}}}\n")).await;
        let client = &mut program.client().await;
        for number in 0..5 {
            let reply = client.post(&event("node-1", "web-0", &format!("Reason{number}"), "m")).await;
            assert_eq!((reply.status, reply.outcome()), (201, Some(if number < 2 { "created" } else { outcome })));
            program.until("paid writes are made", || program.balance().waiting[0] == 0 && !turns(&program)).await;
        }
        assert_eq!(program.stored().await.len(), 2);
        let ledger = program.stop().await.ledger;
        assert_eq!((ledger.lost(LostReason::Suppressed), ledger.total_written()), (lost, 5 - lost));
    }
}

/// Whether a record waits only for its turn.
fn turns(program: &super::support::app::Program) -> bool {
    program.balance().waiting[eventweir::outbox::Why::Turn as usize] > 0
}

#[tokio::test]
async fn unknown_and_duplicate_fields_warn_are_ignored_or_refused() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut body: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    body["colour"] = json!("red");
    body["metadata"]["extra"] = json!(1);
    let body = body.to_string();
    let mut send = async |query: &str| {
        let path = format!("{EVENTS}{query}");
        client.send("POST", &path, &[("Content-Type", "application/json")], body.as_bytes()).await
    };
    for query in ["", "?fieldValidation=Warn", "?fieldValidation="] {
        let reply = send(query).await;
        assert_eq!(reply.status, 201);
        let mut warnings: Vec<_> = reply.headers("Warning").collect();
        warnings.sort_unstable();
        assert_eq!(warnings, [r#"299 - "unknown field \"colour\"""#, r#"299 - "unknown field \"metadata.extra\"""#]);
    }
    let reply = send("?fieldValidation=Ignore").await;
    assert_eq!((reply.status, reply.header("Warning")), (201, None));
    let reply = send("?fieldValidation=Strict").await;
    assert_eq!(reply.status, 400);
    assert!(reply.json()["message"].as_str().unwrap().contains("strict decoding error: unknown field"));
    program.settle().await;
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_written(), ledger.total_rejected()), (5, 4, 1));
}

/// Fault: a body with many unknown members caused headers without limit, which proxies refuse.
#[tokio::test]
async fn warnings_have_a_limit() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut body: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    for number in 0..1_000 {
        body[format!("{number:x<300}")] = json!(1);
    }
    let headers = [("Content-Type", "application/json")];
    let reply = client.send("POST", EVENTS, &headers, body.to_string().as_bytes()).await;
    let warnings: Vec<_> = reply.headers("Warning").map(str::len).collect();
    // 256 letters each, in quotes, with one escaped letter.
    assert_eq!((reply.status, warnings), (201, vec![256 + r#"299 - "\""#.len(); 16]));
    program.settle().await;
    assert_eq!(program.stop().await.ledger.total_written(), 1);
}

#[tokio::test]
async fn a_dry_run_is_answered_and_leaves_no_trace() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let reply = client.post_with(&event, "?dryRun=All").await;
    assert_eq!((reply.status, reply.outcome()), (201, None));
    assert_eq!(reply.json()["metadata"]["name"], event.metadata.name.as_str());
    assert_eq!(client.get(&format!("{EVENTS}/{}", event.metadata.name)).await.status, 404);
    assert_eq!(program.balance().ledger.received(), 0);
    assert_eq!(program.stop().await.ledger.total_written(), 0);
}

#[tokio::test]
async fn lists_show_the_records_of_the_upstream() {
    let program = start("").await;
    let client = &mut program.client().await;
    for object in 0..5 {
        client.post(&event("node-1", &format!("web-{object}"), "Pulled", "pulled")).await;
    }
    client.post(&warning("node-1", "web-0", "Failed", "failed")).await;
    program.settle().await;
    let all = client.get("/api/v1/events").await.json();
    assert_eq!((&all["kind"], all["items"].as_array().unwrap().len()), (&json!("EventList"), 6));
    let warnings = client.get(&format!("{EVENTS}?fieldSelector=type%3DWarning")).await.json();
    assert_eq!(warnings["items"].as_array().unwrap().len(), 1);
    let page = client.get(&format!("{EVENTS}?limit=4")).await.json();
    let token = page["metadata"]["continue"].as_str().unwrap().to_owned();
    assert_eq!((page["items"].as_array().unwrap().len(), &page["metadata"]["remainingItemCount"]), (4, &json!(2)));
    let rest = client.get(&format!("{EVENTS}?limit=4&continue={token}")).await.json();
    assert_eq!(rest["items"].as_array().unwrap().len(), 2);
    let empty = client.get("/api/v1/namespaces/nowhere/events").await.json();
    assert_eq!(empty["items"], json!([]));
    for (query, code) in [("?fieldSelector=colour%3Dred", 400), ("?limit=x", 400)] {
        assert_eq!(client.get(&format!("{EVENTS}{query}")).await.status, code, "{query}");
    }
    let reply = client.send("GET", EVENTS, &[("Accept", "text/html")], b"").await;
    assert_eq!(reply.status, 406);
    program.stop().await;
}

#[tokio::test]
async fn a_get_shows_pending_occurrences() {
    let program = start("outbox: {coalesceInterval: 1h}\n").await;
    let client = &mut program.client().await;
    let first = plain();
    let path = format!("{EVENTS}/{}", first.metadata.name);
    client.post(&first).await;
    program.until("it is written", || program.balance().ledger.total_written() == 1).await;
    for _ in 0..2 {
        client.post(&plain()).await;
    }
    assert_eq!(program.stored().await[0].count, 1);
    let shown = client.get(&path).await.json();
    assert_eq!((&shown["count"], &shown["metadata"]["name"]), (&json!(3), &json!(first.metadata.name.as_str())));
    program.clock.advance(Duration::from_secs(3_600));
    program.settle().await;
    assert_eq!(program.stored().await[0].count, 3);
    program.stop().await;
}

/// Its name may be taken upstream by an event of another kind, until eventweir finds that and takes another name.
#[tokio::test]
async fn a_get_shows_an_event_that_is_not_stored_and_not_another_one_of_its_name() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "correlation: {burstSize: 0, qps: 0}\n").await;
    let client = &mut program.client().await;
    let mut other = event("node-2", "db-0", "Pulled", "pulled");
    other.metadata.name = "a".into();
    assert!(fake.create(other));
    let mut first = plain();
    first.metadata.name = "a".into();
    for _ in 0..2 {
        assert_eq!(client.post(&first).await.outcome(), Some("deferred"));
    }
    let shown = client.get(&format!("{EVENTS}/a")).await.json();
    let members = [&shown["involvedObject"]["name"], &shown["message"], &shown["metadata"]["resourceVersion"]];
    assert_eq!((members, &shown["count"]), ([&json!("web-0"), &json!("restarting"), &Value::Null], &json!(2)));
    let balance = program.stop().await;
    assert_eq!((balance.ledger.total_written(), fake.events().len()), (2, 2));
}

/// Fault: a refused dry run counted as a received and rejected occurrence.
#[tokio::test]
async fn a_refused_dry_run_leaves_no_trace() {
    let program = start("").await;
    let client = &mut program.client().await;
    let invalid = Event { event_type: "Odd".into(), event_time: Some(MicroTime(1)), ..plain() };
    assert_eq!(client.post_with(&invalid, "?dryRun=All").await.status, 422);
    let headers = [("Content-Type", "application/json")];
    assert_eq!(client.send("POST", &format!("{EVENTS}?dryRun=All"), &headers, b"{").await.status, 400);
    assert_eq!(client.send("PATCH", &format!("{EVENTS}/a?dryRun=All"), &headers, b"{}").await.status, 415);
    assert_eq!(program.balance().ledger.received(), 0);
    let explained = client.get("/eventweir/v1/explain?object=Pod/web-0&namespace=shop").await.text();
    assert!(!explained.contains("rejected"), "{explained}");
    // Any other one counts.
    assert_eq!(client.post(&invalid).await.status, 422);
    assert_eq!(client.send("PATCH", &format!("{EVENTS}/a"), &headers, b"{}").await.status, 415);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_rejected()), (2, 2));
}

/// Fault: a watch of one event dropped all terms of the selector but the name.
#[tokio::test]
async fn a_watch_of_one_event_keeps_its_selector() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let name = &event.metadata.name;
    client.post(&event).await;
    program.settle().await;
    for (kind, frames) in [("Normal", 1), ("Warning", 0)] {
        let selector = format!("fieldSelector=metadata.name%3D{name},type%3D{kind}");
        let path = format!("/api/v1/watch/namespaces/shop/events/{name}?{selector}");
        let mut stream = TcpStream::connect(program.app.address()).await.unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut shown, mut part) = (Vec::new(), [0; 4096]);
        while let Ok(read) = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut part)).await {
            shown.extend_from_slice(&part[..read.unwrap()]);
        }
        let shown = String::from_utf8(shown).unwrap();
        assert!(shown.starts_with("HTTP/1.1 200"), "{shown}");
        assert_eq!(shown.matches("\"type\":\"ADDED\"").count(), frames, "{shown}");
    }
    let other = format!("/api/v1/watch/namespaces/shop/events/{name}?fieldSelector=type%3DNormal");
    assert_eq!(client.get(&other).await.status, 400);
    program.stop().await;
}
