//! Configurations between which a walk reloads: the rules, the keys, the budgets, and limits that hold only a few.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use eventweir::clock::Now;
use eventweir::correlator::{
    self, Correlation, Field, KeyEncoding, KeySecret, Matches, Messages, Naming, Pattern, Policy, Rate, Rule,
    Suppression,
};
use eventweir::deliver::GateSettings;
use eventweir::event::{Event, ObjectMeta};
use eventweir::outbox::{self, GroupSettings, UpstreamGroup};
use eventweir::outbox::{Answer, Request};
use eventweir::shard::Shard;
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
    /// The place of a rule that gives Warnings more tokens.
    warnings: Option<Place>,
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
    qps: f32,
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

/// The place of a rule among others.
#[derive(Debug, Clone, Copy)]
enum Place {
    First,
    Last,
}

/// Limits. Those of records are for refusals, the others for evictions.
#[derive(Debug, Clone, Copy)]
struct Limits {
    records: usize,
    /// Share of one source, in percent.
    share: usize,
    bytes: usize,
    budgets: usize,
    groups: usize,
    sources: usize,
    keys: usize,
    cache: usize,
    /// Whether `explain` is on.
    explain: bool,
    explain_bytes: usize,
    messages: usize,
    in_flight: usize,
}

impl Limits {
    const WIDE: Self = Self {
        records: 100_000,
        share: 50,
        bytes: 256 << 20,
        budgets: 1_000_000,
        groups: 10_000,
        sources: 10_000,
        keys: 1_000_000,
        cache: 4096,
        explain: true,
        explain_bytes: 16 << 20,
        messages: 10,
        in_flight: 32,
    };

    /// Whether there is room for a few of something only.
    const fn is_few(self) -> bool {
        let Self { records, bytes, budgets, groups, sources, keys, .. } = self;
        let wide = Self::WIDE;
        records < wide.records
            || bytes < wide.bytes
            || budgets < wide.budgets
            || groups < wide.groups
            || sources < wide.sources
            || keys < wide.keys
    }
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
        let gate = GateSettings { max_in_flight: self.limits.in_flight, rate: self.ceiling, ..GateSettings::default() };
        Configuration { settings: self.settings(), policy: self.policy(), gate }
    }

    fn policy(self) -> Policy {
        let Base { burst, qps, group, suppression, max_events, naming } = self.base;
        let mut base = correlator::Settings {
            burst_size: burst,
            qps,
            group,
            suppression,
            max_events: number(max_events),
            naming,
            lru_cache_size: number(self.limits.cache),
            ..correlator::Settings::default()
        };
        self.keys.set(&mut base);
        let special = |special| {
            let mut settings = base.clone();
            match special {
                Special::Suppression(suppression) => settings.suppression = suppression,
                Special::Off => settings.correlation = Correlation::Off,
                Special::Keys(keys) => keys.set(&mut settings),
            }
            let matches = Matches { reason: vec![Pattern::Exact("Special".into())], ..Matches::default() };
            Rule { matches, settings: Arc::new(settings) }
        };
        let mut rules: Vec<Rule> = self.special.map(special).into_iter().collect();
        if let Some(place) = self.warnings {
            let matches = Matches { event_type: vec![Pattern::Exact("Warning".into())], ..Matches::default() };
            let settings = Arc::new(correlator::Settings { burst_size: burst + 1, qps: 2.0 * qps, ..base.clone() });
            let at = if matches!(place, Place::First) { 0 } else { rules.len() };
            rules.insert(at, Rule { matches, settings });
        }
        Policy { rules, base: Arc::new(base) }
    }

    fn settings(self) -> shard::Settings {
        let limits = self.limits;
        let fold_after = Duration::from_secs(self.fold_after);
        let groups = GroupSettings { ceiling: self.ceiling, fold_after, max_groups: number(limits.groups) };
        let outbox = outbox::Settings {
            max_records: number(limits.records),
            source_percent: number(limits.share),
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
        let Limits { explain: enabled, messages, .. } = limits;
        let max_bytes = number(limits.explain_bytes);
        let explain = explain::Settings { enabled, max_bytes, messages, ..explain::Settings::default() };
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
        Some(Rate { qps: 0.198, burst: 2 }),
        Some(Rate { qps: 0.001, burst: 3 }),
        Some(Rate { qps: 4.7, burst: 5 }),
    ]);
    let numbers = (prop::sample::select(vec![1, 3, 1000]), prop::sample::select(vec![2, 4, 10]));
    (numbers, prop::sample::select(vec![0.0097, 0.047, 4.7]), group, suppression(), naming).prop_map(
        |((burst, max_events), qps, group, suppression, naming)| Base {
            burst,
            qps,
            group,
            suppression,
            max_events,
            naming,
        },
    )
}

fn suppression() -> impl Strategy<Value = Suppression> {
    prop_oneof![3 => Just(Suppression::Defer), 1 => Just(Suppression::Drop)]
}

fn limits() -> impl Strategy<Value = Limits> {
    let few = vec![
        Limits { records: 3, ..Limits::WIDE },
        Limits { records: 12, share: 10, ..Limits::WIDE },
        Limits { bytes: 3000, ..Limits::WIDE },
        Limits { budgets: 1, ..Limits::WIDE },
        Limits { groups: 1, ..Limits::WIDE },
        Limits { sources: 1, ..Limits::WIDE },
        Limits { keys: 4, ..Limits::WIDE },
        Limits { cache: 2, ..Limits::WIDE },
        Limits { explain: false, ..Limits::WIDE },
        Limits { explain_bytes: 64 << 10, messages: 1, ..Limits::WIDE },
        Limits { in_flight: 1, ..Limits::WIDE },
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
    let warnings = prop::sample::select(vec![None, None, Some(Place::First), Some(Place::Last)]);
    let ceiling = prop::sample::select(vec![None, Some(Rate { qps: 0.198, burst: 5 })]);
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
    (base(), keys(), (special, warnings), limits(), (ceiling, upstream), folds).prop_map(
        |(
            base,
            keys,
            (special, warnings),
            limits,
            (ceiling, upstream),
            (digest_after, digest_age, fold_after, coalesce),
        )| Tuning {
            base,
            keys,
            special,
            warnings,
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

/// How often a shard writes in each second.
const STEPS: i64 = 10;

/// A shard with its rules, and the seconds that have passed.
struct Alone {
    shard: Shard,
    policy: Policy,
    second: i64,
}

impl Alone {
    fn new(Configuration { settings, policy, .. }: Configuration) -> Self {
        Self { shard: Shard::new(KeySecret(1, 2), settings, 1), policy, second: 1 }
    }

    /// Reports events of these objects and messages in each second, and returns what is decided and written.
    fn report(&mut self, component: &str, events: &[(u8, u8)], is_warning: bool, seconds: i64) -> Vec<String> {
        let (mut all, began, mut events) = (Vec::new(), self.second, events.iter());
        for second in began..began + seconds {
            let now = Now::at(second * 1_000_000_000);
            for (object, message) in events.by_ref().take(2) {
                let mut event =
                    Event { reason: "Special".into(), message: format!("{message}").into(), ..Event::default() };
                event.event_type = if is_warning { "Warning" } else { "Normal" }.into();
                event.source.component = component.into();
                event.metadata.namespace = component.into();
                event.involved_object.name = format!("{object}").into();
                let outcome = self.shard.accept(event, 1, now, &self.policy).map(|accepted| accepted.outcome);
                all.push(format!("{} {outcome:?}", second - began));
            }
            let mut written = Vec::new();
            // Of two writes that are due at the same step, either may be the first; with these rates, hardly any are.
            for step in 0..STEPS {
                let now = Now::at(second * 1_000_000_000 + step * 1_000_000_000 / STEPS);
                self.write(component, now, |stored| {
                    let Event { reason, count, message, .. } = stored;
                    written.push(format!("{} {reason} {count} {message}", second - began));
                });
            }
            assert!(self.shard.balance().is_exact());
            written.sort();
            all.extend(written);
        }
        self.second += seconds;
        all
    }

    /// Writes what is due, and calls `note` with what is stored of this namespace.
    fn write(&mut self, namespace: &str, now: Now, mut note: impl FnMut(&Event)) {
        while self.shard.next_wakeup(now.mono).is_some_and(|at| at <= now.mono) {
            let Some(write) = self.shard.next_write(now) else { continue };
            let stored = match write.request {
                Request::Create { event, .. } => *event,
                Request::Patch { namespace, patch, .. } => {
                    let metadata = ObjectMeta { namespace, ..ObjectMeta::default() };
                    Event { metadata, count: patch.count, message: patch.message.clone(), ..Event::default() }
                }
                Request::Read { .. } | Request::Delete { .. } => unreachable!("nothing fails"),
            };
            if stored.metadata.namespace == namespace {
                note(&stored);
            }
            self.shard.settle(write.record, Answer::Stored(Box::new(stored)), now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// What came before is of another source and namespace. It waits still, if it shares no limit with what comes then.
    #[test]
    fn after_a_reload_a_shard_decides_as_a_new_one(
        before in tuning(),
        after in tuning(),
        events in prop::collection::vec((0..6_u8, 0..4_u8), 1..60),
        is_warning in any::<bool>(),
    ) {
        let mut old = Alone::new(before.configuration());
        old.report("old", &events, is_warning, 40);
        if after.ceiling.is_some() || after.limits.is_few() {
            old.report("old", &[], is_warning, 2000);
            old.second += 30 * 86_400;
            old.report("old", &[], is_warning, 2000);
            prop_assume!(!old.shard.owes());
        }
        let mut configuration = after.configuration();
        // Another API group needs a restart.
        configuration.settings.outbox.group = before.upstream;
        let mut new = Alone { second: old.second, ..Alone::new(configuration.clone()) };
        let Configuration { settings, policy, .. } = configuration;
        let now = Now::at(old.second * 1_000_000_000);
        old.shard.reload(settings, &old.policy, &policy, now);
        old.policy = policy;
        let [decided, expected] = [&mut old, &mut new].map(|shard| shard.report("new", &events, is_warning, 300));
        prop_assert_eq!(decided, expected);
    }
}
