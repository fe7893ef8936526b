//! The optional log of every accepted occurrence as one JSON line, to standard output or a file, as client-go's `StartLogging`.
//!
//! A separate task writes. When it cannot keep up, lines are left out and counted, and no client waits.

use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus::{IntCounter, Registry};
use serde::Serialize;
use tokio::io::{AsyncWrite, AsyncWriteExt, BufWriter};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::event::{Event, MicroTime};
use crate::metrics::Registrar;
use crate::shard::Outcome;

/// LIMIT: lines in the queue; further ones are left out and counted.
const QUEUE: usize = 4096;
/// LIMIT: bytes of the lines in the queue, of which one may have megabytes; further ones are left out and counted.
const QUEUE_BYTES: usize = 16 << 20;

/// LIMIT: lines that are written without a flush while more are in the queue. An error counts them as left out, although
/// some may have been written.
const UNFLUSHED: u64 = 1024;

/// Interval between two checks whether the file was renamed.
const CHECK: Duration = Duration::from_secs(10);
/// Pause until a target that could not be written is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// The target of the lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Standard output.
    Stdout,
    /// Appended to this file.
    File(PathBuf),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("stdout"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// The handle to write occurrences; does nothing without a log.
#[derive(Debug, Clone)]
pub struct EventLog(Option<Handle>);

#[derive(Debug, Clone)]
struct Handle {
    lines: mpsc::Sender<Vec<u8>>,
    /// Free bytes of the queue. The task adds those of a line once it has taken it.
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

    /// Creates a log, and the task that writes its lines to `target` until `stop` is cancelled or every handle is
    /// dropped. A target that cannot be written is opened again after a pause. The lines that may not be in it are left
    /// out.
    pub fn new(
        target: Target,
        registry: &Registry,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let left_out = Registrar(registry).counter(
            "eventweir_event_log_left_out_lines_total",
            "Lines of the event log that were left out: it could not be written, or not fast enough.",
        );
        let (sender, lines) = mpsc::channel(QUEUE);
        let room = Arc::new(Semaphore::new(QUEUE_BYTES));
        let writer = Writer {
            target,
            lines,
            stop,
            room: Arc::clone(&room),
            left_out: left_out.clone(),
            buffered: 0,
            is_failing: false,
        };
        (Self(Some(Handle { lines: sender, room, left_out })), writer.run())
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

/// The task's side of the log.
struct Writer {
    target: Target,
    lines: mpsc::Receiver<Vec<u8>>,
    stop: CancellationToken,
    room: Arc<Semaphore>,
    left_out: IntCounter,
    /// Lines that may not be in the target yet.
    buffered: u64,
    is_failing: bool,
}

impl Writer {
    async fn run(mut self) {
        while let Err(error) = self.write().await {
            self.left_out.inc_by(std::mem::take(&mut self.buffered));
            if !std::mem::replace(&mut self.is_failing, true) {
                let to = &self.target;
                tracing::error!(%to, %error, "the event log cannot be written; its lines are left out until it can");
            }
            if self.stop.is_cancelled() || self.lines.is_closed() {
                self.left_out.inc_by(self.lines.len() as u64);
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// Writes until the end. A file that was renamed is opened again.
    async fn write(&mut self) -> std::io::Result<()> {
        while !(self.lines.is_closed() && self.lines.is_empty()) {
            match self.target.clone() {
                Target::Stdout => self.write_to(tokio::io::stdout(), std::future::pending()).await?,
                Target::File(path) => {
                    let file = tokio::fs::OpenOptions::new().create(true).append(true).open(&path).await?;
                    let opened = identity(&file.metadata().await?);
                    self.write_to(file, renamed(&path, opened)).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes until the end, or until `renamed`.
    async fn write_to(
        &mut self,
        target: impl AsyncWrite + Unpin,
        renamed: impl Future<Output = ()>,
    ) -> std::io::Result<()> {
        tokio::pin!(renamed);
        let mut target = BufWriter::new(target);
        if self.is_failing {
            // The last line may have been cut.
            target.write_all(b"\n").await?;
        }
        loop {
            let line = tokio::select! {
                line = self.lines.recv() => line,
                () = self.stop.cancelled(), if !self.lines.is_closed() => {
                    // What is in the queue is still written.
                    self.lines.close();
                    continue;
                }
                () = &mut renamed => None,
            };
            let Some(line) = line else { return self.flush(&mut target).await };
            self.room.add_permits(line.len());
            self.buffered += 1;
            target.write_all(&line).await?;
            if self.lines.is_empty() || self.buffered >= UNFLUSHED {
                self.flush(&mut target).await?;
            }
        }
    }

    async fn flush(&mut self, target: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        target.flush().await?;
        self.buffered = 0;
        if std::mem::take(&mut self.is_failing) {
            tracing::info!(to = %self.target, "the event log can be written again");
        }
        Ok(())
    }
}

/// Device and inode of a file.
fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Returns when another file or none has the path, as after a rotation.
async fn renamed(path: &Path, opened: (u64, u64)) {
    loop {
        sleep(CHECK).await;
        match tokio::fs::metadata(path).await {
            Ok(found) if identity(&found) == opened => {}
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
            Ok(_) | Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(log: &EventLog, name: &str) {
        let mut event = Event::default();
        event.metadata.name = name.into();
        log.write(&event, 1, Outcome::Created, "", &Clock::manual(0));
    }

    /// Fault: after a rotation, lines went to the renamed file until a restart.
    #[tokio::test(start_paused = true)]
    async fn a_file_that_was_renamed_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let [path, old] = ["log", "log.1"].map(|name| folder.path().join(name));
        let (log, writing) = EventLog::new(Target::File(path.clone()), &Registry::new(), CancellationToken::new());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(writing);
        write(&log, "first");
        while std::fs::read_to_string(&path).unwrap_or_default().is_empty() {
            tokio::task::yield_now().await;
        }
        std::fs::rename(&path, &old).unwrap();
        write(&log, "second");
        sleep(CHECK + CHECK).await;
        write(&log, "third");
        let left_out = log.0.as_ref().unwrap().left_out.clone();
        drop(log);
        tasks.join_next().await.unwrap().unwrap();
        let names = [old, path].map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            ["first", "second", "third"].map(|name| text.contains(name))
        });
        assert_eq!(names, [[true, true, false], [false, false, true]]);
        assert_eq!(left_out.get(), 0);
    }

    /// Fault: while the queue was never empty, an error counted all lines since the start of the log as left out.
    #[tokio::test]
    async fn an_error_under_load_counts_recent_lines_only() {
        let (sender, lines) = mpsc::channel(QUEUE);
        for _ in 0..QUEUE {
            sender.try_send(vec![b'x'; 100]).unwrap();
        }
        let left_out = Registrar(&Registry::new()).counter("eventweir_test_total", "A test.");
        let (target, mut reader) = tokio::io::duplex(1 << 10);
        let room = Arc::new(Semaphore::new(0));
        let mut writer = Writer {
            target: Target::Stdout,
            lines,
            stop: CancellationToken::new(),
            room,
            left_out,
            buffered: 0,
            is_failing: false,
        };
        let reading = async move {
            let mut bytes = vec![0; 100 * (QUEUE - 100)];
            tokio::io::AsyncReadExt::read_exact(&mut reader, &mut bytes).await.unwrap();
        };
        let (written, ()) = tokio::join!(writer.write_to(target, std::future::pending()), reading);
        assert!(written.is_err() && writer.buffered <= UNFLUSHED, "{written:?} {}", writer.buffered);
    }

    /// Fault: the queue was limited in lines alone, and events of 3 MiB filled it with gigabytes.
    #[tokio::test]
    async fn lines_beyond_the_bytes_of_the_queue_are_left_out() {
        let (log, _writing) = EventLog::new(Target::Stdout, &Registry::new(), CancellationToken::new());
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

    /// Fault: it ended when its last handle was dropped, and the admin port keeps one, so each stop took 5 s more.
    #[tokio::test]
    async fn at_a_stop_the_queue_is_written_although_handles_are_left() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let stop = CancellationToken::new();
        let (log, writing) = EventLog::new(Target::File(path.to_path_buf()), &Registry::new(), stop.clone());
        write(&log, "last");
        stop.cancel();
        tokio::time::timeout(Duration::from_secs(60), writing).await.unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("last"));
    }

    /// Fault: the log ended for good at the first error.
    #[tokio::test(start_paused = true)]
    async fn a_target_that_could_not_be_written_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let [path, kept] = ["log", "kept"].map(|name| folder.path().join(name));
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let (log, writing) = EventLog::new(Target::File(path.clone()), &Registry::new(), CancellationToken::new());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(writing);
        let left_out = &log.0.as_ref().unwrap().left_out;
        write(&log, "lost");
        while left_out.get() == 0 {
            tokio::task::yield_now().await;
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&kept, &path).unwrap();
        write(&log, "kept");
        assert_eq!(left_out.get(), 1);
        drop(log);
        tasks.join_next().await.unwrap().unwrap();
        let text = std::fs::read_to_string(&kept).unwrap();
        assert!(text.contains("kept") && !text.contains("lost"), "{text}");
    }
}
