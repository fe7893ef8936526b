//! Events that have folded into storm records, for reads of their objects. In memory only.

use smol_str::SmolStr;

use super::Outbox;
use crate::clock::Mono;
use crate::correlator::{Key, LruMap};
use crate::event::Event;
use crate::limits::Share;

/// The annotation of an event that the upstream does not hold, with the name of the storm record that counts it.
pub const FOLDED_MARK: &str = "eventweir.io/folded-into";

/// LIMIT: events over all shards. Above it, the event that folded longest ago is removed.
const EVENTS_MAX: usize = 10_000;

/// LIMIT: their bytes over all shards, with the same effect.
const BYTES_MAX: usize = 16 << 20;

/// Time for which an event stays in the table after it has folded: the upstream's TTL.
const KNOWN_FOR: std::time::Duration = std::time::Duration::from_secs(3600);

struct Folded {
    /// The newest event, with the count of all.
    event: Event,
    size: usize,
    at: Mono,
}

/// Events by group and object.
#[derive(Default)]
pub(super) struct FoldedTable {
    // LIMIT: `EVENTS_MAX` and `BYTES_MAX`.
    known: LruMap<Folded>,
    number: Share,
    bytes: Share,
}

impl FoldedTable {
    /// Creates the table of another shard, which shares the limits.
    pub(super) fn another(&self) -> Self {
        Self { known: LruMap::default(), number: self.number.another(), bytes: self.bytes.another() }
    }

    pub(super) fn add(&mut self, key: Key, mut event: Event, occurrences: u64, storm: &SmolStr, now: Mono) {
        let known = self.known.pop(&key);
        if let Some(known) = &known {
            self.bytes -= known.size;
        }
        let known = known.filter(|known| known.is_known(now)).map(|known| known.event);
        event.count = i32::try_from(occurrences).unwrap_or(i32::MAX);
        if let Some(known) = known {
            event.count = event.count.saturating_add(known.count);
            event.first_timestamp = known.first_timestamp;
            event.metadata.name = known.metadata.name;
        }
        let annotations = &mut event.metadata.rare.get_or_insert_default().annotations;
        annotations.insert(SmolStr::new_static(FOLDED_MARK), storm.clone());
        let size = event.approximate_size();
        self.bytes += size;
        self.known.put(key, Folded { event, size, at: now });
        self.number.set(self.known.len());
        while self.number.is_over(EVENTS_MAX) || self.bytes.is_over(BYTES_MAX) || self.is_oldest_past(now) {
            let Some((_, oldest)) = self.known.pop_lru() else { return };
            self.bytes -= oldest.size;
            self.number.set(self.known.len());
        }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    fn is_oldest_past(&self, now: Mono) -> bool {
        self.known.peek_lru().is_some_and(|(_, oldest)| !oldest.is_known(now))
    }

    pub(super) fn has(&self, key: Key) -> bool {
        self.known.contains(&key)
    }

    pub(super) fn get(&self, key: Key, now: Mono) -> Option<&Event> {
        self.known.peek(&key).filter(|known| known.is_known(now)).map(|known| &known.event)
    }

    /// Returns the events, newest first.
    pub(super) fn iter(&self, now: Mono) -> impl Iterator<Item = &Event> {
        self.known.iter().map(|(_, known)| known).filter(move |known| known.is_known(now)).map(|known| &known.event)
    }
}

impl Outbox {
    /// Returns the events of the table that have folded into storm records.
    pub fn folded(&self, now: Mono) -> impl Iterator<Item = &Event> {
        self.folded.iter(now)
    }

    /// Returns the folded event of the same group and object, if the table has one.
    pub fn folded_like(&self, event: &Event, now: Mono) -> Option<&Event> {
        self.folded.get(self.groups.object(event), now)
    }
}

impl std::fmt::Debug for FoldedTable {
    /// Writes the keys only, which decide about further events.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.known.iter().map(|(key, _)| key)).finish()
    }
}

impl Folded {
    fn is_known(&self, now: Mono) -> bool {
        now.since(self.at) < KNOWN_FOR
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::FOLDED_MARK;
    use crate::clock::Now;
    use crate::correlator::{KeySecret, Policy, Rate, Settings};
    use crate::event::Event;
    use crate::outbox::{self, Answer, GroupSettings, Request};
    use crate::shard::{self, Shard};

    /// Fault: they named the storm record as it was called before another writer's event had its name.
    #[test]
    fn folded_events_name_the_storm_record_as_it_is_called_now() {
        let at = |second: i64| Now::at(second * 1_000_000_000);
        let policy = Policy::from(Settings { group: Some(Rate { qps: 0.1, burst: 1 }), ..Settings::default() });
        let groups = GroupSettings { fold_after: Duration::from_secs(1), ..GroupSettings::default() };
        let outbox = outbox::Settings { groups, ..outbox::Settings::default() };
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings { outbox, ..shard::Settings::default() }, 1);
        let accept = |shard: &mut Shard, object: usize, second| {
            let mut event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
            event.metadata.namespace = "shop".into();
            event.involved_object.name = format!("web-{object}").into();
            shard.accept(event, 1, at(second), &policy).unwrap();
        };
        (0..4).for_each(|object| accept(&mut shard, object, 1));
        assert_eq!(shard.write_all(at(1)).len(), 1);
        let write = shard.next_write(at(11)).unwrap();
        let Request::Create { event: taken, .. } = write.request else { unreachable!("of the storm record") };
        shard.settle(write.record, Answer::Exists, at(11));
        assert!(matches!(shard.next_write(at(11)).unwrap().request, Request::Read { .. }));
        let another = Event { reason: "Another".into(), ..(*taken).clone() };
        shard.settle(write.record, Answer::Stored(Box::new(another)), at(11));
        accept(&mut shard, 4, 11);
        assert!(matches!(shard.next_write(at(11)).unwrap().request, Request::Create { .. }));
        assert_eq!((shard.next_write(at(11)), shard.next_write(at(13))), (None, None));
        let folded = shard.folded(at(13).mono).find(|event| event.involved_object.name == "web-4").unwrap();
        let named = &folded.metadata.rare.as_ref().unwrap().annotations[FOLDED_MARK];
        let (storm, _) = shard.pending().find(|(event, _)| event.message.starts_with("storm")).unwrap();
        assert!(storm.metadata.name == *named && *named != taken.metadata.name, "{named}");
    }
}
