//! `docs/metrics.md` against the registry of a running program, both ways, and alerts, dashboard and runbook against the document.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};

use eventweir::app::{App, ConfigSource, Listeners};
use eventweir::clock::Clock;
use eventweir::config::{Config, Tls};
use eventweir::event_log::Target;
use eventweir::spool;
use eventweir::upstream::{self, Embedded, Upstream};
use prometheus::Registry;
use prometheus::proto::{MetricFamily, MetricType};

/// A metric's type, and its labels with their values.
#[derive(Debug, PartialEq, Eq)]
struct Metric {
    kind: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Labels whose values are not a fixed list.
const OPEN_LABELS: [&str; 2] = ["version", "hash"];

async fn exposed() -> BTreeMap<String, Metric> {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        listen: std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into(),
        admin_listen: ([127, 0, 0, 1], 0).into(),
        // Its metric exists only with the log.
        event_log: Some(Target::File(folder.path().join("events.jsonl"))),
        // The same.
        tls: Tls { self_signed_dir: Some(folder.path().to_owned()), ..Tls::default() },
        spool: spool::Settings { dir: Some(folder.path().join("spool")), ..spool::Settings::default() },
        ..Config::default()
    };
    let (registry, clock) = (Registry::new(), Clock::system());
    let metrics = upstream::Metrics::new(&registry);
    let upstream = Upstream::Embedded(Embedded::new(config.upstream.store.clone(), clock.clone(), metrics));
    let listeners = Listeners::bind(&config).await.unwrap();
    let app = App::start(config, ConfigSource::default(), listeners, upstream, registry.clone(), clock).unwrap();
    let families = registry.gather();
    app.stop().await;
    families.iter().map(|family| (family.name().to_owned(), metric(family))).collect()
}

fn metric(family: &MetricFamily) -> Metric {
    let kind = match family.get_field_type() {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY | MetricType::UNTYPED => "other",
    };
    let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for label in family.get_metric().iter().flat_map(|series| series.get_label()) {
        labels.entry(label.name().to_owned()).or_default().insert(label.value().to_owned());
    }
    Metric { kind: kind.to_owned(), labels }
}

/// The texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

const DOCUMENT: &str = include_str!("../docs/metrics.md");
const ALERTS: &str = include_str!("../deploy/alerts.yaml");
const ALERTS_TEST: &str = include_str!("../deploy/alerts_test.yaml");
const DASHBOARD: &str = include_str!("../helm/eventweir/files/dashboard.json");
const RUNBOOK: &str = include_str!("../docs/operations.md");

/// The rows of the tables: name, type, labels.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let mut metrics = BTreeMap::new();
    for line in DOCUMENT.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = quoted(cells[1]).next().unwrap().to_owned();
        let labels = quoted(cells[3]).map(ToOwned::to_owned).collect();
        assert!(metrics.insert(name, (cells[2].to_owned(), labels)).is_none(), "twice: {line}");
    }
    metrics
}

#[tokio::test]
async fn the_document_and_the_program_have_the_same_metrics() {
    let exposed = exposed().await;
    let shown: BTreeMap<String, (String, BTreeSet<String>)> = exposed
        .iter()
        .map(|(name, metric)| (name.clone(), (metric.kind.clone(), metric.labels.keys().cloned().collect())))
        .collect();
    let documented = documented();
    for (name, metric) in &shown {
        assert_eq!(documented.get(name), Some(metric), "{name}: docs/metrics.md, program");
    }
    let gone: Vec<&String> = documented.keys().filter(|name| !shown.contains_key(*name)).collect();
    assert!(gone.is_empty(), "docs/metrics.md documents what the program does not have: {gone:?}");
    let words: BTreeSet<&str> = quoted(DOCUMENT).collect();
    for (name, metric) in &exposed {
        for (label, values) in metric.labels.iter().filter(|(label, _)| !OPEN_LABELS.contains(&label.as_str())) {
            let missing: Vec<&String> = values.iter().filter(|value| !words.contains(value.as_str())).collect();
            assert!(missing.is_empty(), "docs/metrics.md does not explain {name}{{{label}}}: {missing:?}");
        }
    }
}

/// A metric that a rule names, and its conditions: label, operator, value.
struct Selector {
    name: String,
    conditions: Vec<[String; 3]>,
}

/// The selectors `name{label="value", …}` of a text; `job` and `instance` come from the scrape.
fn selectors(text: &str) -> Vec<Selector> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut selectors = Vec::new();
    for (at, _) in text.match_indices("eventweir_") {
        let name: String = text[at..].chars().take_while(|c| is_word(*c)).collect();
        let rest = &text[at + name.len()..];
        let mut conditions = Vec::new();
        if let Some(inner) = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()) {
            for pair in inner.split(',') {
                let label: String = pair.trim().chars().take_while(|c| is_word(*c)).collect();
                let operator: String = pair.trim()[label.len()..].chars().take_while(|c| *c != '"').collect();
                conditions.push([label, operator, pair.split('"').nth(1).unwrap().to_owned()]);
            }
        }
        conditions.retain(|[label, ..]: &[String; 3]| !["job", "instance"].contains(&label.as_str()));
        selectors.push(Selector { name, conditions });
    }
    selectors
}

/// The expressions of all panels.
fn queries_of_the_dashboard() -> Vec<String> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn each_alert_has_a_paragraph_in_the_runbook() {
    let alerts: BTreeSet<&str> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let paragraphs: BTreeSet<&str> =
        RUNBOOK.lines().filter_map(|line| line.strip_prefix("### Eventweir").map(|_| &line[4..])).collect();
    assert!(!alerts.is_empty());
    assert_eq!(alerts, paragraphs);
}

#[tokio::test]
async fn alerts_and_dashboard_name_only_what_is_documented_and_exposed() {
    let exposed = exposed().await;
    let documented = documented();
    let dashboard = queries_of_the_dashboard();
    assert!(dashboard.len() > 30, "the dashboard's queries were not found");
    let texts = [ALERTS, ALERTS_TEST].into_iter().map(ToOwned::to_owned).chain(dashboard);
    let all: Vec<_> = texts.flat_map(|text| selectors(&text)).collect();
    assert!(all.len() > 10, "the rules were not found");
    for Selector { name, conditions } in all {
        let name = name.strip_suffix("_bucket").unwrap_or(&name).to_owned();
        assert!(documented.contains_key(&name), "{name} is not documented");
        for [label, operator, value] in conditions {
            let values = exposed[&name].labels.get(&label).unwrap_or_else(|| panic!("{name} has no label {label}"));
            let found = match operator.as_str() {
                "=" | "!=" => values.contains(&value),
                // The rules use alternatives and prefixes only.
                "=~" | "!~" => value.split('|').all(|word| match word.strip_suffix(".*") {
                    Some(prefix) => values.iter().any(|known| known.starts_with(prefix)),
                    None => values.contains(word),
                }),
                other => panic!("{other} in a selector of {name}"),
            };
            assert!(found, "{name}: no {label}{operator}\"{value}\"");
        }
    }
}
