//! The history of one object: its facts (reasons that a source reports), its newest decisions and its records.

use std::collections::VecDeque;

use smol_str::SmolStr;

use super::FactRef;
use super::fact::Fact;
use super::hashes::HashedText;
use crate::clock::{Mono, Now};
use crate::correlator::{Key, RecordId};
use crate::event::{Event, cut};
use crate::outbox::Kind;

/// LIMIT: decisions kept per object.
const DECISIONS: usize = 20;
/// LIMIT: facts kept per object; occurrences of further facts are counted together under the last one.
const FACTS: usize = 32;
/// Reason of the fact that counts the object's further facts.
pub(super) const OTHERS: &str = "(others)";
/// LIMIT: records kept per object; the oldest is forgotten that was written or has ended, or else the oldest.
const RECORDS: usize = 32;
/// LIMIT: further records per object that may still wait, without their names and messages; the oldest is forgotten.
const FORGOTTEN_RECORDS: usize = 256;
/// LIMIT: bytes kept of a text; the rest is cut.
pub(super) const TEXT_BYTES: usize = 1024;

labelled! {
    /// A decision about occurrences, or what happened to them later.
    #[expect(missing_docs, reason = "the words of the answer")]
    pub enum Verdict {
        Created = "created",
        Counted = "counted",
        Combined = "combined",
        Deferred = "deferred",
        Dropped = "dropped",
        Rejected = "rejected",
        Written = "written",
        Failed = "failed",
        Lost = "lost",
        Folded = "folded",
        Deleted = "deleted",
    }
}

/// A decision, or a run of equal ones.
#[derive(Debug)]
#[expect(missing_docs, reason = "their names say it")]
pub struct Decision {
    /// When the first was made, in unix nanoseconds.
    pub time: i64,
    /// When the last was made.
    pub last: i64,
    /// The number of the fact.
    pub fact: usize,
    /// The decision, and its reason if the decision alone does not say it.
    pub verdict: Verdict,
    pub why: &'static str,
    /// Occurrences of the whole run.
    pub occurrences: u64,
    pub record: Option<RecordId>,
    /// When the budget's next token is expected.
    pub next_token: Option<Mono>,
    /// The newest event's message, or the upstream's answer.
    pub text: SmolStr,
    /// The hash of that text.
    pub(super) hash: u64,
}

impl Decision {
    /// Counts further occurrences, and takes over their text.
    fn count(&mut self, number: u32, text: HashedText<'_>, now: Now) {
        self.occurrences += u64::from(number);
        self.last = self.last.max(now.wall);
        if self.hash != text.hash && !text.text.is_empty() {
            (self.text, self.hash) = (short(text.text), text.hash);
        }
    }
}

/// The newest distinct messages of a record, each with its hash.
#[derive(Debug, Default, Clone, PartialEq, Eq, PartialOrd, Ord)]
// LIMIT: `Settings::messages`; one for a plain record.
pub struct Messages(VecDeque<(u64, SmolStr)>);

impl Messages {
    /// Returns them, the oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &(u64, SmolStr)> {
        self.0.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is one with this hash.
    pub(super) fn has(&self, hash: u64) -> bool {
        self.0.iter().any(|(known, _)| *known == hash)
    }

    /// Adds one that is not there. Beyond the limit the oldest is forgotten.
    pub(super) fn push(&mut self, kind: Kind, most: usize, message: HashedText<'_>) {
        let most = if kind == Kind::Plain { 1 } else { most.max(1) };
        while self.0.len() >= most {
            self.0.pop_front();
        }
        self.0.push_back((message.hash, short(message.text)));
    }

    /// Returns their bytes, with reserved capacity.
    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<(u64, SmolStr)>() + self.0.iter().map(|(_, text)| heap(text)).sum::<usize>()
    }
}

/// A record that counts occurrences of the object.
#[derive(Debug)]
#[expect(missing_docs, reason = "their names say it")]
pub struct TrackedRecord {
    pub record: RecordId,
    pub kind: Kind,
    /// Its name upstream, as far as known.
    pub name: SmolStr,
    /// The number of the fact that began it.
    pub fact: usize,
    /// Whether the upstream has held it.
    pub stored: bool,
    /// The count that the upstream has acknowledged.
    pub count: i64,
    /// Its occurrences that were dropped since its last write, which the next one shows.
    pub(super) dropped: u32,
    /// Whether its next occurrence has to begin another record.
    pub has_ended: bool,
    /// Whether the upstream has it no longer: it has expired or was deleted there.
    pub is_gone: bool,
    pub messages: Messages,
    /// The hash of the newest message, which most occurrences share.
    newest: u64,
    /// A part of its key in the correlator; `None` for a digest or a record that another process has begun.
    key: Option<u64>,
}

/// A record that has begun, or continues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    pub(super) record: RecordId,
    pub(super) kind: Kind,
    /// Its key in the correlator, as far as known.
    pub(super) key: Option<Key>,
    /// The number of the fact that it counts.
    pub(super) fact: usize,
    /// The count that the upstream has acknowledged.
    pub(super) count: i32,
}

/// A decision that is to be noted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Note<'t> {
    /// The number of the fact.
    pub(super) fact: usize,
    pub(super) verdict: Verdict,
    /// See [`Decision::verdict`].
    pub(super) why: &'static str,
    pub(super) number: u32,
    pub(super) record: Option<RecordId>,
    /// See [`Decision::text`].
    pub(super) text: HashedText<'t>,
}

/// The history of one object.
#[derive(Debug, Default)]
#[expect(missing_docs, reason = "the members of an event")]
pub struct History {
    pub api_version: SmolStr,
    pub kind: SmolStr,
    /// The namespace of its events.
    pub namespace: SmolStr,
    pub name: SmolStr,
    pub uid: SmolStr,
    // LIMIT: `FACTS`.
    pub facts: Vec<Fact>,
    // LIMIT: `RECORDS`.
    pub records: VecDeque<TrackedRecord>,
    /// Further records that were never written when they were forgotten, each with the number of its fact.
    // LIMIT: `FORGOTTEN_RECORDS`.
    forgotten_records: Vec<(RecordId, usize)>,
    // LIMIT: `DECISIONS`.
    pub decisions: VecDeque<Decision>,
    /// Number of older decisions that were forgotten.
    pub forgotten: u64,
    /// The hash of the uid.
    uid_hash: u64,
    /// Its bytes at the last count.
    pub(super) counted: usize,
}

/// Returns the heap bytes of a text.
pub(super) fn heap(text: &SmolStr) -> usize {
    if text.is_heap_allocated() { text.len() + 16 } else { 0 }
}

/// Returns how much room a list of at most `most` elements reserves before the next one: as much again once it is full.
/// A list would begin with room for four, and most objects have one or two facts and records.
fn room(length: usize, capacity: usize, most: usize) -> usize {
    if length == capacity { length.clamp(1, most - length) } else { 0 }
}

/// Cuts a text to `TEXT_BYTES`. An uncut one is shared, not copied.
pub(super) fn short(text: &SmolStr) -> SmolStr {
    if text.len() <= TEXT_BYTES { text.clone() } else { cut(text, TEXT_BYTES) }
}

/// Returns the newest decisions, the newest first. Decisions of one budget alternate, so a run may have a few other
/// decisions in between.
fn newest(decisions: &mut VecDeque<Decision>) -> impl Iterator<Item = &mut Decision> {
    decisions.iter_mut().rev().take(4)
}

impl History {
    pub(super) fn new(event: &Event) -> Self {
        let object = &event.involved_object;
        Self {
            api_version: short(&object.api_version),
            kind: short(&object.kind),
            namespace: event.metadata.namespace.clone(),
            name: short(&object.name),
            ..Self::default()
        }
    }

    /// Returns the bytes of the history, with its entry in the map; lists count with their reserved capacity.
    pub(super) fn bytes(&self) -> usize {
        let own = [&self.api_version, &self.kind, &self.namespace, &self.name, &self.uid].into_iter();
        let facts = self
            .facts
            .iter()
            .flat_map(|fact| [&fact.reason, &fact.event_type, &fact.component, &fact.host, &fact.caller]);
        let records = self.records.iter().map(|kept| &kept.name);
        let decisions = self.decisions.iter().map(|decision| &decision.text);
        let losses: usize = self.facts.iter().map(|fact| fact.lost.capacity() * size_of::<(&str, u64)>()).sum();
        let texts: usize = own.chain(facts).chain(records).chain(decisions).map(heap).sum();
        let messages: usize = self.records.iter().map(|kept| kept.messages.bytes()).sum();
        let lists = self.facts.capacity() * size_of::<Fact>()
            + self.records.capacity() * size_of::<TrackedRecord>()
            + self.forgotten_records.capacity() * size_of::<(RecordId, usize)>()
            + self.decisions.capacity() * size_of::<Decision>();
        size_of::<Self>() + 64 + texts + messages + losses + lists
    }

    /// Returns the record's message with this hash; empty if it is forgotten.
    pub(super) fn message(&self, record: RecordId, hash: u64) -> SmolStr {
        let messages = self.tracked(record).into_iter().flat_map(|kept| &kept.messages.0);
        messages.filter(|(known, _)| *known == hash).map(|(_, message)| message.clone()).next().unwrap_or_default()
    }

    /// Notes the uid of an event's object.
    pub(super) fn set_uid(&mut self, event: &Event, hash: u64) {
        let uid = &event.involved_object.uid;
        // LIMIT: a uid has 36 characters; text longer than 64 bytes is not taken for a uid.
        if self.uid_hash == hash || uid.len() > 64 {
            return;
        }
        (self.uid, self.uid_hash) = (uid.clone(), hash);
    }

    /// Returns the fact at a place. `None` if the object was forgotten meanwhile and another fact has the number.
    pub(super) fn fact_at(&mut self, fact_ref: FactRef) -> Option<&mut Fact> {
        self.facts.get_mut(fact_ref.fact).filter(|fact| fact.hash == fact_ref.hash)
    }

    /// Adds a fact and returns its number, or the last number if there is no room.
    pub(super) fn add_fact(&mut self, event: &Event, hash: u64, group: usize, now: Now) -> usize {
        if self.facts.len() == FACTS {
            return FACTS - 1;
        }
        let (reason, component, host) = match self.facts.len() + 1 {
            FACTS => (SmolStr::new_static(OTHERS), SmolStr::default(), SmolStr::default()),
            _ => (short(&event.reason), cut(event.component(), TEXT_BYTES), cut(event.host(), TEXT_BYTES)),
        };
        let event_type = short(&event.event_type);
        let last_received = now.wall;
        let fact = Fact { reason, event_type, component, host, group, hash, last_received, ..Fact::default() };
        self.facts.reserve_exact(room(self.facts.len(), self.facts.capacity(), FACTS));
        self.facts.push(fact);
        self.facts.len() - 1
    }

    /// Returns the record with this number.
    pub fn tracked(&self, record: RecordId) -> Option<&TrackedRecord> {
        self.records.iter().rev().find(|kept| kept.record == record)
    }

    pub(super) fn tracked_mut(&mut self, record: RecordId) -> Option<&mut TrackedRecord> {
        self.records.iter_mut().rev().find(|kept| kept.record == record)
    }

    /// Notes a message of a record, which keeps at most `most`. Returns whether the record is known.
    pub(super) fn add_message(&mut self, record: RecordId, message: HashedText<'_>, most: usize) -> bool {
        let Some(kept) = self.tracked_mut(record) else { return false };
        if kept.newest != message.hash && !kept.messages.has(message.hash) {
            kept.messages.push(kept.kind, most, message);
            kept.newest = message.hash;
        }
        true
    }

    /// Notes that a record counts a message. Returns whether the record is new although an equal record should have
    /// continued.
    pub(super) fn track(&mut self, begun: Begun, message: HashedText<'_>, most: usize) -> bool {
        let Begun { record, kind, key, fact, count } = begun;
        if self.add_message(record, message, most) {
            return false;
        }
        let (key, mut is_begun_again) = (key.map(Key::half), false);
        let is_equal = |kept: &&mut TrackedRecord| (kept.kind, kept.fact, kept.key) == (kind, fact, key);
        for kept in self.records.iter_mut().filter(is_equal) {
            is_begun_again |= !kept.has_ended;
            kept.has_ended = true;
        }
        if self.records.len() == RECORDS {
            // What waits is found by its record.
            let oldest = self.records.iter().position(|kept| kept.stored || kept.has_ended).unwrap_or_default();
            let forgotten = self.records.remove(oldest).filter(|kept| !kept.stored && !kept.has_ended);
            self.forget_record(forgotten);
        }
        let mut messages = Messages::default();
        if !message.text.is_empty() {
            messages.push(kind, most, message);
        }
        let kept = TrackedRecord {
            record,
            kind,
            name: SmolStr::default(),
            fact,
            stored: false,
            count: count.into(),
            dropped: 0,
            has_ended: false,
            is_gone: false,
            messages,
            newest: message.hash,
            key,
        };
        self.records.reserve_exact(room(self.records.len(), self.records.capacity(), RECORDS));
        self.records.push_back(kept);
        is_begun_again && key.is_some()
    }

    fn forget_record(&mut self, record: Option<TrackedRecord>) {
        // What a digest counts is found by its facts.
        let Some(record) = record.filter(|record| !record.kind.folds()) else { return };
        let known = &mut self.forgotten_records;
        // It may have been tracked again meanwhile.
        known.retain(|(of, _)| *of != record.record);
        if known.len() == FORGOTTEN_RECORDS {
            known.remove(0);
        }
        known.reserve_exact(room(known.len(), known.capacity(), FORGOTTEN_RECORDS));
        known.push((record.record, record.fact));
    }

    /// Returns the records of a fact that may still wait, although only their numbers are known.
    pub fn forgotten_records(&self, fact: usize) -> impl Iterator<Item = RecordId> {
        let of_fact = self.forgotten_records.iter().filter(move |(_, of)| *of == fact);
        of_fact.map(|(record, _)| *record).filter(|record| self.tracked(*record).is_none())
    }

    /// Notes what a digest has lost, at the facts that have folded into it. Returns how much that is of them.
    pub(super) fn lose_folded(&mut self, into: RecordId, settled: u64, why: &'static str) -> u64 {
        let folded = self.facts.iter_mut().filter(|fact| fact.into == Some(into));
        folded.map(|fact| fact.lose_folded(settled, why)).sum()
    }

    /// Notes a loss of a record's occurrences, unless it has folded ones: those are lost at their facts.
    pub(super) fn lose(&mut self, fact_ref: FactRef, record: Option<RecordId>, number: u64, why: &'static str) {
        if record.is_some() && self.facts.iter().any(|fact| fact.into == record) {
            return;
        }
        if let Some(fact) = self.fact_at(fact_ref) {
            fact.lose(number, why);
        }
    }

    /// Notes that a record has folded. It is forgotten if the upstream never held it: nothing can be asked about it.
    pub(super) fn end(&mut self, record: RecordId) {
        let Some(at) = self.records.iter().rposition(|kept| kept.record == record) else { return };
        if self.records[at].stored {
            self.records[at].has_ended = true;
        } else {
            self.records.remove(at);
            for decision in newest(&mut self.decisions) {
                decision.record = decision.record.filter(|of| *of != record);
            }
        }
    }

    /// Notes the record's name and count upstream, after a write of `number` occurrences. Returns how many dropped ones
    /// the count has beside them; it may also have those of other writers.
    pub(super) fn set_stored(&mut self, record: RecordId, name: &SmolStr, count: i64, number: u64) -> u64 {
        let Some(kept) = self.tracked_mut(record) else { return 0 };
        kept.name = name.clone();
        (kept.stored, kept.is_gone) = (true, false);
        let others = u64::try_from(count - kept.count).unwrap_or(0).saturating_sub(number);
        let shown = kept.dropped.min(u32::try_from(others).unwrap_or(u32::MAX));
        kept.dropped -= shown;
        kept.count = count;
        shown.into()
    }

    /// Returns kind and name of the object, for tables.
    pub fn object(&self) -> String {
        if self.kind.is_empty() && self.name.is_empty() {
            return "(no object)".to_owned();
        }
        format!("{}/{}", self.kind, self.name)
    }

    /// Returns an event of a fact, for the rules that match it.
    pub fn sample(&self, fact: &Fact) -> Event {
        let (reason, event_type) = (fact.reason.clone(), fact.event_type.clone());
        let mut event = Event { reason, event_type, ..Event::default() };
        (event.source.component, event.source.host) = (fact.component.clone(), fact.host.clone());
        event.metadata.namespace = self.namespace.clone();
        let object = &mut event.involved_object;
        (object.kind, object.name, object.uid) = (self.kind.clone(), self.name.clone(), self.uid.clone());
        (object.namespace, object.api_version) = (self.namespace.clone(), self.api_version.clone());
        event
    }

    /// Forgets the oldest decision, but not the newest loss or refusal of a fact: what is said of the fact needs it.
    fn forget_decision(&mut self) {
        let decisions = &self.decisions;
        let is_newest = |(place, of): (usize, &Decision)| {
            matches!(of.verdict, Verdict::Lost | Verdict::Rejected)
                && decisions.range(place + 1..).all(|other| (other.fact, other.verdict) != (of.fact, of.verdict))
        };
        let oldest = decisions.iter().enumerate().position(|decision| !is_newest(decision)).unwrap_or_default();
        self.decisions.remove(oldest);
        self.forgotten += 1;
    }

    /// Adds the occurrences of a run to the decision that began it, whose text becomes that of the newest. Returns
    /// whether the decision is still known.
    pub(super) fn extend(&mut self, run: &Note<'_>, now: Now) -> bool {
        let like = |last: &&mut Decision| {
            (last.fact, last.verdict, last.record, last.why) == (run.fact, run.verdict, run.record, run.why)
        };
        let Some(last) = newest(&mut self.decisions).find(like) else { return false };
        last.count(run.number, run.text, now);
        true
    }

    /// Notes a decision, or counts it with an equal one. Calls `next_token` only if it differs from the previous one.
    pub(super) fn note(&mut self, note: &Note<'_>, now: Now, next_token: impl FnOnce() -> Option<Mono>) {
        let Note { fact, verdict, why, number, record, text: HashedText { text, hash } } = *note;
        // The failed tries of all records of a fact are one series. A failure after a write begins another one.
        let (mut written, is_failure) = (None, verdict == Verdict::Failed);
        let is_equal = |last: &Decision| {
            (last.fact, last.verdict, last.why) == (fact, verdict, why) && (is_failure || last.hash == hash)
        };
        if is_failure {
            let writes = self.decisions.iter().filter(|last| last.verdict == Verdict::Written && last.fact == fact);
            written = writes.map(|last| last.last).max();
            let series = self.decisions.iter().rposition(|last| is_equal(last) && written < Some(last.last));
            let series = series.and_then(|place| self.decisions.remove(place));
            self.decisions.extend(series);
        }
        let like = |last: &&mut Decision| {
            // Each occurrence of a storm may begin a record that folds at once, and each of `OTHERS` one of its own.
            let is_of_record = last.record == record || last.record.is_none() || fact + 1 == FACTS || is_failure;
            written < Some(last.last) && is_of_record && is_equal(last)
        };
        if let Some(last) = newest(&mut self.decisions).find(like) {
            last.record = record;
            last.count(number, HashedText { text, hash }, now);
            if last.next_token.is_some_and(|next| next <= now.mono) {
                last.next_token = next_token();
            }
            return;
        }
        if self.decisions.len() == DECISIONS {
            self.forget_decision();
        }
        let decision = Decision {
            time: now.wall,
            last: now.wall,
            fact,
            verdict,
            why,
            occurrences: number.into(),
            record,
            next_token: matches!(verdict, Verdict::Dropped | Verdict::Deferred).then(next_token).flatten(),
            text: short(text),
            hash,
        };
        self.decisions.reserve_exact(room(self.decisions.len(), self.decisions.capacity(), DECISIONS));
        self.decisions.push_back(decision);
    }
}
