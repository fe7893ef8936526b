//! The recent decisions about the occurrences of each object, the records that count them, and recent numbers. For
//! `explain`, `top` and the page of the admin port.
//!
//! Each shard has one [`Store`] behind its lock. The shard writes to it when it accepts an occurrence and when the
//! outbox settles an answer. The store formats nothing. A run of equal decisions takes one entry.

mod answer;
mod document;
mod ends;
mod fact;
mod history;
mod hashes;
mod notes;
mod numbers;
mod recent;
mod runs;
mod sentence;
mod tap;
#[cfg(test)]
mod tests;
mod view;

pub use answer::{Known, Query, Upstream, clean, is_safe, stamp};
pub use document::{Answer, Budget, Decided, Explanation, Object, Part, Record, Stored};
pub use fact::{Fact, Rates, StormState, StormStates};
use hashes::HashedText;
pub use hashes::Hashes;
use history::{Begun, Note};
pub use history::{Decision, History, Messages, TrackedRecord, Verdict};
pub use notes::{Arrival, FactRef, LostFolds, Received, Remark, Ruling, Written};
use recent::Minutes;
pub use recent::{Group, MINUTES, Order, Recent, Totals, Window};
use runs::{Origin, Run, Runs};
pub use tap::{Line, Selector, Tap, source};
pub use view::{Unseen, saved};

use std::num::NonZeroUsize;

use smol_str::SmolStr;

use crate::clock::{Mono, Now};
use crate::correlator::{BuildKeyHasher, Key, KeySecret, LruMap, RecordId};
use crate::event::{Event, cut};
use crate::limits::Share;
use crate::outbox::{Entry, Forgotten, Kind, LostReason};

/// LIMIT: counted groups of similar events, over all shards; further groups are counted together.
const GROUPS: usize = 10_000;

/// Settings of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Whether anything is kept.
    pub enabled: bool,
    /// LIMIT: bytes of all decisions over all shards; beyond it the least recently updated object is evicted.
    pub max_bytes: NonZeroUsize,
    /// LIMIT: distinct messages kept of a combined record or digest.
    pub messages: usize,
    /// LIMIT: bytes of an annotation with those messages; 0 writes none.
    pub annotation_bytes: usize,
    /// LIMIT: label sets of the metric of groups; further groups are counted together.
    pub series: usize,
}

impl Settings {
    /// Returns the most that the groups, and also the runs, may take.
    const fn quarter(&self) -> usize {
        self.max_bytes.get() / 4
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: false,
            max_bytes: const { NonZeroUsize::new(16 << 20).unwrap() },
            messages: 10,
            annotation_bytes: 0,
            series: 500,
        }
    }
}

/// The store of one shard.
#[derive(Debug)]
pub struct Store {
    settings: Settings,
    secret: KeySecret,
    // LIMIT: `max_bytes` over all shards.
    objects: LruMap<History>,
    bytes: Share,
    // LIMIT: `GROUPS` over all shards, and one for all further groups.
    groups: Vec<Group>,
    group_count: Share,
    /// Bytes of groups, which are never evicted.
    // LIMIT: a quarter of `max_bytes` over all shards; further groups are counted together.
    group_bytes: Share,
    /// The index of each group in `groups`.
    // LIMIT: as many as `groups`.
    places: std::collections::HashMap<Key, usize, BuildKeyHasher>,
    /// Occurrences that are counted in runs only.
    runs: Runs,
    /// Occurrences, writes, losses, and losses by a fault, per minute; losses also if nothing else is kept.
    flow: [Minutes; 4],
    /// How often each rule was chosen; the first counts events that no rule matches.
    // LIMIT: one per rule, and one.
    rule_hits: Vec<u64>,
    /// Refused occurrences of events that could be decoded.
    rejected: u64,
    /// The time of the newest decision that was forgotten with its object.
    forgotten_until: Option<i64>,
    /// When the store began.
    began: Option<i64>,
}

impl Store {
    /// Creates an empty store.
    pub fn new(settings: Settings, secret: KeySecret) -> Self {
        Self {
            settings,
            secret,
            objects: LruMap::default(),
            bytes: Share::default(),
            groups: vec![Group::default()],
            group_count: Share::default(),
            group_bytes: Share::default(),
            places: std::collections::HashMap::default(),
            runs: Runs::default(),
            flow: [Minutes::default(); 4],
            rule_hits: Vec::new(),
            rejected: 0,
            forgotten_until: None,
            began: None,
        }
    }

    /// Creates an empty store. Limits apply to both stores together.
    pub fn another(&self) -> Self {
        Self {
            bytes: self.bytes.another(),
            group_count: self.group_count.another(),
            group_bytes: self.group_bytes.another(),
            runs: self.runs.another(),
            ..Self::new(self.settings, self.secret)
        }
    }

    /// Applies reloaded settings. Rule hits count from zero, because the rules may differ. `rejected` occurrences were
    /// refused so far.
    pub fn set_settings(&mut self, settings: Settings, rejected: u64, now: Now) {
        self.flush_runs();
        if settings.enabled && !self.settings.enabled {
            // Nothing is known of the time before.
            (self.forgotten_until, self.rejected) = (Some(now.wall), rejected);
        }
        let before = std::mem::replace(&mut self.settings, settings);
        self.rule_hits.clear();
        // Groups cannot be evicted one by one, because facts have their numbers. Stores that add some at once may exceed
        // an unchanged limit a little.
        let is_crowded = settings.quarter() < before.quarter() && self.group_bytes.all() > settings.quarter();
        if is_crowded {
            let newest = self.objects.iter().filter_map(|(_, history)| history.decisions.back());
            self.forgotten_until = newest.map(|decision| decision.last).max().max(self.forgotten_until);
        }
        if is_crowded || !settings.enabled {
            self.objects.clear();
            self.bytes.set(0);
            self.places.clear();
            self.groups.truncate(1);
            self.group_count.set(0);
            self.group_bytes.set(0);
        }
        self.trim(None);
    }

    /// Whether anything is kept.
    pub const fn is_on(&self) -> bool {
        self.settings.enabled
    }

    /// Whether records carry their messages in an annotation.
    pub const fn annotates(&self) -> bool {
        self.settings.enabled && self.settings.annotation_bytes > 0
    }

    /// Counts arriving occurrences of an event, and returns the place of their fact. `None` if the store is off.
    pub fn receive(&mut self, event: &Event, number: u32, now: Now) -> Option<FactRef> {
        let fact_ref = self.fact_ref(event, now)?;
        self.receive_at(fact_ref, number, now);
        Some(fact_ref)
    }

    /// Counts as [`receive`](Self::receive) does, for occurrences that count on a record. Call [`decide`](Self::decide)
    /// next.
    pub fn receive_of(&mut self, arrival: Arrival<'_>, now: Now) -> Option<Received> {
        if !self.is_on() {
            return None;
        }
        let (secret, settings) = (self.secret, self.settings);
        if let Some(verdict) = self.change_runs(|runs| runs.receive(&arrival, secret, &settings, now)) {
            return Some(Received::InRun(verdict));
        }
        let hashes = Hashes::with(secret, arrival.event, &arrival.message);
        let fact_ref = self.place(hashes, arrival.event, now)?;
        self.receive_at(fact_ref, arrival.number, now);
        let repeat = arrival.repeat();
        Some(Received::At { fact_ref, hashes, message: arrival.message, repeat })
    }

    /// Finds or creates the place of an event's fact, and marks its object as the most recently updated. `None` if the
    /// store is off.
    pub fn fact_ref(&mut self, event: &Event, now: Now) -> Option<FactRef> {
        if !self.is_on() {
            return None;
        }
        let fact_ref = self.place(Hashes::new(self.secret, event), event, now)?;
        self.count(fact_ref.object);
        Some(fact_ref)
    }

    /// Does as [`fact_ref`](Self::fact_ref) in a store that is on. Call [`count`](Self::count) next, before anything
    /// else.
    fn place(&mut self, hashes: Hashes, event: &Event, now: Now) -> Option<FactRef> {
        self.began.get_or_insert(now.wall);
        let object = hashes.object;
        let history = self.objects.get_or_insert_mut(object, || History::new(event));
        let known = history.facts.iter().position(|fact| fact.hash == hashes.fact);
        let known = known.map(|place| (place, history.facts[place].group));
        let group = known.map_or_else(|| self.group(event), |(_, group)| group);
        let history = self.objects.peek_mut(&object)?;
        history.set_uid(event, hashes.uid);
        let place = known.map_or_else(|| history.add_fact(event, hashes.fact, group, now), |(place, _)| place);
        let hash = history.facts[place].hash;
        Some(FactRef { object, fact: place, hash, group })
    }

    fn group(&mut self, event: &Event) -> usize {
        let key = self.secret.group(event);
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        if self.group_count.all() >= GROUPS {
            return 0;
        }
        let group = Group::of(event);
        let size = group.bytes();
        if self.group_bytes.all() + size > self.settings.quarter() {
            return 0;
        }
        self.group_bytes += size;
        self.groups.push(group);
        self.places.insert(key, self.groups.len() - 1);
        self.group_count.set(self.places.len());
        self.groups.len() - 1
    }

    /// Notes a decision about occurrences. Calls `next_token` only if the decision differs from the previous one.
    pub fn decide(
        &mut self,
        received: Received,
        ruling: Ruling<'_>,
        now: Now,
        next_token: impl FnOnce() -> Option<Mono>,
    ) {
        let Ruling { verdict, number, record, kind, .. } = ruling;
        let (fact_ref, hashes, message, repeat) = match received {
            Received::At { fact_ref, hashes, message, repeat } => {
                self.end_run(record);
                (fact_ref, hashes, message, repeat)
            }
            Received::InRun(same) if same == verdict => return,
            Received::InRun(_) => {
                self.runs.take_back(record, number);
                let Some(run) = self.end_run(record) else { return };
                let fact_ref = run.of.fact_ref;
                self.receive_at(fact_ref, number, now);
                let history = self.objects.peek(&fact_ref.object);
                let message = history.map(|history| history.message(record, run.message)).unwrap_or_default();
                (fact_ref, Hashes { message: run.message, ..run.of.hashes }, message, run.repeat)
            }
        };
        let message = HashedText { text: &message, hash: hashes.message };
        self.hit(ruling.rule, number);
        let messages = self.settings.messages;
        let Some(history) = self.objects.peek_mut(&fact_ref.object) else { return };
        let Some(fact) = history.fact_at(fact_ref) else { return };
        fact.budget = ruling.keys.map(|(_, budget)| (ruling.source, budget, ruling.paid.is_some()));
        if !ruling.caller.is_empty() && fact.caller != ruling.caller {
            fact.caller = ruling.caller.into();
        }
        let caller = fact.caller.clone();
        match verdict {
            Verdict::Dropped => {
                fact.dropped += u64::from(number);
                self.groups[fact_ref.group].totals.dropped += u64::from(number);
            }
            _ => fact.spent += u64::from(ruling.paid == Some(true)),
        }
        let key = ruling.keys.map(|(key, _)| key);
        let begun = Begun { record, kind, key, fact: fact_ref.fact, count: ruling.before };
        let is_begun_again = history.track(begun, message, messages);
        if let (Verdict::Dropped, Some(kept)) = (verdict, history.tracked_mut(record)) {
            kept.dropped = kept.dropped.saturating_add(number);
        }
        let why = if is_begun_again && verdict != Verdict::Dropped { "evicted" } else { "" };
        let note = Note { fact: fact_ref.fact, verdict, why, number, record: Some(record), text: message };
        history.note(&note, now, next_token);
        self.count(fact_ref.object);
        // Under `suppression: drop` the verdict may differ for each occurrence, and its token is counted. Without
        // correlation no record has a second occurrence, and many records never have one.
        if ruling.paid.is_none() && ruling.keys.is_some() && why.is_empty() && ruling.before > 0 {
            let of = Origin { kind, fact_ref, hashes, rule: ruling.rule, messages: Messages::default(), caller };
            self.change_runs(|runs| runs.begin(record, repeat, verdict, of, now));
            if self.runs.are_full(&self.settings) {
                self.flush_runs();
            }
        }
    }

    /// Changes the runs, and counts their bytes.
    fn change_runs<T>(&mut self, change: impl FnOnce(&mut Runs) -> T) -> T {
        let before = self.runs.bytes();
        let changed = change(&mut self.runs);
        self.bytes.replace(before, self.runs.bytes());
        changed
    }

    /// Adds all runs to the store. Call this before any read.
    pub fn flush_runs(&mut self) {
        for (record, run) in self.change_runs(Runs::end_all) {
            self.add_run(record, &run);
        }
    }

    /// Ends the run of a record, so that its numbers are noted before the next decision.
    fn end_run(&mut self, record: RecordId) -> Option<Run> {
        let run = self.change_runs(|runs| runs.end(record))?;
        self.add_run(record, &run);
        Some(run)
    }

    fn add_run(&mut self, record: RecordId, run: &Run) {
        let Origin { fact_ref, rule, ref messages, .. } = *run.of;
        if run.number == 0 && messages.is_empty() {
            return;
        }
        self.hit(rule, run.number);
        self.receive_at(fact_ref, run.number, run.last);
        let Some(history) = self.objects.peek_mut(&fact_ref.object) else { return };
        if history.fact_at(fact_ref).is_none() {
            return;
        }
        for (hash, text) in messages.iter() {
            history.add_message(record, HashedText { text, hash: *hash }, self.settings.messages);
        }
        let text = &history.message(record, run.message);
        let text = HashedText { text, hash: run.message };
        let (verdict, number) = (run.verdict, run.number);
        let note = Note { fact: fact_ref.fact, verdict, why: "", number, record: Some(record), text };
        if number > 0 && !history.extend(&note, run.last) {
            history.note(&note, run.last, || None);
        }
        self.count(fact_ref.object);
    }

    /// Counts occurrences of a fact at a known place.
    fn receive_at(&mut self, fact_ref: FactRef, number: u32, now: Now) {
        self.flow[0].add(now.mono, number);
        self.groups[fact_ref.group].receive(now.mono, number);
        if let Some(fact) = self.objects.peek_mut(&fact_ref.object).and_then(|history| history.fact_at(fact_ref)) {
            fact.receive(number, now);
        }
    }

    /// Counts lost occurrences.
    pub fn lose(&mut self, reason: LostReason, number: u64, now: Now) {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        self.flow[2].add(now.mono, number);
        if !reason.is_intended() {
            self.flow[3].add(now.mono, number);
        }
    }

    /// Notes an answer of the upstream, a refusal or a deletion that concerns a fact.
    pub fn remark(&mut self, fact_ref: FactRef, remark: Remark<'_>, now: Now) {
        let Remark { verdict, why, number, record, text } = remark;
        if let Some(record) = record {
            self.end_run(record);
        }
        let Some(history) = self.objects.peek_mut(&fact_ref.object) else { return };
        let Some(fact) = history.fact_at(fact_ref) else { return };
        // Several groups share the last fact.
        let totals = &mut self.groups[fact_ref.group].totals;
        match verdict {
            Verdict::Rejected if number == 0 => fact.refused_changes += 1,
            Verdict::Rejected => {
                fact.rejected += number;
                totals.rejected += number;
                self.rejected += number;
            }
            Verdict::Lost => {
                totals.lost += number;
                history.lose(fact_ref, record, number, why);
            }
            _ => {}
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let text = &SmolStr::new(cut(text, 512));
        let text = HashedText::new(self.secret, text);
        history.note(&Note { fact: fact_ref.fact, verdict, why, number, record, text }, now, || None);
        self.count(fact_ref.object);
    }

    /// Notes that the upstream has stored a record.
    pub fn written(&mut self, fact_ref: FactRef, written: Written<'_>, now: Now) {
        let Written { record, kind, name, count: sent, number, .. } = written;
        self.end_run(record);
        let message = HashedText::new(self.secret, written.message);
        let Some(history) = self.objects.peek_mut(&fact_ref.object) else { return };
        if history.fact_at(fact_ref).is_none() {
            return;
        }
        if history.tracked(record).is_none() {
            // A record of an earlier process, or a digest.
            let count = sent.saturating_sub(i64::try_from(number).unwrap_or(i64::MAX));
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            history.track(Begun { record, kind, key: None, fact: fact_ref.fact, count }, message, 1);
        } else if kind == Kind::Storm {
            history.add_message(record, message, 1);
        }
        let shown = number + history.set_stored(record, name, sent, number);
        let folded = || history.facts.iter().find(|fact| fact.into == Some(record)).and_then(|fact| fact.budget);
        let budget = if kind == Kind::Digest { folded() } else { None };
        let fact = &mut history.facts[fact_ref.fact];
        // A digest is no decision, and takes its tokens from the budget of what has folded.
        fact.budget = fact.budget.or(budget);
        fact.shown += shown;
        fact.rates.writes.add(now.mono, 1);
        fact.last_shown = Some(now.wall);
        if fact.budget.is_none_or(|(.., is_prepaid)| !is_prepaid) {
            fact.spent += 1;
        }
        let group = &mut self.groups[fact_ref.group];
        group.writes.add(now.mono, 1);
        group.totals.writes += 1;
        group.totals.shown += shown;
        self.flow[1].add(now.mono, 1);
        self.count(fact_ref.object);
    }

    /// Notes that a record has folded into the record `into`, whose number in this store may be another one.
    pub fn fold(&mut self, forgotten: &Forgotten, into: RecordId, now: Now) {
        if !self.is_on() {
            return;
        }
        let Forgotten { record, ref event, kind, ref name, number, reach, .. } = *forgotten;
        self.end_run(record);
        let hashes = Hashes::new(self.secret, event);
        let message = HashedText { text: &event.message, hash: hashes.message };
        let Some(fact_ref) = self.place(hashes, event, now) else { return };
        let Some(history) = self.objects.peek_mut(&fact_ref.object) else { return };
        history.end(record);
        let Some(fact) = history.fact_at(fact_ref) else { return };
        fact.fold(into, number, reach);
        self.groups[fact_ref.group].totals.folded += number;
        let begun = Begun { record: into, kind, key: None, fact: fact_ref.fact, count: 0 };
        history.track(begun, message, self.settings.messages);
        if !name.is_empty() {
            history.set_stored(into, name, 0, 0);
        }
        let folded = Remark { verdict: Verdict::Folded, why: "", number, record: Some(into), text: "" };
        self.remark(fact_ref, folded, now);
    }

    /// Notes a record of an earlier process. Its occurrences are those that the upstream has not acknowledged.
    pub fn restore(&mut self, record: RecordId, entry: &Entry, now: Now) {
        let Entry { kind, ref event, .. } = *entry;
        let number = u32::try_from(entry.occurrences().total()).unwrap_or(u32::MAX);
        let Some(fact_ref) = self.receive(event, number, now) else { return };
        let Some(history) = self.objects.peek_mut(&fact_ref.object) else { return };
        history.facts[fact_ref.fact].budget = entry.budget.map(|budget| (entry.source, budget, false));
        let acknowledged = event.count.saturating_sub(i32::try_from(number).unwrap_or(i32::MAX)).max(0);
        let begun = Begun { record, kind, key: Some(entry.key), fact: fact_ref.fact, count: acknowledged };
        history.track(begun, HashedText::new(self.secret, &event.message), 1);
        let text = event.message.as_str();
        let (verdict, number) = (Verdict::Counted, number.into());
        self.remark(fact_ref, Remark { verdict, why: "restored", number, record: Some(record), text }, now);
    }

    /// Counts occurrences for which a rule was chosen, or none.
    fn hit(&mut self, rule: Option<usize>, number: u32) {
        let place = rule.map_or(0, |rule| rule + 1);
        if self.rule_hits.len() <= place {
            self.rule_hits.resize(place + 1, 0);
        }
        self.rule_hits[place] += u64::from(number);
    }

    /// Counts the bytes of an object again, and evicts objects beyond the limit.
    fn count(&mut self, object: Key) {
        if let Some(history) = self.objects.peek_mut(&object) {
            let bytes = history.bytes();
            self.bytes.replace(history.counted, bytes);
            history.counted = bytes;
        }
        self.trim(Some(object));
    }

    /// Evicts least recently used objects while the store exceeds its part of the limit. Stops after it has evicted
    /// `but`.
    fn trim(&mut self, but: Option<Key>) {
        let limit = self.settings.max_bytes.get().saturating_sub(self.group_bytes.all());
        while self.bytes.is_over(limit) {
            let Some((key, history)) = self.objects.pop_lru() else { return };
            self.bytes -= history.counted;
            let newest = history.decisions.back().map(|decision| decision.last);
            self.forgotten_until = self.forgotten_until.max(newest);
            if Some(key) == but {
                return;
            }
        }
    }

    /// Evicts least recently used objects if other shards need the memory.
    pub fn make_room(&mut self) {
        self.trim(None);
    }
}
