//! A circuit breaker for each namespace whose requests fail. Pure.
//!
//! An API server limits the events of one object (EventRateLimit), and an admission webhook may fail for one namespace.
//! Such failures are no evidence that the upstream is down. So a failure counts against the upstream only if another
//! object of the namespace failed before it. After four objects in a row the breaker opens: the namespace's records are
//! postponed, and one request at a time probes whether the namespace has recovered.

use std::collections::HashMap;

use smol_str::SmolStr;

use super::gate::{GateSettings, Outcome};
use crate::clock::Mono;
use crate::outbox::{Applied, Fault, Request, Retry, backoff};

/// Different objects that must fail in a row, without a success between them, until the breaker of their namespace
/// opens.
const OPENS_AFTER: u32 = 4;

/// LIMIT: breakers. At the limit, breakers whose pause is over are removed; if none is, a further namespace gets none.
const BREAKERS_MAX: usize = 4096;

/// The breakers of namespaces with failures.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    // LIMIT: `BREAKERS_MAX`.
    breakers: HashMap<SmolStr, Breaker>,
}

#[derive(Debug)]
struct Breaker {
    /// Objects that failed in a row, plus the failed probes once the breaker is open.
    failures: u32,
    /// The object of the last counted failure.
    object: SmolStr,
    /// Time of the last counted failure. Failures of requests sent before it are not counted.
    counted: Mono,
    /// While the breaker is open, the time of the next probe.
    until: Mono,
    /// Whether a probe is in flight.
    is_probing: bool,
    /// The last counted failure.
    failure: Retry,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    namespace: SmolStr,
    /// Name of the record up to its last dot, which is the object's name unless a client has chosen another.
    object: SmolStr,
}

impl Scope {
    pub(super) fn of(request: &Request) -> Self {
        let (namespace, name) = match request {
            Request::Create { event, .. } => (&event.metadata.namespace, &event.metadata.name),
            Request::Patch { namespace, name, .. }
            | Request::Read { namespace, name, .. }
            | Request::Delete { namespace, name, .. } => (namespace, name),
        };
        let object = name.rsplit_once('.').map_or(name.as_str(), |(object, _)| object);
        Self { namespace: namespace.clone(), object: object.into() }
    }
}

impl Breaker {
    const fn is_open(&self) -> bool {
        self.failures >= OPENS_AFTER
    }
}

impl Breakers {
    /// Whether a request may be sent now.
    ///
    /// # Errors
    /// If not, the answer with which its record is settled.
    pub(super) fn acquire(&mut self, scope: &Scope, now: Mono) -> Result<(), Retry> {
        let Some(breaker) = self.breakers.get_mut(&scope.namespace).filter(|breaker| breaker.is_open()) else {
            return Ok(());
        };
        if breaker.is_probing || breaker.until > now {
            let after = Some(breaker.until.since(now));
            return Err(Retry { after, applied: Applied::No, ..breaker.failure.clone() });
        }
        breaker.is_probing = true;
        Ok(())
    }

    /// Lets no pause last longer, after a reload.
    pub(super) fn end_pauses_by(&mut self, latest: Mono) {
        self.breakers.values_mut().for_each(|breaker| breaker.until = breaker.until.min(latest));
    }

    /// Applies the answer to a request that was sent at `sent`, and returns what the answer means for the upstream.
    /// `failure` is `None` for an answer that shows a working upstream, even if it refuses.
    pub(super) fn settle(
        &mut self,
        scope: &Scope,
        failure: Option<&Retry>,
        sent: Mono,
        now: Mono,
        settings: &GateSettings,
        jitter: f64,
    ) -> Outcome {
        let Some(failure) = failure else {
            self.breakers.remove(&scope.namespace);
            return Outcome::Success;
        };
        let is_of_upstream = matches!(failure.fault, Fault::Transport | Fault::Unauthorized | Fault::NotApiserver);
        let Some(breaker) = self.breakers.get_mut(&scope.namespace) else {
            if !is_of_upstream {
                self.begin(scope, failure, now);
            }
            return Outcome::Failure;
        };
        if breaker.is_open() && sent < breaker.until {
            return Outcome::KnownFailure;
        }
        if is_of_upstream {
            breaker.is_probing = false;
            return Outcome::Failure;
        }
        if !breaker.is_open() && breaker.object == scope.object {
            return Outcome::KnownFailure;
        }
        if sent < breaker.counted {
            return Outcome::Failure;
        }
        let outcome = if breaker.is_open() { Outcome::KnownFailure } else { Outcome::Failure };
        breaker.failures = breaker.failures.saturating_add(1);
        breaker.object.clone_from(&scope.object);
        (breaker.counted, breaker.is_probing) = (now, false);
        breaker.failure.clone_from(failure);
        let pause = backoff(breaker.failures.saturating_add(1), jitter, settings.first_backoff, settings.max_backoff);
        breaker.until = now.after(pause);
        outcome
    }

    fn begin(&mut self, scope: &Scope, failure: &Retry, now: Mono) {
        if self.breakers.len() >= BREAKERS_MAX {
            self.breakers.retain(|_, breaker| breaker.until > now);
        }
        if self.breakers.len() < BREAKERS_MAX {
            let object = scope.object.clone();
            let failure = failure.clone();
            let breaker = Breaker { failures: 1, object, counted: now, until: now, is_probing: false, failure };
            self.breakers.insert(scope.namespace.clone(), breaker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Mono {
        Mono(millis * 1_000_000)
    }

    fn scope(namespace: &str, object: &str) -> Scope {
        Scope { namespace: namespace.into(), object: object.into() }
    }

    fn settle(breakers: &mut Breakers, scope: &Scope, fault: Option<Fault>, millis: i64) -> Outcome {
        let failure = fault.map(|fault| Retry::new(fault, Applied::No));
        breakers.settle(scope, failure.as_ref(), at(millis), at(millis), &GateSettings::default(), 0.0)
    }

    #[test]
    fn an_open_breaker_has_one_probe_in_flight() {
        let mut breakers = Breakers::default();
        for object in ["a", "b", "c", "d"] {
            settle(&mut breakers, &scope("failing", object), Some(Fault::ServerError), 0);
        }
        assert_eq!(breakers.acquire(&scope("failing", "e"), at(1_600)), Ok(()));
        assert!(breakers.acquire(&scope("failing", "f"), at(1_600)).is_err());
    }

    #[test]
    fn at_the_limit_a_breaker_whose_pause_is_over_gives_its_place() {
        let mut breakers = Breakers::default();
        for object in ["a", "b", "c", "d"] {
            settle(&mut breakers, &scope("open", object), Some(Fault::ServerError), 0);
        }
        for number in 0..2 * BREAKERS_MAX {
            settle(&mut breakers, &scope(&number.to_string(), "a"), Some(Fault::ServerError), 1);
            assert!(breakers.breakers.len() <= BREAKERS_MAX);
        }
        assert!(breakers.breakers.contains_key(&(2 * BREAKERS_MAX - 1).to_string()[..]), "there is room for new ones");
        assert!(breakers.acquire(&scope("open", "e"), at(1)).is_err(), "it stays");
    }

    #[test]
    fn a_reload_shortens_a_pause() {
        let mut breakers = Breakers::default();
        for object in ["a", "b", "c", "d"] {
            settle(&mut breakers, &scope("failing", object), Some(Fault::ServerError), 0);
        }
        breakers.end_pauses_by(at(9));
        assert!(breakers.acquire(&scope("failing", "e"), at(8)).is_err());
        assert_eq!(breakers.acquire(&scope("failing", "e"), at(9)), Ok(()));
    }

    #[test]
    fn failures_of_the_connection_open_no_breaker() {
        let mut breakers = Breakers::default();
        for fault in [Fault::Transport, Fault::Unauthorized, Fault::NotApiserver] {
            for _ in 0..9 {
                assert_eq!(settle(&mut breakers, &scope("shop", "a"), Some(fault), 0), Outcome::Failure);
            }
        }
        assert_eq!(breakers.acquire(&scope("shop", "b"), at(0)), Ok(()));
    }

    #[test]
    fn failures_of_requests_in_flight_together_count_once() {
        let mut breakers = Breakers::default();
        let failure = Some(Retry::new(Fault::ServerError, Applied::No));
        for object in ["a", "b", "c", "d", "e", "f"] {
            let outcome =
                breakers.settle(&scope("shop", object), failure.as_ref(), at(0), at(1), &GateSettings::default(), 0.0);
            assert_eq!(outcome, Outcome::Failure);
        }
        assert_eq!(breakers.acquire(&scope("shop", "g"), at(1)), Ok(()));
    }
}
