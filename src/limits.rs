//! A number that every shard has its own part of, for limits that hold over all of them together: one source may need most of
//! what there is, and it belongs to one shard.

use std::ops::{AddAssign, SubAssign};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One part of a number. Changed by its owner only; the sum may be read by all.
///
/// LIMIT: who compares the sum with a limit and then adds to its own part does so under the lock of its own shard only, so
/// that the sum may exceed the limit by one step of each other shard.
#[derive(Debug, Default)]
pub struct Share {
    own: usize,
    // Relaxed, because nothing else is concluded from it than how much there is.
    all: Arc<AtomicUsize>,
}

impl Share {
    /// Another part of the same sum; nothing yet.
    #[must_use]
    pub fn another(&self) -> Self {
        Self { own: 0, all: Arc::clone(&self.all) }
    }

    /// This part.
    #[must_use]
    pub const fn own(&self) -> usize {
        self.own
    }

    /// All parts together.
    #[must_use]
    pub fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// How many parts there are.
    #[must_use]
    pub fn parts(&self) -> usize {
        Arc::strong_count(&self.all)
    }

    /// Whether there is more than `limit` in all, and more here than an even part of it: then it is here that something has to
    /// go. Who has less than that never pays for the others.
    ///
    /// LIMIT: as long as those who have more do not look, there may be twice the limit.
    #[must_use]
    pub fn is_over(&self, limit: usize) -> bool {
        self.all() > limit && self.own > limit.div_ceil(self.parts())
    }

    /// Makes this part so large.
    pub fn set(&mut self, own: usize) {
        // Most often nothing changes, and the sum is every shard's.
        if own > self.own {
            self.all.fetch_add(own - self.own, Ordering::Relaxed);
        } else if own < self.own {
            self.all.fetch_sub(self.own - own, Ordering::Relaxed);
        }
        self.own = own;
    }

    /// Something in this part was so large, and is now so large.
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
