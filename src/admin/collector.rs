//! The ledger, the tables and delivery as metrics, read in the instant of a scrape so that the balance is exact in it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts};
use smol_str::SmolStr;

use crate::deliver::Monitor;
use crate::event::repair::Repair;
use crate::explain::Group;
use crate::ledger::RejectReason;
use crate::outbox::{LostReason, Why, WrittenAs};
use crate::shard::{Settings, Shards};
use crate::upstream::Verb;

/// Reads shards and delivery when scraped.
#[derive(Debug, Clone)]
pub struct ShardCollector(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    shards: Shards,
    monitor: Monitor,
    limits: Settings,
    received: IntCounter,
    rejected: IntCounterVec,
    written: IntCounterVec,
    lost: IntCounterVec,
    waiting: IntGaugeVec,
    sources: IntGauge,
    sources_limit: IntGauge,
    keys: IntGauge,
    keys_limit: IntGauge,
    budgets: IntGauge,
    lines: IntGauge,
    records: IntGauge,
    records_limit: IntGauge,
    bytes: IntGauge,
    bytes_limit: IntGauge,
    up: IntGauge,
    outages: IntCounter,
    forbidden: IntGaugeVec,
    repairs: IntCounterVec,
    in_flight: IntGauge,
    in_flight_limit: IntGauge,
    window: IntGauge,
    /// Bytes of decisions, and their limit.
    explain: [IntGauge; 2],
    kube_events: IntCounterVec,
    /// The label sets that the metric has.
    // LIMIT: `explain.series`, and one for the rest.
    known: HashSet<[SmolStr; 4]>,
    /// Groups, longest wait, tokens of the ceiling.
    storms: [IntGauge; 3],
}

impl ShardCollector {
    /// A collector of these shards and their delivery.
    ///
    /// # Errors
    /// Never in practice: the names are valid.
    pub fn new(shards: Shards, monitor: Monitor, limits: Settings) -> Result<Self, prometheus::Error> {
        let counters = |name: &str, help: &str, label: &str| IntCounterVec::new(Opts::new(name, help), &[label]);
        Ok(Self(Arc::new(Mutex::new(Inner {
            shards,
            monitor,
            limits,
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
            waiting: IntGaugeVec::new(
                Opts::new("eventweir_ledger_waiting", "Accepted occurrences that wait, by what they wait for."),
                &["why"],
            )?,
            sources: IntGauge::new("eventweir_correlator_sources", "Sources that are tracked.")?,
            sources_limit: IntGauge::new("eventweir_correlator_sources_limit", "Sources that may be tracked.")?,
            keys: IntGauge::new("eventweir_correlator_tracked_keys", "Entries in the caches of all sources.")?,
            keys_limit: IntGauge::new(
                "eventweir_correlator_tracked_keys_limit",
                "Entries that the caches of all sources may hold.",
            )?,
            budgets: IntGauge::new("eventweir_outbox_budgets", "Budgets that are not known to be full.")?,
            lines: lines()?,
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
            up: IntGauge::new("eventweir_upstream_up", "1 while the upstream answers, 0 while it is down.")?,
            outages: IntCounter::new("eventweir_upstream_outages_total", "How often the upstream went down.")?,
            forbidden: forbidden()?,
            repairs: counters(
                "eventweir_upstream_repairs_total",
                "Records that were mended and written again because the upstream had refused them, by what was wrong.",
                "what",
            )?,
            in_flight: IntGauge::new("eventweir_deliver_in_flight_requests", "Requests on their way to the upstream.")?,
            in_flight_limit: IntGauge::new(
                "eventweir_deliver_in_flight_requests_limit",
                "Requests that may be on their way at once.",
            )?,
            window: IntGauge::new(
                "eventweir_delivery_window",
                "Requests that may be on their way at once, as the upstream takes them now.",
            )?,
            explain: explain()?,
            kube_events: kube_events()?,
            known: HashSet::new(),
            storms: storms()?,
        }))))
    }

    /// Takes over reloaded limits.
    pub fn set_limits(&self, limits: Settings) {
        self.0.lock().limits = limits;
    }
}

impl Inner {
    fn parts(&self) -> [&dyn Collector; 28] {
        [
            &self.received,
            &self.rejected,
            &self.written,
            &self.lost,
            &self.waiting,
            &self.sources,
            &self.sources_limit,
            &self.keys,
            &self.keys_limit,
            &self.budgets,
            &self.lines,
            &self.records,
            &self.records_limit,
            &self.bytes,
            &self.bytes_limit,
            &self.up,
            &self.outages,
            &self.forbidden,
            &self.repairs,
            &self.in_flight,
            &self.in_flight_limit,
            &self.window,
            &self.explain[0],
            &self.explain[1],
            &self.kube_events,
            &self.storms[0],
            &self.storms[1],
            &self.storms[2],
        ]
    }

    /// Reads everything again.
    fn observe(&mut self) {
        let balance = self.shards.balance();
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
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
        let sizes = self.shards.sizes();
        self.sources.set(gauge(sizes.sources));
        self.sources_limit.set(gauge(self.limits.max_sources.get()));
        self.keys.set(gauge(sizes.tracked_keys));
        self.keys_limit.set(gauge(self.limits.max_tracked_keys.get()));
        self.budgets.set(gauge(sizes.budgets));
        self.lines.set(gauge(sizes.lines));
        self.records.set(gauge(sizes.records));
        self.records_limit.set(gauge(self.limits.outbox.max_records.get()));
        self.bytes.set(gauge(sizes.bytes));
        self.bytes_limit.set(gauge(self.limits.outbox.max_bytes.get()));
        self.up.set(i64::from(self.monitor.is_up()));
        set(&self.outages, self.monitor.outages());
        for verb in Verb::OF_DELIVERY {
            let forbidden = self.monitor.is_forbidden(verb);
            self.forbidden.with_label_values(&[verb.label()]).set(i64::from(forbidden));
        }
        for repair in Repair::ALL {
            set(&self.repairs.with_label_values(&[repair.label()]), self.monitor.repairs(repair));
        }
        self.in_flight.set(self.monitor.in_flight());
        self.in_flight_limit.set(gauge(self.monitor.settings().max_in_flight));
        self.window.set(self.monitor.window());
        self.explain[0].set(gauge(self.shards.explain_bytes()));
        self.explain[1].set(gauge(self.limits.explain.max_bytes.get()));
        let storms = self.shards.storms();
        let [groups, oldest, tokens] = &self.storms;
        groups.set(gauge(storms.groups));
        oldest.set(i64::try_from(storms.oldest.as_secs()).unwrap_or(i64::MAX));
        tokens.set(storms.tokens.map_or(-1, i64::from));
        self.observe_groups();
    }

    fn observe_groups(&mut self) {
        let other = || std::array::from_fn(|_| SmolStr::new_static("other"));
        // LIMIT: as many as groups.
        let mut totals = HashMap::<[SmolStr; 4], u64>::from([(other(), 0)]);
        for group in self.shards.groups().into_iter().flat_map(|groups| groups.into_iter().enumerate()) {
            let (place, Group { event_type, reason, kind, namespace, totals: group, .. }) = group;
            let labels = [event_type, reason, kind, namespace];
            let is_shown = place > 0 && (self.known.contains(&labels) || self.known.len() < self.limits.explain.series);
            if is_shown {
                self.known.insert(labels.clone());
            }
            *totals.entry(if is_shown { labels } else { other() }).or_default() += group.received;
        }
        for (labels, total) in totals {
            set(&self.kube_events.with_label_values(&labels), total);
        }
    }
}

fn lines() -> prometheus::Result<IntGauge> {
    IntGauge::new("eventweir_client_lines", "Lines of clients' own counts that were read upstream or from the spool.")
}

fn forbidden() -> prometheus::Result<IntGaugeVec> {
    let help = "1 while the upstream's newest answer to this verb was 403, by the verb of delivery.";
    IntGaugeVec::new(Opts::new("eventweir_upstream_forbidden", help), &["verb"])
}

fn storms() -> Result<[IntGauge; 3], prometheus::Error> {
    Ok([
        IntGauge::new("eventweir_outbox_storms", "Groups of like events with a storm record.")?,
        IntGauge::new(
            "eventweir_outbox_oldest_unshown_seconds",
            "How long the oldest record that was never written has waited for its group, or for the ceiling.",
        )?,
        IntGauge::new(
            "eventweir_outbox_ceiling_tokens",
            "Writes that the ceiling over all sources allows now; -1 without one.",
        )?,
    ])
}

fn explain() -> Result<[IntGauge; 2], prometheus::Error> {
    Ok([
        IntGauge::new("eventweir_explain_bytes", "Bytes of the decisions that are kept.")?,
        IntGauge::new("eventweir_explain_limit_bytes", "Bytes of decisions that may be kept.")?,
    ])
}

fn kube_events() -> Result<IntCounterVec, prometheus::Error> {
    let help = "Occurrences by their event's members; those beyond explain.series label sets as other.";
    IntCounterVec::new(Opts::new("eventweir_kube_events_total", help), &["type", "reason", "kind", "namespace"])
}

/// Brings a counter to a total that is kept elsewhere and never falls.
fn set(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

impl Collector for ShardCollector {
    fn desc(&self) -> Vec<&Desc> {
        // The descriptions live behind the lock; a collector without any is registered unchecked, which is fine for names
        // that nothing else uses.
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut inner = self.0.lock();
        inner.observe();
        inner.parts().iter().flat_map(|part| part.collect()).collect()
    }
}
