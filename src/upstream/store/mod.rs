//! The embedded store: kube-apiserver and etcd for events, in memory. Pure and synchronous; the caller passes the time.
//!
//! It is for a first look without a cluster, for development, and for the fake apiserver of the tests. Ingest validates
//! and names events before they are created here, as the apiserver does. Behaviour after
//! `k8s.io/apiserver/pkg/registry/generic/registry/store.go` and `k8s.io/apiserver/pkg/storage/etcd3/store.go`.

mod changes;
mod list;
mod meta;
mod settings;
#[cfg(test)]
mod tests;
mod token;
mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use smol_str::ToSmolStr as _;

pub use changes::{Change, Seen};
pub use list::Page;
pub use meta::{drop_server_owned, generated_name};
pub use settings::{Namespaces, Settings};

use crate::clock::{Mono, Now};
use crate::event::{ApiGroup, Event, ObjectMeta, Time};
use crate::status::Status;

use changes::ChangeLog;

/// Events by `namespace/name`, the order of etcd's keys (`a-b/x` comes before `a/x`, since `-` sorts before `/`).
type Key = Arc<str>;

/// The embedded store.
#[derive(Debug)]
pub struct Store {
    settings: Settings,
    /// The stored events; bounded by `max_events` and `max_bytes`.
    events: BTreeMap<Key, Stored>,
    /// The same events by their expiry; the revision distinguishes equal times.
    by_expiry: BTreeMap<(Mono, u64), Key>,
    /// The newest changes, bounded.
    changes: ChangeLog,
    /// The newest resource version; every change gets the next one.
    revision: u64,
    /// Approximate bytes of all stored events.
    bytes: usize,
    /// Events evicted because of a limit since the start.
    evicted: u64,
    rng: fastrand::Rng,
}

/// One stored event. The event's `type_meta` is `None`, as that of list items is.
#[derive(Debug)]
struct Stored {
    event: Arc<Event>,
    revision: u64,
    expires: Mono,
    size: usize,
}

fn key_of(namespace: &str, name: &str) -> Key {
    [namespace, "/", name].concat().into()
}

/// Returns the event as a single object, which has `kind` and `apiVersion`, unlike list items.
fn single(event: &Event) -> Event {
    // A copy, because lists and watches share the stored event.
    Event { type_meta: Some(ApiGroup::Core), ..event.clone() }
}

impl Store {
    /// Returns an empty store. `seed` determines uids. Versions begin at 1, because 0 means "any version".
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self::from_revision(settings, seed, 1)
    }

    /// Returns an empty store whose versions begin above those of every earlier start, so that clients do not confuse
    /// them. That requires a wall clock that does not go back between two starts, and fewer than 1,024 changes per
    /// millisecond.
    pub fn started(settings: Settings, seed: u64, now: Now) -> Self {
        let millis = u64::try_from(now.wall / 1_000_000).unwrap_or(0);
        Self::from_revision(settings, seed, millis.saturating_mul(1024).max(1))
    }

    fn from_revision(settings: Settings, seed: u64, revision: u64) -> Self {
        let changes = ChangeLog::new(settings.max_changes, settings.max_bytes.get() / 4, revision);
        Self {
            settings,
            events: BTreeMap::new(),
            by_expiry: BTreeMap::new(),
            changes,
            revision,
            bytes: 0,
            evicted: 0,
            rng: fastrand::Rng::with_seed(seed),
        }
    }

    /// Stores a new event and returns it with the fields that the server sets.
    ///
    /// # Errors
    /// 404 without the namespace, 409 `AlreadyExists`.
    pub fn create(&mut self, event: Event, now: Now) -> Result<Event, Status> {
        let (key, event) = self.new_event(event, now)?;
        let stored = self.put(key, event, now);
        Ok(single(&stored))
    }

    /// Returns the result of [`Self::create`] without a resourceVersion, and stores nothing.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn try_create(&mut self, event: Event, now: Now) -> Result<Event, Status> {
        let (_, event) = self.new_event(event, now)?;
        Ok(single(&event))
    }

    /// Prepares a new event for storing.
    fn new_event(&mut self, mut event: Event, now: Now) -> Result<(Key, Event), Status> {
        self.expire(now);
        if !self.settings.namespaces.contains(&event.metadata.namespace) {
            return Err(Status::not_found("", "namespaces", &event.metadata.namespace));
        }
        let ObjectMeta { namespace, name, .. } = &event.metadata;
        let key = key_of(namespace, name);
        if self.events.contains_key(&key) {
            return Err(Status::already_exists("", "events", name));
        }
        event.type_meta = None;
        event.metadata.uid = meta::random_uid(&mut self.rng);
        event.metadata.creation_timestamp = Some(Time::from_unix_nanos(now.wall));
        meta::drop_server_owned(&mut event.metadata);
        Ok((key, event))
    }

    /// Changes an event in place; `change` leaves its name, namespace, uid and creationTimestamp. A change without an
    /// effect is not a write: the resourceVersion stays and the TTL is not renewed.
    ///
    /// # Errors
    /// 404 when the event is missing.
    pub fn update(
        &mut self,
        namespace: &str,
        name: &str,
        now: Now,
        change: impl FnOnce(&mut Event),
    ) -> Result<Event, Status> {
        self.expire(now);
        let key = key_of(namespace, name);
        let stored = self.events.get(&key).ok_or_else(|| Status::not_found("", "events", name))?;
        // A copy, because lists and watches share the stored one.
        let mut event = Event::clone(&stored.event);
        change(&mut event);
        event.type_meta = None;
        event.metadata.resource_version.clone_from(&stored.event.metadata.resource_version);
        event.metadata.managed_fields = None;
        if event == *stored.event {
            return Ok(single(&event));
        }
        let stored = self.put(key, event, now);
        Ok(single(&stored))
    }

    /// Reads one event.
    ///
    /// # Errors
    /// 404 when the event is missing, also in a missing namespace.
    pub fn get(&mut self, namespace: &str, name: &str, now: Now) -> Result<Event, Status> {
        self.expire(now);
        let stored = self.events.get(&key_of(namespace, name));
        stored.map(|stored| single(&stored.event)).ok_or_else(|| Status::not_found("", "events", name))
    }

    /// Whether a namespace exists.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        self.settings.namespaces.contains(namespace)
    }

    /// Removes expired events. Every operation does so first. Also call it from time to time, so that an idle store
    /// shrinks and watches show the deletions.
    pub fn expire(&mut self, now: Now) {
        while let Some((&(expires, _), key)) = self.by_expiry.first_key_value() {
            if expires > now.mono {
                break;
            }
            let key = Arc::clone(key);
            self.remove(&key);
        }
    }

    /// Returns the changes after `revision`, oldest first.
    ///
    /// # Errors
    /// 410 `Expired` when changes after `revision` were dropped, or the store has not reached it: list again.
    pub fn changes_since(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, Status> {
        if revision > self.revision {
            // COMPAT(apiserver): the apiserver waits. Here that could have no end, after a restart with a clock that
            // went back.
            let text = format!(
                "The resourceVersion for the provided watch is too large: {revision}, current: {}.",
                self.revision
            );
            return Err(Status::new(410, "Expired", text));
        }
        self.changes
            .since(revision)
            .ok_or_else(|| Status::new(410, "Expired", "The resourceVersion for the provided watch is too old."))
    }

    /// Returns the newest resource version.
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Whether the store is empty; events that expired since the last operation count.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Returns the number of events evicted because of a limit since the start.
    pub const fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Writes `event` with the next revision and restarts its TTL.
    fn put(&mut self, key: Key, mut event: Event, now: Now) -> Arc<Event> {
        self.revision += 1;
        event.metadata.resource_version = self.revision.to_smolstr();
        let size = event.approximate_size();
        let event = Arc::new(event);
        let expires = if self.settings.ttl.is_zero() { NEVER } else { now.mono.after(self.settings.ttl) };
        let stored = Stored { event: Arc::clone(&event), revision: self.revision, expires, size };
        let replaced = self.events.insert(Arc::clone(&key), stored);
        self.bytes = self.bytes.saturating_add(size);
        if let Some(replaced) = &replaced {
            self.by_expiry.remove(&(replaced.expires, replaced.revision));
            self.bytes = self.bytes.saturating_sub(replaced.size);
        }
        self.by_expiry.insert((expires, self.revision), Arc::clone(&key));
        let size = replaced.as_ref().map_or(size, |replaced| size.saturating_add(replaced.size));
        let before = replaced.map(|replaced| replaced.event);
        self.changes.push(Change { revision: self.revision, key, before, after: Some(Arc::clone(&event)) }, size);
        self.evict();
        event
    }

    /// Removes an event with the next revision, like the end of an etcd lease.
    fn remove(&mut self, key: &str) -> Option<Arc<Event>> {
        let (key, stored) = self.events.remove_entry(key)?;
        self.by_expiry.remove(&(stored.expires, stored.revision));
        self.bytes = self.bytes.saturating_sub(stored.size);
        self.revision += 1;
        let before = Some(Arc::clone(&stored.event));
        self.changes.push(Change { revision: self.revision, key, before, after: None }, stored.size);
        Some(stored.event)
    }

    // LIMIT: max_events and max_bytes. Evicts the event that would expire first, but never the one just written.
    fn evict(&mut self) {
        while self.events.len() > 1
            && (self.events.len() > self.settings.max_events.get() || self.bytes > self.settings.max_bytes.get())
        {
            let Some((_, key)) = self.by_expiry.first_key_value() else { break };
            let key = Arc::clone(key);
            self.remove(&key);
            self.evicted += 1;
        }
    }
}

/// The expiry of events that do not expire.
const NEVER: Mono = Mono(i64::MAX);
