//! Occurrences that come together are accepted together.
//!
//! Hot: what a shard knows of an event is in a dozen places of memory, and most are in no cache of the processor's own. So before the
//! first is accepted, what all of them will look at is looked at, step by step for all, whichever shard they belong to: the
//! processor then waits for many places at a time, and not for one after the other.

use parking_lot::MutexGuard;
use smallvec::SmallVec;

use super::prepared::Prepared;
use super::{Accepted, Full, Shard, Shards};
use crate::event::Event;

/// LIMIT: occurrences that are accepted under one lock, for which all others have to wait.
const UNDER_ONE_LOCK: usize = 32;

/// How many usually come together at most.
const USUAL: usize = 64;

/// One of several.
struct Member<'p> {
    /// The shard of its source.
    shard: usize,
    /// Its place among all.
    place: usize,
    prepared: Prepared<'p>,
}

type Several<T> = SmallVec<[T; USUAL]>;

impl Shards {
    /// As [`accept`](Self::accept) of one occurrence of each, those of one source in their order. What is left in `events` are no events
    /// any more, and for the caller to free.
    ///
    /// A shard is locked once for all that are its own, so many at a time that others do not wait long.
    pub fn accept_all(&self, events: &mut [Event]) -> Vec<Result<Accepted, Full>> {
        let policy = self.0.policy.load();
        let mut members = Several::with_capacity(events.len());
        for (place, event) in events.iter_mut().enumerate() {
            let prepared = Prepared::new(self.0.secret, event, &policy);
            members.push(Member { shard: self.shard_of_source(prepared.source), place, prepared });
        }
        members.sort_unstable_by_key(|member| (member.shard, member.place));
        self.fetch(&members);
        let mut results = vec![Err(Full); events.len()];
        for some in of_each_shard(&members).flat_map(|own| own.chunks(UNDER_ONE_LOCK)) {
            let Some(shard) = some.first().and_then(|member| self.0.shards.get(member.shard)) else { continue };
            let mut shard = shard.lock();
            let now = self.0.clock.now();
            for Member { place, prepared, .. } in some {
                results[*place] = shard.accept_prepared(prepared, &mut events[*place], 1, now);
            }
            self.note_changes(&shard);
        }
        if results.iter().flatten().any(|accepted| accepted.wakes_delivery) {
            self.0.wake.notify_one();
        }
        results
    }

    /// Looks at what accepting will look at. A shard that is locked now is left out: this is not worth waiting for.
    fn fetch(&self, members: &[Member<'_>]) {
        let mut shards: SmallVec<[(MutexGuard<'_, Shard>, &[Member<'_>]); 16]> = SmallVec::new();
        for own in of_each_shard(members) {
            let shard = own.first().and_then(|member| self.0.shards.get(member.shard));
            shards.extend(shard.and_then(|shard| Some((shard.try_lock()?, own))));
        }
        let members: Several<_> =
            shards.iter().flat_map(|(shard, own)| own.iter().map(|member| (&**shard, &member.prepared))).collect();
        for (shard, prepared) in &members {
            shard.sources.touch(prepared.source);
            shard.outbox.touch_account(prepared.source, prepared.keys.spam());
        }
        let sources: Several<_> = members
            .iter()
            .filter_map(|(shard, prepared)| Some((*shard, &**shard.sources.fetch(prepared.source)?, *prepared)))
            .collect();
        sources.iter().for_each(|(_, correlator, _)| correlator.fetch());
        sources.iter().for_each(|(_, correlator, prepared)| correlator.touch_keys(&prepared.keys));
        let records: Several<_> = sources
            .iter()
            .filter_map(|(shard, correlator, prepared)| {
                shard.outbox.fetch_account(prepared.source, prepared.keys.spam());
                Some((*shard, correlator.fetch_keys(&prepared.keys)?))
            })
            .collect();
        records.iter().for_each(|(shard, record)| shard.outbox.fetch(*record));
    }
}

fn of_each_shard<'m, 'p>(members: &'m [Member<'p>]) -> impl Iterator<Item = &'m [Member<'p>]> {
    members.chunk_by(|one, next| one.shard == next.shard)
}
