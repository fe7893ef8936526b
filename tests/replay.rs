//! Tests `replay` as a library: the account balances for any input and configuration, and the README's table is right.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use eventweir::config::Config;
use eventweir::correlator::{Correlation, Field, Messages, Naming, Policy, Rate, Settings, Suppression};
use eventweir::event::{ApiGroup, Event, MicroTime, ObjectReference, Time, json};
use eventweir::replay::{Comparison, Fate, Format, Recording, Until, client_go};
use eventweir::{outbox, shard};
use proptest::prelude::*;
use serde_json::Value;

/// 2026-03-01T08:00:00Z.
const START: i64 = 1_772_352_000;

/// How long the API server stores an event.
const TTL: Duration = Duration::from_secs(3600);

fn event(object: (&str, &str), reason: &str, message: String, event_type: &str, component: &str) -> Event {
    let mut event = Event {
        involved_object: ObjectReference {
            kind: object.0.into(),
            namespace: "default".into(),
            name: object.1.into(),
            api_version: "v1".into(),
            ..ObjectReference::default()
        },
        reason: reason.into(),
        message: message.into(),
        event_type: event_type.into(),
        ..Event::default()
    };
    event.source.component = component.into();
    event.metadata.namespace = "default".into();
    event
}

/// Runs client-go and our defaults with these events, and sums up both.
fn compared(storm: impl Iterator<Item = (i64, Event)>) -> (Comparison, [(Fate, usize); 2]) {
    compared_with(Config::default().policy, storm)
}

fn compared_with(ours: Policy, storm: impl Iterator<Item = (i64, Event)>) -> (Comparison, [(Fate, usize); 2]) {
    let mut comparison = Comparison::default();
    let (policy, settings) = client_go();
    comparison.add(policy, settings, TTL, None);
    let Config { shard, ingest, .. } = Config::default();
    comparison.add(ours, shard, TTL, ingest.repair.map(NonZeroUsize::get));
    for (second, event) in storm {
        comparison.report(event, 1, Some((START + second) * 1_000_000_000));
    }
    comparison.run_on(Until::Settled);
    assert!(comparison.balances());
    let sums = [0, 1].map(|column| {
        let fates = comparison.columns[column].fates();
        let mut sum = Fate::default();
        fates.iter().for_each(|fate| sum.add(fate));
        (sum, fates.iter().filter(|fate| fate.shown == 0).count())
    });
    (comparison, sums)
}

fn cronjob_hour() -> impl Iterator<Item = (i64, Event)> {
    let reasons = [(0, "SuccessfulCreate"), (7, "SawCompletedJob"), (7, "SuccessfulDelete")];
    (0..60).flat_map(move |minute| {
        reasons.map(|(second, reason)| {
            let message = format!("{reason} hello-{minute}");
            (minute * 60 + second, event(("CronJob", "hello"), reason, message, "Normal", "cronjob-controller"))
        })
    })
}

fn sixty_at_once() -> impl Iterator<Item = (i64, Event)> {
    (0..60).map(|check| {
        (0, event(("Node", "gpu-7"), &format!("Check{check}"), "failed".to_owned(), "Warning", "health-monitor"))
    })
}

fn noisy_and_rare() -> impl Iterator<Item = (i64, Event)> {
    let noisy = (0..360).map(|beat| (beat * 10, "NetworkNotReady".to_owned()));
    let rare = (0..10).map(|number| (300 + number * 290, format!("Rare{number}")));
    let mut all: Vec<_> = noisy.chain(rare).collect();
    all.sort_by_key(|(second, _)| *second);
    all.into_iter().map(|(second, reason)| {
        (second, event(("Node", "node-1"), &reason, format!("{reason} found"), "Warning", "node-agent"))
    })
}

fn twenty_resources() -> impl Iterator<Item = (i64, Event)> {
    (0..3600).flat_map(|second| {
        (0..20).map(move |app| {
            let name = format!("app-{app:02}");
            (second, event(("Application", &name), "Reconciling", "reconciling".to_owned(), "Normal", "clever"))
        })
    })
}

fn varying_messages() -> impl Iterator<Item = (i64, Event)> {
    (0..175_488).map(|number| {
        let message = format!("pod 10.{}.{}.{} is not ready", number / 62_500, number / 250 % 250, number % 250);
        (number * 3600 / 175_488, event(("Service", "frontend"), "Unhealthy", message, "Warning", "endpoints"))
    })
}

fn unschedulable() -> impl Iterator<Item = (i64, Event)> {
    (0..30).flat_map(|minute| {
        (0..500).map(move |pod| {
            let message = "0/99 nodes are available".to_owned();
            let name = format!("job-{pod:03}");
            (minute * 60, event(("Pod", &name), "FailedScheduling", message, "Warning", "default-scheduler"))
        })
    })
}

fn crash_loops() -> impl Iterator<Item = (i64, Event)> {
    (0..360).flat_map(|beat| {
        (0..200).map(move |pod| {
            let message = "Back-off restarting failed container".to_owned();
            (beat * 10, event(("Pod", &format!("web-{pod:03}")), "BackOff", message, "Warning", "kubelet"))
        })
    })
}

fn pods_come_and_go() -> impl Iterator<Item = (i64, Event)> {
    let mut all: Vec<_> = (0..50_000)
        .flat_map(|pod| {
            let begin = pod * 230 / 50_000;
            [(begin, "Scheduled", pod), (begin + 3, "Started", pod), (begin + 60, "Killing", pod)]
        })
        .collect();
    all.sort_unstable();
    all.into_iter().take(144_712).map(|(second, reason, pod)| {
        let message = format!("{reason}: container app");
        let component = if reason == "Scheduled" { "default-scheduler" } else { "kubelet" };
        let mut event = event(("Pod", &format!("batch-{pod:05}")), reason, message, "Normal", component);
        if component == "kubelet" {
            event.source.host = format!("node-{:04}", pod % 5000).into();
        }
        (second, event)
    })
}

/// The README's table must equal this one.
#[test]
fn the_table_of_the_readme_is_right() {
    type Storm = (&'static str, fn() -> Box<dyn Iterator<Item = (i64, Event)>>);
    let storms: [Storm; 8] = [
        ("20 resources, an event each second, 1 hour", || Box::new(twenty_resources())),
        ("200 pods in a crash loop, 1 hour", || Box::new(crash_loops())),
        ("a controller with varying messages, 1 hour", || Box::new(varying_messages())),
        ("a CronJob each minute, 1 hour", || Box::new(cronjob_hour())),
        ("a noisy Warning and 10 rare ones, 1 hour", || Box::new(noisy_and_rare())),
        ("60 different Warnings of one Node at once", || Box::new(sixty_at_once())),
        ("500 pods that cannot be scheduled, 30 min", || Box::new(unschedulable())),
        ("50,000 pods created and deleted, 5 min", || Box::new(pods_come_and_go())),
    ];
    let mut table = "| storm | sent | client-go writes | shows | eventweir writes | shows | saved |\n|---|--:|--:|--:|--:|--:|--:|\n".to_owned();
    let (mut unseen, mut wait) = (Vec::new(), 0);
    let all: Vec<_> = std::thread::scope(|scope| {
        let running = storms.map(|(name, storm)| (name, scope.spawn(move || compared(storm()))));
        running.into_iter().map(|(name, storm)| (name, storm.join().unwrap())).collect()
    });
    for (name, (comparison, [(client_go, unseen_there), (ours, unseen_here)])) in all {
        let sent = comparison.sent();
        let saved = 100.0 * (1.0 - ours.writes as f64 / sent as f64);
        let saved = if saved >= 99.95 { "> 99.9".to_owned() } else { format!("{saved:.1}") };
        writeln!(
            table,
            "| {name} | {sent} | {} | {} | {} | {} | {saved} % |",
            client_go.writes, client_go.shown, ours.writes, ours.shown
        )
        .unwrap();
        assert_eq!((ours.shown, unseen_here), (sent, 0), "{name}");
        unseen.push(unseen_there);
        if name.contains("rare") {
            wait = longest_wait(&comparison);
        }
    }
    assert_eq!(unseen, [0, 0, 0, 0, 10, 35, 0, 0], "facts that client-go never shows");
    let readme = document("README.md");
    assert!(readme.contains(&table), "the README's table must be\n\n{table}");
    let sentence = format!("The rare Warnings above wait for up to {} minutes", minutes(wait));
    assert!(readme.contains(&sentence), "{sentence}");
}

fn document(path: &str) -> String {
    std::fs::read_to_string(format!("{}/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Rounds nanoseconds up to minutes.
const fn minutes(nanos: i64) -> i64 {
    (nanos + 59_999_999_999) / 60_000_000_000
}

/// Returns the longest time until eventweir shows a fact, in nanoseconds.
fn longest_wait(comparison: &Comparison) -> i64 {
    let fates = comparison.columns[1].fates();
    let facts = comparison.facts.iter().zip(fates).filter(|((_, sent), _)| sent.number > 0);
    facts.map(|((_, sent), fate)| fate.first_shown.unwrap() - sent.first).max().unwrap()
}

/// Returns the configurations of docs/recipes.md.
fn document_of_recipes() -> Vec<String> {
    let text = document("docs/recipes.md");
    text.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// Returns their policies, with this component in place of the documented one.
fn recipes(component: &str) -> Vec<Policy> {
    let load = |block: String| {
        let block = block.replace("{component: node-agent}", &format!("{{component: {component}}}"));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), block).unwrap();
        eventweir::config::load(Some(file.path()), &Default::default(), eventweir::config::Files::Read).unwrap().policy
    };
    document_of_recipes().into_iter().map(load).collect()
}

#[test]
fn the_recipes_have_the_documented_effect() {
    let run = |policy: Policy, storm: &mut dyn Iterator<Item = (i64, Event)>| {
        let (comparison, [_, (ours, _)]) = compared_with(policy, storm);
        assert_eq!(ours.shown, comparison.sent());
        (ours.writes, longest_wait(&comparison))
    };
    let writes = |recipe: usize, component: &str, storm: &mut dyn Iterator<Item = (i64, Event)>| {
        run(recipes(component).swap_remove(recipe), storm)
    };
    let without = |storm: &mut dyn Iterator<Item = (i64, Event)>| run(Config::default().policy, storm);
    assert_eq!(writes(0, "node-agent", &mut noisy_and_rare()), (47, 0));
    assert_eq!(writes(0, "cronjob-controller", &mut cronjob_hour()), (111, 0));
    assert_eq!(writes(1, "node-agent", &mut twenty_resources()), (180, 0));
    assert_eq!(writes(2, "none", &mut varying_messages()), (37, 0));
    assert_eq!(writes(3, "none", &mut cronjob_hour()), (47, 0));
    let (rare, wait) = without(&mut noisy_and_rare());
    let (cronjob, resources) = (without(&mut cronjob_hour()).0, without(&mut twenty_resources()).0);
    let text = document("docs/recipes.md").replace('\n', " ");
    for sentence in [
        format!(
            "takes 47 writes instead of {rare}. No Warning waits; without the rule some wait for up to {} minutes.",
            minutes(wait)
        ),
        format!("The CronJob of the README takes 111 writes instead of {cronjob}."),
        format!("take 180 writes in an hour instead of {resources}."),
        format!("takes {} writes as before", without(&mut varying_messages()).0),
        format!("47 writes in its hour instead of {cronjob}."),
    ] {
        assert!(text.contains(&sentence), "docs/recipes.md must say: {sentence}");
    }
}

/// Fault: an event that `serve` repairs was rejected.
#[test]
fn repaired_events_are_shown_and_those_beyond_repair_rejected() {
    let mut long = event(("Pod", "web-0"), "A", "m".repeat(2000), "Normal", "kubelet");
    long.event_time = Some(MicroTime(START * 1_000_000));
    (long.reporting_controller, long.reporting_instance) = ("example.com/kubelet".into(), "node-1".into());
    long.action = "Act".into();
    let mut elsewhere = event(("Pod", "web-0"), "B", "m".to_owned(), "Normal", "kubelet");
    elsewhere.involved_object.namespace = "other".into();
    let (_, [(client_go, _), (ours, _)]) = compared([(0, long), (0, elsewhere)].into_iter());
    assert_eq!((client_go.shown, client_go.rejected), (0, 2));
    assert_eq!((ours.shown, ours.rejected), (1, 1));
}

/// Writes a storm to a file of JSON lines.
fn recording(storm: impl Iterator<Item = (i64, Event)>) -> tempfile::NamedTempFile {
    let mut lines = Vec::new();
    for (second, mut event) in storm {
        event.metadata.name = format!("e{second}").into();
        event.last_timestamp = Some(Time(START + second));
        json::write_json(ApiGroup::Core, &event, &mut lines);
        lines.push(b'\n');
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), lines).unwrap();
    file
}

fn replay(recording: &tempfile::NamedTempFile, flags: &[&str]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_eventweir"));
    let output = command.arg("replay").arg(recording.path()).args(flags).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns a block of docs/replay.md.
fn sample(language: &str) -> String {
    let text = document("docs/replay.md");
    let begin = text.split(&format!("```{language}\n")).nth(1).unwrap();
    begin.split("```").next().unwrap().to_owned()
}

/// Whether a documented value matches a document: members have the same names, and a list contains all documented
/// items.
fn is_of(sample: &Value, document: &Value) -> bool {
    match (sample, document) {
        (Value::Object(sample), Value::Object(document)) => {
            sample.len() == document.len()
                && sample.iter().all(|(name, value)| document.get(name).is_some_and(|found| is_of(value, found)))
        }
        (Value::Array(sample), Value::Array(document)) => {
            sample.iter().all(|value| document.iter().any(|found| is_of(value, found)))
        }
        _ => sample == document,
    }
}

#[test]
fn docs_replay_shows_the_output_and_describes_the_json_document() {
    let storm = recording(noisy_and_rare());
    let text = replay(&storm, &[]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(sample("text"), text, "docs/replay.md must show what is printed");
    let document: Value = serde_json::from_str(&replay(&storm, &["-o", "json"])).unwrap();
    let sample: Value = serde_json::from_str(&sample("json")).unwrap();
    assert!(is_of(&sample, &document), "docs/replay.md must describe\n{document:#}");
}

/// A replay with a suggested rule shows the printed effect.
#[test]
fn suggested_rules_have_the_printed_effect() {
    let noisy = noisy_and_rare().chain(twenty_resources().filter(|(second, _)| second % 10 == 0));
    let mut both: Vec<_> = noisy.collect();
    both.sort_by_key(|(second, _)| *second);
    let storm = recording(both.into_iter());
    let document: Value = serde_json::from_str(&replay(&storm, &["-o", "json"])).unwrap();
    let suggestions = document["suggestions"].as_array().unwrap();
    let rules: Vec<_> = suggestions.iter().map(|found| [&found["rule"], &found["component"]]).collect();
    assert_eq!(rules, [["spamKey with `reason`", "node-agent"], ["burstSize: 5, qps: 1/900", "clever"]]);
    let printed = replay(&storm, &[]);
    let printed: Vec<&str> = printed.split("    correlation:\n").skip(1).collect();
    assert_eq!(printed.len(), suggestions.len());
    let rules = printed.iter().map(|text| text.lines().take_while(|line| line.starts_with("     ")));
    let rules = rules.map(|lines| format!("    correlation:\n{}", lines.collect::<Vec<_>>().join("\n")));
    let recipes = document_of_recipes().into_iter().take(suggestions.len());
    let of_each = suggestions.iter().cycle();
    let told = suggestions.iter().map(|suggestion| suggestion["config"].as_str().unwrap().to_owned());
    for (suggestion, rule) in of_each.zip(rules.chain(recipes).chain(told)) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), rule).unwrap();
        let text = replay(&storm, &["-o", "json", "--config", &file.path().display().to_string()]);
        let with: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(with["columns"][1]["writes"], suggestion["writes"]);
        assert!(with["suggestions"].as_array().unwrap().len() < suggestions.len(), "{with:#}");
    }
    // Fault: a rule for a component that has one already takes its settings from the base, and was tried with the others.
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = "{match: {component: clever, namespace: other}, set: {burstSize: 3}}";
    let rules = format!("[{{match: {{component: node-agent}}, set: {{burstSize: 3}}}}, {other}]");
    std::fs::write(file.path(), format!("correlation: {{rules: {rules}}}\n")).unwrap();
    let text = replay(&storm, &["-o", "json", "--config", &file.path().display().to_string()]);
    let with: Value = serde_json::from_str(&text).unwrap();
    let components: Vec<_> = with["suggestions"].as_array().unwrap().iter().map(|found| &found["component"]).collect();
    assert_eq!(components, ["clever"], "{with:#}");
    // There is no suggestion for few events, nor for very many objects.
    for quiet in [recording(cronjob_hour().take(6)), recording(pods_come_and_go().take(21_000))] {
        assert!(!replay(&quiet, &[]).contains("What would help"));
    }
}

/// Compares with the writes and counts that were recorded from client-go itself. `bench/run writes` runs client-go with
/// larger storms.
#[test]
fn the_column_of_client_go_equals_its_recordings() {
    let mut compared = (0, 0);
    for name in [
        "010_dedup_basic",
        "011_dedup_no_server_answer",
        "020_aggregation_threshold",
        "040_spam_burst_refill",
        "050_cronjob_60_minutes",
        "051_cronjob_article",
        "140_many_objects_interleaved",
        "200_fuzz_default_options",
    ] {
        let (mut comparison, mut writes, mut answers) = (Comparison::default(), 0, 0);
        let (policy, settings) = client_go();
        comparison.add(policy, settings, Duration::ZERO, None);
        let (mut counts, mut stored) = (BTreeMap::new(), None);
        for line in document(&format!("tests/vectors/correlator/{name}.jsonl")).lines() {
            let step: Value = serde_json::from_str(line).unwrap();
            let count = |event: &Value| event["count"].as_u64().unwrap_or(1);
            if step["op"] == "correlate" {
                let event = json::decode_event(ApiGroup::Core, step["event"].to_string().as_bytes()).unwrap();
                let at = Time::parse(step["at"].as_str().unwrap()).unwrap();
                comparison.report(event, 1, Some(at.0 * 1_000_000_000));
                if step["result"]["skip"] == false {
                    writes += 1;
                    let event = &step["result"]["event"];
                    let name = [&event["metadata"]["namespace"], &event["metadata"]["name"]].map(ToString::to_string);
                    counts.insert(name, count(event));
                }
            }
            answers += u64::from(step["op"] == "update_state");
            if step["op"] == "final_store" {
                stored = Some(step["events"].as_array().unwrap().iter().map(count).sum::<u64>());
            }
        }
        comparison.run_on(Until::Settled);
        assert!(comparison.balances() && comparison.out_of_order == 0, "{name}");
        let mut ours = Fate::default();
        comparison.columns[0].fates().iter().for_each(|fate| ours.add(fate));
        let shown = counts.values().sum::<u64>();
        assert_eq!(ours.writes, writes, "{name}");
        compared.0 += writes;
        // Without the server's answers client-go does not know its records.
        if answers == writes {
            assert_eq!(ours.shown, shown, "{name}");
            assert_eq!(stored.unwrap_or(shown), shown, "{name}");
            compared.1 += shown;
        }
    }
    assert!(compared.0 > 400 && compared.1 > 200, "{compared:?} writes and occurrences compared");
}

fn settings() -> impl Strategy<Value = (Settings, shard::Settings)> {
    let correlator = (
        prop_oneof![Just(Suppression::Defer), Just(Suppression::Drop)],
        prop_oneof![4 => Just(Correlation::On), 1 => Just(Correlation::Off)],
        0_u32..4,
        prop_oneof![Just(0.0_f32), Just(0.003), Just(0.1), Just(5.0)],
        1_usize..4,
        1_usize..40,
        0_usize..3,
        any::<bool>(),
    );
    let rate = || proptest::option::of((prop_oneof![Just(0.0_f32), Just(0.01), Just(1.0)], 1_u32..5));
    let rate = || rate().prop_map(|rate| rate.map(|(qps, burst)| Rate { qps, burst }));
    // Storms of many objects: budgets of groups and of all writes, with records that fold after some seconds.
    let groups = (rate(), rate(), 0_u64..30, 1_usize..4, any::<bool>());
    let outbox = (0_u64..3, 1_usize..40, 0_usize..6, 0_u64..900);
    (correlator, outbox, groups).prop_map(|(correlator, outbox, (group, ceiling, fold_after, max_groups, is_exact))| {
        let (coalesce, max_records, digest_after, age) = outbox;
        let (suppression, correlation, burst_size, qps, max_events, cache, keys, is_deterministic) = correlator;
        let mut settings = Settings {
            suppression,
            correlation,
            burst_size,
            qps,
            max_events: NonZeroUsize::new(max_events).unwrap(),
            lru_cache_size: NonZeroUsize::new(cache).unwrap(),
            naming: if is_deterministic { Naming::Deterministic } else { Naming::Client },
            group,
            messages: if is_exact { Messages::Exact } else { Messages::Normalized },
            ..Settings::default()
        };
        if keys == 1 {
            settings.aggregate_key = vec![Field::SourceComponent, Field::Reason];
            settings.spam_key = vec![Field::SourceComponent];
        }
        if keys == 2 {
            settings.local_key = vec![Field::InvolvedObjectName, Field::Message];
            settings.aggregate_key = vec![Field::SourceComponent];
        }
        let outbox = outbox::Settings {
            coalesce_interval: Duration::from_secs(coalesce),
            max_records: NonZeroUsize::new(max_records).unwrap(),
            digest_after,
            digest_max_age: Duration::from_secs(age),
            groups: outbox::GroupSettings {
                ceiling,
                fold_after: Duration::from_secs(fold_after),
                max_groups: NonZeroUsize::new(max_groups).unwrap(),
            },
            ..outbox::Settings::default()
        };
        (settings, shard::Settings { outbox, max_sources: NonZeroUsize::new(2).unwrap(), ..Default::default() })
    })
}

type Occurrence = (u8, u8, u8, u8, u32, i64);

fn occurrences() -> impl Strategy<Value = Vec<Occurrence>> {
    proptest::collection::vec((0_u8..4, 0_u8..5, 0_u8..5, 0_u8..3, 1_u32..4, -30_i64..600), 1..150)
}

fn build((object, reason, message, component, _, _): Occurrence) -> Event {
    // One in five is refused: its namespace is not that of its object.
    let (object, reason) = (format!("o-{object}"), format!("Reason{reason}"));
    let event_type = if message % 2 == 0 { "Normal" } else { "Warning" };
    let mut event = event(("Pod", &object), &reason, format!("m{message}"), event_type, &format!("c{component}"));
    if message == 4 {
        event.metadata.namespace = "elsewhere".into();
    }
    event
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_account_balances_for_any_input_and_configuration(
        input in occurrences(), (settings, shard) in settings(), until in 0_u8..3,
    ) {
        let mut comparison = Comparison::default();
        let (policy, client_go) = client_go();
        comparison.add(policy, client_go, TTL, None);
        comparison.add(Policy { base: Arc::new(settings), rules: Vec::new() }, shard, TTL, Some(128));
        let (mut at, mut sent) = (START * 1_000_000_000, 0);
        for occurrence in input {
            at += occurrence.5 * 1_000_000_000;
            sent += u64::from(occurrence.4);
            comparison.report(build(occurrence), occurrence.4, Some(at));
            prop_assert!(comparison.balances());
        }
        comparison.run_on([Until::Settled, Until::After(Duration::from_secs(700)), Until::At(0)][usize::from(until)]);
        prop_assert!(comparison.balances());
        prop_assert_eq!(comparison.sent(), sent);
        for column in &comparison.columns {
            prop_assert_eq!(column.fates().iter().map(Fate::total).sum::<u64>(), sent);
        }
    }
}

fn line(number: usize) -> String {
    format!(
        r#"{{"kind":"Event","apiVersion":"v1","metadata":{{"name":"e{number}","namespace":"default"}},"involvedObject":{{"kind":"Pod","namespace":"default","name":"p"}},"reason":"R","message":"a \"}}]\" in \\","type":"Normal"}}"#
    )
}

/// Reads a recording: the names of events, or the lines of bad documents.
fn read(input: &[u8]) -> (Format, Vec<Result<String, u64>>) {
    let mut recording = Recording::new(input).unwrap();
    let mut found = Vec::new();
    for next in recording.by_ref() {
        found.push(next.unwrap().map(|report| report.event.metadata.name.to_string()).map_err(|bad| bad.line));
    }
    (recording.format, found)
}

fn gzip(input: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, input).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn events_are_read_in_all_formats() {
    let [one, two] = [line(1), line(2)];
    let indented = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&one).unwrap()).unwrap();
    let list =
        format!(r#"{{"apiVersion":"v1","items":[{one},{two}],"kind":"List","metadata":{{"resourceVersion":""}}}}"#);
    let pretty = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&list).unwrap()).unwrap();
    let both = vec![Ok("e1".to_owned()), Ok("e2".to_owned())];
    let long = |text: &str| text.replacen('{', &format!("{{{}", " ".repeat(70_000)), 1);
    for (input, format) in [
        (format!("{one}\n\n{two}\n"), Format::Lines),
        (format!("\u{feff}{one}\n{two}\n"), Format::Lines),
        (format!("{one}{two}"), Format::Documents),
        (format!("{indented}\n{two}"), Format::Documents),
        (format!("[{one},\n{two}]"), Format::Documents),
        (format!("{{\"kind\":\"List\",\"items\":[\n{one},\n{two}\n]}}"), Format::Documents),
        (format!("{{\"kind\":\"List\",\"items\":[{one},\n{two}\n]}}"), Format::Documents),
        // Fault: lines were held in memory if the first was longer than 64 KiB.
        (format!("{}\n{two}", long(&one)), Format::Lines),
        (long(&list), Format::Documents),
        (list, Format::Documents),
        (pretty, Format::Documents),
    ] {
        assert_eq!(read(input.as_bytes()), (format, both.clone()), "{input}");
        assert_eq!(read(&gzip(input.as_bytes())), (format, both.clone()), "{input}");
    }
    let events = br#"{"kind":"EventList","apiVersion":"events.k8s.io/v1","items":[{"metadata":{"name":"e1","namespace":"default"},
        "eventTime":"2026-03-01T08:00:00.000000Z","regarding":{"kind":"Pod","namespace":"default","name":"p"},"reason":"R","note":"n",
        "reportingController":"c","reportingInstance":"i","action":"a","type":"Normal"}]}"#;
    assert_eq!(read(events).1, [Ok("e1".to_owned())]);
    assert!(read(b"").1.is_empty());
}

#[test]
fn an_event_without_times_is_as_old_as_its_object() {
    let stored =
        r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"e1","creationTimestamp":"2026-03-01T08:00:00Z"}}"#;
    let report = Recording::new(stored.as_bytes()).unwrap().next().unwrap().unwrap().unwrap();
    assert_eq!(report.at, Some(START * 1_000_000_000));
}

#[test]
fn bad_documents_are_named_by_their_line() {
    let [one, two] = [line(1), line(2)];
    let good = |name: &str| Ok(name.to_owned());
    assert_eq!(read(format!("nonsense\n{one}\n").as_bytes()).1, [Err(1), good("e1")]);
    assert_eq!(read(format!("{one}\n{{\"kind\":\n{two}\n").as_bytes()).1, [good("e1"), Err(2), good("e2")]);
    assert_eq!(read(format!("{{\"kind\":\n{two}\n").as_bytes()).1, [Err(1), good("e2")]);
    let pod = r#"{"kind":"Pod","apiVersion":"v1"}"#;
    assert_eq!(read(format!("[{one},\n{pod},\n{two}]").as_bytes()).1, [good("e1"), Err(2), good("e2")]);
    assert_eq!(read(format!("[{one},\nnonsense\n{two}]").as_bytes()).1, [good("e1"), Err(2), good("e2")]);
    assert_eq!(read(format!("[{one},\n{{\"kind\"").as_bytes()).1, [good("e1"), Err(2)]);
    assert_eq!(read(format!("[{one}").as_bytes()).1, [good("e1"), Err(1)]);
}

/// The API server logs a request after it has answered, so that the client's next one may be logged first.
#[test]
fn a_request_that_is_logged_after_the_next_one_counts_once() {
    let entry = |verb: &str, millisecond: u32, body: &str| {
        format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"ResponseComplete","verb":"{verb}","stageTimestamp":"2026-03-01T08:00:00.{millisecond:03}000Z","objectRef":{{"resource":"events","namespace":"default","name":"e1","apiVersion":"v1"}},"responseStatus":{{"code":200}},"requestObject":{body}}}"#
        )
    };
    let log = [
        entry("patch", 2, r#"{"count":2}"#),
        entry("create", 1, &line(1)),
        entry("patch", 5, r#"{"count":5}"#),
        entry("patch", 4, r#"{"count":4}"#),
        entry("patch", 3, r#"{"count":3}"#),
    ];
    let mut recording = Recording::new(std::io::Cursor::new(log.join("\n"))).unwrap();
    let found: Vec<_> = recording.by_ref().map(|next| next.unwrap().unwrap()).collect();
    assert_eq!(found.iter().map(|report| report.occurrences).collect::<Vec<_>>(), [1; 5]);
    // The created event has no count.
    assert_eq!(found.iter().map(|report| report.event.count).collect::<Vec<_>>(), [0, 2, 3, 4, 5]);
    assert_eq!(recording.without_body, 0);
}

#[test]
fn an_audit_log_has_each_request() {
    let entry = |verb: &str, stage: &str, code: u16, body: &str| {
        format!(
            r#"{{"kind":"Event","apiVersion":"audit.k8s.io/v1","stage":"{stage}","verb":"{verb}","stageTimestamp":"2026-03-01T08:00:00.500000Z","objectRef":{{"resource":"events","namespace":"default","name":"e1","apiVersion":"v1"}},"responseStatus":{{"code":{code}}},"requestObject":{body}}}"#
        )
    };
    let create = line(1);
    let log = [
        entry("create", "RequestReceived", 0, "null"),
        entry("create", "ResponseComplete", 201, &create),
        entry("create", "ResponseComplete", 403, &create),
        entry("patch", "ResponseComplete", 200, r#"{"count":4,"message":"new"}"#),
        entry("get", "ResponseComplete", 200, "null"),
        entry("patch", "ResponseComplete", 200, r#"{"count":5}"#),
    ];
    let mut recording = Recording::new(std::io::Cursor::new(log.join("\n"))).unwrap();
    let mut found = Vec::new();
    for next in recording.by_ref() {
        let report = next.unwrap().unwrap();
        assert_eq!(report.at, Some(START * 1_000_000_000 + 500_000_000));
        found.push((report.occurrences, report.event.message.to_string()));
    }
    let messages: Vec<_> = found.iter().map(|(occurrences, message)| (*occurrences, message.as_str())).collect();
    assert_eq!(messages, [(1, r#"a "}]" in \"#), (3, "new"), (1, "new")]);
    assert_eq!(recording.without_body, 0);
}
