//! Several records of one event: the key of the first was evicted, a client has changed what it counts by, or nothing is
//! correlated. A client's DELETE ends all of them, because the next write of each would create the event again.

use std::collections::HashMap;

use smol_str::SmolStr;

use super::Shard;
use super::pause::{Handle, Lookup, PausedRecord};
use crate::clock::Now;
use crate::correlator::Policy;
use crate::event::Event;
use crate::outbox::{Before, RecordId};

/// What is known of the event of a paused record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Details {
    /// The count that it is known to show, if the record is not in the outbox.
    pub(super) shown: Option<i64>,
    /// The event as it was read before the client's request, if it was.
    pub(super) before: Option<Before>,
    /// Its uid, if it was read.
    pub(super) uid: SmolStr,
    /// The other records of it, which are paused too.
    pub(super) others: Vec<Handle>,
}

impl Shard {
    /// Pauses all other records that the upstream holds under the names of these paused ones. Searches the outbox once.
    pub(super) fn pause_others(
        &mut self,
        handles: &mut [Option<Handle>],
        events: &[&Event],
        now: Now,
        policy: &Policy,
    ) {
        let known = handles.iter().zip(events).zip(0..);
        let names = known.filter_map(|((handle, event), place)| {
            Some(((event.metadata.namespace.as_str(), handle.as_ref()?.name.as_str()), place))
        });
        let names: HashMap<_, usize> = names.collect();
        let mut others = Vec::new();
        let records = (!names.is_empty()).then(|| self.outbox.events());
        for (record, event) in records.into_iter().flatten() {
            let place = names.get(&(event.metadata.namespace.as_str(), event.metadata.name.as_str()));
            let of_name = place.and_then(|place| Some((*place, handles[*place].as_ref()?)));
            if let Some((place, _)) = of_name.filter(|(place, handle)| self.shares(record, handle, events[*place], now))
            {
                let known = self.locate(event, &event.metadata.name, Lookup::Name, now, policy);
                let other = known.filter(|known| known.record == record);
                others.push((place, other.or_else(|| self.handle_of(record, event, &event.metadata.name))));
            }
        }
        for (place, other) in others {
            if let (Some(handle), Some(other)) = (&mut handles[place], other) {
                self.outbox.pause(other.record);
                handle.details.others.push(other);
            }
        }
    }

    /// Pauses the record itself, whose event is the upstream's if it was found `by` its name.
    pub(super) fn pause_itself(&mut self, handle: &mut Handle, event: &Event, by: Lookup) {
        if by == Lookup::Name {
            handle.details.uid = event.metadata.uid.clone();
        }
        self.outbox.pause(handle.record);
    }

    /// Whether another record of the same name counts on the same event: it is stored, or `event` is the upstream's and has
    /// its tag. If the first one is not stored, another event may have its name.
    fn shares(&self, record: RecordId, handle: &Handle, event: &Event, now: Now) -> bool {
        let is_stored = || self.outbox.view(record).is_some_and(|seen| seen.shown.is_some());
        record != handle.record
            && (is_stored() || self.outbox.tag_count(record, event).is_some())
            && (handle.stored || self.outbox.is_of(record, event, now) == Some(true))
    }

    /// Whether one of the records has occurrences that wait, or a write in doubt.
    pub(super) fn is_unsettled(&self, handle: &Handle) -> bool {
        handle.records().any(|record| self.outbox.unsettled(record).is_some())
    }

    /// Whether a request of the record, or of another one of its event, is in flight.
    pub(super) fn is_in_flight(&self, handle: &Handle) -> bool {
        handle.records().any(|record| self.outbox.is_in_flight(record))
    }

    /// Returns what the watch has shown of them during the pause.
    pub(super) fn take_aside(&mut self, handle: &Handle) -> Vec<Event> {
        handle.records().filter_map(|record| self.outbox.take_aside(record)).map(|news| *news).collect()
    }
}

impl Handle {
    /// Returns the record, and all others of its event.
    pub(super) fn records(&self) -> impl Iterator<Item = RecordId> {
        std::iter::once(self.record).chain(self.details.others.iter().map(|other| other.record))
    }
}

impl PausedRecord {
    /// Pauses all other records of the event, too. The record was found by `event`.
    ///
    /// Cost: as many comparisons as the outbox has records.
    pub fn pause_others(&mut self, event: &Event) {
        let policy = self.shards.policy();
        let mut handles = [Some(self.handle.clone())];
        self.shards.with(self.shard, |shard, now| shard.pause_others(&mut handles, &[event], now, &policy));
        let [handle] = handles;
        self.handle.details.others = handle.map(|handle| handle.details.others).unwrap_or_default();
    }

    /// Whether a record of the event has occurrences that wait, or a write in doubt.
    pub fn is_unsettled(&self) -> bool {
        self.shards.look(self.shard, |shard| shard.is_unsettled(&self.handle))
    }

    /// Notes that the upstream is asked to delete the event, for the case that the process does not get the answer.
    pub fn expect_deletion(&self) {
        self.shards.with(self.shard, |shard, _| {
            self.handle.records().for_each(|record| shard.outbox.expect_deletion(record));
        });
    }
}
