//! The program's own log on standard error, as text or JSON. Messages about single events are DEBUG or lower; bodies,
//! tokens and headers are never logged.
//!
//! A thread of its own writes, so that nothing waits for the reader of standard error.

use std::io::{self, Write};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// LIMIT: lines that wait for the reader; further ones are left out, and the log says how many.
const LINES: usize = 1024;

/// How long the end of the program waits for the reader of its error. On a busy machine, a second was too short.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Changes the level of a running log. When dropped, waits up to a second until its lines are written.
#[derive(Debug)]
pub struct Handle(reload::Handle<EnvFilter, Registry>, #[expect(dead_code, reason = "for its end")] WorkerGuard);

/// Standard error, as the thread of the log writes it.
#[derive(Debug)]
struct Output {
    left_out: Arc<OnceLock<ErrorCounter>>,
    /// Left-out lines that the log has reported.
    reported: usize,
}

/// Starts the log. Call it once.
pub fn start(log: &Log) -> Handle {
    let (filter, handle) = reload::Layer::new(filter(&log.level));
    let (lines, guard) = Output::start();
    let output = fmt::layer().with_writer(lines);
    let output = match log.format {
        // Unless `NO_COLOR` is set.
        LogFormat::Text if io::IsTerminal::is_terminal(&io::stderr()) => output.boxed(),
        LogFormat::Text => output.with_ansi(false).boxed(),
        LogFormat::Json => output.json().flatten_event(true).boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(output).try_init();
    if let Err(error) = started {
        tracing::warn!(%error, "the log is already started");
    }
    Handle(handle, guard)
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
    let mut text = text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
    text.push('\n');
    let (done, written) = mpsc::sync_channel(1);
    thread::spawn(move || {
        let _reader_gone = io::stderr().write_all(text.as_bytes());
        let _waiting = done.send(());
    });
    let _in_time = written.recv_timeout(REPORT_TIMEOUT);
}

// === impl Output ===

impl Output {
    /// Starts the thread.
    fn start() -> (NonBlocking, WorkerGuard) {
        let left_out = Arc::default();
        let output = Self { left_out: Arc::clone(&left_out), reported: 0 };
        let builder = NonBlockingBuilder::default().buffered_lines_limit(LINES).thread_name("log");
        let (lines, guard) = builder.finish(output);
        left_out.get_or_init(|| lines.error_counter());
        (lines, guard)
    }
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = io::stderr().write(line);
        let left_out = self.left_out.get().map_or(0, ErrorCounter::dropped_lines);
        if left_out > self.reported {
            tracing::warn!(
                lines = left_out - self.reported,
                "lines of the log were left out; standard error was not read"
            );
            self.reported = left_out;
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}
