//! Several records of one event: the key of the first was evicted, a client has changed what it counts by, or nothing is
//! correlated. A client's DELETE ends all of them, because the next write of each would create the event again.

use std::collections::HashMap;

use smol_str::SmolStr;

use super::Shard;
use super::pause::{Handle, Lookup};
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
    /// Pauses the records of these handles, and all others that the upstream holds under their names. Searches the outbox
    /// once.
    pub(super) fn pause_all(
        &mut self,
        handles: &mut [Option<Handle>],
        events: &[&Event],
        by: Lookup,
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
            if let Some(handle) = &mut handles[place] {
                handle.details.others.extend(other);
            }
        }
        for (handle, event) in handles.iter_mut().zip(events) {
            let Some(handle) = handle else { continue };
            if by == Lookup::Name {
                handle.details.uid = event.metadata.uid.clone();
            }
            handle.records().for_each(|record| self.outbox.pause(record));
        }
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
