//! The view of an object, for `explain`, and of the noisiest objects, for `top`: what the store knows of it, with what
//! waits in the outbox.

use std::collections::BTreeMap;

use serde::Serialize;
use smol_str::SmolStr;

use super::explain::ELSEWHERE;
use super::{Settings, Shard, Shards};
use crate::clock::{Mono, Now};
use crate::correlator::{Policy, Rate, RecordId, Suppression, field_value};
use crate::explain::{
    Budget, Decided, Fact, History, Known, Object, Order, Part, Query, Record, StormState, StormStates, TrackedRecord,
    Window, stamp,
};
use crate::outbox::{Kind, RecordView, Why};

/// LIMIT: objects in the answer of one shard.
const OBJECTS: usize = 20;

/// An object with its recent numbers, for `top`.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the columns of the table")]
pub struct Row {
    pub namespace: SmolStr,
    pub object: String,
    pub reason: SmolStr,
    pub component: SmolStr,
    pub per_second: f64,
    pub received: u64,
    pub writes: u64,
    /// Occurrences that no record counts, of all that are known and not of a window.
    pub lost: u64,
}

/// Whether a fact of an object is selected.
type Wanted<'a> = &'a dyn Fn(&History, &Fact) -> bool;

/// How many facts with the largest numbers, and of which numbers.
#[derive(Debug, Clone, Copy)]
pub struct Noisiest {
    /// How many, at most.
    pub most: usize,
    /// How far back the numbers go.
    pub window: Window,
    /// The number that is compared.
    pub order: Order,
}

/// A query, and what the answer depends on beside the shard.
#[derive(Clone, Copy)]
struct QueryContext<'a> {
    query: &'a Query,
    policy: &'a Policy,
    storms: &'a StormStates,
    now: Now,
}

impl Shard {
    /// Returns the shard's part of the answer about the objects that the query selects.
    pub fn explain(&mut self, query: &Query, now: Now, policy: &Policy, storms: &StormStates) -> Known {
        self.explain.flush_runs();
        let context = QueryContext { query, policy, storms, now };
        let mut matching = self.explain.histories().filter(|history| query.matches(history));
        let listed = matching.by_ref().take(OBJECTS);
        let objects: Vec<Object> = listed.map(|history| self.describe(history, context)).collect();
        let more_objects = matching.count();
        let mut nearest = Vec::new();
        if objects.is_empty() {
            let found = self.explain.histories().max_by_key(|history| query.likeness(history));
            let found = found.filter(|history| query.likeness(history) * 2 >= query.name.len().max(1));
            nearest.extend(found.map(|history| query.near(history)));
        }
        let (is_off, span) = (!self.explain.is_on(), self.explain.span());
        // The caller may not be allowed to see other namespaces.
        let (received, unread) = if query.namespace.is_empty() {
            let unread = self.ledger.total_rejected().cast_signed() - self.explain.rejected().cast_signed();
            (self.ledger.received(), unread)
        } else {
            let groups = self.explain.groups().iter().filter(|group| group.namespace == query.namespace);
            (groups.map(|group| group.totals.received).sum(), 0)
        };
        Known { is_off, span, received, unread, objects, more_objects, nearest }
    }

    fn describe(&self, history: &History, context: QueryContext<'_>) -> Object {
        let QueryContext { query, policy, storms, now } = context;
        let mut budgets: Vec<Budget> = Vec::new();
        let is_shown = Fact::is_reported;
        // Nothing was reported about the fact of a digest, which has spent tokens.
        let spends = |fact: &Fact| is_shown(fact) || fact.spent > 0;
        for (number, fact) in history.facts.iter().enumerate().filter(|(_, fact)| spends(fact)) {
            for budget in self.budgets(history, number, now, policy) {
                let is_same = |known: &&mut Budget| (known.id, known.suppression) == (budget.id, budget.suppression);
                match budgets.iter_mut().find(is_same) {
                    Some(known) => {
                        known.facts.push(number);
                        *known.spent_on.entry(fact.reason.clone()).or_default() += fact.spent;
                    }
                    None => budgets.push(budget),
                }
            }
        }
        let facts = history.facts.iter().enumerate().filter(|(_, fact)| is_shown(fact) && query.means(history, fact));
        Object {
            kind: history.kind.clone(),
            namespace: history.namespace.clone(),
            name: history.name.clone(),
            uid: history.uid.clone(),
            api_version: history.api_version.clone(),
            reasons: facts.map(|(number, _)| self.part(history, number, context)).collect(),
            budgets,
            records: self.records(history, query, storms),
            decisions: self.decisions(history, query, now),
            forgotten_decisions: history.forgotten,
        }
    }

    /// Returns the state of a digest or storm record. `None` if it has ended: the upstream shows what it counts, except
    /// what was noted as lost.
    pub(super) fn summary(&self, record: RecordId, storms: &StormStates) -> Option<StormState> {
        if record.0 & ELSEWHERE != 0 {
            return storms.get(&record).copied();
        }
        self.outbox.digest_name(record)?;
        let why = self.outbox.view(record).map_or(Why::Budget.label(), |view| waits_for(&view));
        Some(StormState { settled: self.outbox.reach(record).settled, why, lost: None })
    }

    /// Returns where the occurrences of a fact are, without refused ones. Of these there are `rest`.
    fn counts(&self, history: &History, number: usize, mut rest: u64, storms: &StormStates) -> Part {
        let fact = &history.facts[number];
        // The numbers may have more: of a time in which `explain` was off, or of other objects.
        let mut take = |number: u64| {
            let own = number.min(rest);
            rest -= own;
            own
        };
        let lost = fact.lost.iter().map(|(why, number)| (*why, take(*number)));
        let mut lost: BTreeMap<_, _> = lost.filter(|(_, own)| *own > 0).collect();
        let (mut waiting, mut in_summary) = (BTreeMap::new(), take(fact.folded));
        // A digest of an earlier process is a record of its own.
        let is_own = |kept: &&TrackedRecord| kept.fact == number && (!kept.kind.folds() || fact.into.is_none());
        let own = history.records.iter().filter(is_own).map(|kept| kept.record);
        for record in own.chain(history.forgotten_records(number)) {
            let Some(view) = self.outbox.view(record) else { continue };
            let own = take(view.waiting);
            if own > 0 {
                *waiting.entry(waits_for(&view)).or_insert(0) += own;
            }
        }
        if let Some(summary) = fact.into.and_then(|into| self.summary(into, storms)) {
            let unshown = fact.unshown(summary.settled).min(in_summary);
            in_summary -= unshown;
            match summary.lost {
                _ if unshown == 0 => {}
                Some(why) => *lost.entry(why).or_insert(0) += unshown,
                None => *waiting.entry(summary.why).or_insert(0) += unshown,
            }
        }
        let shown = take(fact.shown);
        // Dropped occurrences that a later write of their record has counted are shown.
        let suppressed = take(fact.dropped);
        if suppressed > 0 {
            lost.insert("suppressed", suppressed);
        }
        Part { shown, in_summary, waiting, lost, ..Part::default() }
    }

    fn part(&self, history: &History, number: usize, context: QueryContext<'_>) -> Part {
        let QueryContext { policy, storms, now, .. } = context;
        let fact = &history.facts[number];
        let records = history.records.iter().filter(|kept| kept.fact == number);
        let folds_at = records.filter_map(|kept| self.outbox.view(kept.record)?.folds_at).min();
        Part {
            fact: number,
            reason: fact.reason.clone(),
            event_type: fact.event_type.clone(),
            source: fact.source(),
            caller: fact.caller.clone(),
            rule: (fact.received > fact.rejected).then(|| policy.rule(&history.sample(fact)).0).flatten(),
            received: fact.received,
            summary: fact.into.map(|into| self.name_of(history, into)).unwrap_or_default(),
            folds_at: folds_at.map(|at| coming(now.wall_at(at))),
            rejected: fact.rejected,
            last_received: stamp(fact.last_received),
            last_shown: fact.last_shown.map(stamp),
            ..self.counts(history, number, fact.received.saturating_sub(fact.rejected), storms)
        }
    }

    /// Returns the budget that pays for a fact. After a reload to `suppression: drop`, also the one that waiting records
    /// wait for.
    fn budgets(&self, history: &History, number: usize, now: Now, policy: &Policy) -> Vec<Budget> {
        let fact = &history.facts[number];
        let Some((source, budget, _)) = fact.budget else { return Vec::new() };
        let event = history.sample(fact);
        // The rules may have changed since the newest decision.
        let (rule, settings) = policy.rule(&event);
        let rate = Rate { qps: settings.qps, burst: settings.burst_size };
        let is_prepaid = settings.suppression == Suppression::Drop;
        let texts = settings.spam_key.iter().map(|field| field_value(&event, *field));
        let key: Vec<String> = texts.filter(|text| !text.is_empty()).map(ToOwned::to_owned).collect();
        let of = |suppression, (tokens, next): (usize, Option<Mono>), queue| Budget {
            facts: vec![number],
            id: (source, budget),
            key: key.clone(),
            rule,
            suppression,
            tokens,
            burst: rate.burst,
            seconds_per_token: 1.0 / rate.qps,
            next_token: next.map(|at| coming(now.wall_at(at))),
            spent_on: BTreeMap::from([(fact.reason.clone(), fact.spent)]),
            queue,
        };
        let full = (rate.burst as usize, Some(now.mono));
        let owed = self.outbox.tokens(source, budget, now.mono);
        let mut budgets = Vec::new();
        if is_prepaid {
            let tokens = self.sources.peek(&source).map(|correlator| correlator.tokens(budget, rate, now.mono));
            budgets.push(of("drop", tokens.map_or(full, |(left, next)| (whole(left), next)), Vec::new()));
        }
        if !is_prepaid || owed.as_ref().is_some_and(|owed| !owed.queue.is_empty()) {
            let queue = owed.iter().flat_map(|owed| &owed.queue);
            let reasons = queue.filter_map(|record| Some(self.outbox.view(*record)?.event.reason.clone()));
            let reasons = reasons.collect();
            budgets.push(of("defer", owed.map_or(full, |owed| (owed.left, owed.next)), reasons));
        }
        budgets
    }

    fn records(&self, history: &History, query: &Query, storms: &StormStates) -> Vec<Record> {
        let meant = || history.facts.iter().enumerate().filter(|(_, fact)| query.means(history, fact));
        let of_query =
            |kept: &&TrackedRecord| meant().any(|(number, fact)| kept.fact == number || fact.into == Some(kept.record));
        let record = |kept: &TrackedRecord| {
            let view = self.outbox.view(kept.record);
            let (known, summary) = (self.known(kept, storms), self.summary(kept.record, storms));
            let pending = view.map_or(0, |view| view.waiting);
            let state = match view {
                Some(view) if view.is_in_flight => "in-flight",
                Some(view) if view.waiting > 0 => "waiting",
                _ if summary.is_some_and(|summary| summary.lost.is_some()) => "ended",
                // What an earlier process has counted is shown too, but not under this one's tag.
                _ if known.count == 0 && summary.is_some_and(|summary| summary.settled == 0) => "unwritten",
                _ if known.is_gone => "gone",
                _ if !known.stored && (known.has_ended || kept.kind.folds() && summary.is_none()) => "ended",
                _ if known.stored => "settled",
                _ => "unwritten",
            };
            Record {
                fact: kept.fact,
                name: self.name_of(history, kept.record),
                form: form(kept.kind),
                reason: history.facts[kept.fact].reason.clone(),
                count: (kept.record.0 & ELSEWHERE == 0).then_some(known.count),
                pending,
                state,
                why: view.filter(|view| view.waiting > 0).map(|view| view.why.label()),
                resource_version: view.and_then(|view| view.version.cloned()),
                messages: kept.messages.iter().map(|(_, message)| message.clone()).collect(),
            }
        };
        history.records.iter().filter(of_query).map(record).collect()
    }

    /// Returns what is known of a record. A digest may count occurrences of several objects; its writes are noted at one.
    fn known<'a>(&'a self, kept: &'a TrackedRecord, storms: &StormStates) -> &'a TrackedRecord {
        let is_unwritten = || self.summary(kept.record, storms).is_some_and(|summary| summary.settled == 0);
        let is_elsewhere = kept.kind == Kind::Digest && !kept.stored && !is_unwritten();
        if is_elsewhere { self.explain.stored(kept.record).unwrap_or(kept) } else { kept }
    }

    fn name_of(&self, history: &History, record: RecordId) -> SmolStr {
        let kept = history.tracked(record);
        kept.map(|kept| kept.name.clone())
            .filter(|name| !name.is_empty())
            .or_else(|| Some(self.outbox.view(record)?.event.metadata.name.clone()))
            .or_else(|| self.outbox.digest_name(record))
            .or_else(|| {
                kept.filter(|kept| kept.kind == Kind::Digest)
                    .and_then(|_| self.explain.stored(record))
                    .map(|kept| kept.name.clone())
            })
            .unwrap_or_default()
    }

    fn decisions(&self, history: &History, query: &Query, now: Now) -> Vec<Decided> {
        let of_query = |decision: &&crate::explain::Decision| query.means(history, &history.facts[decision.fact]);
        let decided = |decision: &crate::explain::Decision| Decided {
            fact: decision.fact,
            time: stamp(decision.time),
            last: stamp(decision.last),
            reason: history.facts[decision.fact].reason.clone(),
            verdict: decision.verdict.label(),
            why: decision.why,
            occurrences: decision.occurrences,
            record: decision.record.map(|record| self.name_of(history, record)).unwrap_or_default(),
            next_token: decision.next_token.map(|at| coming(now.wall_at(at))),
            text: decision.text.clone(),
        };
        let mut decisions: Vec<Decided> = history.decisions.iter().filter(of_query).map(decided).collect();
        decisions.sort_by(|one, next| one.last.cmp(&next.last));
        decisions
    }

    /// Returns the selected facts with the largest numbers, each with its number.
    fn noisiest(&mut self, of: Noisiest, is_wanted: Wanted<'_>, storms: &StormStates, now: Now) -> Vec<(u64, Row)> {
        let Noisiest { most, window, order } = of;
        self.explain.flush_runs();
        let mut facts: Vec<(u64, &History, usize)> = Vec::new();
        for history in self.explain.histories() {
            let wanted = history.facts.iter().enumerate().filter(|(_, fact)| is_wanted(history, fact));
            let sorted = wanted.map(|(number, fact)| match order {
                Order::Received => (fact.rates.received.within(window, now.mono), history, number),
                Order::PerSecond => (fact.rates.received.within(Window::Minute, now.mono), history, number),
                Order::Writes => (fact.rates.writes.within(window, now.mono), history, number),
                Order::Lost => (self.lost(history, number, storms), history, number),
            });
            let received = |number: usize| history.facts[number].rates.received.within(window, now.mono);
            facts.extend(sorted.filter(|(sorted, _, number)| *sorted > 0 || received(*number) > 0));
        }
        facts.sort_by_key(|(sorted, ..)| std::cmp::Reverse(*sorted));
        facts.truncate(most);
        let row = |(sorted, history, number): (u64, &History, usize)| {
            let fact = &history.facts[number];
            let row = Row {
                namespace: history.namespace.clone(),
                object: history.object(),
                reason: fact.reason.clone(),
                component: fact.component.clone(),
                per_second: fact.rates.received.per_second(now.mono),
                received: fact.rates.received.within(window, now.mono),
                writes: fact.rates.writes.within(window, now.mono),
                lost: self.lost(history, number, storms),
            };
            (sorted, row)
        };
        facts.into_iter().map(row).collect()
    }

    /// Returns the number of lost occurrences of a fact. Dropped ones that a later write has counted are not lost.
    fn lost(&self, history: &History, number: usize, storms: &StormStates) -> u64 {
        let fact = &history.facts[number];
        // Most facts have lost nothing, which is cheaper to see than to count.
        let is_none = fact.lost.is_empty() && fact.dropped == 0 && fact.into.is_none();
        if is_none {
            return 0;
        }
        // Also what was received before its object was forgotten.
        let all = fact.received.saturating_sub(fact.rejected).max(fact.folded + fact.lost());
        self.counts(history, number, all, storms).lost.into_values().sum()
    }
}

/// Returns the wait reason of a record's next write.
pub(super) const fn waits_for(view: &RecordView<'_>) -> &'static str {
    if view.is_in_flight { "in_flight" } else { view.why.label() }
}

/// Formats a future time in whole seconds.
fn coming(nanos: i64) -> String {
    stamp(nanos.saturating_add(999_999_999).div_euclid(1_000_000_000).saturating_mul(1_000_000_000))
}

/// Returns the word for a kind of record.
const fn form(kind: Kind) -> &'static str {
    match kind {
        Kind::Plain => "single",
        Kind::Combined => "combined",
        Kind::Digest => "digest",
        Kind::Storm => "storm",
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "floored, at most the burst")]
fn whole(tokens: f64) -> usize {
    tokens.max(0.0) as usize
}

impl Shards {
    /// Returns each shard's part of the answer about the objects that the query selects.
    pub fn explain(&self, query: &Query) -> Vec<Known> {
        let policy = self.policy();
        let storms = self.storm_states();
        self.each(|shard, now| shard.explain(query, now, &policy, &storms))
    }

    /// Returns the active settings.
    pub fn settings(&self) -> Settings {
        self.look(0, |shard| shard.settings.clone())
    }

    /// Whether decisions and rates are kept (`explain.enabled`).
    pub fn explains(&self) -> bool {
        self.look(0, |shard| shard.explain.is_on())
    }

    /// Returns the selected facts with the largest numbers.
    pub fn noisiest(&self, of: Noisiest, is_wanted: Wanted<'_>) -> Vec<Row> {
        let storms = self.storm_states();
        let mut rows = self.each(|shard, now| shard.noisiest(of, is_wanted, &storms, now)).concat();
        rows.sort_by_key(|(sorted, _)| std::cmp::Reverse(*sorted));
        rows.truncate(of.most);
        rows.into_iter().map(|(_, row)| row).collect()
    }
}
