//! The table of aliases behind its lock.
//!
//! Every request takes the lock, and one event may have megabytes. So nothing is decoded, encoded or freed under it: an
//! event is taken out, and replaced only if it is still the same one.

use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::correlator::{Key, LruMap};
use crate::event::{ApiGroup, Event, protobuf};

/// LIMIT: average bytes per name: all events together have at most this many times `max_aliases`. Most have some
/// 400.
pub(super) const BYTES_A_NAME: usize = 2048;

/// An event as protobuf, and the API group that its body stated.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    type_meta: Option<ApiGroup>,
    bytes: Arc<[u8]>,
}

impl Packed {
    pub(super) fn new(event: &Event) -> Self {
        // Enough for most events.
        let mut bytes = Vec::with_capacity(1024);
        protobuf::write(ApiGroup::Core, event, &mut bytes);
        Self { type_meta: event.type_meta, bytes: bytes.into() }
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn unpack(&self) -> Option<Event> {
        let event = protobuf::decode(ApiGroup::Core, &self.bytes).ok()?.event;
        Some(Event { type_meta: self.type_meta, ..event })
    }

    /// Whether two are the same entry of the table, not only equal.
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes)
    }
}

/// Known names. At the limit the least recently used name is evicted.
#[derive(Debug)]
pub(super) struct AliasTable(Mutex<Known>);

#[derive(Debug)]
struct Known {
    // LIMIT: `max_aliases` names, and `BYTES_A_NAME` times `max_aliases` bytes; the newest event is kept even if it
    // alone is larger.
    names: LruMap<Packed>,
    bytes: usize,
    max: usize,
}

impl Known {
    /// Stores an event. Returns the replaced and evicted ones, for the caller to free outside of the lock.
    fn put(&mut self, key: Key, packed: Packed) -> Vec<Packed> {
        self.bytes = self.bytes.saturating_add(packed.size());
        let mut gone: Vec<Packed> = self.names.put(key, packed).into_iter().collect();
        let mut bytes = self.bytes.saturating_sub(gone.iter().map(Packed::size).sum());
        while self.names.len() > self.max || bytes > self.max.saturating_mul(BYTES_A_NAME) && self.names.len() > 1 {
            let Some((_, oldest)) = self.names.pop_lru() else { break };
            bytes = bytes.saturating_sub(oldest.size());
            gone.push(oldest);
        }
        self.bytes = bytes;
        gone
    }
}

impl AliasTable {
    pub(super) fn new(max: NonZeroUsize) -> Self {
        Self(Mutex::new(Known { names: LruMap::default(), bytes: 0, max: max.get() }))
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().names.len()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.lock().bytes
    }

    pub(super) fn get(&self, key: Key) -> Option<Packed> {
        self.0.lock().names.get(&key).cloned()
    }

    pub(super) fn put(&self, key: Key, packed: Packed) {
        let gone = self.0.lock().put(key, packed);
        drop(gone);
    }

    /// Stores an event if the entry is still the one `seen`.
    ///
    /// # Errors
    /// The entry, if it is another one.
    pub(super) fn replace(&self, key: Key, seen: Option<&Packed>, packed: Packed) -> Result<(), Option<Packed>> {
        let mut known = self.0.lock();
        let current = known.names.get(&key);
        let is_same = match (current, seen) {
            (Some(current), Some(seen)) => current.is(seen),
            (current, seen) => current.is_none() && seen.is_none(),
        };
        if !is_same {
            return Err(current.cloned());
        }
        let gone = known.put(key, packed);
        drop(known);
        drop(gone);
        Ok(())
    }

    pub(super) fn remove(&self, key: Key) {
        let mut known = self.0.lock();
        let gone = known.names.pop(&key);
        known.bytes = known.bytes.saturating_sub(gone.as_ref().map_or(0, Packed::size));
        drop(known);
        drop(gone);
    }
}
