//! All shards behind their locks, and the clock. Only this module hands the time to the pure core.
//!
//! Each shard is a value behind a mutex that is held briefly, never over an `.await`. A source belongs to one shard
//! permanently, so its events are correlated in the order of their arrival.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use super::prepared::Prepared;
use super::storms::{HOME, is_storm};
use super::{Accepted, Full, Listed, Mirror, Outcome, Settings, Shard, Sizes};
use crate::clock::{Clock, Now};
use crate::correlator::{Correlation, Key, KeySecret, Policy};
use crate::event::Event;
use crate::explain::Tap;
use crate::ledger::{Balance, LostReason, RejectReason};
use crate::outbox::{Answer, OnTaken, RecordId, Settlement, Ticket, TicketOutcome};

/// LIMIT: events of a batch that are accepted under one lock, while all other callers wait for it.
const UNDER_ONE_LOCK: usize = 32;

/// All shards of the process. Clones share them.
#[derive(Debug, Clone)]
pub struct Shards(pub(super) Arc<Inner>);

/// A client that waits for the outcome of its occurrence's write. Dropping it ends the wait.
#[derive(Debug)]
pub struct Waiting {
    shards: Shards,
    shard: usize,
    record: RecordId,
    ticket: Ticket,
    fate: oneshot::Receiver<TicketOutcome>,
}

impl Waiting {
    /// Waits for the upstream's answer; `None` when the process ends first.
    pub async fn fate(&mut self) -> Option<TicketOutcome> {
        (&mut self.fate).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.shards.0.waiters.lock().senders.remove(&self.ticket).is_some() {
            self.shards.with(self.shard, |shard, _| shard.outbox.give_up(self.record, self.ticket));
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Waiters {
    next: u64,
    pub(super) senders: HashMap<Ticket, oneshot::Sender<TicketOutcome>>,
}

impl Waiters {
    fn add(&mut self, sender: oneshot::Sender<TicketOutcome>) -> Ticket {
        self.next += 1;
        let ticket = Ticket(self.next);
        self.senders.insert(ticket, sender);
        ticket
    }
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) secret: KeySecret,
    pub(super) clock: Clock,
    pub(super) shards: Box<[Mutex<Shard>]>,
    /// Clients that wait for their occurrence to be settled.
    /// LIMIT: one per event of an unanswered request; the limits on connections and on body sizes bound those.
    pub(super) waiters: Mutex<Waiters>,
    /// The active rules; a reload replaces them as a whole.
    pub(super) policy: ArcSwap<Policy>,
    /// Wakes delivery when there may be something to send.
    pub(super) wake: Notify,
    /// Signals that there are changes to persist.
    pub(super) changed: Notify,
    pub(super) tap: Tap,
    pub(super) mirror: Mirror,
}

impl Shards {
    /// Creates `count` empty shards, which share the limits of `settings`. `secret` keys the hashes, `seed` the jitter.
    pub fn new(
        count: NonZeroUsize,
        settings: &Settings,
        policy: Policy,
        clock: Clock,
        secret: KeySecret,
        seed: u64,
    ) -> Self {
        let first = Shard::new(secret, settings.clone(), seed);
        let others: Vec<Shard> = (1..count.get() as u64).map(|index| first.another(seed ^ index)).collect();
        let shards = std::iter::once(first).chain(others).map(Mutex::new);
        Self(Arc::new(Inner {
            secret,
            clock,
            shards: shards.collect(),
            waiters: Mutex::default(),
            policy: ArcSwap::from_pointee(policy),
            wake: Notify::new(),
            changed: Notify::new(),
            tap: Tap::default(),
            mirror: Mirror::default(),
        }))
    }

    /// Writes carry this writer's tags from now on; see [`Shard::identify`]. Each shard numbers its records from 0,
    /// so tags also contain the number of the shard.
    pub fn identify(&self, writer: &str) {
        for (number, shard) in self.0.shards.iter().enumerate() {
            shard.lock().identify(&format!("{writer}.{number:x}"));
        }
    }

    /// Applies `event`, which the upstream holds; see [`Shard::apply_watch`].
    pub fn apply_watch(&self, event: &Event) {
        let policy = self.policy();
        // A client may have written its occurrences itself.
        let learned = |_: &Shard| Some(event.clone());
        self.settling(self.shard_of(event), learned, |shard, now| shard.apply_watch(event, now, &policy));
    }

    /// Applies the deletion of `event` from the upstream; see [`Shard::apply_deletion`].
    pub fn apply_deletion(&self, event: &Event) {
        let policy = self.policy();
        self.with(self.shard_of(event), |shard, now| shard.apply_deletion(event, now, &policy));
    }

    /// Applies a LIST that replaces a broken WATCH; see [`Shard::apply_list`].
    pub fn apply_list(&self, listed: &Listed) {
        self.each(|shard, now| shard.apply_list(listed, now));
    }

    /// Correlates occurrences of a valid event and owes the write.
    ///
    /// # Errors
    /// [`Full`] when the event would begin a new record and the outbox has no room for it.
    pub fn accept(&self, event: Event, occurrences: u32) -> Result<Accepted, Full> {
        self.accept_under(&self.0.policy.load(), event, occurrences, "")
    }

    /// Accepts as [`accept`](Self::accept) does, under these rules. `caller` has reported them, or is empty.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_under(
        &self,
        policy: &Policy,
        event: Event,
        occurrences: u32,
        caller: &str,
    ) -> Result<Accepted, Full> {
        self.0.mirror.show(&event, occurrences);
        let prepared = Prepared::new(self.0.secret, &event, policy, caller);
        let index = self.shard_for(&event, prepared.source);
        self.with(index, |shard, now| shard.accept_prepared(&prepared, event, occurrences, now))
    }

    /// Accepts occurrences of several events as [`accept_under`](Self::accept_under) does, and returns the result of
    /// each. Events of one source keep their order. Events are grouped by shard, so that a shard is locked once for
    /// several of them.
    #[must_use]
    pub fn accept_all(
        &self,
        policy: &Policy,
        mut events: Vec<(Event, u32)>,
        caller: &str,
    ) -> Vec<Result<Accepted, Full>> {
        events.iter().for_each(|(event, occurrences)| self.0.mirror.show(event, *occurrences));
        let prepare = |(event, _): &(Event, u32)| Prepared::new(self.0.secret, event, policy, caller);
        let prepared: Vec<_> = events.iter().map(prepare).collect();
        let shard = |((event, _), one): (&(Event, u32), &Prepared<'_>)| self.shard_for(event, one.source);
        let mut order: Vec<(usize, usize)> = events.iter().zip(&prepared).map(shard).zip(0..).collect();
        // The index breaks ties, so events of one source keep their order.
        order.sort_unstable();
        let mut results = vec![Err(Full); events.len()];
        for group in order.chunk_by(|one, next| one.0 == next.0).flat_map(|group| group.chunks(UNDER_ONE_LOCK)) {
            self.with(group[0].0, |shard, now| {
                for &(_, place) in group {
                    let (event, occurrences) = std::mem::take(&mut events[place]);
                    results[place] = shard.accept_prepared(&prepared[place], event, occurrences, now);
                }
            });
        }
        results
    }

    /// Accepts as [`accept`](Self::accept) does, under these rules. Also returns a wait for the write, if the write can
    /// be waited for: not when it is deferred or dropped.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    pub fn accept_and_wait(
        &self,
        event: Event,
        occurrences: u32,
        policy: &Policy,
        caller: &str,
    ) -> Result<(Accepted, Option<Waiting>), Full> {
        self.0.mirror.show(&event, occurrences);
        let prepared = Prepared::new(self.0.secret, &event, policy, caller);
        let index = self.shard_for(&event, prepared.source);
        self.with(index, |shard, now| {
            let accepted = shard.accept_prepared(&prepared, event, occurrences, now)?;
            if matches!(accepted.outcome, Outcome::Deferred | Outcome::Dropped) {
                return Ok((accepted, None));
            }
            let (sender, fate) = oneshot::channel();
            let (record, ticket) = (accepted.record, self.0.waiters.lock().add(sender));
            // Without correlation, a taken name is a conflict, as it is for the API server.
            let on_taken = match prepared.settings.correlation {
                Correlation::On => OnTaken::Rename,
                Correlation::Off => OnTaken::Refuse,
            };
            shard.outbox.await_write(record, ticket, on_taken);
            Ok((accepted, Some(Waiting { shards: self.clone(), shard: index, record, ticket, fate })))
        })
    }

    /// Applies the answer to a write of one shard, and notifies the clients that waited for it.
    pub fn settle(&self, index: usize, record: RecordId, answer: Answer) -> Settlement {
        let settlement =
            self.settling(index, |shard| shard.event(record), |shard, now| shard.settle(record, answer, now));
        self.answer(settlement.resolved.iter().cloned());
        settlement
    }

    /// Answers clients that waited for the upstream.
    pub(super) fn answer(&self, resolved: impl ExactSizeIterator<Item = (Ticket, TicketOutcome)>) {
        if resolved.len() == 0 {
            return;
        }
        let mut waiters = self.0.waiters.lock();
        for (ticket, fate) in resolved {
            if let Some(sender) = waiters.senders.remove(&ticket) {
                // The client may have disconnected.
                drop(sender.send(fate));
            }
        }
    }

    /// Counts occurrences that were refused on arrival.
    pub fn reject(&self, reason: RejectReason, occurrences: u64) {
        // Any shard's ledger will do: only the sum is published.
        self.0.shards[HOME].lock().reject(reason, occurrences);
    }

    /// Returns the record that one more occurrence of the event would count on, as far as its shard knows it: its name
    /// upstream, and its desired state while it is unsettled.
    pub fn find(&self, event: &Event) -> Option<super::Found> {
        let policy = self.0.policy.load();
        self.0.shards[self.shard_of(event)].lock().find(event, self.0.clock.now(), &policy)
    }

    /// Whether such an event is correlated, or only passed on. Accept the event under the same [policy](Self::policy)
    /// afterwards.
    pub fn correlates(&self, event: &Event) -> bool {
        self.0.policy.load().correlates(event)
    }

    /// Runs `act` on one shard.
    pub fn with<T>(&self, index: usize, act: impl FnOnce(&mut Shard, Now) -> T) -> T {
        self.change(self.0.shards[index].lock(), act)
    }

    /// Runs `act` on a locked shard. The clock is read under the lock, so that its time is not older than the wait.
    pub(super) fn change<T>(&self, mut shard: MutexGuard<'_, Shard>, act: impl FnOnce(&mut Shard, Now) -> T) -> T {
        let now = self.0.clock.now();
        let result = act(&mut shard, now);
        self.hand_on(&mut shard, now);
        result
    }

    /// Runs `act` on each shard in turn, and returns its results.
    pub(super) fn each<T>(&self, mut act: impl FnMut(&mut Shard, Now) -> T) -> Vec<T> {
        (0..self.count()).map(|index| self.with(index, &mut act)).collect()
    }

    /// Runs `act` on one shard, and reports to the tap which occurrences of the event are written or lost by it.
    pub(super) fn settling<T>(
        &self,
        index: usize,
        event: impl FnOnce(&Shard) -> Option<Event>,
        act: impl FnOnce(&mut Shard, Now) -> T,
    ) -> T {
        let tap = &self.0.tap;
        self.with(index, |shard, now| {
            let Some(event) = tap.is_read().then(|| event(shard)).flatten() else { return act(shard, now) };
            let before = shard.ledger.clone();
            let result = act(shard, now);
            let tell = |verdict, why, number| {
                if number > 0 {
                    tap.send(&event, verdict, why, number, "", || now.wall);
                }
            };
            tell("written", "", shard.ledger.total_written() - before.total_written());
            for reason in LostReason::ALL {
                tell("lost", reason.label(), shard.ledger.lost(reason) - before.lost(reason));
            }
            result
        })
    }

    /// Runs `see` on one shard, without changing it.
    pub fn look<T>(&self, index: usize, see: impl FnOnce(&Shard) -> T) -> T {
        see(&self.0.shards[index].lock())
    }

    /// Distributes the results of a change to a shard: hands folded records to the first shard, wakes delivery, and
    /// signals changes to persist. Called at the end of each change.
    ///
    /// Locks of several shards are taken in ascending order, but that of the shard with the storm records last.
    fn hand_on(&self, shard: &mut Shard, now: Now) {
        if shard.outbox.is_leaving() {
            shard.hand_over(&mut self.0.shards[HOME].lock(), now);
            self.wake();
        }
        if std::mem::take(&mut shard.wakes_delivery) {
            self.wake();
        }
        if shard.outbox.has_changes() {
            self.0.changed.notify_one();
        }
    }

    /// Returns the number of shards.
    pub fn count(&self) -> usize {
        self.0.shards.len()
    }

    /// Returns the ledger over all shards. Each shard is exact at the instant it is read, and so is their sum: records
    /// that move between shards meanwhile count as waiting.
    pub fn balance(&self) -> Balance {
        let mut sum = Balance::default();
        for shard in &self.0.shards {
            sum.merge(&shard.lock().balance());
        }
        sum.settle_moved();
        sum
    }

    /// Returns the sum of all shards' sizes.
    pub fn sizes(&self) -> Sizes {
        let mut sizes = Sizes::default();
        self.0.shards.iter().for_each(|shard| shard.lock().add_to(&mut sizes));
        sizes
    }

    /// Applies reloaded settings and rules. Nothing that waits is lost; sources above the new limits are evicted.
    pub fn reload(&self, settings: &Settings, policy: Policy) {
        let policy = Arc::new(policy);
        let before = self.0.policy.swap(Arc::clone(&policy));
        self.each(|shard, now| shard.reload(settings.clone(), &before, &policy, now));
        // Each shard evicts in turn, so that none evicts more than the others.
        while self.0.shards.iter().filter(|shard| shard.lock().trim()).count() > 0 {}
        self.wake();
    }

    /// Sends writes without waiting for tokens or intervals from now on.
    pub fn drain(&self) {
        self.each(Shard::drain);
        self.wake();
    }

    /// Applies that the upstream answers again.
    pub fn end_silence(&self) {
        self.each(|shard, _| shard.outbox.end_silence());
    }

    /// Gives up the unsettled records; they count as lost. The shard with the storm records is the last one, because a
    /// running turn of delivery may still hand records over to it.
    pub fn abandon(&self) {
        let (home, others) = self.0.shards.split_at(HOME + 1);
        for shard in others.iter().chain(home) {
            shard.lock().abandon();
        }
        self.0.waiters.lock().senders.clear();
    }

    /// Whether anything is still owed to the upstream.
    pub fn owe(&self) -> bool {
        self.0.shards.iter().any(|shard| shard.lock().owes())
    }

    /// Waits until there may be a new write to send.
    pub async fn woken(&self) {
        self.0.wake.notified().await;
    }

    /// Returns the clock of the shards.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Ends the waits of clients whose record was deleted.
    pub(super) fn dismiss(&self, tickets: &[Ticket]) {
        let mut waiters = self.0.waiters.lock();
        for ticket in tickets {
            waiters.senders.remove(ticket);
        }
    }

    /// Returns the active rules.
    pub fn policy(&self) -> Arc<Policy> {
        self.0.policy.load_full()
    }

    pub(super) fn wake(&self) {
        self.0.wake.notify_one();
    }

    pub(super) fn shard_of(&self, event: &Event) -> usize {
        self.shard_for(event, self.0.secret.source(event))
    }

    /// Returns the shard of an event of this source. A copy of a storm record that a client posts is accepted where a
    /// storm record is looked up, because the upstream's event does not show which of them it is.
    pub(super) fn shard_for(&self, event: &Event, source: Key) -> usize {
        if is_storm(event) {
            return HOME;
        }
        let count = self.0.shards.len() as u64;
        // The source's key is a uniform hash; the tables inside a shard do not use its upper half.
        let upper = u64::try_from(source.0 >> 64).unwrap_or_default();
        usize::try_from(upper.checked_rem(count).unwrap_or_default()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use futures_util::FutureExt as _;
    use proptest::prelude::*;

    use super::*;
    use crate::correlator::{self, Rate};
    use crate::ledger::LostReason;
    use crate::outbox::{Applied, Fault, Request, Retry, Write};

    /// An event of one of a few sources, about one of a few objects, with one of a few messages.
    fn event((source, object, message): (u8, u8, u8)) -> Event {
        let mut event = Event { message: format!("message {message}").into(), ..Event::default() };
        event.source.component = format!("component-{source}").into();
        event.involved_object.name = format!("object-{object}").into();
        event.metadata.name = format!("object-{object}.{source}{message}").into();
        event.metadata.namespace = "default".into();
        event
    }

    impl Shards {
        /// Returns shards with default settings.
        pub(crate) fn of(count: usize, policy: Policy, clock: Clock) -> Self {
            Self::new(NonZeroUsize::new(count).unwrap(), &Settings::default(), policy, clock, KeySecret(1, 2), 1)
        }
    }

    fn shards(count: usize, max_records: usize, clock: Clock) -> Shards {
        let mut settings = Settings::default();
        settings.outbox.max_records = NonZeroUsize::new(max_records).unwrap();
        Shards::new(NonZeroUsize::new(count).unwrap(), &settings, Policy::default(), clock, KeySecret(1, 2), 1)
    }

    fn records(shards: &Shards) -> Vec<(Event, u64)> {
        let of_one = |index| {
            shards.look(index, |shard| shard.pending().map(|(event, count)| (event.clone(), count)).collect::<Vec<_>>())
        };
        let mut records: Vec<_> = (0..shards.count()).flat_map(of_one).collect();
        records.sort_by(|(one, _), (other, _)| {
            (&one.metadata.name, &one.message).cmp(&(&other.metadata.name, &other.message))
        });
        records
    }

    #[test]
    fn a_client_that_stops_waiting_leaves_no_wait_behind() {
        let shards = shards(1, 10, Clock::manual(1_700_000_000_000_000_000));
        let wait = || shards.accept_and_wait(event((0, 0, 0)), 1, &Policy::default(), "").unwrap().1.unwrap();
        let (first, _second) = (wait(), wait());
        drop(first);
        assert_eq!(shards.0.waiters.lock().senders.len(), 1);
    }

    /// Fault: such a write waited for delivery's next turn, up to five seconds. Delivery knew the time at which the
    /// record leaves the outbox, and after a doubtful create that is later than its next write.
    #[test]
    fn delivery_is_woken_for_a_repeat_that_is_due_before_all_else() {
        let clock = Clock::manual(1_700_000_000_000_000_000);
        let shards = shards(1, 10, clock.clone());
        shards.identify("me");
        shards.accept(event((0, 0, 0)), 1).unwrap();
        let next_write = || shards.with(0, |shard, now| shard.next_write(now)).unwrap();
        let Write { record, request: Request::Create { event: mut stored, .. } } = next_write() else { unreachable!() };
        stored.metadata.resource_version = "5".into();
        let no_answer = Retry::new(Fault::Timeout, Applied::Perhaps);
        shards.settle(0, record, Answer::Retry(no_answer));
        for answer in [Answer::Exists, Answer::Stored(stored)] {
            clock.advance(Duration::from_secs(10));
            assert_eq!(next_write().record, record);
            shards.settle(0, record, answer);
        }
        while shards.woken().now_or_never().is_some() {}
        let wakeup = || shards.with(0, |shard, now| shard.next_wakeup(now.mono)).unwrap();
        let before = wakeup();
        shards.accept(event((0, 0, 0)), 1).unwrap();
        assert!(wakeup() < before);
        assert!(shards.woken().now_or_never().is_some());
    }

    /// Fault: such records waited for ever in the final account, and the program ended as if nothing was lost.
    #[test]
    fn records_that_fold_into_a_storm_while_the_shards_are_abandoned_are_lost() {
        let (clock, group) = (Clock::manual(1_700_000_000_000_000_000), Some(Rate { qps: 0.0, burst: 0 }));
        let shards = shards(2, 10, clock.clone());
        let base = correlator::Settings { group, ..correlator::Settings::default() };
        shards.reload(&Settings::default(), Policy::from(base));
        let source = (0..).find(|source| shards.shard_of(&event((*source, 0, 0))) == HOME + 1).unwrap();
        for object in 0..3 {
            shards.accept(event((source, object, 0)), 1).unwrap();
        }
        assert!(shards.with(HOME + 1, |shard, now| shard.next_write(now)).is_none());
        clock.advance(Duration::from_secs(3600));
        thread::scope(|scope| {
            shards.with(HOME + 1, |shard, now| {
                scope.spawn(|| shards.abandon());
                // The other thread comes as far as it can without this shard.
                for _ in 0..10_000 {
                    if shards.look(HOME, |home| home.closed) {
                        break;
                    }
                    thread::yield_now();
                }
                assert!(shard.next_write(now).is_none());
                assert!(shard.outbox.is_leaving(), "they fold");
            });
        });
        let balance = shards.balance();
        assert!(balance.is_exact());
        assert_eq!((balance.total_waiting(), balance.ledger.lost(LostReason::Shutdown)), (0, 3));
    }

    proptest! {
        /// Starts with empty shards and keeps their state between rounds; sometimes without room.
        #[test]
        fn a_batch_is_accepted_as_its_events_would_be_one_by_one(
            rounds in proptest::collection::vec(proptest::collection::vec((0..9_u8, 0..3_u8, 0..20_u8), 0..90), 1..4),
            count in 1..5_usize,
            max_records in prop_oneof![4..40_usize, Just(1000)],
        ) {
            let clock = Clock::manual(1_700_000_000_000_000_000);
            let (together, alone) = (shards(count, max_records, clock.clone()), shards(count, max_records, clock.clone()));
            let policy = Policy::default();
            for round in rounds {
                let events: Vec<(Event, u32)> = round.iter().map(|spec| (event(*spec), 1 + u32::from(spec.1))).collect();
                // By shards, because they share their room: the first event gets it.
                let mut order: Vec<usize> = (0..events.len()).collect();
                order.sort_by_key(|place| alone.shard_of(&events[*place].0));
                let mut expected = vec![Err(Full); events.len()];
                for place in order {
                    let (event, occurrences) = events[place].clone();
                    expected[place] = alone.accept(event, occurrences);
                }
                prop_assert_eq!(together.accept_all(&policy, events, ""), expected);
                prop_assert_eq!(together.balance(), alone.balance());
                prop_assert_eq!(records(&together), records(&alone));
                clock.advance(Duration::from_secs(7));
            }
        }
    }
}
