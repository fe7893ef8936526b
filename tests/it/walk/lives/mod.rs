//! A random walk across lives: processes that are killed and started again, with and without a spool, a disk that fills
//! up, two replicas, and other writers at the API server. After it, the upstream shows what the documents promise.

mod changes;
mod names;

use std::num::NonZeroUsize;
use std::time::Duration;

use eventweir::correlator::{Naming, Suppression};
use eventweir::event::json::decode_event;
use eventweir::event::{ApiGroup, Event, conversion};
use eventweir::ledger::Why;
use eventweir::outbox::{LostReason, UpstreamGroup};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::support::fake::Fault;
use super::super::support::http::EVENTS;
use super::BATCH;
use super::account::Account;
use super::growth::{Growth, Shape};
use super::model::{Group, KINDS, KindId, NameId, Style, kind_of, shown};
use super::process::{Process, Setup, Writes};
use super::world::{self, LATE, Room, World};
use changes::{Annotations, Answer, Change, Form, Set};

const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

#[derive(Debug, Clone)]
enum Step {
    /// POSTs a name with a total that is larger by `more` than the last one.
    Post {
        name: NameId,
        kind: KindId,
        group: Group,
        more: i32,
    },
    /// POSTs a generated name.
    PostGenerated {
        kind: KindId,
        group: Group,
        total: i32,
    },
    /// POSTs several events in one batch to a replica, with totals as in `Post`.
    Batch {
        replica: usize,
        events: Vec<(NameId, KindId, i32)>,
    },
    /// PATCHes the count or series of a name, and POSTs the event if the name is unknown.
    Patch {
        name: NameId,
        growth: Growth,
    },
    /// POSTs a name so often, and DELETEs it at a replica.
    Delete {
        replica: usize,
        name: NameId,
        posts: usize,
        answer: Answer,
    },
    /// The client of a name uses another replica from now on.
    Move {
        replica: usize,
        name: NameId,
    },
    /// Sets a label under a name at a replica.
    Label {
        replica: usize,
        name: NameId,
        form: Form,
    },
    /// POSTs a name so often, and sets its count.
    Set {
        name: NameId,
        posts: usize,
        set: Set,
        form: Form,
    },
    Pass {
        milliseconds: u64,
    },
    Settle,
    /// The next write meets a fault.
    Fail(Fault),
    /// The next read of an event meets a fault.
    FailRead(Fault),
    /// Replicas read the watch.
    Watch {
        replica: usize,
    },
    /// Ends a process at once.
    Kill {
        replica: usize,
    },
    /// Ends a process in order; it writes what waits, or leaves it.
    End {
        replica: usize,
        ending: Ending,
    },
    /// The upstream refuses connections, or not any more.
    Reach(bool),
    /// The disk of a process has no room, or has room again.
    Fill {
        replica: usize,
        room: Room,
    },
    /// A process reads other rules.
    Reload {
        replica: usize,
        base: Suppression,
        special: Option<(Suppression, Naming)>,
        change: Change,
    },
    /// Another writer adds occurrences to a record; with 0 it changes nothing but its version.
    Edit {
        kind: KindId,
        more: i32,
        annotations: Annotations,
    },
    /// Another writer deletes a record.
    DeleteUpstream {
        kind: KindId,
    },
    /// Another writer creates a record again.
    CreateUpstream {
        kind: KindId,
        count: i32,
    },
}

/// What a process that ends in order does with what waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Writes it.
    Drain,
    /// Leaves it to the spool.
    Leave,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..6_usize;
    let kind = || 0..KINDS.len();
    let replica = || 0..2_usize;
    let fault = prop::sample::select(vec![
        Fault::Before(500),
        Fault::After(500),
        Fault::After(504),
        Fault::ResetAfter,
        Fault::GarbledAfter,
        Fault::TooMany(None),
        Fault::Taken,
        Fault::Hang,
        Fault::HangAfter,
        Fault::LateAfter(1),
        Fault::LateAfter(12),
        Fault::LateAfter(LATE),
    ]);
    let more = || prop_oneof![3 => Just(0), 1 => 1..4_i32];
    let group = || prop::sample::select(vec![Group::Core, Group::Events]);
    let ending = prop::sample::select(vec![Ending::Drain, Ending::Leave]);
    let room = prop::sample::select(vec![Room::None, Room::Some]);
    let answer = prop::sample::select(vec![Answer::Given, Answer::Lost, Answer::Refused]);
    let form = || prop::sample::select(vec![Form::Strategic, Form::Merge, Form::Json, Form::Apply, Form::Put]);
    let set = prop_oneof![Just(Set::Shown), Just(Set::Stored), (1..9_i32).prop_map(Set::To)];
    let suppression = || prop::sample::select(vec![Suppression::Defer, Suppression::Drop]);
    let naming = prop::sample::select(vec![Naming::Client, Naming::Deterministic]);
    let special = prop::option::of((suppression(), naming));
    let changes = vec![Change::None, Change::ExplainOff, Change::Coalesce, Change::GroupBudget];
    let change = prop::sample::select(changes);
    let annotations = prop_oneof![3 => Just(Annotations::Kept), 1 => Just(Annotations::Dropped)];
    prop_oneof![
        8 => (name(), kind(), group(), more())
            .prop_map(|(name, kind, group, more)| Step::Post { name, kind, group, more }),
        2 => (kind(), group(), 1..4_i32)
            .prop_map(|(kind, group, total)| Step::PostGenerated { kind, group, total }),
        1 => (replica(), prop::collection::vec((name(), kind(), more()), 1..4))
            .prop_map(|(replica, events)| Step::Batch { replica, events }),
        5 => (name(), Growth::strategy(0..3)).prop_map(|(name, growth)| Step::Patch { name, growth }),
        2 => (replica(), name(), 0..3_usize, answer)
            .prop_map(|(replica, name, posts, answer)| Step::Delete { replica, name, posts, answer }),
        2 => (replica(), name()).prop_map(|(replica, name)| Step::Move { replica, name }),
        2 => (replica(), name(), form()).prop_map(|(replica, name, form)| Step::Label { replica, name, form }),
        2 => (name(), 0..4_usize, set, form())
            .prop_map(|(name, posts, set, form)| Step::Set { name, posts, set, form }),
        5 => prop::sample::select(vec![1, 20, 700, 3_000, 11_000, 70_000])
            .prop_map(|milliseconds| Step::Pass { milliseconds }),
        1 => Just(Step::Settle),
        4 => fault.prop_map(Step::Fail),
        1 => world::faults_of_reads().prop_map(Step::FailRead),
        2 => replica().prop_map(|replica| Step::Watch { replica }),
        3 => replica().prop_map(|replica| Step::Kill { replica }),
        1 => (replica(), ending).prop_map(|(replica, ending)| Step::End { replica, ending }),
        1 => any::<bool>().prop_map(Step::Reach),
        1 => (replica(), room).prop_map(|(replica, room)| Step::Fill { replica, room }),
        1 => (replica(), suppression(), special, change)
            .prop_map(|(replica, base, special, change)| Step::Reload { replica, base, special, change }),
        2 => (kind(), -1..3_i32, annotations)
            .prop_map(|(kind, more, annotations)| Step::Edit { kind, more, annotations }),
        1 => kind().prop_map(|kind| Step::DeleteUpstream { kind }),
        1 => (kind(), 1..5_i32).prop_map(|(kind, count)| Step::CreateUpstream { kind, count }),
    ]
}

fn setup() -> impl Strategy<Value = Setup> {
    let setup = |replicas, spool, writes, burst| {
        let configuration = Setup::plain(burst);
        Setup { replicas, shards: NonZeroUsize::MIN, spool, writes, configuration }
    };
    let setup = prop_oneof![
        3 => (any::<bool>(), prop::sample::select(vec![2, 1000]))
            .prop_map(move |(spool, burst)| setup(1, spool, Writes::Exact, burst)),
        2 => any::<bool>().prop_map(move |spool| setup(2, spool, Writes::Exact, 1000)),
        1 => any::<bool>().prop_map(move |spool| setup(1, spool, Writes::Plain, 1000)),
    ];
    let group = prop_oneof![3 => Just(UpstreamGroup::Core), 1 => Just(UpstreamGroup::Preserve)];
    (setup, 1..4_usize, group).prop_map(|(mut setup, shards, group)| {
        setup.configuration.settings.outbox.group = group;
        Setup { shards: NonZeroUsize::new(shards).unwrap(), ..setup }
    })
}

struct Walk {
    world: World,
    names: Vec<String>,
    account: Account,
}

impl Walk {
    fn begin(setup: Setup, seed: u64) -> Self {
        let replicas = setup.replicas;
        let mut walk = Self { world: World::new(setup, seed), names: Vec::new(), account: Account::default() };
        ["a", "b", "c", "d"].into_iter().for_each(|name| walk.add(name.to_owned()));
        (0..replicas).for_each(|replica| walk.start(replica));
        walk
    }

    fn start(&mut self, replica: usize) {
        let process = self.world.start(replica);
        process.pending().iter().for_each(|(event, _)| self.account.restore(kind_of(event)));
    }

    fn replica(&self, replica: usize) -> usize {
        replica % self.world.setup.replicas
    }

    fn name(&self, name: NameId) -> String {
        self.names[name % self.names.len()].clone()
    }

    /// Adds a name, whose client uses one of the replicas.
    fn add(&mut self, name: String) {
        self.account.move_to(&name, self.replica(self.names.len()));
        self.names.push(name);
    }

    /// Returns the replica that the client of a name uses.
    fn home(&self, name: &str) -> usize {
        self.account.home(name)
    }

    fn process(&self, replica: usize) -> &Process {
        self.world.process(replica)
    }

    fn is_plain(&self) -> bool {
        self.world.setup.writes == Writes::Plain
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Post { name, kind, group, more } => {
                let name = self.name(name);
                let total = self.total(&name, kind, more);
                self.post_in(group, &name, kind, total).await;
            }
            Step::PostGenerated { kind, group, total } => {
                let name = format!("web-{}", self.names.len());
                self.add(name.clone());
                self.post_in(group, &name, kind, total).await;
            }
            Step::Batch { replica, events } => self.post_batch(self.replica(replica), &events).await,
            Step::Patch { name, growth } => self.patch(&self.name(name), growth).await,
            Step::Delete { replica, name, posts, answer } => {
                self.delete(self.replica(replica), &self.name(name), posts, answer).await;
            }
            Step::Move { replica, name } => self.move_to(self.replica(replica), &self.name(name)).await,
            Step::Label { replica, name, form } => {
                self.label(self.replica(replica), &self.name(name), form).await;
            }
            Step::Set { name, posts, set, form } => self.set(&self.name(name), posts, set, form).await,
            Step::Pass { milliseconds } => tokio::time::sleep(Duration::from_millis(milliseconds)).await,
            Step::Settle => self.settle().await,
            // With plain writes a late patch sets the count back.
            Step::Fail(Fault::LateAfter(_)) if self.is_plain() => {}
            Step::Fail(fault) => self.world.faults.lock().push_back(fault),
            Step::FailRead(fault) => self.world.reads.lock().push_back(fault),
            Step::Watch { replica } => {
                self.watch(self.replica(replica));
                self.world.check_reads().await;
            }
            Step::Kill { replica } => self.kill(self.replica(replica)).await,
            Step::End { replica, ending } => self.end(self.replica(replica), ending).await,
            Step::Reach(up) => self.world.fake.set_up(up),
            Step::Fill { replica, room: Room::None } => self.world.fill(self.replica(replica)),
            Step::Fill { replica, room: Room::Some } => self.world.make_room(self.replica(replica)).await,
            Step::Reload { replica, base, special, change } => {
                self.reload(self.replica(replica), base, special, change);
            }
            // With plain writes, another writer's count is overwritten.
            Step::Edit { kind, more, annotations } if more == 0 || !self.is_plain() => {
                self.put_upstream(kind, more, annotations).await;
            }
            Step::DeleteUpstream { kind } if self.world.setup.replicas == 1 => {
                self.delete_upstream(kind).await;
            }
            Step::CreateUpstream { kind, count } if self.world.setup.replicas == 1 && !self.is_plain() => {
                self.create_upstream(kind, count);
            }
            Step::Edit { .. } | Step::DeleteUpstream { .. } | Step::CreateUpstream { .. } => {}
        }
    }

    /// Returns the total of a POST with `more` occurrences.
    fn total(&self, name: &str, kind: KindId, more: i32) -> i32 {
        self.account.total(name, kind, more, self.world.setup.writes)
    }

    async fn post(&mut self, name: &str, kind: KindId, total: i32) {
        self.post_in(Group::Events, name, kind, total).await;
    }

    async fn post_in(&mut self, group: Group, name: &str, kind: KindId, total: i32) {
        let (replica, group) = (self.home(name), KINDS[kind].group(group));
        let body = KINDS[kind].body_in(group, &json!({ "name": name }), total).to_string();
        let reply = self.process(replica).send("POST", group.path(), JSON, body).await;
        if self.world.is_accepted(replica, &reply, 201) {
            self.account.post(name, kind, total);
        }
    }

    async fn post_batch(&mut self, replica: usize, events: &[(NameId, KindId, i32)]) {
        let (mut lines, before) = (String::new(), self.account.clone());
        for (name, kind, more) in events {
            let name = self.name(*name);
            // Only the client's own replica knows how far it has counted.
            let total = if self.home(&name) == replica { self.total(&name, *kind, *more) } else { 1 };
            lines += &format!("{}\n", KINDS[*kind].body(&json!({ "name": name }), total));
            self.account.post_in_batch(&name, *kind, total);
        }
        let reply = self.process(replica).send("POST", BATCH, JSON, lines).await;
        let refused = reply.text.lines().filter(|line| line.contains("status")).count();
        if self.world.is_accepted(replica, &reply, 200) && refused == 0 {
            return;
        }
        assert!(self.world.full[replica] && (reply.status == 429 || refused == events.len()), "{}", reply.text);
        self.account = before;
    }

    async fn patch(&mut self, name: &str, growth: Growth) {
        let known = self.account.known(name);
        let (kind, total) = match known {
            Some(known) => growth.result(known.kind, known.total),
            None => (0, self.total(name, 0, growth.by)),
        };
        // A whole event that is missing is posted, which its API group must allow.
        let posts = known.is_none() && growth.shape == Shape::Whole;
        let growth = if posts { Growth { group: Group::Core, ..growth } } else { growth };
        let replica = self.home(name);
        let (path, content_type, body) = growth.request(name, kind, total);
        let reply = self.process(replica).send("PATCH", &path, content_type, body).await;
        if growth.is_refused(kind) {
            assert!(reply.status >= 400, "{name}: {}", reply.text);
        } else if posts {
            if self.world.is_accepted(replica, &reply, 200) {
                self.account.post(name, kind, total);
            }
        } else if known.is_none() {
            assert!(reply.status == 404 || self.world.full[replica] && reply.status == 429, "{name}: {}", reply.text);
            // As client-go does.
            self.post(name, kind, total).await;
        } else if self.world.is_accepted(replica, &reply, 200) {
            self.account.patch(name, kind, total);
        }
    }

    fn watch(&mut self, replica: usize) {
        // During a write, a change of its record is not taken over.
        let is_quiet = self.process(replica).balance().waiting[Why::InFlight as usize] == 0;
        self.world.watch(replica);
        if is_quiet {
            self.account.watch();
        } else {
            self.account.watch_gone();
        }
    }

    /// Brings a process to a state from which the next one can know everything.
    async fn prepare(&mut self, replica: usize) {
        self.world.make_room(replica).await;
        let is_bare = |event: &Event| {
            let mut annotations = event.metadata.rare.iter().flat_map(|rare| rare.annotations.keys());
            !annotations.any(|key| key.starts_with("tally.eventweir/"))
        };
        if !self.is_plain() && self.world.setup.spool && self.world.fake.events().iter().any(is_bare) {
            // The next process would take a count without tags for its own: it cannot know that the upstream keeps them.
            self.settle().await;
        }
    }

    async fn kill(&mut self, replica: usize) {
        self.prepare(replica).await;
        self.process(replica).balance();
        self.world.kill(replica).await;
        self.start_again(replica).await;
    }

    async fn end(&mut self, replica: usize, ending: Ending) {
        self.prepare(replica).await;
        if ending == Ending::Drain {
            // Records that were never written would fold into digests.
            self.world.fake.set_up(true);
            self.world.rest(1).await;
        }
        let process = self.world.take(replica);
        let limit = if ending == Ending::Drain { Duration::from_secs(1000) } else { Duration::ZERO };
        let _balance = process.end(limit).await;
        self.start_again(replica).await;
    }

    async fn start_again(&mut self, replica: usize) {
        let shown = if self.world.setup.spool {
            None
        } else {
            // Late requests are executed, and the other replica writes its waiting records.
            self.world.calm().await;
            self.world.rest(1).await;
            Some(shown(&self.world.fake.events()))
        };
        if let Some(shown) = shown
            && self.world.setup.replicas > 1
            && (0..KINDS.len()).any(|kind| self.account.live(kind) != shown[kind])
        {
            self.account.doubt(&self.names);
        }
        self.account.forget_all(replica);
        self.account.restart(&[], shown);
        self.start(replica);
    }

    /// Returns the only record of a kind.
    fn only(&self, kind: KindId) -> Option<Event> {
        let mut stored = self.world.fake.events().into_iter().filter(|event| kind_of(event) == kind);
        stored.next().filter(|_| stored.next().is_none())
    }

    /// Returns the occurrences that wait for a record. One of a DELETE without an answer may have its kind.
    fn waiting(&self, record: &Event) -> u64 {
        let is_its = |event: &Event| kind_of(event) == kind_of(record) && event.metadata.name == record.metadata.name;
        let pending = self.process(0).pending();
        pending.iter().filter(|(event, _)| is_its(event)).map(|(_, number)| number).sum()
    }

    async fn delete_upstream(&mut self, kind: KindId) {
        if self.is_plain() {
            // Until the watch shows it, a patch changes the next event of that name.
            self.settle().await;
        }
        // After a DELETE without an answer, a missing record is taken for the one that it has deleted.
        let is_known = !self.account.is_unread(kind) && !self.account.is_unknown(kind);
        let is_of_one = is_known && !self.account.is_divided(kind);
        let Some(event) = self.only(kind).filter(|_| is_of_one) else { return };
        // Its late execution would restore the record.
        if self.world.is_create_late() {
            return;
        }
        self.world.fake.delete(&event);
        self.account.delete_upstream(kind, &event.metadata.name, self.waiting(&event));
        if self.is_plain() {
            self.watch(0);
        }
    }

    /// Whether each process has seen that annotations are kept. Until then, a count shows what has arrived.
    fn is_proven(&self) -> bool {
        self.world.running().all(|process| process.balance().ledger.total_written() > 0)
    }

    fn create_upstream(&mut self, kind: KindId, count: i32) {
        let is_known = !self.account.is_unknown(kind) && !self.account.is_divided(kind);
        let Some(event) = self.only(kind).filter(|_| is_known && KINDS[kind].style == Style::Old) else { return };
        if !self.is_proven() || self.world.setup.spool && self.waiting(&event) > 0 {
            return;
        }
        self.world.fake.create_again(&event, count);
        self.account.create_upstream(kind, count, self.waiting(&event));
    }

    /// Waits until no write waits or is in flight, and checks the upstream and the ledgers.
    async fn settle(&mut self) {
        self.world.calm().await;
        self.world.rest(1).await;
        self.account.check(&self.world.fake.events());
        for process in self.world.running() {
            let balance = process.balance();
            let deleted = balance.ledger.lost(LostReason::Deleted);
            assert_eq!((balance.total_waiting(), balance.ledger.total_lost()), (0, deleted));
        }
        self.world.check_explained().await;
        self.get_all().await;
        self.world.check_reads().await;
        self.world.check_numbers().await;
    }

    /// Checks what GET shows under each name.
    async fn get_all(&self) {
        for name in &self.names {
            self.get(name).await;
        }
    }

    /// Checks what GET shows under a name that its process knows.
    async fn get(&self, name: &str) {
        let Some(known) = self.account.known(name) else { return };
        let reply = self.process(self.home(name)).send("GET", &format!("{EVENTS}/{name}"), JSON, String::new()).await;
        let is_found = self.account.live(known.kind) > 0 && !self.account.is_unknown(known.kind);
        let is_only = self.world.setup.replicas == 1 && self.only(known.kind).is_some();
        if reply.status == 404 {
            // A replica may not have read what the other one has written.
            assert!(!is_found || !is_only || self.account.is_gone(known.kind), "{name}: {}", reply.text);
            return;
        }
        assert_eq!(reply.status, 200, "{name}: {}", reply.text);
        let event: Value = reply.json();
        let members = [&event["metadata"]["name"], &event["involvedObject"]["name"], &event["message"]];
        if is_found {
            assert_eq!(members, [name, KINDS[known.kind].object, KINDS[known.kind].message], "{}", reply.text);
        }
        if is_found && is_only && (!self.process(0).shards.owe() || self.account.is_certain(known.kind)) {
            let shown = decode_event(ApiGroup::Core, reply.text.as_bytes()).unwrap();
            let (shown, stored) = (conversion::occurrences(&shown).into(), self.world.fake.events());
            assert_eq!(shown, self.account.expected(known.kind, shown, &stored), "{}", reply.text);
        }
        let path = format!("{}/{name}", Group::Events.path());
        let reply = self.process(self.home(name)).send("GET", &path, JSON, String::new()).await;
        let other: Value = reply.json();
        let members = [&other["metadata"], &other["regarding"]["name"], &other["note"], &other["deprecatedCount"]];
        assert_eq!(members, [&event["metadata"], &event["involvedObject"]["name"], &event["message"], &event["count"]]);
    }
}

fn walk(setup: Setup, seed: u64, steps: Vec<Step>) {
    world::run(async {
        let mut walk = Walk::begin(setup, seed);
        for step in steps {
            walk.take(step).await;
            walk.world.check_explained().await;
            walk.world.undisturbed(walk.get_all()).await;
        }
        walk.settle().await;
        walk.world.check_forgotten().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn across_lives_and_other_writers_each_occurrence_is_shown_once(
        setup in setup(),
        seed in any::<u64>().no_shrink(),
        steps in prop::collection::vec(step(), 1..40),
    ) {
        walk(setup, seed, steps);
    }
}

/// Fault: a DELETE without an answer has left the event in the API server, and the name's next event waits for a token.
/// The label went to the old event, and the waiting occurrence was counted on it.
#[test]
fn a_label_under_the_name_of_a_waiting_event_ties_it_to_no_other_event() {
    let configuration = Setup::plain(2);
    let setup = Setup { replicas: 1, shards: NonZeroUsize::MIN, spool: false, writes: Writes::Exact, configuration };
    let steps = vec![
        Step::Post { name: 0, kind: 0, group: Group::Core, more: 0 },
        Step::PostGenerated { kind: 0, group: Group::Core, total: 1 },
        Step::Delete { replica: 0, name: 0, posts: 0, answer: Answer::Refused },
        Step::Post { name: 0, kind: 1, group: Group::Core, more: 0 },
        Step::Label { replica: 0, name: 0, form: Form::Strategic },
    ];
    walk(setup, 1, steps);
}
