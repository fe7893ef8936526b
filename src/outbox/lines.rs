//! How far clients have counted on a record, beside its tag.
//!
//! A client that counts by itself (client-go) posts an event under a name of its own, and then tells totals. Where they count
//! on a record of another name, the count upstream does not say how much of a client's total is in it. So each write carries
//! an annotation for each such client, `line.eventweir/SLOT: TOTAL CHECKSUM NAME`, in one request with the tag. Another process
//! reads it, and of the next total counts only what has come since. `CHECKSUM` is over what a line's events have in common,
//! so that a name that is used again for something else begins at 0. `SLOT` follows from the name: a write needs to
//! know nothing of the lines that the object has, and there are never more than `SLOTS`.

use flate2::Crc;
use smol_str::{SmolStr, format_smolstr};

use super::Outbox;
use super::record::Record;
use crate::correlator::RecordId;
use crate::event::Event;

/// The beginning of the name of every annotation with a line.
pub(super) const LINE_PREFIX: &str = "line.eventweir/";

/// LIMIT: lines with a total above 1 on one object, each mostly some 100 bytes, at most 300. Of two whose names fall on one slot
/// the later stays, and the next process counts the total of the other one whole.
const SLOTS: u32 = 32;

/// The place of the newest line with a total of 1: clients that post each occurrence under a new name need no more.
const FIRST: &str = "first";

/// How far a client has counted under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientLine {
    /// The name that the client gave its event.
    pub name: SmolStr,
    /// A checksum of what the events of the line have in common.
    pub checksum: u32,
    /// How many occurrences the client has told of.
    pub total: i32,
}

impl ClientLine {
    /// The line that an event with its client's total as its count belongs to; `None` where that counts nothing.
    #[must_use]
    pub fn of(event: &Event) -> Option<Self> {
        let line = || Self { name: event.metadata.name.clone(), checksum: line_checksum(event), total: event.count };
        (event.count > 0).then(line)
    }

    /// The lines that an object upstream has.
    pub fn on(object: &Event) -> impl Iterator<Item = Self> {
        let annotations = object.metadata.rare.iter().flat_map(|rare| &rare.annotations);
        annotations.filter(|(slot, _)| slot.starts_with(LINE_PREFIX)).filter_map(|(_, value)| Self::parse(value))
    }

    fn parse(value: &str) -> Option<Self> {
        let (total, rest) = value.split_once(' ')?;
        let (checksum, name) = rest.split_once(' ')?;
        let (total, checksum) = (total.parse().ok()?, u32::from_str_radix(checksum, 16).ok()?);
        (total > 0).then(|| Self { name: name.into(), checksum, total })
    }

    /// Its place among the lines of an object; `None` is the place of the newest with a total of 1.
    fn slot(&self) -> Option<u32> {
        (self.total > 1).then(|| crc([self.name.as_str()]) % SLOTS)
    }

    fn key(&self) -> SmolStr {
        match self.slot() {
            Some(slot) => format_smolstr!("{LINE_PREFIX}{slot:02x}"),
            None => format_smolstr!("{LINE_PREFIX}{FIRST}"),
        }
    }

    fn value(&self) -> SmolStr {
        format_smolstr!("{} {:08x} {}", self.total, self.checksum, self.name)
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.name.len()
    }
}

/// A checksum of what the events of one line have in common: object, reporter and reason. The same in every version.
#[must_use]
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

/// The lines on a record of which its next write tells, one for a slot.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<ClientLine>);

impl Lines {
    /// Takes over a newer line. Another one of its name or slot goes; its own total only grows, because a client's requests may
    /// overtake each other.
    pub(super) fn put(&mut self, mut line: ClientLine) {
        line.total = line.total.max(self.total(&line.name, line.checksum).unwrap_or(0));
        let slot = line.slot();
        self.0.retain(|known| known.name != line.name && known.slot() != slot);
        self.0.push(line);
    }

    pub(super) fn merge(&mut self, newer: Self) {
        newer.0.into_iter().for_each(|line| self.put(line));
    }

    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    pub(super) fn to_vec(&self) -> Vec<ClientLine> {
        self.0.clone()
    }

    /// Bytes of memory, for the limit of the outbox.
    pub(super) fn size(&self) -> usize {
        self.0.iter().map(ClientLine::size).sum()
    }

    fn total(&self, name: &str, checksum: u32) -> Option<i32> {
        let line = self.0.iter().find(|line| line.name == name && line.checksum == checksum);
        line.map(|line| line.total)
    }

    /// The annotations of a write under `name` with this count. A line under that name that is all there is says nothing new.
    pub(super) fn annotations(&self, name: &str, count: i64) -> Vec<(SmolStr, SmolStr)> {
        let is_told = |line: &&ClientLine| line.name != name || i64::from(line.total) != count;
        self.0.iter().filter(is_told).map(|line| (line.key(), line.value())).collect()
    }
}

impl FromIterator<ClientLine> for Lines {
    fn from_iter<I: IntoIterator<Item = ClientLine>>(lines: I) -> Self {
        let mut all = Self::default();
        lines.into_iter().for_each(|line| all.put(line));
        all
    }
}

impl Record {
    /// Notes how far the client of its newest occurrence has counted. A write carries that together with the occurrence.
    fn put_line(&mut self, line: ClientLine) {
        let lines = if self.is_inherited { &mut self.later_lines } else { &mut self.lines };
        let before = lines.size();
        lines.put(line);
        self.size = self.size + lines.size() - before;
    }
}

impl Outbox {
    /// Whether writes carry tags, and so lines.
    #[must_use]
    pub const fn tells_lines(&self) -> bool {
        self.writer.is_some()
    }

    /// Notes how far the client of a record's newest occurrence has counted.
    pub fn put_line(&mut self, id: RecordId, line: ClientLine) {
        let Some(record) = self.records.get_mut(&id).filter(|record| record.tag.is_some()) else { return };
        let before = record.size;
        record.put_line(line);
        self.bytes.replace(before, record.size);
    }

    /// How far a client has counted on a record that is here.
    #[must_use]
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

    #[test]
    fn what_is_written_is_read() {
        let mut object = Event::default();
        let annotations = &mut object.metadata.rare.get_or_insert_default().annotations;
        let lines: Lines = [line("web-0.1", 5), line("web-0.2", 1)].into_iter().collect();
        annotations.extend(lines.annotations("web-0.0", 9));
        annotations.extend(
            [("a", "7 0 b"), ("line.eventweir/00", "0 0 b"), ("line.eventweir/01", "7 b")]
                .map(|(name, value)| (SmolStr::new(name), SmolStr::new(value))),
        );
        let mut read: Vec<_> = ClientLine::on(&object).collect();
        read.sort_unstable_by_key(|line| line.total);
        assert_eq!(read, [line("web-0.2", 1), line("web-0.1", 5)]);
    }

    #[test]
    fn a_line_that_is_the_whole_record_is_not_written() {
        let lines: Lines = [line("a", 5)].into_iter().collect();
        assert!(lines.annotations("a", 5).is_empty());
        assert_eq!(lines.annotations("a", 6).len(), 1);
        assert_eq!(lines.annotations("b", 5).len(), 1);
    }

    #[test]
    fn there_is_one_line_for_a_slot_and_one_for_a_name() {
        let mut lines = Lines::default();
        for number in 0..1000 {
            lines.put(line(&format!("new.{number}"), 1));
            lines.put(line(&format!("old.{number}"), 2));
        }
        assert_eq!(lines.0.len(), 1 + SLOTS as usize);
        assert_eq!((lines.total("new.999", 0x1234), lines.total("new.998", 0x1234)), (Some(1), None));
        lines.put(line("new.999", 2));
        assert_eq!((lines.total("new.999", 0x1234), lines.total("new.999", 1)), (Some(2), None));
        assert_eq!(lines.0.len(), SLOTS as usize);
        // Overtaken by a later total.
        lines.put(line("new.999", 5));
        lines.put(line("new.999", 4));
        assert_eq!(lines.total("new.999", 0x1234), Some(5));
        // Something else under the same name.
        lines.put(ClientLine { checksum: 1, ..line("new.999", 3) });
        assert_eq!((lines.total("new.999", 0x1234), lines.total("new.999", 1)), (None, Some(3)));
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
