//! Who set which field: `metadata.managedFields`. After `k8s.io/apimachinery/pkg/util/managedfields/internal` and
//! `sigs.k8s.io/structured-merge-diff`, `merge/update.go`.
//!
//! A writer owns what it changed, and others lose it. The two doors are two versions that the apiserver cannot convert between
//! here, so that the first write at one drops what was known of writes at the other.

mod apply;
mod compare;
mod managed;
mod set;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use smol_str::SmolStr;

pub use apply::{Application, Conflict};
pub use compare::Comparison;
pub use managed::update;
pub use set::FieldSet;

use super::{ApiGroup, Time};

/// `metadata.managedFields`: `None` when absent, which is not the same as empty in what a client sends. Shared, because
/// events that are alike have it in common.
pub type ManagedFields = Option<Arc<[ManagedFieldsEntry]>>;

/// What one manager has written through one door.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManagedFieldsEntry {
    /// Who wrote: `?fieldManager`, or the beginning of the User-Agent.
    pub manager: SmolStr,
    /// `Apply`, or `Update` for every other write.
    pub operation: SmolStr,
    /// The version whose names the fields have.
    pub api_version: SmolStr,
    /// When the manager last took a field.
    pub time: Option<Time>,
    /// `FieldsV1`.
    pub fields_type: SmolStr,
    /// The fields, as compact JSON.
    pub fields: Option<Arc<str>>,
    /// The subresource written through; events have none.
    pub subresource: SmolStr,
}

impl ManagedFieldsEntry {
    /// Rough bytes of an entry and what it holds alone: the fields of events without keys of their own are few, and shared.
    pub(super) fn approximate_size(&self) -> usize {
        let fields = self.fields.as_ref().filter(|fields| fields.contains("f:metadata")).map_or(0, |text| text.len());
        let texts = [&self.manager, &self.subresource].into_iter().map(|text| text.len()).sum::<usize>();
        size_of::<Self>().saturating_add(fields).saturating_add(texts)
    }
}

/// Whether two accounts tell of the same, at whatever times.
#[must_use]
pub fn equal_but_times(one: &ManagedFields, other: &ManagedFields) -> bool {
    let timeless = |entry: &ManagedFieldsEntry| ManagedFieldsEntry { time: None, ..entry.clone() };
    match (one.as_deref(), other.as_deref()) {
        (Some(one), Some(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| timeless(one) == timeless(other))
        }
        (one, other) => one == other,
    }
}

/// What an event carries on its way to the upstream when it is to be written in its client's name: an entry without fields.
#[must_use]
pub fn claim(manager: &str, door: ApiGroup) -> ManagedFields {
    let (manager, api_version) = (manager.into(), SmolStr::new_static(door.api_version()));
    Some([ManagedFieldsEntry { manager, api_version, ..ManagedFieldsEntry::default() }].into())
}

/// The manager and the door of a [`claim`].
#[must_use]
pub fn claimed(fields: &ManagedFields) -> Option<(&SmolStr, ApiGroup)> {
    let [ManagedFieldsEntry { manager, api_version, fields: None, .. }] = fields.as_deref()? else { return None };
    let door = [ApiGroup::Core, ApiGroup::Events].into_iter().find(|door| door.api_version() == api_version)?;
    Some((manager, door))
}
