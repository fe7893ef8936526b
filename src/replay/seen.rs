//! Counts the occurrences that each change of a record adds, as seen in a watch or in an audit log.

use std::num::NonZeroUsize;

use lru::LruCache;
use smol_str::SmolStr;

use crate::event::{Event, conversion};

/// LIMIT: cached records; a change of an evicted one counts as one occurrence.
const RECORDS: NonZeroUsize = NonZeroUsize::new(50_000).unwrap();

/// A cache of records with their counts.
#[derive(Debug)]
pub struct Seen {
    // LIMIT: `RECORDS`.
    records: LruCache<(SmolStr, SmolStr), Box<Event>>,
}

impl Default for Seen {
    fn default() -> Self {
        Self { records: LruCache::new(RECORDS) }
    }
}

impl Seen {
    /// Caches the current record, and returns by how many occurrences its count has grown.
    pub fn change(&mut self, event: &Event) -> u32 {
        let count = conversion::occurrences(event);
        let before = self.records.get(&key(event)).map_or(count - 1, |known| conversion::occurrences(known));
        // The copy leaves out large members that are not needed.
        let metadata = crate::event::ObjectMeta { managed_fields: None, rare: None, ..event.metadata.clone() };
        self.records.put(key(event), Box::new(Event { metadata, ..event.clone() }));
        u32::try_from(count.saturating_sub(before)).unwrap_or(0)
    }

    /// Returns a record by namespace and name.
    pub fn get(&mut self, namespace: &str, name: &str) -> Option<&Event> {
        self.records.get(&(namespace.into(), name.into())).map(|event| &**event)
    }

    /// Removes a deleted record; one of the same name counts from the beginning.
    pub fn forget(&mut self, event: &Event) {
        self.records.pop(&key(event));
    }
}

fn key(event: &Event) -> (SmolStr, SmolStr) {
    (event.metadata.namespace.clone(), event.metadata.name.clone())
}
