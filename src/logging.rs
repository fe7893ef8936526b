//! The program's own log on standard error, as text or JSON. Messages about single events are DEBUG or lower; bodies,
//! tokens and headers are never logged.

use std::io::Write as _;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// Changes the level of a running log.
#[derive(Debug, Clone)]
pub struct Handle(reload::Handle<EnvFilter, Registry>);

/// Starts the log. Call it once.
pub fn start(log: &Log) -> Handle {
    let (filter, handle) = reload::Layer::new(filter(&log.level));
    let output = fmt::layer().with_writer(std::io::stderr);
    let output = match log.format {
        LogFormat::Text => output.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => output.json().flatten_event(true).boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(output).try_init();
    if let Err(error) = started {
        tracing::warn!(%error, "the log is already started");
    }
    Handle(handle)
}

impl Handle {
    /// Applies a reloaded level.
    pub fn set_level(&self, level: &str) {
        if let Err(error) = self.0.reload(filter(level)) {
            tracing::warn!(%error, "the log level could not be changed");
        }
    }
}

/// Returns the directives of `level`, which the configuration has checked. The kube crates are off: they log every
/// failed request and every attempt of a watch, while delivery and history log when trouble begins and ends.
fn filter(level: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(format!("kube_client=off,kube_runtime=off,{level}"))
}

/// Prints an error and its causes, at the end of the program.
pub fn report(error: &dyn std::error::Error) {
    let mut text = format!("error: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        // Some libraries repeat their cause in their own text.
        if !text.ends_with(&source.to_string()) {
            text.push_str(": ");
            text.push_str(&source.to_string());
        }
        cause = source.source();
    }
    text.push('\n');
    let written = std::io::stderr().lock().write_all(text.as_bytes());
    drop(written);
}
