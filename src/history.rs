//! History: keeps the correlators' baselines equal to what the apiserver holds, by one LIST at the start and a WATCH.
//!
//! It only tells the shards (`shard/history.rs`), which decide what follows. While it has nothing to tell, after a restart for
//! example, a repeat begins a new record.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};

use crate::clock::{Mono, Now};
use crate::shard::{Listed, Shards};
use crate::upstream::{Apiserver, News};

/// Longest time that readiness waits for the first list: late history is better than no proxy.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// What is asked of the apiserver; `upstream.history`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A LIST at the start, then a WATCH.
    Watch,
    /// A LIST at the start.
    List,
    /// Nothing: every process starts without any.
    Off,
}

/// Metrics, and whether the first list is there.
#[derive(Debug, Clone)]
pub struct Monitor {
    ready: Arc<AtomicBool>,
    synced: IntGauge,
    news: IntCounterVec,
    /// When the upstream said something last, in nanoseconds of monotonic time; 0 before.
    heard: Arc<AtomicI64>,
}

impl Monitor {
    /// Registers the metrics.
    ///
    /// # Errors
    /// When they are registered already.
    pub fn new(registry: &Registry, mode: Mode) -> Result<Self, prometheus::Error> {
        let synced = IntGauge::new(
            "eventweir_history_synced",
            "1 while the upstream's list is known and, with history: watch, followed; 0 before and in trouble",
        )?;
        let news = IntCounterVec::new(
            Opts::new("eventweir_history_news_total", "What the upstream has told of its events, by kind"),
            &["kind"],
        )?;
        registry.register(Box::new(synced.clone()))?;
        registry.register(Box::new(news.clone()))?;
        for kind in ["listed", "stored", "gone", "relist", "error"] {
            news.with_label_values(&[kind]);
        }
        Ok(Self { ready: Arc::new(AtomicBool::new(mode == Mode::Off)), synced, news, heard: Arc::default() })
    }

    /// Whether new events should be sent here: history is known, or not to be waited for.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Whether the upstream's events are known, and followed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced.get() == 1
    }

    /// How long ago the upstream said something of its events; `None` where it has not yet.
    #[must_use]
    pub fn heard(&self, now: Now) -> Option<Duration> {
        let heard = self.heard.load(Ordering::Relaxed);
        (heard > 0).then(|| now.mono.since(Mono(heard)))
    }

    fn hear(&self, now: Now) {
        self.heard.store(now.mono.0.max(1), Ordering::Relaxed);
    }

    fn set_ready(&self) {
        self.ready.store(true, Ordering::Relaxed);
    }

    fn count(&self, kind: &str) {
        self.news.with_label_values(&[kind]).inc();
    }
}

/// Follows the apiserver until dropped; with [`Mode::List`] until the list is whole. Dropping it loses nothing.
pub async fn follow(apiserver: Apiserver, shards: Shards, mode: Mode, monitor: Monitor) {
    let clock = shards.clock().clone();
    let deadline = clock.now().mono.after(DEADLINE);
    let mut news = pin!(apiserver.history());
    let mut listed = Listed::default();
    let mut is_told = false;
    loop {
        let next = tokio::select! {
            next = news.next() => next,
            () = clock.sleep_until(deadline), if !monitor.is_ready() => {
                tracing::warn!("the upstream's events are not listed in time; repeats may begin new records");
                monitor.set_ready();
                continue;
            }
        };
        if !matches!(next, Some(News::Trouble { .. }) | None) {
            monitor.hear(clock.now());
        }
        match next {
            Some(News::Begins) => listed = Listed::default(),
            Some(News::Listed(event)) => {
                listed.add(&event);
                shards.learn(&event);
                monitor.count("listed");
            }
            Some(News::Complete) => {
                shards.learn_list(&std::mem::take(&mut listed));
                monitor.count("relist");
                monitor.synced.set(1);
                monitor.set_ready();
                is_told = false;
                if mode == Mode::List {
                    return;
                }
            }
            Some(News::Stored(event)) => {
                shards.learn(&event);
                monitor.count("stored");
                monitor.synced.set(1);
                is_told = false;
            }
            Some(News::Gone(event)) => {
                shards.learn_gone(&event);
                monitor.count("gone");
            }
            Some(News::Trouble { is_expired: true, error, .. }) => {
                tracing::debug!(error, "the upstream's events are listed again");
            }
            Some(News::Trouble { error, is_forbidden, .. }) => {
                if is_forbidden {
                    monitor.set_ready();
                }
                // One line when it begins; the counter tells how long it lasts.
                if !is_told {
                    tracing::warn!(error, "the upstream's events cannot be followed; asking again");
                }
                is_told = true;
                monitor.count("error");
                monitor.synced.set(0);
            }
            None => return,
        }
    }
}
