//! What a write changes: the fields that differ between two states of an event as they are shown at one door. After
//! `sigs.k8s.io/structured-merge-diff`, `typed/compare.go`.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::set::{Field, FieldSet};
use crate::event::{ApiGroup, Event, EventSeries, MicroTime, RareMeta, Time};

/// How two states of an event differ.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Comparison {
    /// Fields that were added or got another value.
    pub taken: FieldSet,
    /// Fields that are there no more.
    pub removed: FieldSet,
}

impl Comparison {
    /// Compares two states at a door, which decides whether an empty field is there or not.
    #[must_use]
    pub fn of(door: ApiGroup, old: &Event, new: &Event) -> Self {
        let mut found = Self::default();
        let is_core = door == ApiGroup::Core;
        found.value(Field::InvolvedObject, old.involved_object != new.involved_object);
        found.text(Field::Reason, &old.reason, &new.reason);
        found.text(Field::Message, &old.message, &new.message);
        found.text(Field::SourceComponent, &old.source.component, &new.source.component);
        found.text(Field::SourceHost, &old.source.host, &new.source.host);
        // Unset times are there as null.
        found.value(Field::FirstTimestamp, set(old.first_timestamp) != set(new.first_timestamp));
        found.value(Field::LastTimestamp, set(old.last_timestamp) != set(new.last_timestamp));
        found.value(Field::EventTime, set_micro(old.event_time) != set_micro(new.event_time));
        found.option(Field::Count, nonzero(old.count), nonzero(new.count));
        found.text(Field::Type, &old.event_type, &new.event_type);
        found.series(is_core, old.series.as_ref(), new.series.as_ref());
        found.text(Field::Action, &old.action, &new.action);
        found.option(Field::Related, old.related.as_ref(), new.related.as_ref());
        if is_core {
            // Without omitempty here.
            found.value(Field::ReportingController, old.reporting_controller != new.reporting_controller);
            found.value(Field::ReportingInstance, old.reporting_instance != new.reporting_instance);
        } else {
            found.text(Field::ReportingController, &old.reporting_controller, &new.reporting_controller);
            found.text(Field::ReportingInstance, &old.reporting_instance, &new.reporting_instance);
        }
        let none = RareMeta::default();
        let (old, new) = (old.metadata.rare.as_deref(), new.metadata.rare.as_deref());
        if old != new {
            found.metadata(old.unwrap_or(&none), new.unwrap_or(&none));
        }
        found
    }

    fn value(&mut self, field: Field, differs: bool) {
        if differs {
            self.taken.insert(field);
        }
    }

    fn text(&mut self, field: Field, old: &str, new: &str) {
        self.option(field, Some(old).filter(|text| !text.is_empty()), Some(new).filter(|text| !text.is_empty()));
    }

    fn option<T: PartialEq + Copy>(&mut self, field: Field, old: Option<T>, new: Option<T>) {
        if old == new {
            return;
        }
        if new.is_some() { self.taken.insert(field) } else { self.removed.insert(field) }
    }

    fn series(&mut self, is_core: bool, old: Option<&EventSeries>, new: Option<&EventSeries>) {
        // core/v1 leaves a zero count out.
        let count = |series: &EventSeries| Some(series.count).filter(|&count| count != 0 || !is_core);
        self.option(Field::Series, old.map(|_| ()), new.map(|_| ()));
        self.option(Field::SeriesCount, old.and_then(count), new.and_then(count));
        let observed = |series: &EventSeries| set_micro(series.last_observed_time);
        self.option(Field::SeriesLastObservedTime, old.map(observed), new.map(observed));
    }

    fn metadata(&mut self, old: &RareMeta, new: &RareMeta) {
        self.text(Field::GenerateName, &old.generate_name, &new.generate_name);
        self.option(Field::DeletionTimestamp, old.deletion_timestamp, new.deletion_timestamp);
        let grace = (old.deletion_grace_period_seconds, new.deletion_grace_period_seconds);
        self.option(Field::DeletionGracePeriodSeconds, grace.0, grace.1);
        self.keyed(Field::Labels, &pairs(&old.labels), &pairs(&new.labels));
        self.keyed(Field::Annotations, &pairs(&old.annotations), &pairs(&new.annotations));
        let owners = |meta: &'_ RareMeta| -> BTreeMap<SmolStr, _> {
            meta.owner_references.iter().map(|owner| (owner.uid.clone(), owner.clone())).collect()
        };
        let (before, after) = (owners(old), owners(new));
        self.keyed(Field::OwnerReferences, &before.iter().collect(), &after.iter().collect());
        let finalizers = |meta: &'_ RareMeta| -> BTreeMap<SmolStr, ()> {
            meta.finalizers.iter().map(|name| (name.clone(), ())).collect()
        };
        let (before, after) = (finalizers(old), finalizers(new));
        self.keyed(Field::Finalizers, &before.iter().collect(), &after.iter().collect());
    }

    fn keyed<T: PartialEq>(&mut self, field: Field, old: &BTreeMap<&SmolStr, &T>, new: &BTreeMap<&SmolStr, &T>) {
        let there = |map: &BTreeMap<_, _>| (!map.is_empty()).then_some(());
        self.option(field, there(old), there(new));
        for (key, value) in new {
            if old.get(key) != Some(value) {
                self.taken.insert_key(field, key);
            }
        }
        for key in old.keys().filter(|key| !new.contains_key(*key)) {
            self.removed.insert_key(field, key);
        }
    }
}

fn pairs(map: &BTreeMap<SmolStr, SmolStr>) -> BTreeMap<&SmolStr, &SmolStr> {
    map.iter().collect()
}

fn nonzero(count: i32) -> Option<i32> {
    Some(count).filter(|&count| count != 0)
}

/// The zero time is none.
fn set(time: Option<Time>) -> Option<Time> {
    time.filter(|&time| time != Time::ZERO)
}

fn set_micro(time: Option<MicroTime>) -> Option<MicroTime> {
    time.filter(|&time| time != MicroTime::ZERO)
}
