//! Views of records and budgets for the other parts of the shard.

use smol_str::SmolStr;

use super::budget::{BudgetId, Order};
use super::record::{Kind, Phase};
use super::upstream_state::UpstreamState;
use super::{Outbox, count};
use crate::clock::{Mono, Now};
use crate::correlator::{Key, RecordId};
use crate::event::Event;
use crate::ledger::Why;

/// A record as the other parts of the shard see it.
#[derive(Debug, Clone, Copy)]
pub struct RecordView<'a> {
    /// Its desired state.
    pub event: &'a Event,
    /// Its kind.
    pub kind: Kind,
    /// The count that was sent last.
    pub sent: i64,
    /// The occurrences under its tag that the upstream is known to hold.
    pub settled: u64,
    /// The count that the upstream has shown last, if it holds the record.
    pub shown: Option<i64>,
    /// Occurrences that the upstream has not acknowledged.
    pub waiting: u64,
    /// Their wait reason.
    pub why: Why,
    /// When it folds into its group's storm record, if it gets no token before and can fold.
    pub folds_at: Option<Mono>,
    /// Whether a request with some of the waiting occurrences is in flight.
    pub is_in_flight: bool,
    /// Its version upstream, if the upstream is known to hold it.
    pub version: Option<&'a SmolStr>,
}

/// The state of a budget.
#[derive(Debug, Clone, PartialEq)]
pub struct Tokens {
    /// Whole tokens.
    pub left: usize,
    /// Time of the next token.
    pub next: Option<Mono>,
    /// The records that wait for them, in queue order.
    pub queue: Vec<RecordId>,
}

/// LIMIT: records of a queue that are returned.
const QUEUE: usize = 5;

impl Outbox {
    /// Returns a record of the outbox; `None` if it owes no write and was not written just before.
    pub fn view(&self, id: RecordId) -> Option<RecordView<'_>> {
        let record = self.records.get(&id)?;
        let version = match &record.upstream {
            UpstreamState::Stored(held) | UpstreamState::Unsure { held, .. } => Some(&held.version),
            _ => None,
        };
        let folds_at = match (&record.phase, record.group) {
            (Phase::Staged(order), Some(group)) => self.groups.folds_at(group, *order, &self.settings.groups),
            _ => None,
        };
        Some(RecordView {
            event: &record.event,
            kind: record.kind,
            sent: record.sent.count,
            settled: record.settled(),
            shown: record.upstream.held().map(|held| held.count),
            folds_at,
            waiting: record.waiting().total(),
            why: record.why(&self.budgets),
            is_in_flight: matches!(record.phase, Phase::InFlight(_)),
            version,
        })
    }

    /// Whether `found`, the upstream's event of the record's name, is of the record. Without tags, writes go to any
    /// event of the name. `None` if the record is not in the outbox.
    pub fn is_of(&self, id: RecordId, found: &Event, now: Now) -> Option<bool> {
        let record = self.records.get(&id)?;
        let seen = record.see(found, self.settings.group.of(&record.event), now);
        let is_held =
            record.upstream.held().is_some_and(|held| record.tag.is_none() || held.version == seen.held.version);
        Some(seen.is_tagged || seen.is_alike || is_held)
    }

    /// Returns the count of a record with all that waits, on top of `found`, the upstream's event of it: other writers may
    /// have changed its count since the upstream has answered. `None` if the record is not in the outbox, or has no count.
    pub fn count_on(&self, id: RecordId, found: &Event) -> Option<i32> {
        let record = self.records.get(&id).filter(|record| record.event.count != 0)?;
        let on_top = |more: u64| i32::try_from(more).map_or(i32::MAX, |more| count(found).saturating_add(more));
        Some(match record.tag_on(found) {
            Some(own) => on_top((record.total + record.later.total()).saturating_sub(own)),
            // What of a write in doubt has arrived is not known.
            None if record.may_have_arrived() => on_top(0).max(record.event.count),
            None => on_top(record.waiting().total()).max(record.event.count),
        })
    }

    /// Returns the state of a budget; `None` if it is full.
    pub fn tokens(&self, source: Key, budget: Key, now: Mono) -> Option<Tokens> {
        let budget = self.budgets.peek(&BudgetId::of_spam_key(source, budget).0)?;
        let mut queue: Vec<Order> = budget.owed().collect();
        queue.sort_unstable();
        let queue = queue.into_iter().take(QUEUE).map(|order| order.record).collect();
        Some(Tokens { left: budget.tokens(now), next: budget.next_token(now), queue })
    }

    /// Returns the time of a budget's next token; `None` if the budget is full.
    pub fn next_token(&self, source: Key, budget: Key, now: Mono) -> Option<Mono> {
        self.budgets.peek(&BudgetId::of_spam_key(source, budget).0)?.next_token(now)
    }

    /// Returns the name of a digest or storm record.
    pub fn digest_name(&self, id: RecordId) -> Option<SmolStr> {
        self.digest_event(id).map(|event| event.metadata.name.clone())
    }
}
