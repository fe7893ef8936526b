//! A random walk through what a client can do by the names that it knows. After it, each record upstream shows the
//! occurrences that were posted and not deleted, and the ledger balances.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod account;
mod admission;
mod growth;
mod lives;
mod model;
mod process;
mod reads;
mod sums;
mod tuning;
mod views;
mod world;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use eventweir::event::{ApiGroup, Event, conversion};
use eventweir::ledger::Why;
use eventweir::outbox::LostReason;
use http::Method;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::support::app::{Program, start_before};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::{Client, EVENTS, Reply};
use growth::{Growth, Message, Shape};
use model::{Certainty, Group, KINDS, KindId, Model, NameId, Style, kind_of, shown};

const BATCH: &str = "/eventweir/v1/events";
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
/// Names that the client chooses itself; few, so that they are used again. More are generated.
const NAMES: [&str; 3] = ["a", "b", "c"];

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
    /// POSTs several events in one batch, with totals as in `Post`.
    Batch(Vec<(NameId, KindId, i32)>),
    /// PATCHes the count or series of a name.
    Patch {
        name: NameId,
        growth: Growth,
    },
    /// GETs an event and PUTs it with another count.
    Put {
        name: NameId,
        count: i32,
    },
    Delete {
        name: NameId,
        answer: Answer,
    },
    DeleteAll,
    Get {
        name: NameId,
    },
    /// Lets time pass, so that deferred writes and retries are due.
    Pass {
        seconds: u64,
    },
    /// Waits until no write is pending.
    Settle,
    /// The next write of a record meets a fault.
    Fail(Fault),
}

/// The upstream's answer to a DELETE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Given,
    /// The event is deleted, but the answer is lost.
    Lost,
    /// The request is not executed. The client repeats it.
    Refused,
}

fn step() -> impl Strategy<Value = Step> {
    let name = || 0..NAMES.len() + 2;
    let kind = || 0..KINDS.len();
    let fault = prop::sample::select(vec![
        Fault::Before(500),
        Fault::After(500),
        Fault::After(504),
        Fault::ResetAfter,
        Fault::GarbledAfter,
        Fault::TooMany(None),
        Fault::Deleted,
    ]);
    let answer = prop_oneof![6 => Just(Answer::Given), 1 => Just(Answer::Lost), 1 => Just(Answer::Refused)];
    let more = || prop_oneof![3 => Just(0), 1 => 1..4_i32];
    let group = || prop::sample::select(vec![Group::Core, Group::Events]);
    prop_oneof![
        8 => (name(), kind(), group(), more())
            .prop_map(|(name, kind, group, more)| Step::Post { name, kind, group, more }),
        2 => (kind(), group(), 1..3_i32)
            .prop_map(|(kind, group, total)| Step::PostGenerated { kind, group, total }),
        1 => prop::collection::vec((name(), kind(), more()), 1..4).prop_map(Step::Batch),
        4 => (name(), Growth::strategy(-1..3)).prop_map(|(name, growth)| Step::Patch { name, growth }),
        1 => (name(), 1..9_i32).prop_map(|(name, count)| Step::Put { name, count }),
        4 => (name(), answer).prop_map(|(name, answer)| Step::Delete { name, answer }),
        1 => Just(Step::DeleteAll),
        2 => name().prop_map(|name| Step::Get { name }),
        2 => (1..10_u64).prop_map(|seconds| Step::Pass { seconds }),
        2 => Just(Step::Settle),
        3 => fault.prop_map(Step::Fail),
    ]
}

/// Faults of the next requests.
#[derive(Debug, Default)]
struct Faults {
    writes: VecDeque<Fault>,
    deletes: VecDeque<Fault>,
    /// Names of creates that met a fault, and which may be carried out late.
    creates: BTreeSet<String>,
}

struct Walk {
    fake: FakeApiserver,
    program: Program,
    client: Client,
    faults: Arc<Mutex<Faults>>,
    names: Vec<String>,
    model: Model,
    /// Names of records whose DELETE has got no answer, and which may still wait.
    in_doubt: BTreeSet<String>,
}

impl Walk {
    /// Starts a walk whose objects have budgets of `burst` tokens.
    async fn begin(burst: u32) -> Self {
        let fake = FakeApiserver::manual();
        fake.set_latency(Duration::ZERO);
        let faults = Arc::new(Mutex::new(Faults::default()));
        let planned = Arc::clone(&faults);
        fake.plan(move |seen| {
            let mut faults = planned.lock();
            let fault = match seen.method {
                // Clients' own patches go through events.k8s.io.
                Method::POST | Method::PATCH if seen.group == ApiGroup::Core => faults.writes.pop_front(),
                Method::DELETE => faults.deletes.pop_front(),
                _ => None,
            };
            // Only a patch shows that the event was stored.
            let fault = fault.filter(|fault| *fault != Fault::Deleted || seen.method == Method::PATCH);
            if fault.is_some() && seen.method == Method::POST {
                faults.creates.insert(seen.name.clone());
            }
            fault.unwrap_or(Fault::None)
        });
        let budgets = format!("correlation: {{burstSize: {burst}, qps: 0.2, groupBurstSize: 0}}\n");
        let program =
            start_before(&fake, &(budgets + "outbox: {digest: {after: 1000, maxAge: 168h}}\nshards: 2\n")).await;
        let client = program.client().await;
        let names = NAMES.map(str::to_owned).into();
        Self { fake, program, client, faults, names, model: Model::default(), in_doubt: BTreeSet::new() }
    }

    fn name(&self, name: NameId) -> String {
        self.names[name % self.names.len()].clone()
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Post { name, kind, group, more } => {
                let name = self.name(name);
                let total = self.model.total(&name, kind, more);
                self.post(&json!({ "name": name }), kind, group, total).await;
                self.model.post(&name, kind, total);
            }
            Step::PostGenerated { kind, group, total } => {
                let reply = self.post(&json!({ "generateName": "web-" }), kind, group, total).await;
                let name = reply.json()["metadata"]["name"].as_str().unwrap().to_owned();
                self.model.post(&name, kind, total);
                self.names.push(name);
            }
            Step::Batch(events) => self.post_batch(&events).await,
            Step::Patch { name, growth } => self.patch(&self.name(name), growth).await,
            Step::Put { name, count } => self.put(&self.name(name), count).await,
            Step::Delete { name, answer } => self.delete(&self.name(name), answer).await,
            Step::DeleteAll => {
                self.quiet().await;
                self.model.delete_all(&self.fake.events());
                let reply = self.client.send("DELETE", EVENTS, &[], b"").await;
                assert_eq!(reply.status, 200, "{}", reply.text());
            }
            Step::Get { name } => self.get(&self.name(name)).await,
            Step::Pass { seconds } => self.program.clock.advance(Duration::from_secs(seconds)),
            Step::Settle => self.settle().await,
            Step::Fail(fault) => self.faults.lock().writes.push_back(fault),
        }
        self.quiet().await;
    }

    async fn post(&mut self, name: &Value, kind: KindId, group: Group, total: i32) -> Reply {
        let group = KINDS[kind].group(group);
        let body = KINDS[kind].body_in(group, name, total).to_string();
        let headers = [("Content-Type", "application/json")];
        let reply = self.client.send("POST", group.path(), &headers, body.as_bytes()).await;
        assert_eq!(reply.status, 201, "{}", reply.text());
        reply
    }

    async fn post_batch(&mut self, events: &[(NameId, KindId, i32)]) {
        let mut lines = String::new();
        for (name, kind, more) in events {
            let name = self.name(*name);
            let total = self.model.total(&name, *kind, *more);
            lines += &format!("{}\n", KINDS[*kind].body(&json!({ "name": name }), total));
            self.model.post_in_batch(&name, *kind, total);
        }
        let reply = self.client.send("POST", BATCH, &[], lines.as_bytes()).await;
        assert!(!reply.text().contains("status"), "{}", reply.text());
    }

    async fn patch(&mut self, name: &str, growth: Growth) {
        let known = self.model.known.get(name).copied();
        let (kind, total) = match known {
            Some(known) => growth.result(known.kind, known.total),
            None => (0, self.model.total(name, 0, growth.by.max(0))),
        };
        // A whole event that is missing is posted, which its API group must allow.
        let posts = known.is_none() && growth.shape == Shape::Whole;
        let growth = if posts { Growth { group: Group::Core, ..growth } } else { growth };
        let (path, content_type, body) = growth.request(name, kind, total);
        let reply = self.client.send("PATCH", &path, &[("Content-Type", content_type)], body.as_bytes()).await;
        let expected: &[u16] = match known {
            _ if posts => &[200],
            // As for a PUT, its record may be deleted, or have a name that is taken.
            Some(_) if growth.is_refused(kind) => &[404, 409, 422],
            None if growth.is_refused(kind) => &[404, 422],
            Some(_) => &[200],
            None => &[404],
        };
        assert!(expected.contains(&reply.status), "{name}: {}", reply.text());
        if posts {
            self.model.post(name, kind, total);
        } else if known.is_some() && !growth.is_refused(kind) {
            self.model.patch(name, kind, total);
        }
    }

    async fn put(&mut self, name: &str, count: i32) {
        self.quiet().await;
        let path = format!("{EVENTS}/{name}");
        let shown = self.model.shown(name, &self.fake.events());
        let Some(kind) = shown.filter(|kind| KINDS[*kind].style == Style::Old) else { return };
        let reply = self.client.get(&path).await;
        assert_eq!(reply.status, 200, "{name}: {}", reply.text());
        let mut event = reply.json();
        event["count"] = json!(count);
        let stored = model::shown(&self.fake.events())[kind];
        let headers = [("Content-Type", "application/json")];
        let reply = self.client.send("PUT", &path, &headers, event.to_string().as_bytes()).await;
        if reply.status == 409 {
            // Not stored yet, and its name is taken.
            return;
        }
        assert!([200, 201].contains(&reply.status), "{name}: {}", reply.text());
        self.model.put(name, kind, count, stored);
    }

    async fn delete(&mut self, name: &str, answer: Answer) {
        self.quiet().await;
        let path = format!("{EVENTS}/{name}");
        let stored = self.fake.events();
        // A repeated DELETE does not find a record of another name, because the first one has forgotten it.
        let is_own = stored
            .iter()
            .any(|event| event.metadata.name == name && Some(kind_of(event)) == self.model.shown(name, &stored));
        let answer = if answer == Answer::Refused && !is_own { Answer::Given } else { answer };
        let certainty = if answer == Answer::Given { Certainty::Sure } else { Certainty::InDoubt };
        let mut expected = vec![if self.model.delete(name, &stored, certainty) { 200 } else { 404 }];
        if self.in_doubt.contains(name) || self.faults.lock().creates.contains(name) {
            // An accepted event that waits can be deleted. It waits until it is known whether the DELETE was carried
            // out; after a DELETE by another name, until its create cannot be executed any more.
            expected.push(200);
        }
        let fault = match answer {
            Answer::Given => None,
            Answer::Lost => Some(Fault::After(500)),
            Answer::Refused => Some(Fault::Before(503)),
        };
        self.faults.lock().deletes.extend(fault);
        let mut reply = self.client.send("DELETE", &path, &[], b"").await;
        let met = self.faults.lock().deletes.is_empty();
        self.faults.lock().deletes.clear();
        if fault.is_some() && met && reply.status >= 500 {
            reply = self.client.send("DELETE", &path, &[], b"").await;
            if answer == Answer::Lost {
                expected.push(404);
                let deleted = stored.iter().filter(|event| self.model.live[kind_of(event)] == 0);
                self.in_doubt.extend(deleted.map(|event| event.metadata.name.to_string()));
            }
        }
        assert!(expected.contains(&reply.status), "{name}: {}", reply.text());
    }

    /// Waits until nothing more happens without time passing.
    async fn quiet(&self) {
        let mut looks = 0;
        while looks < 20 {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let waiting = self.program.balance().waiting;
            let is_busy = self.fake.in_flight() > 0 || waiting[Why::InFlight as usize] > 0;
            match (is_busy, waiting[Why::Turn as usize]) {
                (true, _) => tokio::time::sleep(Duration::from_millis(1)).await,
                (false, 0) => return,
                // A failing upstream is asked again only after a pause.
                (false, _) => looks += 1,
            }
        }
    }

    /// Waits until no write is pending, and checks the upstream and the ledger.
    async fn settle(&mut self) {
        self.faults.lock().writes.clear();
        self.program.settle().await;
        self.quiet().await;
        self.in_doubt.clear();
        let stored = self.fake.events();
        assert_eq!(shown(&stored), self.model.live, "{:?}", names_and_counts(&stored));
        let balance = self.program.balance();
        let deleted = balance.ledger.lost(LostReason::Deleted);
        assert_eq!((balance.total_waiting(), balance.ledger.total_lost()), (0, deleted));
        assert_eq!(balance.ledger.received(), self.model.received);
        let listed = self.client.get(EVENTS).await.json();
        assert_eq!(listed["items"].as_array().unwrap().len(), stored.len());
        for name in self.names.clone() {
            self.get(&name).await;
        }
    }

    /// Checks what GET shows under a name.
    async fn get(&mut self, name: &str) {
        let expected = self.model.shown(name, &self.fake.events());
        let reply = self.client.get(&format!("{EVENTS}/{name}")).await;
        let text = reply.text();
        assert_eq!(reply.status, if expected.is_some() { 200 } else { 404 }, "{name}: {text}");
        let Some(kind) = expected else { return };
        let event = reply.json();
        let members = [&event["metadata"]["name"], &event["involvedObject"]["name"], &event["message"]];
        assert_eq!(members, [name, KINDS[kind].object, KINDS[kind].message]);
        // Without an alias, the upstream's state is shown.
        if self.model.known.get(name).is_some_and(|known| known.kind == kind) {
            assert_eq!(event["count"].as_i64(), Some(self.model.live[kind]), "{name}: {text}");
        }
    }
}

fn names_and_counts(events: &[Event]) -> Vec<(&str, KindId, i32)> {
    events.iter().map(|event| (&*event.metadata.name, kind_of(event), conversion::occurrences(event))).collect()
}

fn walk(burst: u32, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut walk = Walk::begin(burst).await;
        for step in steps {
            walk.take(step).await;
        }
        walk.settle().await;
        walk.program.stop().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_posted_and_not_deleted_is_shown(
        burst in prop::sample::select(vec![2_u32, 1000]),
        steps in prop::collection::vec(step(), 1..30),
    ) {
        walk(burst, steps);
    }
}

fn post(name: NameId, kind: KindId) -> Step {
    Step::Post { name, kind, group: Group::Core, more: 0 }
}

/// While it is not known whether a DELETE was carried out, the record waits, and can be deleted by its own name.
#[test]
fn a_record_of_a_delete_without_an_answer_can_be_deleted_by_its_name() {
    let steps = vec![
        post(2, 1),
        post(1, 1),
        Step::Delete { name: 1, answer: Answer::Lost },
        Step::Delete { name: 2, answer: Answer::Given },
    ];
    walk(2, steps);
}

/// A deleted record waits until its create cannot be executed any more, and can be deleted by its own name.
#[test]
fn a_record_whose_create_may_be_late_can_be_deleted_by_its_name_too() {
    let steps = vec![
        Step::Fail(Fault::Before(500)),
        post(1, 2),
        post(0, 2),
        Step::Delete { name: 0, answer: Answer::Given },
        Step::Delete { name: 1, answer: Answer::Given },
    ];
    walk(2, steps);
}

/// Fault: the repeat of a DELETE without an answer has deleted an older event of the name, which waits for a token.
#[test]
fn the_repeat_of_a_delete_deletes_no_other_event_of_the_name() {
    let generated = |kind| Step::PostGenerated { kind, group: Group::Core, total: 1 };
    let steps = vec![
        generated(4),
        post(0, 3),
        Step::Delete { name: 0, answer: Answer::Given },
        generated(3),
        post(4, 4),
        Step::Delete { name: 4, answer: Answer::Lost },
    ];
    walk(2, steps);
}

/// Fault: the line of the deleted event, which another record still has, was taken for news of the next event of the
/// name, and one of its occurrences did not count.
#[test]
fn a_line_from_before_a_delete_does_not_count_for_the_next_event_of_the_name() {
    let growth = Growth { by: 1, message: Message::Changed, shape: Shape::Whole, group: Group::Core };
    let steps = vec![
        post(0, 3),
        Step::Patch { name: 0, growth },
        Step::PostGenerated { kind: 0, group: Group::Core, total: 1 },
        post(0, 0),
        Step::Delete { name: 0, answer: Answer::Given },
        Step::Pass { seconds: 5 },
        post(0, 4),
        Step::Batch(vec![(0, 3, 2)]),
    ];
    walk(2, steps);
}
