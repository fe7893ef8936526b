//! Time as a value. Only this module reads a clock; all others get a [`Now`].
//!
//! A [`Now`] has both readings, because Go's `time.Time` carries both and client-go uses each: names and timestamps
//! come from the wall clock; windows and token buckets use the monotonic one, so that setting the wall clock does not
//! affect them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// A point on the monotonic clock, in nanoseconds since the clock was made.
///
/// Signed, so that a replay can pass a clock that steps back, as client-go does with an injected clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(pub i64);

impl Mono {
    /// Returns the nanoseconds from `earlier` to `self`; negative if the clock went back, saturating as Go's
    /// `Time.Sub`.
    pub const fn nanos_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time from `earlier` to `self`; zero if the clock went back.
    pub const fn since(self, earlier: Self) -> Duration {
        let nanos = self.nanos_since(earlier);
        if nanos <= 0 { Duration::ZERO } else { Duration::from_nanos(nanos.unsigned_abs()) }
    }

    /// Returns the point `duration` later, saturating.
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
    /// Sets both clocks to the same `nanos`, as client-go's tests with an injected clock do, and a replay.
    pub const fn at(nanos: i64) -> Self {
        Self { wall: nanos, mono: Mono(nanos) }
    }

    /// Returns the wall clock's time at another point of the monotonic clock.
    pub const fn wall_at(self, mono: Mono) -> i64 {
        self.wall.saturating_add(mono.nanos_since(self.mono))
    }

    /// Returns the wall-clock seconds since 1970, rounded down.
    pub const fn wall_seconds(self) -> i64 {
        self.wall.div_euclid(1_000_000_000)
    }
}

/// The process's clock: the system's in the program; tokio's paused time or a manual one in tests.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    /// tokio's clock, which tests pause and advance; monotonic time counts from here. The wall clock is the system's, or
    /// follows tokio's from this time on.
    Tokio(tokio::time::Instant, Option<i64>),
    /// A manual clock: the wall time at the start, and nanoseconds since.
    Manual(i64, Arc<watch::Sender<i64>>),
}

impl Clock {
    /// Returns the system's clocks.
    #[expect(clippy::disallowed_methods, reason = "the one reader of time")]
    pub fn system() -> Self {
        Self(Source::Tokio(tokio::time::Instant::now(), None))
    }

    /// Returns a clock that starts at `wall` (unix nanoseconds) and follows tokio's clock, which tests pause and
    /// advance.
    #[expect(clippy::disallowed_methods, reason = "the one reader of time")]
    pub fn simulated(wall: i64) -> Self {
        Self(Source::Tokio(tokio::time::Instant::now(), Some(wall)))
    }

    /// Returns a clock that starts at `wall` (unix nanoseconds) and moves only by [`advance`](Self::advance).
    pub fn manual(wall: i64) -> Self {
        Self(Source::Manual(wall, Arc::new(watch::Sender::new(0))))
    }

    /// Advances a manual clock; has no effect on others.
    pub fn advance(&self, duration: Duration) {
        if let Source::Manual(_, elapsed) = &self.0 {
            elapsed.send_modify(|nanos| *nanos = Mono(*nanos).after(duration).0);
        }
    }

    /// Reads both clocks.
    #[expect(clippy::disallowed_methods, reason = "the one reader of time")]
    pub fn now(&self) -> Now {
        let nanos = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
        match &self.0 {
            Source::Tokio(start, begun) => {
                let mono = nanos(start.elapsed());
                let system = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, nanos);
                Now { wall: begun.map_or_else(system, |wall| wall.saturating_add(mono)), mono: Mono(mono) }
            }
            Source::Manual(wall, elapsed) => {
                let mono = *elapsed.borrow();
                Now { wall: wall.saturating_add(mono), mono: Mono(mono) }
            }
        }
    }

    /// Waits until `mono`; returns at once if it has passed.
    pub async fn sleep_until(&self, mono: Mono) {
        match &self.0 {
            Source::Tokio(start, _) => {
                let since_start = Duration::from_nanos(mono.0.max(0).unsigned_abs());
                tokio::time::sleep_until(*start + since_start).await;
            }
            Source::Manual(_, elapsed) => {
                // The sender lives in `self`, so waiting cannot fail.
                let mut elapsed = elapsed.subscribe();
                let _until = elapsed.wait_for(|nanos| *nanos >= mono.0).await;
            }
        }
    }
}
