//! Object metadata, read. See `k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use serde_json::{Map, Value};
use smol_str::SmolStr;

use super::fields::time;
use super::reader::{Fault, fields};
use crate::event::{ObjectMeta, OwnerReference, RareMeta};

/// Reads `metadata`. Go writes empty members too; what events seldom carry is boxed only when there is something in it.
pub(super) fn object_meta(data: &[u8], meta: &mut ObjectMeta) -> Result<(), Fault> {
    let ObjectMeta { name, namespace, resource_version, uid, creation_timestamp, rare } = meta;
    fields(data, "ObjectMeta", |field| {
        match field.number {
            1 => field.string("Name", name)?,
            2 => keep(rare, field.text("GenerateName")?, |rare| &mut rare.generate_name),
            3 => field.string("Namespace", namespace)?,
            4 => keep(rare, field.text("SelfLink")?, |rare| &mut rare.self_link),
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
                rare.get_or_insert_default().finalizers.push(finalizer);
            }
            17 => {
                let entry = managed_fields(field.bytes("ManagedFields")?)?;
                rare.get_or_insert_default().managed_fields.push(entry);
            }
            _ => field.skip()?,
        }
        Ok(())
    })?;
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

/// A `managedFields` entry, kept as the JSON that JSON's decoder would keep of it.
fn managed_fields(data: &[u8]) -> Result<Value, Fault> {
    let [mut manager, mut operation, mut api_version, mut fields_type, mut subresource]: [SmolStr; 5] =
        Default::default();
    let (mut at, mut raw) = (None, None);
    fields(data, "ManagedFieldsEntry", |field| match field.number {
        1 => field.string("Manager", &mut manager),
        2 => field.string("Operation", &mut operation),
        3 => field.string("APIVersion", &mut api_version),
        4 => time(field.bytes("Time")?, &mut at),
        6 => field.string("FieldsType", &mut fields_type),
        7 => fields(field.bytes("FieldsV1")?, "FieldsV1", |field| match field.number {
            1 => field.bytes("Raw").map(|bytes| raw = Some(bytes)),
            _ => field.skip(),
        }),
        8 => field.string("Subresource", &mut subresource),
        _ => field.skip(),
    })?;
    let mut entry = Map::new();
    let mut put = |name: &str, text: &str| {
        if !text.is_empty() {
            entry.insert(name.to_owned(), Value::from(text));
        }
    };
    put("manager", &manager);
    put("operation", &operation);
    put("apiVersion", &api_version);
    put("time", &at.map(|time| time.to_string()).unwrap_or_default());
    put("fieldsType", &fields_type);
    // LIMIT: what is no JSON, or nests deeper than `serde_json` reads (128), is dropped; the apiserver replaces managed
    // fields on create, and makes none that are either.
    if let Some(fields) = raw.and_then(|raw| serde_json::from_slice(raw).ok()) {
        entry.insert("fieldsV1".to_owned(), fields);
    }
    if !subresource.is_empty() {
        entry.insert("subresource".to_owned(), Value::from(subresource.as_str()));
    }
    Ok(Value::Object(entry))
}
