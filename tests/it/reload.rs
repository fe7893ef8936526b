//! Reloading the configuration.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use eventweir::app::ConfigSource;
use eventweir::config::Overrides;
use serde_json::json;

use super::support::app::{Program, start_as, start_from};
use super::support::certificates::Authority;
use super::support::events::{event, plain};
use super::support::log::Log;

const PORTS: &str = "listen: 127.0.0.1:0\nadminListen: 127.0.0.1:0\n";

fn write(path: &Path, yaml: &str) {
    std::fs::write(path, format!("{PORTS}{yaml}")).unwrap();
}

async fn program(path: &Path, yaml: &str) -> Program {
    write(path, yaml);
    let source = ConfigSource { path: Some(path.to_owned()), overrides: Overrides::default() };
    start_from(yaml, source).await
}

#[tokio::test]
async fn a_valid_configuration_takes_effect_and_keeps_all_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "correlation: {burstSize: 1, qps: 0}\n").await;
    let client = &mut program.client().await;
    assert_eq!(client.post(&plain()).await.outcome(), Some("created"));
    program.until("it is written", || program.balance().ledger.total_written() == 1).await;
    assert_eq!(client.post(&event("node-1", "web-0", "Other", "m")).await.outcome(), Some("deferred"));
    let before = program.metrics().await;

    write(&path, "correlation: {burstSize: 1, qps: 0, suppression: drop}\n");
    assert!(program.app.reload());
    // The event is still known, the deferred one still waits, and the new rule applies.
    assert_eq!(program.balance().total_waiting(), 1);
    let outcomes = [client.post(&plain()).await, client.post(&plain()).await];
    assert_eq!(outcomes[1].outcome(), Some("dropped"));
    let after = program.metrics().await;
    assert_eq!(after["eventweir_config_last_reload_successful"], 1.0);
    let hash = |metrics: &std::collections::BTreeMap<String, f64>| {
        metrics.keys().find(|name| name.starts_with("eventweir_config_info")).cloned()
    };
    assert_ne!(hash(&before), hash(&after));
    let balance = program.stop().await;
    assert_eq!(balance.ledger.received(), 4);
}

#[tokio::test]
async fn an_invalid_configuration_is_refused_and_the_old_one_stays_in_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "correlation: {burstSize: 1, qps: 0, suppression: drop}\n").await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    for bad in ["correlation: {burstSize: many}\n", "corelation: {}\n", "correlation: {\n", "outbox: {maxRecords: 0}\n"]
    {
        write(&path, bad);
        assert!(!program.app.reload(), "{bad}");
        assert_eq!(program.metrics().await["eventweir_config_last_reload_successful"], 0.0);
        assert_eq!(client.post(&plain()).await.outcome(), Some("dropped"), "the old rule holds");
    }
    std::fs::remove_file(&path).unwrap();
    assert!(!program.app.reload());
    // As an editor leaves it for a moment.
    std::fs::write(&path, "\n").unwrap();
    assert!(!program.app.reload());
    std::fs::remove_file(&path).unwrap();
    // Opening it would wait for a writer.
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(!program.app.reload());
    std::fs::remove_file(&path).unwrap();
    write(&path, "correlation: {burstSize: 100}\n");
    assert!(program.app.reload());
    assert_eq!(program.metrics().await["eventweir_config_last_reload_successful"], 1.0);
    assert_eq!(client.post(&event("node-1", "db-0", "Pulled", "pulled")).await.outcome(), Some("created"));
    program.settle().await;
    program.stop().await;
}

#[tokio::test]
async fn a_reload_never_removes_the_whole_policy() {
    let folder = tempfile::tempdir().unwrap();
    let (path, dir) = (folder.path().join("eventweir.yaml"), folder.path().display());
    Authority::new().server().write(folder.path());
    std::fs::write(folder.path().join("clients.crt"), Authority::new().pem()).unwrap();
    let closed =
        format!("tls: {{certFile: {dir}/tls.crt, keyFile: {dir}/tls.key}}\nauth:\n  clientCAFile: {dir}/clients.crt\n");
    let policy = |user: &str| format!("{closed}  policy: [{{users: [{user}], verbs: [create]}}]\n");
    let program = program(&path, &policy("alice")).await;
    write(&path, &closed);
    assert!(!program.app.reload());
    assert_eq!(program.metrics().await["eventweir_config_last_reload_successful"], 0.0);
    write(&path, &policy("bob"));
    assert!(program.app.reload());
    program.stop().await;
}

#[tokio::test]
async fn a_reload_can_be_requested_over_http() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "upstream: {maxInFlight: 7}\n").await;
    assert_eq!(program.metrics().await["eventweir_deliver_in_flight_requests_limit"], 7.0);
    let app = std::sync::Arc::clone(&program.app);
    let mut following = tokio::task::JoinSet::new();
    following.spawn(async move { app.follow_config().await });
    write(&path, "upstream: {maxInFlight: 9}\n");
    let reply = program.admin().await.send("POST", "/-/reload", &[], b"").await;
    assert_eq!(reply.status, 202);
    assert_eq!(program.admin().await.get("/-/reload").await.status, 405);
    program
        .until("it is taken over", || {
            program.app.metrics_text().contains("eventweir_deliver_in_flight_requests_limit 9")
        })
        .await;
    following.abort_all();
    program.stop().await;
}

/// Fault: a file that came back as it was left the metric at 0.
#[tokio::test]
async fn a_file_that_comes_back_after_a_refused_reload_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "").await;
    let is_successful = |value| {
        let line = format!("\neventweir_config_last_reload_successful {value}\n");
        program.app.metrics_text().contains(&line)
    };
    let app = std::sync::Arc::clone(&program.app);
    let mut following = tokio::task::JoinSet::new();
    following.spawn(async move {
        loop {
            app.follow_config().await;
        }
    });
    tokio::task::yield_now().await;
    std::fs::remove_file(&path).unwrap();
    program.admin().await.send("POST", "/-/reload", &[], b"").await;
    program.until("it is refused", || is_successful(0)).await;
    write(&path, "");
    tokio::time::pause();
    program.until("it is applied", || is_successful(1)).await;
    tokio::time::resume();
    following.abort_all();
    program.stop().await;
}

/// Fault: a pipe counted as a refused reload as soon as the program followed it.
#[tokio::test]
async fn a_pipe_is_not_followed_before_a_file_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let source = ConfigSource { path: Some(path.clone()), overrides: Overrides::default() };
    let program = start_from("upstream: {maxInFlight: 7}\n", source).await;
    let follow = async || {
        tokio::time::pause();
        let followed = tokio::time::timeout(Duration::from_secs(20), program.app.follow_config()).await;
        tokio::time::resume();
        let successful = program.metrics().await["eventweir_config_last_reload_successful"];
        (followed.is_ok(), successful)
    };
    assert_eq!(follow().await, (false, 1.0));
    assert!(!program.app.reload());
    assert_eq!(follow().await, (false, 0.0), "it was asked for");
    std::fs::remove_file(&path).unwrap();
    write(&path, "upstream: {maxInFlight: 9}\n");
    assert_eq!(follow().await, (true, 1.0));
    assert_eq!(program.metrics().await["eventweir_deliver_in_flight_requests_limit"], 9.0);
    program.stop().await;
}

/// Fault: the change was only seen if the file changed again.
#[tokio::test]
async fn a_change_between_loading_and_following_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "upstream: {maxInFlight: 7}\n").await;
    write(&path, "upstream: {maxInFlight: 9}\n");
    let followed = tokio::time::timeout(Duration::from_secs(20), program.app.follow_config());
    assert!(followed.await.is_ok(), "it is not seen");
    assert_eq!(program.metrics().await["eventweir_deliver_in_flight_requests_limit"], 9.0);
    program.stop().await;
}

/// Fault: the admin port used the limits from the start.
#[tokio::test]
async fn the_page_follows_reloaded_limits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "shards: 1\ncorrelation: {burstSize: 1, qps: 0}\n").await;
    let client = &mut program.client().await;
    for number in 0..5 {
        client.post(&event("node-1", "web-0", &format!("Reason{number}"), "m")).await;
    }
    assert!(!program.admin().await.get("/").await.text().contains("! FULL"));
    write(&path, "shards: 1\ncorrelation: {burstSize: 1, qps: 0}\noutbox: {maxRecords: 3}\n");
    assert!(program.app.reload());
    assert_eq!(client.post(&event("node-1", "web-1", "Pulled", "m")).await.status, 429);
    assert!(program.admin().await.get("/").await.text().contains("! FULL"));
    assert_eq!(program.stop().await.ledger.total_written(), 5);
}

/// Faults: with `series: 0` after a reload, the metric still had the names of namespaces. After `enabled: false` and
/// `true`, its counters stood still until they had caught up, and so did `other` after a higher limit.
#[tokio::test]
async fn the_metric_of_events_follows_reloads_of_explain() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "").await;
    let client = &mut program.client().await;
    for (yaml, posts, expected) in [
        ("", 3, &[("BackOff", 3.0), ("other", 0.0)][..]),
        ("explain: {enabled: false}\n", 1, &[("BackOff", 3.0), ("other", 0.0)]),
        ("explain: {enabled: true}\n", 2, &[("BackOff", 2.0), ("other", 0.0)]),
        ("explain: {series: 0}\n", 1, &[("other", 3.0)]),
        ("explain: {series: 5}\n", 1, &[("BackOff", 4.0), ("other", 0.0)]),
    ] {
        write(&path, yaml);
        assert!(program.app.reload());
        for _ in 0..posts {
            client.post(&plain()).await;
        }
        let metrics = program.metrics().await;
        let series = metrics.iter().filter_map(|(name, value)| {
            let labels = name.strip_prefix("eventweir_kube_events_total")?;
            Some((labels.split('"').nth(5).unwrap(), *value))
        });
        assert_eq!(series.collect::<Vec<_>>(), expected, "{yaml}");
    }
    program.stop().await;
}

/// Fault: one of three occurrences was received, and three waited.
#[tokio::test]
async fn explain_counts_what_has_come_since_it_is_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let settings = |explain| format!("correlation: {{burstSize: 0, qps: 0}}\nexplain: {{enabled: {explain}}}\n");
    let program = program(&path, &settings(false)).await;
    let client = &mut program.client().await;
    client.post(&plain()).await;
    client.post(&plain()).await;
    write(&path, &settings(true));
    assert!(program.app.reload());
    client.post(&plain()).await;
    let explained = client.get("/eventweir/v1/explain?object=Pod/web-0&namespace=shop").await.json();
    let part = &explained["objects"][0]["reasons"][0];
    assert_eq!((&part["received"], &part["waiting"]), (&json!(1), &json!({ "budget": 1 })), "{explained:#}");
    assert_eq!(program.stop().await.ledger.total_written(), 3);
}

/// Fault: rule, burst and rate were those of the newest occurrence, and the number was that of another rule.
#[tokio::test]
async fn explain_names_the_rule_and_the_rate_that_are_active() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let rule = |reason, set| format!("{{match: {{reason: {reason}}}, set: {set}}}");
    let rules = |rules: &[String]| format!("correlation: {{qps: 0, rules: [{}]}}\n", rules.join(", "));
    let pulled = rule("Pulled", "{burstSize: 3}");
    let program = program(&path, &rules(&[rule("BackOff", "{burstSize: 2}"), pulled.clone()])).await;
    program.client().await.post(&plain()).await;
    write(&path, &rules(&[pulled, rule("BackOff", "{suppression: drop, burstSize: 7, qps: 0.5}")]));
    assert!(program.app.reload());
    let explained = program.client().await.get("/eventweir/v1/explain?object=Pod/web-0&namespace=shop").await.json();
    let object = &explained["objects"][0];
    assert_eq!(object["reasons"][0]["rule"], 1, "{explained:#}");
    let members = ["rule", "suppression", "burst", "secondsPerToken", "tokens"];
    let shown = members.map(|member| object["budgets"][0][member].clone());
    assert_eq!(shown, [json!(1), json!("drop"), json!(7), json!(2.0), json!(7)]);
    program.settle().await;
    program.stop().await;
}

/// Every live key that needs no file and no caller.
const LIVE: &str = "
log: {level: debug}
upstream: {maxInFlight: 3, qps: 5, burst: 6, backoff: {initial: 7ms, max: 8s}}
correlation:
  {profile: client-go-legacy, suppression: drop, lruCacheSize: 9, burstSize: 10, qps: 11, groupBurstSize: 12,
  groupQps: 13, maxEvents: 14, maxInterval: 15s, localKey: [message, reason], messages: normalized, messagePrefix: m,
  keyEncoding: concatenated, countOverflow: wrap, naming: deterministic, maxSources: 16, maxTrackedKeys: 17,
  rules: [{match: {reason: A}, set: {qps: 18}}]}
outbox:
  {coalesceInterval: 19s, maxRecords: 20, sourcePercent: 21, maxBytes: 22Mi, maxAge: 23s, maxBudgets: 24,
  digest: {after: 25, maxAge: 26s, messageBytes: 128, reasons: 28}, storm: {after: 29s, maxGroups: 30}}
explain: {enabled: true, maxBytes: 31Mi, series: 32, messages: 33}
fairness: {maxInFlight: 34, callerPercent: 35, maxWaiting: 36}
limits: [{type: Server, qps: 37, burst: 38}]
shutdown: {drainTimeout: 39s, grace: 40ms}
";

#[tokio::test]
async fn a_reload_shows_and_limits_what_a_start_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let shown = async |program: Program| {
        let config = program.admin().await.get("/config").await.text();
        let of_settings = |name: &str| {
            let ends = ["_limit", "_limit_bytes", "_ceiling_tokens"];
            ends.iter().any(|end| name.ends_with(end)) || name.starts_with("eventweir_config_info")
        };
        let limits: Vec<_> = program.metrics().await.into_iter().filter(|(name, _)| of_settings(name)).collect();
        assert_eq!(limits.len(), 8, "{limits:?}");
        program.stop().await;
        (config, limits)
    };
    let started = shown(program(&path, LIVE).await).await;
    let reloaded = program(&path, "").await;
    write(&path, LIVE);
    assert!(reloaded.app.reload());
    assert_eq!(shown(reloaded).await, started);
}

/// Fault: for example without a free file descriptor, the change was refused for good.
#[tokio::test(start_paused = true)]
async fn a_configuration_whose_files_cannot_be_read_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, limits) = (folder.path().join("eventweir.yaml"), folder.path().join("limits.yaml"));
    let program = program(&path, "").await;
    write(&path, &format!("limitsFile: {}\nexplain: {{series: 7}}\n", limits.display()));
    assert!(!program.app.reload());
    let app = Arc::clone(&program.app);
    let mut following = tokio::task::JoinSet::new();
    following.spawn(async move { app.follow_config().await });
    // Several polls without the file.
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(following.try_join_next().is_none());
    std::fs::write(&limits, "limits: [{type: Server, qps: 1, burst: 1}]\n").unwrap();
    let followed = tokio::time::timeout(Duration::from_secs(20), following.join_next()).await;
    followed.expect("it is not tried again").unwrap().unwrap();
    assert!(program.app.metrics_text().contains("eventweir_config_last_reload_successful 1"));
    program.stop().await;
}

/// Fault: it was not reported, neither then nor later.
#[tokio::test(start_paused = true)]
async fn an_invalid_file_between_loading_and_following_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "").await;
    write(&path, "shards: none\n");
    let following = tokio::time::timeout(Duration::from_secs(20), program.app.follow_config());
    assert!(following.await.is_err(), "it is applied");
    assert!(program.app.metrics_text().contains("eventweir_config_last_reload_successful 0"));
    program.stop().await;
}

/// Fault: a program that had started with an empty file refused it at once, and the alert of a failed reload fired.
#[tokio::test(start_paused = true)]
async fn a_file_that_was_empty_at_the_start_stays_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    std::fs::write(&path, "\n").unwrap();
    let flags = [("--listen", "listen"), ("--admin-listen", "adminListen")];
    let flags = flags.map(|(flag, key)| (flag, key, "127.0.0.1:0".to_owned())).into();
    let source = ConfigSource { path: Some(path), overrides: Overrides { flags, ..Overrides::default() } };
    let read = eventweir::config::Files::Read;
    let config = eventweir::config::load(source.path.as_deref(), &source.overrides, read).unwrap();
    let program = start_as(config, source).await;
    let following = tokio::time::timeout(Duration::from_secs(20), program.app.follow_config());
    assert!(following.await.is_err(), "it is applied");
    assert!(program.app.reload());
    assert!(program.app.metrics_text().contains("eventweir_config_last_reload_successful 1"));
    program.stop().await;
}

/// Fault: the metric stayed at 0 if the file that could be read again had its old content.
#[tokio::test(start_paused = true)]
async fn a_configuration_whose_files_come_back_as_they_were_is_applied() {
    let folder = tempfile::tempdir().unwrap();
    let (path, limits) = (folder.path().join("eventweir.yaml"), folder.path().join("limits.yaml"));
    let text = "limits: [{type: Server, qps: 1, burst: 1}]\n";
    std::fs::write(&limits, text).unwrap();
    let program = program(&path, &format!("limitsFile: {}\nshutdown: {{grace: 0s}}\n", limits.display())).await;
    assert!(program.app.reload());
    std::fs::remove_file(&limits).unwrap();
    assert!(!program.app.reload());
    std::fs::write(&limits, text).unwrap();
    let followed = tokio::time::timeout(Duration::from_secs(20), program.app.follow_config());
    assert!(followed.await.is_ok(), "it is not applied");
    assert!(program.app.metrics_text().contains("eventweir_config_last_reload_successful 1"));
    program.stop().await;
}

/// Fault: it was noticed by a requested reload only.
#[tokio::test(start_paused = true)]
async fn a_file_that_disappears_is_reported_once_and_may_come_back() {
    let log = Log::capture();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("eventweir.yaml");
    let program = program(&path, "").await;
    assert!(program.app.reload());
    let app = Arc::clone(&program.app);
    let mut following = tokio::task::JoinSet::new();
    following.spawn(async move { app.follow_config().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    std::fs::remove_file(&path).unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(following.try_join_next().is_none());
    assert!(program.app.metrics_text().contains("eventweir_config_last_reload_successful 0"));
    assert_eq!(log.text().matches("No such file").count(), 1, "{}", log.text());
    write(&path, "");
    let followed = tokio::time::timeout(Duration::from_secs(20), following.join_next()).await;
    followed.expect("it is not applied").unwrap().unwrap();
    assert!(program.app.metrics_text().contains("eventweir_config_last_reload_successful 1"));
    program.stop().await;
}
