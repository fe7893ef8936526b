//! Configurations between which a walk reloads: the rules, the keys, the budgets, and limits that hold only a few.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use eventweir::correlator::{
    self, Correlation, Field, KeyEncoding, Matches, Messages, Naming, Pattern, Policy, Rate, Rule, Suppression,
};
use eventweir::outbox::{self, GroupSettings, UpstreamGroup};
use eventweir::{explain, shard};
use proptest::prelude::*;

use super::process::Configuration;

/// A configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tuning {
    base: Base,
    keys: Keys,
    /// Settings of special events, by a rule.
    special: Option<Special>,
    limits: Limits,
    ceiling: Option<Rate>,
    upstream: UpstreamGroup,
    digest_after: usize,
    digest_age: u64,
    fold_after: u64,
    coalesce: u64,
}

#[derive(Debug, Clone, Copy)]
struct Base {
    burst: u32,
    group: Option<Rate>,
    suppression: Suppression,
    max_events: usize,
    naming: Naming,
}

/// What distinguishes events.
#[derive(Debug, Clone, Copy)]
enum Keys {
    /// As in client-go.
    Plain,
    Concatenated,
    /// Without the numbers of messages.
    Normalized,
    /// All objects of a source share one budget.
    OneBudget,
}

/// What a rule sets.
#[derive(Debug, Clone, Copy)]
enum Special {
    Suppression(Suppression),
    /// No correlation.
    Off,
    Keys(Keys),
}

/// Limits. Those of records are for refusals, the others for evictions.
#[derive(Debug, Clone, Copy)]
struct Limits {
    records: usize,
    bytes: usize,
    budgets: usize,
    groups: usize,
    sources: usize,
    keys: usize,
    cache: usize,
    /// Whether `explain` is on.
    explain: bool,
}

impl Limits {
    const WIDE: Self = Self {
        records: 100_000,
        bytes: 256 << 20,
        budgets: 1_000_000,
        groups: 10_000,
        sources: 10_000,
        keys: 1_000_000,
        cache: 4096,
        explain: true,
    };
}

fn number(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap()
}

impl Keys {
    fn set(self, settings: &mut correlator::Settings) {
        match self {
            Self::Plain => {}
            Self::Concatenated => settings.key_encoding = KeyEncoding::Concatenated,
            Self::Normalized => settings.messages = Messages::Normalized,
            Self::OneBudget => settings.spam_key = vec![Field::SourceComponent],
        }
    }
}

impl Tuning {
    pub(super) fn configuration(self) -> Configuration {
        Configuration { settings: self.settings(), policy: self.policy() }
    }

    fn policy(self) -> Policy {
        let Base { burst, group, suppression, max_events, naming } = self.base;
        let mut base = correlator::Settings {
            burst_size: burst,
            qps: 0.05,
            group,
            suppression,
            max_events: number(max_events),
            naming,
            lru_cache_size: number(self.limits.cache),
            ..correlator::Settings::default()
        };
        self.keys.set(&mut base);
        let rule = |special| {
            let mut settings = base.clone();
            match special {
                Special::Suppression(suppression) => settings.suppression = suppression,
                Special::Off => settings.correlation = Correlation::Off,
                Special::Keys(keys) => keys.set(&mut settings),
            }
            let matches = Matches { reason: vec![Pattern::Exact("Special".into())], ..Matches::default() };
            Rule { matches, settings: Arc::new(settings) }
        };
        Policy { rules: self.special.map(rule).into_iter().collect(), base: Arc::new(base) }
    }

    fn settings(self) -> shard::Settings {
        let limits = self.limits;
        let fold_after = Duration::from_secs(self.fold_after);
        let groups = GroupSettings { ceiling: self.ceiling, fold_after, max_groups: number(limits.groups) };
        let outbox = outbox::Settings {
            max_records: number(limits.records),
            max_bytes: number(limits.bytes),
            max_budgets: number(limits.budgets),
            digest_after: self.digest_after,
            digest_max_age: Duration::from_secs(self.digest_age),
            coalesce_interval: Duration::from_millis(self.coalesce),
            max_age: Duration::from_secs(30 * 86_400),
            groups,
            group: self.upstream,
            ..outbox::Settings::default()
        };
        let explain = explain::Settings { enabled: limits.explain, ..explain::Settings::default() };
        let (max_sources, max_tracked_keys) = (number(limits.sources), number(limits.keys));
        shard::Settings { max_sources, max_tracked_keys, outbox, explain }
    }
}

fn keys() -> impl Strategy<Value = Keys> {
    let others = vec![Keys::Concatenated, Keys::Normalized, Keys::OneBudget];
    prop_oneof![2 => Just(Keys::Plain), 1 => prop::sample::select(others)]
}

fn base() -> impl Strategy<Value = Base> {
    let naming = prop::sample::select(vec![Naming::Client, Naming::Deterministic]);
    let group = prop::sample::select(vec![
        None,
        Some(Rate { qps: 0.2, burst: 2 }),
        Some(Rate { qps: 0.001, burst: 3 }),
        Some(Rate { qps: 5.0, burst: 5 }),
    ]);
    let numbers = (prop::sample::select(vec![1, 3, 1000]), prop::sample::select(vec![2, 4, 10]));
    (numbers, group, suppression(), naming).prop_map(|((burst, max_events), group, suppression, naming)| Base {
        burst,
        group,
        suppression,
        max_events,
        naming,
    })
}

fn suppression() -> impl Strategy<Value = Suppression> {
    prop_oneof![3 => Just(Suppression::Defer), 1 => Just(Suppression::Drop)]
}

fn limits() -> impl Strategy<Value = Limits> {
    let few = vec![
        Limits { records: 3, ..Limits::WIDE },
        Limits { bytes: 3000, ..Limits::WIDE },
        Limits { budgets: 1, ..Limits::WIDE },
        Limits { groups: 1, ..Limits::WIDE },
        Limits { sources: 1, ..Limits::WIDE },
        Limits { keys: 4, ..Limits::WIDE },
        Limits { cache: 2, ..Limits::WIDE },
        Limits { explain: false, ..Limits::WIDE },
    ];
    prop_oneof![2 => Just(Limits::WIDE), 1 => prop::sample::select(few)]
}

pub(super) fn tuning() -> impl Strategy<Value = Tuning> {
    let special = prop_oneof![
        2 => Just(None),
        1 => suppression().prop_map(|suppression| Some(Special::Suppression(suppression))),
        1 => Just(Some(Special::Off)),
        1 => keys().prop_map(|keys| Some(Special::Keys(keys))),
    ];
    let ceiling = prop::sample::select(vec![None, Some(Rate { qps: 0.2, burst: 5 })]);
    let upstream = prop_oneof![
        4 => Just(UpstreamGroup::Core),
        1 => Just(UpstreamGroup::Preserve),
        1 => Just(UpstreamGroup::Events),
    ];
    let folds = (
        prop::sample::select(vec![1, 3, 1000]),
        prop::sample::select(vec![5, 100, 100_000]),
        prop::sample::select(vec![1, 10]),
        prop::sample::select(vec![0, 1000]),
    );
    (base(), keys(), special, limits(), (ceiling, upstream), folds).prop_map(
        |(base, keys, special, limits, (ceiling, upstream), (digest_after, digest_age, fold_after, coalesce))| Tuning {
            base,
            keys,
            special,
            limits,
            ceiling,
            upstream,
            digest_after,
            digest_age,
            fold_after,
            coalesce,
        },
    )
}
