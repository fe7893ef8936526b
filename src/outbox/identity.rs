//! Whether an event that stands under a record's name is that record, or a stranger.

use crate::clock::Now;
use crate::event::Event;
use crate::event::repair::{self, Objection};

/// Whether an event found under the record's name is the record: everything that identifies it is equal, or would be if the
/// record had been mended as an upstream that refused it would have it. Combined records and digests carry their newest
/// message, so there the message may differ.
pub(super) fn is_same_record(ours: &Event, found: &Event, varies: bool, now: Now) -> bool {
    if is_equal(ours, found, varies) {
        return true;
    }
    let mut mended = ours.clone();
    let repair = repair::refused_message(&mut mended, &Objection::TooLarge);
    if repair.is_some() && is_equal(&mended, found, varies) {
        return true;
    }
    let identifying = Objection::Fields(&["message", "reportingInstance", "involvedObject.namespace"]);
    !repair::refused(&mut mended, &identifying, now.wall).is_empty() && is_equal(&mended, found, varies)
}

/// Whether all that identifies a record is equal.
fn is_equal(ours: &Event, found: &Event, varies: bool) -> bool {
    let object = |event: &Event| {
        let object = &event.involved_object;
        (
            object.kind.clone(),
            object.namespace.clone(),
            object.name.clone(),
            object.uid.clone(),
            object.api_version.clone(),
            object.field_path.clone(),
        )
    };
    (varies || ours.message == found.message)
        && ours.reason == found.reason
        && ours.event_type == found.event_type
        && ours.source == found.source
        && ours.reporting_controller == found.reporting_controller
        && ours.reporting_instance == found.reporting_instance
        && object(ours) == object(found)
}
