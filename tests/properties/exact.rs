//! Processes that count exactly on the records of one store, whatever becomes of their answers, of their news and of themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use eventweir::clock::{Mono, Now};
use eventweir::correlator::{KeySecret, LEGACY_SPAM_KEY, Naming, Settings};
use eventweir::event::Event;
use eventweir::outbox::{self, Answer, Applied, Fault, Request, Retry, Write};
use eventweir::shard::{self, Listed, Shard};
use eventweir::upstream::store::{self, Store};
use eventweir::upstream::{ListOptions, answer_from_store};

use super::{SECOND, event, policy};

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

/// A client patches the message of its event, which is another event then, under the same name; and the first one goes on happening.
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
            // The first is patched meanwhile, so that its version is the newer one.
            cluster.now += 10 * SECOND;
            cluster.accept(0, plain_event(0, "BackOff", "first"));
            let patch = cluster.next(0);
            let answer = cluster.carry_out(&patch.request);
            cluster.settle(0, patch.record, answer);
            cluster.settle(0, write.record, LOST);
            if restarted {
                let now = cluster.now();
                cluster.processes[0].keep(now);
                let kept = std::mem::take(&mut cluster.processes[0].disk);
                cluster.processes[0] = cluster.begin(kept);
            }
            cluster.write_all();
            assert_eq!((cluster.shown(), cluster.stored().len()), (3, 2), "{is_done} {restarted}");
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
            event.involved_object.field_path = "c".into();
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

/// Fault: some occurrences were counted twice by two crashes.
#[test]
fn in_any_weather_each_occurrence_counts_once() {
    for seed in 0..12 {
        for labels in [false, true] {
            for crashes in [false, true] {
                for naming in [Naming::Client, Naming::Deterministic] {
                    storm(Weather { seed, naming, labels, crashes });
                }
            }
        }
    }
}
