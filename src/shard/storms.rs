//! Storm records, one per group. The first shard holds all of them. Records that fold in another shard are handed over
//! to it under the locks of both.

use std::collections::VecDeque;
use std::time::Duration;

use super::explain::ELSEWHERE;
use super::view::waits_for;
use super::{Shard, Shards};
use crate::clock::{Mono, Now};
use crate::correlator::RecordId;
use crate::event::Event;
use crate::explain::{StormState, StormStates};
use crate::outbox::{STORM_MARK, StormNews};

/// The shard with the storm records.
pub(super) const HOME: usize = 0;

/// LIMIT: lost storm records that `explain` knows; the oldest is forgotten.
const LOST_STORMS: usize = 1000;

/// Totals of all storms, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Storms {
    /// Groups with a storm record.
    pub groups: usize,
    /// How long the oldest record that the upstream has never shown has waited for its group.
    pub oldest: Duration,
    /// Writes that the ceiling allows now; `None` without a ceiling.
    pub tokens: Option<u32>,
}

/// Storm records that were lost lately, for `explain`.
#[derive(Debug, Default)]
pub(super) struct LostStorms {
    /// How many there were; in the other shards, how many of those are noted at the facts.
    number: u64,
    // LIMIT: `LOST_STORMS`; empty in the other shards.
    newest: VecDeque<(RecordId, StormState)>,
}

/// Returns the states of storm records under the numbers that `explain` has for them.
fn elsewhere(states: impl IntoIterator<Item = (RecordId, StormState)>) -> StormStates {
    states.into_iter().map(|(id, state)| (RecordId(id.0 ^ ELSEWHERE), state)).collect()
}

pub(super) fn is_storm(event: &Event) -> bool {
    event.metadata.rare.as_deref().is_some_and(|rare| rare.annotations.contains_key(STORM_MARK))
}

impl Shard {
    /// Returns the states of the storm records here.
    pub fn storm_states(&self) -> StormStates {
        let live = self.outbox.digests().map(|id| {
            let view = self.outbox.view(id).filter(|view| view.waiting > 0);
            let why = view.map_or("group", |view| waits_for(&view));
            (id, StormState { settled: self.outbox.reach(id).settled, why, lost: None })
        });
        let lost = self.lost_storms.newest.iter().copied();
        elsewhere(lost.chain(live))
    }

    /// Notes that a storm record has lost what it had not shown, also at the facts here.
    pub(super) fn note_lost_storm(&mut self, id: RecordId, settled: u64, why: &'static str) {
        let LostStorms { number, newest } = &mut self.lost_storms;
        *number += 1;
        if newest.len() == LOST_STORMS {
            newest.pop_front();
        }
        let lost = (id, StormState { settled, why, lost: Some(why) });
        newest.push_back(lost);
        self.explain.lose_storms(&elsewhere([lost]));
    }

    /// Notes the losses of storm records at the facts here, before these fold into other records.
    fn note_losses_of(&mut self, home: &LostStorms) {
        let known = std::mem::replace(&mut self.lost_storms.number, home.number);
        let number = usize::try_from(home.number - known).unwrap_or(usize::MAX);
        if number > 0 {
            self.explain.lose_storms(&elsewhere(home.newest.iter().rev().take(number).copied()));
        }
    }

    /// Hands records that fold into storm records over to `home`.
    pub fn hand_over(&mut self, home: &mut Self, now: Now) {
        self.note_losses_of(&home.lost_storms);
        for leaving in self.outbox.take_leaving() {
            let occurrences = i64::try_from(leaving.occurrences()).unwrap_or(i64::MAX);
            let into = home.outbox.take_in(&leaving, now);
            self.ledger.hand_over(occurrences);
            home.ledger.hand_over(-occurrences);
            self.outbox.has_left(leaving, into, now);
        }
        self.forget_folded(now);
    }

    /// Returns events that are known to have folded into storm records.
    pub fn folded(&self, now: Mono) -> impl Iterator<Item = &Event> {
        self.outbox.folded(now)
    }
}

impl Shards {
    /// Returns the totals of all storms.
    pub fn storms(&self) -> Storms {
        let now = self.0.clock.now().mono;
        let oldest =
            (0..self.count()).filter_map(|index| self.look(index, |shard| shard.outbox.oldest_unshown())).min();
        let oldest = oldest.map(|since| now.since(since)).unwrap_or_default();
        self.look(HOME, |home| Storms { groups: home.outbox.storms(), oldest, tokens: home.outbox.ceiling_tokens(now) })
    }

    /// Returns the states of all storm records.
    pub(super) fn storm_states(&self) -> StormStates {
        self.look(HOME, Shard::storm_states)
    }

    /// Returns storms that have begun or ended since the last call.
    #[must_use]
    pub fn take_storm_news(&self) -> Vec<StormNews> {
        self.0.shards[HOME].lock().outbox.take_storm_news()
    }

    /// Returns at most `max` folded events that `is_asked` selects. Searches all known ones.
    pub fn folded(&self, max: usize, is_asked: impl Fn(&Event) -> bool) -> Vec<Event> {
        let now = self.0.clock.now().mono;
        let of_shard = |index| {
            let copy = |shard: &Shard| shard.folded(now).filter(|event| is_asked(event)).take(max).cloned().collect();
            self.look::<Vec<Event>>(index, copy)
        };
        (0..self.count()).flat_map(of_shard).take(max).collect()
    }

    /// Returns the folded event of the same group and object, if one is known.
    pub fn folded_like(&self, event: &Event) -> Option<Event> {
        let now = self.0.clock.now().mono;
        self.look(self.shard_of(event), |shard| shard.outbox.folded_like(event, now).cloned())
    }

    /// Whether a new record of this event would fold into a storm record.
    pub fn would_fold(&self, event: &Event) -> bool {
        self.look(self.shard_of(event), |shard| shard.outbox.would_fold(event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::correlator::{KeySecret, Policy, Rate, Settings};
    use crate::shard;

    /// Fault: each write of it was tracked under a key of its own, until there was no room for what repeats.
    #[test]
    fn a_storm_record_of_another_process_is_not_tracked() {
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
        for version in 5..15_i32 {
            let mut storm =
                Event { count: version, message: format!("storm: {version} events").into(), ..Event::default() };
            (storm.metadata.name, storm.metadata.resource_version) = ("shop.1".into(), version.to_string().into());
            storm.metadata.rare.get_or_insert_default().annotations.insert(STORM_MARK.into(), "Pod".into());
            shard.apply_watch(&storm, Now::at(1_000_000_000), &Policy::default());
        }
        assert_eq!(shard.sizes().tracked_keys, 0);
    }

    /// Fault: one more event of a folded object, shortly before the storm's end, ended the next storm before it began.
    #[test]
    fn a_single_event_at_the_end_of_a_storm_begins_no_other_one() {
        let clock = Clock::manual(1_000_000_000);
        let group = Some(Rate { qps: 1.0, burst: 1 });
        let policy = Policy::from(Settings { group, ..Settings::default() });
        let shards = Shards::of(2, policy, clock.clone());
        let event = |host: usize, object: usize| {
            let mut event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
            event.metadata.namespace = "shop".into();
            (event.source.component, event.source.host) = ("kubelet".into(), format!("node-{host}").into());
            event.involved_object.name = format!("web-{object}").into();
            event
        };
        let host = (0..).find(|host| shards.shard_of(&event(*host, 0)) != HOME).unwrap();
        let write = || {
            let all = [1, HOME].map(|index| shards.with(index, |shard, now| shard.write_all(now)));
            let (other, home) = (all[0].iter().map(|event| event.count).collect::<Vec<_>>(), all[1].len());
            (other, home, shards.take_storm_news().iter().map(|news| news.begins).collect::<Vec<_>>())
        };
        for object in 0..4 {
            shards.accept(event(host, object), 1).unwrap();
        }
        assert_eq!(write(), (vec![1], 0, vec![]));
        clock.advance(Duration::from_secs(10));
        assert_eq!(write(), (vec![], 1, vec![true]));
        clock.advance(Duration::from_secs(595));
        shards.accept(event(host, 3), 1).unwrap();
        assert_eq!(write(), (vec![], 0, vec![]), "the storm lasts");
        clock.advance(Duration::from_secs(6));
        shards.with(HOME, |home, now| assert_eq!(home.next_write(now), None));
        clock.advance(Duration::from_secs(4));
        assert_eq!(write(), (vec![1], 0, vec![false]));
    }
}
