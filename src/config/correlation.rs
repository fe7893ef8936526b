//! The `correlation` section: profile, base settings, rules; each later one laid over the earlier.

use std::sync::Arc;
use std::time::Duration;

use super::section::Section;
use super::values;
use crate::correlator::{
    self, CountOverflow, KeyEncoding, LEGACY_SPAM_KEY, Matches, Messages, Naming, Policy, Rate, Rule, Settings,
    Suppression,
};
use crate::shard;

/// LIMIT: rules; each event may be compared with all of them.
const RULES_MAX: usize = 200;

/// The named base settings that a file starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Profile {
    /// client-go's keys since v0.32.
    ClientGo,
    /// client-go's keys before: events of both types share a budget.
    ClientGoLegacy,
}

pub(super) const SUPPRESSION: [(&str, Suppression); 2] = [("defer", Suppression::Defer), ("drop", Suppression::Drop)];
pub(super) const KEY_ENCODING: [(&str, KeyEncoding); 2] =
    [("framed", KeyEncoding::Framed), ("concatenated", KeyEncoding::Concatenated)];
pub(super) const COUNT_OVERFLOW: [(&str, CountOverflow); 2] =
    [("saturate", CountOverflow::Saturate), ("wrap", CountOverflow::Wrap)];
pub(super) const MESSAGES: [(&str, Messages); 2] = [("exact", Messages::Exact), ("normalized", Messages::Normalized)];
pub(super) const NAMING: [(&str, Naming); 2] = [("client", Naming::Client), ("deterministic", Naming::Deterministic)];

/// The budget of a group, which client-go has not: enough for what a cluster does on an ordinary day.
pub(super) const GROUP: Rate = Rate { qps: 1.0, burst: 30 };

/// What holds without a section: client-go's constants, and a budget for each group.
pub(super) fn default_policy() -> Policy {
    Policy { base: Arc::new(Settings { group: Some(GROUP), ..Settings::default() }), rules: Vec::new() }
}

/// Reads the section; its limits go into `shard`.
pub(super) fn correlation(section: &mut Section<'_>, shard: &mut shard::Settings) -> Policy {
    let profiles = [("client-go", Profile::ClientGo), ("client-go-legacy", Profile::ClientGoLegacy)];
    let profile = section.value("profile", Profile::ClientGo, values::choice(&profiles));
    let client_go = Settings { group: Some(GROUP), ..Settings::default() };
    let base = match profile {
        Profile::ClientGo => client_go,
        Profile::ClientGoLegacy => Settings { spam_key: LEGACY_SPAM_KEY.to_vec(), ..client_go },
    };
    let base = settings(section, &base);
    let rules = section.each("rules", RULES_MAX, |section| rule(section, &base));
    shard.max_sources = section.value("maxSources", shard.max_sources, values::positive(1_000_000));
    shard.max_tracked_keys = section.value("maxTrackedKeys", shard.max_tracked_keys, values::positive(100_000_000));
    Policy { base: Arc::new(base), rules }
}

/// The members of [`Settings`] that `section` gives, laid over `base`.
fn settings(section: &mut Section<'_>, base: &Settings) -> Settings {
    let base = base.clone();
    let on = base.correlation == correlator::Correlation::On;
    let enabled = section.value("enabled", on, values::truth);
    let group = base.group.unwrap_or(Rate { burst: 0, ..GROUP });
    let group = Rate {
        burst: section.value("groupBurstSize", group.burst, values::whole_32(0..=1_000_000)),
        qps: section.value("groupQps", group.qps, values::rate(1_000_000.0, Some("budgets are never refilled"))),
    };
    let intervals = Duration::ZERO..=Duration::from_secs(7 * 86_400);
    Settings {
        correlation: if enabled { correlator::Correlation::On } else { correlator::Correlation::Off },
        suppression: section.value("suppression", base.suppression, values::choice(&SUPPRESSION)),
        lru_cache_size: section.value("lruCacheSize", base.lru_cache_size, values::positive(10_000_000)),
        burst_size: section.value("burstSize", base.burst_size, values::whole_32(0..=1_000_000)),
        qps: section.value("qps", base.qps, values::rate(1_000_000.0, Some("budgets are never refilled"))),
        group: (group.burst > 0).then_some(group),
        max_events: section.value("maxEvents", base.max_events, values::positive(1000)),
        max_interval: section.value("maxInterval", base.max_interval, values::duration(intervals)),
        spam_key: section.value("spamKey", base.spam_key, values::fields),
        aggregate_key: section.value("aggregateKey", base.aggregate_key, values::fields),
        local_key: section.value("localKey", base.local_key, values::fields),
        messages: section.value("messages", base.messages, values::choice(&MESSAGES)),
        message_prefix: section.value("messagePrefix", base.message_prefix, values::text(256)),
        key_encoding: section.value("keyEncoding", base.key_encoding, values::choice(&KEY_ENCODING)),
        count_overflow: section.value("countOverflow", base.count_overflow, values::choice(&COUNT_OVERFLOW)),
        naming: section.value("naming", base.naming, values::choice(&NAMING)),
    }
}

fn rule(section: &mut Section<'_>, base: &Settings) -> Rule {
    let given = section.has("match");
    if !given {
        section.conflict("match", NO_CONDITION);
    }
    let matches = section.within("match", |section| {
        let conditions = ["component", "namespace", "kind", "reason", "type"];
        if given && !conditions.iter().any(|key| section.has(key)) {
            section.conflict("", NO_CONDITION);
        }
        matches(section)
    });
    let component_alone = Matches { component: matches.component.clone(), ..Matches::default() };
    let own_source = matches == component_alone;
    let settings = section.within("set", |section| {
        if section.has("lruCacheSize") && !own_source {
            section.conflict(
                "lruCacheSize",
                "cannot hold for some events of a source, as all share its caches; allowed: in a rule that matches component alone",
            );
        }
        settings(section, base)
    });
    Rule { matches, settings: Arc::new(settings) }
}

const NO_CONDITION: &str = "a rule needs a condition; allowed: one or more of component, namespace, kind, reason, type";

fn matches(section: &mut Section<'_>) -> Matches {
    Matches {
        component: section.value("component", Vec::new(), values::patterns),
        namespace: section.value("namespace", Vec::new(), values::patterns),
        kind: section.value("kind", Vec::new(), values::patterns),
        reason: section.value("reason", Vec::new(), values::patterns),
        event_type: section.value("type", Vec::new(), values::patterns),
    }
}
