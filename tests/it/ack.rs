//! Acknowledgements: `written` answers with the stored event or the upstream's refusal, `durable` after the commit.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use eventweir::clock::Clock;
use eventweir::event::Event;
use serde_json::{Value, json};

use super::support::app::{start, start_before};
use super::support::events::{START, plain};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::{Client, EVENTS, Reply, json as json_of};

const JSON: (&str, &str) = ("Content-Type", "application/json");

async fn post(client: &mut Client, name: &str, headers: &[(&str, &str)]) -> Reply {
    let mut body: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    body["metadata"]["name"] = json!(name);
    client.send("POST", EVENTS, &[&[JSON], headers].concat(), body.to_string().as_bytes()).await
}

#[tokio::test]
async fn a_written_event_is_answered_with_the_upstreams_metadata() {
    let program =
        start("ingest: {ack: written}\noutbox: {coalesceInterval: 0s}\ncorrelation: {burstSize: 2, qps: 0}\n").await;
    let client = &mut program.client().await;
    let first = post(client, "a", &[]).await.json();
    assert_eq!(first["metadata"]["name"], "a");
    assert!(first["metadata"]["uid"].is_string() && first["metadata"]["resourceVersion"].is_string(), "{first}");
    let second = post(client, "b", &[]).await;
    assert_eq!(second.outcome(), Some("counted"));
    let second = second.json();
    assert_eq!((&second["metadata"]["name"], &second["count"]), (&json!("b"), &json!(1)), "its own name and line");
    assert_eq!(second["metadata"]["uid"], first["metadata"]["uid"], "one record");
    let third = post(client, "c", &[]).await;
    assert_eq!(third.outcome(), Some("deferred"), "answered at once: its token is far away");
    let fourth = post(client, "d", &[("Eventweir-Ack", "accepted")]).await.json();
    assert_eq!(fourth["metadata"]["uid"], Value::Null, "nothing is invented");
    program.stop().await;
}

#[tokio::test]
async fn without_correlation_a_taken_name_is_refused_as_by_the_apiserver() {
    let program = start("ingest: {ack: written}\ncorrelation: {enabled: false}\n").await;
    let client = &mut program.client().await;
    assert_eq!(post(client, "a", &[]).await.status, 201);
    let taken = post(client, "a", &[]).await;
    assert_eq!((taken.status, taken.json()["message"].clone()), (409, json!("events \"a\" already exists")));
    assert_eq!(post(client, "b", &[]).await.status, 201);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.total_written(), ledger.total_lost()), (2, 1));
}

/// Fault: the series of a known total was answered with 201 and not stored, also after its event had expired.
#[tokio::test]
async fn without_correlation_a_series_that_is_posted_again_is_a_create() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "ingest: {ack: written}\ncorrelation: {enabled: false}\n").await;
    let client = &mut program.client().await;
    let mut first: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    first["eventTime"] = json!("2026-03-01T08:00:00.000000Z");
    for member in ["action", "reportingComponent", "reportingInstance"] {
        first[member] = json!("a");
    }
    let mut whole = first.clone();
    whole["series"] = json!({"count": 3, "lastObservedTime": "2026-03-01T08:05:00.000000Z"});
    for (body, code) in [(&whole, 201), (&whole, 409), (&first, 409)] {
        let answer = client.send("POST", EVENTS, &[JSON], body.to_string().as_bytes()).await;
        assert_eq!((answer.status, fake.events().len()), (code, 1), "{body}");
    }
    for body in [&whole, &first] {
        fake.delete(&fake.events()[0]);
        let answer = client.send("POST", EVENTS, &[JSON], body.to_string().as_bytes()).await;
        assert_eq!((answer.status, fake.events().len()), (201, 1), "{body}");
        assert!(answer.json()["metadata"]["uid"].is_string());
    }
    program.stop().await;
}

#[tokio::test]
async fn a_waiting_client_gets_the_upstreams_refusal() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "ingest: {ack: written}\n").await;
    let client = &mut program.client().await;
    fake.fail_next(&[Fault::Before(422)]);
    assert_eq!(post(client, "a", &[]).await.status, 422);
    fake.fail_next(&[Fault::ResetAfter]);
    // The result is unknown until the name has been read; the clock advances over the pause before that.
    let moving = async {
        loop {
            program.clock.advance(Duration::from_millis(50));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let answer = tokio::select! {
        answer = post(client, "b", &[]) => answer,
        () = moving => return,
    };
    assert_eq!((answer.status, answer.json()["count"].clone()), (201, json!(1)));
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.total_written(), ledger.total_lost()), (1, 1));
    assert_eq!(fake.shown(), 1);
}

/// Fault: the uid of the PUT's answer came with a growth that waits for its token, as if that were upstream.
#[tokio::test]
async fn after_a_put_nothing_is_invented_either() {
    let program =
        start("ingest: {ack: written}\noutbox: {coalesceInterval: 0s}\ncorrelation: {burstSize: 1, qps: 0}\n").await;
    let client = &mut program.client().await;
    assert_eq!(post(client, "a", &[]).await.status, 201);
    let path = format!("{EVENTS}/a");
    let mut event = client.get(&path).await.json();
    event["count"] = json!(5);
    let put = client.send("PUT", &path, &[JSON], event.to_string().as_bytes()).await.json();
    assert!(put["metadata"]["uid"].is_string(), "{put}");
    let merge = [("Content-Type", "application/merge-patch+json")];
    let grown = client.send("PATCH", &path, &merge, br#"{"count": 6}"#).await;
    assert_eq!((grown.status, grown.outcome()), (200, Some("deferred")), "{}", grown.text());
    assert_eq!(grown.json()["metadata"]["uid"], Value::Null);
    program.stop().await;
}

#[tokio::test]
async fn a_total_that_was_refused_while_its_client_waited_counts_when_it_is_sent_again() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "ingest: {ack: written}\n").await;
    let client = &mut program.client().await;
    let mut event = plain();
    event.count = 3;
    for code in [422, 201] {
        fake.fail_next(&[if code == 422 { Fault::Before(422) } else { Fault::None }]);
        assert_eq!(client.send("POST", EVENTS, &[JSON], &json_of(&event)).await.status, code);
    }
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.total_written(), ledger.total_lost(), fake.shown()), (3, 3, 3));
}

/// Fault: only one occurrence of a repeated total counted, if it had come in a batch.
#[tokio::test]
async fn totals_of_a_batch_that_were_refused_while_its_client_waited_count_when_they_are_sent_again() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "ingest: {ack: written}\n").await;
    let client = &mut program.client().await;
    let event = plain();
    let lines = |totals: &[i32]| -> Vec<u8> {
        let line = |total: &i32| String::from_utf8(json_of(&Event { count: *total, ..event.clone() })).unwrap() + "\n";
        totals.iter().map(line).collect::<String>().into_bytes()
    };
    let mut send = async |totals: &[i32]| {
        let ndjson = [("Content-Type", "application/x-ndjson")];
        client.send("POST", "/eventweir/v1/events", &ndjson, &lines(totals)).await.text()
    };
    fake.plan(|_| Fault::Before(422));
    assert!(send(&[3, 5]).await.contains("422"));
    fake.plan(|_| Fault::None);
    let refused = program.balance().ledger.total_lost();
    let written = send(&[5]).await;
    assert!(!written.contains("422"), "{written}");
    let ledger = program.stop().await.ledger;
    assert_eq!((refused, ledger.total_lost(), ledger.total_written(), fake.shown()), (5, 5, 5, 5));
}

/// Fault: a patch was answered with 200 before the upstream had refused it.
/// Fault: it waited for a write of eventweir that was not owed any more, until the request timeout.
#[tokio::test]
async fn a_waiting_client_is_answered_when_another_client_has_written_its_occurrence() {
    let program = start("ingest: {ack: written, requestTimeout: 5s}\noutbox: {coalesceInterval: 1h}\n").await;
    let (mine, other) = (&mut program.client().await, &mut program.client().await);
    let path = format!("{EVENTS}/a");
    assert_eq!(post(mine, "a", &[]).await.status, 201);
    let replaces = async {
        let mut seen = other.get(&path).await.json();
        while seen["count"] != 2 {
            seen = other.get(&path).await.json();
        }
        other.send("PUT", &path, &[JSON], seen.to_string().as_bytes()).await
    };
    let (posted, replaced) = tokio::join!(post(mine, "b", &[]), replaces);
    assert_eq!((posted.status, replaced.status), (201, 200), "{} {}", posted.text(), replaced.text());
    assert_eq!(posted.json()["metadata"]["resourceVersion"], replaced.json()["metadata"]["resourceVersion"]);
    assert_eq!(program.stop().await.ledger.total_written(), 2);
}

#[tokio::test]
async fn a_patch_of_a_growing_count_waits_for_the_upstream_too() {
    let fake = FakeApiserver::new(Clock::manual(START));
    let program = start_before(&fake, "outbox: {coalesceInterval: 0s}\n").await;
    let client = &mut program.client().await;
    let written = ("Eventweir-Ack", "written");
    let version = post(client, "a", &[written]).await.json()["metadata"]["resourceVersion"].clone();
    assert!(version.is_string(), "{version}");
    let whole = json!({"involvedObject": {"kind": "Pod"}, "reason": "BackOff", "count": 5});
    for (media_type, count, body) in
        [("application/strategic-merge-patch+json", 3, json!({"count": 3})), ("application/merge-patch+json", 5, whole)]
    {
        let headers = [("Content-Type", media_type), written];
        let (path, body) = (format!("{EVENTS}/a"), body.to_string());
        let lost = program.balance().ledger.total_lost();
        fake.fail_next(&[Fault::Before(422)]);
        let refused = client.send("PATCH", &path, &headers, body.as_bytes()).await;
        assert_eq!((refused.status, program.balance().ledger.total_lost() - lost), (422, 2));
        // The alias keeps its count, so that the client can repeat the patch.
        let patched = client.send("PATCH", &path, &headers, body.as_bytes()).await;
        let shown = patched.json();
        assert_eq!((patched.status, patched.outcome(), &shown["count"]), (200, Some("counted"), &json!(count)));
        assert!(shown["metadata"]["uid"].is_string(), "{shown}");
        assert_ne!(shown["metadata"]["resourceVersion"], version);
        assert_eq!(fake.shown(), u64::try_from(count).unwrap());
    }
    program.stop().await;
}

#[tokio::test]
async fn durable_is_answered_after_the_commit_and_survives_a_stop_without_an_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = format!("spool: {{dir: {:?}}}\nshutdown: {{drainTimeout: 0s}}\n", folder.path().join("spool"));
    let fake = FakeApiserver::new(Clock::manual(START));
    fake.set_up(false);
    let program = start_before(&fake, &yaml).await;
    let client = &mut program.client().await;
    let first = post(client, "a", &[("Eventweir-Ack", "durable")]).await;
    assert_eq!((first.status, first.header("Warning")), (201, None));
    let entries = program.metrics().await["eventweir_spool_entries"];
    assert!((entries - 1.0).abs() < f64::EPSILON);
    let headers = [("Content-Type", "application/strategic-merge-patch+json"), ("Eventweir-Ack", "durable")];
    let patched = client.send("PATCH", &format!("{EVENTS}/a"), &headers, br#"{"count":3}"#).await;
    assert_eq!(patched.status, 200);
    let left = program.app.stop().await;
    assert!(left.is_exact());
    assert_eq!((left.total_waiting(), left.ledger.total_lost()), (3, 0), "neither written nor lost");
    fake.set_up(true);
    let program = start_before(&fake, &yaml).await;
    program.settle().await;
    assert_eq!((fake.shown(), fake.events().len()), (3, 1));
    let metrics = program.metrics().await;
    assert!((metrics["eventweir_spool_restored_occurrences_total"] - 3.0).abs() < f64::EPSILON);
    assert_eq!(program.stop().await.ledger.total_written(), 3);
}

/// Fault: a repeated request was answered at once, although no commit had the occurrences that it repeats.
#[tokio::test]
async fn a_repeated_request_is_answered_after_the_commit_too() {
    const NEW: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
    let series = json!({
        "metadata": { "name": "s" }, "regarding": { "kind": "Pod", "name": "web-0", "namespace": "shop" },
        "reason": "BackOff", "note": "restarting", "type": "Warning", "action": "Restart",
        "eventTime": "2026-03-01T08:00:00.000000Z",
        "series": { "count": 2, "lastObservedTime": "2026-03-01T08:00:30.000000Z" },
        "reportingController": "example.com/kubelet", "reportingInstance": "node-1",
    });
    let merge = ("Content-Type", "application/strategic-merge-patch+json");
    let ways = [("POST", NEW, JSON, series), ("PATCH", &format!("{EVENTS}/a"), merge, json!({ "count": 3 }))];
    let folder = tempfile::tempdir().unwrap();
    for (round, (method, path, media_type, body)) in ways.into_iter().enumerate() {
        for is_lost in [false, true] {
            let dir = folder.path().join(format!("{round}{is_lost}"));
            let spool = format!("spool: {{dir: {dir:?}, commitInterval: 1m}}\n");
            let yaml = spool + "shutdown: {drainTimeout: 0s}\nupstream: {history: off}\n";
            let fake = FakeApiserver::manual();
            fake.set_up(false);
            let program = start_before(&fake, &yaml).await;
            let client = &mut program.client().await;
            assert_eq!(post(client, "a", &[("Eventweir-Ack", "durable")]).await.status, 201);
            let committed = program.metrics().await["eventweir_spool_commit_duration_seconds_count"];
            let mut send = async |ack| {
                let headers = [media_type, ("Eventweir-Ack", ack)];
                client.send(method, path, &headers, body.to_string().as_bytes()).await
            };
            assert_eq!(send("accepted").await.outcome(), Some(if method == "POST" { "created" } else { "counted" }));
            assert_eq!(program.metrics().await["eventweir_spool_commit_duration_seconds_count"], committed);
            if is_lost {
                std::fs::remove_dir_all(&dir).unwrap();
            }
            let again = send("durable").await;
            assert_eq!((again.status / 100, again.outcome()), (2, None), "{method} {is_lost}");
            assert_eq!(again.header("Warning").is_some(), is_lost, "{method} {is_lost}");
            let commits = program.metrics().await["eventweir_spool_commit_duration_seconds_count"];
            assert!(commits > committed, "{method} {is_lost}");
            program.app.stop().await;
        }
    }
}

#[tokio::test]
async fn durable_is_refused_without_a_working_spool() {
    let program = start("").await;
    let refused = post(&mut program.client().await, "a", &[("Eventweir-Ack", "durable")]).await;
    assert_eq!(refused.status, 400);
    let misspelt = post(&mut program.client().await, "a", &[("Eventweir-Ack", "Durable")]).await;
    let message = "Eventweir-Ack: \"Durable\" is not allowed; allowed: accepted, durable, written";
    assert_eq!((misspelt.status, misspelt.json()["message"].clone()), (400, json!(message)));
    assert_eq!(program.stop().await.ledger.rejected(eventweir::ledger::RejectReason::Invalid), 2);
    // The spool's directory is a file: the program starts without a spool.
    let file = tempfile::NamedTempFile::new().unwrap();
    let yaml = format!("spool: {{dir: {:?}}}\ningest: {{ack: durable}}\n", file.path());
    let program = start(&yaml).await;
    let client = &mut program.client().await;
    let refused = post(client, "a", &[]).await;
    assert_eq!((refused.status, refused.header("Retry-After")), (429, Some("1")));
    assert_eq!(post(client, "a", &[("Eventweir-Ack", "accepted")]).await.status, 201);
    let metrics = program.metrics().await;
    assert!((metrics["eventweir_spool_degraded"] - 1.0).abs() < f64::EPSILON);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.rejected(eventweir::ledger::RejectReason::NotDurable), ledger.total_written()), (1, 1));
}
