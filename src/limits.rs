//! A sum of which every shard owns a part, for limits that hold over all shards. One source may need most of a limit,
//! and belongs to one shard.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One part of a sum. Only its owner changes it; every part can read the sum.
///
/// LIMIT: the owner compares the sum with a limit and adds to its part under the lock of its own shard only. The sum
/// may therefore exceed the limit by one step of each other shard.
#[derive(Debug, Default)]
pub struct Share {
    own: usize,
    // Relaxed, because no other memory access depends on the sum.
    all: Arc<AtomicUsize>,
}

impl Share {
    /// Returns another part of the same sum, which is 0.
    pub fn another(&self) -> Self {
        Self { own: 0, all: Arc::clone(&self.all) }
    }

    /// Returns this part.
    pub const fn own(&self) -> usize {
        self.own
    }

    /// Returns the sum of all parts.
    pub fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Whether the sum exceeds `limit` and this part exceeds its even share of `limit`. A shard below its even share
    /// never evicts.
    ///
    /// LIMIT: until the larger parts are checked, the sum may reach twice the limit.
    pub fn is_over(&self, limit: usize) -> bool {
        self.all() > limit && self.own > limit.div_ceil(Arc::strong_count(&self.all))
    }

    /// Sets this part.
    pub fn set(&mut self, own: usize) {
        // Usually nothing changes; writing to the shared sum would slow down all shards.
        if own > self.own {
            self.all.fetch_add(own - self.own, Ordering::Relaxed);
        } else if own < self.own {
            self.all.fetch_sub(self.own - own, Ordering::Relaxed);
        }
        self.own = own;
    }

    /// Replaces a contribution of `before` to this part by one of `after`.
    pub fn replace(&mut self, before: usize, after: usize) {
        self.set(self.own - before + after);
    }
}

impl AddAssign<usize> for Share {
    fn add_assign(&mut self, more: usize) {
        self.set(self.own + more);
    }
}

impl SubAssign<usize> for Share {
    fn sub_assign(&mut self, less: usize) {
        self.set(self.own - less);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_and_leave_with_their_owners() {
        let mut first = Share::default();
        let mut second = first.another();
        first += 5;
        second.set(3);
        second -= 1;
        assert_eq!((first.own(), second.own(), first.all(), second.all()), (5, 2, 7, 7));
        assert!(first.is_over(6) && !second.is_over(6), "the first has more than three");
        assert!(!first.is_over(7) && !first.is_over(100));
        drop(second);
        assert_eq!((first.own(), first.all()), (5, 5));
    }
}
