//! What is counted of authentication, authorisation and limits.

use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::Review;
use super::limits::Kind;
use super::turns::Gauges;

/// How a caller showed who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Certificate,
    Token,
    Anonymous,
    /// No credentials, and anonymous requests are refused.
    None,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Identified {
    Accepted,
    Refused,
    /// The apiserver did not answer.
    Unanswered,
    /// Too many questions were in flight.
    Limited,
}

/// Who decided about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judge {
    /// `auth.allowPaths`.
    Paths,
    /// `auth.policy`.
    Policy,
    /// A SubjectAccessReview.
    Review,
    /// `auth.sourceBinding`.
    Source,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Allowed,
    Denied,
    Unanswered,
    Limited,
}

/// Metrics of this part; cheap to clone, all clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// By [`Method`] and [`Identified`].
    authentications: [[IntCounter; 4]; 4],
    /// By [`Judge`] and [`Verdict`].
    decisions: [[IntCounter; 4]; 4],
    /// By [`Review`]: hits and misses.
    lookups: [[IntCounter; 2]; 2],
    entries: IntGaugeVec,
    reviews: HistogramVec,
    limited: IntCounterVec,
    running: IntGauge,
    waiting: IntGauge,
}

/// Upper bounds in seconds: an apiserver answers a review in some milliseconds, and the deadline is 10 s.
const REVIEW_BUCKETS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.5, 10.0];

/// The label of a request that found no room in the queue between callers.
const QUEUE: &str = "queue";

impl Metrics {
    /// Registers the metrics, every combination of labels at zero.
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let reviews = HistogramOpts::new(
            "eventweir_access_review_duration_seconds",
            "Time from sending a review to the apiserver to its complete answer or the deadline.",
        );
        let authentications = counters(
            "eventweir_access_authentications_total",
            "Requests by how their caller showed who it is, and the result.",
            &["method", "result"],
        )?;
        let decisions = counters(
            "eventweir_access_decisions_total",
            "Decisions whether a caller may do what it asks, by what decided.",
            &["by", "decision"],
        )?;
        let lookups = counters(
            "eventweir_access_cache_lookups_total",
            "Lookups of the caches of tokens and of permissions.",
            &["cache", "result"],
        )?;
        let entries = IntGaugeVec::new(
            Opts::new("eventweir_access_cache_entries", "Entries of the caches of tokens and of permissions."),
            &["cache"],
        )?;
        let reviews = HistogramVec::new(reviews.buckets(REVIEW_BUCKETS.to_vec()), &["review"])?;
        let limited = counters(
            "eventweir_access_limited_total",
            "Refusals with 429, by the type of the limit or because the queue between callers is full.",
            &["type"],
        )?;
        let running = IntGauge::new(
            "eventweir_access_running_requests",
            "Requests of known callers that run, of fairness.maxInFlight.",
        )?;
        let waiting = IntGauge::new(
            "eventweir_access_waiting_requests",
            "Requests of known callers that wait for a place, of fairness.maxWaiting.",
        )?;
        let collectors: [Box<dyn Collector>; 8] = [
            Box::new(authentications.clone()),
            Box::new(decisions.clone()),
            Box::new(lookups.clone()),
            Box::new(entries.clone()),
            Box::new(reviews.clone()),
            Box::new(limited.clone()),
            Box::new(running.clone()),
            Box::new(waiting.clone()),
        ];
        collectors.into_iter().try_for_each(|collector| registry.register(collector))?;
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
        let lookups = Review::ALL.map(|cache| ["hit", "miss"].map(|result| pair(&lookups, cache.label(), result)));
        Ok(Self { authentications, decisions, lookups, entries, reviews, limited, running, waiting })
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

    pub(super) fn count_miss(&self, cache: Review, entries: usize) {
        self.lookups[cache as usize][1].inc();
        self.entries.with_label_values(&[cache.label()]).set(i64::try_from(entries).unwrap_or(i64::MAX));
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
        Gauges { running: self.running.clone(), waiting: self.waiting.clone() }
    }
}

impl Method {
    const ALL: [Self; 4] = [Self::Certificate, Self::Token, Self::Anonymous, Self::None];

    const fn label(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Token => "token",
            Self::Anonymous => "anonymous",
            Self::None => "none",
        }
    }
}

impl Identified {
    const ALL: [Self; 4] = [Self::Accepted, Self::Refused, Self::Unanswered, Self::Limited];

    const fn label(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Unanswered => "unanswered",
            Self::Limited => "limited",
        }
    }
}

impl Judge {
    const ALL: [Self; 4] = [Self::Paths, Self::Policy, Self::Review, Self::Source];

    const fn label(self) -> &'static str {
        match self {
            Self::Paths => "paths",
            Self::Policy => "policy",
            Self::Review => "review",
            Self::Source => "source",
        }
    }
}

impl Verdict {
    const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::Unanswered, Self::Limited];

    const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unanswered => "unanswered",
            Self::Limited => "limited",
        }
    }
}
