//! Step 2: a repeat of an event is counted on the existing record. Mirrors `eventLogger.eventObserve` and `updateState`
//! in `tools/record/events_cache.go`.

use smol_str::SmolStr;

use super::history::namespace_tag;
use super::key::Key;
use super::settings::{CountOverflow, Settings};
use super::{Correlator, Known, RecordId};
use crate::event::{Event, Time};

/// The dedup state of an event: client-go's `eventLog`, and its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The record in the outbox.
    pub record: RecordId,
    /// Occurrences so far; 0 counts as "not observed".
    pub count: i32,
    /// Occurrences that its tag counts; see `outbox/tag.rs`.
    pub tag: u64,
    /// First occurrence.
    pub first_timestamp: Option<Time>,
    /// Whether the upstream is known to hold the record.
    pub stored: bool,
    /// The hash of the namespace of its name; see [`namespace_tag`].
    pub namespace: u32,
    /// Name of the record upstream.
    pub name: SmolStr,
    /// Version of the record upstream, as far as known.
    pub resource_version: SmolStr,
}

impl Observation {
    /// Returns the observation of a record that begins with `event`.
    pub(super) fn new(record: RecordId, event: &Event, count: i32, stored: bool) -> Self {
        Self {
            record,
            count,
            tag: 0,
            first_timestamp: event.first_timestamp,
            stored,
            namespace: namespace_tag(&event.metadata.namespace),
            name: event.metadata.name.clone(),
            resource_version: event.metadata.resource_version.clone(),
        }
    }
}

/// The two-way strategic merge patch of a repeated event, as client-go computes it: old is the event with count 0, an
/// empty message and lastTimestamp 1970-01-01T00:00:00Z (`tools/record/events_cache.go`, `eventObserve`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// New count; absent from the patch when 0.
    pub count: i32,
    /// New lastTimestamp; `None` is written as `null`, which deletes the field; absent when exactly
    /// 1970-01-01T00:00:00Z.
    pub last_timestamp: Option<Time>,
    /// New message; absent when empty.
    pub message: SmolStr,
}

impl Patch {
    /// The patch that brings a stored record to the state of `event`.
    pub fn of(event: &Event) -> Self {
        Self { count: event.count, last_timestamp: event.last_timestamp, message: event.message.clone() }
    }
}

impl Correlator {
    pub(super) fn observation(&self, key: Key) -> Option<&Observation> {
        self.observations.peek(&key).filter(|observation| observation.count != 0)
    }

    /// Returns the observation of `record`, unless another record has taken its key meanwhile.
    pub(super) fn observation_of(&mut self, key: Key, record: RecordId) -> Option<&mut Observation> {
        self.observations.peek_mut(&key).filter(|observation| observation.record == record)
    }

    /// Counts `occurrences` of `event` under `key`. A repeat gets the record's name, version, first timestamp and
    /// running count; all other members stay those of the newest event. Returns the record, and what was known of it
    /// before a repeat.
    pub(super) fn observe(
        &mut self,
        key: Key,
        event: &mut Event,
        occurrences: u32,
        settings: &Settings,
        next_record: &mut u64,
    ) -> (RecordId, Option<Known>) {
        if let Some(known) = self.observations.get_mut(&key)
            && known.count != 0
        {
            let before = Known { stored: known.stored, count: known.count, tag: known.tag };
            known.count = add(known.count, occurrences, settings.count_overflow);
            event.count = known.count;
            event.first_timestamp = known.first_timestamp;
            event.metadata.name = known.name.clone();
            event.metadata.resource_version = known.resource_version.clone();
            return (known.record, Some(before));
        }
        // COMPAT(client-go): the first occurrence keeps its own count; 0 is stored as 0 and so never deduplicated
        // (V 012).
        let record = RecordId(*next_record);
        *next_record += 1;
        let observation = Observation::new(record, event, event.count, false);
        self.observations.put_within(key, observation, self.cache_size);
        (record, None)
    }
}

fn add(count: i32, occurrences: u32, overflow: CountOverflow) -> i32 {
    match overflow {
        CountOverflow::Saturate => count.saturating_add_unsigned(occurrences),
        // COMPAT(client-go): `int32(lastObservation.count) + 1` wraps around (V 013).
        CountOverflow::Wrap => count.wrapping_add_unsigned(occurrences),
    }
}
