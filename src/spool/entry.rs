//! An entry as bytes. Each carries its own length and checksum, so that entries are found and told from rubbish even in a
//! file whose structure is damaged.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::correlator::Key;
use crate::event::{Event, core_v1};
use crate::outbox::{ClientLine, Entry, Kind, Occurrences, WrittenAs};

/// Begins every entry; the digit is the version of what follows.
const MAGIC: &[u8; 8] = b"eventwe2";
/// The same of version 0.1, which counted all records of a process under one annotation. Read, and written no more.
const OLD_MAGIC: &[u8; 8] = b"eventwe1";
/// Magic, checksum and length.
const FRAME: usize = 16;
/// LIMIT: bytes of an entry; a longer length is taken for rubbish. A request's body has at most 64 MiB.
const ENTRY_BYTES: usize = 128 << 20;
/// Bytes read from a damaged file at once.
const CHUNK: usize = 1 << 20;

/// What stands beside the event.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    /// Which record it is, as the file's key says too.
    id: String,
    /// The commit that wrote it.
    round: u64,
    source: String,
    key: String,
    budget: Option<String>,
    kind: Kind,
    stored: bool,
    tag: String,
    settled: u64,
    owed: Numbers,
    later: Numbers,
    #[serde(default)]
    carried: u64,
    #[serde(default)]
    lines: Vec<Line>,
    #[serde(default)]
    later_lines: Vec<Line>,
}

/// How far a client has counted: its name, the checksum, and the total.
type Line = (String, u32, i32);

/// Occurrences by how they will show. A version that knew fewer ways wrote fewer numbers.
type Numbers = Vec<u64>;

/// A head of version 0.1.
#[derive(Debug, Deserialize)]
struct OldHead {
    id: String,
    round: u64,
    source: String,
    key: String,
    budget: Option<String>,
    occurrences: Vec<u64>,
    stored: bool,
    tally: u64,
    writer: String,
    digest: bool,
    varies: bool,
}

impl From<OldHead> for Head {
    fn from(old: OldHead) -> Self {
        let OldHead { id, round, source, key, budget, occurrences, stored, tally, writer, digest, varies } = old;
        let kind = match (digest, varies) {
            (true, _) => Kind::Digest,
            (false, true) => Kind::Combined,
            (false, false) => Kind::Plain,
        };
        let (tag, settled, owed, later) = (writer, tally, occurrences, Vec::new());
        Self {
            id,
            round,
            source,
            key,
            budget,
            kind,
            stored,
            tag,
            settled,
            owed,
            later,
            carried: 0,
            lines: Vec::new(),
            later_lines: Vec::new(),
        }
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

/// An entry that was found in a damaged file.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) id: String,
    pub(super) round: u64,
    pub(super) entry: Entry,
}

/// The entry of the record `id` as bytes.
pub(super) fn encode(id: &str, round: u64, entry: &Entry) -> Vec<u8> {
    let numbers = |occurrences: Occurrences| WrittenAs::ALL.map(|shown| occurrences.get(shown)).to_vec();
    let head = Head {
        id: id.to_owned(),
        round,
        source: hex(entry.source),
        key: hex(entry.key),
        budget: entry.budget.map(hex),
        kind: entry.kind,
        stored: entry.stored,
        tag: entry.tag.to_string(),
        settled: entry.settled,
        owed: numbers(entry.owed),
        later: numbers(entry.later),
        carried: entry.carried,
        lines: entry.lines.iter().map(from_line).collect(),
        later_lines: entry.later_lines.iter().map(from_line).collect(),
    };
    let mut body = serde_json::to_vec(&head).unwrap_or_default();
    body.push(b'\n');
    core_v1::write_item(&entry.event, &mut body);
    let mut bytes = Vec::with_capacity(body.len().saturating_add(FRAME));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&checksum(&body).to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// The entry that `bytes` begin with; `None` when they are damaged.
pub(super) fn decode(bytes: &[u8]) -> Option<Found> {
    let (sum, length) = frame(bytes)?;
    let body = bytes.get(FRAME..)?.get(..length)?;
    if checksum(body) != sum {
        return None;
    }
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let (head, event) = body.split_at_checked(end)?;
    let head: Head = match bytes.get(..MAGIC.len())? == OLD_MAGIC {
        true => serde_json::from_slice::<OldHead>(head).ok()?.into(),
        false => serde_json::from_slice(head).ok()?,
    };
    let event = core_v1::from_json(event).ok()?;
    let entry = Entry {
        source: key(&head.source)?,
        key: key(&head.key)?,
        budget: match &head.budget {
            Some(budget) => Some(key(budget)?),
            None => None,
        },
        kind: head.kind,
        event: Event { type_meta: None, ..event },
        stored: head.stored,
        tag: head.tag.into(),
        settled: head.settled,
        owed: occurrences(head.owed),
        later: occurrences(head.later),
        carried: head.carried,
        lines: head.lines.into_iter().map(to_line).collect(),
        later_lines: head.later_lines.into_iter().map(to_line).collect(),
    };
    Some(Found { id: head.id, round: head.round, entry })
}

/// Looks for whole entries in a damaged file, one after the other; of a record the newest counts.
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

/// Returns how many bytes have been dealt with.
fn scan(window: &[u8], is_end: bool, found: &mut impl FnMut(Found)) -> usize {
    let mut at = 0_usize;
    loop {
        let rest = window.get(at..).unwrap_or_default();
        let Some(offset) = rest.windows(MAGIC.len()).position(|bytes| bytes == MAGIC || bytes == OLD_MAGIC) else {
            // Its beginning may be the end of this window.
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

/// Checksum and length of the body.
fn frame(bytes: &[u8]) -> Option<(u32, usize)> {
    let rest = bytes.strip_prefix(MAGIC).or_else(|| bytes.strip_prefix(OLD_MAGIC))?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (length, _) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    // What claims to be longer than any entry is none; as an empty one it fails its checksum.
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

    /// As version 0.1 has left it.
    #[test]
    fn an_entry_of_the_old_format_is_read() {
        let head = concat!(
            r#"{"id":"0-1","round":5,"source":"ffffffffffffffffffffffffffffffff","key":"1","budget":"0","occurrences":[0,3,0,0],"#,
            r#""stored":true,"tally":4,"writer":"tally.eventweir/a.1","digest":false,"varies":true}"#,
        );
        let (lines, later_lines) = (Vec::new(), Vec::new());
        let expected = Entry { later: Occurrences::default(), carried: 0, lines, later_lines, ..entry("m") };
        let mut body = [head.as_bytes(), b"\n"].concat();
        core_v1::write_item(&expected.event, &mut body);
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
    fn whole_entries_are_found_among_rubbish_wherever_a_chunk_ends() {
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
