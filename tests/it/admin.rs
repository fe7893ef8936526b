//! Health, metrics and the event log.

use std::time::Duration;

use eventweir::app::Listeners;
use eventweir::clock::Clock;
use eventweir::config::Config;
use serde_json::{Value, json};

use super::support::app::{config, start, start_before};
use super::support::events::{START, event, plain, warning};
use super::support::fake::{FakeApiserver, Fault};

#[tokio::test]
async fn health_is_served_under_every_name() {
    let program = start("").await;
    let admin = &mut program.admin().await;
    for path in ["/livez", "/healthz", "/-/healthy"] {
        let reply = admin.get(path).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, "[+]delivery-turns ok\n"), "{path}");
    }
    for path in ["/readyz", "/-/ready"] {
        let reply = admin.get(path).await;
        assert_eq!(
            (reply.status, reply.text().as_str()),
            (200, "[+]accepting ok\n[+]history ok\nupstream not tried yet: nothing has been written\n")
        );
    }
    assert_eq!(admin.get("/nothing").await.status, 404);
    program.stop().await;
}

#[tokio::test]
async fn readiness_shows_the_state_of_the_upstream() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let (mut admin, client) = (program.admin().await, &mut program.client().await);
    let mut upstream = async || admin.get("/readyz").await.text().lines().last().unwrap().to_owned();
    assert_eq!(upstream().await, "upstream not tried yet: nothing has been written");
    client.post(&plain()).await;
    program.settle().await;
    assert_eq!(upstream().await, "upstream up");
    fake.set_up(false);
    client.post(&event("node-1", "web-1", "R", "m")).await;
    program
        .until("it fails", || fake.shown() == 1 && program.app.metrics_text().contains("eventweir_upstream_up 0"))
        .await;
    assert_eq!(upstream().await, "upstream down: events wait in the outbox");
    fake.set_up(true);
    program.settle().await;
    assert_eq!(upstream().await, "upstream up");
    program.stop().await;
}

#[tokio::test]
async fn the_page_links_to_existing_paths_and_shows_the_configuration_in_force() {
    let program = start("correlation: {burstSize: 7}\n").await;
    let admin = &mut program.admin().await;
    let page = admin.get("/").await;
    assert_eq!((page.status, page.header("Content-Type")), (200, Some("text/html; charset=utf-8")));
    let text = page.text();
    let links: Vec<&str> = text.split("href=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(links.len() >= 4);
    for link in links.into_iter().filter(|link| !link.starts_with(['#', '.'])) {
        assert_eq!(admin.get(&format!("/{link}")).await.status, 200, "{link}");
    }
    assert!(admin.get("/config").await.text().contains("\n  burstSize: 7\n"));
    program.stop().await;
}

#[tokio::test]
async fn while_draining_it_is_not_ready_but_alive() {
    let fake = FakeApiserver::new(Clock::manual(START));
    fake.set_up(false);
    let program = start_before(&fake, "shutdown: {drainTimeout: 1m}\n").await;
    program.client().await.post(&plain()).await;
    let app = std::sync::Arc::clone(&program.app);
    let mut stopping = tokio::task::JoinSet::new();
    stopping.spawn(async move { app.stop().await });
    let mut admin = program.admin().await;
    let draining = async {
        loop {
            let reply = admin.get("/readyz").await;
            if reply.status == 503 {
                return reply.text();
            }
        }
    };
    let text = tokio::time::timeout(super::support::app::DEADLINE, draining).await.unwrap();
    assert!(text.starts_with("[-]accepting failed\n"), "{text}");
    assert_eq!(admin.get("/livez").await.status, 200);
    // Fault: it was answered 202.
    assert_eq!(admin.send("POST", "/-/reload", &[], b"").await.status, 503);
    fake.set_up(true);
    let clock = program.clock.clone();
    program
        .until("it is written", || {
            clock.advance(Duration::from_secs(1));
            fake.shown() == 1
        })
        .await;
    let balance = stopping.join_next().await.unwrap().unwrap();
    assert!(balance.is_exact());
    assert_eq!((balance.ledger.total_written(), balance.ledger.total_lost()), (1, 0));
}

/// Losses of long ago do not hide the state of now. Fault: the page warned of losses that the configuration asks for,
/// and the alert did not.
#[tokio::test]
async fn the_page_warns_of_the_faults_of_the_last_ten_minutes() {
    let fake = FakeApiserver::manual();
    fake.plan(|seen| if seen.object == "bad" { Fault::Before(422) } else { Fault::None });
    let yaml = "correlation: {suppression: drop, burstSize: 1}\nexplain: {enabled: false}\n";
    let program = start_before(&fake, yaml).await;
    let (admin, client) = (&mut program.admin().await, &mut program.client().await);
    for _ in 0..4 {
        client.post(&plain()).await;
    }
    program.settle().await;
    let page = admin.get("/").await.text();
    let text = "OK</strong>: of 3 occurrences lost in the last ten minutes, none was lost by a fault.";
    assert!(page.contains(text), "{page}");
    client.post(&event("node-1", "bad", "R", "m")).await;
    program.settle().await;
    let page = admin.get("/").await.text();
    assert!(page.contains("! LOSING</strong>: 1 occurrences in the last ten minutes; by reason below."), "{page}");
    program.clock.advance(Duration::from_secs(660));
    let page = admin.get("/").await.text();
    assert!(page.contains("OK</strong>: nothing was lost in the last ten minutes."), "{page}");
    assert!(page.contains("<dt>lost</dt><dd>4</dd>"), "{page}");
    program.stop().await;
}

#[tokio::test]
async fn the_page_links_to_the_explanation_of_an_object_with_any_name() {
    let program = start("").await;
    let (admin, client) = (&mut program.admin().await, &mut program.client().await);
    let punctuation: String = (' '..='~').filter(|c| !c.is_ascii_alphanumeric()).collect();
    let names = [&punctuation, "\u{202e}\u{200b}\u{1b}[31m</td>", &"漢".repeat(253)];
    for name in names {
        assert_eq!(client.post(&event("node-1", name, "R", "m")).await.status, 201);
    }
    let page = admin.get("/").await.text();
    let links: Vec<_> = page.split("<a href=\"").filter(|link| link.starts_with("explain?")).collect();
    assert_eq!(links.len(), names.len());
    for link in links {
        let link = link.split('"').next().unwrap().replace("&amp;", "&");
        let answer = admin.get(&format!("/{link}")).await.text();
        assert!(!answer.contains("Nothing is known") && answer.contains("Decisions"), "{link}: {answer}");
    }
    program.stop().await;
}

#[tokio::test]
async fn before_the_first_event_the_page_says_what_to_do() {
    let program = start("").await;
    let admin = &mut program.admin().await;
    let mut has = async |text: &str| admin.get("/").await.text().contains(text);
    assert!(has("No event has arrived yet").await && !has("Noisiest objects").await);
    program.client().await.post(&plain()).await;
    assert!(!has("No event has arrived yet").await && has("Noisiest objects").await);
    program.stop().await;
}

/// It refuses at either limit, so the fuller one counts.
#[tokio::test]
async fn the_page_shows_an_outbox_that_is_full_of_bytes() {
    let fake = FakeApiserver::manual();
    fake.set_up(false);
    let program = start_before(&fake, "shards: 1\noutbox: {maxBytes: 1Mi, sourcePercent: 100}\n").await;
    let (admin, client) = (&mut program.admin().await, &mut program.client().await);
    for number in 0..4 {
        let mut large = event("node-1", &format!("web-{number}"), "R", "m");
        let annotations = &mut large.metadata.rare.get_or_insert_default().annotations;
        annotations.insert("large".into(), "x".repeat(220_000).into());
        assert_eq!(client.post(&large).await.status, 201);
    }
    let metrics = program.metrics().await;
    let full = 100.0 * metrics["eventweir_outbox_bytes"] / metrics["eventweir_outbox_limit_bytes"];
    let full = full.floor();
    assert!(full > 80.0, "{full}");
    let page = admin.get("/").await.text();
    assert!(page.contains(&format!("<dt>outbox</dt><dd>{full:.0} %</dd>")), "{full}: {page}");
}

/// Fault: only the first of them was shown.
#[tokio::test]
async fn the_page_shows_all_problems_with_a_link_each() {
    let fake = FakeApiserver::manual();
    fake.plan(|seen| if seen.object.starts_with("bad") { Fault::Before(422) } else { Fault::None });
    let program = start_before(&fake, "outbox: {maxRecords: 1, coalesceInterval: 1h}\n").await;
    let client = &mut program.client().await;
    for object in ["bad-1", "bad-2", "web-0"] {
        client.post(&event("node-1", object, "R", "m")).await;
        program.settle().await;
    }
    let page = program.admin().await.get("/").await.text();
    let (_, alarms) = page.split_once("<p id=\"alarm\">").unwrap();
    let (alarms, _) = alarms.split_once("</p>").unwrap();
    let linked = |name: &str| format!(" <a href=\"metrics#:~:text={name}\">{name}</a>");
    let expected = [
        ("! FULL</strong>: the outbox is 100 % full", linked("eventweir_outbox_records")),
        ("! LOSING</strong>: 2 occurrences in the last ten minutes", linked("eventweir_ledger_lost_total")),
    ];
    let lines: Vec<&str> = alarms.split("<br>").collect();
    assert_eq!(lines.len(), 2, "{alarms}");
    for (line, (text, link)) in lines.iter().zip(expected) {
        assert!(line.contains(text) && line.ends_with(&link), "{line}");
    }
    assert_eq!(alarms.matches("role=\"status\"").count(), 1, "{alarms}");
    program.stop().await;
}

/// The newest answer counts: losses in one namespace are not the state of all.
#[tokio::test]
async fn an_upstream_that_forbids_writing_shows_in_readiness_and_metrics_until_it_allows_it() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let (mut admin, client) = (program.admin().await, &mut program.client().await);
    // Longer than a 403 counts as temporary.
    fake.plan(|seen| match (seen.object.as_str(), seen.method == http::Method::PATCH) {
        ("web-0", _) | (_, true) => Fault::Before(403),
        _ => Fault::None,
    });
    client.post(&event("node-1", "web-0", "R", "m")).await;
    program.settle().await;
    let reply = admin.get("/readyz").await;
    assert_eq!(reply.status, 200, "no other replica has more rights");
    assert!(reply.text().ends_with("upstream forbidden: it answers 403 to create of events\n"), "{}", reply.text());
    let page = admin.get("/").await.text();
    assert!(
        page.contains("! UPSTREAM forbidden</strong>: it answers 403 to create of events. <a href=\"metrics#:~:text="),
        "{page}"
    );
    let metrics = program.metrics().await;
    let forbidden = |verb: &str| metrics[&format!("eventweir_upstream_forbidden{{verb=\"{verb}\"}}")];
    assert_eq!((forbidden("create"), forbidden("patch")), (1.0, 0.0));
    // Another record is created; its patch is forbidden.
    client.post(&event("node-1", "web-1", "R", "m")).await;
    program.settle().await;
    assert!(admin.get("/readyz").await.text().ends_with("upstream up\n"));
    client.post(&event("node-1", "web-1", "R", "m")).await;
    program.settle().await;
    assert!(admin.get("/readyz").await.text().ends_with("403 to patch of events\n"));
    // Fault: eventweir said so until a patch was accepted. An API server refuses an event only after it has looked for
    // the right.
    fake.plan(|_| Fault::Before(422));
    client.post(&event("node-1", "web-1", "R", "m")).await;
    program.settle().await;
    assert!(admin.get("/readyz").await.text().ends_with("upstream up\n"));
    assert_eq!(program.stop().await.ledger.total_lost(), 3);
}

/// The sum of a metric over all its labels.
fn total(metrics: &std::collections::BTreeMap<String, f64>, name: &str) -> f64 {
    metrics.iter().filter(|(sample, _)| sample.split('{').next() == Some(name)).map(|(_, value)| value).sum()
}

#[tokio::test]
async fn the_ledger_of_the_metrics_balances_at_every_scrape() {
    let program = start("correlation: {burstSize: 3, qps: 0}\n").await;
    let client = &mut program.client().await;
    for number in 0..30 {
        client.post(&event("node-1", &format!("web-{}", number % 4), &format!("Reason{}", number % 9), "m")).await;
        if number % 3 == 0 {
            client.send("POST", super::support::http::EVENTS, &[], b"{").await;
        }
        let metrics = program.metrics().await;
        let parts = ["rejected_total", "written_total", "waiting", "lost_total"];
        let sum: f64 = parts.iter().map(|part| total(&metrics, &format!("eventweir_ledger_{part}"))).sum();
        assert!((metrics["eventweir_ledger_received_total"] - sum).abs() < 0.5, "{metrics:?}");
    }
    let metrics = program.metrics().await;
    assert_eq!(total(&metrics, "eventweir_ledger_received_total"), 40.0);
    assert_eq!(metrics[r#"eventweir_ledger_rejected_total{reason="malformed"}"#], 10.0);
    assert_eq!(metrics[r#"eventweir_ingest_requests_total{code="2xx",verb="post"}"#], 30.0);
    assert_eq!(total(&metrics, "eventweir_ingest_occurrences_total"), 30.0);
    assert_eq!(metrics["eventweir_config_last_reload_successful"], 1.0);
    assert_eq!(metrics["eventweir_upstream_up"], 1.0);
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_written()), (40, 30));
}

#[tokio::test]
async fn every_occurrence_is_a_line_of_the_event_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let program = start(&format!("eventLog: {}\n", path.display())).await;
    let client = &mut program.client().await;
    let first = warning("node-1", "web-0", "Failed", "failed");
    client.post(&first).await;
    client.post(&warning("node-1", "web-0", "Failed", "failed")).await;
    client.patch(&first.metadata.name, &json!({"count": 4})).await;
    client.send("POST", super::support::http::EVENTS, &[], b"{").await;
    program.settle().await;
    program.stop().await;
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> =
        lines.iter().map(|line| (line["outcome"].as_str().unwrap(), line["occurrences"].as_u64().unwrap())).collect();
    assert_eq!(told, [("created", 1), ("counted", 1), ("counted", 3)]);
    assert_eq!(lines[0]["name"], first.metadata.name.as_str());
    assert_eq!(lines[0]["time"], "2026-03-01T08:00:00.000000Z");
    for (member, value) in [
        ("namespace", "shop"),
        ("kind", "Pod"),
        ("object", "web-0"),
        ("type", "Warning"),
        ("reason", "Failed"),
        ("host", "node-1"),
    ] {
        assert_eq!(lines[0][member], value, "{member}");
    }
}

/// Fault: the error had the address only.
#[tokio::test]
async fn an_address_in_use_is_reported_with_its_key_and_flag() {
    let taking = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taking.local_addr().unwrap();
    let main = Config { listen: taken.into(), ..config("") };
    let admin = Config { admin_listen: taken, ..config("") };
    for (config, key) in [(main, "(listen, --listen)"), (admin, "(adminListen, --admin-listen)")] {
        let error = Listeners::bind(&config).await.unwrap_err();
        assert_eq!(error.to_string(), format!("listening on {taken} {key}"));
    }
}
