//! A set of an event's fields, and its form `FieldsV1`. After `sigs.k8s.io/structured-merge-diff`, `fieldpath/{set,serialize}.go`.
//!
//! An event's fields are known, so that a set is a bit for each, and a list of keys for the maps and lists of its metadata.
//! involvedObject, related and owner references are owned as wholes; name, namespace, uid and the like by nobody.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use smol_str::SmolStr;

use crate::event::ApiGroup;

/// A field that is there at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Field {
    InvolvedObject,
    Reason,
    Message,
    Source,
    SourceComponent,
    SourceHost,
    FirstTimestamp,
    LastTimestamp,
    Count,
    Type,
    EventTime,
    Series,
    SeriesCount,
    SeriesLastObservedTime,
    Action,
    Related,
    ReportingController,
    ReportingInstance,
    GenerateName,
    DeletionTimestamp,
    DeletionGracePeriodSeconds,
    Annotations,
    Finalizers,
    Labels,
    OwnerReferences,
}

use Field::*;

impl Field {
    /// Every field; objects before their members.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        FIELDS.iter().map(|row| row.0).chain(METADATA.iter().map(|row| row.0))
    }
}

/// Where a field stands: the object around it, if any, and its name at core/v1 and at events.k8s.io/v1.
const FIELDS: [(Field, Option<Field>, &str, &str); 18] = [
    (InvolvedObject, None, "involvedObject", "regarding"),
    (Reason, None, "reason", "reason"),
    (Message, None, "message", "note"),
    (Source, None, "source", "deprecatedSource"),
    (SourceComponent, Some(Source), "component", "component"),
    (SourceHost, Some(Source), "host", "host"),
    (FirstTimestamp, None, "firstTimestamp", "deprecatedFirstTimestamp"),
    (LastTimestamp, None, "lastTimestamp", "deprecatedLastTimestamp"),
    (Count, None, "count", "deprecatedCount"),
    (Type, None, "type", "type"),
    (EventTime, None, "eventTime", "eventTime"),
    (Series, None, "series", "series"),
    (SeriesCount, Some(Series), "count", "count"),
    (SeriesLastObservedTime, Some(Series), "lastObservedTime", "lastObservedTime"),
    (Action, None, "action", "action"),
    (Related, None, "related", "related"),
    (ReportingController, None, "reportingComponent", "reportingController"),
    (ReportingInstance, None, "reportingInstance", "reportingInstance"),
];

/// The fields of the metadata that can be owned.
const METADATA: [(Field, &str); 7] = [
    (Annotations, "annotations"),
    (DeletionGracePeriodSeconds, "deletionGracePeriodSeconds"),
    (DeletionTimestamp, "deletionTimestamp"),
    (Finalizers, "finalizers"),
    (GenerateName, "generateName"),
    (Labels, "labels"),
    (OwnerReferences, "ownerReferences"),
];

/// A set of an event's fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSet {
    fixed: u32,
    /// Elements of a map or list of the metadata: label and annotation keys, finalizers, owners' uids.
    // LIMIT: what the event's metadata holds.
    keyed: BTreeSet<(Field, SmolStr)>,
}

impl FieldSet {
    pub(super) fn insert(&mut self, field: Field) {
        self.fixed |= bit(field);
    }

    pub(super) fn remove(&mut self, field: Field) {
        self.fixed &= !bit(field);
    }

    pub(super) fn insert_key(&mut self, container: Field, key: &SmolStr) {
        self.keyed.insert((container, key.clone()));
    }

    pub(super) const fn has(&self, field: Field) -> bool {
        self.fixed & bit(field) != 0
    }

    /// The elements in it, of one map or list of the metadata.
    pub(super) fn keys_of(&self, container: Field) -> impl Iterator<Item = &SmolStr> {
        self.keyed.iter().filter(move |(of, _)| *of == container).map(|(_, key)| key)
    }

    pub(super) fn has_key(&self, container: Field, key: &SmolStr) -> bool {
        self.keyed.contains(&(container, key.clone()))
    }

    /// What is in a document that is applied at a door (`ToFieldSet`): its leaves, and elements of maps and lists.
    pub(super) fn of_document(door: ApiGroup, document: &Value) -> Self {
        let mut set = Self::default();
        let is_leaf = |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
        for (field, _, core, events) in FIELDS.iter().filter(|row| row.1.is_none()) {
            let Some(value) = document.get(named(door, core, events)) else { continue };
            let children = || FIELDS.iter().filter(|row| row.1 == Some(*field));
            if children().next().is_none() || is_leaf(value) {
                set.insert(*field);
            }
            for child in children().filter(|child| value.get(child.2).is_some()) {
                set.insert(child.0);
            }
        }
        for (field, name) in METADATA {
            let Some(value) = document.get("metadata").and_then(|metadata| metadata.get(name)) else { continue };
            let is_container = matches!(field, Annotations | Finalizers | Labels | OwnerReferences);
            if !is_container || is_leaf(value) {
                set.insert(field);
            }
            for key in value.as_object().into_iter().flat_map(serde_json::Map::keys).filter(|_| is_container) {
                set.insert_key(field, &key.into());
            }
            for item in value.as_array().into_iter().flatten() {
                if let Some(key) = item.as_str().or_else(|| item.get("uid")?.as_str()) {
                    set.insert_key(field, &key.into());
                }
            }
        }
        set
    }

    /// True when nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fixed == 0 && self.keyed.is_empty()
    }

    /// What is in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self { fixed: self.fixed | other.fixed, keyed: self.keyed.union(&other.keyed).cloned().collect() }
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self { fixed: self.fixed & other.fixed, keyed: self.keyed.intersection(&other.keyed).cloned().collect() }
    }

    /// What is in this one and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self { fixed: self.fixed & !other.fixed, keyed: self.keyed.difference(&other.keyed).cloned().collect() }
    }

    /// With the objects around what is in it (`EnsureNamedFieldsAreMembers`): they stay as long as something in them does.
    pub(super) fn with_parents(&self) -> Self {
        let mut set = self.clone();
        for (field, parent, ..) in FIELDS {
            if let Some(parent) = parent.filter(|_| self.has(field)) {
                set.insert(parent);
            }
        }
        for (container, _) in &self.keyed {
            set.insert(*container);
        }
        set
    }

    /// `FieldsV1` at a door: names sorted, `.` first for an object that is owned beside its members.
    #[must_use]
    pub fn render(&self, door: ApiGroup) -> String {
        let mut top: BTreeMap<&str, String> = BTreeMap::new();
        for (field, parent, core, events) in FIELDS {
            if parent.is_none() {
                let members = FIELDS.iter().filter(|row| row.1 == Some(field) && self.has(row.0));
                let members = members.map(|row| (element('f', row.2), "{}".to_owned()));
                insert(&mut top, named(door, core, events), object(self.has(field), members));
            }
        }
        let metadata = METADATA.iter().filter_map(|&(field, name)| {
            let members = self.keys_of(field).map(|key| (key_element(field, key), "{}".to_owned()));
            object(self.has(field), members).map(|rendered| (element('f', name), rendered))
        });
        insert(&mut top, "metadata", object(false, metadata));
        object(false, top.into_iter().map(|(name, rendered)| (element('f', name), rendered))).unwrap_or("{}".to_owned())
    }

    /// Reads `FieldsV1`; `None` when it is no JSON object. Fields that an event does not have are left out.
    #[must_use]
    pub fn parse(door: ApiGroup, text: &str) -> Option<Self> {
        let Ok(Value::Object(members)) = serde_json::from_str(text) else { return None };
        let mut set = Self::default();
        for (key, value) in &members {
            let Some(name) = key.strip_prefix("f:") else { continue };
            if name == "metadata" {
                set.parse_metadata(value);
            }
            let found = FIELDS.iter().find(|row| row.1.is_none() && named(door, row.2, row.3) == name);
            let Some(&(field, ..)) = found else { continue };
            let children = || FIELDS.iter().filter(|row| row.1 == Some(field));
            // A whole that was owned in parts in another version of the schema is a whole now.
            if owns_itself(value) || children().next().is_none() {
                set.insert(field);
            }
            for child in children().filter(|child| value.get(element_text('f', child.2)).is_some()) {
                set.insert(child.0);
            }
        }
        Some(set)
    }

    fn parse_metadata(&mut self, value: &Value) {
        for (field, name) in METADATA {
            let Some(value) = value.get(element_text('f', name)) else { continue };
            if owns_itself(value) {
                self.insert(field);
            }
            for (key, _) in value.as_object().into_iter().flatten() {
                if let Some(key) = parse_key(field, key) {
                    self.keyed.insert((field, key));
                }
            }
        }
    }

    /// The paths in it, as a conflict names them (`fieldpath.Path.String`), in the order of the form.
    #[must_use]
    pub fn paths(&self, door: ApiGroup) -> Vec<String> {
        let mut paths = Vec::new();
        for (field, parent, core, events) in FIELDS.iter().filter(|row| self.has(row.0)) {
            let around = FIELDS.iter().find(|row| Some(row.0) == *parent);
            let around = around.map(|row| format!(".{}", named(door, row.2, row.3))).unwrap_or_default();
            debug_assert!(*field <= ReportingInstance, "the metadata has a table of its own");
            paths.push(format!("{around}.{}", named(door, core, events)));
        }
        paths.sort_unstable();
        for (field, name) in METADATA {
            if self.has(field) {
                paths.push(format!(".metadata.{name}"));
            }
            for key in self.keys_of(field) {
                let quoted = Value::from(key.as_str());
                paths.push(match field {
                    Finalizers => format!(".metadata.finalizers[={quoted}]"),
                    OwnerReferences => format!(".metadata.ownerReferences[uid={quoted}]"),
                    _ => format!(".metadata.{name}.{key}"),
                });
            }
        }
        paths
    }
}

const fn bit(field: Field) -> u32 {
    1 << field as u8
}

const fn named<'n>(door: ApiGroup, core: &'n str, events: &'n str) -> &'n str {
    match door {
        ApiGroup::Core => core,
        ApiGroup::Events => events,
    }
}

fn insert<'n>(top: &mut BTreeMap<&'n str, String>, name: &'n str, rendered: Option<String>) {
    if let Some(rendered) = rendered {
        top.insert(name, rendered);
    }
}

/// An object of the form: its members, and `.` when it is owned itself beside them.
fn object(owned: bool, members: impl Iterator<Item = (String, String)>) -> Option<String> {
    let mut out = String::new();
    for (key, rendered) in members {
        out.push_str(if out.is_empty() { "" } else { "," });
        out.push_str(&key);
        out.push(':');
        out.push_str(&rendered);
    }
    match (owned, out.is_empty()) {
        (false, true) => None,
        (true, true) => Some("{}".to_owned()),
        (true, false) => Some(format!(r#"{{".":{{}},{out}}}"#)),
        (false, false) => Some(format!("{{{out}}}")),
    }
}

/// A leaf, or an object with `.` in it.
fn owns_itself(value: &Value) -> bool {
    value.as_object().is_some_and(|members| members.is_empty() || members.contains_key("."))
}

fn element_text(kind: char, name: &str) -> String {
    format!("{kind}:{name}")
}

fn element(kind: char, name: &str) -> String {
    Value::from(element_text(kind, name)).to_string()
}

fn key_element(container: Field, key: &SmolStr) -> String {
    match container {
        Finalizers => element('v', &Value::from(key.as_str()).to_string()),
        OwnerReferences => element('k', &serde_json::json!({"uid": key.as_str()}).to_string()),
        _ => element('f', key),
    }
}

fn parse_key(container: Field, key: &str) -> Option<SmolStr> {
    match container {
        Finalizers => serde_json::from_str::<Value>(key.strip_prefix("v:")?).ok()?.as_str().map(SmolStr::new),
        OwnerReferences => {
            let key: Value = serde_json::from_str(key.strip_prefix("k:")?).ok()?;
            key.get("uid")?.as_str().map(SmolStr::new)
        }
        Labels | Annotations => key.strip_prefix("f:").map(SmolStr::new),
        _ => None,
    }
}
