//! History: changes of upstream records outside of an answer. Any writer may have created, counted on or deleted them,
//! or they expired.

use std::hash::BuildHasher;

use super::dedup::Observation;
use super::{Correlator, Fold, Key, NAME_BYTES_MAX, RecordId, Settings};
use crate::event::Event;

/// Whether `version` is newer than `known`. Versions of one API server are growing numbers. Any two other versions can
/// only be compared for equality, so a different one counts as newer.
pub fn is_newer(version: &str, known: &str) -> bool {
    match (version.parse::<u64>(), known.parse::<u64>()) {
        (Ok(version), Ok(known)) => version > known,
        _ => version != known,
    }
}

/// Returns a hash of a namespace in four bytes, to distinguish equal names in several namespaces. An observation has
/// four spare bytes.
pub fn namespace_tag(namespace: &str) -> u32 {
    let [tag @ .., _, _, _, _] = foldhash::fast::FixedState::default().hash_one(namespace).to_le_bytes();
    u32::from_le_bytes(tag)
}

impl Correlator {
    /// Adopts a record that is not known here under its name. `is_live` returns whether the outbox has a record. Of
    /// several equal records, the newest is counted on. One whose name is too long to keep is not adopted. A combined
    /// record is recognised by its prefix.
    pub fn adopt(
        &mut self,
        event: &Event,
        count: i32,
        settings: &Settings,
        next_record: &mut u64,
        is_live: impl Fn(RecordId) -> bool,
    ) {
        if event.metadata.name.len() > NAME_BYTES_MAX {
            return;
        }
        let is_combined = event.message.starts_with(settings.message_prefix.as_str());
        let fold = if is_combined { Fold::Combined } else { Fold::Counted };
        let (key, _spam) = self.secret.of_record(event, fold, settings);
        let version = &event.metadata.resource_version;
        if let Some(known) = self.observation(key) {
            let ours = !known.stored || known.tag > 0 || is_live(known.record);
            if ours || !is_newer(version, &known.resource_version) {
                return;
            }
        }
        // Not without room, so that history evicts no live observation; this one is the next to be evicted.
        if self.observations.contains(&key) || self.observations.len() < self.cache_size.get() {
            let observation = Observation::new(RecordId(*next_record), event, count, true);
            self.observations.put_last(key, observation);
            *next_record += 1;
        }
    }

    /// Applies the upstream state of a record without owed writes: its count, and the part of it that its tag counts,
    /// if it has a tag.
    pub fn apply_watch(&mut self, key: Key, event: &Event, count: i32, tag: Option<u64>) {
        let Some(observation) = self.observations.peek_mut(&key) else { return };
        if is_newer(&event.metadata.resource_version, &observation.resource_version) {
            // A create of ours that was executed late, after a deletion, shows less than was counted meanwhile.
            let behind = tag.map_or(0, |tag| observation.tag.saturating_sub(tag));
            observation.count = count.saturating_add(i32::try_from(behind).unwrap_or(i32::MAX));
            observation.first_timestamp = event.first_timestamp;
            observation.resource_version = event.metadata.resource_version.clone();
            observation.stored = true;
        }
    }

    /// Applies the deletion, at `version`, of a record without owed writes. A record that this process has counted on
    /// is created again with its running count, as client-go does when a patch answers 404. An adopted record without
    /// own occurrences is forgotten. Returns whether it is news, and not older than what is known.
    pub fn apply_deletion(&mut self, key: Key, version: &str) -> bool {
        let Some(observation) = self.observations.peek_mut(&key) else { return false };
        let is_news = is_newer(version, &observation.resource_version) || version == observation.resource_version;
        if is_news {
            observation.stored = false;
            if observation.tag == 0 {
                self.observations.pop(&key);
            }
        }
        is_news
    }

    /// Applies [`apply_deletion`](Self::apply_deletion) to every record that is believed stored and that `is_gone`.
    pub fn apply_list(&mut self, mut is_gone: impl FnMut(&Observation) -> bool) {
        let mut forgotten = Vec::new();
        for (key, observation) in self.observations.iter_mut().filter(|(_, observation)| observation.stored) {
            observation.stored = !is_gone(observation);
            if !observation.stored && observation.tag == 0 {
                forgotten.push(*key);
            }
        }
        for key in forgotten {
            self.observations.pop(&key);
        }
    }
}
