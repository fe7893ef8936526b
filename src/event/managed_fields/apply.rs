//! Server-side apply: an event as its applier wants it, merged into what is there. After `sigs.k8s.io/structured-merge-diff`,
//! `merge/update.go` (`Apply`, `prune`) and `typed/tofieldset.go`.

use serde_json::Value;
use smol_str::SmolStr;

use super::Comparison;
use super::managed::{Managed, lose, read, write};
use super::set::{Field, FieldSet};
use crate::event::{ApiGroup, Event, RareMeta, Time};

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
        for (container, key) in self.keys() {
            copy_key(container, key, from, to.metadata.rare.get_or_insert_default());
        }
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
            for (container, key) in self.keys() {
                match container {
                    Field::Labels => drop(rare.labels.remove(key)),
                    Field::Annotations => drop(rare.annotations.remove(key)),
                    Field::Finalizers => rare.finalizers.retain(|name| name != key),
                    _ => rare.owner_references.retain(|owner| owner.uid != *key),
                }
            }
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

fn copy_key(container: Field, key: &SmolStr, from: &RareMeta, to: &mut RareMeta) {
    match container {
        Field::Labels => copy_pair(key, &from.labels, &mut to.labels),
        Field::Annotations => copy_pair(key, &from.annotations, &mut to.annotations),
        Field::Finalizers if !to.finalizers.contains(key) => to.finalizers.push(key.clone()),
        Field::OwnerReferences => {
            let Some(owner) = from.owner_references.iter().find(|owner| owner.uid == *key) else { return };
            match to.owner_references.iter_mut().find(|owner| owner.uid == *key) {
                Some(known) => known.clone_from(owner),
                None => to.owner_references.push(owner.clone()),
            }
        }
        _ => {}
    }
}

type Pairs = std::collections::BTreeMap<SmolStr, SmolStr>;

fn copy_pair(key: &SmolStr, from: &Pairs, to: &mut Pairs) {
    to.insert(key.clone(), from.get(key).cloned().unwrap_or_default());
}
