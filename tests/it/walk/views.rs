//! What a process shows of its occurrences beside `explain`: the tap, the metrics, and the numbers of `top` and of the
//! page. After each step they are those of its ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use eventweir::explain::{self, Line};
use eventweir::ledger::{Balance, Ledger, LostReason, RejectReason, Why, WrittenAs};
use eventweir::outbox;
use eventweir::shard::{self, Shards};
use prometheus::Registry;
use prometheus::proto::MetricFamily;
use serde_json::Value;
use tokio::sync::broadcast::Receiver;

/// First decisions about accepted occurrences.
const ACCEPTED: [&str; 5] = ["created", "counted", "combined", "deferred", "dropped"];

pub(super) struct Views {
    lines: Receiver<Arc<Line>>,
    /// Occurrences of the tap's lines, by verdict and reason.
    told: BTreeMap<(&'static str, &'static str), u64>,
    /// Occurrences from the spool, of which the tap says nothing.
    restored: u64,
    /// What waited when the shadow began.
    pub(super) shadowed_since: u64,
    /// Number of shadows so far.
    shadows: usize,
    /// Whether `explain` was on at all times, with room for everything.
    is_whole: bool,
    metrics: shard::Metrics,
    settings: shard::Settings,
    registry: Registry,
}

impl Views {
    /// Returns the views of a process that has not received anything yet.
    pub(super) fn new(shards: &Shards, settings: &shard::Settings, registry: &Registry) -> Self {
        Self {
            lines: shards.tap().read(Default::default()),
            told: BTreeMap::new(),
            restored: shards.balance().ledger.received(),
            shadowed_since: 0,
            shadows: 0,
            is_whole: remembers_all(settings),
            metrics: shard::Metrics::default(),
            settings: settings.clone(),
            registry: registry.clone(),
        }
    }

    /// The process has reloaded its settings.
    pub(super) fn reload(&mut self, settings: &shard::Settings) {
        self.settings = settings.clone();
        self.is_whole &= remembers_all(settings);
    }

    /// Whether `explain` is on.
    pub(super) const fn explains(&self) -> bool {
        self.settings.explain.enabled
    }

    /// Whether `explain` knows everything since the start.
    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether a limit may refuse records.
    pub(super) fn has_little_room(&self) -> bool {
        let widest = outbox::Settings::default();
        self.settings.outbox.max_records < widest.max_records || self.settings.outbox.max_bytes < widest.max_bytes
    }

    /// Returns the file of the next shadow, which no other one has.
    pub(super) fn next_shadow(&mut self) -> String {
        self.shadows += 1;
        self.shadows.to_string()
    }

    /// Compares the tap with the ledger.
    pub(super) fn check_tap(&mut self, ledger: &Ledger) {
        while let Ok(line) = self.lines.try_recv() {
            *self.told.entry((line.verdict, line.why)).or_default() += line.occurrences;
        }
        let told = |verdict, why| self.told(verdict, why);
        let accepted: u64 = ACCEPTED.iter().map(|verdict| told(verdict, "")).sum();
        assert_eq!(accepted + self.restored, ledger.received() - ledger.total_rejected(), "{:?}", self.told);
        assert_eq!(told("dropped", ""), ledger.lost(LostReason::Suppressed), "{:?}", self.told);
        assert_eq!(told("written", ""), ledger.total_written(), "{:?}", self.told);
        for reason in LostReason::ALL.into_iter().filter(|reason| *reason != LostReason::Suppressed) {
            assert_eq!(told("lost", reason.label()), ledger.lost(reason), "{:?}", self.told);
        }
        for reason in RejectReason::ALL {
            assert!(told("rejected", reason.label()) <= ledger.rejected(reason), "{:?}", self.told);
        }
    }

    /// Whether these are the numbers of accepted occurrences, by their first decision.
    pub(super) fn is_told(&self, numbers: &BTreeMap<String, u64>) -> bool {
        let number = |verdict| numbers.get(verdict).copied().unwrap_or(0);
        ACCEPTED.into_iter().all(|verdict| number(verdict) == self.told(verdict, ""))
    }

    fn told(&self, verdict: &str, why: &str) -> u64 {
        self.told.get(&(verdict, why)).copied().unwrap_or(0)
    }

    /// Compares the metrics with the ledger and the tap. Returns the occurrences of events that were read.
    pub(super) fn check_metrics(&mut self, shards: &Shards, balance: &Balance) -> u64 {
        let ledger = &balance.ledger;
        let families = self.metrics.collect(shards, &self.settings);
        let all: Vec<_> = families.into_iter().chain(self.registry.gather()).collect();
        let metric = |name: &str, label: &str| value(&all, &format!("eventweir_{name}"), label);
        assert_eq!(metric("ledger_received_total", ""), ledger.received());
        for reason in RejectReason::ALL {
            assert_eq!(metric("ledger_rejected_total", reason.label()), ledger.rejected(reason));
        }
        for shown in WrittenAs::ALL {
            assert_eq!(metric("ledger_written_total", shown.label()), ledger.written(shown));
        }
        for reason in LostReason::ALL {
            assert_eq!(metric("ledger_lost_total", reason.label()), ledger.lost(reason));
        }
        for why in Why::ALL {
            assert_eq!(metric("ledger_waiting", why.label()), balance.waiting[why as usize]);
        }
        for verdict in ACCEPTED {
            assert_eq!(metric("ingest_occurrences_total", verdict), self.told(verdict, ""));
        }
        if !self.is_whole {
            return ledger.received();
        }
        // A request that is refused as a whole is of no event.
        let groups = shards.groups();
        let read: u64 = groups.iter().flatten().map(|group| group.totals.rejected).sum();
        let unread = ledger.total_rejected() - read;
        let received = ledger.received() - unread;
        assert_eq!(metric("kube_events_total", ""), received);
        received
    }
}

/// Whether `explain` is on, and has room for everything.
fn remembers_all(settings: &shard::Settings) -> bool {
    settings.explain.enabled && settings.explain.max_bytes >= explain::Settings::default().max_bytes
}

/// Returns the sum of the values of a metric that have this label; all with an empty one.
fn value(families: &[MetricFamily], name: &str, label: &str) -> u64 {
    let family = families.iter().find(|family| family.name() == name).unwrap_or_else(|| panic!("no {name}"));
    let of_label = family
        .get_metric()
        .iter()
        .filter(|metric| label.is_empty() || metric.get_label().iter().any(|pair| pair.value() == label));
    let values = of_label.map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value());
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers")]
    let sum = values.sum::<f64>() as u64;
    sum
}

/// Compares both configurations of the shadow. `before` waited when it began, which only the live one has written
/// since.
pub(super) fn check_shadow(shadow: &Value, before: u64) {
    let [live, other] = [("live", before), ("shadow", 0)].map(|(side, before)| {
        let sums = &shadow["ledger"][side];
        let all = ["received", "rejected", "shown", "waiting", "lost"].map(|member| sums[member].as_u64().unwrap());
        let [received, rejected, shown, waiting, lost] = all;
        assert_eq!(received + before, rejected + shown + waiting + lost, "{side}: {shadow:#}");
        let rows = shadow["reasons"].as_array().unwrap().iter();
        let of_event: u64 = rows.map(|row| row["accepted"][side].as_u64().unwrap()).sum();
        (received - rejected, rejected, of_event)
    });
    // Reasons that do not differ are left out.
    assert_eq!(live.0 + other.2, other.0 + live.2, "{shadow:#}");
    assert!(live.2 <= live.0, "{shadow:#}");
    // Either may refuse what the other one has room for.
    assert!(live.0 == other.0 || (live.1, other.1) != (0, 0), "{shadow:#}");
    assert_eq!(shadow["missed"].as_u64(), Some(0), "{shadow:#}");
}

/// Compares the numbers of `top`, of a process that is younger than an hour, with the ledger.
pub(super) fn check_top(top: &Value, received: u64, balance: &Balance) {
    let ledger = &balance.ledger;
    let sum = |numbers: &Value| -> u64 { numbers.as_array().unwrap().iter().filter_map(Value::as_u64).sum() };
    let rows = |table: &str, member: &str| -> u64 {
        top[table].as_array().unwrap().iter().filter_map(|row| row[member].as_u64()).sum()
    };
    assert_eq!(top["ledger"]["received"], ledger.received());
    assert_eq!(top["ledger"]["written"], ledger.total_written());
    assert_eq!(sum(&top["perMinute"]["received"]), received, "{top:#}");
    assert_eq!(sum(&top["perMinute"]["lost"]), ledger.total_lost(), "{top:#}");
    let writes = sum(&top["perMinute"]["written"]);
    for table in ["objects", "reasons", "components", "namespaces"] {
        assert_eq!(rows(table, "received"), received, "{table}: {top:#}");
        assert!(rows(table, "writes") <= writes, "{table}: {top:#}");
    }
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let received = received as f64;
    assert_eq!(top["receivedLastHour"].as_f64(), Some(received), "{top:#}");
}
