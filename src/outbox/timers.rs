//! Time in the outbox: one timer per record, budget and group, and the eviction of idle budgets.

use std::cmp::Reverse;

use super::Outbox;
use super::budget::BudgetId;
use super::record::Phase;
use crate::clock::{Mono, Now};
use crate::correlator::{Key, LruMap, RecordId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Record(RecordId),
    Budget(BudgetId),
    Group(Key),
}

impl Outbox {
    /// Fires the timers that are due.
    pub(super) fn wake(&mut self, now: Now) {
        while let Some(Reverse((at, timer))) = self.timers.peek().copied() {
            if at > now.mono {
                return;
            }
            self.timers.pop();
            if self.timers.capacity() > super::ROOMY && self.timers.len() < self.timers.capacity() / 8 {
                self.timers.shrink_to(self.timers.len() * 2);
            }
            if self.timer_of(timer).is_none_or(|set| set.take_if(|set| *set == at).is_none()) {
                continue; // an outdated timer
            }
            match timer {
                Timer::Record(id) => self.wake_record(id, now),
                Timer::Budget(id) => self.wake_budget(id, now),
                Timer::Group(key) => self.wake_group(key, now),
            }
        }
    }

    fn wake_record(&mut self, id: RecordId, now: Now) {
        let Some(record) = self.records.get(&id) else { return };
        match record.phase {
            Phase::Settled if record.goes_at() <= now.mono => self.remove(id, now),
            Phase::Cooling if record.next_write <= now.mono => self.enqueue(id, now),
            Phase::Backoff(until) if until <= now.mono => self.enqueue(id, now),
            Phase::Settled | Phase::Cooling | Phase::Backoff(_) => self.set_record_timer(id),
            Phase::Queued(_) | Phase::Staged(_) | Phase::InFlight(_) => {}
        }
    }

    fn wake_budget(&mut self, id: BudgetId, now: Now) {
        self.fold_beyond_limit(id, now);
        self.fold_aged(id, now);
        self.refile(id, now.mono);
        self.drop_if_idle(id, now.mono);
    }

    /// Sets a timer, unless it is set to an earlier time. Those of removed owners, and those that moved forward, are
    /// removed once they are more than half.
    pub(super) fn set_timer(&mut self, at: Mono, timer: Timer) {
        let Some(set) = self.timer_of(timer).filter(|set| set.is_none_or(|set| at < set)) else { return };
        *set = Some(at);
        let owners = self.records.len() + self.budgets.len() + self.groups.len();
        if self.timers.len() > 2 * owners + super::ROOMY {
            let mut timers = std::mem::take(&mut self.timers).into_vec();
            timers.retain(|Reverse((at, timer))| self.timer_of(*timer).is_some_and(|set| *set == Some(*at)));
            timers.shrink_to(timers.len() * 2);
            self.timers = timers.into();
        }
        self.timers.push(Reverse((at, timer)));
    }

    /// Returns the time that the owner of a timer has set.
    fn timer_of(&mut self, timer: Timer) -> Option<&mut Option<Mono>> {
        match timer {
            Timer::Record(id) => self.records.get_mut(&id).map(|record| &mut record.timer),
            Timer::Budget(id) => self.budgets.peek_mut(&id.0).map(|budget| &mut budget.timer),
            Timer::Group(key) => self.groups.timer(key),
        }
    }

    pub(super) fn set_record_timer(&mut self, id: RecordId) {
        let Some(record) = self.records.get(&id) else { return };
        let at = match record.phase {
            Phase::Backoff(until) => until,
            Phase::Settled => record.goes_at(),
            Phase::Cooling | Phase::Queued(_) | Phase::Staged(_) | Phase::InFlight(_) => record.next_write,
        };
        // The current timer may be later, at the end of a limbo.
        self.set_timer(at, Timer::Record(id));
    }

    pub(super) fn set_budget_timer(&mut self, id: BudgetId, now: Mono) {
        let Some(budget) = self.budgets.peek(&id.0).filter(|budget| !budget.is_prepaid()) else { return };
        let token = if budget.filed.is_none() && budget.waits_for_token() { budget.next_token(now) } else { None };
        let aged = budget.folds_at(self.settings.digest_max_age, now);
        let aged = aged.and_then(|at| Some(at.max(budget.folds_from(&self.journal, &self.paused)?)));
        let beyond = self.folds_beyond_limit_at(budget, now);
        let idle = if budget.members == 0 { budget.idle_at(now) } else { None };
        if let Some(at) = [token, aged, beyond, idle].into_iter().flatten().min() {
            self.set_timer(at, Timer::Budget(id));
        }
    }

    /// Removes a budget without records whose bucket is full.
    pub(super) fn drop_if_idle(&mut self, id: BudgetId, now: Mono) {
        let Some(budget) = self.budgets.peek(&id.0) else { return };
        if budget.members == 0 && budget.idle_at(now).is_some_and(|at| at <= now) {
            self.forget_budget(id);
        } else {
            self.set_budget_timer(id, now);
        }
    }

    fn forget_budget(&mut self, id: BudgetId) {
        if let Some(budget) = self.budgets.pop(&id.0) {
            self.budget_count.set(self.budgets.len());
            if let Some(digest) = budget.digest() {
                self.digests.remove(&digest.record);
                self.usage.resize_digest(digest.size(), 0);
            }
        }
        if self.budgets.is_empty() {
            // Releases the table, which never shrinks.
            self.budgets = LruMap::default();
        }
    }

    pub(super) fn trim_budgets(&mut self, now: Mono) {
        // There are at most as many budgets with records as records. If eight tries find no idle budget, none is
        // evicted.
        for _ in 0..8 {
            if !self.budget_count.is_over(self.settings.max_budgets.get()) {
                return;
            }
            let Some((id, members)) = self.budgets.peek_lru().map(|(id, budget)| (BudgetId(*id), budget.members))
            else {
                return;
            };
            if members == 0 {
                self.forget_budget(id);
            } else {
                self.budgets.promote(&id.0);
                self.set_budget_timer(id, now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::clock::Now;
    use crate::correlator::{Key, KeySecret, Policy, Rate};
    use crate::event::Event;
    use crate::outbox::budget::BudgetId;
    use crate::outbox::{self, Answer, Applied, Fault, Offer, Outbox, Request, Retry};
    use crate::shard::{self, Shard};

    /// Fault: it was repeated when the coalescing interval ended, which may be after the drain's deadline.
    #[test]
    fn a_write_that_fails_in_a_drain_is_repeated_after_its_pause() {
        for comes_before_drain in [true, false] {
            let (coalesce_interval, policy) = (Duration::from_secs(60), Policy::default());
            let outbox = outbox::Settings { coalesce_interval, ..outbox::Settings::default() };
            let settings = shard::Settings { outbox, ..shard::Settings::default() };
            let mut shard = Shard::new(KeySecret(1, 2), settings, 1);
            let at = |seconds: i64| Now::at(seconds * 1_000_000_000);
            let event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
            shard.accept(event.clone(), 1, at(1), &policy).unwrap();
            shard.write_all(at(1));
            if comes_before_drain {
                shard.accept(event.clone(), 1, at(2), &policy).unwrap();
            }
            shard.drain(at(3));
            if !comes_before_drain {
                shard.accept(event, 1, at(3), &policy).unwrap();
            }
            let write = shard.next_write(at(3)).unwrap();
            let overloaded = Retry::new(Fault::Overloaded, Applied::No);
            shard.settle(write.record, Answer::Retry(overloaded), at(3));
            assert!(shard.next_write(at(4)).is_some(), "{comes_before_drain}");
        }
    }

    /// Fault: the write waited for the end of the limbo of the create, more than a minute.
    #[test]
    fn what_comes_while_a_patch_is_in_flight_waits_for_the_coalescing_interval_only() {
        let (interval, policy) = (Duration::from_secs(1), Policy::default());
        let outbox = outbox::Settings { coalesce_interval: interval, ..outbox::Settings::default() };
        let mut shard = Shard::new(KeySecret(1, 2), shard::Settings { outbox, ..shard::Settings::default() }, 1);
        let at = |seconds: i64| Now::at(seconds * 1_000_000_000);
        let event = Event { count: 1, reason: "BackOff".into(), ..Event::default() };
        shard.accept(event.clone(), 1, at(1), &policy).unwrap();
        let write = shard.next_write(at(1)).unwrap();
        let doubt = Retry::new(Fault::Timeout, Applied::Perhaps);
        shard.settle(write.record, Answer::Retry(doubt), at(1));
        let write = shard.next_write(at(3)).unwrap();
        let Request::Create { event: stored, .. } = write.request else { unreachable!() };
        shard.settle(write.record, Answer::Stored(stored.clone()), at(3));
        shard.next_write(at(4)).ok_or(()).unwrap_err();
        shard.accept(event.clone(), 1, at(5), &policy).unwrap();
        let write = shard.next_write(at(5)).unwrap();
        shard.accept(event, 1, at(5), &policy).unwrap();
        shard.settle(write.record, Answer::Stored(Box::new(Event { count: 2, ..*stored })), at(5));
        assert!(shard.next_write(at(6)).is_some());
    }

    /// A budget whose bucket never fills is removed at the limit only.
    #[test]
    fn at_the_limit_the_least_recently_used_idle_budget_is_evicted() {
        let max_budgets = std::num::NonZeroUsize::new(2).unwrap();
        let mut outbox = Outbox::new(outbox::Settings { max_budgets, ..outbox::Settings::default() }, 0);
        let at = |seconds: i64| Now::at(seconds * 1_000_000_000);
        let write = |outbox: &mut Outbox, number: u64, now| {
            let rate = Some(Rate { qps: 0.0, burst: 1 });
            let offer = Offer { budget: Key(number.into()), ..Offer::of(number, rate) };
            outbox.offer(offer, Event::default(), now);
            let write = outbox.next_write(now);
            write.iter().for_each(|write| drop(outbox.settle(write.record, Answer::Stored(Box::default()), now)));
            write.is_some()
        };
        assert!(write(&mut outbox, 1, at(1)));
        assert!(!write(&mut outbox, 1, at(2)), "it waits for a token, so its budget stays");
        assert!(write(&mut outbox, 2, at(3)));
        assert_eq!(outbox.next_write(at(90)), None);
        assert!(write(&mut outbox, 3, at(90)));
        let is_known = |number: u128| outbox.budgets.peek(&BudgetId::of_spam_key(Key(1), Key(number)).0).is_some();
        assert_eq!([1, 2, 3].map(is_known), [true, false, true]);
    }

    /// Fault: each evicted budget left its timer, until the budget would have been full.
    #[test]
    fn timers_of_evicted_budgets_take_no_memory() {
        let max_budgets = std::num::NonZeroUsize::new(10).unwrap();
        let mut outbox = Outbox::new(outbox::Settings { max_budgets, ..outbox::Settings::default() }, 0);
        for number in 0..10_000_u32 {
            let now = Now::at(i64::from(number) * 2_000_000_000);
            let rate = Some(Rate { qps: 0.000_01, burst: 1 });
            let offer = Offer { budget: Key(number.into()), ..Offer::of(number.into(), rate) };
            outbox.offer(offer, Event::default(), now);
            let write = outbox.next_write(now).unwrap();
            outbox.settle(write.record, Answer::Stored(Box::default()), now);
        }
        assert!(outbox.timers.len() < 2_000, "{}", outbox.timers.len());
    }
}
