//! The decision: what one more occurrence does to the records of its source. Pure; time is handed in.
//!
//! One [`Correlator`] a source, as client-go has one per broadcaster. The steps and their order are client-go's
//! (`tools/record/events_cache.go`, `EventCorrelate`): `aggregate`, `dedup`, then the budget. The filter comes last, so an
//! occurrence that is dropped has already been counted.

mod aggregate;
mod budget;
mod dedup;
mod history;
mod key;
mod lru_map;
mod normal;
mod patch;
mod policy;
mod settings;

pub use aggregate::record_name;
pub use budget::{Rate, TokenBucket};
pub use history::{is_newer, namespace_tag};
pub use key::{BuildKeyHasher, Key, KeySecret, Keys};
pub use lru_map::LruMap;
pub use patch::Patch;
pub use policy::{Matches, Pattern, Policy, Rule};
pub use settings::{
    AGGREGATE_KEY, Correlation, CountOverflow, Field, KeyEncoding, LEGACY_SPAM_KEY, MESSAGE_PREFIX, Messages, Naming,
    SPAM_KEY, Settings, Suppression,
};

pub use dedup::Observation;

use aggregate::{Groups, Route, is_combined};
use dedup::Observations;

use crate::clock::Now;
use crate::event::Event;

/// Identity of a record inside one shard; never reused while the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

/// The state of one source.
#[derive(Debug)]
pub struct Correlator {
    secret: KeySecret,
    groups: Groups,
    observations: Observations,
    /// Budgets under `Suppression::Drop`; a deferred write pays in the outbox.
    // LIMIT: `lru_cache_size` entries; a forgotten bucket is a full one again.
    buckets: Option<Box<LruMap<TokenBucket>>>,
}

/// What an occurrence became, beside its event, which looks now as its record should: a repeat has the record's name and running count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// The dedup key of the record: the event key, or the aggregate key of a combined event.
    pub key: Key,
    /// The record.
    pub record: RecordId,
    /// Whether the upstream is known to hold the record.
    pub stored: bool,
    /// How many occurrences it showed before, and how many of them its tag counts.
    pub before: i32,
    /// See `before`.
    pub tag: u64,
    /// How the occurrence shows.
    pub fold: Fold,
    /// Whether it counts on an observation that was there.
    pub is_repeat: bool,
    /// Whether it may be written.
    pub verdict: Verdict,
    /// The spam key: whose budget it is.
    pub budget: Key,
}

/// How an occurrence shows in its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fold {
    /// It began a record of its own.
    Created,
    /// It counts on the record of an equal event.
    Counted,
    /// It counts on a combined record.
    Combined,
}

/// Whether an occurrence may be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Yes: its token is paid, or it is free.
    Pass,
    /// When its record finds a token in this budget (`Suppression::Defer`).
    Owe {
        /// How the budget fills.
        rate: Rate,
    },
    /// No: the budget is empty (`Suppression::Drop`).
    Drop,
}

impl Decision {
    /// The call client-go's delivery starts with: a PATCH if the resulting count is above 1
    /// (`tools/record/event.go`, `recordEvent`). Ours creates whatever the upstream is not known to hold.
    #[must_use]
    pub const fn starts_with_patch(event: &Event) -> bool {
        event.count > 1
    }

    /// client-go's patch, for a repeat. Made only when asked for: the outbox makes one a write, which stands for many repeats.
    #[must_use]
    pub fn patch(&self, event: &Event) -> Option<Patch> {
        self.is_repeat.then(|| Patch::of(event))
    }
}

impl Correlator {
    /// A source never seen before.
    #[must_use]
    pub fn new(secret: KeySecret) -> Self {
        Self { secret, groups: Groups::default(), observations: Observations::default(), buckets: None }
    }

    /// Entries in all caches together: what memory limits count.
    #[must_use]
    pub fn tracked_keys(&self) -> usize {
        self.groups.len() + self.observations.len() + self.buckets.as_ref().map_or(0, |buckets| buckets.len())
    }

    /// The observation that `event` would count on, without counting it.
    #[must_use]
    pub fn find(&self, event: &Event, keys: &Keys, now: Now, settings: &Settings) -> Option<&Observation> {
        if settings.correlation == Correlation::Off {
            return None;
        }
        let route = if is_combined(event, settings) {
            Route::Combined
        } else {
            self.groups.peek(keys.aggregate, keys.local, now, settings)
        };
        let key = match route {
            Route::Plain => keys.event,
            Route::Combined => keys.aggregate,
        };
        self.observations.find(key)
    }

    /// The records that may stand for `event`: the one it would count on, then the other of its own and its group's.
    pub fn candidates(&self, event: &Event, now: Now, settings: &Settings) -> Vec<(Key, &Observation)> {
        if settings.correlation == Correlation::Off {
            return Vec::new();
        }
        let Keys { aggregate, local, event: own, .. } = self.secret.keys(event, settings);
        let combined =
            is_combined(event, settings) || self.groups.peek(aggregate, local, now, settings) == Route::Combined;
        let keys = if combined { [aggregate, own] } else { [own, aggregate] };
        keys.into_iter().filter_map(|key| Some((key, self.observations.find(key)?))).collect()
    }

    /// Decides about `occurrences` equal occurrences of `event` at `now`; record numbers are drawn from `next_record`. `event`
    /// becomes the desired state of its record.
    pub fn correlate(
        &mut self,
        event: &mut Event,
        occurrences: u32,
        now: Now,
        settings: &Settings,
        next_record: &mut u64,
    ) -> Decision {
        let keys = self.secret.keys(event, settings);
        self.correlate_keyed(event, &keys, occurrences, now, settings, next_record)
    }

    /// As [`correlate`](Self::correlate), where the event's keys under these settings are known.
    pub fn correlate_keyed(
        &mut self,
        event: &mut Event,
        keys: &Keys,
        occurrences: u32,
        now: Now,
        settings: &Settings,
        next_record: &mut u64,
    ) -> Decision {
        if settings.correlation == Correlation::Off {
            let record = RecordId(*next_record);
            *next_record += 1;
            let (fold, verdict) = (Fold::Created, Verdict::Pass);
            let (key, budget) = (keys.event, keys.spam);
            return Decision { key, record, stored: false, before: 0, tag: 0, fold, is_repeat: false, verdict, budget };
        }
        let route = if is_combined(event, settings) {
            Route::Combined
        } else {
            self.groups.observe(keys.aggregate, keys.local, now, settings)
        };
        let key = match route {
            Route::Plain => keys.event,
            Route::Combined => {
                *event = aggregate::combined_event(event, occurrences, now, settings);
                keys.aggregate
            }
        };
        let observed = self.observations.observe(key, event, occurrences, settings, next_record);
        if settings.naming == Naming::Deterministic && !observed.is_repeat {
            let name = shared_name(event, route, settings);
            event.metadata.name = name.clone();
            self.observations.adjust(key, observed.record, |observation| observation.name = name);
        }
        let fold = match (route, observed.is_repeat) {
            (Route::Combined, _) => Fold::Combined,
            (Route::Plain, true) => Fold::Counted,
            (Route::Plain, false) => Fold::Created,
        };
        let budget = match route {
            // COMPAT(client-go): the filter is asked about the combined event, which has lost some members and has another
            // message. These it has kept.
            Route::Combined if settings.spam_key != SPAM_KEY => {
                self.secret.shared(event, settings).spam(event, settings)
            }
            Route::Plain | Route::Combined => keys.spam,
        };
        let verdict = self.ask_budget(budget, now, settings);
        let dedup::Observed { record, stored, before, tag, is_repeat } = observed;
        Decision { key, record, stored, before, tag, fold, is_repeat, verdict, budget }
    }

    fn ask_budget(&mut self, budget: Key, now: Now, settings: &Settings) -> Verdict {
        let rate = Rate { qps: settings.qps, burst: settings.burst_size };
        match settings.suppression {
            Suppression::Defer => Verdict::Owe { rate },
            Suppression::Drop => {
                let buckets = self.buckets.get_or_insert_default();
                let bucket = buckets.get_or_insert_within(budget, settings.lru_cache_size, TokenBucket::default);
                if bucket.take(rate, now.mono) { Verdict::Pass } else { Verdict::Drop }
            }
        }
    }

    /// Remembers a record of an earlier process, unless there is one under its key already.
    pub fn remember(&mut self, key: Key, observation: Observation, settings: &Settings) {
        if self.observations.record(key).is_none() {
            self.observations.put(key, observation, settings);
        }
    }

    /// client-go's `UpdateState`: the upstream's event replaces what was remembered under the event key computed from it.
    ///
    /// COMPAT(client-go): for a combined event that is not the key it was counted under (`EventCorrelator.UpdateState`), so
    /// its own observation learns nothing and an extra entry is occupied (V 062, 071). [`settle`](Self::settle) does better
    /// and is what the proxy uses.
    pub fn update_state(&mut self, stored: &Event, settings: &Settings, next_record: &mut u64) {
        let key = self.secret.shared(stored, settings).event(stored, settings);
        let record = self.observations.record(key).unwrap_or_else(|| {
            *next_record += 1;
            RecordId(*next_record - 1)
        });
        self.observations.replace(key, stored, record, settings);
    }

    /// Takes back what the upstream answered for `record`.
    pub fn settle(&mut self, key: Key, record: RecordId, settled: &Settled) {
        match settled {
            Settled::Stored { name, resource_version, first_timestamp, count_moved, tag } => {
                self.observations.adjust(key, record, |observation| {
                    observation.name = name.clone();
                    observation.resource_version = resource_version.clone();
                    observation.first_timestamp = *first_timestamp;
                    observation.count = observation.count.saturating_add(*count_moved);
                    observation.tag = *tag;
                    observation.stored = true;
                });
            }
            Settled::CountReset(count) => {
                self.observations.adjust(key, record, |observation| observation.count = *count);
            }
            Settled::BegunAgain { count } => {
                self.observations.adjust(key, record, |observation| {
                    (observation.count, observation.tag, observation.stored) = (*count, 0, false);
                });
            }
            Settled::Forgotten => self.observations.forget(key, record),
        }
    }
}

/// What the correlator has to know of a settled write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settled {
    /// The upstream holds the record.
    Stored {
        /// Its name there.
        name: smol_str::SmolStr,
        /// Its version there.
        resource_version: smol_str::SmolStr,
        /// Its first timestamp there.
        first_timestamp: Option<crate::event::Time>,
        /// By how much its count there differs from the count that was written: another writer, or admission.
        count_moved: i32,
        /// How many occurrences its tag counts.
        tag: u64,
    },
    /// A write was refused for good: the record counts from here.
    CountReset(i32),
    /// The record begins again under another name.
    BegunAgain {
        /// Its count there.
        count: i32,
    },
    /// The record is no more: refused for good before it was ever stored, or folded into a digest.
    Forgotten,
}

/// A name that follows from what a record counts, in the shape of client-go's names. No secret goes into it, because every
/// process has to find the same; two records that meet under one name are told apart when they do.
fn shared_name(event: &Event, route: Route, settings: &Settings) -> smol_str::SmolStr {
    let mut everybodys = KeySecret(0, 0).shared(event, settings);
    let Key(bits) = match route {
        Route::Plain => everybodys.event(event, settings),
        Route::Combined => everybodys.aggregate(event, settings),
    };
    let [high, low] = [bits >> 64, bits & u128::from(u64::MAX)];
    smol_str::format_smolstr!("{}.{:016x}", event.involved_object.name, high ^ low)
}
