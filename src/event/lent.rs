//! How an event that borrows from a body comes to stand for itself: by a copy of what is lent, or of what is new to a record.

use super::{Event, EventSource, LentEvent, ObjectMeta, ObjectReference};

impl ObjectReference<'_> {
    /// The reference for itself: lent texts are copied.
    #[must_use]
    pub fn kept(self) -> ObjectReference<'static> {
        let Self { kind, namespace, name, uid, api_version, resource_version, field_path } = self;
        ObjectReference {
            kind: kind.kept(),
            namespace: namespace.kept(),
            name: name.kept(),
            uid: uid.kept(),
            api_version: api_version.kept(),
            resource_version: resource_version.kept(),
            field_path: field_path.kept(),
        }
    }
}

impl LentEvent<'_> {
    /// The event for itself: lent texts are copied.
    #[must_use]
    pub fn kept(self) -> Event {
        let Self {
            first_timestamp,
            last_timestamp,
            count,
            type_meta,
            metadata,
            involved_object,
            reason,
            message,
            source,
            event_type,
            event_time,
            series,
            action,
            related,
            reporting_controller,
            reporting_instance,
        } = self;
        let ObjectMeta { name, namespace, resource_version, uid, creation_timestamp, managed_fields, rare } = metadata;
        LentEvent {
            first_timestamp,
            last_timestamp,
            count,
            type_meta,
            metadata: ObjectMeta {
                name: name.kept(),
                namespace: namespace.kept(),
                resource_version: resource_version.kept(),
                uid: uid.kept(),
                creation_timestamp,
                managed_fields,
                rare,
            },
            involved_object: involved_object.kept(),
            reason: reason.kept(),
            message: message.kept(),
            source: EventSource { component: source.component.kept(), host: source.host.kept() },
            event_type: event_type.kept(),
            event_time,
            series,
            action: action.kept(),
            related: related.map(|object| Box::new(object.kept())),
            reporting_controller: reporting_controller.kept(),
            reporting_instance: reporting_instance.kept(),
        }
    }
}

impl Event {
    /// Becomes `newer`, but for its name and its version. Texts that are equal stay, so that only the others are copied; what is
    /// replaced is left in `newer`.
    pub fn take_over(&mut self, newer: &mut LentEvent<'_>) {
        self.first_timestamp = newer.first_timestamp;
        self.last_timestamp = newer.last_timestamp;
        self.count = newer.count;
        self.type_meta = newer.type_meta;
        self.event_time = newer.event_time;
        std::mem::swap(&mut self.series, &mut newer.series);
        let (meta, newer_meta) = (&mut self.metadata, &mut newer.metadata);
        meta.creation_timestamp = newer_meta.creation_timestamp;
        std::mem::swap(&mut meta.managed_fields, &mut newer_meta.managed_fields);
        std::mem::swap(&mut meta.rare, &mut newer_meta.rare);
        let (object, newer_object) = (&mut self.involved_object, &mut newer.involved_object);
        for (ours, theirs) in [
            (&mut meta.namespace, &mut newer_meta.namespace),
            (&mut meta.uid, &mut newer_meta.uid),
            (&mut object.kind, &mut newer_object.kind),
            (&mut object.namespace, &mut newer_object.namespace),
            (&mut object.name, &mut newer_object.name),
            (&mut object.uid, &mut newer_object.uid),
            (&mut object.api_version, &mut newer_object.api_version),
            (&mut object.resource_version, &mut newer_object.resource_version),
            (&mut object.field_path, &mut newer_object.field_path),
            (&mut self.reason, &mut newer.reason),
            (&mut self.message, &mut newer.message),
            (&mut self.source.component, &mut newer.source.component),
            (&mut self.source.host, &mut newer.source.host),
            (&mut self.event_type, &mut newer.event_type),
            (&mut self.action, &mut newer.action),
            (&mut self.reporting_controller, &mut newer.reporting_controller),
            (&mut self.reporting_instance, &mut newer.reporting_instance),
        ] {
            ours.take_over(theirs);
        }
        let related = newer.related.take().map(|object| Box::new(object.kept()));
        newer.related = std::mem::replace(&mut self.related, related);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::json::{any_event, decode, write_json};
    use crate::event::{ApiGroup, json::Strictness};

    proptest! {
        #[test]
        fn an_event_outlives_its_body(event in any_event()) {
            let mut body = Vec::new();
            write_json(ApiGroup::Core, &event, &mut body);
            let lent = decode(ApiGroup::Core, &body, Strictness::Report).unwrap().event;
            let kept = lent.clone().kept();
            prop_assert_eq!(&kept, &lent);
            drop(lent);
            drop(body);
            prop_assert_eq!(Event { type_meta: None, ..kept }, event);
        }

        /// Whatever the two have in common, and in whosever texts.
        #[test]
        fn a_newer_event_is_taken_over_but_for_name_and_version(older in any_event().boxed(), newer in any_event().boxed(), same in any::<bool>()) {
            let older = if same { Event { message: older.message, ..newer.clone() } } else { older };
            let mut body = Vec::new();
            write_json(ApiGroup::Core, &newer, &mut body);
            let mut lent = decode(ApiGroup::Core, &body, Strictness::Report).unwrap().event;
            let expected = lent.clone().kept();
            let mut ours = older.clone();
            ours.take_over(&mut lent);
            drop(lent);
            drop(body);
            let (name, version) = (&older.metadata.name, &older.metadata.resource_version);
            prop_assert_eq!((&ours.metadata.name, &ours.metadata.resource_version), (name, version));
            ours.metadata.name.clone_from(&expected.metadata.name);
            ours.metadata.resource_version.clone_from(&expected.metadata.resource_version);
            prop_assert_eq!(ours, expected);
        }
    }
}
