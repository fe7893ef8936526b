//! Through which API group a record is written, and how its number of occurrences stands there. Pure.
//!
//! core/v1 lets a patch change everything; events.k8s.io/v1 lets it change `series` only. So a record's group must not change
//! from core/v1's `count` to a stale series: it follows from what identifies the record.

use std::borrow::Cow;

use crate::clock::Now;
use crate::correlator::Patch;
use crate::event::{ApiGroup, Event, EventSource, Time, conversion};

/// In which API group records are written; `upstream.group`.
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
    /// The group that the record of `event` is written through.
    #[must_use]
    pub fn of(self, event: &Event) -> ApiGroup {
        match self {
            Self::Core => ApiGroup::Core,
            Self::Events => ApiGroup::Events,
            Self::Preserve if is_plain_new_style(event) => ApiGroup::Events,
            Self::Preserve => ApiGroup::Core,
        }
    }

    /// How many occurrences the record `stored` shows, in the member that its group counts in.
    pub(super) fn count(self, stored: &Event) -> i32 {
        count(self.of(stored), stored)
    }
}

/// Whether events.k8s.io/v1 takes the event as it is: not with a source or a first timestamp. A combined record and a digest
/// have the latter, and need core/v1, where their message can follow.
fn is_plain_new_style(event: &Event) -> bool {
    event.event_time.is_some() && event.source == EventSource::default() && event.first_timestamp.is_none()
}

/// How many occurrences `stored`, written through `group`, shows.
pub(super) fn count(group: ApiGroup, stored: &Event) -> i32 {
    match group {
        // An event that says nothing of it has happened once.
        ApiGroup::Core if stored.count < 1 => conversion::occurrences(stored).max(1),
        // A series that its own client has written counts on beside it.
        ApiGroup::Core => stored.count.max(stored.series.as_ref().map_or(0, |series| series.count)),
        ApiGroup::Events => conversion::occurrences(stored),
    }
}

/// The event as it is created through `group`.
pub(super) fn converted(group: ApiGroup, event: &Event, now: Now) -> Cow<'_, Event> {
    match group {
        ApiGroup::Core => Cow::Borrowed(event),
        ApiGroup::Events => Cow::Owned(conversion::to_events_v1(event, now.wall)),
    }
}

/// The patch that brings the stored record to the state of `event`. A series needs a time; core/v1 does not.
pub(super) fn patch(group: ApiGroup, event: &Event, now: Now) -> Patch {
    let mut patch = Patch::of(event);
    if group == ApiGroup::Events {
        patch.last_timestamp.get_or_insert(Time::from_unix_nanos(now.wall));
    }
    patch
}
