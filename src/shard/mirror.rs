//! Copies all occurrences to a second configuration. eventweir never waits for it: occurrences that find its queue full
//! are left out and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::event::Event;

/// LIMIT: bytes of the events (`Event::approximate_size`) that wait to be processed, of which one may have megabytes.
/// Occurrences beyond it are left out and counted in `missed`.
const QUEUE_BYTES: usize = 16 << 20;

/// Occurrences of an event, as the second configuration receives them.
#[derive(Debug)]
pub struct Shown {
    /// The event.
    pub event: Event,
    /// The number of occurrences.
    pub occurrences: u32,
    /// The number of the run, that is, of the start of the second configuration.
    pub run: u64,
    /// The event's share of the bytes that may wait.
    pub share: OwnedSemaphorePermit,
}

/// The receiver of copied occurrences, if there is one.
#[derive(Debug)]
pub struct Mirror {
    target: ArcSwapOption<Target>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Target {
    // LIMIT: the capacity of the receiver's queue; occurrences that find it full are left out and counted in `missed`.
    sender: mpsc::Sender<Shown>,
    run: u64,
    missed: AtomicU64,
}

impl Default for Mirror {
    fn default() -> Self {
        Self { target: ArcSwapOption::empty(), room: Arc::new(Semaphore::new(QUEUE_BYTES)) }
    }
}

impl Mirror {
    /// Copies occurrences to `sender` for this run from now on; `None` copies nothing.
    pub fn set(&self, target: Option<(mpsc::Sender<Shown>, u64)>) {
        let target = target.map(|(sender, run)| Arc::new(Target { sender, run, missed: AtomicU64::default() }));
        self.target.store(target);
    }

    /// Returns the number of occurrences that were left out since the run began.
    pub fn missed(&self) -> u64 {
        self.target.load().as_ref().map_or(0, |target| target.missed.load(Ordering::Relaxed))
    }

    pub(super) fn show(&self, event: &Event, occurrences: u32) {
        let target = self.target.load();
        let Some(target) = target.as_ref() else { return };
        if self.enqueue(target, event, occurrences).is_none() {
            target.missed.fetch_add(occurrences.into(), Ordering::Relaxed);
        }
    }

    /// Adds occurrences to the queue; `None` if it has no room for them.
    fn enqueue(&self, target: &Target, event: &Event, occurrences: u32) -> Option<()> {
        let bytes = u32::try_from(event.approximate_size()).ok()?;
        let share = Arc::clone(&self.room).try_acquire_many_owned(bytes).ok()?;
        // A copy that the second configuration may change; its texts are shared.
        let shown = Shown { event: event.clone(), occurrences, run: target.run, share };
        target.sender.try_send(shown).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: only their number was limited, and a thousand events may have gigabytes.
    #[tokio::test]
    async fn events_that_wait_are_limited_by_their_bytes() {
        let (mirror, (sender, mut queue)) = (Mirror::default(), mpsc::channel(1024));
        mirror.set(Some((sender, 1)));
        let large = Event { message: "m".repeat(1 << 20).into(), ..Event::default() };
        (0..20).for_each(|_| mirror.show(&large, 2));
        assert_eq!((queue.len(), mirror.missed()), (15, 10));
        drop(queue.recv().await);
        mirror.show(&large, 2);
        assert_eq!((queue.len(), mirror.missed()), (15, 10));
    }
}
