//! A map that knows the order in which its entries were used, for caches that forget what was used longest ago.
//!
//! Hot: every occurrence looks into four of these. Ours and not the `lru` crate's, which boxes each entry and two ends: a source with
//! five events cost 900 bytes before it held anything, and each use touched two neighbours on the heap. Here entries lie side by side,
//! in an order that is a list of positions. A few are found by looking at each, more by an [`Index`]. Unused room is given back.

#[cfg(test)]
mod tests;

use std::num::NonZeroUsize;

use super::index::{Index, NONE};
use super::key::Key;

/// Entries that are looked through without an index: about what one look into an index costs.
const SCANNED: usize = 8;

/// Values by [`Key`], in the order of their use.
#[derive(Debug)]
pub struct Recent<V> {
    // LIMIT: the owner's, who takes out the oldest; and `NONE` positions, far above any setting that fits into memory.
    slots: Vec<Slot<V>>,
    /// Positions by key; none as long as there have been few.
    // LIMIT: one a slot, with room for what the slots have room for.
    index: Index,
    // Positions, or `NONE`.
    newest: u32,
    oldest: u32,
}

/// Where a key is in its table, if it is there.
#[derive(Debug, Clone, Copy)]
pub struct Found(Option<u32>);

// In this order, so that what a use looks at is followed by what the value begins with.
#[derive(Debug)]
#[repr(C)]
struct Slot<V> {
    key: Key,
    newer: u32,
    older: u32,
    value: V,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { slots: Vec::new(), index: Index::default(), newest: NONE, oldest: NONE }
    }
}

impl<V> Recent<V> {
    /// Entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The value of `key`.
    #[must_use]
    pub fn peek(&self, key: Key) -> Option<&V> {
        self.position(key).map(|at| &self.slot(at).value)
    }

    /// The value of `key`, which is not used by this.
    pub fn peek_mut(&mut self, key: Key) -> Option<&mut V> {
        self.position(key).map(|at| &mut self.slot_mut(at).value)
    }

    /// Whether `key` is there.
    #[must_use]
    pub fn contains(&self, key: Key) -> bool {
        self.position(key).is_some()
    }

    /// Where `key` is. Who looks into several tables finds all before using any: then the processor waits for all of it at once.
    #[must_use]
    pub fn find(&self, key: Key) -> Found {
        Found(self.position(key))
    }

    /// Uses the value of `key`.
    pub fn get(&mut self, key: Key) -> Option<&mut V> {
        self.get_found(self.find(key))
    }

    /// Uses the value of a key where it was found. Nothing was put in or taken out since.
    pub fn get_found(&mut self, Found(at): Found) -> Option<&mut V> {
        let at = at?;
        self.promote(at);
        Some(&mut self.slot_mut(at).value)
    }

    /// Uses the value of `key`, which is made where there is none.
    pub fn get_or_insert_with(&mut self, key: Key, make: impl FnOnce() -> V) -> &mut V {
        self.get_or_insert_within(key, NonZeroUsize::MAX, make)
    }

    /// The same; what was used longest ago makes room for a new value where there were more than `max` otherwise.
    pub fn get_or_insert_within(&mut self, key: Key, max: NonZeroUsize, make: impl FnOnce() -> V) -> &mut V {
        self.get_or_insert_found(self.find(key), key, max, make)
    }

    /// The same of a key where it was [found](Self::find), or was not. Nothing was put in or taken out since.
    pub fn get_or_insert_found(&mut self, at: Found, key: Key, max: NonZeroUsize, make: impl FnOnce() -> V) -> &mut V {
        debug_assert_eq!(at.0, self.position(key), "it was put in or taken out since");
        match at.0 {
            Some(at) => self.promote(at),
            None => drop(self.insert(key, make(), max)),
        }
        self.trim(max);
        &mut self.slot_mut(self.newest).value
    }

    /// Puts a value in the place of the one of `key`, which is returned, and uses it.
    pub fn put(&mut self, key: Key, value: V) -> Option<V> {
        self.put_within(key, value, NonZeroUsize::MAX)
    }

    /// The same; what was used longest ago makes room for a new value, and is returned, where there were more than `max`
    /// otherwise.
    pub fn put_within(&mut self, key: Key, value: V, max: NonZeroUsize) -> Option<V> {
        self.put_found(self.find(key), key, value, max)
    }

    /// The same of a key where it was [found](Self::find), or was not. Nothing was put in or taken out since.
    pub fn put_found(&mut self, at: Found, key: Key, value: V, max: NonZeroUsize) -> Option<V> {
        debug_assert_eq!(at.0, self.position(key), "it was put in or taken out since");
        let replaced = match at.0 {
            Some(at) => {
                self.promote(at);
                Some(std::mem::replace(&mut self.slot_mut(at).value, value))
            }
            None => self.insert(key, value, max),
        };
        self.trim(max);
        replaced
    }

    /// Puts a value in the place of the one of `key`, as what was used longest ago.
    pub fn put_last(&mut self, key: Key, value: V) {
        self.put(key, value);
        let at = self.newest;
        self.detach(at);
        self.attach_oldest(at);
    }

    /// Takes `key` out.
    pub fn remove(&mut self, key: Key) -> Option<V> {
        self.position(key).map(|at| self.take(at).value)
    }

    /// Takes out what was used longest ago.
    pub fn pop_oldest(&mut self) -> Option<(Key, V)> {
        if self.oldest == NONE {
            return None;
        }
        let slot = self.take(self.oldest);
        Some((slot.key, slot.value))
    }

    /// What was used longest ago.
    #[must_use]
    pub fn oldest(&self) -> Option<(Key, &V)> {
        (self.oldest != NONE).then(|| self.slot(self.oldest)).map(|slot| (slot.key, &slot.value))
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.slots.iter().map(|slot| (slot.key, &slot.value))
    }

    /// All entries, in no order, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut V)> {
        self.slots.iter_mut().map(|slot| (slot.key, &mut slot.value))
    }

    fn slot(&self, at: u32) -> &Slot<V> {
        &self.slots[at as usize]
    }

    fn slot_mut(&mut self, at: u32) -> &mut Slot<V> {
        &mut self.slots[at as usize]
    }

    #[expect(clippy::cast_possible_truncation, reason = "`push` keeps positions below `NONE`")]
    fn position(&self, key: Key) -> Option<u32> {
        if self.index.is_empty() {
            return self.slots.iter().position(|slot| slot.key == key).map(|at| at as u32);
        }
        self.index.find(key, |at| self.slot(at).key == key)
    }

    /// Puts a new entry in, and returns what made room for it.
    fn insert(&mut self, key: Key, value: V, max: NonZeroUsize) -> Option<V> {
        if self.slots.len() < max.get() {
            self.push(key, value);
            return None;
        }
        Some(self.replace_oldest(key, value))
    }

    /// Forgets what is more than `max`: there is something only after a limit was lowered.
    fn trim(&mut self, max: NonZeroUsize) {
        while self.slots.len() > max.get() {
            self.pop_oldest();
        }
    }

    /// Puts a new entry in the place of the oldest, of which there must be one. A full cache does this for each new entry, so
    /// nothing else is moved.
    fn replace_oldest(&mut self, key: Key, value: V) -> V {
        let at = self.oldest;
        self.detach(at);
        let has_index = !self.index.is_empty();
        self.index.remove(self.slot(at).key, at);
        let slot = self.slot_mut(at);
        slot.key = key;
        let replaced = std::mem::replace(&mut slot.value, value);
        self.attach_newest(at);
        if has_index {
            self.index.insert(key, at);
        }
        replaced
    }

    fn push(&mut self, key: Key, value: V) {
        let mut at = u32::try_from(self.slots.len()).unwrap_or(NONE);
        if at == NONE {
            self.pop_oldest();
            at = NONE - 1;
        }
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact(grown(self.slots.len()) - self.slots.len());
        }
        self.slots.push(Slot { key, newer: NONE, older: NONE, value });
        self.attach_newest(at);
        if !self.index.is_empty() {
            if self.slots.len() > self.index.room() {
                // For two steps ahead: a position takes a tenth of an entry's room, and as long to move as the entry.
                self.index.resize(grown(grown(self.slots.capacity())));
            }
            self.index.insert(key, at);
        } else if self.slots.len() > SCANNED {
            self.index = Index::new(self.slots.capacity(), self.slots.iter().map(|slot| slot.key));
        }
    }

    /// Takes a slot out; the last one moves to its place.
    fn take(&mut self, at: u32) -> Slot<V> {
        self.detach(at);
        self.index.remove(self.slot(at).key, at);
        let taken = self.slots.swap_remove(at as usize);
        if let Some(Slot { key, newer, older, .. }) = self.slots.get(at as usize) {
            let (key, newer, older) = (*key, *newer, *older);
            let before = u32::try_from(self.slots.len()).unwrap_or(NONE);
            self.index.relocate(key, before, at);
            self.link(newer, at, older);
        }
        self.shrink();
        taken
    }

    /// Gives room back that has not been needed for long.
    fn shrink(&mut self) {
        let room = self.slots.len().saturating_mul(2).max(SCANNED);
        if self.slots.capacity() > room.saturating_mul(2) {
            self.slots.shrink_to(room);
            if !self.index.is_empty() {
                self.index.resize(room);
            }
        }
    }

    fn promote(&mut self, at: u32) {
        if self.newest != at {
            self.detach(at);
            self.attach_newest(at);
        }
    }

    fn detach(&mut self, at: u32) {
        let Slot { newer, older, .. } = *self.slot(at);
        match newer {
            NONE => self.newest = older,
            newer => self.slot_mut(newer).older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slot_mut(older).newer = newer,
        }
    }

    fn attach_newest(&mut self, at: u32) {
        self.link(NONE, at, self.newest);
    }

    fn attach_oldest(&mut self, at: u32) {
        self.link(self.oldest, at, NONE);
    }

    /// Makes `at` stand between two neighbours.
    fn link(&mut self, newer: u32, at: u32, older: u32) {
        let slot = self.slot_mut(at);
        (slot.newer, slot.older) = (newer, older);
        match newer {
            NONE => self.newest = at,
            newer => self.slot_mut(newer).older = at,
        }
        match older {
            NONE => self.oldest = at,
            older => self.slot_mut(older).newer = at,
        }
    }
}

/// The room for entries after so many. More by a quarter and not by the double: most sources have few entries for good.
const fn grown(room: usize) -> usize {
    room + 1 + room / 4
}
