//! Budgets above the objects' own: one per group of similar events, across all objects, sources and shards, and one for
//! all writes (the ceiling).
//!
//! client-go cannot have them, because each process sees only its own events. A record whose own budget has paid waits
//! in its group's queue until the group and the ceiling have a token for it. A record that was never written and has
//! waited too long folds into the group's storm record ([`storm`](super::storm)). So a storm of many objects costs no
//! more than its group's budget.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use smol_str::SmolStr;

use super::budget::{Budget, BudgetId, Class, Order, Rank};
use super::ready::Ready;
use super::record::{Kind, Phase, Record};
use super::shared_buckets::Buckets;
use super::storm::StormNews;
use super::timers::Timer;
use super::{Outbox, Write};
use crate::clock::{Mono, Now};
use crate::correlator::{BuildKeyHasher, Key, KeySecret, Rate, RecordId};
use crate::event::Event;

/// LIMIT: never-written records that wait for one group; beyond it, those that have waited longest fold at once.
const WAITING_MAX: usize = 1000;

/// Multiple of `fold_after` after which a storm ends if no two records have waited at once. A single object that keeps
/// repeating does not prolong it.
const STORM_ENDS: u32 = 60;

/// Divisor of `fold_after` for the time within which records fold together, because each fold changes the storm record.
const FOLD_TOGETHER: u32 = 10;

/// Key masks of the queues in which a source's records without a group wait for a token of the ceiling: Warnings,
/// others.
const UNGROUPED: [u128; 2] = [1, 3];

/// Key masks of the queues for a source's groups beyond the limit: Warnings share one budget, others another.
const OVERFLOW: [u128; 2] = [2, 4];

/// Settings of the group budgets and the ceiling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupSettings {
    /// Rate of all writes; `None` is unlimited (the default here; the configuration file has another).
    pub ceiling: Option<Rate>,
    /// How long a never-written record waits for its group before it folds; a Warning half as long again. Default 10 s.
    pub fold_after: Duration,
    /// LIMIT: groups of a shard with waiting records or a storm record. A source's further groups never fold: their
    /// Warnings share one budget, their other events another. Default 10,000.
    pub max_groups: NonZeroUsize,
}

impl Default for GroupSettings {
    fn default() -> Self {
        Self {
            ceiling: None,
            fold_after: Duration::from_secs(10),
            max_groups: const { NonZeroUsize::new(10_000).unwrap() },
        }
    }
}

/// The group that a record belongs to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Membership {
    key: Key,
    rate: Option<Rate>,
    /// Whether the records have only source and class in common, and so never fold.
    is_mixed: bool,
}

/// The groups of one shard's waiting records.
#[derive(Debug)]
pub(super) struct Groups {
    secret: KeySecret,
    buckets: Arc<Buckets>,
    // LIMIT: `max_groups`, with waiting records or a storm record; records of further groups share a queue per source
    // and class. The shard with the storm records also has the groups of the other shards' storm records.
    waiting: HashMap<Key, Group, BuildKeyHasher>,
    /// Groups that had a token when they were filed. Sources take turns, so that one with many groups delays no other.
    pub(super) turns: Ready,
}

/// Never-written records of a group that fold, for the shard that has the group's storm record.
#[derive(Debug)]
pub struct Leaving {
    class: Class,
    source: Key,
    membership: Membership,
    /// As in [`Group`].
    folded: Option<Mono>,
    records: Vec<(RecordId, Box<Record>)>,
}

/// The storm record that has taken records in, or the digest.
#[derive(Debug, Clone)]
pub struct Taken {
    pub(super) into: RecordId,
    /// Its name, if another shard has it.
    pub(super) name: SmolStr,
    /// Its occurrences with the ones that it has taken in.
    pub(super) reach: Reach,
}

/// The occurrences of a digest or storm record.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Those that it counts.
    pub counted: u64,
    /// Those of them that the upstream shows.
    pub settled: u64,
}

impl Leaving {
    /// Returns the number of occurrences that fold.
    pub fn occurrences(&self) -> u64 {
        self.records.iter().map(|(_, record)| record.pending.total()).sum()
    }
}

/// Records that wait for a group's token.
#[derive(Debug)]
struct Group {
    class: Class,
    /// The source of the first record.
    source: Key,
    membership: Membership,
    /// Records that were never written and can fold.
    // LIMIT: `WAITING_MAX`; `max_records` if they are mixed, because then they do not fold.
    never: BTreeSet<Order>,
    /// The storm record, if it waits, and records with later writes.
    // LIMIT: `max_records`.
    owed: BTreeSet<Order>,
    /// When a record last folded; `None` without a storm.
    folded: Option<Mono>,
    /// Whether this shard has the storm record; one shard has those of all.
    has_record: bool,
    is_filed: bool,
    timer: Option<Mono>,
}

impl Groups {
    pub(super) fn new(seed: u64) -> Self {
        Self::over(KeySecret(seed, !seed), Arc::default())
    }

    /// Returns the groups of another shard, which share the tokens.
    pub(super) fn another(&self) -> Self {
        Self::over(self.secret, Arc::clone(&self.buckets))
    }

    fn over(secret: KeySecret, buckets: Arc<Buckets>) -> Self {
        Self { secret, buckets, waiting: HashMap::default(), turns: Ready::default() }
    }

    /// Returns the group of an event, with its rate.
    pub(super) fn of(&self, event: &Event, rate: Rate) -> Membership {
        Membership { key: self.secret.group(event), rate: Some(rate), is_mixed: false }
    }

    /// Returns the key of an event's object within its group.
    pub(super) fn object(&self, event: &Event) -> Key {
        self.secret.object(self.secret.group(event), event)
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the group in which a record waits: its own or, at the limit, the source's shared one.
    fn place(&self, group: Membership, class: Class, source: Key, settings: &GroupSettings) -> Membership {
        let has_room = self.waiting.len() < settings.max_groups.get() || self.waiting.contains_key(&group.key);
        if group.is_mixed || has_room {
            return group;
        }
        Membership { key: Key(source.0 ^ OVERFLOW[class as usize]), is_mixed: true, ..group }
    }

    /// Takes a token of the group and one of the ceiling, or neither.
    fn take(&self, Membership { key, rate, .. }: Membership, ceiling: Option<Rate>, now: Mono) -> bool {
        if ceiling.is_some_and(|ceiling| !self.buckets.all.take(ceiling, now)) {
            return false;
        }
        let is_taken = rate.is_none_or(|rate| self.buckets.of(key).take(rate, now));
        if let (false, Some(ceiling)) = (is_taken, ceiling) {
            self.buckets.all.give_back(ceiling);
        }
        is_taken
    }

    /// Returns when the record whose turn it is can be sent, if nothing else happens: when the ceiling's next token
    /// comes, `now` if there is one.
    pub(super) fn next_turn(&self, ceiling: Option<Rate>, now: Mono) -> Option<Mono> {
        let next_token = || ceiling.map_or(now, |ceiling| self.buckets.all.next_token(ceiling, now));
        (!self.turns.is_empty()).then(next_token)
    }

    pub(super) fn timer(&mut self, key: Key) -> Option<&mut Option<Mono>> {
        self.waiting.get_mut(&key).map(|group| &mut group.timer)
    }

    pub(super) fn remove(&mut self, group: Option<Membership>, order: Order) {
        if let Some(group) = group.and_then(|group| self.waiting.get_mut(&group.key)) {
            group.remove(order);
        }
    }

    /// Returns when a record folds that waits in its group; `None` if it cannot fold.
    pub(super) fn folds_at(&self, group: Membership, order: Order, settings: &GroupSettings) -> Option<Mono> {
        let group = self.waiting.get(&group.key)?;
        group.folds_at(settings).filter(|_| group.never.contains(&order))?;
        Some(order.since.after(group.fold_after(settings)))
    }
}

impl Group {
    const fn new(class: Class, source: Key, membership: Membership) -> Self {
        Self {
            class,
            source,
            membership,
            never: BTreeSet::new(),
            owed: BTreeSet::new(),
            folded: None,
            has_record: false,
            is_filed: false,
            timer: None,
        }
    }

    fn is_empty(&self) -> bool {
        self.never.is_empty() && self.owed.is_empty()
    }

    fn remove(&mut self, order: Order) {
        if !self.never.remove(&order) {
            self.owed.remove(&order);
        }
    }

    /// Returns the next record by its rank: the storm record, then never-written ones, then later writes. During a storm
    /// never-written records fold instead.
    fn first(&self) -> Option<Order> {
        let never = self.never.first().filter(|_| self.folded.is_none());
        [self.owed.first(), never].into_iter().flatten().min().copied()
    }

    /// Returns when the oldest never-written record folds. Without a storm, a single one does not fold.
    fn folds_at(&self, settings: &GroupSettings) -> Option<Mono> {
        let can_fold = !self.membership.is_mixed && (self.folded.is_some() || self.never.len() > 1);
        let order = self.never.first().filter(|_| can_fold)?;
        Some(order.since.after(self.fold_after(settings)))
    }

    /// Returns when the storm ends, if no records fold together before: `now` without one.
    fn ends_at(&self, settings: &GroupSettings, now: Mono) -> Mono {
        self.folded.map_or(now, |folded| folded.after(settings.fold_after * STORM_ENDS))
    }

    fn fold_after(&self, settings: &GroupSettings) -> Duration {
        match self.class {
            Class::Warning => settings.fold_after * 3 / 2,
            Class::Normal => settings.fold_after,
        }
    }
}

impl Outbox {
    /// Sends a record whose own budget has paid, or queues it for its group and the ceiling.
    pub(super) fn pass(&mut self, id: RecordId, now: Now) -> Option<Write> {
        let ceiling = self.settings.groups.ceiling;
        let record = self.records.get_mut(&id)?;
        let membership = record.group.unwrap_or_else(|| {
            // It waits for the ceiling only.
            let mask = UNGROUPED[Class::of(record.event.is_warning()) as usize];
            Membership { key: Key(record.source.0 ^ mask), rate: None, is_mixed: true }
        });
        let is_free = record.group.is_none() && ceiling.is_none();
        if self.draining || record.has_passed || is_free {
            return self.send(id, now);
        }
        let group = self.groups.waiting.get(&membership.key);
        // Repeats of folded events count in the storm record while the storm lasts.
        let folds = |group: &Group| {
            group.folded.is_some()
                && record.was_never_sent()
                && record.kind != Kind::Storm
                && self.folded.has(self.groups.object(&record.event))
        };
        let waits = group.is_some_and(|group| !group.is_empty() || folds(group));
        if !waits && self.groups.take(membership, ceiling, now.mono) {
            record.has_passed = true;
            return self.send(id, now);
        }
        self.stage(id, membership, now);
        None
    }

    /// Whether a new record of this event would fold, because its object's event has folded and the storm lasts.
    pub fn would_fold(&self, event: &Event) -> bool {
        let group = self.groups.waiting.get(&self.groups.secret.group(event));
        let folds = group.is_some_and(|group| group.folded.is_some());
        !self.draining && folds && self.folded.has(self.groups.object(event))
    }

    /// Puts a record into its group's queue.
    fn stage(&mut self, id: RecordId, membership: Membership, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        let class = Class::of(record.event.is_warning());
        let membership = self.groups.place(membership, class, record.source, &self.settings.groups);
        record.group = Some(membership);
        let rank = if record.kind == Kind::Storm {
            Rank::Digest
        } else if record.was_never_sent() {
            Rank::NeverShown
        } else {
            Rank::Shown
        };
        let order = Order { rank, class, since: now.mono, record: id };
        (record.phase, record.paid) = (Phase::Staged(order), true);
        let source = record.source;
        let group = self.groups.waiting.entry(membership.key).or_insert_with(|| Group::new(class, source, membership));
        group.membership = membership;
        let queue = if rank == Rank::NeverShown { &mut group.never } else { &mut group.owed };
        queue.insert(order);
        let excess = group.never.len().saturating_sub(WAITING_MAX);
        if excess > 0 && !membership.is_mixed {
            let orders: Vec<Order> = group.never.iter().copied().take(excess + WAITING_MAX / 2).collect();
            self.fold_storm(membership.key, &orders, now);
        }
        self.refile_group(membership.key, now.mono);
    }

    /// Changes the group budget of a record after a reload: to a new rate, to none, or from none. With a new rate only,
    /// it keeps its place in the queue.
    pub(super) fn regroup(&mut self, id: RecordId, rate: Option<Rate>, now: Now) {
        let Some(record) = self.records.get_mut(&id) else { return };
        if let (Some(membership), Some(_)) = (record.group.as_mut().filter(|group| group.rate.is_some()), rate) {
            membership.rate = rate;
            let key = membership.key;
            if let Some(group) = self.groups.waiting.get_mut(&key) {
                group.membership.rate = rate;
            }
            self.refile_group(key, now.mono);
            return;
        }
        let group = rate.map(|rate| match record.kind {
            // Its object is not that of its events.
            Kind::Storm => Membership { key: record.budget.group(), rate: Some(rate), is_mixed: false },
            Kind::Plain | Kind::Combined | Kind::Digest => self.groups.of(&record.event, rate),
        });
        if matches!(record.phase, Phase::Staged(_)) {
            self.change_in_queue(id, now, |record| record.group = group);
        } else {
            record.group = group;
        }
    }

    /// Returns the next record of the group whose turn it is, and takes the tokens for it.
    pub(super) fn pop_group(&mut self, now: Now) -> Option<RecordId> {
        let ceiling = self.settings.groups.ceiling;
        while self.groups.next_turn(ceiling, now.mono) == Some(now.mono) {
            let (class, BudgetId(key)) = self.groups.turns.pop()?;
            let Some(group) = self.groups.waiting.get_mut(&key) else { continue };
            group.is_filed = false;
            let (first, membership) = (group.first(), group.membership);
            let popped = first.filter(|_| self.groups.take(membership, ceiling, now.mono));
            if let Some(order) = popped {
                self.groups.remove(Some(membership), order);
            }
            self.refile_group(key, now.mono);
            if let Some(Order { record: id, .. }) = popped
                && let Some(record) = self.records.get_mut(&id)
            {
                record.has_passed = true;
                self.groups.turns.had_turn(class);
                return Some(id);
            }
        }
        None
    }

    /// Puts a group into the turn queue if it can write now, sets its timer, or removes it.
    fn refile_group(&mut self, key: Key, now: Mono) {
        let settings = self.settings.groups;
        let Groups { waiting, buckets, turns, .. } = &mut self.groups;
        let Some(group) = waiting.get_mut(&key) else { return };
        let ends_at = group.ends_at(&settings, now);
        if group.is_empty() && ends_at <= now {
            self.end_group(key, now);
            return;
        }
        let next_token = || group.membership.rate.map_or(now, |rate| buckets.of(key).next_token(rate, now));
        let token = group.first().map(|_| next_token());
        if token == Some(now) && !group.is_filed {
            group.is_filed = true;
            turns.push(group.class, group.source, BudgetId(key));
        }
        let ends_at = Some(ends_at).filter(|_| group.is_empty());
        let later = token.filter(|token| *token > now);
        let at = [later, group.folds_at(&settings), ends_at].into_iter().flatten().min();
        if let Some(at) = at {
            self.set_timer(at, Timer::Group(key));
        }
    }

    pub(super) fn wake_group(&mut self, key: Key, now: Now) {
        self.fold_due(key, now);
        self.refile_group(key, now.mono);
    }

    /// Applies reloaded settings to all groups.
    pub(super) fn refile_groups(&mut self, now: Now) {
        for key in self.groups.waiting.keys().copied().collect::<Vec<_>>() {
            self.wake_group(key, now);
        }
    }

    /// Folds the records of a group that have waited too long.
    fn fold_due(&mut self, key: Key, now: Now) {
        let settings = self.settings.groups;
        let Some(group) = self.groups.waiting.get_mut(&key) else { return };
        if group.never.len() == 1 && group.ends_at(&settings, now.mono) <= now.mono {
            // The storm is over, and the shard that had its record may have ended it.
            group.folded = None;
        }
        if group.folds_at(&settings).is_some_and(|at| at <= now.mono) {
            let fold_after = group.fold_after(&settings);
            let until = now.mono.after(fold_after / FOLD_TOGETHER);
            let orders: Vec<Order> =
                group.never.iter().copied().take_while(|order| order.since.after(fold_after) <= until).collect();
            self.fold_storm(key, &orders, now);
        }
    }

    /// Folds never-written records of a group into its storm record, in this shard or in the one that has it.
    fn fold_storm(&mut self, key: Key, orders: &[Order], now: Now) {
        let Some(group) = self.groups.waiting.get_mut(&key) else { return };
        if group.folded.is_none() || group.never.len() > 1 {
            group.folded = Some(now.mono);
        }
        let (class, source, folded, membership) = (group.class, group.source, group.folded, group.membership);
        let leaving = Leaving { class, source, membership, folded, records: self.take_folding(orders, now) };
        match &mut self.leaving {
            Some(all) => all.push(leaving),
            None => {
                let into = self.take_in(&leaving, now);
                self.has_left(leaving, into, now);
            }
        }
    }

    /// Moves storm records to another shard, whose [`take_in`](Self::take_in) is to be called with what
    /// [`take_leaving`](Self::take_leaving) returns.
    pub fn fold_elsewhere(&mut self) {
        self.leaving = Some(Vec::new());
    }

    /// Whether records wait to fold into storm records of another shard.
    pub const fn is_leaving(&self) -> bool {
        matches!(&self.leaving, Some(all) if !all.is_empty())
    }

    /// Returns the records that fold into storm records of another shard, and clears them.
    pub fn take_leaving(&mut self) -> Vec<Leaving> {
        self.leaving.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Folds records into their group's storm record in this shard, and returns that record.
    pub fn take_in(&mut self, leaving: &Leaving, now: Now) -> Option<Taken> {
        let Leaving { class, source, membership, .. } = *leaving;
        let key = membership.key;
        let group = self.groups.waiting.entry(key).or_insert_with(|| Group::new(class, source, membership));
        (group.membership, group.folded) = (membership, group.folded.max(leaving.folded));
        let begins = !std::mem::replace(&mut group.has_record, true);
        let budget_id = BudgetId::of_group(key);
        // Counting it as a member keeps the storm record's state for as long as the storm lasts.
        self.budget(budget_id, || Budget::new(key, None)).members += u32::from(begins);
        let into = self.fold_into(budget_id, Kind::Storm, &leaving.records, now)?;
        let event = self.storm_event(key)?;
        let name = event.metadata.name.clone();
        if begins {
            let event = event.clone();
            self.note_storm(StormNews { begins, event });
        }
        self.refile_group(key, now.mono);
        let reach = self.reach(into);
        Some(Taken { into, name, reach })
    }

    /// Returns the occurrences of a digest or storm record.
    pub fn reach(&self, id: RecordId) -> Reach {
        match self.records.get(&id) {
            Some(record) => Reach { counted: record.total + record.later.total(), settled: record.settled() },
            None => {
                let budget = self.digests.get(&id).and_then(|budget| self.budgets.peek(&budget.0));
                let total = budget.and_then(Budget::digest).map_or(0, |digest| digest.total);
                Reach { counted: total, settled: total }
            }
        }
    }

    /// Returns the digests and storm records that this process continues.
    pub fn digests(&self) -> impl Iterator<Item = RecordId> {
        self.digests.keys().copied()
    }

    /// Notes that these records were folded, for their correlators to forget them and for reads of their objects.
    pub fn has_left(&mut self, leaving: Leaving, into: Option<Taken>, now: Now) {
        let Some(into) = into else { return };
        for (id, record) in leaving.records {
            self.forgotten.push(record.forgotten(id, &into, Kind::Storm));
            let key = self.groups.object(&record.event);
            self.folded.add(key, record.event, record.pending.total(), &into.name, now.mono);
        }
    }

    fn storm_event(&self, key: Key) -> Option<&Event> {
        let digest = self.budgets.peek(&BudgetId::of_group(key).0)?.digest()?;
        // Its record may have another name by now.
        self.digest_event(digest.record)
    }

    /// Returns the number of groups with a storm record in this shard.
    pub fn storms(&self) -> usize {
        self.groups.waiting.values().filter(|group| group.has_record).count()
    }

    /// Returns the time since which the oldest never-written record has waited for its group.
    pub fn oldest_unshown(&self) -> Option<Mono> {
        let orders = self.groups.waiting.values().flat_map(|group| {
            let storm = group.owed.first().filter(|order| order.rank == Rank::Digest);
            [group.never.first(), storm]
        });
        orders.flatten().filter_map(|order| self.records.get(&order.record)).map(|record| record.since).min()
    }

    /// Returns the number of writes that the ceiling allows now; `None` without a ceiling.
    pub fn ceiling_tokens(&self, now: Mono) -> Option<u32> {
        self.settings.groups.ceiling.map(|ceiling| self.groups.buckets.all.tokens(ceiling, now))
    }

    /// Returns the group that pays for its storm record.
    pub(super) fn membership(&self, key: Key) -> Option<Membership> {
        self.groups.waiting.get(&key).map(|group| group.membership)
    }

    /// Removes a group without waiting records.
    fn end_group(&mut self, key: Key, now: Mono) {
        let Some(group) = self.groups.waiting.remove(&key) else { return };
        if group.has_record {
            if let Some(event) = self.storm_event(key).cloned() {
                self.note_storm(StormNews { begins: false, event });
            }
            let budget_id = BudgetId::of_group(key);
            if let Some(budget) = self.budgets.peek_mut(&budget_id.0) {
                budget.members -= 1;
            }
            self.drop_if_idle(budget_id, now);
        }
    }
}

impl Record {
    /// Whether its group's budget changes to this rate, or to none, after a reload. Two kinds of writes take no token
    /// of a group that they did not have: those that their own budget has paid, and those that an earlier process has
    /// left.
    pub(super) fn changes_group(&self, rate: Option<Rate>) -> bool {
        // What waits for the ceiling is paid once it has its group's token, or from the beginning if it was left.
        let is_free = self.paid && (self.is_inherited || !matches!(self.phase, Phase::Staged(_)));
        let known = self.group.and_then(|group| group.rate);
        known != rate && (rate.is_none() || known.is_some() || !is_free)
    }

    /// Ends a write: the next one pays again, a token of its own budget, of its group and of the ceiling, and its tries
    /// begin again.
    pub(super) const fn end_write(&mut self) {
        (self.paid, self.has_passed) = (false, false);
        (self.tries, self.failing_since) = (0, None);
    }
}
