//! Properties of the core, driven through simulated weeks with random events and a random upstream.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use eventweir::clock::{Mono, Now};
use eventweir::correlator::{KeySecret, LEGACY_SPAM_KEY, Naming, Policy, Settings, Suppression};
use eventweir::event::{Event, Time};
use eventweir::outbox::{
    self, Answer, Applied, DIGEST_REASON, Fault, LostReason, Refusal, RefusalReason, Request, Retry, Write,
};
use eventweir::shard::{self, Lead, Listed, Outcome, Shard};
use eventweir::status::Status;
use eventweir::upstream::store::{self, Store};
use eventweir::upstream::{ListOptions, answer_from_store};
use proptest::prelude::*;

const SECOND: i64 = 1_000_000_000;

/// One step of a scenario.
#[derive(Debug, Clone)]
enum Step {
    /// A component reports.
    Event { object: u8, reason: u8, message: u8, warning: bool, repeat: u8 },
    /// Time passes, in seconds.
    Pass(u32),
    /// Everything stored upstream expires.
    Expire,
    /// A client deletes one of the records that it can see, or that are still owed.
    Delete(u8),
}

/// What the upstream does with the next requests, one after another.
#[derive(Debug, Clone, Copy)]
enum Mood {
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
    /// Counts of records that expired and did not come back.
    expired: BTreeMap<String, i32>,
    moods: Vec<Mood>,
    next_mood: usize,
    accepted: u64,
    dropped: u64,
    /// Times of first tries of writes, by object and type: the budget they belong to.
    writes: HashMap<(String, String), Vec<i64>>,
    retried: HashMap<String, bool>,
    version: u64,
    /// Names of deleted records: none of them comes back.
    deleted: std::collections::BTreeSet<String>,
    /// Occurrences that deleted records showed.
    deleted_shown: u64,
}

impl World {
    fn new(policy: Policy, settings: shard::Settings, moods: Vec<Mood>) -> Self {
        Self {
            shard: Shard::new(KeySecret(7, 9), settings, 1),
            policy,
            now: 1_772_352_000 * SECOND,
            stored: BTreeMap::new(),
            expired: BTreeMap::new(),
            moods,
            next_mood: 0,
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
        self.now += 1; // names are made of nanoseconds
        let mut event = event;
        event.metadata.name = format!("{}.{:x}", event.involved_object.name, self.now).into();
        let (now, policy) = (self.now(), self.policy.clone());
        let Ok(accepted) = self.shard.accept(event, 1, now, &policy) else { return };
        self.accepted += 1;
        self.dropped += u64::from(accepted.outcome == Outcome::Dropped);
        self.check();
        self.deliver();
    }

    /// Sends whatever can be sent now.
    fn deliver(&mut self) {
        for _ in 0..10_000 {
            let Some(write) = self.shard.next_write(self.now()) else { return };
            let answer = self.answer(&write);
            self.shard.settle(write.record, answer, self.now());
            self.check();
        }
        panic!("delivery does not come to rest");
    }

    /// Lets time pass, waking the shard whenever it asks for it.
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
        panic!("the shard wakes for ever");
    }

    fn mood(&mut self) -> Mood {
        self.next_mood += 1;
        if self.moods.is_empty() { Mood::Good } else { self.moods[self.next_mood % self.moods.len()] }
    }

    fn answer(&mut self, write: &Write) -> Answer {
        let mood = self.mood();
        self.note_write(write);
        match mood {
            Mood::Good => self.apply(&write.request),
            Mood::TooMany => Answer::Retry(Retry {
                after: Some(Duration::from_secs(1)),
                applied: Applied::No,
                fault: Fault::Overloaded,
            }),
            Mood::ErrorBefore => {
                Answer::Retry(Retry { after: None, applied: Applied::Perhaps, fault: Fault::ServerError })
            }
            Mood::ErrorAfter => {
                let _applied = self.apply(&write.request);
                Answer::Retry(Retry { after: None, applied: Applied::Perhaps, fault: Fault::Timeout })
            }
            Mood::Refuses => Answer::Refused(Refusal {
                reason: RefusalReason::Forbidden,
                status: Box::new(Status::new(403, "Forbidden", "no")),
            }),
        }
    }

    /// A request that repeats a failed one pays no second token; everything else is a write of its budget.
    fn note_write(&mut self, write: &Write) {
        if self.moods.iter().any(|mood| !matches!(mood, Mood::Good)) {
            return; // repeats cannot be told from writes by their content
        }
        let event = match &write.request {
            Request::Create { event, .. } => event.as_ref().clone(),
            Request::Patch { name, .. } => match self.stored.get(name.as_str()) {
                Some(event) => event.clone(),
                None => return, // answered "not found" and created in the same try
            },
            Request::Read { .. } => return,
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
                event.message = patch.message.clone().into();
                Answer::Stored(Box::new(event.clone()))
            }
            Request::Read { name, .. } => match self.stored.get(name.as_str()) {
                Some(event) => Answer::Stored(Box::new(event.clone())),
                None => Answer::Missing,
            },
        }
    }

    /// Deletes a record as the face does: held, deleted upstream, forgotten.
    fn delete(&mut self, choice: u8) {
        let pending: Vec<Event> = self.shard.pending().map(|(event, _)| event.clone()).collect();
        let seen: BTreeMap<String, Event> = pending
            .into_iter()
            .chain(self.stored.values().cloned())
            .map(|event| (event.metadata.name.to_string(), event))
            .collect();
        let Some((name, event)) = seen.into_iter().nth(usize::from(choice)) else { return };
        let (now, policy) = (self.now(), self.policy.clone());
        let handle = self.shard.hold(&event, &name, Lead::Name, now, &policy);
        self.deliver(); // nothing of the record goes out while it is held
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

    /// Writes of one budget never exceed what a client-go bucket (burst 25, one per 300 s) grants in any stretch of time.
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

/// The same with deletions.
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

fn moods() -> impl Strategy<Value = Vec<Mood>> {
    let mood = prop_oneof![
        4 => Just(Mood::Good),
        1 => Just(Mood::TooMany),
        1 => Just(Mood::ErrorBefore),
        1 => Just(Mood::ErrorAfter),
    ];
    proptest::collection::vec(mood, 1..12).prop_map(|mut moods| {
        moods.push(Mood::Good);
        moods
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

/// Long enough for every deferred record of these scenarios to find a token: one comes each five minutes.
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
    fn what_is_deleted_never_comes_back_and_is_accounted_for(steps in steps_and_deletes()) {
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
    fn faults_of_the_upstream_change_no_count(steps in steps(), moods in moods()) {
        let mut world = World::new(policy(Settings::default()), shard::Settings::default(), moods);
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
        };
        let mut world = World::new(policy(settings), limits, Vec::new());
        for step in &steps {
            run(&mut world, std::slice::from_ref(step));
            let sizes = world.shard.sizes();
            prop_assert!(sizes.sources <= size);
            prop_assert!(sizes.tracked_keys <= 2 * size, "{sizes:?}");
            // A new record needs room; repeats and the one digest of each budget are always taken.
            prop_assert!(sizes.records <= size + 2 * size + 8, "{sizes:?}");
        }
        world.pass(LONG);
        prop_assert_eq!(world.shown(), world.accepted);
    }

    #[test]
    fn refusals_are_lost_with_their_reason_and_nothing_else_is(steps in steps(), good in 0..3_usize) {
        let mut moods = vec![Mood::Good; good];
        moods.push(Mood::Refuses);
        let mut world = World::new(policy(Settings::default()), shard::Settings::default(), moods);
        let steps: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Expire)).collect();
        run(&mut world, &steps);
        world.pass(LONG);
        let ledger = world.shard.balance().ledger;
        prop_assert_eq!(world.shown(), ledger.total_written());
        prop_assert_eq!(ledger.lost(LostReason::Refused(RefusalReason::Forbidden)), world.accepted - world.shown());
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
    assert_eq!(digests[0].count, 33, "folded when the 33rd never-written record came");
    assert!(digests[0].message.contains("Reason25 x1"), "{}", digests[0].message);
    assert_eq!(world.stored.len(), 25 + 1 + 2);
}

#[test]
fn sixty_messages_on_one_object_are_all_accounted_for() {
    let mut world = World::new(policy(Settings::default()), shard::Settings::default(), Vec::new());
    for message in 0..60 {
        world.report(event(0, 0, message, false, world.now));
    }
    world.pass(Duration::from_secs(3600));
    assert_eq!(world.shown(), 60);
    assert_eq!(world.stored.len(), 10, "nine as they are, one combined");
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

/// Processes that report to one store and count exactly, each a shard with the news it has heard and the disk it keeps.
struct Cluster {
    processes: Vec<Process>,
    settings: Settings,
    outbox: outbox::Settings,
    store: Store,
    now: i64,
    lives: u32,
}

struct Process {
    shard: Shard,
    /// The revision that it has heard of.
    heard: u64,
    /// What outlives it.
    disk: BTreeMap<outbox::RecordId, outbox::Entry>,
    /// Answers on their way to it.
    answers: Vec<(i64, outbox::RecordId, Answer)>,
}

const LOST: Answer = Answer::Retry(Retry { after: None, applied: Applied::Perhaps, fault: Fault::Timeout });

impl Cluster {
    fn new(processes: usize, settings: Settings, outbox: outbox::Settings) -> Self {
        let limits = store::Settings { ttl: Duration::ZERO, ..store::Settings::default() };
        let store = Store::new(limits, 1);
        let now = 1_772_352_000 * SECOND;
        let mut cluster = Self { processes: Vec::new(), settings, outbox, store, now, lives: 0 };
        cluster.processes = (0..processes).map(|_| cluster.begin(BTreeMap::new())).collect();
        cluster
    }

    fn now(&self) -> Now {
        Now { wall: self.now, mono: Mono(self.now - 1_772_000_000 * SECOND) }
    }

    /// The next process on what an earlier one has kept.
    fn begin(&mut self, kept: BTreeMap<outbox::RecordId, outbox::Entry>) -> Process {
        self.lives += 1;
        let limits = shard::Settings { outbox: self.outbox.clone(), ..shard::Settings::default() };
        let mut shard = Shard::new(KeySecret(7, 9), limits, 1);
        shard.identify(&format!("life-{}", self.lives));
        shard.keep_journal();
        let policy = policy(self.settings.clone());
        kept.into_values().for_each(|entry| shard.restore(entry, self.now(), &policy));
        let mut process = Process { shard, heard: self.store.revision(), disk: BTreeMap::new(), answers: Vec::new() };
        process.keep(self.now());
        process
    }

    fn accept(&mut self, who: usize, event: Event) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        self.processes[who].shard.accept(event, 1, now, &policy).unwrap();
    }

    /// After so much time, what the first process would write.
    fn next(&mut self, passed: i64) -> Write {
        self.now += passed;
        let now = self.now();
        self.processes[0].keep(now);
        self.processes[0].shard.next_write(now).unwrap()
    }

    fn carry_out(&mut self, request: &Request) -> Answer {
        let now = self.now();
        answer_from_store(&mut self.store, request, now)
    }

    fn settle(&mut self, who: usize, record: outbox::RecordId, answer: Answer) {
        let now = self.now();
        self.processes[who].shard.settle(record, answer, now);
        assert!(self.processes[who].shard.balance().is_exact());
    }

    /// Everything that the first process owes is written.
    fn write_all(&mut self) {
        for _ in 0..200 {
            if !self.processes[0].shard.owes() {
                return;
            }
            self.now += SECOND;
            let now = self.now();
            self.processes[0].keep(now);
            while let Some(write) = self.processes[0].shard.next_write(now) {
                let answer = self.carry_out(&write.request);
                self.settle(0, write.record, answer);
            }
        }
        panic!("delivery does not come to rest");
    }

    fn stored(&mut self) -> Vec<Event> {
        let page = self.store.list(None, &ListOptions::default(), self.now()).unwrap();
        page.items.iter().map(|event| Event::clone(event)).collect()
    }

    /// Occurrences that the store shows.
    fn shown(&mut self) -> i32 {
        self.stored().iter().map(|event| event.count).sum()
    }

    /// A process hears of the next changes, or reads everything that there is.
    fn hear(&mut self, who: usize, number: Option<usize>) {
        let (now, policy) = (self.now(), policy(self.settings.clone()));
        let Some(number) = number else {
            let mut listed = Listed::default();
            for event in self.stored() {
                listed.add(&event);
                self.processes[who].shard.learn(&event, now, &policy);
            }
            self.processes[who].shard.learn_list(&listed, now);
            self.processes[who].heard = self.store.revision();
            return;
        };
        let process = &mut self.processes[who];
        for change in self.store.changes_since(process.heard).unwrap().take(number) {
            process.heard = change.revision;
            if let Some(after) = &change.after {
                process.shard.learn(after, now, &policy);
            }
        }
    }
}

impl Process {
    /// What has changed is on the disk.
    fn keep(&mut self, now: Now) {
        let changes = self.shard.take_changes();
        for (id, entry) in changes.records {
            match entry {
                Some(entry) => self.disk.insert(id, *entry),
                None => self.disk.remove(&id),
            };
        }
        self.shard.changes_kept(&changes.held, now);
    }
}

fn plain_event(number: usize, reason: &str, message: &str) -> Event {
    let mut event = event(0, 0, 0, true, 1_772_352_000 * SECOND);
    event.metadata.name = format!("web-0.{number}").into();
    event.involved_object.field_path = format!("spec.containers{{{}}}", number % 2).into();
    (event.reason, event.message) = (reason.into(), message.into());
    event
}

/// What may keep a record from being known at once for what it is.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    /// The answer is lost, and what was asked is done.
    LostAfter,
    /// The answer is lost, and nothing is done.
    LostBefore,
    /// Somebody sets a label, so that the version is another.
    Labelled,
}

/// Fault: the record was taken for a stranger, and written a second time with its running count. Its newest occurrence is of
/// another container than its first.
#[test]
fn a_combined_record_of_two_containers_is_known_again() {
    for (trouble, restarted) in [Trouble::LostAfter, Trouble::LostBefore, Trouble::Labelled]
        .into_iter()
        .flat_map(|trouble| [(trouble, false), (trouble, true)])
    {
        let max_events = const { std::num::NonZeroUsize::new(2).unwrap() };
        let mut cluster = Cluster::new(1, Settings { max_events, ..Settings::default() }, outbox::Settings::default());
        for number in 0..7 {
            cluster.accept(0, plain_event(number, "Unhealthy", &format!("{number}")));
            cluster.write_all();
        }
        if restarted {
            cluster.processes[0] = cluster.begin(BTreeMap::new());
            cluster.hear(0, None);
            cluster.accept(0, plain_event(7, "Unhealthy", "a message of its own"));
        }
        cluster.write_all();
        let before = cluster.shown();
        cluster.accept(0, plain_event(8, "Unhealthy", "8"));
        if let Trouble::Labelled = trouble {
            let name = cluster.stored().into_iter().max_by_key(|event| event.count).unwrap().metadata.name;
            let now = cluster.now();
            let label = |event: &mut Event| {
                event.metadata.rare.get_or_insert_default().labels = [("a".into(), "b".into())].into();
                Ok(())
            };
            cluster.store.update("default", &name, now, label).unwrap();
        } else {
            let write = cluster.next(2 * SECOND);
            assert!(matches!(write.request, Request::Patch { .. }));
            if let Trouble::LostAfter = trouble {
                cluster.carry_out(&write.request);
            }
            cluster.settle(0, write.record, LOST);
        }
        cluster.write_all();
        assert_eq!(cluster.shown(), before + 1, "{trouble:?} {restarted}");
    }
}

/// Fault: the same, of a digest whose budget has both types, and into which a Warning has folded since it was created.
#[test]
fn a_digest_whose_type_has_changed_is_known_again() {
    let settings = Settings { burst_size: 1, qps: 0.1, spam_key: LEGACY_SPAM_KEY.to_vec(), ..Settings::default() };
    let outbox = outbox::Settings { digest_after: 2, ..outbox::Settings::default() };
    let mut cluster = Cluster::new(1, settings, outbox);
    for kind in ["Normal", "Warning"] {
        for number in 0..4 {
            let event = plain_event(0, &format!("{kind}{number}"), "m");
            cluster.accept(0, Event { event_type: kind.into(), ..event });
        }
        if kind == "Normal" {
            cluster.write_all();
        }
    }
    let mut is_lost = false;
    while cluster.processes[0].shard.owes() {
        cluster.now += SECOND;
        let now = cluster.now();
        cluster.processes[0].keep(now);
        while let Some(write) = cluster.processes[0].shard.next_write(now) {
            let answer = cluster.carry_out(&write.request);
            let is_digest = matches!(&write.request, Request::Patch { patch, .. } if patch.message.contains("folded"));
            cluster.settle(0, write.record, if is_digest && !is_lost { LOST } else { answer });
            is_lost |= is_digest;
        }
    }
    assert!(is_lost);
    assert_eq!(cluster.shown(), 8);
}

/// Fault: the same, of a record whose create was done without an answer: another instance of the reporter says the same meanwhile,
/// or admission has changed what is stored.
#[test]
fn a_create_without_an_answer_is_known_again_by_its_tally() {
    for is_changed in [false, true] {
        let mut cluster = Cluster::new(1, Settings::default(), outbox::Settings::default());
        let event = Event { reporting_instance: "a".into(), ..plain_event(0, "BackOff", "token=1") };
        cluster.accept(0, event.clone());
        let mut write = cluster.next(0);
        if is_changed && let Request::Create { event, .. } = &mut write.request {
            event.message = "token=***".into();
        }
        cluster.carry_out(&write.request);
        cluster.accept(0, Event { reporting_instance: if is_changed { "a" } else { "b" }.into(), ..event });
        cluster.settle(0, write.record, LOST);
        cluster.write_all();
        assert_eq!((cluster.shown(), cluster.stored().len()), (2, 1));
    }
}

/// A client patches the message of its event, which is another event then, under the same name.
#[test]
fn a_create_without_an_answer_is_not_taken_for_our_other_record_of_that_name() {
    for is_done in [false, true] {
        for restarted in [false, true] {
            let mut cluster = Cluster::new(1, Settings::default(), outbox::Settings::default());
            cluster.accept(0, plain_event(0, "BackOff", "first"));
            cluster.write_all();
            cluster.accept(0, plain_event(0, "BackOff", "second"));
            let write = cluster.next(0);
            if is_done {
                cluster.carry_out(&write.request);
            }
            cluster.settle(0, write.record, LOST);
            if restarted {
                let now = cluster.now();
                cluster.processes[0].keep(now);
                let kept = std::mem::take(&mut cluster.processes[0].disk);
                cluster.processes[0] = cluster.begin(kept);
            }
            cluster.write_all();
            assert_eq!((cluster.shown(), cluster.stored().len()), (2, 2), "{is_done} {restarted}");
        }
    }
}

/// Fault: the second write left before it was kept that the first one was settled, and under which name the second is counted.
#[test]
fn a_record_of_an_earlier_process_survives_the_next_crash_between_its_writes() {
    let mut cluster = Cluster::new(1, Settings::default(), outbox::Settings::default());
    cluster.accept(0, plain_event(0, "BackOff", "m"));
    let now = cluster.now();
    cluster.processes[0].keep(now);
    let kept = std::mem::take(&mut cluster.processes[0].disk);
    cluster.processes[0] = cluster.begin(kept);
    let write = cluster.next(0);
    cluster.accept(0, plain_event(0, "BackOff", "m"));
    let now = cluster.now();
    cluster.processes[0].keep(now);
    let answer = cluster.carry_out(&write.request);
    cluster.settle(0, write.record, answer);
    cluster.now += 2 * SECOND;
    let now = cluster.now();
    if let Some(write) = cluster.processes[0].shard.next_write(now) {
        cluster.carry_out(&write.request);
    }
    let kept = std::mem::take(&mut cluster.processes[0].disk);
    cluster.processes[0] = cluster.begin(kept);
    cluster.write_all();
    assert_eq!(cluster.shown(), 2);
}

/// How a random scenario goes.
#[derive(Debug, Clone, Copy)]
struct Weather {
    seed: u64,
    naming: Naming,
    /// Somebody sets labels.
    labels: bool,
    /// Equal events come from several instances.
    instances: bool,
    /// Processes end without warning, and what they have accepted is on their disks.
    crashes: bool,
}

/// Two processes count on the records of one store. Answers are lost or late, writes are done later or never, news come late.
fn storm(weather: Weather) {
    const STEPS: usize = 300;
    let mut rng = fastrand::Rng::with_seed(weather.seed);
    let settings = Settings {
        naming: weather.naming,
        burst_size: if rng.bool() { 3 } else { 1000 },
        qps: 0.05,
        max_events: const { std::num::NonZeroUsize::new(4).unwrap() },
        spam_key: if rng.bool() { LEGACY_SPAM_KEY.to_vec() } else { Settings::default().spam_key },
        ..Settings::default()
    };
    let outbox = outbox::Settings {
        digest_after: 3,
        digest_max_age: Duration::from_secs(100),
        max_age: Duration::from_secs(1_000_000),
        ..outbox::Settings::default()
    };
    let mut cluster = Cluster::new(2, settings, outbox);
    let (mut accepted, mut late) = (0, Vec::new());
    for step in 0..STEPS + 3_000 {
        let calm = step >= STEPS;
        cluster.now += if calm { SECOND / 2 } else { rng.i64(0..SECOND * 3 / 2) };
        let now = cluster.now;
        let (due, rest): (Vec<_>, _) = late.into_iter().partition(|(at, _)| calm || *at <= now);
        due.iter().for_each(|(_, request)| drop(cluster.carry_out(request)));
        late = rest;
        if !calm && rng.u32(..3) < 2 {
            let mut event = plain_event(step, ["A", "B"][rng.usize(..2)], "");
            let message = rng.u32(..8);
            event.message = format!("message {message}").into();
            event.involved_object.name = format!("web-{}", rng.u32(..2)).into();
            event.involved_object.field_path = format!("c{}", message % 2).into();
            event.event_type = if rng.bool() { "Normal" } else { "Warning" }.into();
            if weather.instances {
                event.reporting_controller = "c".into();
                event.reporting_instance = format!("i{}", rng.u32(..2)).into();
            }
            let who = rng.usize(..2);
            cluster.accept(who, event);
            accepted += 1;
            let now = cluster.now();
            cluster.processes[who].keep(now);
        }
        for who in 0..2 {
            weather_of(&mut cluster, who, &mut rng, &mut late, calm);
            if weather.crashes && !calm && rng.u32(..80) == 0 {
                let kept = std::mem::take(&mut cluster.processes[who].disk);
                cluster.processes[who] = cluster.begin(kept);
                if rng.bool() {
                    cluster.hear(who, None);
                }
            }
        }
        if weather.labels && !calm && rng.u32(..25) == 0 && !cluster.store.is_empty() {
            let events = cluster.stored();
            let (name, value, now) = (&rng.choice(events).unwrap().metadata.name, rng.u32(..), cluster.now());
            let label = |event: &mut Event| {
                event.metadata.rare.get_or_insert_default().labels = [("a".into(), value.to_string().into())].into();
                Ok(())
            };
            cluster.store.update("default", name, now, label).unwrap();
        }
        if calm && cluster.processes.iter().all(|process| !process.shard.owes()) {
            break;
        }
    }
    assert_eq!(cluster.shown(), accepted, "{weather:?}");
}

/// What a process hears and does in one step of a storm.
fn weather_of(cluster: &mut Cluster, who: usize, rng: &mut fastrand::Rng, late: &mut Vec<(i64, Request)>, calm: bool) {
    let now = cluster.now;
    let answers = std::mem::take(&mut cluster.processes[who].answers);
    let (due, rest): (Vec<_>, _) = answers.into_iter().partition(|(at, ..)| calm || *at <= now);
    due.into_iter().for_each(|(_, record, answer)| cluster.settle(who, record, answer));
    cluster.processes[who].answers = rest;
    if calm || rng.bool() {
        cluster.hear(who, Some(if calm { usize::MAX } else { rng.usize(0..5) }));
    }
    if rng.u32(..64) == 0 {
        cluster.hear(who, None);
    }
    for _ in 0..4 {
        let time = cluster.now();
        let Some(write) = cluster.processes[who].shard.next_write(time) else { break };
        let fault = if calm { 0 } else { rng.u32(..100) };
        let answer = match fault {
            80..94 => LOST,
            94.. => Answer::Retry(Retry { after: None, applied: Applied::No, fault: Fault::Overloaded }),
            _ => cluster.carry_out(&write.request),
        };
        match fault {
            45..65 => cluster.processes[who].answers.push((now + rng.i64(0..5 * SECOND), write.record, answer)),
            65..80 => cluster.settle(who, write.record, LOST),
            87..94 => {
                late.push((now + rng.i64(0..20 * SECOND), write.request));
                cluster.settle(who, write.record, answer);
            }
            _ => cluster.settle(who, write.record, answer),
        }
    }
    if calm || rng.u32(..4) == 0 {
        let now = cluster.now();
        cluster.processes[who].keep(now);
    }
}

/// Fault: with most of these seeds records were taken for strangers, and some occurrences counted twice by two crashes.
#[test]
fn in_any_weather_each_occurrence_counts_once() {
    for seed in 0..12 {
        for (labels, instances) in [(false, false), (true, true)] {
            for crashes in [false, true] {
                for naming in [Naming::Client, Naming::Deterministic] {
                    storm(Weather { seed, naming, labels, instances, crashes });
                }
            }
        }
    }
}
