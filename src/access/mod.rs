//! Who calls, whether they may, and how much: what each request passes before a handler sees it.
//!
//! A caller is known by a client certificate or by a token, about which the apiserver is asked (TokenReview). A policy
//! in the configuration file decides what it may do, or the apiserver (SubjectAccessReview). Answers are cached, each
//! question is in flight once, and without an answer nothing is allowed. Limits on writes are those of the
//! EventRateLimit admission plugin; places among the requests that run go round between callers. The layers that use
//! this are in `ingest/guard.rs`.
//!
//! Tokens are neither logged nor kept: a cache knows them by a hash under a secret of this process.

mod access_review;
mod attributes;
mod binding;
mod cache;
mod caller;
mod key;
mod limits;
mod metrics;
mod policy;
mod token_review;
mod turns;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use serde_json::Value;
use smol_str::SmolStr;

pub use attributes::{Attributes, Target};
pub use binding::Binding;
pub use caller::Caller;
pub use limits::{Kind, Limit};
pub use metrics::Metrics;
pub use policy::{Effect, Rule, VERBS};
pub use turns::{Fairness, Turn};

pub(crate) use binding::{Extent, check_operations};
pub(crate) use limits::Write;

use access_review::Decision;
use cache::{Answers, Question, Unanswered};
use key::Key;
use limits::Limits;
use metrics::{Identified, Judge, Method, Verdict};
use turns::Turns;

use crate::clock::Clock;
use crate::correlator::{KeySecret, Pattern};
use crate::event::{ApiGroup, Event};
use crate::server::Peer;
use crate::status::Status;

/// LIMIT: tokens that are accepted, and as many that are refused, whose answers are remembered; beyond it the one used
/// least recently is asked about again.
const TOKENS_MAX: usize = 10_000;
/// LIMIT: permissions, and as many refusals, that are remembered; beyond it the one used least recently is asked for again.
const DECISIONS_MAX: usize = 100_000;
/// LIMIT: questions of each kind in flight at once, and as many again that renew what was accepted before; a request that
/// would need another one is refused with 429.
const QUESTIONS_MAX: usize = 64;
/// LIMIT: bytes of a token; a longer one is refused unasked. The largest of service accounts have about 2 KiB.
const TOKEN_BYTES_MAX: usize = 16 << 10;
/// Longest time that a refusal of a token is kept: a token may become valid.
const REFUSED_TTL: Duration = Duration::from_secs(5);

/// Settings of this part. Only the authenticators and [`AccessReview::is_on`] need a restart.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    /// Whether callers may show a client certificate, which the listener has verified. Default off.
    pub certificates: bool,
    /// Whether and how tokens are accepted.
    pub tokens: TokenReview,
    /// Whether requests without credentials are accepted, as `system:anonymous`. Default off.
    pub anonymous: bool,
    /// Whether and how the apiserver is asked what a caller may do.
    pub reviews: AccessReview,
    /// What callers may do; asked before the apiserver.
    pub policy: Vec<Rule>,
    /// Paths that every known caller may use; they lead to no event.
    pub allow_paths: AllowPaths,
    /// The annotation of a new record that names the caller. Default none.
    pub annotation: Option<SmolStr>,
    /// Which sources callers may report as.
    pub binding: Binding,
    /// How many writes are taken.
    pub limits: Vec<Limit>,
    /// How requests that run are shared between callers.
    pub fairness: Fairness,
}

/// Paths that every known caller may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowPaths(pub Vec<Pattern>);

/// Settings of TokenReviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenReview {
    /// Whether tokens are accepted. Default off.
    pub is_on: bool,
    /// Audiences of which a token must name one. Default none: the apiserver's own.
    pub audiences: Vec<SmolStr>,
    /// How long the caller of a token is kept. Default 10 s, as the apiserver.
    pub cache_ttl: Duration,
}

/// Settings of SubjectAccessReviews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessReview {
    /// Whether the apiserver is asked. Default off.
    pub is_on: bool,
    /// How long a permission is kept. Default 5 min.
    pub allow_ttl: Duration,
    /// How long a refusal is kept. Default 30 s.
    pub deny_ttl: Duration,
}

impl Default for AllowPaths {
    /// Those of the cluster role `system:discovery`.
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
    /// Whether callers have to show who they are.
    #[must_use]
    pub const fn authenticates(&self) -> bool {
        self.certificates || self.tokens.is_on
    }

    /// Whether it matters what a caller may do.
    #[must_use]
    pub const fn authorizes(&self) -> bool {
        self.reviews.is_on || !self.policy.is_empty()
    }
}

/// A kind of question to the apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Review {
    /// Whose token it is: TokenReview.
    Token,
    /// Whether a caller may: SubjectAccessReview.
    Access,
}

impl Review {
    const ALL: [Self; 2] = [Self::Token, Self::Access];

    /// Where the apiserver takes it.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Token => "/apis/authentication.k8s.io/v1/tokenreviews",
            Self::Access => "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        }
    }

    /// The metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Access => "access",
        }
    }
}

/// Asks the apiserver: the answer, or its refusal.
pub type Ask = Arc<dyn Fn(Review, Value) -> BoxFuture<'static, Result<Value, Status>> + Send + Sync>;

/// Decides about requests; clones share everything.
#[derive(Clone)]
pub struct Access(Arc<Inner>);

struct Inner {
    /// Whether callers are known at all.
    authenticates: bool,
    live: ArcSwap<Live>,
    tokens: Arc<Answers<Option<Arc<Caller>>>>,
    decisions: Arc<Answers<Decision>>,
    turns: Turns,
    ask: Ask,
    clock: Clock,
    secret: KeySecret,
    metrics: Metrics,
    /// Whether the newest review had no answer; the log tells of changes.
    is_unanswered: Arc<AtomicBool>,
}

/// What a reload replaces.
struct Live {
    settings: Settings,
    limits: Arc<Limits>,
}

impl Access {
    /// Decides by these settings.
    #[must_use]
    pub fn new(settings: Settings, ask: Ask, clock: Clock, secret: KeySecret, metrics: Metrics) -> Self {
        let turns = Turns::new(settings.fairness, metrics.gauges());
        let limits = Arc::new(Limits::new(settings.limits.clone(), clock.clone()));
        Self(Arc::new(Inner {
            authenticates: settings.authenticates(),
            live: ArcSwap::from_pointee(Live { settings, limits }),
            tokens: Answers::new(TOKENS_MAX, QUESTIONS_MAX, Option::is_some),
            decisions: Answers::new(DECISIONS_MAX, QUESTIONS_MAX, |decision| decision.allowed),
            turns,
            ask,
            clock,
            secret,
            metrics,
            is_unanswered: Arc::default(),
        }))
    }

    /// Takes over new settings, as far as they do not need a restart. Budgets stay where the limits are the same.
    pub fn reload(&self, new: &Settings) {
        let old = self.0.live.load();
        let settings = Settings {
            certificates: old.settings.certificates,
            tokens: old.settings.tokens.clone(),
            anonymous: old.settings.anonymous,
            reviews: old.settings.reviews.clone(),
            ..new.clone()
        };
        let limits = if old.limits.settings() == settings.limits {
            Arc::clone(&old.limits)
        } else {
            Arc::new(Limits::new(settings.limits.clone(), self.0.clock.clone()))
        };
        self.0.turns.set(settings.fairness);
        self.0.live.store(Arc::new(Live { settings, limits }));
    }

    /// Whether callers have to show who they are.
    #[must_use]
    pub fn authenticates(&self) -> bool {
        self.0.authenticates
    }

    /// Who sent a request, by its connection and its head.
    ///
    /// # Errors
    /// 401 in the apiserver's words; 429 when too many tokens are asked about, and 503 when the apiserver does not
    /// answer, both with `Retry-After`.
    pub async fn identify(&self, peer: Option<&Peer>, headers: &HeaderMap) -> Result<Caller, Status> {
        let live = self.0.live.load_full();
        let (method, result) = self.identified(&live.settings, peer, headers).await;
        let (counted, result) = match result {
            Ok(Some(caller)) => (Identified::Accepted, Ok(caller)),
            Ok(None) => (Identified::Refused, Err(Status::new(401, "Unauthorized", "Unauthorized"))),
            Err(Unanswered::Full) => (Identified::Limited, Err(busy("tokens"))),
            Err(Unanswered::Fault(_)) => {
                let message = "the token could not be reviewed, because the apiserver does not answer";
                let mut status = Status::too_many_requests(message, 1);
                (status.code, status.reason) = (503, "ServiceUnavailable".to_owned());
                (Identified::Unanswered, Err(status))
            }
        };
        self.0.metrics.count_identified(method, counted);
        result
    }

    /// As the apiserver's chain: the first authenticator that knows the caller; a token that is not valid and a
    /// certificate that has expired are never anonymous.
    async fn identified(
        &self,
        settings: &Settings,
        peer: Option<&Peer>,
        headers: &HeaderMap,
    ) -> (Method, Result<Option<Caller>, Unanswered>) {
        let certificate = peer.and_then(|peer| peer.certificate.as_ref()).filter(|_| settings.certificates);
        let now = self.0.clock.now().wall_seconds();
        // It was good when the connection began.
        let is_expired = certificate.is_some_and(|certificate| certificate.expires < now);
        if let Some(caller) = certificate.filter(|_| !is_expired).and_then(Caller::of_certificate) {
            return (Method::Certificate, Ok(Some(caller)));
        }
        match caller::bearer(headers).filter(|_| settings.tokens.is_on) {
            Some(token) => {
                let caller = self.caller_of(&settings.tokens, token).await;
                (Method::Token, caller.map(|caller| caller.map(|caller| Caller::clone(&caller))))
            }
            None if is_expired => (Method::Certificate, Ok(None)),
            None if settings.anonymous => (Method::Anonymous, Ok(Some(Caller::anonymous()))),
            None => (Method::None, Ok(None)),
        }
    }

    /// Whose token it is.
    async fn caller_of(&self, settings: &TokenReview, token: &str) -> Result<Option<Arc<Caller>>, Unanswered> {
        if token.len() > TOKEN_BYTES_MAX {
            return Ok(None);
        }
        let mut key = Key::new(self.0.secret);
        key.add(token);
        let (key, metrics, tokens) = (key.finish(), &self.0.metrics, &self.0.tokens);
        if let Some(caller) = tokens.known(key, self.0.clock.now().mono) {
            metrics.count_hit(Review::Token);
            return Ok(caller);
        }
        metrics.count_miss(Review::Token, tokens.len());
        let question = || -> Question<Option<Arc<Caller>>> {
            let TokenReview { audiences, cache_ttl, .. } = settings.clone();
            let asking = self.asking(Review::Token, token_review::question(token, &audiences));
            async move {
                let caller = token_review::caller(asking.await?, &audiences).map_err(|fault| unreadable(&fault))?;
                let ttl = if caller.is_some() { cache_ttl } else { cache_ttl.min(REFUSED_TTL) };
                Ok((caller.map(Arc::new), ttl))
            }
            .boxed()
        };
        tokens.ask(key, &self.0.clock, question).await
    }

    /// Decides whether the caller may do what it asks.
    ///
    /// # Errors
    /// 403 in the apiserver's words; 500 as the apiserver's when the question has no answer, and 429 when too many are
    /// in flight, both with `Retry-After`.
    pub async fn authorize(&self, caller: &Caller, attributes: &Attributes) -> Result<(), Status> {
        let live = self.0.live.load_full();
        let settings = &live.settings;
        if !self.0.authenticates || !settings.authorizes() {
            return Ok(());
        }
        let count = |by, verdict| self.0.metrics.count_decision(by, verdict);
        if let Target::Path(path) = &attributes.target
            && settings.allow_paths.0.iter().any(|allowed| allowed.matches(path))
        {
            count(Judge::Paths, Verdict::Allowed);
            return Ok(());
        }
        match policy::decide(&settings.policy, caller, attributes) {
            Some(Effect::Allow) => {
                count(Judge::Policy, Verdict::Allowed);
                return Ok(());
            }
            None if settings.reviews.is_on => {}
            Some(Effect::Deny) | None => {
                count(Judge::Policy, Verdict::Denied);
                return Err(attributes.forbidden(&caller.name, ""));
            }
        }
        match self.review(&settings.reviews, caller, attributes).await {
            Ok(Decision { allowed: true, .. }) => {
                count(Judge::Review, Verdict::Allowed);
                Ok(())
            }
            Ok(Decision { allowed: false, reason }) => {
                count(Judge::Review, Verdict::Denied);
                Err(attributes.forbidden(&caller.name, &reason))
            }
            Err(Unanswered::Full) => {
                count(Judge::Review, Verdict::Limited);
                Err(busy("permissions"))
            }
            Err(Unanswered::Fault(_)) => {
                count(Judge::Review, Verdict::Unanswered);
                let message = "Internal error occurred: the apiserver does not answer whether this is allowed";
                let mut status = Status::too_many_requests(message, 1);
                (status.code, status.reason) = (500, "InternalError".to_owned());
                Err(status)
            }
        }
    }

    /// Asks whether the caller may. First for all names, because a permission without names covers each: otherwise each
    /// event that is patched would be a question.
    async fn review(
        &self,
        settings: &AccessReview,
        caller: &Caller,
        attributes: &Attributes,
    ) -> Result<Decision, Unanswered> {
        if let Some(any) = attributes.of_any_name() {
            let decision = self.decision(settings, caller, &any).await?;
            if decision.allowed {
                return Ok(decision);
            }
        }
        self.decision(settings, caller, attributes).await
    }

    async fn decision(
        &self,
        settings: &AccessReview,
        caller: &Caller,
        attributes: &Attributes,
    ) -> Result<Decision, Unanswered> {
        let mut key = Key::new(self.0.secret);
        caller.add_to(&mut key);
        attributes.add_to(&mut key);
        let (key, metrics, decisions) = (key.finish(), &self.0.metrics, &self.0.decisions);
        if let Some(decision) = decisions.known(key, self.0.clock.now().mono) {
            metrics.count_hit(Review::Access);
            return Ok(decision);
        }
        metrics.count_miss(Review::Access, decisions.len());
        let question = || -> Question<Decision> {
            let AccessReview { allow_ttl, deny_ttl, .. } = *settings;
            let asking = self.asking(Review::Access, access_review::question(caller, attributes));
            async move {
                let decision = access_review::decision(asking.await?).map_err(|fault| unreadable(&fault))?;
                let ttl = if decision.allowed { allow_ttl } else { deny_ttl };
                Ok((decision, ttl))
            }
            .boxed()
        };
        decisions.ask(key, &self.0.clock, question).await
    }

    /// A question to the apiserver, on its way. The log has its failure, but neither question nor answer.
    fn asking(&self, review: Review, question: Value) -> BoxFuture<'static, Result<Value, Unanswered>> {
        let (asking, clock, metrics) = ((self.0.ask)(review, question), self.0.clock.clone(), self.0.metrics.clone());
        let is_unanswered = Arc::clone(&self.0.is_unanswered);
        async move {
            let started = clock.now().mono;
            let answer = asking.await;
            metrics.observe_review(review, clock.now().mono.since(started));
            match answer {
                Ok(answer) => {
                    if is_unanswered.swap(false, Ordering::Relaxed) {
                        tracing::info!("the apiserver answers reviews again");
                    }
                    Ok(answer)
                }
                Err(Status { code, reason, .. }) => {
                    if !is_unanswered.swap(true, Ordering::Relaxed) {
                        // Not the message, which may repeat what was asked.
                        tracing::warn!(review = review.label(), code, reason, "the apiserver does not answer reviews");
                    }
                    Err(Unanswered::Fault(reason.into()))
                }
            }
        }
        .boxed()
    }

    /// Waits for a place among the requests that run.
    ///
    /// # Errors
    /// 429 with `Retry-After` when too many requests wait.
    pub async fn turn(&self, caller: &Caller) -> Result<Turn, Status> {
        self.0.turns.take(&caller.name).await.map_err(|_crowded| {
            self.0.metrics.count_crowded();
            Status::too_many_requests("Too many requests: the queue of this user is full, please try again later", 1)
        })
    }

    /// Whether the sources of this caller's events are checked.
    pub(crate) fn binds(&self, caller: &Caller) -> bool {
        self.0.live.load().settings.binding.binds(caller)
    }

    /// Checks that the caller may report as the event's source.
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

    /// The annotation that names the caller of a new record.
    pub(crate) fn annotation(&self) -> Option<SmolStr> {
        self.0.live.load().settings.annotation.clone()
    }

    /// Takes a token from each limit for a write.
    ///
    /// # Errors
    /// 429 in the words of the EventRateLimit plugin, with `Retry-After`.
    pub(crate) fn limit(&self, write: Write<'_>) -> Result<(), Status> {
        self.0.live.load().limits.take(write, |kind| self.0.metrics.count_limited(kind))
    }
}

/// 429 while too many questions are in flight.
fn busy(what: &str) -> Status {
    Status::too_many_requests(
        format!("Too many requests: too many {what} are being reviewed, please try again later"),
        1,
    )
}

fn unreadable(fault: &serde_json::Error) -> Unanswered {
    // Where it is wrong, not what it says.
    tracing::debug!(line = fault.line(), column = fault.column(), "a review's answer cannot be read");
    Unanswered::Fault("the answer cannot be read".into())
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("authenticates", &self.0.authenticates).finish_non_exhaustive()
    }
}
