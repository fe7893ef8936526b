//! The apiserver's rules for events, with its faults, order and words. Pure; changes nothing but a missing namespace and
//! duplicate owners.
//!
//! Mirrors `pkg/apis/core/validation/events.go` and, for metadata, `apimachinery/pkg/api/validation/objectmeta.go`, as
//! Kubernetes 1.37 has them. Call [`adopt_namespace`] or [`adopt_path`], generate the name if `generateName` requests
//! it, then call [`create`] or [`update`].

mod fault;
mod meta;
mod names;

pub use meta::is_finalizer;
pub use names::{dns_label as namespace_faults, label_value as label_value_faults, qualified_name as label_key_faults};

use std::collections::HashSet;

use super::schema::{Object as _, with_access};
use super::{ApiGroup, Event, MicroTime, NEW_STYLE_MESSAGE_MAX, NEW_STYLE_TEXT_MAX};
use crate::status::{Status, StatusCause};
use fault::{INVALID, invalid, invalid_text, invalid_texts, plain, required};
use names::qualified_name;

/// Whether an event of `group` may have this name.
pub fn is_valid_name(group: ApiGroup, name: &str) -> bool {
    names::name(group, name).is_empty()
}

/// Whether events.k8s.io/v1 accepts this `generateName`.
pub fn is_valid_prefix(generate_name: &str) -> bool {
    names::name_prefix(ApiGroup::Events, generate_name).is_empty()
}

/// Sets a missing namespace to that of the request.
///
/// # Errors
/// The apiserver's 400 when the event has another namespace.
pub fn adopt_namespace(event: &mut Event, namespace: &str) -> Result<(), Box<Status>> {
    if event.metadata.namespace.is_empty() {
        event.metadata.namespace = namespace.into();
    }
    if event.metadata.namespace == namespace {
        return Ok(());
    }
    Err(Box::new(Status::bad_request(
        "the namespace of the provided object does not match the namespace sent on the request",
    )))
}

/// Drops owners that equal an earlier one, as the API server does before it validates. Returns its warning about them.
pub fn drop_duplicate_owners(event: &mut Event) -> Option<String> {
    let rare = event.metadata.rare.as_deref_mut()?;
    let (mut seen, mut duplicates) = (HashSet::new(), Vec::new());
    rare.owner_references.retain(|owner| {
        let is_first = seen.insert(owner.clone());
        if !is_first {
            duplicates.push(owner.uid.clone());
        }
        is_first
    });
    (!duplicates.is_empty()).then(|| {
        format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may \
             reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            duplicates.join(", ")
        )
    })
}

/// As [`adopt_namespace`], for a request with a name in its path. The body may omit the namespace, but not the name.
///
/// # Errors
/// The apiserver's 400 when the event has another name or namespace, or no name.
pub fn adopt_path(event: &mut Event, namespace: &str, name: &str) -> Result<(), Box<Status>> {
    adopt_namespace(event, namespace)?;
    let fault = match event.metadata.name.as_str() {
        given if given == name => return Ok(()),
        "" => format!("the name of the object ({name} based on URL) was undeterminable: name must be provided"),
        given => format!("the name of the object ({given}) does not match the name on the URL ({name})"),
    };
    Err(Box::new(Status::bad_request(fault)))
}

/// Checks a new event. A name that `generateName` requests must have been generated before.
///
/// # Errors
/// The apiserver's 422, with one cause per fault. core/v1 reports faults of metadata only if the event has no others.
pub fn create(group: ApiGroup, event: &Event) -> Result<(), Box<Status>> {
    let mut faults = Vec::new();
    common(group, event, &mut faults);
    if group == ApiGroup::Events {
        meta::create(&event.metadata, ApiGroup::Events, &mut faults);
        meta::finalizer_prefixes(&event.metadata, &mut faults);
        strict_create(event, &mut faults);
    }
    refuse(event, &faults)?;
    meta::create(&event.metadata, ApiGroup::Core, &mut faults);
    refuse(event, &faults)
}

/// Checks `new` as an update of `old`. As in the apiserver, the caller has copied from `old` what an update cannot
/// change or may omit: generation, uid, times of creation and deletion.
///
/// # Errors
/// The apiserver's 422, with one cause per fault.
pub fn update(group: ApiGroup, old: &Event, new: &Event) -> Result<(), Box<Status>> {
    let mut faults = Vec::new();
    // By core/v1's rule of names in both API groups. The generation is the old object's, which was valid.
    meta::object_meta(&new.metadata, 0, ApiGroup::Core, &mut faults);
    meta::update(&old.metadata, &new.metadata, &mut faults);
    common(group, new, &mut faults);
    if group == ApiGroup::Events {
        meta::update(&old.metadata, &new.metadata, &mut faults);
        meta::finalizer_prefixes(&new.metadata, &mut faults);
        if new.series != old.series {
            series(new, &mut faults);
        }
        immutable(old, new, &mut faults);
    }
    refuse(new, &faults)
}

fn refuse(event: &Event, faults: &[StatusCause]) -> Result<(), Box<Status>> {
    if faults.is_empty() { Ok(()) } else { Err(Box::new(invalid(&event.metadata.name, faults))) }
}

/// Checks the rules of both API groups (`legacyValidateEvent`).
fn common(group: ApiGroup, event: &Event, faults: &mut Vec<StatusCause>) {
    let namespace = event.metadata.namespace.as_str();
    let object_namespace = event.involved_object.namespace.as_str();
    let agrees = match (event.event_time, object_namespace) {
        (None, "") => matches!(namespace, "" | "default"),
        (None, _) => namespace == object_namespace,
        (Some(_), "") => matches!(namespace, "default" | "kube-system"),
        (Some(_), _) => true,
    };
    if !agrees {
        faults.push(invalid_text("involvedObject.namespace", object_namespace, "does not match event.namespace"));
    }
    if event.event_time.is_none() {
        return;
    }
    // The only path that depends on the API group; all others are core/v1's.
    let controller = match group {
        ApiGroup::Core => "reportingComponent",
        ApiGroup::Events => "reportingController",
    };
    if event.reporting_controller.is_empty() {
        faults.push(required(controller, ""));
    }
    invalid_texts(controller, &event.reporting_controller, qualified_name(&event.reporting_controller), faults);
    for (field, text) in
        [("reportingInstance", &event.reporting_instance), ("action", &event.action), ("reason", &event.reason)]
    {
        if text.is_empty() {
            faults.push(required(field, ""));
        }
        at_most(NEW_STYLE_TEXT_MAX, field, text, faults);
    }
    at_most(NEW_STYLE_MESSAGE_MAX, "message", &event.message, faults);
}

fn at_most(bytes: usize, field: &str, text: &str, faults: &mut Vec<StatusCause>) {
    if text.len() > bytes {
        faults.push(invalid_text(field, "", &format!("can have at most {bytes} characters")));
    }
}

/// Checks the additional rules of events.k8s.io/v1.
fn strict_create(event: &Event, faults: &mut Vec<StatusCause>) {
    series(event, faults);
    if event.event_time.is_none() {
        faults.push(required("eventTime", ""));
    }
    if !matches!(event.event_type.as_str(), "Normal" | "Warning") {
        faults.push(invalid_text("type", "", &format!("has invalid value: {}", event.event_type)));
    }
    let deprecated = [
        ("firstTimestamp", event.first_timestamp.is_some()),
        ("lastTimestamp", event.last_timestamp.is_some()),
        ("count", event.count != 0),
        ("source", !(event.source.component.is_empty() && event.source.host.is_empty())),
    ];
    for (field, set) in deprecated {
        if set {
            faults.push(invalid_text(field, "", "needs to be unset"));
        }
    }
}

fn series(event: &Event, faults: &mut Vec<StatusCause>) {
    let Some(series) = &event.series else { return };
    if series.count < 2 {
        faults.push(invalid_text("series.count", "", "should be at least 2"));
    }
    if series.last_observed_time.is_none() {
        faults.push(required("series.lastObservedTime", ""));
    }
}

/// Checks that an update through events.k8s.io/v1 changes only metadata and series.
fn immutable(old: &Event, new: &Event, faults: &mut Vec<StatusCause>) {
    // The zero time equals no time.
    let [old, new] = [old, new].map(|event| {
        let event_time = event.event_time.filter(|&time| time != MicroTime::ZERO);
        Event { event_time, ..event.clone() }
    });
    for member in Event::members(ApiGroup::Core) {
        // The apiserver's internal names are core/v1's, with one exception.
        let field = match member.name(ApiGroup::Core) {
            "metadata" | "series" => continue,
            "reportingComponent" => member.name(ApiGroup::Events),
            name => name,
        };
        if with_access!(&member.slot, access => (access.get)(&old) != (access.get)(&new)) {
            faults.push(plain(INVALID, field, "field is immutable"));
        }
    }
}
