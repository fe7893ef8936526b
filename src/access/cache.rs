//! Cache of the apiserver's answers about tokens and permissions. Concurrent requests share one question.
//!
//! Keys are hashes under a secret of this process, so that the cache holds neither tokens nor names.

use std::collections::HashMap;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use lru::LruCache;
use parking_lot::Mutex;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::clock::{Clock, Mono};
use crate::correlator::KeySecret;

/// Returns the key of a question: SipHash-1-3 under a secret, so that no caller can construct two inputs with one key.
pub(super) fn key(secret: KeySecret, input: impl Hash) -> u128 {
    let mut hasher = SipHasher13::new_with_keys(secret.0, secret.1);
    input.hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// Returns an empty cache of this capacity. `LruCache::new` would allocate for all entries at once.
pub(crate) fn lru<K: Hash + Eq, V>(capacity: NonZeroUsize) -> LruCache<K, V> {
    let mut empty = LruCache::unbounded();
    empty.resize(capacity);
    empty
}

/// Reason for which there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Unanswered {
    /// Too many questions are in flight.
    Full,
    /// The apiserver is away: it cannot be reached, or is overloaded.
    Away,
    /// Its authoriser has failed, perhaps only for this question.
    Unevaluated,
    /// It refused the question, or its answer is none.
    Fault,
}

/// A question in flight: its answer and the answer's time to live.
pub(super) type Question<V> = BoxFuture<'static, Result<(V, Duration), Unanswered>>;

type Asking<V> = BoxFuture<'static, Result<V, Unanswered>>;

/// While the apiserver is away, time after a failed question until the next request asks. The others use expired answers
/// meanwhile, and do not wait for the deadline of a question.
const RETRY: Duration = Duration::from_secs(5);

/// Cache of answers, and the questions in flight.
pub(super) struct Answers<V> {
    questions_max: usize,
    /// Whether an answer accepts its caller. Accepting answers have a cache of their own, so that unknown callers
    /// cannot evict them.
    accepts: fn(&V) -> bool,
    /// Questions in flight. No drain waits for them, but for the requests that need their answers.
    tasks: TaskTracker,
    inner: Mutex<Inner<V>>,
}

struct Inner<V> {
    /// LIMIT: the cache's capacity; beyond it the least recently used answer is evicted. Expired answers
    /// stay until then.
    accepted: LruCache<u128, (Mono, V)>,
    /// LIMIT: the same.
    refused: LruCache<u128, (Mono, V)>,
    /// LIMIT: `questions_max`, and as many again that renew an accepting answer; one caller has half of each. Further
    /// questions are refused. Each removes itself by its number.
    asking: HashMap<u128, Asked<V>>,
    questions: u64,
    /// When the newest question found the apiserver away; `None` once it has answered.
    away: Option<Mono>,
}

/// A question in flight.
struct Asked<V> {
    number: u64,
    /// The caller that it is about; a token has its own.
    caller: u128,
    /// Whether it renews an accepting answer.
    is_renewal: bool,
    asking: Shared<Asking<V>>,
}

/// Removes a question when it has ended.
struct InFlight<V> {
    answers: Arc<Answers<V>>,
    key: u128,
    number: u64,
}

impl<V> Drop for InFlight<V> {
    fn drop(&mut self) {
        let mut inner = self.answers.inner.lock();
        if inner.asking.get(&self.key).is_some_and(|asked| asked.number == self.number) {
            inner.asking.remove(&self.key);
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Answers<V> {
    pub(super) fn new(entries_max: NonZeroUsize, questions_max: usize, accepts: fn(&V) -> bool) -> Arc<Self> {
        let [accepted, refused] = [(); 2].map(|()| lru(entries_max));
        let inner = Inner { accepted, refused, asking: HashMap::new(), questions: 0, away: None };
        Arc::new(Self { questions_max, accepts, tasks: TaskTracker::new(), inner: Mutex::new(inner) })
    }

    /// Returns the number of entries, expired ones included.
    pub(super) fn len(&self) -> usize {
        let inner = self.inner.lock();
        inner.accepted.len() + inner.refused.len()
    }

    /// Returns the cached answer.
    pub(super) fn known(&self, key: u128, now: Mono) -> Option<V> {
        self.inner.lock().known(key, now)
    }

    /// Returns an accepting answer that has expired less than `grace` ago, while the apiserver is away and another
    /// request asks.
    pub(super) fn remembered(&self, key: u128, now: Mono, grace: Duration) -> Option<V> {
        let mut inner = self.inner.lock();
        let failed = inner.away?;
        (now < failed.after(RETRY) || !inner.asking.is_empty()).then(|| inner.expired(key, now, grace)).flatten()
    }

    /// Returns an accepting answer that has expired less than `grace` ago: after a question found the apiserver away.
    pub(super) fn expired(&self, key: u128, now: Mono, grace: Duration) -> Option<V> {
        self.inner.lock().expired(key, now, grace)
    }

    /// Asks, or joins a question in flight, and waits for the answer. Faults are not cached.
    ///
    /// # Errors
    /// When too many questions are in flight, or the question has no answer.
    pub(super) async fn ask(
        self: &Arc<Self>,
        (key, caller): (u128, u128),
        clock: &Clock,
        question: impl FnOnce() -> Question<V>,
    ) -> Result<V, Unanswered> {
        let (asking, new) = {
            let mut inner = self.inner.lock();
            if let Some(answer) = inner.known(key, clock.now().mono) {
                return Ok(answer);
            }
            match inner.asking.get(&key) {
                Some(asked) => (asked.asking.clone(), None),
                None if !inner.has_room((key, caller), self.questions_max) => return Err(Unanswered::Full),
                None => {
                    inner.questions += 1;
                    let (number, is_renewal) = (inner.questions, inner.accepted.contains(&key));
                    let (sender, answer) = oneshot::channel();
                    let asking = answer.map(|answer| answer.unwrap_or(Err(Unanswered::Fault))).boxed().shared();
                    inner.asking.insert(key, Asked { number, caller, is_renewal, asking: asking.clone() });
                    (asking, Some((InFlight { answers: Arc::clone(self), key, number }, sender)))
                }
            }
        };
        // Without the lock: a runtime that stops drops the task at once, and the task's end takes the lock.
        if let Some((in_flight, sender)) = new {
            self.answer(in_flight, clock.clone(), question(), sender);
        }
        asking.await
    }

    /// Waits for the answer, caches it and sends it, also if all requests that wait for it are dropped: otherwise
    /// requests that give up early would never notice an outage.
    fn answer(
        &self,
        in_flight: InFlight<V>,
        clock: Clock,
        question: Question<V>,
        sender: oneshot::Sender<Result<V, Unanswered>>,
    ) {
        let accepts = self.accepts;
        self.tasks.spawn(async move {
            let answered = question.await;
            let now = clock.now().mono;
            let mut inner = in_flight.answers.inner.lock();
            inner.away = matches!(answered, Err(Unanswered::Away)).then_some(now);
            let answer = answered.map(|(answer, ttl)| {
                let Inner { accepted, refused, .. } = &mut *inner;
                let (kept, other) = if accepts(&answer) { (accepted, refused) } else { (refused, accepted) };
                other.pop(&in_flight.key);
                kept.put(in_flight.key, (now.after(ttl), answer.clone()));
                answer
            });
            drop(inner);
            drop(in_flight);
            // All requests may have left.
            let _sent = sender.send(answer);
        });
    }
}

impl<V: Clone> Inner<V> {
    fn known(&mut self, key: u128, now: Mono) -> Option<V> {
        let found = self.accepted.get(&key).or_else(|| self.refused.get(&key))?;
        Some(found).filter(|(until, _)| now < *until).map(|(_, answer)| answer.clone())
    }

    fn expired(&mut self, key: u128, now: Mono, grace: Duration) -> Option<V> {
        self.accepted.get(&key).filter(|(until, _)| now < until.after(grace)).map(|(_, answer)| answer.clone())
    }

    /// Whether a question may be asked now.
    fn has_room(&self, (key, caller): (u128, u128), questions_max: usize) -> bool {
        let is_renewal = self.accepted.contains(&key);
        let alike = || self.asking.values().filter(|asked| asked.is_renewal == is_renewal);
        let own = alike().filter(|asked| asked.caller == caller).count();
        alike().count() < questions_max && own < questions_max.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn answers(entries_max: usize, questions_max: usize, accepts: fn(&u32) -> bool) -> Arc<Answers<u32>> {
        Answers::new(NonZeroUsize::new(entries_max).unwrap(), questions_max, accepts)
    }

    fn at_once(value: u32) -> Question<u32> {
        async move { Ok((value, TTL)) }.boxed()
    }

    /// A question that waits for the test.
    fn later() -> (oneshot::Sender<u32>, Question<u32>) {
        let (sender, answer) = oneshot::channel();
        let question = async move {
            let answer: Result<u32, _> = answer.await;
            answer.map(|value| (value, TTL)).map_err(|_gone| Unanswered::Fault)
        };
        (sender, question.boxed())
    }

    #[tokio::test]
    async fn a_question_outlives_the_request_that_asked_it() {
        let (answers, clock) = (answers(10, 10, |_| true), Clock::manual(0));
        let (sender, question) = later();
        let mut first = Box::pin(answers.ask((1, 1), &clock, || question));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(answers.ask((1, 1), &clock, || panic!("asked twice")));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        sender.send(5).unwrap();
        assert_eq!(second.await, Ok(5));
        assert!(answers.inner.lock().asking.is_empty());
    }

    /// Fault: such a question was dropped under the lock that its end takes.
    #[test]
    fn a_question_during_the_end_of_the_runtime_is_a_fault() {
        let answers = answers(1, 1, |_| true);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let handle = runtime.handle().clone();
        drop(runtime);
        let _of_it = handle.enter();
        let asked = answers.ask((1, 1), &Clock::manual(0), || at_once(1)).now_or_never();
        assert_eq!(asked, Some(Err(Unanswered::Fault)));
        assert!(answers.inner.lock().asking.is_empty());
    }

    #[tokio::test]
    async fn questions_and_entries_are_limited_and_faults_are_not_cached() {
        let (answers, clock) = (answers(2, 1, |_| true), Clock::manual(0));
        let (sender, question) = later();
        let mut first = Box::pin(answers.ask((1, 1), &clock, || question));
        assert!(first.as_mut().now_or_never().is_none());
        assert_eq!(answers.ask((2, 2), &clock, || at_once(2)).await, Err(Unanswered::Full));
        drop(sender);
        assert_eq!(first.await, Err(Unanswered::Fault));
        assert_eq!(answers.len(), 0);
        for key in 1..=3 {
            assert_eq!(answers.ask((key, key), &clock, || at_once(2)).await, Ok(2));
        }
        assert_eq!((answers.len(), answers.known(1, clock.now().mono)), (2, None));
    }

    /// Fault: it ended with its request. So if all requests gave up before the deadline of a question, an outage was not
    /// noticed, and no expired answer was used.
    #[tokio::test]
    async fn a_question_outlives_all_its_requests() {
        let (answers, clock) = (answers(2, 1, |_| true), Clock::manual(0));
        let (sender, question) = later();
        assert!(answers.ask((1, 1), &clock, || question).now_or_never().is_none());
        assert_eq!(answers.ask((2, 2), &clock, || at_once(2)).await, Err(Unanswered::Full), "it keeps its place");
        sender.send(7).unwrap();
        assert_eq!(answers.ask((1, 1), &clock, || at_once(1)).await, Ok(7));
        clock.advance(TTL);
        let (sender, question) = oneshot::channel::<()>();
        let away = async move { question.await.map(|()| unreachable!()).map_err(|_gone| Unanswered::Away) };
        assert!(answers.ask((1, 1), &clock, || away.boxed()).now_or_never().is_none());
        drop(sender);
        while !answers.inner.lock().asking.is_empty() {
            tokio::task::yield_now().await;
        }
        assert_eq!(answers.remembered(1, clock.now().mono, TTL), Some(7));
    }

    #[tokio::test]
    async fn unknown_callers_neither_evict_nor_block_accepted_ones() {
        let (answers, clock) = (answers(2, 1, |value| *value > 0), Clock::manual(0));
        assert_eq!(answers.ask((1, 1), &clock, || at_once(7)).await, Ok(7));
        for key in 2..=9 {
            assert_eq!(answers.ask((key, key), &clock, || at_once(0)).await, Ok(0));
        }
        assert_eq!((answers.len(), answers.known(1, clock.now().mono)), (3, Some(7)));
        // A renewal has a place of its own.
        clock.advance(TTL);
        let (_sender, question) = later();
        let mut unknown = Box::pin(answers.ask((10, 10), &clock, || question));
        assert!(unknown.as_mut().now_or_never().is_none());
        assert_eq!(answers.ask((11, 11), &clock, || at_once(1)).await, Err(Unanswered::Full));
        assert_eq!(answers.ask((1, 1), &clock, || at_once(0)).await, Ok(0));
        // The caller is no longer accepted, and has no such place.
        clock.advance(TTL);
        assert_eq!(answers.ask((1, 1), &clock, || at_once(1)).await, Err(Unanswered::Full));
    }

    /// Fault: one caller without permissions could keep every new caller out.
    #[tokio::test]
    async fn a_caller_has_half_of_the_questions() {
        let (answers, clock) = (answers(9, 4, |value| *value > 0), Clock::manual(0));
        let mut waiting = Vec::new();
        for (key, caller, expected) in
            [(1, 7, true), (2, 7, true), (3, 7, false), (4, 8, true), (5, 9, true), (6, 8, false)]
        {
            let (sender, question) = later();
            let mut asking = Box::pin(answers.ask((key, caller), &clock, || question));
            let answer = asking.as_mut().now_or_never();
            assert_eq!(answer, (!expected).then_some(Err(Unanswered::Full)), "{key}");
            waiting.push((sender, asking));
        }
    }

    /// Faults: the renewals of one caller kept out all other callers, new ones and accepted ones.
    #[tokio::test]
    async fn a_caller_has_half_of_the_renewals() {
        let (answers, clock) = (answers(9, 2, |_| true), Clock::manual(0));
        for (key, caller) in [(1, 7), (2, 7), (3, 8), (4, 9)] {
            assert_eq!(answers.ask((key, caller), &clock, || at_once(1)).await, Ok(1));
        }
        clock.advance(TTL);
        let mut waiting = Vec::new();
        for (key, caller, expected) in
            [(1, 7, true), (2, 7, false), (5, 7, true), (6, 8, true), (3, 8, true), (4, 9, false), (8, 9, false)]
        {
            let (sender, question) = later();
            let mut asking = Box::pin(answers.ask((key, caller), &clock, || question));
            let answer = asking.as_mut().now_or_never();
            assert_eq!(answer, (!expected).then_some(Err(Unanswered::Full)), "{key}");
            waiting.push((sender, asking));
        }
    }
}
