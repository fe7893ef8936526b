//! The outbox: records whose desired state is ahead of what the upstream has acknowledged. A pure state machine.
//!
//! It holds state, not a log: a thousand repeats during an outage become one patch. Each record has at most one request
//! in flight; what arrives meanwhile coalesces. How to drive it:
//! - [`Outbox::offer`] after each decision of a correlator;
//! - [`Outbox::next_write`] whenever delivery lets a request go, until it returns `None`;
//! - [`Outbox::settle`] with the answer to each of these writes, exactly once;
//! - [`Outbox::next_wakeup`] returns when to call `next_write` again if none of the above happens;
//! - [`Outbox::take_forgotten`] after each of the above: records that the correlators must forget.

mod budget;
mod admission;
mod digest;
mod fold;
mod folded;
mod forget;
mod api_group;
mod groups;
mod history;
mod journal;
mod lines;
mod view;
mod offer;
mod ready;
mod record;
mod reload;
mod request;
mod settings;
mod settle;
mod shared_buckets;
mod upstream_state;
mod storm;
mod tag;
mod tickets;
mod timers;
mod usage;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use smol_str::SmolStr;

pub use crate::correlator::{Known, Patch, RecordId};
pub use crate::ledger::{LostReason, Occurrences, Why, WrittenAs};
use crate::limits::Share;
pub use api_group::{UpstreamGroup, count};
pub use digest::DIGEST_REASON;
pub use folded::FOLDED_MARK;
pub use forget::{Before, Line, Rebased};
pub use groups::{GroupSettings, Leaving, Reach, Taken};
pub use history::WatchEffect;
pub use journal::{Changes, Entry};
pub use lines::{ClientLine, is_set_without_lines, line_checksum};
pub use offer::{Forgotten, Offer};
pub(crate) use ready::NORMAL_TURN;
pub use record::{Kind, backoff};
pub use request::{Answer, Applied, Fault, Refusal, Request, Retry, Write};
pub use settings::Settings;
pub use settle::{Feedback, Settlement};
pub use storm::{STORM_MARK, StormNews};
pub use tag::{Claim, MESSAGES, has_any_tag, tags};
pub use tickets::{OnTaken, Ticket, TicketOutcome};
pub use view::{RecordView, Tokens};

use budget::{Budget, BudgetId, Class, Order, Place};
use folded::FoldedTable;
use groups::Groups;
use journal::Journal;
use ready::Ready;
use record::{Phase, Record, Sent};
use tickets::Tickets;
use timers::Timer;
use upstream_state::{Call, Mark, Tags, UpstreamState};
use usage::Usage;

use crate::clock::{Mono, Now};
use crate::correlator::LruMap;
use crate::event::{ApiGroup, Event};

/// Unsettled writes of one shard. The limits apply to the outboxes of all shards together.
#[derive(Debug)]
pub struct Outbox {
    settings: Settings,
    // LIMIT: `max_records` and `max_bytes`, which the shard checks with `has_room` before it offers a new record.
    // Repeats of known records are always accepted; there are no more of them than the correlators track.
    // Boxed, because a record has 880 bytes and a hash table has up to twice as many slots as records.
    records: HashMap<RecordId, Box<Record>, foldhash::fast::FixedState>,
    // LIMIT: `max_budgets`; beyond it the least recently used idle budget is evicted, and its bucket counts as full
    // again.
    budgets: LruMap<Budget>,
    /// The budget of each digest and storm record that this process continues.
    // LIMIT: one per budget.
    digests: HashMap<RecordId, BudgetId, foldhash::fast::FixedState>,
    ready: Ready,
    groups: Groups,
    /// Whether records that wait for their group are next, before those that wait for their budget.
    is_staged_next: bool,
    /// Records that fold into storm records of another shard; `None` in the shard that has the storm records.
    // LIMIT: what one event or one turn of delivery folds; then the shard with the storm records takes it.
    leaving: Option<Vec<Leaving>>,
    folded: FoldedTable,
    // LIMIT: `NEWS_MAX`.
    storm_news: Vec<StormNews>,
    // LIMIT: one timer per record, budget and group, plus as many outdated ones.
    timers: BinaryHeap<Reverse<(Mono, Timer)>>,
    /// What the records take, for the limits over all shards.
    usage: Usage,
    /// Records that were settled since settled ones were last removed to make room.
    settled: usize,
    /// Length of `budgets`, for the limit over all shards.
    budget_count: Share,
    tickets: Tickets,
    forgotten: Vec<Forgotten>,
    /// Paused records, by the DELETEs and PUTs in progress.
    paused: Paused,
    jitter: fastrand::Rng,
    next_digest: u64,
    /// Name of this process in its tags; `None` writes records as client-go does, without tags.
    writer: Option<SmolStr>,
    /// Whether the upstream is known to keep tags.
    tags: Tags,
    journal: Journal,
    draining: bool,
}

#[derive(Debug, Default)]
struct Pause {
    /// One per DELETE or PUT in progress.
    count: u32,
    /// Whether the upstream was asked to delete the record since the first one began.
    is_deleting: bool,
    /// The newest watch event since the first one began.
    news: Option<Box<Event>>,
}

type Paused = HashMap<RecordId, Pause, foldhash::fast::FixedState>;

/// Capacity of a queue below which memory is not released.
const ROOMY: usize = 1024;

impl Outbox {
    /// Returns an empty outbox. `seed` feeds the jitter of retries.
    pub fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            records: HashMap::default(),
            budgets: LruMap::default(),
            digests: HashMap::default(),
            ready: Ready::default(),
            groups: Groups::new(seed),
            is_staged_next: true,
            leaving: None,
            folded: FoldedTable::default(),
            storm_news: Vec::new(),
            timers: BinaryHeap::new(),
            usage: Usage::default(),
            settled: 0,
            budget_count: Share::default(),
            tickets: Tickets::default(),
            forgotten: Vec::new(),
            paused: HashMap::default(),
            jitter: fastrand::Rng::with_seed(seed),
            next_digest: 0,
            writer: None,
            tags: Tags::Unproven,
            journal: Journal::default(),
            draining: false,
        }
    }

    /// Returns an empty outbox with the same settings, which shares its limits with this one.
    pub fn another(&self, seed: u64) -> Self {
        Self {
            usage: self.usage.another(),
            budget_count: self.budget_count.another(),
            groups: self.groups.another(),
            folded: self.folded.another(),
            ..Self::new(self.settings.clone(), seed)
        }
    }

    /// Returns the number of records.
    pub fn record_count(&self) -> usize {
        self.records.len()
    }

    /// Returns the bytes of the events and digests held.
    pub const fn bytes(&self) -> usize {
        self.usage.bytes()
    }

    /// Returns the number of budgets that are not known to be full.
    pub fn budgets(&self) -> usize {
        self.budgets.len()
    }

    /// Returns the number of groups with waiting records or a storm record, and of events known to have folded.
    pub fn groups_and_folded(&self) -> (usize, usize) {
        (self.groups.len(), self.folded.len())
    }

    /// Returns the budget with this id, and creates it with `make` if it is missing.
    fn budget(&mut self, id: BudgetId, make: impl FnOnce() -> Budget) -> &mut Budget {
        // LIMIT: `max_budgets`, kept by `trim_budgets`.
        self.budget_count.set(self.budgets.len() + usize::from(!self.budgets.contains(&id.0)));
        self.budgets.get_or_insert_mut(id.0, make)
    }

    fn put(&mut self, id: RecordId, record: Record) {
        self.usage.add(record.source, record.size);
        self.records.insert(id, Box::new(record));
    }

    /// Removes a record, even if it owes a write.
    fn take(&mut self, id: RecordId) -> Option<Box<Record>> {
        let record = self.records.remove(&id)?;
        if let Some(budget) = self.budgets.peek_mut(&record.budget.0) {
            budget.members -= 1;
        }
        self.usage.remove(record.source, record.size);
        Some(record)
    }

    /// Returns the desired state of a record that is not settled.
    pub fn unsettled(&self, id: RecordId) -> Option<&Event> {
        self.records.get(&id).filter(|record| !matches!(record.phase, Phase::Settled)).map(|record| &record.event)
    }

    /// Returns the desired states of all records, with the number of their waiting occurrences.
    pub fn pending(&self) -> impl Iterator<Item = (&Event, u64)> {
        self.records.values().map(|record| (&record.event, record.waiting().total()))
    }

    /// Whether a write is owed, in flight or to be retried.
    pub fn owes(&self) -> bool {
        self.records.values().any(|record| !matches!(record.phase, Phase::Settled))
    }

    /// Returns the waiting occurrences by wait reason. Iterates over all records: for scrapes and tests, not for the
    /// hot path.
    pub fn waiting(&self) -> [u64; Why::ALL.len()] {
        let mut waiting = [0; Why::ALL.len()];
        for record in self.records.values() {
            let why = record.why(&self.budgets);
            waiting[why as usize] += record.pending.total() + record.later.total();
            waiting[Why::InFlight as usize] += record.in_flight().total();
        }
        waiting
    }

    /// Puts a record into its budget's queue when its next write may follow; in a drain at once.
    fn enqueue_when_due(&mut self, id: RecordId, now: Now) {
        let is_due = self.records.get(&id).is_some_and(|record| record.next_write <= now.mono);
        if is_due || self.draining { self.enqueue(id, now) } else { self.set_record_timer(id) }
    }

    /// Puts a record into its budget's queue.
    fn enqueue(&mut self, id: RecordId, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        if self.paused.contains_key(&id) {
            record.phase = Phase::Cooling;
            return;
        }
        let budget_id = record.budget;
        let mut budget = self.budgets.get_mut(&budget_id.0);
        record.paid |= budget.as_ref().is_some_and(|budget| self.draining || budget.is_prepaid());
        let place = record.place();
        // A failed record queues behind those that have not been tried meanwhile.
        let since = if record.tries > 0 { now.mono } else { record.since };
        let class = Class::of(record.event.is_warning());
        let order = Order { rank: record.rank(place), class, since, record: id };
        record.phase = Phase::Queued(order);
        if let Some(budget) = &mut budget {
            budget.insert(order, place);
            if place == Place::Foldable && budget.foldable_len() > budget.tokens(now.mono) {
                self.fold_beyond_limit(budget_id, now);
            }
        }
        self.refile(budget_id, now.mono);
    }

    /// Puts the budget into its ready queue if it can write, or sets its timer.
    fn refile(&mut self, id: BudgetId, now: Mono) {
        let Some(budget) = self.budgets.peek_mut(&id.0) else { return };
        let class = budget.ready(now);
        if let Some(class) = class
            && budget.filed != Some(class)
        {
            self.ready.push(class, budget.source, id);
        }
        budget.filed = class;
        self.set_budget_timer(id, now);
    }

    /// Returns the next request to send at `now`, if any. Records that wait for their group or for the ceiling take turns
    /// with the others. Among each, sources take turns, and Warnings go first, except at every eighth turn; within a class,
    /// the record that has waited longest goes first.
    pub fn next_write(&mut self, now: Now) -> Option<Write> {
        self.wake(now);
        // Otherwise, while the upstream is slower than the ceiling, staged records would keep others waiting.
        for _ in 0..2 {
            let write = if self.is_staged_next { self.next_staged(now) } else { self.next_ready(now) };
            self.is_staged_next = !self.is_staged_next;
            if write.is_some() {
                return write;
            }
        }
        None
    }

    fn next_staged(&mut self, now: Now) -> Option<Write> {
        while let Some(id) = self.pop_group(now) {
            if let Some(write) = self.send(id, now) {
                return Some(write);
            }
        }
        None
    }

    fn next_ready(&mut self, now: Now) -> Option<Write> {
        while let Some((class, budget_id)) = self.ready.pop() {
            let Some(budget) = self.budgets.get_mut(&budget_id.0) else { continue };
            if budget.filed != Some(class) {
                continue; // filed elsewhere by now
            }
            budget.filed = None;
            let popped = budget.pop(now.mono);
            let write = popped.and_then(|id| self.pass(id, now));
            self.refile(budget_id, now.mono);
            if write.is_some() {
                self.ready.had_turn(class);
                return write;
            }
        }
        None
    }

    /// Builds the request of a record and marks the record as in flight.
    fn send(&mut self, id: RecordId, now: Now) -> Option<Write> {
        let record = self.records.get_mut(&id)?;
        let call = record.upstream.call(now.mono)?;
        record.paid = true;
        record.next_write = now.mono.after(self.settings.interval(record.kind));
        let group = self.settings.group.of(&record.event);
        let before = match record.upstream.held() {
            Some(held) if record.sent.tag <= record.settled() => Mark { count: held.count, tag: held.tag },
            _ => record.sent,
        };
        let occurrences = record.take_next();
        let sent = Sent { occurrences, call, group, before, is_overtaken: false };
        let count = record.count_to_write();
        let event = Event { count: i32::try_from(count).unwrap_or(i32::MAX), ..record.event.clone() };
        if matches!(call, Call::Create | Call::Patch) {
            record.sent = Mark { count, tag: record.total };
            // What came since another process, or its client, has sent the create waits for a write of its own.
            if !record.is_inherited && !matches!(record.upstream, UpstreamState::Admitted { .. }) {
                self.tickets.send(id);
            }
        }
        let tag = record.tag.as_ref().map(|tag| (tag.clone(), tag::value(record.total, now)));
        let (namespace, name) = (event.metadata.namespace.clone(), event.metadata.name.clone());
        let held = record.upstream.held();
        let resource_version = held.map(|held| held.version.clone()).unwrap_or_default();
        let request = match call {
            Call::Read => Request::Read { group, namespace, name },
            Call::Delete => Request::Delete { group, namespace, name, resource_version },
            Call::Patch => {
                let patch = api_group::patch(group, &event, now);
                let annotations = record.lines.annotations(&name, count, record.total);
                let surplus = held.map(|held| held.expired_tags.as_slice()).unwrap_or_default();
                let removed = record.lines.removed(surplus, &name, &annotations);
                let ends_series = event.event_time.is_some() && group == ApiGroup::Core;
                let claim = |(tag, value)| Claim { resource_version, tag, value, annotations, removed, ends_series };
                let claim = tag.map(claim).map(Box::new);
                Request::Patch { group, namespace, name, patch, claim }
            }
            Call::Create => {
                let mut event = api_group::converted(group, &event, now).into_owned();
                event.metadata.resource_version = SmolStr::default();
                // Later requests need the name that its API group accepts.
                record.event.metadata.name = event.metadata.name.clone();
                if let Some((tag, value)) = tag {
                    let lines = record.lines.annotations(&event.metadata.name, count, record.total);
                    tag::mark(&mut event, &tag, value, lines);
                }
                // The count that the upstream will hold follows from the event as written.
                record.sent.count = api_group::count(&event).into();
                Request::Create { group, event: Box::new(event) }
            }
        };
        record.phase = Phase::InFlight(sent);
        Some(Write { record: id, request })
    }

    /// Returns when [`next_write`](Self::next_write) may have something to send if nothing else happens: `now` if it
    /// has already.
    pub fn next_wakeup(&self, now: Mono) -> Option<Mono> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        let timer = self.timers.peek().map(|Reverse((at, _))| *at);
        let turn = self.groups.next_turn(self.settings.groups.ceiling, now);
        [timer, turn].into_iter().flatten().min()
    }

    /// Whether a Warning is ready to be sent; shards with one go first.
    pub fn has_warning(&self) -> bool {
        self.ready.has_warning() || self.groups.turns.has_warning()
    }

    /// Whether a Normal write is ready to be sent; shards with one get every eighth turn.
    pub fn has_normal(&self) -> bool {
        self.ready.has_normal() || self.groups.turns.has_normal()
    }

    /// Removes a settled record. A digest or storm record leaves its state in its budget.
    fn remove(&mut self, id: RecordId, now: Now) {
        let Some(record) = self.take(id) else { return };
        // The budget has another digest if a client has deleted this one, or it is one of an earlier process.
        let digest = self.budgets.peek_mut(&record.budget.0).and_then(Budget::digest_mut);
        if let Some(digest) = digest.filter(|digest| digest.record == id) {
            digest.upstream = record.upstream;
            digest.total = record.total;
            digest.event = record.event;
        }
        self.drop_if_idle(record.budget, now.mono);
    }

    fn why(&self, id: RecordId) -> Why {
        // A missing record was folded into a digest at once, because its budget could not pay.
        self.records.get(&id).map_or(Why::Budget, |record| record.why(&self.budgets))
    }

    /// Returns the records that the correlators must forget, since the last call.
    pub fn take_forgotten(&mut self) -> Vec<Forgotten> {
        std::mem::take(&mut self.forgotten)
    }
}
