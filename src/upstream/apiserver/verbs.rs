//! PUT, DELETE and WATCH of a real apiserver.

use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::{Apiserver, BODY_BYTES_MAX, Frames, LIST_BYTES_MAX, connect, request};
use crate::event::Event;
use crate::event::core_v1::{self, EventList};
use crate::event::json;
use crate::status::Status;
use crate::upstream::answer::{Denial, Failure, judge, status_of};
use crate::upstream::{DeleteOptions, Deleted, ListOptions, UpdateOptions, Updated, Verb, WatchOptions};

impl Apiserver {
    /// Puts an event in the place of the one of its name, through the door it came in by.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn update(&self, event: &Event, options: UpdateOptions) -> Result<Updated, Status> {
        let decode = |body: &[u8]| json::decode(options.group, body, json::Strictness::Report);
        let request = request::update(event, options);
        let (code, decoded) =
            self.exchange_coded(Verb::Update, request, BODY_BYTES_MAX, decode).await.map_err(status_of)?;
        Ok(Updated { event: decoded.event, created: code == http::StatusCode::CREATED })
    }

    /// Deletes one event.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn delete(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
        let request = request::delete(namespace, name, options);
        self.exchange(Verb::Delete, request, BODY_BYTES_MAX, deleted).await.map_err(status_of)
    }

    /// Deletes the events that a list of these options would show, and returns that list.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn delete_collection(
        &self,
        namespace: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<EventList, Status> {
        let request = request::delete_collection(namespace, list, options);
        self.exchange(Verb::Delete, request, LIST_BYTES_MAX, core_v1::list_from_json).await.map_err(status_of)
    }

    /// Watches the events of one namespace or of all. The deadline holds for the answer's header only.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn watch(&self, namespace: Option<&str>, options: &WatchOptions) -> Result<Frames, Status> {
        let started = self.clock.now().mono;
        let request = request::watch(namespace, options).map_err(|fault| Status::bad_request(fault.to_string()))?;
        let opened = tokio::time::timeout(self.timeout, self.open(request)).await.unwrap_or(Err(Failure::Deadline));
        let answer = opened.as_ref().err().map(|failure| judge(Verb::Watch, failure));
        self.metrics.count(Verb::Watch, answer.as_ref(), self.clock.now().mono.since(started));
        opened.map_err(status_of)
    }

    async fn open(&self, request: http::Request<kube::client::Body>) -> Result<Frames, Failure> {
        let response = self.client.send(request).await.map_err(|fault| connect::classify(&fault))?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            return Ok(Frames::new(body));
        }
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map(http_body_util::Collected::to_bytes);
        Err(Failure::Denied(Denial::read(parts.status, &parts.headers, &body.unwrap_or_default())))
    }
}

/// A Status, or the event itself where finalizers hold it.
fn deleted(body: &[u8]) -> Result<Deleted, String> {
    let document: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if document["kind"] == "Status" {
        return Ok(Deleted::Gone(document["details"]["uid"].as_str().unwrap_or_default().into()));
    }
    let event = core_v1::from_json(body).map_err(|error| error.to_string())?;
    Ok(Deleted::Marked(Box::new(event)))
}
