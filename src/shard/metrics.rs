//! Metrics of the shards, read at the instant of a scrape, so that the ledger balances within it.

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
    /// One for each of `GAUGES`.
    gauges: Vec<IntGauge>,
    evicted_keys: IntCounter,
    kube_events: KubeEvents,
}

impl Metrics {
    /// Metrics without values.
    ///
    /// # Errors
    /// Never in practice: the names are valid.
    pub fn new() -> Result<Self> {
        let gauges: Result<Vec<_>> = GAUGES.iter().map(|(name, help, _)| IntGauge::new(*name, *help)).collect();
        let evicted_keys = IntCounter::new(
            "eventweir_correlator_evicted_keys_total",
            "Entries evicted from the caches, alone or with their source.",
        )?;
        Ok(Self { ledger: Ledger::new()?, gauges: gauges?, evicted_keys, kube_events: KubeEvents::new()? })
    }

    /// Reads the current values.
    pub fn collect(&mut self, shards: &Shards, limits: &Settings) -> Vec<MetricFamily> {
        let (balance, sizes) = (shards.balance(), shards.sizes());
        self.ledger.observe(&balance);
        let read = Read { shards, sizes, storms: shards.storms(), limits };
        for (gauge, (_, _, value)) in self.gauges.iter().zip(GAUGES) {
            gauge.set(value(&read));
        }
        set(&self.evicted_keys, sizes.evicted_keys);
        self.kube_events.observe(shards, limits.explain.series);
        let gauges = self.gauges.iter().map(|gauge| gauge as &dyn Collector);
        let counters = [&self.evicted_keys as &dyn Collector, &self.kube_events.total];
        self.ledger.parts().into_iter().chain(gauges).chain(counters).flat_map(Collector::collect).collect()
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

/// The inputs of the gauges.
struct Read<'a> {
    shards: &'a Shards,
    sizes: Sizes,
    storms: Storms,
    limits: &'a Settings,
}

/// A gauge: its name, its help, and its current value.
type Gauge = (&'static str, &'static str, fn(&Read<'_>) -> i64);

const GAUGES: [Gauge; 16] = [
    ("eventweir_correlator_sources", "Sources that are tracked.", |read| gauge(read.sizes.sources)),
    ("eventweir_correlator_sources_limit", "Sources that may be tracked.", |read| gauge(read.limits.max_sources.get())),
    ("eventweir_correlator_tracked_keys", "Entries in the caches of all sources.", |read| {
        gauge(read.sizes.tracked_keys)
    }),
    ("eventweir_correlator_tracked_keys_limit", "Entries that the caches of all sources may hold.", |read| {
        gauge(read.limits.max_tracked_keys.get())
    }),
    ("eventweir_client_lines", "Client lines in memory, at most 16,384 per shard.", |read| gauge(read.sizes.lines)),
    ("eventweir_outbox_budgets", "Budgets that are not known to be full.", |read| gauge(read.sizes.budgets)),
    ("eventweir_outbox_groups", "Groups with waiting records or a storm record.", |read| gauge(read.sizes.groups)),
    ("eventweir_outbox_records", "Records in the outbox.", |read| gauge(read.sizes.records)),
    ("eventweir_outbox_records_limit", "Records in the outbox at which new ones are refused.", |read| {
        gauge(read.limits.outbox.max_records.get())
    }),
    ("eventweir_outbox_bytes", "Bytes of the events in the outbox.", |read| gauge(read.sizes.bytes)),
    ("eventweir_outbox_limit_bytes", "Bytes in the outbox at which new records are refused.", |read| {
        gauge(read.limits.outbox.max_bytes.get())
    }),
    ("eventweir_outbox_storms", "Groups of like events with a storm record.", |read| gauge(read.storms.groups)),
    (
        "eventweir_outbox_oldest_unshown_seconds",
        "How long the oldest record that was never written has waited for its group, or for the ceiling.",
        |read| i64::try_from(read.storms.oldest.as_secs()).unwrap_or(i64::MAX),
    ),
    ("eventweir_outbox_ceiling_tokens", "Writes that the ceiling (upstream.qps) allows now; -1 without one.", |read| {
        read.storms.tokens.map_or(-1, i64::from)
    }),
    ("eventweir_explain_bytes", "Bytes of the decisions stored for explain.", |read| {
        gauge(read.shards.explain_bytes())
    }),
    ("eventweir_explain_limit_bytes", "Limit of the bytes of decisions (explain.maxBytes).", |read| {
        gauge(read.limits.explain.max_bytes.get())
    }),
];

/// Occurrences by their event's members.
#[derive(Debug)]
struct KubeEvents {
    total: IntCounterVec,
    /// The label sets that the metric has.
    // LIMIT: `explain.series`, and one for the rest.
    known: HashSet<[SmolStr; 4]>,
}

impl KubeEvents {
    fn new() -> Result<Self> {
        let help = "Occurrences by their event's members; those beyond explain.series label sets as other.";
        let opts = Opts::new("eventweir_kube_events_total", help);
        let total = IntCounterVec::new(opts, &["type", "reason", "kind", "namespace"])?;
        Ok(Self { total, known: HashSet::new() })
    }

    fn observe(&mut self, shards: &Shards, series: usize) {
        // A reload has lowered the limit.
        if self.known.len() > series {
            self.known.clear();
            self.total.reset();
        }
        let other = || std::array::from_fn(|_| SmolStr::new_static("other"));
        // LIMIT: at most the number of groups.
        let mut totals = HashMap::<[SmolStr; 4], u64>::from([(other(), 0)]);
        for group in shards.groups().into_iter().flat_map(|groups| groups.into_iter().enumerate()) {
            let (place, Group { event_type, reason, kind, namespace, totals: group, .. }) = group;
            let labels = [event_type, reason, kind, namespace];
            let is_shown = place > 0 && (self.known.contains(&labels) || self.known.len() < series);
            if is_shown {
                self.known.insert(labels.clone());
            }
            *totals.entry(if is_shown { labels } else { other() }).or_default() += group.received;
        }
        for (labels, total) in totals {
            let counter = self.total.with_label_values(&labels);
            // A reload has changed what is counted here. Prometheus takes the fall for a restart.
            if total < counter.get() {
                counter.reset();
            }
            set(&counter, total);
        }
    }
}

fn gauge(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Raises a counter to a total that is kept elsewhere and never falls.
fn set(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
