//! WATCH of an API server: splits the answer into frames at newlines, as fast as the client reads.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::codec::{AnyDelimiterCodec, Decoder as _};

use super::{AnswerBody, READ_BYTES_MAX};
use crate::event::ApiGroup;
use crate::event::json;
use crate::status::Status;
use crate::upstream::{Step, WatchEvent};

/// Bytes of a frame that is read without its reader's consent.
const SHORT_BYTES: usize = 64 << 10;

/// The frames of an answer. The buffer holds less than one frame and one chunk of the connection.
#[derive(Debug)]
pub struct Frames {
    group: ApiGroup,
    body: AnswerBody,
    buffer: BytesMut,
    lines: AnyDelimiterCodec,
    ended: bool,
    /// Whether the reader knows that the next frame is long.
    is_long: bool,
    /// LIMIT: time for the rest of a long frame, for which the reader keeps room. Without it the watch ends.
    timeout: Duration,
}

impl Frames {
    pub(super) fn new(group: ApiGroup, body: AnswerBody, timeout: Duration) -> Self {
        // LIMIT: bytes of one frame; a longer one ends the watch with an ERROR.
        let lines = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), READ_BYTES_MAX);
        Self { group, body, buffer: BytesMut::new(), lines, ended: false, is_long: false, timeout }
    }

    /// Waits for the next step; `None` at the end. Cancelling is safe.
    pub(in crate::upstream) async fn next(&mut self) -> Option<Step> {
        if !self.is_long {
            return self.read().await;
        }
        let Ok(step) = tokio::time::timeout(self.timeout, self.read()).await else {
            tracing::debug!("a frame of the upstream's watch did not end in time");
            self.ended = true;
            return None;
        };
        step
    }

    async fn read(&mut self) -> Option<Step> {
        while !self.ended {
            let events = self.take_frames();
            if !events.is_empty() {
                // A copy of the rest, because a long frame's memory would stay as long as the watch.
                self.buffer = BytesMut::from(&self.buffer[..]);
                self.is_long = false;
                return Some(Step::Events(events));
            }
            if self.buffer.len() > SHORT_BYTES && !self.is_long {
                self.is_long = true;
                return Some(Step::Long(READ_BYTES_MAX));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => {
                    // A broken watch ends without an ERROR, as it does for clients of the API server itself.
                    tracing::debug!(%error, "a watch of the upstream broke");
                    self.ended = true;
                }
                None => self.ended = true,
            }
        }
        None
    }

    fn take_frames(&mut self) -> Vec<WatchEvent> {
        let mut events = Vec::new();
        while !self.ended {
            let read = match self.lines.decode(&mut self.buffer) {
                Ok(None) => break,
                Ok(Some(frame)) if frame.trim_ascii().is_empty() => continue,
                Ok(Some(frame)) => read(self.group, &frame).map_err(|fault| format!("cannot be read: {fault}")),
                Err(_too_long) => Err("is too long".to_owned()),
            };
            let event = read.unwrap_or_else(|fault| {
                let message = format!("a frame of the upstream's watch {fault}");
                WatchEvent::Error(Box::new(Status::new(500, "InternalError", message)))
            });
            self.ended = matches!(event, WatchEvent::Error(_));
            events.push(event);
        }
        events
    }
}

/// A frame whose object is not decoded yet.
#[derive(Deserialize)]
struct Frame<'f> {
    #[serde(rename = "type")]
    label: &'f str,
    #[serde(borrow)]
    object: &'f RawValue,
}

fn read(group: ApiGroup, frame: &[u8]) -> Result<WatchEvent, String> {
    let Frame { label, object } = serde_json::from_slice(frame).map_err(|error| error.to_string())?;
    let object = object.get();
    let event = || json::decode_event(group, object.as_bytes()).map(Arc::new).map_err(|error| error.to_string());
    match label {
        "ADDED" => Ok(WatchEvent::Added(event()?)),
        "MODIFIED" => Ok(WatchEvent::Modified(event()?)),
        "DELETED" => Ok(WatchEvent::Deleted(event()?)),
        "BOOKMARK" => Ok(WatchEvent::Bookmark(event()?)),
        "ERROR" => {
            let status = serde_json::from_str(object).map_err(|error| error.to_string())?;
            Ok(WatchEvent::Error(Box::new(status)))
        }
        other => Err(format!("type {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http_body_util::StreamBody;
    use kube::client::Body;

    use super::*;
    use crate::upstream::apiserver::boxed;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn frames(body: &[u8]) -> Frames {
        Frames::new(ApiGroup::Core, boxed(Body::from(body.to_vec())), TIMEOUT)
    }

    async fn events(frames: &mut Frames) -> Vec<WatchEvent> {
        loop {
            match frames.next().await.unwrap() {
                Step::Events(events) => return events,
                Step::Long(_) => {}
            }
        }
    }

    #[tokio::test]
    async fn frames_are_cut_at_newlines_and_bounded() {
        let text = r#"{"type":"ADDED","object":{"kind":"Event","apiVersion":"v1","metadata":{"name":"a"}}}
{"type":"BOOKMARK","object":{"kind":"Event","apiVersion":"v1","metadata":{"resourceVersion":"7"}}}
{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"m","reason":"Expired","code":410}}
{"type":"ADDED","object":{}}
"#;
        let mut watch = frames(text.as_bytes());
        let seen = events(&mut watch).await;
        let labels: Vec<_> = seen.iter().map(WatchEvent::label).collect();
        assert_eq!(labels, ["ADDED", "BOOKMARK", "ERROR"]);
        assert!(matches!(&seen[2], WatchEvent::Error(status) if status.code == 410));
        assert_eq!(watch.next().await, None);

        let mut watch = frames(&vec![b' '; READ_BYTES_MAX + 1]);
        assert!(matches!(&events(&mut watch).await[..], [WatchEvent::Error(status)] if status.code == 500));
        assert_eq!(watch.next().await, None);
        assert_eq!(frames(b"{\"type\":\"ADD").next().await, None, "cut in the middle");
    }

    /// Faults: a watch ended at every event of more than 4 MiB, which a tenant may create; and each watch kept the memory
    /// of its longest event.
    #[tokio::test]
    async fn the_longest_event_does_not_end_a_watch() {
        let message = r"\u003c".repeat(3 << 19);
        let frame = format!("{{\"type\":\"ADDED\",\"object\":{{\"message\":\"{message}\"}}}}\n{{\"type\"");
        let pieces: Vec<_> = frame.into_bytes().chunks(1 << 14).map(bytes::Bytes::copy_from_slice).collect();
        let pieces = stream::iter(pieces).map(|piece| Ok::<_, tower::BoxError>(hyper::body::Frame::data(piece)));
        let mut watch = Frames::new(ApiGroup::Core, boxed(StreamBody::new(pieces)), TIMEOUT);
        let seen = events(&mut watch).await;
        assert!(matches!(&seen[..], [WatchEvent::Added(event)] if event.message.len() == 3 << 19));
        assert_eq!(&watch.buffer[..], b"{\"type\"");
        watch.buffer.reserve(SHORT_BYTES);
        assert!(watch.buffer.capacity() <= 2 * SHORT_BYTES, "{}", watch.buffer.capacity());
    }

    /// Fault: all watches read a long event at once, each into memory of its own.
    #[tokio::test(start_paused = true)]
    async fn a_long_frame_is_announced_and_has_a_deadline() {
        let long = bytes::Bytes::from(vec![b'x'; SHORT_BYTES + 1]);
        let begun = stream::iter([Ok::<_, tower::BoxError>(hyper::body::Frame::data(long))]);
        let mut watch = Frames::new(ApiGroup::Core, boxed(StreamBody::new(begun.chain(stream::pending()))), TIMEOUT);
        assert_eq!(watch.next().await, Some(Step::Long(READ_BYTES_MAX)));
        assert!(watch.next().now_or_never().is_none());
        assert_eq!(tokio::time::timeout(2 * TIMEOUT, watch.next()).await, Ok(None));
    }
}
