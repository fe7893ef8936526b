//! Occurrences that come together are accepted together.
//!
//! Hot: what a shard knows of an event is in a dozen places of memory, and most are in no cache of the processor's own. So before the
//! first is accepted, what a turn of them will look at is fetched, step by step for all, whichever of a few shards they belong to: the
//! processor then has many places on their way at a time, and waits for none. Each step looks at what the one before has fetched, to find
//! out what comes next: where a search begins (`touch…`), the entry it should lead to (`approach…`), and what that entry names (`fetch…`).
//!
//! Nobody waits for a shard while there is other work: those whose shard is locked are left until more have come, or none will.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::prepared::Prepared;
use super::{Accepted, Full, Shard, Shards};
use crate::correlator::{Correlator, Policy};
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
        for own in left.chunk_by_mut(|one, next| one.shard == next.shard) {
            match own.first().and_then(|first| lock(&self.shards.0.shards[first.shard])) {
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
            // What comes after those that are left stays behind them.
            let is_behind = self.left.iter().any(|left| left.shard == shard);
            match try_lock(&self.shards.0.shards[shard]) {
                Some(guard) if !is_behind => turn.push((guard, own)),
                _ => self.left.extend(own.iter().map(|&(shard, place)| arrivals.leave(shard, place))),
            }
            if turn.iter().map(|(_, own)| own.len()).sum::<usize>() >= TURN {
                self.accept_turn(arrivals, std::mem::take(&mut turn));
            }
        }
        self.accept_turn(arrivals, turn);
    }

    fn accept_turn(&mut self, arrivals: &mut Arrivals<'_, 't, 'e>, turn: Few<Locked<'_, '_>>) {
        arrivals.fetch(&turn);
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

    /// Looks at what accepting will look at, in steps of which each needs what the one before has found.
    fn fetch(&self, turn: &[Locked<'_, '_>]) {
        let members: Few<_> = turn
            .iter()
            .flat_map(|(shard, own)| own.iter().map(|&(_, place)| (&**shard, &self.prepared[place])))
            .collect();
        for (shard, prepared) in &members {
            shard.touch_source(prepared);
        }
        for (shard, prepared) in &members {
            shard.approach_source(prepared);
        }
        let sources: Few<_> = members
            .iter()
            .filter_map(|(shard, prepared)| Some((*shard, shard.fetch_source(prepared)?, *prepared)))
            .collect();
        for (_, correlator, _) in &sources {
            correlator.touch();
        }
        for (_, correlator, Prepared { keys, .. }) in &sources {
            correlator.touch_keys(keys);
        }
        for (_, correlator, Prepared { keys, .. }) in &sources {
            correlator.approach_keys(keys);
        }
        let counted: Few<_> = sources
            .iter()
            .map(|(shard, correlator, Prepared { keys, .. })| (*shard, *correlator, correlator.fetch_keys(keys)))
            .collect();
        for (_, correlator, key) in &counted {
            correlator.approach(*key);
        }
        let records: Few<_> =
            counted.iter().filter_map(|(shard, correlator, key)| Some((*shard, correlator.fetch(*key)?))).collect();
        for (shard, record) in &records {
            shard.outbox.fetch(*record);
        }
    }
}

impl Shard {
    /// Has the places fetched where the search for an event's source and account begins; see [`Together`](super::Together).
    fn touch_source(&self, prepared: &Prepared<'_>) {
        self.sources.touch(prepared.source);
        self.outbox.touch_account(prepared.source, prepared.keys.spam());
    }

    /// Has the source and the account fetched that an event should have.
    fn approach_source(&self, prepared: &Prepared<'_>) {
        self.sources.approach(prepared.source);
        self.outbox.approach_account(prepared.source, prepared.keys.spam());
    }

    /// Looks at an event's account, and returns the correlator of its source.
    fn fetch_source(&self, prepared: &Prepared<'_>) -> Option<&Correlator> {
        self.outbox.fetch_account(prepared.source, prepared.keys.spam());
        self.sources.fetch(prepared.source).map(|correlator| &**correlator)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::KeySecret;
    use crate::event::Event;
    use crate::shard::Settings;

    /// An event of one of a few sources, about one of a few objects, with one of a few messages.
    fn event((source, object, message): (u8, u8, u8)) -> Event {
        let mut event = Event { message: format!("message {message}").into(), ..Event::default() };
        event.source.component = format!("component-{source}").into();
        event.involved_object.name = format!("object-{object}").into();
        event.metadata.name = format!("object-{object}.{source}{message}").into();
        event.metadata.namespace = "default".into();
        event
    }

    fn shards(count: usize, max_records: usize, clock: Clock) -> Shards {
        let mut settings = Settings::default();
        settings.outbox.max_records = NonZeroUsize::new(max_records).unwrap();
        Shards::new(NonZeroUsize::new(count).unwrap(), &settings, Policy::default(), clock, KeySecret(1, 2), 1)
    }

    fn records(shards: &Shards) -> Vec<(Event, u64)> {
        let of_one = |index| {
            shards.look(index, |shard| shard.pending().map(|(event, count)| (event.clone(), count)).collect::<Vec<_>>())
        };
        let mut records: Vec<_> = (0..shards.count()).flat_map(of_one).collect();
        records.sort_by(|(one, _), (other, _)| {
            (&one.metadata.name, &one.message).cmp(&(&other.metadata.name, &other.message))
        });
        records
    }

    proptest! {
        /// Shards with nothing in them, then with what came before; sometimes with no room, and one that somebody has locked.
        #[test]
        fn together_is_as_one_after_the_other(
            rounds in proptest::collection::vec(proptest::collection::vec((0..9_u8, 0..3_u8, 0..20_u8), 0..90), 1..4),
            count in 1..5_usize,
            max_records in prop_oneof![4..40_usize, Just(1000)],
        ) {
            let clock = Clock::manual(1_700_000_000_000_000_000);
            let (together, alone) = (shards(count, max_records, clock.clone()), shards(count, max_records, clock.clone()));
            let policy = Policy::default();
            for round in rounds {
                let mut events: Vec<Event> = round.iter().copied().map(event).collect();
                // By shards, because their room is shared: whoever comes first gets it.
                let mut order: Vec<usize> = (0..events.len()).collect();
                order.sort_by_key(|place| alone.shard_of(&events[*place]));
                let mut expected = vec![Err(Full); events.len()];
                for place in order {
                    expected[place] = alone.accept(events[place].clone(), 1);
                }
                let mut all = together.together(&policy);
                all.accept(&mut events);
                prop_assert_eq!(all.finish(), expected);
                prop_assert_eq!(together.balance(), alone.balance());
                prop_assert_eq!(records(&together), records(&alone));
                clock.advance(Duration::from_secs(7));
            }
        }
    }

    /// More of each source than one turn and one lock take, alternating; in threes.
    fn many() -> [Vec<Event>; 3] {
        [0, 1, 2]
            .map(|part| (0..200_u8).map(|number| event((number % 16, number % 3, part * 7 + number / 48))).collect())
    }

    #[test]
    fn those_of_a_locked_shard_are_left_until_it_is_free() {
        let (clock, policy) = (Clock::manual(0), Policy::default());
        let (shards, alone) = (shards(2, 1000, clock.clone()), shards(2, 1000, clock));
        let expected: Vec<_> = many().into_iter().flatten().map(|event| alone.accept(event, 1)).collect();
        let own: Vec<bool> = many().iter().flatten().map(|event| shards.shard_of(event) == 0).collect();
        let [mut first, mut second, mut third] = many();
        let mut all = shards.together(&policy);

        let guard = shards.0.shards[0].lock();
        all.accept(&mut first[..40]);
        assert!(!all.left.is_empty() && all.left.iter().all(|left| left.shard == 0 && own[left.place]));
        assert_eq!(all.left.len(), own[..40].iter().filter(|own| **own).count());
        for (place, result) in all.results.iter().enumerate() {
            let is_left = own[place];
            assert_eq!(*result, if is_left { Err(Full) } else { expected[place] }, "{place}");
        }
        drop(guard);

        // Those that are left come first.
        all.accept(&mut first[40..]);
        assert!(all.left.is_empty());
        assert_eq!(all.results, expected[..200]);

        // It is locked again, until the end.
        let guard = shards.0.shards[0].lock();
        all.accept(&mut second[..30]);
        drop(guard);
        assert!(!all.left.is_empty());
        all.accept(&mut second[30..]);
        all.accept(&mut third);
        assert_eq!(all.finish(), expected);
        assert_eq!(records(&shards), records(&alone));
        assert_eq!(shards.balance(), alone.balance());
        assert!(shards.0.shards.iter().all(|shard| !shard.is_locked()));
    }

    #[test]
    fn those_behind_others_that_are_left_are_left() {
        let (shards, policy) = (shards(1, 1000, Clock::manual(0)), Policy::default());
        let mut all = shards.together(&policy);
        let [mut first, mut second, _] = many();
        all.accept_by(&mut first[..3], |_| None);
        // It becomes free after those that are left were tried.
        let tries = Cell::new(0);
        all.accept_by(&mut second[..3], |shard| {
            tries.set(tries.get() + 1);
            (tries.get() > 1).then(|| shard.lock())
        });
        assert!(tries.get() > 1);
        assert_eq!(all.left.iter().map(|left| left.place).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        assert!(all.finish().iter().all(Result::is_ok));
    }

    #[test]
    fn one_waits_when_too_many_are_left() {
        let (shards, policy) = (shards(2, 1000, Clock::manual(0)), Policy::default());
        let mut all = shards.together(&policy);
        let [mut events, ..] = many();
        all.accept_by(&mut events[..LEFT], |_| None);
        assert_eq!(all.left.len(), LEFT);
        all.accept_by(&mut events[LEFT..=LEFT], |_| None);
        assert_eq!((all.left.len(), all.results.len()), (0, LEFT + 1));
        assert!(all.results.iter().all(Result::is_ok));
    }
}
