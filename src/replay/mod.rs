//! Simulates the core on recorded events: what it would write and show, what waits and what is lost. Pure.
//!
//! A [`Comparison`] passes each occurrence to several simulated proxies. Each drives the same [`Shard`] as `serve`, in
//! front of an API server that answers at once; every timer fires at its own instant between two events. Occurrences
//! are tracked from record to record, so that `sent = shown + waiting + lost + rejected` holds for each [`Fact`] and
//! not only in the ledger.

mod input;
mod records;
mod seen;
mod trial;

pub use input::{Bad, Format, Recording, Report};
pub use seen::Seen;
pub use trial::Trial;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use crate::clock::{Mono, Now};
use crate::correlator::{CountOverflow, KeyEncoding, KeySecret, Policy, RecordId, Suppression, record_name};
use crate::event::{ApiGroup, Event, Time, repair, validate};
use crate::outbox::{self, Answer, Request, WrittenAs};
use crate::shard::{self, Outcome, Shard};

use records::Records;

/// LIMIT: facts that are counted separately; the occurrences of further ones are counted together.
const FACTS: usize = 100_000;

/// LIMIT: facts up to which trials run. With more of them the cost comes from many objects, and a rule for one object
/// does not help.
const TRIAL_FACTS: usize = 20_000;

/// LIMIT: how long a run continues after the last event, for what waits.
const RUN_ON: Duration = Duration::from_secs(30 * 24 * 3600);

/// LIMIT: newest time of an event, in unix nanoseconds (early in 2262); a later one counts as this. A run that
/// continues from there has room for its timers.
const LATEST: i64 = i64::MAX - 60 * 24 * 60 * MINUTE;

const MINUTE: i64 = 60_000_000_000;

/// An object with a reason: what operators look for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[expect(missing_docs, reason = "the members of an event")]
pub struct Fact {
    pub namespace: SmolStr,
    pub kind: SmolStr,
    pub name: SmolStr,
    pub reason: SmolStr,
    pub event_type: SmolStr,
    pub component: SmolStr,
}

/// How often a fact was sent, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Occurrences.
    pub number: u64,
    /// Unix nanoseconds of the first occurrence.
    pub first: i64,
    /// Unix nanoseconds of the newest occurrence.
    pub newest: i64,
}

/// The fate of the occurrences of one fact, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fate {
    /// Creates and patches.
    pub writes: u64,
    /// Occurrences in the count of a record that the upstream has acknowledged.
    pub shown: u64,
    /// Shown occurrences that a digest or a storm record counts.
    pub folded: u64,
    /// Occurrences that wait.
    pub waiting: u64,
    /// Occurrences that were accepted and that no record counts.
    pub lost: u64,
    /// Occurrences that were refused: the event was invalid and not repaired, or the outbox full.
    pub rejected: u64,
    /// Unix nanoseconds at which the first occurrence was shown.
    pub first_shown: Option<i64>,
    /// Unix nanoseconds of the newest occurrence that is shown.
    pub newest_shown: Option<i64>,
}

impl Fate {
    /// Returns all occurrences that are accounted for.
    pub const fn total(&self) -> u64 {
        self.shown + self.waiting + self.lost + self.rejected
    }

    /// Adds the fate of other occurrences.
    pub fn add(&mut self, other: &Self) {
        self.writes += other.writes;
        self.shown += other.shown;
        self.folded += other.folded;
        self.waiting += other.waiting;
        self.lost += other.lost;
        self.rejected += other.rejected;
        self.first_shown = [self.first_shown, other.first_shown].into_iter().flatten().min();
        self.newest_shown = self.newest_shown.max(other.newest_shown);
    }
}

/// Occurrences of one fact in one record.
#[derive(Debug, Clone, Copy)]
struct Part {
    fact: u32,
    number: u64,
    newest: i64,
    /// How many of them were dropped before, so that the ledger counts them as lost.
    dropped: u64,
}

/// Occurrences that a record does not show yet.
#[derive(Debug, Default)]
struct Owed {
    waiting: Vec<Part>,
    /// Dropped under `suppression: drop`; the record's next write counts them.
    dropped: Vec<Part>,
}

/// A simulated proxy and its upstream.
#[derive(Debug)]
pub struct Simulation {
    shard: Shard,
    /// The rules of its configuration.
    pub policy: Policy,
    /// Bytes to which a message is cut; `None` if invalid events are refused instead of repaired.
    message_bytes: Option<usize>,
    records: Records,
    /// Unix nanoseconds of the first event, where monotonic time begins.
    start: Option<i64>,
    now: i64,
    names: i64,
    // LIMIT: the records in the outbox, and those with dropped occurrences that the correlators remember.
    owed: HashMap<RecordId, Owed, foldhash::fast::FixedState>,
    waiting: u64,
    /// How many of the waiting occurrences the ledger counts as lost: they were dropped, and the record's next write
    /// counts them.
    revived: u64,
    /// Fates by number of the fact.
    fates: Vec<Fate>,
    /// Writes by minute since the start.
    // LIMIT: minutes with a write.
    pub writes_per_minute: BTreeMap<i64, u64>,
}

/// Simulated proxies that get the same events.
#[derive(Debug, Default)]
pub struct Comparison {
    // LIMIT: `FACTS`.
    numbers: HashMap<Arc<Fact>, u32, foldhash::fast::FixedState>,
    /// The facts, by number.
    pub facts: Vec<(Arc<Fact>, Sent)>,
    /// The proxies.
    pub columns: Vec<Simulation>,
    /// Proxies that try a [`Trial`] and are no columns; none beyond `TRIAL_FACTS`.
    pub trials: Vec<Simulation>,
    /// Occurrences by minute since the first.
    // LIMIT: minutes with an occurrence.
    pub sent_per_minute: BTreeMap<i64, u64>,
    /// Unix nanoseconds of the first and of the newest occurrence.
    pub span: Option<(i64, i64)>,
    /// Number of events with an older time than one before them.
    pub out_of_order: u64,
}

/// How long a run continues after the last event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// Until nothing waits that can be written.
    Settled,
    /// For this long.
    After(Duration),
    /// Until this time in unix nanoseconds.
    At(i64),
}

/// Returns settings that equal client-go's behaviour: nothing is deferred or coalesced.
pub fn client_go() -> (Policy, shard::Settings) {
    let settings = crate::correlator::Settings {
        suppression: Suppression::Drop,
        key_encoding: KeyEncoding::Concatenated,
        count_overflow: CountOverflow::Wrap,
        ..Default::default()
    };
    let outbox = outbox::Settings { coalesce_interval: Duration::ZERO, ..Default::default() };
    (Policy::from(settings), shard::Settings { outbox, ..Default::default() })
}

/// Returns the time of an event by its members lastTimestamp, eventTime or firstTimestamp, else that of its creation, as
/// unix nanoseconds.
pub fn time_of(event: &Event) -> Option<i64> {
    let seconds = |time: Time| time.0.saturating_mul(1_000_000_000);
    let series = event.series.as_ref().and_then(|series| series.last_observed_time);
    event
        .last_timestamp
        .map(seconds)
        .or_else(|| series.or(event.event_time).map(|time| time.0.saturating_mul(1_000)))
        .or_else(|| event.first_timestamp.or(event.metadata.creation_timestamp).map(seconds))
}

impl Fact {
    fn of(event: &Event) -> Self {
        let object = &event.involved_object;
        Self {
            namespace: event.metadata.namespace.clone(),
            kind: object.kind.clone(),
            name: object.name.clone(),
            reason: event.reason.clone(),
            event_type: event.event_type.clone(),
            component: event.component().into(),
        }
    }

    fn others() -> Self {
        Self { name: SmolStr::new_static("(others)"), ..Self::default() }
    }
}

impl Comparison {
    /// Adds a proxy with these settings, in front of an API server whose events live for `ttl` (zero: forever). With
    /// `message_bytes`, it repairs events as `serve` does, and cuts messages to that.
    pub fn add(&mut self, policy: Policy, shard: shard::Settings, ttl: Duration, message_bytes: Option<usize>) {
        self.columns.push(Simulation::new(policy, shard, ttl, message_bytes));
    }

    /// Adds a proxy for each rule to try with this configuration.
    pub fn try_rules(&mut self, policy: &Policy, shard: &shard::Settings, ttl: Duration, message_bytes: Option<usize>) {
        let trials = Trial::ALL.map(|trial| Simulation::new(trial.apply(policy), shard.clone(), ttl, message_bytes));
        self.trials = trials.into();
    }

    /// Reports `number` equal occurrences of an event at a time (unix nanoseconds); a time in the past counts as now,
    /// and one that is too late as the latest.
    pub fn report(&mut self, mut event: Event, number: u32, at: Option<i64>) {
        let now = self.span.map_or(0, |(_, newest)| newest);
        self.out_of_order += u64::from(at.is_some_and(|at| at < now));
        let at = at.unwrap_or(now).max(now).min(LATEST);
        let (first, _) = *self.span.insert((self.span.map_or(at, |(first, _)| first), at));
        *self.sent_per_minute.entry((at - first) / MINUTE).or_insert(0) += u64::from(number);
        event.default_namespace();
        let fact = self.number(Fact::of(&event));
        if let Some((_, sent)) = self.facts.get_mut(fact as usize) {
            if sent.number == 0 {
                sent.first = at;
            }
            sent.number += u64::from(number);
            sent.newest = at;
        }
        if self.facts.len() > TRIAL_FACTS {
            self.trials = Vec::new();
        }
        if let Some((last, others)) = self.columns.split_last_mut() {
            for column in others.iter_mut().chain(&mut self.trials) {
                // Each proxy changes its own copy.
                column.report(event.clone(), fact, number, at);
            }
            last.report(event, fact, number, at);
        }
    }

    /// Advances the time after the last event, and returns the time of the end.
    pub fn run_on(&mut self, until: Until) -> i64 {
        let end = self.span.map_or(0, |(_, newest)| newest);
        let limit = match until {
            Until::Settled => end.saturating_add(i64::try_from(RUN_ON.as_nanos()).unwrap_or(i64::MAX)),
            Until::After(time) => end.saturating_add(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)),
            Until::At(at) => at.max(end),
        };
        // A timer that saturates would fire at the last instant again and again.
        let limit = limit.min(i64::MAX - 1);
        if until == Until::Settled {
            for column in &mut self.columns {
                column.settle_all(limit);
            }
            let last = self.columns.iter().map(|column| column.now).max().unwrap_or(end).max(end);
            self.columns.iter_mut().for_each(|column| column.advance(last));
            self.trials.iter_mut().for_each(|trial| trial.settle_all(limit));
            return last;
        }
        self.columns.iter_mut().chain(&mut self.trials).for_each(|column| column.advance(limit));
        limit
    }

    /// Returns the number of all occurrences.
    pub fn sent(&self) -> u64 {
        self.facts.iter().map(|(_, sent)| sent.number).sum()
    }

    /// Whether there were more facts than are counted separately.
    pub const fn is_cut(&self) -> bool {
        self.facts.len() >= FACTS
    }

    /// Whether every column accounts for every occurrence of every fact.
    pub fn balances(&self) -> bool {
        self.columns.iter().chain(&self.trials).all(|column| {
            let fates = column.fates();
            let facts = self.facts.iter().enumerate();
            let is_whole = |(number, (_, sent)): (usize, &(Arc<Fact>, Sent))| {
                fates.get(number).map_or(sent.number == 0, |fate| fate.total() == sent.number)
            };
            let balance = column.shard.balance();
            let waiting: u64 = fates.iter().map(|fate| fate.waiting).sum();
            facts.into_iter().all(is_whole) && balance.is_exact() && balance.total_waiting() + column.revived == waiting
        })
    }

    fn number(&mut self, fact: Fact) -> u32 {
        if let Some(number) = self.numbers.get(&fact) {
            return *number;
        }
        if self.numbers.len() >= FACTS {
            return self.number(Fact::others());
        }
        let (fact, number) = (Arc::new(fact), u32::try_from(self.facts.len()).unwrap_or(u32::MAX));
        self.facts.push((Arc::clone(&fact), Sent::default()));
        self.numbers.insert(fact, number);
        // Reserves the last number for the facts that are counted together.
        if self.facts.len() + 1 == FACTS {
            self.number(Fact::others());
        }
        number
    }
}

impl Simulation {
    fn new(policy: Policy, settings: shard::Settings, ttl: Duration, message_bytes: Option<usize>) -> Self {
        // A fixed secret makes equal runs equal; keys need not be secret here.
        let mut shard = Shard::new(KeySecret(0, 0), settings, 0);
        shard.note_folds();
        Self {
            shard,
            policy,
            message_bytes,
            records: Records::new(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX)),
            start: None,
            now: 0,
            names: 0,
            owed: HashMap::default(),
            waiting: 0,
            revived: 0,
            fates: Vec::new(),
            writes_per_minute: BTreeMap::new(),
        }
    }

    fn report(&mut self, mut event: Event, fact: u32, number: u32, at: i64) {
        self.start.get_or_insert(at);
        self.advance(at);
        if event.metadata.name.is_empty() {
            event.metadata.name = record_name(&event.involved_object.name, self.now());
        }
        event.metadata.resource_version = SmolStr::default();
        event.metadata.uid = SmolStr::default();
        if let Some(message_bytes) = self.message_bytes {
            drop(repair::repair(ApiGroup::Core, &mut event, message_bytes, || self.now));
        }
        if validate::create(ApiGroup::Core, &event).is_err() {
            self.fate(fact).rejected += u64::from(number);
            return;
        }
        // Recorded names repeat if one record stands for many occurrences.
        self.names += 1;
        event.metadata.name =
            record_name(&event.involved_object.name, Now { wall: self.now.saturating_add(self.names), ..self.now() });
        let part = Part { fact, number: u64::from(number), newest: at, dropped: 0 };
        match self.shard.accept(event, number, self.now(), &self.policy) {
            Err(shard::Full) => self.fate(fact).rejected += part.number,
            Ok(accepted) => {
                let owed = self.owed.entry(accepted.record).or_default();
                if accepted.outcome == Outcome::Dropped {
                    add(&mut owed.dropped, Part { dropped: part.number, ..part });
                } else {
                    // The record's count includes the dropped occurrences.
                    let dropped = std::mem::take(&mut owed.dropped);
                    let revived = dropped.iter().map(|part| part.number).sum::<u64>();
                    self.waiting += revived + part.number;
                    self.revived += revived;
                    dropped.into_iter().chain([part]).for_each(|part| add(&mut owed.waiting, part));
                }
            }
        }
        self.deliver();
    }

    /// Advances the time to `until` (unix nanoseconds).
    fn advance(&mut self, until: i64) {
        while self.wake(until) {}
        self.now = self.now.max(until);
    }

    /// Advances the time until nothing waits that can be written.
    fn settle_all(&mut self, limit: i64) {
        while self.waiting > 0 && self.wake(limit) {}
    }

    /// Advances the time to that of the next timer, if it is not after `limit`.
    fn wake(&mut self, limit: i64) -> bool {
        let next = self.shard.next_wakeup(self.now().mono).map(|at| at.0.saturating_add(self.start.unwrap_or(0)));
        let Some(at) = next.filter(|at| *at <= limit) else { return false };
        self.now = self.now.max(at);
        self.deliver();
        true
    }

    fn now(&self) -> Now {
        Now { wall: self.now, mono: Mono(self.now - self.start.unwrap_or(self.now)) }
    }

    fn deliver(&mut self) {
        let now = self.now();
        self.follow_folds();
        while let Some(write) = self.shard.next_write(now) {
            self.follow_folds();
            let answer = self.records.answer(&write.request, now);
            let is_write = matches!(write.request, Request::Create { .. } | Request::Patch { .. });
            let is_stored = is_write && matches!(answer, Answer::Stored(_));
            let settlement = self.shard.settle(write.record, answer, now);
            let owed = self.owed.get_mut(&write.record).map(|owed| std::mem::take(&mut owed.waiting));
            let mut parts = owed.unwrap_or_default();
            if is_stored {
                *self.writes_per_minute.entry((self.now - self.start.unwrap_or(0)) / MINUTE).or_insert(0) += 1;
                if let Some(part) = parts.first() {
                    self.fate(part.fact).writes += 1;
                }
            }
            let written = settlement.written;
            let plain = [WrittenAs::Created, WrittenAs::Counted, WrittenAs::Combined].map(|shown| written.get(shown));
            if written.total() > 0 || settlement.lost.is_some() {
                for part in parts.drain(..) {
                    self.waiting -= part.number;
                    self.revived -= part.dropped;
                    let fate = self.fate(part.fact);
                    if settlement.lost.is_some() {
                        fate.lost += part.number;
                        continue;
                    }
                    fate.shown += part.number;
                    fate.folded += if plain.iter().sum::<u64>() == 0 { part.number } else { 0 };
                    fate.first_shown.get_or_insert(now.wall);
                    fate.newest_shown = fate.newest_shown.max(Some(part.newest));
                }
            }
            if let Some(owed) = self.owed.get_mut(&write.record) {
                owed.waiting = parts;
                if owed.waiting.is_empty() && owed.dropped.is_empty() {
                    self.owed.remove(&write.record);
                }
            }
        }
    }

    /// Moves the occurrences of folded records to the records that show them.
    fn follow_folds(&mut self) {
        for (from, into) in self.shard.take_folds() {
            let Some(owed) = self.owed.remove(&from) else { continue };
            let home = self.owed.entry(into).or_default();
            owed.waiting.into_iter().for_each(|part| add(&mut home.waiting, part));
            owed.dropped.into_iter().for_each(|part| add(&mut home.dropped, part));
        }
    }

    fn fate(&mut self, fact: u32) -> &mut Fate {
        let index = fact as usize;
        if self.fates.len() <= index {
            self.fates.resize(index + 1, Fate::default());
        }
        &mut self.fates[index]
    }

    /// Returns the current fates, by number of the fact.
    pub fn fates(&self) -> Vec<Fate> {
        let mut fates = self.fates.clone();
        let facts = self.owed.values().flat_map(|owed| owed.waiting.iter().chain(&owed.dropped));
        fates.resize(facts.map(|part| part.fact as usize + 1).max().unwrap_or(0).max(fates.len()), Fate::default());
        for owed in self.owed.values() {
            owed.waiting.iter().for_each(|part| fates[part.fact as usize].waiting += part.number);
            owed.dropped.iter().for_each(|part| fates[part.fact as usize].lost += part.number);
        }
        fates
    }

    /// Whether a rule of the configuration matches the events of a fact.
    pub fn has_rule_for(&self, fact: &Fact) -> bool {
        let mut event = Event { reason: fact.reason.clone(), event_type: fact.event_type.clone(), ..Event::default() };
        event.metadata.namespace = fact.namespace.clone();
        event.involved_object.kind = fact.kind.clone();
        event.source.component = fact.component.clone();
        self.policy.rule(&event).0.is_some()
    }
}

/// Adds occurrences to those of the same fact, if it is among the last 16 parts: a digest may have very many.
fn add(parts: &mut Vec<Part>, part: Part) {
    match parts.iter_mut().rev().take(16).find(|known| known.fact == part.fact) {
        Some(known) => {
            known.number += part.number;
            known.dropped += part.dropped;
            known.newest = known.newest.max(part.newest);
        }
        None => {
            // Most records have one part.
            if parts.is_empty() {
                parts.reserve_exact(1);
            }
            parts.push(part);
        }
    }
}
