//! The names under which clients know their events, and what each was last told.
//!
//! A client that correlates by itself (client-go) posts an event and then patches growing counts to the name it chose. The
//! record upstream may have another name, or stand for other clients' events too; so the name is an alias, and the growth
//! since what that client was last told is the number of new occurrences.
//!
//! Every POST leaves an event here that most clients never come back to. So it is kept encoded, under a hash of its name; as its
//! client's answer where that has all of it, because that is encoded anyway.

use std::num::NonZeroUsize;

use parking_lot::Mutex;
use smol_str::SmolStr;

use super::form::Media;
use super::respond::Document;
use crate::correlator::{Key, KeySecret, LruMap};
use crate::event::{ApiGroup, Event, EventSeries, MicroTime, Time, json, protobuf, spelling};
use crate::outbox::Line;

/// LIMIT: bytes of all known events together, for each name that may be known. Most take 500 to 1,000.
const BYTES_A_NAME: usize = 2048;

/// Known names. Bounded; the one used longest ago is forgotten, and its client hears 404 and posts the event again.
#[derive(Debug)]
pub struct Aliases {
    known: Mutex<Known>,
    max: NonZeroUsize,
    secret: KeySecret,
}

#[derive(Debug, Default)]
struct Known {
    // LIMIT: `max_aliases`, and `BYTES_A_NAME` for each of them, but for the newest, which is there however large it is.
    names: LruMap<Packed>,
    bytes: usize,
}

impl Known {
    /// Remembers an event. Returns what it replaces and evicts, for the caller to free outside of the lock.
    fn put(&mut self, Alias { key, packed }: Alias, max: NonZeroUsize) -> Vec<Packed> {
        self.bytes = self.bytes.saturating_add(packed.size());
        let mut gone: Vec<Packed> = self.names.put(key, packed).into_iter().collect();
        let mut bytes = self.bytes.saturating_sub(gone.iter().map(Packed::size).sum());
        while self.names.len() > max.get() || bytes > max.get().saturating_mul(BYTES_A_NAME) && self.names.len() > 1 {
            let Some((_, oldest)) = self.names.pop_lru() else { break };
            bytes = bytes.saturating_sub(oldest.size());
            gone.push(oldest);
        }
        self.bytes = bytes;
        gone
    }
}

/// An encoded event, and the group that its body named.
#[derive(Debug)]
struct Packed {
    type_meta: Option<ApiGroup>,
    document: Document,
}

impl Packed {
    /// Encodes an event as protobuf, which has all members.
    fn new(event: &Event) -> Self {
        // Room for most.
        let mut bytes = Vec::with_capacity(1024);
        protobuf::write(ApiGroup::Core, event, &mut bytes);
        // What is more would stay here for long.
        bytes.shrink_to_fit();
        let document = Document { group: ApiGroup::Core, media: Media::Protobuf, bytes: bytes.into() };
        Self { type_meta: event.type_meta, document }
    }

    /// Takes over the answer with an event, where nothing of the event is lost in it.
    fn of_answer(event: &Event, answer: Option<Document>) -> Self {
        match answer.filter(|answer| answer.media == Media::Protobuf || !has_zero_time(event)) {
            Some(document) => Self { type_meta: event.type_meta, document },
            None => Self::new(event),
        }
    }

    const fn size(&self) -> usize {
        self.document.bytes.len()
    }

    fn unpack(&self) -> Option<Event> {
        let Document { group, media, bytes } = &self.document;
        let event = match media {
            Media::Json => json::decode_event(*group, bytes).ok()?,
            Media::Protobuf => protobuf::decode(*group, bytes).ok()?.event,
            Media::Yaml => return None,
        };
        Some(Event { type_meta: self.type_meta, ..event })
    }
}

/// Whether an event has a time that is set and zero: JSON has `null` for it.
fn has_zero_time(event: &Event) -> bool {
    let observed = event.series.as_ref().and_then(|series| series.last_observed_time);
    [event.event_time, observed].contains(&Some(MicroTime::ZERO))
}

/// An event under its name.
#[derive(Debug)]
pub(super) struct Alias {
    key: Key,
    packed: Packed,
}

/// A client's patch of an event that it posted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Growth {
    /// The new count of its own line.
    pub(super) count: Option<i32>,
    /// The new lastTimestamp; `Some(None)` deletes it.
    pub(super) last_timestamp: Option<Option<Time>>,
    /// The new message.
    pub(super) message: Option<SmolStr>,
    /// The new series of a new-style event.
    pub(super) series: Option<EventSeries>,
}

/// How far a client has counted: its series, or its count; an event that tells neither has happened once.
pub(super) fn line(event: &Event) -> i64 {
    spelling::occurrences(event).into()
}

/// How many occurrences an event tells of when it is posted: its series or its count, whichever says more.
pub(super) fn total(event: &Event) -> i64 {
    line(event).max(event.count.into())
}

/// Whether one event can have become the other by its client's patches: those of a correlator leave its object, its reporter
/// and its reason.
pub(super) fn is_of_one_line(one: &Event, other: &Event) -> bool {
    let of = |event: &Event| {
        let object = &event.involved_object;
        (object.uid.clone(), object.kind.clone(), object.name.clone(), event.reason.clone())
    };
    of(one) == of(other) && (one.component(), one.host()) == (other.component(), other.host())
}

/// Whether an event is the first occurrence of a series that is known already. client-go's `tools/events` posts the event and
/// its series at once, in no order, and the series includes the event.
fn is_begun_by(series: &Event, event: &Event) -> bool {
    series.series.is_some()
        && event.series.is_none()
        && total(event) == 1
        && event.event_time.is_some()
        && event.event_time == series.event_time
        && is_of_one_line(series, event)
}

/// Whether an event is what its client was told of it: the same request again.
pub(super) fn is_repeated(told: &Event, event: &Event) -> bool {
    let of = |event: &Event| (total(event), event.last_timestamp, event.event_time, event.message.clone());
    of(told) == of(event) && is_of_one_line(told, event)
}

/// What an event that is posted is to the event known under its name.
#[derive(Debug)]
pub(super) enum Entered {
    /// It tells of occurrences that came after what the client was told before, if anything.
    New(Option<Event>),
    /// The series known under its name includes it: it brings nothing.
    Included(Event),
}

impl Aliases {
    /// An empty table for `max` names, hashed with `secret`.
    #[must_use]
    pub fn new(max: NonZeroUsize, secret: KeySecret) -> Self {
        Self { known: Mutex::default(), max, secret }
    }

    /// How many names are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.lock().names.len()
    }

    /// True when no name is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn key(&self, namespace: &str, name: &str) -> Key {
        self.secret.name(namespace, name)
    }

    /// Remembers an event as its client was told it.
    pub fn insert(&self, event: &Event) {
        self.keep(self.pack(event));
    }

    /// Remembers an event that is about to be taken in, `answer` with it. Returns what was known under its name.
    pub(super) fn enter(&self, event: &Event, answer: Option<Document>) -> Entered {
        let alias = Alias { key: self.key_of(event), packed: Packed::of_answer(event, answer) };
        let mut known = self.known.lock();
        let told = known.names.get(&alias.key).and_then(Packed::unpack);
        let told = match told {
            Some(told) if is_begun_by(&told, event) => return Entered::Included(told),
            told => told,
        };
        let forgotten = known.put(alias, self.max);
        drop(known);
        drop(forgotten);
        Entered::New(told)
    }

    /// The event could not be taken in: what was known before is known again.
    pub(super) fn leave(&self, event: &Event, told: Option<&Event>) {
        match told {
            Some(told) => self.insert(told),
            None => self.remove(&event.metadata.namespace, &event.metadata.name),
        }
    }

    /// What is to be remembered of an event under its name.
    pub(super) fn pack(&self, event: &Event) -> Alias {
        Alias { key: self.key_of(event), packed: Packed::new(event) }
    }

    fn key_of(&self, event: &Event) -> Key {
        self.key(&event.metadata.namespace, &event.metadata.name)
    }

    /// Remembers what was packed.
    pub(super) fn keep(&self, alias: Alias) {
        let mut known = self.known.lock();
        let forgotten = known.put(alias, self.max);
        // Every request comes by this lock, so what is freed is freed outside of it.
        drop(known);
        drop(forgotten);
    }

    /// Forgets a name: its event was deleted.
    pub(super) fn remove(&self, namespace: &str, name: &str) {
        let mut known = self.known.lock();
        let removed = known.names.pop(&self.key(namespace, name));
        known.bytes = known.bytes.saturating_sub(removed.map_or(0, |packed| packed.size()));
    }

    /// The event as its client was last told it.
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Event> {
        self.known.lock().names.get(&self.key(namespace, name))?.unpack()
    }

    /// Applies a client's patch to what it was told. Returns the event as the client now sees it, and by how many
    /// occurrences its line has grown.
    pub(super) fn grow(&self, namespace: &str, name: &str, growth: &Growth) -> Option<(Event, u32)> {
        self.change(namespace, name, |event| {
            let before = line(event);
            event.count = growth.count.unwrap_or(event.count);
            if growth.series.is_some() {
                event.series.clone_from(&growth.series);
            }
            event.last_timestamp = growth.last_timestamp.unwrap_or(event.last_timestamp);
            if let Some(message) = &growth.message {
                event.message = message.clone();
            }
            // A line that shrinks or stands still (a repeated request) brings no occurrence.
            let grown = u32::try_from(line(event) - before).unwrap_or(0);
            (event.clone(), grown)
        })
    }

    /// Takes over what a plain patch has made of the record that a name leads to. The client's line stays as it was unless
    /// the patch was about it, and so does what the record is found by.
    pub(super) fn relabel(&self, namespace: &str, name: &str, stored: &Event, line: Line) {
        self.change(namespace, name, |event| {
            event.metadata.rare.clone_from(&stored.metadata.rare);
            if line == Line::Stated {
                event.count = stored.count;
                event.series.clone_from(&stored.series);
            }
        });
    }

    /// Takes back a growth that could not be taken in: the client will repeat it.
    pub(super) fn shrink(&self, namespace: &str, name: &str, grown: u32) {
        self.change(namespace, name, |event| {
            let line = event.series.as_mut().map_or(&mut event.count, |series| &mut series.count);
            *line = line.saturating_sub_unsigned(grown);
        });
    }

    /// Under the lock, so that of two requests of one client each sees what the other has made of its line.
    fn change<T>(&self, namespace: &str, name: &str, change: impl FnOnce(&mut Event) -> T) -> Option<T> {
        let mut known = self.known.lock();
        let key = self.key(namespace, name);
        let mut event = known.names.get(&key)?.unpack()?;
        let result = change(&mut event);
        drop(known.put(Alias { key, packed: Packed::new(&event) }, self.max));
        Some(result)
    }
}

#[cfg(test)]
mod tests {
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
        // A small one among them is forgotten only where it is the oldest.
        assert_eq!(put(large("d")), 4);
        assert_eq!(put(large("e")), 1);
        assert!(aliases.get("default", "e").is_some());
        assert_eq!(put(event("a", 1)), 2);
        // One that grows by a patch takes room as well, and one that goes gives it back.
        let growth = Growth { message: Some("m".repeat(BYTES_A_NAME * 3).into()), ..Growth::default() };
        assert!(aliases.grow("default", "a", &growth).is_some());
        assert_eq!(aliases.len(), 1);
        aliases.remove("default", "a");
        assert!(aliases.is_empty());
        assert_eq!(aliases.known.lock().bytes, 0);
    }

    #[test]
    fn at_the_limit_the_name_used_longest_ago_is_forgotten() {
        let aliases = Aliases::new(NonZeroUsize::new(2).unwrap(), KeySecret(1, 2));
        aliases.insert(&event("a", 1));
        aliases.insert(&event("b", 1));
        assert!(aliases.get("default", "a").is_some());
        aliases.insert(&event("c", 1));
        assert_eq!(aliases.len(), 2);
        assert!(aliases.get("default", "b").is_none());
        assert!(aliases.get("default", "a").is_some());
    }

    #[test]
    fn a_full_table_knows_the_newest_names_as_they_were_told_last() {
        let aliases = Aliases::new(NonZeroUsize::new(64).unwrap(), KeySecret(1, 2));
        let known = |number: usize| aliases.get("default", &number.to_string()).map(|event| event.count);
        for number in 0..127 {
            aliases.insert(&event(&number.to_string(), 1));
        }
        // Under a name that is there twice the later event counts.
        aliases.insert(&event("100", 2));
        aliases.insert(&event("101", 3));
        aliases.insert(&event("new", 1));
        assert_eq!((known(100), known(101), known(62), known(64)), (Some(2), Some(3), None, Some(1)));
        assert_eq!(aliases.len(), 64);
        aliases.insert(&event("newer", 1));
        aliases.remove("default", "newer");
        assert!(aliases.get("default", "newer").is_none());
    }
}
