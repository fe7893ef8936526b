//! A limited number of places for requests or for bytes, shown in a gauge.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;
use prometheus::IntGauge;
use smol_str::SmolStr;

/// Bytes of a piece of a held body.
const PIECE: usize = 64 << 10;

/// A limited number of places, of which a caller gets at most half: it may keep them for hours, and others need some.
/// Clones share them.
#[derive(Debug, Clone)]
pub struct FairPlaces {
    most: i64,
    /// The number of taken places, which no other value changes.
    taken: IntGauge,
    /// The number of places of each caller.
    // LIMIT: callers that have a place.
    parts: Arc<Mutex<HashMap<SmolStr, i64>>>,
}

/// A taken place, or several; dropping it frees them.
#[derive(Debug)]
pub struct FairPlace {
    places: FairPlaces,
    /// The caller whose part they are of; an empty name has none.
    caller: SmolStr,
    number: i64,
}

impl FairPlaces {
    /// Creates `most` places; the gauge shows how many are taken, and counts them.
    pub fn new(most: NonZeroUsize, taken: IntGauge) -> Self {
        Self { most: i64::try_from(most.get()).unwrap_or(i64::MAX), taken, parts: Arc::default() }
    }

    /// Takes several places for a caller; an empty name stands for all whose name is not known, who may take all. A
    /// larger number than a caller may have needs, and counts as, all that it may have. Of two that take the last ones at
    /// once, both may get `None`.
    #[must_use]
    pub fn take(&self, caller: &str, number: u64) -> Option<FairPlace> {
        let most = if caller.is_empty() { self.most } else { self.part() };
        let number = i64::try_from(number).unwrap_or(i64::MAX).min(most);
        if !caller.is_empty() {
            let mut parts = self.parts.lock();
            let taken = parts.get(caller).copied().unwrap_or_default() + number;
            if taken > most {
                return None;
            }
            parts.insert(caller.into(), taken);
        }
        let place = self.counted(caller, number);
        (self.taken.get() <= self.most).then_some(place)
    }

    /// Takes several places for a caller, also if they are not free.
    #[must_use]
    pub fn force(&self, caller: &str, number: u64) -> FairPlace {
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        if !caller.is_empty() {
            *self.parts.lock().entry(caller.into()).or_default() += number;
        }
        self.counted(caller, number)
    }

    fn counted(&self, caller: &str, number: i64) -> FairPlace {
        self.taken.add(number);
        FairPlace { places: self.clone(), caller: caller.into(), number }
    }

    /// Whether a caller may take places for something long: it leaves half of its part to what is short, and all
    /// callers together leave a quarter of all.
    pub(super) fn has_room_for_long(&self, caller: &str) -> bool {
        let taken = self.taken.get();
        if caller.is_empty() {
            return taken <= self.most / 2;
        }
        let is_own_free = || self.parts.lock().get(caller).is_none_or(|own| *own <= self.part() / 2);
        taken <= self.most / 4 * 3 && is_own_free()
    }

    /// Whether a caller has less than its part of the places, and all callers less than all. What a caller has forced
    /// beyond its part takes no room from others.
    #[must_use]
    pub fn has_room(&self, caller: &str) -> bool {
        let taken = self.taken.get();
        // Most often no place is taken.
        if taken == 0 || caller.is_empty() {
            return taken < self.most;
        }
        let (parts, most) = (self.parts.lock(), self.part());
        let is_own_free = parts.get(caller).is_none_or(|own| *own < most);
        is_own_free && (taken < self.most || parts.values().map(|own| *own.min(&most)).sum::<i64>() < self.most)
    }

    /// The most places of a known caller.
    fn part(&self) -> i64 {
        (self.most / 2).max(1)
    }
}

impl Drop for FairPlace {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

impl FairPlace {
    /// Adds places of the same caller.
    pub(super) fn add(&mut self, mut more: Self) {
        self.number += std::mem::take(&mut more.number);
    }

    /// Frees all but so many.
    pub fn shrink(&mut self, number: usize) {
        let fewer = i64::try_from(number).unwrap_or(i64::MAX).min(self.number);
        self.places.taken.sub(self.number - fewer);
        if !self.caller.is_empty() {
            let mut parts = self.places.parts.lock();
            if let Some(taken) = parts.get_mut(&self.caller) {
                *taken -= self.number - fewer;
                if *taken == 0 {
                    parts.remove(&self.caller);
                }
            }
        }
        self.number = fewer;
    }

    /// Returns a body that keeps the place until its client has taken all of it.
    pub fn hold(self, whole: Bytes) -> Body {
        Body::new(Held { rest: whole, _place: self })
    }
}

/// A body that keeps a place.
#[derive(Debug)]
struct Held {
    rest: Bytes,
    _place: FairPlace,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let length = self.rest.len().min(PIECE);
        // A copy, because the connection may keep a piece for long, and a part of the whole would keep the whole.
        let piece = Bytes::copy_from_slice(&self.rest.split_to(length));
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: two connections that read 16 KiB a minute kept every other client's list out for hours.
    #[test]
    fn a_caller_has_half_of_the_places() {
        let places = FairPlaces::new(NonZeroUsize::new(100).unwrap(), IntGauge::new("bytes", "a test's").unwrap());
        let (first, second) = (places.take("a", 30).unwrap(), places.take("a", 20).unwrap());
        assert!(places.take("a", 1).is_none());
        let other = places.take("b", 50).unwrap();
        assert!(places.take("", 1).is_none());
        drop((first, second));
        // Fault: it took the places of all, for as long as its client was slow.
        let long = places.take("a", 500).unwrap();
        assert!(places.take("", 1).is_none() && places.take("a", 1).is_none());
        drop(other);
        assert!(places.take("c", 500).is_some() && places.take("", 500).is_none());
        drop(long);
        assert!(places.take("", 500).is_some());
        assert!(places.parts.lock().is_empty());
    }

    #[test]
    fn places_can_be_added_and_freed_in_part() {
        let places = FairPlaces::new(NonZeroUsize::new(100).unwrap(), IntGauge::new("bytes", "a test's").unwrap());
        for caller in ["a", ""] {
            let mut place = places.take(caller, 10).unwrap();
            place.add(places.take(caller, 40).unwrap());
            assert_eq!((places.taken.get(), places.has_room("a")), (50, caller.is_empty()));
            place.shrink(20);
            assert_eq!((places.taken.get(), places.has_room("a")), (20, true));
            place.shrink(30);
            assert_eq!(places.taken.get(), 20);
            drop(place);
            assert_eq!((places.taken.get(), places.parts.lock().len()), (0, 0));
        }
    }

    #[test]
    fn a_caller_that_has_forced_its_part_has_no_room() {
        let places = FairPlaces::new(NonZeroUsize::new(100).unwrap(), IntGauge::new("bytes", "a test's").unwrap());
        let (first, second) = (places.force("a", 49), places.force("a", 500));
        assert!(!places.has_room("a") && places.has_room("b") && places.take("b", 1).is_none());
        drop(second);
        assert!(places.has_room("a") && places.take("b", 50).is_some());
        drop(first);
        assert_eq!(places.taken.get(), 0);
    }

    /// Fault: however many were forced by all together, each further caller had room.
    #[test]
    fn forced_places_leave_no_room_only_together() {
        let places = FairPlaces::new(NonZeroUsize::new(100).unwrap(), IntGauge::new("bytes", "a test's").unwrap());
        let _first = places.force("a", 500);
        assert!(places.has_room("b"), "the part of one caller");
        let second = places.force("b", 49);
        assert!(places.has_room("c") && !places.has_room(""));
        let third = places.force("c", 1);
        assert!(!places.has_room("d"));
        drop((second, third));
        assert!(places.has_room("d"));
    }
}
