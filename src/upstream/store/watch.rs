//! WATCH of the embedded store: which of the remembered changes a watch is told, and as what.

use std::sync::Arc;

use super::{Change, Store, meta};
use crate::clock::Now;
use crate::event::Event;
use crate::status::Status;
use crate::upstream::{WatchEvent, WatchOptions};

/// What a look at the changes found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    /// What to tell, oldest first.
    pub events: Vec<WatchEvent>,
    /// Where to look on.
    pub revision: u64,
    /// Whether there was anything to look at.
    pub any: bool,
}

/// LIMIT: changes looked at in one go, so that a watch that is far behind does not keep the store's lock for long.
const CHANGES_MAX: usize = 1_000;

impl Store {
    /// The changes after `revision` that a watch of these options is told.
    ///
    /// # Errors
    /// 410 `Expired` when changes after `revision` are already forgotten: list again.
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
            seen.any = true;
            if namespace.is_none_or(|namespace| is_in(namespace, &change.key)) {
                seen.events.extend(told(change, options));
            }
        }
        Ok(seen)
    }
}

fn is_in(namespace: &str, key: &str) -> bool {
    key.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('/'))
}

/// What a watch is told of a change: an event that begins to match is added, one that ceases to is deleted
/// (recorded: as it was before the change).
fn told(change: &Change, options: &WatchOptions) -> Option<WatchEvent> {
    let matching = |event: &Option<Arc<Event>>| event.clone().filter(|event| options.matches(event));
    match (matching(&change.before), matching(&change.after)) {
        (None, Some(after)) => Some(WatchEvent::Added(after)),
        (Some(_), Some(after)) => Some(WatchEvent::Modified(after)),
        (Some(before), None) => {
            // A copy, because the version of the change is shown in place of the event's own.
            let mut event = Event::clone(&before);
            event.metadata.resource_version = meta::version_text(change.revision);
            Some(WatchEvent::Deleted(Arc::new(event)))
        }
        (None, None) => None,
    }
}
