//! History: keeps the correlators' baselines equal to the apiserver's events, by a LIST at the start and a WATCH.
//!
//! It passes events to the shards (`shard/history.rs`), which decide what follows. Until the first list is complete, a
//! repeat begins a new record, and a client's total waits.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use prometheus::{IntCounterVec, IntGauge, Registry};
use tokio_util::sync::CancellationToken;

use crate::clock::{Mono, Now};
use crate::metrics::Registrar;
use crate::shard::{Listed, Shards};
use crate::upstream::{Apiserver, News};

/// How long readiness waits for the first list. Afterwards eventweir works without it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The requests to the apiserver; `upstream.history`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// A LIST at the start, then a WATCH.
    #[default]
    Watch,
    /// A LIST at the start.
    List,
    /// None: every process starts without history.
    Off,
}

/// Metrics, and the state of history.
#[derive(Debug, Clone)]
pub struct HistoryStatus {
    mode: Mode,
    ready: CancellationToken,
    synced: IntGauge,
    news: IntCounterVec,
    /// Time of the last message from the upstream, in nanoseconds of monotonic time; 0 before the first.
    heard: Arc<AtomicI64>,
}

impl HistoryStatus {
    /// Registers the metrics.
    pub fn new(registry: &Registry, mode: Mode) -> Self {
        let make = Registrar(registry);
        let synced = make.gauge(
            "eventweir_history_synced",
            "1 while the upstream's list is known and, with upstream.history: watch, followed; otherwise 0.",
        );
        let news = make.counters(
            "eventweir_history_news_total",
            "Messages about events from the upstream, by kind.",
            &["kind"],
        );
        for kind in ["listed", "stored", "gone", "relist", "error"] {
            news.with_label_values(&[kind]);
        }
        let ready = CancellationToken::new();
        if mode == Mode::Off {
            ready.cancel();
        }
        Self { mode, ready, synced, news, heard: Arc::default() }
    }

    /// Whether eventweir may get events: the first list is complete, or no longer waited for.
    pub fn is_ready(&self) -> bool {
        self.ready.is_cancelled()
    }

    /// Returns a token that is cancelled once [`is_ready`](Self::is_ready).
    pub fn ready(&self) -> CancellationToken {
        self.ready.clone()
    }

    /// Returns which requests are made.
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether the upstream's events are known and followed.
    pub fn is_synced(&self) -> bool {
        self.synced.get() == 1
    }

    /// Returns the time since the last message about events from the upstream; `None` before the first.
    pub fn heard(&self, now: Now) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| now.mono.since(Mono(heard)))
    }

    fn count(&self, kind: &str) {
        self.news.with_label_values(&[kind]).inc();
    }
}

/// Shortest time between two log lines about watches that break off.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// Follows the apiserver until dropped; with [`Mode::List`], until the list is complete. Dropping it is safe.
pub async fn follow(apiserver: Apiserver, shards: Shards, monitor: HistoryStatus) {
    let clock = shards.clock().clone();
    let deadline = clock.now().mono.after(DEADLINE);
    let synced = monitor.synced.clone();
    let mut news = pin!(apiserver.history(None, Arc::new(move || synced.set(1))));
    let mut listed = Listed::default();
    let mut logged_at: Option<Mono> = None;
    loop {
        let next = tokio::select! {
            next = news.next() => next,
            () = clock.sleep_until(deadline), if !monitor.is_ready() => {
                tracing::warn!("the upstream's events are not listed in time; repeats may begin new records");
                monitor.ready.cancel();
                continue;
            }
        };
        if !matches!(next, Some(News::Trouble { .. }) | None) {
            monitor.heard.store(clock.now().mono.0.max(1), Ordering::Relaxed);
        }
        match next {
            Some(News::Begins) => listed = Listed::default(),
            Some(News::Listed(event)) => {
                listed.add(&event);
                shards.apply_watch(&event);
                monitor.count("listed");
            }
            Some(News::Complete) => {
                shards.apply_list(&std::mem::take(&mut listed));
                monitor.count("relist");
                monitor.synced.set(1);
                monitor.ready.cancel();
                if monitor.mode == Mode::List {
                    return;
                }
            }
            Some(News::Stored(event)) => {
                shards.apply_watch(&event);
                monitor.count("stored");
                monitor.synced.set(1);
            }
            Some(News::Gone(event)) => {
                shards.apply_deletion(&event);
                monitor.count("gone");
                monitor.synced.set(1);
            }
            Some(News::Trouble { is_expired: true, error, .. }) => {
                tracing::debug!(error, "the upstream's events are listed again");
            }
            Some(News::Trouble { error, is_forbidden, .. }) => {
                if is_forbidden {
                    monitor.ready.cancel();
                }
                // Only the first failure of an outage is logged; the counter shows that it lasts.
                let now = clock.now().mono;
                let is_news = |logged_at| monitor.synced.get() == 1 && now.since(logged_at) >= LOG_PAUSE;
                if logged_at.is_none_or(is_news) {
                    tracing::warn!(error, "the upstream's events cannot be followed; retrying");
                    logged_at = Some(now);
                }
                monitor.count("error");
                monitor.synced.set(0);
            }
            None => return,
        }
    }
}
