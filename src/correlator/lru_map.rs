//! A least-recently-used map by [`Key`]. The caller passes the limit, because a reload may change it. Based on the
//! `lru` crate.
//!
//! Unbounded underneath: a bounded cache of the crate allocates for all entries at once, and most sources have few.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};

use lru::LruCache;

use super::key::{BuildKeyHasher, Key};

/// Values by key, in the order of use.
// LIMIT: set by the owner, who passes it to `put_within` and `get_or_insert_within`, or evicts by `pop_lru`.
pub struct LruMap<V> {
    entries: LruCache<Key, V, BuildKeyHasher>,
    /// Entries that the limits of the calls have evicted so far.
    pub(super) evicted: u64,
}

impl<V> Default for LruMap<V> {
    fn default() -> Self {
        Self { entries: LruCache::unbounded_with_hasher(BuildKeyHasher::default()), evicted: 0 }
    }
}

impl<V> LruMap<V> {
    /// Returns the value of `key`, made by `make` if there is none. Evicts entries beyond `max`.
    pub fn get_or_insert_within(&mut self, key: Key, max: NonZeroUsize, make: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains(&key) {
            self.evict_to(max.get() - 1);
        }
        self.entries.get_or_insert_mut(key, make)
    }

    /// Puts a value under `key`. Evicts entries beyond `max`.
    pub fn put_within(&mut self, key: Key, value: V, max: NonZeroUsize) {
        self.entries.put(key, value);
        self.evict_to(max.get());
    }

    /// Puts a value under `key` as the next one to be evicted.
    pub fn put_last(&mut self, key: Key, value: V) {
        self.entries.put(key, value);
        self.entries.demote(&key);
    }

    /// Evicts entries beyond `len`.
    pub(super) fn evict_to(&mut self, len: usize) {
        while self.entries.len() > len {
            self.entries.pop_lru();
            self.evicted += 1;
        }
    }
}

impl<V> Deref for LruMap<V> {
    type Target = LruCache<Key, V, BuildKeyHasher>;

    fn deref(&self) -> &Self::Target {
        &self.entries
    }
}

impl<V> DerefMut for LruMap<V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.entries
    }
}

impl<V: fmt::Debug> fmt::Debug for LruMap<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_evicts_the_least_recently_used_beyond_the_limit_of_each_call() {
        let (mut map, max) = (LruMap::default(), |max| NonZeroUsize::new(max).unwrap());
        for key in 0..4 {
            map.put_within(Key(key), key, max(3));
        }
        map.get(&Key(1));
        *map.get_or_insert_within(Key(9), max(3), || 9) += 1;
        let keys = |map: &LruMap<u128>| map.iter().map(|(key, value)| (key.0, *value)).collect::<Vec<_>>();
        assert_eq!(keys(&map), [(9, 10), (1, 1), (3, 3)]);
        map.put_last(Key(5), 5);
        assert_eq!(map.peek_lru(), Some((&Key(5), &5)));
        // A lowered limit takes effect at the next insertion.
        map.put_within(Key(9), 0, max(1));
        assert_eq!(keys(&map), [(9, 0)]);
    }
}
