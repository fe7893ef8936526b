//! The shards, whose metrics are read in the instant of a scrape.

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use crate::shard::{self, Shards};

/// Reads the shards when scraped.
#[derive(Debug)]
pub(super) struct ShardCollector {
    pub(super) shards: Shards,
    pub(super) metrics: Mutex<shard::Metrics>,
}

impl Collector for ShardCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The descriptions are behind the lock. A collector without any is registered unchecked, which is fine for
        // names that nothing else uses.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        self.metrics.lock().collect(&self.shards, &self.shards.settings())
    }
}
