//! The token bucket of one spam key, equal to `golang.org/x/time/rate` v0.15 bit by bit (`rate/rate.go`, `reserveN`).
//! client-go's `EventSourceObjectSpamFilter` uses that package.
//!
//! Not the `governor` crate: its GCRA counts in whole nanoseconds per token. It disagrees with
//! `tests/vectors/token_bucket` about the very refill instants that decide whether an event passes.

use std::time::Duration;

use crate::clock::Mono;

/// The rate of a bucket. Both numbers are settings, kept outside the bucket. [`TokenBucket::count`] must
/// be called before they change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Tokens per second. client-go's `QPS` is a float32, widened here.
    pub qps: f32,
    /// Tokens of a full bucket.
    pub burst: u32,
}

impl Rate {
    fn limit(self) -> f64 {
        f64::from(self.qps)
    }

    fn burst(self) -> f64 {
        f64::from(self.burst)
    }
}

/// Tokens and when they were last counted. Full at first use.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TokenBucket(Option<State>);

#[derive(Debug, Clone, Copy, PartialEq)]
struct State {
    tokens: f64,
    last: Mono,
}

impl TokenBucket {
    /// Takes a token if there is one; otherwise changes nothing.
    pub fn take(&mut self, rate: Rate, now: Mono) -> bool {
        let rest = self.tokens(rate, now) - 1.0;
        let granted = rate.burst >= 1 && (rest >= 0.0 || shorter_than_a_nanosecond(-rest, rate));
        if granted {
            // COMPAT(x/time/rate): the rest may be minutely negative, and a clock that went back moves `last` back.
            self.0 = Some(State { tokens: rest, last: now });
        }
        granted
    }

    /// Returns the tokens at `now`; may be fractional.
    pub fn tokens(&self, rate: Rate, now: Mono) -> f64 {
        let Some(state) = self.0 else { return rate.burst() };
        let refill =
            if rate.limit() <= 0.0 { 0.0 } else { go_seconds(now.nanos_since(state.last).max(0)) * rate.limit() };
        (state.tokens + refill).min(rate.burst())
    }

    /// Counts the tokens until `now`, so that another rate than `rate` applies from then on (`SetLimitAt`).
    pub fn count(&mut self, rate: Rate, now: Mono) {
        self.0 = self.0.map(|_| State { tokens: self.tokens(rate, now), last: now });
    }

    /// Returns when [`take`](Self::take) will succeed: `now` if it would at once, `None` if never.
    pub fn next_token(&self, rate: Rate, now: Mono) -> Option<Mono> {
        let would_grant = |at: Mono| Self::clone(self).take(rate, at);
        if would_grant(now) {
            return Some(now);
        }
        if rate.burst < 1 || rate.limit() <= 0.0 {
            return None;
        }
        let missing = Duration::try_from_secs_f64((1.0 - self.tokens(rate, now)) / rate.limit()).ok()?;
        // The float may be off by a few nanoseconds either way, so the bucket itself decides.
        let estimate = now.after(missing);
        (-4..=4).map(|offset| Mono(estimate.0.saturating_add(offset))).find(|at| would_grant(*at)).or_else(|| {
            let later = estimate.after(missing / 1_000_000 + Duration::from_micros(1));
            would_grant(later).then_some(later)
        })
    }

    /// Returns when the bucket will be full; `None` if never.
    pub fn full_at(&self, rate: Rate, now: Mono) -> Option<Mono> {
        let missing = rate.burst() - self.tokens(rate, now);
        if missing <= 0.0 {
            return Some(now);
        }
        let wait = Duration::try_from_secs_f64(missing / rate.limit()).ok()?;
        Some(now.after(wait.saturating_add(Duration::from_micros(1))))
    }
}

/// A bucket with the rate of its newest event.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct RatedBucket {
    bucket: TokenBucket,
    /// `None` after a reload: the rate of the next event applies since then.
    rate: Option<Rate>,
}

impl RatedBucket {
    /// Returns the bucket, to be used with this rate. It keeps its tokens if the rate differs from the last one, because
    /// rules share the bucket.
    pub(super) fn at_rate(&mut self, rate: Rate, now: Mono) -> &mut TokenBucket {
        if let Some(before) = self.rate.replace(rate)
            && before != rate
        {
            self.bucket.count(before, now);
        }
        &mut self.bucket
    }

    /// Forgets the rate, because a reload may have changed it.
    pub(super) fn forget_rate(&mut self, now: Mono) {
        if let Some(before) = self.rate.take() {
            self.bucket.count(before, now);
        }
    }
}

/// Go's `Duration.Seconds`: whole seconds and the rest are converted separately.
#[expect(clippy::cast_precision_loss, reason = "the same conversion as Go's float64(d / Second)")]
fn go_seconds(nanos: i64) -> f64 {
    (nanos / 1_000_000_000) as f64 + (nanos % 1_000_000_000) as f64 / 1e9
}

/// Go's `durationFromTokens(missing) == 0`: the wait is cut to whole nanoseconds before it is compared.
fn shorter_than_a_nanosecond(missing: f64, rate: Rate) -> bool {
    rate.limit() > 0.0 && (missing / rate.limit()) * 1e9 < 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT_GO: Rate = Rate { qps: 1.0 / 300.0, burst: 25 };

    #[test]
    fn next_token_is_the_first_instant_at_which_take_succeeds() {
        for rate in
            [CLIENT_GO, Rate { qps: 3.0, burst: 2 }, Rate { qps: 1e-6, burst: 1 }, Rate { qps: 50.0, burst: 100 }]
        {
            let mut bucket = TokenBucket::default();
            let start = Mono(5);
            while bucket.take(rate, start) {}
            let next = bucket.next_token(rate, start).unwrap();
            assert!(next > start);
            assert!(bucket.clone().take(rate, next), "{rate:?}");
            if rate.qps > 1e-3 {
                assert!(!bucket.clone().take(rate, Mono(next.0 - 10)), "{rate:?}");
            }
        }
    }

    /// Fault: the time since the last token counted at the new rate.
    #[test]
    fn another_rate_keeps_the_tokens() {
        let second = |seconds: i64| Mono(seconds * 1_000_000_000);
        let taken = |bucket: &mut RatedBucket, rate, now| {
            std::iter::from_fn(|| bucket.at_rate(rate, now).take(rate, now).then_some(())).count()
        };
        let rate = |qps, burst| Rate { qps, burst };
        // Tokens 8 s after the bucket was empty, and a second later.
        for (before, after, expected) in [
            (rate(1.0, 10), rate(1.0, 10), [8, 1]),
            (rate(1.0, 10), rate(0.01, 10), [8, 0]),
            (rate(1.0, 10), rate(0.0, 10), [8, 0]),
            (rate(0.0, 10), rate(1.0, 10), [0, 1]),
            (rate(0.01, 10), rate(5.0, 10), [0, 5]),
            (rate(1.0, 10), rate(1.0, 3), [3, 1]),
            (rate(1.0, 5), rate(1.0, 20), [5, 1]),
        ] {
            let mut bucket = RatedBucket::default();
            assert_eq!(taken(&mut bucket, before, second(1)), before.burst as usize);
            let mut reloaded = bucket;
            for (bucket, forgotten) in [(&mut bucket, None), (&mut reloaded, Some(second(9)))] {
                forgotten.into_iter().for_each(|now| bucket.forget_rate(now));
                let found = [9, 10].map(|now| taken(bucket, after, second(now)));
                assert_eq!(found, expected, "{before:?} {after:?} {forgotten:?}");
            }
        }
        // The new rate applies since the reload.
        let mut bucket = RatedBucket::default();
        taken(&mut bucket, rate(0.0, 10), second(1));
        bucket.forget_rate(second(9));
        assert_eq!(taken(&mut bucket, rate(1.0, 10), second(15)), 6);
    }

    #[test]
    fn a_bucket_without_refill_or_burst_never_gives_a_token_again() {
        let mut bucket = TokenBucket::default();
        let rate = Rate { qps: 0.0, burst: 1 };
        assert!(bucket.take(rate, Mono(0)));
        assert_eq!(bucket.next_token(rate, Mono(0)), None);
        assert_eq!(bucket.full_at(rate, Mono(0)), None);
        assert_eq!(TokenBucket::default().next_token(Rate { qps: 1.0, burst: 0 }, Mono(0)), None);
    }

    #[test]
    fn a_bucket_is_full_again_when_full_at_says_so() {
        let mut bucket = TokenBucket::default();
        bucket.take(CLIENT_GO, Mono(0));
        let full = bucket.full_at(CLIENT_GO, Mono(0)).unwrap();
        assert!(bucket.tokens(CLIENT_GO, Mono(full.0 / 2)) < CLIENT_GO.burst());
        assert_eq!(bucket.tokens(CLIENT_GO, full), CLIENT_GO.burst());
    }
}
