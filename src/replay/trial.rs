//! Rules that are tried beside a comparison, for all components at once: whether they would help is judged from what becomes of
//! the same events.

use std::sync::Arc;

use crate::correlator::{Field, Policy, Settings};

/// A rule that is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Each reason has a budget of its own.
    ReasonInSpamKey,
    /// The budget is smaller.
    SmallBudget,
}

impl Trial {
    /// Each, in the order of [`Comparison::trials`](super::Comparison::trials).
    pub const ALL: [Self; 2] = [Self::ReasonInSpamKey, Self::SmallBudget];

    /// What the rule sets.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReasonInSpamKey => "spamKey with `reason`",
            Self::SmallBudget => "burstSize: 5, qps: 1/900",
        }
    }

    /// The policy with the rule for every component.
    pub(super) fn apply(self, policy: &Policy) -> Policy {
        let mut tried = policy.clone();
        tried.base = Arc::new(self.set(&tried.base));
        tried.rules.iter_mut().for_each(|rule| rule.settings = Arc::new(self.set(&rule.settings)));
        tried
    }

    fn set(self, settings: &Settings) -> Settings {
        let mut settings = settings.clone();
        match self {
            Self::ReasonInSpamKey if settings.spam_key.contains(&Field::Reason) => {}
            Self::ReasonInSpamKey => settings.spam_key.push(Field::Reason),
            Self::SmallBudget => {
                settings.burst_size = settings.burst_size.min(5);
                settings.qps = settings.qps.min(1.0 / 900.0);
            }
        }
        settings
    }
}
