//! What does one more occurrence cost in the core, and how far is that from the least it can cost?
//!
//! The least ("floor"): hash three keys, look each up, write a patch. Everything else is ours to explain. Events are made and
//! results dropped outside of the measured time. Compare only figures of one run: `docs/performance.md`.
#![expect(clippy::unwrap_used, reason = "a benchmark: criterion's macros, and input that is known to be good")]

#[path = "floor/mod.rs"]
mod floor;

use std::cell::RefCell;
use std::hint::black_box;
use std::num::NonZeroUsize;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use eventweir::clock::Now;
use eventweir::correlator::{Correlator, Policy, Settings, Settled};
use eventweir::event::Event;
use eventweir::outbox::{self, Answer, Request};
use eventweir::shard::{self, Shard};
use floor::{Floor, SECRET, START, event, template};
use smol_str::{SmolStr, format_smolstr};
use tikv_jemallocator::Jemalloc;

/// The program's.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Few enough that reading the clock and the loop around it do not count, and that the events stay in the cache.
const BATCH: BatchSize = BatchSize::NumIterations(64);

/// Sources and events of each; every event is tracked under two keys (its group and its observation).
const SMALL: (usize, usize) = (1, 2_000);
const LARGE: (usize, usize) = (100, 1_000);

/// All events of a case, by source.
fn events((sources, each): (usize, usize)) -> Vec<(usize, Event)> {
    let template = template();
    (0..sources * each).map(|n| (n % sources, event(&template, n % sources, n))).collect()
}

/// Visits a table in an order that no prefetcher guesses.
struct Walk<'a> {
    events: &'a [(usize, Event)],
    next: usize,
}

impl<'a> Walk<'a> {
    fn new(events: &'a [(usize, Event)]) -> Self {
        Self { events, next: 0 }
    }

    fn next(&mut self) -> (usize, Event) {
        self.next = (self.next + 7_919) % self.events.len();
        self.events[self.next].clone()
    }
}

/// Question: what must a repeat cost at least?
fn least(c: &mut Criterion) {
    for (name, size) in [("floor, 4,000 keys", SMALL), ("floor, 200,000 keys", LARGE)] {
        let events = events(size);
        let mut floor = Floor::default();
        for (_, event) in &events {
            floor.repeat(event);
        }
        let mut walk = Walk::new(&events);
        c.bench_function(name, |b| {
            b.iter_batched(|| walk.next().1, |event| (floor.repeat(&event), event), BATCH);
        });
    }
}

/// Question: what does the correlator add to the floor? Once without and once with the patch's bytes.
fn repeat(c: &mut Criterion) {
    for (name, size) in [("4,000 keys", SMALL), ("200,000 keys over 100 sources", LARGE)] {
        let events = events(size);
        let (settings, now) = (Settings::default(), Now::at(START));
        let mut correlators: Vec<Correlator> = (0..size.0).map(|_| Correlator::new(SECRET)).collect();
        let mut next_record = 0;
        for (source, event) in &events {
            correlators[*source].correlate(&mut event.clone(), 1, now, &settings, &mut next_record);
        }
        let tracked: usize = correlators.iter().map(Correlator::tracked_keys).sum();
        assert_eq!(tracked, 2 * events.len());
        let mut walk = Walk::new(&events);
        let mut once = |(source, mut event): (usize, Event)| {
            (correlators[source].correlate(&mut event, 1, now, &settings, &mut next_record), event)
        };
        c.bench_function(&format!("repeat: correlate, {name}"), |b| {
            b.iter_batched(|| walk.next(), &mut once, BATCH);
        });
        c.bench_function(&format!("repeat: correlate and write the patch, {name}"), |b| {
            let patched = |input| {
                let (decision, event) = once(input);
                let json = decision.patch(&event).unwrap().to_json(None);
                (event, json)
            };
            b.iter_batched(|| walk.next(), patched, BATCH);
        });
    }
}

/// Limits that no case below reaches.
fn roomy() -> shard::Settings {
    let room = NonZeroUsize::new(1 << 40).unwrap();
    let outbox =
        outbox::Settings { max_records: room, max_bytes: room, max_budgets: room, ..outbox::Settings::default() };
    shard::Settings { max_sources: room, max_tracked_keys: room, outbox }
}

/// Question: what does a repeat cost from the decoded event to the coalesced record?
fn accept(c: &mut Criterion) {
    for (name, size) in [("4,000 keys", SMALL), ("200,000 keys over 100 sources", LARGE)] {
        let events = events(size);
        let (policy, now) = (Policy::default(), Now::at(START));
        let mut shard = Shard::new(SECRET, roomy(), 1);
        for (_, event) in &events {
            shard.accept(event.clone(), 1, now, &policy).unwrap();
        }
        // Every create is on its way from here on, so that every repeat coalesces.
        while shard.next_write(now).is_some() {}
        let mut walk = Walk::new(&events);
        c.bench_function(&format!("repeat: Shard::accept, {name}"), |b| {
            b.iter_batched(|| walk.next().1, |event| shard.accept(event, 1, now, &policy).unwrap(), BATCH);
        });
    }
}

/// Question: what does an object cost that was never seen, as far as client-go's correlator goes (`EventCorrelate` and
/// `UpdateState`)? A new correlator every 2,000 objects, as in the reference.
fn discover(c: &mut Criterion) {
    let template = template();
    let (settings, now) = (Settings::default(), Now::at(START));
    let (mut next_record, mut object) = (0, 0);
    let correlator = RefCell::new(Correlator::new(SECRET));
    c.bench_function("new object: correlate and settle", |b| {
        let next = || {
            object += 1;
            if object % 2_000 == 0 {
                correlator.replace(Correlator::new(SECRET));
            }
            event(&template, 0, object)
        };
        let through = |mut event: Event| {
            let mut correlator = correlator.borrow_mut();
            let decision = correlator.correlate(&mut event, 1, now, &settings, &mut next_record);
            let settled = Settled::Stored {
                name: event.metadata.name.clone(),
                resource_version: SmolStr::new_static("48213377"),
                first_timestamp: event.first_timestamp,
                count_moved: 0,
                tally: 1,
            };
            correlator.settle(decision.key, decision.record, &settled);
            (event, settled)
        };
        b.iter_batched(next, through, BATCH);
    });
}

/// Question: what does a record of its own cost, from accept to the settled create? 100 new objects a second, so that budgets
/// and caches are as full as they stay.
fn create(c: &mut Criterion) {
    let template = template();
    let (policy, mut at, mut object) = (Policy::default(), START, 0);
    let mut shard = Shard::new(SECRET, roomy(), 1);
    c.bench_function("many objects: accept, create, settle", |b| {
        let next = || {
            object += 1;
            event(&template, 0, object)
        };
        let through = |event: Event| {
            at += 10_000_000;
            let now = Now::at(at);
            let accepted = shard.accept(event, 1, now, &policy).unwrap();
            let write = shard.next_write(now).unwrap();
            let Request::Create { event: created, .. } = write.request else { return (accepted, None) };
            (accepted, Some(shard.settle(write.record, Answer::Stored(created), now)))
        };
        b.iter_batched(next, through, BATCH);
    });
}

/// Question: what does an event cost whose group is beyond the threshold, each with a message of its own?
fn combine(c: &mut Criterion) {
    let template = template();
    let (settings, now) = (Settings::default(), Now::at(START));
    let (mut correlator, mut next_record, mut number) = (Correlator::new(SECRET), 0, 0_u64);
    c.bench_function("combining: correlate, a new message each", |b| {
        let next = || {
            number += 1;
            let message = format_smolstr!("{}, try {number}", template.message);
            Event { message, ..template.clone() }
        };
        let mut once =
            |mut event: Event| (correlator.correlate(&mut event, 1, now, &settings, &mut next_record), event);
        b.iter_batched(next, &mut once, BATCH);
    });
}

/// Question: what does forgetting cost? Every event is new and every cache is full (64 entries, and client-go's 4,096).
fn evict(c: &mut Criterion) {
    let template = template();
    for size in [64, 4_096] {
        let settings = Settings { lru_cache_size: NonZeroUsize::new(size).unwrap(), ..Settings::default() };
        let (now, mut next_record, mut object) = (Now::at(START), 0, 0);
        let mut correlator = Correlator::new(SECRET);
        c.bench_function(&format!("eviction: correlate, all new, cache of {size}"), |b| {
            let next = || {
                object += 1;
                event(&template, 0, object)
            };
            b.iter_batched(
                next,
                |mut event| (black_box(correlator.correlate(&mut event, 1, now, &settings, &mut next_record)), event),
                BATCH,
            );
        });
    }
}

criterion_group!(benches, least, repeat, accept, discover, create, combine, evict);
criterion_main!(benches);
