//! The parts whose metrics are read in the instant of a scrape.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;

use crate::deliver::{self, Monitor};
use crate::shard::{self, Settings, Shards};

/// Reads shards and delivery when scraped.
#[derive(Debug, Clone)]
pub struct ShardCollector(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    shards: Shards,
    limits: Settings,
    of_shards: shard::Metrics,
    of_delivery: deliver::Metrics,
}

impl ShardCollector {
    /// A collector of these shards and their delivery.
    ///
    /// # Errors
    /// Never in practice: the names are valid.
    pub fn new(shards: Shards, monitor: Monitor, limits: Settings) -> Result<Self, prometheus::Error> {
        let (of_shards, of_delivery) = (shard::Metrics::new()?, deliver::Metrics::new(monitor)?);
        Ok(Self(Arc::new(Mutex::new(Inner { shards, limits, of_shards, of_delivery }))))
    }

    /// Takes over reloaded limits.
    pub fn set_limits(&self, limits: Settings) {
        self.0.lock().limits = limits;
    }
}

impl Collector for ShardCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The descriptions are behind the lock. A collector without any is registered unchecked, which is fine for names that
        // nothing else uses.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let Inner { shards, limits, of_shards, of_delivery } = &mut *self.0.lock();
        let mut families = of_shards.collect(shards, limits);
        families.extend(of_delivery.collect());
        families
    }
}
