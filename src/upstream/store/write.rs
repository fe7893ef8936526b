//! DELETE and PUT of the embedded store: preconditions, finalizers, and the rules of the API group a PUT came through. After
//! `k8s.io/apiserver/pkg/registry/rest/{delete,update}.go` and `pkg/storage/etcd3/store.go` (`GuaranteedUpdate`).

use super::{Store, key_of, meta, single};
use crate::clock::Now;
use crate::event::{Event, ObjectMeta, RareMeta, Time, validate};
use crate::status::{Status, StatusDetails};
use crate::upstream::{DeleteOptions, Deleted, UpdateOptions, Updated, Writer};
use smol_str::SmolStr;

impl Store {
    /// Deletes one event as `options` say; finalizers hold it back.
    ///
    /// # Errors
    /// 404 when the event is missing, 409 when a precondition does not hold.
    pub fn delete_with(
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
        let rare = stored.event.metadata.rare.as_deref();
        if rare.is_none_or(|rare| rare.finalizers.is_empty()) {
            if !options.dry_run {
                self.remove(&key);
            }
            return Ok(gone);
        }
        if rare.is_some_and(|rare| rare.deletion_timestamp.is_some()) || options.dry_run {
            return Ok(Deleted::Marked(Box::new(single(&stored.event))));
        }
        // A copy, because the stored one is shared with lists and watches.
        let mut event = Event::clone(&stored.event);
        let rare = event.metadata.rare.get_or_insert_default();
        rare.deletion_timestamp = Some(Time::from_unix_nanos(now.wall));
        rare.deletion_grace_period_seconds = Some(0);
        let stored = self.put(key, event, now);
        Ok(Deleted::Marked(Box::new(single(&stored))))
    }

    /// Puts `event` in the place of the one of its name; a missing one is created.
    ///
    /// # Errors
    /// 409 when the uid or the version is another one, 422 for what the API group does not let change, 500 for a version that is
    /// no number, and as [`Store::create`].
    pub fn replace(&mut self, mut event: Event, options: &UpdateOptions, now: Now) -> Result<Updated, Status> {
        self.expire(now);
        let writer = &options.writer;
        let (namespace, name) = (event.metadata.namespace.clone(), event.metadata.name.clone());
        let version = version(&event.metadata.resource_version)?;
        let uid = event.metadata.uid.clone();
        let Some(stored) = self.events.get(&key_of(&namespace, &name)) else {
            if !uid.is_empty() {
                return Err(wrong_uid(writer, &event, ""));
            }
            validate::create(writer.group, &event).map_err(|status| *status)?;
            event.metadata.resource_version = SmolStr::default();
            if options.dry_run {
                event.metadata.managed_fields = None;
                return Ok(Updated { event, created: true });
            }
            return Ok(Updated { event: self.create(event, now)?, created: true });
        };
        let old = &stored.event;
        if !uid.is_empty() && uid != old.metadata.uid {
            return Err(wrong_uid(writer, &event, &old.metadata.uid));
        }
        if version != 0 && version != stored.revision {
            let text = "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Status::conflict(writer.group.name(), "events", &name, text));
        }
        meta::keep_server_owned(&mut event.metadata, &old.metadata);
        validate::update(writer.group, old, &event).map_err(|status| *status)?;
        let event = if options.dry_run { self.rehearsed(event)? } else { self.exchange(event, now)? };
        Ok(Updated { event, created: false })
    }

    /// Puts a checked `event` in the place of the stored one of its name, which is gone if it was only held by finalizers that
    /// are gone now.
    ///
    /// # Errors
    /// 404 when the event is missing.
    pub(super) fn exchange(&mut self, mut event: Event, now: Now) -> Result<Event, Status> {
        let (namespace, name) = (event.metadata.namespace.clone(), event.metadata.name.clone());
        let old = self.stored(&event)?;
        let held = |rare: &RareMeta| rare.deletion_timestamp.is_some() && !rare.finalizers.is_empty();
        let was_held = old.metadata.rare.as_deref().is_some_and(held);
        if was_held && !event.metadata.rare.as_deref().is_some_and(held) {
            // The last finalizer is gone, and with it the event.
            event.metadata.resource_version.clone_from(&old.metadata.resource_version);
            event.metadata.managed_fields = None;
            self.remove(&key_of(&namespace, &name));
            return Ok(single(&event));
        }
        self.update(&namespace, &name, now, |stored| {
            *stored = event;
            Ok(())
        })
    }

    /// A checked `event` as the answer to a dry run shows it.
    ///
    /// # Errors
    /// 404 when the event is missing.
    pub(super) fn rehearsed(&self, mut event: Event) -> Result<Event, Status> {
        let old = self.stored(&event)?;
        event.metadata.resource_version.clone_from(&old.metadata.resource_version);
        event.metadata.managed_fields = None;
        Ok(single(&event))
    }

    /// The stored event of this one's name.
    fn stored(&self, event: &Event) -> Result<&Event, Status> {
        let ObjectMeta { namespace, name, .. } = &event.metadata;
        let stored = self.events.get(&key_of(namespace, name));
        stored.map(|stored| &*stored.event).ok_or_else(|| Status::not_found("", "events", name))
    }

    /// Forgets every change but the newest, as a compaction of etcd at its newest revision does.
    pub fn compact(&mut self) {
        self.changes.compact(self.revision);
    }
}

pub(super) fn version(text: &str) -> Result<u64, Status> {
    match text {
        "" => Ok(0),
        text => text.parse().map_err(|fault: std::num::ParseIntError| {
            let fault = match fault.kind() {
                std::num::IntErrorKind::PosOverflow => "value out of range",
                _ => "invalid syntax",
            };
            Status::new(500, "", format!("strconv.ParseUint: parsing \"{text}\": {fault}"))
        }),
    }
}

fn check_preconditions(options: &DeleteOptions, name: &str, event: &Event) -> Result<(), Status> {
    let conflict = |what: &str, wanted: &str, found: &str, ending: &str| {
        let text = format!(
            "Operation cannot be fulfilled on Event \"{name}\": the {what} in the precondition ({wanted}) does not match the \
             {what} in record ({found}). The object might have been {ending}"
        );
        // COMPAT(apiserver): here the kind stands where elsewhere the resource does, at both API groups.
        let details = StatusDetails { name: name.to_owned(), kind: "Event".to_owned(), ..StatusDetails::default() };
        Err(Status::new(409, "Conflict", text).with_details(details))
    };
    let metadata = &event.metadata;
    match (&options.uid, &options.resource_version) {
        (Some(uid), _) if metadata.uid != *uid => conflict("UID", uid, &metadata.uid, "deleted and then recreated"),
        (_, Some(version)) if metadata.resource_version != *version => {
            conflict("ResourceVersion", version, &metadata.resource_version, "modified")
        }
        _ => Ok(()),
    }
}

fn wrong_uid(writer: &Writer, event: &Event, found: &str) -> Status {
    let metadata = &event.metadata;
    let text = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/events/{}/{}, ResourceVersion: 0, AdditionalErrorMsg: \
         Precondition failed: UID in precondition: {}, UID in object meta: {found}",
        metadata.namespace, metadata.name, metadata.uid
    );
    Status::conflict(writer.group.name(), "events", &metadata.name, &text)
}
