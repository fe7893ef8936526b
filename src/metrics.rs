//! The program's own metrics. Names have the form `eventweir_<part>_<what>_<unit>[_total]`. Each part has its own
//! `Metrics`, which a [`Registrar`] makes; `docs/metrics.md` lists all of them, and a test compares it with the registry.

use prometheus::core::Collector;
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, Result,
    TextEncoder,
};

/// Makes metrics and registers them.
#[derive(Debug, Clone, Copy)]
pub struct Registrar<'r>(pub &'r Registry);

/// Why no metric fails.
const CHECKED: &str = "names are constants, and every start registers each of them once";

#[expect(missing_docs, reason = "they make what they are called")]
impl Registrar<'_> {
    fn registered<M: Collector + Clone + 'static>(self, made: Result<M>) -> M {
        let metric = made.expect(CHECKED);
        self.register(metric.clone());
        metric
    }

    /// Registers a metric that is made elsewhere.
    pub fn register(self, metric: impl Collector + 'static) {
        self.0.register(Box::new(metric)).expect(CHECKED);
    }

    pub fn counter(self, name: &str, help: &str) -> IntCounter {
        self.registered(IntCounter::new(name, help))
    }

    pub fn counters(self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels))
    }

    /// Makes a counter for each of these values of a label.
    pub fn counter_each<const N: usize>(self, name: &str, help: &str, label: &str, each: [&str; N]) -> [IntCounter; N] {
        let counters = self.counters(name, help, &[label]);
        each.map(|value| counters.with_label_values(&[value]))
    }

    pub fn gauge(self, name: &str, help: &str) -> IntGauge {
        self.registered(IntGauge::new(name, help))
    }

    pub fn gauges(self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    pub fn histogram(self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        self.registered(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec())))
    }

    pub fn histograms(self, name: &str, help: &str, labels: &[&str], buckets: &[f64]) -> HistogramVec {
        self.registered(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels))
    }
}

/// Converts a number to the value of a gauge.
pub fn value<N>(number: N) -> i64
where
    i64: TryFrom<N>,
{
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Metrics of the program as a whole.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Has the hash of the active configuration as its label, and the value 1.
    config: IntGaugeVec,
    /// Whether the newest reload was applied.
    last_reload_successful: IntGauge,
    last_reload_timestamp: IntGauge,
}

impl Metrics {
    /// Registers these metrics, and those of the process.
    pub fn new(registry: &Registry) -> Self {
        let make = Registrar(registry);
        let build = make.gauges("eventweir_build_info", "The version that is running; always 1.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        make.register(prometheus::process_collector::ProcessCollector::for_self());
        Self {
            config: make.gauges(
                "eventweir_config_info",
                "The hash of the last accepted configuration; always 1.",
                &["hash"],
            ),
            last_reload_successful: make.gauge(
                "eventweir_config_last_reload_successful",
                "1 if the newest configuration was accepted, 0 if it was refused and the old one stays active.",
            ),
            last_reload_timestamp: make.gauge(
                "eventweir_config_last_reload_success_timestamp_seconds",
                "When a configuration was last accepted, in seconds since 1970.",
            ),
        }
    }

    /// Sets the active configuration to this hash, loaded at `seconds`.
    pub fn config_loaded(&self, hash: &str, seconds: i64) {
        self.config.reset();
        self.config.with_label_values(&[hash]).set(1);
        self.last_reload_successful.set(1);
        self.last_reload_timestamp.set(seconds);
    }

    /// Records that a new configuration was refused.
    pub fn config_refused(&self) {
        self.last_reload_successful.set(0);
    }

    /// Whether the newest configuration was refused.
    pub fn is_config_refused(&self) -> bool {
        self.last_reload_successful.get() == 0
    }
}

/// Renders all metrics of the registry in Prometheus' text format.
pub fn render(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_default()
}
