//! Starts the whole program on free ports.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eventweir::app::{App, ConfigSource, Listeners, connect};
use eventweir::cli::Flags;
use eventweir::clock::Clock;
use eventweir::config::{Backend, Config, RawConfig};
use eventweir::event::Event;
use eventweir::ledger::Balance;
use eventweir::upstream::{Apiserver, Embedded, ListOptions, Metrics, Upstream};
use prometheus::Registry;

use super::events::START;
use super::fake::FakeApiserver;
use super::http::Client;

/// Configuration of a program that stands for an apiserver: it stores events without correlation.
pub(crate) const APISERVER: &str = "correlation: {enabled: false}\ningest: {repair: off, ack: written}\n";

/// Longest wait of a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Program {
    pub(crate) app: Arc<App>,
    pub(crate) clock: Clock,
}

/// Parses a configuration, with free ports.
pub(crate) fn config(yaml: &str) -> Config {
    let flags = Flags {
        listen: Some("127.0.0.1:0".to_owned()),
        admin_listen: Some("127.0.0.1:0".to_owned()),
        ..Flags::default()
    };
    let raw = RawConfig::parse("test.yaml", yaml).unwrap();
    let mut config = Config::from_raw(raw, &flags.into_overrides()).unwrap();
    // No client connects late, except in tests of that.
    if !yaml.contains("grace:") {
        config.shutdown.grace = Duration::ZERO;
    }
    config
}

/// Starts the program with the embedded store and a clock that only the test advances.
pub(crate) async fn start(yaml: &str) -> Program {
    start_from(yaml, ConfigSource::default()).await
}

/// Starts it with a file to reload.
pub(crate) async fn start_from(yaml: &str, source: ConfigSource) -> Program {
    start_as(config(yaml), source).await
}

/// Starts it with a parsed configuration.
pub(crate) async fn start_as(config: Config, source: ConfigSource) -> Program {
    let (clock, registry) = (Clock::manual(START), Registry::new());
    let metrics = Metrics::new(&registry);
    let embedded = Embedded::new(config.upstream.store.clone(), clock.clone(), metrics);
    launch(config, source, Upstream::Embedded(embedded), registry, clock).await
}

/// Starts the program in front of `fake`, on its clock.
pub(crate) async fn start_before(fake: &FakeApiserver, yaml: &str) -> Program {
    let (config, registry) = (config(yaml), Registry::new());
    let upstream = fake.upstream_with(&config.upstream.apiserver, &registry);
    launch(config, ConfigSource::default(), upstream, registry, fake.clock()).await
}

/// Starts the program in front of another one, the apiserver, over real connections.
pub(crate) async fn start_behind(apiserver: &Program, yaml: &str) -> Program {
    let (config, clock, registry) = (config(yaml), Clock::manual(START), Registry::new());
    let uri = format!("http://{}", apiserver.app.address()).parse().unwrap();
    let client = kube::Client::try_from(kube::Config::new(uri)).unwrap();
    let service = tower::service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await }
    });
    let settings = eventweir::upstream::apiserver::Settings::default();
    let metrics = Metrics::new(&registry);
    let upstream = Upstream::Apiserver(Apiserver::behind(service, &settings, clock.clone(), metrics));
    launch(config, ConfigSource::default(), upstream, registry, clock).await
}

/// Starts the program in front of the apiserver of a kubeconfig, over real connections.
pub(crate) async fn start_with_kubeconfig(path: &std::path::Path, yaml: &str) -> Program {
    let (mut config, clock, registry) = (config(yaml), Clock::manual(START), Registry::new());
    config.upstream.backend = Backend::Apiserver;
    config.upstream.apiserver.kubeconfig = Some(path.to_owned());
    let upstream = connect(&config, &clock, Metrics::new(&registry)).await.unwrap();
    launch(config, ConfigSource::default(), upstream, registry, clock).await
}

async fn launch(config: Config, source: ConfigSource, upstream: Upstream, registry: Registry, clock: Clock) -> Program {
    let listeners = Listeners::bind(&config).await.unwrap();
    let app = App::start(config, source, listeners, upstream, registry, clock.clone()).unwrap();
    Program { app, clock }
}

impl Program {
    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.app.address()).await
    }

    pub(crate) async fn admin(&self) -> Client {
        Client::connect(self.app.admin_address()).await
    }

    /// Returns the balance, which is always exact.
    pub(crate) fn balance(&self) -> Balance {
        let balance = self.app.shards().balance();
        assert!(balance.is_exact(), "{balance:?}");
        balance
    }

    /// Waits until no write is pending, and advances the clock meanwhile.
    pub(crate) async fn settle(&self) {
        self.until("nothing is owed", || {
            self.clock.advance(Duration::from_millis(500));
            !self.app.shards().owe()
        })
        .await;
    }

    /// Waits until `condition` holds.
    pub(crate) async fn until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let waiting = async {
            while !condition() {
                self.balance();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(tokio::time::timeout(DEADLINE, waiting).await.is_ok(), "in vain: {what}");
    }

    /// Returns the events in the upstream.
    pub(crate) async fn stored(&self) -> Vec<Event> {
        self.app.upstream().list(None, &ListOptions::default()).await.unwrap().items
    }

    /// Returns all samples of `/metrics`, by name and labels.
    pub(crate) async fn metrics(&self) -> BTreeMap<String, f64> {
        let reply = self.admin().await.get("/metrics").await;
        assert_eq!(reply.status, 200);
        let lines = reply.text();
        let samples = lines.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }

    /// Waits until `condition` holds for a sample of `/metrics`.
    pub(crate) async fn until_metric(&self, sample: &str, condition: impl Fn(f64) -> bool) {
        let waiting = async {
            while !condition(self.metrics().await[sample]) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        assert!(tokio::time::timeout(DEADLINE, waiting).await.is_ok(), "in vain: {sample}");
    }

    /// Waits until history has received so many messages of this kind from the upstream.
    pub(crate) async fn until_news(&self, kind: &str, number: f64) {
        let sample = format!("eventweir_history_news_total{{kind=\"{kind}\"}}");
        self.until_metric(&sample, |count| count >= number).await;
    }

    /// Stops the program; the ledger is exact and nothing waits.
    pub(crate) async fn stop(self) -> Balance {
        let balance = self.app.stop().await;
        assert!(balance.is_exact(), "{balance:?}");
        assert_eq!(balance.total_waiting(), 0);
        assert_eq!(self.balance(), balance, "something changed after the stop");
        balance
    }
}
