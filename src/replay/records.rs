//! Simulates the answers of an API server without storing the events: only the count and the expiry of each record.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher as _;

use smol_str::{SmolStr, format_smolstr};

use crate::clock::Now;
use crate::event::{Event, ObjectMeta, Time, conversion};
use crate::outbox::{Answer, Request};

/// An API server that answers at once and never fails.
#[derive(Debug)]
pub(super) struct Records {
    /// How long a record lives after its last write, in nanoseconds.
    ttl: i64,
    // LIMIT: records written within `ttl`.
    known: HashMap<Name, Kept, foldhash::fast::FixedState>,
    /// When which record may have expired.
    // LIMIT: writes within `ttl`.
    expiries: VecDeque<(i64, Name)>,
    revision: u64,
    /// The newest event whose name was taken. The record of that name has the same content, because only names that are
    /// derived from the content can be equal.
    refused: Option<Box<Event>>,
}

/// A hash of namespace and name, which saves memory with many records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name(u64);

impl Name {
    fn of(namespace: &str, name: &str) -> Self {
        Self(foldhash::quality::FixedState::default().hash_one((namespace, name)))
    }
}

#[derive(Debug)]
struct Kept {
    expires: i64,
    count: i32,
    first: Option<Time>,
}

impl Records {
    /// Creates an empty store. Records live for `ttl` nanoseconds, or forever if it is 0.
    pub(super) fn new(ttl: i64) -> Self {
        let ttl = if ttl == 0 { i64::MAX } else { ttl };
        Self { ttl, known: HashMap::default(), expiries: VecDeque::new(), revision: 0, refused: None }
    }

    pub(super) fn answer(&mut self, request: &Request, now: Now) -> Answer {
        while let Some((at, _)) = self.expiries.front()
            && *at <= now.wall
            && let Some((_, key)) = self.expiries.pop_front()
        {
            if self.known.get(&key).is_some_and(|kept| kept.expires <= now.wall) {
                self.known.remove(&key);
            }
        }
        match request {
            Request::Create { event, .. } => {
                let key = Name::of(&event.metadata.namespace, &event.metadata.name);
                if self.known.contains_key(&key) {
                    self.refused = Some(event.clone());
                    return Answer::Exists;
                }
                self.put(key, conversion::occurrences(event), event.first_timestamp, now);
                let metadata = ObjectMeta { resource_version: self.version(), ..event.metadata.clone() };
                Answer::Stored(Box::new(Event { metadata, ..Event::clone(event) }))
            }
            Request::Patch { namespace, name, patch, .. } => {
                let key = Name::of(namespace, name);
                let Some(first) = self.known.get(&key).map(|kept| kept.first) else { return Answer::Missing };
                self.put(key, patch.count, first, now);
                let stored = Event { count: patch.count, message: patch.message.clone(), ..Event::default() };
                Answer::Stored(Box::new(self.found(stored, namespace, name, first)))
            }
            Request::Read { namespace, name, .. } => {
                let Some(Kept { count, first, .. }) = self.known.get(&Name::of(namespace, name)) else {
                    return Answer::Missing;
                };
                let (count, first) = (*count, *first);
                let refused = self.refused.as_deref().filter(|event| event.is_named(namespace, name)).cloned();
                let stored = Event { count, series: None, ..refused.unwrap_or_default() };
                Answer::Stored(Box::new(self.found(stored, namespace, name, first)))
            }
            Request::Delete { namespace, name, .. } => {
                self.known.remove(&Name::of(namespace, name));
                Answer::Missing
            }
        }
    }

    fn found(&self, stored: Event, namespace: &SmolStr, name: &SmolStr, first: Option<Time>) -> Event {
        let (namespace, name) = (namespace.clone(), name.clone());
        let metadata = ObjectMeta { namespace, name, resource_version: self.version(), ..ObjectMeta::default() };
        Event { metadata, first_timestamp: first, ..stored }
    }

    fn put(&mut self, key: Name, count: i32, first: Option<Time>, now: Now) {
        let expires = now.wall.saturating_add(self.ttl);
        if expires != i64::MAX {
            self.expiries.push_back((expires, key));
        }
        self.revision += 1;
        self.known.insert(key, Kept { expires, count, first });
    }

    fn version(&self) -> SmolStr {
        format_smolstr!("{}", self.revision)
    }
}
