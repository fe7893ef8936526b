//! How far is an occurrence from the least that it can cost, how much more does it cost where a million keys are tracked, and
//! how much do two threads get done? Prints a table.
//!
//! Not criterion's: the cases of a question take turns every few microseconds, so that what else the machine does meets all of
//! them alike; of each the median batch is told. The least ("floor") is that of `benches/floor`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    clippy::disallowed_methods,
    reason = "a benchmark: it prints, it reads the clock, and input is known to be good"
)]

#[path = "floor/mod.rs"]
mod floor;

use std::any::Any;
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use eventweir::clock::{Clock, Now};
use eventweir::correlator::{Correlator, KeySecret, Policy, Settings, Suppression};
use eventweir::event::Event;
use eventweir::outbox::{self, Answer, Request};
use eventweir::shard::{self, Shard, Shards};
use floor::{Floor, SECRET, START, event, template};
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Occurrences that are measured in one go; few enough to stay in the processor's cache while they are made.
const BATCH: usize = 64;

/// Sources and events of each; every event is tracked under two keys.
type Shape = (usize, usize);

/// A thing to measure: it is given events that were made outside of the measured time.
struct Case<'c> {
    name: &'static str,
    shape: Shape,
    /// What it returns is dropped outside of the measured time too.
    run: Box<dyn FnMut(Vec<Event>) -> Box<dyn Any> + 'c>,
    next: usize,
    taken: Vec<Duration>,
}

impl<'c> Case<'c> {
    fn new<T: 'static>(name: &'static str, shape: Shape, mut run: impl FnMut(Vec<Event>) -> T + 'c) -> Self {
        Self { name, shape, run: Box::new(move |events| Box::new(run(events))), next: 0, taken: Vec::new() }
    }

    fn round(&mut self, template: &Event) {
        let (sources, each) = self.shape;
        let events = (0..BATCH).map(|_| {
            // In an order that no prefetcher guesses.
            self.next = (self.next + 7_919) % (sources * each);
            event(template, self.next % sources, self.next)
        });
        let events: Vec<Event> = events.collect();
        let begin = Instant::now();
        let rest = (self.run)(events);
        self.taken.push(begin.elapsed());
        drop(rest);
    }

    fn median(&self) -> f64 {
        let mut taken = self.taken.clone();
        taken.sort_unstable();
        taken[taken.len() / 2].as_nanos() as f64 / BATCH as f64
    }
}

/// Measures the cases in turns; ratios are told to the first.
fn compare(question: &str, rounds: usize, mut cases: Vec<Case<'_>>) {
    let template = template();
    for _ in 0..rounds {
        cases.iter_mut().for_each(|case| case.round(&template));
    }
    println!("\n{question}");
    let first = cases[0].median();
    for case in &cases {
        println!("| {} | {:.0} ns | {:.2} |", case.name, case.median(), case.median() / first);
    }
}

/// All events of a shape, one after the other.
fn all((sources, each): Shape) -> impl Iterator<Item = Event> {
    let template = template();
    (0..sources * each).map(move |number| event(&template, number % sources, number))
}

fn floor_of(shape: Shape) -> Floor {
    let mut floor = Floor::default();
    all(shape).for_each(|event| {
        floor.repeat(&event);
    });
    floor
}

fn correlators(shape: Shape, settings: &Settings) -> (Vec<Correlator>, u64) {
    let mut correlators: Vec<Correlator> = (0..shape.0).map(|_| Correlator::new(SECRET)).collect();
    let mut next_record = 0;
    for (number, mut event) in all(shape).enumerate() {
        correlators[number % shape.0].correlate(&mut event, 1, Now::at(START), settings, &mut next_record);
    }
    (correlators, next_record)
}

/// The number in the name of the event's node.
fn source_of(event: &Event) -> usize {
    event.source.host.as_str()["node-".len()..][..6].parse().unwrap()
}

/// Limits that no case here reaches.
fn roomy() -> shard::Settings {
    let room = NonZeroUsize::new(1 << 40).unwrap();
    let outbox =
        outbox::Settings { max_records: room, max_bytes: room, max_budgets: room, ..outbox::Settings::default() };
    shard::Settings { max_sources: room, max_tracked_keys: room, outbox }
}

/// A shard whose records all wait for an answer, so that every repeat coalesces.
fn waiting(shape: Shape) -> Shard {
    let (policy, now) = (Policy::default(), Now::at(START));
    let mut shard = Shard::new(SECRET, roomy(), 1);
    for event in all(shape) {
        shard.accept(event, 1, now, &policy).unwrap();
        while shard.next_write(now).is_some() {}
    }
    assert_eq!(shard.sizes().tracked_keys, 2 * shape.0 * shape.1);
    shard
}

/// A shard that owes nothing.
fn written(shape: Shape) -> Shard {
    let (policy, now) = (Policy::default(), Now::at(START - 3_600_000_000_000));
    let mut shard = Shard::new(SECRET, roomy(), 1);
    for event in all(shape) {
        shard.accept(event, 1, now, &policy).unwrap();
        deliver(&mut shard, now);
    }
    deliver(&mut shard, Now::at(START));
    assert_eq!(shard.sizes().records, 0);
    shard
}

fn deliver(shard: &mut Shard, now: Now) {
    while let Some(write) = shard.next_write(now) {
        let answer = match write.request {
            Request::Create { event, .. } => Answer::Stored(event),
            Request::Patch { patch, .. } => {
                let mut stored = Event { count: patch.count, ..Event::default() };
                stored.metadata.name = "written".into();
                Answer::Stored(Box::new(stored))
            }
            Request::Read { .. } => Answer::Missing,
        };
        shard.settle(write.record, answer, now);
    }
}

/// Question: what does a repeat cost with its patch, above the least that it can cost?
fn patched(shape: Shape, rounds: usize) {
    let mut floor = floor_of(shape);
    let cases = [Suppression::Defer, Suppression::Drop].map(|suppression| {
        let settings = Settings { suppression, qps: 1e9, burst_size: u32::MAX, ..Settings::default() };
        let (mut correlators, mut next_record) = correlators(shape, &settings);
        let mut json = Vec::new();
        move |events: Vec<Event>| {
            let decide = |mut event: Event| {
                let at = source_of(&event);
                let decision = correlators[at].correlate(&mut event, 1, Now::at(START), &settings, &mut next_record);
                json.clear();
                decision.patch(&event).unwrap().write_json(None, &mut json);
                black_box(&json);
                (decision, event)
            };
            events.into_iter().map(decide).collect::<Vec<_>>()
        }
    });
    let [defer, drop] = cases;
    let mut bare = waiting(shape);
    let policy = Policy::default();
    compare(
        &format!("a repeat, {} sources x {} events", shape.0, shape.1),
        rounds,
        vec![
            Case::new("floor", shape, |events| (events.iter().map(|event| floor.repeat(event)).sum::<usize>(), events)),
            Case::new("correlate and write the patch, `suppression: defer`", shape, defer),
            Case::new("correlate, pay and write the patch, `suppression: drop`", shape, drop),
            Case::new("Shard::accept, coalesced", shape, |events| {
                events.into_iter().filter_map(|event| bare.accept(event, 1, Now::at(START), &policy).ok()).count()
            }),
        ],
    );
}

/// Question: how much more does an occurrence cost where very many keys are tracked?
fn growth(small: Shape, large: Shape, rounds: usize) {
    let (few, many) = (format!("{} x {}", small.0, small.1), format!("{} x {}", large.0, large.1));
    let policy = Policy::default();
    let correlate = |shape: Shape| {
        let (mut correlators, mut next_record) = correlators(shape, &Settings::default());
        move |events: Vec<Event>| {
            let decide = |mut event: Event| {
                let at = source_of(&event);
                let settings = Settings::default();
                (correlators[at].correlate(&mut event, 1, Now::at(START), &settings, &mut next_record), event)
            };
            events.into_iter().map(decide).collect::<Vec<_>>()
        }
    };
    compare(
        &format!("correlate: {few}, then {many}"),
        rounds,
        vec![Case::new("small", small, correlate(small)), Case::new("large", large, correlate(large))],
    );
    let accept = |shape: Shape| {
        let (mut shard, policy) = (waiting(shape), &policy);
        move |events: Vec<Event>| {
            events.into_iter().filter_map(|event| shard.accept(event, 1, Now::at(START), policy).ok()).count()
        }
    };
    compare(
        &format!("Shard::accept, coalesced: {few}, then {many}"),
        rounds,
        vec![Case::new("small", small, accept(small)), Case::new("large", large, accept(large))],
    );
    let through = |shape: Shape| {
        let (mut shard, policy, mut at) = (written(shape), &policy, START);
        move |events: Vec<Event>| {
            for event in events {
                // Long enough for the coalescing interval; budgets have tokens for the rest of the bench.
                at += 20_000_000;
                shard.accept(event, 1, Now::at(at), policy).unwrap();
                deliver(&mut shard, Now::at(at));
            }
        }
    };
    compare(
        &format!("accept, patch, settle: {few}, then {many}"),
        rounds / 4,
        vec![Case::new("small", small, through(small)), Case::new("large", large, through(large))],
    );
}

/// Question: how much more do two threads get done than one, each with sources of its own?
fn threads(count: usize, sources: usize, occurrences: usize, rounds: usize) {
    let template = template();
    let policy = Policy::default();
    let shards = &Shards::new(NonZeroUsize::new(count).unwrap(), &roomy(), policy, Clock::system(), KeySecret(1, 2), 1);
    let work = |thread: usize| {
        // Made by the thread that frees them, as in the program.
        let next = |n: usize| event(&template, thread * sources + n % sources, thread * sources + n % sources);
        let events: Vec<Event> = (0..occurrences).map(next).collect();
        move || {
            for event in events {
                shards.accept(event, 1).unwrap();
            }
        }
    };
    (0..2).for_each(|thread| work(thread)());
    // All of it is on its way from here on: as while delivery keeps up.
    for index in 0..shards.count() {
        shards.with(index, |shard, now| while shard.next_write(now).is_some() {});
    }
    let mut taken = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for count in [1, 2] {
            let barrier = Barrier::new(count);
            let one = &|thread: usize| {
                let run = work(thread);
                barrier.wait();
                let (begin, waited) = (Instant::now(), runnable());
                run();
                begin.elapsed().saturating_sub(runnable() - waited)
            };
            let longest = thread::scope(|scope| {
                let threads: Vec<_> = (0..count).map(|thread| scope.spawn(move || one(thread))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
            });
            taken[count - 1].push(longest);
        }
    }
    let [one, two] = taken.map(|mut taken| {
        taken.sort_unstable();
        taken[taken.len() / 2].as_nanos() as f64 / occurrences as f64
    });
    println!(
        "\n{count} shards, {sources} sources a thread: {one:.0} ns alone, {two:.0} ns beside another thread: {:.2} times as much done",
        2.0 * one / two
    );
}

/// How long this thread has waited for a processor that others had: nothing that the program could do about.
fn runnable() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(schedstat.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn main() {
    // Without `--bench` (`cargo test --benches`) it is only tried out.
    if std::env::args().any(|argument| argument == "--bench") {
        patched((1, 2_000), 3_000);
        growth((1, 2_000), (100_000, 5), 3_000);
        [2, 8, 16].into_iter().for_each(|count| threads(count, 1_000, 50_000, 41));
    } else {
        patched((1, 20), 2);
        growth((1, 20), (20, 5), 4);
        threads(2, 10, 100, 1);
    }
}
