//! Suggests rules: each was tried on the same events, and is judged per component.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use smol_str::SmolStr;

use super::report::{Compared, Total, length, seconds, sums, thousands};
use super::table::{WIDTH, cut};
use crate::replay::{Fact, Simulation, Trial};

const SECOND: i64 = 1_000_000_000;

/// LIMIT: suggested rules; those that help most come first.
const SUGGESTIONS: usize = 3;

/// The wait for a fact that is acceptable, and the least by which a rule must shorten a longer one.
const SHORT_WAIT: i64 = 60 * SECOND;

/// The least number of writes that a rule must save.
const FEW_WRITES: u64 = 50;

/// Indentation of a rule's lines.
const INDENT: &str = "    ";

/// A rule that helps a component.
struct Suggestion {
    rule: Trial,
    component: SmolStr,
    /// The rule as a configuration.
    config: String,
    /// Totals of the component without the rule, and with it.
    before: Total,
    after: Total,
}

/// Returns how much a rule helps; `None` if it does not, or hides a fact.
fn gain(rule: Trial, before: &Total, after: &Total) -> Option<i64> {
    let shorter = before.wait().saturating_sub(after.wait());
    let fewer = before.fate.writes.saturating_sub(after.fate.writes);
    let (helps, gain) = match rule {
        Trial::ReasonInSpamKey => (shorter >= SHORT_WAIT, shorter),
        Trial::SmallBudget => {
            let is_much = fewer >= FEW_WRITES && fewer >= before.fate.writes / 4;
            (is_much && shorter >= -SHORT_WAIT, i64::try_from(fewer).unwrap_or(i64::MAX))
        }
    };
    (helps && after.unseen <= before.unseen).then_some(gain)
}

/// Returns the components of which a rule matches some events. A rule before it would replace all its settings, so a
/// trial, which changes them, says nothing about the effect.
fn with_rules(compared: &Compared, simulation: &Simulation) -> BTreeSet<SmolStr> {
    let facts = compared.comparison.facts.iter().map(|(fact, _)| fact);
    facts.filter(|fact| simulation.has_rule_for(fact)).map(|fact| fact.component.clone()).collect()
}

/// Sums up the facts of each component.
fn by_component(compared: &Compared, simulation: &Simulation) -> BTreeMap<SmolStr, Total> {
    let component = |fact: &Fact| Some(fact.component.clone()).filter(|component| !component.is_empty());
    let components = sums(&compared.comparison, std::slice::from_ref(simulation), component).into_iter();
    components.filter_map(|(component, mut sums)| Some((component, sums.totals.pop()?))).collect()
}

fn suggestions(compared: &Compared) -> Vec<Suggestion> {
    let (mut found, comparison) = (Vec::new(), &compared.comparison);
    let [_, ours] = &*comparison.columns else { return Vec::new() };
    let with_rules = with_rules(compared, ours);
    for (rule, trial) in Trial::ALL.into_iter().zip(&comparison.trials) {
        let (mut before, mut helpful) = (by_component(compared, ours), Vec::new());
        let tried = by_component(compared, trial).into_iter();
        for (component, after) in tried.filter(|(component, _)| !with_rules.contains(component)) {
            let Some(before) = before.remove(&component) else { continue };
            if let Some(gain) = gain(rule, &before, &after) {
                let config = configuration(&component, &rule.keys(&ours.policy));
                helpful.push((gain, Suggestion { rule, component, config, before, after }));
            }
        }
        helpful.sort_by_key(|(gain, _)| std::cmp::Reverse(*gain));
        found.extend(helpful.into_iter().map(|(_, suggestion)| suggestion).enumerate());
    }
    // The best component of each rule comes before the second best of any.
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, suggestion)| suggestion).take(SUGGESTIONS).collect()
}

/// Writes a configuration whose rule sets `keys` for one component.
fn configuration(component: &str, keys: &str) -> String {
    let mut text = format!("correlation:\n  rules:\n    - match: {{component: {}}}\n", Value::from(component));
    let mut line = "      set: {".to_owned();
    for (number, part) in keys.split(", ").enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        if line.len() + comma.len() + part.len() + "},".len() > WIDTH - INDENT.len() {
            text += &format!("{line},\n");
            line = format!("        {part}");
        } else {
            line += &format!("{comma}{part}");
        }
    }
    text + &line + "}\n"
}

/// Total writes with a suggested rule, and without it.
fn writes(compared: &Compared, suggestion: &Suggestion) -> (u64, u64) {
    let before = compared.comparison.columns[1].fates().iter().map(|fate| fate.writes).sum::<u64>();
    (before - suggestion.before.fate.writes + suggestion.after.fate.writes, before)
}

/// Returns the suggestions as text; empty if no rule helps.
pub(super) fn text(compared: &Compared) -> String {
    let mut text = String::new();
    for suggestion in suggestions(compared) {
        let Suggestion { rule, component, config, before, after } = &suggestion;
        let (with, without) = writes(compared, &suggestion);
        let sign = if with < without { '-' } else { '+' };
        let (with, difference) = (thousands(with), thousands(with.abs_diff(without)));
        let effect = match rule {
            Trial::ReasonInSpamKey => format!("longest wait {} instead of {}", after.wait_text(), before.wait_text()),
            Trial::SmallBudget => {
                let [after, before] = [after, before].map(|total| length(total.behind / SECOND));
                format!("newest behind by {after}, not {before}")
            }
        };
        text += &format!("  {} for component {}\n", rule.name(), cut(component, 40));
        text += &format!("    {with} writes ({sign}{difference}), {effect}\n");
        text.extend(config.lines().map(|line| format!("{INDENT}{line}\n")));
    }
    if text.is_empty() {
        text
    } else {
        format!("\nWhat would help (tried; add a rule to the configuration, before others)\n{text}")
    }
}

pub(super) fn json(compared: &Compared) -> Vec<Value> {
    let each = |suggestion: &Suggestion| {
        let Suggestion { rule, component, config, after, .. } = suggestion;
        json!({
            "rule": rule.name(), "component": **component, "config": config, "writes": writes(compared, suggestion).0,
            "unseenFacts": after.unseen, "longestWaitSeconds": after.wait.map(seconds),
            "newestBehindSeconds": seconds(after.behind),
        })
    };
    suggestions(compared).iter().map(each).collect()
}
