//! Occurrences that come together are accepted together.
//!
//! Nobody waits for a shard while there is other work: those whose shard is locked are left until more have come, or none will.

#[cfg(test)]
mod tests;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::prepared::Prepared;
use super::{Accepted, Full, Shard, Shards};
use crate::correlator::Policy;
use crate::event::LentEvent;

/// LIMIT: occurrences that are accepted under one lock, for which all others have to wait.
const UNDER_ONE_LOCK: usize = 32;

/// LIMIT: occurrences after which no further shard is locked for the same turn. The shards of a turn are locked from its first fetch on,
/// so more of them would have others wait; and the processor has no more places on their way than those of a few.
const TURN: usize = 16;

/// How many come at a time at most, as a rule; there may be more.
const USUAL: usize = 64;

/// LIMIT: occurrences that are left for later because their shard was locked; with more, one waits for it.
const LEFT: usize = 64;

/// One of several: the shard of its source, and its place among them.
type Member = (usize, usize);

/// Something of each member.
type Several<T> = SmallVec<[T; USUAL]>;

/// Something of each member of a turn, or of each of its shards.
type Few<T> = SmallVec<[T; TURN]>;

/// Members of one shard, locked.
type Locked<'s, 'm> = (MutexGuard<'s, Shard>, &'m [Member]);

/// Occurrences that come together: some, and then some more, until there are no more.
#[derive(Debug)]
pub struct Together<'t, 'e> {
    shards: &'t Shards,
    policy: &'t Policy,
    /// What became of each, in their order.
    results: Vec<Result<Accepted, Full>>,
    /// Those whose shard was locked, in their order. LIMIT: `LEFT`, and those that come at a time.
    left: Vec<Left<'t, 'e>>,
}

/// An occurrence that is not accepted yet.
#[derive(Debug)]
struct Left<'t, 'e> {
    shard: usize,
    /// Its place among all results.
    place: usize,
    prepared: Prepared<'t>,
    event: LentEvent<'e>,
}

/// A way to lock a shard, or not to.
trait TryLock<'t>: Fn(&'t Mutex<Shard>) -> Option<MutexGuard<'t, Shard>> {}

impl<'t, F: Fn(&'t Mutex<Shard>) -> Option<MutexGuard<'t, Shard>>> TryLock<'t> for F {}

/// Some occurrences, while they are accepted.
struct Arrivals<'s, 't, 'e> {
    prepared: Several<Prepared<'t>>,
    events: &'s mut [LentEvent<'e>],
    /// The place of the first among all results.
    first: usize,
}

impl Shards {
    /// Several occurrences, under these rules.
    #[must_use]
    pub const fn together<'t, 'e>(&'t self, policy: &'t Policy) -> Together<'t, 'e> {
        Together { shards: self, policy, results: Vec::new(), left: Vec::new() }
    }
}

impl<'t, 'e> Together<'t, 'e> {
    /// Accepts one occurrence of each event, as [`Shards::accept`] would, those of one source in their order. Those whose shard somebody
    /// has locked are accepted with the next that come, or in the [end](Self::finish). What is left in `events` are no events any more, and
    /// for the caller to free.
    ///
    /// A shard is locked once for all that are its own, so many at a time that others do not wait long.
    pub fn accept(&mut self, events: &mut [LentEvent<'e>]) {
        self.accept_by(events, Mutex::try_lock);
    }

    fn accept_by(&mut self, events: &mut [LentEvent<'e>], try_lock: impl TryLock<'t>) {
        self.accept_left(&try_lock);
        let Self { shards, policy, ref mut results, .. } = *self;
        let first = results.len();
        results.resize(first + events.len(), Err(Full));
        let prepared = events.iter_mut().map(|event| Prepared::new(shards.0.secret, event, policy)).collect();
        self.accept_free(&mut Arrivals { prepared, events, first }, try_lock);
        if self.left.len() > LEFT {
            self.accept_left(|shard| Some(shard.lock()));
        }
    }

    /// Accepts those that are left, and returns what became of all, in their order.
    #[must_use]
    pub fn finish(mut self) -> Vec<Result<Accepted, Full>> {
        self.accept_left(|shard| Some(shard.lock()));
        if self.results.iter().flatten().any(|accepted| accepted.wakes_delivery) {
            self.shards.0.wake.notify_one();
        }
        self.results
    }

    /// Accepts those that were left, where their shard can be locked now.
    fn accept_left(&mut self, lock: impl TryLock<'t>) {
        if self.left.is_empty() {
            return;
        }
        let mut left = std::mem::take(&mut self.left);
        // Stable: those of one shard stay in their order.
        left.sort_by_key(|left| left.shard);
        for own in left.chunk_by_mut(|one, next| one.shard == next.shard).flat_map(|own| own.chunks_mut(UNDER_ONE_LOCK))
        {
            let shard = own.first().map_or(0, |left| left.shard);
            match lock(&self.shards.0.shards[shard]).filter(|_| !self.leaves(shard)) {
                None => self.left.extend(own.iter_mut().map(Left::take)),
                Some(mut shard) => {
                    let now = self.shards.0.clock.now();
                    for Left { place, prepared, event, .. } in own {
                        self.results[*place] = shard.accept_prepared(prepared, event, 1, now);
                    }
                    self.shards.note_changes(&shard);
                }
            }
        }
    }

    /// Accepts those of shards that nobody has locked.
    fn accept_free(&mut self, arrivals: &mut Arrivals<'_, 't, 'e>, try_lock: impl TryLock<'t>) {
        let mut members: Several<Member> =
            arrivals.prepared.iter().map(|one| self.shards.shard_of_source(one.source)).zip(0..).collect();
        members.sort_unstable();
        let mut turn: Few<Locked<'_, '_>> = SmallVec::new();
        for own in members.chunk_by(|one, next| one.0 == next.0).flat_map(|own| own.chunks(UNDER_ONE_LOCK)) {
            let shard = own.first().map_or(0, |(shard, _)| *shard);
            match try_lock(&self.shards.0.shards[shard]).filter(|_| !self.leaves(shard)) {
                Some(guard) => turn.push((guard, own)),
                None => self.left.extend(own.iter().map(|&(shard, place)| arrivals.leave(shard, place))),
            }
            if turn.iter().map(|(_, own)| own.len()).sum::<usize>() >= TURN {
                self.accept_turn(arrivals, std::mem::take(&mut turn));
            }
        }
        self.accept_turn(arrivals, turn);
    }

    /// Whether some of a shard are left: what comes after them has to stay behind them.
    fn leaves(&self, shard: usize) -> bool {
        self.left.iter().any(|left| left.shard == shard)
    }

    fn accept_turn(&mut self, arrivals: &mut Arrivals<'_, 't, 'e>, turn: Few<Locked<'_, '_>>) {
        for (mut shard, own) in turn {
            let now = self.shards.0.clock.now();
            for &(_, place) in own {
                self.results[arrivals.first + place] =
                    shard.accept_prepared(&arrivals.prepared[place], &mut arrivals.events[place], 1, now);
            }
            self.shards.note_changes(&shard);
        }
    }
}

impl Left<'_, '_> {
    /// Itself; what stays is nothing.
    fn take(&mut self) -> Self {
        let Self { shard, place, prepared, .. } = *self;
        Self { shard, place, prepared, event: std::mem::take(&mut self.event) }
    }
}

impl<'t, 'e> Arrivals<'_, 't, 'e> {
    fn leave(&mut self, shard: usize, place: usize) -> Left<'t, 'e> {
        let event = std::mem::take(&mut self.events[place]);
        Left { shard, place: self.first + place, prepared: self.prepared[place], event }
    }
}
