//! Where in a table the entry of a key lies.
//!
//! Hot: nearly each look at a [`Recent`](super::Recent) begins here.

use super::key::Key;
use super::places::{Place, Places};

/// No position.
pub(super) const NONE: u32 = u32::MAX;

/// Positions by key.
#[derive(Debug, Default)]
pub(super) struct Index(Places<Position>);

/// A part of a key's hash, and the position of its entry.
#[derive(Debug, Clone, Copy)]
struct Position {
    tag: u32,
    /// [`NONE`] in a free place.
    at: u32,
}

impl Place for Position {
    const FREE: Self = Self { tag: 0, at: NONE };

    fn tag(&self) -> Option<u32> {
        (self.at != NONE).then_some(self.tag)
    }
}

impl Index {
    /// Whether nothing is looked up here.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.room() == 0
    }

    /// For as many entries as these.
    pub(super) fn new(room: usize, keys: impl Iterator<Item = Key>) -> Self {
        let mut index = Self(Places::with_room(room));
        (0..).zip(keys).for_each(|(at, key)| index.insert(key, at));
        index
    }

    /// How many entries it is for.
    pub(super) const fn room(&self) -> usize {
        self.0.room()
    }

    /// Makes it one for as many entries, not fewer than it has.
    pub(super) fn resize(&mut self, room: usize) {
        self.0.resize(room);
    }

    /// The position of `key`; `is_at` says whether an entry is the one.
    pub(super) fn find(&self, key: Key, is_at: impl Fn(u32) -> bool) -> Option<u32> {
        self.place(key, is_at).map(|place| self.0.at(place).at)
    }

    /// Notes where `key` is, which has no position yet.
    pub(super) fn insert(&mut self, key: Key, at: u32) {
        self.0.put(Position { tag: tag(key), at });
    }

    /// Forgets that `key` is at `at`.
    pub(super) fn remove(&mut self, key: Key, at: u32) {
        if let Some(place) = self.place(key, |other| other == at) {
            self.0.take(place);
        }
    }

    /// Notes that `key` went from one position to another.
    pub(super) fn relocate(&mut self, key: Key, from: u32, to: u32) {
        if let Some(place) = self.place(key, |at| at == from) {
            self.0.at_mut(place).at = to;
        }
    }

    fn place(&self, key: Key, is_at: impl Fn(u32) -> bool) -> Option<usize> {
        self.0.find(tag(key), |position| is_at(position.at))
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
