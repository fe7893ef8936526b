//! An entry as bytes. Each has its own length and checksum, so that valid entries are found even in a file whose
//! structure is damaged.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::correlator::Key;
use crate::event::{ApiGroup, Event, json};
use crate::outbox::{ClientLine, Entry, Kind, Occurrences, WrittenAs};

/// Begins every entry; the digit is the version of the format.
const MAGIC: &[u8; 8] = b"eventwe2";
/// The magic of version 0.1, which counted all records of a process under one annotation. Read, but no longer written.
const OLD_MAGIC: &[u8; 8] = b"eventwe1";
/// Bytes of magic, checksum and length.
const FRAME: usize = 16;
/// LIMIT: bytes of an entry; a longer length counts as damage. A request's body has at most 64 MiB.
const ENTRY_BYTES: usize = 128 << 20;
/// Bytes of one read of a damaged file.
const CHUNK: usize = 1 << 20;

/// The part of an entry beside the event. Aliases are the names of version 0.1.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// The id of the record, which is also its key in the file.
    id: String,
    /// The number of the commit that wrote it.
    round: u64,
    source: String,
    key: String,
    budget: Option<String>,
    #[serde(default)]
    kind: Option<Kind>,
    /// Whether the record is a digest or its message varies; version 0.1 wrote these in place of the kind.
    #[serde(default, skip_serializing)]
    digest: bool,
    #[serde(default, skip_serializing)]
    varies: bool,
    stored: bool,
    #[serde(alias = "writer")]
    tag: String,
    #[serde(alias = "tally")]
    settled: u64,
    #[serde(alias = "occurrences")]
    owed: Numbers,
    #[serde(default)]
    later: Numbers,
    #[serde(default)]
    carried: u64,
    #[serde(default)]
    may_be_deleted: bool,
    #[serde(default)]
    lines: Vec<Line>,
    #[serde(default)]
    later_lines: Vec<Line>,
}

/// How far a client has counted: its name, the checksum, and the total.
type Line = (String, u32, i32);

/// Occurrences by how they are written. An older version may have written fewer numbers.
type Numbers = Vec<u64>;

impl Head {
    fn kind(&self) -> Kind {
        self.kind.unwrap_or(match (self.digest, self.varies) {
            (true, _) => Kind::Digest,
            (false, true) => Kind::Combined,
            (false, false) => Kind::Plain,
        })
    }
}

fn from_line(line: &ClientLine) -> Line {
    (line.name.to_string(), line.checksum, line.total)
}

fn to_line((name, checksum, total): Line) -> ClientLine {
    ClientLine { name: name.into(), checksum, total }
}

fn occurrences(numbers: Numbers) -> Occurrences {
    let mut occurrences = Occurrences::default();
    for (shown, number) in WrittenAs::ALL.into_iter().zip(numbers) {
        occurrences.add(shown, number);
    }
    occurrences
}

/// A decoded entry, with its id and the number of its commit.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) id: String,
    pub(super) round: u64,
    pub(super) entry: Entry,
}

/// Encodes the entry of the record `id`.
pub(super) fn encode(id: &str, round: u64, entry: &Entry) -> Vec<u8> {
    let numbers = |occurrences: Occurrences| WrittenAs::ALL.map(|shown| occurrences.get(shown)).to_vec();
    let head = Head {
        id: id.to_owned(),
        round,
        source: hex(entry.source),
        key: hex(entry.key),
        budget: entry.budget.map(hex),
        kind: Some(entry.kind),
        digest: false,
        varies: false,
        stored: entry.stored,
        tag: entry.tag.to_string(),
        settled: entry.settled,
        owed: numbers(entry.owed),
        later: numbers(entry.later),
        carried: entry.carried,
        may_be_deleted: entry.may_be_deleted,
        lines: entry.lines.iter().map(from_line).collect(),
        later_lines: entry.later_lines.iter().map(from_line).collect(),
    };
    let mut body = serde_json::to_vec(&head).unwrap_or_default();
    body.push(b'\n');
    json::write_item(ApiGroup::Core, &entry.event, &mut body);
    let mut bytes = Vec::with_capacity(body.len().saturating_add(FRAME));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&checksum(&body).to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// Decodes the entry at the beginning of `bytes`; `None` when it is damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<Found> {
    let (sum, length) = frame(bytes)?;
    let body = bytes.get(FRAME..)?.get(..length)?;
    if checksum(body) != sum {
        return None;
    }
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let (head, event) = body.split_at_checked(end)?;
    let head: Head = serde_json::from_slice(head).ok()?;
    let event = json::decode_event(ApiGroup::Core, event).ok()?;
    let entry = Entry {
        source: key(&head.source)?,
        key: key(&head.key)?,
        budget: match &head.budget {
            Some(budget) => Some(key(budget)?),
            None => None,
        },
        kind: head.kind(),
        event: Event { type_meta: None, ..event },
        stored: head.stored,
        tag: head.tag.into(),
        settled: head.settled,
        owed: occurrences(head.owed),
        later: occurrences(head.later),
        carried: head.carried,
        may_be_deleted: head.may_be_deleted,
        lines: head.lines.into_iter().map(to_line).collect(),
        later_lines: head.later_lines.into_iter().map(to_line).collect(),
    };
    Some(Found { id: head.id, round: head.round, entry })
}

/// Finds the valid entries of a damaged file, in its order. A record may have several; the newest counts.
pub(super) fn salvage(file: &mut dyn Read, mut found: impl FnMut(Found)) {
    let mut window: Vec<u8> = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let read = file.read(&mut chunk).unwrap_or(0);
        window.extend_from_slice(chunk.get(..read).unwrap_or_default());
        let kept = scan(&window, read == 0, &mut found);
        window.drain(..kept.min(window.len()));
        if read == 0 {
            return;
        }
    }
}

/// Returns the number of bytes that were searched to the end.
fn scan(window: &[u8], is_end: bool, found: &mut impl FnMut(Found)) -> usize {
    let mut at = 0_usize;
    loop {
        let rest = window.get(at..).unwrap_or_default();
        let Some(offset) = rest.windows(MAGIC.len()).position(|bytes| bytes == MAGIC || bytes == OLD_MAGIC) else {
            // The magic may begin at the end of this window.
            return window.len().saturating_sub(MAGIC.len()).max(at);
        };
        at = at.saturating_add(offset);
        let candidate = window.get(at..).unwrap_or_default();
        let wanted = frame(candidate).map_or(FRAME, |(_, length)| length.saturating_add(FRAME));
        if candidate.len() < wanted && !is_end {
            return at;
        }
        match decode(candidate) {
            Some(entry) => {
                found(entry);
                at = at.saturating_add(wanted);
            }
            None => at = at.saturating_add(MAGIC.len()),
        }
    }
}

/// Returns checksum and length of the body.
fn frame(bytes: &[u8]) -> Option<(u32, usize)> {
    let rest = bytes.strip_prefix(MAGIC).or_else(|| bytes.strip_prefix(OLD_MAGIC))?;
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

fn hex(key: Key) -> String {
    let bits = key.0;
    format!("{bits:032x}")
}

fn key(text: &str) -> Option<Key> {
    u128::from_str_radix(text, 16).ok().map(Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(message: &str) -> Entry {
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

    /// As version 0.1 wrote it.
    #[test]
    fn an_entry_of_the_old_format_is_read() {
        let head = concat!(
            r#"{"id":"0-1","round":5,"source":"ffffffffffffffffffffffffffffffff","key":"1","budget":"0","occurrences":[0,3,0,0],"#,
            r#""stored":true,"tally":4,"writer":"tally.eventweir/a.1","digest":false,"varies":true}"#,
        );
        let (lines, later_lines) = (Vec::new(), Vec::new());
        let expected = Entry {
            later: Occurrences::default(),
            carried: 0,
            may_be_deleted: false,
            lines,
            later_lines,
            ..entry("m")
        };
        let mut body = [head.as_bytes(), b"\n"].concat();
        json::write_item(ApiGroup::Core, &expected.event, &mut body);
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        let bytes = [&OLD_MAGIC[..], &checksum(&body).to_le_bytes(), &length, &body].concat();
        assert_eq!(decode(&bytes).unwrap().entry, expected);
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
        let mut ids = Vec::new();
        salvage(&mut file.as_slice(), |found| ids.push(found.id));
        assert_eq!(ids, ["0-0", "0-1", "0-2", "0-3"]);
    }
}
