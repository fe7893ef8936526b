//! Captures the log of a test.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use parking_lot::Mutex;
use tracing::subscriber::{DefaultGuard, NoSubscriber, set_default};

/// The log of this thread from here on, at all levels.
pub(crate) struct Log {
    written: Written,
    _guard: DefaultGuard,
    /// With one subscriber only, a callsite first reached by another test's thread is disabled for all.
    _second: tracing::Dispatch,
}

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn capture() -> Self {
        let (written, second) = (Written::default(), tracing::Dispatch::new(NoSubscriber::default()));
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
        let guard = set_default(subscriber.with_writer(move || writer.clone()).finish());
        Self { written, _guard: guard, _second: second }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.written.0.lock().clone()).unwrap()
    }
}

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
