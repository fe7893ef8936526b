//! The API group through which a record is written, and its number of occurrences there. Pure.
//!
//! A patch in core/v1 may change everything, a patch in events.k8s.io/v1 `series` only. The group of a record depends
//! only on what identifies the record. So it never changes from core/v1's `count` to an outdated series.

use std::borrow::Cow;

use super::tag::has_any_tag;
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
    pub fn of(self, event: &Event) -> ApiGroup {
        match self {
            Self::Core => ApiGroup::Core,
            Self::Events => ApiGroup::Events,
            Self::Preserve if is_plain_new_style(event) => ApiGroup::Events,
            Self::Preserve => ApiGroup::Core,
        }
    }
}

/// Counts below this have wrapped. A larger negative one would come to 0, which a patch does not write.
const WRAPPED_BELOW: i32 = i32::MIN / 2;

/// Whether events.k8s.io/v1 accepts the event without changes: it has no source and no first timestamp. Combined
/// records and digests have a first timestamp, and need core/v1, where a patch can change their message.
fn is_plain_new_style(event: &Event) -> bool {
    event.event_time.is_some() && event.source == EventSource::default() && event.first_timestamp.is_none()
}

/// Returns the number of occurrences that `stored` shows. Its own client may have written a larger series, or a process
/// with another `upstream.group` the larger of the two. A count that has wrapped is shown as it is (`countOverflow`).
pub fn count(stored: &Event) -> i32 {
    if stored.series.is_none() && stored.count < WRAPPED_BELOW {
        return stored.count;
    }
    conversion::occurrences(stored).max(stored.count)
}

/// Returns the count of the series that a client has written itself beside the count (admission). Through events.k8s.io,
/// the series is the record's, and so is one that this process or another has written that way.
pub(super) fn clients_series(group: ApiGroup, stored: &Event) -> Option<i32> {
    let is_records = group == ApiGroup::Events || stored.count == 0 && has_any_tag(stored);
    stored.series.as_ref().filter(|_| !is_records).map(|series| series.count)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::correlator::{CountOverflow, KeySecret, Policy, Settings};
    use crate::event::EventSeries;
    use crate::shard::{self, Shard};

    /// Fault: the answer to a wrapped count was read as 1, and the third repeat wrote 2.
    #[test]
    fn a_wrapped_count_goes_on_as_in_client_go() {
        for (count_overflow, expected) in
            [(CountOverflow::Wrap, [i32::MIN, i32::MIN + 1, i32::MIN + 2]), (CountOverflow::Saturate, [i32::MAX; 3])]
        {
            let policy = Policy::from(Settings { count_overflow, ..Settings::default() });
            let mut shard = Shard::new(KeySecret(1, 2), shard::Settings::default(), 1);
            let mut written = |second: i64, occurrences: i32| {
                let now = Now::at(second * 1_000_000_000);
                shard.accept(Event::default(), occurrences.unsigned_abs(), now, &policy).unwrap();
                shard.write_all(now).pop().unwrap().count
            };
            assert_eq!(written(0, i32::MAX), i32::MAX);
            assert_eq!([10, 20, 30].map(|second| written(second, 1)), expected);
        }
    }

    /// Fault: after a change of `upstream.group` to core/v1, the record's series was taken for its client's own, and the
    /// client's next totals brought nothing.
    #[test]
    fn a_series_without_a_count_is_its_clients_only_without_a_tag() {
        for (count, tag, clients) in [(0, None, Some(9)), (0, Some("1@1"), None), (4, Some("1@1"), Some(9))] {
            let series = Some(EventSeries { count: 9, last_observed_time: None });
            let mut event = Event { count, series, ..Event::default() };
            let tag = tag.map(|tag| ("tally.eventweir/me.0.1".into(), tag.into()));
            event.metadata.rare.get_or_insert_default().annotations.extend(tag);
            let read = [ApiGroup::Core, ApiGroup::Events].map(|group| clients_series(group, &event));
            assert_eq!(read, [clients, None]);
        }
    }

    /// Fault: after a change of `upstream.group`, a process continued from the smaller, older one.
    #[test]
    fn a_record_that_was_written_in_both_groups_shows_the_larger_number() {
        for (count, series, shown) in [(3, Some(2), 3), (2, Some(3), 3), (0, Some(2), 2), (2, None, 2), (0, None, 1)] {
            let series = series.map(|count| EventSeries { count, last_observed_time: None });
            assert_eq!(super::count(&Event { count, series, ..Event::default() }), shown);
        }
    }
}
