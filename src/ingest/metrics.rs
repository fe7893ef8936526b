//! Metrics of ingest: requests by method and class of answer, outcomes, repairs, admissions and aliases.

use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;
use prometheus::{Histogram, IntCounter, IntGauge, PullingGauge, Registry};

use super::Ingest;
use super::admit::Answer;
use crate::event::repair::Repair;
use crate::metrics::Registrar;
use crate::server;
use crate::shard::Outcome;

/// Metrics of ingest. Clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: [[IntCounter; CODES.len()]; RequestVerb::ALL.len()],
    outcomes: [IntCounter; Outcome::ALL.len()],
    /// Open connections.
    pub connections: IntGauge,
    pub(super) watches: IntGauge,
    pub(super) taps: IntGauge,
    pub(super) list_bytes: IntGauge,
    pub(super) answer_bytes: IntGauge,
    pub(super) batches: IntGauge,
    pub(super) changes: IntGauge,
    pub(super) read_bytes: IntGauge,
    repairs: [IntCounter; Repair::ALL.len()],
    admissions: [IntCounter; Answer::ALL.len()],
    admission_seconds: Histogram,
}

labelled! {
    enum RequestVerb {
        Delete = "delete",
        Get = "get",
        Patch = "patch",
        Post = "post",
        Put = "put",
        Other = "other",
    }
}

impl RequestVerb {
    fn of(method: &Method) -> Self {
        match *method {
            Method::DELETE => Self::Delete,
            Method::GET => Self::Get,
            Method::PATCH => Self::Patch,
            Method::POST => Self::Post,
            Method::PUT => Self::Put,
            _ => Self::Other,
        }
    }
}

/// Layer that counts requests by the class of their answers.
pub(super) async fn count(ingest: Ingest, request: Request, next: impl server::Answer) -> Response {
    let verb = RequestVerb::of(request.method());
    let response = next.run(request).await;
    ingest.0.metrics.count_request(verb, response.status().as_u16());
    response
}

/// Upper bounds in seconds; short, because the apiserver and a client wait for each answer.
const ADMISSION_BUCKETS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.25];
const CODES: [&str; 5] = ["2xx", "3xx", "4xx", "429", "5xx"];

impl Metrics {
    /// Registers the metrics, every combination of labels at zero.
    pub fn new(registry: &Registry) -> Self {
        let make = Registrar(registry);
        let requests = make.counters(
            "eventweir_ingest_requests_total",
            "Answered requests of clients by method and class of answer.",
            &["verb", "code"],
        );
        Self {
            requests: RequestVerb::ALL.map(|verb| CODES.map(|code| requests.with_label_values(&[verb.label(), code]))),
            outcomes: make.counter_each(
                "eventweir_ingest_occurrences_total",
                "Accepted occurrences, by their first outcome.",
                "outcome",
                Outcome::ALL.map(Outcome::label),
            ),
            connections: make
                .gauge("eventweir_ingest_connections", "Open connections of clients, without WebSockets and tunnels."),
            watches: make.gauge("eventweir_ingest_watches", "Open watches of clients; limit: ingest.maxWatches."),
            taps: make.gauge("eventweir_ingest_taps", "Open taps; limit: 16."),
            list_bytes: make.gauge(
                "eventweir_ingest_list_bytes",
                "Bytes of answers over 64 KiB to a GET that wait for their clients; limit: ingest.maxListBytes.",
            ),
            answer_bytes: make.gauge(
                "eventweir_ingest_answer_bytes",
                "Bytes of other answers over 4 KiB that wait for their clients; limit: 16 MiB.",
            ),
            batches: make.gauge("eventweir_ingest_batches", "Open batches; limit: 1,024."),
            changes: make.gauge(
                "eventweir_ingest_changes",
                "Changes of events in progress for callers that are not known; limit: 1,024.",
            ),
            read_bytes: make.gauge(
                "eventweir_ingest_read_bytes",
                "Bytes reserved for request bodies in memory; limit: ingest.maxReadBytes.",
            ),
            repairs: make.counter_each(
                "eventweir_ingest_repairs_total",
                "Events that were repaired instead of refused, by fault.",
                "what",
                Repair::ALL.map(Repair::label),
            ),
            admissions: make.counter_each(
                "eventweir_admission_requests_total",
                "Admission reviews of events, by answer.",
                "answer",
                Answer::ALL.map(Answer::label),
            ),
            admission_seconds: make.histogram(
                "eventweir_admission_duration_seconds",
                "Time from the last byte of an admission review to the answer.",
                &ADMISSION_BUCKETS,
            ),
        }
    }

    fn count_request(&self, verb: RequestVerb, code: u16) {
        let class = match code {
            429 => 3,
            300..=399 => 1,
            400..=499 => 2,
            500..=599 => 4,
            _ => 0,
        };
        self.requests[verb as usize][class].inc();
    }

    pub(super) fn count_repairs(&self, repairs: &[Repair]) {
        for repair in repairs {
            self.repairs[*repair as usize].inc();
        }
    }

    pub(super) fn count_admission(&self, answer: Answer, took: Duration) {
        self.admissions[answer as usize].inc();
        self.admission_seconds.observe(took.as_secs_f64());
    }

    pub(super) fn count_outcome(&self, outcome: Outcome, occurrences: u64) {
        self.outcomes[outcome as usize].inc_by(occurrences);
    }
}

impl Ingest {
    /// Returns a gauge of the aliases, which are counted at each scrape.
    pub fn aliases_gauge(&self) -> PullingGauge {
        let ingest = self.clone();
        let count = move || ingest.0.aliases.len() as f64;
        PullingGauge::new("eventweir_ingest_aliases", "Aliases; limit: ingest.maxAliases.", Box::new(count))
            .expect("a valid name")
    }
}
