//! Object metadata, read. See `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::fields::time;
use super::managed_fields;
use super::reader::{Fault, fields};
use crate::event::{ObjectMeta, OwnerReference, RareMeta};

/// Reads `metadata`. Go writes empty members too; what events seldom carry is boxed only when there is something in it.
pub(super) fn object_meta(data: &[u8], meta: &mut ObjectMeta) -> Result<(), Fault> {
    let ObjectMeta { name, namespace, resource_version, uid, creation_timestamp, managed_fields: carried, rare } = meta;
    let mut entries = Vec::new();
    fields(data, "ObjectMeta", |field| {
        match field.number {
            1 => field.string("Name", name)?,
            2 => keep(rare, field.text("GenerateName")?.into(), |rare| &mut rare.generate_name),
            3 => field.string("Namespace", namespace)?,
            4 => keep(rare, field.text("SelfLink")?.into(), |rare| &mut rare.self_link),
            5 => field.string("UID", uid)?,
            6 => field.string("ResourceVersion", resource_version)?,
            7 => keep(rare, field.long("Generation")?, |rare| &mut rare.generation),
            8 => time(field.bytes("CreationTimestamp")?, creation_timestamp)?,
            9 => {
                let mut at = None;
                time(field.bytes("DeletionTimestamp")?, &mut at)?;
                keep(rare, at, |rare| &mut rare.deletion_timestamp);
            }
            10 => {
                let seconds = Some(field.long("DeletionGracePeriodSeconds")?);
                keep(rare, seconds, |rare| &mut rare.deletion_grace_period_seconds);
            }
            11 => {
                let (key, value) = field.entry("Labels")?;
                rare.get_or_insert_default().labels.insert(key, value);
            }
            12 => {
                let (key, value) = field.entry("Annotations")?;
                rare.get_or_insert_default().annotations.insert(key, value);
            }
            13 => {
                let owner = owner(field.bytes("OwnerReferences")?)?;
                rare.get_or_insert_default().owner_references.push(owner);
            }
            14 => {
                let finalizer = field.text("Finalizers")?;
                rare.get_or_insert_default().finalizers.push(finalizer.into());
            }
            17 => {
                let entry = managed_fields::read(field.bytes("ManagedFields")?)?;
                entries.push(entry);
            }
            _ => field.skip()?,
        }
        Ok(())
    })?;
    *carried = managed_fields::carried(&entries);
    if rare.as_deref() == Some(&RareMeta::default()) {
        *rare = None;
    }
    Ok(())
}

/// Puts a rare member in its place; the place is made only for something that is not empty.
fn keep<T: Default + PartialEq>(
    rare: &mut Option<Box<RareMeta>>,
    value: T,
    place: impl FnOnce(&mut RareMeta) -> &mut T,
) {
    if rare.is_some() || value != T::default() {
        *place(rare.get_or_insert_default()) = value;
    }
}

fn owner(data: &[u8]) -> Result<OwnerReference, Fault> {
    let mut owner = OwnerReference::default();
    fields(data, "OwnerReference", |field| match field.number {
        1 => field.string("Kind", &mut owner.kind),
        3 => field.string("Name", &mut owner.name),
        4 => field.string("UID", &mut owner.uid),
        5 => field.string("APIVersion", &mut owner.api_version),
        6 => field.boolean("Controller").map(|flag| owner.controller = Some(flag)),
        7 => field.boolean("BlockOwnerDeletion").map(|flag| owner.block_owner_deletion = Some(flag)),
        _ => field.skip(),
    })?;
    Ok(owner)
}
