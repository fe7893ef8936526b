//! Shows all occurrences to a second configuration as well. Nothing waits for it: what it does not take in time is left out and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use tokio::sync::mpsc;

use crate::event::Event;

/// Occurrences of an event, as they were shown.
#[derive(Debug)]
pub struct Shown {
    /// The event.
    pub event: Event,
    /// How many.
    pub occurrences: u32,
    /// For which start of the second configuration.
    pub run: u64,
}

/// Where occurrences are shown; nowhere, unless somebody asks.
#[derive(Debug, Default)]
pub struct Mirror(ArcSwapOption<Target>);

#[derive(Debug)]
struct Target {
    // LIMIT: the queue of who asks; what finds no room in it is left out and counted in `missed`.
    sender: mpsc::Sender<Shown>,
    run: u64,
    missed: AtomicU64,
}

impl Mirror {
    /// From now on shows occurrences to `sender` for this run, or to nobody.
    pub fn set(&self, target: Option<(mpsc::Sender<Shown>, u64)>) {
        let target = target.map(|(sender, run)| Arc::new(Target { sender, run, missed: AtomicU64::default() }));
        self.0.store(target);
    }

    /// Occurrences that were left out since the run began.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.0.load().as_ref().map_or(0, |target| target.missed.load(Ordering::Relaxed))
    }

    pub(super) fn show(&self, event: &Event, occurrences: u32) {
        let target = self.0.load();
        let Some(target) = target.as_ref() else { return };
        // A copy for the second configuration to merge; its texts are shared.
        let shown = Shown { event: event.clone(), occurrences, run: target.run };
        if target.sender.try_send(shown).is_err() {
            target.missed.fetch_add(occurrences.into(), Ordering::Relaxed);
        }
    }
}
