//! The HTTP interface that components talk to: the API server's own paths for Events.
//!
//! A request passes the layers of [`Ingest::service`], then the table of paths below. A POST then passes `decode`
//! (Content-Type, size, JSON), the API server's validation, and its shard. Reads go to the upstream. Every refusal is a
//! `Status` in the API server's words. A refused event gets no record; the ledger counts it.

mod ack;
mod admit;
mod alias_table;
mod aliases;
mod apply;
mod request_head;
mod batch;
mod changes;
mod create;
mod deadline;
mod decode;
mod delete;
mod discovery;
mod finish;
mod negotiate;
mod guard;
mod pause;
mod indent;
mod lists;
mod explain;
mod metrics;
mod occurrence;
mod options;
mod partial_metadata;
mod patch;
mod read;
mod rejection;
mod respond;
mod settings;
mod table;
mod forwarded_change;
mod discard;
mod update;
mod watch;
mod websocket;
mod yaml;

use std::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, get, on, post};
use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceBuilder;

use rejection::Rejection;

pub use admit::Admission;
pub use aliases::Aliases;
pub use decode::incomplete;
pub use discard::discard;
pub use explain::TopQuery;
pub use forwarded_change::{Kept, PassedOn, Retried, Undone};
pub(crate) use guard::purpose;
pub use metrics::Metrics;
pub(crate) use options::{is_watch_path, sets};
pub use respond::refusal;
pub use settings::Settings;

use crate::access::{Access, FairQueue};
use crate::event_log::EventLog;
use crate::server::{Answer, FairPlaces, Origins, layer};
use crate::shadow::Shadow;
use crate::shard::Shards;
use crate::spool::Spool;
use crate::status::Status;
use crate::upstream::Upstream;

/// Marks a refusal of an event that eventweir could not take now, but the upstream might.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unable;

/// When a client is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// Once its event is in the outbox.
    Accepted,
    /// Once its event is in the spool.
    Durable,
    /// Once the upstream has answered, if the event can be written now. A deferred event is answered at once.
    Written,
}

/// Time that a DELETE or PUT waits for a write of the same record in flight: the upstream's longest answer time.
const QUIET: Duration = Duration::from_secs(10);

/// The parts that the HTTP interface shares with the program: access, shutdown, and parts that outlive it.
#[derive(Debug, Clone)]
pub struct Shared {
    /// Authentication and authorization of callers.
    pub access: Access,
    /// The tasks that shutdown waits for.
    pub tasks: TaskTracker,
    /// Ends watches and taps with a complete answer.
    pub stop: CancellationToken,
    /// Cancelled once the upstream's events are listed, or no longer waited for.
    pub listed: CancellationToken,
    /// The spool, if waiting writes are kept on disk.
    pub spool: Option<Spool>,
    /// The simulation of a second configuration.
    pub shadow: Shadow,
    /// 1 while the upstream is up, as in the metric.
    pub upstream_up: IntGauge,
}

/// The state that all request handlers share.
#[derive(Debug, Clone)]
pub struct Ingest(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    shards: Shards,
    upstream: Upstream,
    aliases: Aliases,
    metrics: Metrics,
    event_log: EventLog,
    shared: Shared,
    /// Places for watches.
    // LIMIT: `max_watches`; further ones are refused with 429 and `Retry-After`.
    watches: FairPlaces,
    /// Turns of lists that are being made.
    // LIMIT: `max_lists`.
    lists: FairQueue,
    /// Places for the bytes of long answers.
    // LIMIT: `max_list_bytes`; beyond it a long answer is replaced by 429. One that is longer needs all of them.
    list_bytes: FairPlaces,
    /// Places for the bytes of other answers.
    // LIMIT: `lists::ANSWER_BYTES`; beyond it, or a caller's part of it, further requests are refused with 429.
    answer_bytes: FairPlaces,
    /// Places for batches.
    // LIMIT: `batch::BATCHES`; further ones are refused with 429.
    batches: FairPlaces,
    /// Places for changes of callers that are not known.
    // LIMIT: `changes::CHANGES`; further ones are refused with 429.
    changes: FairPlaces,
    /// Places for the bytes of bodies.
    // LIMIT: `max_read_bytes`, but room for two bodies in a caller's part; further bodies are refused with 429.
    bodies: FairPlaces,
    /// Places for readers of the tap.
    // LIMIT: `explain::READERS`.
    readers: FairPlaces,
    admission: OnceLock<admit::Admitting>,
}

impl Ingest {
    /// Returns an HTTP interface for these shards and this upstream.
    pub fn new(
        settings: Settings,
        shards: Shards,
        upstream: Upstream,
        aliases: Aliases,
        metrics: Metrics,
        event_log: EventLog,
        shared: Shared,
    ) -> Self {
        // A known caller has half. A body counts up to twice its bytes.
        let (four, two) = const { (NonZeroUsize::new(4).unwrap(), NonZeroUsize::new(2).unwrap()) };
        let least = if shared.access.authenticates() { four } else { two };
        let bodies = settings.max_read_bytes.max(settings.max_body_bytes.saturating_mul(least));
        Self(Arc::new(Inner {
            settings,
            lists: lists::turns(&shared.access, settings.max_lists),
            shards,
            upstream,
            aliases,
            event_log,
            shared,
            watches: FairPlaces::new(settings.max_watches, metrics.watches.clone()),
            list_bytes: FairPlaces::new(settings.max_list_bytes, metrics.list_bytes.clone()),
            answer_bytes: FairPlaces::new(lists::ANSWER_BYTES, metrics.answer_bytes.clone()),
            batches: FairPlaces::new(batch::BATCHES, metrics.batches.clone()),
            changes: FairPlaces::new(changes::CHANGES, metrics.changes.clone()),
            bodies: FairPlaces::new(bodies, metrics.read_bytes.clone()),
            readers: FairPlaces::new(explain::READERS, metrics.taps.clone()),
            admission: OnceLock::new(),
            metrics,
        }))
    }

    /// Returns the places for the bytes of bodies, which pass-through shares.
    pub fn bodies(&self) -> FairPlaces {
        self.0.bodies.clone()
    }

    /// Returns the whole service: the layers, outermost first, and the router. Every request passes all of them.
    pub fn service(&self, origins: Origins) -> impl Answer + use<> {
        ServiceBuilder::new()
            // Counts the request by the class of its answer, including answers made by other layers.
            .layer(layer(self.clone(), metrics::count))
            // Encodes refusals as the client accepts them, compresses, limits what waits for clients, and sets the
            // headers of every answer.
            .layer(layer(self.clone(), finish::finish))
            // Reads what a refusal has left of a body over HTTP/2.
            .layer(layer((), discard::unread))
            // Refuses requests that a browser sends for a web page of another origin.
            .layer(layer(origins, of_our_origin))
            // Removes a slash at the end, which the API server ignores and the next layers and the router do not.
            .map_request(without_last_slash)
            // Ends the request at its client's deadline.
            .layer(layer(self.clone(), deadline::deadline))
            // Authenticates the caller, shares request slots between callers, and authorizes the request. Health checks
            // are exempt.
            .layer(layer(self.clone(), guard::guard))
            .service(self.router())
    }

    fn router(&self) -> Router {
        let router =
            routes().into_iter().fold(Router::new(), |router, (path, methods)| router.route(&path, only(methods)));
        router.fallback(not_served).with_state(self.clone())
    }

    /// Returns the response to a rejected event, and counts the rejection in the ledger.
    fn reject(&self, rejection: &Rejection) -> Response {
        self.0.shards.reject(rejection.reason, 1);
        rejection.refusal()
    }
}

fn routes() -> Vec<(String, MethodRouter<Ingest>)> {
    let mut routes = discovery::routes();
    // Not nested: a nested router builds the URI of each request again.
    for group in ["/api/v1", "/apis/events.k8s.io/v1"] {
        let collection = get(read::list).post(create::create).delete(delete::delete_collection);
        let item = get(read::get).patch(patch::patch).put(update::update).delete(delete::delete);
        routes.extend([
            (format!("{group}/namespaces/{{namespace}}/events"), collection),
            (format!("{group}/namespaces/{{namespace}}/events/{{name}}"), item),
            (format!("{group}/events"), get(read::list)),
            (format!("{group}/watch/namespaces/{{namespace}}/events"), get(watch::watch)),
            (format!("{group}/watch/namespaces/{{namespace}}/events/{{name}}"), get(watch::watch)),
            (format!("{group}/watch/events"), get(watch::watch)),
        ]);
    }
    routes.push((guard::BATCH.to_owned(), post(batch::batch)));
    routes.push((explain::EXPLAIN.to_owned(), get(explain::explain)));
    routes.push((explain::TOP.to_owned(), get(explain::top)));
    routes.push((explain::TAP.to_owned(), get(explain::tap)));
    routes.push((explain::SHADOW.to_owned(), get(explain::shadow)));
    routes.push((admit::PATH.to_owned(), post(admit::admit)));
    routes
}

/// Refuses all other methods, also HEAD, which axum adds to GET.
fn only(methods: MethodRouter<Ingest>) -> MethodRouter<Ingest> {
    on(MethodFilter::HEAD, method_not_allowed).merge(methods.fallback(method_not_allowed))
}

/// Refuses requests to another host name, or from a page of another origin.
async fn of_our_origin(origins: Origins, request: Request, next: impl Answer) -> Response {
    match origins.refusal(request.uri(), request.headers()) {
        Some(reason) => respond::refusal(&Status::new(403, "Forbidden", reason)),
        None => next.run(request).await,
    }
}

fn without_last_slash(mut request: Request) -> Request {
    let path = request.uri().path();
    if let Some(shorter) = path.strip_suffix('/').filter(|shorter| !shorter.is_empty() && !shorter.ends_with('/')) {
        let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = PathAndQuery::try_from(format!("{shorter}{query}")).ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}

/// Answers 404 for an unknown path: a Status below our API paths, a line of text elsewhere.
async fn not_served(uri: Uri) -> Response {
    let is_api = ["/api/", "/apis/events.k8s.io/"].iter().any(|prefix| uri.path().starts_with(prefix));
    if !is_api {
        return respond::text(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    respond::refusal(&unknown_path())
}

fn unknown_path() -> Status {
    let status = Status::new(404, "NotFound", "the server could not find the requested resource");
    status.with_details(crate::status::StatusDetails::default())
}

/// Answers 405 in the API server's words.
async fn method_not_allowed() -> Response {
    respond::refusal(
        &Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_details(crate::status::StatusDetails::default()),
    )
}

#[cfg(test)]
mod fair_tests;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::{Body, HttpBody as _};
    use axum::http::header::CACHE_CONTROL;
    use axum::http::{Method, Version};
    use futures_util::StreamExt as _;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::fair_tests::{ask, shared};
    use super::*;
    use crate::access;
    use crate::clock::Clock;
    use crate::correlator::{KeySecret, Pattern, Policy};
    use crate::event::ApiGroup;
    use crate::shard;
    use crate::upstream::{Embedded, WriteOptions, store};

    const MAX_LIST_BYTES: NonZeroUsize = NonZeroUsize::new(600_000).unwrap();

    fn ingest() -> (Ingest, prometheus::Registry) {
        guarded(access::Settings::default())
    }

    pub(super) fn guarded(settings: access::Settings) -> (Ingest, prometheus::Registry) {
        let registry = prometheus::Registry::new();
        let (clock, one) = (Clock::simulated(1_772_352_000_000_000_000), NonZeroUsize::MIN);
        let secret = KeySecret(7, 9);
        let shards = Shards::new(one, &shard::Settings::default(), Policy::default(), clock.clone(), secret, 1);
        let metrics = crate::upstream::Metrics::new(&registry);
        let store = store::Store::new(store::Settings::default(), 1);
        let ask: access::Ask = Arc::new(|_, _| panic!("no caller has a token"));
        let counted = access::Metrics::new(&registry);
        let access = Access::new(settings, ask, clock.clone(), secret, counted);
        let upstream = Upstream::Embedded(Embedded::with_store(store, clock, metrics));
        let (shadow, _runner) = Shadow::new(shards.clone(), secret);
        let settings = Settings { max_list_bytes: MAX_LIST_BYTES, repair: None, ..Settings::default() };
        let (tasks, stop, listed) = (TaskTracker::new(), CancellationToken::new(), CancellationToken::new());
        listed.cancel();
        let upstream_up = IntGauge::new("up", "up").unwrap();
        let shared = Shared { access, tasks, stop, listed, spool: None, shadow, upstream_up };
        let (aliases, metrics) = (Aliases::new(one, secret), Metrics::new(&registry));
        (Ingest::new(settings, shards, upstream, aliases, metrics, EventLog::none(), shared), registry)
    }

    /// Returns a path of the table with values for its parameters.
    fn filled(path: &str) -> String {
        let segments = path.split('/').map(|segment| if segment.starts_with('{') { "shop" } else { segment });
        segments.collect::<Vec<_>>().join("/")
    }

    /// Each layer leaves a trace in the answer to a request with an invalid deadline.
    #[tokio::test]
    async fn every_route_passes_every_layer() {
        let (ingest, registry) = ingest();
        let requests = || {
            let families = registry.gather();
            let family = families.iter().find(|family| family.name() == "eventweir_ingest_requests_total").unwrap();
            family.get_metric().iter().map(|metric| metric.get_counter().get_value()).sum::<f64>()
        };
        let methods = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD];
        let paths: Vec<String> = routes().iter().map(|(path, _)| filled(path)).collect();
        assert!(paths.len() > 20 && paths.contains(&"/api/v1/namespaces/shop/events".to_owned()), "{paths:?}");
        for path in paths.iter().map(String::as_str).chain(["/not/served", "/api/v1/namespaces/shop/events/"]) {
            for method in &methods {
                let request = Request::builder().method(method).uri(format!("{path}?timeout=abc"));
                let before = requests();
                let Ok(answer) =
                    ingest.service(Origins::any_host()).oneshot(request.body(Body::empty()).unwrap()).await;
                assert_eq!(requests() - before, 1.0, "{method} {path} is not counted");
                assert!(answer.headers().contains_key(CACHE_CONTROL), "{method} {path} is not finished");
                // A watch has `timeoutSeconds` as its deadline instead.
                let has_deadline = answer.status() == StatusCode::BAD_REQUEST;
                assert_eq!(has_deadline, !path.contains("/watch/"), "{method} {path}: {answer:?}");
                let foreign = Request::builder().method(method).uri(path).header("Origin", "http://evil.example");
                let foreign = foreign.header("Host", "localhost").body(Body::empty()).unwrap();
                let Ok(answer) = ingest.service(Origins::any_host()).oneshot(foreign).await;
                assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{method} {path} is answered to any page");
            }
        }
    }

    #[tokio::test]
    async fn long_lists_that_their_caller_does_not_read_keep_others_out_only_together() {
        const LIST: &str = "/api/v1/events";
        let ingest = shared(access::Fairness::default());
        for number in 0..200 {
            let mut event = crate::event::Event::default();
            event.metadata.namespace = "shop".into();
            event.involved_object.namespace = "shop".into();
            event.metadata.name = format!("web-{number}").into();
            event.message = "x".repeat(1000).into();
            ingest.0.upstream.update(event, &WriteOptions::new("test", ApiGroup::Core)).await.unwrap();
        }
        let list = async |reader: &str, path: &str| ask(&ingest, reader, Method::GET, path, "").await;
        let unread = list("a", LIST).await;
        let size = unread.body().size_hint().exact().unwrap();
        assert_eq!(unread.status(), StatusCode::OK);
        let all = MAX_LIST_BYTES.get() as u64;
        assert!(size <= all / 2 && size > all / 3, "{size}");
        assert_eq!(ingest.0.metrics.list_bytes.get(), size.cast_signed());
        assert_eq!(list("a", LIST).await.status(), StatusCode::TOO_MANY_REQUESTS, "a caller has half");
        assert_eq!(list("a", "/api/v1/events?limit=5").await.status(), StatusCode::OK, "a short answer is not counted");
        let other = list("b", LIST).await;
        assert_eq!(other.status(), StatusCode::OK, "the other half");
        let refused = list("c", LIST).await;
        assert_eq!(
            (refused.status(), &refused.headers()["retry-after"]),
            (StatusCode::TOO_MANY_REQUESTS, &"1".parse().unwrap())
        );
        drop((unread, other));
        let whole = list("a", LIST).await.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(whole.len() as u64, size);
        assert_eq!(ingest.0.metrics.list_bytes.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_waits_for_its_turn_and_is_refused_in_time() {
        let (ingest, _) = ingest();
        let list = async || {
            let request = Request::get("/api/v1/events").body(Body::empty()).unwrap();
            let Ok(answer) = ingest.service(Origins::any_host()).oneshot(request).await;
            answer.status()
        };
        let mut turns = Vec::new();
        for _ in 0..Settings::default().max_lists.get() {
            turns.push(ingest.list_turn("").await.unwrap());
        }
        assert_eq!(list().await, StatusCode::TOO_MANY_REQUESTS);
        let (status, ()) = tokio::join!(list(), async { drop(turns.pop()) });
        assert_eq!(status, StatusCode::OK);
    }

    #[test]
    fn a_path_to_events_asks_for_events() {
        for (path, _) in routes() {
            let leads_to_events = path.ends_with("/events") || path.contains("/events/");
            let is_about_events =
                [explain::EXPLAIN, explain::TOP, explain::TAP, explain::SHADOW].contains(&path.as_str());
            let attributes = guard::attributes(&Method::GET, &filled(&path).parse().unwrap());
            let asks_for_events = matches!(attributes.target, access::Target::Resource { resource: "events", .. });
            assert_eq!(asks_for_events, is_about_events || leads_to_events && path != guard::BATCH, "{path}");
        }
    }

    #[tokio::test]
    async fn no_route_but_health_is_without_authentication() {
        let tokens = access::TokenReview { is_on: true, ..access::TokenReview::default() };
        let (ingest, _) = guarded(access::Settings { tokens, ..access::Settings::default() });
        let health = ["/healthz", "/livez", "/readyz"];
        let paths: Vec<String> = routes().iter().map(|(path, _)| filled(path)).collect();
        assert!(health.iter().all(|path| paths.iter().any(|known| known == path)), "{paths:?}");
        for path in
            paths.iter().map(String::as_str).chain(["/not/served", "/api/v1/namespaces/shop/events/", "/livez/"])
        {
            for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::HEAD] {
                let request = Request::builder().method(&method).uri(path).body(Body::empty()).unwrap();
                let Ok(answer) = ingest.service(Origins::any_host()).oneshot(request).await;
                let is_refused = answer.status() == StatusCode::UNAUTHORIZED;
                assert_eq!(is_refused, !health.contains(&path.trim_end_matches('/')), "{method} {path}");
            }
        }
    }

    /// Faults: with a slash at the end, the path was not one of events, and `auth.allowPaths` decided; it also decided about
    /// admission reviews, whose caller may report events in any name.
    #[tokio::test]
    async fn a_slash_at_the_end_changes_no_permission() {
        let tokens = access::TokenReview { is_on: true, ..access::TokenReview::default() };
        let allow_paths = access::AllowPaths(vec![Pattern::Prefix("/".into())]);
        let policy = vec![access::Rule { users: vec![Pattern::Exact("a".into())], ..Default::default() }];
        let defaults = access::Settings::default();
        let (ingest, _) = guarded(access::Settings { tokens, anonymous: true, allow_paths, policy, ..defaults });
        let looks = [explain::EXPLAIN, explain::TOP, explain::TAP, explain::SHADOW, "/api/v1/namespaces/shop/events"];
        for (method, path) in looks.map(|path| (Method::GET, path)).into_iter().chain([(Method::POST, admit::PATH)]) {
            for end in ["", "/"] {
                let uri = format!("{path}{end}?namespace=shop&object=pod/a");
                let request = Request::builder().method(&method).uri(uri);
                let Ok(answer) =
                    ingest.service(Origins::any_host()).oneshot(request.body(Body::empty()).unwrap()).await;
                assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{path}{end}");
            }
        }
    }

    /// Fault: curl reported the reset of the stream, and not the refusal.
    #[tokio::test]
    async fn a_refused_body_is_read_over_http2() {
        let (ingest, _) = ingest();
        for (version, is_read) in [(Version::HTTP_2, true), (Version::HTTP_11, false)] {
            let parts = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            let counted = Arc::clone(&parts);
            let part = move |_| {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok::<_, Infallible>(axum::body::Bytes::from_static(&[b' '; 1000]))
            };
            // Endless, so what is read ends at the limit.
            let body = Body::from_stream(futures_util::stream::iter(0..).map(part));
            let request = Request::post("/api/v1/namespaces/shop/events").version(version).header("Accept", "text/css");
            let Ok(answer) = ingest.service(Origins::any_host()).oneshot(request.body(body).unwrap()).await;
            assert_eq!(answer.status(), StatusCode::NOT_ACCEPTABLE);
            assert_eq!(parts.load(std::sync::atomic::Ordering::Relaxed), if is_read { 66 } else { 0 });
        }
    }

    /// Fault: after a panic the answer to a batch ended as if it were complete.
    #[tokio::test]
    async fn a_batch_that_panics_has_no_complete_answer() {
        let broken =
            futures_util::stream::poll_fn(|_| -> std::task::Poll<Option<Result<axum::body::Bytes, Infallible>>> {
                panic!("a panic that the test asked for")
            });
        let request = Request::post(guard::BATCH).body(Body::from_stream(broken)).unwrap();
        let Ok(answer) = ingest().0.service(Origins::any_host()).oneshot(request).await;
        assert!(axum::body::to_bytes(answer.into_body(), 1).await.is_err());
    }

    #[tokio::test]
    async fn an_escaped_path_or_one_with_a_slash_at_the_end_is_the_same() {
        let event = r#"{"metadata":{"name":"a"},"involvedObject":{"namespace":"shop"},"reason":"R","type":"Normal"}"#;
        for (path, status) in [
            ("/api/v1/namespaces/shop/events", StatusCode::CREATED),
            ("/api/v1/namespaces/sho%70/events", StatusCode::CREATED),
            ("/api/v1/namespaces/shop/events/", StatusCode::CREATED),
            ("/api/v1/namespaces/shop/events//", StatusCode::NOT_FOUND),
            ("/api/v1/namespaces/a/b/events", StatusCode::NOT_FOUND),
            ("/api/v1/events", StatusCode::METHOD_NOT_ALLOWED),
        ] {
            let request = Request::builder().method(Method::POST).uri(path).body(Body::from(event)).unwrap();
            let Ok(answer) = ingest().0.service(Origins::any_host()).oneshot(request).await;
            assert_eq!(answer.status(), status, "{path}");
        }
    }
}
