//! One shard: the correlators of the sources hashed to it, their outbox and their ledger. A pure value; time is handed
//! in.
//!
//! A shard handles an occurrence without any I/O: [`Shard::accept`] correlates it and owes the write. Delivery calls
//! [`Shard::next_write`] and [`Shard::settle`]. `replay` and the property tests drive the same value through simulated
//! weeks.

mod admission;
mod deleted;
mod explain;
mod history;
mod pause;
#[cfg(test)]
mod pause_tests;
mod persistence;
mod lines;
mod listed;
mod metrics;
mod mirror;
mod prepared;
mod settings;
mod shared;
mod sizes;
mod storms;
mod shards;
mod view;

pub use admission::{Unable, Writer};
pub use history::Listed;
pub use metrics::Metrics;
pub use mirror::{Mirror, Shown};
pub use pause::{Handle, Lookup, PausedRecord};
pub use settings::Settings;
pub use shards::{Shards, Waiting};
pub use sizes::Sizes;
pub use storms::Storms;
pub use view::{Noisiest, Row};

pub use crate::outbox::TicketOutcome;

use prepared::Prepared;
use storms::LostStorms;

use crate::clock::{Mono, Now};
use crate::correlator::{
    Correlation, Correlator, Decision, Fold, Key, KeySecret, LruMap, Messages, Observation, Policy, Rate, Settled,
    Suppression, Verdict,
};
use crate::event::Event;
use crate::explain::{Arrival, Ruling, Store, Verdict as Note};
use crate::ledger::{Balance, Ledger, RejectReason};
use crate::limits::Share;
use crate::outbox::{
    self, Answer, ClientLine, Feedback, Forgotten, Kind, LostReason, Offer, Outbox, Settlement, Why, Write,
};

/// LIMIT: sources evicted in one call, while all other callers wait for the shard.
const TRIMMED: usize = 16;

/// More combined records than can begin at one time. After a clock was set back further than that, names are those of
/// the new time.
const NAMES_AT_ONCE: i64 = 1_000;

/// A part of all sources, with their records.
#[derive(Debug)]
pub struct Shard {
    secret: KeySecret,
    settings: Settings,
    // LIMIT: `max_sources`, and `max_tracked_keys` over all sources; both together with the other shards. A shard may
    // always keep one source. Enforced by `trim`, after each event and in each turn of delivery.
    sources: LruMap<Correlator>,
    source_count: Share,
    tracked_keys: Share,
    /// Entries evicted with their source, and those that it had evicted before.
    evicted_keys: u64,
    /// How far clients have counted: by their requests to this process, by upstream objects, or by the spool.
    // LIMIT: `LINES_MAX`, kept by `change`.
    lines: LruMap<lines::Total>,
    next_record: u64,
    /// The time in the newest name of a combined record, in unix nanoseconds.
    newest_name: i64,
    outbox: Outbox,
    ledger: Ledger,
    explain: Store,
    /// Whether the shard is closed: it refuses further occurrences.
    closed: bool,
    /// Whether delivery must be woken for a write that is due earlier than it knows.
    wakes_delivery: bool,
    /// Pairs of a folded record and the record that it folded into, since the last call of `take_folds`; `None` if
    /// folds are not noted.
    folds: Option<Vec<(outbox::RecordId, outbox::RecordId)>>,
    lost_storms: LostStorms,
    /// What clients have deleted, until the watch shows it.
    deleted: deleted::Deletions,
}

labelled! {
    /// The outcome of an accepted occurrence; the `Eventweir-Outcome` header.
    #[derive(Hash)]
    pub enum Outcome {
        /// It began a record.
        Created = "created",
        /// It counts on the record of an equal event.
        Counted = "counted",
        /// It counts on a combined record.
        Combined = "combined",
        /// Its budget is empty: it is kept and written later.
        Deferred = "deferred",
        /// Its budget is empty and `suppression` is `drop`.
        Dropped = "dropped",
    }
}

impl From<Outcome> for Note {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Created => Self::Created,
            Outcome::Counted => Self::Counted,
            Outcome::Combined => Self::Combined,
            Outcome::Deferred => Self::Deferred,
            Outcome::Dropped => Self::Dropped,
        }
    }
}

/// An accepted occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accepted {
    /// The outcome.
    pub outcome: Outcome,
    /// The record that it counts on, even if that is never written.
    pub record: outbox::RecordId,
}

/// The outbox has no room for a new record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the outbox has no room for a new record of this source")]
pub struct Full;

/// A record as its shard knows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// The record.
    pub record: outbox::RecordId,
    /// Its name upstream.
    pub name: smol_str::SmolStr,
    /// Whether the upstream is known to hold it.
    pub stored: bool,
    /// Whether the upstream has held it, and it was deleted or has expired since.
    pub is_gone: bool,
    /// Its desired state, while it is unsettled.
    pub unsettled: Option<Event>,
}

impl Shard {
    /// Creates an empty shard.
    pub fn new(secret: KeySecret, settings: Settings, seed: u64) -> Self {
        let outbox = Outbox::new(settings.outbox.clone(), seed);
        Self {
            secret,
            sources: LruMap::default(),
            source_count: Share::default(),
            tracked_keys: Share::default(),
            evicted_keys: 0,
            lines: LruMap::default(),
            next_record: 0,
            newest_name: i64::MIN,
            explain: Store::new(settings.explain, secret),
            settings,
            outbox,
            ledger: Ledger::default(),
            closed: false,
            wakes_delivery: false,
            folds: None,
            lost_storms: LostStorms::default(),
            deleted: deleted::Deletions::default(),
        }
    }

    /// Notes folded records from now on, for [`take_folds`](Self::take_folds).
    pub fn note_folds(&mut self) {
        self.folds = Some(Vec::new());
    }

    /// Returns the records that have folded since the last call, each with the record that it folded into.
    pub fn take_folds(&mut self) -> Vec<(outbox::RecordId, outbox::RecordId)> {
        self.folds.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Creates an empty shard with the same secret and settings, which leaves storm records to this one: see
    /// [`hand_over`](Self::hand_over). Limits apply to both shards together.
    pub fn another(&self, seed: u64) -> Self {
        let mut outbox = self.outbox.another(seed);
        outbox.fold_elsewhere();
        Self {
            source_count: self.source_count.another(),
            tracked_keys: self.tracked_keys.another(),
            outbox,
            explain: self.explain.another(),
            ..Self::new(self.secret, self.settings.clone(), seed)
        }
    }

    /// Writes carry this writer's tags from now on; see [`Outbox::identify`].
    pub fn identify(&mut self, writer: &str) {
        self.outbox.identify(writer);
    }

    /// Applies reloaded settings, and rules instead of those `before`, without losing state. [`trim`](Self::trim) evicts
    /// what exceeds them.
    pub fn reload(&mut self, settings: Settings, before: &Policy, policy: &Policy, now: Now) {
        self.outbox.reload(&settings.outbox, self.secret, [before, policy], now);
        self.forget_folded(now);
        for (_, correlator) in self.sources.iter_mut() {
            let tracked = correlator.tracked_keys();
            correlator.follow(policy, now.mono);
            self.tracked_keys.replace(tracked, correlator.tracked_keys());
        }
        self.explain.set_settings(settings.explain, self.ledger.total_rejected(), now);
        self.settings = settings;
    }

    /// Counts occurrences that were refused before their source was known.
    pub fn reject(&mut self, reason: RejectReason, occurrences: u64) {
        self.ledger.receive(occurrences);
        self.ledger.reject(reason, occurrences);
    }

    /// Correlates `occurrences` equal occurrences of a valid event and owes the write. The event's count is the total
    /// that its client has stated under the event's name, or 0 if the client does not count.
    ///
    /// # Errors
    /// [`Full`] when the event would begin a new record and the outbox is at its limit. Nothing changes then, except
    /// that the ledger counts the occurrences as rejected.
    pub fn accept(&mut self, event: Event, occurrences: u32, now: Now, policy: &Policy) -> Result<Accepted, Full> {
        let prepared = Prepared::new(self.secret, &event, policy, "");
        self.accept_prepared(&prepared, event, occurrences, now)
    }

    /// Accepts as [`accept`](Self::accept) does, with the event's keys known.
    fn accept_prepared(
        &mut self,
        prepared: &Prepared<'_>,
        mut event: Event,
        occurrences: u32,
        now: Now,
    ) -> Result<Accepted, Full> {
        let Prepared { source, keys, settings, cache_size, rule, caller } = *prepared;
        let mut line = None;
        if settings.correlation == Correlation::On {
            // The count of the incoming event is the total that its client has stated.
            line = self.outbox.writes_lines().then(|| ClientLine::of(&event));
            // eventweir writes correlated records under its own name, so the client's field ownership does not apply.
            event.metadata.managed_fields = None;
            event.count = i32::try_from(occurrences).unwrap_or(i32::MAX);
        }
        self.ledger.receive(u64::from(occurrences));
        if self.closed || !self.outbox.has_room(source, now) && !self.would_fold(prepared, &event, now) {
            self.ledger.reject(RejectReason::Full, u64::from(occurrences));
            self.note_rejection(&event, occurrences, RejectReason::Full, "", now);
            return Err(Full);
        }
        let (secret, message, namespace) = (self.secret, event.message.clone(), event.metadata.namespace.clone());
        let correlator = self.sources.get_or_insert_mut(source, || Correlator::new(secret, cache_size));
        correlator.cache_size = cache_size;
        let before = correlator.tracked_keys();
        // Combined records of one shard have the name of their object and a time, which many events of a batch share.
        let is_taken = (0..=NAMES_AT_ONCE).contains(&self.newest_name.saturating_sub(now.wall));
        let named = if is_taken { Now { wall: self.newest_name.saturating_add(1), ..now } } else { now };
        let decision = correlator.correlate(&mut event, &keys, occurrences, named, settings, &mut self.next_record);
        if decision.fold == Fold::Combined && decision.known.count == 0 {
            self.newest_name = named.wall;
        }
        self.tracked_keys.replace(before, correlator.tracked_keys());
        self.trim();
        // With normalized messages, repeats may have different messages.
        let repeat = (settings.messages == Messages::Exact).then_some(keys.event);
        let record = decision.record;
        let arrival = Arrival { record, repeat, caller, event: &event, message, number: occurrences };
        let received = self.explain.receive_of(arrival, now);
        let accepted = self.owe(prepared, &decision, event, occurrences, now);
        if let Some(line) = line {
            self.note_line(&decision, source, &namespace, line, settings);
        }
        if let Some(received) = received {
            let rate = Rate { qps: settings.qps, burst: settings.burst_size };
            let is_prepaid = settings.suppression == Suppression::Drop;
            let paid = is_prepaid.then_some(accepted.outcome != Outcome::Dropped);
            let (key, budget, before) = (decision.key, decision.budget, decision.known.count);
            let keys = (settings.correlation == Correlation::On).then_some((key, budget));
            let kind = if decision.fold == Fold::Combined { Kind::Combined } else { Kind::Plain };
            let (verdict, number) = (accepted.outcome.into(), occurrences);
            let ruling = Ruling { verdict, number, record, kind, caller, source, keys, paid, rule, before };
            let (outbox, sources) = (&self.outbox, &self.sources);
            let next_token = || match is_prepaid {
                true => sources.peek(&source)?.tokens(decision.budget, rate, now.mono).1,
                false => outbox.next_token(source, decision.budget, now.mono),
            };
            self.explain.decide(received, ruling, now, next_token);
        }
        // The record may have folded.
        self.forget_folded(now);
        Ok(accepted)
    }

    fn would_fold(&self, prepared: &Prepared<'_>, event: &Event, now: Now) -> bool {
        let Prepared { source, keys, settings, .. } = prepared;
        self.sources.peek(source).is_some_and(|correlator| correlator.find(event, keys, now, settings).is_some())
    }

    fn owe(
        &mut self,
        prepared: &Prepared<'_>,
        decision: &Decision,
        event: Event,
        occurrences: u32,
        now: Now,
    ) -> Accepted {
        let Prepared { source, settings, .. } = *prepared;
        let record = decision.record;
        let outcome = match decision.fold {
            Fold::Created => Outcome::Created,
            Fold::Counted => Outcome::Counted,
            Fold::Combined => Outcome::Combined,
        };
        let rate = match decision.verdict {
            Verdict::Pass => None,
            Verdict::Owe { rate } => Some(rate),
            Verdict::Drop => {
                self.lose(LostReason::Suppressed, u64::from(occurrences), now);
                return Accepted { outcome: Outcome::Dropped, record };
            }
        };
        let offer = Offer {
            record,
            source,
            key: decision.key,
            occurrences,
            fold: decision.fold,
            known: decision.known,
            rate,
            budget: decision.budget,
            group: settings.group,
            messages: settings.messages,
        };
        let (why, is_news) = self.outbox.offer(offer, event, now);
        let outcome = if why == Why::Budget { Outcome::Deferred } else { outcome };
        self.wakes_delivery |= is_news
            && match why {
                Why::Turn | Why::Budget => true,
                Why::Coalescing => self.outbox.is_due_early(record),
                Why::InFlight | Why::Group | Why::Retry => false,
            };
        Accepted { outcome, record }
    }

    /// Returns the record that one more occurrence of `event` would count on, if it is tracked.
    pub fn find(&self, event: &Event, now: Now, policy: &Policy) -> Option<Found> {
        let correlator = self.sources.peek(&self.secret.source(event))?;
        let settings = policy.select(event);
        let observation = correlator.find(event, &self.secret.keys(event, settings), now, settings)?;
        Some(self.found(observation))
    }

    fn found(&self, observation: &Observation) -> Found {
        let mut unsettled = self.outbox.unsettled(observation.record).cloned();
        if let Some(event) = &mut unsettled {
            event.metadata.resource_version = observation.resource_version.clone();
        }
        let name = unsettled.as_ref().map_or_else(|| observation.name.clone(), |event| event.metadata.name.clone());
        let seen = self.outbox.view(observation.record);
        let stored = seen.map_or(observation.stored, |seen| seen.shown.is_some());
        let is_gone = !stored && unsettled.is_none() && observation.tag > 0;
        Found { record: observation.record, name, stored, is_gone, unsettled }
    }

    /// Returns the next request to send at `now`, if any.
    pub fn next_write(&mut self, now: Now) -> Option<Write> {
        self.trim();
        if self.outbox.next_wakeup(now.mono).is_none_or(|at| at > now.mono) {
            return None;
        }
        let mut write = self.outbox.next_write(now);
        self.forget_folded(now);
        if let Some(write) = &mut write {
            self.annotate(write);
        }
        write
    }

    /// Returns when to call [`next_write`](Self::next_write) again.
    pub fn next_wakeup(&self, now: Mono) -> Option<Mono> {
        self.outbox.next_wakeup(now)
    }

    /// Whether a Warning is ready to be sent.
    pub fn has_warning(&self) -> bool {
        self.outbox.has_warning()
    }

    /// Whether anything other than a Warning is ready to be sent; see [`Outbox::has_normal`].
    pub fn has_normal(&self) -> bool {
        self.outbox.has_normal()
    }

    /// Applies the answer to a write.
    pub fn settle(&mut self, record: outbox::RecordId, answer: Answer, now: Now) -> Settlement {
        let noticed = self.notice(record, Some(&answer), now);
        if let Answer::Stored(object) = &answer {
            self.read_lines(object);
        }
        let settlement = self.outbox.settle(record, answer, now);
        if let Some(noticed) = noticed {
            self.note_answer(record, &noticed, &settlement, now);
        }
        self.carry_out(&settlement, now);
        settlement
    }

    /// Applies an answer's settlement to the ledger and the correlator.
    fn carry_out(&mut self, settlement: &Settlement, now: Now) {
        self.ledger.write(settlement.written);
        if let Some((reason, lost)) = settlement.lost {
            self.lose(reason, lost.total(), now);
        }
        if let Some(feedback) = &settlement.feedback {
            let Feedback { source, key, record, settled } = feedback;
            self.change_correlator(*source, |correlator| correlator.settle(*key, *record, settled));
        }
        self.forget_folded(now);
    }

    /// Sends writes without waiting for tokens or intervals from now on, because the process is about to end.
    pub fn drain(&mut self, now: Now) {
        self.outbox.drain(now);
        self.forget_folded(now);
    }

    /// Gives up the records that the drain could not deliver. They count as lost, or as unknown if a request of theirs
    /// is in doubt. Later occurrences are refused.
    pub fn abandon(&mut self) {
        self.closed = true;
        let (lost, unknown) = self.outbox.abandon();
        self.ledger.lose(LostReason::Shutdown, lost.total());
        self.ledger.lose(LostReason::Unknown, unknown.total());
    }

    /// Whether anything is still owed to the upstream.
    pub fn owes(&self) -> bool {
        self.outbox.owes()
    }

    /// Returns the ledger and the waiting occurrences.
    pub fn balance(&self) -> Balance {
        Balance { ledger: self.ledger.clone(), waiting: self.outbox.waiting() }
    }

    /// Returns the unsettled records, with their waiting occurrences.
    pub fn pending(&self) -> impl Iterator<Item = (&Event, u64)> {
        self.outbox.pending()
    }

    /// Returns the sizes of everything that the shard holds.
    pub fn sizes(&self) -> Sizes {
        let mut sizes = Sizes::default();
        self.add_to(&mut sizes);
        sizes
    }

    fn add_to(&self, sizes: &mut Sizes) {
        let (groups, folded) = self.outbox.groups_and_folded();
        let evicted = self.sources.iter().map(|(_, correlator)| correlator.evicted_keys());
        sizes.sources += self.sources.len();
        sizes.tracked_keys += self.tracked_keys.own();
        sizes.evicted_keys += evicted.fold(self.evicted_keys, u64::wrapping_add);
        sizes.records += self.outbox.record_count();
        sizes.bytes += self.outbox.bytes();
        sizes.budgets += self.outbox.budgets();
        sizes.groups += groups;
        sizes.folded += folded;
        sizes.lines += self.lines.len();
    }

    /// Forgets records that have folded into a digest, so that their next occurrence begins a new record.
    fn forget_folded(&mut self, now: Now) {
        for forgotten in self.outbox.take_forgotten() {
            self.note_fold(&forgotten, now);
            if let Some(folds) = &mut self.folds {
                folds.push((forgotten.record, forgotten.into));
            }
            let Forgotten { source, key, record, .. } = forgotten;
            self.change_correlator(source, |correlator| correlator.settle(key, record, &Settled::Forgotten));
        }
    }

    /// Changes the correlator of a source, if that is still tracked.
    fn change_correlator(&mut self, source: Key, change: impl FnOnce(&mut Correlator)) {
        if let Some(correlator) = self.sources.peek_mut(&source) {
            let before = correlator.tracked_keys();
            change(correlator);
            self.tracked_keys.replace(before, correlator.tracked_keys());
        }
    }

    /// Evicts a few least recently used sources if all shards together exceed a limit and this shard exceeds its even
    /// part. Returns whether more may have to be evicted.
    pub fn trim(&mut self) -> bool {
        self.source_count.set(self.sources.len());
        self.explain.make_room();
        for _ in 0..TRIMMED {
            let too_many = self.source_count.is_over(self.settings.max_sources.get())
                || self.tracked_keys.is_over(self.settings.max_tracked_keys.get());
            if !too_many || self.sources.len() <= 1 {
                return false;
            }
            let Some((_, forgotten)) = self.sources.pop_lru() else { return false };
            self.source_count.set(self.sources.len());
            self.tracked_keys -= forgotten.tracked_keys();
            self.evicted_keys += forgotten.evicted_keys() + forgotten.tracked_keys() as u64;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Arc;

    use super::*;
    use crate::correlator::{self, Matches, Pattern, Rule};
    use crate::outbox::Request;

    /// Fault: an event for which an earlier rule decided cut the caches of its whole source to the size of that rule, so
    /// repeats of its other events began new records.
    #[test]
    fn an_earlier_rule_for_some_events_of_a_source_does_not_shrink_its_caches() {
        let sized = |size| {
            let lru_cache_size = NonZeroUsize::new(size).unwrap();
            Arc::new(correlator::Settings { lru_cache_size, ..correlator::Settings::default() })
        };
        let some = |text: &str| vec![Pattern::Exact(text.into())];
        let kubelet = Matches { component: some("kubelet"), ..Matches::default() };
        let started = Matches { reason: some("Started"), ..kubelet.clone() };
        let rules = [(started, sized(10)), (kubelet, sized(1000)), (Matches::default(), sized(1))];
        let rules = rules.into_iter().map(|(matches, settings)| Rule { matches, settings }).collect();
        let policy = Policy { base: sized(10), rules };
        let mut shard = Shard::new(KeySecret(1, 2), Settings::default(), 1);
        let now = Now::at(1_000_000_000);
        let event = |reason: &str, object: u32| {
            let mut event = Event { reason: reason.into(), ..Event::default() };
            event.source.component = "kubelet".into();
            event.involved_object.name = smol_str::format_smolstr!("web-{object}");
            event
        };
        for outcome in [Outcome::Created, Outcome::Counted] {
            for object in 0..60 {
                let accepted = shard.accept(event("BackOff", object), 1, now, &policy).unwrap();
                assert_eq!(accepted.outcome, outcome, "{object}");
            }
            shard.accept(event("Started", 0), 1, now, &policy).unwrap();
        }
        assert_eq!(shard.sizes().evicted_keys, 0);
    }

    impl Shard {
        /// Writes all that is due to an upstream that stores it. Returns what was stored.
        pub(crate) fn write_all(&mut self, now: Now) -> Vec<Event> {
            let mut all = Vec::new();
            while let Some(write) = self.next_write(now) {
                let stored = match write.request {
                    Request::Create { event, .. } => *event,
                    Request::Patch { patch, .. } => {
                        Event { count: patch.count, message: patch.message, ..Event::default() }
                    }
                    Request::Read { .. } | Request::Delete { .. } => unreachable!("nothing fails"),
                };
                self.settle(write.record, Answer::Stored(Box::new(stored.clone())), now);
                assert!(self.balance().is_exact());
                all.push(stored);
            }
            all
        }
    }
}
