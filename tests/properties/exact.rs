//! Processes that count exactly on the records of one store despite lost answers, late watch events and crashes.

use std::time::Duration;

use eventweir::correlator::{LEGACY_SPAM_KEY, Naming, Settings};
use eventweir::event::Event;
use eventweir::outbox::{self, Answer, Applied, Fault, Request, Retry};
use eventweir::shard;

use super::SECOND;
use super::cluster::{Cluster, LOST, plain_event};
use super::seeds::{Seed, fresh_seeds};

/// A client patches its event into another event under the same name, and the first event repeats.
#[test]
fn a_create_without_an_answer_is_not_taken_for_our_other_record_of_that_name() {
    for is_done in [false, true] {
        for restarted in [false, true] {
            let mut cluster = Cluster::new(1, Settings::default(), shard::Settings::default());
            cluster.accept(0, plain_event(0, "BackOff", "first"));
            cluster.write_all();
            cluster.accept(0, plain_event(0, "BackOff", "second"));
            let write = cluster.next(0);
            if is_done {
                cluster.execute(&write.request);
            }
            // Patch the first record meanwhile, so that it has the newer resourceVersion.
            cluster.now += 10 * SECOND;
            cluster.accept(0, plain_event(0, "BackOff", "first"));
            let patch = cluster.next(0);
            let answer = cluster.execute(&patch.request);
            cluster.settle(0, patch.record, answer);
            cluster.settle(0, write.record, LOST);
            if restarted {
                let now = cluster.now();
                cluster.processes[0].commit(now);
                let disk = std::mem::take(&mut cluster.processes[0].disk);
                cluster.processes[0] = cluster.begin(disk);
            }
            cluster.write_all();
            assert_eq!((cluster.shown(), cluster.stored().len()), (3, 2), "{is_done} {restarted}");
        }
    }
}

/// Fault: the second write was sent before the journal had the settled first write and the second's name. The
/// crash then counted it twice.
#[test]
fn a_record_of_an_earlier_process_survives_the_next_crash_between_its_writes() {
    let mut cluster = Cluster::new(1, Settings::default(), shard::Settings::default());
    cluster.accept(0, plain_event(0, "BackOff", "m"));
    let now = cluster.now();
    cluster.processes[0].commit(now);
    let disk = std::mem::take(&mut cluster.processes[0].disk);
    cluster.processes[0] = cluster.begin(disk);
    let write = cluster.next(0);
    cluster.accept(0, plain_event(0, "BackOff", "m"));
    let now = cluster.now();
    cluster.processes[0].commit(now);
    let answer = cluster.execute(&write.request);
    cluster.settle(0, write.record, answer);
    cluster.now += 2 * SECOND;
    let now = cluster.now();
    if let Some(write) = cluster.processes[0].shards[0].next_write(now) {
        cluster.execute(&write.request);
    }
    let disk = std::mem::take(&mut cluster.processes[0].disk);
    cluster.processes[0] = cluster.begin(disk);
    cluster.write_all();
    assert_eq!(cluster.shown(), 2);
}

/// Parameters of a random scenario.
#[derive(Debug, Clone, Copy)]
struct Conditions {
    seed: u64,
    naming: Naming,
    /// Whether another writer sets labels.
    labels: bool,
    /// Whether processes crash and restart from their disks.
    crashes: bool,
}

/// Two processes count on the records of one store. Answers are lost or late, requests are executed late or never, and
/// watch events arrive late.
fn storm(conditions: Conditions) {
    const STEPS: usize = 300;
    let mut rng = fastrand::Rng::with_seed(conditions.seed);
    let settings = Settings {
        naming: conditions.naming,
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
    let mut cluster = Cluster::new(2, settings, shard::Settings { outbox, ..shard::Settings::default() });
    let (mut accepted, mut late) = (0, Vec::new());
    for step in 0..STEPS + 3_000 {
        let calm = step >= STEPS;
        cluster.now += if calm { SECOND / 2 } else { rng.i64(0..SECOND * 3 / 2) };
        let now = cluster.now;
        let (due, rest): (Vec<_>, _) = late.into_iter().partition(|(at, _)| calm || *at <= now);
        due.iter().for_each(|(_, request)| drop(cluster.execute(request)));
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
            cluster.processes[who].commit(now);
        }
        for who in 0..2 {
            step_of(&mut cluster, who, &mut rng, &mut late, calm);
            if conditions.crashes && !calm && rng.u32(..80) == 0 {
                let disk = std::mem::take(&mut cluster.processes[who].disk);
                cluster.processes[who] = cluster.begin(disk);
                if rng.bool() {
                    cluster.read_changes(who, None);
                }
            }
        }
        if conditions.labels && !calm && rng.u32(..25) == 0 && !cluster.store.is_empty() {
            let events = cluster.stored();
            let (name, value, now) = (&rng.choice(events).unwrap().metadata.name, rng.u32(..), cluster.now());
            let label = |event: &mut Event| {
                event.metadata.rare.get_or_insert_default().labels = [("a".into(), value.to_string().into())].into();
            };
            cluster.store.update("default", name, now, label).unwrap();
        }
        if calm && cluster.processes.iter().all(|process| !process.owes()) {
            break;
        }
    }
    assert_eq!(cluster.shown(), accepted, "{conditions:?}");
}

/// Executes the reads and writes of one process in one step.
fn step_of(cluster: &mut Cluster, who: usize, rng: &mut fastrand::Rng, late: &mut Vec<(i64, Request)>, calm: bool) {
    let now = cluster.now;
    let answers = std::mem::take(&mut cluster.processes[who].answers);
    let (due, rest): (Vec<_>, _) = answers.into_iter().partition(|(at, ..)| calm || *at <= now);
    due.into_iter().for_each(|(_, record, answer)| cluster.settle(who, record, answer));
    cluster.processes[who].answers = rest;
    if calm || rng.bool() {
        cluster.read_changes(who, Some(if calm { usize::MAX } else { rng.usize(0..5) }));
    }
    if rng.u32(..64) == 0 {
        cluster.read_changes(who, None);
    }
    for _ in 0..4 {
        let time = cluster.now();
        let Some(write) = cluster.processes[who].shards[0].next_write(time) else { break };
        let fault = if calm { 0 } else { rng.u32(..100) };
        let answer = match fault {
            80..94 => LOST,
            94.. => Answer::Retry(Retry::new(Fault::Overloaded, Applied::No)),
            _ => cluster.execute(&write.request),
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
        cluster.processes[who].commit(now);
    }
}

/// Fault: two crashes counted some occurrences twice.
#[test]
fn with_faults_and_crashes_each_occurrence_counts_once() {
    for seed in (0..12).chain(fresh_seeds()) {
        for labels in [false, true] {
            for crashes in [false, true] {
                for naming in [Naming::Client, Naming::Deterministic] {
                    let _named = Seed(seed);
                    storm(Conditions { seed, naming, labels, crashes });
                }
            }
        }
    }
}
