//! Records Events with kube-rs' `Recorder`, and checks the server's list and ledger.
//!
//! Each scenario has its own object. A line per scenario goes to stdout; the exit code is 0 if all passed.

use std::collections::BTreeMap;
use std::env;
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as Record;
use kube::api::{Api, DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Config, ResourceExt};
use tokio::time::{Instant, sleep, timeout};

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const NAMESPACE: &str = "kube-rs";

/// Time limit of polling.
const DEADLINE: Duration = Duration::from_secs(30);

struct Server {
    client: Client,
    metrics: Client,
}

/// The server's ledger, summed over the labels; see docs/metrics.md.
struct Ledger {
    sums: BTreeMap<String, i64>,
    /// Occurrences that wait for another reason than a budget, which takes seconds.
    moving: i64,
}

/// Fails with both values if they differ.
fn same<T: Debug + PartialEq>(what: &str, have: T, want: T) -> Outcome {
    if have == want { Ok(()) } else { Err(format!("{what}: {have:?}, not {want:?}").into()) }
}

/// Repeats `$check` until it is `Ok`. After the deadline it returns the last error.
macro_rules! until {
    ($what:expr, $check:expr) => {{
        let end = Instant::now() + DEADLINE;
        loop {
            match $check.await {
                Ok(value) => break Ok(value),
                Err(error) if Instant::now() >= end => break Err(format!("{}: {error}", $what)),
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
    }};
}

impl Server {
    fn new() -> Outcome<Self> {
        let client = |url: &str| -> Outcome<Client> { Ok(Client::try_from(Config::new(url.parse()?))?) };
        let metrics = env::var("METRICS")?;
        let admin = metrics.strip_suffix("/metrics").ok_or("METRICS does not end in /metrics")?;
        Ok(Self { client: client(&env::var("SERVER")?)?, metrics: client(admin)? })
    }

    fn events(&self) -> Api<Record> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Returns a recorder with an empty cache, like that of a new process.
    fn recorder(&self) -> Recorder {
        let reporter =
            Reporter { controller: "example.com/kube-rs".to_owned(), instance: Some("kube-rs-0".to_owned()) };
        Recorder::new(self.client.clone(), reporter)
    }

    async fn ledger(&self) -> Outcome<Ledger> {
        let text = self.metrics.request_text(http::Request::get("/metrics").body(Vec::new())?).await?;
        let mut ledger = Ledger { sums: BTreeMap::new(), moving: 0 };
        for line in text.lines().filter_map(|line| line.strip_prefix("eventweir_ledger_")) {
            let (series, value) = line.split_once(' ').ok_or("a sample without a value")?;
            let name = series.split('{').next().unwrap_or_default().trim_end_matches("_total");
            let value: i64 = value.parse()?;
            *ledger.sums.entry(name.to_owned()).or_default() += value;
            if name == "waiting" && !series.contains("\"budget\"") {
                ledger.moving += value;
            }
        }
        let accounted: i64 = ["rejected", "written", "waiting", "lost"].iter().map(|name| ledger.sums[*name]).sum();
        same("rejected + written + waiting + lost", accounted, ledger.sums["received"])?;
        Ok(ledger)
    }

    /// Waits until occurrences wait for budgets only, and returns the ledger.
    async fn begin(&self) -> Outcome<Ledger> {
        let quiet = async || {
            let ledger = self.ledger().await?;
            same("waiting for other reasons than a budget", ledger.moving, 0)?;
            Outcome::Ok(ledger)
        };
        Ok(until!("the ledger", quiet())?)
    }

    /// Waits as `begin` does, checks the growth of the ledger since `before`, and returns the written occurrences.
    async fn settled(&self, before: &Ledger, sent: i64) -> Outcome<i64> {
        let now = self.begin().await?;
        let grown = |name: &str| now.sums[name] - before.sums[name];
        same("received", grown("received"), sent)?;
        same("rejected", grown("rejected"), 0)?;
        same("lost", grown("lost"), 0)?;
        same("written + waiting", grown("written") + grown("waiting"), sent)?;
        Ok(grown("written"))
    }

    async fn listed(&self, object: &str) -> Outcome<Vec<Record>> {
        Ok(self.events().list(&ListParams::default().fields(&format!("regarding.name={object}"))).await?.items)
    }

    /// Waits until the list shows all occurrences.
    async fn stored(&self, object: &str, occurrences: i64, records: usize) -> Outcome<Vec<Record>> {
        let complete = async || {
            let events = self.listed(object).await?;
            same("occurrences listed", events.iter().map(count).sum(), occurrences)?;
            Outcome::Ok(events)
        };
        let events = until!(format!("the list of {object}"), complete())?;
        same("records", events.len(), records)?;
        Ok(events)
    }
}

fn count(event: &Record) -> i64 {
    let series = event.series.as_ref().map_or(0, |series| series.count);
    event.deprecated_count.unwrap_or(0).max(series).max(1).into()
}

fn pod(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(NAMESPACE.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(format!("uid-{name}")),
        ..ObjectReference::default()
    }
}

fn event(reason: &str, note: &str) -> Event {
    Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note.to_owned()),
        action: "Restarting".to_owned(),
        secondary: None,
    }
}

/// The first event is a POST, each repeat a merge patch of the whole event with a series.
async fn repeats(server: &Server) -> Outcome {
    let before = server.begin().await?;
    let recorder = server.recorder();
    for _ in 0..30 {
        recorder.publish(&event("BackOff", "Back-off restarting failed container"), &pod("repeats")).await?;
    }
    server.stored("repeats", 30, 1).await?;
    same("written", server.settled(&before, 30).await?, 30)
}

/// A recorder ignores the note: events that differ only in it are one series.
async fn notes_of_one_recorder(server: &Server) -> Outcome {
    let before = server.begin().await?;
    let recorder = server.recorder();
    for volume in 0..20 {
        recorder.publish(&event("FailedMount", &format!("Volume {volume}")), &pod("notes")).await?;
    }
    let events = server.stored("notes", 20, 1).await?;
    same("the note", events[0].note.as_deref(), Some("Volume 0"))?;
    same("written", server.settled(&before, 20).await?, 20)
}

/// Recorders without common state: each event is a POST. The tenth note and later ones are combined.
async fn notes_of_many_recorders(server: &Server) -> Outcome {
    let before = server.begin().await?;
    for volume in 0..20 {
        server.recorder().publish(&event("FailedMount", &format!("Volume {volume}")), &pod("many")).await?;
    }
    let mut counts: Vec<i64> = server.stored("many", 20, 10).await?.iter().map(count).collect();
    counts.sort_unstable();
    same("counts", counts, vec![1, 1, 1, 1, 1, 1, 1, 1, 1, 11])?;
    same("written", server.settled(&before, 20).await?, 20)
}

/// More reasons at once than the budget admits. 25 are written; the next token is added after five minutes.
async fn burst(server: &Server) -> Outcome {
    let before = server.begin().await?;
    let recorder = server.recorder();
    let publish =
        async |reason: i32| recorder.publish(&event(&format!("Reason{reason}"), "It happened."), &pod("burst")).await;
    futures::stream::iter(0..100).map(publish).buffer_unordered(10).try_collect::<()>().await?;
    let written = server.settled(&before, 100).await?;
    if written < 25 {
        return Err(format!("written: {written}, less than a full budget").into());
    }
    same("occurrences listed", server.listed("burst").await?.iter().map(count).sum(), written)
}

async fn watch_and_delete(server: &Server) -> Outcome {
    let before = server.begin().await?;
    let (events, object) = (server.events(), "regarding.name=watch");
    let version = events.list(&ListParams::default().fields(object)).await?.metadata.resource_version;
    let recorder = server.recorder();
    recorder.publish(&event("BackOff", "Back-off restarting failed container"), &pod("watch")).await?;
    // The create is written before the repeat, which would otherwise be part of it.
    server.stored("watch", 1, 1).await?;
    recorder.publish(&event("BackOff", "Back-off restarting failed container"), &pod("watch")).await?;
    let name = server.stored("watch", 2, 1).await?[0].name_any();
    events.delete(&name, &DeleteParams::default()).await?;
    same("records after the delete", server.listed("watch").await?.len(), 0)?;
    same("getting the deleted event", events.get_opt(&name).await?.map(|event| event.name_any()), None)?;

    let mut changes =
        events.watch(&WatchParams::default().fields(object), &version.ok_or("no version")?).await?.boxed();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|(kind, _)| *kind != "DELETED") {
        seen.push(match timeout(DEADLINE, changes.try_next()).await??.ok_or("the watch ended")? {
            WatchEvent::Added(event) => ("ADDED", count(&event)),
            WatchEvent::Modified(event) => ("MODIFIED", count(&event)),
            WatchEvent::Deleted(event) => ("DELETED", count(&event)),
            other => return Err(format!("watched: {other:?}").into()),
        });
    }
    same("changes watched", seen, vec![("ADDED", 1), ("MODIFIED", 2), ("DELETED", 2)])?;

    // The recorder still has the name, and patches it. The server has no such name, so the whole total of the event
    // counts.
    recorder.publish(&event("BackOff", "Back-off restarting failed container"), &pod("watch")).await?;
    server.stored("watch", 3, 1).await?;
    server.settled(&before, 5).await.map(drop)
}

/// Prints the line of a scenario, and returns whether it passed.
fn report(name: &str, outcome: Outcome) -> bool {
    match &outcome {
        Ok(()) => println!("ok {name}"),
        Err(error) => println!("FAILED {name}: {}", error.to_string().replace('\n', " ")),
    }
    outcome.is_ok()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Outcome<ExitCode> {
    let server = &Server::new()?;
    let passed = [
        report("repeats", repeats(server).await),
        report("notes-of-one-recorder", notes_of_one_recorder(server).await),
        report("notes-of-many-recorders", notes_of_many_recorders(server).await),
        report("burst", burst(server).await),
        report("watch-and-delete", watch_and_delete(server).await),
    ];
    Ok(if passed == [true; 5] { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
