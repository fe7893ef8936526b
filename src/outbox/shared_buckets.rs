//! The token buckets that all shards share: one per group of similar events, and one for all writes.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::Mono;
use crate::correlator::{Key, Rate};

/// Cells of the table of group budgets. Groups whose keys map to the same cell share it, so any number of groups
/// takes the same memory.
const CELLS: usize = 1 << 14;
/// Parts of that table, each allocated when a group first needs it.
const PAGES: usize = 32;

/// A token bucket that all shards take from without a lock: the time until which its tokens are spent (a GCRA).
#[derive(Debug, Default)]
pub(super) struct Bucket(AtomicI64);

impl Bucket {
    /// Returns the nanoseconds until one token comes back, and until all do.
    #[expect(clippy::cast_possible_truncation, reason = "at most a hundred years")]
    fn times(rate: Rate) -> (i64, i64) {
        let interval = (1e9 / f64::from(rate.qps)).min(1e12) as i64;
        (interval, interval.saturating_mul(rate.burst.into()))
    }

    /// Returns when the next token comes: `now` if there is one.
    pub(super) fn next_token(&self, rate: Rate, now: Mono) -> Mono {
        let (interval, all) = Self::times(rate);
        let spent_until = self.0.load(Ordering::Relaxed);
        Mono(spent_until.saturating_add(interval).saturating_sub(all).max(now.0))
    }

    /// Returns the whole tokens.
    pub(super) fn tokens(&self, rate: Rate, now: Mono) -> u32 {
        let (interval, all) = Self::times(rate);
        let spent = self.0.load(Ordering::Relaxed).saturating_sub(now.0).max(0);
        u32::try_from(all.saturating_sub(spent) / interval.max(1)).unwrap_or_default()
    }

    pub(super) fn take(&self, rate: Rate, now: Mono) -> bool {
        let (interval, all) = Self::times(rate);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |spent_until| {
            let spent_until = spent_until.max(now.0).saturating_add(interval);
            (spent_until.saturating_sub(now.0) <= all).then_some(spent_until)
        });
        taken.is_ok()
    }

    /// Returns a token that was just taken.
    pub(super) fn give_back(&self, rate: Rate) {
        self.0.fetch_sub(Self::times(rate).0, Ordering::Relaxed);
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
        let used = groups.filter(|(_, bucket)| bucket.0.load(Ordering::Relaxed) != 0);
        f.debug_map().entry(&"all", &self.all).entries(used).finish()
    }
}
