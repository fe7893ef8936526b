//! What eventweir adds to DELETE, PUT and WATCH: effects on records, limits, a clean end. `tests/api` replays the recorded answers
//! of a real apiserver.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::time::Duration;

use client::{Answer, Asked, DEADLINE};
use eventweir::clock::Clock;
use eventweir::event::{ApiGroup, Event};
use eventweir::outbox::LostReason;
use eventweir::upstream::store::{self, Store};
use eventweir::upstream::{
    DeleteOptions, Embedded, FieldSelector, ListOptions, Metrics, Step, Upstream, Version, Watch, WatchEvent,
    WatchOptions,
};
use program::Program;
use prometheus::Registry;
use serde_json::{Value, json};

#[expect(dead_code, reason = "the version of HTTP is compared in tests/api")]
#[path = "api/client.rs"]
mod client;
#[path = "api/program.rs"]
mod program;

const START: i64 = 1_772_352_000 * 1_000_000_000;

async fn start(yaml: &str) -> Program {
    start_at(START, yaml).await
}

async fn start_at(wall: i64, yaml: &str) -> Program {
    Program::start(yaml, wall, |settings, clock| Store::started(settings, 1, clock.now())).await
}

impl Program {
    /// Waits until nothing is owed.
    async fn settle(&self) {
        let settling = async {
            while self.app.shards().owe() {
                self.clock.advance(Duration::from_millis(500));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(DEADLINE, settling).await.unwrap();
    }

    fn stored(&self) -> Vec<Event> {
        self.embedded.list(None, &ListOptions::default()).unwrap().items
    }

    async fn ask(&self, method: &str, target: &str, body: &str) -> Answer {
        self.ask_with("Content-Type: application/json", method, target, body).await
    }

    async fn ask_with(&self, header: &str, method: &str, target: &str, body: &str) -> Answer {
        let (name, value) = header.split_once(": ").unwrap();
        let asked = Asked {
            method: method.to_owned(),
            target: target.to_owned(),
            headers: vec![(name.to_owned(), value.to_owned())],
            body: body.as_bytes().to_vec(),
            http1: true,
        };
        Answer::of(self.app.address(), &asked).await.unwrap()
    }

    async fn watch(&self, query: &str) -> Answer {
        self.ask("GET", &format!("{EVENTS}?watch=true{query}"), "").await
    }

    async fn send(&self, method: &str, target: &str, body: &str) -> (u16, Value) {
        let mut answer = self.ask(method, target, body).await;
        let body = answer.rest().await.unwrap();
        (answer.status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}

/// Returns the next event of a watch; `None` at its clean end.
async fn next_frame(watch: &mut Answer) -> Option<Value> {
    watch.line().await.unwrap().map(|line| serde_json::from_slice(&line).unwrap())
}

const EVENTS: &str = "/api/v1/namespaces/shop/events";

fn event(name: &str, count: i32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop"},
        "involvedObject": {"kind": "Pod", "name": "web-0", "namespace": "shop"},
        "reason": "BackOff", "message": "m", "type": "Normal", "count": count,
        "source": {"component": "kubelet", "host": "node-1"},
    })
}

#[tokio::test]
async fn a_deleted_record_stays_deleted_and_the_next_occurrence_begins_a_new_one() {
    let program = start("{}").await;
    for name in ["a", "b", "c"] {
        assert_eq!(program.send("POST", EVENTS, &event(name, 1).to_string()).await.0, 201);
        if name == "a" {
            // The first is written, the others wait for the coalescing interval.
            tokio::time::timeout(DEADLINE, async {
                while program.stored().is_empty() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await
            .unwrap();
        }
    }
    let (code, answer) = program.send("DELETE", &format!("{EVENTS}/b"), "").await;
    assert_eq!((code, answer["details"]["name"].as_str()), (200, Some("b")));
    program.settle().await;
    program.clock.advance(Duration::from_secs(600));
    program.settle().await;
    assert_eq!(program.stored().len(), 0, "a waiting patch brought it back");
    let balance = program.app.shards().balance();
    assert!(balance.is_exact());
    assert_eq!(balance.ledger.lost(LostReason::Deleted), 2);
    assert_eq!(program.send("GET", &format!("{EVENTS}/a"), "").await.0, 404);
    assert_eq!(program.send("DELETE", &format!("{EVENTS}/b"), "").await.0, 404);
    program.send("POST", EVENTS, &event("d", 1).to_string()).await;
    program.settle().await;
    let stored = program.stored();
    assert_eq!((stored.len(), stored[0].metadata.name.as_str(), stored[0].count), (1, "d", 1));
    let (code, list) = program.send("DELETE", EVENTS, "").await;
    assert_eq!((code, list["items"].as_array().unwrap().len()), (200, 1));
    program.send("POST", EVENTS, &event("e", 1).to_string()).await;
    program.settle().await;
    assert_eq!(program.stored()[0].count, 1);
    assert!(program.app.stop().await.is_exact());
}

/// Fault: a successful DELETE was answered in compact JSON, whatever the client accepts.
#[tokio::test]
async fn a_delete_is_answered_as_its_client_accepts() {
    let program = start("{}").await;
    for (header, media, beginning) in [
        ("Accept: application/json", "application/json", &b"{\"kind\":\"Status\""[..]),
        ("User-Agent: curl/8", "application/json", b"{\n  \"kind\": \"Status\""),
        ("Accept: application/yaml", "application/yaml", b"apiVersion: v1\n"),
        ("Accept: application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf", b"k8s\0"),
    ] {
        program.send("POST", EVENTS, &event("a", 1).to_string()).await;
        program.settle().await;
        let mut answer = program.ask_with(header, "DELETE", &format!("{EVENTS}/a"), "").await;
        assert_eq!((answer.status, answer.header("Content-Type")), (200, Some(media)), "{header}");
        assert!(answer.rest().await.unwrap().starts_with(beginning), "{header}");
    }
    program.app.stop().await;
}

/// Fault: only answers to a GET were compressed, also for a client that refuses gzip.
#[tokio::test]
async fn every_long_answer_is_compressed_if_its_client_accepts_that() {
    let program = start("ingest: {repair: off}").await;
    let mut long = event("a", 1);
    long["message"] = "m".repeat(200_000).into();
    let (item, body) = (format!("{EVENTS}/a"), long.to_string());
    for (header, encoding) in [
        ("Accept-Encoding: gzip", Some("gzip")),
        ("Accept-Encoding: deflate, gzip ,br", Some("gzip")),
        ("Accept-Encoding: gzip;q=0", None),
    ] {
        for (method, target, body) in
            [("POST", EVENTS, body.as_str()), ("PUT", &item, &body), ("GET", &item, ""), ("DELETE", EVENTS, "")]
        {
            let answer = program.ask_with(header, method, target, body).await;
            assert_eq!(answer.header("Content-Encoding"), encoding, "{header}, {method}");
            program.settle().await;
        }
    }
    program.app.stop().await;
}

/// Fault: metadata informers of client-go got whole events, which they cannot decode.
#[tokio::test]
async fn a_watch_of_metadata_in_protobuf_has_metadata_alone() {
    let program = start("{}").await;
    program.send("POST", EVENTS, &event("a", 1).to_string()).await;
    program.settle().await;
    let accept = "Accept: application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let mut watch = program.ask_with(accept, "GET", &format!("{EVENTS}?watch=true"), "").await;
    let frame = watch.frame().await.unwrap().unwrap();
    let shows = |text: &str| frame.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(shows("PartialObjectMetadata") && shows("meta.k8s.io/v1") && !shows("BackOff"));
    program.app.stop().await;
}

#[tokio::test]
async fn a_refused_delete_changes_nothing() {
    let program = start("{}").await;
    for name in ["a", "b"] {
        program.send("POST", EVENTS, &event(name, 1).to_string()).await;
    }
    let body = json!({"preconditions": {"uid": "another"}}).to_string();
    assert_eq!(program.send("DELETE", &format!("{EVENTS}/b"), &body).await.0, 409);
    program.settle().await;
    assert_eq!(program.stored()[0].count, 2);
    assert_eq!(program.app.stop().await.ledger.total_lost(), 0);
}

#[tokio::test]
async fn a_put_is_not_an_occurrence_and_counting_continues_from_it() {
    let program = start("{}").await;
    program.send("POST", EVENTS, &event("a", 1).to_string()).await;
    program.settle().await;
    let (code, put) = program.send("PUT", &format!("{EVENTS}/a"), &event("a", 10).to_string()).await;
    assert_eq!((code, put["count"].as_i64()), (200, Some(10)));
    assert_eq!(program.app.shards().balance().ledger.received(), 1);
    program.send("POST", EVENTS, &event("b", 1).to_string()).await;
    program.settle().await;
    let stored = program.stored();
    assert_eq!((stored.len(), stored[0].count), (1, 11));
    // A PUT of an unknown event creates it; its occurrences count once they are reported.
    assert_eq!(program.send("PUT", &format!("{EVENTS}/x"), &event("x", 5).to_string()).await.0, 201);
    let balance = program.app.stop().await;
    assert_eq!((balance.ledger.received(), balance.ledger.total_written()), (2, 2));
}

/// As Python's `replace` and fabric8's `edit`, while an occurrence waits for the coalescing interval.
/// Fault: waiting occurrences were added although the GET had included them.
#[tokio::test]
async fn a_put_after_a_get_states_the_whole_count() {
    let program = start("{}").await;
    let path = format!("{EVENTS}/a");
    program.send("POST", EVENTS, &event("a", 1).to_string()).await;
    program.settle().await;
    program.send("POST", EVENTS, &event("b", 1).to_string()).await;
    for (shown, more) in [(2, 1), (3, 5)] {
        let (code, mut got) = program.send("GET", &path, "").await;
        assert_eq!((code, got["count"].as_i64()), (200, Some(shown)));
        got["count"] = json!(shown + more);
        let (code, put) = program.send("PUT", &path, &got.to_string()).await;
        assert_eq!((code, put["count"].as_i64()), (200, Some(shown + more)));
    }
    program.settle().await;
    let stored = program.stored();
    assert_eq!((stored.len(), stored[0].count), (1, 8));
    program.send("POST", EVENTS, &event("c", 1).to_string()).await;
    program.settle().await;
    assert_eq!(program.stored()[0].count, 9);
    assert!(program.app.stop().await.is_exact());
}

#[tokio::test]
async fn a_list_is_the_newest_and_an_older_exact_version_is_gone() {
    let program = start("{}").await;
    let first = program.send("PUT", &format!("{EVENTS}/a"), &event("a", 1).to_string()).await.1;
    program.send("PUT", &format!("{EVENTS}/b"), &event("b", 1).to_string()).await;
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    for (rule, expected) in
        [("", Some(2)), ("&resourceVersionMatch=Exact", None), ("&resourceVersionMatch=NotOlderThan", Some(2))]
    {
        let path = format!("{EVENTS}?limit=9&resourceVersion={version}{rule}");
        let (code, list) = program.send("GET", &path, "").await;
        assert_eq!(list["items"].as_array().map(Vec::len), expected, "{list}");
        assert_eq!(code, if expected.is_some() { 200 } else { 410 });
    }
}

#[tokio::test]
async fn watches_are_limited_counted_and_ended_by_a_stop() {
    let program = start("ingest: {maxWatches: 1}").await;
    let mut watch = program.watch("").await;
    assert_eq!(watch.status, 200);
    assert!(program.app.metrics_text().contains("eventweir_ingest_watches 1"));
    let refused = program.ask("GET", "/api/v1/watch/events", "").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")));
    program.send("POST", EVENTS, &event("a", 1).to_string()).await;
    assert_eq!(next_frame(&mut watch).await.unwrap()["object"]["metadata"]["name"], "a");
    let (balance, end) = tokio::join!(program.app.stop(), next_frame(&mut watch));
    assert_eq!(end, None, "a clean end");
    assert!(balance.is_exact());
    assert!(program.app.metrics_text().contains("eventweir_ingest_watches 0"));
}

#[tokio::test]
async fn a_watch_from_an_earlier_start_is_gone_and_continues_after_a_list() {
    let list = async |program: &Program| {
        let list = program.send("GET", EVENTS, "").await.1;
        let names = list["items"].as_array().unwrap().iter().map(|event| event["metadata"]["name"].to_string());
        (names.collect::<Vec<_>>(), list["metadata"]["resourceVersion"].as_str().unwrap().to_owned())
    };
    let watch = async |program: &Program, version: &str| program.watch(&format!("&resourceVersion={version}")).await;
    let first = start("{}").await;
    let (none, empty) = list(&first).await;
    assert!(none.is_empty());
    for number in 0..3 {
        let name = format!("a{number}");
        first.send("PUT", &format!("{EVENTS}/{name}"), &event(&name, 1).to_string()).await;
    }
    let (_, last) = list(&first).await;
    first.app.stop().await;

    // A second later, and with a clock that went back by one.
    for wall in [START + 1_000_000_000, START - 1_000_000_000] {
        let second = start_at(wall, "{}").await;
        for version in [&empty, &last] {
            let mut gone = watch(&second, version).await;
            let frame = next_frame(&mut gone).await.unwrap();
            assert_eq!((&frame["type"], &frame["object"]["code"]), (&json!("ERROR"), &json!(410)), "{frame}");
            assert_eq!((&frame["object"]["reason"], next_frame(&mut gone).await), (&json!("Expired"), None));
        }
        let (names, version) = list(&second).await;
        assert!(names.is_empty());
        let mut goes_on = watch(&second, &version).await;
        second.send("PUT", &format!("{EVENTS}/b"), &event("b", 1).to_string()).await;
        let frame = next_frame(&mut goes_on).await.unwrap();
        assert_eq!((&frame["type"], &frame["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("b")));
        second.app.stop().await;
    }
}

#[tokio::test]
async fn existing_events_are_watched_in_several_chunks() {
    let program = start("correlation: {enabled: false}").await;
    for number in 0..60 {
        let mut large = event(&format!("e{number}"), 1);
        large["message"] = "<".repeat(3000).into();
        program.send("POST", EVENTS, &large.to_string()).await;
    }
    program.settle().await;
    let mut watch = program.watch("").await;
    let mut names = std::collections::BTreeSet::new();
    while names.len() < 60 {
        let frame = next_frame(&mut watch).await.unwrap();
        assert!(names.insert(frame["object"]["metadata"]["name"].to_string()), "{frame}");
    }
    program.app.stop().await;
}

async fn next_events(watch: &mut Watch) -> Vec<WatchEvent> {
    match watch.next().await {
        Some(Step::Events(events)) => events,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_begins_with_existing_events_and_continues_with_later_changes() {
    let clock = Clock::manual(START);
    let embedded = Embedded::new(store::Settings::default(), clock, Metrics::new(&Registry::new()));
    let named = |number: usize| {
        let mut event = Event { reason: "R".into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.metadata.name = format!("e{number:04}").into();
        event
    };
    let all = 0..1200;
    embedded.access(|store, now| {
        all.clone().for_each(|number| drop(store.create(named(number), now).unwrap()));
        // Events that the watch does not select.
        let mut elsewhere = named(0);
        elsewhere.metadata.namespace = "zoo".into();
        store.create(elsewhere, now).unwrap();
        store.create(Event { reason: "S".into(), ..named(9999) }, now).unwrap();
    });
    let version = embedded.list(None, &ListOptions::default()).unwrap().resource_version;
    let field_selector = FieldSelector::parse("reason=R", ApiGroup::Core).unwrap();
    let options =
        WatchOptions { field_selector, send_initial_events: Some(true), bookmarks: true, ..WatchOptions::default() };
    let mut watch = Upstream::Embedded(embedded.clone()).watch(Some("shop"), options).await.unwrap();
    let mut events = next_events(&mut watch).await;
    assert!(events.len() < all.len(), "not all at once");
    let count = |event: &mut Event| event.count += 1;
    embedded.access(|store, now| {
        store.update("shop", "e0000", now, count).unwrap();
        store.update("shop", "e1199", now, count).unwrap();
        store.delete("shop", "e0600", &DeleteOptions::default(), now).unwrap();
    });
    while events.len() < all.len() + 4 {
        events.extend(next_events(&mut watch).await);
    }
    let changes = events.split_off(all.len());
    for (number, event) in events.iter().enumerate() {
        let WatchEvent::Added(event) = event else { panic!("{event:?}") };
        assert_eq!((&event.metadata.name, event.count), (&named(number).metadata.name, 0));
    }
    assert!(matches!(&changes[0], WatchEvent::Bookmark(end) if *end.metadata.resource_version == *version));
    let changes: Vec<_> = changes.iter().map(WatchEvent::label).collect();
    assert_eq!(changes, ["BOOKMARK", "MODIFIED", "MODIFIED", "DELETED"]);
}

/// A client that keeps a copy of all events by LIST and WATCH, and detects missed and duplicate changes.
struct Mirror {
    upstream: Upstream,
    events: BTreeMap<String, Event>,
    version: u64,
    watch: Option<Watch>,
    behind: u32,
}

impl Mirror {
    async fn list(&mut self) {
        let list = self.upstream.list(None, &ListOptions { version: Version::Newest, ..ListOptions::default() }).await;
        let list = list.unwrap();
        self.version = list.resource_version.parse().unwrap();
        self.events = list.items.into_iter().map(|event| (event.metadata.name.to_string(), event)).collect();
        self.resume().await;
    }

    async fn resume(&mut self) {
        let options = WatchOptions { resource_version: self.version, ..WatchOptions::default() };
        self.watch = Some(self.upstream.watch(None, options).await.unwrap());
    }

    /// Takes the available events; false when there are none.
    async fn take(&mut self) -> bool {
        let next = self.watch.as_mut().unwrap().next();
        let Ok(Some(Step::Events(events))) = tokio::time::timeout(Duration::from_millis(1), next).await else {
            return false;
        };
        for event in events {
            let known = |event: &Event| self.events.contains_key(event.metadata.name.as_str());
            let (event, there) = match event {
                WatchEvent::Added(event) => {
                    assert!(!known(&event), "added twice");
                    (event, true)
                }
                WatchEvent::Modified(event) => {
                    assert!(known(&event), "modified before it was added");
                    (event, true)
                }
                WatchEvent::Deleted(event) => {
                    assert!(known(&event), "deleted before it was added");
                    (event, false)
                }
                WatchEvent::Error(status) => {
                    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
                    self.behind += 1;
                    self.list().await;
                    return true;
                }
                WatchEvent::Bookmark(_) => panic!("bookmarks were not requested"),
            };
            let version = event.metadata.resource_version.parse().unwrap();
            assert!(version > self.version, "sent twice or out of order");
            self.version = version;
            let name = event.metadata.name.to_string();
            if there {
                self.events.insert(name, Event::clone(&event));
            } else {
                self.events.remove(&name);
            }
        }
        true
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_or_falls_behind_misses_and_duplicates_nothing() {
    let mut behind = 0;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = Clock::manual(START);
        let settings = store::Settings {
            ttl: Duration::from_secs(60),
            max_changes: std::num::NonZeroUsize::new(50).unwrap(),
            ..store::Settings::default()
        };
        let metrics = Metrics::new(&Registry::new());
        let embedded = Embedded::with_store(Store::new(settings, seed), clock.clone(), metrics);
        let upstream = Upstream::Embedded(embedded.clone());
        let mut mirror = Mirror { upstream, events: BTreeMap::new(), version: 0, watch: None, behind: 0 };
        mirror.list().await;
        for _ in 0..300 {
            for _ in 0..random.usize(..12) {
                let name = format!("e{}", random.u8(..30));
                embedded.access(|store, now| {
                    let mut event = Event::default();
                    event.metadata.namespace = "shop".into();
                    event.metadata.name = name.as_str().into();
                    if store.create(event, now).is_err() && random.bool() {
                        store.delete("shop", &name, &DeleteOptions::default(), now).unwrap();
                    } else {
                        store.update("shop", &name, now, |event| event.count += 1).unwrap();
                    }
                });
            }
            clock.advance(Duration::from_secs(random.u64(..8)));
            match random.u8(..20) {
                0 => mirror.resume().await,
                // Slow: does not read for a while.
                1..=15 => {}
                _ => while mirror.take().await {},
            }
        }
        while mirror.take().await {}
        let list = embedded.list(None, &ListOptions::default()).unwrap();
        let stored: BTreeMap<String, Event> =
            list.items.into_iter().map(|event| (event.metadata.name.to_string(), event)).collect();
        assert_eq!(mirror.events, stored, "seed {seed}");
        behind += mirror.behind;
    }
    assert!(behind > 40, "the watches never fell behind: {behind}");
}

#[tokio::test]
async fn without_correlation_an_event_of_a_batch_is_stored_like_that_of_a_post() {
    let program = start("correlation: {enabled: false}").await;
    let event = |name: &str| {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": name, "namespace": "default" },
            "regarding": { "kind": "Pod", "name": "p", "namespace": "default" }, "reason": "R", "type": "Normal",
            "action": "A", "eventTime": "2026-03-01T08:00:00.000000Z", "reportingController": "c",
            "reportingInstance": "i",
            "series": { "count": 3, "lastObservedTime": "2026-03-01T08:00:09.000000Z" },
        });
        event.to_string()
    };
    let post = "/apis/events.k8s.io/v1/namespaces/default/events?fieldManager=tool";
    assert_eq!(program.send("POST", post, &event("a")).await.0, 201);
    assert_eq!(program.send("POST", "/eventweir/v1/events?fieldManager=tool", &event("b")).await.0, 200);
    program.settle().await;
    let [posted, batched] = program.stored().try_into().unwrap();
    assert_eq!(batched.series.as_ref().map(|series| series.count), Some(3));
    let unlike = |mut event: Event| {
        event.metadata.name = "".into();
        event.metadata.uid = "".into();
        event.metadata.resource_version = "".into();
        event
    };
    assert_eq!(unlike(batched), unlike(posted));
}
