//! Who may go to the upstream now: a window of requests in flight, the optional rate, and the upstream's health. Pure.
//!
//! The window is as TCP's: each good answer widens it by one, and trouble halves it, once a round trip. Where nothing good has come
//! for as long as a failed request was on its way, the upstream counts as down: one probe goes at a time, after a pause that
//! doubles, and its success is the first good answer. Trouble that its object or its namespace is known to have (`lanes.rs`) says
//! nothing of the upstream, and a `Retry-After` is its record's.

use std::time::Duration;

use crate::clock::Mono;
use crate::correlator::{Rate, TokenBucket};
use crate::outbox::backoff;

/// Settings of the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateSettings {
    /// LIMIT: requests on their way at once. Default 32; further ones wait in the outbox.
    pub max_in_flight: usize,
    /// Requests per second, and in one burst; `None` is unlimited (the default here; the configuration file has another).
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

/// Trouble that says nothing of the upstream lengthens the pause up to the one after so many failures, and no further: 800 ms.
const KNOWN_FAILURES: u32 = 4;

/// The gate in front of the upstream.
#[derive(Debug)]
pub(super) struct Gate {
    settings: GateSettings,
    in_flight: usize,
    bucket: TokenBucket,
    /// The bucket before the newest admission, which [`Gate::release`] takes back.
    bucket_before: TokenBucket,
    /// How many requests may be on their way, of those sent since `cut`.
    window: usize,
    /// When it was last made smaller. What was sent before says nothing new.
    cut: Mono,
    /// Requests on their way that were sent since.
    since_cut: usize,
    last_good: Option<Mono>,
    health: Health,
}

/// The upstream's health as its answers tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Up,
    /// Not reachable, or in trouble with all that it is asked.
    Down {
        /// Probes that failed in a row.
        failures: u32,
        /// The next probe goes then.
        until: Mono,
        /// A probe is on its way.
        probing: bool,
    },
}

/// What an answer says of the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is at work, even if it has refused.
    Good,
    /// Nothing: its object, or its namespace, had trouble before.
    Known,
    /// It has trouble.
    Trouble,
}

/// The gate's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acquisition {
    /// Send one request; [`Gate::settle`] takes its answer.
    Go,
    /// Ask again at this time.
    Wait(Mono),
    /// Ask again when an answer has come.
    Full,
}

/// What an answer changed about the upstream's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthChange {
    /// Nothing.
    None,
    /// It is down from now on.
    WentDown,
    /// The first probe has failed too.
    StaysDown,
    /// It is up again, after this many failures in a row.
    CameUp(u32),
}

impl Gate {
    /// An open gate.
    pub(super) const fn new(settings: GateSettings) -> Self {
        Self {
            settings,
            in_flight: 0,
            bucket: TokenBucket::new(),
            bucket_before: TokenBucket::new(),
            window: settings.max_in_flight,
            cut: Mono(i64::MIN),
            since_cut: 0,
            last_good: None,
            health: Health::Up,
        }
    }

    /// Takes over reloaded settings.
    pub(super) const fn set_settings(&mut self, settings: GateSettings) {
        self.settings = settings;
    }

    /// Requests on their way.
    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// How many requests may be on their way at once.
    pub(super) fn window(&self) -> usize {
        self.window.min(self.settings.max_in_flight)
    }

    /// Asks for one request. On `Go` its place is taken until [`settle`](Self::settle).
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

    /// Gives back the place and the token of the newest acquisition: there was nothing to send.
    pub(super) const fn release(&mut self) {
        self.bucket = self.bucket_before;
        self.in_flight = self.in_flight.saturating_sub(1);
        self.since_cut = self.since_cut.saturating_sub(1);
        if let Health::Down { probing, .. } = &mut self.health {
            *probing = false;
        }
    }

    /// Takes the answer to a request that acquired its place at `sent`. `jitter` is random in 0..1.
    pub(super) fn settle(&mut self, outcome: Outcome, sent: Mono, now: Mono, jitter: f64) -> HealthChange {
        self.in_flight = self.in_flight.saturating_sub(1);
        if sent >= self.cut {
            self.since_cut = self.since_cut.saturating_sub(1);
        }
        match (outcome, self.health) {
            (Outcome::Good, health) => {
                self.last_good = Some(now);
                self.window = self.window().saturating_add(1).min(self.settings.max_in_flight);
                self.health = Health::Up;
                match health {
                    Health::Up => HealthChange::None,
                    Health::Down { failures, .. } => HealthChange::CameUp(failures),
                }
            }
            // The probe told nothing of the upstream, so another one goes soon.
            (Outcome::Known, Health::Down { failures, until, .. }) if sent >= until => {
                let known = failures.saturating_add(1).min(KNOWN_FAILURES);
                self.go_down(failures.max(known), known, now, jitter);
                stays_down(failures)
            }
            (Outcome::Known, _) => HealthChange::None,
            (Outcome::Trouble, Health::Up) if sent < self.cut => HealthChange::None,
            (Outcome::Trouble, Health::Up) if self.last_good.is_some_and(|good| good >= sent) => {
                self.cut_to(self.window() / 2, now);
                HealthChange::None
            }
            (Outcome::Trouble, Health::Up) => {
                self.go_down(1, 1, now, jitter);
                HealthChange::WentDown
            }
            (Outcome::Trouble, Health::Down { failures, until, .. }) => {
                // An answer to a request from before the upstream went down says nothing new, and the probe is still on its way.
                if sent < until {
                    return HealthChange::None;
                }
                let more = failures.saturating_add(1);
                self.go_down(more, more, now, jitter);
                stays_down(failures)
            }
        }
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
    fn while_the_upstream_is_down_one_probe_goes_at_a_time_and_pauses_double() {
        let mut gate = Gate::new(GateSettings::default());
        for _ in 0..5 {
            assert_eq!(gate.acquire(millis(0)), Acquisition::Go);
        }
        assert_eq!(gate.settle(Outcome::Trouble, millis(0), millis(0), 0.0), HealthChange::WentDown);
        for _ in 0..4 {
            assert_eq!(
                gate.settle(Outcome::Trouble, millis(0), millis(0), 0.0),
                HealthChange::None,
                "four late answers are one outage"
            );
        }
        let mut now = 0;
        for pause in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            assert_eq!(gate.acquire(millis(now)), Acquisition::Wait(millis(now + pause)));
            now += pause;
            assert_eq!(gate.acquire(millis(now)), Acquisition::Go);
            assert_eq!(gate.acquire(millis(now)), Acquisition::Full, "one probe");
            gate.settle(Outcome::Trouble, millis(0), millis(now), 0.0);
            assert_eq!(gate.acquire(millis(now)), Acquisition::Full, "a late answer is not the probe's");
            let change = gate.settle(Outcome::Trouble, millis(now), millis(now), 0.0);
            assert_eq!(change, if pause == 100 { HealthChange::StaysDown } else { HealthChange::None });
        }
        assert_eq!(gate.acquire(millis(now + 5000)), Acquisition::Go);
        assert_eq!(gate.settle(Outcome::Good, millis(now + 5000), millis(now + 5000), 0.0), HealthChange::CameUp(9));
        assert_eq!(gate.acquire(millis(now + 5000)), Acquisition::Go);
        assert_eq!(gate.acquire(millis(now + 5000)), Acquisition::Go);
        assert_eq!(gate.acquire(millis(now + 5000)), Acquisition::Full, "the window opens step by step");
    }

    #[test]
    fn jitter_halves_a_pause_at_most() {
        let (first, max) = (Duration::from_millis(100), Duration::from_secs(5));
        assert_eq!(backoff(1, 1.0, first, max), Duration::from_millis(50));
        assert_eq!(backoff(60, 0.0, first, max), max);
    }

    #[test]
    fn trouble_halves_the_window_once_a_round_trip_and_good_answers_widen_it() {
        let mut gate = Gate::new(GateSettings { max_in_flight: 8, ..GateSettings::default() });
        for _ in 0..8 {
            assert_eq!(gate.acquire(millis(0)), Acquisition::Go);
        }
        assert_eq!(gate.acquire(millis(0)), Acquisition::Full);
        gate.settle(Outcome::Good, millis(0), millis(1), 0.0);
        for _ in 0..4 {
            assert_eq!(gate.settle(Outcome::Trouble, millis(0), millis(2), 0.0), HealthChange::None);
            assert_eq!(gate.window(), 4);
        }
        // Three are still on their way, and are not counted: a record that hangs takes a place in the limit only.
        for _ in 0..4 {
            assert_eq!(gate.acquire(millis(2)), Acquisition::Go);
        }
        assert_eq!(gate.acquire(millis(2)), Acquisition::Full);
        gate.settle(Outcome::Good, millis(2), millis(3), 0.0);
        assert_eq!(gate.window(), 5);
        gate.settle(Outcome::Known, millis(2), millis(3), 0.0);
        assert_eq!(gate.window(), 5);
        gate.settle(Outcome::Trouble, millis(2), millis(3), 0.0);
        assert_eq!((gate.window(), matches!(gate.health, Health::Up)), (2, true));
        for step in 4..20 {
            gate.settle(Outcome::Good, millis(step), millis(step), 0.0);
        }
        assert_eq!(gate.window(), 8);
    }

    #[test]
    fn probes_that_say_nothing_of_the_upstream_hold_up_others_for_less_than_a_second() {
        let mut gate = Gate::new(GateSettings::default());
        gate.acquire(millis(0));
        gate.settle(Outcome::Trouble, millis(0), millis(0), 0.0);
        let mut now = 100;
        for pause in [200, 400, 800, 800, 800] {
            assert_eq!(gate.acquire(millis(now)), Acquisition::Go);
            gate.settle(Outcome::Known, millis(now), millis(now), 0.0);
            assert_eq!(gate.acquire(millis(now)), Acquisition::Wait(millis(now + pause)));
            now += pause;
        }
        assert!(!matches!(gate.health, Health::Up));
    }

    #[test]
    fn the_limit_in_flight_and_the_rate_hold() {
        let rate = Some(Rate { qps: 1.0, burst: 3 });
        let mut gate = Gate::new(GateSettings { max_in_flight: 2, rate, ..GateSettings::default() });
        assert_eq!(
            [gate.acquire(Mono(0)), gate.acquire(Mono(0)), gate.acquire(Mono(0))],
            [Acquisition::Go, Acquisition::Go, Acquisition::Full]
        );
        gate.settle(Outcome::Good, Mono(0), Mono(0), 0.0);
        assert_eq!(gate.acquire(Mono(0)), Acquisition::Go);
        gate.settle(Outcome::Good, Mono(0), Mono(0), 0.0);
        // Like client-go's bucket, it grants a token that is less than a nanosecond away.
        assert_eq!(gate.acquire(Mono(0)), Acquisition::Wait(Mono(999_999_999)));
        assert_eq!(gate.in_flight(), 1);
    }
}
