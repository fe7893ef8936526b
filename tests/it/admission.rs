//! Admission: an apiserver that sends a review before it stores an event. It is a second program with the embedded
//! store. Requests of clients pass the review first.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use eventweir::event::json::decode_event;
use eventweir::event::{ApiGroup, Event, EventSeries, MicroTime, Time, conversion};
use eventweir::ledger::RejectReason;
use serde_json::{Value, json};

use super::support::app::{APISERVER, Program, start, start_behind};
use super::support::events::{START, event, plain};
use super::support::http::{Client, EVENTS, Reply};

// The timeout is real time, which passes on a busy machine.
pub(super) const ON: &str =
    "upstream: {kind: apiserver, history: watch}\nadmission: {enabled: on, timeout: 30s, exemptUsers: [root]}\n";
pub(super) const UNWATCHED: &str =
    "upstream: {kind: apiserver, history: off}\nadmission: {enabled: on, timeout: 30s}\n";

/// An apiserver with a webhook.
pub(super) struct Cluster {
    pub(super) apiserver: Program,
    pub(super) program: Program,
    /// Connections of the client to both programs.
    to: Client,
    ask: Client,
    user: &'static str,
}

impl Cluster {
    pub(super) async fn new(yaml: &str) -> Self {
        Self::over(start(APISERVER).await, yaml).await
    }

    pub(super) async fn over(apiserver: Program, yaml: &str) -> Self {
        let program = start_behind(&apiserver, yaml).await;
        if yaml.contains("watch") {
            program.until_news("relist", 1.0).await;
        }
        let (to, ask) = (apiserver.client().await, program.client().await);
        Self { apiserver, program, to, ask, user: "system:node:node-1" }
    }

    pub(super) async fn review(
        &mut self,
        operation: &str,
        old: Option<&Event>,
        new: Option<&Event>,
        dry_run: bool,
    ) -> Value {
        let review = review(self.user, operation, old, new, dry_run);
        let reply = self.send(review.to_string().as_bytes()).await;
        let answer = reply.json();
        assert_eq!((reply.status, &answer["response"]["uid"]), (200, &json!("abc")), "{answer}");
        answer["response"].clone()
    }

    async fn send(&mut self, body: &[u8]) -> Reply {
        self.ask.send("POST", "/eventweir/v1/admit", &[("Content-Type", "application/json")], body).await
    }

    /// Sends the review of a request; returns the code of a refusal.
    pub(super) async fn asks(&mut self, event: &Event) -> u64 {
        code(&self.review("CREATE", None, Some(event), false).await)
    }

    /// Sends a client's POST; returns the code of the answer.
    pub(super) async fn create(&mut self, event: &Event) -> u64 {
        match self.asks(event).await {
            201 => self.to.post(event).await.status.into(),
            code => code,
        }
    }

    pub(super) async fn stored(&self) -> Vec<Event> {
        self.apiserver.stored().await
    }

    /// Sends a client's PATCH of its own event.
    pub(super) async fn patch(&mut self, name: &str, change: impl FnOnce(&mut Event)) -> u64 {
        let reply = self.to.get(&format!("{EVENTS}/{name}")).await;
        if reply.status != 200 {
            return reply.status.into();
        }
        let old = decode_event(ApiGroup::Core, reply.bytes()).unwrap();
        let mut new = old.clone();
        change(&mut new);
        match code(&self.review("UPDATE", Some(&old), Some(&new), false).await) {
            201 => {
                let path = format!("{EVENTS}/{name}");
                let body = parsed(&new).to_string();
                let kind = [("Content-Type", "application/json")];
                self.to.send("PUT", &path, &kind, body.as_bytes()).await.status.into()
            }
            code => code,
        }
    }

    /// Sends an occurrence like `tools/record`: a repeat is a patch, or a create if there is nothing to patch.
    async fn record(&mut self, event: &Event, count: i32) -> u64 {
        let newer = Some(Time::from_unix_nanos(START + i64::from(count) * 1_000_000_000));
        if count > 1 {
            let code =
                self.patch(&event.metadata.name, |event| (event.count, event.last_timestamp) = (count, newer)).await;
            if code != 404 {
                return code;
            }
        }
        self.create(&Event { count, last_timestamp: newer, ..event.clone() }).await
    }

    /// Stores a client's total whose request is not reviewed.
    async fn store(&mut self, event: &Event, count: i32) {
        let path = format!("{EVENTS}/{}", event.metadata.name);
        let old = decode_event(ApiGroup::Core, self.to.get(&path).await.bytes()).unwrap();
        let body = parsed(&Event { count, ..old }).to_string();
        let kind = [("Content-Type", "application/json")];
        assert_eq!(self.to.send("PUT", &path, &kind, body.as_bytes()).await.status, 200);
    }

    /// Returns the number of occurrences that the upstream shows.
    pub(super) async fn shown(&self) -> i32 {
        self.program.settle().await;
        self.stored().await.iter().map(conversion::occurrences).sum()
    }

    pub(super) async fn answered(&self, answer: &str) -> f64 {
        self.program.metrics().await[&format!("eventweir_admission_requests_total{{answer=\"{answer}\"}}")]
    }

    /// Stops the programs and checks the number of occurrences written by eventweir or by clients.
    pub(super) async fn ends(self, written: u64) {
        let balance = self.program.stop().await;
        assert_eq!((balance.ledger.total_written(), balance.ledger.total_lost()), (written, 0));
    }
}

/// Returns the review of a request by this user.
pub(super) fn review(user: &str, operation: &str, old: Option<&Event>, new: Option<&Event>, dry_run: bool) -> Value {
    let object = |event: Option<&Event>| event.map(parsed);
    json!({
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "abc", "kind": {"group": "", "version": "v1", "kind": "Event"}, "operation": operation,
            "userInfo": {"username": user, "groups": ["system:nodes"]}, "dryRun": dry_run,
            "object": object(new), "oldObject": object(old), "options": {"kind": "CreateOptions"},
        },
    })
}

fn parsed(event: &Event) -> Value {
    serde_json::from_slice(&super::support::http::json(event)).unwrap()
}

/// Returns the code of a refused review.
fn code(response: &Value) -> u64 {
    if response["allowed"] == true { 201 } else { response["status"]["code"].as_u64().unwrap() }
}

pub(super) fn new_style(note: &str) -> Event {
    let mut event = Event {
        reason: "Scaled".into(),
        action: "Scale".into(),
        message: note.into(),
        event_type: "Normal".into(),
        event_time: Some(MicroTime::from_unix_nanos(START)),
        ..Event::default()
    };
    (event.reporting_controller, event.reporting_instance) = ("example.com/scaler".into(), "scaler-0".into());
    (event.metadata, event.involved_object) = (plain().metadata, plain().involved_object);
    event
}

fn series(count: i32) -> Option<EventSeries> {
    let last_observed_time = Some(MicroTime::from_unix_nanos(START + i64::from(count) * 1_000_000_000));
    Some(EventSeries { count, last_observed_time })
}

#[tokio::test]
async fn clients_write_new_records_and_eventweir_writes_repeats() {
    for yaml in [ON, UNWATCHED] {
        let mut cluster = Cluster::new(yaml).await;
        let event = plain();
        let mut codes = Vec::new();
        for count in 1..=10 {
            codes.push(cluster.record(&event, count).await);
        }
        assert_eq!(codes, [[201].as_slice(), &[409; 9]].concat(), "{yaml}");
        assert_eq!(cluster.shown().await, 10);
        let stored = cluster.stored().await;
        assert_eq!((stored.len(), &stored[0].metadata.name, stored[0].count), (1, &event.metadata.name, 10));
        assert_eq!((cluster.answered("begun").await, cluster.answered("counted").await), (1.0, 9.0));
        cluster.ends(10).await;
    }
}

#[tokio::test]
async fn clients_of_one_record_count_on_it_together() {
    for yaml in [ON, UNWATCHED] {
        let mut cluster = Cluster::new(yaml).await;
        let (mine, yours) = (plain(), plain());
        // The second client's create is refused, so its patches are answered 404 and it posts the whole event again.
        for (count, codes) in [(1, (201, 409)), (2, (409, 409)), (3, (409, 409))] {
            assert_eq!((cluster.record(&mine, count).await, cluster.record(&yours, count).await), codes, "{yaml}");
        }
        assert_eq!(cluster.shown().await, 6);
        // Writes in between do not mix the counts of the two clients.
        for count in 4..=6 {
            assert_eq!(cluster.record(&mine, count).await, 409);
        }
        assert_eq!((cluster.shown().await, cluster.stored().await.len()), (9, 1));
        cluster.ends(9).await;
    }
}

#[tokio::test]
async fn an_event_that_is_posted_each_time_is_one_record() {
    let mut cluster = Cluster::new(ON).await;
    for number in 0..20 {
        assert_eq!(cluster.create(&plain()).await, if number == 0 { 201 } else { 409 });
    }
    assert_eq!((cluster.shown().await, cluster.stored().await.len()), (20, 1));
    // A repeated request is none of these.
    let repeated = plain();
    assert_eq!((cluster.create(&repeated).await, cluster.create(&repeated).await), (409, 409));
    assert_eq!((cluster.shown().await, cluster.answered("repeated").await), (21, 1.0));
    cluster.ends(21).await;
}

/// For a name that it generates, an API server tries seven others after `AlreadyExists`, and asks about each.
#[tokio::test]
async fn an_event_with_a_generated_name_counts_once() {
    let mut cluster = Cluster::new(ON).await;
    for _ in 0..3 {
        for _ in 0..8 {
            let mut event = plain();
            event.metadata.change_rare(|rare| rare.generate_name = "web-".into());
            let response = cluster.review("CREATE", None, Some(&event), false).await;
            if response["allowed"] == true {
                cluster.to.post(&event).await;
            }
            if response["status"]["reason"] != "AlreadyExists" {
                break;
            }
        }
    }
    assert_eq!((cluster.shown().await, cluster.stored().await.len()), (3, 1));
    cluster.ends(3).await;
}

#[tokio::test]
async fn a_client_writes_its_series_and_other_occurrences_count_beside_it() {
    for yaml in [ON, UNWATCHED] {
        let mut cluster = Cluster::new(yaml).await;
        let mine = new_style("up");
        assert_eq!(cluster.create(&mine).await, 201);
        assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(2)).await, 200);
        assert_eq!(cluster.shown().await, 2, "{yaml}");
        // One update per interval is allowed; an earlier one is counted, and repeated later.
        assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(5)).await, 409);
        assert_eq!(cluster.shown().await, 5);
        cluster.program.clock.advance(Duration::from_secs(60));
        assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(5)).await, 200);
        assert_eq!(cluster.shown().await, 5);
        // Another process counts on the record with its own series.
        let yours = Event { metadata: plain().metadata, ..mine.clone() };
        assert_eq!(cluster.create(&yours).await, 409);
        assert_eq!(cluster.create(&Event { series: series(2), ..yours.clone() }).await, 403);
        assert_eq!(cluster.shown().await, 7);
        // The next update does not include the other client's occurrences.
        cluster.program.clock.advance(Duration::from_secs(60));
        assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(9)).await, 403);
        assert_eq!((cluster.shown().await, cluster.stored().await.len()), (11, 1));
        cluster.program.stop().await;
    }
}

/// Fault: the occurrences of an allowed series vanished if the API server did not store it.
#[tokio::test]
async fn a_series_that_was_allowed_and_not_stored_counts_when_it_is_sent_again() {
    for yaml in [ON, UNWATCHED] {
        let mut cluster = Cluster::new(yaml).await;
        let mine = new_style("up");
        assert_eq!(cluster.create(&mine).await, 201);
        let old = cluster.stored().await.remove(0);
        let allowed = |count| Event { series: series(count), ..old.clone() };
        assert_eq!(code(&cluster.review("UPDATE", Some(&old), Some(&allowed(2)), false).await), 201);
        // The same request again may overlap the first one, and is as harmless.
        assert_eq!(code(&cluster.review("UPDATE", Some(&old), Some(&allowed(2)), false).await), 201);
        // Meanwhile another client counts on the object, so the API server refuses the request or asks again.
        assert_eq!(cluster.create(&Event { metadata: plain().metadata, ..mine.clone() }).await, 409);
        assert_eq!(cluster.shown().await, 2);
        for _ in 0..2 {
            assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(2)).await, 409, "{yaml}");
            assert_eq!(cluster.shown().await, 3, "{yaml}");
        }
        assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(4)).await, 409);
        assert_eq!(cluster.shown().await, 5, "{yaml}");
        cluster.ends(5).await;
    }
}

/// Fault: the object then showed the series instead of its count, which includes others' occurrences.
#[tokio::test]
async fn a_series_below_the_count_is_not_allowed() {
    let mut cluster = Cluster::new(ON).await;
    let mine = new_style("up");
    assert_eq!(cluster.create(&mine).await, 201);
    assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(2)).await, 200);
    assert_eq!(cluster.create(&Event { metadata: plain().metadata, ..mine.clone() }).await, 409);
    assert_eq!(cluster.shown().await, 3);
    // tools/events sends each series again every half an hour.
    cluster.program.clock.advance(Duration::from_secs(1800));
    assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(2)).await, 403);
    assert_eq!(cluster.shown().await, 3);
    cluster.program.stop().await;
}

/// Fault: tools/events repeats a series that is refused with `AlreadyExists` twelve times, and its end for as long as its
/// process runs.
#[tokio::test]
async fn a_series_that_will_not_be_allowed_is_refused_so_that_its_client_gives_up() {
    let mut cluster = Cluster::new(ON).await;
    let (mine, yours) = (new_style("up"), Event { metadata: plain().metadata, ..new_style("up") });
    assert_eq!((cluster.create(&mine).await, cluster.create(&yours).await), (201, 409));
    let refused = cluster.review("CREATE", None, Some(&Event { series: series(2), ..yours }), false).await;
    assert_eq!((&refused["status"]["code"], &refused["status"]["reason"]), (&json!(403), &json!("Forbidden")));
    assert_eq!(cluster.shown().await, 3);
    // A series of an event that is stored, and counts others' occurrences too.
    assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(2)).await, 403);
    assert_eq!((cluster.shown().await, cluster.stored().await.len()), (4, 1));
    cluster.ends(4).await;
}

/// Fault: the line of the client did not contain the series that it had written itself, so its next series counted
/// that again.
#[tokio::test]
async fn a_client_continues_its_own_series_at_another_process() {
    let mut cluster = Cluster::new(UNWATCHED).await;
    let mine = new_style("up");
    assert_eq!(cluster.create(&mine).await, 201);
    assert_eq!(cluster.create(&Event { metadata: plain().metadata, ..mine.clone() }).await, 409);
    assert_eq!(cluster.patch(&mine.metadata.name, |event| event.series = series(2)).await, 200);
    assert_eq!(cluster.shown().await, 3);
    let Cluster { apiserver, program, .. } = cluster;
    program.stop().await;
    let mut cluster = Cluster::over(apiserver, ON).await;
    assert_eq!(cluster.create(&Event { series: series(3), ..mine }).await, 409);
    assert_eq!(cluster.shown().await, 4);
    cluster.program.stop().await;
}

/// Fault: after a restart, waiting occurrences of the client's earlier totals counted again.
#[tokio::test]
async fn a_total_includes_what_an_earlier_process_has_left_in_the_spool() {
    for is_new in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let spool = format!("spool: {{dir: {:?}}}\nshutdown: {{drainTimeout: 0s}}\n", folder.path());
        let yaml = format!("{ON}{spool}correlation: {{burstSize: 1, qps: 0}}\nshards: 1\n");
        let mut cluster = Cluster::new(&yaml).await;
        let event = if is_new { new_style("up") } else { plain() };
        assert_eq!(cluster.create(&event).await, 201);
        let name = &event.metadata.name;
        let mut last = 0;
        for count in 2..=3 {
            last = if is_new {
                cluster.patch(name, |event| event.series = series(count)).await
            } else {
                cluster.record(&event, count).await
            };
        }
        assert_eq!((last, cluster.program.balance().total_waiting() > 0), (409, true));
        let Cluster { apiserver, program, .. } = cluster;
        program.app.stop().await;
        // The API server shows the object as it was before the next process has written what waits.
        let old = apiserver.stored().await.remove(0);
        let mut cluster = Cluster::over(apiserver, &yaml).await;
        let (new, refusal, counted) = if is_new {
            (Event { series: series(3), ..old.clone() }, 403, 3)
        } else {
            (Event { count: 4, last_timestamp: Some(Time::from_unix_nanos(START)), ..old.clone() }, 409, 4)
        };
        assert_eq!(code(&cluster.review("UPDATE", Some(&old), Some(&new), false).await), refusal);
        assert_eq!(cluster.shown().await, counted);
    }
}

#[tokio::test]
async fn a_series_that_overtakes_its_event_includes_it() {
    let mut cluster = Cluster::new(ON).await;
    let first = new_style("up");
    assert_eq!(cluster.create(&Event { series: series(2), ..first.clone() }).await, 201);
    assert_eq!(cluster.create(&first).await, 409);
    assert_eq!(cluster.shown().await, 2);
    // A series whose event is allowed but not yet stored.
    let first = new_style("down");
    assert_eq!(cluster.asks(&first).await, 201);
    assert_eq!(cluster.create(&Event { series: series(2), ..first.clone() }).await, 409);
    assert_eq!(cluster.to.post(&first).await.status, 201);
    assert_eq!(cluster.shown().await, 4);
    assert_eq!(cluster.patch(&first.metadata.name, |event| event.series = series(2)).await, 200);
    assert_eq!(cluster.shown().await, 4);
    cluster.ends(4).await;
}

/// Fault: it was refused as counted before, although nothing showed it any more.
#[tokio::test]
async fn an_event_that_is_created_again_after_its_deletion_counts_again() {
    let mut cluster = Cluster::new(ON).await;
    let mine = plain();
    assert_eq!(cluster.create(&mine).await, 201);
    assert_eq!((cluster.create(&mine).await, cluster.shown().await), (409, 1), "the same request again");
    let path = format!("{EVENTS}/{}", mine.metadata.name);
    assert_eq!(cluster.to.send("DELETE", &path, &[], b"").await.status, 200);
    cluster.program.until_news("gone", 1.0).await;
    for _ in 0..2 {
        assert_eq!(cluster.create(&mine).await, 409);
        assert_eq!(cluster.shown().await, 2, "created by eventweir, with its earlier count");
    }
    cluster.ends(2).await;
}

#[tokio::test]
async fn eventweir_writes_an_allowed_event_that_never_arrives() {
    for (yaml, repeats) in [(ON, 0), (ON, 3), (UNWATCHED, 0), (UNWATCHED, 3)] {
        let mut cluster = Cluster::new(yaml).await;
        let event = plain();
        assert_eq!(cluster.asks(&event).await, 201);
        for _ in 0..repeats {
            assert_eq!(cluster.create(&plain()).await, 409);
        }
        cluster.program.clock.advance(Duration::from_secs(30));
        assert!(cluster.stored().await.is_empty() && cluster.program.app.shards().owe());
        assert_eq!(cluster.shown().await, 1 + repeats);
        assert_eq!(cluster.stored().await[0].metadata.name, event.metadata.name);
        cluster.ends(u64::try_from(1 + repeats).unwrap()).await;
    }
}

#[tokio::test]
async fn an_event_with_a_taken_name_is_written_under_another_one() {
    let mut cluster = Cluster::new(UNWATCHED).await;
    let mut foreign = event("node-9", "db-0", "Killing", "stopping");
    let mine = plain();
    foreign.metadata.name = mine.metadata.name.clone();
    assert_eq!(cluster.to.post(&foreign).await.status, 201);
    assert_eq!(cluster.create(&mine).await, 409, "the apiserver's");
    assert_eq!(cluster.create(&plain()).await, 409, "ours");
    assert_eq!((cluster.shown().await, cluster.stored().await.len()), (3, 2));
    cluster.ends(2).await;
}

#[tokio::test]
async fn an_event_without_a_token_is_refused_and_waits() {
    let mut cluster = Cluster::new(&format!("{ON}correlation: {{burstSize: 2}}\n")).await;
    let mut codes = Vec::new();
    for reason in ["A", "B", "C", "D"] {
        codes.push(cluster.create(&event("node-1", "web-0", reason, "m")).await);
    }
    assert_eq!(codes, [201, 201, 409, 409]);
    assert_eq!(cluster.stored().await.len(), 2);
    cluster.program.clock.advance(Duration::from_secs(700));
    assert_eq!(cluster.shown().await, 4);
    cluster.ends(4).await;
    let drops = "correlation: {burstSize: 2, suppression: drop}\n";
    let mut cluster = Cluster::new(&format!("{ON}{drops}")).await;
    for (reason, code) in [("A", 201), ("B", 201), ("C", 409)] {
        assert_eq!(cluster.create(&event("node-1", "web-0", reason, "m")).await, code);
    }
    assert_eq!(cluster.shown().await, 2);
    assert_eq!(cluster.program.stop().await.ledger.total_lost(), 1);
}

#[tokio::test]
async fn eventweir_combines_similar_events() {
    let mut cluster = Cluster::new(ON).await;
    for number in 0..15 {
        let code = cluster.create(&event("node-1", "web-0", "FailedMount", &format!("volume {number}"))).await;
        assert_eq!(code, if number < 9 { 201 } else { 409 });
    }
    assert_eq!((cluster.shown().await, cluster.stored().await.len()), (15, 10));
    cluster.ends(15).await;
}

#[tokio::test]
async fn requests_that_are_not_occurrences_are_allowed_and_not_counted() {
    let mut cluster = Cluster::new(ON).await;
    let mut ours = plain();
    ours.metadata.rare.get_or_insert_default().annotations.insert("tally.eventweir/a.1".into(), "1@5".into());
    let labelled = |mut event: Event| {
        event.metadata.rare.get_or_insert_default().labels.insert("team".into(), "a".into());
        event
    };
    let event = plain();
    let counted = Event { count: 5, ..event.clone() };
    for (operation, old, new, dry_run, answer) in [
        ("CREATE", None, Some(&event), true, "dry_run"),
        ("CREATE", None, Some(&ours), false, "exempt"),
        ("UPDATE", Some(&event), Some(&ours), false, "exempt"),
        ("UPDATE", Some(&event), Some(&event), false, "other"),
        ("UPDATE", Some(&event), Some(&labelled(event.clone())), false, "other"),
        ("UPDATE", Some(&event), Some(&labelled(counted.clone())), false, "other"),
        ("DELETE", Some(&event), None, false, "other"),
        ("CREATE", None, None, false, "unread"),
        ("CREATE", Some(&event), Some(&counted), false, "unread"),
        ("UPDATE", None, Some(&event), false, "unread"),
    ] {
        let before = cluster.answered(answer).await;
        assert_eq!(code(&cluster.review(operation, old, new, dry_run).await), 201, "{operation} {answer}");
        assert_eq!(cluster.answered(answer).await - before, 1.0, "{operation} {answer}");
    }
    cluster.user = "root";
    assert_eq!(cluster.asks(&event).await, 201);
    // The apiserver allows an event without an answer.
    for body in
        ["", "{", "[]", r#"{"apiVersion":"admission.k8s.io/v1"}"#, r#"{"apiVersion":"v1","request":{"uid":"a"}}"#]
    {
        assert_eq!(cluster.send(body.as_bytes()).await.status, 400, "{body}");
    }
    assert_eq!(cluster.program.balance().ledger.received(), 0);
    cluster.ends(0).await;
}

#[tokio::test]
async fn at_the_limits_of_the_outbox_events_are_allowed() {
    let mut cluster = Cluster::new(&format!("{ON}outbox: {{maxRecords: 2, sourcePercent: 100}}\nshards: 1\n")).await;
    let mut lines = cluster.program.app.shards().tap().read(Default::default());
    let mut codes = Vec::new();
    for number in 0..4 {
        codes.push(cluster.asks(&event("node-1", &format!("web-{number}"), "A", "m")).await);
    }
    assert_eq!((codes, cluster.answered("full").await), (vec![201; 4], 2.0));
    assert_eq!(cluster.program.balance().ledger.total_rejected(), 2);
    // Fault: the tap had no line of them.
    let lines = std::iter::from_fn(|| lines.try_recv().ok());
    let refused: Vec<_> = lines.filter(|line| line.verdict == "rejected").map(|line| line.why).collect();
    assert_eq!(refused, ["full", "full"]);
}

/// Fault: an update beyond `limits` was one rejected occurrence, however many it brought.
#[tokio::test]
async fn requests_beyond_the_limits_are_refused_and_count_once_they_are_accepted() {
    let mut cluster = Cluster::new(&format!("{ON}limits: [{{type: Namespace, qps: 1, burst: 1}}]\n")).await;
    let (first, second) = (plain(), event("node-1", "web-1", "A", "m"));
    assert_eq!((cluster.record(&first, 1).await, cluster.record(&second, 1).await), (201, 429));
    let rejected = |cluster: &Cluster| cluster.program.balance().ledger.rejected(RejectReason::Limited);
    assert_eq!((rejected(&cluster), cluster.answered("limited").await), (1, 1.0));
    assert_eq!(cluster.record(&first, 4).await, 429);
    assert_eq!((rejected(&cluster), cluster.shown().await), (4, 1));
    for (event, count, code) in [(&first, 4, 409), (&second, 1, 201)] {
        cluster.program.clock.advance(Duration::from_secs(1));
        assert_eq!(cluster.record(event, count).await, code);
    }
    assert_eq!((rejected(&cluster), cluster.shown().await), (4, 5));
    cluster.ends(5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_late_event_is_allowed_and_not_counted() {
    let mut cluster = Cluster::new(&format!("{}shards: 1\n", ON.replace("30s", "200ms"))).await;
    let shards = cluster.program.app.shards().clone();
    let (stop, stopped) = std::sync::mpsc::sync_channel::<()>(1);
    let (begin, begun) = tokio::sync::oneshot::channel();
    let busy = tokio::task::spawn_blocking(move || {
        shards.with(0, |_, _| {
            begin.send(()).unwrap();
            stopped.recv().unwrap();
        });
    });
    begun.await.unwrap();
    let event = plain();
    let allowed = cluster.asks(&event).await;
    stop.send(()).unwrap();
    busy.await.unwrap();
    assert_eq!((allowed, cluster.answered("late").await), (201, 1.0));
    assert_eq!(cluster.program.balance().ledger.received(), 0);
    // It is not remembered either.
    assert_eq!(cluster.to.post(&event).await.status, 201);
    cluster.program.until_news("stored", 1.0).await;
    assert_eq!(cluster.record(&event, 2).await, 409);
    assert_eq!(cluster.shown().await, 2);
}

#[tokio::test]
async fn a_client_continues_the_count_of_another_process() {
    let mut cluster = Cluster::new(ON).await;
    let (event, fresh) = (plain(), new_style("up"));
    assert_eq!(cluster.create(&fresh).await, 201);
    for count in 1..=5 {
        cluster.record(&event, count).await;
    }
    assert_eq!(cluster.shown().await, 6);
    let (mut shown, mut line, mut length) = (6, 5, 1);
    for yaml in [ON, UNWATCHED] {
        let Cluster { apiserver, program, .. } = cluster;
        program.stop().await;
        cluster = Cluster::over(apiserver, yaml).await;
        (shown, line, length) = (shown + 2, line + 1, length + 1);
        assert_eq!(cluster.record(&event, line).await, 409);
        assert_eq!(cluster.patch(&fresh.metadata.name, |event| event.series = series(length)).await, 200, "{yaml}");
        assert_eq!(cluster.shown().await, shown, "{yaml}");
    }
}

/// Fault: what a client had stored itself, while its requests were not reviewed, counted again with its next total: after
/// a late answer, and from the second restart on.
#[tokio::test]
async fn totals_that_a_client_has_stored_itself_count_once() {
    for restarts in [false, true] {
        let mut cluster = Cluster::new(ON).await;
        let event = plain();
        for count in 1..=3 {
            cluster.record(&event, count).await;
        }
        assert_eq!(cluster.shown().await, 3);
        for count in [4, 7, 10] {
            if restarts {
                let Cluster { apiserver, program, .. } = cluster;
                program.stop().await;
                cluster = Cluster::over(apiserver, ON).await;
            }
            let before = cluster.program.metrics().await["eventweir_history_news_total{kind=\"stored\"}"];
            cluster.store(&event, count).await;
            cluster.store(&event, count + 1).await;
            cluster.program.until_news("stored", before + 2.0).await;
            assert_eq!(cluster.record(&event, count + 2).await, 409);
            assert_eq!(cluster.shown().await, count + 2, "{restarts}");
        }
    }
}

#[tokio::test]
async fn only_authorised_callers_are_answered() {
    let token = "upstream: {kind: apiserver, history: off}\nauth: {tokenReview: {enabled: true}}\n";
    let admission = |callers: &str| format!("{token}admission: {{enabled: on, callers: [{callers}]}}\n");
    let mut cluster = Cluster::new(&admission("")).await;
    assert_eq!(cluster.send(b"{}").await.status, 401);
    let mut cluster = Cluster::new(&admission("'system:anonymous'")).await;
    assert_eq!(cluster.asks(&plain()).await, 201);
    // Anonymous callers may do nothing else.
    assert_eq!(cluster.ask.post(&plain()).await.status, 401);
    // Without admission the path is not served.
    let mut cluster = Cluster::new("upstream: {kind: apiserver, history: off}\n").await;
    assert_eq!(cluster.send(b"{}").await.status, 404);
}
