//! `serve`: runs the proxy until a signal.

use std::pin::pin;

use prometheus::Registry;
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::spawn_blocking;

use super::{Error, print_document, runtime};
use crate::app::{self, App, ConfigSource, Listeners};
use crate::cli::Serve;
use crate::clock::Clock;
use crate::config::{self, Config, Files, Overrides};
use crate::outbox::LostReason;
use crate::{logging, upstream};

/// Runs `serve`.
///
/// # Errors
/// When the configuration is wrong, an address is taken, the kubeconfig cannot be used, or a part ends abnormally.
pub fn serve(serve: Serve) -> Result<(), Error> {
    let overrides = Overrides { container_memory: config::container_memory(), ..serve.flags.into_overrides() };
    let source = ConfigSource { path: serve.config, overrides };
    // The whole configuration is checked before a port is opened.
    let config = config::load(source.path.as_deref(), &source.overrides, Files::Checked)?;
    if serve.print_config {
        return print_document(&config.to_yaml());
    }
    let logs = logging::start(&config.log);
    let runtime = runtime()?;
    let ended = runtime.block_on(run(config, source, logs));
    // Does not wait for threads that a disk blocks.
    runtime.shutdown_background();
    ended
}

async fn run(config: Config, source: ConfigSource, logs: logging::Handle) -> Result<(), Error> {
    // Before anything listens: a signal right after readiness must not end the process without a drain.
    let handler =
        |kind, name: &str| signal(kind).map_err(|source| Error::Io { what: format!("handling {name}"), source });
    let mut terminate = handler(SignalKind::terminate(), "SIGTERM")?;
    let mut interrupt = handler(SignalKind::interrupt(), "SIGINT")?;
    let mut hang_up = handler(SignalKind::hangup(), "SIGHUP")?;
    let registry = Registry::new();
    let clock = Clock::system();
    let metrics = upstream::Metrics::new(&registry);
    // The kubeconfig too is checked before a port is opened. On a thread for blocking calls, because kube waits for exec
    // plugins there.
    let connecting = {
        let (config, clock, runtime) = (config.clone(), clock.clone(), Handle::current());
        spawn_blocking(move || runtime.block_on(app::connect(&config, &clock, metrics)))
    };
    let upstream = tokio::select! {
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
        connected = connecting => connected.map_err(|_panicked| Error::Broken)??,
    };
    let listeners = Listeners::bind(&config).await?;
    let app = App::start(config, source, listeners, upstream, registry, clock)?;
    let broken = loop {
        tokio::select! {
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break false,
            _ = hang_up.recv() => {
                if app.reload() {
                    logs.set_level(&app.log_level());
                }
            }
            () = app.follow_config() => logs.set_level(&app.log_level()),
            () = app.broken() => break true,
        }
    };
    let mut stopping = pin!(app.stop());
    let ledger = loop {
        tokio::select! {
            balance = &mut stopping => break balance.ledger,
            // A person asks for it. SIGTERM may come twice without one: the kubelet repeats it.
            _ = interrupt.recv() => app.hurry(),
        }
    };
    let lost = ledger.lost(LostReason::Shutdown) + ledger.lost(LostReason::Unknown);
    match (broken, lost) {
        (true, _) => Err(Error::Broken),
        (false, 0) => Ok(()),
        (false, lost) => Err(Error::Lost(lost)),
    }
}
