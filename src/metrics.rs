//! The program's own metrics. Names have the form `eventweir_<part>_<what>_<unit>[_total]`. Each part has its own
//! `Metrics`; `docs/metrics.md` lists all of them, and a test compares it with the registry.

use prometheus::{IntGauge, IntGaugeVec, Opts, Registry, TextEncoder};

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
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let build = IntGaugeVec::new(
            Opts::new("eventweir_build_info", "The version that is running; always 1."),
            &["version"],
        )?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let config = IntGaugeVec::new(
            Opts::new("eventweir_config_info", "The hash of the last accepted configuration; always 1."),
            &["hash"],
        )?;
        let last_reload_successful = IntGauge::new(
            "eventweir_config_last_reload_successful",
            "1 if the newest configuration was accepted, 0 if it was refused and the old one stays active.",
        )?;
        let last_reload_timestamp = IntGauge::new(
            "eventweir_config_last_reload_success_timestamp_seconds",
            "When a configuration was last accepted, in seconds since 1970.",
        )?;
        registry.register(Box::new(build))?;
        registry.register(Box::new(config.clone()))?;
        registry.register(Box::new(last_reload_successful.clone()))?;
        registry.register(Box::new(last_reload_timestamp.clone()))?;
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        Ok(Self { config, last_reload_successful, last_reload_timestamp })
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
}

/// Renders all metrics of the registry in Prometheus' text format.
pub fn render(registry: &Registry) -> String {
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap_or_default()
}
