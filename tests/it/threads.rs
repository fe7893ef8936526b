//! Threads accept single events and batches while another writes: in every interleaving each occurrence is counted
//! once.
//!
//! The interleaving differs from run to run, but the checks hold for all of them.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use eventweir::clock::Clock;
use eventweir::correlator::{self, KeySecret};
use eventweir::event::Event;
use eventweir::outbox::{Answer, Request};
use eventweir::shard::{Settings, Shards};

use super::support::bench::policy;
use super::support::events::{START, event};

/// Settings with and without limits that are reached.
#[derive(Debug)]
struct Limits {
    shards: usize,
    records: usize,
    sources: usize,
    keys: usize,
}

fn some_event(random: &mut fastrand::Rng) -> Event {
    let [node, pod, message] = [random.u8(0..24), random.u8(0..30), random.u8(0..40)];
    event(&format!("node-{node}"), &format!("web-{pod}"), "BackOff", &format!("message {message}"))
}

/// Accepts single events and batches; returns how many were sent, and how many refused.
fn accept(shards: &Shards, seed: u64) -> (u64, u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut results = Vec::new();
    for _ in 0..10 {
        for _ in 0..100 {
            results.push(shards.accept(some_event(&mut random), 1));
        }
        let policy = shards.policy();
        for part in [64, 3, 64, 1, 17, 64] {
            let events = (0..part).map(|_| (some_event(&mut random), 1)).collect();
            results.extend(shards.accept_all(&policy, events, ""));
        }
    }
    (results.len() as u64, results.iter().filter(|result| result.is_err()).count() as u64)
}

/// Sends a few requests of each shard. The upstream soon loses each event, so that a patch finds none.
fn write(shards: &Shards) {
    for index in 0..shards.count() {
        let requests: Vec<_> = (0..20).map_while(|_| shards.with(index, |shard, now| shard.next_write(now))).collect();
        for write in requests {
            let answer = match write.request {
                Request::Create { event, .. } => Answer::Stored(event),
                Request::Patch { .. } | Request::Read { .. } | Request::Delete { .. } => Answer::Missing,
            };
            shards.settle(index, write.record, answer);
        }
        shards.look(index, |shard| assert!(shard.balance().is_exact()));
    }
}

#[test]
fn concurrent_threads_lose_nothing() {
    for limits in [
        Limits { shards: 1, records: 100_000, sources: 10_000, keys: 4096 },
        Limits { shards: 4, records: 300, sources: 6, keys: 5 },
        Limits { shards: 16, records: 50, sources: 20, keys: 3 },
    ] {
        let mut settings = Settings { max_sources: NonZeroUsize::new(limits.sources).unwrap(), ..Settings::default() };
        settings.outbox.max_records = NonZeroUsize::new(limits.records).unwrap();
        let correlator = correlator::Settings {
            lru_cache_size: NonZeroUsize::new(limits.keys).unwrap(),
            ..correlator::Settings::default()
        };
        let (count, clock) = (NonZeroUsize::new(limits.shards).unwrap(), Clock::manual(START));
        let shards = Shards::new(count, &settings, policy(correlator), clock.clone(), KeySecret(7, 9), 1);
        let (shards, ended) = (&shards, AtomicBool::new(false));
        let told = thread::scope(|scope| {
            let acceptors: Vec<_> = (0..3).map(|seed| scope.spawn(move || accept(shards, seed))).collect();
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    write(shards);
                    clock.advance(Duration::from_secs(1));
                    thread::yield_now();
                }
            });
            let told: Vec<_> = acceptors.into_iter().map(|acceptor| acceptor.join()).collect();
            ended.store(true, Ordering::Relaxed);
            told.into_iter().map(Result::unwrap).collect::<Vec<_>>()
        });
        while shards.owe() {
            write(shards);
            clock.advance(Duration::from_secs(300));
        }
        let (balance, sent, refused) =
            (shards.balance(), told.iter().map(|told| told.0).sum(), told.iter().map(|told| told.1).sum::<u64>());
        assert!(balance.is_exact(), "{limits:?}: {balance:?}");
        assert_eq!((balance.ledger.received(), balance.ledger.total_rejected()), (sent, refused), "{limits:?}");
        assert_eq!((balance.total_waiting(), balance.ledger.total_lost()), (0, 0), "{limits:?}");
        assert_eq!(balance.ledger.total_written(), sent - refused, "{limits:?}");
        assert!(refused == 0 || limits.records < 1000, "{limits:?}: {refused} of {sent} refused");
    }
}
