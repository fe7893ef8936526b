//! The tag of a record: how many of its occurrences an object upstream holds.
//!
//! A tag is an annotation, `tally.eventweir/WRITER.SHARD.RECORD: COUNT@SECONDS`. `WRITER` is drawn at random by each process,
//! and `RECORD` numbers the records of one of its shards, so no other record ever has the same tag. `COUNT` only grows. It is
//! written by a create, or by a patch that names the version it was made for, always together with the count that all writers
//! share. So the part of the count that is not ours is the count less the tag, whatever others have done. `SECONDS` is when the
//! tag was written.

use smol_str::{SmolStr, format_smolstr};

use super::Outbox;
use super::lines::{LINE_PREFIX, surplus};
use crate::clock::Now;
use crate::correlator::RecordId;
use crate::event::Event;

/// The beginning of every tag's name.
pub const TAG_PREFIX: &str = "tally.eventweir/";

/// The annotation with the last messages of a combined record or digest, where that is asked for.
pub const MESSAGES: &str = "messages.eventweir/last";

/// Seconds for which a tag is left alone after it was written: the upstream's TTL. Until then a write of its owner may be in
/// doubt; afterwards the owner has read the object again or has ended.
const TAG_TTL_SECONDS: i64 = 3600;

/// LIMIT: tags of other records on one object, each some 70 bytes of the 256 KiB that annotations may take; the oldest is
/// removed beyond. Each replica and each restart leaves one.
const FOREIGN_TAGS_MAX: usize = 256;

/// What a patch carries beside the content: the version it was made for, and the tag after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The version that the patch was made for; empty when none is known, and then nothing is required.
    pub resource_version: SmolStr,
    /// The name of the tag.
    pub tag: SmolStr,
    /// Its value.
    pub value: SmolStr,
    /// Annotations beside it: how far clients have counted, and for people the record's last messages.
    pub annotations: Vec<(SmolStr, SmolStr)>,
    /// Tags of other records that are removed because their owners no longer need them.
    pub removed: Vec<SmolStr>,
    /// Whether the count stands for a series that the object may have, too, and that readers would take for the count.
    pub ends_series: bool,
}

/// The value of a tag that is written at `now`.
pub(super) fn value(count: u64, now: Now) -> SmolStr {
    format_smolstr!("{count}@{}", now.wall_seconds())
}

/// The count of the tag of this name on `event`; `None` where it has none.
pub(super) fn count(event: &Event, tag: &str) -> Option<u64> {
    let annotations = &event.metadata.rare.as_deref()?.annotations;
    parsed(annotations.get(tag)?).map(|(count, _)| count)
}

/// Whether there is any tag on `event`.
pub(super) fn has_any(event: &Event) -> bool {
    let rare = event.metadata.rare.as_deref();
    rare.is_some_and(|rare| rare.annotations.keys().any(|name| name.starts_with(TAG_PREFIX)))
}

/// Count and seconds. An older version of eventweir wrote the count alone; how old that is cannot be known.
fn parsed(value: &str) -> Option<(u64, i64)> {
    match value.split_once('@') {
        Some((count, seconds)) => Some((count.parse().ok()?, seconds.parse().ok()?)),
        None => Some((value.parse().ok()?, i64::MAX)),
    }
}

/// Makes a tag and these lines the only ones on an event that is about to be created.
pub(super) fn mark(event: &mut Event, tag: &SmolStr, value: SmolStr, lines: Vec<(SmolStr, SmolStr)>) {
    let rare = event.metadata.rare.get_or_insert_default();
    rare.annotations.retain(|name, _| !name.starts_with(TAG_PREFIX) && !name.starts_with(LINE_PREFIX));
    rare.annotations.insert(tag.clone(), value);
    rare.annotations.extend(lines);
}

/// Annotations that the next patch of `event` removes: expired tags of other records, and lines of clients beyond their limit.
pub(super) fn expired(event: &Event, own: &str, now: Now) -> Vec<SmolStr> {
    let Some(rare) = event.metadata.rare.as_deref() else { return Vec::new() };
    let foreign = rare.annotations.iter().filter(|(name, _)| name.starts_with(TAG_PREFIX) && *name != own);
    let mut tags: Vec<(i64, &SmolStr)> =
        foreign.map(|(name, value)| (parsed(value).map_or(0, |(_, seconds)| seconds), name)).collect();
    tags.sort_unstable();
    let limit = tags.len().saturating_sub(FOREIGN_TAGS_MAX);
    let is_old = |seconds: i64| now.wall_seconds().saturating_sub(seconds) > TAG_TTL_SECONDS;
    let old = tags.into_iter().enumerate().filter(|(place, (seconds, _))| *place < limit || is_old(*seconds));
    old.map(|(_, (_, name))| name.clone()).chain(surplus(event)).collect()
}

impl Outbox {
    /// From now on writes carry tags of this writer, and versions. No other outbox may ever have the same name.
    pub fn identify(&mut self, writer: &str) {
        self.writer = Some(writer.into());
    }

    /// The tag of one of this process's records; `None` where writes carry none.
    pub(super) fn own_tag(&self, record: RecordId) -> Option<SmolStr> {
        self.writer.as_ref().map(|writer| format_smolstr!("{TAG_PREFIX}{writer}.{:x}", record.0))
    }

    /// How many occurrences of a record of this process `event` holds; `None` where it has not its tag.
    #[must_use]
    pub fn tag_count(&self, record: RecordId, event: &Event) -> Option<u64> {
        self.own_tag(record).and_then(|tag| count(event, &tag))
    }

    /// How many occurrences of a record are known to be upstream, as its tag counts; `None` where it is not here.
    #[must_use]
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

    #[test]
    fn tags_of_others_expire_and_an_own_one_never_does() {
        let event = tagged(&[("old", "1"), ("a.1", "1@100"), ("a.2", "1@3000"), ("own", "1@0")]);
        let expired = |seconds: i64| {
            let now = Now::at(seconds * 1_000_000_000);
            let tags = expired(&event, &format!("{TAG_PREFIX}own"), now);
            tags.iter().map(|tag| tag.trim_start_matches(TAG_PREFIX).to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(expired(3000), Vec::<String>::new());
        assert_eq!(expired(3701), ["a.1"]);
    }

    #[test]
    fn beyond_the_limit_the_oldest_tags_of_others_go() {
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
