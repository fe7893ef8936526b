//! Metrics of the spool.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge, Registry};
use prometheus::{
    register_histogram_with_registry, register_int_counter_with_registry, register_int_gauge_with_registry,
};

/// Metrics of the spool; clones share their values.
#[derive(Debug, Clone)]
pub(super) struct Metrics {
    pub(super) entries: IntGauge,
    pub(super) bytes: IntGauge,
    pub(super) degraded: IntGauge,
    pub(super) errors: IntCounter,
    pub(super) restored: IntCounter,
    pub(super) torn: IntCounter,
    pub(super) damaged: IntCounter,
    commits: Histogram,
}

/// Upper bounds in seconds: a commit is mostly one fsync, about 0.1 ms on a fast disk and 10 ms or more on a network
/// disk.
const BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0];

impl Metrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// When the registry already has metrics of these names.
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name: &str, help: &str| register_int_gauge_with_registry!(name, help, registry);
        let counter = |name: &str, help: &str| register_int_counter_with_registry!(name, help, registry);
        Ok(Self {
            entries: gauge("eventweir_spool_entries", "Records in the spool.")?,
            bytes: gauge("eventweir_spool_file_bytes", "Bytes of the spool's file.")?,
            degraded: gauge(
                "eventweir_spool_degraded",
                "1 while waiting writes are in memory only, 0 while they are in the spool.",
            )?,
            errors: counter(
                "eventweir_spool_errors_total",
                "Commits that failed or took too long, and failed attempts to use the spool.",
            )?,
            restored: counter(
                "eventweir_spool_restored_occurrences_total",
                "Occurrences restored from the spool of an earlier process.",
            )?,
            torn: counter("eventweir_spool_torn_entries_total", "Damaged entries of the spool, which are lost.")?,
            damaged: counter(
                "eventweir_spool_damaged_files_total",
                "Damaged files of the spool, set aside after their valid entries were recovered.",
            )?,
            commits: register_histogram_with_registry!(
                "eventweir_spool_commit_duration_seconds",
                "Duration of a commit, which makes several changes durable.",
                BUCKETS.to_vec(),
                registry
            )?,
        })
    }

    pub(super) fn committed(&self, took: Duration) {
        self.commits.observe(took.as_secs_f64());
    }
}

/// Converts a size to the value of a gauge.
pub(super) fn size(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
