//! `demo`: the same hour through two proxies in real HTTP and simulated time, one as client-go behaves, one with our defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt as _;
use hyper_util::rt::TokioIo;
use prometheus::Registry;
use smol_str::{SmolStr, format_smolstr};
use tokio::net::{TcpListener, TcpStream};

use super::replay::client_go_settings;
use super::{Error, print, runtime, table};
use crate::app::{App, ConfigSource, Listeners};
use crate::cli::Demo;
use crate::clock::{Clock, Now};
use crate::config::Config;
use crate::correlator::record_name;
use crate::event::{Event, ObjectReference, Time, core_v1};
use crate::outbox::Why;
use crate::upstream::{self, Embedded, Upstream};

/// 2026-03-01T08:00:00Z, where the simulated hour begins.
const START: i64 = 1_772_352_000;
const MINUTES: i64 = 60;
/// Pods that crash, each reported every ten seconds for half an hour.
const CRASHING_PODS: i64 = 10;
/// Longest real time for a proxy to come to rest at one instant of simulated time.
const REST: Duration = Duration::from_secs(30);

/// Step of the clock of a demo that stays up.
const TICK: Duration = Duration::from_millis(100);

/// `demo`
///
/// # Errors
/// When a proxy cannot be started, does not answer as it should, or its ledger does not balance.
pub fn demo(demo: &Demo) -> Result<(), Error> {
    runtime()?.block_on(run(demo.keep))
}

async fn run(keep: bool) -> Result<(), Error> {
    let mut client_go = Proxy::start(client_go_config()).await?;
    let mut ours = Proxy::start(Config::default()).await?;
    let storm = storm();
    print(&format!(
        "eventweir demo: {} raw events of one simulated hour, POSTed over HTTP to two proxies with embedded upstreams.\n\n",
        storm.len()
    ))?;
    for (second, event) in &storm {
        client_go.post(*second, event.clone()).await?;
        ours.post(*second, event.clone()).await?;
    }
    client_go.pass(MINUTES * 60 - 1).await?;
    ours.pass(MINUTES * 60 - 1).await?;
    print(&report(&storm, &client_go.seen(), &ours.seen()))?;
    client_go.finish().await?;
    if keep {
        print(&format!(
            "\neventweir's proxy stays up: http://{}/api/v1/events and http://{}/metrics. Ctrl-C ends it.\n",
            ours.app.address(),
            ours.app.admin_address()
        ))?;
        ours.keep().await?;
    }
    ours.finish().await
}

/// What client-go's own correlator does, as a configuration.
fn client_go_config() -> Config {
    let (policy, shard) = client_go_settings();
    Config { policy, shard, ..Config::default() }
}

/// One proxy, its clock, and what was read from its upstream.
struct Proxy {
    app: std::sync::Arc<App>,
    clock: Clock,
    client: hyper::client::conn::http1::SendRequest<Body>,
    store: Embedded,
    revision: u64,
    writes: BTreeMap<(SmolStr, SmolStr), u64>,
}

impl Proxy {
    async fn start(mut config: Config) -> Result<Self, Error> {
        // Its only client knows when it has ended.
        config.shutdown.grace = std::time::Duration::ZERO;
        let io = |source| Error::Io { what: "opening a port for the demo".to_owned(), source };
        let bind = async || TcpListener::bind(("127.0.0.1", 0)).await.map_err(io);
        let listeners = Listeners { face: bind().await?.into(), admin: bind().await? };
        let (registry, clock) = (Registry::new(), Clock::manual(START * 1_000_000_000));
        let metrics = upstream::Metrics::new(&registry).map_err(crate::app::Error::from)?;
        let store = Embedded::new(config.upstream.store.clone(), clock.clone(), metrics);
        let upstream = Upstream::Embedded(store.clone());
        let app = App::start(config, ConfigSource::default(), listeners, upstream, registry, clock.clone())?;
        let stream = TcpStream::connect(app.address()).await.map_err(io)?;
        let (client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        app.spawn(async move {
            // Its end shows in the next request.
            drop(connection.await);
        });
        let revision = store.access(|store, _| store.revision());
        Ok(Self { app, clock, client, store, revision, writes: BTreeMap::new() })
    }

    /// Reports an event at a second of the simulated hour.
    async fn post(&mut self, second: i64, mut event: Event) -> Result<(), Error> {
        self.pass(second).await?;
        event.metadata.name = record_name(&event.involved_object.name, self.clock.now());
        event.first_timestamp = Some(Time(START + second));
        event.last_timestamp = event.first_timestamp;
        let mut body = Vec::new();
        core_v1::write_json(&event, &mut body);
        let request = http::Request::post("/api/v1/namespaces/default/events")
            .header(http::header::HOST, "localhost")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Body::from(body))
            .map_err(|error| Error::Demo(error.to_string()))?;
        self.client.ready().await.map_err(failed)?;
        let response = self.client.send_request(request).await.map_err(failed)?;
        let status = response.status();
        let answer = response.into_body().collect().await.map_err(failed)?.to_bytes();
        if status != http::StatusCode::CREATED {
            return Err(Error::Demo(format!("{status}: {}", String::from_utf8_lossy(&answer))));
        }
        // Names are made of nanoseconds: no two events happen in the same one.
        self.clock.advance(Duration::from_nanos(1));
        self.rest().await
    }

    /// Lets simulated time pass until `second`, stopping wherever the proxy wants to do something.
    async fn pass(&mut self, second: i64) -> Result<(), Error> {
        loop {
            let now = self.clock.now();
            let left = (START + second) * 1_000_000_000 - now.wall;
            if left <= 0 {
                return Ok(());
            }
            let wakeup = self.next_wakeup(now).map_or(left, |at| at.max(1));
            self.clock.advance(Duration::from_nanos(wakeup.min(left).unsigned_abs()));
            self.rest().await?;
        }
    }

    /// Nanoseconds until some shard wants to do something; not positive when it wants to now.
    fn next_wakeup(&self, now: Now) -> Option<i64> {
        let shards = self.app.shards();
        let wakeups =
            (0..shards.count()).filter_map(|index| shards.with(index, |shard, _| shard.next_wakeup(now.mono)));
        wakeups.min().map(|at| at.nanos_since(now.mono))
    }

    /// Waits, in real time, until the proxy has done all it wants to do at this instant of simulated time.
    async fn rest(&mut self) -> Result<(), Error> {
        let at_rest = async {
            loop {
                let busy = self.app.shards().balance().waiting[Why::InFlight as usize] > 0;
                let wants = self.next_wakeup(self.clock.now()).is_some_and(|nanos| nanos <= 0);
                if !busy && !wants {
                    return;
                }
                // Shorter than any sleep of the runtime, and only ever for the time of a loopback request.
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(REST, at_rest)
            .await
            .map_err(|_elapsed| Error::Demo("the proxy did not come to rest".to_owned()))?;
        if !self.app.shards().balance().is_exact() {
            return Err(Error::Demo("the ledger does not balance".to_owned()));
        }
        self.note_writes();
        Ok(())
    }

    /// Counts the creates and patches since the last look.
    fn note_writes(&mut self) {
        let (store, revision, writes) = (&self.store, &mut self.revision, &mut self.writes);
        store.access(|store, _| {
            for change in store.changes_since(*revision).into_iter().flatten() {
                *revision = change.revision;
                if let Some(event) = &change.after {
                    *writes.entry(line(event)).or_default() += 1;
                }
            }
        });
    }

    /// What can be seen of each object kind and reason: occurrences, and seconds since the newest.
    fn seen(&self) -> BTreeMap<(SmolStr, SmolStr), Seen> {
        let now = self.clock.now().wall_seconds();
        let mut seen = BTreeMap::<_, Seen>::new();
        let page = self.store.access(|store, now| store.list(None, &upstream::ListOptions::default(), now));
        for event in page.into_iter().flat_map(|page| page.items) {
            let entry = seen.entry(line(&event)).or_default();
            entry.shown += u64::try_from(event.count).unwrap_or_default();
            entry.newest = entry.newest.max(event.last_timestamp);
        }
        for (line, writes) in &self.writes {
            seen.entry(line.clone()).or_default().writes = *writes;
        }
        for entry in seen.values_mut() {
            entry.age = entry.newest.map(|newest| now - newest.0);
        }
        seen
    }

    /// Stays up until Ctrl-C; from now on simulated time goes as fast as real time.
    async fn keep(&self) -> Result<(), Error> {
        let clock = self.clock.clone();
        let ticks = async {
            loop {
                tokio::time::sleep(TICK).await;
                clock.advance(TICK);
            }
        };
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(|source| Error::Io { what: "waiting for Ctrl-C".to_owned(), source })
            }
            () = ticks => Ok(()),
        }
    }

    async fn finish(self) -> Result<(), Error> {
        drop(self.client);
        let balance = self.app.stop().await;
        if balance.is_exact() && balance.total_waiting() == 0 {
            Ok(())
        } else {
            Err(Error::Demo(format!("the ledger does not balance at the end: {balance:?}")))
        }
    }
}

fn failed(error: impl std::error::Error) -> Error {
    Error::Demo(error.to_string())
}

/// What can be seen of one reason.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    shown: u64,
    newest: Option<Time>,
    age: Option<i64>,
    writes: u64,
}

/// Kind of the object and reason.
fn line(event: &Event) -> (SmolStr, SmolStr) {
    (event.involved_object.kind.clone(), event.reason.clone())
}

/// The hour: a `CronJob` that runs each minute, and pods that crash. Seconds and events, in order.
fn storm() -> Vec<(i64, Event)> {
    let mut storm = Vec::new();
    for minute in 0..MINUTES {
        let job = 28_023_902 + minute;
        for (second, reason, message) in [
            (0, "SuccessfulCreate", format_smolstr!("Created job hello-{job}")),
            (7, "SawCompletedJob", format_smolstr!("Saw completed job: hello-{job}, status: Complete")),
            (7, "SuccessfulDelete", format_smolstr!("Deleted job hello-{}", job - 3)),
        ] {
            storm.push((
                minute * 60 + second,
                event("CronJob", "hello", reason, message, "Normal", "cronjob-controller"),
            ));
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

type SeenByLine = BTreeMap<(SmolStr, SmolStr), Seen>;

fn report(storm: &[(i64, Event)], client_go: &SeenByLine, ours: &SeenByLine) -> String {
    let mut sent = BTreeMap::<_, u64>::new();
    for (_, event) in storm {
        *sent.entry(line(event)).or_default() += 1;
    }
    let mut text = String::new();
    for (kind, title) in [
        (
            "CronJob",
            "A CronJob that runs each minute: three reasons on one object, so one budget of 25 and one more per 5 minutes.",
        ),
        ("Pod", "Ten pods in a crash loop for half an hour: the same Warning every ten seconds."),
    ] {
        let rows: Vec<_> = sent
            .iter()
            .filter(|((of, _), _)| of == kind)
            .map(|(line, sent)| {
                let mut row = vec![line.1.to_string(), sent.to_string()];
                for seen in [client_go, ours] {
                    let seen = seen.get(line).copied().unwrap_or_default();
                    let age = seen.age.map_or_else(|| "-".to_owned(), |age| format!("{} min ago", age / 60));
                    row.extend([seen.shown.to_string(), age, seen.writes.to_string()]);
                }
                row
            })
            .collect();
        let headings = ["reason", "sent", "client-go shows", "newest", "writes", "eventweir shows", "newest", "writes"];
        text.push_str(title);
        text.push_str("\n\n");
        text.push_str(&table::render(&headings, 1, &rows));
        let total =
            |seen: &SeenByLine| seen.iter().filter(|((of, _), _)| of == kind).map(|(_, seen)| seen.writes).sum::<u64>();
        text.push_str(&format!(
            "  writes to the API server: client-go {}, eventweir {}\n\n",
            total(client_go),
            total(ours)
        ));
    }
    text.push_str(
        "What eventweir does not show yet waits for its budget's next token, and is written then: nothing is dropped.\n",
    );
    text
}
