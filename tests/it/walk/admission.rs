//! A random walk of clients that write to the API server themselves, which asks eventweir before (`admission: on`).
//! After it, the upstream shows each occurrence once, whether its client or eventweir has written it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use eventweir::clock::Mono;
use eventweir::correlator::{self, Naming};
use eventweir::event::json::{decode_event, write_json};
use eventweir::event::{ApiGroup, Event, Time};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::support::events::START;
use super::super::support::fake::Fault;
use super::super::support::http::EVENTS;
use super::STRATEGIC_MERGE;
use super::account::Account;
use super::model::{KINDS, KindId, Style, kind_of, series, shown};
use super::process::{Process, Setup, Writes};
use super::world::{self, LATE, World};

const ADMIT: &str = "/eventweir/v1/admit";
/// Number of clients, of which those from this index on report to eventweir.
const CLIENTS: usize = 5;
const DIRECT: usize = 3;
const JSON: &str = "application/json";

/// What becomes of a request of a client after its review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Course {
    /// It is executed.
    Given,
    /// It is executed, and the answer is lost, so that the client repeats it.
    Repeated,
    /// It is executed so many seconds later.
    Late(u64),
    /// Another webhook refuses it.
    Refused,
}

#[derive(Debug, Clone)]
enum Step {
    /// An event occurs at a client, which writes its total to the API server.
    Occur {
        client: usize,
        course: Course,
    },
    /// A client repeats its last request.
    Repeat {
        client: usize,
        course: Course,
    },
    /// A client begins again with a new name.
    Begin {
        client: usize,
        kind: KindId,
    },
    /// A client DELETEs its event at the API server.
    Delete {
        client: usize,
    },
    /// The API server asks another replica from now on.
    Turn,
    /// An event occurs for the first time while eventweir is away.
    Miss {
        client: usize,
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
}

fn step() -> impl Strategy<Value = Step> {
    let client = || 0..CLIENTS;
    let replica = || 0..2_usize;
    let kind = || 0..KINDS.len();
    let course = || {
        prop_oneof![
            5 => Just(Course::Given),
            1 => Just(Course::Repeated),
            2 => prop::sample::select(vec![1, 12, LATE]).prop_map(Course::Late),
            1 => Just(Course::Refused),
        ]
    };
    let fault = prop::sample::select(vec![
        Fault::Before(500),
        Fault::After(500),
        Fault::ResetAfter,
        Fault::TooMany(None),
        Fault::Hang,
        Fault::HangAfter,
        Fault::LateAfter(1),
        Fault::LateAfter(12),
        Fault::LateAfter(LATE),
    ]);
    prop_oneof![
        12 => (client(), course()).prop_map(|(client, course)| Step::Occur { client, course }),
        3 => (client(), course()).prop_map(|(client, course)| Step::Repeat { client, course }),
        2 => (client(), kind()).prop_map(|(client, kind)| Step::Begin { client, kind }),
        1 => client().prop_map(|client| Step::Delete { client }),
        1 => Just(Step::Turn),
        1 => (0..DIRECT).prop_map(|client| Step::Miss { client }),
        6 => prop::sample::select(vec![1, 20, 700, 3_000, 11_000, 70_000])
            .prop_map(|milliseconds| Step::Pass { milliseconds }),
        1 => Just(Step::Settle),
        2 => fault.prop_map(Step::Fail),
        1 => world::faults_of_reads().prop_map(Step::FailRead),
        3 => replica().prop_map(|replica| Step::Watch { replica }),
        2 => replica().prop_map(|replica| Step::Kill { replica }),
    ]
}

/// A client with a correlator of its own, and its event.
#[derive(Debug, Clone)]
struct Client {
    name: String,
    kind: KindId,
    total: i32,
    /// Its last request that the account contains, if it may repeat it.
    last: Option<Event>,
    /// How much of its total the account contains.
    counted: i32,
    /// Whether its object was deleted after its newest total.
    is_deleted: bool,
}

/// A client's write that is executed later.
#[derive(Debug)]
struct Pending {
    at: Mono,
    client: usize,
    name: String,
    /// The object that it changes; `None` for a create.
    old: Option<Event>,
    new: Event,
}

struct Walk {
    world: World,
    clients: Vec<Client>,
    names: Vec<String>,
    account: Account,
    /// The replica that the API server and the clients ask.
    asked: usize,
    late: Vec<Pending>,
    seconds: i64,
}

impl Walk {
    fn begin(setup: Setup, seed: u64) -> Self {
        let replicas = setup.replicas;
        let mut walk = Self {
            world: World::new(setup, seed),
            clients: Vec::new(),
            names: Vec::new(),
            account: Account::default(),
            asked: 0,
            late: Vec::new(),
            seconds: 0,
        };
        (0..CLIENTS).for_each(|client| walk.call(client, [0, 3, 0, 0, 3][client]));
        (0..replicas).for_each(|replica| walk.start(replica));
        walk
    }

    /// Gives a client a new event under a new name.
    fn call(&mut self, client: usize, kind: KindId) {
        let name = format!("n{}", self.names.len());
        self.names.push(name.clone());
        let new = Client { name, kind, total: 0, last: None, counted: 0, is_deleted: false };
        if client < self.clients.len() { self.clients[client] = new } else { self.clients.push(new) }
    }

    fn start(&mut self, replica: usize) {
        let process = self.world.start(replica);
        process.pending().iter().for_each(|(event, _)| self.account.restore(kind_of(event)));
    }

    fn process(&self) -> &Process {
        self.world.process(self.asked)
    }

    async fn take(&mut self, step: Step) {
        let replicas = self.world.setup.replicas;
        match step {
            Step::Occur { client, course } => self.occur(client, course).await,
            Step::Repeat { client, course } => self.repeat(client, course).await,
            Step::Begin { client, kind } if !self.is_late(&self.clients[client].name) => self.call(client, kind),
            Step::Begin { .. } => {}
            Step::Delete { client } => self.delete(client).await,
            Step::Turn => self.turn().await,
            Step::Miss { client } => self.miss(client).await,
            Step::Pass { milliseconds } => self.pass(Duration::from_millis(milliseconds)).await,
            Step::Settle => self.settle().await,
            Step::Fail(fault) => self.world.faults.lock().push_back(fault),
            Step::FailRead(fault) => self.world.reads.lock().push_back(fault),
            Step::Watch { replica } => {
                self.watch(replica % replicas);
                self.world.check_reads().await;
            }
            Step::Kill { replica } => self.kill(replica % replicas).await,
        }
    }

    fn watch(&mut self, replica: usize) {
        self.world.watch(replica);
        self.account.watch();
    }

    fn now(&self) -> Mono {
        self.world.fake.clock().now().mono
    }

    /// Lets time pass, and executes the writes that are late.
    async fn pass(&mut self, time: Duration) {
        let end = self.now().after(time);
        while let Some(next) = (0..self.late.len()).min_by_key(|index| self.late[*index].at)
            && self.late[next].at <= end
        {
            let Pending { at, client, name, old, new } = self.late.remove(next);
            tokio::time::sleep(at.since(self.now())).await;
            self.execute(client, &name, old, new).await;
        }
        tokio::time::sleep(end.since(self.now())).await;
    }

    fn is_late(&self, name: &str) -> bool {
        self.late.iter().any(|pending| pending.name == name)
    }

    /// An event occurs again at a client.
    async fn occur(&mut self, client: usize, course: Course) {
        if self.is_late(&self.clients[client].name) {
            return;
        }
        let Client { name, kind, total, counted, .. } = self.clients[client].clone();
        if total > 0 && self.account.total(&name, kind, total + 1 - counted, Writes::Exact) != total + 1 {
            // Nothing is promised about larger totals.
            self.call(client, kind);
        }
        self.seconds += 1;
        self.clients[client].total += 1;
        (self.clients[client].last, self.clients[client].is_deleted) = (None, false);
        self.send(client, course).await;
    }

    /// A client repeats its last request. Whether that brings an occurrence is not certain if its name is unknown, or if
    /// its object is gone.
    async fn repeat(&mut self, client: usize, course: Course) {
        let Client { name, total, is_deleted, .. } = &self.clients[client];
        if *total > 0 && !is_deleted && self.account.known(name).is_some() && !self.is_late(name) {
            self.send(client, course).await;
        }
    }

    /// Sends the total of a client.
    async fn send(&mut self, client: usize, course: Course) {
        if client >= DIRECT {
            self.post(client).await;
            return;
        }
        if course == Course::Repeated {
            Box::pin(self.write(client, Course::Given)).await;
            Box::pin(self.write(client, Course::Given)).await;
        } else {
            Box::pin(self.write(client, course)).await;
        }
    }

    /// Returns the event of a client, as it was first or with its newest total.
    fn event(&self, client: usize) -> Event {
        let Client { name, kind, total, .. } = &self.clients[client];
        let group = if KINDS[*kind].style == Style::New { ApiGroup::Events } else { ApiGroup::Core };
        let body = KINDS[*kind].body(&json!({ "name": name }), *total).to_string();
        let mut event = decode_event(group, body.as_bytes()).unwrap();
        event.type_meta = None;
        if KINDS[*kind].style == Style::Old {
            event.last_timestamp = Some(Time::from_unix_nanos(START + self.seconds * 1_000_000_000));
        }
        event
    }

    /// Writes the total of a client to the API server.
    async fn write(&mut self, client: usize, course: Course) {
        let name = self.clients[client].name.clone();
        let newest = self.clients[client].last.clone().unwrap_or_else(|| self.event(client));
        self.clients[client].last = Some(newest.clone());
        let stored = self.world.fake.events().into_iter().find(|event| event.metadata.name == name);
        let old = stored.filter(|_| self.clients[client].total > 1);
        let new = match &old {
            Some(old) => Event {
                count: if newest.series.is_some() { old.count } else { newest.count },
                last_timestamp: if newest.series.is_some() { old.last_timestamp } else { newest.last_timestamp },
                series: newest.series.clone(),
                ..old.clone()
            },
            None => newest,
        };
        if !self.review(old.as_ref(), &new).await {
            self.count(client);
            return;
        }
        match &old {
            None => self.count(client),
            Some(old) if KINDS[self.clients[client].kind].style == Style::Old => {
                assert_eq!((new.count, new.last_timestamp), (old.count, old.last_timestamp), "a count was allowed");
                return;
            }
            Some(_) => {}
        }
        match course {
            Course::Given | Course::Repeated => self.execute(client, &name, old, new).await,
            Course::Late(seconds) => {
                let at = self.now().after(Duration::from_secs(seconds));
                self.late.push(Pending { at, client, name, old, new });
            }
            Course::Refused => {}
        }
    }

    /// Executes an allowed write.
    async fn execute(&mut self, client: usize, name: &str, old: Option<Event>, new: Event) {
        let Some(old) = old else {
            self.world.fake.create(new);
            return;
        };
        let version = |event: &Event| event.metadata.resource_version.clone();
        let stored = self.world.fake.events().into_iter().find(|event| event.metadata.name == name);
        match stored {
            Some(stored) if version(&stored) == version(&old) => {
                let kind = self.clients[client].kind;
                let (shown, live) = (shown(&self.world.fake.events())[kind], self.account.live(kind));
                self.world.fake.change(&old, |event| event.series.clone_from(&new.series));
                if self.clients[client].name == name {
                    self.count(client);
                    self.account.overtake(kind, shown, self.account.live(kind) - live);
                }
            }
            // The API server applies the patch to the newer object, and asks again.
            _ if self.clients[client].name == name => Box::pin(self.write(client, Course::Given)).await,
            _ => {}
        }
    }

    /// Returns whether a request is allowed.
    async fn review(&self, old: Option<&Event>, new: &Event) -> bool {
        let object = |event: &Event| {
            let mut body = Vec::new();
            write_json(ApiGroup::Core, event, &mut body);
            serde_json::from_slice::<Value>(&body).unwrap()
        };
        let review = json!({
            "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
            "request": {
                "uid": "abc", "kind": { "group": "", "version": "v1", "kind": "Event" },
                "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
                "userInfo": { "username": "me" }, "object": object(new), "oldObject": old.map(object),
            },
        });
        let reply = self.process().send("POST", ADMIT, JSON, review.to_string()).await;
        let response = &reply.json()["response"];
        let is_counted = ["AlreadyExists", "Forbidden"].iter().any(|reason| response["status"]["reason"] == *reason);
        assert!(response["allowed"] == true || is_counted, "{}", reply.text);
        response["allowed"] == true
    }

    /// Notes that a client's total was accepted.
    fn count(&mut self, client: usize) {
        let Client { name, kind, total, .. } = self.clients[client].clone();
        self.clients[client].counted = total;
        match self.account.known(&name) {
            Some(known) if known.total == total => {}
            Some(_) if total > 1 => self.account.patch(&name, kind, total),
            _ => self.account.post(&name, kind, total),
        }
    }

    /// Reports the total of a client to eventweir.
    async fn post(&mut self, client: usize) {
        let Client { name, kind, total, .. } = self.clients[client].clone();
        if self.account.known(&name).is_some() {
            let body = match KINDS[kind].style {
                Style::Old => json!({ "count": total }),
                Style::New => json!({ "series": series(total.max(2)) }),
            };
            if total == 1 {
                return;
            }
            let path = format!("{EVENTS}/{name}");
            let reply = self.process().send("PATCH", &path, STRATEGIC_MERGE, body.to_string()).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
        } else {
            let body = KINDS[kind].body(&json!({ "name": name }), total).to_string();
            let reply = self.process().send("POST", KINDS[kind].path(), JSON, body).await;
            assert_eq!(reply.status, 201, "{}", reply.text);
        }
        self.count(client);
    }

    async fn delete(&mut self, client: usize) {
        self.settle().await;
        (0..self.world.setup.replicas).for_each(|replica| self.watch(replica));
        let Client { name, kind, .. } = self.clients[client].clone();
        let mut stored = self.world.fake.events().into_iter().filter(|event| kind_of(event) == kind);
        let (Some(event), None) = (stored.next(), stored.next()) else { return };
        if event.metadata.name == name {
            self.world.fake.delete(&event);
            self.account.delete_upstream(kind, &name, 0);
            self.clients[client].is_deleted = true;
        }
    }

    /// The other replica is asked, after it has read what this one has written.
    async fn turn(&mut self) {
        if self.world.setup.replicas == 1 {
            return;
        }
        self.settle().await;
        (0..self.world.setup.replicas).for_each(|replica| self.watch(replica));
        self.asked = (self.asked + 1) % self.world.setup.replicas;
        self.account.restart(&self.names, None);
        for client in 0..CLIENTS {
            // Whether a repeated request is known depends on the replica.
            let Client { kind, total, counted, .. } = self.clients[client];
            if counted == total { self.clients[client].last = None } else { self.call(client, kind) }
        }
    }

    /// A client writes a new event while eventweir is away.
    async fn miss(&mut self, client: usize) {
        self.settle().await;
        let kind = self.clients[client].kind;
        self.call(client, kind);
        self.clients[client].total = 1;
        let event = self.event(client);
        self.world.kill(self.asked).await;
        assert!(self.world.fake.create(event));
        self.account.restart(&self.names, None);
        self.count(client);
        self.account.restart(&self.names, None);
        self.start(self.asked);
    }

    async fn kill(&mut self, replica: usize) {
        // Changes of a series that nothing reviews are not told from other writers'.
        while self.late.iter().any(|pending| pending.old.is_some()) {
            self.pass(Duration::from_secs(1)).await;
        }
        if self.world.setup.spool {
            // The spool has what was reviewed.
            self.pass(Duration::from_millis(50)).await;
        }
        self.world.process(replica).balance();
        self.world.kill(replica).await;
        self.start_again(replica).await;
    }

    async fn start_again(&mut self, replica: usize) {
        let mut lost = None;
        if !self.world.setup.spool {
            self.calm().await;
            self.world.rest(1).await;
            lost = Some(shown(&self.world.fake.events()));
        }
        if let Some(shown) = lost
            && self.world.setup.replicas > 1
            && (0..KINDS.len()).any(|kind| self.account.live(kind) != shown[kind])
        {
            self.account.doubt(&self.names);
        }
        let forgotten = if replica == self.asked { self.names.clone() } else { Vec::new() };
        self.account.restart(&forgotten, lost);
        self.start(replica);
    }

    /// Ends all faults, until no late request can be executed any more.
    async fn calm(&mut self) {
        self.world.end_faults();
        self.pass(Duration::from_secs(LATE + 5)).await;
    }

    /// Waits until no write waits or is in flight, and checks the upstream and the ledgers.
    async fn settle(&mut self) {
        self.calm().await;
        self.world.rest(1).await;
        self.account.check(&self.world.fake.events());
        for process in self.world.running() {
            let balance = process.balance();
            assert_eq!((balance.total_waiting(), balance.ledger.total_lost()), (0, 0));
        }
        self.world.check_numbers().await;
        self.world.check_explained().await;
        self.world.check_reads().await;
    }
}

fn setup() -> impl Strategy<Value = Setup> {
    let setup = |replicas, spool, burst| {
        let mut configuration = Setup::plain(burst);
        if replicas > 1 {
            let base = correlator::Settings { naming: Naming::Deterministic, ..(*configuration.policy.base).clone() };
            configuration.policy.base = Arc::new(base);
        }
        Setup { replicas, shards: NonZeroUsize::MIN, spool, writes: Writes::Exact, configuration }
    };
    prop_oneof![
        3 => (any::<bool>(), prop::sample::select(vec![2, 1000])).prop_map(move |(spool, burst)| setup(1, spool, burst)),
        1 => any::<bool>().prop_map(move |spool| setup(2, spool, 1000)),
    ]
}

fn walk(setup: Setup, seed: u64, steps: Vec<Step>) {
    world::run(async {
        let mut walk = Walk::begin(setup, seed);
        for step in steps {
            walk.take(step).await;
            walk.world.check_explained().await;
        }
        walk.settle().await;
        walk.world.check_forgotten().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_clients_write_after_a_review_and_eventweir_beside_them_is_shown_once(
        setup in setup(),
        seed in any::<u64>().no_shrink(),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        walk(setup, seed, steps);
    }
}
