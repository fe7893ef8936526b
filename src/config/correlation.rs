//! Reads the `correlation` section: profile, base settings, rules; each later one overrides the earlier.

use std::sync::Arc;
use std::time::Duration;

use super::read::WEEK;
use super::section::Section;
use super::values;
use crate::correlator::{
    Correlation, CountOverflow, Field, KeyEncoding, LEGACY_SPAM_KEY, Matches, Messages, Naming, Policy, Rate, Rule,
    SPAM_KEY, Settings, Suppression,
};
use crate::shard;

/// LIMIT: rules, more are refused; each event may be compared with all of them.
const RULES_MAX: usize = 200;

/// The named base settings: client-go's spam keys since v0.32, and those before, with which both types share a budget.
const PROFILES: [(&str, &[Field]); 2] = [("client-go", &SPAM_KEY), ("client-go-legacy", &LEGACY_SPAM_KEY)];

const SUPPRESSION: [(&str, Suppression); 2] = [("defer", Suppression::Defer), ("drop", Suppression::Drop)];
const KEY_ENCODING: [(&str, KeyEncoding); 2] =
    [("framed", KeyEncoding::Framed), ("concatenated", KeyEncoding::Concatenated)];
const COUNT_OVERFLOW: [(&str, CountOverflow); 2] =
    [("saturate", CountOverflow::Saturate), ("wrap", CountOverflow::Wrap)];
const MESSAGES: [(&str, Messages); 2] = [("exact", Messages::Exact), ("normalized", Messages::Normalized)];
const NAMING: [(&str, Naming); 2] = [("client", Naming::Client), ("deterministic", Naming::Deterministic)];

/// The budget of a group, which client-go does not have: enough for the events of a cluster on an ordinary day.
const GROUP: Rate = Rate { qps: 1.0, burst: 30 };

/// The policy without a section: client-go's constants, and a budget per group.
pub(super) fn default_policy() -> Policy {
    Policy::from(Settings { group: Some(GROUP), ..Settings::default() })
}

/// Reads the section; its limits go into `shard`.
pub(super) fn correlation(section: &mut Section<'_>, policy: &mut Policy, shard: &mut shard::Settings) {
    let mut base = Settings::clone(&policy.base);
    if let Some(spam_key) = section.given("profile", &values::choice(&PROFILES)) {
        base.spam_key = spam_key.to_vec();
    }
    let group = settings(section, &mut base, Rate { burst: 0, ..GROUP });
    policy.base = Arc::new(base);
    let new = Rule { matches: Matches::default(), settings: Arc::clone(&policy.base) };
    // A rule without budgets of groups shows that, also over a base with them.
    let group = Rate { burst: 0, ..group };
    section.each("rules", RULES_MAX, &mut policy.rules, &new, |section, read| rule(section, read, group));
    section.set("maxSources", &mut shard.max_sources, &values::positive(1_000_000));
    section.set("maxTrackedKeys", &mut shard.max_tracked_keys, &values::positive(100_000_000));
}

/// Reads settings over others; `group` is their rate of groups if they have no budgets of groups. Returns the new one, which
/// rules inherit also without budgets.
fn settings(section: &mut Section<'_>, settings: &mut Settings, group: Rate) -> Rate {
    let mut is_on = settings.correlation == Correlation::On;
    section.set("enabled", &mut is_on, &values::truth());
    settings.correlation = if is_on { Correlation::On } else { Correlation::Off };
    section.set("suppression", &mut settings.suppression, &values::choice(&SUPPRESSION));
    section.set("lruCacheSize", &mut settings.lru_cache_size, &values::positive(10_000_000));
    let rates = || values::rate(1_000_000.0, Some("budgets are never refilled"));
    section.set("burstSize", &mut settings.burst_size, &values::whole(0..=1_000_000));
    section.set("qps", &mut settings.qps, &rates());
    let mut group = settings.group.unwrap_or(group);
    section.set("groupBurstSize", &mut group.burst, &values::whole(0..=1_000_000));
    section.set("groupQps", &mut group.qps, &rates());
    settings.group = (group.burst > 0).then_some(group);
    section.set("maxEvents", &mut settings.max_events, &values::positive(1000));
    section.set("maxInterval", &mut settings.max_interval, &values::duration(Duration::ZERO..=WEEK));
    section.set("spamKey", &mut settings.spam_key, &values::fields());
    section.set("aggregateKey", &mut settings.aggregate_key, &values::fields());
    section.set("localKey", &mut settings.local_key, &values::fields());
    section.set("messages", &mut settings.messages, &values::choice(&MESSAGES));
    section.set("messagePrefix", &mut settings.message_prefix, &values::text(256));
    section.set("keyEncoding", &mut settings.key_encoding, &values::choice(&KEY_ENCODING));
    section.set("countOverflow", &mut settings.count_overflow, &values::choice(&COUNT_OVERFLOW));
    section.set("naming", &mut settings.naming, &values::choice(&NAMING));
    group
}

const NO_CONDITION: &str = "a rule needs a condition; allowed: one or more of component, namespace, kind, reason, type";

fn rule(section: &mut Section<'_>, rule: &mut Rule, group: Rate) {
    let is_given = section.has("match");
    if !is_given {
        section.conflict("match", NO_CONDITION);
    }
    section.within("match", |section| {
        let Matches { component, namespace, kind, reason, event_type } = &mut rule.matches;
        let conditions = [
            ("component", component),
            ("namespace", namespace),
            ("kind", kind),
            ("reason", reason),
            ("type", event_type),
        ];
        if is_given && !conditions.iter().any(|(key, _)| section.has(key)) {
            section.conflict("", NO_CONDITION);
        }
        for (key, patterns) in conditions {
            section.set_list(key, patterns, &values::patterns());
        }
    });
    let own_source = rule.matches.is_by_source();
    section.within("set", |section| {
        if section.has("lruCacheSize") && !own_source {
            section.conflict(
                "lruCacheSize",
                "cannot apply to some events of a source only, because all of them share its caches; \
                 allowed: in a rule that matches component alone",
            );
        }
        settings(section, Arc::make_mut(&mut rule.settings), group);
    });
}
