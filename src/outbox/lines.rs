//! Client lines: the total that each client has stated for a record.
//!
//! A client with a correlator of its own (client-go) posts an event under its own name, and then totals. If several
//! clients count on one record, or the record has another name, the count upstream does not show which part of a
//! client's total it includes. So a write carries an annotation for each such client, `line.eventweir/KEY: TOTAL
//! CHECKSUM NAME COUNT`, in one request with the tag. Another process reads it, and counts only the growth of the
//! client's next total.
//!
//! `KEY` is a hash of the name, so a write overwrites the line of the same client without a read. `CHECKSUM` covers
//! what all events of a line have in common. If it differs, the name is used for another event, which begins at 0.
//! `COUNT` is the record's count with that write; it orders the lines by age.
//!
//! A line is needed for the client with the record's name only if another client or writer counts on the record too.
//! Otherwise its total is the record's count.

use flate2::Crc;
use serde::{Deserialize, Serialize};
use smol_str::{SmolStr, format_smolstr};

use super::record::{Kind, Record};
use super::usage::Usage;
use super::{Outbox, api_group, tag};
use crate::correlator::{NAME_BYTES_MAX, RecordId};
use crate::event::{ApiGroup, Event};

/// Prefix of the names of annotations with a line.
pub(super) const LINE_PREFIX: &str = "line.eventweir/";

/// LIMIT: lines of other clients with a total above 1 on one object. Above it, the next patch removes the oldest, and
/// the next process counts the whole total of that client. A line has some 100 bytes, at most 300.
const OTHERS_MAX: usize = 32;

/// The key of the newest line of another client with a total of 1. One such line is enough for clients that post each
/// occurrence under a new name.
const FIRST: &str = "first";

/// The total of a client under one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientLine {
    /// The name that the client gave its event.
    pub name: SmolStr,
    /// Checksum of what the events of the line have in common.
    pub checksum: u32,
    /// Number of occurrences that the client has stated.
    pub total: i32,
}

impl ClientLine {
    /// Returns the line of an event whose count is its client's total, or 0 if the client states none. A name that is
    /// too long for an annotation has no line either.
    pub fn of(event: &Event) -> Self {
        let name = event.metadata.name.clone();
        let total = if name.len() > NAME_BYTES_MAX { 0 } else { event.count.max(0) };
        Self { name, checksum: line_checksum(event), total }
    }

    /// Returns the lines of an object upstream.
    pub fn on(object: &Event) -> impl Iterator<Item = Self> {
        values(object).filter_map(Self::parse)
    }

    /// Whether the client of an object's name has counted all of it in one process: the process has omitted its line.
    pub fn is_omitted(object: &Event) -> bool {
        let (mut tags, count) = (tag::tags(object), u64::try_from(api_group::count(object)));
        let is_all = |(tag, _): (&SmolStr, _)| tag::count(object, tag) == count.ok();
        values(object).next().is_none() && tags.next().is_some_and(is_all) && tags.next().is_none()
    }

    /// Whether the lines of an object are as new as its count. A process that writes none leaves older ones there.
    pub fn are_current(object: &Event) -> bool {
        let count = api_group::count(object);
        values(object).any(|value| name_and_count(value).is_some_and(|(_, with)| with.parse() == Ok(count)))
    }

    fn parse(value: &str) -> Option<Self> {
        let mut parts = value.splitn(3, ' ');
        let total = parts.next()?.parse().ok()?;
        let checksum = u32::from_str_radix(parts.next()?, 16).ok()?;
        let (name, _) = name_and_count(value)?;
        (total > 0).then_some(Self { name: name.into(), checksum, total })
    }

    /// Returns the annotation for a write with this count.
    fn annotation(&self, key: &str, count: i64) -> (SmolStr, SmolStr) {
        let value = format_smolstr!("{} {:08x} {} {count}", self.total, self.checksum, self.name);
        (slot(key), value)
    }

    fn is_of(&self, name: &str, checksum: u32) -> bool {
        self.name == name && self.checksum == checksum
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.name.len()
    }
}

fn key(name: &str) -> SmolStr {
    format_smolstr!("{:08x}", crc([name]))
}

/// Returns the name of the annotation with a line.
fn slot(key: &str) -> SmolStr {
    format_smolstr!("{LINE_PREFIX}{key}")
}

/// Returns a checksum of what the events of one line have in common: object, reporter and reason. It must not change
/// between versions.
pub fn line_checksum(event: &Event) -> u32 {
    let object = &event.involved_object;
    crc([&object.uid, &object.kind, &object.name, &event.reason, event.component(), event.host()])
}

fn crc<const N: usize>(texts: [&str; N]) -> u32 {
    let mut sum = Crc::new();
    for text in texts {
        sum.update(text.as_bytes());
        sum.update(&[0]);
    }
    sum.sum()
}

/// Returns the lines of `object` that its next patch removes unless it writes them: those above the limit, and the own
/// one.
pub(super) fn surplus(object: &Event) -> Vec<SmolStr> {
    let annotations = object.metadata.rare.iter().flat_map(|rare| &rare.annotations);
    let lines = annotations.filter(|(key, _)| key.starts_with(LINE_PREFIX) && !key.ends_with(FIRST));
    let (own, others): (Vec<_>, Vec<_>) = lines.partition(|(_, value)| is_named(value, &object.metadata.name));
    let others = others.into_iter();
    let count = |value: &str| name_and_count(value).and_then(|(_, count)| count.parse::<i64>().ok());
    let mut others: Vec<_> = others.map(|(key, value)| (count(value), key)).collect();
    others.sort_unstable();
    let surplus = others.len().saturating_sub(OTHERS_MAX);
    others.into_iter().take(surplus).map(|(_, key)| key).chain(own.into_iter().map(|(key, _)| key)).cloned().collect()
}

/// Whether a writer that ignores lines has set the count of `object`: the line of its name states another one, or no
/// client has a line.
pub fn is_set_without_lines(object: &Event) -> bool {
    let mut lines = values(object).peekable();
    lines.peek().is_none()
        || lines
            .filter(|value| is_named(value, &object.metadata.name))
            .any(|value| name_and_count(value).is_some_and(|(_, count)| count.parse() != Ok(object.count)))
}

/// Returns the values of the annotations of an object that are lines.
fn values(object: &Event) -> impl Iterator<Item = &str> {
    let annotations = object.metadata.rare.iter().flat_map(|rare| &rare.annotations);
    annotations.filter(|(slot, _)| slot.starts_with(LINE_PREFIX)).map(|(_, value)| value.as_str())
}

fn is_named(value: &str, name: &str) -> bool {
    name_and_count(value).is_some_and(|(own, _)| own == name)
}

/// Returns the name of a line, which may contain spaces, and the count of its object.
fn name_and_count(value: &str) -> Option<(&str, &str)> {
    value.splitn(3, ' ').nth(2)?.rsplit_once(' ')
}

/// The lines that the next write of a record carries.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The line of the client with the record's name, or with its name before it was renamed.
    own: Option<ClientLine>,
    /// The lines of other clients, the newest last.
    // LIMIT: `OTHERS_MAX`, and one with a total of 1.
    others: Vec<ClientLine>,
}

impl Lines {
    /// Restores the lines of a record of this name from the result of [`to_vec`](Self::to_vec).
    pub(super) fn of(lines: Vec<ClientLine>, name: &str) -> Self {
        let mut all = Self::default();
        lines.into_iter().for_each(|line| all.put(line, name));
        all
    }

    /// Adds a newer line of a record of this name. A total only grows, because a client's requests may arrive out of
    /// order.
    fn put(&mut self, mut line: ClientLine, record: &str) {
        line.total = line.total.max(self.total(&line.name, line.checksum).unwrap_or(0));
        if line.name == record || self.own.as_ref().is_some_and(|own| own.name == line.name) {
            self.own = Some(line);
        } else {
            self.put_other(line);
        }
    }

    fn put_other(&mut self, line: ClientLine) {
        self.others.retain(|known| known.name != line.name && (known.total > 1 || line.total > 1));
        self.others.push(line);
        let is_counted = |line: &ClientLine| line.total > 1;
        if self.others.iter().filter(|line| is_counted(line)).count() > OTHERS_MAX
            && let Some(oldest) = self.others.iter().position(is_counted)
        {
            self.others.remove(oldest);
        }
    }

    pub(super) fn merge(&mut self, newer: Self) {
        let own = newer.own.as_ref().map(|own| own.name.clone()).unwrap_or_default();
        newer.own.into_iter().chain(newer.others).for_each(|line| self.put(line, &own));
    }

    fn iter(&self) -> impl Iterator<Item = &ClientLine> {
        self.own.iter().chain(&self.others)
    }

    pub(super) fn to_vec(&self) -> Vec<ClientLine> {
        self.iter().cloned().collect()
    }

    /// Returns the bytes of memory, for the limit of the outbox.
    pub(super) fn size(&self) -> usize {
        self.iter().map(ClientLine::size).sum()
    }

    fn total(&self, name: &str, checksum: u32) -> Option<i32> {
        self.iter().find(|line| line.is_of(name, checksum)).map(|line| line.total)
    }

    fn take_back(&mut self, line: &ClientLine) {
        if let Some(known) = self.find(line) {
            known.total = line.total;
        }
    }

    /// Raises the totals to those of the object's lines, and the own one to that of the series that the client has
    /// written itself. A client may have counted on through another record.
    fn read(&mut self, object: &Event, series: Option<i32>) {
        if self.own.is_none() && self.others.is_empty() {
            return;
        }
        let own = self.own.iter_mut().filter(|own| own.name == object.metadata.name);
        own.for_each(|own| own.total = own.total.max(series.unwrap_or(0)));
        for line in ClientLine::on(object) {
            if let Some(known) = self.find(&line) {
                known.total = known.total.max(line.total);
            }
        }
    }

    /// Returns the known line of the same client.
    fn find(&mut self, line: &ClientLine) -> Option<&mut ClientLine> {
        self.own.iter_mut().chain(&mut self.others).find(|known| known.is_of(&line.name, line.checksum))
    }

    /// Returns the lines among `surplus` that a patch under `name` removes: not those that it writes, and not an own
    /// line that this process does not have.
    pub(super) fn removed(&self, surplus: &[SmolStr], name: &str, written: &[(SmolStr, SmolStr)]) -> Vec<SmolStr> {
        let unknown = self.own.is_none().then(|| slot(&key(name)));
        let is_kept = |slot: &SmolStr| unknown.as_ref() == Some(slot) || written.iter().any(|(key, _)| key == slot);
        surplus.iter().filter(|slot| !is_kept(slot)).cloned().collect()
    }

    /// Returns the annotations of a write under `name` with this count, of which `ours` is this record's part. The own
    /// line is omitted if its total is the whole count and all of it is ours: the count is then the client's total.
    pub(super) fn annotations(&self, name: &str, count: i64, ours: u64) -> Vec<(SmolStr, SmolStr)> {
        let is_whole = |own: &ClientLine| i64::from(own.total) == count && i64::try_from(ours) == Ok(count);
        let own = self.own.iter().filter(|own| own.name != name || !is_whole(own));
        let own = own.map(|own| own.annotation(&key(&own.name), count));
        let others = self.others.iter().map(|line| match line.total {
            1 => line.annotation(FIRST, count),
            _ => line.annotation(&key(&line.name), count),
        });
        own.chain(others).collect()
    }
}

impl Record {
    /// Stores the line of a client. The write of the occurrence carries it.
    fn put_line(&mut self, line: ClientLine, all: &mut Usage) {
        let lines = if self.is_inherited { &mut self.later_lines } else { &mut self.lines };
        let before = lines.size();
        lines.put(line, &self.event.metadata.name);
        let size = self.size + lines.size() - before;
        self.resize(size, all);
    }

    /// Reads the lines of the object of the record.
    pub(super) fn read_lines(&mut self, object: &Event, group: ApiGroup) {
        let series = api_group::clients_series(group, object);
        self.lines.read(object, series);
        self.later_lines.read(object, series);
    }

    /// Whether another client may count on the record under the record's name, without a line in this process.
    fn lacks_own_line(&self, client: &str) -> bool {
        self.kind == Kind::Plain
            && self.event.metadata.name != client
            && self.lines.own.is_none()
            && self.later_lines.own.is_none()
    }
}

impl Outbox {
    /// Whether writes carry tags, and so lines.
    pub const fn writes_lines(&self) -> bool {
        self.writer.is_some()
    }

    /// Stores the line of a client of a record; a total of 0 is none. Returns namespace and name of the record if it
    /// has the name of another client whose line this process does not have.
    pub fn put_line(&mut self, id: RecordId, line: ClientLine) -> Option<(SmolStr, SmolStr)> {
        // What waits beside an earlier process's plain record gets a tag later.
        let record = self.records.get_mut(&id).filter(|record| record.tag.is_some() || record.is_inherited)?;
        let metadata = &record.event.metadata;
        let lacking = record.lacks_own_line(&line.name).then(|| (metadata.namespace.clone(), metadata.name.clone()));
        if line.total > 0 {
            record.put_line(line, &mut self.usage);
        }
        lacking
    }

    /// Restores the line of a client whose new total was refused.
    pub fn take_back_line(&mut self, id: RecordId, line: &ClientLine) {
        self.note(id);
        if let Some(record) = self.records.get_mut(&id) {
            record.lines.take_back(line);
            record.later_lines.take_back(line);
        }
    }

    /// Returns the total of a client on a record of the outbox.
    pub fn line(&self, id: RecordId, name: &str, checksum: u32) -> Option<i32> {
        let record = self.records.get(&id)?;
        record.later_lines.total(name, checksum).or_else(|| record.lines.total(name, checksum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, total: i32) -> ClientLine {
        ClientLine { name: name.into(), checksum: 0x1234, total }
    }

    fn object(name: &str, annotations: impl IntoIterator<Item = (SmolStr, SmolStr)>) -> Event {
        let mut object = Event::default();
        object.metadata.name = name.into();
        object.metadata.rare.get_or_insert_default().annotations.extend(annotations);
        object
    }

    #[test]
    fn what_is_written_is_read() {
        let lines = Lines::of(vec![line("web-0.0", 3), line("web 0.1", 5), line("web-0.2", 1)], "web-0.0");
        let others = [("a", "7 0 b"), ("line.eventweir/00", "0 0 b"), ("line.eventweir/01", "7 b")]
            .map(|(name, value)| (SmolStr::new(name), SmolStr::new(value)));
        let object = object("web-0.0", lines.annotations("web-0.0", 9, 9).into_iter().chain(others));
        let mut read: Vec<_> = ClientLine::on(&object).collect();
        read.sort_unstable_by_key(|line| line.total);
        assert_eq!(read, [line("web-0.2", 1), line("web-0.0", 3), line("web 0.1", 5)]);
        // A total only grows, and those of another event are not its client's.
        let other = ClientLine { checksum: 1, ..line("web-0.2", 0) };
        let mut later = Lines::of(vec![line("web-0.0", 2), line("web 0.1", 6), other.clone()], "web-0.0");
        later.read(&object, None);
        assert_eq!(later.to_vec(), [line("web-0.0", 3), line("web 0.1", 6), other]);
        later.read(&object, Some(4));
        assert_eq!(later.total("web-0.0", 0x1234), Some(4));
    }

    #[test]
    fn a_line_that_is_the_whole_record_is_not_written() {
        let lines = Lines::of(vec![line("a", 5)], "a");
        assert!(lines.annotations("a", 5, 5).is_empty());
        assert_eq!(lines.annotations("a", 6, 6).len(), 1);
        // Another writer has counted on it.
        assert_eq!(lines.annotations("a", 5, 3).len(), 1);
        // It was renamed.
        assert_eq!(lines.annotations("b", 5, 5).len(), 1);
    }

    #[test]
    fn the_oldest_lines_of_others_go_beyond_the_limit_and_the_own_one_stays() {
        let mut lines = Lines::default();
        lines.put(line("own", 1), "own");
        for number in 0..100 {
            lines.put(line(&format!("new.{number}"), 1), "own");
            lines.put(line(&format!("old.{number}"), 2), "own");
        }
        let total = |lines: &Lines, name: &str| lines.total(name, 0x1234);
        assert_eq!(lines.others.len(), 1 + OTHERS_MAX);
        assert_eq!(["own", "new.99", "new.98"].map(|name| total(&lines, name)), [Some(1), Some(1), None]);
        assert_eq!(["old.99", "old.68", "old.67"].map(|name| total(&lines, name)), [Some(2), Some(2), None]);
        lines.put(line("new.99", 2), "own");
        assert_eq!((lines.others.len(), total(&lines, "old.68")), (OTHERS_MAX, None));
        // Overtaken by a later total.
        lines.put(line("new.99", 5), "own");
        lines.put(line("new.99", 4), "own");
        assert_eq!(total(&lines, "new.99"), Some(5));
        // Something else under the same name.
        lines.put(ClientLine { checksum: 1, ..line("new.99", 3) }, "own");
        assert_eq!((total(&lines, "new.99"), lines.total("new.99", 1)), (None, Some(3)));
    }

    /// Fault: two names whose hashes met in one of 32 places shared it, and the total of the earlier one counted whole.
    #[test]
    fn lines_of_different_names_share_no_key() {
        let names: Vec<ClientLine> = (0..OTHERS_MAX).map(|number| line(&format!("web-0.{number:x}"), 2)).collect();
        let object = object("own", Lines::of(names, "own").annotations("own", 99, 99));
        assert_eq!(ClientLine::on(&object).count(), OTHERS_MAX);
        assert!(surplus(&object).is_empty());
    }

    #[test]
    fn a_patch_removes_the_oldest_lines_beyond_the_limit() {
        let mut object = object("own", []);
        let annotations = &mut object.metadata.rare.get_or_insert_default().annotations;
        for number in 0..=OTHERS_MAX {
            let count = 100 - i64::try_from(number).unwrap();
            annotations.extend(Lines::of(vec![line(&format!("old.{number}"), 2)], "own").annotations(
                "own",
                count,
                count.cast_unsigned(),
            ));
        }
        annotations.extend(Lines::of(vec![line("own", 2), line("new", 1)], "own").annotations("own", 3, 3));
        assert_eq!(surplus(&object), ["old.32", "own"].map(|name| slot(&key(name))));
    }

    /// Fault: two records had written one object, and the line of the first stayed when the second was the whole count.
    #[test]
    fn a_patch_removes_the_own_line_that_it_leaves_out() {
        let lines = Lines::of(vec![line("own", 5)], "own");
        let object = object("own", lines.annotations("own", 6, 6));
        let removed = |lines: &Lines, count| {
            lines.removed(&surplus(&object), "own", &lines.annotations("own", count, count.cast_unsigned()))
        };
        assert_eq!(removed(&lines, 5), [slot(&key("own"))]);
        assert!(removed(&lines, 7).is_empty());
        assert!(removed(&Lines::default(), 7).is_empty(), "unknown here");
    }

    /// It is kept upstream and on disks, so that no version may change it.
    #[test]
    fn the_checksum_is_of_object_reporter_and_reason() {
        let mut event = Event { reason: "BackOff".into(), ..Event::default() };
        event.involved_object.name = "web-0".into();
        let before = line_checksum(&event);
        assert_eq!(before, 0x4946_46f4);
        event.message = "m".into();
        assert_eq!(line_checksum(&event), before);
        event.reason = "Back".into();
        assert_ne!(line_checksum(&event), before);
    }
}
