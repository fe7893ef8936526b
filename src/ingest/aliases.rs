//! The names that clients use for their events, and the last state that each client was shown.
//!
//! A client that correlates by itself (client-go) posts an event and then patches growing counts to the name it chose.
//! The record upstream may have another name, or count other clients' events too. So the name is an alias: the growth
//! since the last state shown is the number of new occurrences.
//!
//! Every POST adds an event here, and most are never used again. So each is kept as protobuf, which has all members in
//! half the bytes of JSON, under a hash of its name.

use std::num::NonZeroUsize;

use serde_json::Value;
use smol_str::SmolStr;

use super::alias_table::{AliasTable, Packed};
use super::create;
use crate::correlator::{Key, KeySecret};
use crate::event::{Event, EventSeries, Time, conversion};
use crate::outbox::Line;

/// Known names. At the limit the least recently used name is evicted; its client then gets 404 and posts the event
/// again.
#[derive(Debug)]
pub struct Aliases {
    known: AliasTable,
    secret: KeySecret,
}

/// A client's patch of an event that it posted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Growth {
    pub(super) count: Option<i32>,
    /// The new lastTimestamp; `Some(None)` deletes it.
    pub(super) last_timestamp: Option<Option<Time>>,
    pub(super) message: Option<SmolStr>,
    /// The new series of a new-style event; a count of 0, or a missing time, leaves the known one.
    pub(super) series: Option<EventSeries>,
}

impl Growth {
    /// Changes an event. Returns by how many occurrences its count grew: none if it shrinks or stays equal (a repeated
    /// request).
    fn apply(&self, event: &mut Event) -> u32 {
        let before = total(event);
        event.count = self.count.unwrap_or(event.count);
        if let Some(series) = &self.series {
            let known = event.series.get_or_insert_default();
            if series.count != 0 {
                known.count = series.count;
            }
            known.last_observed_time = series.last_observed_time.or(known.last_observed_time);
        }
        event.last_timestamp = self.last_timestamp.unwrap_or(event.last_timestamp);
        if let Some(message) = &self.message {
            event.message = message.clone();
        }
        u32::try_from(total(event) - before).unwrap_or(0)
    }

    /// As [`apply`](Self::apply), but times do not go back: the record shows the newest one.
    fn apply_forward(&self, event: &mut Event) -> u32 {
        let observed = |event: &Event| event.series.as_ref().and_then(|series| series.last_observed_time);
        let known = (event.last_timestamp, observed(event));
        let grown = self.apply(event);
        event.last_timestamp = event.last_timestamp.max(known.0);
        if let Some(series) = &mut event.series {
            series.last_observed_time = series.last_observed_time.max(known.1);
        }
        grown
    }
}

/// The member that [`total`] returns.
fn own_count(event: &mut Event) -> &mut i32 {
    let count = &mut event.count;
    match &mut event.series {
        Some(series) if series.count >= *count => &mut series.count,
        _ => count,
    }
}

/// Returns a client's own count: that of the series, or `count`; 1 if an event has neither.
pub(super) fn line(event: &Event) -> i64 {
    conversion::occurrences(event).into()
}

/// Whether a member of a patch sets a client's own count.
pub(super) fn is_line(member: &str) -> bool {
    matches!(member, "count" | "deprecatedCount" | "series")
}

/// Returns whether a document that is merged into an event sets the count or the series.
pub(super) fn stated(document: &Value) -> Line {
    let has_line = document.as_object().is_some_and(|members| members.keys().any(|member| is_line(member)));
    if has_line { Line::Stated } else { Line::Unstated }
}

/// Returns the total that a document sets if it is merged into an event.
pub(super) fn stated_total(document: &Value) -> Option<i64> {
    let places = ["/series/count", "/count", "/deprecatedCount"];
    places.into_iter().find_map(|place| document.pointer(place)?.as_i64())
}

/// Returns the total of a posted event: the count of its series or its `count`, whichever is larger.
pub(super) fn total(event: &Event) -> i64 {
    line(event).max(event.count.into())
}

/// Whether one event can have become the other by its client's patches: a correlator's patches keep object, reporter
/// and reason.
pub(super) fn is_of_one_line(one: &Event, other: &Event) -> bool {
    let of = |event: &Event| {
        let object = &event.involved_object;
        (object.uid.clone(), object.kind.clone(), object.name.clone(), event.reason.clone())
    };
    of(one) == of(other) && (one.component(), one.host()) == (other.component(), other.host())
}

/// Whether a known series includes the occurrences of a POST. client-go's `tools/events` posts the event and its series
/// at the same time, in any order, and posts the series again later.
fn includes(series: &Event, event: &Event) -> bool {
    series.series.is_some()
        && (event.series.is_some() || total(event) == 1)
        && total(event) <= total(series)
        && is_same_series(series, event)
        && is_of_one_line(series, event)
}

/// Whether the series of two events began with the same event.
pub(super) fn is_same_series(one: &Event, other: &Event) -> bool {
    one.event_time.is_some() && one.event_time == other.event_time
}

/// Whether an event equals the known state: the same request again.
pub(super) fn is_repeated(earlier: &Event, event: &Event) -> bool {
    let of = |event: &Event| (total(event), event.last_timestamp, event.event_time, event.message.clone());
    of(earlier) == of(event) && is_of_one_line(earlier, event)
}

/// The relation of a posted event to the event known under its name.
#[derive(Debug)]
pub(super) enum Entered {
    /// It brings new occurrences. Contains the event that was known before, if any.
    New(Option<Event>),
    /// The series known under its name includes it, so it brings no occurrence.
    Included(Event),
}

/// Microseconds by which the time of an earlier request may be older than that of a later one which came first:
/// `tools/events` repeats a request for two and a half minutes.
const OVERTAKEN_MICROS: i64 = 180_000_000;

/// Whether an event counts no more than its client's known one, but is another occurrence: its client has not counted
/// what was refused. It is newer, or so much older that the client's clock was set back.
pub(super) fn is_again(known: &Event, event: &Event) -> bool {
    line(event) <= line(known)
        && later_micros(known, event).is_some_and(|later| !(-OVERTAKEN_MICROS..=0).contains(&later))
}

/// Returns by how many microseconds an event is later than its client's known one.
fn later_micros(known: &Event, event: &Event) -> Option<i64> {
    match (&known.series, &event.series) {
        (Some(known), Some(event)) => Some(event.last_observed_time?.0.saturating_sub(known.last_observed_time?.0)),
        (None, None) => {
            let seconds = event.last_timestamp?.0.saturating_sub(known.last_timestamp?.0);
            Some(seconds.saturating_mul(1_000_000))
        }
        _ => None,
    }
}

impl Aliases {
    /// Returns an empty table for `max` names, hashed with `secret`.
    pub fn new(max: NonZeroUsize, secret: KeySecret) -> Self {
        Self { known: AliasTable::new(max), secret }
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn key(&self, namespace: &str, name: &str) -> Key {
        self.secret.name(namespace, name)
    }

    /// Stores an event as its client was shown it.
    pub fn insert(&self, event: &Event) {
        self.known.put(self.key_of(event), Packed::new(event));
    }

    /// Stores an event that is about to be accepted. Returns the event known before under its name.
    pub(super) fn enter(&self, event: &Event) -> Entered {
        let (key, packed) = (self.key_of(event), Packed::new(event));
        // Most names are new.
        let mut seen: Option<Packed> = None;
        loop {
            let earlier = match seen.as_ref().and_then(Packed::unpack) {
                Some(earlier) if includes(&earlier, event) => return Entered::Included(earlier),
                earlier => earlier,
            };
            match self.known.replace(key, seen.as_ref(), packed.clone()) {
                Ok(()) => return Entered::New(earlier),
                Err(current) => seen = current,
            }
        }
    }

    /// Restores the event known before, after the new one was not accepted.
    pub(super) fn leave(&self, event: &Event, earlier: Option<&Event>) {
        match earlier {
            Some(earlier) => self.insert(earlier),
            None => self.remove(&event.metadata.namespace, &event.metadata.name),
        }
    }

    fn key_of(&self, event: &Event) -> Key {
        self.key(&event.metadata.namespace, &event.metadata.name)
    }

    /// Removes a name whose event was deleted.
    pub(super) fn remove(&self, namespace: &str, name: &str) {
        self.known.remove(self.key(namespace, name));
    }

    /// Returns the event as its client was last shown it.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Event> {
        self.known.get(self.key(namespace, name))?.unpack()
    }

    /// Applies a client's patch to the known event. Returns the event as the client now sees it, and by how many
    /// occurrences its count grew.
    pub(super) fn grow(&self, namespace: &str, name: &str, growth: &Growth) -> Option<(Event, u32)> {
        self.change(namespace, name, |event| {
            let grown = growth.apply_forward(event);
            (event.clone(), grown)
        })
    }

    /// As [`grow`](Self::grow), without the change.
    pub(super) fn preview(&self, namespace: &str, name: &str, growth: &Growth) -> Option<(Event, u32)> {
        let mut event = self.get(namespace, name)?;
        let grown = growth.apply_forward(&mut event);
        Some((event, grown))
    }

    /// As [`grow`](Self::grow), for a patch that is refused. A client that does not count what was refused sends the
    /// same count again with another time ([`is_again`]); this brings one occurrence, by which the known count grows.
    pub(super) fn grow_refused(&self, namespace: &str, name: &str, growth: &Growth) -> Option<(Event, u32)> {
        self.change(namespace, name, |event| {
            let known = event.clone();
            let mut grown = growth.apply(event);
            if is_again(&known, event) {
                *own_count(event) = i32::try_from(total(&known)).unwrap_or(i32::MAX).saturating_add(1);
                grown = 1;
            } else if grown == 0 && later_micros(&known, event).is_some() {
                // It was counted before.
                *event = known;
            }
            (event.clone(), grown)
        })
    }

    /// Takes the result of a plain patch of the record. The client's count stays unless the patch set it, and so do the
    /// members that find the record.
    pub(super) fn relabel(&self, namespace: &str, name: &str, stored: &Event, line: Line) {
        self.change(namespace, name, |event| {
            event.metadata.rare.clone_from(&stored.metadata.rare);
            if line != Line::Unstated {
                event.count = stored.count;
                event.series.clone_from(&stored.series);
            }
        });
    }

    /// Follows a PUT or an apply that has set the event of a name. With a stated count, the client's next patches count
    /// on from there, otherwise from its own total.
    pub(super) fn set(&self, shown: &Event, line: Line) {
        if line == Line::Unstated {
            self.relabel(&shown.metadata.namespace, &shown.metadata.name, shown, line);
        } else {
            let mut event = shown.clone();
            // Later answers would have them, as if the upstream had what they say.
            create::strip(&mut event);
            self.insert(&event);
        }
    }

    /// Reverts a growth that was not accepted: the client will repeat it.
    pub(super) fn shrink(&self, namespace: &str, name: &str, grown: u32) {
        self.change(namespace, name, |event| {
            let line = own_count(event);
            *line = line.saturating_sub_unsigned(grown);
        });
    }

    /// Changes a known event. Begins again if it was changed meanwhile, so that of two concurrent requests each sees
    /// the other's change.
    fn change<T>(&self, namespace: &str, name: &str, change: impl Fn(&mut Event) -> T) -> Option<T> {
        let key = self.key(namespace, name);
        let mut seen = self.known.get(key)?;
        loop {
            let mut event = seen.unpack()?;
            let result = change(&mut event);
            match self.known.replace(key, Some(&seen), Packed::new(&event)) {
                Ok(()) => return Some(result),
                Err(current) => seen = current?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::super::alias_table::BYTES_A_NAME;
    use super::*;

    fn event(name: &str, count: i32) -> Event {
        let mut event = Event { count, message: "m".into(), ..Event::default() };
        event.metadata.namespace = "default".into();
        event.metadata.name = name.into();
        event
    }

    fn count(count: i32) -> Growth {
        Growth { count: Some(count), ..Growth::default() }
    }

    #[test]
    fn growth_is_what_came_since_the_client_was_last_told() {
        let aliases = Aliases::new(NonZeroUsize::new(2).unwrap(), KeySecret(1, 2));
        aliases.insert(&event("a", 1));
        assert_eq!(aliases.grow("default", "a", &count(4)).unwrap().1, 3);
        assert_eq!(aliases.grow("default", "a", &count(4)).unwrap().1, 0, "the same request again");
        assert_eq!(aliases.grow("default", "a", &count(2)).unwrap().1, 0, "a line that shrank");
        assert_eq!(aliases.grow("default", "a", &count(5)).unwrap().1, 3);
        aliases.shrink("default", "a", 3);
        assert_eq!(aliases.grow("default", "a", &count(5)).unwrap().1, 3, "taken back and repeated");
        assert_eq!(aliases.grow("default", "unknown", &count(5)), None);
    }

    /// Fault: the lock was held while an event was decoded, changed and encoded. One client's large event delayed all
    /// other requests.
    #[test]
    fn other_requests_are_served_while_an_event_is_changed_and_a_growth_in_between_counts_once() {
        let aliases = Aliases::new(NonZeroUsize::new(2).unwrap(), KeySecret(1, 2));
        aliases.insert(&event("a", 1));
        let tries = Cell::new(0);
        let grow = |event: &mut Event| {
            if tries.replace(tries.get() + 1) == 0 {
                assert_eq!(aliases.grow("default", "a", &count(4)).unwrap().1, 3);
            }
            count(6).apply(event)
        };
        assert_eq!(aliases.change("default", "a", grow), Some(2));
        assert_eq!((tries.get(), aliases.get("default", "a").unwrap().count), (2, 6));
        // Removed meanwhile, it is unknown.
        assert_eq!(aliases.change("default", "a", |_| aliases.remove("default", "a")), None);
        assert_eq!(aliases.len(), 0);
    }

    #[test]
    fn concurrent_requests_of_one_name_see_each_others_change() {
        let aliases = Aliases::new(NonZeroUsize::new(2).unwrap(), KeySecret(1, 2));
        aliases.insert(&event("a", 0));
        let post = |count| match aliases.enter(&event("b", count)) {
            Entered::New(earlier) => earlier.map_or(0, |earlier| earlier.count),
            Entered::Included(_) => panic!("it has no series"),
        };
        let mut earlier = Vec::new();
        std::thread::scope(|scope| {
            let request = |thread: i32| {
                let change = |_| aliases.change("default", "a", |event| event.count += 1).unwrap();
                (0..100).for_each(change);
                (1..=100).map(|post_of_thread| post(100 * thread + post_of_thread)).collect()
            };
            let threads = [0, 1, 2, 3].map(|thread| scope.spawn(move || -> Vec<i32> { request(thread) }));
            earlier.extend(threads.into_iter().flat_map(|thread| thread.join().unwrap()));
        });
        // Each post has replaced another one, or is the last.
        earlier.push(aliases.get("default", "b").unwrap().count);
        earlier.sort_unstable();
        assert_eq!(earlier, Vec::from_iter(0..=400));
        assert_eq!(aliases.get("default", "a").unwrap().count, 400);
    }

    /// Fault: beside any series, the growing count of the event's client was not seen.
    #[test]
    fn a_series_beside_a_count_does_not_hide_its_growth() {
        let aliases = Aliases::new(NonZeroUsize::new(2).unwrap(), KeySecret(1, 2));
        aliases.insert(&event("a", 5));
        let grow = |growth: &Growth| aliases.grow("default", "a", growth).unwrap().1;
        let series =
            |count| Growth { series: Some(EventSeries { count, ..EventSeries::default() }), ..Growth::default() };
        assert_eq!(grow(&series(0)), 0, "an empty series");
        assert_eq!((grow(&count(6)), grow(&count(8))), (1, 2));
        aliases.shrink("default", "a", 2);
        assert_eq!(grow(&count(8)), 2, "taken back and repeated");
        assert_eq!((grow(&series(7)), grow(&series(10))), (0, 2));
        aliases.shrink("default", "a", 2);
        assert_eq!((grow(&series(10)), grow(&count(9)), grow(&count(11))), (2, 0, 1));
    }

    #[test]
    fn large_events_leave_room_for_fewer_names() {
        let aliases = Aliases::new(NonZeroUsize::new(4).unwrap(), KeySecret(1, 2));
        let large = |name: &str| Event { message: "m".repeat(BYTES_A_NAME * 3).into(), ..event(name, 1) };
        for name in ["a", "b", "c"] {
            aliases.insert(&event(name, 1));
        }
        let put = |event: Event| {
            aliases.insert(&event);
            aliases.len()
        };
        // A small event is evicted only if it is the oldest.
        assert_eq!(put(large("d")), 4);
        assert_eq!(put(large("e")), 1);
        assert!(aliases.get("default", "e").is_some());
        assert_eq!(put(event("a", 1)), 2);
        // An event that grows by a patch counts with its new size, and a removed one releases its bytes.
        let growth = Growth { message: Some("m".repeat(BYTES_A_NAME * 3).into()), ..Growth::default() };
        assert!(aliases.grow("default", "a", &growth).is_some());
        assert_eq!(aliases.len(), 1);
        aliases.remove("default", "a");
        assert_eq!(aliases.len(), 0);
        assert_eq!(aliases.known.bytes(), 0);
    }

    #[test]
    fn a_full_table_knows_the_names_used_last_as_they_were_told_last() {
        let aliases = Aliases::new(NonZeroUsize::new(64).unwrap(), KeySecret(1, 2));
        let known = |number: usize| aliases.get("default", &number.to_string()).map(|event| event.count);
        for number in 0..127 {
            aliases.insert(&event(&number.to_string(), 1));
        }
        // A later event of the same name replaces the earlier one.
        aliases.insert(&event("100", 2));
        aliases.insert(&event("101", 3));
        // The oldest one is used, so that the next one is evicted.
        assert_eq!(known(63), Some(1));
        aliases.insert(&event("new", 1));
        assert_eq!((known(100), known(101), known(62), known(64)), (Some(2), Some(3), None, None));
        assert_eq!((known(63), known(65)), (Some(1), Some(1)));
        assert_eq!(aliases.len(), 64);
        aliases.insert(&event("newer", 1));
        aliases.remove("default", "newer");
        assert!(aliases.get("default", "newer").is_none());
    }
}
