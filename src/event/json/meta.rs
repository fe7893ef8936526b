//! Object metadata, decoded.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;
use smol_str::SmolStr;

use super::decoder::{Decoder, Path};
use super::reader::{Kind, Malformed};
use crate::event::{ManagedFields, ManagedFieldsEntry, ObjectMeta, OwnerReference, RareMeta};

/// Decodes `metadata`. What events seldom carry is boxed only when it is there.
pub(super) fn object_meta(decoder: &mut Decoder<'_>, at: &Path<'_>, meta: &mut ObjectMeta) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.ObjectMeta")? {
        return Ok(());
    }
    let mut seen = 0;
    decoder.members(|decoder, key| {
        let path = Path::field(at, "ObjectMeta", key);
        let (member, go_type, slot) = match key {
            "name" => (0, "string", &mut meta.name),
            "namespace" => (1, "string", &mut meta.namespace),
            "resourceVersion" => (2, "string", &mut meta.resource_version),
            "uid" => (3, "types.UID", &mut meta.uid),
            "creationTimestamp" => {
                decoder.check_duplicate(at, key, &mut seen, 4);
                return decoder.time(&path, &mut meta.creation_timestamp);
            }
            "managedFields" => {
                decoder.check_duplicate(at, key, &mut seen, 14);
                return managed_fields(decoder, &path, &mut meta.managed_fields);
            }
            _ => return rare_member(decoder, at, key, &mut seen, &mut meta.rare),
        };
        decoder.check_duplicate(at, key, &mut seen, member);
        decoder.string_of(&path, go_type, slot)
    })?;
    if meta.rare.as_deref() == Some(&RareMeta::default()) {
        meta.rare = None;
    }
    Ok(())
}

fn rare_member(
    decoder: &mut Decoder<'_>,
    at: &Path<'_>,
    key: &str,
    seen: &mut u32,
    rare: &mut Option<Box<RareMeta>>,
) -> Result<(), Malformed> {
    let member = match key {
        "generateName" => 5,
        "selfLink" => 6,
        "generation" => 7,
        "deletionTimestamp" => 8,
        "deletionGracePeriodSeconds" => 9,
        "labels" => 10,
        "annotations" => 11,
        "ownerReferences" => 12,
        "finalizers" => 13,
        _ => return decoder.unknown(at, key),
    };
    decoder.check_duplicate(at, key, seen, member);
    let path = Path::field(at, "ObjectMeta", key);
    let rare = rare.get_or_insert_default();
    match member {
        5 => decoder.string(&path, &mut rare.generate_name),
        6 => decoder.string(&path, &mut rare.self_link),
        7 => decoder.integer(&path, "int64", &mut rare.generation),
        8 => decoder.time(&path, &mut rare.deletion_timestamp),
        9 => decoder.optional_integer(&path, &mut rare.deletion_grace_period_seconds),
        10 => string_map(decoder, &path, &mut rare.labels),
        11 => string_map(decoder, &path, &mut rare.annotations),
        12 => list(decoder, &path, "[]v1.OwnerReference", &mut rare.owner_references, owner),
        _ => list(decoder, &path, "[]string", &mut rare.finalizers, |decoder, at, name| decoder.string(at, name)),
    }
}

fn string_map(decoder: &mut Decoder<'_>, at: &Path<'_>, map: &mut BTreeMap<SmolStr, SmolStr>) -> Result<(), Malformed> {
    if decoder.is_null()? {
        map.clear();
        return Ok(());
    }
    if !decoder.is_object(at, "map[string]string")? {
        return Ok(());
    }
    let mut seen: HashSet<SmolStr> = HashSet::new();
    decoder.members(|decoder, key| {
        let name = SmolStr::new(key);
        if !seen.insert(name.clone()) {
            decoder.duplicate(at, key);
        }
        let mut value = SmolStr::default();
        decoder.string(&Path::key(at, key), &mut value)?;
        map.insert(name, value);
        Ok(())
    })
}

/// Decodes into a list as Go does: elements from an earlier duplicate are decoded over, surplus ones cut off.
fn list<T: Default>(
    decoder: &mut Decoder<'_>,
    at: &Path<'_>,
    go_type: &str,
    items: &mut Vec<T>,
    element: impl Fn(&mut Decoder<'_>, &Path<'_>, &mut T) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    match decoder.reader.kind()? {
        Kind::Array => {}
        Kind::Null => {
            items.clear();
            return decoder.reader.null();
        }
        _ => return decoder.mismatch(at, go_type),
    }
    let mut more = decoder.reader.enter_array()?;
    let mut count: usize = 0;
    while more {
        if count == items.len() {
            items.push(T::default());
        }
        if let Some(item) = items.get_mut(count) {
            element(decoder, &Path::index(at, count), item)?;
        }
        count = count.saturating_add(1);
        more = decoder.reader.next_element()?;
    }
    items.truncate(count);
    Ok(())
}

fn owner(decoder: &mut Decoder<'_>, at: &Path<'_>, owner: &mut OwnerReference) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.OwnerReference")? {
        return Ok(());
    }
    let mut seen = 0;
    decoder.members(|decoder, key| {
        let path = Path::field(at, "OwnerReference", key);
        let (member, go_type, slot) = match key {
            "apiVersion" => (0, "string", &mut owner.api_version),
            "kind" => (1, "string", &mut owner.kind),
            "name" => (2, "string", &mut owner.name),
            "uid" => (3, "types.UID", &mut owner.uid),
            "controller" => {
                decoder.check_duplicate(at, key, &mut seen, 4);
                return decoder.optional_boolean(&path, &mut owner.controller);
            }
            "blockOwnerDeletion" => {
                decoder.check_duplicate(at, key, &mut seen, 5);
                return decoder.optional_boolean(&path, &mut owner.block_owner_deletion);
            }
            _ => return decoder.unknown(at, key),
        };
        decoder.check_duplicate(at, key, &mut seen, member);
        decoder.string_of(&path, go_type, slot)
    })
}

/// `managedFields`, in which an empty list means something else than none.
fn managed_fields(decoder: &mut Decoder<'_>, at: &Path<'_>, slot: &mut ManagedFields) -> Result<(), Malformed> {
    if decoder.is_null()? {
        *slot = None;
        return Ok(());
    }
    let mut entries = slot.as_deref().map(<[_]>::to_vec).unwrap_or_default();
    list(decoder, at, "[]v1.ManagedFieldsEntry", &mut entries, managed_fields_entry)?;
    *slot = Some(entries.into());
    Ok(())
}

fn managed_fields_entry(
    decoder: &mut Decoder<'_>,
    at: &Path<'_>,
    entry: &mut ManagedFieldsEntry,
) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.ManagedFieldsEntry")? {
        return Ok(());
    }
    let mut seen = 0;
    decoder.members(|decoder, key| {
        let path = Path::field(at, "ManagedFieldsEntry", key);
        let (member, go_type, slot) = match key {
            "manager" => (0, "string", &mut entry.manager),
            "operation" => (1, "v1.ManagedFieldsOperationType", &mut entry.operation),
            "apiVersion" => (2, "string", &mut entry.api_version),
            "fieldsType" => (3, "string", &mut entry.fields_type),
            "subresource" => (4, "string", &mut entry.subresource),
            "time" => {
                decoder.check_duplicate(at, key, &mut seen, 5);
                return decoder.time(&path, &mut entry.time);
            }
            "fieldsV1" => {
                decoder.check_duplicate(at, key, &mut seen, 6);
                return raw(decoder, &mut entry.fields);
            }
            _ => return decoder.unknown(at, key),
        };
        decoder.check_duplicate(at, key, &mut seen, member);
        decoder.string_of(&path, go_type, slot)
    })
}

/// A `FieldsV1`: any JSON. LIMIT: what nests deeper than `serde_json` reads (128) is dropped; the apiserver makes none that
/// deep.
fn raw(decoder: &mut Decoder<'_>, slot: &mut Option<Arc<str>>) -> Result<(), Malformed> {
    if decoder.is_null()? {
        *slot = None;
        return Ok(());
    }
    let start = decoder.reader.offset();
    decoder.reader.skip()?;
    let value: Option<Value> = serde_json::from_slice(decoder.reader.since(start)).ok();
    *slot = value.map(|value| value.to_string().into());
    Ok(())
}
