//! An entry as bytes. Each has its own length and checksum, so that valid entries are found even in a file whose
//! structure is damaged.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::io::{self, ErrorKind, SeekFrom};

use serde::{Deserialize, Serialize};

use super::medium::Bytes;
use crate::event::{ApiGroup, Event, json};
use crate::outbox::Entry;

/// Begins every entry; the digit is the version of the format.
const MAGIC: &[u8; 8] = b"eventwe2";
/// Bytes of magic, checksum and length.
const FRAME: usize = 16;
/// Begins the body of every entry: the first member of [`Stored`].
const HEAD: &[u8; 6] = b"{\"id\":";
/// LIMIT: bytes of the first members after the head, which are an id and a number.
const FIRST_BYTES: usize = 64;
/// LIMIT: bytes of an entry; a longer length counts as damage. A request's body has at most 64 MiB.
const ENTRY_BYTES: usize = 80 << 20;
/// Bytes of one read of a damaged file.
const CHUNK: usize = 1 << 20;
/// Bytes that are skipped where a file cannot be read.
const SKIP: i64 = 64 << 10;

/// What happens where a damaged file cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unreadable {
    Fails,
    Skipped,
}

/// An entry with its place in the file. A line of JSON has all but the event, which follows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Stored<E> {
    /// The id of the record, which is also its key in the file.
    pub(super) id: String,
    /// The number of the commit that wrote it.
    pub(super) round: u64,
    #[serde(flatten)]
    pub(super) entry: E,
}

pub(super) fn encode(id: &str, round: u64, entry: &Entry) -> Vec<u8> {
    let mut body = serde_json::to_vec(&Stored { id: id.to_owned(), round, entry }).unwrap_or_default();
    body.push(b'\n');
    json::write_item(ApiGroup::Core, &entry.event, &mut body);
    framed(&body)
}

/// Puts magic, checksum and length before a body.
fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    [&MAGIC[..], &checksum(body).to_le_bytes(), &length.to_le_bytes(), body].concat()
}

/// Decodes the entry at the beginning of `bytes`; `None` when it is damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<Stored<Entry>> {
    let (sum, length) = frame(bytes)?;
    let body = bytes.get(FRAME..)?.get(..length)?;
    if checksum(body) != sum {
        return None;
    }
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let (head, event) = body.split_at_checked(end)?;
    let mut stored: Stored<Entry> = serde_json::from_slice(head).ok()?;
    stored.entry.event = Event { type_meta: None, ..json::decode_event(ApiGroup::Core, event).ok()? };
    Some(stored)
}

/// Finds the entries of a damaged file, in its order; those without an [`Entry`] are damaged, except for their first
/// members. A record may have several; the newest counts. Returns the number of skipped parts.
///
/// # Errors
/// When the file cannot be read.
pub(super) fn salvage(
    file: &mut dyn Bytes,
    unreadable: Unreadable,
    mut found: impl FnMut(Stored<Option<Entry>>),
) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    let mut skipped = 0_u64;
    let mut window: Vec<u8> = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = match file.read(&mut chunk) {
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if unreadable == Unreadable::Fails => return Err(error),
            Err(_) => {
                skipped = skipped.saturating_add(1);
                if file.seek(SeekFrom::Current(SKIP))? < length {
                    continue;
                }
                0
            }
        };
        window.extend_from_slice(chunk.get(..read).unwrap_or_default());
        let kept = scan(&window, read == 0, &mut found);
        window.drain(..kept.min(window.len()));
        if read == 0 {
            return Ok(skipped);
        }
    }
}

/// Returns the number of bytes that were searched to the end.
fn scan(window: &[u8], is_end: bool, found: &mut impl FnMut(Stored<Option<Entry>>)) -> usize {
    let mut at = 0_usize;
    loop {
        let rest = window.get(at..).unwrap_or_default();
        let Some(offset) = rest.windows(MAGIC.len()).position(|bytes| bytes == MAGIC) else {
            // The magic may begin at the end of this window.
            return window.len().saturating_sub(MAGIC.len()).max(at);
        };
        at = at.saturating_add(offset);
        let candidate = window.get(at..).unwrap_or_default();
        let wanted = wanted(candidate);
        if candidate.len() < wanted && !is_end {
            return at;
        }
        match decode(candidate) {
            Some(Stored { id, round, entry }) => {
                found(Stored { id, round, entry: Some(entry) });
                at = at.saturating_add(wanted);
            }
            None => {
                first_members(candidate).into_iter().for_each(&mut *found);
                at = at.saturating_add(MAGIC.len());
            }
        }
    }
}

/// Returns the first members of a damaged entry; `None` when they are damaged too.
fn first_members(candidate: &[u8]) -> Option<Stored<Option<Entry>>> {
    let members = candidate.get(FRAME..)?.strip_prefix(HEAD)?;
    let members = str::from_utf8(members.get(..FIRST_BYTES).unwrap_or(members).split(|byte| *byte == b'\n').next()?);
    let (id, rest) = members.ok()?.strip_prefix('"')?.split_once("\",\"round\":")?;
    let (round, _) = rest.split_once(',')?;
    Some(Stored { id: id.to_owned(), round: round.parse().ok()?, entry: None })
}

/// Returns the bytes of the frame and the body that begin here. Without the head of an entry, no body is waited for: a
/// damaged length is mostly a large one.
fn wanted(candidate: &[u8]) -> usize {
    let least = FRAME.saturating_add(HEAD.len());
    let (head, length) = (candidate.get(FRAME..least), frame(candidate).map_or(0, |(_, length)| length));
    if head.is_none_or(|head| head == HEAD) { least.max(length.saturating_add(FRAME)) } else { FRAME }
}

/// Returns checksum and length of the body.
fn frame(bytes: &[u8]) -> Option<(u32, usize)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (length, _) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    // A length beyond the limit is damage: an entry without a body fails its checksum.
    Some((u32::from_le_bytes(*sum), if length > ENTRY_BYTES { 0 } else { length }))
}

fn checksum(body: &[u8]) -> u32 {
    let mut sum = flate2::Crc::new();
    sum.update(body);
    sum.sum()
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::{Cursor, Read, Seek};

    use super::*;
    use crate::correlator::Key;
    use crate::outbox::{ClientLine, Kind, Occurrences, WrittenAs};

    pub(in super::super) fn entry(message: &str) -> Entry {
        let mut event = Event { message: message.into(), reason: "BackOff".into(), count: 7, ..Event::default() };
        event.metadata.name = "web-0.1".into();
        event.metadata.resource_version = "42".into();
        Entry {
            source: Key(u128::MAX),
            key: Key(1),
            budget: Some(Key(0)),
            event,
            kind: Kind::Combined,
            stored: true,
            tag: "tally.eventweir/a.1".into(),
            settled: 4,
            owed: Occurrences::of(WrittenAs::Counted, 3),
            later: Occurrences::of(WrittenAs::Combined, 2),
            carried: 1,
            may_be_deleted: true,
            lines: vec![ClientLine { name: "web-0.2".into(), checksum: u32::MAX, total: 5 }],
            later_lines: vec![ClientLine { name: "web-0.3".into(), checksum: 0, total: 1 }],
        }
    }

    #[test]
    fn an_entry_comes_back() {
        let bytes = encode("0-1", 5, &entry("öä\n\""));
        let found = decode(&bytes).unwrap();
        assert_eq!((found.id.as_str(), found.round, found.entry), ("0-1", 5, entry("öä\n\"")));
    }

    /// The older entry has fewer numbers of occurrences, a line without names of its members, and not all members.
    #[test]
    fn an_entry_of_an_older_version_is_read() {
        let old = concat!(
            r#"{"id":"0-1","round":5,"source":"ffffffffffffffffffffffffffffffff","key":"1","budget":"0","kind":"combined","#,
            r#""stored":true,"tag":"tally.eventweir/a.1","settled":4,"owed":[0,3]"#,
        );
        let newer = concat!(
            r#","later":[0,0,2],"carried":1,"may_be_deleted":true,"#,
            r#""lines":[["web-0.2",4294967295,5]],"later_lines":[["web-0.3",0,1]]"#,
        );
        let later = Occurrences::default();
        let (lines, later_lines) = (Vec::new(), Vec::new());
        let plain = Entry { later, carried: 0, may_be_deleted: false, lines, later_lines, ..entry("m") };
        for (members, expected) in [("", plain), (newer, entry("m"))] {
            let mut body = format!("{old}{members}}}\n").into_bytes();
            json::write_item(ApiGroup::Core, &expected.event, &mut body);
            assert_eq!(decode(&framed(&body)).unwrap().entry, expected);
        }
    }

    #[test]
    fn any_damage_is_noticed() {
        let bytes = encode("0-1", 5, &entry("m"));
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 0x20;
            assert!(decode(&damaged).is_none(), "{place}");
            assert!(decode(&bytes[..place]).is_none(), "{place}");
        }
    }

    #[test]
    fn valid_entries_are_found_in_damage_wherever_a_chunk_ends() {
        let long = "x".repeat(CHUNK + CHUNK / 2);
        let mut file = b"rubbish eventwe eventwe1eventwe2".to_vec();
        for (number, message) in ["a", &long, "b", "c"].into_iter().enumerate() {
            file.extend(encode(&format!("0-{number}"), 1, &entry(message)));
            file.extend_from_slice(&[0; 77]);
        }
        file.extend(encode("torn", 1, &entry("d")).into_iter().take(100));
        let (mut ids, mut torn) = (Vec::new(), Vec::new());
        let found = |Stored { id, round, entry }| match entry {
            Some(_) => ids.push(id),
            None => torn.push((id, round)),
        };
        assert_eq!(salvage(&mut Cursor::new(file), Unreadable::Fails, found).unwrap(), 0);
        assert_eq!(
            (ids, torn),
            (["0-0", "0-1", "0-2", "0-3"].map(str::to_owned).to_vec(), vec![("torn".to_owned(), 1)])
        );
    }

    /// A file with a bad part.
    struct Bad(Cursor<Vec<u8>>, std::ops::Range<u64>);

    impl Read for Bad {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let at = self.0.position();
            if self.1.contains(&at) {
                return Err(io::Error::other("a bad sector"));
            }
            let left = self.1.start.checked_sub(at).and_then(|left| usize::try_from(left).ok()).unwrap_or(usize::MAX);
            let wanted = into.len().min(left);
            self.0.read(&mut into[..wanted])
        }
    }

    impl Seek for Bad {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }

    /// Fault: the file counted as read to its end there, and what followed was lost, uncounted.
    #[test]
    fn entries_behind_a_bad_sector_are_found() {
        let (mut file, gap) = (encode("0-1", 1, &entry("a")), 4_096);
        let bad = file.len() as u64 + 100..file.len() as u64 + 100 + gap;
        file.resize(file.len() + 200_000, 0);
        file.extend(encode("0-2", 1, &entry("b")));
        for (bad, expected) in [(bad, 2), (file.len() as u64 - 9..u64::MAX, 1)] {
            let mut file = Bad(Cursor::new(file.clone()), bad);
            assert!(salvage(&mut file, Unreadable::Fails, |_| ()).is_err());
            let mut ids = Vec::new();
            let skipped = salvage(&mut file, Unreadable::Skipped, |found| {
                if found.entry.is_some() {
                    ids.push(found.id);
                }
            })
            .unwrap();
            assert_eq!((ids.len(), skipped), (expected, 1));
        }
    }

    /// Fault: one damaged length held up to 128 MiB in memory.
    #[test]
    fn a_damaged_length_holds_no_memory() {
        let mut file = [&MAGIC[..], &[7; 4], &[0, 0, 0, 4]].concat();
        assert_eq!(scan(&file, false, &mut |_| ()), 0, "its head follows");
        file.resize(CHUNK, b'x');
        assert!(scan(&file, false, &mut |_| ()) > CHUNK / 2);
    }
}
