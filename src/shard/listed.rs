//! The records of many events: pauses them for a deletecollection. The outbox of a shard is searched once for all events
//! that its correlators do not know.

use std::collections::HashMap;

use super::pause::{Handle, Lookup, PausedRecord};
use super::{Shard, Shards};
use crate::clock::Now;
use crate::correlator::Policy;
use crate::event::Event;

fn full_name(event: &Event) -> (&str, &str) {
    (&event.metadata.namespace, &event.metadata.name)
}

impl Shard {
    /// Pauses the records of each event, for a deletion, as [`pause`](Self::pause) does by the event's own name. Searches
    /// records without a key `by` this way.
    pub(super) fn pause_listed(
        &mut self,
        events: &[&Event],
        by: Lookup,
        now: Now,
        policy: &Policy,
    ) -> Vec<Option<Handle>> {
        let known = |event: &&Event| self.locate(event, &event.metadata.name, Lookup::Name, now, policy);
        let mut handles: Vec<Option<Handle>> = events.iter().map(known).collect();
        let unknown = events.iter().zip(0..).filter(|(_, place)| handles[*place].is_none());
        let unknown: HashMap<_, usize> = unknown.map(|(event, place)| (full_name(event), place)).collect();
        if !unknown.is_empty() {
            for (record, event) in self.outbox.events() {
                let place = unknown.get(&full_name(event));
                if let Some(place) = place.filter(|place| self.is_meant(record, events[**place], by, now, policy)) {
                    let event = events[*place];
                    handles[*place] = self.handle_of(record, event, &event.metadata.name);
                }
            }
        }
        for (handle, event) in handles.iter_mut().zip(events) {
            handle.iter_mut().for_each(|handle| self.pause_itself(handle, event, by));
        }
        self.pause_others(&mut handles, events, now, policy);
        handles
    }
}

impl Shards {
    /// Pauses the record of each event, as [`pause`](Self::pause) does by the event's own name. They are the upstream's
    /// events (`Name`), or as clients have posted them (`Unstored`).
    #[must_use]
    pub fn pause_listed(&self, events: &[Event], by: Lookup) -> Vec<Option<PausedRecord>> {
        let policy = self.policy();
        let mut held: Vec<Option<PausedRecord>> = events.iter().map(|_| None).collect();
        let mut of_shards = vec![Vec::new(); self.count()];
        for (place, event) in events.iter().enumerate() {
            of_shards[self.shard_of(event)].push(place);
        }
        for (index, places) in of_shards.iter().enumerate().filter(|(_, places)| !places.is_empty()) {
            let here: Vec<&Event> = places.iter().map(|place| &events[*place]).collect();
            let handles = self.with(index, |shard, now| shard.pause_listed(&here, by, now, &policy));
            for (handle, place) in handles.into_iter().zip(places) {
                let event = &events[*place];
                held[*place] =
                    handle.map(|handle| self.paused((index, handle), event, &event.metadata.name, Lookup::Name));
            }
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::Settings;

    fn event(name: usize) -> Event {
        let mut event = Event { count: 1, reason: format!("R{name}").into(), ..Event::default() };
        event.metadata.name = format!("n{name}").into();
        event
    }

    #[test]
    fn listed_records_are_paused_also_without_a_key() {
        let settings = Settings { lru_cache_size: NonZeroUsize::MIN, ..Settings::default() };
        let shards = Shards::of(2, settings.into(), Clock::manual(1_000_000_000));
        // The second evicts the key of the first.
        for number in [0, 1] {
            shards.accept(event(number), 1).unwrap();
        }
        let held = shards.pause_listed(&[event(0), event(1), event(2)], Lookup::Name);
        let names = held.iter().map(|held| held.as_ref().map(|held| held.name().to_string()));
        assert_eq!(names.collect::<Vec<_>>(), [Some("n0".to_owned()), Some("n1".to_owned()), None]);
        held.into_iter().flatten().for_each(PausedRecord::forget);
        assert!(!shards.owe());
    }

    /// Fault: what waited of the record was lost with the other event.
    #[test]
    fn a_listed_event_of_another_writer_is_not_of_the_record_of_its_name() {
        let shards = Shards::of(1, Policy::default(), Clock::manual(1_000_000_000));
        shards.accept(event(0), 1).unwrap();
        let listed = Event { reason: "Other".into(), ..event(0) };
        assert!(shards.pause_listed(&[listed], Lookup::Name)[0].is_none());
    }
}
