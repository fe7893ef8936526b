//! Step 2: a repeat of an event is counted on the existing record. Mirrors `eventLogger.eventObserve` and `updateState`
//! in `tools/record/events_cache.go`.

use smol_str::SmolStr;

use super::RecordId;
use super::history::namespace_tag;
use super::key::Key;
use super::lru_map::LruMap;
use super::settings::{CountOverflow, Settings};
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

/// The observations of one source.
#[derive(Debug, Default)]
pub(super) struct Observations {
    // LIMIT: `lru_cache_size` entries; the least recently used one is evicted, and its next repeat begins a new record.
    observations: LruMap<Observation>,
}

/// An event after observation.
pub(super) struct Observed {
    pub(super) record: RecordId,
    pub(super) stored: bool,
    pub(super) before: i32,
    pub(super) tag: u64,
    pub(super) is_repeat: bool,
}

impl Observations {
    pub(super) fn len(&self) -> usize {
        self.observations.len()
    }

    pub(super) fn find(&self, key: Key) -> Option<&Observation> {
        self.observations.peek(&key).filter(|observation| observation.count != 0)
    }

    /// Counts `occurrences` of `event` under `key`. A repeat gets the record's name, version, first timestamp and
    /// running count; all other members stay those of the newest event.
    pub(super) fn observe(
        &mut self,
        key: Key,
        event: &mut Event,
        occurrences: u32,
        settings: &Settings,
        next_record: &mut u64,
    ) -> Observed {
        if let Some(known) = self.observations.get_mut(&key)
            && known.count != 0
        {
            let before = known.count;
            known.count = add(known.count, occurrences, settings.count_overflow);
            event.count = known.count;
            event.first_timestamp = known.first_timestamp;
            event.metadata.name = known.name.clone();
            event.metadata.resource_version = known.resource_version.clone();
            let Observation { record, stored, tag, .. } = *known;
            return Observed { record, stored, before, tag, is_repeat: true };
        }
        // COMPAT(client-go): the first occurrence keeps its own count; 0 is stored as 0 and so never deduplicated
        // (V 012).
        let record = RecordId(*next_record);
        *next_record += 1;
        let observation = Observation {
            count: event.count,
            first_timestamp: event.first_timestamp,
            name: event.metadata.name.clone(),
            resource_version: event.metadata.resource_version.clone(),
            record,
            tag: 0,
            stored: false,
            namespace: namespace_tag(&event.metadata.namespace),
        };
        self.observations.put_within(key, observation, settings.lru_cache_size);
        Observed { record, stored: false, before: 0, tag: 0, is_repeat: false }
    }

    /// Adopts an upstream record on which this process has not counted. The record becomes the next one to be evicted.
    /// It is not adopted if there is no room, so that history never evicts live observations.
    pub(super) fn adopt(&mut self, key: Key, observation: Observation, settings: &Settings) -> bool {
        let known = self.observations.peek(&key).is_some();
        if !known && self.observations.len() >= settings.lru_cache_size.get() {
            return false;
        }
        self.observations.put_last(key, observation);
        true
    }

    /// Calls `keep` on every observation that the upstream is known to hold. `keep` may change it; `false` forgets it.
    pub(super) fn retain_stored(&mut self, mut keep: impl FnMut(&mut Observation) -> bool) {
        let gone: Vec<Key> = self
            .observations
            .iter_mut()
            .filter_map(|(key, observation)| (observation.stored && !keep(observation)).then_some(*key))
            .collect();
        for key in gone {
            self.observations.pop(&key);
        }
    }

    /// Returns the record under `key`, if any, whatever its count.
    pub(super) fn record(&self, key: Key) -> Option<RecordId> {
        self.observations.peek(&key).map(|observation| observation.record)
    }

    /// Changes the observation of `record` by `change`, unless another record has taken its key meanwhile.
    pub(super) fn adjust(&mut self, key: Key, record: RecordId, change: impl FnOnce(&mut Observation)) {
        if let Some(observation) = self.observations.peek_mut(&key)
            && observation.record == record
        {
            change(observation);
        }
    }

    /// Forgets the observation of `record`, so that its next repeat begins a new record.
    pub(super) fn forget(&mut self, key: Key, record: RecordId) {
        if self.record(key) == Some(record) {
            self.observations.pop(&key);
        }
    }

    pub(super) fn put(&mut self, key: Key, observation: Observation, settings: &Settings) {
        self.observations.put_within(key, observation, settings.lru_cache_size);
    }
}

fn add(count: i32, occurrences: u32, overflow: CountOverflow) -> i32 {
    match overflow {
        CountOverflow::Saturate => count.saturating_add_unsigned(occurrences),
        // COMPAT(client-go): `int32(lastObservation.count) + 1` wraps around (V 013).
        CountOverflow::Wrap => count.wrapping_add_unsigned(occurrences),
    }
}
