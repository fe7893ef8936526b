//! `explain`, `top` and `tap` over the listener: situations in which an operator looks for an event.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use eventweir::event::{Event, Time};
use eventweir::outbox::Why;
use serde_json::{Value, json};

use super::support::app::{Program, start, start_before};
use super::support::events::{event, plain, warning};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::EVENTS;

async fn ask(program: &Program, query: &str) -> Value {
    let reply = program.client().await.get(&format!("/eventweir/v1/explain?{query}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.json()
}

/// Returns the first sentence about `pod/web-0`, after its code.
async fn told(program: &Program, query: &str) -> String {
    let document = ask(program, &format!("namespace=shop&{query}")).await;
    format!("{}: {}", document["answer"]["code"].as_str().unwrap(), document["answer"]["text"].as_str().unwrap())
}

/// Waits until all writes are made that need no later time.
async fn rest(program: &Program) {
    let is_still = || {
        let waiting = program.balance().waiting;
        waiting[Why::InFlight as usize] + waiting[Why::Turn as usize] == 0
    };
    program.until("writes are done", is_still).await;
}

fn cronjob(reason: &str, message: &str, wall: i64) -> Event {
    let mut event = event("", "hello", reason, message);
    (event.metadata.namespace, event.involved_object.namespace) = ("default".into(), "default".into());
    event.involved_object.kind = "CronJob".into();
    event.involved_object.api_version = "batch/v1".into();
    event.source.component = "cronjob-controller".into();
    event.first_timestamp = Some(Time::from_unix_nanos(wall));
    event.last_timestamp = event.first_timestamp;
    event
}

/// Runs an hour of a CronJob with one run per minute; ends half a minute after the last one.
async fn cronjob_hour(program: &Program) {
    let client = &mut program.client().await;
    for minute in 0..60 {
        let job = 100 + minute;
        for (second, reason, message) in [
            (0, "SuccessfulCreate", format!("Created job hello-{job}")),
            (7, "SawCompletedJob", format!("Saw completed job: hello-{job}, status: Complete")),
            (0, "SuccessfulDelete", format!("Deleted job hello-{}", job - 3)),
        ] {
            program.clock.advance(Duration::from_secs(second));
            let wall = program.clock.now().wall;
            assert_eq!(client.post(&cronjob(reason, &message, wall)).await.status, 201);
            rest(program).await;
        }
        program.clock.advance(Duration::from_secs(if minute == 59 { 23 } else { 53 }));
        rest(program).await;
    }
}

fn reason<'a>(document: &'a Value, reason: &str) -> &'a Value {
    document["objects"][0]["reasons"].as_array().unwrap().iter().find(|part| part["reason"] == reason).unwrap()
}

#[tokio::test]
async fn the_budget_is_named_as_the_reason_for_missing_completions() {
    let program = start("correlation: {suppression: drop}\n").await;
    cronjob_hour(&program).await;
    let document = ask(&program, "namespace=default&object=cronjob/hello&reason=SawCompletedJob").await;
    assert_eq!(document["answer"]["code"], "dropped-no-token");
    let text = document["answer"]["text"].as_str().unwrap();
    assert!(text.starts_with("9 of 60 occurrences are shown. 51 were dropped: the budget was empty"), "{text}");
    assert!(text.contains("The next token comes at 09:00:00Z."), "{text}");
    assert!(text.contains("SawCompletedJob 9, SuccessfulCreate 19, SuccessfulDelete 8"), "{text}");
    let part = reason(&document, "SawCompletedJob");
    assert_eq!((&part["received"], &part["shown"], &part["lost"]), (&json!(60), &json!(9), &json!({"suppressed": 51})));
    let budget = &document["objects"][0]["budgets"][0];
    assert_eq!((&budget["tokens"], &budget["burst"], &budget["suppression"]), (&json!(0), &json!(25), &json!("drop")));
    let newest = document["objects"][0]["decisions"].as_array().unwrap().last().unwrap();
    assert_eq!((&newest["verdict"], &newest["nextToken"]), (&json!("dropped"), &json!("2026-03-01T09:00:00.000000Z")));
    // Occurrences in a later write of the combined record are shown.
    let all = ask(&program, "namespace=default&object=cj/hello").await;
    let created = reason(&all, "SuccessfulCreate");
    assert_eq!((&created["shown"], &created["lost"]), (&json!(56), &json!({"suppressed": 4})));
    program.stop().await;
}

/// Fault: two writes that both carried an occurrence counted it twice, in place of one that was dropped.
#[tokio::test]
async fn an_occurrence_that_two_writes_have_carried_is_shown_once() {
    let fake = FakeApiserver::manual();
    fake.set_latency(Duration::ZERO);
    let program = start_before(&fake, "correlation: {suppression: drop, burstSize: 2, qps: 0.0001}\n").await;
    let client = &mut program.client().await;
    fake.fail_next(&[Fault::After(500)]);
    client.post(&plain()).await;
    program.until("the create has failed", || program.balance().waiting[Why::Retry as usize] == 1).await;
    client.post(&plain()).await;
    client.post(&event("node-1", "web-0", "BackOff", "another message")).await;
    program.settle().await;
    let document = ask(&program, "namespace=shop&object=pod/web-0").await;
    let part = reason(&document, "BackOff");
    assert_eq!((&part["received"], &part["shown"], &part["lost"]), (&json!(3), &json!(2), &json!({"suppressed": 1})));
    program.stop().await;
}

#[tokio::test]
async fn under_defer_each_occurrence_of_the_hour_is_shown_or_waits() {
    let program = start("correlation: {suppression: defer}\n").await;
    cronjob_hour(&program).await;
    let document = ask(&program, "namespace=default&object=cronjob/hello").await;
    let mut spent = 0;
    for name in ["SuccessfulCreate", "SawCompletedJob", "SuccessfulDelete"] {
        let part = reason(&document, name);
        let waiting = part["waiting"].as_object().unwrap().values().map(|number| number.as_u64().unwrap()).sum::<u64>();
        let shown = part["shown"].as_u64().unwrap();
        assert_eq!((shown + waiting, &part["lost"], &part["inSummary"]), (60, &json!({}), &json!(0)), "{part}");
        assert!(shown >= 45, "{part}");
        spent += document["objects"][0]["budgets"][0]["spentOn"][name].as_u64().unwrap();
    }
    assert_eq!(spent, 36);
    assert_eq!(document["answer"]["code"], "deferred");
    let text = document["answer"]["text"].as_str().unwrap();
    assert!(text.contains("wait for a token. The next token, 09:00:00Z, goes to"), "{text}");
    let records = document["objects"][0]["records"].as_array().unwrap();
    let combined = records.iter().find(|record| record["form"] == "combined" && record["reason"] == "SawCompletedJob");
    let messages = combined.unwrap()["messages"].as_array().unwrap();
    assert_eq!((messages.len(), &messages[9]), (10, &json!("Saw completed job: hello-159, status: Complete")));
    program.stop().await;
}

#[tokio::test]
async fn an_explanation_names_the_record_and_every_name_leads_to_it() {
    let program = start("").await;
    let first = plain();
    program.client().await.post(&first).await;
    let second = plain();
    program.client().await.post(&second).await;
    program.settle().await;
    let shown = format!("shown: 2 of 2 occurrences are shown, in {}.", first.metadata.name);
    for query in ["object=pod/web-0", "object=po/web-0", "kind=Pods&name=web-0&reason=BackOff", "source=kubelet/node-1"]
    {
        assert_eq!(told(&program, query).await, shown, "{query}");
    }
    // The second client's alias.
    assert_eq!(told(&program, &format!("event={}", second.metadata.name)).await, shown);
    assert_eq!(told(&program, &format!("event={}", first.metadata.name)).await, shown);
    program.stop().await;
}

/// Faults: the sentences of one reason's types named its newest record. Those of sources in several shards named each
/// other's.
#[tokio::test]
async fn a_sentence_names_the_record_of_its_type_and_source() {
    let program = start("shards: 8\n").await;
    let client = &mut program.client().await;
    let of_hosts = (0..8).map(|host| event(&format!("node-{host}"), "web-0", &format!("Reason{host}"), "m"));
    let events: Vec<Event> =
        [plain(), warning("node-1", "web-0", "BackOff", "again")].into_iter().chain(of_hosts).collect();
    for event in &events {
        client.post(event).await;
    }
    rest(&program).await;
    let document = ask(&program, "namespace=shop&object=pod/web-0").await;
    let parts = document["objects"][0]["reasons"].as_array().unwrap();
    for event in events {
        let is_of_event = |part: &&Value| part["type"] == *event.event_type && part["reason"] == *event.reason;
        let text = parts.iter().find(is_of_event).unwrap()["answer"]["text"].as_str().unwrap();
        assert!(text.ends_with(&format!(", in {}.", event.metadata.name)), "{text}");
    }
    program.stop().await;
}

#[tokio::test]
async fn a_source_with_many_objects_says_how_many_are_left_out() {
    let program = start("").await;
    let mut client = program.client().await;
    for number in 0..23 {
        let mut event = plain();
        event.involved_object.name = format!("web-{number}").into();
        client.post(&event).await;
    }
    program.settle().await;
    let document = ask(&program, "source=kubelet/node-1").await;
    assert_eq!((document["objects"].as_array().unwrap().len(), &document["moreObjects"]), (20, &json!(3)));
    let text = document["answer"]["text"].as_str().unwrap();
    assert!(text.ends_with(" 3 further objects left out: name one."), "{text}");
    program.stop().await;
}

#[tokio::test]
async fn an_unknown_object_is_explained_with_the_reason() {
    let program = start("").await;
    assert_eq!(
        told(&program, "object=pod/web-9").await,
        "unknown: Nothing is known about pod shop/web-9: no occurrence has been received since the start."
    );
    program.client().await.post(&plain()).await;
    assert_eq!(
        told(&program, "object=pod/web-9").await,
        "unknown: Nothing is known about pod shop/web-9: of 1 occurrence in its namespace since 08:00:00Z none was about it. \
         The nearest name is Pod shop/web-0."
    );
    let client = &mut program.client().await;
    for query in ["", "?object=web-0", "?name=x&nonsense=1"] {
        assert_eq!(client.get(&format!("/eventweir/v1/explain{query}")).await.status, 400, "{query}");
    }
    program.stop().await;
}

#[tokio::test]
async fn an_evicted_object_is_explained_as_perhaps_received() {
    let program = start("explain: {maxBytes: 1Mi}\nshards: 1\ncorrelation: {groupBurstSize: 0}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    for number in 0..900 {
        client.post(&event("node-1", &format!("other-{number}"), "R", &"m".repeat(1000))).await;
    }
    let text = told(&program, "object=pod/web-0").await;
    // The record itself is upstream, if it is written.
    assert!(text.contains("Decisions before 08:00:00Z may have been forgotten (explain.maxBytes)"), "{text}");
    assert!(program.app.shards().explain_bytes() <= 1 << 20);
    program.stop().await;
}

#[tokio::test]
async fn another_replicas_record_is_found_upstream() {
    let fake = FakeApiserver::manual();
    let other = start_before(&fake, "").await;
    other.client().await.post(&plain()).await;
    other.settle().await;
    let program = start_before(&fake, "upstream: {history: off}\n").await;
    let text = told(&program, "object=pod/web-0").await;
    assert!(text.contains("The API server has 1 event of it, reported by kubelet/node-1: another replica"), "{text}");
    let text = told(&program, "object=pod/web-0&reason=Other").await;
    assert!(text.contains("pod shop/web-0 with the reason Other") && !text.contains("The API server has"), "{text}");
    program.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn occurrences_waiting_at_another_replica_are_known_there_only() {
    let fake = FakeApiserver::manual();
    let other = start_before(&fake, "shutdown: {drainTimeout: 0s}\n").await;
    let program = start_before(&fake, "").await;
    fake.plan(|_| Fault::Unavailable(1));
    other.client().await.post(&plain()).await;
    let document = ask(&program, "namespace=shop&object=pod/web-0").await;
    assert_eq!((&document["answer"]["code"], &document["objects"]), (&json!("unknown"), &json!([])));
    let action = document["answer"]["action"].as_str().unwrap();
    assert!(action.contains("ask all, each with a --server of its own"), "{action}");
    assert_eq!(ask(&other, "namespace=shop&object=pod/web-0").await["objects"][0]["name"], "web-0");
    fake.plan(|_| Fault::None);
    other.stop().await;
    program.stop().await;
}

#[tokio::test]
async fn occurrences_waiting_for_the_upstream_show_since_when_it_is_down() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    fake.set_up(false);
    program.client().await.post(&plain()).await;
    let clock = program.clock.clone();
    program
        .until("it has failed", || {
            clock.advance(Duration::from_millis(100));
            program.app.metrics_text().contains("eventweir_upstream_up 0")
        })
        .await;
    let text = told(&program, "object=pod/web-0").await;
    assert!(text.starts_with("upstream-down: Not written yet: the upstream has failed since 08:00:0"), "{text}");
    assert!(text.contains(" (transport): ") && text.ends_with(". 1 occurrence waits for the next try."), "{text}");
    program.client().await.post(&event("node-1", "web-1", "BackOff", "not tried")).await;
    let text = told(&program, "object=pod/web-1").await;
    assert!(text.starts_with("upstream-down: Not written yet: the upstream is down. 0 of 1"), "{text}");
    fake.set_up(true);
    program.settle().await;
    assert!(told(&program, "object=pod/web-0").await.starts_with("shown: 1 of 1"));
    program.stop().await;
}

/// Fault: for a failing webhook, the answer was only `server_error`.
#[tokio::test]
async fn a_temporary_failure_is_explained_with_the_upstreams_newest_message() {
    for (code, said) in [
        (500, "(server_error): as the test asked. 1 occurrence waits for the next try."),
        // Callers do not see messages about eventweir's own credentials.
        (401, "(unauthorized). 1 occurrence waits for the next try."),
    ] {
        let fake = FakeApiserver::manual();
        let program = start_before(&fake, "").await;
        fake.plan(move |_| Fault::Before(code));
        program.client().await.post(&plain()).await;
        program.until("it has failed", || program.app.metrics_text().contains("eventweir_upstream_up 0")).await;
        let text = told(&program, "object=pod/web-0").await;
        assert!(text.contains("the upstream has failed since 08:00:0") && text.ends_with(said), "{text}");
        fake.plan(|_| Fault::None);
        program.stop().await;
    }
}

/// Final answers of the upstream, and their explanations.
#[tokio::test]
async fn a_final_refusal_is_lost_with_the_upstreams_message() {
    for (code, said, part) in [
        (422, "refused: Lost at ", "1 occurrence"),
        (413, "too-large: Lost at ", "1 occurrence"),
        (403, "forbidden: Lost at ", "1 occurrence"),
        (404, "namespace-gone: Lost at ", "namespace shop is missing"),
    ] {
        let fake = FakeApiserver::manual();
        let program = start_before(&fake, "ingest: {repair: off}\n").await;
        fake.plan(move |_| Fault::Before(code));
        program.client().await.post(&plain()).await;
        program.settle().await;
        let text = told(&program, "object=pod/web-0").await;
        assert!(text.starts_with(said) && text.contains(part), "{code}: {text}");
        program.stop().await;
    }
}

#[tokio::test]
async fn a_temporary_refusal_waits_with_the_upstreams_message() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    fake.plan(|_| Fault::Before(403));
    program.client().await.post(&plain()).await;
    program.until("it is refused", || program.balance().waiting[Why::Retry as usize] == 1).await;
    let text = told(&program, "object=pod/web-0").await;
    assert!(text.starts_with("forbidden: Not written: the upstream has refused it since 08:00:0"), "{text}");
    assert!(text.contains("1 occurrence waits") && text.contains("(403): "), "{text}");
    fake.plan(|_| Fault::None);
    program.settle().await;
    assert!(told(&program, "object=pod/web-0").await.starts_with("shown: 1 of 1"));
    program.stop().await;
}

#[tokio::test]
async fn a_deletion_by_a_client_is_named_with_its_lost_occurrences() {
    let program = start("").await;
    let client = &mut program.client().await;
    let first = plain();
    let path = format!("{EVENTS}/{}", first.metadata.name);
    client.post(&first).await;
    program.settle().await;
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    assert!(told(&program, "object=pod/web-0").await.starts_with("deleted: A client deleted the record."));
    let record = &ask(&program, "namespace=shop&object=pod/web-0").await["objects"][0]["records"][0];
    assert_eq!((&record["name"], &record["state"]), (&json!(first.metadata.name), &json!("gone")));
    // The next occurrence begins another record at 1, and is lost with it.
    client.post(&first).await;
    program.settle().await;
    // Fault: it said that both are in the second record.
    let text = told(&program, "object=pod/web-0").await;
    assert!(text.starts_with("shown: 2 of 2 occurrences were shown, the newest in "), "{text}");
    assert!(text.ends_with(". An earlier record is gone: it expired or was deleted."), "{text}");
    client.post(&plain()).await;
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    let text = told(&program, "object=pod/web-0").await;
    assert!(text.starts_with("deleted: A client deleted the record at 08:00:0"), "{text}");
    assert!(text.contains("1 occurrence that waited"), "{text}");
    program.stop().await;
}

/// Fault: it was shown as `/`.
#[tokio::test]
async fn an_event_without_an_object_is_in_the_tables() {
    let program = start("").await;
    let mut event = event("node-1", "", "R", "m");
    event.metadata.namespace = "default".into();
    event.metadata.name = "e.1".into();
    event.involved_object = Default::default();
    let reply = program.client().await.post(&event).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    let top = program.client().await.get("/eventweir/v1/top").await.json();
    let row = &top["objects"][0];
    assert_eq!((&row["namespace"], &row["object"]), (&json!("default"), &json!("(no object)")));
    let page = program.admin().await.get("/").await.text();
    assert!(page.contains("<th scope=\"row\">default (no object)</th>"), "{page}");
    program.stop().await;
}

/// Fault: the records were said to have begun because of a full cache, and to be paid for by a budget.
#[tokio::test]
async fn an_event_that_is_not_correlated_has_a_record_and_no_budget() {
    let rules = "rules: [{match: {reason: [BackOff]}, set: {enabled: false}}]";
    for correlation in ["enabled: false", "suppression: drop, enabled: false", rules] {
        let program = start(&format!("correlation: {{{correlation}}}\n")).await;
        for _ in 0..2 {
            program.client().await.post(&plain()).await;
            program.settle().await;
        }
        let text = told(&program, "object=pod/web-0").await;
        assert!(text.starts_with("shown: 2 of 2 occurrences are shown, the newest in web-0."), "{correlation}: {text}");
        let document = ask(&program, "namespace=shop&object=pod/web-0").await;
        assert_eq!(document["objects"][0]["budgets"], json!([]), "{correlation}");
        assert_eq!(reason(&document, "BackOff")["rule"].is_u64(), correlation == rules);
        program.stop().await;
    }
}

#[tokio::test]
async fn an_evicted_key_begins_another_record() {
    let program = start("correlation: {lruCacheSize: 1}\n").await;
    let client = &mut program.client().await;
    for reason in ["BackOff", "Other", "BackOff"] {
        client.post(&event("node-1", "web-0", reason, "m")).await;
        program.settle().await;
    }
    let text = told(&program, "object=pod/web-0&reason=BackOff").await;
    assert_eq!(
        text,
        "evicted: 2 of 2 occurrences are shown, in more than one record: the first was forgotten (its key was evicted, or it expired)."
    );
    program.stop().await;
}

#[tokio::test]
async fn occurrences_without_a_token_are_in_a_digest_with_their_messages() {
    let program = start("correlation: {burstSize: 2, qps: 0.001}\noutbox: {digest: {after: 1}}\n").await;
    let client = &mut program.client().await;
    for number in 0..8 {
        client.post(&warning("node-1", "web-0", &format!("Check{number}"), &format!("check {number}"))).await;
        rest(&program).await;
    }
    let text = told(&program, "object=pod/web-0&reason=Check6").await;
    assert!(text.starts_with("deferred: 0 of 1 occurrences are shown; 1 occurrence waits for a token."), "{text}");
    program.clock.advance(Duration::from_secs(1001));
    program.settle().await;
    let text = told(&program, "object=pod/web-0&reason=Check6").await;
    assert!(text.starts_with("digest: 1 occurrence never got a token; the digest web-0."), "{text}");
    let document = ask(&program, "namespace=shop&object=pod/web-0").await;
    let records = document["objects"][0]["records"].as_array().unwrap();
    let digest = records.iter().find(|record| record["form"] == "digest").unwrap();
    assert!(digest["messages"].as_array().unwrap().contains(&json!("check 6")), "{digest}");
    program.stop().await;
}

/// Waits until an object has a storm record.
async fn until_folded(program: &Program, query: &str) {
    let has_folded = async || {
        let document = ask(program, &format!("namespace=shop&{query}")).await;
        document["objects"][0]["records"].as_array().unwrap().iter().any(|record| record["form"] == "storm")
    };
    while !has_folded().await {
        program.clock.advance(Duration::from_millis(200));
    }
}

#[tokio::test]
async fn occurrences_without_a_token_of_their_group_are_in_a_storm_record() {
    let program = start("correlation: {groupBurstSize: 1, groupQps: 0.01}\n").await;
    let client = &mut program.client().await;
    for number in 0..5 {
        client.post(&event("node-1", &format!("web-{number}"), "FailedScheduling", "0/9 nodes")).await;
        rest(&program).await;
    }
    // Fault: it did not say that it folds.
    let text = told(&program, "object=pod/web-3").await;
    let waits =
        "deferred: 0 of 1 occurrences are shown; 1 occurrence waits for a token of the group, or of all writes.";
    assert!(text.starts_with(&format!("{waits} Without one by about 08:00:1")), "{text}");
    assert!(text.ends_with("Z, a storm record counts it."), "{text}");
    // Fault: the storm record was said to count it before that was written, and after it was lost.
    until_folded(&program, "object=pod/web-3").await;
    let text = told(&program, "object=pod/web-3").await;
    assert_eq!(
        text,
        "deferred: 0 of 1 occurrences are shown; 1 occurrence waits for a token of the group, or of all writes."
    );
    program.clock.advance(Duration::from_secs(101));
    program.settle().await;
    let text = told(&program, "object=pod/web-3").await;
    assert!(text.starts_with("storm: 1 occurrence never got a token; the storm "), "{text}");
    for number in 6..10 {
        client.post(&event("node-1", &format!("web-{number}"), "FailedScheduling", "0/9 nodes")).await;
        rest(&program).await;
    }
    until_folded(&program, "object=pod/web-9").await;
    assert!(told(&program, "object=pod/web-9").await.starts_with("deferred: 0 of 1 occurrences are shown"));
    let storm = program.stored().await.into_iter().find(|event| event.metadata.name.starts_with("shop.")).unwrap();
    let path = format!("/api/v1/namespaces/shop/events/{}", storm.metadata.name);
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    let text = told(&program, "object=pod/web-9").await;
    assert_eq!(text, "deleted: A client deleted the record, and with it 1 occurrence that waited.");
    let text = told(&program, "object=pod/web-3").await;
    assert!(text.starts_with("storm: 1 occurrence never got a token"), "{text}");
    program.stop().await;
}

/// Fault: once the object folded into another storm record, the losses of the first one were said to be shown.
#[tokio::test]
async fn losses_of_a_storm_record_stay_lost_when_the_object_folds_again() {
    let program = start("correlation: {groupBurstSize: 1, groupQps: 0.01}\n").await;
    let client = &mut program.client().await;
    let web = |number: usize| event("node-1", &format!("web-{number}"), "FailedScheduling", "0/9 nodes");
    for number in 0..4 {
        client.post(&web(number)).await;
        rest(&program).await;
    }
    program.clock.advance(Duration::from_secs(101));
    program.settle().await;
    client.post(&web(9)).await;
    until_folded(&program, "object=pod/web-9").await;
    let storm = program.stored().await.into_iter().find(|event| event.metadata.name.starts_with("shop.")).unwrap();
    let path = format!("/api/v1/namespaces/shop/events/{}", storm.metadata.name);
    assert_eq!(client.send("DELETE", &path, &[], b"").await.status, 200);
    client.post(&web(9)).await;
    program.settle().await;
    let document = ask(&program, "namespace=shop&object=pod/web-9").await;
    let part = &document["objects"][0]["reasons"][0];
    let counts = (&part["received"], &part["inSummary"], &part["lost"], &part["waiting"]);
    assert_eq!(counts, (&json!(2), &json!(1), &json!({"deleted": 1}), &json!({})), "{document}");
    let top = client.get("/eventweir/v1/top?namespace=shop").await.json();
    let row = top["objects"].as_array().unwrap().iter().find(|row| row["object"] == "Pod/web-9").unwrap();
    assert_eq!(row["lost"], 1, "{top}");
    assert_eq!(program.stop().await.ledger.total_lost(), 1);
}

#[tokio::test]
async fn different_messages_are_explained_as_combined() {
    let program = start("").await;
    let client = &mut program.client().await;
    for number in 0..12 {
        client.post(&event("node-1", "web-0", "R", &format!("message {number}"))).await;
    }
    program.settle().await;
    let text = told(&program, "object=pod/web-0").await;
    assert!(
        text.starts_with("combined: 12 of 12 occurrences are shown; those with different messages share"),
        "{text}"
    );
    program.stop().await;
}

#[tokio::test]
async fn a_repeat_within_the_interval_waits_until_it_ends() {
    let program = start("").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    rest(&program).await;
    client.post(&plain()).await;
    let text = told(&program, "object=pod/web-0").await;
    assert_eq!(
        text,
        "coalescing: 1 of 2 occurrences are shown; 1 occurrence waits for the end of outbox.coalesceInterval."
    );
    program.stop().await;
}

#[tokio::test]
async fn a_refused_event_is_explained_with_the_reason() {
    let program = start("correlation: {burstSize: 0}\noutbox: {maxRecords: 1}\n").await;
    let client = &mut program.client().await;
    client.post(&event("node-1", "web-0", "R", "m")).await;
    assert_eq!(client.post(&event("node-1", "web-1", "R", "m")).await.status, 429);
    assert!(
        told(&program, "object=pod/web-1")
            .await
            .starts_with("full: Refused at 08:00:00Z: 1 occurrence (full): the outbox")
    );
    let mut invalid = event("node-1", "web-2", "R", "m");
    invalid.involved_object.namespace = "other".into();
    assert_eq!(client.post(&invalid).await.status, 422);
    let text = told(&program, "object=pod/web-2").await;
    assert!(text.starts_with("rejected: Refused at 08:00:00Z: 1 occurrence (invalid)"), "{text}");
    assert!(text.contains("involvedObject.namespace"), "{text}");
    program.stop().await;
    let limited = "limits: [{type: Namespace, qps: 1, burst: 1}]\n";
    let program = start(limited).await;
    let client = &mut program.client().await;
    client.post(&event("node-1", "web-0", "R", "m")).await;
    assert_eq!(client.post(&event("node-1", "web-1", "R", "m")).await.status, 429);
    assert!(
        told(&program, "object=pod/web-1").await.starts_with("rejected: Refused at 08:00:00Z: 1 occurrence (limited)")
    );
    program.stop().await;
}

#[tokio::test]
async fn the_rule_that_matches_is_named() {
    let program = start("correlation: {rules: [{match: {reason: [BackOff]}, set: {burstSize: 3}}]}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    client.post(&event("node-1", "web-0", "Other", "m")).await;
    let document = ask(&program, "namespace=shop&object=pod/web-0").await;
    assert_eq!((&reason(&document, "BackOff")["rule"], &reason(&document, "Other")["rule"]), (&json!(0), &Value::Null));
    assert_eq!(program.app.shards().rule_hits(), [1, 1]);
    program.stop().await;
}

#[tokio::test]
async fn nothing_is_recorded_if_explain_is_off() {
    let program = start("explain: {enabled: false}\n").await;
    program.client().await.post(&plain()).await;
    let said = told(&program, "object=pod/web-0").await;
    assert!(said.starts_with("unknown: ") && said.contains(": explain.enabled is false."), "{said}");
    assert_eq!(program.app.shards().explain_bytes(), 0);
    // Fault: `top` and the page showed zeros.
    let top = program.client().await.get("/eventweir/v1/top").await.json();
    assert_eq!(top["enabled"], false, "{top}");
    let page = program.admin().await.get("/").await.text();
    assert!(page.contains("<dt>received</dt><dd>off</dd>") && !page.contains("Noisiest objects"), "{page}");
    assert!(page.contains("<dt>received in all</dt><dd>1</dd>") && page.contains("explain.enabled is false"), "{page}");
    program.stop().await;
}

#[tokio::test]
async fn top_counts_and_the_account_is_the_ledgers() {
    let program = start("").await;
    let client = &mut program.client().await;
    for _ in 0..5 {
        client.post(&plain()).await;
    }
    client.post(&event("node-1", "web-1", "Other", "m")).await;
    program.settle().await;
    let top = client.get("/eventweir/v1/top").await.json();
    assert_eq!((&top["objects"][0]["object"], &top["objects"][0]["received"]), (&json!("Pod/web-0"), &json!(5)));
    assert_eq!((&top["reasons"][0]["name"], &top["reasons"][0]["received"]), (&json!("BackOff"), &json!(5)));
    assert_eq!((&top["namespaces"][0]["name"], &top["components"][0]["received"]), (&json!("shop"), &json!(6)));
    assert_eq!((&top["ledger"]["received"], &top["ledger"]["written"]), (&json!(6), &json!(6)));
    let other = client.get("/eventweir/v1/top?namespace=other").await.json();
    assert_eq!((&other["objects"], &other["ledger"]), (&json!([]), &Value::Null));
    assert_eq!(other["receivedPerSecond"].to_string(), "0.0");
    program.stop().await;
}

/// Fault: `top` called dropped occurrences lost that a later write had shown.
#[tokio::test]
async fn what_a_later_write_shows_is_not_lost_in_top() {
    let program = start("correlation: {suppression: drop, burstSize: 1, qps: 0.1}\n").await;
    let client = &mut program.client().await;
    let mut lost = async || {
        for _ in 0..3 {
            client.post(&plain()).await;
        }
        program.settle().await;
        let [explain, top] =
            ["explain?object=pod/web-0&namespace=shop", "top"].map(|path| format!("/eventweir/v1/{path}"));
        let explained = client.get(&explain).await.json()["objects"][0]["reasons"][0]["lost"]["suppressed"].clone();
        (explained.as_u64(), client.get(&top).await.json()["objects"][0]["lost"].as_u64())
    };
    assert_eq!(lost().await, (Some(2), Some(2)));
    program.clock.advance(Duration::from_secs(10));
    assert_eq!(lost().await, (Some(2), Some(2)), "the fourth occurrence shows the second and third");
    program.stop().await;
}

#[tokio::test]
async fn top_has_windows_and_a_filter() {
    let program = start("").await;
    let client = &mut program.client().await;
    for _ in 0..5 {
        client.post(&plain()).await;
    }
    program.settle().await;
    program.clock.advance(Duration::from_secs(130));
    client.post(&event("node-1", "web-1", "Other", "m")).await;
    let mut top = async |query: &str| {
        let top = client.get(&format!("/eventweir/v1/top?{query}")).await.json();
        let row = |row: &Value| format!("{} {}", row["object"].as_str().unwrap(), row["received"]);
        let rows = top["objects"].as_array().unwrap().iter().map(row).collect::<Vec<_>>().join(", ");
        format!("{} {rows} of {}", top["window"].as_str().unwrap(), top["namespaces"][0]["received"])
    };
    assert_eq!(top("").await, "1h Pod/web-0 5, Pod/web-1 1 of 6");
    assert_eq!(top("window=10m&filter=WEB").await, "10m Pod/web-0 5, Pod/web-1 1 of null");
    assert_eq!(top("window=1m").await, "1m Pod/web-1 1 of 1");
    assert_eq!(top("filter=backoff").await, "1h Pod/web-0 5 of 5");
    assert_eq!(top("filter=nothing").await, "1h  of null");
    assert_eq!(client.get("/eventweir/v1/top?window=2h").await.status, 400);
    program.stop().await;
}

/// Fault: rows were sorted by another number only among the 100 with the most occurrences.
#[tokio::test]
async fn top_chooses_its_rows_by_the_sorted_number() {
    let rule = "{match: {reason: [Drops]}, set: {suppression: drop, burstSize: 1}}";
    let program = start(&format!("correlation: {{rules: [{rule}]}}\n")).await;
    let client = &mut program.client().await;
    for number in 0..2 {
        client.post(&event("node-1", "losing", "Drops", "m")).await;
        client.post(&event("node-1", "writing", "Others", &format!("m{number}"))).await;
    }
    for number in 0..100 {
        program.app.shards().accept(event("node-1", &format!("web-{number}"), "BackOff", "m"), 3).unwrap();
    }
    program.settle().await;
    let mut first = async |query: &str| {
        let top = client.get(&format!("/eventweir/v1/top?{query}")).await.json();
        top["objects"][0]["object"].as_str().unwrap().to_owned() + " " + top["reasons"][0]["name"].as_str().unwrap()
    };
    for query in ["", "sort=received", "sort=perSecond"] {
        let first = first(query).await;
        assert!(first.starts_with("Pod/web-") && first.ends_with(" BackOff"), "{query}: {first}");
    }
    assert_eq!(first("sort=lost").await, "Pod/losing BackOff");
    assert_eq!(first("sort=writes").await, "Pod/writing BackOff");
    // Fault: an unknown parameter was ignored.
    for query in ["sort=speed", "windw=1m"] {
        assert_eq!(program.client().await.get(&format!("/eventweir/v1/top?{query}")).await.status, 400, "{query}");
    }
    program.stop().await;
}

/// Fault: reasons that receive nothing were left out, so that no digest was among the noisiest writers.
#[tokio::test]
async fn top_shows_the_writes_of_digests() {
    let program = start("correlation: {burstSize: 1, qps: 0.1}\noutbox: {digest: {after: 1}}\n").await;
    let client = &mut program.client().await;
    for reason in ["A", "B", "C"] {
        client.post(&event("node-1", "web-0", reason, "m")).await;
    }
    program.settle().await;
    let top = client.get("/eventweir/v1/top?sort=writes").await.json();
    let rows = top["reasons"].as_array().unwrap();
    let digests = rows.iter().find(|row| row["name"] == "EventsFolded").unwrap();
    assert_eq!((&digests["received"], &digests["writes"]), (&json!(0), &json!(1)), "{top}");
    program.stop().await;
}

#[tokio::test]
async fn series_beyond_the_limit_are_counted_as_other() {
    let program = start("explain: {series: 1}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    let metrics = program.metrics().await;
    let number = |reason: &str, metrics: &std::collections::BTreeMap<String, f64>| {
        let [kind, namespace, of_type] = if reason == "other" { ["other"; 3] } else { ["Pod", "shop", "Normal"] };
        let labels = format!("kind=\"{kind}\",namespace=\"{namespace}\",reason=\"{reason}\",type=\"{of_type}\"");
        metrics.get(&format!("eventweir_kube_events_total{{{labels}}}")).copied()
    };
    assert_eq!((number("BackOff", &metrics), number("other", &metrics)), (Some(1.0), Some(0.0)));
    for reason in ["BackOff", "Pulled", "Failed"] {
        client.post(&event("node-1", "web-0", reason, "m")).await;
    }
    let metrics = program.metrics().await;
    assert_eq!((number("BackOff", &metrics), number("other", &metrics)), (Some(2.0), Some(2.0)));
    assert_eq!(number("Pulled", &metrics), None);
    program.stop().await;
}

#[tokio::test]
async fn the_tap_shows_the_outcome_of_occurrences() {
    let program = start("").await;
    let uri = format!("http://{}", program.app.address()).parse().unwrap();
    let client = kube::Client::try_from(kube::Config::new(uri)).unwrap();
    let open = async |query: &str| {
        let request =
            http::Request::get(format!("/eventweir/v1/tap?{query}")).body(kube::client::Body::empty()).unwrap();
        client.send(request).await.unwrap()
    };
    let mut body = open("namespace=shop&object=pod/web-*&verdict=created,counted,written").await.into_body();
    let mut others = Vec::new();
    for _ in 1..16 {
        others.push(open("").await);
    }
    for (query, status) in [("", 429), ("?nonsense=1", 400), ("?max-rate=two", 400), ("?object=web-0", 400)] {
        assert_eq!(program.client().await.get(&format!("/eventweir/v1/tap{query}")).await.status, status);
    }
    program.client().await.post(&event("node-1", "other", "R", "m")).await;
    program.client().await.post(&plain()).await;
    let mut next = async || {
        let frame = http_body_util::BodyExt::frame(&mut body).await.unwrap().unwrap();
        let line: Value = serde_json::from_slice(&frame.into_data().unwrap()).unwrap();
        (line["verdict"].as_str().unwrap().to_owned(), line["name"].as_str().unwrap().to_owned())
    };
    // The order may differ, because each line comes from the thread that does the work.
    let mut told = [next().await, next().await];
    told.sort();
    assert_eq!(
        told,
        [("created", "web-0"), ("written", "web-0")].map(|(one, other)| (one.to_owned(), other.to_owned()))
    );
    program.stop().await;
}
