//! Metrics of TLS, one series a listener that speaks it.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

/// Metrics of a listener.
#[derive(Debug, Clone)]
pub struct Metrics {
    listener: &'static str,
    reload_failures: IntCounterVec,
    expiry: IntGaugeVec,
}

impl Metrics {
    /// Registers the metrics of all listeners that speak TLS.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn new(
        registry: &Registry,
        listeners: impl IntoIterator<Item = &'static str>,
    ) -> Result<Vec<Self>, prometheus::Error> {
        let reload_failures = IntCounterVec::new(
            Opts::new(
                "eventweir_tls_reload_failures_total",
                "How often changed certificate files could not be used, so that the old ones stayed in force",
            ),
            &["listener"],
        )?;
        let expiry = IntGaugeVec::new(
            Opts::new(
                "eventweir_tls_certificate_expiry_timestamp_seconds",
                "When the certificate of the listener expires, in seconds since 1970",
            ),
            &["listener"],
        )?;
        registry.register(Box::new(reload_failures.clone()))?;
        registry.register(Box::new(expiry.clone()))?;
        let of = |listener| {
            reload_failures.with_label_values(&[listener]);
            Self { listener, reload_failures: reload_failures.clone(), expiry: expiry.clone() }
        };
        Ok(listeners.into_iter().map(of).collect())
    }

    /// Which listener.
    pub(super) const fn listener(&self) -> &'static str {
        self.listener
    }

    pub(super) fn failed(&self) {
        self.reload_failures.with_label_values(&[self.listener]).inc();
    }

    pub(super) fn expires(&self, at: i64) {
        self.expiry.with_label_values(&[self.listener]).set(at);
    }
}
