//! The face that components talk to: the apiserver's own paths for Events, over HTTP.
//!
//! A request meets: the table of paths below, `decode` (Accept, Content-Type, size, JSON), the apiserver's validation, then
//! its shard. Reads go to the upstream. Every refusal is a `Status` in the apiserver's words; nothing refused is recorded, but
//! for the ledger.

mod accept;
mod ack;
mod aliases;
mod apply;
mod asked;
mod batch;
mod create;
mod deadline;
mod decode;
mod delete;
mod discovery;
mod dress;
mod form;
mod frame;
mod front;
mod indent;
mod manager;
mod metrics;
mod options;
mod partial;
mod patch;
mod read;
mod respond;
mod table;
mod update;
mod watch;
mod websocket;
mod yaml;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, get, on};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use aliases::Aliases;
pub use front::Front;
pub use metrics::{Metrics, NamesCollector};

use crate::event::{ApiGroup, Event};
use crate::event_log::EventLog;
use crate::ledger::RejectReason;
use crate::shard::{Held, Lead, Outcome, Shards};
use crate::spool::Spool;
use crate::status::Status;
use crate::upstream::Upstream;

/// Settings of the face.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// LIMIT: bytes of a body; larger ones are refused with 413.
    pub max_body_bytes: usize,
    /// Longest time for a body to arrive, and for a client to wait for the upstream's answer.
    pub request_timeout: Duration,
    /// LIMIT: watches at once; further ones are refused with 429.
    pub max_watches: NonZeroUsize,
    /// When a client is answered, unless its request says otherwise.
    pub ack: Ack,
    /// Whether events are mended that the apiserver would refuse.
    pub repair: Repair,
}

/// Whether events are mended that the apiserver would refuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// They are, and their clients are told.
    On {
        /// LIMIT: bytes that the message of an old-style event keeps.
        message_bytes: usize,
    },
    /// They are refused as the apiserver refuses them.
    Off,
}

/// When a client is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ack {
    /// Once its event is in the outbox.
    Accepted,
    /// Once its event is in the spool.
    Durable,
    /// Once the upstream has answered, if the event can be written now; what is deferred is answered at once.
    Written,
}

/// How long a DELETE or PUT waits for a write of the same record that is on its way: as long as the upstream may take.
const QUIET: Duration = Duration::from_secs(10);

/// How a face ends with the program, and what outlives it.
#[derive(Debug, Clone)]
pub struct Life {
    /// The tasks that the end waits for.
    pub tasks: TaskTracker,
    /// Ends the watches.
    pub stop: CancellationToken,
    /// Where what waits is kept.
    pub spool: Option<Spool>,
}

/// What every request handler has at hand.
#[derive(Debug, Clone)]
pub struct Face(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    shards: Shards,
    spool: Option<Spool>,
    upstream: Upstream,
    aliases: Aliases,
    metrics: Metrics,
    event_log: EventLog,
    watches: watch::Watches,
    tasks: TaskTracker,
}

impl Face {
    /// A face in front of these shards and this upstream.
    #[must_use]
    pub fn new(
        settings: Settings,
        shards: Shards,
        upstream: Upstream,
        aliases: Aliases,
        metrics: Metrics,
        event_log: EventLog,
        life: Life,
    ) -> Self {
        let watches = watch::Watches::new(settings.max_watches, metrics.watches.clone(), life.stop);
        let (tasks, spool) = (life.tasks, life.spool);
        Self(Arc::new(Inner { settings, shards, spool, upstream, aliases, metrics, event_log, watches, tasks }))
    }

    /// The table of path and verb. The two API groups are two doors to one room.
    fn paths(&self) -> Router {
        let paths = discovery::routes()
            .merge(door("/api/v1"))
            .merge(door("/apis/events.k8s.io/v1"))
            .route("/eventweir/v1/events", axum::routing::post(batch::batch).fallback(method_not_allowed))
            .fallback(not_served)
            .with_state(self.clone());
        Router::new()
            // Before the table of paths, which does not ignore a slash at the end as the apiserver does.
            .fallback_service(tower::util::MapRequest::new(paths, without_last_slash))
    }

    /// Carries out what must not stop half way when its client goes away: what the upstream was asked has to be followed here.
    async fn to_the_end<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let ended = self.0.tasks.spawn(task).await;
        ended.unwrap_or_else(|error| Err(Status::new(500, "InternalError", error.to_string())))
    }

    /// Keeps back the record that a name leads to, by what its client was told of it, or else by what the upstream has; first
    /// lets a write that is on its way come to its end.
    async fn hold(&self, namespace: &str, name: &str) -> Option<Held> {
        let mut held = match self.0.aliases.get(namespace, name) {
            Some(told) => self.0.shards.hold(&told, name, Lead::Alias)?,
            None => {
                let stored = self.0.upstream.get(namespace, name).await.ok()?;
                self.0.shards.hold(&stored, name, Lead::Name)?
            }
        };
        held.quiet(QUIET).await;
        Some(held)
    }

    /// Counts and logs what became of occurrences that were taken in.
    fn note(&self, logged: Option<&Event>, occurrences: u32, outcome: Outcome) {
        self.0.metrics.count_outcome(outcome, occurrences.into());
        self.log(logged, occurrences, outcome);
    }

    /// Logs what became of occurrences that were taken in.
    fn log(&self, logged: Option<&Event>, occurrences: u32, outcome: Outcome) {
        if let Some(event) = logged {
            self.0.event_log.write(event, occurrences, outcome, self.0.shards.clock());
        }
    }

    /// Refuses what may have been an occurrence, and says so in the ledger.
    fn reject(&self, reason: RejectReason, status: &Status) -> Response {
        self.0.shards.reject(reason, 1);
        respond::refusal(status)
    }
}

/// The paths of one group. Not nested, which would build each request's URI anew.
fn door(prefix: &str) -> Router<Face> {
    let path = |rest: &str| format!("{prefix}{rest}");
    let collection = get(read::list).post(create::create).delete(delete::delete_collection);
    let item = get(read::get).patch(patch::patch).put(update::update).delete(delete::delete);
    Router::new()
        .route(&path("/namespaces/{namespace}/events"), only(collection))
        .route(&path("/namespaces/{namespace}/events/{name}"), only(item))
        .route(&path("/events"), only(get(read::list)))
        .route(&path("/watch/namespaces/{namespace}/events"), only(get(watch::watch)))
        .route(&path("/watch/namespaces/{namespace}/events/{name}"), only(get(watch::watch_one)))
        .route(&path("/watch/events"), only(get(watch::watch)))
}

/// These methods and no others; not even HEAD, which would come with GET.
fn only(methods: MethodRouter<Face>) -> MethodRouter<Face> {
    on(MethodFilter::HEAD, method_not_allowed).merge(methods.fallback(method_not_allowed))
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

/// Under our API's paths the answer is a Status, elsewhere a line of text.
async fn not_served(uri: Uri) -> Response {
    let is_api = ["/api/", "/apis/events.k8s.io/"].iter().any(|prefix| uri.path().starts_with(prefix));
    if !is_api {
        return respond::text(StatusCode::NOT_FOUND, "404 page not found\n");
    }
    let status = Status::new(404, "NotFound", "the server could not find the requested resource");
    respond::refusal(&status.with_details(crate::status::StatusDetails::default()))
}

/// 404 in the words of the door.
fn not_found(group: ApiGroup, name: &str) -> Status {
    Status::not_found(group.name(), "events", name)
}

/// 405 in the apiserver's words.
async fn method_not_allowed() -> Response {
    respond::refusal(
        &Status::new(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
            .with_details(crate::status::StatusDetails::default()),
    )
}
