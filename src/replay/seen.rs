//! Records as their readers see them, in a watch or in an audit log: how many occurrences each change of one brings.

use std::num::NonZeroUsize;

use lru::LruCache;
use smol_str::SmolStr;

use crate::event::{Event, spelling};

/// LIMIT: records whose counts are remembered; a change of one that was forgotten counts as one occurrence.
const RECORDS: NonZeroUsize = NonZeroUsize::new(50_000).unwrap();

/// The counts of records.
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
    /// Remembers a record as it is now. Returns by how many occurrences its count has grown.
    pub fn change(&mut self, event: &Event) -> u32 {
        let count = spelling::occurrences(event);
        let before = self.records.get(&key(event)).map_or(count - 1, |known| spelling::occurrences(known));
        // A copy without what is large and not needed.
        let metadata = crate::event::ObjectMeta { managed_fields: None, rare: None, ..event.metadata.clone() };
        self.records.put(key(event), Box::new(Event { metadata, ..event.clone() }));
        u32::try_from(count.saturating_sub(before)).unwrap_or(0)
    }

    /// A record by namespace and name.
    pub fn get(&mut self, namespace: &str, name: &str) -> Option<&Event> {
        self.records.get(&(namespace.into(), name.into())).map(|event| &**event)
    }

    /// A record is gone: one of the same name begins again.
    pub fn forget(&mut self, event: &Event) {
        self.records.pop(&key(event));
    }
}

fn key(event: &Event) -> (SmolStr, SmolStr) {
    (event.metadata.namespace.clone(), event.metadata.name.clone())
}
