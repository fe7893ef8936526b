//! A limited number of places for requests or for bytes, shown in a gauge.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a piece of a held body.
const PIECE: usize = 64 << 10;

/// A limited number of places. Clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    most: u32,
    free: Arc<Semaphore>,
    taken: IntGauge,
}

/// A taken place, or several; dropping it frees them.
#[derive(Debug)]
pub struct Place {
    taken: IntGauge,
    permit: OwnedSemaphorePermit,
}

impl Places {
    /// Creates `most` places, but at most 2^32 - 1; the gauge shows how many are taken.
    pub fn new(most: NonZeroUsize, taken: IntGauge) -> Self {
        let most = u32::try_from(most.get()).unwrap_or(u32::MAX);
        Self { most, free: Arc::new(Semaphore::new(most as usize)), taken }
    }

    /// Takes a place, unless all are taken.
    #[must_use]
    pub fn take(&self) -> Option<Place> {
        self.take_many(1)
    }

    /// Returns half as many free places of their own, which no metric shows.
    #[must_use]
    pub fn half(&self) -> Self {
        let most = (self.most / 2).max(1);
        let taken = IntGauge::new("part", "a part").expect("a valid name");
        Self { most, free: Arc::new(Semaphore::new(most as usize)), taken }
    }

    /// Whether all places are free.
    #[must_use]
    pub fn are_free(&self) -> bool {
        self.free.available_permits() == self.most as usize
    }

    /// Whether at least half of the places are free.
    pub(super) fn is_half_free(&self) -> bool {
        self.free.available_permits() >= self.most as usize / 2
    }

    /// Takes several places, or all if there are not that many. `None` unless all of these are free.
    #[must_use]
    pub fn take_many(&self, number: u64) -> Option<Place> {
        let number = u32::try_from(number).unwrap_or(u32::MAX).min(self.most);
        let permit = Arc::clone(&self.free).try_acquire_many_owned(number).ok()?;
        self.taken.add(number.into());
        Some(Place { taken: self.taken.clone(), permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.sub(i64::try_from(self.permit.num_permits()).unwrap_or(i64::MAX));
    }
}

impl Place {
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
