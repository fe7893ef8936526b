//! Where in a table the entry of a key lies.
//!
//! Hot: of what a repeat takes, half is spent waiting for memory that is far from the processor, and most of that here. So a look is one
//! look: a part of the hash and the position stand side by side, and next to them those that come close. (hashbrown's tables keep hashes
//! and positions apart; what makes them fast on entries that are near costs a second look here.)

use prefetch_index::prefetch_index;

use super::key::Key;

/// No position.
pub(super) const NONE: u32 = u32::MAX;

/// Positions by key.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// At least a quarter of them is empty. Each position stands at its tag's home, or in one of the places behind that are taken.
    // LIMIT: the owner's, four thirds of it.
    places: Box<[Place]>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    tag: u32,
    /// [`NONE`] in an empty one.
    at: u32,
}

const EMPTY: Place = Place { tag: 0, at: NONE };

impl Index {
    /// Whether nothing is looked up here.
    pub(super) const fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// For as many entries as these.
    pub(super) fn new(room: usize, keys: impl Iterator<Item = Key>) -> Self {
        let mut index = Self::with_room(room);
        (0..).zip(keys).for_each(|(at, key)| index.insert(key, at));
        index
    }

    fn with_room(room: usize) -> Self {
        Self { places: vec![EMPTY; room.saturating_add(room / 3).saturating_add(1)].into() }
    }

    /// How many entries it is for.
    pub(super) const fn room(&self) -> usize {
        self.places.len() * 3 / 4
    }

    /// Makes it one for as many entries, not fewer than it has.
    pub(super) fn resize(&mut self, room: usize) {
        let old = std::mem::replace(self, Self::with_room(room));
        old.places.iter().filter(|place| place.at != NONE).for_each(|place| self.put(*place));
    }

    /// The position of `key`; `is_at` says whether an entry is the one.
    pub(super) fn find(&self, key: Key, is_at: impl Fn(u32) -> bool) -> Option<u32> {
        self.place(key, is_at).map(|place| self.places[place].at)
    }

    /// Has the place fetched where the search for `key` begins.
    #[inline]
    pub(super) fn touch(&self, key: Key) {
        prefetch_index(&*self.places, self.home(tag(key)));
    }

    /// Notes where `key` is, which has no position yet.
    pub(super) fn insert(&mut self, key: Key, at: u32) {
        self.put(Place { tag: tag(key), at });
    }

    /// Forgets that `key` is at `at`.
    pub(super) fn remove(&mut self, key: Key, at: u32) {
        let Some(mut hole) = self.place(key, |other| other == at) else { return };
        let mut place = hole;
        loop {
            place = self.next(place);
            let behind = self.places[place];
            if behind.at == NONE {
                break;
            }
            // What is behind comes forward, but for what would stand before its home.
            if self.way(self.home(behind.tag), place) >= self.way(hole, place) {
                self.places[hole] = behind;
                hole = place;
            }
        }
        self.places[hole] = EMPTY;
    }

    /// Notes that `key` went from one position to another.
    pub(super) fn relocate(&mut self, key: Key, from: u32, to: u32) {
        if let Some(place) = self.place(key, |at| at == from) {
            self.places[place].at = to;
        }
    }

    fn place(&self, key: Key, is_at: impl Fn(u32) -> bool) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let tag = tag(key);
        let mut place = self.home(tag);
        loop {
            let Place { tag: other, at } = self.places[place];
            if at == NONE {
                return None;
            }
            if other == tag && is_at(at) {
                return Some(place);
            }
            place = self.next(place);
        }
    }

    fn put(&mut self, new: Place) {
        let mut place = self.home(new.tag);
        while self.places[place].at != NONE {
            place = self.next(place);
        }
        self.places[place] = new;
    }

    /// Tags are uniform, so this is, for any number of places.
    const fn home(&self, tag: u32) -> usize {
        ((tag as u128 * self.places.len() as u128) >> 32) as usize
    }

    const fn next(&self, place: usize) -> usize {
        if place + 1 < self.places.len() { place + 1 } else { 0 }
    }

    /// How many places it is from one to the other, onwards.
    const fn way(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.places.len() - from }
    }
}

/// The part of a key that stands in its place.
const fn tag(key: Key) -> u32 {
    (key.half() >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Tags that meet, at the end of the table too, and some that are spread.
        #[test]
        fn it_knows_what_a_map_knows(steps in prop::collection::vec((0..40_u32, 0..4_u8), 0..200)) {
            let tags = [0, 1, u32::MAX, u32::MAX - 1, u32::MAX / 2];
            let tag = |number: u32| match number {
                0..20 => tags[number as usize % tags.len()],
                _ => number.wrapping_mul(0x9e37_79b9),
            };
            let key = |number: u32| Key(u128::from(number) << 64 | u128::from(tag(number)) << 32);
            let mut index = Index::new(2, std::iter::empty());
            let mut map = HashMap::new();
            for (number, step) in steps {
                let (this, other) = (key(number), key((number + 5) % 40));
                match (step, map.contains_key(&number)) {
                    (0 | 1, false) => {
                        if map.len() >= index.room() {
                            index.resize(map.len() + 1 + map.len() / 4);
                        }
                        index.insert(this, number);
                        map.insert(number, this);
                    }
                    (2, true) => {
                        index.remove(this, number);
                        map.remove(&number);
                    }
                    (_, true) => {
                        index.relocate(this, number, number + 100);
                        prop_assert_eq!(index.find(this, |at| at == number + 100), Some(number + 100));
                        index.relocate(this, number + 100, number);
                    }
                    (3, false) => index.resize(map.len()),
                    _ => index.remove(other, u32::MAX - 1),
                }
                for number in 0..40 {
                    let found = index.find(key(number), |at| map.get(&at) == Some(&key(number)));
                    prop_assert_eq!(found, map.get(&number).map(|_| number));
                }
            }
        }
    }
}
