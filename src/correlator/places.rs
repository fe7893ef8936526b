//! A table of places, in which each thing stands as near to its home as it can: under an index of positions, and under the outbox's records.
//!
//! Hot: of what a repeat takes, half is spent waiting for memory that is far from the processor, and most of that here. So a look is one
//! look: what tells a thing from others and the thing itself stand side by side, and next to them those that come close. (hashbrown's
//! tables keep hashes and things apart; what makes them fast on things that are near costs a second look here.)

/// What may stand in a place.
pub trait Place {
    /// What stands in one that is free.
    const FREE: Self;

    /// Tells it from most others; uniform. `None` of what stands in a free place.
    fn tag(&self) -> Option<u32>;
}

/// Places of things that are found by their tags.
#[derive(Debug)]
pub struct Places<P> {
    /// At least a quarter of them is free. Each thing stands at its tag's home, or in one of the places behind that are taken.
    // LIMIT: four thirds of the room that the owner asks for.
    places: Box<[P]>,
}

impl<P> Default for Places<P> {
    fn default() -> Self {
        Self { places: Box::default() }
    }
}

impl<P: Place> Places<P> {
    /// For as many things as these.
    pub fn with_room(room: usize) -> Self {
        let number = room.saturating_add(room / 3).saturating_add(1);
        Self { places: std::iter::repeat_with(|| P::FREE).take(number).collect() }
    }

    /// How many things it is for.
    pub const fn room(&self) -> usize {
        self.places.len() * 3 / 4
    }

    /// Makes it one for as many things, not fewer than it has.
    pub fn resize(&mut self, room: usize) {
        let old = std::mem::replace(self, Self::with_room(room));
        old.places.into_iter().filter(|thing| thing.tag().is_some()).for_each(|thing| self.put(thing));
    }

    /// Where the thing of this tag stands that is the one.
    pub fn find(&self, tag: u32, is_it: impl Fn(&P) -> bool) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        let mut place = self.home(tag);
        loop {
            let thing = &self.places[place];
            let other = thing.tag()?;
            if other == tag && is_it(thing) {
                return Some(place);
            }
            place = self.next(place);
        }
    }

    /// What stands in a place.
    pub fn at(&self, place: usize) -> &P {
        &self.places[place]
    }

    /// The same, to be changed in all but its tag.
    pub fn at_mut(&mut self, place: usize) -> &mut P {
        &mut self.places[place]
    }

    /// Has a thing stand somewhere. There must be room for it.
    pub fn put(&mut self, thing: P) {
        let Some(tag) = thing.tag() else { return };
        let mut place = self.home(tag);
        while self.places[place].tag().is_some() {
            place = self.next(place);
        }
        self.places[place] = thing;
    }

    /// Frees a place, and returns what stood there.
    pub fn take(&mut self, mut place: usize) -> P {
        let taken = std::mem::replace(&mut self.places[place], P::FREE);
        let mut free = place;
        loop {
            place = self.next(place);
            let Some(behind) = self.places[place].tag() else { return taken };
            // What is behind comes forward, but for what would stand before its home.
            if self.way(self.home(behind), place) >= self.way(free, place) {
                self.places.swap(free, place);
                free = place;
            }
        }
    }

    /// What stands in all places, free ones included.
    pub fn iter(&self) -> impl Iterator<Item = &P> {
        self.places.iter()
    }

    /// How far from its home the thing of a place stands.
    #[cfg(test)]
    pub fn astray(&self, place: usize) -> usize {
        self.places[place].tag().map_or(0, |tag| self.way(self.home(tag), place))
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
