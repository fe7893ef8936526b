//! What an occurrence allocates in the core. A repeat that folds into a record which already waits: nothing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::alloc::System;

use eventweir::clock::Now;
use eventweir::correlator::{KeySecret, Policy};
use eventweir::event::{Event, core_v1};
use eventweir::outbox::{Answer, Request};
use eventweir::shard::{Outcome, Settings, Shard};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const START: i64 = 1_772_352_000_000_000_000;

/// Decoded anew each time, so that no string is shared.
fn event(object: usize, message: &str) -> Event {
    let body = include_str!("../benches/event.json")
        .replace("x2x7k", &format!("{object:07}"))
        .replace("Back-off", message)
        .replace(r#""creationTimestamp":null"#, r#""annotations":{"a-long-annotation.example/of-the-client":"b"}"#);
    core_v1::from_json(body.as_bytes()).unwrap()
}

struct Counted {
    shard: Shard,
    policy: Policy,
}

impl Counted {
    /// Accepts an event and returns what became of it, and how many allocations that took, growth of tables included.
    fn accept(&mut self, event: Event, at: i64) -> (Outcome, usize) {
        let region = Region::new(ALLOCATOR);
        let accepted = self.shard.accept(event, 1, Now::at(at), &self.policy).unwrap();
        let change = region.change();
        (accepted.outcome, change.allocations + change.reallocations)
    }
}

/// No test runner (`harness = false`): the counter is the whole process's, and a runner has a thread that allocates, too.
fn main() {
    let shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
    let mut counted = Counted { shard, policy: Policy::default() };

    // Waiting for its turn, on its way, cooling down after it was written, and waiting in this for the next write.
    let (outcome, new) = counted.accept(event(1, "Back-off"), START);
    assert_eq!(outcome, Outcome::Created);
    assert_eq!(counted.accept(event(1, "Back-off"), START), (Outcome::Counted, 0));
    let write = counted.shard.next_write(Now::at(START)).unwrap();
    assert_eq!(counted.accept(event(1, "Back-off"), START), (Outcome::Counted, 0));
    let Request::Create { event: created, .. } = write.request else { unreachable!("nothing was stored") };
    counted.shard.settle(write.record, Answer::Stored(created), Now::at(START));
    for _ in 0..1_000 {
        assert_eq!(counted.accept(event(1, "Back-off"), START + 1), (Outcome::Counted, 0));
    }
    // Its budget has no token any more.
    for second in 1..30 {
        counted.accept(event(1, "Back-off"), START + second * 2_000_000_000);
        while let Some(write) = counted.shard.next_write(Now::at(START + second * 2_000_000_000)) {
            let stored = Answer::Stored(Box::new(event(1, "Back-off")));
            counted.shard.settle(write.record, stored, Now::at(START + second * 2_000_000_000));
        }
    }
    assert_eq!(counted.accept(event(1, "Back-off"), START + 60_000_000_000), (Outcome::Deferred, 0));

    // The others allocate what they keep.
    let mut others = Vec::new();
    for number in 0..12 {
        others.push(counted.accept(event(2, &format!("Try {number:02}")), START));
    }
    let (first, combined) = (others[1], others[11]);
    assert_eq!((first.0, combined.0), (Outcome::Created, Outcome::Combined));
    assert!(
        new <= 20 && first.1 <= 8 && combined.1 <= 8,
        "new {new}, another message {first:?}, combined {combined:?}"
    );
}
