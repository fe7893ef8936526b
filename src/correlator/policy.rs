//! The policy selects the settings of an event: the base settings, or those of the first rule that matches it.

use std::fmt;
use std::num::NonZeroUsize;
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

/// Settings for the events that match the conditions.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// The conditions.
    pub matches: Matches,
    /// The complete settings: the base settings overridden by the rule's own.
    pub settings: Arc<Settings>,
}

/// Conditions of a rule; each given condition must hold. An empty list is no condition.
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
    /// Whether the pattern matches a text.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exact(exact) => exact == text,
            Self::Prefix(prefix) => text.starts_with(prefix.as_str()),
        }
    }

    /// Whether each text that `other` matches is matched.
    fn covers(&self, other: &Self) -> bool {
        match other {
            Self::Exact(text) => self.matches(text),
            Self::Prefix(prefix) => matches!(self, Self::Prefix(own) if prefix.starts_with(own.as_str())),
        }
    }
}

/// Whether a text meets a condition.
fn meets(condition: &[Pattern], text: &str) -> bool {
    condition.is_empty() || condition.iter().any(|pattern| pattern.matches(text))
}

/// Writes the pattern as the configuration has it.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(text) => f.write_str(text),
            Self::Prefix(text) => write!(f, "{text}*"),
        }
    }
}

impl Matches {
    /// Whether they hold for all events of a source or for none.
    pub fn is_by_source(&self) -> bool {
        let [_component, others @ ..] = self.conditions();
        others.into_iter().all(<[_]>::is_empty)
    }

    fn conditions(&self) -> [&[Pattern]; 5] {
        let Self { component, namespace, kind, reason, event_type } = self;
        [component, namespace, kind, reason, event_type]
    }

    /// Whether each event that meets the conditions of `other` meets these.
    fn covers(&self, other: &Self) -> bool {
        let any = [Pattern::Prefix(SmolStr::default())];
        self.conditions().into_iter().zip(other.conditions()).all(|(own, other)| {
            let other = if other.is_empty() { &any } else { other };
            own.is_empty() || other.iter().all(|other| own.iter().any(|own| own.covers(other)))
        })
    }

    fn matches(&self, event: &Event) -> bool {
        self.miss(event).is_none()
    }

    /// Returns the first condition that an event does not meet, and the event's text of that member.
    pub fn miss<'e>(&self, event: &'e Event) -> Option<(&'static str, &'e str)> {
        let Self { component, namespace, kind, reason, event_type } = self;
        let conditions = [
            ("component", component, event.component()),
            ("namespace", namespace, &event.metadata.namespace),
            ("kind", kind, &event.involved_object.kind),
            ("reason", reason, &event.reason),
            ("type", event_type, &event.event_type),
        ];
        let missed = conditions.into_iter().find(|(_, condition, text)| !meets(condition, text));
        missed.map(|(name, _, text)| (name, text))
    }
}

/// Settings without rules.
impl From<Settings> for Policy {
    fn from(base: Settings) -> Self {
        Self { base: Arc::new(base), rules: Vec::new() }
    }
}

impl Policy {
    /// Returns the settings for `event`.
    pub fn select(&self, event: &Event) -> &Arc<Settings> {
        self.rule(event).1
    }

    /// Returns the number of the first rule that matches `event`, and its settings.
    pub fn rule(&self, event: &Event) -> (Option<usize>, &Arc<Settings>) {
        let found = self.rules.iter().position(|rule| rule.matches.matches(event));
        (found, found.and_then(|number| self.rules.get(number)).map_or(&self.base, |rule| &rule.settings))
    }

    /// Returns the size of the caches of a source: that of the first rule which matches all its events, whichever rule
    /// matches one of them earlier.
    pub fn lru_cache_size(&self, component: &str) -> NonZeroUsize {
        let is_it = |matches: &Matches| matches.is_by_source() && meets(&matches.component, component);
        let rule = self.rules.iter().find(|rule| is_it(&rule.matches));
        rule.map_or(&self.base, |rule| &rule.settings).lru_cache_size
    }

    /// Returns the settings that merge events of many objects into one record, so that the other objects seem to have
    /// no events. `None` stands for the base settings, a number for a rule. Rules that use the base's aggregate key are
    /// omitted.
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

    /// Returns the rules that no event reaches, each with the rule before it that matches all of its events.
    pub fn unreached(&self) -> impl Iterator<Item = (usize, usize)> {
        self.rules.iter().enumerate().filter_map(|(number, rule)| {
            let before = self.rules.iter().take(number).position(|before| before.matches.covers(&rule.matches))?;
            Some((number, before))
        })
    }

    /// Returns the rules whose condition on the type meets none of the types that the API server knows.
    pub fn without_type(&self) -> impl Iterator<Item = usize> {
        let knows = |rule: &Rule| ["Normal", "Warning"].iter().any(|known| meets(&rule.matches.event_type, known));
        self.rules.iter().enumerate().filter(move |(_, rule)| !knows(rule)).map(|(number, _)| number)
    }

    /// Returns the settings of the base and of each rule.
    pub(super) fn all(&self) -> impl Iterator<Item = &Settings> {
        std::iter::once(&self.base).chain(self.rules.iter().map(|rule| &rule.settings)).map(AsRef::as_ref)
    }

    /// Whether such an event is correlated, or only passed on.
    pub fn correlates(&self, event: &Event) -> bool {
        self.select(event).correlation == Correlation::On
    }
}
