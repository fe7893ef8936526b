//! Notes about answers, folded records and deletions for `explain`, and the view of an object.

use std::collections::BTreeMap;

use serde::Serialize;
use smol_str::SmolStr;

use super::hold::Handle;
use super::{Mirror, Shard, Shards};
use crate::clock::Now;
use crate::correlator::{Policy, Rate, RecordId, Settled, Suppression, field_value};
use crate::event::Event;
use crate::explain::{
    Budget, Decided, Fact, Group, History, Kept, Known, MINUTES, Marks, Object, Part, Query, Record, Spot, Store, Tap,
    Unseen, Verdict, Window, stamp,
};
use crate::ledger::RejectReason;
use crate::outbox::{Answer, Forgotten, Kind, LostReason, MESSAGES, Request, Settlement, Write, has_any_tag};

/// LIMIT: objects in the answer of one shard.
const OBJECTS: usize = 20;

/// A bit that is flipped in record numbers of other shards, so that they differ from this shard's own numbers.
const ELSEWHERE: u64 = 1 << 62;

/// A write in flight, as `explain` knows it.
#[derive(Debug)]
pub(super) struct Noticed {
    spot: Spot,
    marks: Marks,
    kind: Kind,
    name: SmolStr,
    message: SmolStr,
    sent: i64,
    why: &'static str,
    text: SmolStr,
}

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
    pub lost: u64,
}

/// Returns an event of a fact, for the rules that match it.
fn sample(history: &History, fact: &Fact) -> Event {
    let mut event = history.sample();
    event.reason = fact.reason.clone();
    event.event_type = fact.event_type.clone();
    (event.source.component, event.source.host) = (fact.component.clone(), fact.host.clone());
    event
}

/// Whether a fact of an object is selected.
type Wanted<'a> = &'a dyn Fn(&History, &Fact) -> bool;

impl Shard {
    /// Returns the desired state of an unsettled record.
    pub(super) fn event(&self, record: RecordId) -> Option<Event> {
        Some(self.outbox.glimpse(record)?.event.clone())
    }

    /// Adds the newest messages of its record to a write, if the settings ask for it. The write is sent anyway.
    pub(super) fn annotate(&mut self, write: &mut Write) {
        let Some(seen) = self.explain.annotates().then(|| self.outbox.glimpse(write.record)).flatten() else { return };
        if !matches!(seen.kind, Kind::Combined | Kind::Digest) {
            return;
        }
        let object = self.secret.subject(seen.event);
        let Some(messages) = self.explain.messages(object, write.record) else { return };
        match &mut write.request {
            Request::Patch { claim: Some(claim), .. } => {
                claim.annotations.push((SmolStr::new_static(MESSAGES), messages));
            }
            Request::Create { event, .. } => {
                // Records that are written as client-go writes them get no annotation.
                if has_any_tag(event) {
                    let rare = event.metadata.rare.get_or_insert_default();
                    rare.annotations.insert(SmolStr::new_static(MESSAGES), messages);
                }
            }
            Request::Patch { claim: None, .. } | Request::Read { .. } | Request::Delete { .. } => {}
        }
    }

    /// Notes the state of a write before its answer is applied. `None` is the answer to a client's change.
    pub(super) fn notice(&mut self, record: RecordId, answer: Option<&Answer>, now: Now) -> Option<Noticed> {
        let seen = self.explain.is_on().then(|| self.outbox.glimpse(record)).flatten()?;
        let marks = Marks::new(self.secret, seen.event);
        let spot = self.explain.spot(marks, seen.event, now)?;
        let (why, text) = match answer {
            Some(Answer::Refused(refusal)) => (refusal.reason.label(), SmolStr::new(&refusal.status.message)),
            Some(Answer::Retry(retry)) => (retry.fault.label(), SmolStr::default()),
            Some(Answer::Stored(_) | Answer::Missing | Answer::Exists) | None => ("", SmolStr::default()),
        };
        let (name, message) = (seen.event.metadata.name.clone(), seen.event.message.clone());
        Some(Noticed { spot, marks, kind: seen.kind, name, message, sent: seen.sent, why, text })
    }

    /// Notes the effect of an answer.
    pub(super) fn note_answer(&mut self, record: RecordId, noticed: &Noticed, settlement: &Settlement, now: Now) {
        let Noticed { spot, marks, kind, name, message, sent, why, text } = noticed;
        let written = settlement.written.total();
        if written > 0 {
            // Not all of the sent ones may have arrived. A record that owes nothing more has left the outbox.
            let count = self.outbox.glimpse(record).and_then(|seen| seen.shown).unwrap_or(*sent);
            self.explain.written(*spot, (record, *kind), (name, count), (message, *marks), written, now);
        }
        let remark = match settlement.lost {
            Some((reason, lost)) => Some(((Verdict::Lost, reason.label()), lost.total())),
            None if written > 0 => Some(((Verdict::Written, ""), written)),
            // Refused but not lost: it is retried, repaired or unchanged.
            None if !why.is_empty() => Some(((Verdict::Failed, *why), 0)),
            None => None,
        };
        if let Some((remark, number)) = remark {
            self.explain.remark(*spot, remark, number, Some(record), text, now);
        }
        if settlement.feedback.as_ref().is_some_and(|feedback| feedback.settled == Settled::Forgotten) {
            self.explain.ended(self.explain.object(*spot), record);
        }
    }

    /// Counts occurrences as lost.
    pub(super) fn lose(&mut self, reason: LostReason, number: u64, now: Now) {
        self.ledger.lose(reason, number);
        if number > 0 {
            self.explain.lose(number, now);
        }
    }

    /// Notes that a record has folded.
    pub(super) fn note_fold(&mut self, forgotten: &Forgotten, now: Now) {
        let Forgotten { event, record, into, kind, name, number, .. } = forgotten;
        // A storm record belongs to another shard, which has its own record numbers.
        let into = if *kind == Kind::Storm { RecordId(into.0 ^ ELSEWHERE) } else { *into };
        self.explain.fold((*record, event), (into, *kind), name, *number, now);
    }

    /// Notes that a client deleted a record with `lost` waiting occurrences.
    pub(super) fn note_deletion(&mut self, handle: &Handle, lost: u64, now: Now) {
        if let Some(spot) = self.explain.ended(handle.object, handle.record) {
            let remark = if lost > 0 { (Verdict::Lost, "deleted") } else { (Verdict::Deleted, "") };
            self.explain.remark(spot, remark, lost, Some(handle.record), &handle.name, now);
        }
    }

    /// Notes refused occurrences of an event that could be decoded.
    pub fn note_rejection(&mut self, event: &Event, occurrences: u32, reason: RejectReason, text: &str, now: Now) {
        if let Some(spot) = self.explain.receive(event, occurrences, now) {
            self.explain.remark(spot, (Verdict::Rejected, reason.label()), occurrences.into(), None, text, now);
        }
    }

    /// Notes a refused change of an event, which is not an occurrence.
    pub fn note_refused_change(&mut self, event: &Event, text: &str, now: Now) {
        let marks = Marks::new(self.secret, event);
        if let Some(spot) = self.explain.spot(marks, event, now) {
            self.explain.remark(spot, (Verdict::Rejected, "change"), 0, None, text, now);
        }
    }

    /// Returns the store of this shard.
    pub fn kept(&mut self) -> &Store {
        self.explain.tell();
        &self.explain
    }

    /// Returns the shard's part of the answer about the objects that the query selects.
    pub fn explain(&mut self, query: &Query, now: Now, policy: &Policy) -> Known {
        self.explain.tell();
        let mut matching = self.explain.histories().filter(|history| query.matches(history));
        let listed = matching.by_ref().take(OBJECTS);
        let objects: Vec<Object> = listed.map(|history| self.describe(history, query, now, policy)).collect();
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

    fn describe(&self, history: &History, query: &Query, now: Now, policy: &Policy) -> Object {
        let mut budgets: Vec<Budget> = Vec::new();
        let is_shown = |fact: &&Fact| fact.is_reported();
        for fact in history.facts.iter().filter(is_shown) {
            let Some(budget) = self.budget(history, fact, now, policy) else { continue };
            match budgets.iter_mut().find(|known| known.key == budget.key) {
                Some(known) => known.spent_on.extend(budget.spent_on),
                None => budgets.push(budget),
            }
        }
        let facts = history.facts.iter().enumerate().filter(|(_, fact)| is_shown(fact) && query.means(history, fact));
        Object {
            kind: history.kind.clone(),
            namespace: history.namespace.clone(),
            name: history.name.clone(),
            uid: history.uid.clone(),
            api_version: history.api_version.clone(),
            reasons: facts.map(|(number, fact)| self.part(history, number, fact, policy)).collect(),
            budgets,
            records: self.records(history, query),
            decisions: self.decisions(history, query, now),
            forgotten_decisions: history.forgotten,
        }
    }

    fn part(&self, history: &History, number: usize, fact: &Fact, policy: &Policy) -> Part {
        let (mut waiting, mut lost) = (BTreeMap::new(), BTreeMap::new());
        let mut in_summary = fact.folded;
        // A record may have more: of a time in which `explain` was off, or of other objects.
        let mut rest = fact.received.saturating_sub(fact.folded + fact.lost.0 + fact.rejected);
        // A digest of an earlier process is a record of its own.
        let is_own = |kept: &&Kept| kept.fact == number && (!kept.kind.folds() || fact.into.is_none());
        let own = history.records.iter().filter(is_own).map(|kept| kept.record);
        for record in own.chain(fact.into) {
            let Some(view) = self.outbox.view(record).filter(|view| view.waiting > 0) else { continue };
            let why = if view.is_in_flight { "in_flight" } else { view.why.label() };
            let number = if fact.into == Some(record) {
                std::mem::take(&mut in_summary)
            } else {
                let own = view.waiting.min(rest);
                rest -= own;
                own
            };
            if number > 0 {
                *waiting.entry(why).or_insert(0) += number;
            }
        }
        let others = in_summary + fact.lost.0 + fact.rejected + waiting.values().sum::<u64>();
        let shown = fact.shown.min(fact.received.saturating_sub(others));
        if fact.lost.0 > 0 {
            lost.insert(fact.lost.1, fact.lost.0);
        }
        // Dropped occurrences that a later write of their record has counted are shown.
        let suppressed = fact.dropped.min(fact.received.saturating_sub(shown + others));
        if suppressed > 0 {
            lost.insert("suppressed", suppressed);
        }
        Part {
            reason: fact.reason.clone(),
            event_type: fact.event_type.clone(),
            source: fact.source(),
            rule: fact.budget.and_then(|_| policy.rule(&sample(history, fact)).0),
            received: fact.received,
            shown,
            in_summary,
            summary: fact.into.map(|into| self.name_of(history, into)).unwrap_or_default(),
            waiting,
            lost,
            rejected: fact.rejected,
            last_received: stamp(fact.last_received),
            last_shown: fact.last_shown.map(stamp),
            ..Part::default()
        }
    }

    fn budget(&self, history: &History, fact: &Fact, now: Now, policy: &Policy) -> Option<Budget> {
        let (source, budget, _) = fact.budget?;
        let event = sample(history, fact);
        // The rules may have changed since the newest decision.
        let (rule, settings) = policy.rule(&event);
        let rate = Rate { qps: settings.qps, burst: settings.burst_size };
        let is_prepaid = settings.suppression == Suppression::Drop;
        let texts = settings.spam_key.iter().map(|field| field_value(&event, *field));
        let key = texts.filter(|text| !text.is_empty()).map(ToOwned::to_owned).collect();
        let (mut tokens, mut next, mut queue) = (rate.burst as usize, Some(now.mono), Vec::new());
        if is_prepaid {
            if let Some(correlator) = self.sources.peek(&source) {
                let (left, at) = correlator.tokens(budget, rate, now.mono);
                (tokens, next) = (whole(left), at);
            }
        } else if let Some(known) = self.outbox.tokens(source, budget, now.mono) {
            (tokens, next) = (known.left, known.next);
            let reason = |record| {
                let event = self.outbox.glimpse(record)?.event;
                Some(event.reason.clone())
            };
            queue = known.queue.into_iter().filter_map(reason).collect();
        }
        Some(Budget {
            key,
            rule,
            suppression: if is_prepaid { "drop" } else { "defer" },
            tokens,
            burst: rate.burst,
            seconds_per_token: 1.0 / rate.qps,
            next_token: next.map(|at| coming(now.wall_at(at))),
            spent_on: BTreeMap::from([(fact.reason.clone(), fact.spent)]),
            queue,
        })
    }

    fn records(&self, history: &History, query: &Query) -> Vec<Record> {
        let meant = || history.facts.iter().enumerate().filter(|(_, fact)| query.means(history, fact));
        let of_query =
            |kept: &&Kept| meant().any(|(number, fact)| kept.fact == number || fact.into == Some(kept.record));
        let record = |kept: &Kept| {
            let view = self.outbox.view(kept.record);
            let known = self.known(kept);
            let pending = view.as_ref().map_or(0, |view| view.waiting);
            let state = match &view {
                Some(view) if view.is_in_flight => "in-flight",
                Some(view) if view.waiting > 0 => "waiting",
                _ if known.is_gone => "gone",
                _ if known.has_ended && !known.stored => "ended",
                _ if known.stored => "settled",
                _ => "unwritten",
            };
            Record {
                name: self.name_of(history, kept.record),
                form: form(kept.kind),
                reason: history.facts[kept.fact].reason.clone(),
                count: (kept.record.0 & ELSEWHERE == 0).then_some(known.count),
                pending,
                state,
                why: view.as_ref().filter(|view| view.waiting > 0).map(|view| view.why.label()),
                resource_version: view.and_then(|view| view.version),
                messages: kept.messages.iter().map(|(_, message)| message.clone()).collect(),
            }
        };
        history.records.iter().filter(of_query).map(record).collect()
    }

    /// Returns what is known of a record. A digest may count occurrences of several objects; its writes are noted at one.
    fn known<'a>(&'a self, kept: &'a Kept) -> &'a Kept {
        let is_elsewhere = kept.kind == Kind::Digest && !kept.stored && self.outbox.view(kept.record).is_none();
        if is_elsewhere { self.explain.stored(kept.record).unwrap_or(kept) } else { kept }
    }

    fn name_of(&self, history: &History, record: RecordId) -> SmolStr {
        let known = history.kept(record).map(|kept| self.known(kept).name.clone()).filter(|name| !name.is_empty());
        known
            .or_else(|| Some(self.outbox.name(record)?.0))
            .or_else(|| self.outbox.digest_name(record))
            .unwrap_or_default()
    }

    fn decisions(&self, history: &History, query: &Query, now: Now) -> Vec<Decided> {
        let of_query = |decision: &&crate::explain::Decision| query.means(history, &history.facts[decision.fact]);
        let decided = |decision: &crate::explain::Decision| Decided {
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

    /// Returns the selected facts with the most occurrences within a window.
    fn noisiest(&mut self, most: usize, window: Window, is_wanted: Wanted<'_>, now: Now) -> Vec<Row> {
        let facts = self.kept().histories().flat_map(|history| history.facts.iter().map(move |fact| (history, fact)));
        let wanted = facts.filter(|(history, fact)| is_wanted(history, fact));
        let mut facts: Vec<_> =
            wanted.map(|(history, fact)| (fact.rates.received.within(window, now.mono), history, fact)).collect();
        facts.sort_by_key(|(received, ..)| std::cmp::Reverse(*received));
        facts.truncate(most);
        let row = |(received, history, fact): (u64, &History, &Fact)| Row {
            namespace: history.namespace.clone(),
            object: format!("{}/{}", history.kind, history.name),
            reason: fact.reason.clone(),
            component: fact.component.clone(),
            per_second: fact.rates.received.per_second(now.mono),
            received,
            writes: fact.rates.writes.within(window, now.mono),
            lost: fact.lost.0 + fact.dropped,
        };
        facts.into_iter().filter(|(received, ..)| *received > 0).map(row).collect()
    }
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
        (0..self.count()).map(|index| self.with(index, |shard, now| shard.explain(query, now, &policy))).collect()
    }

    /// Notes refused occurrences of an event that could be decoded.
    pub fn note_rejection(&self, event: &Event, occurrences: u32, reason: RejectReason, text: &str) {
        let index = self.shard_of(event);
        self.with(index, |shard, now| shard.note_rejection(event, occurrences, reason, text, now));
    }

    /// Notes a refused change of an event, with the text of the response to its client.
    pub fn note_refused_change(&self, event: &Event, change: &str, text: &str) {
        let text = format!("{change}: {text}");
        self.with(self.shard_of(event), |shard, now| shard.note_refused_change(event, &text, now));
    }

    /// Returns the selected facts with the most occurrences within a window.
    pub fn noisiest(&self, most: usize, window: Window, is_wanted: Wanted<'_>) -> Vec<Row> {
        let rows = (0..self.count())
            .flat_map(|index| self.with(index, |shard, now| shard.noisiest(most, window, is_wanted, now)));
        let mut rows: Vec<Row> = rows.collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.received));
        rows.truncate(most);
        rows
    }

    /// Returns the facts of the last hour of which the upstream shows nothing, in namespaces that the caller may see.
    pub fn unseen(&self, is_seen: &dyn Fn(&str) -> bool) -> Unseen {
        let now = self.clock().now().mono;
        let each = (0..self.count()).map(|index| self.with(index, |shard, _| shard.kept().unseen(is_seen, now)));
        each.fold(Unseen::default(), Unseen::plus)
    }

    /// Returns occurrences, writes and losses per minute, the newest first.
    pub fn flow(&self) -> [[u64; MINUTES]; 3] {
        let (now, mut sum) = (self.clock().now().mono, [[0; MINUTES]; 3]);
        for index in 0..self.count() {
            let flow = self.with(index, |shard, _| shard.kept().flow(now));
            for (sum, number) in sum.iter_mut().flatten().zip(flow.into_iter().flatten()) {
                *sum += u64::from(number);
            }
        }
        sum
    }

    /// Returns the groups of similar events of each shard. The first of each shard counts those beyond the limit.
    pub fn groups(&self) -> Vec<Vec<Group>> {
        (0..self.count()).map(|index| self.with(index, |shard, _| shard.kept().groups().to_vec())).collect()
    }

    /// Returns how often each rule was chosen since the last reload. The first counts occurrences that no rule matches.
    pub fn rule_hits(&self) -> Vec<u64> {
        let mut sum = Vec::new();
        for index in 0..self.count() {
            self.with(index, |shard, _| {
                for (place, hits) in shard.kept().rule_hits().iter().enumerate() {
                    if sum.len() <= place {
                        sum.resize(place + 1, 0);
                    }
                    sum[place] += hits;
                }
            });
        }
        sum
    }

    /// Returns the bytes kept for `explain`.
    pub fn explain_bytes(&self) -> usize {
        (0..self.count()).map(|index| self.look(index, |shard| shard.explain.bytes())).sum()
    }

    /// Returns the mirror, which copies all occurrences to a second configuration if there is one.
    pub fn mirror(&self) -> &Mirror {
        &self.0.mirror
    }

    /// Returns the tap on all occurrences.
    pub fn tap(&self) -> &Tap {
        &self.0.tap
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::correlator::KeySecret;
    use crate::outbox::{Applied, Entry, Fault, Refusal, RefusalReason, Request, Retry};
    use crate::shard::Settings;
    use crate::status::Status;

    const MAX: usize = 1 << 20;

    /// Fault: digests, and records of a DELETE without an answer, were not known after a restart.
    #[test]
    fn a_record_of_an_earlier_process_is_known() {
        let mut settings = Settings::default();
        settings.explain.enabled = true;
        let (now, policy) = (Now::at(1), Policy::default());
        for (kind, may_be_deleted) in [(Kind::Plain, false), (Kind::Plain, true), (Kind::Digest, false)] {
            let [mut earlier, mut later] = [1, 2].map(|seed| Shard::new(KeySecret(1, 2), settings.clone(), seed));
            earlier.keep_journal();
            let mut event = Event { reason: "R".into(), count: 1, ..Event::default() };
            event.involved_object.name = "web-0".into();
            assert!(earlier.accept(event, 3, now, &policy).is_ok());
            let (_, entry) = earlier.take_changes().records.pop().unwrap();
            later.restore(Entry { kind, may_be_deleted, ..(*entry.unwrap()).clone() }, now, &policy);
            let query = Query { name: "web-0".to_owned(), ..Query::default() };
            let known = later.explain(&query, now, &policy);
            let part = &known.objects[0].reasons[0];
            assert_eq!((part.received, part.shown, part.waiting.values().sum::<u64>()), (3, 0, 3));
            assert_eq!(later.kept().groups()[1].totals.received, 3);
        }
    }

    fn event(random: &mut fastrand::Rng) -> Event {
        let text = |random: &mut fastrand::Rng, most: usize| "x".repeat(random.usize(..most));
        let mut event = Event { message: text(random, 5000).into(), ..Event::default() };
        event.reason = format!("R{}{}", random.u32(..60), text(random, 200)).into();
        event.metadata.namespace = format!("ns-{}", random.u32(..40)).into();
        event.metadata.name = format!("n-{}", random.u64(..)).into();
        event.involved_object.name = format!("o-{}{}", random.u32(..400), text(random, 300)).into();
        event.involved_object.uid = text(random, 80).into();
        event.source.component = format!("c-{}{}", random.u32(..9), text(random, 200)).into();
        event
    }

    fn answer(request: &Request, random: &mut fastrand::Rng) -> Answer {
        let status = || Box::new(Status::bad_request("no ".repeat(400)));
        match (random.u32(..10), request) {
            (0, _) => Answer::Refused(Refusal { reason: RefusalReason::Invalid, status: status() }),
            (1, _) => Answer::Retry(Retry { after: None, applied: Applied::No, fault: Fault::ServerError }),
            (_, Request::Create { event, .. }) => {
                let mut stored = event.clone();
                stored.metadata.resource_version = "1".into();
                Answer::Stored(stored)
            }
            (2, Request::Patch { .. }) => Answer::Missing,
            (_, Request::Patch { name, namespace, patch, .. }) => {
                let mut stored = Event { count: patch.count, ..Event::default() };
                (stored.metadata.name, stored.metadata.namespace) = (name.clone(), namespace.clone());
                stored.metadata.resource_version = "2".into();
                Answer::Stored(Box::new(stored))
            }
            (_, Request::Read { .. } | Request::Delete { .. }) => Answer::Missing,
        }
    }

    /// Occurrences, refusals, all kinds of answers and digests, of sources that move from shard to shard.
    #[test]
    fn memory_stays_within_its_budget_whatever_arrives() {
        let mut settings = Settings::default();
        settings.explain.enabled = true;
        settings.explain.max_bytes = NonZeroUsize::new(MAX).unwrap();
        let policy = Policy {
            base: crate::correlator::Settings { burst_size: 2, ..Default::default() }.into(),
            rules: Vec::new(),
        };
        let (clock, count) = (Clock::manual(1_700_000_000_000_000_000), NonZeroUsize::new(4).unwrap());
        let shards = Shards::new(count, &settings, policy, clock.clone(), KeySecret(1, 2), 1);
        let mut random = fastrand::Rng::with_seed(7);
        let mut largest = 0;
        for round in 0..400 {
            for _ in 0..25 {
                let event = event(&mut random);
                match random.u32(..8) {
                    0 => shards.note_rejection(&event, 3, RejectReason::Invalid, &"why ".repeat(400)),
                    1 => shards.note_refused_change(&event, "PUT", &"why ".repeat(400)),
                    // Refused if there is no room.
                    _ => drop(shards.accept(event, 1 + random.u32(..3))),
                }
            }
            clock.advance(Duration::from_secs(random.u64(..200)));
            for index in 0..shards.count() {
                while let Some(write) = shards.with(index, |shard, now| shard.next_write(now)) {
                    let answer = answer(&write.request, &mut random);
                    shards.settle(index, write.record, answer);
                }
            }
            // As each turn of delivery does.
            for index in 0..shards.count() {
                shards.with(index, |shard, _| shard.trim());
            }
            largest = largest.max(shards.explain_bytes());
            assert!(shards.explain_bytes() <= MAX, "{} in round {round}", shards.explain_bytes());
        }
        assert!(largest > MAX / 2, "the budget was not reached: {largest}");
        let groups: usize = shards.groups().iter().map(Vec::len).sum();
        assert!(groups < 3000, "{groups} groups do not fit into a quarter of the budget");
    }
}
