//! The optional log of every occurrence as one JSON line, to standard output or a file, as client-go's `StartLogging`.
//!
//! A separate task writes. When it cannot keep up, lines are left out and counted, and no client waits.

use std::path::PathBuf;

use prometheus::{IntCounter, Registry};
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::event::{Event, MicroTime};
use crate::metrics::Registrar;
use crate::shard::Outcome;

/// LIMIT: lines in the queue; further ones are left out and counted.
const QUEUE: usize = 4096;

/// The target of the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

/// The handle to write occurrences; does nothing without a log.
#[derive(Debug, Clone)]
pub struct EventLog(Option<Handle>);

#[derive(Debug, Clone)]
struct Handle {
    lines: mpsc::Sender<Vec<u8>>,
    left_out: IntCounter,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    time: String,
    outcome: &'static str,
    occurrences: u32,
    namespace: &'a str,
    name: &'a str,
    kind: &'a str,
    object: &'a str,
    #[serde(rename = "type")]
    event_type: &'a str,
    reason: &'a str,
    message: &'a str,
    component: &'a str,
    host: &'a str,
    /// The caller, if callers are authenticated.
    #[serde(skip_serializing_if = "str::is_empty")]
    caller: &'a str,
}

impl EventLog {
    /// Returns a handle without a log.
    pub const fn none() -> Self {
        Self(None)
    }

    /// Creates a log, and the task that writes its lines to `target` until every handle is dropped. The task ends with an
    /// error when the target cannot be opened or written.
    pub fn new(target: Target, registry: &Registry) -> (Self, impl Future<Output = std::io::Result<()>> + use<>) {
        let left_out = Registrar(registry).counter(
            "eventweir_event_log_left_out_lines_total",
            "Lines of the event log that were left out: it could not be written, or not fast enough.",
        );
        let (sender, lines) = mpsc::channel(QUEUE);
        (Self(Some(Handle { lines: sender, left_out })), write(target, lines))
    }

    /// Whether there is a log.
    pub const fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// Writes a line about accepted occurrences of this caller; its name is empty if callers are not authenticated.
    pub fn write(&self, event: &Event, occurrences: u32, outcome: Outcome, caller: &str, clock: &Clock) {
        let Some(handle) = &self.0 else { return };
        let line = Line {
            time: MicroTime::from_unix_nanos(clock.now().wall).to_string(),
            outcome: outcome.label(),
            occurrences,
            namespace: &event.metadata.namespace,
            name: &event.metadata.name,
            kind: &event.involved_object.kind,
            object: &event.involved_object.name,
            event_type: &event.event_type,
            reason: &event.reason,
            message: &event.message,
            component: event.component(),
            host: event.host(),
            caller,
        };
        let mut json = serde_json::to_vec(&line).unwrap_or_default();
        json.push(b'\n');
        if handle.lines.try_send(json).is_err() {
            handle.left_out.inc();
        }
    }
}

async fn write(target: Target, lines: mpsc::Receiver<Vec<u8>>) -> std::io::Result<()> {
    match target {
        Target::Stdout => write_all(lines, tokio::io::stdout()).await,
        Target::File(path) => {
            let file = tokio::fs::OpenOptions::new().create(true).append(true).open(path).await?;
            write_all(lines, file).await
        }
    }
}

async fn write_all(mut lines: mpsc::Receiver<Vec<u8>>, target: impl AsyncWrite + Unpin) -> std::io::Result<()> {
    let mut target = BufWriter::new(target);
    while let Some(line) = lines.recv().await {
        target.write_all(&line).await?;
        if lines.is_empty() {
            target.flush().await?;
        }
    }
    target.flush().await
}
