//! Which settings an event is correlated with: the base settings, or those of the first rule that matches it.

use std::sync::Arc;

use smol_str::SmolStr;

use super::settings::{Correlation, Field, Settings};
use crate::event::Event;

/// The base settings and the rules that override them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Policy {
    /// Settings of events that no rule matches.
    pub base: Arc<Settings>,
    /// Rules in order; the first that matches decides.
    pub rules: Vec<Rule>,
}

/// Settings for the events that match.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Which events.
    pub matches: Matches,
    /// Their settings, complete: the base with the rule's own members put over it.
    pub settings: Arc<Settings>,
}

/// Conditions of a rule; every one that is given must hold. An empty list is no condition.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Matches {
    /// `source.component`, or `reportingComponent` where that is empty.
    pub component: Vec<Pattern>,
    /// `metadata.namespace`.
    pub namespace: Vec<Pattern>,
    /// `involvedObject.kind`.
    pub kind: Vec<Pattern>,
    /// `reason`.
    pub reason: Vec<Pattern>,
    /// `type`.
    pub event_type: Vec<Pattern>,
}

/// A text to match: exact, or a prefix (written with a trailing `*`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// The whole text.
    Exact(SmolStr),
    /// The beginning of the text.
    Prefix(SmolStr),
}

impl Pattern {
    /// Whether the text is meant.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
        }
    }
}

impl Matches {
    fn matches(&self, event: &Event) -> bool {
        self.miss(event).is_none()
    }

    /// The first condition that does not hold for an event, and what the event says there.
    #[must_use]
    pub fn miss<'e>(&self, event: &'e Event) -> Option<(&'static str, &'e str)> {
        let conditions = [
            ("component", &self.component, event.component()),
            ("namespace", &self.namespace, &event.metadata.namespace),
            ("kind", &self.kind, &event.involved_object.kind),
            ("reason", &self.reason, &event.reason),
            ("type", &self.event_type, &event.event_type),
        ];
        let misses = |patterns: &[Pattern], text: &str| {
            !patterns.is_empty() && !patterns.iter().any(|pattern| pattern.matches(text))
        };
        conditions.into_iter().find(|(_, patterns, text)| misses(patterns, text)).map(|(name, _, text)| (name, text))
    }
}

impl Policy {
    /// The settings for `event`.
    #[must_use]
    pub fn select(&self, event: &Event) -> &Arc<Settings> {
        self.rule(event).1
    }

    /// The number of the first rule that matches `event`, and its settings.
    #[must_use]
    pub fn rule(&self, event: &Event) -> (Option<usize>, &Arc<Settings>) {
        let found = self.rules.iter().position(|rule| rule.matches.matches(event));
        (found, found.and_then(|number| self.rules.get(number)).map_or(&self.base, |rule| &rule.settings))
    }

    /// What merges events of many objects, so that the others seem to have none: the base settings (`None`), or a rule by its
    /// number. A rule that has its aggregate key from the base is not listed again.
    pub fn across_objects(&self) -> impl Iterator<Item = Option<usize>> {
        let base = std::iter::once((None, &self.base));
        let own =
            self.rules.iter().enumerate().filter(|(_, rule)| rule.settings.aggregate_key != self.base.aggregate_key);
        let all = base.chain(own.map(|(number, rule)| (Some(number), &rule.settings)));
        let merges = |settings: &Settings| {
            let names_one = |field: &Field| matches!(field, Field::InvolvedObjectName | Field::InvolvedObjectUid);
            settings.correlation == Correlation::On && !settings.aggregate_key.iter().any(names_one)
        };
        all.filter(move |(_, settings)| merges(settings)).map(|(number, _)| number)
    }

    /// Whether an event like this is correlated, or only passed on.
    #[must_use]
    pub fn correlates(&self, event: &Event) -> bool {
        self.select(event).correlation == Correlation::On
    }
}
