//! WATCH: a stream of frames, made as fast as its client takes them, from the upstream's watch.
//!
//! Nothing is queued for a watch: each frame is made when the connection asks for it. What a watch shows are the records under
//! their own names, as the upstream's LIST does. A client that asks for a WebSocket gets one (`websocket.rs`).

use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use hyper::body::{Body as HttpBody, Frame};
use prometheus::IntGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::asked::Asked;
use super::form::{Form, Media};
use super::table::Columns;
use super::websocket::Upgrade;
use super::{Face, frame, options, respond};
use crate::clock::{Clock, Mono};
use crate::status::Status;
use crate::upstream::{FieldSelector, Watch, WatchEvent, WatchOptions};

/// LIMIT: bytes of a piece of the answer, but for its last frame.
const CHUNK_BYTES: usize = 64 << 10;

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

    /// Cancelled when all watches have to end.
    pub(super) fn stop(&self) -> CancellationToken {
        self.stop.clone()
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

/// `GET …/watch/namespaces/{namespace}/events`, `GET …/watch/events` of all namespaces, and a LIST that asks for a watch.
pub(super) async fn watch(State(face): State<Face>, upgrade: Upgrade, asked: Asked) -> Response {
    watch_with(&face, upgrade, &asked, Ok).await
}

/// `GET …/watch/namespaces/{namespace}/events/{name}`, which is a watch of the namespace for this name.
pub(super) async fn watch_one(State(face): State<Face>, upgrade: Upgrade, asked: Asked) -> Response {
    let only_this = |mut options: WatchOptions| {
        let selector = &mut options.field_selector;
        if !selector.is_empty() && selector.name() != Some(&asked.name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
        *selector = FieldSelector::of_name(&asked.name);
        Ok(options)
    };
    watch_with(&face, upgrade, &asked, only_this).await
}

/// Opens a watch with the options that `narrow` makes of its client's, and streams it.
async fn watch_with(
    face: &Face,
    upgrade: Upgrade,
    asked: &Asked,
    narrow: impl FnOnce(WatchOptions) -> Result<WatchOptions, Status>,
) -> Response {
    let form = match frame::form(face, asked) {
        Ok(form) => form,
        Err(rejection) => return respond::refusal(&rejection.status),
    };
    match options::of_watch(asked.group, asked.query()).and_then(narrow) {
        Ok(options) => open(face, form, asked.namespace(), options, upgrade).await,
        Err(status) => respond::refusal(&status),
    }
}

async fn open(face: &Face, form: Form, namespace: Option<&str>, options: WatchOptions, upgrade: Upgrade) -> Response {
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
            let stop = face.0.watches.stop();
            let stream = Stream {
                watch,
                form,
                clock,
                deadline,
                late: false,
                columns: Columns::Described,
                rest: Vec::new().into_iter(),
                stop,
                _place: place,
            };
            match upgrade.accept(face, stream) {
                Ok(response) => response,
                Err(stream) => {
                    let kind = [(CONTENT_TYPE, frame::content_type(form))];
                    (StatusCode::OK, kind, Body::new(Frames::new(*stream))).into_response()
                }
            }
        }
        Err(status) => respond::refusal(&status),
    }
}

/// A watch on its way to its client.
pub(super) struct Stream {
    watch: Watch,
    form: Form,
    clock: Clock,
    deadline: Mono,
    /// The deadline had passed at the last look: what was there then has been told.
    late: bool,
    /// The next frame: a table has its columns in the first one.
    columns: Columns,
    /// What is still to be written of the newest events.
    rest: std::vec::IntoIter<WatchEvent>,
    stop: CancellationToken,
    _place: Place,
}

impl Stream {
    /// Waits for the next events; `None` at the end.
    pub(super) async fn events(mut self) -> Option<(Vec<WatchEvent>, Self)> {
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
        // A table shows how long ago something happened.
        self.form.now = self.clock.now().wall;
        Some((events, self))
    }

    /// Appends the frame of an event.
    pub(super) fn write(&mut self, event: &WatchEvent, out: &mut Vec<u8>) {
        frame::write(self.form, event, self.columns, out);
        self.columns = Columns::Known;
    }

    pub(super) const fn media(&self) -> Media {
        self.form.media
    }

    async fn next(mut self) -> Option<(Bytes, Self)> {
        if self.rest.len() == 0 {
            let (events, stream) = self.events().await?;
            self = Self { rest: events.into_iter(), ..stream };
        }
        let mut bytes = Vec::with_capacity(self.rest.len().saturating_mul(1024).min(CHUNK_BYTES));
        while bytes.len() < CHUNK_BYTES
            && let Some(event) = self.rest.next()
        {
            self.write(&event, &mut bytes);
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
