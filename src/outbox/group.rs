//! The API group through which a record is written, and its number of occurrences there. Pure.
//!
//! A patch in core/v1 may change everything, a patch in events.k8s.io/v1 `series` only. The group of a record depends
//! only on what identifies the record. So it never changes from core/v1's `count` to an outdated series.

use std::borrow::Cow;

use crate::clock::Now;
use crate::correlator::Patch;
use crate::event::{ApiGroup, Event, EventSource, Time, conversion};

/// The API group in which records are written (`upstream.group`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UpstreamGroup {
    /// New-style events through events.k8s.io/v1, all others through core/v1: as their clients would have written them.
    Preserve,
    /// Everything through core/v1.
    Core,
    /// Everything through events.k8s.io/v1, old-style events as new-style ones.
    Events,
}

impl UpstreamGroup {
    /// Returns the group through which the record of `event` is written.
    #[must_use]
    pub fn of(self, event: &Event) -> ApiGroup {
        match self {
            Self::Core => ApiGroup::Core,
            Self::Events => ApiGroup::Events,
            Self::Preserve if is_plain_new_style(event) => ApiGroup::Events,
            Self::Preserve => ApiGroup::Core,
        }
    }

    /// Returns the number of occurrences that the record `stored` shows, from the member in which its group counts.
    pub(super) fn count(self, stored: &Event) -> i32 {
        count(self.of(stored), stored)
    }
}

/// Whether events.k8s.io/v1 accepts the event without changes: it has no source and no first timestamp. Combined
/// records and digests have a first timestamp, and need core/v1, where a patch can change their message.
fn is_plain_new_style(event: &Event) -> bool {
    event.event_time.is_some() && event.source == EventSource::default() && event.first_timestamp.is_none()
}

/// Returns the number of occurrences that `stored`, written through `group`, shows.
pub(super) fn count(group: ApiGroup, stored: &Event) -> i32 {
    match group {
        // Without a count or a series, an event has happened once.
        ApiGroup::Core if stored.count < 1 => conversion::occurrences(stored).max(1),
        // Its own client may have written a larger series.
        ApiGroup::Core => stored.count.max(stored.series.as_ref().map_or(0, |series| series.count)),
        ApiGroup::Events => conversion::occurrences(stored),
    }
}

/// Returns the count of the series that a client has written itself beside the count (admission). Through events.k8s.io,
/// the series is the record's.
pub(super) fn clients_series(group: ApiGroup, stored: &Event) -> Option<i32> {
    stored.series.as_ref().filter(|_| group == ApiGroup::Core).map(|series| series.count)
}

/// Returns the event as it is created through `group`.
pub(super) fn converted(group: ApiGroup, event: &Event, now: Now) -> Cow<'_, Event> {
    match group {
        ApiGroup::Core => Cow::Borrowed(event),
        ApiGroup::Events => Cow::Owned(conversion::to_events_v1(event, now.wall)),
    }
}

/// Returns the patch of the stored record to the state of `event`. A series needs a time; core/v1 does not.
pub(super) fn patch(group: ApiGroup, event: &Event, now: Now) -> Patch {
    let mut patch = Patch::of(event);
    if group == ApiGroup::Events {
        patch.last_timestamp.get_or_insert(Time::from_unix_nanos(now.wall));
    }
    patch
}
