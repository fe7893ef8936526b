//! Fair queueing between callers: a limited number of requests run at once, and each caller has a share of them.
//! Further requests wait, and free places go to the waiting callers in turn.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroUsize;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::IntGauge;
use smol_str::SmolStr;
use tokio::sync::oneshot;

use crate::metrics::value;

/// Settings of fair queueing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fairness {
    /// LIMIT: requests of authenticated callers at once, except watches; further ones wait. Default 1,024.
    pub max_in_flight: NonZeroUsize,
    /// LIMIT: share of the places and of the queue for one caller, in percent. Default 50.
    pub caller_percent: usize,
    /// LIMIT: waiting requests; further ones are refused with 429. Default 1,024.
    pub max_waiting: usize,
}

impl Default for Fairness {
    fn default() -> Self {
        let max_in_flight = const { NonZeroUsize::new(1024).unwrap() };
        Self { max_in_flight, caller_percent: 50, max_waiting: 1024 }
    }
}

impl Fairness {
    /// Running requests of one caller.
    fn share(&self) -> usize {
        self.part(self.max_in_flight.get()).max(1)
    }

    /// Waiting requests of one caller.
    fn queue(&self) -> usize {
        self.part(self.max_waiting)
    }

    const fn part(&self, all: usize) -> usize {
        all.saturating_mul(self.caller_percent) / 100
    }
}

/// Queue of requests. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct FairQueue(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    fairness: Fairness,
    /// LIMIT: callers with running or waiting requests: `max_in_flight` and `max_waiting` together.
    callers: HashMap<SmolStr, Requests>,
    /// LIMIT: callers with waiting requests, each once, the next one first.
    round: VecDeque<SmolStr>,
    /// The numbers of running and of waiting requests, which no other value changes.
    gauges: Gauges,
}

/// Gauges of the queue's load, which count it.
#[derive(Debug, Clone)]
pub(super) struct Gauges {
    pub(super) running: IntGauge,
    pub(super) waiting: IntGauge,
}

/// Requests of one caller.
#[derive(Debug, Default)]
struct Requests {
    running: usize,
    /// LIMIT: `max_waiting`, of all callers together.
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// A place among the running requests; dropping it frees the place.
#[derive(Debug)]
pub struct Turn {
    turns: FairQueue,
    caller: SmolStr,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.free(&self.caller);
    }
}

/// A request in the queue; dropping it before its turn removes it.
struct Waiting<'a> {
    turns: &'a FairQueue,
    caller: &'a SmolStr,
    granted: oneshot::Receiver<Turn>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.granted.is_terminated() {
            self.granted.close();
            self.turns.0.lock().forget_gone(self.caller);
        }
    }
}

/// The queue has no room for the caller's request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct QueueFull;

impl FairQueue {
    pub(super) fn new(fairness: Fairness, gauges: Gauges) -> Self {
        let (callers, round) = (HashMap::new(), VecDeque::new());
        Self(Arc::new(Mutex::new(State { fairness, callers, round, gauges })))
    }

    /// Creates a queue that no metric shows.
    pub(crate) fn unshown(fairness: Fairness) -> Self {
        let gauge = || IntGauge::new("queue", "a queue").expect("a valid name");
        Self::new(fairness, Gauges { running: gauge(), waiting: gauge() })
    }

    /// Applies new settings. Requests that already run or wait stay.
    pub(super) fn set(&self, fairness: Fairness) {
        self.0.lock().fairness = fairness;
        self.hand_out();
    }

    /// Waits for a place.
    ///
    /// # Errors
    /// When the queue, or the caller's share of it, is full.
    pub(crate) async fn take(&self, caller: &SmolStr) -> Result<Turn, QueueFull> {
        let granted = {
            let mut state = self.0.lock();
            let state = &mut *state;
            let fairness = state.fairness;
            let requests = state.callers.entry(caller.clone()).or_default();
            let is_free = state.gauges.running.get() < value(fairness.max_in_flight.get());
            if is_free && requests.running < fairness.share() && requests.waiting.is_empty() {
                requests.running += 1;
                state.gauges.running.inc();
                return Ok(Turn { turns: self.clone(), caller: caller.clone() });
            }
            let is_full = state.gauges.waiting.get() >= value(fairness.max_waiting);
            if is_full || requests.waiting.len() >= fairness.queue() {
                state.forget_idle(caller);
                return Err(QueueFull);
            }
            let (sender, granted) = oneshot::channel();
            if requests.waiting.is_empty() {
                state.round.push_back(caller.clone());
            }
            requests.waiting.push_back(sender);
            state.gauges.waiting.inc();
            granted
        };
        let mut waiting = Waiting { turns: self, caller, granted };
        (&mut waiting.granted).await.map_err(|_closed| QueueFull)
    }

    fn free(&self, caller: &SmolStr) {
        {
            let mut state = self.0.lock();
            state.gauges.running.dec();
            if let Some(requests) = state.callers.get_mut(caller) {
                requests.running -= 1;
            }
            state.forget_idle(caller);
        }
        self.hand_out();
    }

    /// Gives free places to waiting requests.
    fn hand_out(&self) {
        while let Some((caller, sender)) = self.next() {
            // Outside the lock, because the place of a dropped request is freed at once.
            drop(sender.send(Turn { turns: self.clone(), caller }));
        }
    }

    /// Removes the next request from the queue. The lock is released at the end: in the condition of a loop it would be
    /// held for the loop's body too.
    fn next(&self) -> Option<(SmolStr, oneshot::Sender<Turn>)> {
        self.0.lock().next()
    }
}

impl State {
    /// Removes the next request from the queue and counts it as running.
    fn next(&mut self) -> Option<(SmolStr, oneshot::Sender<Turn>)> {
        for _ in 0..self.round.len() {
            if self.gauges.running.get() >= value(self.fairness.max_in_flight.get()) {
                return None;
            }
            let caller = self.round.pop_front()?;
            let Some(requests) = self.callers.get_mut(&caller) else { continue };
            if requests.running >= self.fairness.share() {
                self.round.push_back(caller);
                continue;
            }
            let sender = requests.waiting.pop_front()?;
            requests.running += 1;
            self.gauges.running.inc();
            self.gauges.waiting.dec();
            if !requests.waiting.is_empty() {
                self.round.push_back(caller.clone());
            }
            return Some((caller, sender));
        }
        None
    }

    /// Removes a caller's requests that no client waits for from the queue.
    fn forget_gone(&mut self, caller: &SmolStr) {
        let Some(requests) = self.callers.get_mut(caller) else { return };
        let before = requests.waiting.len();
        requests.waiting.retain(|sender| !sender.is_closed());
        self.gauges.waiting.sub(value(before - requests.waiting.len()));
        if requests.waiting.is_empty() {
            self.round.retain(|waiting| waiting != caller);
            self.forget_idle(caller);
        }
    }

    fn forget_idle(&mut self, caller: &SmolStr) {
        if self.callers.get(caller).is_some_and(|requests| requests.running == 0 && requests.waiting.is_empty()) {
            self.callers.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn turns(max_in_flight: usize, caller_percent: usize, max_waiting: usize) -> FairQueue {
        let max_in_flight = NonZeroUsize::new(max_in_flight).unwrap();
        let gauge = |name: &str| IntGauge::new(name, "a test's").unwrap();
        let gauges = Gauges { running: gauge("running"), waiting: gauge("waiting") };
        FairQueue::new(Fairness { max_in_flight, caller_percent, max_waiting }, gauges)
    }

    /// Returns the running and the waiting requests, which the gauges show.
    fn load(turns: &FairQueue) -> (i64, i64) {
        let state = turns.0.lock();
        let of = |number: fn(&Requests) -> usize| value(state.callers.values().map(number).sum::<usize>());
        let counted = (of(|requests| requests.running), of(|requests| requests.waiting.len()));
        assert_eq!((state.gauges.running.get(), state.gauges.waiting.get()), counted);
        counted
    }

    /// Asks for a place; returns the result so far and the future.
    macro_rules! ask {
        ($turns:expr, $caller:expr) => {{
            let (turns, caller) = ($turns.clone(), SmolStr::new($caller));
            let mut asking = Box::pin(async move { turns.take(&caller).await });
            (asking.as_mut().now_or_never(), asking)
        }};
    }

    #[test]
    fn one_caller_gets_its_share_and_another_is_admitted() {
        let turns = turns(4, 50, 8);
        let running = [ask!(turns, "flood").0.unwrap().unwrap(), ask!(turns, "flood").0.unwrap().unwrap()];
        let mut waiting: Vec<_> = (0..4).map(|_| ask!(turns, "flood")).collect();
        assert!(waiting.iter().all(|(outcome, _)| outcome.is_none()));
        // Its share of the queue is full, and another's is not.
        assert!(matches!(ask!(turns, "flood").0, Some(Err(QueueFull))));
        let other = ask!(turns, "other").0.unwrap().unwrap();
        assert_eq!(load(&turns), (3, 4));
        drop(running);
        let granted: Vec<_> = waiting.iter_mut().map(|(_, asking)| asking.now_or_never()).collect();
        assert_eq!(granted.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false, false]);
        assert_eq!(load(&turns), (3, 2));
        drop((granted, waiting, other));
        assert_eq!(load(&turns).0, 0);
    }

    #[test]
    fn callers_take_turns() {
        let turns = turns(1, 100, 8);
        let first = ask!(turns, "a").0.unwrap().unwrap();
        let (mut again, mut third) = (ask!(turns, "a").1, ask!(turns, "a").1);
        let mut other = ask!(turns, "b").1;
        drop(first);
        let second = again.as_mut().now_or_never().unwrap().unwrap();
        drop(second);
        // `a` asked again before `b`, but it is the turn of `b`.
        assert!(third.as_mut().now_or_never().is_none());
        drop(other.as_mut().now_or_never().unwrap().unwrap());
        drop(third.as_mut().now_or_never().unwrap().unwrap());
        assert_eq!(load(&turns), (0, 0));
        assert!(turns.0.lock().callers.is_empty() && turns.0.lock().round.is_empty());
    }

    #[test]
    fn a_dropped_request_keeps_no_place() {
        let turns = turns(1, 100, 8);
        let first = ask!(turns, "a").0.unwrap().unwrap();
        let (gone, late) = (ask!(turns, "b").1, ask!(turns, "b").1);
        let mut stays = ask!(turns, "c").1;
        drop(gone);
        assert_eq!(load(&turns), (1, 2), "it leaves the queue at once");
        drop(first);
        // It has its place, and its client disconnects before it runs.
        drop(late);
        drop(stays.as_mut().now_or_never().unwrap().unwrap());
        assert_eq!(load(&turns), (0, 0));
        assert!(turns.0.lock().callers.is_empty());
    }

    /// Fault: the place of a request that left as its turn came was freed under the lock, and every caller waited for ever.
    #[test]
    fn a_request_that_leaves_as_its_turn_comes_stops_nothing() {
        let turns = turns(1, 100, 8);
        let first = ask!(turns, "a").0.unwrap().unwrap();
        // It does not wait any more, and has not left the queue yet.
        let (sender, _) = oneshot::channel();
        {
            let mut state = turns.0.lock();
            state.callers.entry("b".into()).or_default().waiting.push_back(sender);
            state.round.push_back("b".into());
            state.gauges.waiting.inc();
        }
        let mut stays = ask!(turns, "c").1;
        drop(first);
        drop(stays.as_mut().now_or_never().unwrap().unwrap());
        assert_eq!(load(&turns), (0, 0));
        assert!(turns.0.lock().callers.is_empty() && turns.0.lock().round.is_empty());
    }

    #[test]
    fn a_raised_limit_gives_places_at_once() {
        let turns = turns(1, 100, 8);
        let _first = ask!(turns, "a").0.unwrap().unwrap();
        let mut second = ask!(turns, "a").1;
        turns.set(Fairness { max_in_flight: NonZeroUsize::new(2).unwrap(), ..Fairness::default() });
        assert!(second.as_mut().now_or_never().is_none(), "half of two is one");
        turns.set(Fairness { max_in_flight: NonZeroUsize::new(4).unwrap(), ..Fairness::default() });
        assert!(second.as_mut().now_or_never().is_some());
    }
}
