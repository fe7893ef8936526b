//! Decides when a request may be sent: a window of requests in flight, an optional rate, and the upstream's health.
//! Pure.
//!
//! The window follows TCP's congestion control: a success widens it by one, and a failure halves it, once per round
//! trip. The upstream counts as down if a request failed and no other request succeeded while it was in flight. Then
//! one probe is sent at a time, after a pause that doubles, until one succeeds. Known failures of an object or a
//! namespace (`breaker.rs`) do not count, and a `Retry-After` applies to its record only.

use std::time::Duration;

use crate::clock::Mono;
use crate::correlator::{Rate, TokenBucket};
use crate::outbox::backoff;

/// Settings of the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateSettings {
    /// LIMIT: requests in flight. Default 32; further ones wait in the outbox.
    pub max_in_flight: usize,
    /// Requests per second, and in one burst; `None` is unlimited (the default here, but not of the configuration
    /// file).
    pub rate: Option<Rate>,
    /// First pause while the upstream is down. Default 100 ms.
    pub first_backoff: Duration,
    /// Longest pause while the upstream is down. Default 5 s.
    pub max_backoff: Duration,
}

impl Default for GateSettings {
    fn default() -> Self {
        Self {
            max_in_flight: 32,
            rate: None,
            first_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(5),
        }
    }
}

/// A known failure of a probe lengthens the pause at most to that after this many failures: 800 ms.
const KNOWN_FAILURES: u32 = 4;

/// Limits of the requests to the upstream.
#[derive(Debug)]
pub(super) struct Gate {
    settings: GateSettings,
    in_flight: usize,
    bucket: TokenBucket,
    /// The bucket before the newest acquisition, which [`Gate::release`] restores.
    bucket_before: TokenBucket,
    /// Limit of the requests in flight that were sent since `cut`.
    window: usize,
    /// When the window was last reduced. Failures of requests sent before do not reduce it again.
    cut: Mono,
    /// Requests in flight that were sent since `cut`.
    since_cut: usize,
    last_success: Option<Mono>,
    health: Health,
}

/// The upstream's health, derived from its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Up,
    /// Not reachable, or all requests fail.
    Down {
        /// Probes that failed in a row.
        failures: u32,
        /// Time of the next probe.
        until: Mono,
        /// Whether a probe is in flight.
        probing: bool,
    },
}

/// The meaning of an answer for the upstream's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The upstream works, even if it has refused.
    Success,
    /// A failure of an object or a namespace that failed before: no evidence about the upstream.
    KnownFailure,
    /// A failure that may be the upstream's.
    Failure,
}

/// Result of [`Gate::acquire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acquisition {
    /// One request may be sent; [`Gate::settle`] takes its answer.
    Go,
    /// Nothing may be sent before this time.
    Wait(Mono),
    /// Nothing may be sent before an answer arrives.
    Full,
}

/// Change of the upstream's health by an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthChange {
    /// Nothing.
    None,
    /// The upstream is down from now on.
    WentDown,
    /// The first probe has failed too.
    StaysDown,
    /// The upstream is up again, after this many failures in a row.
    CameUp(u32),
}

impl Gate {
    /// Creates the gate of an upstream that is up.
    pub(super) fn new(settings: GateSettings) -> Self {
        Self {
            settings,
            in_flight: 0,
            bucket: TokenBucket::default(),
            bucket_before: TokenBucket::default(),
            window: settings.max_in_flight,
            cut: Mono(i64::MIN),
            since_cut: 0,
            last_success: None,
            health: Health::Up,
        }
    }

    /// Applies settings, and returns whether they are new. A window that no failure has reduced follows the limit, a
    /// pause does not outlast the new longest one, and the bucket keeps its tokens.
    pub(super) fn set_settings(&mut self, settings: GateSettings, now: Mono) -> bool {
        let old = std::mem::replace(&mut self.settings, settings);
        if old == settings {
            return false;
        }
        if let Some(rate) = old.rate {
            self.bucket.count(rate, now);
            self.bucket_before.count(rate, now);
        }
        if self.health == Health::Up && self.window >= old.max_in_flight {
            self.window = settings.max_in_flight;
        }
        if let Health::Down { until, .. } = &mut self.health {
            *until = (*until).min(now.after(settings.max_backoff));
        }
        true
    }

    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn window(&self) -> usize {
        self.window.min(self.settings.max_in_flight)
    }

    /// Takes a place in the window and a token for one request. After `Go`, [`settle`](Self::settle) frees the place.
    pub(super) fn acquire(&mut self, now: Mono) -> Acquisition {
        if self.in_flight >= self.settings.max_in_flight {
            return Acquisition::Full;
        }
        match self.health {
            Health::Up if self.since_cut >= self.window => return Acquisition::Full,
            Health::Down { probing: true, .. } => return Acquisition::Full,
            Health::Down { until, .. } if until > now => return Acquisition::Wait(until),
            Health::Up | Health::Down { .. } => {}
        }
        self.bucket_before = self.bucket;
        if let Some(rate) = self.settings.rate
            && !self.bucket.take(rate, now)
        {
            return self.bucket.next_token(rate, now).map_or(Acquisition::Full, Acquisition::Wait);
        }
        if let Health::Down { probing, .. } = &mut self.health {
            *probing = true;
        }
        self.in_flight += 1;
        self.since_cut += 1;
        Acquisition::Go
    }

    /// Returns place and token of the newest acquisition, because there was nothing to send.
    pub(super) const fn release(&mut self) {
        self.bucket = self.bucket_before;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.since_cut = self.since_cut.saturating_sub(1);
        if let Health::Down { probing, .. } = &mut self.health {
            *probing = false;
        }
    }

    /// Applies the answer to a request that acquired its place at `sent`. `jitter` is random in 0..1.
    pub(super) fn settle(&mut self, outcome: Outcome, sent: Mono, now: Mono, jitter: f64) -> HealthChange {
        self.in_flight = self.in_flight.saturating_sub(1);
        if sent >= self.cut {
            self.since_cut = self.since_cut.saturating_sub(1);
        }
        match (outcome, self.health) {
            (Outcome::Success, health) => {
                self.last_success = Some(now);
                self.window = self.window().saturating_add(1).min(self.settings.max_in_flight);
                self.health = Health::Up;
                match health {
                    Health::Up => HealthChange::None,
                    Health::Down { failures, .. } => HealthChange::CameUp(failures),
                }
            }
            // The probe is no evidence about the upstream, so the next one follows soon.
            (Outcome::KnownFailure, Health::Down { failures, until, .. }) if sent >= until => {
                let known = failures.saturating_add(1).min(KNOWN_FAILURES);
                self.go_down(failures.max(known), known, now, jitter);
                stays_down(failures)
            }
            (Outcome::KnownFailure, _) => HealthChange::None,
            (Outcome::Failure, Health::Up) if sent < self.cut => HealthChange::None,
            (Outcome::Failure, Health::Up) if self.last_success.is_some_and(|success| success >= sent) => {
                self.cut_to(self.window() / 2, now);
                HealthChange::None
            }
            (Outcome::Failure, Health::Up) => {
                self.go_down(1, 1, now, jitter);
                HealthChange::WentDown
            }
            (Outcome::Failure, Health::Down { failures, until, .. }) => {
                // An answer to a request sent before the upstream went down is not the probe's.
                if sent < until {
                    return HealthChange::None;
                }
                let more = failures.saturating_add(1);
                self.go_down(more, more, now, jitter);
                stays_down(failures)
            }
        }
    }

    pub(super) const fn is_down(&self) -> bool {
        matches!(self.health, Health::Down { .. })
    }

    fn cut_to(&mut self, window: usize, now: Mono) {
        self.window = window.max(1);
        self.cut = now;
        self.since_cut = 0;
    }

    fn go_down(&mut self, failures: u32, pause_of: u32, now: Mono, jitter: f64) {
        self.cut_to(1, now);
        let pause = backoff(pause_of, jitter, self.settings.first_backoff, self.settings.max_backoff);
        self.health = Health::Down { failures, until: now.after(pause), probing: false };
    }
}

/// Returns what another failed probe changes after these failures in a row.
const fn stays_down(failures: u32) -> HealthChange {
    if failures == 1 { HealthChange::StaysDown } else { HealthChange::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Mono {
        Mono(0).after(Duration::from_millis(millis))
    }

    #[test]
    fn the_end_of_an_outage_has_its_failures_and_the_window_opens_step_by_step() {
        let (mut gate, minute) = (Gate::new(GateSettings::default()), |minute: u64| millis(60_000 * minute));
        for now in 0..3 {
            assert_eq!(gate.acquire(minute(now)), Acquisition::Go);
            gate.settle(Outcome::Failure, minute(now), minute(now), 0.0);
        }
        assert_eq!(gate.acquire(minute(3)), Acquisition::Go);
        assert_eq!(gate.settle(Outcome::Success, minute(3), minute(3), 0.0), HealthChange::CameUp(3));
        let next = [(); 3].map(|()| gate.acquire(minute(3)));
        assert_eq!(next, [Acquisition::Go, Acquisition::Go, Acquisition::Full]);
    }

    #[test]
    fn jitter_halves_a_pause_at_most() {
        let (first, max) = (Duration::from_millis(100), Duration::from_secs(5));
        assert_eq!(backoff(1, 1.0, first, max), Duration::from_millis(50));
        assert_eq!(backoff(60, 0.0, first, max), max);
    }

    #[test]
    fn a_failure_halves_the_window_once_per_round_trip_and_a_success_widens_it() {
        let mut gate = Gate::new(GateSettings { max_in_flight: 8, ..GateSettings::default() });
        for _ in 0..8 {
            assert_eq!(gate.acquire(millis(0)), Acquisition::Go);
        }
        assert_eq!(gate.acquire(millis(0)), Acquisition::Full);
        gate.settle(Outcome::Success, millis(0), millis(1), 0.0);
        for _ in 0..4 {
            assert_eq!(gate.settle(Outcome::Failure, millis(0), millis(2), 0.0), HealthChange::None);
            assert_eq!(gate.window(), 4);
        }
        // Three are still in flight, and are not counted: a record that hangs takes a place in the limit only.
        for _ in 0..4 {
            assert_eq!(gate.acquire(millis(2)), Acquisition::Go);
        }
        assert_eq!(gate.acquire(millis(2)), Acquisition::Full);
        gate.settle(Outcome::Success, millis(2), millis(3), 0.0);
        assert_eq!(gate.window(), 5);
        gate.settle(Outcome::KnownFailure, millis(2), millis(3), 0.0);
        assert_eq!(gate.window(), 5);
        gate.settle(Outcome::Failure, millis(2), millis(3), 0.0);
        assert_eq!((gate.window(), matches!(gate.health, Health::Up)), (2, true));
        for step in 4..20 {
            gate.settle(Outcome::Success, millis(step), millis(step), 0.0);
        }
        assert_eq!(gate.window(), 8);
    }

    /// Faults: a raised limit was reached with one success at a time, and a long pause outlived a reload to a short one.
    #[test]
    fn reloaded_settings_apply_at_once() {
        let settings = |max_in_flight, seconds| {
            let pause = Duration::from_secs(seconds);
            GateSettings { max_in_flight, first_backoff: pause, max_backoff: pause, ..GateSettings::default() }
        };
        let mut gate = Gate::new(settings(2, 3600));
        for max_in_flight in [4, 1, 3] {
            gate.set_settings(settings(max_in_flight, 3600), millis(0));
            assert_eq!(gate.window(), max_in_flight);
        }
        gate.acquire(millis(0));
        gate.settle(Outcome::Failure, millis(0), millis(0), 0.0);
        gate.set_settings(settings(9, 1), millis(500));
        assert_eq!(gate.acquire(millis(500)), Acquisition::Wait(millis(1500)));
        gate.set_settings(settings(9, 1), millis(600));
        assert_eq!(gate.acquire(millis(1500)), Acquisition::Go);
        assert_eq!(gate.window(), 1, "it is down");
    }

    /// Fault: the time since the last request counted at the new rate.
    #[test]
    fn a_reloaded_rate_keeps_the_tokens() {
        let settings = |qps| GateSettings { rate: Some(Rate { qps, burst: 10 }), ..GateSettings::default() };
        for (before, after, expected) in [(1.0, 0.01, [8, 0]), (0.01, 1.0, [0, 1])] {
            let mut gate = Gate::new(settings(before));
            let sent = |gate: &mut Gate, now| {
                let is_sent = || {
                    let is_sent = gate.acquire(millis(now)) == Acquisition::Go;
                    is_sent.then(|| gate.settle(Outcome::Success, millis(now), millis(now), 0.0))
                };
                std::iter::from_fn(is_sent).count()
            };
            assert_eq!(sent(&mut gate, 1000), 10);
            gate.set_settings(settings(after), millis(9000));
            assert_eq!([9000, 10_000].map(|now| sent(&mut gate, now)), expected, "{before} {after}");
        }
    }

    #[test]
    fn known_failures_of_probes_delay_the_next_probe_for_less_than_a_second() {
        let mut gate = Gate::new(GateSettings::default());
        gate.acquire(millis(0));
        gate.settle(Outcome::Failure, millis(0), millis(0), 0.0);
        let mut now = 100;
        for pause in [200, 400, 800, 800, 800] {
            assert_eq!(gate.acquire(millis(now)), Acquisition::Go);
            gate.settle(Outcome::KnownFailure, millis(now), millis(now), 0.0);
            assert_eq!(gate.acquire(millis(now)), Acquisition::Wait(millis(now + pause)));
            now += pause;
        }
        assert!(!matches!(gate.health, Health::Up));
    }
}
