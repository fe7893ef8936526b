//! Metrics of delivery.

use prometheus::{IntCounter, IntGauge, Registry};

use crate::event::repair::Repair;
use crate::metrics::Registrar;
use crate::upstream::Verb;

#[derive(Debug)]
pub(super) struct Metrics {
    /// 1 while the upstream answers, 0 while it is down.
    pub(super) up: IntGauge,
    pub(super) outages: IntCounter,
    /// Whether the newest answer was 403, for each of [`Verb::OF_DELIVERY`].
    pub(super) forbidden: [IntGauge; Verb::OF_DELIVERY.len()],
    /// Repairs of records that the upstream had refused.
    pub(super) repairs: [IntCounter; Repair::ALL.len()],
    pub(super) in_flight: IntGauge,
    pub(super) in_flight_limit: IntGauge,
    pub(super) window: IntGauge,
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let make = Registrar(registry);
        let up = make.gauge("eventweir_upstream_up", "1 while the upstream answers, 0 while it is down.");
        up.set(1);
        let forbidden = make.gauges(
            "eventweir_upstream_forbidden",
            "1 while the upstream's newest answer to this verb was 403, by the verb of delivery.",
            &["verb"],
        );
        Self {
            up,
            outages: make.counter("eventweir_upstream_outages_total", "Outages of the upstream."),
            forbidden: Verb::OF_DELIVERY.map(|verb| forbidden.with_label_values(&[verb.label()])),
            repairs: make.counter_each(
                "eventweir_upstream_repairs_total",
                "Records that were repaired and written again because the upstream had refused them, by the fault.",
                "what",
                Repair::ALL.map(Repair::label),
            ),
            in_flight: make.gauge("eventweir_deliver_in_flight_requests", "Requests to the upstream in flight."),
            in_flight_limit: make
                .gauge("eventweir_deliver_in_flight_requests_limit", "Configured limit of requests in flight."),
            window: make.gauge(
                "eventweir_delivery_window",
                "Current limit of requests in flight, adapted to the upstream's answers.",
            ),
        }
    }
}
