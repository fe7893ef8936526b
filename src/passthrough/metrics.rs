//! Metrics of pass-through.

use prometheus::{IntCounter, IntGauge, Registry};

use crate::metrics::Registrar;

labelled! {
    /// Result of a request. Each request counts once.
    pub(super) enum Kind {
        /// The apiserver answered, also a change of an event that eventweir or its caller may not make.
        Forwarded = "forwarded",
        /// Ingest answered.
        Events = "events",
        /// The apiserver answered a write of an event that ingest could not take.
        Fallback = "fallback",
        /// The apiserver changed the protocol.
        Upgrade = "upgrade",
        /// Refused here: a limit, or a client whose credentials cannot be forwarded.
        Refused = "refused",
        /// The apiserver did not answer, or the client left before.
        Failed = "failed",
    }
}

/// Metrics of pass-through. Clones share the counters.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: [IntCounter; Kind::ALL.len()],
    /// Requests in flight to the apiserver, until the response body is sent, or all but its last bytes.
    pub(super) in_flight: IntGauge,
    pub(super) tunnels: IntGauge,
    pub(super) bytes: IntCounter,
}

impl Metrics {
    /// Registers the metrics, every label at zero.
    pub fn new(registry: &Registry) -> Self {
        let make = Registrar(registry);
        Self {
            requests: make.counter_each(
                "eventweir_passthrough_requests_total",
                "Requests of clients in pass-through, by result.",
                "kind",
                Kind::ALL.map(Kind::label),
            ),
            in_flight: make.gauge(
                "eventweir_passthrough_in_flight",
                "Requests in flight to the API server; limit: passthrough.maxInFlight.",
            ),
            tunnels: make
                .gauge("eventweir_passthrough_upgrades", "Open upgraded connections; limit: passthrough.maxUpgrades."),
            bytes: make.counter(
                "eventweir_passthrough_answer_bytes_total",
                "Bytes of forwarded response bodies, without those of upgraded connections.",
            ),
        }
    }

    pub(super) const fn begin(&self) -> Counted<'_> {
        Counted { metrics: self, kind: Kind::Failed }
    }
}

/// A request, which counts when it is dropped: as failed, unless it has another result.
#[derive(Debug)]
pub(super) struct Counted<'a> {
    metrics: &'a Metrics,
    kind: Kind,
}

impl Counted<'_> {
    pub(super) const fn is(&mut self, kind: Kind) {
        self.kind = kind;
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.metrics.requests[self.kind as usize].inc();
    }
}
