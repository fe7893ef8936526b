//! WATCH: streams the upstream's watch to the client, in the format that it accepts.
//!
//! Nothing is queued for a watch: each frame is encoded when the connection asks for it. A long one counts among the
//! bytes of lists from the time that its rest is read from the upstream until its client has taken it, and waits for
//! room there: an event may take 16 MiB for each watch. A watch shows records under their own names, as the upstream's
//! LIST does. A client that asks for a WebSocket gets one (`websocket.rs`).

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use http_body_util::BodyExt as _;
use smol_str::SmolStr;
use tokio_util::sync::CancellationToken;

use super::negotiate::{AnswerFormat, Media, not_acceptable};
use super::request_head::RequestHead;
use super::table::Columns;
use super::websocket::{self, Upgrade};
use super::{Ingest, options, respond};
use crate::clock::{Clock, Mono};
use crate::event::{Event, protobuf};
use crate::server::{FairPlace, FairPlaces};
use crate::status::Status;
use crate::upstream::{FieldSelector, Step, Watch, WatchEvent};

/// LIMIT: bytes of one piece of the answer, except for its last frame, and of a frame that needs no room among the bytes
/// of lists.
const CHUNK_BYTES: usize = 64 << 10;

/// Time after which a long frame without room looks for it again.
const PAUSE: Duration = Duration::from_millis(100);

/// A watch without `timeoutSeconds` ends after one to two times this duration, as in the apiserver
/// (`--min-request-timeout`).
const TIMEOUT_MIN: Duration = Duration::from_secs(1800);

/// LIMIT: duration of a watch, whatever its client asks for. A watch is authorised only at its start.
///
/// DIFFERENCE(apiserver): it grants any `timeoutSeconds`.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// `GET …/watch/namespaces/{namespace}/events`, `GET …/watch/events` of all namespaces, and a LIST that asks for a
/// watch. `GET …/watch/namespaces/{namespace}/events/{name}`: a watch of the namespace for this name.
pub(super) async fn watch(
    State(ingest): State<Ingest>,
    upgrade: Upgrade,
    head: RequestHead,
) -> Result<Response, Status> {
    let format = head.format(&ingest)?;
    if format.media == Media::Yaml {
        // YAML has no frames.
        return Err(not_acceptable());
    }
    let mut options = options::of_watch(head.group, head.query())?;
    let selector = &mut options.field_selector;
    if !head.name.is_empty() && selector.is_empty() {
        *selector = FieldSelector::of_name(&head.name);
    } else if !head.name.is_empty() && selector.name() != Some(&head.name) {
        return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
    }
    let Some(place) = ingest.0.watches.take(head.user(), 1) else {
        return Err(Status::too_many_requests("Too many watches, please try again later", 1));
    };
    let clock = ingest.0.shards.clock().clone();
    let deadline = clock.now().mono.after(timeout(options.timeout_seconds));
    let stream = Stream {
        watch: ingest.0.upstream.watch(head.namespace(), options).await?,
        format,
        clock,
        deadline,
        late: false,
        columns: Columns::Described,
        rest: VecDeque::new(),
        caller: head.user().into(),
        bytes: ingest.0.list_bytes.clone(),
        room: None,
        long: None,
        stop: ingest.0.shared.stop.clone(),
        _place: place,
    };
    Ok(match upgrade {
        Ok(upgrade) => websocket::accept(upgrade, &ingest, stream),
        Err(_not_asked) => {
            let frames = unfold(stream, Stream::next).map(Ok::<_, Infallible>);
            (StatusCode::OK, [(CONTENT_TYPE, content_type(format))], Body::from_stream(frames)).into_response()
        }
    })
}

/// Returns the timeout of a watch whose client asks for this many seconds; 0 if it asks for none.
fn timeout(seconds: u64) -> Duration {
    let timeout = match seconds {
        0 => TIMEOUT_MIN.mul_f64(1.0 + fastrand::f64()),
        seconds => Duration::from_secs(seconds),
    };
    timeout.min(TIMEOUT_MAX)
}

/// A watch that is being streamed.
pub(super) struct Stream {
    watch: Watch,
    format: AnswerFormat,
    clock: Clock,
    deadline: Mono,
    /// Whether the deadline had passed at the last check. Events from before that check are sent.
    late: bool,
    /// Columns of the next frame: only the first frame of a table describes them.
    columns: Columns,
    /// Events that are not yet encoded.
    rest: VecDeque<WatchEvent>,
    caller: SmolStr,
    /// Places for the bytes of long frames.
    bytes: FairPlaces,
    /// Room for the next frame, which is long.
    room: Option<FairPlace>,
    /// The rest of a long frame.
    long: Option<Body>,
    stop: CancellationToken,
    _place: FairPlace,
}

impl Stream {
    /// Waits for the next events; `None` at the end.
    pub(super) async fn events(mut self) -> Option<(Vec<WatchEvent>, Self)> {
        if self.late {
            return None;
        }
        self.late = self.clock.now().mono >= self.deadline;
        let events = loop {
            let step = tokio::select! {
                biased;
                () = self.stop.cancelled() => return None,
                step = self.watch.next() => step?,
                () = self.clock.sleep_until(self.deadline) => return None,
            };
            match step {
                Step::Events(events) => break events,
                Step::Long(bytes) => self.room = Some(self.wait_for_room(bytes).await?),
            }
        };
        // A table shows ages.
        self.format.now = self.clock.now().wall;
        Some((events, self))
    }

    /// Waits for room for a long frame; `None` at the end of the watch.
    async fn wait_for_room(&mut self, bytes: usize) -> Option<FairPlace> {
        loop {
            if let Some(room) = self.bytes.take(&self.caller, bytes as u64) {
                return Some(room);
            }
            tokio::select! {
                () = self.stop.cancelled() => return None,
                () = self.clock.sleep_until(self.deadline) => return None,
                () = tokio::time::sleep(PAUSE) => {}
            }
        }
    }

    pub(super) const fn media(&self) -> Media {
        self.format.media
    }

    async fn next(mut self) -> Option<(Bytes, Self)> {
        if let Some(long) = &mut self.long {
            if let Some(Ok(piece)) = long.frame().await {
                return Some((piece.into_data().unwrap_or_default(), self));
            }
            self.long = None;
        }
        if self.rest.is_empty() {
            let (events, stream) = self.events().await?;
            self = Self { rest: events.into(), ..stream };
        }
        let mut bytes = Vec::with_capacity(self.rest.len().saturating_mul(1024).min(CHUNK_BYTES));
        while bytes.len() < CHUNK_BYTES
            && let Some(event) = self.rest.pop_front()
        {
            if let Err(frame_bytes) = self.try_write(&event, &mut bytes) {
                self.rest.push_front(event);
                if !bytes.is_empty() {
                    break;
                }
                self.room = Some(self.wait_for_room(frame_bytes).await?);
            }
        }
        match self.room.take() {
            Some(room) if bytes.len() > CHUNK_BYTES => {
                let mut long = held(room, bytes);
                let piece = long.frame().await?.ok()?.into_data().unwrap_or_default();
                self.long = Some(long);
                Some((piece, self))
            }
            Some(_) | None => Some((bytes.into(), self)),
        }
    }

    /// Returns the frame of an event, and the room that a long one has; `None` at the end of the watch.
    pub(super) async fn frame(&mut self, event: &WatchEvent) -> Option<(Vec<u8>, Option<FairPlace>)> {
        let mut frame = Vec::new();
        while let Err(frame_bytes) = self.try_write(event, &mut frame) {
            self.room = Some(self.wait_for_room(frame_bytes).await?);
        }
        let room = self.room.take().filter(|_| frame.len() > CHUNK_BYTES);
        Some((frame, room))
    }

    /// Appends the frame of an event. Appends nothing if it is long and has no room, and returns its bytes.
    fn try_write(&mut self, event: &WatchEvent, out: &mut Vec<u8>) -> Result<(), usize> {
        let (start, columns) = (out.len(), self.columns);
        self.write(event, out);
        let frame_bytes = out.len().saturating_sub(start);
        if frame_bytes <= CHUNK_BYTES || self.room.is_some() {
            return Ok(());
        }
        out.truncate(start);
        out.shrink_to_fit();
        self.columns = columns;
        Err(frame_bytes)
    }

    /// Appends the frame of an event: a line of JSON, or a length and protobuf.
    fn write(&mut self, event: &WatchEvent, out: &mut Vec<u8>) {
        let write = |event: &Event, out: &mut Vec<u8>| respond::write_event(self.format, self.columns, event, out);
        match self.format.media {
            Media::Protobuf => protobuf::write_watch_frame(event, out, write),
            Media::Json | Media::Yaml => {
                out.extend_from_slice(br#"{"type":""#);
                out.extend_from_slice(event.label().as_bytes());
                out.extend_from_slice(br#"","object":"#);
                match event.shown() {
                    Ok(event) => write(event, out),
                    Err(status) => out.extend_from_slice(&respond::go_escaped(&status.to_json())),
                }
                out.extend_from_slice(b"}\n");
            }
        }
        self.columns = Columns::Known;
    }
}

/// Returns the body of a long piece, which keeps room for its bytes until its client has taken them.
fn held(mut room: FairPlace, mut piece: Vec<u8>) -> Body {
    room.shrink(piece.len());
    piece.shrink_to_fit();
    room.hold(piece.into())
}

const fn content_type(format: AnswerFormat) -> HeaderValue {
    match format.media {
        Media::Json | Media::Yaml => HeaderValue::from_static("application/json"),
        Media::Protobuf => HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::Method;
    use futures_util::{FutureExt as _, stream};
    use kube::client::Body as KubeBody;
    use prometheus::Registry;

    use super::super::fair_tests::{ask, shared};
    use super::*;
    use crate::access::Fairness;
    use crate::upstream::{self, Apiserver, Upstream};

    const EVENTS: &str = "/api/v1/namespaces/shop/events";
    const WATCHES: usize = 10;

    async fn open(ingest: &Ingest, caller: &str) -> Body {
        let answer = ask(ingest, caller, Method::GET, &format!("{EVENTS}?watch=true"), "").await;
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_body()
    }

    /// Reads a watch until the end of a line.
    async fn line(body: &mut Body) -> Vec<u8> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            line.extend(body.frame().await.unwrap().unwrap().into_data().unwrap());
        }
        line
    }

    /// Polls each watch once, and returns the lengths of the pieces that they have.
    fn pieces(watches: &mut [Body]) -> Vec<usize> {
        let piece = |body: &mut Body| Some(body.frame().now_or_never()??.unwrap().into_data().unwrap().len());
        watches.iter_mut().filter_map(piece).collect()
    }

    /// Fault: a client could ask for a watch of years, which is authorised only at its start.
    #[test]
    fn a_watch_lasts_an_hour_at_most() {
        assert_eq!([1, 3600, 3601, u64::MAX].map(timeout), [1, 3600, 3600, 3600].map(Duration::from_secs));
        assert!((TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout(0)));
    }

    /// Fault: a long event took its bytes for each watch of a caller that read none of them.
    #[tokio::test(start_paused = true)]
    async fn long_events_wait_for_room_in_their_callers_part() {
        let ingest = shared(Fairness::default());
        let mut watches = Vec::new();
        for _ in 0..WATCHES {
            watches.push(open(&ingest, "a").await);
        }
        let mut other = open(&ingest, "b").await;
        let put = async |name: &str, length: usize| {
            let object = r#""involvedObject":{"namespace":"shop"},"reason":"R","type":"Normal""#;
            let message = "x".repeat(length);
            let event = format!(r#"{{"metadata":{{"name":"{name}"}},{object},"message":"{message}"}}"#);
            let answer = ask(&ingest, "a", Method::PUT, &format!("{EVENTS}/{name}"), event).await;
            assert_eq!(answer.status(), StatusCode::CREATED);
        };
        put("short", 1).await;
        put("long", 200_000).await;
        let short = pieces(&mut watches);
        assert!(short.len() == WATCHES && short.iter().all(|length| *length < 1000), "{short:?}: the event before it");
        assert_eq!(pieces(&mut watches), [CHUNK_BYTES]);
        assert!((200_000..201_000).contains(&ingest.0.metrics.list_bytes.get()));
        assert!(line(&mut other).await.len() < 1000);
        assert!(line(&mut other).now_or_never().is_some_and(|line| line.len() > 200_000), "of another caller");
        put("last", 1).await;
        for watch in &mut watches {
            assert!(line(watch).await.len() > 100_000, "one has its first piece already");
            assert!(line(watch).await.len() < 1000);
        }
        assert!(line(&mut other).await.len() < 1000);
        assert_eq!(ingest.0.metrics.list_bytes.get(), 0);
        put("another", 200_000).await;
        assert_eq!(pieces(&mut watches), [CHUNK_BYTES]);
        ingest.0.shared.stop.cancel();
        assert!(watches[1].frame().await.is_none(), "it waits for room, and ends");
    }

    /// Fault: each watch read a long event of the API server into memory at once, and kept that memory.
    #[tokio::test(start_paused = true)]
    async fn a_long_event_of_the_api_server_is_read_when_there_is_room() {
        const LENGTH: usize = 2 << 20;
        const PIECE: usize = 16 << 10;
        let read = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&read);
        let service = tower::service_fn(move |_: axum::http::Request<KubeBody>| {
            let counted = Arc::clone(&counted);
            let message = "x".repeat(LENGTH);
            let event = format!("{{\"type\":\"ADDED\",\"object\":{{\"message\":\"{message}\"}}}}\n");
            let pieces: Vec<_> = event.into_bytes().chunks(PIECE).map(Bytes::copy_from_slice).collect();
            let pieces = stream::iter(pieces).map(move |piece| {
                counted.fetch_add(piece.len(), Ordering::Relaxed);
                Ok::<_, Infallible>(piece)
            });
            async { Ok::<_, Infallible>(Response::new(Body::from_stream(pieces.chain(stream::pending())))) }
        });
        let mut ingest = shared(Fairness::default());
        let (settings, clock) = (upstream::apiserver::Settings::default(), ingest.0.shards.clock().clone());
        let apiserver = Apiserver::behind(service, &settings, clock, upstream::Metrics::new(&Registry::new()));
        Arc::get_mut(&mut ingest.0).unwrap().upstream = Upstream::Apiserver(apiserver);
        let mut watches = Vec::new();
        for _ in 0..WATCHES {
            watches.push(open(&ingest, "a").await);
        }
        assert_eq!(pieces(&mut watches), [CHUNK_BYTES]);
        let total = read.load(Ordering::Relaxed);
        assert!((LENGTH..LENGTH + WATCHES * 2 * CHUNK_BYTES).contains(&total), "{total}");
        for watch in &mut watches {
            assert!(line(watch).await.len() > LENGTH - CHUNK_BYTES);
            assert!(watch.frame().now_or_never().is_none());
        }
        assert_eq!(ingest.0.metrics.list_bytes.get(), 0);
    }
}
