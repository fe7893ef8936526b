//! WATCH: streams the upstream's watch to the client, in the format that it accepts.
//!
//! Nothing is queued for a watch: each frame is encoded when the connection asks for it. A watch shows records under
//! their own names, as the upstream's LIST does. A client that asks for a WebSocket gets one (`websocket.rs`).

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use futures_util::stream::unfold;
use tokio_util::sync::CancellationToken;

use super::negotiate::{AnswerFormat, Media, not_acceptable};
use super::request_head::RequestHead;
use super::table::Columns;
use super::websocket::{self, Upgrade};
use super::{Ingest, options, respond};
use crate::clock::{Clock, Mono};
use crate::event::{Event, protobuf};
use crate::server::FairPlace;
use crate::status::Status;
use crate::upstream::{FieldSelector, Watch, WatchEvent};

/// LIMIT: bytes of one piece of the answer, except for its last frame.
const CHUNK_BYTES: usize = 64 << 10;

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
        rest: Vec::new().into_iter(),
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
    rest: std::vec::IntoIter<WatchEvent>,
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
        let events = tokio::select! {
            biased;
            () = self.stop.cancelled() => return None,
            events = self.watch.next() => events?,
            () = self.clock.sleep_until(self.deadline) => return None,
        };
        // A table shows ages.
        self.format.now = self.clock.now().wall;
        Some((events, self))
    }

    pub(super) const fn media(&self) -> Media {
        self.format.media
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

    /// Appends the frame of an event: a line of JSON, or a length and protobuf.
    pub(super) fn write(&mut self, event: &WatchEvent, out: &mut Vec<u8>) {
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

const fn content_type(format: AnswerFormat) -> HeaderValue {
    match format.media {
        Media::Json | Media::Yaml => HeaderValue::from_static("application/json"),
        Media::Protobuf => HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a client could ask for a watch of years, which is authorised only at its start.
    #[test]
    fn a_watch_lasts_an_hour_at_most() {
        assert_eq!([1, 3600, 3601, u64::MAX].map(timeout), [1, 3600, 3600, 3600].map(Duration::from_secs));
        assert!((TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout(0)));
    }
}
