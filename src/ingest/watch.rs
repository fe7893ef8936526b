//! WATCH: a stream of frames, made as fast as its client takes them, from the upstream's watch.
//!
//! Nothing is queued for a watch: each frame is made when the connection asks for it. What a watch shows are the records under
//! their own names, as the upstream's LIST does.

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame};
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::form::Form;
use super::table::Columns;
use super::{Face, frame, respond};
use crate::clock::{Clock, Mono};
use crate::event::ApiGroup;
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{FieldSelector, LabelSelector, Watch, WatchOptions};

/// A watch without `timeoutSeconds` ends by itself between once and twice this, as an apiserver's does
/// (`--min-request-timeout`).
const TIMEOUT_MIN: Duration = Duration::from_secs(1800);

/// The watches of a face.
#[derive(Debug)]
pub(super) struct Watches {
    // LIMIT: `max_watches`; further ones are refused with 429 and `Retry-After`.
    free: Arc<Semaphore>,
    open: IntGauge,
    /// Ends all watches in an orderly way.
    stop: CancellationToken,
}

/// One watch's place among them.
struct Place {
    open: IntGauge,
    _permit: OwnedSemaphorePermit,
}

impl Watches {
    pub(super) fn new(max: NonZeroUsize, open: IntGauge, stop: CancellationToken) -> Self {
        Self { free: Arc::new(Semaphore::new(max.get().min(Semaphore::MAX_PERMITS))), open, stop }
    }

    fn place(&self) -> Option<Place> {
        let permit = Arc::clone(&self.free).try_acquire_owned().ok()?;
        self.open.inc();
        Some(Place { open: self.open.clone(), _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// `GET …/watch/namespaces/{namespace}/events`
pub(super) async fn watch_namespace(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    Path(namespace): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    watch(&face, group, Some(&namespace), query.as_deref(), &headers).await
}

/// `GET …/watch/events`
pub(super) async fn watch_all(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    watch(&face, group, None, query.as_deref(), &headers).await
}

/// Whether the query of a LIST asks for a watch.
pub(super) fn is_asked(query: Option<&str>) -> bool {
    form_urlencoded::parse(query.unwrap_or_default().as_bytes())
        .any(|(key, value)| key == "watch" && matches!(value.as_ref(), "1" | "true" | "True" | "t" | "T" | "TRUE"))
}

/// Opens a watch and streams it.
pub(super) async fn watch(
    face: &Face,
    group: ApiGroup,
    namespace: Option<&str>,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Response {
    let form = match frame::form(face, group, query, headers) {
        Ok(form) => form,
        Err((_, status)) => return respond::refusal(&status),
    };
    let options = match options(group, query) {
        Ok(options) => options,
        Err(status) => return respond::refusal(&status),
    };
    let Some(place) = face.0.watches.place() else {
        return respond::refusal(&Status::too_many_requests("Too many watches, please try again later", 1));
    };
    let clock = face.0.shards.clock().clone();
    let timeout = match options.timeout_seconds {
        0 => TIMEOUT_MIN.mul_f64(1.0 + fastrand::f64()),
        seconds => Duration::from_secs(seconds),
    };
    let deadline = clock.now().mono.after(timeout);
    match face.0.upstream.watch(namespace, options).await {
        Ok(watch) => {
            let stop = face.0.watches.stop.clone();
            let stream =
                Stream { watch, form, clock, deadline, late: false, columns: Columns::Described, stop, _place: place };
            (StatusCode::OK, [(CONTENT_TYPE, frame::content_type(form))], Body::new(Frames::new(stream)))
                .into_response()
        }
        Err(status) => respond::refusal(&status),
    }
}

/// A watch on its way to its client.
struct Stream {
    watch: Watch,
    form: Form,
    clock: Clock,
    deadline: Mono,
    /// The deadline had passed at the last look: what was there then has been told.
    late: bool,
    /// The next frame: a table has its columns in the first one.
    columns: Columns,
    stop: CancellationToken,
    _place: Place,
}

impl Stream {
    /// Waits for the next frames; `None` at the end.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        if self.late {
            return None;
        }
        self.late = self.clock.now().mono >= self.deadline;
        let events = tokio::select! {
            biased;
            () = self.stop.cancelled() => return None,
            events = self.watch.next() => events?,
            () = self.clock.sleep_until(self.deadline) => return None,
        };
        let mut bytes = Vec::with_capacity(events.len().saturating_mul(1024));
        for event in &events {
            frame::write(self.form, event, self.columns, &mut bytes);
            self.columns = Columns::Known;
        }
        Some((bytes.into(), self))
    }
}

/// What comes next: some frames and the stream they came from, or the end.
type Next = Pin<Box<dyn Future<Output = Option<(Bytes, Stream)>> + Send>>;

/// The body of an answer: asks the stream when the connection has room.
struct Frames(Option<Next>);

impl Frames {
    fn new(stream: Stream) -> Self {
        Self(Some(Box::pin(stream.next())))
    }
}

impl HttpBody for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(next) = &mut self.0 else { return Poll::Ready(None) };
        let Poll::Ready(made) = next.as_mut().poll(context) else { return Poll::Pending };
        self.0 = None;
        let Some((bytes, stream)) = made else { return Poll::Ready(None) };
        self.0 = Some(Box::pin(stream.next()));
        Poll::Ready(Some(Ok(Frame::data(bytes))))
    }
}

fn options(group: ApiGroup, query: Option<&str>) -> Result<WatchOptions, Status> {
    let mut options = WatchOptions::default();
    let mut version_match = String::new();
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match key.as_ref() {
            "fieldSelector" => options.field_selector = FieldSelector::parse(&value, group)?,
            "labelSelector" => options.label_selector = LabelSelector::parse(&value)?,
            "resourceVersion" if !value.is_empty() => options.resource_version = number(&value)?,
            "resourceVersionMatch" => version_match = value.into_owned(),
            "sendInitialEvents" if !value.is_empty() => {
                options.send_initial_events = Some(matches!(value.as_ref(), "1" | "true"));
            }
            "allowWatchBookmarks" => options.bookmarks = matches!(value.as_ref(), "1" | "true"),
            "timeoutSeconds" if !value.is_empty() => options.timeout_seconds = number(&value)?,
            _ => {}
        }
    }
    match (options.send_initial_events, version_match.as_str()) {
        (Some(_), "NotOlderThan") | (None, "") => Ok(options),
        (Some(_), _) => Err(forbidden("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")),
        (None, _) => Err(forbidden("resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")),
    }
}

fn number(text: &str) -> Result<u64, Status> {
    text.parse()
        .map_err(|_not_a_number| Status::bad_request(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax")))
}

fn forbidden(text: &str) -> Status {
    let cause = StatusCause {
        reason: "FieldValueForbidden".to_owned(),
        message: format!("Forbidden: {text}"),
        field: "resourceVersionMatch".to_owned(),
    };
    let message = format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: {text}");
    Status::new(422, "Invalid", message).with_details(StatusDetails {
        group: "meta.k8s.io".to_owned(),
        kind: "ListOptions".to_owned(),
        causes: vec![cause],
        ..StatusDetails::default()
    })
}
