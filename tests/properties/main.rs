//! Properties of the core, tested over simulated weeks with random events and a random upstream.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails on any error")]

mod cluster;
mod exact;
mod explore;
#[path = "../it/support/seeds.rs"]
mod seeds;
mod storms;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use eventweir::clock::{Mono, Now};
use eventweir::correlator::{KeySecret, Policy, Settings, Suppression};
use eventweir::event::{Event, Time};
use eventweir::outbox::{Answer, Applied, DIGEST_REASON, Fault, LostReason, Refusal, Request, Retry, Write};
use eventweir::shard::{self, Lookup, Outcome, Shard};
use eventweir::status::Status;
use proptest::prelude::*;

const SECOND: i64 = 1_000_000_000;

/// One step of a scenario.
#[derive(Debug, Clone)]
enum Step {
    /// A component reports an event `repeat` times.
    Event { object: u8, reason: u8, message: u8, warning: bool, repeat: u8 },
    /// Advances the clock by these seconds.
    Pass(u32),
    /// Everything stored upstream expires.
    Expire,
    /// A client deletes a stored or waiting record.
    Delete(u8),
}

/// The upstream's reply to a request.
#[derive(Debug, Clone, Copy)]
enum Reply {
    Good,
    TooMany,
    ErrorBefore,
    ErrorAfter,
    Refuses,
}

struct World {
    shard: Shard,
    policy: Policy,
    now: i64,
    stored: BTreeMap<String, Event>,
    /// Counts of records that expired and were not created again.
    expired: BTreeMap<String, i32>,
    replies: Vec<Reply>,
    next_reply: usize,
    accepted: u64,
    dropped: u64,
    /// Times of the first attempts of writes, by object and type, which have one budget.
    writes: HashMap<(String, String), Vec<i64>>,
    retried: HashMap<String, bool>,
    version: u64,
    /// Names of deleted records, which must not be created again.
    deleted: std::collections::BTreeSet<String>,
    /// Occurrences on deleted records.
    deleted_shown: u64,
}

impl World {
    fn new(policy: Policy, settings: shard::Settings, replies: Vec<Reply>) -> Self {
        Self {
            shard: Shard::new(KeySecret(7, 9), settings, 1),
            policy,
            now: 1_772_352_000 * SECOND,
            stored: BTreeMap::new(),
            expired: BTreeMap::new(),
            replies,
            next_reply: 0,
            accepted: 0,
            dropped: 0,
            writes: HashMap::new(),
            retried: HashMap::new(),
            version: 0,
            deleted: std::collections::BTreeSet::new(),
            deleted_shown: 0,
        }
    }

    fn now(&self) -> Now {
        Now { wall: self.now, mono: Mono(self.now - 1_772_000_000 * SECOND) }
    }

    fn report(&mut self, event: Event) {
        self.now += 1; // the name contains the time in nanoseconds
        let mut event = event;
        event.metadata.name = format!("{}.{:x}", event.involved_object.name, self.now).into();
        let (now, policy) = (self.now(), self.policy.clone());
        let Ok(accepted) = self.shard.accept(event, 1, now, &policy) else { return };
        self.accepted += 1;
        self.dropped += u64::from(accepted.outcome == Outcome::Dropped);
        self.check();
        self.deliver();
    }

    /// Sends all writes that can be sent now.
    fn deliver(&mut self) {
        for _ in 0..10_000 {
            let Some(write) = self.shard.next_write(self.now()) else { return };
            let answer = self.answer(&write);
            self.shard.settle(write.record, answer, self.now());
            self.check();
        }
        panic!("delivery still has writes after 10,000");
    }

    /// Advances the clock, and delivers at each wakeup of the shard.
    fn pass(&mut self, duration: Duration) {
        let end = self.now + i64::try_from(duration.as_nanos()).unwrap();
        for _ in 0..1_000_000 {
            let wakeup = self.shard.next_wakeup(self.now().mono).map(|at| at.0 + 1_772_000_000 * SECOND);
            match wakeup {
                Some(at) if at <= end => {
                    self.now = self.now.max(at);
                    self.deliver();
                }
                _ => {
                    self.now = end;
                    self.deliver();
                    return;
                }
            }
        }
        panic!("the shard still asks for wakeups after 1,000,000");
    }

    fn reply(&mut self) -> Reply {
        self.next_reply += 1;
        if self.replies.is_empty() { Reply::Good } else { self.replies[self.next_reply % self.replies.len()] }
    }

    fn answer(&mut self, write: &Write) -> Answer {
        let reply = self.reply();
        self.note_write(write);
        match reply {
            Reply::Good => self.apply(&write.request),
            Reply::TooMany => Answer::Retry(Retry {
                after: Some(Duration::from_secs(1)),
                ..Retry::new(Fault::Overloaded, Applied::No)
            }),
            Reply::ErrorBefore => Answer::Retry(Retry::new(Fault::ServerError, Applied::Perhaps)),
            Reply::ErrorAfter => {
                let _applied = self.apply(&write.request);
                Answer::Retry(Retry::new(Fault::Timeout, Applied::Perhaps))
            }
            Reply::Refuses => Answer::Refused(Refusal {
                reason: LostReason::Invalid,
                status: Box::new(Status::new(422, "Invalid", "no")),
            }),
        }
    }

    /// Notes the write of a budget. A retry takes no second token.
    fn note_write(&mut self, write: &Write) {
        if self.replies.iter().any(|reply| !matches!(reply, Reply::Good)) {
            return; // a retry has the same content as a first attempt
        }
        let event = match &write.request {
            Request::Create { event, .. } => event.as_ref().clone(),
            Request::Patch { name, .. } => match self.stored.get(name.as_str()) {
                Some(event) => event.clone(),
                None => return, // answered 404, and created in the same attempt
            },
            Request::Read { .. } | Request::Delete { .. } => return,
        };
        let recreated = self.retried.remove(event.metadata.name.as_str()).is_some();
        if !recreated {
            let budget = (event.involved_object.name.to_string(), event.event_type.to_string());
            self.writes.entry(budget).or_default().push(self.now);
        }
    }

    fn apply(&mut self, request: &Request) -> Answer {
        self.version += 1;
        match request {
            Request::Create { event, .. } => {
                let name = event.metadata.name.to_string();
                assert!(!self.deleted.contains(&name), "a deleted record came back");
                if self.stored.contains_key(&name) {
                    return Answer::Exists;
                }
                let mut event = event.as_ref().clone();
                event.metadata.resource_version = self.version.to_string().into();
                self.expired.remove(&name);
                self.stored.insert(name, event.clone());
                Answer::Stored(Box::new(event))
            }
            Request::Patch { name, patch, .. } => {
                let Some(event) = self.stored.get_mut(name.as_str()) else { return Answer::Missing };
                event.count = patch.count;
                event.last_timestamp = patch.last_timestamp;
                event.message = patch.message.clone();
                Answer::Stored(Box::new(event.clone()))
            }
            Request::Read { name, .. } => match self.stored.get(name.as_str()) {
                Some(event) => Answer::Stored(Box::new(event.clone())),
                None => Answer::Missing,
            },
            Request::Delete { name, .. } => {
                self.stored.remove(name.as_str());
                Answer::Missing
            }
        }
    }

    /// Deletes a record as ingest does: pauses it, deletes it upstream, and evicts it.
    fn delete(&mut self, choice: u8) {
        let pending: Vec<Event> = self.shard.pending().map(|(event, _)| event.clone()).collect();
        let seen: BTreeMap<String, Event> = pending
            .into_iter()
            .chain(self.stored.values().cloned())
            .map(|event| (event.metadata.name.to_string(), event))
            .collect();
        let Some((name, event)) = seen.into_iter().nth(usize::from(choice)) else { return };
        let (now, policy) = (self.now(), self.policy.clone());
        let handle = self.shard.pause(&event, &name, Lookup::Name, now, &policy);
        self.deliver(); // a paused record is not written
        let stored = self.stored.remove(&name);
        self.deleted_shown += stored.map_or(0, |event| u64::try_from(event.count).unwrap());
        if let Some(handle) = handle {
            let now = self.now();
            assert!(self.shard.forget_record(&handle, now).is_empty());
            self.deleted.insert(name);
        }
        self.check();
        self.deliver();
    }

    fn check(&self) {
        let balance = self.shard.balance();
        assert!(balance.is_exact(), "ledger out of balance: {balance:?}");
    }

    fn shown(&self) -> u64 {
        let counts = self.stored.values().map(|event| event.count).chain(self.expired.values().copied());
        counts.map(|count| u64::try_from(count).unwrap()).sum()
    }

    /// Checks that the writes of each budget never exceed the grant of a client-go bucket in any interval.
    fn check_budgets(&self, burst: f64, qps: f64) {
        for (budget, times) in &self.writes {
            for (first, from) in times.iter().enumerate() {
                for (last, to) in times.iter().enumerate().skip(first) {
                    let writes = f64::from(u32::try_from(last - first + 1).unwrap());
                    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of some weeks")]
                    let seconds = (to - from) as f64 / 1e9;
                    assert!(writes <= seconds.mul_add(qps, burst) + 1e-6, "{budget:?}: {writes} writes in {seconds} s");
                }
            }
        }
    }
}

fn event(object: u8, reason: u8, message: u8, warning: bool, now: i64) -> Event {
    let mut event = Event {
        reason: format!("Reason{reason}").into(),
        message: format!("message {message}").into(),
        event_type: if warning { "Warning" } else { "Normal" }.into(),
        count: 1,
        first_timestamp: Some(Time::from_unix_nanos(now)),
        last_timestamp: Some(Time::from_unix_nanos(now)),
        ..Event::default()
    };
    event.metadata.namespace = "default".into();
    event.involved_object.kind = "Pod".into();
    event.involved_object.name = format!("web-{object}").into();
    event.involved_object.namespace = "default".into();
    event.source.component = "kubelet".into();
    event.source.host = format!("node-{}", object % 2).into();
    event
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4_u8, 0..50_u8, 0..30_u8, any::<bool>(), 1..20_u8).prop_map(|(object, reason, message, warning, repeat)| {
            Step::Event { object, reason, message, warning, repeat }
        }),
        3 => (0..20_u32).prop_map(Step::Pass),
        2 => (0..4_000_u32).prop_map(Step::Pass),
        1 => (0..200_000_u32).prop_map(Step::Pass),
        1 => Just(Step::Expire),
    ];
    proptest::collection::vec(step, 1..120)
}

/// As [`steps`], with deletions.
fn steps_and_deletes() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..4_u8, 0..50_u8, 0..30_u8, any::<bool>(), 1..20_u8).prop_map(|(object, reason, message, warning, repeat)| {
            Step::Event { object, reason, message, warning, repeat }
        }),
        3 => (0..4_000_u32).prop_map(Step::Pass),
        4 => (0..40_u8).prop_map(Step::Delete),
    ];
    proptest::collection::vec(step, 1..120)
}

fn replies() -> impl Strategy<Value = Vec<Reply>> {
    let reply = prop_oneof![
        4 => Just(Reply::Good),
        1 => Just(Reply::TooMany),
        1 => Just(Reply::ErrorBefore),
        1 => Just(Reply::ErrorAfter),
    ];
    proptest::collection::vec(reply, 1..12).prop_map(|mut replies| {
        replies.push(Reply::Good);
        replies
    })
}

fn run(world: &mut World, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Event { object, reason, message, warning, repeat } => {
                for _ in 0..*repeat {
                    world.report(event(*object, *reason, *message, *warning, world.now));
                }
            }
            Step::Delete(choice) => world.delete(*choice),
            Step::Pass(seconds) => world.pass(Duration::from_secs(u64::from(*seconds))),
            Step::Expire => {
                let gone: BTreeMap<String, Event> = std::mem::take(&mut world.stored);
                for (name, event) in gone {
                    world.retried.insert(name.clone(), true);
                    world.expired.insert(name, event.count);
                }
            }
        }
    }
}

fn policy(settings: Settings) -> Policy {
    Policy { base: Arc::new(settings), rules: Vec::new() }
}

/// Long enough for each deferred record to get a token, at one per five minutes.
const LONG: Duration = Duration::from_secs(60 * 86_400);

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn deferred_occurrences_are_all_written_and_budgets_hold(steps in steps()) {
        let mut world = World::new(policy(Settings::default()), shard::Settings::default(), Vec::new());
        run(&mut world, &steps);
        world.pass(LONG);
        let balance = world.shard.balance();
        prop_assert_eq!(balance.total_waiting(), 0);
        prop_assert_eq!(balance.ledger.total_lost(), 0);
        prop_assert_eq!(balance.ledger.total_written(), world.accepted);
        prop_assert_eq!(world.shown(), world.accepted);
        world.check_budgets(25.0, f64::from(1.0_f32 / 300.0));
        prop_assert_eq!(world.shard.sizes().records, 0);
        prop_assert_eq!(world.shard.sizes().bytes, 0);
        prop_assert_eq!(world.shard.sizes().budgets, 0);
    }

    #[test]
    fn deleted_records_are_not_created_again_and_are_accounted_for(steps in steps_and_deletes()) {
        let mut world = World::new(policy(Settings::default()), shard::Settings::default(), Vec::new());
        run(&mut world, &steps);
        world.pass(LONG);
        let balance = world.shard.balance();
        let lost = balance.ledger.lost(LostReason::Deleted);
        prop_assert_eq!(balance.total_waiting(), 0);
        prop_assert_eq!(balance.ledger.total_lost(), lost);
        prop_assert_eq!(world.shown() + world.deleted_shown + lost, world.accepted);
        prop_assert_eq!(world.shard.sizes().records, 0);
        prop_assert_eq!(world.shard.sizes().bytes, 0);
        prop_assert_eq!(world.shard.sizes().budgets, 0);
    }

    #[test]
    fn faults_of_the_upstream_change_no_count(steps in steps(), replies in replies()) {
        let mut world = World::new(policy(Settings::default()), shard::Settings::default(), replies);
        let steps: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Expire)).collect();
        run(&mut world, &steps);
        world.pass(LONG);
        let balance = world.shard.balance();
        prop_assert_eq!(balance.total_waiting(), 0);
        prop_assert_eq!(world.shown(), world.accepted);
    }

    #[test]
    fn small_tables_bound_memory_and_lose_nothing(steps in steps(), size in 1..6_usize) {
        let small = std::num::NonZeroUsize::new(size).unwrap();
        let settings = Settings { lru_cache_size: small, ..Settings::default() };
        let limits = shard::Settings {
            max_sources: small,
            max_tracked_keys: small,
            outbox: eventweir::outbox::Settings { max_records: small, ..eventweir::outbox::Settings::default() },
            ..shard::Settings::default()
        };
        let mut world = World::new(policy(settings), limits, Vec::new());
        for step in &steps {
            run(&mut world, std::slice::from_ref(step));
            let sizes = world.shard.sizes();
            prop_assert!(sizes.sources <= size);
            prop_assert!(sizes.tracked_keys <= 2 * size, "{sizes:?}");
            // A new record needs room. A repeat and the one digest per budget are accepted above the limit.
            prop_assert!(sizes.records <= size + 2 * size + 8, "{sizes:?}");
        }
        world.pass(LONG);
        prop_assert_eq!(world.shown(), world.accepted);
    }

    #[test]
    fn refusals_are_lost_with_their_reason_and_nothing_else_is(steps in steps(), good in 0..3_usize) {
        let mut replies = vec![Reply::Good; good];
        replies.push(Reply::Refuses);
        let mut world = World::new(policy(Settings::default()), shard::Settings::default(), replies);
        let steps: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Expire)).collect();
        run(&mut world, &steps);
        world.pass(LONG);
        let ledger = world.shard.balance().ledger;
        prop_assert_eq!(world.shown(), ledger.total_written());
        prop_assert_eq!(ledger.lost(LostReason::Invalid), world.accepted - world.shown());
    }

    #[test]
    fn dropped_occurrences_are_counted(steps in steps()) {
        let settings = Settings { suppression: Suppression::Drop, ..Settings::default() };
        let mut world = World::new(policy(settings), shard::Settings::default(), Vec::new());
        run(&mut world, &steps);
        world.pass(LONG);
        let balance = world.shard.balance();
        prop_assert_eq!(balance.total_waiting(), 0);
        prop_assert_eq!(balance.ledger.lost(LostReason::Suppressed), world.dropped);
        prop_assert_eq!(balance.ledger.total_written(), world.accepted - world.dropped);
        world.check_budgets(25.0, f64::from(1.0_f32 / 300.0));
    }
}

#[test]
fn sixty_reasons_on_one_object_are_all_accounted_for() {
    let mut world = World::new(policy(Settings::default()), shard::Settings::default(), Vec::new());
    for reason in 0..60 {
        world.report(event(0, reason, 0, false, world.now));
    }
    assert_eq!(world.stored.len(), 25, "the burst");
    world.pass(Duration::from_secs(3600));
    assert_eq!(world.shown(), 60);
    let digests: Vec<&Event> = world.stored.values().filter(|event| event.reason == DIGEST_REASON).collect();
    assert_eq!(digests.len(), 1);
    assert_eq!(digests[0].count, 35, "the last two are in the digest of the 33 before them");
    assert!(digests[0].message.contains("Reason25 x1"), "{}", digests[0].message);
    assert_eq!(world.stored.len(), 25 + 1);
}

#[test]
fn sixty_messages_on_one_object_are_all_accounted_for() {
    let mut world = World::new(policy(Settings::default()), shard::Settings::default(), Vec::new());
    for message in 0..60 {
        world.report(event(0, 0, message, false, world.now));
    }
    world.pass(Duration::from_secs(3600));
    assert_eq!(world.shown(), 60);
    assert_eq!(world.stored.len(), 10, "nine single events, one combined");
    let combined = world.stored.values().find(|event| event.message.starts_with("(combined")).unwrap();
    assert_eq!((combined.count, combined.message.as_str()), (51, "(combined from similar events): message 59"));
}

#[test]
fn under_drop_sixty_messages_give_what_client_go_gives() {
    let settings = Settings { suppression: Suppression::Drop, ..Settings::default() };
    let coalesce_interval = Duration::ZERO;
    let outbox = eventweir::outbox::Settings { coalesce_interval, ..eventweir::outbox::Settings::default() };
    let limits = shard::Settings { outbox, ..shard::Settings::default() };
    let mut world = World::new(policy(settings), limits, Vec::new());
    for message in 0..60 {
        world.report(event(0, 0, message, false, world.now));
    }
    world.pass(Duration::from_secs(3600));
    assert_eq!(world.stored.len(), 10);
    let combined = world.stored.values().find(|event| event.message.starts_with("(combined")).unwrap();
    assert_eq!((combined.count, combined.message.as_str()), (16, "(combined from similar events): message 24"));
    assert_eq!(world.dropped, 35);
}
