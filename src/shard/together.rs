//! Occurrences that come together are accepted together.
//!
//! Hot: what a shard knows of an event is in a dozen places of memory, and most are in no cache of the processor's own. So before the
//! first is accepted, what a turn of them will look at is fetched, step by step for all, whichever of a few shards they belong to: the
//! processor then has many places on their way at a time, and waits for none. Each step looks at what the one before has fetched, to find
//! out what comes next: where a search begins (`touch…`), the entry it should lead to (`approach…`), and what that entry names (`fetch…`).
//!
//! Nobody waits for a shard while there are others to go on with: one that is locked comes last.

use parking_lot::MutexGuard;
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

/// How many come together at most, as a rule; there may be more.
const USUAL: usize = 64;

/// One of several: the shard of its source, and its place among all.
type Member = (usize, usize);

/// Something of each member.
type Several<T> = SmallVec<[T; USUAL]>;

/// Something of each member of a turn, or of each of its shards.
type Few<T> = SmallVec<[T; TURN]>;

/// Members of one shard, locked.
type Locked<'s, 'm> = (MutexGuard<'s, Shard>, &'m [Member]);

/// What has come together.
struct Together<'t, 'e> {
    shards: &'t Shards,
    prepared: Several<Prepared<'t>>,
    events: &'t mut [LentEvent<'e>],
    results: Vec<Result<Accepted, Full>>,
}

impl Shards {
    /// As [`accept`](Self::accept) of one occurrence of each, those of one source in their order. What is left in `events` are no events
    /// any more, and for the caller to free.
    ///
    /// A shard is locked once for all that are its own, so many at a time that others do not wait long.
    pub fn accept_all(&self, events: &mut [LentEvent<'_>]) -> Vec<Result<Accepted, Full>> {
        let policy = self.0.policy.load();
        let mut together = Together::new(self, &policy, events);
        let members = together.members();
        for own in together.accept_free(&members) {
            together.accept_turn(Few::from_iter([(self.0.shards[shard_of(own)].lock(), own)]));
        }
        let results = together.results;
        if results.iter().flatten().any(|accepted| accepted.wakes_delivery) {
            self.0.wake.notify_one();
        }
        results
    }

    /// Locks the shard of some members, unless somebody else has, or some before them are left.
    fn lock_free(&self, own: &[Member], left: &[&[Member]]) -> Option<MutexGuard<'_, Shard>> {
        let shard = shard_of(own);
        if left.last().is_some_and(|left| shard_of(left) == shard) {
            return None;
        }
        self.0.shards[shard].try_lock()
    }
}

impl<'t, 'e> Together<'t, 'e> {
    fn new(shards: &'t Shards, policy: &'t Policy, events: &'t mut [LentEvent<'e>]) -> Self {
        let prepared = events.iter_mut().map(|event| Prepared::new(shards.0.secret, event, policy)).collect();
        let results = vec![Err(Full); events.len()];
        Self { shards, prepared, events, results }
    }

    /// All, by shards; those of one in their order.
    fn members(&self) -> Several<Member> {
        let shards = self.prepared.iter().map(|one| self.shards.shard_of_source(one.source));
        let mut members: Several<Member> = shards.zip(0..).collect();
        members.sort_unstable();
        members
    }

    /// Accepts the members of shards that nobody has locked, and returns the others, by shards.
    fn accept_free<'m>(&mut self, members: &'m [Member]) -> Several<&'m [Member]> {
        let mut left: Several<&[Member]> = SmallVec::new();
        let mut turn: Few<Locked<'_, '_>> = SmallVec::new();
        for own in members.chunk_by(|one, next| one.0 == next.0).flat_map(|own| own.chunks(UNDER_ONE_LOCK)) {
            match self.shards.lock_free(own, &left) {
                Some(guard) => turn.push((guard, own)),
                None => left.push(own),
            }
            if turn.iter().map(|(_, own)| own.len()).sum::<usize>() >= TURN {
                self.accept_turn(std::mem::take(&mut turn));
            }
        }
        self.accept_turn(turn);
        left
    }

    fn accept_turn(&mut self, turn: Few<Locked<'_, '_>>) {
        self.fetch(&turn);
        for locked in turn {
            self.accept(locked);
        }
    }

    fn accept(&mut self, (mut shard, own): Locked<'_, '_>) {
        let now = self.shards.0.clock.now();
        for &(_, place) in own {
            self.results[place] = shard.accept_prepared(&self.prepared[place], &mut self.events[place], 1, now);
        }
        self.shards.note_changes(&shard);
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
    /// Has the places fetched where the search for an event's source and account begins; see `Shards::accept_all`.
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

/// The shard of members of one.
fn shard_of(own: &[Member]) -> usize {
    own.first().map_or(0, |(shard, _)| *shard)
}

#[cfg(test)]
mod tests {
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
            for round in rounds {
                let mut events: Vec<Event> = round.iter().copied().map(event).collect();
                // By shards, because their room is shared: whoever comes first gets it.
                let mut order: Vec<usize> = (0..events.len()).collect();
                order.sort_by_key(|place| alone.shard_of(&events[*place]));
                let mut expected = vec![Err(Full); events.len()];
                for place in order {
                    expected[place] = alone.accept(events[place].clone(), 1);
                }
                prop_assert_eq!(together.accept_all(&mut events), expected);
                prop_assert_eq!(together.balance(), alone.balance());
                prop_assert_eq!(records(&together), records(&alone));
                clock.advance(Duration::from_secs(7));
            }
        }
    }

    /// More of each source than one turn and one lock take, alternating.
    fn many() -> Vec<Event> {
        (0..200_u8).map(|number| event((number % 16, number % 3, number / 48))).collect()
    }

    #[test]
    fn who_comes_to_a_locked_shard_goes_on_with_the_others() {
        let clock = Clock::manual(0);
        let (shards, alone) = (shards(2, 1000, clock.clone()), shards(2, 1000, clock));
        let expected: Vec<_> = many().into_iter().map(|event| alone.accept(event, 1)).collect();
        let (mut events, policy) = (many(), Policy::default());
        let mut together = Together::new(&shards, &policy, &mut events);
        let members = together.members();
        let own = |shard| members.iter().filter(move |member| member.0 == shard);
        assert!((0..2).all(|shard| own(shard).count() > UNDER_ONE_LOCK), "both have enough");

        let guard = shards.0.shards[0].lock();
        let left = together.accept_free(&members);
        drop(guard);
        assert_eq!(left.concat(), own(0).copied().collect::<Vec<_>>());
        assert!(own(1).all(|&(_, place)| together.results[place] == expected[place]));
        assert!(own(0).all(|&(_, place)| together.results[place] == Err(Full)), "nothing was done to them");
        assert!(shards.0.shards.iter().all(|shard| !shard.is_locked()));

        for own in left {
            together.accept_turn(Few::from_iter([(shards.0.shards[0].lock(), own)]));
        }
        assert_eq!(together.results, expected);
        assert_eq!(records(&shards), records(&alone));
        assert_eq!(shards.balance(), alone.balance());
    }

    #[test]
    fn what_follows_members_that_are_left_is_left() {
        let shards = shards(2, 1000, Clock::manual(0));
        assert!(shards.lock_free(&[(0, 7)], &[]).is_some());
        assert!(shards.lock_free(&[(0, 7)], &[&[(0, 3)]]).is_none());
        assert!(shards.lock_free(&[(1, 5)], &[&[(0, 3)]]).is_some());
    }
}
