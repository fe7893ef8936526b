//! What pass-through counts.

use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts, Registry};

/// What became of a request; the metric label. Each request counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The apiserver answered.
    Forwarded,
    /// The event half answered.
    Events,
    /// The apiserver answered a write of an event that the event half could not take.
    Fallback,
    /// The apiserver changed the protocol.
    Upgrade,
    /// Refused here: a limit, or a client that cannot be passed on.
    Refused,
    /// The apiserver did not answer.
    Failed,
}

impl Kind {
    const ALL: [Self; 6] = [Self::Forwarded, Self::Events, Self::Fallback, Self::Upgrade, Self::Refused, Self::Failed];

    const fn label(self) -> &'static str {
        match self {
            Self::Forwarded => "forwarded",
            Self::Events => "events",
            Self::Fallback => "fallback",
            Self::Upgrade => "upgrade",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Metrics of pass-through; clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    requests: [IntCounter; Kind::ALL.len()],
    /// Requests at the apiserver, their answers' bodies included.
    pub(super) in_flight: IntGauge,
    /// Tunnels that are open.
    pub(super) tunnels: IntGauge,
    /// Bytes of answers' bodies.
    pub(super) bytes: IntCounter,
}

impl Metrics {
    /// Registers the metrics, every label at zero.
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new(
                "eventweir_passthrough_requests_total",
                "Requests of clients in pass-through, by what became of them.",
            ),
            &["kind"],
        )?;
        let in_flight = IntGauge::new(
            "eventweir_passthrough_in_flight",
            "Requests that the apiserver is answering, of passthrough.maxInFlight.",
        )?;
        let tunnels = IntGauge::new(
            "eventweir_passthrough_upgrades",
            "Upgraded connections that are open, of passthrough.maxUpgrades.",
        )?;
        let bytes = IntCounter::new(
            "eventweir_passthrough_answer_bytes_total",
            "Bytes of answers of the apiserver that were passed on, without those of upgraded connections.",
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(tunnels.clone()))?;
        registry.register(Box::new(bytes.clone()))?;
        let requests = Kind::ALL.map(|kind| requests.with_label_values(&[kind.label()]));
        Ok(Self { requests, in_flight, tunnels, bytes })
    }

    pub(super) fn count(&self, kind: Kind) {
        self.requests[kind as usize].inc();
    }
}
