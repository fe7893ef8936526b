//! What the face counts: requests by verb and class of answer, and what became of occurrences.

use std::time::Duration;

use axum::extract::Request;
use axum::http::Method;
use axum::response::Response;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry};

use super::Face;
use super::admit::Answer;
use super::layer::Next;
use crate::event::repair::Repair;
use crate::shard::Outcome;

/// Metrics of the face; clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: Vec<[IntCounter; CODES.len()]>,
    outcomes: [IntCounter; Outcome::ALL.len()],
    /// Connections that are open.
    pub connections: IntGauge,
    /// Watches that are open.
    pub(super) watches: IntGauge,
    repairs: [IntCounter; Repair::ALL.len()],
    admissions: [IntCounter; Answer::ALL.len()],
    admission_seconds: Histogram,
}

/// A request's method, as far as it is told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Delete,
    Get,
    Patch,
    Post,
    Put,
    Other,
}

impl Verb {
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

/// Counts a request and the class of its answer. A layer.
pub(super) async fn count(face: Face, request: Request, next: impl Next) -> Response {
    let verb = Verb::of(request.method());
    let response = next.run(request).await;
    face.0.metrics.count_request(verb, response.status().as_u16());
    response
}

const VERBS: [&str; 6] = ["delete", "get", "patch", "post", "put", "other"];
/// The apiserver waits for each answer, and a client behind it.
const ADMISSION_BUCKETS: [f64; 10] = [0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.25];
const CODES: [&str; 5] = ["2xx", "3xx", "4xx", "429", "5xx"];

impl Metrics {
    /// Registers the metrics, every combination of labels at zero.
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new("eventweir_ingest_requests_total", "Requests of clients by method and class of answer."),
            &["verb", "code"],
        )?;
        let outcomes = IntCounterVec::new(
            Opts::new("eventweir_ingest_occurrences_total", "Occurrences taken in, by what became of them at once."),
            &["outcome"],
        )?;
        let connections = IntGauge::new("eventweir_ingest_connections", "Connections of clients that are open.")?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(outcomes.clone()))?;
        registry.register(Box::new(connections.clone()))?;
        let watches =
            IntGauge::new("eventweir_ingest_watches", "Watches of clients that are open, of ingest.maxWatches.")?;
        registry.register(Box::new(watches.clone()))?;
        let repairs = IntCounterVec::new(
            Opts::new(
                "eventweir_ingest_repairs_total",
                "Events that were mended instead of refused, by what was wrong.",
            ),
            &["what"],
        )?;
        registry.register(Box::new(repairs.clone()))?;
        let admissions = IntCounterVec::new(
            Opts::new(
                "eventweir_admission_requests_total",
                "Events that the API server has asked about, by the answer.",
            ),
            &["answer"],
        )?;
        registry.register(Box::new(admissions.clone()))?;
        let help = "Time from the head of the API server's question to the answer.";
        let buckets = ADMISSION_BUCKETS.to_vec();
        let admission_seconds =
            Histogram::with_opts(HistogramOpts::new("eventweir_admission_duration_seconds", help).buckets(buckets))?;
        registry.register(Box::new(admission_seconds.clone()))?;
        let row = |verb: &str| CODES.map(|code| requests.with_label_values(&[verb, code]));
        Ok(Self {
            requests: VERBS.into_iter().map(row).collect(),
            outcomes: Outcome::ALL.map(|outcome| outcomes.with_label_values(&[outcome.label()])),
            connections,
            watches,
            repairs: Repair::ALL.map(|repair| repairs.with_label_values(&[repair.label()])),
            admissions: Answer::ALL.map(|answer| admissions.with_label_values(&[answer.label()])),
            admission_seconds,
        })
    }

    fn count_request(&self, verb: Verb, code: u16) {
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

/// The size of the table of names, which is read when scraped.
#[derive(Debug)]
pub struct NamesCollector {
    face: Face,
    known: IntGauge,
}

impl NamesCollector {
    /// Of this face.
    ///
    /// # Errors
    /// Never in practice: the name is valid.
    pub fn new(face: Face) -> Result<Self, prometheus::Error> {
        let help = "Names under which clients know their events, of ingest.maxAliases.";
        Ok(Self { face, known: IntGauge::new("eventweir_ingest_aliases", help)? })
    }
}

impl Collector for NamesCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.known.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.known.set(i64::try_from(self.face.0.aliases.len()).unwrap_or(i64::MAX));
        self.known.collect()
    }
}
