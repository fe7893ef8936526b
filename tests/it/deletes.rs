//! DELETE of events and collections under their clients' names.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::future::pending;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::Request;
use axum::response::IntoResponse;
use eventweir::clock::Clock;
use eventweir::event::ApiGroup;
use eventweir::event::json::{self, EventList};
use eventweir::event::{Event, ObjectMeta};
use eventweir::ledger::{Balance, Why};
use eventweir::outbox::LostReason;
use eventweir::status::Status;
use http::Method;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::support::app::{Program, start, start_before, start_with_kubeconfig};
use super::support::behind::{Behind, answer};
use super::support::events::{START, event, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::{EVENTS, json as json_of};

fn deleted(balance: &Balance) -> u64 {
    balance.ledger.lost(LostReason::Deleted)
}

#[tokio::test]
async fn a_delete_removes_both_records_of_a_changed_message() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let path = format!("{EVENTS}/{}", event.metadata.name);
    client.post(&event).await;
    program.settle().await;
    let reply = client.patch(&event.metadata.name, &json!({"count": 2, "message": "another"})).await;
    assert_eq!(reply.status, 200);
    program.settle().await;
    assert_eq!(program.stored().await.len(), 2);
    // Occurrences that wait for the former record are lost with it.
    client.post(&plain()).await;
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    assert_eq!(client.get(&path).await.status, 404);
    assert!(program.stored().await.is_empty());
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 404);
    program.settle().await;
    assert!(program.stored().await.is_empty());
    // Both counts begin again.
    client.post(&event).await;
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count), (1, 1));
    let balance = program.stop().await;
    let told = balance.ledger.total_written() + deleted(&balance);
    assert_eq!((balance.ledger.received(), told), (4, 4));
}

#[tokio::test]
async fn a_delete_removes_a_foreign_record_of_the_name_too() {
    let program = start("").await;
    let mut stranger = plain();
    stranger.reason = "Strange".into();
    let path = format!("{EVENTS}/{}", stranger.metadata.name);
    let headers = [("Content-Type", "application/json")];
    assert_eq!(program.client().await.send("PUT", &path, &headers, &json_of(&stranger)).await.status, 201);
    let client = &mut program.client().await;
    let mut mine = plain();
    mine.metadata.name = stranger.metadata.name.clone();
    client.post(&mine).await;
    program.settle().await;
    assert_eq!(program.stored().await.len(), 2);
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    assert_eq!(program.stored().await, []);
    program.stop().await;
}

/// A name that two occurrences have used, and whose alias leads to a record that was deleted under its own name.
async fn name_with_a_dead_alias(program: &Program) -> (Event, String) {
    let client = &mut program.client().await;
    let (first, other) = (plain(), event("node-1", "web-1", "BackOff", "restarting"));
    client.post(&first).await;
    client.post(&first).await;
    client.post(&other).await;
    let name = first.metadata.name.clone();
    let same_as_other =
        Event { metadata: ObjectMeta { name: name.clone(), ..other.metadata.clone() }, ..other.clone() };
    client.post(&same_as_other).await;
    program.settle().await;
    assert_eq!(program.stored().await.len(), 2);
    let path = format!("{EVENTS}/{}", other.metadata.name);
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    (plain(), format!("{EVENTS}/{name}"))
}

/// Fault: the name of an event whose key was evicted led to the combined record of its group, which a DELETE deleted.
/// After the group's window, the name of a combined event led nowhere.
#[tokio::test]
async fn the_name_of_an_event_leads_to_a_combined_record_only_if_that_counts_the_event() {
    for is_over in [false, true] {
        let program = start("correlation: {maxEvents: 2, lruCacheSize: 1}\n").await;
        let client = &mut program.client().await;
        let [own, combined] = ["restarting", "failing"].map(|message| event("node-1", "web-0", "BackOff", message));
        let path = |event: &Event| format!("{EVENTS}/{}", event.metadata.name);
        client.post(&own).await;
        client.post(&combined).await;
        program.settle().await;
        assert_eq!(program.stored().await.len(), 2);
        if is_over {
            program.clock.advance(Duration::from_secs(601));
        }
        assert_eq!(client.get(&path(&own)).await.json()["message"], "restarting", "{is_over}");
        assert_eq!(client.send("DELETE", &path(&own), &[], b"").await.status, 200);
        let stored = program.stored().await;
        assert!(stored.len() == 1 && stored[0].message.ends_with("failing"), "{is_over}: {stored:?}");
        let shown = client.get(&path(&combined)).await.json();
        assert_eq!(
            (&shown["metadata"]["name"], &shown["message"]),
            (&json!(combined.metadata.name.as_str()), &json!(stored[0].message.as_str())),
            "{is_over}"
        );
        // Fault: a dry run asked for an event of the name itself.
        let dry = format!("{}?dryRun=All", path(&combined));
        for delete in [&dry, &path(&combined)] {
            assert_eq!(client.send("DELETE", delete, &[], b"").await.status, 200, "{is_over} {delete}");
        }
        assert_eq!(program.stored().await, []);
        program.stop().await;
    }
}

/// Fault: the record was created again with its whole count.
#[tokio::test]
async fn a_delete_by_a_dead_alias_forgets_the_record_of_the_name() {
    let program = start("").await;
    let (again, path) = name_with_a_dead_alias(&program).await;
    let client = &mut program.client().await;
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    assert!(program.stored().await.is_empty());
    client.post(&again).await;
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count), (1, 1));
    program.stop().await;
}

/// Fault: the next write undid the PUT.
#[tokio::test]
async fn a_put_by_a_dead_alias_changes_the_record_of_the_name() {
    let program = start("").await;
    let (again, path) = name_with_a_dead_alias(&program).await;
    let client = &mut program.client().await;
    let stored = program.stored().await.remove(0);
    let headers = [("Content-Type", "application/json")];
    let put = Event { count: 100, ..stored };
    assert_eq!(client.send("PUT", &path, &headers, &json_of(&put)).await.status, 200);
    client.post(&again).await;
    program.settle().await;
    assert_eq!(program.stored().await[0].count, 101);
    program.stop().await;
}

/// Fault: the record was created again with its whole count.
#[tokio::test(start_paused = true)]
async fn after_a_delete_with_a_lost_answer_the_count_begins_again() {
    for fault in [Fault::After(500), Fault::After(504), Fault::Before(503)] {
        let fake = FakeApiserver::new(Clock::simulated(START));
        let program = start_before(&fake, "").await;
        let client = &mut program.client().await;
        let event = plain();
        let path = format!("{EVENTS}/{}", event.metadata.name);
        for _ in 0..5 {
            client.post(&event).await;
        }
        program.settle().await;
        // The fault meets the DELETE after its GET.
        fake.fail_next(&[Fault::None, fault]);
        let code = client.send("DELETE", &path, &[], b"").await.status;
        assert!(code >= 500, "{code}");
        client.post(&event).await;
        program.settle().await;
        let shown = if fault == Fault::Before(503) { 6 } else { 1 };
        assert_eq!(fake.shown(), shown, "{fault:?}");
        program.stop().await;
    }
}

/// Fault: it restored the event.
#[tokio::test(start_paused = true)]
async fn a_late_create_is_deleted_after_a_delete_with_a_lost_answer() {
    let fake = FakeApiserver::new(Clock::simulated(START));
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    let event = plain();
    fake.fail_next(&[Fault::LateAfter(40)]);
    client.post(&event).await;
    program.until("it is written", || program.balance().ledger.total_written() == 1).await;
    fake.fail_next(&[Fault::None, Fault::After(500)]);
    assert_eq!(client.send("DELETE", &format!("{EVENTS}/{}", event.metadata.name), &[], b"").await.status, 500);
    assert_eq!(fake.shown(), 0);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(fake.shown(), 0);
    program.stop().await;
}

/// Fault: what was deleted included the later occurrence, which counted as written.
#[tokio::test(start_paused = true)]
async fn a_late_create_of_a_deleted_event_stays_if_others_count_on_it() {
    let fake = FakeApiserver::new(Clock::simulated(START));
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    let event = plain();
    fake.fail_next(&[Fault::LateAfter(20), Fault::TooMany(Some(30))]);
    client.post(&event).await;
    tokio::time::sleep(Duration::from_secs(12)).await;
    let code = client.send("DELETE", &format!("{EVENTS}/{}", event.metadata.name), &[], b"").await.status;
    assert!(code < 500, "{code}");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(fake.shown(), 1, "executed late");
    client.post(&event).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!((fake.shown(), program.balance().ledger.total_written()), (2, 1));
    program.stop().await;
}

/// Fault: a change went on as if the name were free, and might have reached another record's event.
#[tokio::test]
async fn a_change_of_a_record_that_cannot_be_read_is_refused_with_the_upstreams_answer() {
    let (fake, program, event) = written("").await;
    let client = &mut program.client().await;
    let path = format!("{EVENTS}/{}", event.metadata.name);
    let headers = [("Content-Type", "application/merge-patch+json")];
    for (method, body) in [("DELETE", ""), ("PATCH", r#"{"metadata":{"labels":{"a":"b"}}}"#)] {
        fake.fail_next(&[Fault::Before(503)]);
        assert_eq!(client.send(method, &path, &headers, body.as_bytes()).await.status, 503, "{method}");
    }
    client.post(&event).await;
    program.settle().await;
    let stored = fake.events();
    assert_eq!((stored.len(), stored[0].count), (1, 2));
    program.stop().await;
}

/// Fault: a PATCH of the name was still answered with 200.
/// Fault: its client took the API server's 401 to eventweir's token for a refusal of its own.
#[tokio::test]
async fn a_refusal_of_eventweirs_own_credentials_is_no_refusal_of_the_client() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    fake.plan(|_| Fault::Before(401));
    for (method, path) in
        [("GET", format!("{EVENTS}/a")), ("GET", EVENTS.to_owned()), ("DELETE", format!("{EVENTS}/a"))]
    {
        let reply = client.send(method, &path, &[], b"").await;
        assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{method} {path}");
        let status = reply.json();
        assert!(status["message"].as_str().unwrap().contains("eventweir's own credentials"), "{status}");
    }
    program.stop().await;
}

#[tokio::test]
async fn a_name_without_an_event_is_forgotten_by_its_delete() {
    let program = start("").await;
    let client = &mut program.client().await;
    let (first, again) = (plain(), plain());
    client.post(&first).await;
    client.post(&again).await;
    program.settle().await;
    let path = |event: &Event| format!("{EVENTS}/{}", event.metadata.name);
    // Both names lead to the record of the first one.
    assert_eq!(client.send("DELETE", &path(&first), &[], b"").await.status, 200);
    assert_eq!(client.send("DELETE", &path(&again), &[], b"").await.status, 404);
    assert_eq!(client.patch(&again.metadata.name, &json!({ "count": 2 })).await.status, 404);
    program.stop().await;
}

/// A program whose API server has stored one event.
async fn written(yaml: &str) -> (FakeApiserver, Program, Event) {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, yaml).await;
    let first = plain();
    program.client().await.post(&first).await;
    program.until("it is written", || fake.shown() == 1).await;
    (fake, program, first)
}

/// The name of `web-0`'s stored event, under which one of `web-1` waits for its next try.
async fn taken_name() -> (FakeApiserver, Program, Event) {
    let (fake, program, first) = written("outbox: {coalesceInterval: 1m}\n").await;
    let client = &mut program.client().await;
    fake.fail_next(&[Fault::Before(500)]);
    let mut second = event("node-1", "web-1", "BackOff", "restarting");
    second.metadata.name = first.metadata.name;
    client.post(&second).await;
    program.until("it waits", || program.balance().waiting[Why::Retry as usize] == 1).await;
    (fake, program, second)
}

/// Fault: the other record was deleted instead.
#[tokio::test]
async fn a_delete_of_a_waiting_record_keeps_another_one_that_has_its_name() {
    let (fake, program, waiting) = taken_name().await;
    let client = &mut program.client().await;
    let alias = Event { metadata: plain().metadata, ..waiting };
    client.post(&alias).await;
    assert_eq!(client.send("DELETE", &format!("{EVENTS}/{}", alias.metadata.name), &[], b"").await.status, 200);
    assert_eq!(fake.shown(), 1);
    client.post(&plain()).await;
    program.settle().await;
    let stored = fake.events();
    assert_eq!((stored.len(), stored[0].involved_object.name.as_str(), stored[0].count), (1, "web-0", 2));
    assert_eq!(deleted(&program.stop().await), 2);
}

/// Fault: the stored record was deleted but not forgotten, and its next write created it again.
#[tokio::test]
async fn a_delete_of_a_name_forgets_its_stored_and_its_waiting_record() {
    let (fake, program, waiting) = taken_name().await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    let path = format!("{EVENTS}/{}", waiting.metadata.name);
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    program.settle().await;
    assert_eq!(fake.events(), []);
    assert_eq!(deleted(&program.stop().await), 2);
}

/// Fault: GET showed the waiting count on the other record's members, and PUT and PATCH changed that record.
#[tokio::test]
async fn a_waiting_record_cannot_be_changed_while_another_one_has_its_name() {
    let (fake, program, waiting) = taken_name().await;
    let client = &mut program.client().await;
    let path = format!("{EVENTS}/{}", waiting.metadata.name);
    let mut shown = client.get(&path).await.json();
    assert_eq!(shown["involvedObject"]["name"], "web-1");
    shown["count"] = json!(7);
    let headers = [("Content-Type", "application/json")];
    let put = shown.to_string();
    assert_eq!(client.send("PUT", &path, &headers, put.as_bytes()).await.status, 409);
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    assert_eq!(client.patch(&waiting.metadata.name, &label).await.status, 409);
    program.settle().await;
    let counts = |fake: &FakeApiserver| {
        fake.events().iter().map(|event| (event.involved_object.name.to_string(), event.count)).collect::<Vec<_>>()
    };
    assert_eq!(counts(&fake), [("web-0".to_owned(), 1), ("web-1".to_owned(), 1)]);
    // Under a name of its own it can.
    assert_eq!(client.send("PUT", &path, &headers, put.as_bytes()).await.status, 200);
    assert_eq!(counts(&fake), [("web-0".to_owned(), 1), ("web-1".to_owned(), 7)]);
    program.stop().await;
}

/// Fault: it was created again under another name. With plain writes, the other event got its count.
#[tokio::test]
async fn a_record_in_doubt_about_its_delete_is_forgotten_if_its_name_is_used_again() {
    for (writes, waiting) in [("exact", 0), ("exact", 2), ("plain", 2)] {
        let yaml = format!("outbox: {{coalesceInterval: 1m}}\nupstream: {{writes: {writes}}}\n");
        let (fake, program, first) = written(&yaml).await;
        let client = &mut program.client().await;
        for _ in 0..waiting {
            client.post(&first).await;
        }
        fake.fail_next(&[Fault::None, Fault::After(500)]);
        assert_eq!(client.send("DELETE", &format!("{EVENTS}/{}", first.metadata.name), &[], b"").await.status, 500);
        // The record is read at its next write.
        let mut other = event("node-1", "web-1", "BackOff", "restarting");
        other.metadata.name = first.metadata.name;
        client.post(&other).await;
        program.settle().await;
        let stored = fake.events();
        assert_eq!((stored.len(), stored[0].involved_object.name.as_str(), stored[0].count), (1, "web-1", 1));
        assert_eq!(deleted(&program.stop().await), waiting);
    }
}

/// Fault: the read was refused for a moment, and the deleted event was created again with its whole count.
#[tokio::test]
async fn a_record_in_doubt_about_its_delete_stays_deleted_if_it_may_not_be_read_at_once() {
    let (fake, program, first) = written("outbox: {coalesceInterval: 1m}\n").await;
    let client = &mut program.client().await;
    client.post(&first).await;
    fake.fail_next(&[Fault::None, Fault::After(500), Fault::Before(403)]);
    assert_eq!(client.send("DELETE", &format!("{EVENTS}/{}", first.metadata.name), &[], b"").await.status, 500);
    program.settle().await;
    assert_eq!(fake.events(), []);
    assert_eq!(deleted(&program.stop().await), 1);
}

#[tokio::test]
async fn a_deletecollection_keeps_records_that_its_selector_does_not_match() {
    let program = start("").await;
    let client = &mut program.client().await;
    let event = plain();
    let name = event.metadata.name.as_str();
    client.post(&event).await;
    program.settle().await;
    client.patch(name, &json!({"count": 2, "message": "another"})).await;
    program.settle().await;
    // The alias leads to the other record, which stays and counts on.
    let path = format!("{EVENTS}?fieldSelector=metadata.name%3D{name}");
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    let mut again = plain();
    again.message = "another".into();
    client.post(&again).await;
    program.settle().await;
    let stored = program.stored().await;
    assert_eq!((stored.len(), stored[0].count, stored[0].message.as_str()), (1, 2, "another"));
    let balance = program.stop().await;
    assert_eq!(deleted(&balance), 0);
}

/// Returns the counts of stored events after a deletecollection that fails, and one more occurrence of one of them.
async fn counts_after_a_deletion_with(fault: Fault) -> Vec<i32> {
    let (fake, program, first) = written("outbox: {coalesceInterval: 1m}\n").await;
    let client = &mut program.client().await;
    let other = event("node-1", "web-1", "BackOff", "restarting");
    client.post(&other).await;
    program.until("it is written", || fake.shown() == 2).await;
    client.post(&first).await;
    fake.plan(move |seen| if seen.method == "DELETE" { fault } else { Fault::None });
    let reply = client.send("DELETE", EVENTS, &[], b"").await;
    assert!(reply.status >= 400, "{}", reply.text());
    client.post(&other).await;
    program.settle().await;
    program.stop().await;
    fake.events().iter().map(|event| event.count).collect()
}

/// Fault: the deleted events were created again with their whole counts.
#[tokio::test]
async fn a_deletecollection_that_fails_restores_nothing_that_it_has_deleted() {
    for fault in [Fault::After(500), Fault::After(409), Fault::ResetAfter, Fault::GarbledAfter] {
        assert_eq!(counts_after_a_deletion_with(fault).await, [1], "{fault:?}");
    }
    assert_eq!(counts_after_a_deletion_with(Fault::Before(403)).await, [2, 2], "refused");
}

/// Fault: a deletion that took longer than `upstream.timeout`, or had a long answer, was cut off.
#[tokio::test]
async fn a_deletecollection_asks_for_pages_and_ends_at_its_clients_limit() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    for number in 0..900 {
        let mut event = plain();
        event.metadata.name = format!("e-{number:03}").into();
        assert!(fake.create(event));
    }
    for (query, requests, deleted, is_more) in
        [("?limit=150", 1, 150, true), ("?limit=250", 2, 250, true), ("", 3, 500, false)]
    {
        fake.take_methods();
        let reply = client.send("DELETE", &format!("{EVENTS}{query}"), &[], b"").await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        let list = reply.json();
        assert_eq!(fake.take_methods().iter().filter(|method| *method == "DELETE").count(), requests);
        assert_eq!(list["items"].as_array().unwrap().len(), deleted);
        assert_eq!(list["metadata"]["continue"].is_string(), is_more);
    }
    assert_eq!(fake.all(), []);
    // A slow one ends, and says so.
    for number in 0..400 {
        let mut event = plain();
        event.metadata.name = format!("e-{number:03}").into();
        assert!(fake.create(event));
    }
    let clock = fake.clock();
    fake.plan(move |_| {
        clock.advance(Duration::from_secs(30));
        Fault::None
    });
    let reply = client.send("DELETE", EVENTS, &[], b"").await;
    assert_eq!((reply.status, fake.all().len()), (504, 200), "{}", reply.text());
    program.stop().await;
}

/// Fault: four long ones kept the turns of all lists to their ends.
#[tokio::test]
async fn a_list_is_answered_between_the_pages_of_deletecollections() {
    let (at_page, may_delete) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let left = Arc::new(AtomicUsize::new(400));
    let behind = {
        let (at_page, may_delete, left) = (Arc::clone(&at_page), Arc::clone(&may_delete), Arc::clone(&left));
        Behind::plain(move |request| {
            let (at_page, may_delete, left) = (Arc::clone(&at_page), Arc::clone(&may_delete), Arc::clone(&left));
            async move {
                let is_delete = request.method() == Method::DELETE;
                if is_delete {
                    at_page.add_permits(1);
                    may_delete.acquire().await.unwrap().forget();
                }
                let is_last = !is_delete || left.fetch_sub(1, Ordering::Relaxed) <= 4;
                let next = if is_last { "" } else { "next" };
                let list = json!({"kind": "EventList", "apiVersion": "v1", "items": [],
                    "metadata": {"resourceVersion": "9", "continue": next}});
                answer(200, list.to_string())
            }
        })
        .await
    };
    let program = start_with_server(&format!("http://{}", behind.address), "upstream: {history: off}\n").await;
    let mut deleting = JoinSet::new();
    for _ in 0..4 {
        let mut client = program.client().await;
        deleting.spawn(async move { client.send("DELETE", EVENTS, &[], b"").await.status });
    }
    // All four are in a page.
    at_page.acquire_many(4).await.unwrap().forget();
    let mut client = program.client().await;
    let mut listing = std::pin::pin!(client.get(EVENTS));
    let listed = loop {
        may_delete.add_permits(1);
        tokio::select! {
            reply = &mut listing => break reply.status,
            page = at_page.acquire() => page.unwrap().forget(),
        }
    };
    assert_eq!((listed, deleting.try_join_next().is_none()), (200, true));
    left.store(4, Ordering::Relaxed);
    may_delete.add_permits(1000);
    assert_eq!(deleting.join_all().await, [200; 4]);
    program.stop().await;
}

/// Fault: the event of a list from before the DELETE was adopted, and the next occurrence restored its count.
#[tokio::test]
async fn a_list_from_before_a_delete_restores_no_count() {
    let mut stored = Event { count: 9, ..plain() };
    (stored.metadata.uid, stored.metadata.resource_version) = ("u-9".into(), "5".into());
    let path = format!("{EVENTS}/{}", stored.metadata.name);
    let document: Value = serde_json::from_slice(&json_of(&stored)).unwrap();
    let (may_list, posted) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let behind = {
        let (may_list, posted, path) = (Arc::clone(&may_list), Arc::clone(&posted), path.clone());
        Behind::plain(move |request| {
            let (may_list, posted, document) = (Arc::clone(&may_list), Arc::clone(&posted), document.clone());
            let is_named = request.uri().path() == path;
            async move {
                match *request.method() {
                    Method::GET if is_named => answer(200, document.to_string()),
                    Method::GET if request.uri().query().is_some_and(|query| query.contains("watch")) => {
                        pending().await
                    }
                    Method::GET => {
                        may_list.acquire().await.unwrap().forget();
                        let list = json!({"kind": "EventList", "apiVersion": "v1",
                            "metadata": {"resourceVersion": "9"}, "items": [document]});
                        answer(200, list.to_string())
                    }
                    Method::DELETE => {
                        let details = json!({"kind": "events", "uid": "u-9"});
                        let done =
                            json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "details": details});
                        answer(200, done.to_string())
                    }
                    Method::POST => {
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let mut event: Value = serde_json::from_slice(&body).unwrap();
                        posted.lock().push(event["count"].clone());
                        event["metadata"]["resourceVersion"] = "11".into();
                        answer(201, event.to_string())
                    }
                    _ => answer(404, Status::not_found("", "events", "a").to_json()),
                }
            }
        })
        .await
    };
    let program = start_with_server(&format!("http://{}", behind.address), "upstream: {history: watch}\n").await;
    let client = &mut program.client().await;
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    may_list.add_permits(1000);
    program.until_news("relist", 1.0).await;
    client.post(&plain()).await;
    program.until("it is written", || program.balance().ledger.total_written() == 1).await;
    assert_eq!(*posted.lock(), [1]);
    program.stop().await;
}

/// Starts a program with this server as its upstream.
async fn start_with_server(address: &str, yaml: &str) -> Program {
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let text = json!({
        "clusters": [{ "name": "c", "cluster": { "server": address } }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": {} }],
        "current-context": "x",
    });
    std::fs::write(&kubeconfig, text.to_string()).unwrap();
    start_with_kubeconfig(&kubeconfig, yaml).await
}

/// Starts an apiserver over TCP that deletes all events at once but delays the answer. `fake` answers all other
/// requests.
async fn serve(fake: FakeApiserver, has_deleted: Arc<Semaphore>, may_answer: Arc<Semaphore>) -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let handle = move |request: Request| {
        let (fake, has_deleted, may_answer) = (fake.clone(), Arc::clone(&has_deleted), Arc::clone(&may_answer));
        async move {
            let (head, body) = request.into_parts();
            if head.method == "DELETE" {
                let list = EventList { resource_version: "9".into(), items: fake.events(), ..EventList::default() };
                list.items.iter().for_each(|event| fake.delete(event));
                has_deleted.add_permits(1);
                let _permit = may_answer.acquire().await;
                let mut body = Vec::new();
                json::write_list(ApiGroup::Core, &list, &mut body);
                return body.into_response();
            }
            let body = body.collect().await.unwrap().to_bytes();
            fake.handle(http::Request::from_parts(head, body.to_vec().into())).await.unwrap().into_response()
        }
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, axum::Router::new().fallback(handle)).await.unwrap() });
    (address, tasks)
}

/// Fault: if the client disconnected early, the deleted records were kept in the outbox and written again.
/// Uses HTTP/2: over HTTP/1.1 a disconnected client looks like one that has closed its side and still reads.
#[tokio::test]
async fn a_deletecollection_is_completed_after_its_client_has_disconnected() {
    let (has_deleted, may_answer) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let fake = FakeApiserver::manual();
    let (address, _tasks) = serve(fake.clone(), Arc::clone(&has_deleted), Arc::clone(&may_answer)).await;
    let program = start_with_server(&address, "upstream: {history: off}\noutbox: {coalesceInterval: 1h}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    program.until("it is written", || fake.shown() == 1).await;
    client.post(&plain()).await;
    let stream = TokioIo::new(TcpStream::connect(program.app.address()).await.unwrap());
    let (mut impatient, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    let deletion = Request::delete(format!("http://localhost{EVENTS}")).body(Empty::<Bytes>::new()).unwrap();
    tokio::select! {
        reply = impatient.send_request(deletion) => panic!("answered: {reply:?}"),
        end = connection => panic!("disconnected: {end:?}"),
        permit = has_deleted.acquire() => permit.unwrap().forget(),
    }
    drop(impatient);
    program.until_metric("eventweir_ingest_connections", |open| open <= 1.0).await;
    may_answer.add_permits(1);
    program.until("it is forgotten", || deleted(&program.balance()) == 1).await;
    client.post(&plain()).await;
    program.settle().await;
    // A new record.
    assert_eq!(fake.shown(), 1);
    assert_eq!(program.stop().await.ledger.total_written(), 2);
}

/// Ends a program. The copy of its spool is as a crash would have left it.
async fn crash(program: Program, spool: &Path, copy: &Path) {
    std::fs::create_dir(copy).unwrap();
    std::fs::copy(spool.join("spool.redb"), copy.join("spool.redb")).unwrap();
    program.app.stop().await;
}

/// Returns a configuration with a spool that only a waiting client makes commit. Only the first occurrence has a token.
fn of_spool(dir: &Path) -> String {
    let spool = format!("spool: {{dir: {dir:?}, commitInterval: 1m}}\n");
    spool + "correlation: {burstSize: 1, qps: 0}\nshards: 1\nshutdown: {drainTimeout: 0s}\n"
}

#[tokio::test]
async fn no_crash_restores_a_deleted_record() {
    let folder = tempfile::tempdir().unwrap();
    for (round, path) in ["", "/owed"].into_iter().enumerate() {
        let (spool, copy) = (folder.path().join(format!("spool{round}")), folder.path().join(format!("copy{round}")));
        let program = start(&of_spool(&spool)).await;
        let client = &mut program.client().await;
        client.post(&plain()).await;
        program.until("it is written", || program.balance().ledger.total_written() == 1).await;
        // The collection needs a stored record to count on.
        let mut owed = if path.is_empty() { plain() } else { event("node-1", "web-0", "Other", "m") };
        owed.metadata.name = "owed".into();
        let headers = [("Content-Type", "application/json"), ("Eventweir-Ack", "durable")];
        assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&owed)).await.status, 201);
        assert_eq!(client.send("DELETE", &format!("{EVENTS}{path}"), &[], b"").await.status, 200);
        crash(program, &spool, &copy).await;
        let program = start(&of_spool(&copy)).await;
        assert_eq!(program.metrics().await["eventweir_spool_restored_occurrences_total"], 0.0, "{path}");
        program.stop().await;
    }
}

/// Fault: the next process added the occurrences that waited, although the count of the PUT included them.
#[tokio::test]
async fn no_crash_counts_again_what_a_put_has_included() {
    let folder = tempfile::tempdir().unwrap();
    // The second PUT leaves one occurrence waiting.
    for count in [3, 2] {
        let [spool, copy] = ["spool", "copy"].map(|name| folder.path().join(format!("{name}{count}")));
        let fake = FakeApiserver::manual();
        let program = start_before(&fake, &of_spool(&spool)).await;
        let client = &mut program.client().await;
        let first = plain();
        client.post(&first).await;
        program.until("it is written", || program.balance().ledger.total_written() == 1).await;
        let headers = [("Content-Type", "application/json"), ("Eventweir-Ack", "durable")];
        for _ in 0..2 {
            assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&first)).await.status, 201);
        }
        let path = format!("{EVENTS}/{}", first.metadata.name);
        let mut shown = client.get(&path).await.json();
        assert_eq!(shown["count"], 3);
        shown["count"] = json!(count);
        assert_eq!(client.send("PUT", &path, &headers[..1], shown.to_string().as_bytes()).await.status, 200);
        assert_eq!(fake.shown(), count);
        crash(program, &spool, &copy).await;
        let program = start_before(&fake, &of_spool(&copy)).await;
        program.settle().await;
        program.stop().await;
        assert_eq!(fake.shown(), 3, "{count}");
    }
}

/// Fault: the next process created the deleted event again, with all its occurrences.
#[tokio::test]
async fn no_crash_restores_a_record_whose_delete_got_no_answer() {
    let folder = tempfile::tempdir().unwrap();
    for fault in [Fault::After(500), Fault::Before(503)] {
        let [spool, copy] = ["spool", "copy"].map(|name| folder.path().join(format!("{name}{fault:?}")));
        let fake = FakeApiserver::manual();
        let program = start_before(&fake, &of_spool(&spool)).await;
        let client = &mut program.client().await;
        let first = plain();
        client.post(&first).await;
        program.until("it is written", || program.balance().ledger.total_written() == 1).await;
        let headers = [("Content-Type", "application/json"), ("Eventweir-Ack", "durable")];
        assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&first)).await.status, 201);
        // The read of what became of it needs a token too.
        fake.fail_next(&[Fault::None, fault]);
        let path = format!("{EVENTS}/{}", first.metadata.name);
        assert!(client.send("DELETE", &path, &[], b"").await.status >= 500);
        crash(program, &spool, &copy).await;
        let program = start_before(&fake, &of_spool(&copy)).await;
        program.client().await.post(&first).await;
        program.settle().await;
        program.stop().await;
        // Of the deleted event, only the occurrence after the DELETE is shown.
        let expected = if fault == Fault::After(500) { 1 } else { 3 };
        assert_eq!(fake.shown(), expected, "{fault:?}");
    }
}

/// Fault: the spool had nothing of the DELETE, so the next process created the deleted event again, with all its
/// occurrences.
#[tokio::test(start_paused = true)]
async fn no_crash_during_a_delete_restores_the_record() {
    let folder = tempfile::tempdir().unwrap();
    for (round, path) in ["", "/first"].into_iter().enumerate() {
        let [spool, copy] = ["spool", "copy"].map(|name| folder.path().join(format!("{name}{round}")));
        let fake = FakeApiserver::new(Clock::simulated(START));
        let program = start_before(&fake, &of_spool(&spool)).await;
        let client = &mut program.client().await;
        let mut first = plain();
        first.metadata.name = "first".into();
        client.post(&first).await;
        program.until("it is written", || program.balance().ledger.total_written() == 1).await;
        let headers = [("Content-Type", "application/json"), ("Eventweir-Ack", "durable")];
        assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&first)).await.status, 201);
        fake.plan(|seen| if seen.method == "DELETE" { Fault::HangAfter } else { Fault::None });
        let (mut deleting, mut other) = (JoinSet::new(), program.client().await);
        let path = format!("{EVENTS}{path}");
        deleting.spawn(async move { other.exchange("DELETE", &path, &[], b"").await.is_ok() });
        program.until("it is deleted", || fake.shown() == 0).await;
        // The commit of another event has the DELETE too.
        let another = event("node-2", "web-1", "Pulled", "pulled");
        assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&another)).await.status, 201);
        assert!(deleting.try_join_next().is_none(), "it is not answered");
        crash(program, &spool, &copy).await;
        let program = start_before(&fake, &of_spool(&copy)).await;
        program.settle().await;
        program.stop().await;
        let shown: Vec<_> = fake.events().iter().map(|event| event.reason.clone()).collect();
        assert_eq!(shown, ["Pulled"]);
    }
}

/// Fault: the last commit came before such a change had ended. The next process created the deleted event again, or added
/// the occurrences that the PUT included.
#[tokio::test(start_paused = true)]
async fn a_stop_commits_the_changes_that_are_answered_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    for (round, (method, changed, left)) in
        [("DELETE", "first", 0), ("DELETE", "owed", 1), ("PUT", "first", 3)].into_iter().enumerate()
    {
        let spool = folder.path().join(round.to_string());
        let fake = FakeApiserver::new(Clock::simulated(START));
        let program = start_before(&fake, &of_spool(&spool)).await;
        let client = &mut program.client().await;
        let mut first = plain();
        first.metadata.name = "first".into();
        client.post(&first).await;
        program.until("it is written", || program.balance().ledger.total_written() == 1).await;
        let mut owed = if changed == "first" { first } else { event("node-1", "web-0", "Other", "m") };
        owed.metadata.name = changed.into();
        let headers = [("Content-Type", "application/json"), ("Eventweir-Ack", "durable")];
        for _ in 0..2 {
            assert_eq!(client.send("POST", EVENTS, &headers, &json_of(&owed)).await.status, 201);
        }
        let path = format!("{EVENTS}/{changed}");
        let body = if method == "PUT" { client.get(&path).await.text() } else { String::new() };
        // It is answered after a second.
        let (has_arrived, arrives) = (Arc::new(Semaphore::new(0)), method);
        let arrived = Arc::clone(&has_arrived);
        fake.plan(move |seen| {
            let is_it = seen.method == arrives;
            arrived.add_permits(is_it.into());
            if is_it { Fault::Slow } else { Fault::None }
        });
        let stops = async {
            has_arrived.acquire().await.unwrap().forget();
            program.app.stop().await;
        };
        let (reply, ()) = tokio::join!(client.send(method, &path, &headers[..1], body.as_bytes()), stops);
        assert_eq!(reply.status, 200, "{method} {changed}");
        fake.plan(|_| Fault::None);
        let program = start_before(&fake, &of_spool(&spool)).await;
        program.settle().await;
        program.stop().await;
        assert_eq!(fake.shown(), left, "{method} {changed}");
    }
}
