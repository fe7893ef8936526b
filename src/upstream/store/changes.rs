//! The newest changes of the store, and the events that they make for a watch.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;

use smol_str::ToSmolStr as _;

use super::Store;
use crate::clock::Now;
use crate::event::Event;
use crate::status::Status;
use crate::upstream::{WatchEvent, WatchOptions};

/// LIMIT: changes of one batch, so that a watch that is far behind holds the store's lock for a short time only.
const CHANGES_MAX: usize = 1_000;

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

/// A batch of changes, as a watch shows it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    /// The events, oldest first.
    pub events: Vec<WatchEvent>,
    /// The revision to continue from: that of the last change, matching or not.
    pub revision: u64,
}

/// A bounded window of changes.
#[derive(Debug)]
pub(super) struct ChangeLog {
    /// Changes with their sizes, oldest first.
    window: VecDeque<(Change, usize)>,
    changes_max: NonZeroUsize,
    bytes_max: usize,
    bytes: usize,
    /// Revision of the newest change that was dropped; watches can start there or later.
    compacted: u64,
}

impl ChangeLog {
    /// Returns an empty window for changes after `revision`.
    pub(super) const fn new(changes_max: NonZeroUsize, bytes_max: usize, revision: u64) -> Self {
        Self { window: VecDeque::new(), changes_max, bytes_max, bytes: 0, compacted: revision }
    }

    /// Adds a change that holds about `size` bytes of events.
    pub(super) fn push(&mut self, change: Change, size: usize) {
        self.window.push_back((change, size));
        self.bytes = self.bytes.saturating_add(size);
        // LIMIT: number and bytes of changes. The oldest are dropped; a watch from before them gets 410.
        while self.window.len() > self.changes_max.get() || self.bytes > self.bytes_max {
            let Some((oldest, size)) = self.window.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(size);
            self.compacted = oldest.revision;
        }
    }

    /// Drops the changes before `revision`, as etcd does; a watch can still show the change of `revision` itself.
    pub(super) fn compact(&mut self, revision: u64) {
        while let Some((_, size)) = self.window.pop_front_if(|(change, _)| change.revision < revision) {
            self.bytes = self.bytes.saturating_sub(size);
        }
        self.compacted = self.compacted.max(revision.saturating_sub(1));
    }

    /// Returns the revision of the newest change that was dropped.
    pub(super) const fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Returns the changes after `revision`, oldest first; `None` when some of them were dropped.
    pub(super) fn since(&self, revision: u64) -> Option<impl Iterator<Item = &Change>> {
        (revision >= self.compacted).then(|| {
            let first = self.window.partition_point(|(change, _)| change.revision <= revision);
            self.window.range(first..).map(|(change, _)| change)
        })
    }
}

impl Store {
    /// Returns the next batch of changes after `revision`, as a watch with these options shows it.
    ///
    /// # Errors
    /// 410 `Expired` when changes after `revision` were dropped: list again.
    pub fn watch(
        &mut self,
        namespace: Option<&str>,
        options: &WatchOptions,
        revision: u64,
        now: Now,
    ) -> Result<Seen, Status> {
        self.expire(now);
        let mut seen = Seen { revision, ..Seen::default() };
        for change in self.changes_since(revision)?.take(CHANGES_MAX) {
            seen.revision = change.revision;
            if namespace.is_none_or(|namespace| change.key.split_once('/').is_some_and(|(of, _)| of == namespace)) {
                seen.events.extend(shown(change, options));
            }
        }
        Ok(seen)
    }
}

/// Returns the event that a change makes for a watch: an event that starts to match is added. One that no longer
/// matches is deleted, and shown as it was before the change, as the apiserver does.
fn shown(change: &Change, options: &WatchOptions) -> Option<WatchEvent> {
    let matching = |event: &Option<Arc<Event>>| event.clone().filter(|event| options.matches(event));
    match (matching(&change.before), matching(&change.after)) {
        (None, Some(after)) => Some(WatchEvent::Added(after)),
        (Some(_), Some(after)) => Some(WatchEvent::Modified(after)),
        (Some(before), None) => {
            // A copy, because it shows the version of the change.
            let mut event = Event::clone(&before);
            event.metadata.resource_version = change.revision.to_smolstr();
            Some(WatchEvent::Deleted(Arc::new(event)))
        }
        (None, None) => None,
    }
}
