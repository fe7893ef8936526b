//! `demo`: simulates a generated hour with client-go's correlator and with eventweir's defaults.

use smol_str::{SmolStr, format_smolstr};

use super::replay::compare;
use super::report::{Compared, Total, draw, length, plural, summary, sums, thousands, totals};
use super::{Error, print, table};
use crate::cli::Demo;
use crate::event::{Event, ObjectReference};
use crate::replay::{Comparison, Fact, Until};

/// 2026-03-01T08:00:00Z, where the simulated hour begins.
const START: i64 = 1_772_352_000;
const MINUTES: i64 = 60;
/// Pods that crash; each is reported every ten seconds for half an hour.
const CRASHING_PODS: i64 = 10;
/// Pods that fit on no node; each is reported every minute for twenty minutes.
const PENDING_PODS: i64 = 300;

/// Runs `demo`.
///
/// # Errors
/// When the ledger does not balance, or the drawing cannot be written.
pub fn demo(demo: &Demo) -> Result<(), Error> {
    let mut compared = compare(None, None)?;
    let storm = storm();
    for (second, event) in storm {
        compared.comparison.report(event, 1, Some((START + second) * 1_000_000_000));
    }
    let end = (START + MINUTES * 60 - 1) * 1_000_000_000;
    compared.comparison.run_on(Until::At(end));
    let mut text = "A simulated hour with client-go's correlator and with eventweir.\n\n".to_owned();
    for (component, title) in [
        (
            "cronjob-controller",
            "A CronJob that runs each minute, at the end of the hour: three reasons, one\n\
              budget. Shown occurrences, age of the newest in minutes, and writes:",
        ),
        ("kubelet", "Ten pods in a crash loop for half an hour: the same Warning each ten seconds."),
        (
            "default-scheduler",
            "300 pods that fit on no node, each reported once a minute for twenty minutes.\n\
              The first have records of their own, and a storm record counts the others:",
        ),
    ] {
        text += &format!("{title}\n\n{}\n", rows(&compared.comparison, component, end));
    }
    compared.until = compared.comparison.run_on(Until::Settled);
    text += "All events, when nothing waits any more:\n\n";
    text += &summary(&compared);
    draw(&compared, demo.svg.as_deref())?;
    text += &conclusion(&compared);
    print(&text)?;
    if compared.comparison.balances() { Ok(()) } else { Err(Error::Unbalanced) }
}

/// Renders a row per reason of this component: what each correlator shows at `end`, and with how many writes.
fn rows(comparison: &Comparison, component: &str, end: i64) -> String {
    let reason = |fact: &Fact| (fact.component == component).then(|| fact.reason.clone());
    let reasons = sums(comparison, &comparison.columns, reason).into_iter().map(|(reason, sums)| {
        let mut row = vec![reason.to_string(), sums.sent.to_string()];
        for Total { fate, .. } in sums.totals {
            let minutes = |newest: i64| ((end - newest) / 60_000_000_000).to_string();
            let age = fate.newest_shown.map_or_else(|| "-".to_owned(), minutes);
            row.extend([fate.shown.to_string(), age, fate.writes.to_string()]);
        }
        row
    });
    let rows: Vec<_> = reasons.collect();
    let headings = ["reason", "sent", "client-go", "age", "writes", "eventweir", "age", "writes"];
    table::render(usize::MAX, &headings, 1, &rows)
}

fn conclusion(compared: &Compared) -> String {
    let comparison = &compared.comparison;
    let end = comparison.span.map_or(0, |(_, end)| end);
    let totals = totals(compared).totals;
    let (sent, client_go, ours) = (comparison.sent(), totals[0].fate, totals[1].fate);
    let text = format!(
        "{}: {} writes with client-go, {} with eventweir, {} without a correlator ({:.0} % fewer). \
         client-go never shows {} of them; eventweir shows all, the last {} after the last event.",
        plural(sent, "event"),
        thousands(client_go.writes),
        thousands(ours.writes),
        thousands(sent),
        100.0 * (1.0 - ours.writes as f64 / sent.max(1) as f64),
        thousands(client_go.lost),
        length((compared.until - end) / 1_000_000_000)
    );
    format!("\n{}\n\nNext: kubectl get events -A -o json | eventweir replay -\n", table::wrap(&text))
}

/// Generates the hour: a `CronJob` that runs each minute, pods that crash, and pods that cannot be scheduled. Seconds
/// and events, in order.
fn storm() -> Vec<(i64, Event)> {
    let mut storm = Vec::new();
    for minute in 0..MINUTES {
        let job = 28_023_902 + minute;
        for (second, reason, message) in [
            (0, "SuccessfulCreate", format_smolstr!("Created job hello-{job}")),
            (7, "SawCompletedJob", format_smolstr!("Saw completed job: hello-{job}, status: Complete")),
            (7, "SuccessfulDelete", format_smolstr!("Deleted job hello-{}", job - 3)),
        ] {
            let event = event("CronJob", "hello", reason, message, "Normal", "cronjob-controller");
            storm.push((minute * 60 + second, event));
        }
    }
    for pod in 0..CRASHING_PODS {
        let name = format_smolstr!("web-{pod}");
        for beat in 0..180 {
            let second = beat * 10 + pod;
            let message = format_smolstr!("Back-off restarting failed container web in pod {name}");
            storm.push((second, event("Pod", &name, "BackOff", message, "Warning", "kubelet")));
            if beat % 30 == 0 {
                for reason in ["Pulled", "Created", "Started"] {
                    let message = format_smolstr!("{reason} container web");
                    storm.push((second, event("Pod", &name, reason, message, "Normal", "kubelet")));
                }
            }
        }
    }
    for (minute, pod) in (35..55).flat_map(|minute| (0..PENDING_PODS).map(move |pod| (minute, pod))) {
        let message = SmolStr::new_static("0/3 nodes are available: 3 Insufficient cpu.");
        let event = event("Pod", &format!("job-{pod}"), "FailedScheduling", message, "Warning", "default-scheduler");
        storm.push((minute * 60 + pod / 10, event));
    }
    storm.sort_by_key(|(second, _)| *second);
    storm
}

fn event(kind: &str, name: &str, reason: &str, message: SmolStr, event_type: &str, component: &str) -> Event {
    let mut event = Event {
        involved_object: ObjectReference {
            kind: kind.into(),
            namespace: "default".into(),
            name: name.into(),
            api_version: if kind == "CronJob" { "batch/v1" } else { "v1" }.into(),
            ..ObjectReference::default()
        },
        reason: reason.into(),
        message,
        event_type: event_type.into(),
        count: 1,
        reporting_controller: component.into(),
        ..Event::default()
    };
    event.source.component = component.into();
    event.metadata.namespace = "default".into();
    event
}
