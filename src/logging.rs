//! The program's own log, on standard error: text for people or JSON for machines. Nothing about single events above DEBUG;
//! bodies, tokens and headers at no level.

use std::io::Write as _;

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// Changes the level of a running log.
#[derive(Debug, Clone)]
pub struct Handle(reload::Handle<EnvFilter, Registry>);

/// Starts the log. To be called once.
#[must_use]
pub fn start(log: &Log) -> Handle {
    let (filter, handle) = reload::Layer::new(filter(&log.level));
    let output = fmt::layer().with_writer(std::io::stderr);
    let output = match log.format {
        LogFormat::Text => output.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).boxed(),
        LogFormat::Json => output.json().flatten_event(true).boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(output).try_init();
    if let Err(error) = started {
        tracing::warn!(%error, "a log was started before");
    }
    Handle(handle)
}

impl Handle {
    /// Takes over a reloaded level.
    pub fn set_level(&self, level: &str) {
        if let Err(error) = self.0.reload(filter(level)) {
            tracing::warn!(%error, "the level of the log could not be changed");
        }
    }
}

/// The directives of `level`, which the configuration has checked. kube logs each failed request as an error, its watcher each try as a
/// warning; delivery and history tell when trouble begins and ends instead.
fn filter(level: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(format!("kube_client=off,kube_runtime=off,{level}"))
}

/// Prints an error and its causes, once, at the end of the program.
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
