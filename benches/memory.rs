//! How many bytes does a tracked key cost, and an idle source? Counted by the allocator, tables' free room included, and beside
//! it the resident memory of the whole process; against the targets of 400 bytes a
//! tracked key, 2 kB an idle source and 400 MiB for a million keys (`docs/performance.md`). Prints a table. Every case has a
//! process of its own.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::cast_precision_loss,
    reason = "a benchmark: it prints, and input is known to be good"
)]

use std::alloc::System;
use std::num::NonZeroUsize;
use std::process::Command;

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

/// Resident memory of this process in MiB, where the system tells it.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0.0);
    kib / 1024.0
}

/// A body that is decoded anew for every event, so that no string is shared by accident.
fn event(body: &str, source: usize, object: usize, message: usize) -> Event {
    let body = body
        .replace("node-17", &format!("node-{source:06}"))
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

/// Sends and settles everything that may be sent.
fn deliver(shard: &mut Shard, now: Now) {
    while let Some(write) = shard.next_write(now) {
        let answer = match write.request {
            Request::Create { event: mut created, .. } => {
                created.metadata.resource_version = format_smolstr!("{}", 48_000_000 + write.record.0).into();
                Answer::Stored(created)
            }
            Request::Patch { .. } | Request::Read { .. } => Answer::Missing,
        };
        shard.settle(write.record, answer, now);
    }
}

/// How fast events come, and how fast the upstream takes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Upstream {
    /// One event every two seconds, written at once: the outbox never holds much.
    Prompt,
    /// Ten thousand events a second, written at once: every budget has paid and is not full.
    Busy,
    /// The same, but written only after everything has been accepted: the outbox holds all of it.
    Late,
}

/// Sources, objects of each, and messages about every object.
type Shape = (usize, usize, usize);

const CASES: [(Shape, Upstream); 11] = [
    ((100, 1_000, 1), Upstream::Prompt),
    ((100, 180, 9), Upstream::Prompt),
    ((10_000, 1, 1), Upstream::Prompt),
    ((1_000, 10, 1), Upstream::Prompt),
    ((100, 1_000, 1), Upstream::Late),
    ((10_000, 1, 1), Upstream::Late),
    // A million keys: every event is tracked under two.
    ((100_000, 5, 1), Upstream::Prompt),
    ((100_000, 5, 1), Upstream::Busy),
    ((4_000, 125, 1), Upstream::Prompt),
    ((4_000, 125, 1), Upstream::Busy),
    ((245, 2_041, 1), Upstream::Busy),
];

fn measure((sources, objects, messages): Shape, upstream: Upstream) {
    let body = include_str!("event.json");
    let (before, resident_before) = (held(), resident());
    let mut shard = shard();
    let policy = Policy::default();
    let mut at = START;
    for object in 0..objects {
        for source in 0..sources {
            for message in 0..messages {
                let event = event(body, source, source * objects + object, message);
                shard.accept(event, 1, Now::at(at), &policy).unwrap();
                at += if upstream == Upstream::Prompt { 2_000_000_000 } else { 100_000 };
                if upstream != Upstream::Late {
                    deliver(&mut shard, Now::at(at));
                }
            }
        }
    }
    let per = |bytes: usize, number: usize| bytes as f64 / number.max(1) as f64;
    let mut line = format!("| {sources} x {objects} x {messages} | {upstream:?} | ");
    if upstream == Upstream::Late {
        let records = shard.sizes().records;
        line += &format!("{:.0} B each of {records} records", per(held() - before, records));
    }
    deliver(&mut shard, Now::at(at));
    // The coalescing interval is over: records leave the outbox, what has been spent of budgets stays.
    deliver(&mut shard, Now::at(at + 10_000_000_000));
    let (settled, budgets) = (held() - before, shard.sizes().budgets);
    let resident_settled = resident() - resident_before;
    assert_eq!(shard.sizes().records, 0);
    // A day later every budget is full again.
    deliver(&mut shard, Now::at(at + 86_400_000_000_000));
    let (idle, keys) = (held() - before, shard.sizes().tracked_keys);
    assert_eq!(shard.sizes().budgets, 0);
    println!(
        "{line} | {keys} | {budgets} | {:.0} | {resident_settled:.0} | {:.0} | {:.0} |",
        per(settled, keys),
        per(idle, keys),
        per(idle, sources),
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(case) = arguments.iter().skip_while(|argument| *argument != "--case").nth(1) {
        let (shape, upstream) = CASES[case.parse::<usize>().unwrap()];
        return measure(shape, upstream);
    }
    println!(
        "size_of Event {}, Observation {}, Correlator {}",
        size_of::<Event>(),
        size_of::<Observation>(),
        size_of::<Correlator>()
    );
    println!(
        "| sources, objects, messages | upstream | waiting | keys | budgets | written, a key | resident, MiB | idle, a key | a source |"
    );
    // Without `--bench` (`cargo test --benches`) it is only tried out.
    if !arguments.iter().any(|argument| argument == "--bench") {
        for upstream in [Upstream::Prompt, Upstream::Busy, Upstream::Late] {
            measure((10, 5, 2), upstream);
        }
        return;
    }
    for case in 0..CASES.len() {
        let status = Command::new(&arguments[0]).args(["--case", &case.to_string()]).status().unwrap();
        assert!(status.success());
    }
}
