//! Time as a value. This is the only module that reads a clock; everything else is handed a [`Now`].
//!
//! Both readings are needed because Go's `time.Time` carries both and client-go uses each: names and timestamps come from
//! the wall clock, windows and token buckets run on the monotonic one and do not notice when the wall clock is set.

use std::sync::Arc;
use std::time::Duration;

/// A point on the monotonic clock, in nanoseconds since the clock was made.
///
/// Signed, so that a replay can hand over a clock that steps back (client-go with an injected clock does the same).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(pub i64);

impl Mono {
    /// Nanoseconds from `earlier` to `self`; negative when the clock went back, saturating at the ends like Go's `Time.Sub`.
    #[must_use]
    pub const fn nanos_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Time from `earlier` to `self`, zero when the clock went back.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        let nanos = self.nanos_since(earlier);
        if nanos <= 0 { Duration::ZERO } else { Duration::from_nanos(nanos.unsigned_abs()) }
    }

    /// The point `duration` later, saturating.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)))
    }
}

/// One reading of both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Nanoseconds since 1970-01-01T00:00:00Z (Go's `UnixNano`): event names and timestamps.
    pub wall: i64,
    /// Monotonic time: windows, budgets, intervals, deadlines.
    pub mono: Mono,
}

impl Now {
    /// Both clocks at the same `nanos`: what client-go sees when a test injects a clock, and what a replay uses.
    #[must_use]
    pub const fn at(nanos: i64) -> Self {
        Self { wall: nanos, mono: Mono(nanos) }
    }

    /// Wall-clock seconds since 1970, rounded down.
    #[must_use]
    pub const fn wall_seconds(self) -> i64 {
        self.wall.div_euclid(1_000_000_000)
    }
}

/// The process's clock: real in the program, following tokio's paused time in tests.
#[derive(Debug, Clone)]
pub struct Clock(Arc<Start>);

#[derive(Debug)]
struct Start {
    mono: tokio::time::Instant,
    /// Wall time at `mono`; `Some` makes the wall clock follow the monotonic one (tests), `None` reads the system's.
    wall: Option<i64>,
}

impl Clock {
    /// The system's clocks.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one reader of time")]
    pub fn system() -> Self {
        Self(Arc::new(Start { mono: tokio::time::Instant::now(), wall: None }))
    }

    /// A wall clock that starts at `wall` (unix nanoseconds) and moves with tokio's clock, which tests pause and advance.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one reader of time")]
    pub fn simulated(wall: i64) -> Self {
        Self(Arc::new(Start { mono: tokio::time::Instant::now(), wall: Some(wall) }))
    }

    /// Reads both clocks once.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one reader of time")]
    pub fn now(&self) -> Now {
        let mono = i64::try_from(self.0.mono.elapsed().as_nanos()).unwrap_or(i64::MAX);
        let wall = match self.0.wall {
            Some(start) => start.saturating_add(mono),
            None => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)),
        };
        Now { wall, mono: Mono(mono) }
    }

    /// Waits until `mono` has come; at once when it has passed.
    pub async fn sleep_until(&self, mono: Mono) {
        let since_start = Duration::from_nanos(mono.0.max(0).unsigned_abs());
        tokio::time::sleep_until(self.0.mono + since_start).await;
    }
}
