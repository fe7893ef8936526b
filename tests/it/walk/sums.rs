//! A random walk through what changes the number of records: digests, storm records, combined events, drains with a
//! deadline, and reloads of the configuration. After it, the sum of all counts upstream is what was posted.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use eventweir::correlator::{MESSAGE_PREFIX, Messages, Policy};
use eventweir::event::json::decode_event;
use eventweir::event::{ApiGroup, Event, conversion};
use eventweir::explain;
use eventweir::ledger::{Ledger, RejectReason};
use eventweir::outbox::{DIGEST_REASON, LostReason};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::support::fake::Fault;
use super::BATCH;
use super::process::{Process, Setup, Writes};
use super::tuning::{Tuning, tuning};
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
    /// A configuration file changes. Its process reads it now, or when it starts again.
    Configure {
        replica: usize,
        tuning: Tuning,
        reading: Reading,
    },
    /// A process tries a second configuration.
    Shadow {
        replica: usize,
        tuning: Tuning,
    },
}

/// When a process reads a changed configuration file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Now,
    AtStart,
}

fn posted() -> impl Strategy<Value = Posted> {
    let is = any::<(bool, bool, bool)>();
    (0..5_usize, 0..4_usize, 0..4_usize, is).prop_map(|(name, object, message, (is_warning, is_new, is_special))| {
        Posted { name, object, message, is_warning, is_new, is_special }
    })
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
    let reading = prop::sample::select(vec![Reading::Now, Reading::Now, Reading::AtStart]);
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
        2 => (replica(), tuning(), reading)
            .prop_map(|(replica, tuning, reading)| Step::Configure { replica, tuning, reading }),
        1 => (replica(), tuning()).prop_map(|(replica, tuning)| Step::Shadow { replica, tuning }),
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
    /// Whether any configuration has let events with different messages count on one record.
    normalizes: bool,
}

impl Walk {
    fn begin(setup: Setup, seed: u64) -> Self {
        let world = World::new(setup, seed);
        let names = vec![BTreeMap::new(); world.setup.replicas];
        let normalizes = normalizes(&world.setup.configuration.policy);
        let mut walk = Self { world, posted: 0, written: 0, lost: 0, forgiven: 0, names, normalizes };
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
            Step::Batch { replica, events } => self.post_batch(replica, &events).await,
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
            Step::Configure { replica, tuning, reading } => {
                self.world.files[replica % replicas] = tuning.configuration();
                self.normalizes |= normalizes(&tuning.configuration().policy);
                if reading == Reading::Now {
                    self.process(replica).reload(&tuning.configuration());
                }
            }
            Step::Shadow { replica, tuning } => self.process(replica).cast_shadow(&tuning.configuration()),
        }
    }

    async fn post_batch(&mut self, replica: usize, events: &[Posted]) {
        let lines: String = events.iter().map(|event| format!("{}\n", event.body())).collect();
        let before = self.refused(replica);
        let reply = self.process(replica).send("POST", BATCH, JSON, lines).await;
        if self.world.is_accepted(replica % self.world.setup.replicas, &reply, 200) {
            let refused = reply.text.lines().filter(|line| line.contains("\"code\":429")).count() as u64;
            assert_eq!(refused, reply.text.matches("status\":{").count() as u64, "{}", reply.text);
            assert_eq!(refused, self.refused(replica) - before, "{}", reply.text);
            assert!(refused == 0 || self.process(replica).has_little_room(), "{}", reply.text);
            self.posted += events.len() as u64 - refused;
        }
    }

    /// Returns the occurrences that a process had no room for.
    fn refused(&self, replica: usize) -> u64 {
        self.process(replica).balance().ledger.rejected(RejectReason::Full)
    }

    async fn post(&mut self, replica: usize, event: Posted) {
        let before = self.refused(replica);
        let reply = self.process(replica).send("POST", event.path(), JSON, event.body().to_string()).await;
        if reply.status == 429 && self.process(replica).has_little_room() && self.refused(replica) == before + 1 {
            return;
        }
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

    /// Returns the occurrences that the upstream shows: of a record that was written in both API groups, the larger
    /// number.
    fn shown(&self) -> u64 {
        let shown = |event: &Event| conversion::occurrences(event).max(event.count).unsigned_abs();
        self.world.fake.events().iter().map(|event| u64::from(shown(event))).sum()
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
        let (shown, least) = (self.shown(), self.least());
        assert!((least..=self.posted).contains(&shown), "{shown} of {}, at least {least}", self.posted);
        (self.posted, self.forgiven) = (shown, self.lost());
    }

    /// Waits until nothing waits, and checks the sum upstream.
    async fn settle(&self) {
        self.world.calm().await;
        self.world.rest(10).await;
        let (shown, lost) = (self.shown(), self.lost() - self.forgiven);
        let least = self.posted - lost;
        assert!((least..=self.posted).contains(&shown), "{shown} of {}, {lost} lost: {:?}", self.posted, self.stored());
        for process in self.world.running() {
            let balance = process.balance();
            let suppressed = balance.ledger.lost(LostReason::Suppressed);
            assert_eq!((balance.total_waiting(), balance.ledger.total_lost()), (0, suppressed));
            if process.explains_all() {
                grouped(process, &balance.ledger, suppressed);
            }
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
            self.check_lists(&object).await;
            let stored = self.world.fake.events().into_iter().filter(|event| event.involved_object.name == object);
            let shown: u64 = stored.map(|event| u64::from(conversion::occurrences(&event).unsigned_abs())).sum();
            assert!(explained <= shown, "{object}: {explained} of {shown}");
        }
    }

    /// Checks that lists of an object's events show what is stored, and events that have folded into a storm record.
    async fn check_lists(&self, object: &str) {
        let stored = self.world.fake.events();
        let own = stored.iter().filter(|event| event.involved_object.name == object);
        let own: BTreeSet<&str> = own.map(|event| &*event.metadata.name).collect();
        for process in self.world.running() {
            let path = format!("/api/v1/namespaces/shop/events?fieldSelector=involvedObject.name%3D{object}");
            let list = process.send("GET", &path, JSON, String::new()).await.json();
            let storm = |item: &&Value| !item["metadata"]["annotations"]["eventweir.io/folded-into"].is_null();
            let (folded, listed): (Vec<_>, Vec<_>) = list["items"].as_array().unwrap().iter().partition(storm);
            let names = listed.iter().map(|item| item["metadata"]["name"].as_str().unwrap());
            assert_eq!(names.collect::<BTreeSet<_>>(), own, "{list:#}");
            for item in folded {
                let Value::Object(metadata) = &item["metadata"] else { panic!("{item}") };
                assert!(!metadata.contains_key("uid") && !metadata.contains_key("resourceVersion"), "{item}");
                let into = &metadata["annotations"]["eventweir.io/folded-into"];
                assert!(stored.iter().any(|event| *into == *event.metadata.name), "{item}");
            }
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
                let is_repeat = self.normalizes || message.ends_with(&*event.message);
                assert!(is_repeat || message.starts_with(MESSAGE_PREFIX), "{} {}", event.message, reply.text);
                let shown = decode_event(ApiGroup::Core, reply.text.as_bytes()).unwrap();
                assert!(conversion::occurrences(&shown) >= 1, "{}", reply.text);
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

/// Whether events with different messages may count on one record.
fn normalizes(policy: &Policy) -> bool {
    let settings = std::iter::once(&policy.base).chain(policy.rules.iter().map(|rule| &rule.settings));
    settings.into_iter().any(|settings| settings.messages == Messages::Normalized)
}

/// Checks that the totals of `top` have each occurrence once. Digests and storm records have groups of their own, which
/// receive nothing.
fn grouped(process: &Process, ledger: &Ledger, suppressed: u64) {
    let groups = process.shards.groups().into_iter().flatten().filter(|group| group.totals.received > 0);
    let all = groups.fold([0; 4], |all, group| {
        let explain::Totals { received, rejected, shown, folded, dropped, lost, .. } = group.totals;
        let settled = shown + folded + lost;
        // One from the spool is received, and a later one counts in the same group.
        let is_summary = group.reason == DIGEST_REASON || group.kind == "Namespace";
        let settled = if is_summary { settled.min(received) } else { settled };
        [all[0] + received, all[1] + rejected, all[2] + settled, all[3] + dropped]
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
        configuration: tuning.configuration(),
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
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_folds_drains_or_is_reloaded_the_sum_is_what_was_posted(
        setup in setup(),
        seed in any::<u64>().no_shrink(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        walk(setup, seed, steps);
    }
}
