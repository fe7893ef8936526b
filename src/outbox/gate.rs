//! Who may go to the upstream now: the limit of requests in flight, the optional rate, and the upstream's health. Pure.
//!
//! While the upstream is down one probe goes at a time, after a pause that doubles; its success opens the gate.

use std::time::Duration;

use super::request::Retry;
use crate::clock::Mono;
use crate::correlator::{Rate, TokenBucket};

/// Settings of the gate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateSettings {
    /// LIMIT: requests on their way at once. Default 32; further ones wait in the outbox.
    pub max_in_flight: usize,
    /// Requests per second, and in one burst; `None` is unlimited (the default).
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

/// The gate in front of the upstream.
#[derive(Debug)]
pub struct Gate {
    settings: GateSettings,
    in_flight: usize,
    bucket: TokenBucket,
    /// The bucket before the newest admission, which [`Gate::release`] takes back.
    bucket_before: TokenBucket,
    health: Health,
}

/// The upstream's health as its answers tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Up,
    /// Not reachable, or asking for quiet.
    Down {
        /// Probes that failed in a row.
        failures: u32,
        /// The next probe goes then.
        until: Mono,
        /// A probe is on its way.
        probing: bool,
    },
}

/// The gate's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Send one request; [`Gate::settle`] takes its answer.
    Go,
    /// Ask again at this time.
    Wait(Mono),
    /// Ask again when an answer has come.
    Full,
}

/// What an answer changed about the upstream's health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthChange {
    /// Nothing.
    None,
    /// It is down from now on.
    WentDown,
    /// It is up again.
    CameUp,
}

impl Gate {
    /// An open gate.
    #[must_use]
    pub const fn new(settings: GateSettings) -> Self {
        Self {
            settings,
            in_flight: 0,
            bucket: TokenBucket::new(),
            bucket_before: TokenBucket::new(),
            health: Health::Up,
        }
    }

    /// Takes over reloaded settings.
    pub const fn set_settings(&mut self, settings: GateSettings) {
        self.settings = settings;
    }

    /// Whether the upstream answers.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.health, Health::Up)
    }

    /// Requests on their way.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Asks for one request. On `Go` its place is taken until [`settle`](Self::settle).
    pub fn admit(&mut self, now: Mono) -> Admission {
        if self.in_flight >= self.settings.max_in_flight {
            return Admission::Full;
        }
        if let Health::Down { until, probing, .. } = self.health {
            if probing {
                return Admission::Full;
            }
            if until > now {
                return Admission::Wait(until);
            }
        }
        self.bucket_before = self.bucket;
        if let Some(rate) = self.settings.rate
            && !self.bucket.take(rate, now)
        {
            return self.bucket.next_token(rate, now).map_or(Admission::Full, Admission::Wait);
        }
        if let Health::Down { probing, .. } = &mut self.health {
            *probing = true;
        }
        self.in_flight += 1;
        Admission::Go
    }

    /// Gives back the place and the token of the newest admission: there was nothing to send.
    pub const fn release(&mut self) {
        self.bucket = self.bucket_before;
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Health::Down { probing, .. } = &mut self.health {
            *probing = false;
        }
    }

    /// Takes the answer to a request admitted at `sent`: `None` for one that shows the upstream at work, even if it refused.
    /// `jitter` is random in 0..1.
    pub fn settle(&mut self, trouble: Option<Retry>, sent: Mono, now: Mono, jitter: f64) -> HealthChange {
        self.in_flight = self.in_flight.saturating_sub(1);
        let was_up = self.is_up();
        let Some(retry) = trouble else {
            self.health = Health::Up;
            return if was_up { HealthChange::None } else { HealthChange::CameUp };
        };
        let failures = match self.health {
            Health::Up => 1,
            Health::Down { failures, until, .. } if sent >= until => failures.saturating_add(1),
            // An answer to a request from before the upstream went down says nothing new, and the probe is still on its way.
            Health::Down { .. } => return HealthChange::None,
        };
        let pause = backoff(failures, jitter, self.settings.first_backoff, self.settings.max_backoff);
        let until = now.after(pause.max(retry.after.unwrap_or_default()));
        self.health = Health::Down { failures, until, probing: false };
        if was_up { HealthChange::WentDown } else { HealthChange::None }
    }
}

/// Pause after `failures` in a row: `first` doubled each time up to `max`, cut by up to a half by `jitter` (0..1).
pub(super) fn backoff(failures: u32, jitter: f64, first: Duration, max: Duration) -> Duration {
    let doubled = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(30)));
    doubled.min(max).mul_f64(jitter.clamp(0.0, 1.0).mul_add(-0.5, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::{Applied, Fault};

    const TROUBLE: Option<Retry> = Some(Retry { after: None, applied: Applied::No, fault: Fault::Transport });

    fn millis(millis: u64) -> Mono {
        Mono(0).after(Duration::from_millis(millis))
    }

    #[test]
    fn while_the_upstream_is_down_one_probe_goes_at_a_time_and_pauses_double() {
        let mut gate = Gate::new(GateSettings::default());
        for _ in 0..5 {
            assert_eq!(gate.admit(millis(0)), Admission::Go);
        }
        assert_eq!(gate.settle(TROUBLE, millis(0), millis(0), 0.0), HealthChange::WentDown);
        for _ in 0..4 {
            assert_eq!(
                gate.settle(TROUBLE, millis(0), millis(0), 0.0),
                HealthChange::None,
                "four late answers are one outage"
            );
        }
        let mut now = 0;
        for pause in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            assert_eq!(gate.admit(millis(now)), Admission::Wait(millis(now + pause)));
            now += pause;
            assert_eq!(gate.admit(millis(now)), Admission::Go);
            assert_eq!(gate.admit(millis(now)), Admission::Full, "one probe");
            gate.settle(TROUBLE, millis(0), millis(now), 0.0);
            assert_eq!(gate.admit(millis(now)), Admission::Full, "a late answer is not the probe's");
            gate.settle(TROUBLE, millis(now), millis(now), 0.0);
        }
        assert_eq!(gate.admit(millis(now + 5000)), Admission::Go);
        assert_eq!(gate.settle(None, millis(now + 5000), millis(now + 5000), 0.0), HealthChange::CameUp);
        assert_eq!(gate.admit(millis(now + 5000)), Admission::Go);
        assert_eq!(gate.admit(millis(now + 5000)), Admission::Go);
    }

    #[test]
    fn retry_after_prolongs_the_pause_and_jitter_halves_it_at_most() {
        let mut gate = Gate::new(GateSettings::default());
        gate.admit(millis(0));
        let asked = Retry { after: Some(Duration::from_secs(3)), applied: Applied::No, fault: Fault::Overloaded };
        gate.settle(Some(asked), millis(0), millis(0), 0.0);
        assert_eq!(gate.admit(millis(0)), Admission::Wait(millis(3000)));
        let (first, max) = (Duration::from_millis(100), Duration::from_secs(5));
        assert_eq!(backoff(1, 1.0, first, max), Duration::from_millis(50));
        assert_eq!(backoff(60, 0.0, first, max), max);
    }

    #[test]
    fn the_limit_in_flight_and_the_rate_hold() {
        let rate = Some(Rate { qps: 1.0, burst: 3 });
        let mut gate = Gate::new(GateSettings { max_in_flight: 2, rate, ..GateSettings::default() });
        assert_eq!(
            [gate.admit(Mono(0)), gate.admit(Mono(0)), gate.admit(Mono(0))],
            [Admission::Go, Admission::Go, Admission::Full]
        );
        gate.settle(None, Mono(0), Mono(0), 0.0);
        assert_eq!(gate.admit(Mono(0)), Admission::Go);
        gate.settle(None, Mono(0), Mono(0), 0.0);
        // Like client-go's bucket, it grants a token that is less than a nanosecond away.
        assert_eq!(gate.admit(Mono(0)), Admission::Wait(Mono(999_999_999)));
        assert_eq!(gate.in_flight(), 1);
    }
}
