//! Metrics of delivery.

use prometheus::{
    IntCounter, IntCounterVec, IntGauge, Registry, register_int_counter_vec_with_registry,
    register_int_counter_with_registry, register_int_gauge_vec_with_registry, register_int_gauge_with_registry,
};

use crate::event::repair::Repair;
use crate::upstream::Verb;

#[derive(Debug)]
pub(super) struct Metrics {
    /// 1 while the upstream answers, 0 while it is down.
    pub(super) up: IntGauge,
    pub(super) outages: IntCounter,
    /// Whether the newest answer was 403, for each of [`Verb::OF_DELIVERY`].
    pub(super) forbidden: [IntGauge; Verb::OF_DELIVERY.len()],
    /// Repairs of records that the upstream had refused.
    pub(super) repairs: IntCounterVec,
    pub(super) in_flight: IntGauge,
    pub(super) in_flight_limit: IntGauge,
    pub(super) window: IntGauge,
}

impl Metrics {
    /// Registers the metrics of an upstream that is up.
    ///
    /// # Errors
    /// If the registry already has metrics of these names.
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str| register_int_gauge_with_registry!(name, help, registry);
        let up = gauge("eventweir_upstream_up", "1 while the upstream answers, 0 while it is down.")?;
        up.set(1);
        let forbidden = register_int_gauge_vec_with_registry!(
            "eventweir_upstream_forbidden",
            "1 while the upstream's newest answer to this verb was 403, by the verb of delivery.",
            &["verb"],
            registry
        )?;
        let repairs = register_int_counter_vec_with_registry!(
            "eventweir_upstream_repairs_total",
            "Records that were repaired and written again because the upstream had refused them, by the fault.",
            &["what"],
            registry
        )?;
        for repair in Repair::ALL {
            repairs.with_label_values(&[repair.label()]);
        }
        Ok(Self {
            up,
            outages: register_int_counter_with_registry!(
                "eventweir_upstream_outages_total",
                "Outages of the upstream.",
                registry
            )?,
            forbidden: Verb::OF_DELIVERY.map(|verb| forbidden.with_label_values(&[verb.label()])),
            repairs,
            in_flight: gauge("eventweir_deliver_in_flight_requests", "Requests to the upstream in flight.")?,
            in_flight_limit: gauge(
                "eventweir_deliver_in_flight_requests_limit",
                "Configured limit of requests in flight.",
            )?,
            window: gauge(
                "eventweir_delivery_window",
                "Current limit of requests in flight, adapted to the upstream's answers.",
            )?,
        })
    }
}
