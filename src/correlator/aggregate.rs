//! Step 1: combines many events that differ only in their message into one event. Mirrors
//! `EventAggregator.EventAggregate` in `tools/record/events_cache.go`.

use std::num::NonZeroUsize;

use smallvec::SmallVec;

use super::key::Key;
use super::lru_map::LruMap;
use super::settings::{Settings, Suppression};
use crate::clock::{Mono, Now};
use crate::event::{Event, MicroTime, ObjectMeta, Time};

/// A group of similar events: the distinct messages seen recently under one aggregate key.
#[derive(Debug)]
pub(super) struct Group {
    /// When the group was last seen.
    last: Mono,
    /// The lower half of each local key, which is enough to distinguish ten messages; one or two need no allocation.
    // LIMIT: `max_events - 1`, as in client-go's set between two events.
    local_keys: SmallVec<[u64; 2]>,
}

/// How an event is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Unchanged, under its own event key.
    Plain,
    /// As a combined event, under the aggregate key.
    Combined,
}

/// Returns how the event would be counted, without counting it.
pub(super) fn peek(groups: &LruMap<Group>, group: Key, local: Key, now: Now, settings: &Settings) -> Route {
    let entry = groups.peek(&group).filter(|entry| entry.is_current(now, settings));
    let known = entry.map_or(&[][..], |entry| &entry.local_keys);
    let is_plain = known.contains(&local.half()) || known.len() + 1 < settings.max_events.get();
    if is_plain { Route::Plain } else { Route::Combined }
}

/// Whether the event has come in the current window of its group, and was counted by itself.
pub(super) fn is_alone(groups: &LruMap<Group>, group: Key, local: Key, now: Now, settings: &Settings) -> bool {
    let entry = groups.peek(&group).filter(|entry| entry.is_current(now, settings));
    entry.is_some_and(|entry| entry.local_keys.contains(&local.half()))
}

/// Counts the event in its group, of at most `max`, and returns how it is counted.
pub(super) fn observe(
    groups: &mut LruMap<Group>,
    max: NonZeroUsize,
    group: Key,
    local: Key,
    now: Now,
    settings: &Settings,
) -> Route {
    let local = local.half();
    let new = || Group { last: now.mono, local_keys: SmallVec::new() };
    let entry = groups.get_or_insert_within(group, max, new);
    if !entry.is_current(now, settings) {
        entry.local_keys.clear();
    }
    entry.last = now.mono;
    if entry.local_keys.contains(&local) {
        Route::Plain
    } else if entry.local_keys.len() + 1 < settings.max_events.get() {
        if entry.local_keys.len() == entry.local_keys.capacity() {
            entry.local_keys.reserve_exact(2);
        }
        entry.local_keys.push(local);
        Route::Plain
    } else {
        // client-go inserts the new key and then removes an arbitrary member of the set. eventweir always removes
        // the key just inserted, one of the legal choices (`tests/vectors/correlator_any`). The first messages stay
        // separate for as long as the group lives; all later ones are combined.
        Route::Combined
    }
}

impl Group {
    /// COMPAT(client-go): a gap of exactly the interval still belongs to the window. A clock that went back never ends
    /// the window (`EventAggregate`: `now.Sub(lastTimestamp) > maxInterval`).
    fn is_current(&self, now: Now, settings: &Settings) -> bool {
        i128::from(now.mono.nanos_since(self.last))
            <= i128::try_from(settings.max_interval.as_nanos()).unwrap_or(i128::MAX)
    }
}

/// Returns the combined event of `event`: a new name, only old-style members, and the prefixed message.
///
/// COMPAT(client-go): labels, annotations, action, related and series are lost. Under `suppression: drop` the reporting
/// fields are lost too (`EventAggregate`).
pub(super) fn combined_event(event: &Event, occurrences: u32, now: Now, settings: &Settings) -> Event {
    let timestamp = Some(Time::from_unix_nanos(now.wall));
    let prefix = settings.message_prefix.as_str();
    let message = if is_combined(event, settings) {
        event.message.clone()
    } else {
        [prefix, event.message.as_str()].concat().into()
    };
    let mut combined = Event {
        metadata: ObjectMeta {
            name: record_name(&event.involved_object.name, now),
            namespace: event.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: event.involved_object.clone(),
        reason: event.reason.clone(),
        message,
        source: event.source.clone(),
        first_timestamp: timestamp,
        last_timestamp: timestamp,
        count: i32::try_from(occurrences).unwrap_or(i32::MAX),
        event_type: event.event_type.clone(),
        ..Event::default()
    };
    if settings.suppression == Suppression::Defer {
        keep_reporter(&mut combined, event, now);
    }
    combined
}

/// Keeps the reporting fields on a combined event, which client-go loses, and keeps it new-style. Clients that read
/// only new-style events can then read it, and the API server accepts it in any namespace.
fn keep_reporter(combined: &mut Event, event: &Event, now: Now) {
    combined.reporting_controller = event.reporting_controller.clone();
    combined.reporting_instance = event.reporting_instance.clone();
    if event.event_time.is_some() {
        combined.event_time = Some(MicroTime::from_unix_nanos(now.wall));
        combined.action = event.action.clone();
        combined.message = crate::event::cut(&combined.message, crate::event::NEW_STYLE_MESSAGE_MAX);
    }
}

/// Whether a client has already combined this event. It then belongs to the combined record and gets no second prefix.
///
/// COMPAT(client-go): not under `suppression: drop`, where client-go's own correlator would prefix it again.
pub(super) fn is_combined(event: &Event, settings: &Settings) -> bool {
    settings.suppression == Suppression::Defer && event.message.starts_with(settings.message_prefix.as_str())
}

/// LIMIT: bytes of an object's name in the name of a record; the rest is cut. No object has a longer name.
const OBJECT_BYTES_MAX: usize = 253;

/// Returns the beginning of a record's name.
pub(super) fn object_part(object: &str) -> &str {
    object.get(..object.floor_char_boundary(OBJECT_BYTES_MAX)).unwrap_or(object)
}

/// Returns the name that client-go gives an event: the involved object's name and the Unix time in nanoseconds, in hex
/// (`tools/record/util/util.go`, `GenerateEventName`). As in client-go's aggregator, the result is not validated here.
pub fn record_name(object: &str, now: Now) -> smol_str::SmolStr {
    let object = object_part(object);
    let sign = if now.wall < 0 { "-" } else { "" };
    smol_str::format_smolstr!("{object}.{sign}{:x}", now.wall.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;

    /// Fault: after a reload to fewer messages, an event was looked up under its group although it is counted alone.
    #[test]
    fn an_event_is_looked_up_where_it_is_counted() {
        let (now, mut groups) = (Now::at(1), LruMap::default());
        let settings = |max| Settings { max_events: NonZeroUsize::new(max).unwrap(), ..Settings::default() };
        for (message, max) in [(1, 3), (2, 3), (3, 3), (1, 3), (1, 1), (4, 1), (2, 2), (5, 9)] {
            let (group, local, settings) = (Key(9), Key(message), settings(max));
            let looked_up = peek(&groups, group, local, now, &settings);
            assert_eq!(
                looked_up,
                observe(&mut groups, settings.lru_cache_size, group, local, now, &settings),
                "{message} {max}"
            );
        }
    }
}
