//! Metrics of the shards, read at the instant of a scrape, so that the ledger balances within it. One struct per part.

use std::collections::{HashMap, HashSet};

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Result};
use smol_str::SmolStr;

use super::{Settings, Shards, Sizes, Storms};
use crate::explain::Group;
use crate::ledger::{Balance, LostReason, RejectReason, Why, WrittenAs};

/// Samples of everything that the shards hold.
#[derive(Debug)]
pub struct Metrics {
    ledger: Ledger,
    correlators: Correlators,
    outbox: Outbox,
    explain: Explain,
}

impl Metrics {
    /// Metrics without values.
    ///
    /// # Errors
    /// Never in practice: the names are valid.
    pub fn new() -> Result<Self> {
        Ok(Self {
            ledger: Ledger::new()?,
            correlators: Correlators::new()?,
            outbox: Outbox::new()?,
            explain: Explain::new()?,
        })
    }

    /// Reads the current values.
    #[must_use]
    pub fn collect(&mut self, shards: &Shards, limits: &Settings) -> Vec<MetricFamily> {
        let (balance, sizes) = (shards.balance(), shards.sizes());
        self.ledger.observe(&balance);
        self.correlators.observe(sizes, limits);
        self.outbox.observe(sizes, shards.storms(), limits);
        self.explain.observe(shards, limits);
        let parts = self.ledger.parts().into_iter().chain(self.correlators.parts());
        let parts = parts.chain(self.outbox.parts()).chain(self.explain.parts());
        parts.flat_map(Collector::collect).collect()
    }
}

#[derive(Debug)]
struct Ledger {
    received: IntCounter,
    rejected: IntCounterVec,
    written: IntCounterVec,
    lost: IntCounterVec,
    waiting: IntGaugeVec,
}

impl Ledger {
    fn new() -> Result<Self> {
        let counters = |name: &str, help: &str, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]);
        let waiting = Opts::new("eventweir_ledger_waiting", "Accepted occurrences that wait, by what they wait for.");
        Ok(Self {
            received: IntCounter::new(
                "eventweir_ledger_received_total",
                "Occurrences that arrived: rejected, written, waiting and lost ones add up to this.",
            )?,
            rejected: counters(
                "eventweir_ledger_rejected_total",
                "Occurrences refused on arrival, by reason.",
                "reason",
            )?,
            written: counters("eventweir_ledger_written_total", "Occurrences that the upstream shows, by how.", "as")?,
            lost: counters(
                "eventweir_ledger_lost_total",
                "Accepted occurrences that are lost for good, by reason.",
                "reason",
            )?,
            waiting: IntGaugeVec::new(waiting, &["why"])?,
        })
    }

    fn observe(&self, balance: &Balance) {
        set(&self.received, balance.ledger.received());
        for reason in RejectReason::ALL {
            set(&self.rejected.with_label_values(&[reason.label()]), balance.ledger.rejected(reason));
        }
        for shown in WrittenAs::ALL {
            set(&self.written.with_label_values(&[shown.label()]), balance.ledger.written(shown));
        }
        for reason in LostReason::ALL {
            set(&self.lost.with_label_values(&[reason.label()]), balance.ledger.lost(reason));
        }
        for why in Why::ALL {
            let number = i64::try_from(balance.waiting[why as usize]).unwrap_or(i64::MAX);
            self.waiting.with_label_values(&[why.label()]).set(number);
        }
    }

    fn parts(&self) -> [&dyn Collector; 5] {
        [&self.received, &self.rejected, &self.written, &self.lost, &self.waiting]
    }
}

#[derive(Debug)]
struct Correlators {
    sources: IntGauge,
    sources_limit: IntGauge,
    keys: IntGauge,
    keys_limit: IntGauge,
    lines: IntGauge,
}

impl Correlators {
    fn new() -> Result<Self> {
        Ok(Self {
            sources: IntGauge::new("eventweir_correlator_sources", "Sources that are tracked.")?,
            sources_limit: IntGauge::new("eventweir_correlator_sources_limit", "Sources that may be tracked.")?,
            keys: IntGauge::new("eventweir_correlator_tracked_keys", "Entries in the caches of all sources.")?,
            keys_limit: IntGauge::new(
                "eventweir_correlator_tracked_keys_limit",
                "Entries that the caches of all sources may hold.",
            )?,
            lines: IntGauge::new("eventweir_client_lines", "Totals above 1 of clients that count by themselves.")?,
        })
    }

    fn observe(&self, sizes: Sizes, limits: &Settings) {
        self.sources.set(gauge(sizes.sources));
        self.sources_limit.set(gauge(limits.max_sources.get()));
        self.keys.set(gauge(sizes.tracked_keys));
        self.keys_limit.set(gauge(limits.max_tracked_keys.get()));
        self.lines.set(gauge(sizes.lines));
    }

    fn parts(&self) -> [&dyn Collector; 5] {
        [&self.sources, &self.sources_limit, &self.keys, &self.keys_limit, &self.lines]
    }
}

#[derive(Debug)]
struct Outbox {
    budgets: IntGauge,
    records: IntGauge,
    records_limit: IntGauge,
    bytes: IntGauge,
    bytes_limit: IntGauge,
    storms: IntGauge,
    oldest: IntGauge,
    tokens: IntGauge,
}

impl Outbox {
    fn new() -> Result<Self> {
        Ok(Self {
            budgets: IntGauge::new("eventweir_outbox_budgets", "Budgets that are not known to be full.")?,
            records: IntGauge::new("eventweir_outbox_records", "Records in the outbox.")?,
            records_limit: IntGauge::new(
                "eventweir_outbox_records_limit",
                "Records in the outbox at which new ones are refused.",
            )?,
            bytes: IntGauge::new("eventweir_outbox_bytes", "Bytes of the events in the outbox.")?,
            bytes_limit: IntGauge::new(
                "eventweir_outbox_limit_bytes",
                "Bytes in the outbox at which new records are refused.",
            )?,
            storms: IntGauge::new("eventweir_outbox_storms", "Groups of like events with a storm record.")?,
            oldest: IntGauge::new(
                "eventweir_outbox_oldest_unshown_seconds",
                "How long the oldest record that was never written has waited for its group, or for the ceiling.",
            )?,
            tokens: IntGauge::new(
                "eventweir_outbox_ceiling_tokens",
                "Writes that the ceiling over all sources allows now; -1 without one.",
            )?,
        })
    }

    fn observe(&self, sizes: Sizes, storms: Storms, limits: &Settings) {
        self.budgets.set(gauge(sizes.budgets));
        self.records.set(gauge(sizes.records));
        self.records_limit.set(gauge(limits.outbox.max_records.get()));
        self.bytes.set(gauge(sizes.bytes));
        self.bytes_limit.set(gauge(limits.outbox.max_bytes.get()));
        self.storms.set(gauge(storms.groups));
        self.oldest.set(i64::try_from(storms.oldest.as_secs()).unwrap_or(i64::MAX));
        self.tokens.set(storms.tokens.map_or(-1, i64::from));
    }

    fn parts(&self) -> [&dyn Collector; 8] {
        [
            &self.budgets,
            &self.records,
            &self.records_limit,
            &self.bytes,
            &self.bytes_limit,
            &self.storms,
            &self.oldest,
            &self.tokens,
        ]
    }
}

#[derive(Debug)]
struct Explain {
    bytes: IntGauge,
    bytes_limit: IntGauge,
    kube_events: IntCounterVec,
    /// The label sets that the metric has.
    // LIMIT: `explain.series`, and one for the rest.
    known: HashSet<[SmolStr; 4]>,
}

impl Explain {
    fn new() -> Result<Self> {
        let help = "Occurrences by their event's members; those beyond explain.series label sets as other.";
        Ok(Self {
            bytes: IntGauge::new("eventweir_explain_bytes", "Bytes of the decisions that are kept.")?,
            bytes_limit: IntGauge::new("eventweir_explain_limit_bytes", "Bytes of decisions that may be kept.")?,
            kube_events: IntCounterVec::new(
                Opts::new("eventweir_kube_events_total", help),
                &["type", "reason", "kind", "namespace"],
            )?,
            known: HashSet::new(),
        })
    }

    fn observe(&mut self, shards: &Shards, limits: &Settings) {
        self.bytes.set(gauge(shards.explain_bytes()));
        self.bytes_limit.set(gauge(limits.explain.max_bytes.get()));
        let other = || std::array::from_fn(|_| SmolStr::new_static("other"));
        // LIMIT: at most the number of groups.
        let mut totals = HashMap::<[SmolStr; 4], u64>::from([(other(), 0)]);
        for group in shards.groups().into_iter().flat_map(|groups| groups.into_iter().enumerate()) {
            let (place, Group { event_type, reason, kind, namespace, totals: group, .. }) = group;
            let labels = [event_type, reason, kind, namespace];
            let is_shown = place > 0 && (self.known.contains(&labels) || self.known.len() < limits.explain.series);
            if is_shown {
                self.known.insert(labels.clone());
            }
            *totals.entry(if is_shown { labels } else { other() }).or_default() += group.received;
        }
        for (labels, total) in totals {
            set(&self.kube_events.with_label_values(&labels), total);
        }
    }

    fn parts(&self) -> [&dyn Collector; 3] {
        [&self.bytes, &self.bytes_limit, &self.kube_events]
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Raises a counter to a total that is kept elsewhere and never falls.
fn set(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
