//! DELETE, PUT and PATCH of the embedded store: preconditions, finalizers, and the update rules of the API group. After
//! `k8s.io/apiserver/pkg/registry/rest/{delete,update}.go`, `pkg/registry/generic/registry/store.go` (`Store.Update`)
//! and `pkg/storage/etcd3/store.go` (`GuaranteedUpdate`).

use std::sync::Arc;

use smol_str::SmolStr;

use super::{Store, key_of, meta, single};
use crate::clock::Now;
use crate::event::patching::{self, Patched};
use crate::event::{ApiGroup, Event, ObjectMeta, Time, validate};
use crate::status::{Status, StatusDetails};
use crate::upstream::{ClientPatch, DeleteOptions, Deleted, Updated, WriteOptions};

impl Store {
    /// Deletes one event. An event with finalizers is only marked as deleted.
    ///
    /// # Errors
    /// 404 when the event is missing, 409 when a precondition does not hold.
    pub fn delete(
        &mut self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
        now: Now,
    ) -> Result<Deleted, Status> {
        self.expire(now);
        let key = key_of(namespace, name);
        let stored = self.events.get(&key).ok_or_else(|| Status::not_found("", "events", name))?;
        check_preconditions(options, name, &stored.event)?;
        let gone = Deleted::Gone(stored.event.metadata.uid.clone());
        // COMPAT(apiserver): the garbage collector's finalizers hold nothing back, because events have no dependents.
        let is_held = |finalizer: &SmolStr| !matches!(finalizer.as_str(), "orphan" | "foregroundDeletion");
        let rare = stored.event.metadata.rare.as_deref();
        let Some(rare) = rare.filter(|rare| rare.finalizers.iter().any(is_held)) else {
            if !options.dry_run {
                self.remove(&key);
            }
            return Ok(gone);
        };
        if rare.deletion_timestamp.is_some() {
            return Ok(Deleted::Marked(Box::new(single(&stored.event))));
        }
        // A copy, because the stored one is shared with lists and watches.
        let old = Arc::clone(&stored.event);
        let mut event = Event::clone(&old);
        let rare = event.metadata.rare.get_or_insert_default();
        rare.finalizers.retain(is_held);
        rare.deletion_timestamp = Some(Time::from_unix_nanos(now.wall));
        rare.deletion_grace_period_seconds = Some(0);
        let event = if options.dry_run { unstored(&old, event) } else { single(&self.put(key, event, now)) };
        Ok(Deleted::Marked(Box::new(event)))
    }

    /// Replaces the event of the same name, or creates it if it is missing.
    ///
    /// # Errors
    /// 409 when the uid or the version is another one, 422 for changes that the API group forbids, 500 for a version
    /// that is not a number, and as [`Store::create`].
    pub fn replace(&mut self, mut event: Event, options: &WriteOptions, now: Now) -> Result<Updated, Status> {
        self.expire(now);
        let group = options.group;
        let (namespace, name) = (event.metadata.namespace.clone(), event.metadata.name.clone());
        let version = version(&event.metadata.resource_version)?;
        let uid = event.metadata.uid.clone();
        let Some(stored) = self.events.get(&key_of(&namespace, &name)) else {
            if !uid.is_empty() {
                return Err(wrong_uid(group, &event, ""));
            }
            validate::create(group, &event)?;
            event.metadata.resource_version = SmolStr::default();
            let event = if options.dry_run { self.try_create(event, now)? } else { self.create(event, now)? };
            return Ok(Updated { event, created: true, warnings: Vec::new() });
        };
        let old = Arc::clone(&stored.event);
        if !uid.is_empty() && uid != old.metadata.uid {
            return Err(wrong_uid(group, &event, &old.metadata.uid));
        }
        if version != 0 && version != stored.revision {
            return Err(Status::outdated(group.name(), &name));
        }
        meta::keep_server_owned(&mut event.metadata, &old.metadata);
        validate::update(group, &old, &event)?;
        let event = if options.dry_run { unstored(&old, event) } else { self.exchange(&old, event, now)? };
        Ok(Updated { event, created: false, warnings: Vec::new() })
    }

    /// Applies a patch to one event.
    ///
    /// # Errors
    /// As [`patching::apply`]; 404 when the event is missing, 409 when the patch states another version, 422 for changes
    /// that the API group forbids, 500 for a version that is not a number.
    pub fn patch(
        &mut self,
        namespace: &str,
        name: &str,
        patch: &ClientPatch,
        options: &WriteOptions,
        now: Now,
    ) -> Result<Patched, Status> {
        self.expire(now);
        let group = options.group;
        let stored = self.events.get(&key_of(namespace, name));
        let stored = stored.ok_or_else(|| Status::not_found(group.name(), "events", name))?;
        let (old, revision) = (Arc::clone(&stored.event), stored.revision);
        let patched = patching::apply(patch.patch_type, &patch.body, group, options.validation, &old);
        let Patched { mut event, warnings } = patched?;
        let stated = version(&event.metadata.resource_version)?;
        if stated != 0 && stated != revision {
            return Err(Status::outdated(group.name(), name));
        }
        meta::keep_server_owned(&mut event.metadata, &old.metadata);
        validate::update(group, &old, &event)?;
        let event = if options.dry_run { unstored(&old, event) } else { self.exchange(&old, event, now)? };
        Ok(Patched { event, warnings })
    }

    /// Replaces the stored event `old` by a checked `event`. Deletes an event whose deletion waited for its last
    /// finalizer.
    fn exchange(&mut self, old: &Event, event: Event, now: Now) -> Result<Event, Status> {
        let is_held = |event: &Event| {
            let rare = event.metadata.rare.as_deref();
            rare.is_some_and(|rare| rare.deletion_timestamp.is_some() && !rare.finalizers.is_empty())
        };
        let ObjectMeta { namespace, name, .. } = &old.metadata;
        if is_held(old) && !is_held(&event) {
            self.remove(&key_of(namespace, name));
            return Ok(unstored(old, event));
        }
        self.update(namespace, name, now, |stored| *stored = event)
    }

    /// Drops every change but the newest, like a compaction of etcd at its newest revision.
    pub fn compact(&mut self) {
        self.changes.compact(self.revision);
    }
}

/// Returns the answer for an `event` that would replace `old` but is not stored. It has the version of `old`.
fn unstored(old: &Event, mut event: Event) -> Event {
    event.metadata.resource_version.clone_from(&old.metadata.resource_version);
    event.metadata.managed_fields = None;
    single(&event)
}

fn version(text: &str) -> Result<u64, Status> {
    if text.is_empty() {
        return Ok(0);
    }
    // Go reads no sign here.
    let number = text.parse().ok().filter(|_| !text.starts_with('+'));
    number.ok_or_else(|| Status::new(500, "", format!("the resourceVersion {text:?} is not a number")))
}

fn check_preconditions(options: &DeleteOptions, name: &str, event: &Event) -> Result<(), Status> {
    let conflict = |what: &str, wanted: &str, found: &str| {
        let text = format!("the {what} of Event {name:?} is {found}, and the precondition states {wanted}");
        // COMPAT(apiserver): in this refusal `kind` is the kind, not the resource, in both API groups.
        let details = StatusDetails { name: name.to_owned(), kind: "Event".to_owned(), ..StatusDetails::default() };
        Err(Status::new(409, "Conflict", text).with_details(details))
    };
    let metadata = &event.metadata;
    match (&options.uid, &options.resource_version) {
        (Some(uid), _) if metadata.uid != *uid => conflict("uid", uid, &metadata.uid),
        (_, Some(version)) if metadata.resource_version != *version => {
            conflict("resourceVersion", version, &metadata.resource_version)
        }
        _ => Ok(()),
    }
}

fn wrong_uid(group: ApiGroup, event: &Event, found: &str) -> Status {
    let text = format!("the uid of the stored event is {found:?}, not {:?}", event.metadata.uid);
    Status::conflict(group.name(), &event.metadata.name, &text)
}
