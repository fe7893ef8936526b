//! Faults of one record, object or namespace do not block others, and answers from elsewhere than the apiserver are not
//! final.

use std::time::Duration;

use eventweir::event::Event;

use super::support::bench::{Bench, Options};
use super::support::events::event;
use super::support::fake::{Fault, Seen};

fn of_namespace(namespace: &str, object: &str) -> Event {
    let mut event = event("node-1", object, "BackOff", "restarting");
    event.metadata.namespace = namespace.into();
    event.involved_object.namespace = namespace.into();
    event
}

/// Fault: each page was taken for a final answer, and all waiting occurrences were lost within seconds.
#[tokio::test(start_paused = true)]
async fn pages_of_a_load_balancer_lose_nothing() {
    for (page, shards) in [(404, 1), (403, 3), (302, 1), (400, 1), (409, 1), (200, 1), (503, 1)] {
        let mut bench = Bench::with(Options { shards: Some(shards), ..Options::default() });
        bench.fake.plan(move |_| Fault::Page(page));
        for object in 0..1_000 {
            bench.offer(event(&format!("node-{}", object % 7), &format!("web-{object}"), "BackOff", "restarting"));
        }
        bench.pass(Duration::from_secs(30)).await;
        let seen = bench.fake.seen();
        // The requests of the first round trip, and then probes.
        assert!(seen.len() < 60, "{page}: {} requests", seen.len());
        assert_eq!(
            (bench.balance().ledger.total_lost(), bench.metric("eventweir_delivery_window", None)),
            (0, 1.0),
            "{page}"
        );
        assert!(!bench.monitor.is_up());
        if page == 503 {
            // Longer than `outbox.maxAge`: another 5xx is the API server's, and an end to it.
            bench.pass(Duration::from_secs(3700)).await;
        }
        bench.fake.plan(|_| Fault::None);
        // A create without a clear answer is read after 65 s.
        bench.pass(Duration::from_secs(90)).await;
        assert_eq!((bench.fake.shown(), bench.metric("eventweir_delivery_window", None)), (1_000, 32.0), "{page}");
        bench.finish().await;
    }
}

/// While `plan` injects faults, an event of another namespace or object every two seconds is shown within two seconds.
async fn others_are_shown(
    mut bench: Bench,
    plan: fn(&Seen) -> Fault,
    troubled: fn(u64) -> Event,
    other: fn(u64) -> Event,
) {
    bench.fake.plan(plan);
    let mut number = 0;
    for round in 0..60 {
        // Many at first, then a few.
        for _ in 0..if round == 0 { 500 } else { round % 7 } {
            number += 1;
            bench.offer(troubled(number));
        }
        if round % 10 == 9 {
            // No other writes for a while.
            bench.pass(Duration::from_secs(60)).await;
        }
        bench.offer(other(round));
        bench.pass(Duration::from_secs(2)).await;
        assert_eq!(bench.fake.shown(), round + 1, "round {round}");
    }
    bench.fake.plan(|_| Fault::None);
    bench.finish().await;
}

/// Fault: a `Retry-After` stopped all writes for five minutes. Without one the records are retried every few
/// seconds.
#[tokio::test(start_paused = true)]
async fn a_deferred_or_failing_namespace_blocks_no_other() {
    let deferred: fn(&Seen) -> Fault =
        |seen| if seen.namespace == "sick" { Fault::Unavailable(300) } else { Fault::None };
    let failing: fn(&Seen) -> Fault = |seen| if seen.namespace == "sick" { Fault::Before(500) } else { Fault::None };
    for (shards, plan) in [(1, deferred), (3, deferred), (3, failing)] {
        let bench = Bench::with(Options { shards: Some(shards), ..Options::default() });
        let troubled = |number| of_namespace("sick", &format!("web-{number}"));
        let other = |number| of_namespace("well", &format!("web-{number}"));
        others_are_shown(bench, plan, troubled, other).await;
    }
}

/// Answers like `EventRateLimit`. Regression: the gate closed again and again.
#[tokio::test(start_paused = true)]
async fn a_rate_limited_object_blocks_no_other() {
    for after in [None, Some(300)] {
        let limited = |seen: &Seen| seen.name.starts_with("hot.");
        let plan: fn(&Seen) -> Fault = match after {
            None => |seen| if seen.name.starts_with("hot.") { Fault::TooMany(None) } else { Fault::None },
            Some(_) => |seen| if seen.name.starts_with("hot.") { Fault::TooMany(Some(300)) } else { Fault::None },
        };
        let bench = Bench::new();
        let fake = bench.fake.clone();
        let troubled = |number| event("node-1", "hot", &format!("Reason{}", number % 20), "m");
        let other = |number| of_namespace("shop", &format!("web-{number}"));
        others_are_shown(bench, plan, troubled, other).await;
        assert!(fake.seen().iter().any(limited));
    }
}

/// Three faults at once: a load balancer's pages for half a minute under a thousand records, a deferred namespace, and
/// a rate-limited object.
#[tokio::test(start_paused = true)]
async fn three_faults_at_once_block_no_other_namespace() {
    for shards in [1, 3] {
        let mut bench = Bench::with(Options { shards: Some(shards), writer: Some("a"), ..Options::default() });
        let plan = |others| {
            move |seen: &Seen| match (seen.namespace.as_str(), seen.name.split('.').next()) {
                ("sick", _) => Fault::Unavailable(300),
                (_, Some("hot")) => Fault::TooMany(None),
                _ => others,
            }
        };
        bench.fake.plan(plan(Fault::Page(404)));
        let mut number = 0;
        let mut trouble = |bench: &mut Bench, others: u64, troubled: u64| {
            for _ in 0..others {
                number += 1;
                bench.offer(of_namespace("well", &format!("web-{number}")));
            }
            for place in 0..troubled {
                number += 1;
                bench.offer(of_namespace("sick", &format!("web-{number}")));
                bench.offer(event("node-1", "hot", &format!("Reason{}", place % 20), "m"));
            }
        };
        trouble(&mut bench, 600, 200);
        bench.pass(Duration::from_secs(30)).await;
        assert_eq!((bench.fake.shown(), bench.balance().ledger.total_lost()), (0, 0));
        bench.fake.plan(plan(Fault::None));
        // A probe reaches the upstream within five seconds after it is back.
        bench.pass(Duration::from_secs(7)).await;
        let mut shown = 600;
        assert_eq!(bench.fake.shown(), shown, "{shards} shards");
        for round in 0..60 {
            trouble(&mut bench, 3, round % 4);
            shown += 3;
            bench.pass(Duration::from_secs(2)).await;
            assert_eq!(bench.fake.shown(), shown, "{shards} shards, round {round}");
        }
        // Of the others nothing is shown and nothing is lost.
        let balance = bench.balance();
        assert_eq!((balance.total_waiting(), balance.ledger.total_lost()), (2 * (200 + 15 * 6), 0));
        bench.fake.plan(|_| Fault::None);
        bench.finish().await;
    }
}
