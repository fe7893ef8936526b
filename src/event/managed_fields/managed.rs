//! The account of an event's managers, brought up to date with a write.

use std::sync::Arc;

use smol_str::SmolStr;

use super::set::{Field, FieldSet};
use super::{Comparison, ManagedFields, ManagedFieldsEntry};
use crate::event::{ApiGroup, Event, Time};

/// LIMIT: entries of updates; of more, the oldest are merged into one (`DefaultMaxUpdateManagers`).
const UPDATERS_MAX: usize = 10;
/// The name of what they are merged into.
const ANCIENT: &str = "ancient-changes";

/// An entry, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Managed {
    pub(super) manager: SmolStr,
    pub(super) applied: bool,
    pub(super) api_version: SmolStr,
    pub(super) subresource: SmolStr,
    pub(super) time: Option<Time>,
    pub(super) set: FieldSet,
}

impl Managed {
    pub(super) fn new(manager: &str, applied: bool, door: ApiGroup) -> Self {
        Self {
            manager: manager.into(),
            applied,
            api_version: door.api_version().into(),
            subresource: SmolStr::default(),
            time: None,
            set: FieldSet::default(),
        }
    }

    /// Whether both are of one manager (`BuildManagerIdentifier`): an applier is the same one at every version.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same = self.manager == other.manager && self.applied == other.applied;
        same && self.subresource == other.subresource && (self.applied || self.api_version == other.api_version)
    }

    fn read(entry: &ManagedFieldsEntry) -> Option<Self> {
        let applied = match entry.operation.as_str() {
            "Apply" => true,
            "Update" => false,
            _ => return None,
        };
        if entry.api_version.is_empty() || entry.fields_type != "FieldsV1" {
            return None;
        }
        let door = [ApiGroup::Core, ApiGroup::Events].into_iter().find(|door| door.api_version() == entry.api_version);
        let text = entry.fields.as_deref().unwrap_or("{}");
        // Fields of a version that events do not have go with the entry at the next write.
        let set = door.map_or(Some(FieldSet::default()), |door| FieldSet::parse(door, text))?;
        let ManagedFieldsEntry { manager, api_version, subresource, time, .. } = entry.clone();
        Some(Self { manager, applied, api_version, subresource, time, set })
    }

    fn write(&self, door: ApiGroup) -> ManagedFieldsEntry {
        ManagedFieldsEntry {
            manager: self.manager.clone(),
            operation: SmolStr::new_static(if self.applied { "Apply" } else { "Update" }),
            api_version: self.api_version.clone(),
            time: self.time,
            fields_type: SmolStr::new_static("FieldsV1"),
            fields: Some(Arc::from(self.set.render(door))),
            subresource: self.subresource.clone(),
        }
    }
}

/// Reads every entry; `None` when one of them cannot be (`DecodeManagedFields`).
pub(super) fn read(entries: &ManagedFields) -> Option<Vec<Managed>> {
    let mut read: Vec<Managed> = Vec::new();
    for entry in entries.iter().flat_map(|entries| entries.iter()) {
        let managed = Managed::read(entry)?;
        match read.iter_mut().find(|earlier| earlier.is_same(&managed)) {
            Some(earlier) => *earlier = managed,
            None => read.push(managed),
        }
    }
    Some(read)
}

/// Writes the entries in their order (`sortEncodedManagedFields`). All of them are of this door.
pub(super) fn write(mut managed: Vec<Managed>, door: ApiGroup) -> ManagedFields {
    let seconds = |managed: &Managed| managed.time.map_or(0, |Time(seconds)| seconds);
    managed.sort_by(|a, b| {
        let by_time = b.applied.cmp(&a.applied).then(seconds(a).cmp(&seconds(b)));
        by_time.then_with(|| a.manager.cmp(&b.manager)).then_with(|| a.subresource.cmp(&b.subresource))
    });
    (!managed.is_empty()).then(|| managed.iter().map(|managed| managed.write(door)).collect())
}

/// The `managedFields` of `new` after a write by `manager` through `door`; `old` is the stored state, `None` for a create.
/// `new` may carry managedFields of its own, as its client sent them.
#[must_use]
pub fn update(door: ApiGroup, old: Option<&Event>, new: &Event, manager: &str, now: Time) -> ManagedFields {
    let sent = &new.metadata.managed_fields;
    let mut managed = if is_reset(sent) { Vec::new() } else { read(sent).unwrap_or_default() };
    if let Some(old) = old {
        if managed.is_empty() && !is_reset(sent) {
            managed = read(&old.metadata.managed_fields).unwrap_or_default();
        }
        if managed.is_empty() {
            // COMPAT(apiserver): an account once emptied is not begun again, but by an apply (`skipNonAppliedManager`).
            return None;
        }
    }
    let nothing = Event::default();
    let mut found = Comparison::of(door, old.unwrap_or(&nothing), new);
    if old.is_none() {
        // Dropped from a new object before it is looked at (`WipeObjectMetaSystemFields`).
        found.taken.remove(Field::DeletionTimestamp);
        found.taken.remove(Field::DeletionGracePeriodSeconds);
    }
    lose(&mut managed, door, &found, |_| true);
    if !found.taken.is_empty() {
        let mut writer = Managed { set: found.taken, time: Some(now), ..Managed::new(manager, false, door) };
        if let Some(index) = managed.iter().position(|managed| managed.is_same(&writer)) {
            writer.set = writer.set.union(&managed.swap_remove(index).set);
        }
        managed.push(writer);
    }
    merge_oldest(&mut managed);
    write(managed, door)
}

/// A write takes fields from those of whom `loses` is true; entries of another version and empty ones disappear.
pub(super) fn lose(managed: &mut Vec<Managed>, door: ApiGroup, found: &Comparison, loses: impl Fn(&Managed) -> bool) {
    managed.retain_mut(|managed| {
        if managed.api_version != door.api_version() {
            return false;
        }
        if loses(managed) {
            managed.set = managed.set.difference(&found.taken).difference(&found.removed);
        }
        !managed.set.is_empty()
    });
}

/// `isResetManagedFields`: the client wants the account emptied.
fn is_reset(sent: &ManagedFields) -> bool {
    match sent.as_deref() {
        Some([]) => true,
        Some([only]) => *only == ManagedFieldsEntry::default(),
        _ => false,
    }
}

/// `capUpdateManagers`: beyond the limit the oldest updates become one. All entries are of one version here.
fn merge_oldest(managed: &mut Vec<Managed>) {
    let updaters = managed.iter().filter(|managed| !managed.applied).count();
    if updaters <= UPDATERS_MAX {
        return;
    }
    managed.sort_by(|a, b| {
        let order = a.applied.cmp(&b.applied).then(a.time.cmp(&b.time));
        order.then_with(|| a.manager.cmp(&b.manager))
    });
    let ancient = managed.iter().position(|managed| !managed.applied && managed.manager == ANCIENT);
    let mut oldest = managed.remove(ancient.unwrap_or(0));
    // COMPAT(apiserver): where there is such an entry already, the oldest update stays beside it.
    let from = usize::from(ancient.is_some_and(|index| index != 0));
    for _ in UPDATERS_MAX..updaters {
        let next = managed.remove(from);
        oldest.set = oldest.set.union(&next.set);
        oldest.time = next.time;
    }
    oldest.manager = SmolStr::new_static(ANCIENT);
    managed.push(oldest);
}
