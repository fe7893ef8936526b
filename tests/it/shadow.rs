//! Shadow: a second configuration, tried on the same events without writing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::time::Duration;

use eventweir::app::ConfigSource;
use eventweir::config::{self, Overrides};
use serde_json::{Value, json};

use super::support::app::{DEADLINE, Program, start, start_as};
use super::support::events::event;

const PORTS: &str = "listen: 127.0.0.1:0\nadminListen: 127.0.0.1:0\n";

/// Starts a program with `yaml`, and `shadow` as second configuration.
async fn program(folder: &Path, yaml: &str, shadow: &str) -> Program {
    let (path, other) = (folder.join("eventweir.yaml"), folder.join("shadow.yaml"));
    std::fs::write(&other, shadow).unwrap();
    std::fs::write(&path, format!("{PORTS}{yaml}shadowFile: {}\n", other.display())).unwrap();
    let source = ConfigSource { path: Some(path.clone()), overrides: Overrides::default() };
    start_as(config::load(Some(&path), &Overrides::default(), config::Files::Read).unwrap(), source).await
}

/// Returns the difference after so many occurrences.
async fn difference(program: &Program, received: u64) -> Value {
    let asking = async {
        loop {
            let reply = program.client().await.get("/eventweir/v1/shadow").await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            let document = reply.json();
            if document["ledger"]["shadow"]["received"] == received {
                return document;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, asking).await.unwrap()
}

async fn post(program: &Program, number: usize) {
    let client = &mut program.client().await;
    for place in 0..number {
        client.post(&event("node-1", "web-0", &format!("Reason{}", place % 8), &format!("{place}"))).await;
    }
    program.settle().await;
}

#[tokio::test]
async fn the_effect_of_another_budget_is_shown_and_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let live = "correlation: {suppression: drop, burstSize: 3, qps: 0.001}\n";
    let shadow = "correlation: {suppression: drop, burstSize: 6, qps: 0.001}\n";
    let program = program(folder.path(), live, shadow).await;
    post(&program, 8).await;
    let document = difference(&program, 8).await;
    let side = |name: &str, member: &str| document["ledger"][name][member].as_u64().unwrap();
    assert_eq!(
        ["received", "writes", "shown", "lost", "waiting"].map(|member| side("live", member)),
        [8, 3, 3, 5, 0],
        "{document}"
    );
    assert_eq!(["writes", "shown", "lost", "waiting"].map(|member| side("shadow", member)), [6, 6, 2, 0], "{document}");
    assert_eq!((&document["unseen"]["live"]["facts"], &document["unseen"]["shadow"]["facts"]), (&json!(5), &json!(2)));
    // Fault: reasons that do not differ were listed too.
    let reasons = document["reasons"].as_array().unwrap();
    let changed = reasons.iter().filter(|row| row["live"]["lost"] != row["shadow"]["lost"]).count();
    assert_eq!((reasons.len(), changed), (3, 3), "{document}");
    assert_eq!(document["missed"], 0);
    assert_eq!(program.stored().await.len(), 3);
    // For one namespace only reasons are shown, and no ledger.
    let client = &mut program.client().await;
    let other = client.get("/eventweir/v1/shadow?namespace=other").await.json();
    assert_eq!(
        (&other["reasons"], &other["ledger"], &other["unseen"]["live"]["facts"]),
        (&json!([]), &Value::Null, &json!(0))
    );
    let page = program.admin().await.get("/").await.text();
    assert!(page.contains("Shadow rules") && page.contains("shadow.yaml"), "{page}");
    program.stop().await;
}

/// Fault: events that the active configuration refused before their correlation were received and rejected by it alone.
#[tokio::test]
async fn refusals_that_the_shadow_never_sees_make_no_difference() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), "", "").await;
    let mut invalid = event("node-1", "web-0", "Reason0", "m");
    invalid.involved_object.namespace = "other".into();
    for _ in 0..3 {
        assert_eq!(program.client().await.post(&invalid).await.status, 422);
    }
    post(&program, 2).await;
    let document = difference(&program, 2).await;
    let [live, shadow] = ["live", "shadow"].map(|side| &document["ledger"][side]);
    assert_eq!((&live["received"], &live["rejected"]), (&shadow["received"], &json!(0)), "{document}");
    assert_eq!(document["reasons"], json!([]), "{document}");
    program.stop().await;
}

/// Fault: the shadow was refused for what a configuration needs elsewhere, although it is not used.
#[tokio::test]
async fn the_shadow_may_be_the_configuration_of_another_program() {
    let folder = tempfile::tempdir().unwrap();
    let shadow = "listen: 0.0.0.0:8080\nadminListen: 0.0.0.0:8080\nauth: {tokenReview: {enabled: true}}\npassthrough: on\n\
        ingest: {ack: durable}\nlimitsFile: /no/limits\nshadowFile: /no/shadow\nexplain: {enabled: false}\n";
    program(folder.path(), "", shadow).await.stop().await;
}

#[tokio::test]
async fn a_reload_restarts_or_ends_the_shadow_and_a_bad_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), "", "correlation: {burstSize: 6}\n").await;
    post(&program, 4).await;
    difference(&program, 4).await;
    // An equal configuration continues.
    assert!(program.app.reload());
    assert_eq!(difference(&program, 4).await["ledger"]["live"]["received"], 4);
    std::fs::write(folder.path().join("shadow.yaml"), "correlation: {burstSize: many}\n").unwrap();
    assert!(!program.app.reload());
    difference(&program, 4).await;
    std::fs::write(folder.path().join("shadow.yaml"), "correlation: {burstSize: 7}\n").unwrap();
    program.clock.advance(Duration::from_secs(60));
    assert!(program.app.reload());
    let document = difference(&program, 0).await;
    assert_eq!((&document["ledger"]["live"]["received"], &document["reasons"]), (&json!(0), &json!([])), "{document}");
    post(&program, 2).await;
    assert_eq!(difference(&program, 2).await["ledger"]["live"]["received"], 2);
    std::fs::write(folder.path().join("eventweir.yaml"), PORTS).unwrap();
    assert!(program.app.reload());
    assert_eq!(program.client().await.get("/eventweir/v1/shadow").await.status, 404);
    program.stop().await;
}

/// Fault: the live numbers were too low, because what they had been at the start was subtracted from what was left.
#[tokio::test]
async fn the_comparison_starts_again_when_a_reload_makes_explain_forget() {
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path(), "", "correlation: {burstSize: 6}\n").await;
    let post = async |reasons: std::ops::Range<usize>| {
        let lines: Vec<u8> = reasons
            .flat_map(|number| {
                let reason = format!("{}{number}", "R".repeat(100));
                let line = super::support::http::json(&event("node-1", "web-0", &reason, "m"));
                line.into_iter().chain([b'\n'])
            })
            .collect();
        assert_eq!(program.client().await.send("POST", "/eventweir/v1/events", &[], &lines).await.status, 200);
        program.settle().await;
    };
    post(0..400).await;
    difference(&program, 400).await;
    let path = folder.path().join("eventweir.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}explain: {{maxBytes: 1Mi}}\n")).unwrap();
    assert!(program.app.reload());
    let document = program.client().await.get("/eventweir/v1/shadow").await.json();
    assert_eq!(document["ledger"]["shadow"]["received"], 0);
    post(0..2).await;
    let document = difference(&program, 2).await;
    let live = &document["ledger"]["live"];
    assert_eq!((&live["received"], &live["writes"]), (&json!(2), &json!(2)));
    program.stop().await;
}

#[tokio::test]
async fn without_a_second_configuration_the_shadow_is_404() {
    let program = start("").await;
    assert_eq!(program.client().await.get("/eventweir/v1/shadow").await.status, 404);
    assert!(!program.admin().await.get("/").await.text().contains("Shadow rules"));
    program.stop().await;
}

/// Two thousand objects, and a second configuration with room for a hundred records.
#[tokio::test]
async fn the_memory_of_the_shadow_is_bounded_by_its_own_limits() {
    let folder = tempfile::tempdir().unwrap();
    let shadow = "outbox: {maxRecords: 100}\ncorrelation: {maxTrackedKeys: 100, groupBurstSize: 10}\n";
    let program = program(folder.path(), "correlation: {groupBurstSize: 0}\n", shadow).await;
    let lines: Vec<u8> = (0..2000)
        .flat_map(|number| {
            let line = super::support::http::json(&event("node-1", &format!("web-{number}"), "R", "m"));
            line.into_iter().chain([b'\n'])
        })
        .collect();
    let reply = program.client().await.send("POST", "/eventweir/v1/events", &[], &lines).await;
    assert_eq!(reply.status, 200);
    let all_arrived = async {
        loop {
            let document = program.client().await.get("/eventweir/v1/shadow").await.json();
            let received = document["ledger"]["shadow"]["received"].as_u64().unwrap();
            if received + document["missed"].as_u64().unwrap() == 2000 {
                return document;
            }
            tokio::task::yield_now().await;
        }
    };
    let document = tokio::time::timeout(DEADLINE, all_arrived).await.unwrap();
    assert!(document["ledger"]["shadow"]["rejected"].as_u64().unwrap() > 0, "{document}");
    program.stop().await;
}
