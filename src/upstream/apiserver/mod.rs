//! The real kube-apiserver. Configuration, TLS and credentials are kube's; connections, requests and answers are ours, so that
//! HTTP/2 is spoken, bodies are byte for byte what client-go sends, and headers such as `Retry-After` are seen.
//!
//! Hot: hundreds of writes a second, each of which takes as long as some events. A request lies in one piece by itself (`Sending`),
//! since what is moved within futures lies in them twice, at each level of them, and goes straight to the transport:
//! `kube::Client` would hand it to a task of its own first.
//!
//! Every event is written through the group that the outbox names, by default core/v1, as client-go's recorder does. Each request is sent once: the outbox repeats.
//! After `k8s.io/client-go/kubernetes/typed/core/v1/event_expansion.go`.

mod connect;
mod forward;
mod history;
mod patch;
mod request;
#[cfg(test)]
mod tests;
mod verbs;
mod watch;
mod token;
mod transport;
#[cfg(test)]
mod transport_tests;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use futures_util::TryFutureExt as _;
use http::response::Parts;
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use serde_json::Value;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

pub use connect::{Error, Settings};
pub use forward::{Forwarder, Outgoing, Seat, Unanswered};
pub use history::News;
pub use watch::Frames;

use super::answer::{Denial, Failure, judge, status_of};
use super::{ListOptions, Metrics, NotReady, Verb};
use crate::clock::Clock;
use crate::event::core_v1::{self, EventList};
use crate::event::json;
use crate::event::{ApiGroup, Event, events_v1, spelling};
use crate::outbox::{Answer, Request};
use crate::status::Status;

/// LIMIT: bytes of an answer with one event, or with a Status. Longer ones are not read: the answer counts as unreadable.
const BODY_BYTES_MAX: usize = 4 << 20;
/// LIMIT: bytes of an answer with a list. Ask with a limit of 500, as kubectl does.
const LIST_BYTES_MAX: usize = 16 << 20;

/// What requests are handed to.
type Exchange = BoxCloneSyncService<http::Request<Body>, Response<AnswerBody>, BoxError>;

/// An answer's body, as it comes.
type AnswerBody = UnsyncBoxBody<Bytes, BrokenOff>;

/// An answer ended before its end.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BrokenOff(#[source] BoxError);

/// A request on its way.
type Sending = Pin<Box<dyn Future<Output = Result<(Parts, Bytes), Failure>> + Send>>;

/// A kube-apiserver as an upstream; clones share its connections.
#[derive(Clone)]
pub struct Apiserver {
    exchange: Exchange,
    timeout: std::time::Duration,
    /// The API group that clients' reads and deletions go through.
    group: ApiGroup,
    clock: Clock,
    metrics: Metrics,
    /// Sends clients' requests on; absent where a service leads to the apiserver.
    forwarder: Option<Forwarder>,
    /// What happened to the newest request that is worth repeating; for the log.
    fault: Arc<ArcSwapOption<String>>,
}

impl Apiserver {
    /// Reads the configuration that `settings` name and prepares a client. Nothing is sent yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the configuration cannot be read or does not make a client.
    pub async fn connect(settings: &Settings, clock: Clock, metrics: Metrics) -> Result<Self, Error> {
        let forwarder = Some(Forwarder::new(settings).await?);
        let behind = Self::behind(connect::service(settings, &clock).await?, settings, clock, metrics);
        Ok(Self { forwarder, ..behind })
    }

    /// An apiserver that any service leads to. Of `settings` only those of requests count.
    #[must_use]
    pub fn behind<S, B>(service: S, settings: &Settings, clock: Clock, metrics: Metrics) -> Self
    where
        S: Service<http::Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let service = service.map_response(|answer| answer.map(boxed)).map_err(Into::into);
        let (timeout, group) = (settings.timeout, settings.group);
        Self {
            exchange: Exchange::new(service),
            timeout,
            group,
            clock,
            metrics,
            forwarder: None,
            fault: Arc::default(),
        }
    }

    /// Sends what a record needs, once, and sorts the answer.
    pub async fn write(&self, request: &Request) -> Answer {
        let verb = Verb::of(request);
        let group = match request {
            Request::Create { group, .. } | Request::Patch { group, .. } | Request::Read { group, .. } => *group,
            Request::Delete { .. } => {
                let gone =
                    self.exchange(verb, request::of_write(request), BODY_BYTES_MAX, |_| Ok::<_, String>(())).await;
                return gone.map_or_else(|failure| judge(verb, &failure), |()| Answer::Missing);
            }
        };
        match self.exchange_event(group, verb, request::of_write(request)).await {
            Ok(event) => Answer::Stored(Box::new(event)),
            Err(failure) => judge(verb, &failure),
        }
    }

    /// What sends clients' requests on, without our credentials.
    #[must_use]
    pub const fn forwarder(&self) -> Option<&Forwarder> {
        self.forwarder.as_ref()
    }

    /// What happened to the newest request that is worth repeating, in words for a log.
    #[must_use]
    pub fn newest_fault(&self) -> Option<Arc<String>> {
        self.fault.load_full()
    }

    /// Reads one event.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Event, Status> {
        self.exchange_event(self.group, Verb::Get, request::get(self.group, namespace, name)).await.map_err(status_of)
    }

    /// Reads one event from a state that is not older than this version; 0 for any.
    ///
    /// # Errors
    /// As [`Self::get`], and the apiserver's 504 when it has not reached the version yet.
    pub async fn get_not_older(&self, namespace: &str, name: &str, version: u64) -> Result<Event, Status> {
        let request = request::get_not_older(self.group, namespace, name, version);
        self.exchange_event(self.group, Verb::Get, request).await.map_err(status_of)
    }

    /// Shows what a create would store, and stores nothing.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn try_create(&self, event: &Event) -> Result<Event, Status> {
        let request = match self.group {
            ApiGroup::Core => request::try_create(self.group, event),
            ApiGroup::Events => request::try_create(self.group, &spelling::to_events_v1(event, self.clock.now().wall)),
        };
        self.exchange_event(self.group, Verb::Create, request).await.map_err(status_of)
    }

    /// Lists the events of one namespace or of all.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn list(&self, namespace: Option<&str>, options: &ListOptions) -> Result<EventList, Status> {
        let request = request::list(self.group, namespace, options);
        self.exchange(Verb::List, request, LIST_BYTES_MAX, |body| self.read_list(body)).await.map_err(status_of)
    }

    /// Reads a list of the API group that is read through.
    fn read_list(&self, body: &[u8]) -> Result<EventList, Box<json::DecodeError>> {
        match self.group {
            ApiGroup::Core => core_v1::list_from_json(body),
            ApiGroup::Events => events_v1::list_from_json(body),
        }
    }

    /// Asks `/readyz`. Being forbidden to is good enough: the apiserver answered, and knew us.
    ///
    /// # Errors
    /// When there is no answer, or one that says that our credentials or the apiserver are not in order.
    pub async fn check(&self) -> Result<(), NotReady> {
        match self.send_in_time(request::readyz(), BODY_BYTES_MAX).await {
            Ok(_) => Ok(()),
            Err(Failure::Denied(denial)) if matches!(denial.status.code, 403 | 404) => Ok(()),
            Err(failure) => Err(NotReady(status_of(failure).message)),
        }
    }

    /// Posts a question about a token or a permission to this path, and returns the answer.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn review(&self, path: &str, question: &Value) -> Result<Value, Status> {
        let (_, body) = self.send_in_time(request::review(path, question), BODY_BYTES_MAX).await.map_err(status_of)?;
        serde_json::from_slice(&body).map_err(|_fault| Status::new(502, "BadGateway", "the answer cannot be read"))
    }

    fn exchange_event(
        &self,
        group: ApiGroup,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
    ) -> impl Future<Output = Result<Event, Failure>> + Send {
        self.exchange(verb, request, BODY_BYTES_MAX, move |body| json::decode_event(group, body))
    }

    /// Sends, reads, decodes and counts.
    fn exchange<T, E: fmt::Display>(
        &self,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
        body_bytes_max: usize,
        decode: impl FnOnce(&[u8]) -> Result<T, E> + Send,
    ) -> impl Future<Output = Result<T, Failure>> + Send {
        let exchange = self.exchange_whole(verb, request, body_bytes_max, decode);
        async { exchange.await.map(|(_, decoded)| decoded) }
    }

    /// The same, with the head of the answer.
    fn exchange_whole<T, E: fmt::Display>(
        &self,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
        body_bytes_max: usize,
        decode: impl FnOnce(&[u8]) -> Result<T, E> + Send,
    ) -> impl Future<Output = Result<(Parts, T), Failure>> + Send {
        let sending = self.send_in_time(request, body_bytes_max);
        async move {
            let started = self.clock.now().mono;
            let result = sending.await.and_then(|(head, body)| {
                decode(&body).map(|decoded| (head, decoded)).map_err(|fault| Failure::Unreadable(fault.to_string()))
            });
            let answer = result.as_ref().err().map(|failure| {
                let answer = judge(verb, failure);
                if matches!(answer, Answer::Retry(_)) {
                    self.fault.store(Some(Arc::new(failure.words().to_owned())));
                }
                answer
            });
            self.metrics.count(verb, answer.as_ref(), self.clock.now().mono.since(started));
            result
        }
    }

    /// Its time begins when it is first looked at.
    fn send_in_time(&self, request: http::Result<http::Request<Body>>, body_bytes_max: usize) -> Sending {
        let request = match request {
            Ok(request) => request,
            Err(fault) => return Box::pin(std::future::ready(Err(Failure::Unsendable(fault.to_string())))),
        };
        let (timeout, answer) = (self.timeout, self.answer(request));
        Box::pin(async move {
            let whole = async { read(answer.await?, body_bytes_max).await };
            tokio::time::timeout(timeout, whole).await.unwrap_or(Err(Failure::Deadline))
        })
    }

    /// Sends a request and waits for the answer's head.
    fn answer(
        &self,
        request: http::Request<Body>,
    ) -> impl Future<Output = Result<Response<AnswerBody>, Failure>> + Send + use<> {
        self.exchange.clone().oneshot(request).map_err(|fault| connect::classify(&*fault))
    }
}

fn boxed<B>(body: B) -> AnswerBody
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(|fault| BrokenOff(fault.into())).boxed_unsync()
}

/// Reads an answer up to its end.
async fn read(answer: Response<AnswerBody>, body_bytes_max: usize) -> Result<(Parts, Bytes), Failure> {
    if !answer.status().is_success() {
        return Err(denial(answer).await);
    }
    let (parts, body) = answer.into_parts();
    match Limited::new(body, body_bytes_max).collect().await {
        Ok(_) if parts.status == StatusCode::NO_CONTENT => Err(Failure::Unreadable("no content".to_owned())),
        Ok(body) => Ok((parts, body.to_bytes())),
        Err(fault) if fault.is::<LengthLimitError>() => Err(Failure::Unreadable(fault.to_string())),
        Err(fault) => Err(Failure::Lost(fault.to_string())),
    }
}

/// Reads an answer that is none of success. The status says enough, even if the body breaks off.
async fn denial(answer: Response<AnswerBody>) -> Failure {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map(http_body_util::Collected::to_bytes);
    Failure::Denied(Denial::read(parts.status, &parts.headers, &body.unwrap_or_default()).into())
}

impl fmt::Debug for Apiserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Apiserver").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}
