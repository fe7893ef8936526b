//! PATCH of the embedded store: what is done with an event that a client's patch was applied to. After `rest.BeforeUpdate` in
//! `k8s.io/apiserver/pkg/registry/rest/update.go` and `Store.Update` in `pkg/registry/generic/registry/store.go`.

use std::sync::Arc;

use super::write::version;
use super::{Store, key_of};
use crate::clock::Now;
use crate::event::{ApiGroup, Event, ObjectMeta, RareMeta, validate};
use crate::status::Status;
use crate::upstream::PatchOptions;

impl Store {
    /// The event as it is stored now, for a patch to be applied to.
    ///
    /// # Errors
    /// 404 in the words of the API group when it is missing.
    pub fn current(&mut self, namespace: &str, name: &str, group: ApiGroup, now: Now) -> Result<Arc<Event>, Status> {
        self.expire(now);
        let stored = self.events.get(&key_of(namespace, name));
        stored.map(|stored| Arc::clone(&stored.event)).ok_or_else(|| Status::not_found(group.name(), "events", name))
    }

    /// Stores what a patch has made of `current`. `None` when the stored event is no longer that one: patch the new one.
    ///
    /// # Errors
    /// 404 when the event is gone, 409 when the patch states another version, 422 for what the API group does not let change, 500
    /// for a version that is no number.
    pub fn commit(
        &mut self,
        current: &Event,
        mut event: Event,
        options: &PatchOptions,
        now: Now,
    ) -> Result<Option<Event>, Status> {
        let metadata = &current.metadata;
        let stored = self.current(&metadata.namespace, &metadata.name, options.writer.group, now)?;
        if stored.metadata.resource_version != metadata.resource_version || stored.metadata.uid != metadata.uid {
            return Ok(None);
        }
        let stated = version(&event.metadata.resource_version)?;
        if stated != 0 && stated != version(&metadata.resource_version)? {
            let text = "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Status::conflict(options.writer.group.name(), "events", &metadata.name, text));
        }
        keep_server_owned(&mut event.metadata, metadata);
        validate::update(options.writer.group, &stored, &event).map_err(|status| *status)?;
        let patched = if options.dry_run { self.rehearsed(event) } else { self.exchange(event, now) };
        patched.map(Some)
    }
}

/// What an update may leave out or cannot change. Unlike a PUT's, a patched object's own uid and times are looked at, if they
/// differ: it had the stored ones before the patch.
fn keep_server_owned(new: &mut ObjectMeta, old: &ObjectMeta) {
    if new.uid.is_empty() {
        new.uid.clone_from(&old.uid);
    }
    new.creation_timestamp = old.creation_timestamp;
    let mut rare = new.rare.take().map(|rare| *rare).unwrap_or_default();
    let none = RareMeta::default();
    let kept = old.rare.as_deref().unwrap_or(&none);
    rare.self_link = smol_str::SmolStr::default();
    rare.generation = kept.generation;
    rare.deletion_timestamp = kept.deletion_timestamp.or(rare.deletion_timestamp);
    rare.deletion_grace_period_seconds = rare.deletion_grace_period_seconds.or(kept.deletion_grace_period_seconds);
    new.rare = (rare != none).then(|| Box::new(rare));
}
