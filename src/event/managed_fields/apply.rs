//! Server-side apply: an event as its applier wants it, merged into what is there. After `sigs.k8s.io/structured-merge-diff`,
//! `merge/update.go` (`Apply`, `prune`) and `typed/tofieldset.go`.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use smol_str::SmolStr;

use super::Comparison;
use super::managed::{Managed, lose, read, write};
use super::set::{Field, FieldSet};
use crate::event::{ApiGroup, Event, OwnerReference, RareMeta, Time};

/// Who owns what is in the state before the first apply, where nobody is known.
const BEFORE: &str = "before-first-apply";

/// What an applier wants.
#[derive(Debug)]
pub struct Application<'a> {
    /// The door it comes through.
    pub door: ApiGroup,
    /// The applied document, which tells what is in it.
    pub document: &'a Value,
    /// The same, decoded.
    pub event: &'a Event,
    /// Its manager.
    pub manager: &'a str,
    /// Take fields from others.
    pub force: bool,
}

/// Fields that other managers own and that would get another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The other manager, quoted, as a refusal names it.
    pub manager: String,
    /// The fields' paths.
    pub paths: Vec<String>,
}

impl Application<'_> {
    /// The event with what is applied and without what its manager applies no more; `live` is the stored state.
    ///
    /// # Errors
    /// What others own, unless `force` is set.
    pub fn merge(&self, live: Option<&Event>, now: Time) -> Result<Event, Vec<Conflict>> {
        let nothing = Event::default();
        let before = live.unwrap_or(&nothing);
        let mut managed = read(&before.metadata.managed_fields).unwrap_or_default();
        if managed.is_empty() && live.is_some() {
            let set = Comparison::of(self.door, &nothing, before).taken;
            let first = Managed { set, time: Some(now), ..Managed::new(BEFORE, false, self.door) };
            managed.extend(Some(first).filter(|first| !first.set.is_empty()));
        }
        let mut applier = Managed {
            set: FieldSet::of_document(self.door, self.document),
            ..Managed::new(self.manager, true, self.door)
        };
        let last = managed.iter().position(|managed| managed.is_same(&applier)).map(|index| managed.swap_remove(index));
        let last = last.filter(|last| last.api_version == applier.api_version);
        managed.retain(|managed| managed.api_version == applier.api_version);
        let mut merged = before.clone();
        applier.set.copy(self.event, &mut merged);
        if let Some(last) = &last {
            let owned = managed.iter().fold(applier.set.clone(), |all, managed| all.union(&managed.set));
            last.set.with_parents().difference(&owned.with_parents()).clear(&mut merged);
        }
        let found = Comparison::of(self.door, before, &merged);
        let conflicts = self.conflicts(&managed, &found);
        if !self.force && !conflicts.is_empty() {
            return Err(conflicts);
        }
        lose(&mut managed, self.door, &found, |_| true);
        let changed = found != Comparison::default() || live.is_none();
        applier.time = if changed { Some(now) } else { last.and_then(|last| last.time) };
        managed.extend(Some(applier).filter(|applier| !applier.set.is_empty()));
        merged.metadata.managed_fields = write(managed, self.door);
        Ok(merged)
    }

    fn conflicts(&self, others: &[Managed], found: &Comparison) -> Vec<Conflict> {
        let mut conflicts: Vec<Conflict> = Vec::new();
        for other in others {
            let paths = other.set.intersection(&found.taken).paths(self.door);
            let quoted = Value::from(other.manager.as_str());
            let manager =
                if other.applied { quoted.to_string() } else { format!("{quoted} using {}", other.api_version) };
            conflicts.extend((!paths.is_empty()).then_some(Conflict { manager, paths }));
        }
        // The apiserver's order is a Go map's.
        conflicts.sort_by(|a, b| a.manager.cmp(&b.manager));
        conflicts
    }
}

impl FieldSet {
    /// Copies these fields: a merge of the applied into the stored.
    fn copy(&self, from: &Event, to: &mut Event) {
        for field in Field::all().filter(|&field| self.has(field)) {
            copy_field(field, from, to);
        }
        let none = RareMeta::default();
        let from = from.metadata.rare.as_deref().unwrap_or(&none);
        let rare = to.metadata.rare.get_or_insert_default();
        self.keys_of(Field::Labels).for_each(|key| copy_pair(key, &from.labels, &mut rare.labels));
        self.keys_of(Field::Annotations).for_each(|key| copy_pair(key, &from.annotations, &mut rare.annotations));
        copy_finalizers(self.keys_of(Field::Finalizers), &mut rare.finalizers);
        copy_owners(self.keys_of(Field::OwnerReferences), &from.owner_references, &mut rare.owner_references);
        tidy(to);
    }

    /// Removes these fields.
    fn clear(&self, event: &mut Event) {
        let nothing = Event::default();
        for field in Field::all().filter(|&field| self.has(field)) {
            match field {
                Field::Source => event.source = nothing.source.clone(),
                Field::Series => event.series = None,
                Field::SeriesCount | Field::SeriesLastObservedTime if event.series.is_none() => {}
                _ => copy_field(field, &nothing, event),
            }
        }
        if let Some(rare) = &mut event.metadata.rare {
            self.keys_of(Field::Labels).for_each(|key| drop(rare.labels.remove(key)));
            self.keys_of(Field::Annotations).for_each(|key| drop(rare.annotations.remove(key)));
            // One pass over each list: an event may have tens of thousands, and the store is locked meanwhile.
            rare.finalizers.retain(|name| !self.has_key(Field::Finalizers, name));
            rare.owner_references.retain(|owner| !self.has_key(Field::OwnerReferences, &owner.uid));
        }
        tidy(event);
    }
}

fn tidy(event: &mut Event) {
    if event.metadata.rare.as_deref() == Some(&RareMeta::default()) {
        event.metadata.rare = None;
    }
}

fn copy_field(field: Field, from: &Event, to: &mut Event) {
    let none = RareMeta::default();
    let rare_from = from.metadata.rare.as_deref().unwrap_or(&none);
    match field {
        Field::InvolvedObject => to.involved_object.clone_from(&from.involved_object),
        Field::Reason => to.reason.clone_from(&from.reason),
        Field::Message => to.message.clone_from(&from.message),
        Field::SourceComponent => to.source.component.clone_from(&from.source.component),
        Field::SourceHost => to.source.host.clone_from(&from.source.host),
        Field::FirstTimestamp => to.first_timestamp = from.first_timestamp,
        Field::LastTimestamp => to.last_timestamp = from.last_timestamp,
        Field::Count => to.count = from.count,
        Field::Type => to.event_type.clone_from(&from.event_type),
        Field::EventTime => to.event_time = from.event_time,
        // Objects are merged by their members; an empty one in the place of none is one.
        Field::Series => to.series = to.series.take().or_else(|| from.series.clone()),
        Field::SeriesCount => {
            to.series.get_or_insert_default().count = from.series.as_ref().map_or(0, |series| series.count);
        }
        Field::SeriesLastObservedTime => {
            let time = from.series.as_ref().and_then(|series| series.last_observed_time);
            to.series.get_or_insert_default().last_observed_time = time;
        }
        Field::Action => to.action.clone_from(&from.action),
        Field::Related => to.related.clone_from(&from.related),
        Field::ReportingController => to.reporting_controller.clone_from(&from.reporting_controller),
        Field::ReportingInstance => to.reporting_instance.clone_from(&from.reporting_instance),
        Field::GenerateName => {
            to.metadata.rare.get_or_insert_default().generate_name.clone_from(&rare_from.generate_name);
        }
        // What the server says of deletions stays; maps and lists are merged by their elements.
        Field::Source
        | Field::DeletionTimestamp
        | Field::DeletionGracePeriodSeconds
        | Field::Annotations
        | Field::Finalizers
        | Field::Labels
        | Field::OwnerReferences => {}
    }
}

type Pairs = std::collections::BTreeMap<SmolStr, SmolStr>;

fn copy_pair(key: &SmolStr, from: &Pairs, to: &mut Pairs) {
    to.insert(key.clone(), from.get(key).cloned().unwrap_or_default());
}

/// Adds the finalizers that are not there yet.
fn copy_finalizers<'k>(keys: impl Iterator<Item = &'k SmolStr>, to: &mut Vec<SmolStr>) {
    // LIMIT: what the event's metadata holds; so is what is known of the owners.
    let known: HashSet<SmolStr> = to.iter().cloned().collect();
    to.extend(keys.filter(|key| !known.contains(*key)).cloned());
}

/// Puts the owners of these uids in the place of those that are there, or behind them. The first one of a uid counts.
fn copy_owners<'k>(keys: impl Iterator<Item = &'k SmolStr>, from: &[OwnerReference], to: &mut Vec<OwnerReference>) {
    // Of what is collected the last one counts.
    let wanted: HashMap<&str, &OwnerReference> = from.iter().rev().map(|owner| (owner.uid.as_str(), owner)).collect();
    let known: HashMap<SmolStr, usize> =
        to.iter().enumerate().rev().map(|(index, owner)| (owner.uid.clone(), index)).collect();
    for key in keys {
        let Some(owner) = wanted.get(key.as_str()) else { continue };
        match known.get(key).and_then(|index| to.get_mut(*index)) {
            Some(known) => known.clone_from(owner),
            None => to.push(OwnerReference::clone(owner)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> impl Strategy<Value = Vec<SmolStr>> {
        proptest::collection::vec("[a-d]".prop_map(SmolStr::from), 0..6)
    }

    /// Owners, of whom several may have one uid.
    fn owners() -> impl Strategy<Value = Vec<OwnerReference>> {
        let owner = ("[a-d]", "[x-z]").prop_map(|(uid, name)| OwnerReference {
            uid: uid.into(),
            name: name.into(),
            ..OwnerReference::default()
        });
        proptest::collection::vec(owner, 0..6)
    }

    fn with(finalizers: Vec<SmolStr>, owner_references: Vec<OwnerReference>) -> Event {
        let mut event = Event { reason: "A".into(), ..Event::default() };
        event.metadata.rare = Some(Box::new(RareMeta { finalizers, owner_references, ..RareMeta::default() }));
        tidy(&mut event);
        event
    }

    proptest! {
        #[test]
        fn lists_are_merged_and_cleared_as_one_key_after_the_other(
            (names, owners) in (names(), owners()),
            (known_names, known_owners) in (names(), owners()),
            keys in proptest::collection::btree_set("[a-d]", 0..5),
        ) {
            let keys: Vec<SmolStr> = keys.into_iter().map(SmolStr::from).collect();
            let mut set = FieldSet::default();
            for key in &keys {
                set.insert_key(Field::Finalizers, key);
                set.insert_key(Field::OwnerReferences, key);
            }
            let (mut plain_names, mut plain_owners) = (known_names.clone(), known_owners.clone());
            for key in &keys {
                if !plain_names.contains(key) {
                    plain_names.push(key.clone());
                }
                if let Some(owner) = owners.iter().find(|owner| owner.uid == *key) {
                    match plain_owners.iter_mut().find(|known| known.uid == *key) {
                        Some(known) => known.clone_from(owner),
                        None => plain_owners.push(owner.clone()),
                    }
                }
            }
            let mut merged = with(known_names, known_owners);
            set.copy(&with(names, owners), &mut merged);
            prop_assert_eq!(&merged, &with(plain_names.clone(), plain_owners.clone()));
            for key in &keys {
                plain_names.retain(|name| name != key);
                plain_owners.retain(|owner| owner.uid != *key);
            }
            set.clear(&mut merged);
            prop_assert_eq!(merged, with(plain_names, plain_owners));
        }
    }
}
