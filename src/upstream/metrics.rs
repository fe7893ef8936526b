//! Metrics of the upstream: requests by verb and answer, their duration, and evictions of the embedded store.

use std::borrow::Cow;
use std::time::Duration;

use prometheus::{HistogramVec, IntCounter, IntCounterVec, Registry};

use super::Verb;
use crate::metrics::Registrar;
use crate::outbox::{Answer, Fault};

/// Metrics of the upstream; clones share their values.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    evicted: IntCounter,
}

/// Upper bounds in seconds: an apiserver's create takes about 5 ms, a deadline 10 s.
const DURATION_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

impl Metrics {
    /// Registers the metrics, every combination of labels at zero.
    pub fn new(registry: &Registry) -> Self {
        let make = Registrar(registry);
        let requests = make.counters(
            "eventweir_upstream_requests_total",
            "Requests to the upstream by verb and answer.",
            &["verb", "answer"],
        );
        let duration = make.histograms(
            "eventweir_upstream_request_duration_seconds",
            "Time from sending a request to the upstream to its complete answer or the deadline; of a watch, to its \
             beginning.",
            &["verb"],
            &DURATION_BUCKETS,
        );
        let evicted = make.counter(
            "eventweir_store_evicted_events_total",
            "Events that the embedded store evicted before their time because of its limits.",
        );
        for verb in Verb::ALL {
            duration.with_label_values(&[verb.label()]);
            let answers = ["stored", "missing", "exists", "refused"].map(str::to_owned);
            for answer in answers.into_iter().chain(Fault::ALL.map(retry_label)) {
                requests.with_label_values(&[verb.label(), &answer]);
            }
        }
        Self { requests, duration, evicted }
    }

    /// Counts a request. `None` is a success without an event, such as a list.
    pub(super) fn count(&self, verb: Verb, answer: Option<&Answer>, took: Duration) {
        self.requests.with_label_values(&[verb.label(), &label(answer)]).inc();
        self.duration.with_label_values(&[verb.label()]).observe(took.as_secs_f64());
    }

    pub(super) fn count_evicted(&self, events: u64) {
        self.evicted.inc_by(events);
    }
}

fn label(answer: Option<&Answer>) -> Cow<'static, str> {
    Cow::Borrowed(match answer {
        None | Some(Answer::Stored(_)) => "stored",
        Some(Answer::Missing) => "missing",
        Some(Answer::Exists) => "exists",
        Some(Answer::Refused(_)) => "refused",
        Some(Answer::Retry(retry)) => return Cow::Owned(retry_label(retry.fault)),
    })
}

fn retry_label(fault: Fault) -> String {
    format!("retry_{}", fault.label())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_is_there_from_the_start() {
        let registry = Registry::new();
        Metrics::new(&registry);
        let families = registry.gather();
        let series = |name: &str| families.iter().find(|family| family.name() == name).unwrap().get_metric().len();
        assert_eq!(series("eventweir_upstream_requests_total"), 7 * 12);
        assert_eq!(series("eventweir_upstream_request_duration_seconds"), 7);
    }
}
