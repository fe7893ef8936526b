//! One process of a walk: the HTTP interface without sockets, the shards, the spool and delivery, under tokio's paused
//! time. It can be killed at any moment.

use std::collections::BTreeMap;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use eventweir::access::{self, Access};
use eventweir::clock::Mono;
use eventweir::correlator::{self, KeySecret, Policy};
use eventweir::deliver::{self, DeliveryStatus, GateSettings};
use eventweir::event::{ApiGroup, Event, conversion};
use eventweir::event_log::{EventLog, Target};
use eventweir::explain;
use eventweir::ingest::{self, Ack, Admission, Aliases, Ingest, Shared};
use eventweir::ledger::{Balance, LostReason};
use eventweir::outbox::{self, UpstreamGroup};
use eventweir::server::Origins;
use eventweir::shadow::{Rules, Shadow};
use eventweir::shard::{self, Listed, Shards};
use eventweir::spool::{Beginning, Spool};
use eventweir::upstream::apiserver;
use http::Request;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::super::support::bench::policy;
use super::super::support::disk::Disk;
use super::super::support::fake::FakeApiserver;
use super::views::{self, Views};

/// `upstream.writes`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Exact,
    Plain,
}

/// Configuration of the processes of a walk.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) replicas: usize,
    pub(super) shards: NonZeroUsize,
    /// Whether each process has a spool, and acknowledges occurrences as durable.
    pub(super) spool: bool,
    pub(super) writes: Writes,
    pub(super) configuration: Configuration,
}

/// What the configuration file of a process says.
#[derive(Debug, Clone)]
pub(super) struct Configuration {
    pub(super) settings: shard::Settings,
    pub(super) policy: Policy,
    pub(super) gate: GateSettings,
}

impl Setup {
    /// Returns settings under which nothing folds, with budgets of `burst` tokens.
    pub(super) fn plain(burst: u32) -> Configuration {
        let explain = explain::Settings { enabled: true, ..explain::Settings::default() };
        let outbox = outbox::Settings {
            digest_after: 1000,
            digest_max_age: Duration::from_secs(30 * 86_400),
            ..outbox::Settings::default()
        };
        let base = correlator::Settings { burst_size: burst, qps: 0.2, group: None, ..Default::default() };
        let settings = shard::Settings { outbox, explain, ..shard::Settings::default() };
        Configuration { settings, policy: policy(base), gate: GateSettings::default() }
    }
}

/// Name of the event log's file.
const LOG: &str = "events";
/// How often the event log is read before it must have every line.
const LOOKS: usize = 100_000;

pub(super) struct Process {
    pub(super) shards: Shards,
    pub(super) spool: Option<Spool>,
    face: Ingest,
    fake: FakeApiserver,
    /// The newest change of the upstream that its history has read.
    read: u64,
    monitor: DeliveryStatus,
    shadow: Shadow,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    views: Mutex<Views>,
    /// The folder of the event log, and the task that writes it.
    log: (tempfile::TempDir, JoinSet<()>),
    began: Mono,
}

pub(super) struct Reply {
    pub(super) status: u16,
    /// Whether it has a warning.
    pub(super) is_warned: bool,
    pub(super) text: String,
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

impl Process {
    /// Starts a process, which lists the upstream's events.
    pub(super) fn start(
        setup: &Setup,
        file: &Configuration,
        fake: &FakeApiserver,
        disk: &Disk,
        rng: &mut fastrand::Rng,
    ) -> Self {
        // Secrets that the program itself draws.
        fastrand::seed(rng.u64(..));
        let (registry, clock) = (Registry::new(), fake.clock());
        let secret = KeySecret(rng.u64(..), rng.u64(..));
        let medium = || Arc::new(disk.clone());
        let beginning = setup.spool.then(|| Beginning::new(medium(), Duration::from_millis(10), secret, &registry));
        let secret = beginning.as_ref().map_or(secret, Beginning::secret);
        let shards = Shards::new(setup.shards, &file.settings, file.policy.clone(), clock.clone(), secret, rng.u64(..));
        if setup.writes == Writes::Exact {
            shards.identify(&format!("{:032x}", rng.u128(..)));
        }
        let spool = beginning.map(|beginning| beginning.restore(&shards));
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        if let Some(spool) = spool.clone() {
            tasks.spawn(spool.run(shards.clone(), stop.clone()));
        }
        let monitor = DeliveryStatus::new(file.gate, &registry);
        // The API group of reads is that of writes, as the configuration does it.
        let group = if file.settings.outbox.group == UpstreamGroup::Events { ApiGroup::Events } else { ApiGroup::Core };
        let upstream = fake.upstream_with(&apiserver::Settings { group, ..apiserver::Settings::default() }, &registry);
        let delivery = deliver::run(shards.clone(), upstream.clone(), monitor.clone(), stop.clone(), rng.u64(..));
        tasks.spawn(delivery);
        // A second configuration that is as the first one.
        let (shadow, shadowing) = Shadow::new(shards.clone(), secret);
        tasks.spawn(shadowing.run(stop.clone()));
        let ask: access::Ask = Arc::new(|_, _| Box::pin(std::future::pending()));
        let counted = access::Metrics::new(&registry);
        let access = Access::new(access::Settings::default(), ask, clock, secret, counted);
        let listed = CancellationToken::new();
        listed.cancel();
        let shared = Shared {
            access,
            tasks: tokio_util::task::TaskTracker::new(),
            stop: CancellationToken::new(),
            listed,
            spool: spool.clone(),
            shadow: shadow.clone(),
            upstream_up: monitor.up(),
        };
        let aliases = Aliases::new(NonZeroUsize::new(1000).unwrap(), secret);
        let ack = if setup.spool { Ack::Durable } else { Ack::Accepted };
        let settings = ingest::Settings { ack, ..ingest::Settings::default() };
        let metrics = ingest::Metrics::new(&registry);
        let (folder, mut logging) = (tempfile::tempdir().unwrap(), JoinSet::new());
        let (event_log, writing) =
            EventLog::new(Target::File(folder.path().join(LOG)), &registry, CancellationToken::new());
        logging.spawn(writing);
        let face = Ingest::new(settings, shards.clone(), upstream, aliases, metrics, event_log, shared)
            .admitting(Admission::default());
        let views = Mutex::new(Views::new(&shards, &file.settings, &registry));
        let began = fake.clock().now().mono;
        let (fake, log) = (fake.clone(), (folder, logging));
        let mut process = Self { shards, spool, face, fake, read: 0, monitor, shadow, stop, tasks, views, log, began };
        process.cast_shadow(file);
        process.list();
        process
    }

    /// Reads a configuration again, as `App::reload` does.
    pub(super) fn reload(&self, Configuration { settings, policy, gate }: &Configuration) {
        self.monitor.set_settings(*gate);
        self.shards.reload(settings, policy.clone());
        self.views.lock().reload(settings);
        if !settings.explain.enabled {
            self.shadow.set(None);
        }
    }

    /// Tries a second configuration from now on, which needs `explain`.
    pub(super) fn cast_shadow(&self, Configuration { settings, policy, .. }: &Configuration) {
        let mut views = self.views.lock();
        if views.explains() {
            let (file, policy, mut settings) = (views.next_shadow(), policy.clone(), settings.clone());
            settings.explain.enabled = true;
            self.shadow.set(Some(Rules { file, policy, settings, ..Rules::default() }));
            views.shadowed_since = self.balance().total_waiting();
        }
    }

    /// Whether `explain` knows everything since the start.
    pub(super) fn explains_all(&self) -> bool {
        self.views.lock().is_whole()
    }

    /// Whether a limit may refuse records.
    pub(super) fn has_little_room(&self) -> bool {
        self.views.lock().has_little_room()
    }

    fn list(&mut self) {
        let mut listed = Listed::default();
        self.read = self.fake.revision();
        for event in self.fake.events() {
            listed.add(&event);
            self.shards.apply_watch(&event);
        }
        self.shards.apply_list(&listed);
    }

    /// Reads the changes of the upstream, as its watch does.
    pub(super) fn watch(&mut self) {
        for change in self.fake.changes_since(self.read) {
            self.read = change.revision;
            match (change.after, change.before) {
                (Some(event), _) => self.shards.apply_watch(&event),
                (None, Some(event)) => {
                    let mut event = Event::clone(&event);
                    event.metadata.resource_version = change.revision.to_string().into();
                    self.shards.apply_deletion(&event);
                }
                (None, None) => {}
            }
        }
    }

    pub(super) async fn send(&self, method: &str, path: &str, content_type: &str, body: String) -> Reply {
        send(self.face.clone(), method, path, content_type, body).await
    }

    /// As `send`, but the watch shows what the upstream has done before its answer.
    pub(super) async fn send_and_watch(&mut self, method: &str, path: &str, content_type: &str, body: String) -> Reply {
        let mut sending = std::pin::pin!(send(self.face.clone(), method, path, content_type, body));
        loop {
            tokio::select! {
                biased;
                reply = &mut sending => return reply,
                () = tokio::time::sleep(Duration::from_millis(100)) => self.watch(),
            }
        }
    }

    /// Returns a list of the only document of `explain` about an object; empty without one.
    async fn explain(&self, object: &str, list: &str) -> Vec<Value> {
        let path = format!("/eventweir/v1/explain?namespace=shop&kind=Pod&name={object}");
        let reply = self.send("GET", &path, "", String::new()).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()["objects"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|object| object[list].as_array().unwrap().clone())
            .collect()
    }

    /// Checks that `explain` has an account of each occurrence of an object, and returns those that it calls shown.
    pub(super) async fn explained_as_shown(&self, object: &str) -> u64 {
        let sum = |numbers: &Value| -> u64 { numbers.as_object().unwrap().values().filter_map(Value::as_u64).sum() };
        if !self.views.lock().explains() {
            return 0;
        }
        let mut all = 0;
        for part in self.explain(object, "reasons").await {
            let [received, shown, in_summary, rejected] =
                ["received", "shown", "inSummary", "rejected"].map(|member| part[member].as_u64().unwrap());
            let accounted = shown + in_summary + rejected + sum(&part["waiting"]) + sum(&part["lost"]);
            assert_eq!(received, accounted, "{part:#}");
            let waits = self.shards.owe();
            assert!(waits || sum(&part["waiting"]) == 0, "{part:#}");
            all += shown;
        }
        all
    }

    /// Checks that the upstream has the records of an object that `explain` calls settled, and that there are no others
    /// once all is written. Only this process writes them.
    pub(super) async fn check_settled_records(&self, object: &str) {
        if !self.views.lock().explains() {
            return;
        }
        let stored = self.fake.events();
        let records = self.explain(object, "records").await;
        let is_dropped = self.balance().ledger.lost(LostReason::Suppressed) > 0;
        let is_known = |record: &Value| is_dropped || record["state"] != "unwritten" && record["state"] != "ended";
        assert!(records.iter().all(is_known), "records that nothing counts on: {records:#?}");
        for record in records.iter().filter(|record| record["state"] == "settled" && !record["count"].is_null()) {
            // At a limit its history is evicted, and the next occurrence counts on under the same name.
            let same = records.iter().filter(|other| other["name"] == record["name"]);
            let count = same.filter_map(|other| other["count"].as_i64()).max();
            let event = stored.iter().find(|event| event.metadata.name == record["name"].as_str().unwrap());
            assert_eq!(event.map(|event| conversion::occurrences(event).into()), count, "{record:#}");
        }
    }

    /// Checks that the tap tells what is in the ledger.
    pub(super) fn check_tap(&self) {
        self.views.lock().check_tap(&self.balance().ledger);
    }

    /// Checks that the event log has a line of each accepted occurrence, with the outcome that the tap tells.
    async fn check_log(&self) {
        let mut logged = BTreeMap::new();
        for _ in 0..LOOKS {
            // The file may not exist yet.
            let lines = tokio::fs::read_to_string(self.log.0.path().join(LOG)).await.unwrap_or_default();
            logged.clear();
            for line in lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
                let outcome = line["outcome"].as_str().unwrap().to_owned();
                *logged.entry(outcome).or_insert(0) += line["occurrences"].as_u64().unwrap();
            }
            if self.views.lock().is_told(&logged) {
                return;
            }
        }
        assert!(self.views.lock().is_told(&logged), "{logged:?}");
    }

    /// Checks that the metrics, the numbers of `top` and those of the shadow are those of the ledger.
    pub(super) async fn check_numbers(&self) {
        self.check_tap();
        self.check_log().await;
        let balance = self.balance();
        let received = self.views.lock().check_metrics(&self.shards, &balance);
        let (is_whole, shadowed_since) = {
            let views = self.views.lock();
            (views.is_whole(), views.shadowed_since)
        };
        if is_whole && self.fake.clock().now().mono.since(self.began) < Duration::from_secs(3000) {
            let reply = self.send("GET", "/eventweir/v1/top?window=1h", "", String::new()).await;
            views::check_top(&reply.json(), received, &balance);
        }
        let reply = self.send("GET", "/eventweir/v1/shadow", "", String::new()).await;
        if reply.status == 200 {
            views::check_shadow(&reply.json(), shadowed_since);
        }
    }

    /// Returns the occurrences that wait, by event.
    pub(super) fn pending(&self) -> Vec<(Event, u64)> {
        let of = |index| {
            self.shards
                .look(index, |shard| shard.pending().map(|(event, number)| (event.clone(), number)).collect::<Vec<_>>())
        };
        (0..self.shards.count()).flat_map(of).collect()
    }

    pub(super) fn balance(&self) -> Balance {
        let balance = self.shards.balance();
        assert!(balance.is_exact(), "{balance:?}");
        balance
    }

    /// Ends the process at once.
    pub(super) async fn kill(mut self) {
        self.tasks.abort_all();
        while self.tasks.join_next().await.is_some() {}
    }

    /// Ends the process in order, as `App::stop` does, and writes what waits until the time limit. Returns its final
    /// balance.
    pub(super) async fn end(mut self, limit: Duration) -> Balance {
        if !limit.is_zero() {
            self.monitor.drain();
            self.shards.drain();
            let drained = async {
                while self.shards.owe() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let _in_time = tokio::time::timeout(limit, drained).await;
        }
        self.stop.cancel();
        self.shards.close();
        let kept = match &self.spool {
            Some(spool) => spool.finish(&self.shards).await,
            None => false,
        };
        if !kept {
            self.shards.abandon();
        }
        let balance = self.balance();
        while self.tasks.join_next().await.is_some() {}
        balance
    }
}

async fn send(face: Ingest, method: &str, path: &str, content_type: &str, body: String) -> Reply {
    let request = Request::builder().method(method).uri(path).header("Content-Type", content_type);
    let request = request.header("Host", "localhost").body(Body::from(body)).unwrap();
    let Ok(response) = face.service(Origins::any_host()).oneshot(request).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(body.to_vec()).unwrap();
    Reply { status: head.status.as_u16(), is_warned: head.headers.contains_key("warning"), text }
}
