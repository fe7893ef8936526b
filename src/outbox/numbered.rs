//! Things by the numbers of their records.
//!
//! Hot: each repeat looks for its record here, which is one look; see [`Places`].

use crate::correlator::{Place, Places, RecordId};

/// Fewest that there is room for.
const LEAST: usize = 8;

/// Room that is not worth giving back.
const ROOMY: usize = 1024;

/// Values by number.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    // LIMIT: the owner's.
    places: Places<Option<(RecordId, T)>>,
    len: usize,
}

impl<T> Place for Option<(RecordId, T)> {
    const FREE: Self = None;

    fn tag(&self) -> Option<u32> {
        self.as_ref().map(|(id, _)| tag(*id))
    }
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self { places: Places::default(), len: 0 }
    }
}

impl<T> Numbered<T> {
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn contains(&self, id: RecordId) -> bool {
        self.place(id).is_some()
    }

    pub(super) fn get(&self, id: RecordId) -> Option<&T> {
        self.places.at(self.place(id)?).as_ref().map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, id: RecordId) -> Option<&mut T> {
        let place = self.place(id)?;
        self.places.at_mut(place).as_mut().map(|(_, value)| value)
    }

    /// Puts a value in. There must be none of its number.
    pub(super) fn insert(&mut self, id: RecordId, value: T) {
        debug_assert!(!self.contains(id));
        if self.len >= self.places.room() {
            self.places.resize((self.len + self.len / 2).max(LEAST));
        }
        self.places.put(Some((id, value)));
        self.len += 1;
    }

    /// Takes a value out. Room that was needed in the fullest hour is given back.
    pub(super) fn remove(&mut self, id: RecordId) -> Option<T> {
        let taken = self.places.take(self.place(id)?);
        self.len -= 1;
        if self.places.room() > ROOMY && self.len < self.places.room() / 8 {
            self.places.resize(self.len * 2);
        }
        taken.map(|(_, value)| value)
    }

    /// Everything, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RecordId, &T)> {
        self.places.iter().flatten().map(|(id, value)| (*id, value))
    }

    /// The same without numbers.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    fn place(&self, id: RecordId) -> Option<usize> {
        self.places.find(tag(id), |place| place.as_ref().is_some_and(|(other, _)| *other == id))
    }
}

/// Numbers follow each other: by the golden ratio they are spread more evenly than by chance. But not every `n`th of them, for a few `n`
/// (about the Fibonacci numbers); that only those are left has not been seen, and would cost no more than time.
const fn tag(id: RecordId) -> u32 {
    (id.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_knows_what_a_map_knows(steps in prop::collection::vec((0..60_u64, 0..3_u8), 0..300)) {
            let mut numbered = Numbered::default();
            let mut map = BTreeMap::new();
            for (at, (number, step)) in steps.into_iter().enumerate() {
                let id = RecordId(number);
                if step == 0 {
                    prop_assert_eq!(numbered.remove(id), map.remove(&id));
                } else if let Some(value) = numbered.get_mut(id) {
                    *value = at;
                    map.insert(id, at);
                } else {
                    numbered.insert(id, at);
                    prop_assert_eq!(map.insert(id, at), None);
                }
                prop_assert_eq!(numbered.get(id), map.get(&id));
                prop_assert_eq!(numbered.get_mut(id), map.get_mut(&id));
                prop_assert_eq!(numbered.contains(id), map.contains_key(&id));
            }
            prop_assert_eq!(numbered.len(), map.len());
            prop_assert_eq!(numbered.iter().collect::<BTreeMap<_, _>>(), map.iter().map(|(id, at)| (*id, at)).collect());
        }
    }

    #[test]
    fn numbers_that_follow_each_other_stand_apart() {
        // Those of a shard that is full, and what is left of them after a day.
        for step in [1, 2, 7, 16, 1000] {
            let ids = || (0..5000).map(|number| RecordId(number * step));
            let mut numbered = Numbered::default();
            ids().for_each(|id| numbered.insert(id, ()));
            let astray = ids().filter_map(|id| numbered.place(id)).map(|place| numbered.places.astray(place));
            assert_eq!(astray.clone().count(), 5000);
            assert!(astray.max() < Some(8), "steps of {step}");
        }
    }

    #[test]
    fn room_of_the_fullest_hour_is_given_back() {
        let mut numbered = Numbered::default();
        (0..100_000).for_each(|number| numbered.insert(RecordId(number), number));
        assert!(numbered.places.room() < 200_000);
        (100..100_000).for_each(|number| assert_eq!(numbered.remove(RecordId(number)), Some(number)));
        assert!(numbered.places.room() < 3 * ROOMY);
        assert!((0..100).all(|number| numbered.get(RecordId(number)) == Some(&number)));
    }
}
