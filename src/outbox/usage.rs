//! The room that records take: that of all of them, and that of each source's.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::Outbox;
use super::record::{Phase, Record};
use super::settings::Settings;
use crate::clock::Now;
use crate::correlator::{BuildKeyHasher, Key, RecordId};
use crate::limits::Share;

/// Number and bytes of the records.
#[derive(Debug, Default)]
pub(super) struct Usage {
    records: Share,
    /// With the digests that are not records yet.
    bytes: Share,
    // LIMIT: one entry per record.
    per_source: HashMap<Key, Own, BuildKeyHasher>,
}

/// What one source's records take.
#[derive(Debug, Clone, Copy, Default)]
struct Own {
    records: usize,
    bytes: usize,
}

impl Usage {
    /// Returns the usage of another shard, which counts towards the same limits.
    pub(super) fn another(&self) -> Self {
        Self { records: self.records.another(), bytes: self.bytes.another(), per_source: HashMap::default() }
    }

    pub(super) fn all_bytes(&self) -> usize {
        self.bytes.all()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes.own()
    }

    pub(super) fn add(&mut self, source: Key, size: usize) {
        self.records += 1;
        self.bytes += size;
        let own = self.per_source.entry(source).or_default();
        own.records += 1;
        own.bytes += size;
    }

    pub(super) fn remove(&mut self, source: Key, size: usize) {
        self.records -= 1;
        self.bytes -= size;
        if let Entry::Occupied(mut entry) = self.per_source.entry(source) {
            let own = entry.get_mut();
            own.records -= 1;
            own.bytes -= size;
            if own.records == 0 {
                entry.remove();
            }
        }
    }

    pub(super) fn resize(&mut self, source: Key, before: usize, after: usize) {
        // Most repeats change no size.
        if before == after {
            return;
        }
        self.bytes.replace(before, after);
        if let Some(own) = self.per_source.get_mut(&source) {
            own.bytes = own.bytes - before + after;
        }
    }

    /// Counts a digest that is no record yet with its new size. It is of several sources.
    pub(super) fn resize_digest(&mut self, before: usize, after: usize) {
        self.bytes.replace(before, after);
    }

    /// Whether a new record of this source has room, and the source stays within its share of records and bytes. The
    /// share counts the source's own records and the free room only. So each of several flooding sources gets an equal
    /// part, and some room stays free.
    pub(super) fn has_room(&self, source: Key, settings: &Settings) -> bool {
        let percent = settings.source_percent.get().min(100);
        // own / (own + free) < percent / 100
        let may_grow = |own: usize, free: usize| own.saturating_mul(100 - percent) < free.saturating_mul(percent);
        let free_records = settings.max_records.get().saturating_sub(self.records.all());
        let free_bytes = settings.max_bytes.get().saturating_sub(self.bytes.all());
        let own = self.per_source.get(&source).copied().unwrap_or_default();
        free_records > 0 && free_bytes > 0 && may_grow(own.records, free_records) && may_grow(own.bytes, free_bytes)
    }
}

impl Outbox {
    /// Whether a new record of this source may be offered: there is room, and the source stays within its share. Settled
    /// records make room: their next write comes without the coalescing interval then.
    pub fn has_room(&mut self, source: Key, now: Now) -> bool {
        // Only with enough of them, because this iterates over all records.
        if !self.usage.has_room(source, &self.settings) && self.settled > self.records.len() / 8 {
            self.settled = 0;
            let is_free = |record: &Record| {
                matches!(record.phase, Phase::Settled) && !record.kind.folds() && record.limbo(now).is_none()
            };
            let free = self.records.iter().filter(|(_, record)| is_free(record));
            let free: Vec<RecordId> = free.map(|(id, _)| *id).collect();
            free.into_iter().for_each(|id| self.remove(id, now));
        }
        self.usage.has_room(source, &self.settings)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use super::*;
    use crate::event::Event;
    use crate::outbox::{Answer, Offer};

    /// Fault: with a long `coalesceInterval`, new events were refused although nothing waited.
    #[test]
    fn written_records_make_room_for_new_ones() {
        let (max_records, coalesce_interval) = (NonZeroUsize::new(10).unwrap(), Duration::from_secs(3600));
        let mut outbox = Outbox::new(Settings { max_records, coalesce_interval, ..Settings::default() }, 0);
        for number in 0..100 {
            assert!(outbox.has_room(Key(1), Now::at(1)), "{number}");
            outbox.offer(Offer::of(number, None), Event::default(), Now::at(1));
            let id = outbox.next_write(Now::at(1)).unwrap().record;
            outbox.settle(id, Answer::Stored(Box::default()), Now::at(1));
        }
        // Those that wait do not.
        for number in 100..105 {
            assert!(outbox.has_room(Key(1), Now::at(1)), "{number}");
            outbox.offer(Offer::of(number, None), Event::default(), Now::at(1));
        }
        assert!(!outbox.has_room(Key(1), Now::at(1)));
    }

    /// Fault: the share counted records only, so that few large events of one source took the bytes of all.
    #[test]
    fn a_source_has_a_share_of_the_bytes_too() {
        let max_bytes = NonZeroUsize::new(1000).unwrap();
        let settings = Settings { max_bytes, ..Settings::default() };
        let (mut usage, [one, other]) = (Usage::default(), [Key(1), Key(2)]);
        usage.add(one, 499);
        assert!(usage.has_room(one, &settings) && usage.has_room(other, &settings));
        usage.resize(one, 499, 500);
        assert!(!usage.has_room(one, &settings) && usage.has_room(other, &settings));
        // Half of what is left, and so on.
        usage.add(other, 249);
        assert!(usage.has_room(other, &settings));
        usage.add(other, 1);
        assert!(!usage.has_room(other, &settings) && usage.has_room(Key(3), &settings));
        usage.remove(one, 500);
        assert!(usage.has_room(one, &settings) && usage.has_room(other, &settings));
        assert_eq!((usage.records.all(), usage.all_bytes()), (2, 250));
        // Digests belong to no source.
        usage.resize_digest(0, 750);
        assert!(!usage.has_room(Key(3), &settings));
    }
}
