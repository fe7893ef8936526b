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
use super::{Face, frame, options, respond};
use crate::clock::{Clock, Mono};
use crate::event::ApiGroup;
use crate::status::Status;
use crate::upstream::{FieldSelector, Watch, WatchOptions};

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

/// `GET …/watch/namespaces/{namespace}/events/{name}`, which is a watch of the namespace for this name.
pub(super) async fn watch_one(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let form = match frame::form(&face, group, query.as_deref(), &headers) {
        Ok(form) => form,
        Err((_, status)) => return respond::refusal(&status),
    };
    let options = options::of_watch(group, query.as_deref()).and_then(|mut options| {
        let selector = &mut options.field_selector;
        if !selector.is_empty() && selector.name() != Some(&name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        *selector = FieldSelector::of_name(&name);
        Ok(options)
    });
    match options {
        Ok(options) => open(&face, form, Some(&namespace), options).await,
        Err(status) => respond::refusal(&status),
    }
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
    match options::of_watch(group, query) {
        Ok(options) => open(face, form, namespace, options).await,
        Err(status) => respond::refusal(&status),
    }
}

async fn open(face: &Face, form: Form, namespace: Option<&str>, options: WatchOptions) -> Response {
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
