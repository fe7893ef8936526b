//! The apiserver's rules for object metadata.

use std::collections::{BTreeSet, HashSet};

use smol_str::SmolStr;

use super::fault::{FORBIDDEN, TOO_LONG, invalid_text, invalid_texts, invalid_value, is_enough, plain, required};
use super::names::{dns_label, label_value, name, name_prefix, qualified_name};
use crate::event::{ApiGroup, ObjectMeta, OwnerReference, RareMeta, Time};
use crate::status::StatusCause;

/// LIMIT: bytes of the keys and values of all annotations; more are refused.
const ANNOTATIONS_MAX: usize = 256 << 10;

/// Checks the metadata of a new object (`ValidateObjectMeta`).
pub(super) fn create(meta: &ObjectMeta, group: ApiGroup, faults: &mut Vec<StatusCause>) {
    let generation = meta.rare.as_deref().map_or(0, |rare| rare.generation);
    object_meta(meta, generation, group, faults);
}

/// Checks metadata with the generation that the object will have (`ValidateObjectMeta`). Ignores managed fields, which
/// the server sets.
pub(super) fn object_meta(meta: &ObjectMeta, generation: i64, group: ApiGroup, faults: &mut Vec<StatusCause>) {
    if let Some(rare) = meta.rare.as_deref()
        && !rare.generate_name.is_empty()
    {
        invalid_texts("metadata.generateName", &rare.generate_name, name_prefix(group, &rare.generate_name), faults);
    }
    if meta.name.is_empty() {
        faults.push(required("metadata.name", "name or generateName is required"));
    } else {
        invalid_texts("metadata.name", &meta.name, name(group, &meta.name), faults);
    }
    if meta.namespace.is_empty() {
        faults.push(required("metadata.namespace", ""));
    } else {
        invalid_texts("metadata.namespace", &meta.namespace, dns_label(&meta.namespace), faults);
    }
    if generation < 0 {
        let detail = "must be greater than or equal to 0";
        faults.push(invalid_value("metadata.generation", &generation.to_string(), detail));
    }
    let Some(rare) = meta.rare.as_deref() else { return };
    maps(rare, faults);
    owners(&rare.owner_references, faults);
    finalizers(&rare.finalizers, faults);
}

/// Checks an update of metadata (`ValidateObjectMetaUpdate`), after `BeforeUpdate` has copied fields from the old
/// object.
pub(super) fn update(old: &ObjectMeta, new: &ObjectMeta, faults: &mut Vec<StatusCause>) {
    const IMMUTABLE: &str = "field is immutable";
    let none = RareMeta::default();
    let old_rare = old.rare.as_deref().unwrap_or(&none);
    let new_rare = new.rare.as_deref().unwrap_or(&none);
    if old_rare.deletion_timestamp.is_some() {
        no_new_finalizers(&old_rare.finalizers, &new_rare.finalizers, faults);
    }
    for (field, old, new) in
        [("metadata.name", &old.name, &new.name), ("metadata.namespace", &old.namespace, &new.namespace)]
    {
        if old != new {
            faults.push(invalid_text(field, new, IMMUTABLE));
        }
    }
    if !new.uid.is_empty() && old.uid != new.uid {
        faults.push(invalid_text("metadata.uid", &new.uid, IMMUTABLE));
    }
    let time = |time: Option<Time>| time.map_or_else(|| "null".to_owned(), |time| format!("\"{time}\""));
    if old.creation_timestamp.is_none() && new.creation_timestamp.is_some() {
        faults.push(invalid_value("metadata.creationTimestamp", &time(new.creation_timestamp), IMMUTABLE));
    }
    if old_rare.deletion_timestamp.is_none() && new_rare.deletion_timestamp.is_some() {
        faults.push(invalid_value("metadata.deletionTimestamp", &time(new_rare.deletion_timestamp), IMMUTABLE));
    }
    if let Some(seconds) = new_rare.deletion_grace_period_seconds
        && old_rare.deletion_grace_period_seconds != Some(seconds)
    {
        faults.push(invalid_value("metadata.deletionGracePeriodSeconds", &seconds.to_string(), IMMUTABLE));
    }
    maps(new_rare, faults);
    owners(&new_rare.owner_references, faults);
}

fn maps(rare: &RareMeta, faults: &mut Vec<StatusCause>) {
    for (key, value) in &rare.labels {
        if is_enough(faults) {
            return;
        }
        invalid_texts("metadata.labels", key, qualified_name(key), faults);
        invalid_texts("metadata.labels", value, label_value(value), faults);
    }
    let mut bytes: usize = 0;
    for (key, value) in &rare.annotations {
        if is_enough(faults) {
            return;
        }
        // Upper case is allowed in the whole key of an annotation.
        invalid_texts("metadata.annotations", key, qualified_name(&key.to_lowercase()), faults);
        bytes = bytes.saturating_add(key.len()).saturating_add(value.len());
    }
    if bytes > ANNOTATIONS_MAX {
        let detail = format!("may not be more than {ANNOTATIONS_MAX} bytes");
        faults.push(plain(TOO_LONG, "metadata.annotations", &detail));
    }
}

fn owners(owners: &[OwnerReference], faults: &mut Vec<StatusCause>) {
    const FIELD: &str = "metadata.ownerReferences";
    let mut controller: Option<String> = None;
    for owner in owners {
        if is_enough(faults) {
            return;
        }
        let (group, version) = match owner.api_version.split_once('/') {
            None => ("", owner.api_version.as_str()),
            // A second slash makes the version invalid.
            Some((_, version)) if version.contains('/') => ("", ""),
            Some(both) => both,
        };
        if version.is_empty() {
            let field = format!("{FIELD}.apiVersion");
            faults.push(invalid_text(&field, &owner.api_version, "version must not be empty"));
        }
        for (member, text) in [("kind", &owner.kind), ("name", &owner.name), ("uid", &owner.uid)] {
            if text.is_empty() {
                faults.push(invalid_text(&format!("{FIELD}.{member}"), "", "must not be empty"));
            }
        }
        if (group, version, owner.kind.as_str()) == ("", "v1", "Event") {
            faults.push(invalid_text(FIELD, &owner.name, "/v1, Kind=Event is disallowed from being an owner"));
        }
        if owner.controller != Some(true) {
            continue;
        }
        let current = format!("{}/{}", owner.kind, owner.name);
        if let Some(first) = &controller {
            let detail = format!(
                "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {current}"
            );
            faults.push(invalid_text(FIELD, &current, &detail));
        } else {
            controller = Some(current);
        }
    }
}

fn finalizers(finalizers: &[SmolStr], faults: &mut Vec<StatusCause>) {
    const FIELD: &str = "metadata.finalizers";
    for finalizer in finalizers {
        if is_enough(faults) {
            return;
        }
        invalid_texts(FIELD, finalizer, qualified_name(finalizer), faults);
    }
    let has = |name: &str| finalizers.iter().any(|finalizer| finalizer == name);
    if has("orphan") && has("foregroundDeletion") {
        let value = finalizers.join(", ");
        faults.push(invalid_text(FIELD, &value, "finalizer orphan and foregroundDeletion cannot be both set"));
    }
}

/// Whether a finalizer is allowed at events.k8s.io/v1 (`validateKubeFinalizerName`): it has a prefix, or is one of Kubernetes'
/// own.
pub fn is_finalizer(name: &str) -> bool {
    name.contains('/') || matches!(name, "kubernetes" | "orphan" | "foregroundDeletion")
}

/// Checks the additional rule of events.k8s.io/v1 about finalizers.
pub(super) fn finalizer_prefixes(meta: &ObjectMeta, faults: &mut Vec<StatusCause>) {
    let Some(rare) = meta.rare.as_deref() else { return };
    for (index, finalizer) in rare.finalizers.iter().enumerate() {
        if is_enough(faults) {
            return;
        }
        if !is_finalizer(finalizer) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            faults.push(invalid_text(&format!("metadata.finalizers[{index}]"), finalizer, detail));
        }
    }
}

fn no_new_finalizers(old: &[SmolStr], new: &[SmolStr], faults: &mut Vec<StatusCause>) {
    let old: HashSet<&str> = old.iter().map(SmolStr::as_str).collect();
    let added: BTreeSet<&str> = new.iter().map(SmolStr::as_str).filter(|finalizer| !old.contains(finalizer)).collect();
    if added.is_empty() {
        return;
    }
    let detail =
        format!("no new finalizers can be added if the object is being deleted, found new finalizers {added:?}");
    faults.push(plain(FORBIDDEN, "metadata.finalizers", &detail));
}
