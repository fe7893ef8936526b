//! Decides what one more occurrence does to the records of its source. Pure; time is handed in.
//!
//! One [`Correlator`] per source, as client-go has one per broadcaster. The steps and their order are client-go's
//! (`tools/record/events_cache.go`, `EventCorrelate`): `aggregate`, `dedup`, then the budget. The budget comes last, so
//! a dropped occurrence has already been counted.

mod aggregate;
mod budget;
mod dedup;
mod history;
mod key;
mod lru_map;
mod normal;
mod policy;
mod settings;

use std::num::NonZeroUsize;

pub use aggregate::record_name;
pub use budget::{Rate, TokenBucket};
pub use history::{is_newer, namespace_tag};
pub use key::{BuildKeyHasher, Key, KeySecret, Keys, field_value};
pub use lru_map::LruMap;
pub use policy::{Matches, Pattern, Policy, Rule};
pub use settings::{
    AGGREGATE_KEY, Correlation, CountOverflow, Field, KeyEncoding, LEGACY_SPAM_KEY, MESSAGE_PREFIX, Messages, Naming,
    SPAM_KEY, Settings, Suppression,
};

pub use dedup::{Observation, Patch};

use aggregate::{Group, Route, is_combined};
use budget::RatedBucket;

use crate::clock::{Mono, Now};
use crate::event::Event;

/// LIMIT: bytes of the name of a record, which is kept with its key. core/v1 allows any length: an event with a longer
/// name counts on a record with a name of eventweir's. client-go's names have at most 270 bytes.
pub const NAME_BYTES_MAX: usize = 512;

/// LIMIT: observations, from the one used last, among which one is searched by its name. A source has 4,096 by default.
const SCANNED_MAX: usize = 10_000;

/// Identity of a record inside one shard; never reused while the process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId(pub u64);

/// The state of one source.
#[derive(Debug)]
pub struct Correlator {
    secret: KeySecret,
    /// Entries of each cache; see [`Policy::lru_cache_size`].
    pub cache_size: NonZeroUsize,
    // LIMIT: `cache_size` entries; the least recently used group is evicted and its threshold starts over.
    groups: LruMap<Group>,
    // LIMIT: `cache_size` entries; the least recently used one is evicted, and its next repeat begins a new record.
    observations: LruMap<Observation>,
    /// Budgets under `Suppression::Drop`; a deferred write pays in the outbox.
    // LIMIT: `cache_size` entries; an evicted bucket is full at its next use.
    buckets: Option<Box<LruMap<RatedBucket>>>,
}

/// A record that may stand for an event.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its key.
    pub key: Key,
    /// Its observation.
    pub observation: &'a Observation,
    /// Whether it counts the event.
    pub counts: Counts,
}

/// Whether a record counts an event that was accepted earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counts {
    /// It counts the event, or equal ones.
    Yes,
    /// It is the combined record of the event's group, whose window has ended since the event came.
    Perhaps,
    /// It is the combined record of the event's group, which counts the event by itself.
    No,
}

/// The decision about an occurrence. Its event is changed to the desired state: a repeat has the record's name and
/// running count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// The dedup key of the record: the event key, or the aggregate key of a combined event.
    pub key: Key,
    /// The record.
    pub record: RecordId,
    /// What was known of the record before.
    pub known: Known,
    /// How the record shows the occurrence.
    pub fold: Fold,
    /// Whether it may be written.
    pub verdict: Verdict,
    /// The spam key, which identifies the budget.
    pub budget: Key,
}

/// A correlator's knowledge of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Known {
    /// Whether the upstream is known to hold it.
    pub stored: bool,
    /// Number of occurrences that it shows.
    pub count: i32,
    /// Number of those that its tag counts.
    pub tag: u64,
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
    /// Yes: its token is paid, or it needs none.
    Pass,
    /// Yes, when its record gets a token from its budget (`Suppression::Defer`).
    Owe {
        /// The rate of the budget.
        rate: Rate,
    },
    /// No: the budget is empty (`Suppression::Drop`).
    Drop,
}

impl Correlator {
    /// Creates the state of a new source.
    pub fn new(secret: KeySecret, cache_size: NonZeroUsize) -> Self {
        Self { secret, cache_size, groups: LruMap::default(), observations: LruMap::default(), buckets: None }
    }

    /// Returns the number of entries in all caches, which the memory limits count.
    pub fn tracked_keys(&self) -> usize {
        self.groups.len() + self.observations.len() + self.buckets.as_ref().map_or(0, |buckets| buckets.len())
    }

    /// Returns the number of groups and observations that `cache_size` has evicted so far.
    pub const fn evicted_keys(&self) -> u64 {
        self.groups.evicted + self.observations.evicted
    }

    /// Evicts what no settings of a reloaded policy allow: entries beyond the largest cache, and budgets that pay for
    /// nothing. The rates of the others may have changed.
    pub fn follow(&mut self, policy: &Policy, now: Mono) {
        let largest = policy.all().map(|settings| settings.lru_cache_size.get()).max().unwrap_or_default();
        self.groups.evict_to(largest);
        self.observations.evict_to(largest);
        self.buckets.take_if(|_| policy.all().all(|settings| settings.suppression == Suppression::Defer));
        if let Some(buckets) = &mut self.buckets {
            buckets.evict_to(largest);
            buckets.iter_mut().for_each(|(_, bucket)| bucket.forget_rate(now));
        }
    }

    /// Returns the observation that `event` would count on, without counting it.
    pub fn find(&self, event: &Event, keys: &Keys, now: Now, settings: &Settings) -> Option<&Observation> {
        if settings.correlation == Correlation::Off {
            return None;
        }
        self.observation(self.keys_in_order(event, keys, now, settings)[0])
    }

    /// Returns the key that `event` would be counted under, and then its other one.
    fn keys_in_order(&self, event: &Event, keys: &Keys, now: Now, settings: &Settings) -> [Key; 2] {
        let is_combined = is_combined(event, settings)
            || aggregate::peek(&self.groups, keys.aggregate, keys.local, now, settings) == Route::Combined;
        if is_combined { [keys.aggregate, keys.event] } else { [keys.event, keys.aggregate] }
    }

    /// Returns the records that may stand for `event`: the one it would count on first. They are its own, its group's, and
    /// that of its name if it is a combined event of `suppression: drop`.
    pub fn candidates(&self, event: &Event, now: Now, settings: &Settings) -> Vec<Candidate<'_>> {
        if settings.correlation == Correlation::Off {
            return Vec::new();
        }
        let keys = self.secret.keys(event, settings);
        let in_order = self.keys_in_order(event, &keys, now, settings);
        let of_group = if in_order[0] == keys.aggregate {
            Counts::Yes
        } else if aggregate::is_alone(&self.groups, keys.aggregate, keys.local, now, settings) {
            Counts::No
        } else {
            Counts::Perhaps
        };
        let candidate = |key| {
            let counts = if key == keys.aggregate { of_group } else { Counts::Yes };
            Some(Candidate { key, observation: self.observation(key)?, counts })
        };
        let mut candidates: Vec<_> = in_order.into_iter().filter_map(candidate).collect();
        // It lacks the reporting fields, which are a part of the key that it is counted under.
        if settings.suppression == Suppression::Drop && event.message.starts_with(settings.message_prefix.as_str()) {
            let namespace = history::namespace_tag(&event.metadata.namespace);
            let is_named = |observation: &Observation| {
                (&observation.name, observation.namespace) == (&event.metadata.name, namespace)
                    && observation.count != 0
            };
            let named = self.observations.iter().take(SCANNED_MAX).find(|(_, observation)| is_named(observation));
            candidates.extend(named.map(|(key, observation)| Candidate { key: *key, observation, counts: Counts::No }));
        }
        candidates
    }

    /// Decides about `occurrences` equal occurrences of `event`, which has these `keys`, at `now`. Changes `event` to
    /// the desired state of its record. Record numbers are taken from `next_record`.
    pub fn correlate(
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
            return Decision { key, record, known: Known::default(), fold, verdict, budget };
        }
        let route = if is_combined(event, settings) {
            Route::Combined
        } else {
            aggregate::observe(&mut self.groups, self.cache_size, keys.aggregate, keys.local, now, settings)
        };
        let key = match route {
            Route::Plain => keys.event,
            Route::Combined => {
                *event = aggregate::combined_event(event, occurrences, now, settings);
                keys.aggregate
            }
        };
        if event.metadata.name.len() > NAME_BYTES_MAX {
            event.metadata.name = record_name(&event.involved_object.name, now);
        }
        let (record, known) = self.observe(key, event, occurrences, settings, next_record);
        let fold = match (route, known) {
            (Route::Combined, _) => Fold::Combined,
            (Route::Plain, Some(_)) => Fold::Counted,
            (Route::Plain, None) => Fold::Created,
        };
        if settings.naming == Naming::Deterministic && known.is_none() {
            let name = shared_name(event, fold, settings);
            event.metadata.name = name.clone();
            if let Some(observation) = self.observation_of(key, record) {
                observation.name = name;
            }
        }
        let budget = match route {
            // COMPAT(client-go): the spam key is that of the combined event, which lacks some members and has another
            // message. The fields of the default spam key are unchanged.
            Route::Combined if settings.spam_key != SPAM_KEY => self.secret.shared(event, settings).spam(),
            Route::Plain | Route::Combined => keys.spam,
        };
        let verdict = self.ask_budget(budget, now, settings);
        Decision { key, record, known: known.unwrap_or_default(), fold, verdict, budget }
    }

    /// Returns the tokens of a budget that is paid here (`Suppression::Drop`), and when the next one comes.
    pub fn tokens(&self, budget: Key, rate: Rate, now: Mono) -> (f64, Option<Mono>) {
        let mut bucket = self.buckets.as_ref().and_then(|buckets| buckets.peek(&budget)).copied().unwrap_or_default();
        let bucket = bucket.at_rate(rate, now);
        (bucket.tokens(rate, now), bucket.next_token(rate, now))
    }

    fn ask_budget(&mut self, budget: Key, now: Now, settings: &Settings) -> Verdict {
        let rate = Rate { qps: settings.qps, burst: settings.burst_size };
        match settings.suppression {
            Suppression::Defer => Verdict::Owe { rate },
            Suppression::Drop => {
                let buckets = self.buckets.get_or_insert_default();
                let bucket = buckets.get_or_insert_within(budget, self.cache_size, RatedBucket::default);
                if bucket.at_rate(rate, now.mono).take(rate, now.mono) { Verdict::Pass } else { Verdict::Drop }
            }
        }
    }

    /// Remembers a record of an earlier process, unless its key already has one.
    pub fn remember(&mut self, key: Key, record: RecordId, event: &Event, stored: bool) {
        if !self.observations.contains(&key) {
            let observation = Observation::new(record, event, event.count, stored);
            self.observations.put_within(key, observation, self.cache_size);
        }
    }

    /// Applies the upstream's answer for `record`.
    pub fn settle(&mut self, key: Key, record: RecordId, settled: &Settled) {
        let Some(observation) = self.observation_of(key, record) else { return };
        match settled {
            Settled::Stored { name, resource_version, first_timestamp, count_moved, tag } => {
                observation.name = name.clone();
                observation.resource_version = resource_version.clone();
                observation.first_timestamp = *first_timestamp;
                observation.count = observation.count.saturating_add(*count_moved);
                observation.tag = tag.unwrap_or(observation.tag);
                observation.stored = true;
            }
            Settled::CountReset(count) => observation.count = *count,
            Settled::BegunAgain { count } => {
                (observation.count, observation.tag, observation.stored) = (*count, 0, false);
            }
            Settled::Forgotten => drop(self.observations.pop(&key)),
        }
    }
}

/// The effect of a settled write on the correlator.
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
        /// Difference of its count there from the written count, because of another writer or of admission.
        count_moved: i32,
        /// Occurrences that its tag counts; `None` if nothing shows that it has changed.
        tag: Option<u64>,
    },
    /// A write was refused finally: the record continues from this count.
    CountReset(i32),
    /// The record begins again under another name.
    BegunAgain {
        /// Its new count.
        count: i32,
    },
    /// The record has ended: refused finally before it was stored, deleted, or folded into a digest.
    Forgotten,
}

impl Settled {
    /// The upstream holds the record as `event`.
    pub fn stored(event: &Event, count_moved: i32, tag: Option<u64>) -> Self {
        Self::Stored {
            name: event.metadata.name.clone(),
            resource_version: event.metadata.resource_version.clone(),
            first_timestamp: event.first_timestamp,
            count_moved,
            tag,
        }
    }
}

/// Returns a name derived from what a record counts, in the form of client-go's names. No secret is used, because every
/// process has to derive the same name. Two records with one name are distinguished when they meet.
fn shared_name(event: &Event, fold: Fold, settings: &Settings) -> smol_str::SmolStr {
    let (Key(bits), _spam) = KeySecret(0, 0).of_record(event, fold, settings);
    let [high, low] = [bits >> 64, bits & u128::from(u64::MAX)];
    smol_str::format_smolstr!("{}.{:016x}", aggregate::object_part(&event.involved_object.name), high ^ low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ObjectReference;

    /// Replicas of different versions write one record only if both derive its name alike, so no version may change it.
    #[test]
    fn a_deterministic_name_is_the_same_in_every_version() {
        let involved_object = ObjectReference {
            kind: "Pod".into(),
            namespace: "shop".into(),
            name: "web-0".into(),
            uid: "u".into(),
            api_version: "v1".into(),
            field_path: "spec.containers{web}".into(),
            ..ObjectReference::default()
        };
        let (reason, event_type, message) = ("BackOff".into(), "Warning".into(), "restarting".into());
        let mut event = Event { involved_object, reason, event_type, message, ..Event::default() };
        event.source.component = "kubelet".into();
        event.source.host = "node-1".into();
        let settings = Settings { naming: Naming::Deterministic, ..Settings::default() };
        let name = |event: &Event, fold| shared_name(event, fold, &settings);
        let [plain, combined] = [Fold::Created, Fold::Combined].map(|fold| name(&event, fold));
        event.event_time = Some(crate::event::MicroTime(5));
        event.action = "Restart".into();
        let names = [plain, combined, name(&event, Fold::Created)];
        assert_eq!(names, ["web-0.e7898dd594e83a7d", "web-0.3a9ed81158d11b0d", "web-0.e3254f9ea6eff8fd"]);
    }
}
