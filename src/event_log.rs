//! The optional log of every occurrence as one JSON line, to standard output or a file, as client-go's `StartLogging`.
//!
//! A separate task writes. When it cannot keep up, lines are left out and counted, and no client waits.

use std::path::PathBuf;
use std::sync::Arc;

use prometheus::{IntCounter, Registry};
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{Semaphore, mpsc};

use crate::clock::Clock;
use crate::event::{Event, MicroTime};
use crate::metrics::Registrar;
use crate::shard::Outcome;

/// LIMIT: lines in the queue; further ones are left out and counted.
const QUEUE: usize = 4096;
/// LIMIT: bytes of the lines in the queue, of which one may have megabytes; further ones are left out and counted.
const QUEUE_BYTES: usize = 16 << 20;

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
    /// Free bytes of the queue. The task adds those of a line once it has written it.
    room: Arc<Semaphore>,
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
        let room = Arc::new(Semaphore::new(QUEUE_BYTES));
        (Self(Some(Handle { lines: sender, room: Arc::clone(&room), left_out })), write(target, lines, room))
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
        if handle.enqueue(json).is_none() {
            handle.left_out.inc();
        }
    }
}

impl Handle {
    /// Adds a line to the queue; `None` if the queue has no room for it.
    fn enqueue(&self, json: Vec<u8>) -> Option<()> {
        let bytes = json.len();
        self.room.try_acquire_many(u32::try_from(bytes).ok()?).ok()?.forget();
        let queued = self.lines.try_send(json);
        if queued.is_err() {
            self.room.add_permits(bytes);
        }
        queued.ok()
    }
}

async fn write(target: Target, lines: mpsc::Receiver<Vec<u8>>, room: Arc<Semaphore>) -> std::io::Result<()> {
    match target {
        Target::Stdout => write_all(lines, &room, tokio::io::stdout()).await,
        Target::File(path) => {
            let file = tokio::fs::OpenOptions::new().create(true).append(true).open(path).await?;
            write_all(lines, &room, file).await
        }
    }
}

async fn write_all(
    mut lines: mpsc::Receiver<Vec<u8>>,
    room: &Semaphore,
    target: impl AsyncWrite + Unpin,
) -> std::io::Result<()> {
    let mut target = BufWriter::new(target);
    while let Some(line) = lines.recv().await {
        target.write_all(&line).await?;
        room.add_permits(line.len());
        if lines.is_empty() {
            target.flush().await?;
        }
    }
    target.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: the queue was limited in lines alone, and events of 3 MiB filled it with gigabytes.
    #[tokio::test]
    async fn lines_beyond_the_bytes_of_the_queue_are_left_out() {
        let (log, _writing) = EventLog::new(Target::Stdout, &Registry::new());
        let (clock, megabyte) = (Clock::manual(0), "x".repeat(1 << 20));
        let event = Event { reason: megabyte.into(), ..Event::default() };
        for _ in 0..20 {
            log.write(&event, 1, Outcome::Created, "", &clock);
        }
        log.write(&Event::default(), 1, Outcome::Created, "", &clock);
        let handle = log.0.unwrap();
        // The newest line is short.
        assert_eq!((handle.left_out.get(), QUEUE - handle.lines.capacity()), (5, 16));
    }
}
