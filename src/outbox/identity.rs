//! Whether an event that stands under a record's name is that record, or a stranger.

use super::group::spelled;
use super::record::Record;
use crate::clock::Now;
use crate::event::repair::{self, Objection};
use crate::event::{ApiGroup, Event};

impl Record {
    /// Whether `found`, which stands under the record's name with `own` as our tally, is the record.
    ///
    /// What is stored keeps the content of its create, for a patch moves only count, time and message; and admission may have
    /// changed even that. So only a name that is not known to be ours is judged by the newest content, and not before the tally is.
    pub(super) fn is_own(&self, own: u32, group: ApiGroup, found: &Event, now: Now) -> bool {
        if self.stored {
            return true;
        }
        let ours = spelled(group, &self.event, now);
        // Another record of ours may have the name, for clients choose them, and the tally may be that one's: its key differs.
        self.ambiguous && own > 0 && is_same_key(&ours, found, self.varies)
            || is_same_record(&ours, found, self.varies, now)
    }
}

/// Whether an event found under the record's name is the record: everything that identifies it is equal, or would be if the
/// record had been mended as an upstream that refused it would have it. Combined records and digests carry their newest
/// message, and combined records the newest field path, so there these may differ.
fn is_same_record(ours: &Event, found: &Event, varies: bool, now: Now) -> bool {
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
    is_same_key(ours, found, varies)
        && ours.reporting_controller == found.reporting_controller
        && ours.reporting_instance == found.reporting_instance
}

/// Whether all is equal that keys tell events apart by. What is combined has the field path of its newest event, which its key
/// has not.
fn is_same_key(ours: &Event, found: &Event, varies: bool) -> bool {
    let (our, their) = (&ours.involved_object, &found.involved_object);
    let varying =
        |event: &Event| (event.message.clone(), event.event_type.clone(), event.involved_object.field_path.clone());
    (varies || varying(ours) == varying(found))
        && ours.reason == found.reason
        && ours.source == found.source
        && our.kind == their.kind
        && our.namespace == their.namespace
        && our.name == their.name
        && our.uid == their.uid
        && our.api_version == their.api_version
}
