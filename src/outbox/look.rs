//! What `explain` looks at: where a record stands, and what its budget has.

use smol_str::SmolStr;

use super::budget::{BudgetId, Order};
use super::record::{Kind, Phase, Record};
use super::stand::Stand;
use super::{Outbox, is_filed};
use crate::clock::Mono;
use crate::correlator::{Key, RecordId};
use crate::event::Event;
use crate::ledger::Why;

/// A record on its way, before its answer.
#[derive(Debug, Clone, Copy)]
pub struct Glimpse<'a> {
    /// Its desired state.
    pub event: &'a Event,
    /// Its kind.
    pub kind: Kind,
    /// The count that was sent last.
    pub sent: i64,
}

/// Where a record stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Its name.
    pub name: SmolStr,
    /// Occurrences that the upstream has not acknowledged.
    pub waiting: u64,
    /// What they wait for.
    pub why: Why,
    /// Whether a request with some of them is on its way.
    pub is_in_flight: bool,
    /// Since when its writes have failed.
    pub failing_since: Option<Mono>,
    /// Its version upstream, if it is there.
    pub version: Option<SmolStr>,
}

/// What a budget has.
#[derive(Debug, Clone, PartialEq)]
pub struct Tokens {
    /// Whole tokens.
    pub left: usize,
    /// When the next comes.
    pub next: Option<Mono>,
    /// The records that wait for them, the first in line first.
    pub queue: Vec<RecordId>,
}

/// LIMIT: records of a queue that are shown.
const QUEUE: usize = 5;

impl Outbox {
    /// A record that is here.
    #[must_use]
    pub fn glimpse(&self, id: RecordId) -> Option<Glimpse<'_>> {
        let record = self.records.get(&id)?;
        Some(Glimpse { event: &record.event, kind: record.kind, sent: record.sent.count })
    }

    /// Where a record stands; `None` when nothing of it is owed here and it was not written a moment ago.
    #[must_use]
    pub fn view(&self, id: RecordId) -> Option<View> {
        let record: &Record = self.records.get(&id)?;
        let version = match &record.stand {
            Stand::On(held) | Stand::Unsure { held, .. } => Some(held.version.clone()),
            _ => None,
        };
        Some(View {
            name: record.event.metadata.name.clone(),
            waiting: record.waiting().total(),
            why: record.why(|budget| is_filed(&self.budgets, budget)),
            is_in_flight: matches!(record.phase, Phase::InFlight(_)),
            failing_since: record.failing_since,
            version,
        })
    }

    /// What a budget has; `None` where it is as good as new.
    #[must_use]
    pub fn tokens(&self, source: Key, budget: Key, now: Mono) -> Option<Tokens> {
        let budget = self.budgets.peek(&BudgetId::of_spam_key(source, budget).0)?;
        let mut queue: Vec<Order> = budget.owed().collect();
        queue.sort_unstable();
        let queue = queue.into_iter().take(QUEUE).map(|order| order.record).collect();
        Some(Tokens { left: budget.tokens(now), next: budget.next_token(now), queue })
    }

    /// When a budget has its next token, as far as known; `None` where it is as good as new.
    #[must_use]
    pub fn next_token(&self, source: Key, budget: Key, now: Mono) -> Option<Mono> {
        self.budgets.peek(&BudgetId::of_spam_key(source, budget).0)?.next_token(now)
    }

    /// The name of a digest or storm record. Looks at every budget: only for `explain`.
    #[must_use]
    pub fn digest_name(&self, id: RecordId) -> Option<SmolStr> {
        let mut digests = self.budgets.iter().filter_map(|(_, budget)| budget.digest());
        digests.find(|digest| digest.record == id).map(|digest| digest.event.metadata.name.clone())
    }
}
