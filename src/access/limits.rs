//! Rate limits for writes of events: the four types, keys and words of the EventRateLimit admission plugin
//! (`plugin/pkg/admission/eventratelimit`). Budgets are token buckets; the least recently used ones are evicted.

use std::hash::{BuildHasher as _, RandomState};
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use governor::clock::{Clock as _, Reference as _};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter, clock};
use lru::LruCache;
use parking_lot::Mutex;

use super::cache::lru;
use crate::clock::Clock;
use crate::event::{Event, cut};
use crate::status::Status;

/// A rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Writes that share a budget.
    pub kind: Kind,
    /// Writes per second.
    pub qps: NonZeroU32,
    /// Writes in a burst.
    pub burst: NonZeroU32,
    /// LIMIT: budgets; beyond it the least recently used one is evicted, and starts full when it is needed again.
    pub cache_size: NonZeroUsize,
}

labelled! {
    /// Writes that share a budget, by the plugin's names.
    pub enum Kind {
        /// All writes.
        Server = "Server",
        /// Writes in one namespace.
        Namespace = "Namespace",
        /// Writes of one caller.
        User = "User",
        /// Writes of one source about one object.
        SourceAndObject = "SourceAndObject",
    }
}

/// Members of a write that select its budgets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Write<'a> {
    pub(crate) user: &'a str,
    pub(crate) namespace: &'a str,
    /// The event, if it is known.
    pub(crate) event: Option<&'a Event>,
}

/// Active limits, with their budgets.
#[derive(Debug)]
pub(super) struct Limits {
    limits: Vec<Limit>,
    clock: Clock,
    /// Budgets of each limit, by key.
    // LIMIT: `Limit::cache_size`.
    budgets: Vec<Mutex<LruCache<u64, Budget>>>,
    /// Keys are kept as hashes: a source and an object can be as long as a body.
    hasher: RandomState,
}

/// LIMIT: bytes of a key in a refusal; the rest is cut.
const KEY_BYTES_MAX: usize = 1024;

type Budget = RateLimiter<NotKeyed, InMemoryState, Time, NoOpMiddleware<Nanos>>;

/// Adapts the program's clock to `governor`.
#[derive(Debug, Clone)]
struct Time(Clock);

impl clock::Clock for Time {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Nanos::from(self.0.now().mono.0.max(0).unsigned_abs())
    }
}

impl Limits {
    pub(super) fn new(limits: Vec<Limit>, clock: Clock) -> Self {
        let budgets = limits.iter().map(|limit| Mutex::new(lru(limit.cache_size))).collect();
        Self { limits, clock, budgets, hasher: RandomState::new() }
    }

    /// Takes a token from the budget of each limit; `refused` is called for each empty budget.
    ///
    /// # Errors
    /// 429 that names the limits without a token. As in the plugin, the tokens of the others are spent.
    pub(super) fn take(&self, write: Write<'_>, mut refused: impl FnMut(Kind)) -> Result<(), Status> {
        let mut faults = Vec::new();
        let mut pause = Duration::ZERO;
        for (limit, budgets) in self.limits.iter().zip(&self.budgets) {
            let Some(key) = key(limit.kind, write) else { continue };
            let taken = take(&mut budgets.lock(), limit, self.hasher.hash_one(&key), &self.clock);
            if let Err(wait) = taken {
                pause = pause.max(wait);
                let key = cut(&key, KEY_BYTES_MAX);
                faults.push(format!("limit reached on type {} for key {key}", limit.kind.label()));
                refused(limit.kind);
            }
        }
        let faults = match faults.as_slice() {
            [] => return Ok(()),
            [fault] => fault.clone(),
            // Go's format for several errors.
            faults => format!("[{}]", faults.join(", ")),
        };
        Err(Status::too_many_requests(format!("Too many requests: {faults}"), seconds(pause)))
    }
}

/// Takes a token from the budget of `key`, or returns the time until it has one.
fn take(budgets: &mut LruCache<u64, Budget>, limit: &Limit, key: u64, clock: &Clock) -> Result<(), Duration> {
    let new = || {
        let quota = Quota::per_second(limit.qps).allow_burst(limit.burst);
        Budget::direct_with_clock(quota, Time(clock.clone()))
    };
    let Err(until) = budgets.get_or_insert(key, new).check() else { return Ok(()) };
    Err(until.earliest_possible().duration_since(Time(clock.clone()).now()).into())
}

/// Rounds up to whole seconds, at least one: clients give up on a 429 without `Retry-After`.
fn seconds(pause: Duration) -> u32 {
    let whole = pause.as_secs().saturating_add(u64::from(pause.subsec_nanos() > 0));
    u32::try_from(whole).unwrap_or(u32::MAX).max(1)
}

/// Returns the key of the budget; `None` if the write has none.
fn key(kind: Kind, write: Write<'_>) -> Option<String> {
    match kind {
        Kind::Server => Some(String::new()),
        Kind::Namespace => Some(write.namespace.to_owned()),
        Kind::User => Some(write.user.to_owned()),
        Kind::SourceAndObject => write.event.map(|event| {
            let (source, object) = (&event.source, &event.involved_object);
            // COMPAT(apiserver): joined without a separator, as in the plugin; the key is in the message.
            [
                &source.component,
                &source.host,
                &object.kind,
                &object.namespace,
                &object.name,
                &object.uid,
                &object.api_version,
            ]
            .map(|part| part.as_str())
            .concat()
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn limit(kind: Kind, qps: u32, burst: u32, cache_size: usize) -> Limit {
        let number = |number| NonZeroU32::new(number).unwrap();
        Limit { kind, qps: number(qps), burst: number(burst), cache_size: NonZeroUsize::new(cache_size).unwrap() }
    }

    /// Replays the recorded attempts of the plugin, except dry runs, which are not limited here.
    #[test]
    fn limits_equal_the_plugins() {
        let recorded = include_str!("../../tests/vectors/validation/040_event_rate_limit.jsonl");
        let mut limits: Option<(String, Limits)> = None;
        let mut rows = 0;
        for line in recorded.lines() {
            let row: Value = serde_json::from_str(line).unwrap();
            let Some(name) = row["limit"].as_str() else { continue };
            if row["dryRun"] == true {
                continue;
            }
            let number = |member: &str| u32::try_from(row[member].as_u64().unwrap()).unwrap();
            let kind = Kind::ALL.into_iter().find(|kind| kind.label() == name).unwrap();
            if row["attempt"] == 1 {
                let limit = limit(kind, number("qps"), number("burst"), 4096);
                limits = Some((name.to_owned(), Limits::new(vec![limit], Clock::manual(0))));
            }
            let (_, limits) = limits.as_ref().filter(|(known, _)| known == name).unwrap();
            let text = |member: &str| row[member].as_str().unwrap();
            let mut event = Event::default();
            (event.source.component, event.source.host) = (text("component").into(), text("host").into());
            let object = &mut event.involved_object;
            (object.kind, object.namespace) = ("Pod".into(), text("namespace").into());
            (object.name, object.uid, object.api_version) = (text("object").into(), "u".into(), "v1".into());
            let write = Write { user: text("user"), namespace: text("namespace"), event: Some(&event) };
            let taken = limits.take(write, |_| {});
            assert_eq!(taken.is_ok(), row["accepted"].as_bool().unwrap(), "{line}");
            if let Err(status) = taken {
                assert_eq!(status.message, row["status"]["message"].as_str().unwrap());
                assert_eq!(status.details.unwrap().retry_after_seconds, 1);
            }
            rows += 1;
        }
        assert!(rows > 40, "the recording was not found");
    }

    #[test]
    fn budgets_refill() {
        let clock = Clock::manual(0);
        let limits = Limits::new(vec![limit(Kind::Server, 2, 3, 1)], clock.clone());
        let take = || limits.take(Write { user: "u", namespace: "n", event: None }, |_| {}).is_ok();
        assert_eq!([take(), take(), take(), take()], [true, true, true, false]);
        clock.advance(Duration::from_millis(500));
        assert_eq!([take(), take()], [true, false]);
        clock.advance(Duration::from_secs(3600));
        assert_eq!([take(), take(), take(), take()], [true, true, true, false]);
    }

    #[test]
    fn several_limits_are_named_together_and_budgets_are_bounded() {
        let limits = [limit(Kind::Namespace, 1, 1, 1), limit(Kind::User, 1, 1, 1)];
        let limits = Limits::new(limits.to_vec(), Clock::manual(0));
        let mut kinds = Vec::new();
        let mut take = |user, namespace| limits.take(Write { user, namespace, event: None }, |kind| kinds.push(kind));
        assert_eq!(take("u", "n"), Ok(()));
        let message =
            "Too many requests: [limit reached on type Namespace for key n, limit reached on type User for key u]";
        assert_eq!(take("u", "n").unwrap_err().message, message);
        // Another namespace and user evict the first ones.
        assert_eq!(take("v", "m"), Ok(()));
        assert_eq!(take("u", "n"), Ok(()));
        assert_eq!(kinds, [Kind::Namespace, Kind::User]);
        let source = Limits::new(vec![limit(Kind::SourceAndObject, 1, 1, 1)], Clock::manual(0));
        let mut long = Event::default();
        long.involved_object.name = "n".repeat(3 << 20).into();
        let write = Write { user: "u", namespace: "n", event: Some(&long) };
        assert_eq!(source.take(write, |_| {}), Ok(()));
        let message = source.take(write, |_| {}).unwrap_err().message;
        assert!(message.len() < 2000, "a refusal has a part of the key, {}", message.len());
        let unknown = Write { user: "u", namespace: "n", event: None };
        assert!(source.take(unknown, |_| {}).is_ok() && source.take(unknown, |_| {}).is_ok());
    }
}
