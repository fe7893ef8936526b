//! The queue of budgets that can write now: Warning before Normal, and round robin between sources. So a source with a
//! thousand budgets gets as many turns as one with a single budget. Every eighth turn goes to a Normal budget, so that
//! steady Warnings do not starve it.

use std::collections::{HashMap, VecDeque};

use super::budget::{BudgetId, Class};
use crate::correlator::{BuildKeyHasher, Key};

/// Every turn with this number goes to a Normal budget, if one waits.
pub(crate) const NORMAL_TURN: usize = 8;

/// Ready budgets. A budget may stay in the queue when it is no longer ready; the caller of `pop` checks.
#[derive(Debug, Default)]
pub(super) struct Ready {
    warning: FairQueue,
    normal: FairQueue,
    /// Consecutive turns of Warnings.
    warnings: usize,
}

#[derive(Debug, Default)]
struct FairQueue {
    /// Sources in turn. Each source with budgets is in the queue exactly once.
    // LIMIT: as many as budgets, of which the outbox has `max_budgets`.
    sources: VecDeque<Key>,
    // LIMIT: each budget once, except budgets that have changed their class since.
    budgets: HashMap<Key, VecDeque<BudgetId>, BuildKeyHasher>,
}

impl Ready {
    pub(super) fn is_empty(&self) -> bool {
        self.warning.sources.is_empty() && self.normal.sources.is_empty()
    }

    pub(super) fn has_warning(&self) -> bool {
        !self.warning.sources.is_empty()
    }

    pub(super) fn has_normal(&self) -> bool {
        !self.normal.sources.is_empty()
    }

    pub(super) fn push(&mut self, class: Class, source: Key, budget: BudgetId) {
        let turns = match class {
            Class::Warning => &mut self.warning,
            Class::Normal => &mut self.normal,
        };
        let budgets = turns.budgets.entry(source).or_default();
        if budgets.is_empty() {
            turns.sources.push_back(source);
        }
        budgets.push_back(budget);
    }

    pub(super) fn pop(&mut self) -> Option<(Class, BudgetId)> {
        let is_due = self.warnings + 1 >= NORMAL_TURN;
        if !(is_due && self.has_normal())
            && let Some(budget) = self.warning.pop()
        {
            return Some((Class::Warning, budget));
        }
        self.normal.pop().map(|budget| (Class::Normal, budget))
    }

    /// Records that a write of a popped budget was sent.
    pub(super) const fn had_turn(&mut self, class: Class) {
        self.warnings = match class {
            Class::Warning => self.warnings.saturating_add(1),
            Class::Normal => 0,
        };
    }
}

impl FairQueue {
    fn pop(&mut self) -> Option<BudgetId> {
        let source = self.sources.pop_front()?;
        let budgets = self.budgets.get_mut(&source)?;
        let budget = budgets.pop_front();
        if budgets.is_empty() {
            self.budgets.remove(&source);
        } else {
            self.sources.push_back(source);
        }
        budget
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_take_turns_and_warnings_go_first() {
        let mut ready = Ready::default();
        let budget = |source: u128, budget: u128| BudgetId::of_spam_key(Key(source), Key(budget));
        for number in 0..3 {
            ready.push(Class::Normal, Key(1), budget(1, number));
        }
        ready.push(Class::Normal, Key(2), budget(2, 9));
        ready.push(Class::Warning, Key(3), budget(3, 9));
        let order: Vec<_> = std::iter::from_fn(|| ready.pop().map(|(_, budget)| budget)).collect();
        assert_eq!(order, [budget(3, 9), budget(1, 0), budget(2, 9), budget(1, 1), budget(1, 2)]);
        assert!(ready.is_empty());
    }

    #[test]
    fn every_eighth_turn_is_a_normal_budgets() {
        let mut ready = Ready::default();
        let budget = |budget: u128| BudgetId::of_spam_key(Key(1), Key(budget));
        for number in 0..3 {
            ready.push(Class::Normal, Key(1), budget(number));
        }
        let mut normal = Vec::new();
        for turn in 1..30 {
            ready.push(Class::Warning, Key(1), budget(99));
            let (class, _) = ready.pop().unwrap();
            ready.had_turn(class);
            if class == Class::Normal {
                normal.push(turn);
            }
        }
        assert_eq!(normal, [8, 16, 24]);
    }
}
