//! Storm records, of which each group has one. The first shard has them all; what folds in another shard is handed over to it
//! under the locks of both.

use std::time::Duration;

use super::{Shard, Shards};
use crate::clock::{Mono, Now};
use crate::event::Event;
use crate::outbox::{STORM_MARK, StormNews};

/// The shard with the storm records.
pub(super) const HOME: usize = 0;

/// Storms as a whole; for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Storms {
    /// Groups with a storm record.
    pub groups: usize,
    /// How long the oldest record has waited for its group that the upstream has never shown.
    pub oldest: Duration,
    /// Writes that the ceiling allows now; `None` without one.
    pub tokens: Option<u32>,
}

/// Whether an event is a storm record.
pub(super) fn is_storm(event: &Event) -> bool {
    event.metadata.rare.as_deref().is_some_and(|rare| rare.annotations.contains_key(STORM_MARK))
}

impl Shard {
    /// From now on storm records are another shard's; see [`hand_over`](Self::hand_over).
    pub fn fold_elsewhere(&mut self) {
        self.outbox.fold_elsewhere();
    }

    /// Hands over to `home` what folds into storm records. Returns whether there was something.
    pub fn hand_over(&mut self, home: &mut Self, now: Now) -> bool {
        let all = self.outbox.take_leaving();
        let is_something = !all.is_empty();
        for leaving in all {
            let occurrences = i64::try_from(leaving.occurrences()).unwrap_or(i64::MAX);
            let into = home.outbox.take_in(&leaving, now);
            self.ledger.hand_over(occurrences);
            home.ledger.hand_over(-occurrences);
            self.outbox.has_left(leaving, into, now);
        }
        self.forget_folded();
        is_something
    }

    /// Events that have folded into storm records, as far as they are known.
    pub fn folded(&self, now: Mono) -> impl Iterator<Item = &Event> {
        self.outbox.folded(now)
    }

    /// Whether something is to be handed over.
    pub(super) const fn is_leaving(&self) -> bool {
        self.outbox.is_leaving()
    }
}

impl Shards {
    /// Storms as a whole.
    #[must_use]
    pub fn storms(&self) -> Storms {
        let now = self.0.clock.now().mono;
        let oldest =
            (0..self.count()).filter_map(|index| self.look(index, |shard| shard.outbox.oldest_unshown())).min();
        let oldest = oldest.map(|since| now.since(since)).unwrap_or_default();
        self.look(HOME, |home| Storms { groups: home.outbox.storms(), oldest, tokens: home.outbox.ceiling_tokens(now) })
    }

    /// Storms that have begun or ended since the last call.
    #[must_use]
    pub fn take_storm_news(&self) -> Vec<StormNews> {
        self.0.shards[HOME].lock().outbox.take_storm_news()
    }

    /// At most `max` folded events that `is_asked` selects. Looks at all that are known.
    #[must_use]
    pub fn folded(&self, max: usize, is_asked: impl Fn(&Event) -> bool) -> Vec<Event> {
        let now = self.0.clock.now().mono;
        let of_shard = |index| {
            let copy = |shard: &Shard| shard.folded(now).filter(|event| is_asked(event)).take(max).cloned().collect();
            self.look::<Vec<Event>>(index, copy)
        };
        (0..self.count()).flat_map(of_shard).take(max).collect()
    }

    /// The event of the same group and object that has folded, if one is known.
    #[must_use]
    pub fn folded_like(&self, event: &Event) -> Option<Event> {
        let now = self.0.clock.now().mono;
        self.look(self.shard_of(event), |shard| shard.outbox.folded_like(event, now).cloned())
    }
}
