//! Metrics of the spool.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntGauge, Registry};

use crate::metrics::Registrar;

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
    pub(super) fn new(registry: &Registry) -> Self {
        let make = Registrar(registry);
        Self {
            entries: make.gauge("eventweir_spool_entries", "Records in the spool."),
            bytes: make.gauge("eventweir_spool_file_bytes", "Bytes of the spool's file."),
            degraded: make.gauge(
                "eventweir_spool_degraded",
                "1 while waiting writes are in memory only, 0 while they are in the spool.",
            ),
            errors: make.counter(
                "eventweir_spool_errors_total",
                "Commits that failed or took too long, and failed attempts to use the spool.",
            ),
            restored: make.counter(
                "eventweir_spool_restored_occurrences_total",
                "Occurrences restored from the spool of an earlier process.",
            ),
            torn: make.counter("eventweir_spool_torn_entries_total", "Damaged entries of the spool, which are lost."),
            damaged: make.counter(
                "eventweir_spool_damaged_files_total",
                "Damaged files of the spool: set aside after their intact entries were recovered, or found empty.",
            ),
            commits: make.histogram(
                "eventweir_spool_commit_duration_seconds",
                "Duration of a commit, which makes several changes durable.",
                &BUCKETS,
            ),
        }
    }

    pub(super) fn committed(&self, took: Duration) {
        self.commits.observe(took.as_secs_f64());
    }
}
