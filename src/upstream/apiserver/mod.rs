//! The kube-apiserver as an upstream. kube supplies configuration, TLS and credentials. Connections, requests and
//! answers are our own: they speak HTTP/2, send the bytes of client-go, and read headers such as `Retry-After`.
//!
//! Each request is sent once, because the outbox retries. A record is written through the API group that the outbox
//! names; the default is core/v1, as in client-go's recorder. Mirrors
//! `k8s.io/client-go/kubernetes/typed/core/v1/event_expansion.go`.

mod connect;
pub(super) mod decode;
mod forward;
mod history;
mod shared_connections;
mod plugin;
mod renewed;
pub(super) mod request;
#[cfg(test)]
mod tests;
mod transport;
#[cfg(test)]
mod transport_tests;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use kube::client::Body;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

pub use connect::{Error, Settings};
pub(crate) use connect::{cause_of, checked, config};
pub(crate) use forward::may_be_proxied;
pub use forward::{Forwarder, Outgoing, Standing, is_impersonation};
pub use history::News;
use renewed::Identity;
pub use request::is_of_eventweir;
pub use shared_connections::StreamPermit;
pub use watch::Frames;

use super::answer::{Denial, Failure, judge, status_of};
use super::{Metrics, Verb, WatchOptions};
use crate::clock::Clock;
use crate::event::json::EventList;
use crate::event::{ApiGroup, Event};
use crate::outbox::{Answer, Request, tags};
use crate::status::Status;

/// LIMIT: bytes of an answer to one of our writes or reviews, and of a refusal. A longer answer counts as unreadable.
const BODY_BYTES_MAX: usize = 4 << 20;
/// LIMIT: bytes of an answer to a client's request, and of a frame of a watch; a longer one counts as unreadable. kubectl
/// and informers list pages of 500 events. etcd's 1.5 MiB of one event are up to 9 MiB of JSON, which escapes characters.
const READ_BYTES_MAX: usize = 16 << 20;
/// Bytes of a long answer to a client's request.
const LONG_BYTES: usize = 256 << 10;
/// LIMIT: long answers that are read and decoded at once; the rest of further ones is read later, within the timeout.
const LONG_ANSWERS: usize = 8;

/// The service that sends requests.
type Exchange = BoxCloneSyncService<http::Request<Body>, Response<AnswerBody>, BoxError>;

type AnswerBody = UnsyncBoxBody<Bytes, BrokenOff>;

/// An answer's body that ended early.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct BrokenOff(#[source] BoxError);

/// A kube-apiserver as an upstream; clones share its connections.
#[derive(Debug, Clone)]
pub struct Apiserver {
    exchange: Exchange,
    timeout: Duration,
    /// The API group of clients' reads and deletions.
    pub(super) group: ApiGroup,
    pub(super) clock: Clock,
    metrics: Metrics,
    /// Forwards clients' requests; `None` for an API server behind a service.
    forwarder: Option<Forwarder>,
    impersonator: Option<Forwarder>,
    /// Permits of long answers.
    // LIMIT: `LONG_ANSWERS`.
    long: Arc<Semaphore>,
}

/// An answer, and the permit of a long one, which ends when it is decoded.
type Whole = (Parts, Bytes, Option<OwnedSemaphorePermit>);

impl Apiserver {
    /// Returns an API server that `service` reaches. Uses only the timeout and the API group of `settings`.
    pub fn behind<S, B>(service: S, settings: &Settings, clock: Clock, metrics: Metrics) -> Self
    where
        S: Service<http::Request<Body>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send,
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let exchange = Exchange::new(service.map_response(|answer| answer.map(boxed)).map_err(Into::into));
        let (timeout, group) = (settings.timeout, settings.group);
        let long = Arc::new(Semaphore::new(LONG_ANSWERS));
        Self { exchange, timeout, group, clock, metrics, forwarder: None, impersonator: None, long }
    }

    /// Sends the request of a record once and classifies the answer.
    pub async fn write(&self, request: &Request) -> Answer {
        let (verb, sent) = (Verb::of(request), request::of_write(request));
        let outcome = match request {
            Request::Create { group, event } => self.stored(verb, sent, *group, |found| is_created(event, found)).await,
            Request::Patch { group, namespace, name, .. } | Request::Read { group, namespace, name } => {
                let is_named = |found: &Event| found.is_named(namespace, name);
                self.stored(verb, sent, *group, is_named).await
            }
            Request::Delete { group, .. } => {
                let decode = |_: &Parts, body: &[u8]| decode::deleted(*group, body).map(|_| Answer::Missing);
                self.exchange(verb, sent, BODY_BYTES_MAX, decode).await
            }
        };
        outcome.unwrap_or_else(|failure| {
            let mut answer = judge(verb, &failure);
            if let Answer::Retry(retry) = &mut answer {
                retry.cause = failure.cause();
            }
            answer
        })
    }

    /// Sends a request that an API server answers with the stored event, for which `is_asked` holds.
    async fn stored(
        &self,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
        group: ApiGroup,
        is_asked: impl FnOnce(&Event) -> bool,
    ) -> Result<Answer, Failure> {
        let decode =
            |_: &Parts, body: &[u8]| Ok::<_, String>(Answer::Stored(Box::new(decode::stored(group, body, is_asked)?)));
        self.exchange(verb, request, READ_BYTES_MAX, decode).await
    }

    /// Returns the forwarder of clients' requests, which sends none of our credentials.
    pub const fn forwarder(&self) -> Option<&Forwarder> {
        self.forwarder.as_ref()
    }

    /// Adds a forwarder of impersonated requests, which sends our credentials.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn impersonating(self, settings: &Settings) -> Result<Self, Error> {
        let impersonator = Some(Forwarder::new(settings, Identity::Ours, &self.clock).await?);
        Ok(Self { impersonator, ..self })
    }

    /// Returns the forwarder of impersonated requests.
    pub const fn impersonator(&self) -> Option<&Forwarder> {
        self.impersonator.as_ref()
    }

    /// Posts a review of a token or of a permission to `path` and returns the answer.
    ///
    /// # Errors
    /// The API server's refusal, or 503 and 504 when there is no answer.
    pub async fn review(&self, path: &str, question: &Value) -> Result<Value, Status> {
        let sent = self.send_in_time(request::review(path, question), BODY_BYTES_MAX).await;
        let (_, body, _) = sent.map_err(|failure| match failure {
            // No answer to the question, but the API server is not away.
            Failure::Denied(denial) if denial.status.code == 401 => denial.status,
            failure => status_of(Verb::Get, failure),
        })?;
        serde_json::from_slice(&body).map_err(|_fault| Status::new(502, "BadGateway", "the answer cannot be read"))
    }

    /// Sends a client's request.
    pub(super) async fn ask<T, E: fmt::Display>(
        &self,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
        decode: impl FnOnce(&Parts, &[u8]) -> Result<T, E>,
    ) -> Result<T, Status> {
        self.exchange(verb, request, READ_BYTES_MAX, decode).await.map_err(|failure| status_of(verb, failure))
    }

    /// Sends a client's request that is answered with a list.
    pub(super) async fn ask_list(
        &self,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
    ) -> Result<EventList, Status> {
        self.ask(verb, request, |_, body| decode::list(self.group, body)).await
    }

    /// Watches the events of one namespace or of all. The timeout applies to the head of the answer only.
    pub(super) async fn watch(&self, namespace: Option<&str>, options: &WatchOptions) -> Result<Frames, Status> {
        let started = self.clock.now().mono;
        let request =
            request::watch(self.group, namespace, options).map_err(|fault| Status::bad_request(fault.to_string()))?;
        let opened = tokio::time::timeout(self.timeout, self.open(request)).await.unwrap_or(Err(Failure::Deadline));
        let answer = opened.as_ref().err().map(|failure| judge(Verb::Watch, failure));
        self.metrics.count(Verb::Watch, answer.as_ref(), self.clock.now().mono.since(started));
        opened.map_err(|failure| status_of(Verb::Watch, failure))
    }

    async fn open(&self, request: http::Request<Body>) -> Result<Frames, Failure> {
        let answer = self.answer(request).await?;
        if !answer.status().is_success() {
            return Err(denial(answer).await);
        }
        Ok(Frames::new(self.group, answer.into_body(), self.timeout))
    }

    /// Sends a request, decodes the answer and counts the outcome.
    async fn exchange<T, E: fmt::Display>(
        &self,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
        body_bytes_max: usize,
        decode: impl FnOnce(&Parts, &[u8]) -> Result<T, E>,
    ) -> Result<T, Failure> {
        let started = self.clock.now().mono;
        let result = self.send_in_time(request, body_bytes_max).await.and_then(|(head, body, _until_decoded)| {
            decode(&head, &body).map_err(|fault| Failure::Unreadable(fault.to_string()))
        });
        let answer = result.as_ref().err().map(|failure| judge(verb, failure));
        self.metrics.count(verb, answer.as_ref(), self.clock.now().mono.since(started));
        result
    }

    /// Sends a request and reads the answer within the timeout, which starts at the first poll.
    async fn send_in_time(
        &self,
        request: http::Result<http::Request<Body>>,
        body_bytes_max: usize,
    ) -> Result<Whole, Failure> {
        let request = request.map_err(|fault| Failure::Unsendable(fault.to_string()))?;
        let whole = async { self.read(self.answer(request).await?, body_bytes_max).await };
        tokio::time::timeout(self.timeout, whole).await.unwrap_or(Err(Failure::Deadline))
    }

    /// Reads an answer. A client's request may have a long one.
    async fn read(&self, answer: Response<AnswerBody>, body_bytes_max: usize) -> Result<Whole, Failure> {
        if !answer.status().is_success() {
            return Err(denial(answer).await);
        }
        let (parts, body) = answer.into_parts();
        let (mut body, mut bytes, mut long) = (Limited::new(body, body_bytes_max), BytesMut::new(), None);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|fault| unread(&*fault, body_bytes_max))?;
            bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
            if long.is_none() && bytes.len() > LONG_BYTES && body_bytes_max == READ_BYTES_MAX {
                long = Arc::clone(&self.long).acquire_owned().await.ok();
            }
        }
        if parts.status == StatusCode::NO_CONTENT {
            return Err(Failure::Unreadable("no content".to_owned()));
        }
        Ok((parts, bytes.freeze(), long))
    }

    /// Sends a request and waits for the head of the answer.
    async fn answer(&self, request: http::Request<Body>) -> Result<Response<AnswerBody>, Failure> {
        self.exchange.clone().oneshot(request).await.map_err(|fault| connect::classify(&*fault))
    }
}

/// Whether the answer to a create has the event that was sent. A webhook may have changed its name: if that were no
/// answer, each further try would create one more event.
fn is_created(sent: &Event, found: &Event) -> bool {
    let (ours, theirs) = (&sent.metadata, &found.metadata);
    if ours.namespace != theirs.namespace || theirs.name.is_empty() {
        return false;
    }
    let is_alike = || {
        sent.involved_object == found.involved_object && sent.reason == found.reason && sent.message == found.message
    };
    // A new event has one tag at most.
    ours.name == theirs.name || is_alike() || tags(sent).next().is_some_and(|tag| tags(found).next() == Some(tag))
}

fn boxed<B>(body: B) -> AnswerBody
where
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(|fault| BrokenOff(fault.into())).boxed_unsync()
}

/// Returns the failure of an answer that could not be read to its end.
fn unread(fault: &(dyn std::error::Error + Send + Sync + 'static), body_bytes_max: usize) -> Failure {
    if !fault.is::<LengthLimitError>() {
        return Failure::Lost(fault.to_string());
    }
    let advice = if body_bytes_max == READ_BYTES_MAX { "; list it in pages, with `limit`" } else { "" };
    Failure::Unreadable(format!("it is longer than {} MiB{advice}", body_bytes_max >> 20))
}

/// Reads an error response; a truncated body is accepted.
async fn denial(answer: Response<AnswerBody>) -> Failure {
    let (parts, body) = answer.into_parts();
    let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map(http_body_util::Collected::to_bytes);
    Failure::Denied(Denial::read(parts.status, &parts.headers, &body.unwrap_or_default()).into())
}
