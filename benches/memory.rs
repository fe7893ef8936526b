//! How many bytes does a tracked key cost, and an idle source? Counted by the allocator, tables' free room included, against
//! the targets of 400 bytes a tracked key and 2 kB an idle source (`docs/performance.md`). Prints a table.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark: it prints, and input is known to be good"
)]

use std::alloc::System;
use std::num::NonZeroUsize;

use eventweir::clock::Now;
use eventweir::correlator::{Correlator, KeySecret, Observation, Policy};
use eventweir::event::{Event, core_v1};
use eventweir::outbox::{self, Answer, Request};
use eventweir::shard::{self, Shard};
use smol_str::format_smolstr;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const START: i64 = 1_772_352_000_000_000_000;

/// Bytes on the heap now.
fn held() -> usize {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}

/// A body that is decoded anew for every event, so that no string is shared by accident.
fn event(body: &str, source: usize, object: usize, message: usize) -> Event {
    let body = body
        .replace("node-17", &format!("node-{source:05}"))
        .replace("x2x7k", &format!("{object:07}"))
        .replace("2a3b4c5d6e7f", &format!("{object:012}"))
        .replace("Back-off", &format!("Back-off {message}"));
    core_v1::from_json(body.as_bytes()).unwrap()
}

fn shard() -> Shard {
    let room = NonZeroUsize::new(1 << 40).unwrap();
    let outbox =
        outbox::Settings { max_records: room, max_bytes: room, max_budgets: room, ..outbox::Settings::default() };
    Shard::new(KeySecret(1, 2), shard::Settings { max_sources: room, max_tracked_keys: room, outbox }, 1)
}

/// Sends and settles everything that may be sent, and returns how many requests that were.
fn deliver(shard: &mut Shard, now: Now) -> usize {
    let mut requests = 0;
    while let Some(write) = shard.next_write(now) {
        let answer = match write.request {
            Request::Create { event: mut created, .. } => {
                created.metadata.resource_version = format_smolstr!("{}", 48_000_000 + requests);
                Answer::Stored(created)
            }
            Request::Patch { .. } | Request::Read { .. } => Answer::Missing,
        };
        shard.settle(write.record, answer, now);
        requests += 1;
    }
    requests
}

/// How fast the upstream takes what is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upstream {
    /// At once: the outbox never holds much.
    Prompt,
    /// Only after everything has been accepted: the outbox holds all of it.
    Late,
}

/// `sources` sources with `objects` objects each and `messages` events about every object.
fn measure(name: &str, (sources, objects, messages): (usize, usize, usize), upstream: Upstream) {
    let body = include_str!("event.json");
    let mut shard = shard();
    let policy = Policy::default();
    let before = held();
    let mut at = START;
    for source in 0..sources {
        for object in 0..objects {
            for message in 0..messages {
                let event = event(body, source, source * objects + object, message);
                shard.accept(event, 1, Now::at(at), &policy).unwrap();
                if upstream == Upstream::Prompt {
                    at += 2_000_000_000;
                    deliver(&mut shard, Now::at(at));
                }
            }
        }
    }
    let per = |bytes: usize, number: usize| bytes as f64 / number.max(1) as f64;
    if upstream == Upstream::Late {
        let (waiting, records) = (held() - before, shard.sizes().records);
        println!("{name}: waiting, {:.0} bytes for each of {records} records", per(waiting, records));
    }
    deliver(&mut shard, Now::at(at));
    // The coalescing interval is over: records leave the outbox, what has been spent of budgets stays.
    deliver(&mut shard, Now::at(at + 10_000_000_000));
    let (settled, budgets) = (held() - before, shard.sizes().budgets);
    assert_eq!(shard.sizes().records, 0);
    // A day later every budget is full again.
    deliver(&mut shard, Now::at(at + 86_400_000_000_000));
    let (idle, keys) = (held() - before, shard.sizes().tracked_keys);
    assert_eq!(shard.sizes().budgets, 0);
    println!(
        "{name}, {upstream:?}: {keys} keys; settled with {budgets} budgets {:.0} a key; idle {:.0} a key, {:.0} a source",
        per(settled, keys),
        per(idle, keys),
        per(idle, sources),
    );
}

fn main() {
    println!(
        "size_of Event {}, Observation {}, Correlator {}",
        size_of::<Event>(),
        size_of::<Observation>(),
        size_of::<Correlator>()
    );
    for upstream in [Upstream::Prompt, Upstream::Late] {
        measure("100 sources, 1,000 objects each", (100, 1_000, 1), upstream);
        measure("100 sources, 180 objects each, nine messages an object", (100, 180, 9), upstream);
        measure("10,000 sources, one event each", (10_000, 1, 1), upstream);
        measure("1,000 sources, ten objects each", (1_000, 10, 1), upstream);
    }
}
