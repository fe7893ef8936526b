//! The shards, whose metrics are read in the instant of a scrape.

use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use crate::shard::{self, Settings, Shards};

/// Reads the shards when scraped.
#[derive(Debug)]
pub(super) struct ShardCollector {
    shards: Shards,
    limits: Arc<ArcSwap<Settings>>,
    metrics: Mutex<shard::Metrics>,
}

impl ShardCollector {
    /// A collector of these shards, with the active limits.
    pub(super) fn new(shards: Shards, limits: Arc<ArcSwap<Settings>>) -> Self {
        Self { shards, limits, metrics: Mutex::default() }
    }
}

impl Collector for ShardCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The descriptions are behind the lock. A collector without any is registered unchecked, which is fine for
        // names that nothing else uses.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.metrics.lock().collect(&self.shards, &self.limits.load())
    }
}
