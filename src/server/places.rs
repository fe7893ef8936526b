//! A limited number of places for requests, shown in a gauge.

use std::num::NonZeroUsize;
use std::sync::Arc;

use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A limited number of places. Clones share them.
#[derive(Debug, Clone)]
pub struct Places {
    free: Arc<Semaphore>,
    taken: IntGauge,
}

/// A taken place; dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    taken: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    /// Creates `most` places; the gauge shows how many are taken.
    #[must_use]
    pub fn new(most: NonZeroUsize, taken: IntGauge) -> Self {
        Self { free: Arc::new(Semaphore::new(most.get().min(Semaphore::MAX_PERMITS))), taken }
    }

    /// Takes a place, unless all are taken.
    #[must_use]
    pub fn take(&self) -> Option<Place> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        self.taken.inc();
        Some(Place { taken: self.taken.clone(), _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.dec();
    }
}
