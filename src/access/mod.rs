//! Authentication, authorisation, rate limits and fair queueing of requests. The layers that use them are in
//! `ingest/guard.rs`.
//!
//! A caller shows a client certificate, or a token that the apiserver reviews (TokenReview). A policy in the
//! configuration file authorises it, or the apiserver (SubjectAccessReview). Answers are cached, each question is in
//! flight once, and without an answer nothing is allowed, except reports of callers that it accepted before
//! (`auth.outageTTL`). Rate limits are those of the EventRateLimit admission plugin.
//! Running requests are shared fairly between callers.
//!
//! Tokens are neither logged nor stored: the cache has a hash of them under a secret of this process.

mod attributes;
mod binding;
mod cache;
mod caller;
mod limits;
mod metrics;
mod policy;
mod reviews;
mod fair_queue;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use serde_json::Value;
use smol_str::SmolStr;

pub use attributes::{Attributes, Target};
pub use binding::Binding;
pub(crate) use binding::SERVICE_ACCOUNT;
pub use caller::Caller;
pub(crate) use caller::{AUTHENTICATED, JWT, bearer, is_garbled};
pub(crate) use fair_queue::FairQueue;
pub use fair_queue::{Fairness, Turn};
pub use limits::{Kind, Limit};
pub use metrics::Metrics;
pub use policy::{Effect, Rule, VERBS};
pub use reviews::Review;

pub(crate) use binding::{Extent, check_operations, check_removals};
pub(crate) use cache::lru;
pub(crate) use limits::Write;

use cache::{Answers, Question, Unanswered, key};
use limits::Limits;
use metrics::{Identified, Judge, Method, Verdict};
use reviews::{Decision, NoAnswer};

use crate::clock::Clock;
use crate::correlator::{KeySecret, Pattern};
use crate::event::{ApiGroup, Event};
use crate::server::Peer;
use crate::status::Status;

/// LIMIT: cached accepted tokens, and as many refused ones; beyond it the least recently used one is evicted and
/// reviewed again.
const TOKENS_MAX: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();
/// LIMIT: cached permissions, and as many refusals; beyond it the least recently used one is evicted and reviewed
/// again.
const DECISIONS_MAX: NonZeroUsize = NonZeroUsize::new(100_000).unwrap();
/// LIMIT: questions of each kind in flight, and as many again that renew an accepting answer. Half of each are about one
/// caller's permissions. A request that needs another one is refused with 429.
const QUESTIONS_MAX: usize = 64;
/// LIMIT: bytes of a token; a longer one is refused without a review. Tokens of service accounts have about 2 KiB.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Path of admission reviews. `auth.allowPaths` never covers it, because its callers report events in the name of others.
pub(crate) const ADMISSION: &str = "/eventweir/v1/admit";
/// Longest time that a refused token is cached: a token may become valid.
const REFUSED_TTL: Duration = Duration::from_secs(5);

/// Settings of this module. Only the authenticators and [`AccessReview::is_on`] need a restart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// Whether client certificates, verified by the listener, authenticate callers. Default off.
    pub certificates: bool,
    /// Review of tokens.
    pub tokens: TokenReview,
    /// Whether requests without credentials are accepted as `system:anonymous`. Default off.
    pub anonymous: bool,
    /// Review of permissions.
    pub reviews: AccessReview,
    /// Policy; it decides before the apiserver.
    pub policy: Vec<Rule>,
    /// How long reports rely on expired answers while the apiserver is away.
    pub outage_ttl: OutageTtl,
    /// Paths that every authenticated caller may use. None of them leads to events.
    pub allow_paths: AllowPaths,
    /// Annotation of a new record that names the caller. Default none.
    pub annotation: Option<SmolStr>,
    /// Sources that callers may report.
    pub binding: Binding,
    /// Rate limits of writes.
    pub limits: Vec<Limit>,
    /// Fair queueing between callers.
    pub fairness: Fairness,
}

/// Time after their expiry in which accepting answers, about tokens and permissions, are still used for reports of
/// events, while the apiserver cannot be reached, is overloaded, or has an authoriser that fails. So an outage of it does
/// not refuse the events about it. Zero: never. Default 1 h.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutageTtl(pub Duration);

/// Paths that every authenticated caller may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowPaths(pub Vec<Pattern>);

/// Settings of TokenReviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenReview {
    /// Whether tokens are accepted. Default off.
    pub is_on: bool,
    /// Accepted audiences of a token. Default none: the apiserver's own.
    pub audiences: Vec<SmolStr>,
    /// Time that an accepted token is cached. Default 10 s, as in the apiserver.
    pub cache_ttl: Duration,
}

/// Settings of SubjectAccessReviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessReview {
    /// Whether the apiserver is asked. Default off.
    pub is_on: bool,
    /// Time that a permission is cached. Default 5 min.
    pub allow_ttl: Duration,
    /// Time that a refusal is cached. Default 30 s.
    pub deny_ttl: Duration,
}

impl Default for OutageTtl {
    fn default() -> Self {
        Self(Duration::from_secs(3600))
    }
}

impl Default for AllowPaths {
    /// Returns the paths of the cluster role `system:discovery`.
    fn default() -> Self {
        let exact = ["/api", "/apis", "/healthz", "/livez", "/openapi", "/readyz", "/version", "/version/"];
        let exact = exact.map(|path| Pattern::Exact(SmolStr::new_static(path)));
        let below = ["/api/", "/apis/", "/openapi/"].map(|path| Pattern::Prefix(SmolStr::new_static(path)));
        Self(exact.into_iter().chain(below).collect())
    }
}

impl Default for TokenReview {
    fn default() -> Self {
        Self { is_on: false, audiences: Vec::new(), cache_ttl: Duration::from_secs(10) }
    }
}

impl Default for AccessReview {
    fn default() -> Self {
        Self { is_on: false, allow_ttl: Duration::from_secs(300), deny_ttl: Duration::from_secs(30) }
    }
}

impl Settings {
    /// Returns how long a request relies on expired answers while the apiserver is away.
    fn grace(&self, purpose: Purpose) -> Duration {
        match purpose {
            Purpose::Report => self.outage_ttl.0,
            Purpose::Other => Duration::ZERO,
        }
    }

    /// Whether callers must authenticate.
    pub const fn authenticates(&self) -> bool {
        self.certificates || self.tokens.is_on
    }

    /// Whether requests need authorisation.
    pub const fn authorizes(&self) -> bool {
        self.reviews.is_on || !self.policy.is_empty()
    }
}

/// Purpose of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// It reports events. Only such requests rely on expired answers.
    Report,
    /// Anything else, above all reads.
    Other,
}

/// Function that sends a question to the apiserver and returns its answer or refusal.
pub type Ask = Arc<dyn Fn(Review, Value) -> BoxFuture<'static, Result<Value, Status>> + Send + Sync>;

/// Authenticates, authorises and limits requests. Clones share their state.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    live: ArcSwap<Live>,
    tokens: Arc<Answers<Option<Arc<Caller>>>>,
    decisions: Arc<Answers<Decision>>,
    turns: FairQueue,
    ask: Ask,
    clock: Clock,
    secret: KeySecret,
    metrics: Metrics,
    /// Code of the failure of each kind that was logged last; 0 after an answer. Only changes are logged.
    logged: Arc<[AtomicU16; Review::ALL.len()]>,
}

/// State that a reload replaces.
struct Live {
    settings: Settings,
    limits: Arc<Limits>,
}

impl Access {
    /// Creates the state for these settings.
    pub fn new(settings: Settings, ask: Ask, clock: Clock, secret: KeySecret, metrics: Metrics) -> Self {
        let turns = FairQueue::new(settings.fairness, metrics.gauges());
        let limits = Arc::new(Limits::new(settings.limits.clone(), clock.clone()));
        Self(Arc::new(Inner {
            live: ArcSwap::from_pointee(Live { settings, limits }),
            tokens: Answers::new(TOKENS_MAX, QUESTIONS_MAX, Option::is_some),
            decisions: Answers::new(DECISIONS_MAX, QUESTIONS_MAX, |decision| decision.allowed),
            turns,
            ask,
            clock,
            secret,
            metrics,
            logged: Arc::default(),
        }))
    }

    /// Applies those new settings that need no restart. If the limits are equal, their budgets stay.
    pub fn reload(&self, new: &Settings) {
        let old = self.0.live.load();
        let settings = Settings {
            certificates: old.settings.certificates,
            tokens: old.settings.tokens.clone(),
            anonymous: old.settings.anonymous,
            reviews: old.settings.reviews.clone(),
            ..new.clone()
        };
        let limits = if old.settings.limits == settings.limits {
            Arc::clone(&old.limits)
        } else {
            Arc::new(Limits::new(settings.limits.clone(), self.0.clock.clone()))
        };
        self.0.turns.set(settings.fairness);
        self.0.live.store(Arc::new(Live { settings, limits }));
    }

    /// Whether callers must authenticate.
    pub fn authenticates(&self) -> bool {
        self.0.live.load().settings.authenticates()
    }

    /// Whether new settings would let every authenticated caller do everything, unlike the active ones: a file may have
    /// been read while it was written.
    pub fn would_open(&self, new: &Settings) -> bool {
        let old = &self.0.live.load().settings;
        old.authenticates() && !old.reviews.is_on && !old.policy.is_empty() && new.policy.is_empty()
    }

    /// Identifies the caller of a request by its connection and its headers.
    ///
    /// # Errors
    /// 401 in the apiserver's words; 429 when too many tokens are being reviewed, and 503 when the apiserver does not
    /// answer, both with `Retry-After`.
    pub async fn identify(&self, peer: Option<&Peer>, headers: &HeaderMap, purpose: Purpose) -> Result<Caller, Status> {
        let live = self.0.live.load_full();
        let (method, result) = self.identified(&live, peer, headers, purpose).await;
        let (counted, result) = match result {
            Ok(Some(caller)) => (Identified::Accepted, Ok(caller)),
            Ok(None) => (Identified::Refused, Err(Status::new(401, "Unauthorized", "Unauthorized"))),
            Err(Unanswered::Full) => (Identified::Limited, Err(busy("tokens"))),
            Err(unanswered @ (Unanswered::Away | Unanswered::Unevaluated | Unanswered::Fault)) => {
                let message = match unanswered {
                    Unanswered::Fault => "the token could not be reviewed; eventweir's log has the API server's answer",
                    _ => "the token could not be reviewed, because the API server does not answer",
                };
                (Identified::Unanswered, Err(Status::new(503, "ServiceUnavailable", message).with_retry_after(1)))
            }
        };
        self.0.metrics.count_identified(method, counted);
        result
    }

    /// Returns the caller from the first authenticator that knows it, as the apiserver does. A request with an invalid
    /// token or an expired certificate is never anonymous.
    async fn identified(
        &self,
        live: &Arc<Live>,
        peer: Option<&Peer>,
        headers: &HeaderMap,
        purpose: Purpose,
    ) -> (Method, Result<Option<Caller>, Unanswered>) {
        let settings = &live.settings;
        let certificate = peer.and_then(|peer| peer.certificate.as_ref()).filter(|_| settings.certificates);
        let now = self.0.clock.now().wall_seconds();
        // The certificate was valid when the connection began.
        let is_expired = certificate.is_some_and(|certificate| certificate.expires < now);
        if let Some(caller) = certificate.filter(|_| !is_expired).and_then(Caller::of_certificate) {
            return (Method::Certificate, Ok(Some(caller)));
        }
        match caller::bearer(headers).filter(|_| settings.tokens.is_on) {
            Some(token) => {
                let caller = self.caller_of(live, token, purpose).await;
                (Method::Token, caller.map(|caller| caller.map(|caller| Caller::clone(&caller))))
            }
            None if is_expired => (Method::Certificate, Ok(None)),
            None if settings.anonymous => (Method::Anonymous, Ok(Some(Caller::anonymous()))),
            None => (Method::None, Ok(None)),
        }
    }

    /// Returns the caller of a token; `None` if it is not valid.
    async fn caller_of(
        &self,
        live: &Arc<Live>,
        token: &str,
        purpose: Purpose,
    ) -> Result<Option<Arc<Caller>>, Unanswered> {
        if token.len() > TOKEN_BYTES_MAX || is_garbled(token) {
            return Ok(None);
        }
        let now = self.0.clock.now().wall_seconds();
        let longest = live.settings.grace(purpose);
        let is_expired = || caller::expiry(token).is_some_and(|expiry| expiry <= now);
        let grace = || if is_expired() { Duration::ZERO } else { longest };
        let (live, asked) = (Arc::clone(live), Arc::clone(live));
        let question = move || reviews::token_question(token, &asked.settings.tokens.audiences);
        let read = move |answer| {
            let TokenReview { audiences, cache_ttl, .. } = &live.settings.tokens;
            let caller = reviews::caller(answer, audiences)?.map(Arc::new);
            let ttl = if caller.is_some() { *cache_ttl } else { REFUSED_TTL.min(*cache_ttl) };
            Ok((caller, ttl))
        };
        let key = key(self.0.secret, token);
        self.cached(Review::Token, &self.0.tokens, (key, || key, || None), grace, question, read).await
    }

    /// Checks that the caller may do what it asks.
    ///
    /// # Errors
    /// 403 in the apiserver's words; 500 as the apiserver's when the question has no answer, and 429 when too many are
    /// in flight, both with `Retry-After`.
    pub async fn authorize(&self, caller: &Caller, attributes: &Attributes) -> Result<(), Status> {
        let live = self.0.live.load_full();
        let settings = &live.settings;
        if !settings.authenticates() || !settings.authorizes() {
            return Ok(());
        }
        let allowed = (Verdict::Allowed, Ok(()));
        let denied = |reason: &str| (Verdict::Denied, Err(attributes.forbidden(&caller.name, reason)));
        let is_allowed_path = matches!(&attributes.target, Target::Path(path)
            if path.trim_end_matches('/') != ADMISSION
                && settings.allow_paths.0.iter().any(|allowed| allowed.matches(path)));
        let (judge, (verdict, result)) = if is_allowed_path {
            (Judge::Paths, allowed)
        } else {
            match policy::decide(&settings.policy, caller, attributes) {
                Some(Effect::Allow) => (Judge::Policy, allowed),
                None if settings.reviews.is_on => {
                    let reviewed = match self.review(settings, caller, attributes).await {
                        Ok(Decision { allowed: true, .. }) => allowed,
                        Ok(Decision { allowed: false, reason }) => denied(&reason),
                        Err(Unanswered::Full) => (Verdict::Limited, Err(busy("permissions"))),
                        Err(Unanswered::Away | Unanswered::Unevaluated | Unanswered::Fault) => {
                            let message =
                                "Internal error occurred: the API server does not answer whether this is allowed";
                            let refusal = Status::new(500, "InternalError", message).with_retry_after(1);
                            (Verdict::Unanswered, Err(refusal))
                        }
                    };
                    (Judge::Review, reviewed)
                }
                Some(Effect::Deny) | None => (Judge::Policy, denied("")),
            }
        };
        self.0.metrics.count_decision(judge, verdict);
        result
    }

    /// Asks whether the caller may do what it asks. First requests a permission for all names. It covers each name, so
    /// that not every patched event needs a review. In an outage, an accepting answer about the name is sufficient.
    async fn review(
        &self,
        settings: &Settings,
        caller: &Caller,
        attributes: &Attributes,
    ) -> Result<Decision, Unanswered> {
        if let Some(any) = attributes.of_any_name() {
            let decision = self.decision(settings, caller, &any, Some(attributes)).await?;
            if decision.allowed {
                return Ok(decision);
            }
        }
        self.decision(settings, caller, attributes, None).await
    }

    /// Returns the decision about a permission. In an outage, an accepting one about `instead` is used too.
    async fn decision(
        &self,
        settings: &Settings,
        caller: &Caller,
        attributes: &Attributes,
        instead: Option<&Attributes>,
    ) -> Result<Decision, Unanswered> {
        let about = |attributes| key(self.0.secret, (caller, attributes));
        let instead = || instead.map(about);
        let AccessReview { allow_ttl, deny_ttl, .. } = settings.reviews;
        let grace = || settings.grace(attributes.purpose());
        let question = || reviews::access_question(caller, attributes);
        let read = move |answer| {
            let decision = reviews::decision(answer)?;
            let ttl = if decision.allowed { allow_ttl } else { deny_ttl };
            Ok((decision, ttl))
        };
        // By its name: each token of a service account has other details.
        let keys = (about(attributes), || key(self.0.secret, &caller.name), instead);
        self.cached(Review::Access, &self.0.decisions, keys, grace, question, read).await
    }

    /// Returns the cached answer to a question, or asks the apiserver. While that is away, an accepting answer is used
    /// for `grace` longer, and also that to the question with the key `instead`. `read` decodes the apiserver's answer
    /// and sets the time to live.
    async fn cached<V: Clone + Send + Sync + 'static>(
        &self,
        review: Review,
        answers: &Arc<Answers<V>>,
        (key, caller, instead): (u128, impl FnOnce() -> u128, impl Fn() -> Option<u128>),
        grace: impl FnOnce() -> Duration,
        question: impl FnOnce() -> Value,
        read: impl FnOnce(Value) -> Result<(V, Duration), NoAnswer> + Send + 'static,
    ) -> Result<V, Unanswered> {
        let metrics = &self.0.metrics;
        let now = self.0.clock.now().mono;
        if let Some(answer) = answers.known(key, now) {
            metrics.count_hit(review);
            return Ok(answer);
        }
        let grace = grace();
        let either = |kept: &dyn Fn(u128) -> Option<V>| kept(key).or_else(|| kept(instead()?));
        if let Some(answer) = either(&|key| answers.remembered(key, now, grace)) {
            metrics.count_expired(review);
            return Ok(answer);
        }
        metrics.count_miss(review, answers.len());
        match answers.ask((key, caller()), &self.0.clock, || self.asking(review, question(), read)).await {
            Err(unanswered @ (Unanswered::Away | Unanswered::Unevaluated)) => {
                let now = self.0.clock.now().mono;
                let expired = either(&|key| answers.expired(key, now, grace)).ok_or(unanswered)?;
                metrics.count_expired(review);
                Ok(expired)
            }
            answered => answered,
        }
    }

    /// Sends a question to the apiserver and decodes the answer. Logs a failure, but not the question.
    fn asking<V: Send + 'static>(
        &self,
        review: Review,
        question: Value,
        read: impl FnOnce(Value) -> Result<(V, Duration), NoAnswer> + Send + 'static,
    ) -> Question<V> {
        let token = question["spec"]["token"].as_str().map(str::to_owned);
        let (asking, clock, metrics) = ((self.0.ask)(review, question), self.0.clock.clone(), self.0.metrics.clone());
        let logged = Arc::clone(&self.0.logged);
        async move {
            let started = clock.now().mono;
            let answer = asking.await;
            metrics.observe_review(review, clock.now().mono.since(started));
            let (failure, unanswered) = match answer.map(read) {
                Ok(Ok(answer)) => {
                    if logged[review as usize].swap(0, Ordering::Relaxed) != 0 {
                        tracing::info!(review = review.label(), "the API server answers reviews again");
                    }
                    return Ok(answer);
                }
                Ok(Err(no_answer)) => no_answer,
                Err(status) if status.code >= 500 || status.code == 429 => (status, Unanswered::Away),
                Err(status) => (status, Unanswered::Fault),
            };
            reviews::log_failure(review, &failure, token.as_deref(), &logged[review as usize]);
            Err(unanswered)
        }
        .boxed()
    }

    /// Waits for a place among the running requests.
    ///
    /// # Errors
    /// 429 with `Retry-After` when too many requests wait.
    pub async fn turn(&self, caller: &Caller) -> Result<Turn, Status> {
        let full = "Too many requests: the queue of this user is full, please try again later";
        self.0.turns.take(&caller.name).await.map_err(|_crowded| self.without_turn(full))
    }

    /// Counts a request that gets no place, and returns its refusal.
    pub(crate) fn without_turn(&self, message: &'static str) -> Status {
        self.0.metrics.count_crowded();
        Status::too_many_requests(message, 1)
    }

    /// Whether the sources of this caller are checked.
    pub(crate) fn binds(&self, caller: &Caller) -> bool {
        self.0.live.load().settings.binding.binds(caller)
    }

    /// Checks that the caller may report the event's source.
    ///
    /// # Errors
    /// 403 with a cause that names the field.
    pub(crate) fn check_source(
        &self,
        caller: &Caller,
        group: ApiGroup,
        event: &Event,
        extent: Extent,
    ) -> Result<(), Status> {
        let live = self.0.live.load();
        let binding = &live.settings.binding;
        let checked = binding.check(caller, group, event, extent);
        if binding.binds(caller) {
            let verdict = if checked.is_ok() { Verdict::Allowed } else { Verdict::Denied };
            self.0.metrics.count_decision(Judge::Source, verdict);
        }
        checked
    }

    /// Returns the annotation that names the caller of a new record.
    pub(crate) fn annotation(&self) -> Option<SmolStr> {
        self.0.live.load().settings.annotation.clone()
    }

    /// Takes a token for a write from the budget of each limit.
    ///
    /// # Errors
    /// 429 in the words of the EventRateLimit plugin, with `Retry-After`.
    pub(crate) fn limit(&self, write: Write<'_>) -> Result<(), Status> {
        self.0.live.load().limits.take(write, |kind| self.0.metrics.count_limited(kind))
    }
}

/// Returns a 429: too many questions are in flight.
fn busy(what: &str) -> Status {
    let message = format!("Too many requests: too many {what} are being reviewed, please try again later");
    Status::too_many_requests(message, 1)
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("authenticates", &self.authenticates()).finish_non_exhaustive()
    }
}
