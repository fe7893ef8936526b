//! The newest changes of the store: what a watch is told.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::event::Event;

/// One change: added (no `before`), modified (both) or deleted (no `after`).
#[derive(Debug, Clone)]
pub struct Change {
    /// The resource version of the change. For a deletion, a watch shows it in place of the event's own.
    pub revision: u64,
    /// `namespace/name` of the event.
    pub key: Arc<str>,
    /// The event before the change.
    pub before: Option<Arc<Event>>,
    /// The event after it.
    pub after: Option<Arc<Event>>,
}

/// A bounded window of changes.
#[derive(Debug)]
pub(super) struct ChangeLog {
    /// Changes with their sizes, oldest first.
    window: VecDeque<(Change, usize)>,
    changes_max: NonZeroUsize,
    bytes_max: usize,
    bytes: usize,
    /// Revision of the newest change that was forgotten; watches can start there or later.
    compacted: u64,
}

impl ChangeLog {
    /// No changes yet; they come after `revision`.
    pub(super) const fn new(changes_max: NonZeroUsize, bytes_max: usize, revision: u64) -> Self {
        Self { window: VecDeque::new(), changes_max, bytes_max, bytes: 0, compacted: revision }
    }

    /// Remembers a change that keeps about `size` bytes of events alive.
    pub(super) fn push(&mut self, change: Change, size: usize) {
        self.window.push_back((change, size));
        self.bytes = self.bytes.saturating_add(size);
        // LIMIT: changes and their bytes; the oldest are forgotten, and whoever asks for them hears 410.
        while self.window.len() > self.changes_max.get() || self.bytes > self.bytes_max {
            let Some((oldest, size)) = self.window.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(size);
            self.compacted = oldest.revision;
        }
    }

    /// Forgets the changes before the one of `revision`, as etcd does: a watch can still be told of that one.
    pub(super) fn compact(&mut self, revision: u64) {
        while let Some((_, size)) = self.window.pop_front_if(|(change, _)| change.revision < revision) {
            self.bytes = self.bytes.saturating_sub(size);
        }
        self.compacted = self.compacted.max(revision.saturating_sub(1));
    }

    /// The revision of the newest change that was forgotten.
    pub(super) const fn compacted(&self) -> u64 {
        self.compacted
    }

    /// The changes after `revision`, oldest first; `None` when some of them are forgotten.
    pub(super) fn since(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        (revision >= self.compacted).then(|| {
            let first = self.window.partition_point(|(change, _)| change.revision <= revision);
            self.window.range(first..).map(|(change, _)| change)
        })
    }
}
