//! History: counts continue from the records in the upstream. The upstream is a second program with the embedded store,
//! reached over real connections.

use std::time::Duration;

use eventweir::event::{Event, EventSeries, MicroTime};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::support::app::{APISERVER, Program, start, start_before, start_behind};
use super::support::events::{event, plain};
use super::support::fake::FakeApiserver;
use super::support::http::EVENTS;

/// Starts a program that has listed what this API server holds.
async fn start_informed(apiserver: &Program) -> Program {
    let program = start_behind(apiserver, "").await;
    program.until_news("relist", 1.0).await;
    program
}

async fn report(program: &Program, number: usize) {
    let mut client = program.client().await;
    for _ in 0..number {
        client.post(&plain()).await;
    }
    program.settle().await;
}

async fn stored(apiserver: &Program) -> Vec<(String, i32)> {
    apiserver.stored().await.iter().map(|event| (event.reason.to_string(), event.count)).collect()
}

/// Returns the number of requests to the upstream with this result.
async fn requests(program: &Program, verb: &str) -> f64 {
    let head = "eventweir_upstream_requests_total{";
    let samples = program.metrics().await;
    let matching = samples.iter().filter(|(name, _)| name.starts_with(head) && name.contains(&format!("\"{verb}\"")));
    matching.map(|(_, value)| value).sum()
}

#[tokio::test]
async fn repeats_after_a_restart_count_on_the_old_record() {
    let apiserver = start(APISERVER).await;
    let before = start_behind(&apiserver, "").await;
    report(&before, 3).await;
    before.stop().await;
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 3)]);
    for history in ["watch", "list"] {
        let after = start_behind(&apiserver, &format!("upstream: {{history: {history}}}")).await;
        after.until_news("relist", 1.0).await;
        let ready = after.admin().await.get("/readyz").await;
        assert!(ready.text().contains("[+]history ok"), "{}", ready.text());
        // Fault: after the only list, the page said that the events are followed.
        let page = after.admin().await.get("/").await.text();
        let said = if history == "list" { "listed 0 s ago" } else { "followed, last message 0 s ago" };
        assert!(page.contains(&format!("<dt>history</dt><dd>{said}</dd>")), "{page}");
        report(&after, 2).await;
        assert_eq!(requests(&after, "create").await, 0.0, "{history}");
        after.stop().await;
    }
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 7)]);
    // Without history the repeat begins a new record.
    let after = start_behind(&apiserver, "upstream: {history: off}").await;
    report(&after, 2).await;
    after.stop().await;
    assert_eq!(stored(&apiserver).await.len(), 2);
}

#[tokio::test]
async fn an_old_combined_record_is_recognised_by_its_prefix() {
    let apiserver = start(APISERVER).await;
    let messages = |number: usize| (0..number).map(|n| event("node-1", "web-0", "FailedMount", &format!("volume {n}")));
    let before = start_behind(&apiserver, "").await;
    for event in messages(15) {
        before.client().await.post(&event).await;
    }
    before.settle().await;
    before.stop().await;
    let held = stored(&apiserver).await;
    assert_eq!(held.len(), 10);
    let after = start_informed(&apiserver).await;
    for event in messages(15) {
        after.client().await.post(&event).await;
    }
    after.settle().await;
    assert_eq!(requests(&after, "create").await, 0.0);
    after.stop().await;
    let now = stored(&apiserver).await;
    assert_eq!((now.len(), now.iter().map(|(_, count)| count).sum::<i32>()), (10, 30));
}

/// Fault: the first replica counted again what the second had counted meanwhile.
#[tokio::test]
async fn a_client_that_returns_to_a_replica_counts_on_from_the_other_one() {
    let apiserver = start(APISERVER).await;
    let first = start_informed(&apiserver).await;
    let event = plain();
    let name = &event.metadata.name;
    first.client().await.post(&event).await;
    first.settle().await;
    first.client().await.patch(name, &json!({"count": 3})).await;
    first.settle().await;
    let second = start_informed(&apiserver).await;
    // As client-go does when it gets 404.
    assert_eq!(second.client().await.patch(name, &json!({"count": 5})).await.status, 404);
    second.client().await.post(&Event { count: 5, ..event.clone() }).await;
    second.settle().await;
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 5)]);
    // The create and the patch of the first, and the patch of the second.
    first.until_news("stored", 3.0).await;
    first.client().await.patch(name, &json!({"count": 6})).await;
    first.settle().await;
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 6)]);
    assert_eq!((first.stop().await.ledger.received(), second.stop().await.ledger.received()), (4, 2));
}

/// Fault: what the first series had counted under the name was taken from the second one.
#[tokio::test]
async fn a_client_that_begins_again_under_its_name_counts_on() {
    let apiserver = start(APISERVER).await;
    let program = start_informed(&apiserver).await;
    let event = plain();
    let mut shown = 0;
    for (number, totals) in [(1.0, [2, 5]), (2.0, [2, 3])] {
        program.client().await.post(&event).await;
        for total in totals {
            program.client().await.patch(&event.metadata.name, &json!({"count": total})).await;
        }
        shown += totals[1];
        program.settle().await;
        // The watch has brought the line back.
        program.until_news("stored", number).await;
        assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), shown)]);
    }
    assert_eq!(program.stop().await.ledger.received(), 8);
}

/// Fault: an occurrence was missing. The line that another client's event had given the record was taken for news.
#[tokio::test]
async fn a_client_that_begins_again_after_a_restart_counts_on() {
    let apiserver = start(APISERVER).await;
    let before = start_behind(&apiserver, "").await;
    let (event, other) = (plain(), plain());
    count(&before, &event, 2).await;
    before.stop().await;
    let after = start_informed(&apiserver).await;
    for posted in [&other, &event] {
        after.client().await.post(posted).await;
    }
    after.settle().await;
    after.client().await.patch(&event.metadata.name, &json!({"count": 2})).await;
    after.settle().await;
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 5)]);
    assert_eq!(after.stop().await.ledger.received(), 3);
}

/// Fault: client-go's broadcaster sends a series once more at its end. After a restart of eventweir its patch got 404,
/// and the POST of the same series counted once more.
#[tokio::test]
async fn a_series_that_is_posted_again_after_a_restart_brings_nothing() {
    let apiserver = start(APISERVER).await;
    let event = Event {
        event_time: Some(MicroTime(1_772_352_000_000_000)),
        action: "Restart".into(),
        reporting_controller: "example.com/kubelet".into(),
        reporting_instance: "node-1".into(),
        ..plain()
    };
    let series = |count| Some(EventSeries { count, last_observed_time: event.event_time });
    let before = start_informed(&apiserver).await;
    before.client().await.post(&event).await;
    let patch = json!({"series": {"count": 2, "lastObservedTime": "2026-03-01T08:00:30.000000Z"}});
    before.client().await.patch(&event.metadata.name, &patch).await;
    before.settle().await;
    before.stop().await;
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 2)]);
    let after = start_informed(&apiserver).await;
    for (told, shown) in [(2, 2), (2, 2), (4, 4)] {
        after.client().await.post(&Event { series: series(told), ..event.clone() }).await;
        after.settle().await;
        assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), shown)]);
    }
    assert_eq!(after.stop().await.ledger.received(), 2);
}

#[tokio::test]
async fn an_expired_record_is_created_again_without_a_patch() {
    let apiserver = start(&format!("{APISERVER}upstream: {{embedded: {{ttl: 1h}}}}\n")).await;
    let program = start_informed(&apiserver).await;
    report(&program, 3).await;
    program.until_news("stored", 1.0).await;
    apiserver.clock.advance(Duration::from_secs(3_700));
    apiserver.clock.advance(Duration::from_secs(60));
    program.until_news("gone", 1.0).await;
    let patches = requests(&program, "patch").await;
    report(&program, 1).await;
    assert_eq!(requests(&program, "patch").await, patches);
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 4)]);
    program.stop().await;
}

#[tokio::test]
async fn the_count_of_another_writer_moves_the_baseline() {
    let apiserver = start(APISERVER).await;
    let program = start_informed(&apiserver).await;
    report(&program, 3).await;
    let [held] = <[Event; 1]>::try_from(apiserver.stored().await).unwrap();
    let path = format!("{EVENTS}/{}", held.metadata.name);
    let headers = [("Content-Type", "application/merge-patch+json")];
    let patch = json!({"count": 103}).to_string();
    let reply = apiserver.client().await.send("PATCH", &path, &headers, patch.as_bytes()).await;
    assert_eq!(reply.status, 200);
    // The create, the own patch and this one.
    program.until_news("stored", 3.0).await;
    let reads = requests(&program, "get").await;
    report(&program, 2).await;
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 105)]);
    // It was known, so no patch got a conflict.
    assert_eq!(requests(&program, "get").await, reads);
    program.stop().await;
}

#[tokio::test]
async fn without_the_right_to_list_the_program_becomes_ready() {
    let fake = super::support::fake::FakeApiserver::new(eventweir::clock::Clock::manual(super::support::events::START));
    let program = super::support::app::start_before(&fake, "").await;
    program.until_news("error", 1.0).await;
    assert_eq!(program.admin().await.get("/readyz").await.status, 200);
    program.app.stop().await;
}

/// Fault: after a failed watch, history counted as not followed until the next event, for hours in a quiet cluster.
#[tokio::test]
async fn a_watch_that_is_open_again_is_followed_without_an_event() {
    let apiserver = start("ingest: {maxWatches: 1}\n").await;
    let mut watch = tokio::net::TcpStream::connect(apiserver.app.address()).await.unwrap();
    watch.write_all(format!("GET {EVENTS}?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    apiserver.until_metric("eventweir_ingest_watches", |open| open == 1.0).await;
    let program = start_informed(&apiserver).await;
    program.until_news("error", 1.0).await;
    program.until_metric("eventweir_history_synced", |synced| synced == 0.0).await;
    // Fault: the page took the time since the last message for the time since the watch broke.
    let page = program.admin().await.get("/").await.text();
    assert!(page.contains("<dt>history</dt><dd>not followed, last message 0 s ago</dd>"), "{page}");
    let ready = program.admin().await.get("/readyz").await;
    assert!(ready.status == 200 && ready.text().contains("[+]history not followed\n"), "{}", ready.text());
    drop(watch);
    program.until_metric("eventweir_history_synced", |synced| synced == 1.0).await;
    program.stop().await;
    apiserver.stop().await;
}

/// Fault: the total of a client that was there before a restart counted as a whole.
#[tokio::test]
async fn a_total_waits_until_the_events_are_listed_but_for_thirty_seconds_at_most() {
    let fake = super::support::fake::FakeApiserver::manual();
    fake.set_up(false);
    let program = super::support::app::start_before(&fake, "").await;
    program.until_news("error", 1.0).await;
    let ready = program.admin().await.get("/readyz").await;
    assert_eq!(ready.status, 503, "{}", ready.text());
    let (mut client, mut other) = (program.client().await, program.client().await);
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(async move { other.post(&Event { count: 3, ..plain() }).await.status });
    for _ in 0..50 {
        assert_eq!(client.post(&plain()).await.status, 201, "an event without a total does not wait");
    }
    assert!(waiting.try_join_next().is_none());
    fake.clock().advance(Duration::from_secs(31));
    assert_eq!(waiting.join_next().await.unwrap().unwrap(), 201);
    assert_eq!(program.metrics().await["eventweir_ledger_received_total"], 53.0);
}

/// Sends a client's POST, and patches of its count up to `total`.
async fn count(program: &Program, event: &Event, total: i32) {
    let mut client = program.client().await;
    let mut event = event.clone();
    for count in 1..=total {
        let reply = client.patch(&event.metadata.name, &json!({ "count": count })).await;
        // client-go posts the whole event after a 404.
        if reply.status == 404 {
            event.count = count;
            assert_eq!(client.post(&event).await.status, 201);
        }
    }
    program.settle().await;
}

/// Fault: after a restart a client's total counted again if its record had another name.
#[tokio::test]
async fn a_clients_total_on_a_record_of_another_name_counts_by_its_growth_after_a_restart() {
    let apiserver = start(APISERVER).await;
    let (first, second, third) = (plain(), plain(), plain());
    let before = start_behind(&apiserver, "").await;
    count(&before, &first, 4).await;
    count(&before, &second, 7).await;
    count(&before, &third, 1).await;
    before.stop().await;
    assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), 12)]);
    let mut shown = 12;
    for total in [9, 11] {
        let after = start_informed(&apiserver).await;
        let mut client = after.client().await;
        for (event, grown) in [(&second, 2), (&third, if total == 9 { 8 } else { 2 })] {
            let posted = Event { count: total, ..event.clone() };
            assert_eq!(client.patch(&event.metadata.name, &json!({ "count": total })).await.status, 404);
            assert_eq!(client.post(&posted).await.status, 201);
            shown += grown;
        }
        after.settle().await;
        assert_eq!(stored(&apiserver).await, [("BackOff".to_owned(), shown)], "{total}");
        after.stop().await;
    }
    // A line of another event begins at 0, even under a used name.
    let after = start_informed(&apiserver).await;
    let stored_before = after.metrics().await["eventweir_history_news_total{kind=\"stored\"}"];
    let mut client = after.client().await;
    let other = Event { reason: "Killing".into(), count: 3, ..second.clone() };
    client.post(&other).await;
    client.post(&Event { count: 12, ..second.clone() }).await;
    after.settle().await;
    after.until_news("stored", stored_before + 2.0).await;
    let mut held = stored(&apiserver).await;
    // In the order of their names, which end with a time.
    held.sort();
    assert_eq!(held, [("BackOff".to_owned(), shown + 1), ("Killing".to_owned(), 3)]);
    // A line that its client has deleted begins at 0 too.
    client.send("DELETE", &format!("{EVENTS}/{}", second.metadata.name), &[], b"").await;
    client.post(&Event { count: 4, ..second.clone() }).await;
    after.settle().await;
    assert!(stored(&apiserver).await.contains(&("BackOff".to_owned(), 4)));
    after.stop().await;
}

/// Fault: a write that had waited set a client's line on the record back, because the client had meanwhile counted on
/// through another record of the process. After a restart its total counted again.
#[tokio::test]
async fn a_late_write_does_not_set_a_clients_line_back() {
    const CONFIG: &str = "correlation: {naming: deterministic, lruCacheSize: 1}\n";
    let apiserver = start(APISERVER).await;
    let (event, other) = (plain(), Event { reason: "Killing".into(), ..plain() });
    let before = start_behind(&apiserver, CONFIG).await;
    let are_written = |number| before.balance().ledger.total_written() == number;
    let mut client = before.client().await;
    client.post(&event).await;
    before.until("the first is written", || are_written(1)).await;
    // Waits for the end of the interval between writes, and its key is evicted.
    client.patch(&event.metadata.name, &json!({ "count": 3 })).await;
    client.post(&other).await;
    // Another record of the same name.
    client.patch(&event.metadata.name, &json!({ "count": 5 })).await;
    before.until("all but two are written", || are_written(4)).await;
    before.settle().await;
    assert!(stored(&apiserver).await.contains(&("BackOff".to_owned(), 5)));
    before.stop().await;
    let after = start_behind(&apiserver, CONFIG).await;
    after.until_news("relist", 1.0).await;
    let mut client = after.client().await;
    assert_eq!(client.patch(&event.metadata.name, &json!({ "count": 6 })).await.status, 404);
    client.post(&Event { count: 6, ..event }).await;
    after.settle().await;
    let held = stored(&apiserver).await;
    assert!(held.contains(&("BackOff".to_owned(), 6)), "{held:?}");
    after.stop().await;
}

/// Fault: the whole count became the line of the refused client, when another one counted on. Its next totals brought
/// nothing.
#[tokio::test]
async fn a_refused_total_does_not_claim_the_count_of_its_record() {
    let fake = FakeApiserver::manual();
    let program =
        start_before(&fake, "outbox: {coalesceInterval: 0s}\nlimits: [{type: Server, qps: 1, burst: 1}]\n").await;
    let mut client = program.client().await;
    let (mine, yours) = (plain(), plain());
    for event in [&mine, &yours] {
        assert_eq!(client.post(event).await.status, 201);
        program.settle().await;
        program.clock.advance(Duration::from_secs(2));
    }
    for (event, total, is_refused) in
        [(&mine, 3, false), (&yours, 5, false), (&mine, 4, true), (&yours, 6, false), (&mine, 5, false)]
    {
        if is_refused {
            // Takes the token.
            assert_eq!(client.post(&Event { reason: "Killing".into(), ..plain() }).await.status, 201);
        }
        let reply = client.patch(&event.metadata.name, &json!({ "count": total })).await;
        assert_eq!(reply.status, if is_refused { 429 } else { 200 }, "{total}");
        program.settle().await;
        program.clock.advance(Duration::from_secs(2));
    }
    let shown = fake.events().iter().map(|event| (event.reason.to_string(), event.count)).collect::<Vec<_>>();
    assert!(shown.contains(&("BackOff".to_owned(), 11)), "{shown:?}");
    program.stop().await;
}
