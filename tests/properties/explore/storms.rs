//! Scopes of storm records: records of one group that fold within a shard, and from one shard into another.

use std::num::NonZeroUsize;
use std::time::Duration;

use eventweir::correlator::{Rate, Settings};
use eventweir::outbox::{self, GroupSettings};
use eventweir::shard;

use super::super::cluster::plain_event;
use super::{Scope, explore, scope};

/// Records of one group with a single token that fold soon.
fn storm(name: &'static str) -> Scope {
    let groups = GroupSettings { fold_after: Duration::from_secs(1), ..GroupSettings::default() };
    let outbox = outbox::Settings { groups, ..outbox::Settings::default() };
    let script = (0..4).map(|number| (0, plain_event(number, "BackOff", &number.to_string()))).collect();
    Scope {
        settings: Settings { group: Some(Rate { qps: 0.05, burst: 1 }), ..Settings::default() },
        limits: shard::Settings { outbox, ..shard::Settings::default() },
        ticks: 2,
        depth: 8,
        ..scope(name, script)
    }
}

#[test]
fn a_storm_record_whose_writes_fail() {
    explore(&Scope { faults: 2, labels: true, ..storm("storm") });
}

#[test]
fn a_storm_record_across_a_crash() {
    explore(&Scope { crashes: true, lists: true, ..storm("storm, crash") });
}

#[test]
fn a_storm_record_across_a_crash_before_the_commit() {
    explore(&Scope { crashes: true, commits_at_once: false, ..storm("storm, crash before the commit") });
}

#[test]
fn a_storm_record_in_a_drain() {
    explore(&Scope { drains: true, ..storm("storm, drain") });
}

/// As [`storm`] with two shards: either shard's record gets the token, and the storm record is in the first shard.
fn storm_of_two_shards(name: &'static str, order: [u8; 4]) -> Scope {
    let of_shard = |(number, host): (usize, u8)| {
        let mut event = plain_event(number, "BackOff", &number.to_string());
        event.source.host = format!("node-{host}").into();
        (0, event)
    };
    let script = order.into_iter().enumerate().map(of_shard).collect();
    Scope { shards: 2, script, depth: 7, ..storm(name) }
}

const ORDERS: [[u8; 4]; 2] = [[0, 1, 1, 0], [1, 0, 1, 1]];

#[test]
fn a_storm_record_of_two_shards_whose_writes_fail() {
    ORDERS.iter().for_each(|order| explore(&storm_of_two_shards("storm of two shards", *order)));
}

#[test]
fn a_storm_record_of_two_shards_across_a_crash() {
    for (order, commits_at_once) in [(ORDERS[0], true), (ORDERS[1], true), (ORDERS[0], false)] {
        let storm = storm_of_two_shards("storm of two shards, crash", order);
        explore(&Scope { crashes: true, commits_at_once, ..storm });
    }
}

#[test]
fn a_storm_record_of_two_shards_in_a_drain() {
    for order in ORDERS {
        explore(&Scope { drains: true, ..storm_of_two_shards("storm of two shards, drain", order) });
    }
}

#[test]
fn a_storm_record_of_two_shards_of_sources_that_are_evicted() {
    // Two sources of one shard, which has room for one.
    for order in [[1, 3, 1, 0], [3, 1, 0, 3]] {
        let mut scope = storm_of_two_shards("storm of two shards, evicted", order);
        scope.limits.max_sources = const { NonZeroUsize::new(1).unwrap() };
        explore(&scope);
    }
}
