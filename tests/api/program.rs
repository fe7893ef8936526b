//! The program on a port of its own, with the embedded store and a clock that only the test moves.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use eventweir::app::{App, ConfigSource, Listeners};
use eventweir::cli::Flags;
use eventweir::clock::Clock;
use eventweir::config::{Config, RawConfig};
use eventweir::upstream::store::{Settings, Store};
use eventweir::upstream::{Embedded, Metrics, Upstream};
use prometheus::Registry;

pub(crate) struct Program {
    pub(crate) app: Arc<App>,
    pub(crate) embedded: Embedded,
    pub(crate) clock: Clock,
}

impl Program {
    /// Starts the program at `wall`, in unix nanoseconds. `store` makes the embedded store from its configured settings.
    pub(crate) async fn start(yaml: &str, wall: i64, store: impl FnOnce(Settings, &Clock) -> Store) -> Self {
        let local = || Some("127.0.0.1:0".to_owned());
        let overrides = Flags { listen: local(), admin_listen: local(), ..Flags::default() }.into_overrides();
        let mut config = Config::from_raw(RawConfig::parse("test.yaml", yaml).unwrap(), &overrides).unwrap();
        // No client connects while the program stops.
        config.shutdown.grace = Duration::ZERO;
        let (clock, registry) = (Clock::manual(wall), Registry::new());
        let store = store(config.upstream.store.clone(), &clock);
        let embedded = Embedded::with_store(store, clock.clone(), Metrics::new(&registry));
        let listeners = Listeners::bind(&config).await.unwrap();
        let upstream = Upstream::Embedded(embedded.clone());
        let app = App::start(config, ConfigSource::default(), listeners, upstream, registry, clock.clone()).unwrap();
        Self { app, embedded, clock }
    }
}
