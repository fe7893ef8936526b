//! A hash of what the event key leaves out, by which a repeat is known to bring nothing new but its count and its time.
//!
//! Hot: comparing the members one by one would fetch the record's strings, which have left the processor's cache since.

use super::joiner::Joiner;
use super::key::{Domain, KeySecret};
use super::settings::KeyEncoding;
use crate::event::{ApiGroup, Event, ObjectMeta};

impl KeySecret {
    /// A hash of the members of `event` that are neither in its framed event key, nor its name, version, count, first or last
    /// timestamp. `None` where it has members that few events have: those are compared.
    #[must_use]
    pub fn rest(self, event: &Event) -> Option<u64> {
        let Event {
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
        let few_have = creation_timestamp.is_some()
            || managed_fields.is_some()
            || rare.is_some()
            || series.is_some()
            || related.is_some();
        if few_have {
            return None;
        }
        let mut joiner = Joiner::new(self, KeyEncoding::Framed, Domain::Rest);
        joiner.add_tag(match type_meta {
            None => 0,
            Some(ApiGroup::Core) => 1,
            Some(ApiGroup::Events) => 2,
        });
        joiner.add_tag(u8::from(event_time.is_some()));
        joiner.add_bytes(&event_time.map_or(0, |time| time.0).to_le_bytes());
        [uid, &involved_object.resource_version, action, reporting_controller, reporting_instance]
            .into_iter()
            .for_each(|text| joiner.add(text));
        Some(joiner.finish().half())
    }
}
