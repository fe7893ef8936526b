//! Metrics of authentication, authorisation and limits.

use std::time::Duration;

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Registry};

use super::Review;
use super::fair_queue::Gauges;
use super::limits::Kind;
use crate::metrics::{Registrar, value};

labelled! {
    /// Authentication method of a request.
    pub(super) enum Method {
        Certificate = "certificate",
        Token = "token",
        Anonymous = "anonymous",
        /// No credentials, and anonymous requests are refused.
        None = "none",
    }
}

labelled! {
    /// Result of authentication.
    pub(super) enum Identified {
        Accepted = "accepted",
        Refused = "refused",
        /// The apiserver did not answer.
        Unanswered = "unanswered",
        /// Too many questions were in flight.
        Limited = "limited",
    }
}

labelled! {
    /// Rule that decided about a request.
    pub(super) enum Judge {
        /// `auth.allowPaths`.
        Paths = "paths",
        /// `auth.policy`.
        Policy = "policy",
        /// A SubjectAccessReview.
        Review = "review",
        /// `auth.sourceBinding`.
        Source = "source",
    }
}

labelled! {
    /// Result of authorisation.
    pub(super) enum Verdict {
        Allowed = "allowed",
        Denied = "denied",
        Unanswered = "unanswered",
        Limited = "limited",
    }
}

/// Metrics of this module. Clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// By [`Method`] and [`Identified`].
    authentications: [[IntCounter; 4]; 4],
    /// By [`Judge`] and [`Verdict`].
    decisions: [[IntCounter; 4]; 4],
    /// By [`Review`]: hits, misses, and expired answers that were used.
    lookups: [[IntCounter; 3]; 2],
    entries: IntGaugeVec,
    reviews: HistogramVec,
    limited: IntCounterVec,
    gauges: Gauges,
}

/// Upper bounds in seconds: an apiserver answers a review in some milliseconds, and the deadline is 10 s.
const REVIEW_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];

/// Label of a request that found no room in the queue between callers, or no place in time.
const QUEUE: &str = "queue";

impl Metrics {
    /// Registers the metrics, every combination of labels at zero.
    pub fn new(registry: &Registry) -> Self {
        let make = Registrar(registry);
        let authentications = make.counters(
            "eventweir_access_authentications_total",
            "Requests by authentication method and result.",
            &["method", "result"],
        );
        let decisions = make.counters(
            "eventweir_access_decisions_total",
            "Authorisation decisions, by the rule that decided.",
            &["by", "decision"],
        );
        let lookups = make.counters(
            "eventweir_access_cache_lookups_total",
            "Lookups in the caches of tokens and of permissions; `expired`: an expired answer was used, because the API \
             server is away.",
            &["cache", "result"],
        );
        let limited = make.counters(
            "eventweir_access_limited_total",
            "Refusals with 429, by the type of the limit, or because the queue between callers gave no place.",
            &["type"],
        );
        let entries = make.gauges(
            "eventweir_access_cache_entries",
            "Entries of the caches of tokens and of permissions.",
            &["cache"],
        );
        let reviews = make.histograms(
            "eventweir_access_review_duration_seconds",
            "Time from sending a review to the API server to its complete answer or the deadline.",
            &["review"],
            &REVIEW_BUCKETS,
        );
        for review in Review::ALL {
            reviews.with_label_values(&[review.label()]);
            entries.with_label_values(&[review.label()]);
        }
        for name in Kind::ALL.map(Kind::label).into_iter().chain([QUEUE]) {
            limited.with_label_values(&[name]);
        }
        let pair = |counters: &IntCounterVec, first, second| counters.with_label_values(&[first, second]);
        let row = |method: Method| Identified::ALL.map(|result| pair(&authentications, method.label(), result.label()));
        let authentications = Method::ALL.map(row);
        let row = |by: Judge| Verdict::ALL.map(|verdict| pair(&decisions, by.label(), verdict.label()));
        let decisions = Judge::ALL.map(row);
        let lookups =
            Review::ALL.map(|cache| ["hit", "miss", "expired"].map(|result| pair(&lookups, cache.label(), result)));
        let running = make.gauge(
            "eventweir_access_running_requests",
            "Running requests of authenticated callers; limit: fairness.maxInFlight.",
        );
        let waiting = make.gauge(
            "eventweir_access_waiting_requests",
            "Requests of authenticated callers that wait for a place; limit: fairness.maxWaiting.",
        );
        let gauges = Gauges { running, waiting };
        Self { authentications, decisions, lookups, entries, reviews, limited, gauges }
    }

    pub(super) fn count_identified(&self, method: Method, result: Identified) {
        self.authentications[method as usize][result as usize].inc();
    }

    pub(super) fn count_decision(&self, by: Judge, verdict: Verdict) {
        self.decisions[by as usize][verdict as usize].inc();
    }

    pub(super) fn count_hit(&self, cache: Review) {
        self.lookups[cache as usize][0].inc();
    }

    /// Counts an expired answer that was used, because the apiserver is away.
    pub(super) fn count_expired(&self, cache: Review) {
        self.lookups[cache as usize][2].inc();
    }

    pub(super) fn count_miss(&self, cache: Review, entries: usize) {
        self.lookups[cache as usize][1].inc();
        self.entries.with_label_values(&[cache.label()]).set(value(entries));
    }

    pub(super) fn observe_review(&self, review: Review, took: Duration) {
        self.reviews.with_label_values(&[review.label()]).observe(took.as_secs_f64());
    }

    pub(super) fn count_limited(&self, kind: Kind) {
        self.limited.with_label_values(&[kind.label()]).inc();
    }

    pub(super) fn count_crowded(&self) {
        self.limited.with_label_values(&[QUEUE]).inc();
    }

    pub(super) fn gauges(&self) -> Gauges {
        self.gauges.clone()
    }
}
