//! Metrics of the shards, read at the instant of a scrape, so that the ledger balances within it.

use std::collections::{HashMap, HashSet};

use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};
use smol_str::SmolStr;

use super::{Settings, Shards, Sizes, Storms};
use crate::explain::Group;
use crate::ledger::{Balance, LostReason, RejectReason, Why, WrittenAs};
use crate::metrics::{Registrar, value};

/// Samples of everything that the shards hold.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    ledger: Ledger,
    /// One for each of `GAUGES`.
    gauges: [IntGauge; GAUGES.len()],
    evicted_keys: IntCounter,
    kube_events: KubeEvents,
}

impl Default for Metrics {
    /// Returns metrics without values.
    fn default() -> Self {
        let registry = Registry::new();
        let make = Registrar(&registry);
        Self {
            ledger: Ledger::new(make),
            gauges: GAUGES.map(|(name, help, _)| make.gauge(name, help)),
            evicted_keys: make.counter(
                "eventweir_correlator_evicted_keys_total",
                "Entries evicted from the caches, alone or with their source.",
            ),
            kube_events: KubeEvents::new(make),
            registry,
        }
    }
}

impl Metrics {
    /// Reads the current values.
    pub fn collect(&mut self, shards: &Shards, limits: &Settings) -> Vec<MetricFamily> {
        let (balance, sizes) = (shards.balance(), shards.sizes());
        self.ledger.observe(&balance);
        let read = Read { shards, sizes, storms: shards.storms(), limits };
        for (gauge, (_, _, current)) in self.gauges.iter().zip(GAUGES) {
            gauge.set(current(&read));
        }
        set(&self.evicted_keys, sizes.evicted_keys);
        self.kube_events.observe(shards, limits.explain.series);
        self.registry.gather()
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
    fn new(make: Registrar<'_>) -> Self {
        Self {
            received: make.counter(
                "eventweir_ledger_received_total",
                "Occurrences that arrived: rejected, written, waiting and lost ones add up to this.",
            ),
            rejected: make.counters(
                "eventweir_ledger_rejected_total",
                "Occurrences refused on arrival, by reason.",
                &["reason"],
            ),
            written: make.counters(
                "eventweir_ledger_written_total",
                "Occurrences that the upstream shows, by how.",
                &["as"],
            ),
            lost: make.counters(
                "eventweir_ledger_lost_total",
                "Accepted occurrences that are lost for good, by reason.",
                &["reason"],
            ),
            waiting: make.gauges(
                "eventweir_ledger_waiting",
                "Accepted occurrences that wait, by what they wait for.",
                &["why"],
            ),
        }
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
            self.waiting.with_label_values(&[why.label()]).set(value(balance.waiting[why as usize]));
        }
    }
}

struct Read<'a> {
    shards: &'a Shards,
    sizes: Sizes,
    storms: Storms,
    limits: &'a Settings,
}

/// A gauge: its name, its help, and its current value.
type Gauge = (&'static str, &'static str, fn(&Read<'_>) -> i64);

const GAUGES: [Gauge; 16] = [
    ("eventweir_correlator_sources", "Sources that are tracked.", |read| value(read.sizes.sources)),
    ("eventweir_correlator_sources_limit", "Sources that may be tracked.", |read| value(read.limits.max_sources.get())),
    ("eventweir_correlator_tracked_keys", "Entries in the caches of all sources.", |read| {
        value(read.sizes.tracked_keys)
    }),
    ("eventweir_correlator_tracked_keys_limit", "Entries that the caches of all sources may hold.", |read| {
        value(read.limits.max_tracked_keys.get())
    }),
    ("eventweir_client_lines", "Client lines in memory, at most 16,384 per shard.", |read| value(read.sizes.lines)),
    ("eventweir_outbox_budgets", "Budgets that are not known to be full.", |read| value(read.sizes.budgets)),
    ("eventweir_outbox_groups", "Groups with waiting records or a storm record.", |read| value(read.sizes.groups)),
    ("eventweir_outbox_records", "Records in the outbox.", |read| value(read.sizes.records)),
    ("eventweir_outbox_records_limit", "Records in the outbox at which new ones are refused.", |read| {
        value(read.limits.outbox.max_records.get())
    }),
    ("eventweir_outbox_bytes", "Bytes of the events in the outbox.", |read| value(read.sizes.bytes)),
    ("eventweir_outbox_limit_bytes", "Bytes in the outbox at which new records are refused.", |read| {
        value(read.limits.outbox.max_bytes.get())
    }),
    ("eventweir_outbox_storms", "Groups of like events with a storm record.", |read| value(read.storms.groups)),
    (
        "eventweir_outbox_oldest_unshown_seconds",
        "How long the oldest record that was never written has waited for its group, or for the ceiling.",
        |read| value(read.storms.oldest.as_secs()),
    ),
    ("eventweir_outbox_ceiling_tokens", "Writes that the ceiling (upstream.qps) allows now; -1 without one.", |read| {
        read.storms.tokens.map_or(-1, i64::from)
    }),
    ("eventweir_explain_bytes", "Bytes of the decisions stored for explain.", |read| {
        value(read.shards.explain_bytes())
    }),
    ("eventweir_explain_limit_bytes", "Limit of the bytes of decisions (explain.maxBytes).", |read| {
        value(read.limits.explain.max_bytes.get())
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
    fn new(make: Registrar<'_>) -> Self {
        let help = "Occurrences by their event's members; those beyond explain.series label sets as other.";
        let labels = ["type", "reason", "kind", "namespace"];
        Self { total: make.counters("eventweir_kube_events_total", help, &labels), known: HashSet::new() }
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

/// Raises a counter to a total that is kept elsewhere and never falls.
fn set(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
