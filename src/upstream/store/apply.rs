//! Server-side apply of the embedded store. After `k8s.io/apiserver/pkg/endpoints/handlers/patch.go` (`applyPatcher`) and
//! `k8s.io/apimachinery/pkg/util/managedfields/internal/structuredmerge.go`.

use serde_json::Value;

use super::{Store, key_of, meta, single};
use crate::clock::Now;
use crate::event::json::{self, Strictness};
use crate::event::managed_fields::{Application, Conflict};
use crate::event::{ApiGroup, Event, Time, validate};
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{ApplyOptions, Updated};

impl Store {
    /// Merges `document` into the event of this name as its manager wants it; a missing one is created.
    ///
    /// # Errors
    /// 400 for a document of another kind, version, name or namespace, 409 for fields of other managers and for another
    /// resourceVersion or uid, 422 for what the door does not let be, 500 for what an event does not have.
    pub fn apply(
        &mut self,
        namespace: &str,
        name: &str,
        document: &Value,
        options: &ApplyOptions,
        now: Now,
    ) -> Result<Updated, Status> {
        self.expire(now);
        let writer = &options.writer;
        let door = writer.group;
        let event = decode(door, document)?;
        let stored = self.events.get(&key_of(namespace, name));
        let live = stored.map(|stored| Event::clone(&stored.event));
        let application = Application { door, document, event: &event, manager: &writer.manager, force: options.force };
        let time = Time::from_unix_nanos(now.wall);
        let mut merged = application.merge(live.as_ref(), time).map_err(|conflicts| refused(&conflicts))?;
        check_name(&mut merged, &event, namespace, name)?;
        let wanted = &event.metadata;
        let Some(live) = live else {
            if !wanted.uid.is_empty() {
                let text = format!(
                    "uid mismatch: the provided object specified uid {}, and no existing object was found",
                    wanted.uid
                );
                return Err(Status::conflict(door.name(), "events", name, &text));
            }
            validate::create(door, &merged).map_err(|status| *status)?;
            if options.dry_run {
                return Ok(Updated { event: single(&merged), created: true });
            }
            let account = merged.metadata.managed_fields.take();
            return Ok(Updated { event: self.create_with(account, merged, now)?, created: true });
        };
        if !matches!(wanted.resource_version.as_str(), "" | "0")
            && wanted.resource_version != live.metadata.resource_version
        {
            let text = "the object has been modified; please apply your changes to the latest version and try again";
            return Err(Status::conflict(door.name(), "events", name, text));
        }
        if !wanted.uid.is_empty() {
            merged.metadata.uid.clone_from(&wanted.uid);
        }
        validate::update(door, &live, &merged).map_err(|status| *status)?;
        meta::keep_server_owned(&mut merged.metadata, &live.metadata);
        if options.dry_run || merged == live {
            return Ok(Updated { event: single(&merged), created: false });
        }
        let key = key_of(namespace, name);
        let finalizers = |event: &Event| event.metadata.rare.as_deref().is_some_and(|rare| !rare.finalizers.is_empty());
        let deleting = live.metadata.rare.as_deref().is_some_and(|rare| rare.deletion_timestamp.is_some());
        if deleting && finalizers(&live) && !finalizers(&merged) {
            self.remove(&key);
            return Ok(Updated { event: single(&merged), created: false });
        }
        let stored = self.put(key, merged, now);
        Ok(Updated { event: single(&stored), created: false })
    }
}

/// The applied event. COMPAT(apiserver): what an event does not have is a 500.
fn decode(door: ApiGroup, document: &Value) -> Result<Event, Status> {
    let member = |name: &str| document.get(name).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (member("apiVersion"), member("kind"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let identity = format!("{group}/{version}, Kind={kind}");
    if api_version != door.api_version() || kind != "Event" {
        return Err(Status::bad_request(format!("invalid object type: {identity}")));
    }
    let metadata = document.get("metadata").unwrap_or(&Value::Null);
    if metadata.get("managedFields").is_some_and(|fields| !fields.is_null()) {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    let text = |name: &str| metadata.get(name).and_then(Value::as_str).unwrap_or_default();
    let untyped = |fault: &str| {
        let (namespace, name) = (text("namespace"), text("name"));
        let head = format!("failed to create typed patch object ({namespace}/{name}; {identity})");
        Status::new(500, "", format!("{head}: {fault}"))
    };
    let document = document.to_string();
    let decoded =
        json::decode(door, document.as_bytes(), Strictness::Report).map_err(|error| untyped(&error.status.message))?;
    let mut faults: Vec<String> =
        decoded.strict_faults.iter().map(|fault| format!(".{}: field not declared in schema", fault.path)).collect();
    faults.sort_unstable();
    match faults.as_slice() {
        [] => Ok(decoded.event),
        [only] => Err(untyped(only)),
        several => Err(untyped(&format!("errors:\n  {}", several.join("\n  ")))),
    }
}

/// The applied name and namespace have to be those of the URL; the stored ones are.
fn check_name(merged: &mut Event, applied: &Event, namespace: &str, name: &str) -> Result<(), Status> {
    if !applied.metadata.name.is_empty() {
        merged.metadata.name.clone_from(&applied.metadata.name);
    }
    if !applied.metadata.namespace.is_empty() {
        merged.metadata.namespace.clone_from(&applied.metadata.namespace);
    }
    validate::adopt_path(merged, namespace, name).map_err(|status| *status)
}

/// 409 that names whose fields would be taken (`NewConflictError`).
fn refused(conflicts: &[Conflict]) -> Status {
    let causes = conflicts.iter().flat_map(|conflict| {
        conflict.paths.iter().map(|path| StatusCause {
            reason: "FieldManagerConflict".to_owned(),
            message: format!("conflict with {}", conflict.manager),
            field: path.clone(),
        })
    });
    let causes: Vec<StatusCause> = causes.collect();
    let message = match causes.as_slice() {
        [only] => format!("Apply failed with 1 conflict: {}: {}", only.message, only.field),
        several => {
            let each = conflicts.iter().map(|conflict| {
                let paths: String = conflict.paths.iter().map(|path| format!("\n- {path}")).collect();
                format!("conflicts with {}:{paths}", conflict.manager)
            });
            format!("Apply failed with {} conflicts: {}", several.len(), each.collect::<Vec<_>>().join("\n"))
        }
    };
    Status::new(409, "Conflict", message).with_details(StatusDetails { causes, ..StatusDetails::default() })
}
