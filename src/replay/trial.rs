//! Rules that a comparison tries for all components on the same events, to find out which of them help.

use std::sync::Arc;

use crate::correlator::{Field, Policy, Settings};

/// Tokens per second of a small budget.
const SMALL_QPS: f32 = 1.0 / 900.0;

/// A rule to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trial {
    /// Each reason gets its own budget.
    ReasonInSpamKey,
    /// Budgets are smaller.
    SmallBudget,
}

impl Trial {
    /// All rules, in the order of [`Comparison::trials`](super::Comparison::trials).
    pub const ALL: [Self; 2] = [Self::ReasonInSpamKey, Self::SmallBudget];

    /// Returns the name, which has the rule's settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReasonInSpamKey => "spamKey with `reason`",
            Self::SmallBudget => "burstSize: 5, qps: 1/900",
        }
    }

    /// Returns the keys of a configuration that the rule sets.
    pub fn keys(self, policy: &Policy) -> String {
        let Settings { spam_key, burst_size, qps, .. } = &*self.apply(policy).base;
        match self {
            Self::ReasonInSpamKey => {
                format!("spamKey: [{}]", spam_key.iter().map(|field| field.label()).collect::<Vec<_>>().join(", "))
            }
            Self::SmallBudget if (qps - SMALL_QPS).abs() > 0.0 => format!("burstSize: {burst_size}, qps: {qps}"),
            Self::SmallBudget => format!("burstSize: {burst_size}, qps: 1/900"),
        }
    }

    /// Returns the policy with the rule applied to every component.
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
                settings.qps = settings.qps.min(SMALL_QPS);
            }
        }
        settings
    }
}
