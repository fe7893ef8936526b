//! The tag of a record: the number of its occurrences that an object upstream holds.
//!
//! A tag is an annotation, `tally.eventweir/WRITER.SHARD.RECORD: COUNT@SECONDS`. `WRITER` is random for each process,
//! and `RECORD` numbers the records of one of its shards, so tags are unique. `COUNT` only grows. A create sets it, or
//! a patch that names the version it was made for, always together with the count that all writers share. So the part
//! of other writers is always the count minus the tag. `SECONDS` is the time of the write.

use smol_str::{SmolStr, format_smolstr};

use super::Outbox;
use super::lines::{LINE_PREFIX, surplus};
use crate::clock::Now;
use crate::correlator::RecordId;
use crate::event::Event;

const TAG_PREFIX: &str = "tally.eventweir/";

/// The annotation with the last messages of a combined record or digest (`explain.annotationBytes`).
pub const MESSAGES: &str = "messages.eventweir/last";

/// Seconds after its write until other records may remove a tag: a week. Its owner needs the tag while a write is in
/// doubt. That may last as long as the upstream or the owner is down, because a spool keeps the doubt.
const TAG_TTL_SECONDS: i64 = 7 * 86_400;

/// LIMIT: tags of other records on one object. Above it the oldest is removed. A tag takes some 70 bytes of the 256 KiB
/// that annotations may take, and each replica and each restart leaves one.
const FOREIGN_TAGS_MAX: usize = 256;

/// LIMIT: the count of a tag. A larger one is a client's change and counts as none: sums with it would overflow.
const COUNT_MAX: u64 = u64::MAX >> 2;

/// The part of a patch that makes it exact: the version it was made for, and the new tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The version that the patch was made for; empty if none is known, which makes the patch unconditional.
    pub resource_version: SmolStr,
    /// The name of the tag.
    pub tag: SmolStr,
    /// Its value.
    pub value: SmolStr,
    /// Other annotations: client lines, and the record's last messages.
    pub annotations: Vec<(SmolStr, SmolStr)>,
    /// Tags of other records that are removed because their owners no longer need them.
    pub removed: Vec<SmolStr>,
    /// Whether to remove a series of the object that the count includes, because readers would take it for the count.
    pub ends_series: bool,
}

/// Returns the value of a tag that is written at `now`.
pub(super) fn value(count: u64, now: Now) -> SmolStr {
    format_smolstr!("{count}@{}", now.wall_seconds())
}

/// Returns the count of the tag of this name on `event`; `None` if it has none.
pub(super) fn count(event: &Event, tag: &str) -> Option<u64> {
    let annotations = &event.metadata.rare.as_deref()?.annotations;
    parsed(annotations.get(tag)?).map(|(count, _)| count)
}

/// Returns the tags of an event, with their values.
pub fn tags(event: &Event) -> impl Iterator<Item = (&SmolStr, &SmolStr)> {
    let rare = event.metadata.rare.as_deref();
    let annotations = rare.into_iter().flat_map(|rare| &rare.annotations);
    annotations.filter(|(name, _)| name.starts_with(TAG_PREFIX))
}

/// Whether `event` has any tag.
pub fn has_any_tag(event: &Event) -> bool {
    tags(event).next().is_some()
}

/// Parses count and seconds. An older version of eventweir wrote the count alone; such a tag never expires.
fn parsed(value: &str) -> Option<(u64, i64)> {
    let (count, seconds) = match value.split_once('@') {
        Some((count, seconds)) => (count, seconds.parse().ok()?),
        None => (value, i64::MAX),
    };
    let count = count.parse().ok().filter(|count| *count <= COUNT_MAX)?;
    Some((count, seconds))
}

/// Sets the tag and the lines of an event that is to be created, and removes all others.
pub(super) fn mark(event: &mut Event, tag: &SmolStr, value: SmolStr, lines: Vec<(SmolStr, SmolStr)>) {
    let rare = event.metadata.rare.get_or_insert_default();
    rare.annotations.retain(|name, _| !name.starts_with(TAG_PREFIX) && !name.starts_with(LINE_PREFIX));
    rare.annotations.insert(tag.clone(), value);
    rare.annotations.extend(lines);
}

/// Returns the annotations that the next patch of `event` removes: expired tags of other records, and client lines
/// above their limit.
pub(super) fn expired(event: &Event, own: &str, now: Now) -> Vec<SmolStr> {
    let foreign = tags(event).filter(|(name, _)| *name != own);
    let mut tags: Vec<(i64, &SmolStr)> =
        // A value of another version may be as new as any.
        foreign.map(|(name, value)| (parsed(value).map_or(i64::MAX, |(_, seconds)| seconds), name)).collect();
    tags.sort_unstable();
    let limit = tags.len().saturating_sub(FOREIGN_TAGS_MAX);
    let is_old = |seconds: i64| now.wall_seconds().saturating_sub(seconds) > TAG_TTL_SECONDS;
    let old = tags.into_iter().enumerate().filter(|(place, (seconds, _))| *place < limit || is_old(*seconds));
    old.map(|(_, (_, name))| name.clone()).chain(surplus(event)).collect()
}

impl Outbox {
    /// Sets the writer, so that writes carry its tags and versions from now on. Its name must be unique.
    pub fn identify(&mut self, writer: &str) {
        self.writer = Some(writer.into());
    }

    /// Returns the name of the tag of one of this process's records; `None` if writes carry no tags.
    pub(super) fn own_tag(&self, record: RecordId) -> Option<SmolStr> {
        self.writer.as_ref().map(|writer| format_smolstr!("{TAG_PREFIX}{writer}.{:x}", record.0))
    }

    /// Returns the records of this process whose tags `event` has.
    pub fn own_records(&self, event: &Event) -> impl Iterator<Item = RecordId> {
        let own = self.writer.as_ref().map(|writer| format_smolstr!("{TAG_PREFIX}{writer}."));
        let number = move |(name, _): (&SmolStr, _)| {
            u64::from_str_radix(name.strip_prefix(own.as_deref()?)?, 16).ok().map(RecordId)
        };
        tags(event).filter_map(number)
    }

    /// Returns the number of occurrences of a record of this process that `event` holds; `None` without its tag.
    pub fn tag_count(&self, record: RecordId, event: &Event) -> Option<u64> {
        self.own_tag(record).and_then(|tag| count(event, &tag))
    }

    /// Returns the number of occurrences of a record that the upstream is known to hold under its tag; `None` if the
    /// record is not in the outbox.
    pub fn settled(&self, record: RecordId) -> Option<u64> {
        let record = self.records.get(&record)?;
        Some(if record.is_inherited { 0 } else { record.settled() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tags: &[(&str, &str)]) -> Event {
        let mut event = Event::default();
        let annotations = &mut event.metadata.rare.get_or_insert_default().annotations;
        annotations
            .extend(tags.iter().map(|(name, value)| (format_smolstr!("{TAG_PREFIX}{name}"), SmolStr::new(value))));
        annotations.insert("other".into(), "1@0".into());
        annotations.insert("line.eventweir/00".into(), "2 0 a".into());
        event
    }

    #[test]
    fn tags_of_both_formats_are_read() {
        let event = tagged(&[("a.1", "5@100"), ("old", "7"), ("bad", "x@1")]);
        let count = |name: &str| count(&event, &format!("{TAG_PREFIX}{name}"));
        assert_eq!([count("a.1"), count("old"), count("bad"), count("none")], [Some(5), Some(7), None, None]);
    }

    /// Fault: they expired after an hour, although their owner could be down with a spool. A tag of another version of
    /// eventweir expired at once.
    #[test]
    fn tags_of_others_expire_after_a_week_and_an_own_one_never_does() {
        let event = tagged(&[("old", "1"), ("new", "1;3"), ("a.1", "1@100"), ("a.2", "1@3000"), ("own", "1@0")]);
        let expired = |seconds: i64| {
            let now = Now::at(seconds * 1_000_000_000);
            let tags = expired(&event, &format!("{TAG_PREFIX}own"), now);
            tags.iter().map(|tag| tag.trim_start_matches(TAG_PREFIX).to_owned()).collect::<Vec<_>>()
        };
        let week = 7 * 24 * 3600;
        assert_eq!(expired(100 + week), Vec::<String>::new());
        assert_eq!(expired(101 + week), ["a.1"]);
    }

    #[test]
    fn above_the_limit_the_oldest_tags_of_others_are_removed() {
        let names: Vec<String> = (0..FOREIGN_TAGS_MAX + 2).map(|number| format!("{number:04}")).collect();
        let values: Vec<String> = (0..names.len()).map(|number| format!("1@{}", 9000 - number)).collect();
        let tags: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(values.iter().map(String::as_str)).collect();
        let expired = expired(&tagged(&tags), "", Now::at(9000 * 1_000_000_000));
        let newest = |number: usize| format_smolstr!("{TAG_PREFIX}{number:04}");
        assert_eq!(expired, [newest(FOREIGN_TAGS_MAX + 1), newest(FOREIGN_TAGS_MAX)]);
    }

    #[test]
    fn a_created_event_has_one_tag_and_keeps_other_annotations() {
        let mut event = tagged(&[("a.1", "5@100")]);
        mark(&mut event, &format_smolstr!("{TAG_PREFIX}b.2"), value(3, Now::at(7_000_000_000)), Vec::new());
        let annotations = event.metadata.rare.unwrap().annotations;
        let expected: Vec<(SmolStr, SmolStr)> =
            vec![("other".into(), "1@0".into()), (format_smolstr!("{TAG_PREFIX}b.2"), "3@7".into())];
        assert_eq!(annotations.into_iter().collect::<Vec<_>>(), expected);
    }
}
