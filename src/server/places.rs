//! A limited number of places for requests or for bytes, shown in a gauge.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use prometheus::IntGauge;

/// Bytes of a piece of a held body.
const PIECE: usize = 64 << 10;

/// A limited number of places. Clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    most: i64,
    /// The number of taken places, which no other value changes.
    taken: IntGauge,
}

/// A taken place, or several; dropping it frees them.
#[derive(Debug)]
pub struct Place {
    number: i64,
    taken: IntGauge,
}

impl Places {
    /// Creates `most` places; the gauge shows how many are taken, and counts them.
    pub fn new(most: NonZeroUsize, taken: IntGauge) -> Self {
        Self { most: i64::try_from(most.get()).unwrap_or(i64::MAX), taken }
    }

    /// Takes a place, unless all are taken.
    #[must_use]
    pub fn take(&self) -> Option<Place> {
        self.take_many(1)
    }

    /// Returns half as many free places of their own, which no metric shows.
    #[must_use]
    pub fn half(&self) -> Self {
        let taken = IntGauge::new("part", "a part").expect("a valid name");
        Self { most: (self.most / 2).max(1), taken }
    }

    /// Whether all places are free.
    #[must_use]
    pub fn are_free(&self) -> bool {
        self.taken.get() == 0
    }

    /// Whether at least half of the places are free.
    pub(super) fn is_half_free(&self) -> bool {
        self.taken.get() <= self.most / 2
    }

    /// Takes several places, or all if there are not that many. `None` unless all of these are free. Of two that take
    /// the last ones at once, both may get `None`.
    #[must_use]
    pub fn take_many(&self, number: u64) -> Option<Place> {
        let number = i64::try_from(number).unwrap_or(i64::MAX).min(self.most);
        self.taken.add(number);
        let place = Place { number, taken: self.taken.clone() };
        (self.taken.get() <= self.most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.sub(self.number);
    }
}

impl Place {
    /// Adds places of the same kind.
    pub(super) fn add(&mut self, mut more: Self) {
        self.number += std::mem::take(&mut more.number);
    }

    /// Returns a body that keeps the place, and perhaps another one, until its client has taken all of it.
    pub fn hold(self, whole: Bytes, other: Option<Self>) -> Body {
        Body::new(Held { rest: whole, _places: (self, other) })
    }
}

/// A body that keeps places.
#[derive(Debug)]
struct Held {
    rest: Bytes,
    _places: (Place, Option<Place>),
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
