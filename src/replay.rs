//! A file of raw events through the same core in simulated time: what would be written, deferred and lost. Pure.
//!
//! The upstream is an embedded store that answers at once; every timer of the outbox fires at its own instant between two
//! events. So an operator tunes on last night's storm before touching the cluster.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use crate::clock::{Mono, Now};
use crate::correlator::{KeySecret, Policy};
use crate::event::{ApiGroup, Event, validate};
use crate::ledger::Balance;
use crate::outbox::{Answer, DIGEST_REASON, Request};
use crate::shard::{self, Outcome, Shard};
use crate::upstream::store::{self, Store};

/// What an event is about and why: a line of the result.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Line {
    /// Namespace of the event.
    pub namespace: SmolStr,
    /// `Kind/name` of the involved object.
    pub object: SmolStr,
    /// The reason.
    pub reason: SmolStr,
}

/// What became of the occurrences of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// Occurrences in the file.
    pub sent: u64,
    /// Shown by the upstream in a record of their own object and reason.
    pub written: u64,
    /// Shown by the upstream in a digest of their object.
    pub folded: u64,
    /// Still waiting at the end.
    pub waiting: u64,
    /// Lost: dropped for want of a token, or invalid.
    pub lost: u64,
    /// Creates and patches.
    pub writes: u64,
    /// Occurrences that found no token at first.
    pub deferred: u64,
}

/// A simulated proxy and its upstream.
#[derive(Debug)]
pub struct Simulation {
    shard: Shard,
    policy: Policy,
    store: Store,
    /// Unix nanoseconds of the first event, where monotonic time begins.
    start: Option<i64>,
    now: i64,
    out_of_order: u64,
    // LIMIT: none but the file's own size: it is read by its operator, not sent by clients.
    fates: BTreeMap<Line, Fate>,
}

impl Line {
    /// The line of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let object = &event.involved_object;
        Self {
            namespace: event.metadata.namespace.clone(),
            object: smol_str::format_smolstr!("{}/{}", object.kind, object.name),
            reason: event.reason.clone(),
        }
    }
}

impl Fate {
    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sent: self.sent + other.sent,
            written: self.written + other.written,
            folded: self.folded + other.folded,
            waiting: self.waiting + other.waiting,
            lost: self.lost + other.lost,
            writes: self.writes + other.writes,
            deferred: self.deferred + other.deferred,
        }
    }
}

/// When an event happened by its own word: lastTimestamp, eventTime or firstTimestamp, as unix nanoseconds.
#[must_use]
pub fn time_of(event: &Event) -> Option<i64> {
    let seconds = |time: crate::event::Time| time.0.saturating_mul(1_000_000_000);
    event
        .last_timestamp
        .map(seconds)
        .or_else(|| event.event_time.map(|time| time.0.saturating_mul(1_000)))
        .or_else(|| event.first_timestamp.map(seconds))
}

impl Simulation {
    /// A fresh proxy with these settings, in front of an empty store.
    #[must_use]
    pub fn new(policy: Policy, shard: shard::Settings, store: store::Settings) -> Self {
        Self {
            // The keys are secret from nobody here, and equal runs shall be equal.
            shard: Shard::new(KeySecret(0, 0), shard, 0),
            policy,
            store: Store::new(store, 0),
            start: None,
            now: 0,
            out_of_order: 0,
            fates: BTreeMap::new(),
        }
    }

    /// Reports an event at the time it carries; one without a time, or out of order, happens now.
    pub fn report(&mut self, mut event: Event) {
        if let Some(at) = time_of(&event) {
            self.start.get_or_insert(at);
            self.out_of_order += u64::from(at < self.now);
            self.advance(at);
        }
        if event.metadata.namespace.is_empty() {
            event.metadata.namespace = SmolStr::new_static("default");
        }
        if event.metadata.name.is_empty() {
            event.metadata.name = crate::correlator::record_name(&event.involved_object.name, self.now());
        }
        event.metadata.resource_version = SmolStr::default();
        event.metadata.uid = SmolStr::default();
        let (now, line) = (self.now(), Line::of(&event));
        let fate = self.fates.entry(line).or_default();
        fate.sent += 1;
        if validate::create(ApiGroup::Core, &event).is_err() {
            fate.lost += 1;
            return;
        }
        match self.shard.accept(event, 1, now, &self.policy).map(|accepted| accepted.outcome) {
            Err(shard::Full) | Ok(Outcome::Dropped) => fate.lost += 1,
            Ok(Outcome::Deferred) => fate.deferred += 1,
            Ok(Outcome::Created | Outcome::Counted | Outcome::Combined) => {}
        }
        self.deliver();
    }

    /// Lets time pass until `until` (unix nanoseconds).
    pub fn advance(&mut self, until: i64) {
        while let Some(at) = self.shard.next_wakeup(self.now().mono) {
            let at = at.0.saturating_add(self.start.unwrap_or(0));
            if at > until {
                break;
            }
            self.now = self.now.max(at);
            self.deliver();
        }
        self.now = self.now.max(until);
    }

    /// Unix nanoseconds of the simulated present.
    #[must_use]
    pub const fn time(&self) -> i64 {
        self.now
    }

    /// Events that carried an older time than one before them.
    #[must_use]
    pub const fn out_of_order(&self) -> u64 {
        self.out_of_order
    }

    /// The ledger.
    #[must_use]
    pub fn balance(&self) -> Balance {
        self.shard.balance()
    }

    /// What became of everything so far, by object and reason.
    #[must_use]
    pub fn fates(&self) -> BTreeMap<Line, Fate> {
        let mut fates = self.fates.clone();
        for (event, pending) in self.shard.pending() {
            fates.entry(Line::of(event)).or_default().waiting += pending;
        }
        for (line, fate) in &mut fates {
            // Occurrences leave a line only by folding into the digest of its object.
            if line.reason != DIGEST_REASON {
                fate.folded = fate.sent.saturating_sub(fate.written + fate.waiting + fate.lost);
            }
        }
        fates
    }

    fn now(&self) -> Now {
        Now { wall: self.now, mono: Mono(self.now - self.start.unwrap_or(self.now)) }
    }

    fn deliver(&mut self) {
        let now = self.now();
        while let Some(write) = self.shard.next_write(now) {
            let answer = crate::upstream::answer_from_store(&mut self.store, &write.request, now);
            let stored = match &answer {
                Answer::Stored(event) if !matches!(write.request, Request::Read { .. }) => Some(Line::of(event)),
                _ => None,
            };
            let settlement = self.shard.settle(write.record, answer, now);
            if let Some(line) = stored {
                let fate = self.fates.entry(line).or_default();
                fate.writes += 1;
                fate.written += settlement.written.total();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Time;

    fn event(reason: &str, second: i64) -> Event {
        let mut event = Event {
            reason: reason.into(),
            event_type: "Normal".into(),
            message: format!("at {second}").into(),
            last_timestamp: Some(Time(1_772_352_000 + second)),
            count: 1,
            ..Event::default()
        };
        event.metadata.namespace = "default".into();
        event.involved_object.kind = "CronJob".into();
        event.involved_object.name = "hello".into();
        event.involved_object.namespace = "default".into();
        event.source.component = "cronjob-controller".into();
        event
    }

    #[test]
    fn every_occurrence_of_a_replay_has_a_fate() {
        let mut simulation = Simulation::new(Policy::default(), shard::Settings::default(), store::Settings::default());
        for minute in 0..60 {
            for (offset, reason) in ["SuccessfulCreate", "SawCompletedJob", "SuccessfulDelete"].iter().enumerate() {
                simulation.report(event(reason, minute * 60 + i64::try_from(offset).unwrap()));
            }
        }
        for reason in 0..60 {
            simulation.report(event(&format!("Reason{reason}"), 3600));
        }
        let balance = simulation.balance();
        assert!(balance.is_exact());
        let fates = simulation.fates();
        let total = fates.values().fold(Fate::default(), |sum, fate| sum.plus(*fate));
        assert_eq!(total.sent, 240);
        assert_eq!(total.waiting, balance.total_waiting());
        assert_eq!(total.written, balance.ledger.total_written());
        let digest = fates.iter().find(|(line, _)| line.reason == DIGEST_REASON).map(|(_, fate)| *fate).unwrap();
        assert_eq!(total.folded, digest.waiting + digest.written);
        assert!(total.folded > 0);
    }
}
