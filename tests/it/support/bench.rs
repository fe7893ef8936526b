//! Core and delivery in front of a [`FakeApiserver`], under tokio's paused time.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use eventweir::clock::Clock;
use eventweir::correlator::{self, KeySecret, Policy};
use eventweir::deliver::GateSettings;
use eventweir::deliver::{self, DeliveryStatus};
use eventweir::event::Event;
use eventweir::ledger::Balance;
use eventweir::outbox::LostReason;
use eventweir::shard::{self, Accepted, Full, Shards};
use eventweir::upstream::Upstream;
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::events::START;
use super::fake::FakeApiserver;

/// Settings of a scenario.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    pub(crate) correlator: correlator::Settings,
    pub(crate) shard: shard::Settings,
    pub(crate) gate: GateSettings,
    /// Number of shards; 1 unless given.
    pub(crate) shards: Option<usize>,
    /// Writer whose tally the writes carry; without one they are written as by client-go.
    pub(crate) writer: Option<&'static str>,
}

pub(crate) struct Bench {
    pub(crate) shards: Shards,
    pub(crate) fake: FakeApiserver,
    pub(crate) monitor: DeliveryStatus,
    registry: Registry,
    pub(crate) accepted: u64,
    stop: CancellationToken,
    delivery: JoinSet<()>,
}

/// Longest simulated time until a scenario has no pending write.
const REST: Duration = Duration::from_secs(7 * 86_400);

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        Self::over(FakeApiserver::new(Clock::simulated(START)), options)
    }

    /// Starts another process in front of an existing server.
    pub(crate) fn over(fake: FakeApiserver, options: Options) -> Self {
        let upstream = fake.upstream();
        Self::before(fake, upstream, options)
    }

    /// Starts a process in front of an upstream that leads to `fake`.
    pub(crate) fn before(fake: FakeApiserver, upstream: Upstream, options: Options) -> Self {
        let clock = fake.clock();
        let count = NonZeroUsize::new(options.shards.unwrap_or(1)).unwrap();
        let policy = policy(options.correlator);
        let shards = Shards::new(count, &options.shard, policy, clock, KeySecret(7, 9), 1);
        if let Some(writer) = options.writer {
            shards.identify(writer);
        }
        let (stop, mut delivery) = (CancellationToken::new(), JoinSet::new());
        let registry = Registry::new();
        let monitor = DeliveryStatus::new(options.gate, &registry);
        delivery.spawn(deliver::run(shards.clone(), upstream, monitor.clone(), stop.clone(), 1));
        Self { shards, fake, monitor, registry, accepted: 0, stop, delivery }
    }

    /// Returns a metric of delivery: of this label's value, or of none.
    pub(crate) fn metric(&self, name: &str, label: Option<&str>) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let found = family
            .get_metric()
            .iter()
            .find(|metric| metric.get_label().first().map(prometheus::proto::LabelPair::value) == label);
        let metric = found.unwrap();
        metric.get_counter().get_value() + metric.get_gauge().get_value()
    }

    /// Reports an occurrence.
    pub(crate) fn offer(&mut self, event: Event) -> Accepted {
        self.try_offer(event).unwrap()
    }

    pub(crate) fn try_offer(&mut self, event: Event) -> Result<Accepted, Full> {
        let accepted = self.shards.accept(event, 1)?;
        self.accepted += 1;
        Ok(accepted)
    }

    /// Advances simulated time.
    pub(crate) async fn pass(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
        self.check();
    }

    /// Waits until no write is pending.
    pub(crate) async fn settle(&self) {
        let mut pause = Duration::from_millis(5);
        let resting = async {
            while self.shards.owe() {
                self.check();
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(60));
            }
        };
        let rested = tokio::time::timeout(REST, resting).await;
        assert!(rested.is_ok(), "never comes to rest: {:?}", self.balance());
        self.check();
    }

    pub(crate) fn balance(&self) -> Balance {
        self.shards.balance()
    }

    pub(crate) fn lost(&self, reason: LostReason) -> u64 {
        self.balance().ledger.lost(reason)
    }

    /// Checks that the ledger is exact.
    pub(crate) fn check(&self) {
        let balance = self.balance();
        assert!(balance.is_exact(), "{balance:?}");
    }

    /// Stops delivery at once.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        while self.delivery.join_next().await.is_some() {}
    }

    /// Waits until no write is pending, and checks that the upstream shows all accepted occurrences, with one request
    /// per record at a time.
    pub(crate) async fn finish(mut self) {
        self.settle().await;
        let balance = self.balance();
        assert_eq!(balance.total_waiting(), 0);
        assert_eq!(balance.ledger.total_lost(), 0);
        assert_eq!(balance.ledger.total_written(), self.accepted);
        assert_eq!(self.fake.shown(), self.accepted);
        assert!(self.fake.most_per_record() <= 1, "two requests for one record at once");
        self.stop().await;
        self.check();
    }
}

pub(crate) fn policy(settings: correlator::Settings) -> Policy {
    Policy { base: Arc::new(settings), rules: Vec::new() }
}
