//! A stand-in for the apiserver with immediate answers: it stores events, merges patches, and accepts all tokens and
//! requests.
//!
//! So eventweir's outbox does its work, without the CPU time of an apiserver.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use futures_util::stream;
use serde_json::{Map, Value, json};

/// The requests of `passthrough`.
pub(crate) const PODS: &str = "/api/v1/pods";
pub(crate) const POD: &str = "/api/v1/namespaces/shop/pods/web-0";

/// `stub`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Highest number of writes per second.
    #[arg(long)]
    rate: Option<f64>,
}

#[derive(Debug, Default)]
struct Stub {
    /// Events as JSON texts, by namespace and name.
    events: Mutex<HashMap<(String, String), Bytes>>,
    version: AtomicU64,
    /// Interval between two writes, and the time of the next answer; `None` is no limit.
    pace: Option<(Duration, Mutex<Instant>)>,
}

/// Serves until it is killed.
pub(crate) fn main(options: &Options) -> anyhow::Result<()> {
    let pace = options.rate.map(|rate| (Duration::from_secs_f64(1.0 / rate), Mutex::new(Instant::now())));
    let stub = Stub { pace, ..Stub::default() };
    let router = Router::new()
        .route("/readyz", get(|| async { "ok" }))
        .route(PODS, get(|| async { answer(StatusCode::OK, LIST.clone()) }))
        .route(POD, get(|| async { answer(StatusCode::OK, pod(0).to_string()) }))
        .route("/api/v1/events", get(list))
        .route("/api/v1/namespaces/{namespace}/events", get(list).post(create))
        .route("/api/v1/namespaces/{namespace}/events/{name}", get(read).patch(patch))
        .route("/apis/authentication.k8s.io/v1/tokenreviews", post(token_review))
        .route("/apis/authorization.k8s.io/v1/subjectaccessreviews", post(access_review))
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(stub));
    crate::bare::serve(router, None)
}

/// 5,000 pods.
static LIST: LazyLock<Bytes> = LazyLock::new(|| {
    let pods: Vec<Value> = (0..5000).map(pod).collect();
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": pods})
        .to_string()
        .into()
});

/// A pod of about 1 KB.
fn pod(number: usize) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": format!("web-{number}"), "namespace": "shop"},
        "spec": {"containers": [{"name": "web", "image": "registry.example/web:1", "args": vec!["-v"; 170]}]}})
}

fn answer(status: StatusCode, body: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.into()).into_response()
}

fn refuse(status: StatusCode, reason: &str) -> Response {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": status.as_u16()});
    answer(status, body.to_string())
}

/// Applies a merge patch.
fn merge(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match (target.get_mut(&key), value) {
            (_, Value::Null) => drop(target.remove(&key)),
            (Some(Value::Object(below)), Value::Object(patch)) => merge(below, patch),
            (_, value) => drop(target.insert(key, value)),
        }
    }
}

impl Stub {
    /// Waits until the rate allows a write.
    async fn turn(&self) {
        let Some((interval, next)) = &self.pace else { return };
        let at = {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            *next = (*next).max(Instant::now()) + *interval;
            *next
        };
        tokio::time::sleep_until(at.into()).await;
    }

    fn next_version(&self) -> String {
        (1000 + self.version.fetch_add(1, Ordering::Relaxed)).to_string()
    }

    fn events(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), Bytes>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn create(State(stub): State<Arc<Stub>>, Path(namespace): Path<String>, body: Bytes) -> Response {
    stub.turn().await;
    let Ok(Value::Object(mut event)) = serde_json::from_slice(&body) else {
        return refuse(StatusCode::BAD_REQUEST, "BadRequest");
    };
    let Some(Value::Object(metadata)) = event.get_mut("metadata") else {
        return refuse(StatusCode::BAD_REQUEST, "BadRequest");
    };
    let name = metadata.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let version = stub.next_version();
    metadata.insert("uid".to_owned(), format!("00000000-0000-4000-8000-{:012}", version.parse().unwrap_or(0)).into());
    metadata.insert("resourceVersion".to_owned(), version.into());
    metadata.insert("creationTimestamp".to_owned(), "2026-03-01T08:00:00Z".into());
    let text = Bytes::from(Value::Object(event).to_string());
    let mut events = stub.events();
    if events.contains_key(&(namespace.clone(), name.clone())) {
        return refuse(StatusCode::CONFLICT, "AlreadyExists");
    }
    events.insert((namespace, name), text.clone());
    answer(StatusCode::CREATED, text)
}

async fn patch(State(stub): State<Arc<Stub>>, Path(key): Path<(String, String)>, body: Bytes) -> Response {
    stub.turn().await;
    let Ok(Value::Object(mut patch)) = serde_json::from_slice(&body) else {
        return refuse(StatusCode::BAD_REQUEST, "BadRequest");
    };
    let mut events = stub.events();
    let stored = events.get(&key).and_then(|text| serde_json::from_slice::<Map<String, Value>>(text).ok());
    let Some(mut event) = stored else { return refuse(StatusCode::NOT_FOUND, "NotFound") };
    let version = |of: &Map<String, Value>| of.get("metadata").and_then(|it| it.get("resourceVersion")).cloned();
    if version(&patch).is_some_and(|named| Some(&named) != version(&event).as_ref()) {
        return refuse(StatusCode::CONFLICT, "Conflict");
    }
    let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
    metadata["resourceVersion"] = stub.next_version().into();
    merge(&mut event, patch);
    let text = Bytes::from(Value::Object(event).to_string());
    events.insert(key, text.clone());
    answer(StatusCode::OK, text)
}

async fn read(State(stub): State<Arc<Stub>>, Path(key): Path<(String, String)>) -> Response {
    match stub.events().get(&key) {
        Some(text) => answer(StatusCode::OK, text.clone()),
        None => refuse(StatusCode::NOT_FOUND, "NotFound"),
    }
}

/// An empty list, and a watch without events.
async fn list(State(stub): State<Arc<Stub>>, RawQuery(query): RawQuery) -> Response {
    if query.unwrap_or_default().split('&').any(|pair| pair.starts_with("watch=") && pair != "watch=false") {
        return answer(StatusCode::OK, Body::from_stream(stream::pending::<Result<Bytes, Infallible>>()));
    }
    let list = json!({"kind": "EventList", "apiVersion": "v1", "metadata": {"resourceVersion": stub.next_version()},
        "items": []});
    answer(StatusCode::OK, list.to_string())
}

/// TokenReview: each token belongs to its own service account, named by the token's first 8 characters.
async fn token_review(body: Bytes) -> Response {
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let name = review["spec"]["token"].as_str().unwrap_or_default().get(..8).unwrap_or("short");
    let user = json!({"username": format!("system:serviceaccount:shop:{name}"), "uid": name,
        "groups": ["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"]});
    answer(StatusCode::CREATED, json!({"status": {"authenticated": true, "user": user}}).to_string())
}

/// SubjectAccessReview: all requests are allowed.
async fn access_review() -> Response {
    answer(StatusCode::CREATED, json!({"status": {"allowed": true}}).to_string())
}
