//! The storm record of a group: one record for the events of many objects that their group's budget could not pay for.
//!
//! Its message has the numbers of objects and nodes, the names of some objects, and the most frequent messages.

use std::fmt::Write as _;
use std::hash::BuildHasher as _;

use smol_str::SmolStr;

use super::Outbox;
use super::digest::digest_name;
use crate::clock::Now;
use crate::correlator::RecordId;
use crate::event::{Event, EventSource, MicroTime, ObjectMeta, ObjectReference, RareMeta, Time, cut};

/// The annotation of a storm record, with the kind of its objects.
pub const STORM_MARK: &str = "eventweir.io/storm";

/// LIMIT: objects that the message names.
const EXAMPLES: usize = 5;

/// LIMIT: different messages that are counted; further ones are not named.
const MESSAGES: usize = 32;

/// LIMIT: bytes kept of a message, and of an object's name.
const KEPT_BYTES: usize = 200;

/// LIMIT: beginnings and ends of storms that wait to be logged; further ones are not logged.
const NEWS_MAX: usize = 32;

/// The beginning or the end of a storm, for the log.
pub struct StormNews {
    /// Whether the storm begins.
    pub begins: bool,
    /// Its record.
    pub event: Event,
}

impl std::fmt::Debug for StormNews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.begins)
    }
}

impl Outbox {
    pub(super) fn note_storm(&mut self, news: StormNews) {
        if self.storm_news.len() < NEWS_MAX {
            self.storm_news.push(news);
        }
    }

    /// Returns the storms that have begun or ended since the last call.
    pub fn take_storm_news(&mut self) -> Vec<StormNews> {
        std::mem::take(&mut self.storm_news)
    }
}

/// Statistics of the events that have folded.
#[derive(Debug, Default)]
pub(super) struct Storm {
    kind: SmolStr,
    objects: Distinct,
    hosts: Distinct,
    examples: Vec<SmolStr>,
    // LIMIT: `MESSAGES`
    messages: Vec<(SmolStr, u64)>,
    occurrences: u64,
}

/// Returns a storm record on the namespace of `first`, the first event that folds. Reporter, type and reason are those
/// of `first`.
pub(super) fn begin(record: RecordId, first: &Event, now: Now) -> Event {
    let namespace = &first.metadata.namespace;
    let annotations = [(SmolStr::new_static(STORM_MARK), first.involved_object.kind.clone())].into();
    let mut event = Event {
        metadata: ObjectMeta {
            name: digest_name(namespace, record, now),
            namespace: namespace.clone(),
            rare: Some(Box::new(RareMeta { annotations, ..RareMeta::default() })),
            ..ObjectMeta::default()
        },
        // With a namespace, because an old-style event must be in the namespace of its object.
        involved_object: ObjectReference {
            kind: SmolStr::new_static("Namespace"),
            api_version: SmolStr::new_static("v1"),
            name: namespace.clone(),
            namespace: namespace.clone(),
            ..ObjectReference::default()
        },
        reason: first.reason.clone(),
        source: EventSource { component: first.component().into(), ..EventSource::default() },
        event_type: first.event_type.clone(),
        first_timestamp: Some(Time::from_unix_nanos(now.wall)),
        ..Event::default()
    };
    if first.event_time.is_some() {
        event.event_time = Some(MicroTime::from_unix_nanos(now.wall));
        event.action = first.action.clone();
        event.reporting_controller = first.reporting_controller.clone();
        event.reporting_instance = first.reporting_instance.clone();
    }
    event
}

impl Storm {
    pub(super) fn add(&mut self, folded: &Event, occurrences: u64) {
        let object = &folded.involved_object;
        self.kind = object.kind.clone();
        if self.objects.add(&[&object.namespace, &object.name, &object.uid]) && self.examples.len() < EXAMPLES {
            self.examples.push(cut(&object.name, KEPT_BYTES));
        }
        self.hosts.add(&[folded.host()]);
        self.occurrences += occurrences;
        let message = cut(&folded.message, KEPT_BYTES);
        let has_room = self.messages.len() < MESSAGES;
        match self.messages.iter_mut().find(|(known, _)| *known == message) {
            Some((_, number)) => *number += occurrences,
            None if has_room => self.messages.push((message, occurrences)),
            None => {}
        }
    }

    /// Returns the message, in at most `limit` bytes. An example:
    /// `storm: 4812 events of 500 objects (Pod) from 3 reporters: job-001, …; x4000 0/99 nodes are available; …`
    pub(super) fn message(&self, limit: usize) -> SmolStr {
        let [objects, reporters] = [&self.objects, &self.hosts].map(|things| things.count().min(self.occurrences));
        let plural = |number: u64, word: &'static str| format!("{number} {word}{}", if number == 1 { "" } else { "s" });
        let mut text = format!("storm: {} of ", plural(self.occurrences, "event"));
        write!(text, "{} ({}) from {}: ", plural(objects, "object"), self.kind, plural(reporters, "reporter"))
            .unwrap_or_default();
        text.push_str(&self.examples.join(", "));
        if objects > self.examples.len() as u64 {
            text.push_str(", …");
        }
        let mut messages: Vec<_> = self.messages.iter().filter(|(message, _)| !message.is_empty()).collect();
        messages.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        for (message, number) in messages {
            if text.len() + message.len() + 24 > limit {
                break;
            }
            write!(text, "; x{number} {message}").unwrap_or_default();
        }
        cut(&text, limit)
    }

    pub(super) fn size(&self) -> usize {
        let texts = self.examples.iter().chain(self.messages.iter().map(|(message, _)| message));
        size_of::<Self>() + 2 * REGISTERS + texts.map(|text| text.len() + size_of::<SmolStr>()).sum::<usize>()
    }
}

/// Registers of a [`Distinct`]: its relative error is about 1.04 / √1024 = 3 %, and far smaller for small numbers.
const REGISTERS: usize = 1024;

/// Estimates the number of different values added, in constant memory (a HyperLogLog).
struct Distinct(Box<[u8; REGISTERS]>);

impl Default for Distinct {
    fn default() -> Self {
        Self(Box::new([0; REGISTERS]))
    }
}

impl std::fmt::Debug for Distinct {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.count())
    }
}

impl Distinct {
    /// Adds a value. Returns `true` only if it is new.
    fn add(&mut self, parts: &[&str]) -> bool {
        // Fixed, so that the estimate is reproducible.
        let hash = foldhash::fast::FixedState::default().hash_one(parts);
        let place = usize::try_from(hash % REGISTERS as u64).unwrap_or_default();
        let register = &mut self.0[place];
        let rank = u8::try_from(((hash / REGISTERS as u64) | (1 << 54)).trailing_zeros() + 1).unwrap_or(u8::MAX);
        let is_new = rank > *register;
        *register = rank.max(*register);
        is_new
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rounded, non-negative estimate")]
    fn count(&self) -> u64 {
        let size = REGISTERS as f64;
        let sum: f64 = self.0.iter().map(|rank| 1.0 / (1_u64 << rank) as f64).sum();
        let raw = 0.7213 / (1.0 + 1.079 / size) * size * size / sum;
        let empty = self.0.iter().filter(|rank| **rank == 0).count();
        // For small numbers the number of empty registers is more precise.
        let estimate = if raw <= 2.5 * size && empty > 0 { size * (size / empty as f64).ln() } else { raw };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use smol_str::format_smolstr;

    use super::*;

    fn event(number: usize, message: &str) -> Event {
        let mut event = Event { reason: "FailedScheduling".into(), message: message.into(), ..Event::default() };
        event.metadata.namespace = "shop".into();
        event.involved_object.kind = "Pod".into();
        event.involved_object.name = format_smolstr!("job-{number}");
        event
    }

    #[test]
    fn a_storm_says_how_many_objects_and_what_is_most_frequent() {
        let mut storm = Storm::default();
        for number in 0..500 {
            storm.add(&event(number, if number % 5 == 0 { "taint" } else { "cpu" }), 2);
        }
        let text = storm.message(1024);
        let (head, rest) = text.split_once(" of ").unwrap();
        assert_eq!(head, "storm: 1000 events");
        let objects: i32 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!((475..=525).contains(&objects), "{text}");
        assert!(
            text.ends_with("(Pod) from 1 reporter: job-0, job-1, job-2, job-3, job-4, …; x800 cpu; x200 taint"),
            "{text}"
        );
        assert!(storm.message(60).len() <= 60);
        assert!(storm.size() < 8 << 10);
    }

    #[test]
    fn a_storm_of_events_of_the_new_api_is_valid_there() {
        let mut first = event(1, "cpu");
        (first.action, first.reporting_controller) = ("Schedule".into(), "scheduler".into());
        first.reporting_instance = "scheduler-0".into();
        let now = Now::at(1_000_000_000);
        assert_eq!(begin(RecordId(1), &first, now).event_time, None, "an old-style event");
        first.event_time = Some(MicroTime::from_unix_nanos(5));
        let storm = begin(RecordId(1), &first, now);
        assert_eq!(storm.event_time, Some(MicroTime::from_unix_nanos(now.wall)));
        let reporter = |event: &Event| {
            (event.action.clone(), event.reporting_controller.clone(), event.reporting_instance.clone())
        };
        assert_eq!(reporter(&storm), reporter(&first));
    }

    #[test]
    fn the_number_of_things_is_right_within_some_percent() {
        for number in [0_u32, 1, 2, 10, 100, 1_000, 10_000, 100_000] {
            let mut distinct = Distinct::default();
            for _ in 0..2 {
                for thing in 0..number {
                    distinct.add(&[&thing.to_string()]);
                }
            }
            let error = (f64::from(number) - distinct.count() as f64).abs();
            assert!(error <= f64::from(number) * 0.08, "{number}: {}", distinct.count());
        }
    }
}
