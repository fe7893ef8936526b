//! What the event key leaves out, and a hash of it by which a repeat is known to bring nothing new but its count and its time.
//!
//! Hot: comparing the members one by one would fetch the record's strings, which have left the processor's cache since.

use super::key::{Domain, Joiner, KeySecret};
use super::settings::KeyEncoding;
use crate::event::{
    ApiGroup, EventSeries, LentEvent, ManagedFields, MicroTime, ObjectMeta, ObjectReference, RareMeta, Time,
};

/// The members of an event that are neither in its framed event key, nor its name, version, count, first or last timestamp.
#[derive(Debug, PartialEq)]
pub struct Rest<'e> {
    type_meta: Option<ApiGroup>,
    uid: &'e str,
    creation_timestamp: Option<Time>,
    managed_fields: &'e ManagedFields,
    rare: Option<&'e RareMeta>,
    object_version: &'e str,
    event_time: Option<MicroTime>,
    series: Option<&'e EventSeries>,
    action: &'e str,
    related: Option<&'e ObjectReference<'e>>,
    reporting_controller: &'e str,
    reporting_instance: &'e str,
}

impl<'e> Rest<'e> {
    /// Of this event.
    #[must_use]
    pub fn of(event: &'e LentEvent<'_>) -> Self {
        let LentEvent {
            type_meta,
            metadata,
            involved_object,
            reason: _,
            message: _,
            source: _,
            first_timestamp: _,
            last_timestamp: _,
            count: _,
            event_type: _,
            event_time,
            series,
            action,
            related,
            reporting_controller,
            reporting_instance,
        } = event;
        let ObjectMeta { name: _, namespace: _, resource_version: _, uid, creation_timestamp, managed_fields, rare } =
            metadata;
        Self {
            type_meta: *type_meta,
            uid,
            creation_timestamp: *creation_timestamp,
            managed_fields,
            rare: rare.as_deref(),
            object_version: &involved_object.resource_version,
            event_time: *event_time,
            series: series.as_ref(),
            action,
            related: related.as_deref(),
            reporting_controller,
            reporting_instance,
        }
    }
}

impl KeySecret {
    /// A hash of the [`Rest`] of `event`; `None` where it has members that few events have: those are compared.
    #[must_use]
    pub fn rest(self, event: &LentEvent<'_>) -> Option<u64> {
        let Rest {
            type_meta,
            uid,
            creation_timestamp: None,
            managed_fields: None,
            rare: None,
            object_version,
            event_time,
            series: None,
            action,
            related: None,
            reporting_controller,
            reporting_instance,
        } = Rest::of(event)
        else {
            return None;
        };
        let mut joiner = Joiner::new(self, KeyEncoding::Framed, Domain::Rest);
        let group = match type_meta {
            None => 0,
            Some(ApiGroup::Core) => 1,
            Some(ApiGroup::Events) => 2,
        };
        joiner.add_number(group << 1 | u64::from(event_time.is_some()));
        joiner.add_number(event_time.map_or(0, |time| time.0).cast_unsigned());
        [uid, object_version, action, reporting_controller, reporting_instance]
            .into_iter()
            .for_each(|text| joiner.add(text));
        Some(joiner.half())
    }

    /// A hash of what a combined event has beside the members of client-go's aggregate key, its message and its times. All else of it
    /// is empty.
    #[must_use]
    pub fn rest_of_combined(self, combined: &LentEvent<'_>) -> u64 {
        let mut joiner = Joiner::new(self, KeyEncoding::Framed, Domain::RestOfCombined);
        joiner.add_number(combined.event_time.is_some().into());
        let LentEvent { involved_object, action, reporting_controller, reporting_instance, .. } = combined;
        [
            &involved_object.field_path,
            &involved_object.resource_version,
            action,
            reporting_controller,
            reporting_instance,
        ]
        .into_iter()
        .for_each(|text| joiner.add(text));
        joiner.half()
    }
}
