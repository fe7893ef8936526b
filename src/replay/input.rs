//! Reads recorded events one by one: JSON lines, arrays, Lists, documents one after another, events of both API groups
//! and audit logs of the API server, each also compressed by gzip. Memory does not grow with the number of lines; other
//! documents are held in memory, because they have to be sorted.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::ops::Range;

use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::{Seen, time_of};
use crate::event::patching::{PatchType, apply};
use crate::event::{ApiGroup, Event, MicroTime, ObjectReference, conversion, json};

/// LIMIT: bytes of a document; a longer one is bad. An event is no longer than a request's body, and an audit line has
/// it twice.
const DOCUMENT_BYTES: usize = 8 << 20;

/// Bytes from which the format is detected, unless the first line is longer.
const HEAD_BYTES: u64 = 64 << 10;

/// LIMIT: requests of an audit log that are held back to sort them, and their bytes; at the limit, the oldest is
/// released. The API server logs a request after it has answered, so that a client's next request may be logged first.
const HELD: usize = 256;
const HELD_BYTES: usize = 8 << 20;

/// LIMIT: characters of a bad line in an error.
const QUOTED: usize = 60;

/// The detected format of the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One document per line, in order of time.
    Lines,
    /// A List, an array or documents one after another, in any order.
    Documents,
}

/// An event of the input.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The event as it is after the newest of its occurrences.
    pub event: Event,
    /// Number of its occurrences.
    pub occurrences: u32,
    /// Unix nanoseconds of the first; they are spread evenly from there to `at`.
    pub from: Option<i64>,
    /// Unix nanoseconds of the newest occurrence.
    pub at: Option<i64>,
}

/// A document that is no event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} {fault}")]
pub struct Bad {
    /// The line of its beginning, from 1.
    pub line: u64,
    /// The reason.
    pub fault: String,
}

/// The events of an input, as an iterator.
pub struct Recording<'r> {
    /// The detected format.
    pub format: Format,
    documents: Box<dyn Iterator<Item = io::Result<Document>> + 'r>,
    seen: Seen,
    // LIMIT: `HELD`. By end of the request, and line.
    held: BTreeMap<(MicroTime, u64), Logged>,
    held_bytes: usize,
    /// Bytes of the documents read so far.
    pub bytes: u64,
    /// Number of an audit log's requests without information about their event: they have no body, or patch an event
    /// that is not in the log.
    pub without_body: u64,
}

/// A request of an audit log that wrote an event.
struct Logged {
    at: Option<i64>,
    verb: SmolStr,
    namespace: SmolStr,
    name: SmolStr,
    group: ApiGroup,
    body: String,
}

/// The line of a document, and its text.
type Document = Result<(u64, String), Bad>;

/// The members that tell the kind of a document.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Head<'a> {
    kind: SmolStr,
    api_version: SmolStr,
    verb: SmolStr,
    stage: SmolStr,
    stage_timestamp: SmolStr,
    object_ref: Option<ObjectRef>,
    response_status: Option<ResponseStatus>,
    #[serde(borrow)]
    request_object: Option<&'a RawValue>,
    regarding: Option<IgnoredAny>,
    items: Option<IgnoredAny>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: SmolStr,
    subresource: SmolStr,
    namespace: SmolStr,
    name: SmolStr,
    api_group: SmolStr,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl std::fmt::Debug for Recording<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("format", &self.format).field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl<'r> Recording<'r> {
    /// Detects the format and begins to read.
    ///
    /// # Errors
    /// When the input cannot be read.
    pub fn new(input: impl Read + 'r) -> io::Result<Self> {
        let (mut head, mut input) = peek(Box::new(input))?;
        if head.starts_with(&[0x1f, 0x8b]) {
            (head, input) = peek(Box::new(MultiGzDecoder::new(Cursor::new(head).chain(input))))?;
        }
        // The mark of UTF-8, which some editors and shells write.
        if let Some(mark) = head.get_mut(..3).filter(|mark| **mark == *b"\xef\xbb\xbf") {
            mark.fill(b' ');
        }
        // A line may be as long as a document.
        if lines(&head).nth(1).is_none() {
            input.by_ref().take(DOCUMENT_BYTES as u64).read_to_end(&mut head)?;
        }
        let format = format_of(&head);
        let mut input = BufReader::with_capacity(1 << 16, Cursor::new(head).chain(input));
        let documents: Box<dyn Iterator<Item = _> + 'r> = match format {
            Format::Lines => {
                let mut line = 0;
                Box::new(std::iter::from_fn(move || next_line(&mut input, &mut line).transpose()))
            }
            Format::Documents => {
                let mut bytes = Vec::new();
                input.read_to_end(&mut bytes)?;
                let text = String::from_utf8(bytes)
                    .unwrap_or_else(|fault| String::from_utf8_lossy(fault.as_bytes()).into_owned());
                let found = documents(&text).into_iter();
                Box::new(found.map(move |found| Ok(found.map(|(line, at)| (line, text[at].to_owned())))))
            }
        };
        let (seen, held) = (Seen::default(), BTreeMap::new());
        Ok(Self { format, documents, seen, held, held_bytes: 0, bytes: 0, without_body: 0 })
    }

    fn read_next(&mut self) -> io::Result<Option<Result<Report, Bad>>> {
        loop {
            if self.held.len() > HELD || self.held_bytes > HELD_BYTES {
                return Ok(self.release());
            }
            let (line, document) = match self.documents.next().transpose()? {
                None => return Ok(self.release()),
                Some(Err(bad)) => return Ok(Some(Err(bad))),
                Some(Ok(document)) => document,
            };
            self.bytes += document.len() as u64;
            match self.read(&document, line) {
                Ok(None) => {}
                Ok(Some(report)) => return Ok(Some(Ok(report))),
                Err(fault) => return Ok(Some(Err(Bad { line, fault }))),
            }
        }
    }

    /// Releases held requests up to the first that has an event.
    fn release(&mut self) -> Option<Result<Report, Bad>> {
        while let Some(((_, line), logged)) = self.held.pop_first() {
            self.held_bytes -= logged.body.len();
            match self.written(logged) {
                Ok(None) => {}
                Ok(Some(report)) => return Some(Ok(report)),
                Err(fault) => return Some(Err(Bad { line, fault })),
            }
        }
        None
    }

    /// Reads a document; `None` if it is a request of an audit log, which is held or skipped.
    fn read(&mut self, text: &str, line: u64) -> Result<Option<Report>, String> {
        let head: Head<'_> = serde_json::from_str(text).map_err(|error| {
            if error.is_data() { format!("is no Event: {error}") } else { format!("is not JSON: {}", quoted(text)) }
        })?;
        if head.api_version.starts_with("audit.k8s.io/") {
            self.hold(&head, line);
            return Ok(None);
        }
        let group = match &*head.api_version {
            "events.k8s.io/v1" => ApiGroup::Events,
            "" if head.regarding.is_some() => ApiGroup::Events,
            _ => ApiGroup::Core,
        };
        if !matches!(&*head.kind, "" | "Event") || !matches!(&*head.api_version, "" | "v1" | "events.k8s.io/v1") {
            return Err(format!("is no Event: it has kind {:?} and apiVersion {:?}", head.kind, head.api_version));
        }
        let event = json::decode_event(group, text.as_bytes()).map_err(|error| error.message)?;
        if head.kind.is_empty() && event.involved_object == ObjectReference::default() {
            return Err("is no Event: it has neither kind, involvedObject nor regarding".to_owned());
        }
        let occurrences = u32::try_from(conversion::occurrences(&event)).unwrap_or(1);
        let first = event.first_timestamp.map(|time| time.0.saturating_mul(1_000_000_000));
        let from = first.or_else(|| event.event_time.map(|time| time.0.saturating_mul(1000)));
        Ok(Some(Report { at: time_of(&event), from, occurrences, event }))
    }

    /// Holds a request of an audit log, if it is a create, patch or update of an event and was not refused.
    fn hold(&mut self, head: &Head<'_>, line: u64) {
        let Some(object) = &head.object_ref else { return };
        let is_event = object.resource == "events" && object.subresource.is_empty();
        let code = head.response_status.as_ref().map_or(0, |status| status.code);
        let is_write = matches!(&*head.verb, "create" | "patch" | "update");
        // A request has a line per stage.
        if !is_event || !is_write || head.stage != "ResponseComplete" || code >= 400 {
            return;
        }
        let Some(body) = head.request_object.filter(|body| body.get() != "null") else {
            self.without_body += 1;
            return;
        };
        let ended = MicroTime::parse(&head.stage_timestamp).ok();
        let logged = Logged {
            at: ended.map(|time| time.0.saturating_mul(1000)),
            verb: head.verb.clone(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            group: if object.api_group.is_empty() { ApiGroup::Core } else { ApiGroup::Events },
            body: body.get().to_owned(),
        };
        self.held_bytes += logged.body.len();
        self.held.insert((ended.unwrap_or_default(), line), logged);
    }

    /// Returns the event as the request wrote it.
    fn written(&mut self, logged: Logged) -> Result<Option<Report>, String> {
        let Logged { at, verb, namespace, name, group, body } = logged;
        let mut event = if verb == "patch" {
            let patched = self.seen.get(&namespace, &name).cloned().and_then(|known| {
                apply(PatchType::StrategicMerge, body.as_bytes(), group, json::FieldValidation::Ignore, &known).ok()
            });
            let Some(patched) = patched else {
                self.without_body += 1;
                return Ok(None);
            };
            patched.event
        } else {
            json::decode_event(group, body.as_bytes()).map_err(|error| error.message)?
        };
        if event.metadata.namespace.is_empty() {
            event.metadata.namespace = namespace;
        }
        if event.metadata.name.is_empty() {
            event.metadata.name = name;
        }
        if verb == "create" {
            self.seen.forget(&event);
        }
        let occurrences = self.seen.change(&event).max(1);
        Ok(Some(Report { at: at.or_else(|| time_of(&event)), from: None, occurrences, event }))
    }
}

impl Iterator for Recording<'_> {
    /// The outer error is one of the input, and ends it; the inner one is about one document, and the next call
    /// continues after it.
    type Item = io::Result<Result<Report, Bad>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read_next().transpose()
    }
}

/// Returns the next line that is not blank, and counts lines.
fn next_line(input: &mut impl BufRead, line: &mut u64) -> io::Result<Option<Document>> {
    loop {
        let mut text = Vec::new();
        if input.take(DOCUMENT_BYTES as u64 + 1).read_until(b'\n', &mut text)? == 0 {
            return Ok(None);
        }
        *line += 1;
        if text.len() > DOCUMENT_BYTES {
            input.skip_until(b'\n')?;
            return Ok(Some(Err(too_long(*line))));
        }
        if !text.trim_ascii().is_empty() {
            return Ok(Some(Ok((*line, String::from_utf8_lossy(&text).into_owned()))));
        }
    }
}

/// Returns the line and the place of each object in a text: items of Lists and arrays, and documents in sequence.
/// Continues after what is no JSON on the next line.
fn documents(text: &str) -> Vec<Result<(u64, Range<usize>), Bad>> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    let (mut found, mut arrays, mut at) = (Vec::new(), 0_usize, 0);
    let mut counted = (0, 1);
    let mut line_of = |at: usize| {
        counted = (at, counted.1 + memchr::memchr_iter(b'\n', &text.as_bytes()[counted.0..at]).count() as u64);
        counted.1
    };
    while let Some(byte) = text.as_bytes().get(at) {
        let rest = &text[at..];
        let mut objects = serde_json::Deserializer::from_str(rest).into_iter::<&RawValue>();
        let object = if *byte == b'{' { objects.next() } else { None };
        at += match (byte, object) {
            (b'[', _) => {
                arrays += 1;
                1
            }
            (b']', _) if arrays > 0 => {
                arrays -= 1;
                1
            }
            (b',' | b' ' | b'\t' | b'\r' | b'\n', _) => 1,
            (_, Some(Ok(object))) => {
                let items =
                    serde_json::from_str(object.get()).map_or_else(|_event| vec![object], |list: List<'_>| list.items);
                for item in items {
                    // Each item is a part of the text.
                    let start = item.get().as_ptr().addr() - text.as_ptr().addr();
                    let (line, place) = (line_of(start), start..start + item.get().len());
                    found.push(if place.len() <= DOCUMENT_BYTES { Ok((line, place)) } else { Err(too_long(line)) });
                }
                objects.byte_offset()
            }
            (_, fault) => {
                let is_cut = fault.is_some_and(|fault| fault.is_err_and(|fault| fault.is_eof()));
                let (line, rest) = (line_of(at), rest.split_inclusive('\n').next().unwrap_or(rest));
                let fault = if is_cut { "begins an object that does not end" } else { "is not JSON" };
                found.push(Err(Bad { line, fault: format!("{fault}: {}", quoted(rest)) }));
                rest.len()
            }
        };
    }
    if arrays > 0 && !matches!(found.last(), Some(Err(_))) {
        let fault = "is the last one: the input ends in the middle of a list".to_owned();
        found.push(Err(Bad { line: line_of(at), fault }));
    }
    found
}

fn too_long(line: u64) -> Bad {
    Bad { line, fault: format!("is longer than {DOCUMENT_BYTES} bytes") }
}

/// Reads the first bytes, and returns them with the rest of the input.
fn peek<'r>(mut input: Box<dyn Read + 'r>) -> io::Result<(Vec<u8>, Box<dyn Read + 'r>)> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    Ok((head, input))
}

/// Returns the lines that are not empty.
fn lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty())
}

fn format_of(head: &[u8]) -> Format {
    let is_cut = head.len() as u64 == HEAD_BYTES + DOCUMENT_BYTES as u64;
    let mut lines = lines(head);
    let Some(first) = lines.next() else { return Format::Lines };
    let second = lines.next();
    match first.first() {
        Some(b'[') => Format::Documents,
        Some(b'{') if second.is_none() && is_cut => Format::Documents,
        Some(b'{') => match serde_json::from_slice::<Head<'_>>(first) {
            Ok(head) if head.items.is_some() => Format::Documents,
            Ok(_) => Format::Lines,
            // The head of a list, with one item per line below it.
            Err(_) if first.ends_with(b"[") || first.ends_with(b",") => Format::Documents,
            // One bad line does not change the format.
            Err(_) if second.is_some_and(|second| second.starts_with(b"{\"")) => Format::Lines,
            Err(_) => Format::Documents,
        },
        _ => Format::Lines,
    }
}

/// Quotes the beginning of a line.
fn quoted(line: &str) -> String {
    let line = line.trim();
    let short: String = line.chars().take(QUOTED).collect();
    if short.len() < line.len() { format!("{short:?}…") } else { format!("{short:?}") }
}
