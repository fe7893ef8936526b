//! A random walk through what changes the number of records: digests, storm records, combined events, drains with a
//! deadline, and reloads of the configuration. After it, the sum of all counts upstream is what was posted.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use eventweir::correlator::{self, MESSAGE_PREFIX, Matches, Naming, Pattern, Policy, Rate, Rule, Suppression};
use eventweir::event::json::decode_event;
use eventweir::event::{ApiGroup, conversion};
use eventweir::explain;
use eventweir::ledger::Ledger;
use eventweir::outbox::{self, GroupSettings, LostReason};
use eventweir::shard;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::support::fake::Fault;
use super::BATCH;
use super::process::{Process, Setup, Writes};
use super::world::{self, LATE, Room, World};

const JSON: &str = "application/json";
/// Number of objects that events may have.
const OBJECTS: usize = 8;

/// An event of a step. Few of each, so that records are met again.
#[derive(Debug, Clone, Copy)]
struct Posted {
    name: usize,
    object: usize,
    message: usize,
    is_warning: bool,
    is_new: bool,
    /// Whether the reason is one that a rule may match.
    is_special: bool,
}

impl Posted {
    const fn path(self) -> &'static str {
        if self.is_new { "/apis/events.k8s.io/v1/namespaces/shop/events" } else { "/api/v1/namespaces/shop/events" }
    }

    const fn group(self) -> ApiGroup {
        if self.is_new { ApiGroup::Events } else { ApiGroup::Core }
    }

    fn body(self) -> Value {
        let object = json!({ "kind": "Pod", "name": format!("web-{}", self.object), "namespace": "shop" });
        let (metadata, time) =
            (json!({ "name": format!("n{}", self.name), "namespace": "shop" }), "2026-03-01T08:00:00");
        let message = format!("message {}", self.message);
        let reason = if self.is_special { "Special" } else { "BackOff" };
        let kind = if self.is_warning { "Warning" } else { "Normal" };
        if self.is_new {
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": metadata, "regarding": object,
                "reason": reason, "note": message, "type": kind, "action": "Restart",
                "reportingController": "kubelet", "reportingInstance": "node-1", "eventTime": format!("{time}.000000Z"),
            })
        } else {
            json!({
                "metadata": metadata, "involvedObject": object, "reason": reason, "message": message, "type": kind,
                "source": { "component": "kubelet", "host": "node-1" }, "count": 1,
                "firstTimestamp": format!("{time}Z"), "lastTimestamp": format!("{time}Z"),
            })
        }
    }
}

/// A configuration.
#[derive(Debug, Clone, Copy)]
struct Tuning {
    burst: u32,
    group: Option<Rate>,
    ceiling: Option<Rate>,
    suppression: Suppression,
    /// Suppression of special events, by a rule.
    special: Option<Suppression>,
    max_events: usize,
    naming: Naming,
    digest_after: usize,
    digest_age: u64,
    fold_after: u64,
    coalesce: u64,
}

impl Tuning {
    fn policy(self) -> Policy {
        let base = correlator::Settings {
            burst_size: self.burst,
            qps: 0.05,
            group: self.group,
            suppression: self.suppression,
            max_events: NonZeroUsize::new(self.max_events).unwrap(),
            naming: self.naming,
            ..correlator::Settings::default()
        };
        let rule = |suppression| {
            let settings = Arc::new(correlator::Settings { suppression, ..base.clone() });
            let matches = Matches { reason: vec![Pattern::Exact("Special".into())], ..Matches::default() };
            Rule { matches, settings }
        };
        Policy { rules: self.special.map(rule).into_iter().collect(), base: Arc::new(base) }
    }

    fn settings(self) -> shard::Settings {
        let fold_after = Duration::from_secs(self.fold_after);
        let groups = GroupSettings { ceiling: self.ceiling, fold_after, ..GroupSettings::default() };
        let outbox = outbox::Settings {
            digest_after: self.digest_after,
            digest_max_age: Duration::from_secs(self.digest_age),
            coalesce_interval: Duration::from_millis(self.coalesce),
            max_age: Duration::from_secs(30 * 86_400),
            groups,
            ..outbox::Settings::default()
        };
        let explain = explain::Settings { enabled: true, ..explain::Settings::default() };
        shard::Settings { outbox, explain, ..shard::Settings::default() }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Post {
        replica: usize,
        event: Posted,
    },
    /// POSTs events of these objects at once.
    Storm {
        replica: usize,
        event: Posted,
        objects: usize,
    },
    Batch {
        replica: usize,
        events: Vec<Posted>,
    },
    Pass {
        milliseconds: u64,
    },
    Settle,
    Fail(Fault),
    /// The next read of an event meets a fault.
    FailRead(Fault),
    Watch {
        replica: usize,
    },
    Kill {
        replica: usize,
    },
    /// Ends a process in order, with this time to write what waits.
    End {
        replica: usize,
        milliseconds: u64,
    },
    Reach(bool),
    /// The disk of a process has no room, or has room again.
    Fill {
        replica: usize,
        room: Room,
    },
    Reload {
        replica: usize,
        tuning: Tuning,
    },
}

fn posted() -> impl Strategy<Value = Posted> {
    let is = any::<(bool, bool, bool)>();
    (0..5_usize, 0..4_usize, 0..4_usize, is).prop_map(|(name, object, message, (is_warning, is_new, is_special))| {
        Posted { name, object, message, is_warning, is_new, is_special }
    })
}

fn tuning() -> impl Strategy<Value = Tuning> {
    let suppression = || prop_oneof![3 => Just(Suppression::Defer), 1 => Just(Suppression::Drop)];
    let special = prop_oneof![2 => Just(None), 1 => suppression().prop_map(Some)];
    let rate = |burst| prop::sample::select(vec![None, Some(Rate { qps: 0.2, burst })]);
    let naming = prop::sample::select(vec![Naming::Client, Naming::Deterministic]);
    let limits = (
        prop::sample::select(vec![1, 3, 1000]),
        prop::sample::select(vec![2, 4, 10]),
        prop::sample::select(vec![1, 3, 1000]),
        prop::sample::select(vec![5, 100, 100_000]),
        prop::sample::select(vec![1, 10]),
        prop::sample::select(vec![0, 1000]),
    );
    (limits, rate(2), rate(5), suppression(), special, naming).prop_map(
        |(
            (burst, max_events, digest_after, digest_age, fold_after, coalesce),
            group,
            ceiling,
            suppression,
            special,
            naming,
        )| {
            Tuning {
                burst,
                group,
                ceiling,
                suppression,
                special,
                max_events,
                naming,
                digest_after,
                digest_age,
                fold_after,
                coalesce,
            }
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let replica = || 0..2_usize;
    let fault = prop::sample::select(vec![
        Fault::Before(500),
        Fault::After(500),
        Fault::After(504),
        Fault::ResetAfter,
        Fault::GarbledAfter,
        Fault::TooMany(None),
        Fault::Hang,
        Fault::HangAfter,
        Fault::LateAfter(1),
        Fault::LateAfter(12),
        Fault::LateAfter(LATE),
    ]);
    let milliseconds = prop::sample::select(vec![0, 5, 25, 300, 12_000]);
    prop_oneof![
        8 => (replica(), posted()).prop_map(|(replica, event)| Step::Post { replica, event }),
        4 => (replica(), posted(), 2..=OBJECTS)
            .prop_map(|(replica, event, objects)| Step::Storm { replica, event, objects }),
        2 => (replica(), prop::collection::vec(posted(), 1..6))
            .prop_map(|(replica, events)| Step::Batch { replica, events }),
        6 => prop::sample::select(vec![1, 20, 700, 3_000, 11_000, 70_000])
            .prop_map(|milliseconds| Step::Pass { milliseconds }),
        1 => Just(Step::Settle),
        4 => fault.prop_map(Step::Fail),
        1 => world::faults_of_reads().prop_map(Step::FailRead),
        2 => replica().prop_map(|replica| Step::Watch { replica }),
        2 => replica().prop_map(|replica| Step::Kill { replica }),
        2 => (replica(), milliseconds).prop_map(|(replica, milliseconds)| Step::End { replica, milliseconds }),
        1 => any::<bool>().prop_map(Step::Reach),
        2 => (replica(), prop::sample::select(vec![Room::None, Room::Some]))
            .prop_map(|(replica, room)| Step::Fill { replica, room }),
        2 => (replica(), tuning()).prop_map(|(replica, tuning)| Step::Reload { replica, tuning }),
    ]
}

struct Walk {
    world: World,
    /// Occurrences that were accepted.
    posted: u64,
    /// Occurrences that processes of the past have written, and those that they have lost.
    written: u64,
    lost: u64,
    /// Losses that `posted` does not contain any more.
    forgiven: u64,
    /// The event that each name of a replica leads to, by replica.
    names: Vec<BTreeMap<usize, Posted>>,
}

impl Walk {
    fn begin(setup: Setup, seed: u64) -> Self {
        let world = World::new(setup, seed);
        let names = vec![BTreeMap::new(); world.setup.replicas];
        let mut walk = Self { world, posted: 0, written: 0, lost: 0, forgiven: 0, names };
        for replica in 0..walk.world.setup.replicas {
            walk.world.start(replica);
        }
        walk
    }

    fn process(&self, replica: usize) -> &Process {
        self.world.process(replica % self.world.setup.replicas)
    }

    async fn take(&mut self, step: Step) {
        let replicas = self.world.setup.replicas;
        match step {
            Step::Post { replica, event } => self.post(replica, event).await,
            Step::Storm { replica, event, objects } => {
                for object in 0..objects {
                    self.post(replica, Posted { object, ..event }).await;
                }
            }
            Step::Batch { replica, events } => {
                let lines: String = events.iter().map(|event| format!("{}\n", event.body())).collect();
                let reply = self.process(replica).send("POST", BATCH, JSON, lines).await;
                if self.world.is_accepted(replica % replicas, &reply, 200) {
                    assert!(!reply.text.contains("status"), "{}", reply.text);
                    self.posted += events.len() as u64;
                }
            }
            Step::Pass { milliseconds } => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
            Step::Settle => self.settle().await,
            Step::Fail(fault) => self.world.faults.lock().push_back(fault),
            Step::FailRead(fault) => self.world.reads.lock().push_back(fault),
            Step::Watch { replica } => self.world.watch(replica % replicas),
            Step::Kill { replica } => self.kill(replica % replicas).await,
            Step::End { replica, milliseconds } => self.end(replica % replicas, milliseconds).await,
            Step::Reach(up) => self.world.fake.set_up(up),
            Step::Fill { replica, room: Room::None } => self.world.fill(replica % replicas),
            Step::Fill { replica, room: Room::Some } => self.world.make_room(replica % replicas).await,
            Step::Reload { replica, tuning } => {
                self.process(replica).shards.reload(&tuning.settings(), tuning.policy());
            }
        }
    }

    async fn post(&mut self, replica: usize, event: Posted) {
        let reply = self.process(replica).send("POST", event.path(), JSON, event.body().to_string()).await;
        let replica = replica % self.world.setup.replicas;
        if self.world.is_accepted(replica, &reply, 201) {
            self.posted += 1;
            self.names[replica].insert(event.name, event);
        }
    }

    /// Adds the account of a process that has ended.
    fn close(&mut self, ledger: &Ledger) {
        self.written += ledger.total_written();
        self.lost += ledger.total_lost();
    }

    async fn kill(&mut self, replica: usize) {
        self.world.make_room(replica).await;
        let ledger = self.process(replica).balance().ledger;
        self.close(&ledger);
        self.world.kill(replica).await;
        self.start_again(replica).await;
    }

    async fn end(&mut self, replica: usize, milliseconds: u64) {
        self.world.make_room(replica).await;
        let process = self.world.take(replica);
        let ledger = process.end(Duration::from_millis(milliseconds)).await.ledger;
        self.close(&ledger);
        self.start_again(replica).await;
    }

    async fn start_again(&mut self, replica: usize) {
        self.names[replica].clear();
        if self.world.setup.spool {
            self.world.start(replica);
            return;
        }
        // A request that is executed late would count beside what the next process lists.
        self.forgive().await;
        self.world.start(replica);
    }

    /// Returns the occurrences that the upstream certainly shows.
    fn least(&self) -> u64 {
        let ledgers = self.world.running().map(|process| process.balance().ledger);
        self.written + ledgers.map(|ledger| ledger.total_written()).sum::<u64>()
    }

    /// Returns the occurrences that are counted as lost.
    fn lost(&self) -> u64 {
        let ledgers = self.world.running().map(|process| process.balance().ledger);
        self.lost + ledgers.map(|ledger| ledger.total_lost()).sum::<u64>()
    }

    /// Takes what the upstream shows for what was posted, because a process without a spool has lost the rest.
    async fn forgive(&mut self) {
        self.world.calm().await;
        self.world.rest(10).await;
        let (shown, least) = (self.world.fake.shown(), self.least());
        assert!((least..=self.posted).contains(&shown), "{shown} of {}, at least {least}", self.posted);
        (self.posted, self.forgiven) = (shown, self.lost());
    }

    /// Waits until nothing waits, and checks the sum upstream.
    async fn settle(&self) {
        self.world.calm().await;
        self.world.rest(10).await;
        let (shown, lost) = (self.world.fake.shown(), self.lost() - self.forgiven);
        let least = self.posted - lost;
        assert!((least..=self.posted).contains(&shown), "{shown} of {}, {lost} lost: {:?}", self.posted, self.stored());
        for process in self.world.running() {
            let balance = process.balance();
            let suppressed = balance.ledger.lost(LostReason::Suppressed);
            assert_eq!((balance.total_waiting(), balance.ledger.total_lost()), (0, suppressed));
            grouped(process, &balance.ledger, suppressed);
        }
        self.world.check_numbers().await;
        for object in (0..OBJECTS).map(|object| format!("web-{object}")) {
            let mut explained = 0;
            for process in self.world.running() {
                explained += process.explained_as_shown(&object).await;
                if self.world.setup.replicas == 1 {
                    process.check_settled_records(&object).await;
                }
            }
            let stored = self.world.fake.events().into_iter().filter(|event| event.involved_object.name == object);
            let shown: u64 = stored.map(|event| u64::from(conversion::occurrences(&event).unsigned_abs())).sum();
            assert!(explained <= shown, "{object}: {explained} of {shown}");
        }
    }

    /// Checks that each name leads to the client's own event, unless that has folded or was dropped.
    async fn check_names(&self) {
        for (replica, (name, posted)) in
            self.names.iter().zip(0..).flat_map(|(of, replica)| of.iter().map(move |one| (replica, one)))
        {
            let process = self.process(replica);
            let event = decode_event(posted.group(), posted.body().to_string().as_bytes()).unwrap();
            let found = process.shards.find(&event).filter(|found| found.stored || found.unsettled.is_some());
            let reply =
                process.send("GET", &format!("/api/v1/namespaces/shop/events/n{name}"), JSON, String::new()).await;
            if found.is_some() {
                let document = reply.json();
                let members = [&document["metadata"]["name"], &document["involvedObject"]["name"], &document["reason"]];
                assert_eq!(
                    members,
                    [&format!("n{name}"), &*event.involved_object.name, &*event.reason],
                    "{}",
                    reply.text
                );
                let message = document["message"].as_str().unwrap();
                assert!(
                    message.ends_with(&*event.message) || message.starts_with(MESSAGE_PREFIX),
                    "{} {}",
                    event.message,
                    reply.text
                );
                assert!(document["count"].as_i64() >= Some(1), "{}", reply.text);
            } else {
                assert!([200, 404].contains(&reply.status), "{}", reply.text);
            }
        }
    }

    fn stored(&self) -> Vec<(String, String, i32)> {
        let events = self.world.fake.events();
        events.iter().map(|event| (event.metadata.name.to_string(), event.message.to_string(), event.count)).collect()
    }
}

/// Checks that the totals of `top` have each occurrence once. Digests and storm records have groups of their own, which
/// receive nothing.
fn grouped(process: &Process, ledger: &Ledger, suppressed: u64) {
    let groups = process.shards.groups().into_iter().flatten().map(|group| group.totals);
    let all = groups.filter(|totals| totals.received > 0).fold([0; 4], |all, totals| {
        let explain::Totals { received, rejected, shown, folded, dropped, lost, .. } = totals;
        [all[0] + received, all[1] + rejected, all[2] + shown + folded + lost, all[3] + dropped]
    });
    let [received, rejected, settled, dropped] = all;
    let accepted = ledger.received() - ledger.total_rejected();
    assert_eq!((received - rejected, dropped), (accepted, suppressed), "{ledger:?}");
    let least = if suppressed == 0 { received - rejected } else { received - rejected - dropped };
    assert!((least..=received - rejected).contains(&settled), "{all:?} {ledger:?}");
}

fn setup() -> impl Strategy<Value = Setup> {
    (1..3_usize, prop_oneof![3 => Just(true), 1 => Just(false)], tuning()).prop_map(|(replicas, spool, tuning)| Setup {
        replicas,
        shards: const { NonZeroUsize::new(2).unwrap() },
        spool,
        writes: Writes::Exact,
        settings: tuning.settings(),
        policy: tuning.policy(),
    })
}

fn walk(setup: Setup, seed: u64, steps: Vec<Step>) {
    world::run(async {
        let mut walk = Walk::begin(setup, seed);
        for step in steps {
            walk.take(step).await;
            walk.world.check_explained().await;
            walk.world.undisturbed(walk.check_names()).await;
        }
        walk.settle().await;
        walk.world.check_forgotten().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_folds_drains_or_is_reloaded_the_sum_is_what_was_posted(
        setup in setup(),
        seed in any::<u64>().no_shrink(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        walk(setup, seed, steps);
    }
}
