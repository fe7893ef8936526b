//! The whole program on ports of its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use eventweir::app::{App, ConfigSource, Listeners};
use eventweir::clock::Clock;
use eventweir::config::{Config, Overrides, RawConfig};
use eventweir::event::Event;
use eventweir::ledger::Balance;
use eventweir::upstream::{Apiserver, Embedded, ListOptions, Metrics, Upstream};
use prometheus::Registry;

use super::events::START;
use super::fake::FakeApiserver;
use super::http::Client;

/// How long a test waits for something that has to come.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) struct Program {
    pub(crate) app: Arc<App>,
    pub(crate) clock: Clock,
}

/// The configuration of `yaml`, on ports that are free.
pub(crate) fn config(yaml: &str) -> Config {
    let overrides = Overrides {
        listen: Some("127.0.0.1:0".to_owned()),
        admin_listen: Some("127.0.0.1:0".to_owned()),
        ..Overrides::default()
    };
    let mut config = Config::from_raw(RawConfig::parse("test.yaml", yaml).unwrap(), &overrides).unwrap();
    // Nobody is late here, but where a test is about that.
    if !yaml.contains("grace:") {
        config.shutdown.grace = Duration::ZERO;
    }
    config
}

/// Starts the program with the embedded upstream and a clock that only the test moves.
pub(crate) async fn start(yaml: &str) -> Program {
    start_from(yaml, ConfigSource::default()).await
}

/// The same, with a file to reload.
pub(crate) async fn start_from(yaml: &str, source: ConfigSource) -> Program {
    start_as(config(yaml), source).await
}

/// The same, with a configuration that has its own addresses.
pub(crate) async fn start_as(config: Config, source: ConfigSource) -> Program {
    let (clock, registry) = (Clock::manual(START), Registry::new());
    let metrics = Metrics::new(&registry).unwrap();
    let embedded = Embedded::new(config.upstream.store.clone(), clock.clone(), metrics);
    launch(config, source, Upstream::Embedded(embedded), registry, clock).await
}

/// Starts the program in front of `fake`, on its clock.
pub(crate) async fn start_before(fake: &FakeApiserver, yaml: &str) -> Program {
    let config = config(yaml);
    let upstream = fake.upstream_with(&config.upstream.apiserver);
    launch(config, ConfigSource::default(), upstream, Registry::new(), fake.clock()).await
}

/// Starts the program in front of another one, which stands for the apiserver, over real connections.
pub(crate) async fn start_behind(apiserver: &Program, yaml: &str) -> Program {
    let (config, clock, registry) = (config(yaml), Clock::manual(START), Registry::new());
    let uri = format!("http://{}", apiserver.app.address()).parse().unwrap();
    let client = kube::Client::try_from(kube::Config::new(uri)).unwrap();
    let service = tower::service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await }
    });
    let settings = eventweir::upstream::apiserver::Settings::default();
    let metrics = Metrics::new(&registry).unwrap();
    let upstream = Upstream::Apiserver(Apiserver::behind(service, &settings, clock.clone(), metrics));
    launch(config, ConfigSource::default(), upstream, registry, clock).await
}

/// Starts the program in front of the apiserver of a kubeconfig, over real connections.
pub(crate) async fn start_with_kubeconfig(path: &std::path::Path, yaml: &str) -> Program {
    let (config, clock, registry) = (config(yaml), Clock::manual(START), Registry::new());
    let settings = eventweir::upstream::apiserver::Settings {
        kubeconfig: Some(path.to_owned()),
        ..eventweir::upstream::apiserver::Settings::default()
    };
    let metrics = Metrics::new(&registry).unwrap();
    let upstream = Upstream::Apiserver(Apiserver::connect(&settings, clock.clone(), metrics).await.unwrap());
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

    /// The ledger, which is exact at every look.
    pub(crate) fn balance(&self) -> Balance {
        let balance = self.app.shards().balance();
        assert!(balance.is_exact(), "{balance:?}");
        balance
    }

    /// Waits until nothing is owed, moving the clock so that whatever waits for it comes.
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

    /// What the upstream holds.
    pub(crate) async fn stored(&self) -> Vec<Event> {
        self.app.upstream().list(None, &ListOptions::default()).await.unwrap().items
    }

    /// All samples of `/metrics`, by name and labels as they stand there.
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

    /// Stops the program; the ledger is exact and nothing waits any more.
    pub(crate) async fn stop(self) -> Balance {
        let balance = self.app.stop().await;
        assert!(balance.is_exact(), "{balance:?}");
        assert_eq!(balance.total_waiting(), 0);
        assert_eq!(self.balance(), balance, "something changed after the stop");
        balance
    }
}
