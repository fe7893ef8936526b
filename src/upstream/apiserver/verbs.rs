//! PUT, DELETE and WATCH of a real apiserver.

use serde_json::Value;

use super::{Apiserver, BODY_BYTES_MAX, Frames, LIST_BYTES_MAX, denial, request};
use crate::event::core_v1::EventList;
use crate::event::{ApiGroup, Event, json};
use crate::status::Status;
use crate::upstream::answer::{Failure, judge, status_of};
use crate::upstream::{ApplyOptions, DeleteOptions, Deleted, ListOptions, UpdateOptions, Updated, Verb, WatchOptions};

impl Apiserver {
    /// Puts an event in the place of the one of its name, in the API group that it came by.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn update(&self, event: &Event, options: &UpdateOptions) -> Result<Updated, Status> {
        let decode = |body: &[u8]| json::decode_event(options.writer.group, body);
        let request = request::update(event, options);
        let (head, event) =
            self.exchange_whole(Verb::Update, request, BODY_BYTES_MAX, decode).await.map_err(status_of)?;
        Ok(Updated { event, created: head.status == http::StatusCode::CREATED })
    }

    /// Merges an event into the one of its name, in the API group that it came by.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn apply(
        &self,
        namespace: &str,
        name: &str,
        document: &Value,
        options: &ApplyOptions,
    ) -> Result<Updated, Status> {
        let decode = |body: &[u8]| json::decode_event(options.writer.group, body);
        let request = request::apply(namespace, name, document, options);
        let (head, event) =
            self.exchange_whole(Verb::Patch, request, BODY_BYTES_MAX, decode).await.map_err(status_of)?;
        Ok(Updated { event, created: head.status == http::StatusCode::CREATED })
    }

    /// Deletes one event.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn delete(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
        let request = request::delete(self.group, namespace, name, options);
        self.exchange(Verb::Delete, request, BODY_BYTES_MAX, |body| deleted(self.group, body)).await.map_err(status_of)
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
        let request = request::delete_collection(self.group, namespace, list, options);
        self.exchange(Verb::Delete, request, LIST_BYTES_MAX, |body| self.read_list(body)).await.map_err(status_of)
    }

    /// Watches the events of one namespace or of all. The deadline holds for the answer's header only.
    ///
    /// # Errors
    /// The apiserver's refusal, or 503 and 504 when there is no answer.
    pub async fn watch(&self, namespace: Option<&str>, options: &WatchOptions) -> Result<Frames, Status> {
        let started = self.clock.now().mono;
        let request =
            request::watch(self.group, namespace, options).map_err(|fault| Status::bad_request(fault.to_string()))?;
        let opened = tokio::time::timeout(self.timeout, self.open(request)).await.unwrap_or(Err(Failure::Deadline));
        let answer = opened.as_ref().err().map(|failure| judge(Verb::Watch, failure));
        self.metrics.count(Verb::Watch, answer.as_ref(), self.clock.now().mono.since(started));
        opened.map_err(status_of)
    }

    async fn open(&self, request: http::Request<kube::client::Body>) -> Result<Frames, Failure> {
        let answer = self.answer(request).await?;
        if !answer.status().is_success() {
            return Err(denial(answer).await);
        }
        Ok(Frames::new(self.group, answer.into_body()))
    }
}

/// A Status, or the event itself where finalizers hold it.
fn deleted(group: ApiGroup, body: &[u8]) -> Result<Deleted, String> {
    let document: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if document["kind"] == "Status" {
        return Ok(Deleted::Gone(document["details"]["uid"].as_str().unwrap_or_default().into()));
    }
    let event = json::decode_event(group, body).map_err(|error| error.to_string())?;
    Ok(Deleted::Marked(Box::new(event)))
}

#[cfg(test)]
mod tests {
    use http::Response;
    use prometheus::Registry;

    use super::*;
    use crate::clock::Clock;
    use crate::upstream::apiserver::Settings;
    use crate::upstream::{LabelSelector, Metrics, WatchEvent, Writer};

    /// An apiserver that answers everything with `code` and `body`, if the request is `line`.
    fn apiserver(line: &'static str, code: u16, body: &'static str) -> Apiserver {
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| async move {
            assert_eq!(format!("{} {}", request.method(), request.uri()), line);
            Ok::<_, std::io::Error>(Response::builder().status(code).body(body.to_owned()).unwrap())
        });
        let metrics = Metrics::new(&Registry::new()).unwrap();
        Apiserver::behind(service, &Settings::default(), Clock::simulated(0), metrics)
    }

    #[tokio::test]
    async fn deletes_and_puts_are_passed_through_with_their_refusals() {
        let line = "DELETE /api/v1/namespaces/shop/events/a";
        let gone = r#"{"kind":"Status","apiVersion":"v1","status":"Success","details":{"name":"a","uid":"u"}}"#;
        let options = DeleteOptions::default();
        let deleted = apiserver(line, 200, gone).delete("shop", "a", &options).await;
        assert_eq!(deleted, Ok(Deleted::Gone("u".into())));
        let marked = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a"}}"#;
        let deleted = apiserver(line, 200, marked).delete("shop", "a", &options).await;
        assert!(matches!(deleted, Ok(Deleted::Marked(event)) if event.metadata.name == "a"));
        let refused = apiserver(
            line,
            409,
            r#"{"kind":"Status","status":"Failure","message":"m","reason":"Conflict","code":409}"#,
        );
        assert_eq!(refused.delete("shop", "a", &options).await.unwrap_err().reason, "Conflict");

        let label_selector = LabelSelector::parse("app=x").unwrap();
        let list = ListOptions { limit: 1, label_selector, ..ListOptions::default() };
        let line = "DELETE /api/v1/namespaces/shop/events?limit=1&labelSelector=app%20in%20%28x%29";
        let body = r#"{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;
        let deleted = apiserver(line, 200, body).delete_collection("shop", &list, &options).await.unwrap();
        assert_eq!(deleted.resource_version, "7");

        let mut event = Event::default();
        event.metadata.namespace = "shop".into();
        event.metadata.name = "a".into();
        let line = "PUT /apis/events.k8s.io/v1/namespaces/shop/events/a?fieldManager=a%2Fb&dryRun=All";
        let body = r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"a","uid":"u"}}"#;
        let writer = Writer { manager: "a/b".into(), group: ApiGroup::Events };
        let options = UpdateOptions { writer, dry_run: true };
        let updated = apiserver(line, 201, body).update(&event, &options).await.unwrap();
        assert!(updated.created && updated.event.metadata.uid == "u");
    }

    #[tokio::test]
    async fn applies_are_passed_through() {
        let line = "PATCH /api/v1/namespaces/shop/events/a?fieldManager=m&force=true";
        let body = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a"}}"#;
        let writer = Writer { manager: "m".into(), group: ApiGroup::Core };
        let options = ApplyOptions { writer, force: true, dry_run: false };
        let updated = apiserver(line, 200, body).apply("shop", "a", &serde_json::json!({}), &options).await.unwrap();
        assert!(!updated.created && updated.event.metadata.name == "a");
    }

    #[tokio::test]
    async fn watches_are_passed_through_with_their_refusals() {
        let options =
            WatchOptions { resource_version: 7, bookmarks: true, timeout_seconds: 9, ..WatchOptions::default() };
        let line = "GET /api/v1/events?watch=true&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=9";
        let body = "{\"type\":\"ADDED\",\"object\":{\"kind\":\"Event\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"}}}\n";
        let mut frames = apiserver(line, 200, body).watch(None, &options).await.unwrap();
        assert!(matches!(&frames.next().await.unwrap()[..], [WatchEvent::Added(event)] if event.metadata.name == "a"));
        assert_eq!(frames.next().await, None);
        let status = apiserver(
            line,
            403,
            r#"{"kind":"Status","status":"Failure","message":"m","reason":"Forbidden","code":403}"#,
        );
        assert_eq!(status.watch(None, &options).await.unwrap_err().code, 403);
    }
}
