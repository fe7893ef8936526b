//! The accounts that can be written now: Warning before Normal, and round robin between sources, so that a source with a
//! thousand accounts gets the same turns as one with a single account. Every eighth turn is a Normal account's, so that Warnings
//! that come as fast as they are written pass nobody over without end.

use std::collections::{HashMap, VecDeque};

use super::account::{AccountId, Class};
use crate::correlator::{BuildKeyHasher, Key};

/// Of so many turns one is a Normal account's where one waits.
pub(crate) const NORMAL_TURN: usize = 8;

/// Ready accounts. An account may stand here after it has stopped being ready; whoever takes it out checks.
#[derive(Debug, Default)]
pub(super) struct Ready {
    warning: Turns,
    normal: Turns,
    /// Turns that Warnings have had since a Normal account had one.
    warnings: usize,
}

#[derive(Debug, Default)]
struct Turns {
    /// Sources in turn; each stands here exactly once while it has accounts below.
    // LIMIT: as many as accounts, of which the outbox has `max_budgets`.
    sources: VecDeque<Key>,
    // LIMIT: each account once, but for those that have changed their class since.
    accounts: HashMap<Key, VecDeque<AccountId>, BuildKeyHasher>,
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

    pub(super) fn push(&mut self, class: Class, source: Key, account: AccountId) {
        let turns = match class {
            Class::Warning => &mut self.warning,
            Class::Normal => &mut self.normal,
        };
        let accounts = turns.accounts.entry(source).or_default();
        if accounts.is_empty() {
            turns.sources.push_back(source);
        }
        accounts.push_back(account);
    }

    pub(super) fn pop(&mut self) -> Option<(Class, AccountId)> {
        let is_due = self.warnings + 1 >= NORMAL_TURN;
        if !(is_due && self.has_normal())
            && let Some(account) = self.warning.pop()
        {
            return Some((Class::Warning, account));
        }
        self.normal.pop().map(|account| (Class::Normal, account))
    }

    /// An account that was popped has had its turn: something of it was sent.
    pub(super) const fn had_turn(&mut self, class: Class) {
        self.warnings = match class {
            Class::Warning => self.warnings.saturating_add(1),
            Class::Normal => 0,
        };
    }
}

impl Turns {
    fn pop(&mut self) -> Option<AccountId> {
        let source = self.sources.pop_front()?;
        let accounts = self.accounts.get_mut(&source)?;
        let account = accounts.pop_front();
        if accounts.is_empty() {
            self.accounts.remove(&source);
        } else {
            self.sources.push_back(source);
        }
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_take_turns_and_warnings_go_first() {
        let mut ready = Ready::default();
        let account = |source: u128, budget: u128| AccountId::of_budget(Key(source), Key(budget));
        for budget in 0..3 {
            ready.push(Class::Normal, Key(1), account(1, budget));
        }
        ready.push(Class::Normal, Key(2), account(2, 9));
        ready.push(Class::Warning, Key(3), account(3, 9));
        let order: Vec<_> = std::iter::from_fn(|| ready.pop().map(|(_, account)| account)).collect();
        assert_eq!(order, [account(3, 9), account(1, 0), account(2, 9), account(1, 1), account(1, 2)]);
        assert!(ready.is_empty());
    }

    #[test]
    fn every_eighth_turn_is_a_normal_accounts() {
        let mut ready = Ready::default();
        let account = |budget: u128| AccountId::of_budget(Key(1), Key(budget));
        for budget in 0..3 {
            ready.push(Class::Normal, Key(1), account(budget));
        }
        let mut normal = Vec::new();
        for turn in 1..30 {
            ready.push(Class::Warning, Key(1), account(99));
            let (class, _) = ready.pop().unwrap();
            ready.had_turn(class);
            if class == Class::Normal {
                normal.push(turn);
            }
        }
        assert_eq!(normal, [8, 16, 24]);
    }
}
