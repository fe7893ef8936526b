//! An entry as bytes. Each carries its own length and checksum, so that entries are found and told from rubbish even in a
//! file whose structure is damaged.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::correlator::Key;
use crate::event::{Event, core_v1};
use crate::outbox::{Entry, Occurrences, WrittenAs};

/// Begins every entry; the digit is the version of what follows.
const MAGIC: &[u8; 8] = b"eventwe1";
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
    occurrences: [u64; 4],
    stored: bool,
    tally: u32,
    writer: String,
    digest: bool,
    varies: bool,
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
    let head = Head {
        id: id.to_owned(),
        round,
        source: hex(entry.source),
        key: hex(entry.key),
        budget: entry.budget.map(hex),
        occurrences: WrittenAs::ALL.map(|shown| entry.occurrences.get(shown)),
        stored: entry.stored,
        tally: entry.tally,
        writer: entry.writer.to_string(),
        digest: entry.is_digest,
        varies: entry.varies,
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
    let head: Head = serde_json::from_slice(head).ok()?;
    let event = core_v1::from_json(event).ok()?;
    let mut occurrences = Occurrences::default();
    for (shown, number) in WrittenAs::ALL.into_iter().zip(head.occurrences) {
        occurrences.add(shown, number);
    }
    let entry = Entry {
        source: key(&head.source)?,
        key: key(&head.key)?,
        budget: match &head.budget {
            Some(budget) => Some(key(budget)?),
            None => None,
        },
        event: Event { type_meta: None, ..event },
        occurrences,
        stored: head.stored,
        tally: head.tally,
        writer: head.writer.into(),
        is_digest: head.digest,
        varies: head.varies,
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
        let Some(offset) = rest.windows(MAGIC.len()).position(|bytes| bytes == MAGIC) else {
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
    let rest = bytes.strip_prefix(MAGIC)?;
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
            occurrences: Occurrences::of(WrittenAs::Counted, 3),
            stored: true,
            tally: 4,
            writer: "tally.eventweir/a".into(),
            is_digest: false,
            varies: true,
        }
    }

    #[test]
    fn an_entry_comes_back() {
        let bytes = encode("0-1", 5, &entry("öä\n\""));
        let found = decode(&bytes).unwrap();
        assert_eq!((found.id.as_str(), found.round, found.entry), ("0-1", 5, entry("öä\n\"")));
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
        let mut file = b"rubbish eventwe eventwe1eventwe1".to_vec();
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
