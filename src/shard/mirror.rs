//! Copies all occurrences to a second configuration. eventweir never waits for it: occurrences that find its queue full
//! are left out and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc;

use crate::event::Event;

/// Occurrences of an event, as the second configuration receives them.
#[derive(Debug)]
pub struct Shown {
    /// The event.
    pub event: Event,
    /// The number of occurrences.
    pub occurrences: u32,
    /// The number of the run, that is, of the start of the second configuration.
    pub run: u64,
}

/// The receiver of copied occurrences, if there is one.
#[derive(Debug, Default)]
pub struct Mirror(ArcSwapOption<Target>);

#[derive(Debug)]
struct Target {
    // LIMIT: the capacity of the receiver's queue; occurrences that find it full are left out and counted in `missed`.
    sender: mpsc::Sender<Shown>,
    run: u64,
    missed: AtomicU64,
}

impl Mirror {
    /// Copies occurrences to `sender` for this run from now on; `None` copies nothing.
    pub fn set(&self, target: Option<(mpsc::Sender<Shown>, u64)>) {
        let target = target.map(|(sender, run)| Arc::new(Target { sender, run, missed: AtomicU64::default() }));
        self.0.store(target);
    }

    /// Returns the number of occurrences that were left out since the run began.
    pub fn missed(&self) -> u64 {
        self.0.load().as_ref().map_or(0, |target| target.missed.load(Ordering::Relaxed))
    }

    pub(super) fn show(&self, event: &Event, occurrences: u32) {
        let target = self.0.load();
        let Some(target) = target.as_ref() else { return };
        // A copy that the second configuration may change; its texts are shared.
        let shown = Shown { event: event.clone(), occurrences, run: target.run };
        if target.sender.try_send(shown).is_err() {
            target.missed.fetch_add(occurrences.into(), Ordering::Relaxed);
        }
    }
}
