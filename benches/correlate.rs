//! Cost of one more occurrence in the core, compared with the least possible cost.
//!
//! The least possible cost ("floor") is to hash three keys, look up each, and write a patch. Events are made and
//! results dropped outside of the measured time. `bench/run core` compares the cases with client-go's correlator.
//! Compare only figures of one run.
#![expect(clippy::unwrap_used, reason = "a benchmark: criterion's macros, and valid input")]

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::io::Write as _;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use eventweir::clock::Now;
use eventweir::correlator::{KeySecret, Patch, Policy, Rate, Settings as Correlation};
use eventweir::event::{ApiGroup, Event, json};
use eventweir::outbox::{Answer, Request};
use eventweir::shard::{Settings, Shard};
use eventweir::upstream::patch_document;
use siphasher::sip128::{Hasher128, SipHasher13};
use tikv_jemallocator::Jemalloc;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

const SECRET: KeySecret = KeySecret(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210);
const START: i64 = 1_772_352_000_000_000_000;
/// Few enough that the events stay in the cache, and so many that the time to read the clock is negligible.
const BATCH: BatchSize = BatchSize::NumIterations(64);
/// Number of sources, and of events per source. Each event is tracked under two keys: its group and its observation.
const SIZES: [(&str, usize, usize); 2] = [("4,000 keys", 1, 2_000), ("100,000 keys over 100 sources", 100, 500)];

/// Returns a kubelet's event about an object.
fn event(source: usize, object: usize, message: &str) -> Event {
    let body = include_str!("event.json")
        .replace("node-17", &format!("node-{source:06}"))
        .replace("x2x7k", &format!("{object:07}"))
        .replace("2a3b4c5d6e7f", &format!("{object:012}"))
        .replace("Back-off", message);
    json::decode_event(ApiGroup::Core, body.as_bytes()).unwrap()
}

/// Events in an order that defeats the prefetcher.
struct Walk {
    events: Vec<Event>,
    next: usize,
}

impl Walk {
    fn new(sources: usize, each: usize) -> Self {
        Self {
            events: (0..sources * each).map(|object| event(object % sources, object, "Back-off")).collect(),
            next: 0,
        }
    }

    fn next(&mut self) -> Event {
        self.next = (self.next + 7_919) % self.events.len();
        self.events[self.next].clone()
    }
}

/// The minimum work of a repeat.
#[derive(Default)]
struct Floor {
    groups: HashMap<u128, (i64, u32), foldhash::fast::FixedState>,
    observations: HashMap<u128, (i32, String), foldhash::fast::FixedState>,
    budgets: HashMap<u128, (f64, i64), foldhash::fast::FixedState>,
    out: Vec<u8>,
}

impl Floor {
    fn hash(fields: &[&str]) -> u128 {
        let mut hasher = SipHasher13::new_with_keys(SECRET.0, SECRET.1);
        for field in fields {
            hasher.write(&(field.len() as u64).to_le_bytes());
            hasher.write(field.as_bytes());
        }
        hasher.finish128().as_u128()
    }

    fn repeat(&mut self, event: &Event) -> usize {
        let (source, object) = (&event.source, &event.involved_object);
        let (kind, namespace, name, uid) = (&object.kind, &object.namespace, &object.name, &object.uid);
        let common =
            [&source.component, &source.host, kind, namespace, name, uid, &object.api_version, &event.event_type];
        let [a, b, c, d, e, f, g, h] = common.map(|text| text.as_str());
        let spam = Self::hash(&[a, b, c, d, e, f, g, h]);
        let (controller, instance) = (&event.reporting_controller, &event.reporting_instance);
        let group = Self::hash(&[a, b, c, d, e, f, g, h, &event.reason, controller, instance]);
        let key = Self::hash(&[a, b, c, d, e, f, g, h, &event.reason, &object.field_path, &event.message]);
        self.groups.entry(group).or_default().1 += 1;
        self.budgets.entry(spam).or_default().0 += 1.0;
        let (count, _) = self.observations.entry(key).or_insert_with(|| (0, event.metadata.name.as_str().to_owned()));
        *count += 1;
        self.out.clear();
        write!(self.out, r#"{{"count":{count},"lastTimestamp":"{}","message":"#, event.last_timestamp.unwrap())
            .unwrap();
        serde_json::to_writer(&mut self.out, event.message.as_str()).unwrap();
        self.out.push(b'}');
        self.out.len()
    }
}

/// Puts all creates in flight, so that each repeat coalesces.
fn start_writes(shard: &mut Shard, now: Now) {
    while shard.next_write(now).is_some() {}
}

/// Measures the minimum cost of a repeat.
fn floor(c: &mut Criterion) {
    for (name, sources, each) in SIZES {
        let (mut floor, mut walk) = (Floor::default(), Walk::new(sources, each));
        for event in &walk.events {
            floor.repeat(event);
        }
        c.bench_function(&format!("floor, {name}"), |b| {
            b.iter_batched(|| walk.next(), |event| (floor.repeat(&event), event), BATCH);
        });
    }
}

/// Returns a policy without group budgets, and one with full group budgets. `bench/run core` compares the two.
fn policies() -> [(&'static str, Policy); 2] {
    let group = Some(Rate { qps: 1e6, burst: 1_000_000 });
    let base = Arc::new(Correlation { group, ..Correlation::default() });
    let budgeted = Policy { base, rules: Vec::new() };
    [("", Policy::default()), (", group budgets", budgeted)]
}

/// Measures a repeat from the decoded event to the coalesced record, and its patch.
fn repeat(c: &mut Criterion) {
    let now = Now::at(START);
    for ((name, sources, each), (suffix, policy)) in
        SIZES.into_iter().flat_map(|size| policies().map(|policy| (size, policy)))
    {
        let (mut shard, mut walk) = (Shard::new(SECRET, Settings::default(), 1), Walk::new(sources, each));
        for event in &walk.events {
            shard.accept(event.clone(), 1, now, &policy).unwrap();
        }
        start_writes(&mut shard, now);
        let mut through = |event: Event| {
            let patch = patch_document(&Patch::of(&event), None, ApiGroup::Core);
            (patch, shard.accept(event, 1, now, &policy).unwrap())
        };
        c.bench_function(&format!("repeat: accept and write the patch, {name}{suffix}"), |b| {
            b.iter_batched(|| walk.next(), &mut through, BATCH);
        });
    }
}

/// Measures events above the threshold of their group, each with a unique message.
fn combine(c: &mut Criterion) {
    let (policy, now, mut number) = (Policy::default(), Now::at(START), 0);
    let mut shard = Shard::new(SECRET, Settings::default(), 1);
    let mut next = || {
        number += 1;
        event(0, 0, &format!("Try {number}"))
    };
    for _ in 0..100 {
        shard.accept(next(), 1, now, &policy).unwrap();
    }
    start_writes(&mut shard, now);
    c.bench_function("combining: accept, a new message each", |b| {
        b.iter_batched(&mut next, |event| shard.accept(event, 1, now, &policy).unwrap(), BATCH);
    });
}

/// Measures a new object from the decoded event to the settled create. At 100 objects per second budgets and caches
/// stay full, and each object evicts one.
fn create(c: &mut Criterion) {
    for (suffix, policy) in policies() {
        let (mut at, mut object) = (START, 0);
        let mut shard = Shard::new(SECRET, Settings::default(), 1);
        let mut next = || {
            object += 1;
            event(0, object, "Back-off")
        };
        let mut through = |event: Event| {
            at += 10_000_000;
            let now = Now::at(at);
            let accepted = shard.accept(event, 1, now, &policy).unwrap();
            let write = shard.next_write(now).unwrap();
            let Request::Create { event: created, .. } = write.request else { return (accepted, None) };
            (accepted, Some(shard.settle(write.record, Answer::Stored(created), now)))
        };
        for _ in 0..10_000 {
            through(next());
        }
        c.bench_function(&format!("new object: accept, create, settle{suffix}"), |b| {
            b.iter_batched(&mut next, &mut through, BATCH);
        });
    }
}

criterion_group!(benches, floor, repeat, combine, create);
criterion_main!(benches);
