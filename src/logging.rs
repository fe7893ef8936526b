//! The program's own log on standard error, as text or JSON. Messages about single events are DEBUG or lower; bodies,
//! tokens and headers are never logged.
//!
//! A thread of its own writes, so that nothing waits for the reader of standard error.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

use crate::config::{Log, LogFormat};

/// LIMIT: lines that wait for the reader; further ones are left out, and the log says how many.
const LINES: usize = 1024;
/// Longest wait for the reader at the end of the program.
const PATIENCE: Duration = Duration::from_secs(1);

/// Changes the level of a running log. When dropped, waits until its lines are written.
#[derive(Debug)]
pub struct Handle(reload::Handle<EnvFilter, Registry>, Output);

/// Lines for a target that may block. Clones share them.
#[derive(Debug, Clone, Default)]
struct Output(Arc<(Mutex<Queue>, Condvar)>);

#[derive(Debug, Default)]
struct Queue {
    lines: VecDeque<Vec<u8>>,
    left_out: u64,
    /// Whether the thread writes a line that it has taken.
    is_writing: bool,
    /// Whether the system has no thread for it. Then the caller writes to standard error, and may block.
    has_no_thread: bool,
}

/// Starts the log. Call it once.
pub fn start(log: &Log) -> Handle {
    let (filter, handle) = reload::Layer::new(filter(&log.level));
    let lines = Output::to(io::stderr());
    let writer = lines.clone();
    let output = fmt::layer().with_writer(move || writer.clone());
    let output = match log.format {
        LogFormat::Text => output.with_ansi(io::IsTerminal::is_terminal(&io::stderr())).boxed(),
        LogFormat::Json => output.json().flatten_event(true).boxed(),
    };
    let started = tracing_subscriber::registry().with(filter).with(output).try_init();
    if let Err(error) = started {
        tracing::warn!(%error, "the log is already started");
    }
    Handle(handle, lines)
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.1.finish();
    }
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
    let output = Output::to(io::stderr());
    output.push(text.into_bytes());
    output.finish();
}

// === impl Output ===

impl Output {
    /// Starts the thread that writes to `target`. Lines that it cannot write are dropped.
    fn to(mut target: impl Write + Send + 'static) -> Self {
        let output = Self::default();
        let shared = output.clone();
        let write = move || {
            loop {
                let (line, left_out) = shared.take();
                let _reader_gone = target.write_all(&line);
                if left_out > 0 {
                    tracing::warn!(lines = left_out, "lines of the log were left out; standard error was not read");
                }
            }
        };
        let started = std::thread::Builder::new().name("log".to_owned()).spawn(write);
        output.0.0.lock().has_no_thread = started.is_err();
        output
    }

    fn push(&self, line: Vec<u8>) {
        let (queue, changed) = &*self.0;
        let mut queue = queue.lock();
        if queue.has_no_thread {
            let _reader_gone = io::stderr().write_all(&line);
        } else if queue.lines.len() < LINES {
            queue.lines.push_back(line);
            changed.notify_all();
        } else {
            queue.left_out += 1;
        }
    }

    /// Waits for the next line. Returns it, and how many were left out since the last one.
    fn take(&self) -> (Vec<u8>, u64) {
        let (queue, changed) = &*self.0;
        let mut queue = queue.lock();
        queue.is_writing = false;
        changed.notify_all();
        loop {
            if let Some(line) = queue.lines.pop_front() {
                queue.is_writing = true;
                return (line, std::mem::take(&mut queue.left_out));
            }
            changed.wait(&mut queue);
        }
    }

    /// Waits until all lines are written, or until the reader is too slow.
    fn finish(&self) {
        let (queue, changed) = &*self.0;
        let waits = |queue: &mut Queue| queue.is_writing || !queue.lines.is_empty();
        let _in_time = changed.wait_while_for(&mut queue.lock(), waits, PATIENCE);
    }
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Blocks until the sender is dropped.
    struct Blocked(mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _sender_gone = self.0.recv();
            self.1.lock().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_does_not_read_loses_the_newest_lines() {
        let ((reader, blocked), written) = (mpsc::sync_channel(0), Arc::default());
        let output = Output::to(Blocked(blocked, Arc::clone(&written)));
        // One more, if the thread has taken the first already.
        let lines: Vec<String> = (0..LINES + 2).map(|number| format!("{number}\n")).collect();
        lines.iter().for_each(|line| output.push(line.clone().into_bytes()));
        drop(reader);
        while output.0.0.lock().is_writing || !output.0.0.lock().lines.is_empty() {
            output.finish();
        }
        let written = String::from_utf8(written.lock().clone()).unwrap();
        assert!([LINES, LINES + 1].map(|kept| lines[..kept].concat()).contains(&written));
    }
}
