//! The token buckets that all shards share: one per group of similar events, and one for all writes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::clock::Mono;
use crate::correlator::{Key, Rate};

/// Cells of the table of group budgets. Groups whose keys map to the same cell share it, so any number of groups
/// takes the same memory.
const CELLS: usize = 1 << 14;
/// Parts of that table, each allocated when a group first needs it.
const PAGES: usize = 32;

/// Longest time, in nanoseconds, until a bucket is full again: a hundred years, so that no sum overflows.
const REFILL_MAX: f64 = 3.15e18;

/// A token bucket that all shards take from without a lock: the time until which its tokens are spent (a GCRA).
#[derive(Debug, Default)]
pub(super) struct Bucket {
    spent_until: AtomicI64,
    /// The rate at which they were spent, as [`bits`]; 0 before the first use.
    rate: AtomicU64,
}

fn bits(Rate { qps, burst }: Rate) -> u64 {
    u64::from(qps.to_bits()) << 32 | u64::from(burst)
}

/// Returns the nanoseconds until one token comes back, and until all do.
#[expect(clippy::cast_possible_truncation, reason = "at most a hundred years")]
fn times(Rate { qps, burst }: Rate) -> (i64, i64) {
    let interval = (1e9 / f64::from(qps)).min(REFILL_MAX / f64::from(burst.max(1))) as i64;
    (interval, interval.saturating_mul(burst.into()))
}

impl Bucket {
    /// Keeps the tokens if the rate differs from the last one, after a reload or because groups share the bucket. Returns
    /// the [`times`] of the rate.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half, and at most all tokens")]
    fn turn_to(&self, rate: Rate, now: Mono) -> (i64, i64) {
        let (interval, all) = times(rate);
        let (known, new) = (self.rate.load(Ordering::Relaxed), bits(rate));
        let is_turned =
            known != new && self.rate.compare_exchange(known, new, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !is_turned || known == 0 {
            return (interval, all);
        }
        let before = Rate { qps: f32::from_bits((known >> 32) as u32), burst: known as u32 };
        let (interval_before, all_before) = times(before);
        // Until this instant, at most one other shard sees the old time at the new rate.
        let turn = |spent_until: i64| {
            let spent = spent_until.saturating_sub(now.0);
            let left = i128::from(all_before.saturating_sub(spent.max(0))) * i128::from(interval)
                / i128::from(interval_before.max(1))
                + i128::from(spent.min(0).saturating_neg());
            now.0.saturating_add(all - left.min(all.into()) as i64)
        };
        self.spent_until.update(Ordering::Relaxed, Ordering::Relaxed, turn);
        (interval, all)
    }

    /// Returns when the next token comes: `now` if there is one.
    pub(super) fn next_token(&self, rate: Rate, now: Mono) -> Mono {
        let (interval, all) = self.turn_to(rate, now);
        let spent_until = self.spent_until.load(Ordering::Relaxed);
        Mono(spent_until.saturating_add(interval).saturating_sub(all).max(now.0))
    }

    /// Returns the whole tokens.
    pub(super) fn tokens(&self, rate: Rate, now: Mono) -> u32 {
        let (interval, all) = self.turn_to(rate, now);
        let spent = self.spent_until.load(Ordering::Relaxed).saturating_sub(now.0).max(0);
        u32::try_from(all.saturating_sub(spent) / interval.max(1)).unwrap_or_default()
    }

    pub(super) fn take(&self, rate: Rate, now: Mono) -> bool {
        let (interval, all) = self.turn_to(rate, now);
        let taken = self.spent_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent_until| {
            let spent_until = spent_until.max(now.0).saturating_add(interval);
            (spent_until.saturating_sub(now.0) <= all).then_some(spent_until)
        });
        taken.is_ok()
    }

    /// Returns a token that was just taken.
    pub(super) fn give_back(&self, rate: Rate) {
        self.spent_until.fetch_sub(times(rate).0, Ordering::Relaxed);
    }
}

/// The token buckets that all shards share.
#[derive(Default)]
pub(super) struct Buckets {
    groups: [OnceLock<Box<[Bucket]>>; PAGES],
    pub(super) all: Bucket,
}

impl Buckets {
    pub(super) fn of(&self, key: Key) -> &Bucket {
        let cell = usize::try_from(key.0 % CELLS as u128).unwrap_or_default();
        let page = self.groups[cell % PAGES]
            .get_or_init(|| std::iter::repeat_with(Bucket::default).take(CELLS / PAGES).collect());
        &page[cell / PAGES]
    }
}

impl std::fmt::Debug for Buckets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pages = self.groups.iter().enumerate().filter_map(|(number, page)| Some((number, page.get()?)));
        let groups = pages.flat_map(|(number, page)| {
            page.iter().enumerate().map(move |(place, bucket)| (place * PAGES + number, bucket))
        });
        let used = groups.filter(|(_, bucket)| bucket.spent_until.load(Ordering::Relaxed) != 0);
        f.debug_map().entry(&"all", &self.all).entries(used).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    /// A bucket that counts its tokens.
    struct Exact {
        tokens: f64,
        at: i64,
    }

    impl Exact {
        fn pass(&mut self, rate: Rate, now: i64) {
            let refilled = (now - self.at) as f64 / 1e9 * f64::from(rate.qps);
            (self.tokens, self.at) = ((self.tokens + refilled).min(rate.burst.into()), now);
        }

        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small, whole number")]
        fn take_all(&mut self, rate: Rate, now: i64) -> u32 {
            self.pass(rate, now);
            let taken = self.tokens.floor();
            self.tokens -= taken;
            taken as u32
        }
    }

    fn take_all(bucket: &Bucket, rate: Rate, now: i64) -> u32 {
        (0..100).take_while(|_| bucket.take(rate, Mono(now))).count().try_into().unwrap()
    }

    /// Fault: a token came at least every 1,000 seconds, however low the rate.
    #[test]
    fn a_low_rate_is_kept_and_none_refills_nothing() {
        for (qps, expected) in [(0.0, 0), (1.0 / 3600.0, 24)] {
            let (bucket, rate) = (Bucket::default(), Rate { qps, burst: 30 });
            assert_eq!(take_all(&bucket, rate, 0), 30);
            assert_eq!(take_all(&bucket, rate, 86_400 * SECOND + 1_000_000), expected, "{qps}");
        }
    }

    /// Faults: a lower rate filled an empty budget. After a higher one it stayed empty for as long as it would have been
    /// before.
    #[test]
    fn a_reloaded_rate_keeps_the_tokens() {
        let rate = |qps, burst| Rate { qps, burst };
        let rates = [rate(1.0, 30), rate(0.01, 30), rate(10.0, 3), rate(0.0, 5), rate(0.5, 40), rate(1.0, 1)];
        for (before, after) in rates.into_iter().flat_map(|before| rates.map(|after| (before, after))) {
            for (taken, pause) in [(1, 0), (30, 0), (30, 7), (2, 10_000)] {
                let (bucket, mut exact) = (Bucket::default(), Exact { tokens: before.burst.into(), at: 0 });
                for _ in 0..taken {
                    exact.tokens -= f64::from(u8::from(bucket.take(before, Mono(0))));
                }
                let reloaded = pause * SECOND;
                // Since it was full, tokens of the new rate have come.
                let full_after = (f64::from(before.burst) - exact.tokens) / f64::from(before.qps);
                exact.pass(before, reloaded);
                exact.tokens += (pause as f64 - full_after).max(0.0) * f64::from(after.qps);
                for now in [reloaded, reloaded + 250 * SECOND + 1] {
                    let expected = exact.take_all(after, now);
                    assert_eq!(bucket.tokens(after, Mono(now)), expected, "{before:?} {after:?} {taken} {pause}");
                    assert_eq!(take_all(&bucket, after, now), expected, "{before:?} {after:?} {taken} {pause}");
                }
            }
        }
    }
}
