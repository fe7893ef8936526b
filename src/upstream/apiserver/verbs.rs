//! Clients' own requests to a kube-apiserver.

use http::HeaderMap;
use http::header::WARNING;
use http::response::Parts;
use serde_json::Value;

use super::{Apiserver, BODY_BYTES_MAX, Body, Frames, LIST_BYTES_MAX, denial, event_of, request};
use crate::event::json::{self, DecodeError, EventList};
use crate::event::patching::Patched;
use crate::event::{ApiGroup, Event, conversion};
use crate::status::Status;
use crate::upstream::answer::{Failure, judge, status_of};
use crate::upstream::{
    ApplyOptions, ClientPatch, DeleteOptions, Deleted, ListOptions, PatchOptions, UpdateOptions, Updated, Verb,
    WatchOptions,
};

/// LIMIT: warnings of one answer that are passed on, as many as the API server's decoder reports; more are dropped.
const WARNINGS_MAX: usize = 100;

/// Each request is made in the API group that its client used, or the one in the settings. A request that fails has the
/// API server's refusal, or 503 and 504 when there is no answer.
impl Apiserver {
    /// As [`Upstream::get_not_older`](crate::upstream::Upstream::get_not_older).
    pub(in crate::upstream) async fn get_not_older(
        &self,
        namespace: &str,
        name: &str,
        version: u64,
    ) -> Result<Event, Status> {
        let request = request::get_not_older(self.group, namespace, name, version);
        self.ask(Verb::Get, request, BODY_BYTES_MAX, event_of(self.group)).await
    }

    /// As [`Upstream::try_create`](crate::upstream::Upstream::try_create).
    pub(in crate::upstream) async fn try_create(&self, event: &Event) -> Result<Event, Status> {
        let request = match self.group {
            ApiGroup::Core => request::try_create(self.group, event),
            ApiGroup::Events => {
                request::try_create(self.group, &conversion::to_events_v1(event, self.clock.now().wall))
            }
        };
        self.ask(Verb::Create, request, BODY_BYTES_MAX, event_of(self.group)).await
    }

    /// As [`Upstream::list`](crate::upstream::Upstream::list).
    pub(in crate::upstream) async fn list(
        &self,
        namespace: Option<&str>,
        options: &ListOptions,
    ) -> Result<EventList, Status> {
        let request = request::list(self.group, namespace, options);
        self.ask(Verb::List, request, LIST_BYTES_MAX, |_, body| json::list_from_json(self.group, body)).await
    }

    /// As [`Upstream::update`](crate::upstream::Upstream::update).
    pub(in crate::upstream) async fn update(&self, event: &Event, options: &UpdateOptions) -> Result<Updated, Status> {
        let request = request::update(event, options);
        self.ask(Verb::Update, request, BODY_BYTES_MAX, updated(options.writer.group)).await
    }

    /// As [`Upstream::apply`](crate::upstream::Upstream::apply).
    pub(in crate::upstream) async fn apply(
        &self,
        namespace: &str,
        name: &str,
        document: &Value,
        options: &ApplyOptions,
    ) -> Result<Updated, Status> {
        let request = request::apply(namespace, name, document, options);
        self.ask(Verb::Patch, request, BODY_BYTES_MAX, updated(options.writer.group)).await
    }

    /// As [`Upstream::patch`](crate::upstream::Upstream::patch).
    pub(in crate::upstream) async fn patch(
        &self,
        namespace: &str,
        name: &str,
        patch: &ClientPatch,
        options: &PatchOptions,
    ) -> Result<Patched, Status> {
        let decode = |head: &Parts, body: &[u8]| {
            let event = json::decode_event(options.writer.group, body)?;
            Ok::<_, Box<DecodeError>>(Patched { event, warnings: warnings(&head.headers) })
        };
        self.ask(Verb::Patch, request::patch(namespace, name, patch, options), BODY_BYTES_MAX, decode).await
    }

    /// As [`Upstream::delete`](crate::upstream::Upstream::delete).
    pub(in crate::upstream) async fn delete(
        &self,
        namespace: &str,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, Status> {
        let request = request::delete(self.group, namespace, name, options);
        self.ask(Verb::Delete, request, BODY_BYTES_MAX, |_, body| deleted(self.group, body)).await
    }

    /// As [`Upstream::delete_collection`](crate::upstream::Upstream::delete_collection).
    pub(in crate::upstream) async fn delete_collection(
        &self,
        namespace: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<EventList, Status> {
        let request = request::delete_collection(self.group, namespace, list, options);
        self.ask(Verb::Delete, request, LIST_BYTES_MAX, |_, body| json::list_from_json(self.group, body)).await
    }

    /// As [`Upstream::watch`](crate::upstream::Upstream::watch). The timeout applies to the head of the answer only.
    pub(in crate::upstream) async fn watch(
        &self,
        namespace: Option<&str>,
        options: &WatchOptions,
    ) -> Result<Frames, Status> {
        let started = self.clock.now().mono;
        let request =
            request::watch(self.group, namespace, options).map_err(|fault| Status::bad_request(fault.to_string()))?;
        let opened = tokio::time::timeout(self.timeout, self.open(request)).await.unwrap_or(Err(Failure::Deadline));
        let answer = opened.as_ref().err().map(|failure| judge(Verb::Watch, failure));
        self.metrics.count(Verb::Watch, answer.as_ref(), self.clock.now().mono.since(started));
        opened.map_err(status_of)
    }

    async fn open(&self, request: http::Request<Body>) -> Result<Frames, Failure> {
        let answer = self.answer(request).await?;
        if !answer.status().is_success() {
            return Err(denial(answer).await);
        }
        Ok(Frames::new(self.group, answer.into_body()))
    }

    /// As [`Self::exchange`], with a failure as a Status.
    async fn ask<T, E: std::fmt::Display>(
        &self,
        verb: Verb,
        request: http::Result<http::Request<Body>>,
        body_bytes_max: usize,
        decode: impl FnOnce(&Parts, &[u8]) -> Result<T, E>,
    ) -> Result<T, Status> {
        self.exchange(verb, request, body_bytes_max, decode).await.map_err(status_of)
    }
}

/// Returns the decoder of an answer to a PUT or an apply.
fn updated(group: ApiGroup) -> impl FnOnce(&Parts, &[u8]) -> Result<Updated, Box<DecodeError>> {
    move |head, body| {
        let event = json::decode_event(group, body)?;
        Ok(Updated { event, created: head.status == http::StatusCode::CREATED })
    }
}

/// Decodes the answer to a DELETE: a Status, or the event if its finalizers hold it.
pub(super) fn deleted(group: ApiGroup, body: &[u8]) -> Result<Deleted, String> {
    let document: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if document["kind"] == "Status" {
        return Ok(Deleted::Gone(document["details"]["uid"].as_str().unwrap_or_default().into()));
    }
    let event = json::decode_event(group, body).map_err(|error| error.to_string())?;
    if event.metadata.name.is_empty() {
        return Err("it is neither a Status nor the event".to_owned());
    }
    Ok(Deleted::Marked(Box::new(event)))
}

/// Returns the texts of the `Warning` headers: the quoted part after code and agent.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(WARNING).iter().take(WARNINGS_MAX).filter_map(|value| value.to_str().ok());
    values.filter_map(warning).collect()
}

fn warning(value: &str) -> Option<String> {
    let (_, quoted) = value.split_once('"')?;
    let mut letters = quoted.chars();
    let mut text = String::new();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => text.push(letters.next()?),
            letter => text.push(letter),
        }
    }
}
