//! Delivery as metrics, read at a scrape.

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};

use super::Monitor;
use crate::event::repair::Repair;
use crate::upstream::Verb;

/// Samples of delivery.
#[derive(Debug)]
pub struct Metrics {
    monitor: Monitor,
    up: IntGauge,
    outages: IntCounter,
    forbidden: IntGaugeVec,
    repairs: IntCounterVec,
    in_flight: IntGauge,
    in_flight_limit: IntGauge,
    window: IntGauge,
}

impl Metrics {
    /// Samples of the delivery that `monitor` watches.
    ///
    /// # Errors
    /// Never in practice: the names are valid.
    pub fn new(monitor: Monitor) -> prometheus::Result<Self> {
        let forbidden = "1 while the upstream's newest answer to this verb was 403, by the verb of delivery.";
        let repairs =
            "Records that were repaired and written again because the upstream had refused them, by the fault.";
        Ok(Self {
            monitor,
            up: IntGauge::new("eventweir_upstream_up", "1 while the upstream answers, 0 while it is down.")?,
            outages: IntCounter::new("eventweir_upstream_outages_total", "How often the upstream went down.")?,
            forbidden: IntGaugeVec::new(Opts::new("eventweir_upstream_forbidden", forbidden), &["verb"])?,
            repairs: IntCounterVec::new(Opts::new("eventweir_upstream_repairs_total", repairs), &["what"])?,
            in_flight: IntGauge::new("eventweir_deliver_in_flight_requests", "Requests on their way to the upstream.")?,
            in_flight_limit: IntGauge::new(
                "eventweir_deliver_in_flight_requests_limit",
                "Requests that may be on their way at once.",
            )?,
            window: IntGauge::new(
                "eventweir_delivery_window",
                "Requests that may be on their way at once, as the upstream takes them now.",
            )?,
        })
    }

    /// Reads everything again.
    #[must_use]
    pub fn collect(&self) -> Vec<MetricFamily> {
        self.up.set(i64::from(self.monitor.is_up()));
        set(&self.outages, self.monitor.outages());
        for verb in Verb::OF_DELIVERY {
            self.forbidden.with_label_values(&[verb.label()]).set(i64::from(self.monitor.is_forbidden(verb)));
        }
        for repair in Repair::ALL {
            set(&self.repairs.with_label_values(&[repair.label()]), self.monitor.repairs(repair));
        }
        self.in_flight.set(self.monitor.in_flight());
        self.in_flight_limit.set(i64::try_from(self.monitor.settings().max_in_flight).unwrap_or(i64::MAX));
        self.window.set(self.monitor.window());
        let parts: [&dyn Collector; 7] = [
            &self.up,
            &self.outages,
            &self.forbidden,
            &self.repairs,
            &self.in_flight,
            &self.in_flight_limit,
            &self.window,
        ];
        parts.iter().flat_map(|part| part.collect()).collect()
    }
}

/// Brings a counter to a total that is kept elsewhere and never falls.
fn set(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
