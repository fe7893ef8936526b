//! The shards, whose metrics are read in the instant of a scrape.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use crate::shard::{self, Settings, Shards};

/// Reads the shards when scraped.
#[derive(Debug, Clone)]
pub struct ShardCollector(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    shards: Shards,
    limits: Settings,
    metrics: shard::Metrics,
}

impl ShardCollector {
    /// A collector of these shards.
    ///
    /// # Errors
    /// Never in practice: the names are valid.
    pub fn new(shards: Shards, limits: Settings) -> Result<Self, prometheus::Error> {
        Ok(Self(Arc::new(Mutex::new(Inner { shards, limits, metrics: shard::Metrics::new()? }))))
    }

    /// Applies reloaded limits.
    pub fn set_limits(&self, limits: Settings) {
        self.0.lock().limits = limits;
    }
}

impl Collector for ShardCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The descriptions are behind the lock. A collector without any is registered unchecked, which is fine for
        // names that nothing else uses.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Inner { shards, limits, metrics } = &mut *self.0.lock();
        metrics.collect(shards, limits)
    }
}
