//! Object metadata, decoded.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use smol_str::SmolStr;

use super::decoder::{Decoder, Struct, members};
use super::path::Path;
use super::reader::{Kind, Malformed};
use crate::event::{ManagedFields, ObjectMeta, OwnerReference, RareMeta};

/// A member of `metadata`.
#[derive(Debug, Clone, Copy)]
enum Member {
    Name,
    Namespace,
    Uid,
    ResourceVersion,
    CreationTimestamp,
    ManagedFields,
    Rare(Rare),
}

/// What events seldom carry.
#[derive(Debug, Clone, Copy)]
enum Rare {
    GenerateName,
    SelfLink,
    Generation,
    DeletionTimestamp,
    DeletionGracePeriodSeconds,
    Labels,
    Annotations,
    OwnerReferences,
    Finalizers,
}

const META: Struct<Member> = Struct {
    name: "ObjectMeta",
    members: members! {
        "name" => Member::Name,
        "generateName" => Member::Rare(Rare::GenerateName),
        "namespace" => Member::Namespace,
        "selfLink" => Member::Rare(Rare::SelfLink),
        "uid" => Member::Uid,
        "resourceVersion" => Member::ResourceVersion,
        "generation" => Member::Rare(Rare::Generation),
        "creationTimestamp" => Member::CreationTimestamp,
        "deletionTimestamp" => Member::Rare(Rare::DeletionTimestamp),
        "deletionGracePeriodSeconds" => Member::Rare(Rare::DeletionGracePeriodSeconds),
        "labels" => Member::Rare(Rare::Labels),
        "annotations" => Member::Rare(Rare::Annotations),
        "ownerReferences" => Member::Rare(Rare::OwnerReferences),
        "finalizers" => Member::Rare(Rare::Finalizers),
        "managedFields" => Member::ManagedFields,
    },
};

/// Decodes `metadata`. What events seldom carry is boxed only when it is there.
pub(super) fn object_meta<'a>(
    decoder: &mut Decoder<'a>,
    at: &Path<'_>,
    meta: &mut ObjectMeta,
) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.ObjectMeta")? {
        return Ok(());
    }
    decoder.fields(at, &META, |decoder, at, member| match member {
        Some(Member::Name) => decoder.string(at, &mut meta.name),
        Some(Member::Namespace) => decoder.string(at, &mut meta.namespace),
        Some(Member::CreationTimestamp) => decoder.time(at, &mut meta.creation_timestamp),
        Some(Member::Uid) => decoder.string_of(at, "types.UID", &mut meta.uid),
        Some(Member::ResourceVersion) => decoder.string(at, &mut meta.resource_version),
        Some(Member::ManagedFields) => managed_fields(decoder, at, &mut meta.managed_fields),
        Some(Member::Rare(member)) => rare_member(decoder, at, member, meta.rare.get_or_insert_default()),
        None => decoder.unknown(at),
    })?;
    if meta.rare.as_deref().is_some_and(|rare| *rare == RareMeta::default()) {
        meta.rare = None;
    }
    Ok(())
}

fn rare_member(decoder: &mut Decoder<'_>, at: &Path<'_>, member: Rare, rare: &mut RareMeta) -> Result<(), Malformed> {
    match member {
        Rare::GenerateName => decoder.string(at, &mut rare.generate_name),
        Rare::SelfLink => decoder.string(at, &mut rare.self_link),
        Rare::Generation => decoder.integer(at, "int64", &mut rare.generation),
        Rare::DeletionTimestamp => decoder.time(at, &mut rare.deletion_timestamp),
        Rare::DeletionGracePeriodSeconds => decoder.optional_integer(at, &mut rare.deletion_grace_period_seconds),
        Rare::Labels => string_map(decoder, at, &mut rare.labels),
        Rare::Annotations => string_map(decoder, at, &mut rare.annotations),
        Rare::OwnerReferences => list(decoder, at, "[]v1.OwnerReference", &mut rare.owner_references, owner),
        Rare::Finalizers => {
            list(decoder, at, "[]string", &mut rare.finalizers, |decoder, at, name| decoder.string(at, name))
        }
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
            decoder.duplicate(&Path::key(at, key));
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

#[derive(Debug, Clone, Copy)]
enum OwnerMember {
    ApiVersion,
    Kind,
    Name,
    Uid,
    Controller,
    BlockOwnerDeletion,
}

const OWNER: Struct<OwnerMember> = Struct {
    name: "OwnerReference",
    members: members! {
        "apiVersion" => OwnerMember::ApiVersion,
        "kind" => OwnerMember::Kind,
        "name" => OwnerMember::Name,
        "uid" => OwnerMember::Uid,
        "controller" => OwnerMember::Controller,
        "blockOwnerDeletion" => OwnerMember::BlockOwnerDeletion,
    },
};

fn owner(decoder: &mut Decoder<'_>, at: &Path<'_>, owner: &mut OwnerReference) -> Result<(), Malformed> {
    if !decoder.is_object(at, "v1.OwnerReference")? {
        return Ok(());
    }
    decoder.fields(at, &OWNER, |decoder, at, member| match member {
        Some(OwnerMember::ApiVersion) => decoder.string(at, &mut owner.api_version),
        Some(OwnerMember::Kind) => decoder.string(at, &mut owner.kind),
        Some(OwnerMember::Name) => decoder.string(at, &mut owner.name),
        Some(OwnerMember::Uid) => decoder.string_of(at, "types.UID", &mut owner.uid),
        Some(OwnerMember::Controller) => decoder.optional_boolean(at, &mut owner.controller),
        Some(OwnerMember::BlockOwnerDeletion) => decoder.optional_boolean(at, &mut owner.block_owner_deletion),
        None => decoder.unknown(at),
    })
}

/// `managedFields`: any list. LIMIT: what nests deeper than `serde_json` reads (128) is dropped; the apiserver makes none that
/// deep.
fn managed_fields(decoder: &mut Decoder<'_>, at: &Path<'_>, slot: &mut ManagedFields) -> Result<(), Malformed> {
    match decoder.reader.kind()? {
        Kind::Array => {}
        Kind::Null => {
            *slot = None;
            return decoder.reader.null();
        }
        _ => return decoder.mismatch(at, "[]v1.ManagedFieldsEntry"),
    }
    let start = decoder.reader.offset();
    decoder.reader.skip()?;
    let value: Option<Value> = serde_json::from_slice(decoder.reader.since(start)).ok();
    *slot = value.map(|value| value.to_string().into());
    Ok(())
}
