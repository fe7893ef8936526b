//! Occurrences that come together are accepted together.
//!
//! Hot: what a shard knows of an event is in a dozen places of memory, and most are in no cache of the processor's own. So before the
//! first is accepted, what all of them will look at is fetched, step by step for all, whichever shard they belong to: the processor
//! then has many places on their way at a time, and waits for none. Each step looks at what the one before has fetched, to find out
//! what comes next: where a search begins (`touch…`), the entry it should lead to (`approach…`), and what that entry names (`fetch…`).

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::prepared::Prepared;
use super::{Accepted, Full, Shard, Shards};
use crate::correlator::Correlator;
use crate::event::LentEvent;

/// LIMIT: occurrences that are accepted under one lock, for which all others have to wait.
const UNDER_ONE_LOCK: usize = 32;

/// How many come together at most, as a rule; there may be more.
const USUAL: usize = 64;

/// One of several: the shard of its source, and its place among all.
type Member = (usize, usize);

/// Something of each member.
type Several<T> = SmallVec<[T; USUAL]>;

impl Shards {
    /// As [`accept`](Self::accept) of one occurrence of each, those of one source in their order. What is left in `events` are no events
    /// any more, and for the caller to free.
    ///
    /// A shard is locked once for all that are its own, so many at a time that others do not wait long.
    pub fn accept_all(&self, events: &mut [LentEvent<'_>]) -> Vec<Result<Accepted, Full>> {
        let policy = self.0.policy.load();
        let prepared: Several<_> =
            events.iter_mut().map(|event| Prepared::new(self.0.secret, event, &policy)).collect();
        let mut members: Several<Member> =
            prepared.iter().map(|one| self.shard_of_source(one.source)).zip(0..).collect();
        members.sort_unstable();
        self.fetch(&members, &prepared);
        let mut results = vec![Err(Full); events.len()];
        for some in of_each_shard(&members).flat_map(|own| own.chunks(UNDER_ONE_LOCK)) {
            let Some(shard) = some.first().and_then(|(shard, _)| self.0.shards.get(*shard)) else { continue };
            let mut shard = shard.lock();
            let now = self.0.clock.now();
            for &(_, place) in some {
                results[place] = shard.accept_prepared(&prepared[place], &mut events[place], 1, now);
            }
            self.note_changes(&shard);
        }
        if results.iter().flatten().any(|accepted| accepted.wakes_delivery) {
            self.0.wake.notify_one();
        }
        results
    }

    /// Looks at what accepting will look at, in steps of which each needs what the one before has found. A shard that is locked now is
    /// left out: this is not worth waiting for.
    fn fetch(&self, members: &[Member], prepared: &[Prepared<'_>]) {
        let locked: Several<(MutexGuard<'_, Shard>, &[Member])> = of_each_shard(members)
            .filter_map(|own| Some((self.0.shards.get(own.first()?.0)?.try_lock()?, own)))
            .collect();
        let members: Several<_> =
            locked.iter().flat_map(|(shard, own)| own.iter().map(|&(_, place)| (&**shard, &prepared[place]))).collect();
        for (shard, prepared) in &members {
            shard.touch_source(prepared);
        }
        for (shard, prepared) in &members {
            shard.approach_source(prepared);
        }
        let sources: Several<_> = members
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
        let counted: Several<_> = sources
            .iter()
            .map(|(shard, correlator, Prepared { keys, .. })| (*shard, *correlator, correlator.fetch_keys(keys)))
            .collect();
        for (_, correlator, key) in &counted {
            correlator.approach(*key);
        }
        let records: Several<_> =
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

/// Members of one shard stand side by side.
fn of_each_shard(members: &[Member]) -> impl Iterator<Item = &[Member]> {
    members.chunk_by(|one, next| one.0 == next.0)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::{KeySecret, Policy};
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

    #[test]
    fn nothing_is_fetched_of_a_shard_that_is_locked() {
        let shards = shards(1, 1000, Clock::manual(0));
        let mut once = event((0, 0, 0));
        let policy = Policy::default();
        let prepared = Prepared::new(KeySecret(1, 2), &mut once, &policy);
        let guard = shards.0.shards[0].lock();
        // It would wait for ever.
        shards.fetch(&[(0, 0)], &[prepared]);
        drop(guard);
    }
}
