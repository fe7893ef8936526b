//! Names of events that went on to the apiserver: what a client says about them goes on as well, because the event half does
//! not know them and would have their clients post them again.

use std::hash::BuildHasher as _;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};

use foldhash::quality::RandomState;
use lru::LruCache;
use parking_lot::Mutex;
use serde::Deserialize;

use crate::event::{ApiGroup, protobuf};

/// LIMIT: names that are remembered; the one used longest ago is forgotten, and its client is answered 404 and posts the
/// event again.
const NAMES_MAX: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// What a body of protobuf begins with.
const PROTOBUF: &[u8] = b"k8s\0";

/// Names that went on.
#[derive(Debug)]
pub(super) struct Names {
    /// Whether there was ever one; most processes never have one.
    is_used: AtomicBool,
    hasher: RandomState,
    // LIMIT: `NAMES_MAX`.
    names: Mutex<LruCache<u64, ()>>,
}

impl Names {
    pub(super) fn new() -> Self {
        let names = Mutex::new(LruCache::unbounded());
        Self { is_used: AtomicBool::new(false), hasher: RandomState::default(), names }
    }

    /// Remembers the name that an event in `body` has.
    pub(super) fn insert(&self, group: ApiGroup, namespace: &str, body: &[u8]) {
        let Some(name) = name_of(group, body).filter(|name| !name.is_empty()) else { return };
        let key = self.key(namespace, &name);
        self.is_used.store(true, Ordering::Relaxed);
        let mut names = self.names.lock();
        names.put(key, ());
        if names.len() > NAMES_MAX.get() {
            names.pop_lru();
        }
    }

    /// Whether an event of this name went on.
    pub(super) fn contains(&self, namespace: &str, name: &str) -> bool {
        self.is_used.load(Ordering::Relaxed) && self.names.lock().get(&self.key(namespace, name)).is_some()
    }

    pub(super) fn remove(&self, namespace: &str, name: &str) {
        self.names.lock().pop(&self.key(namespace, name));
    }

    fn key(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }
}

/// The name in an event's body, as far as we read it.
fn name_of(group: ApiGroup, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
    }
    if body.starts_with(PROTOBUF) {
        return Some(protobuf::decode(group, body).ok()?.event.metadata.name.to_string());
    }
    Some(serde_json::from_slice::<Named>(body).ok()?.metadata.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    #[test]
    fn names_are_those_of_json_and_protobuf() {
        let names = Names::new();
        assert!(!names.contains("shop", "a"));
        names.insert(ApiGroup::Core, "shop", br#"{"metadata":{"name":"a","x":1},"count":2}"#);
        let mut event = Event::default();
        event.metadata.name = "b".into();
        let mut body = Vec::new();
        protobuf::write(ApiGroup::Events, &event, &mut body);
        names.insert(ApiGroup::Events, "shop", &body);
        names.insert(ApiGroup::Core, "shop", b"metadata: {name: c}");
        names.insert(ApiGroup::Core, "shop", br#"{"metadata":{"generateName":"d."}}"#);
        let known = ["a", "b", "c", "d.", ""].map(|name| names.contains("shop", name));
        assert_eq!(known, [true, true, false, false, false]);
        assert!(!names.contains("other", "a"));
        names.remove("shop", "a");
        assert!(!names.contains("shop", "a"));
    }

    #[test]
    fn at_the_limit_the_name_used_longest_ago_is_forgotten() {
        let names = Names::new();
        let body = |number: usize| format!(r#"{{"metadata":{{"name":"{number}"}}}}"#);
        for number in 0..NAMES_MAX.get() {
            names.insert(ApiGroup::Core, "shop", body(number).as_bytes());
        }
        assert!(names.contains("shop", "0"));
        names.insert(ApiGroup::Core, "shop", body(NAMES_MAX.get()).as_bytes());
        assert_eq!((names.contains("shop", "0"), names.contains("shop", "1")), (true, false));
    }
}
