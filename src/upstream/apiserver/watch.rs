//! WATCH of an API server: splits the answer into frames at newlines, as fast as the client reads.

use std::sync::Arc;

use bytes::BytesMut;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::codec::{AnyDelimiterCodec, Decoder as _};

use super::{AnswerBody, READ_BYTES_MAX};
use crate::event::ApiGroup;
use crate::event::json;
use crate::status::Status;
use crate::upstream::WatchEvent;

/// The frames of an answer. The buffer holds less than one frame and one chunk of the connection.
#[derive(Debug)]
pub struct Frames {
    group: ApiGroup,
    body: AnswerBody,
    buffer: BytesMut,
    lines: AnyDelimiterCodec,
    ended: bool,
}

impl Frames {
    pub(super) fn new(group: ApiGroup, body: AnswerBody) -> Self {
        // LIMIT: bytes of one frame; a longer one ends the watch with an ERROR.
        let lines = AnyDelimiterCodec::new_with_max_length(b"\n".to_vec(), Vec::new(), READ_BYTES_MAX);
        Self { group, body, buffer: BytesMut::new(), lines, ended: false }
    }

    /// Waits for the next frames; `None` at the end. Cancelling is safe.
    pub(in crate::upstream) async fn next(&mut self) -> Option<Vec<WatchEvent>> {
        while !self.ended {
            let events = self.take_frames();
            if !events.is_empty() {
                return Some(events);
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
    use kube::client::Body;

    use super::*;
    use crate::upstream::apiserver::boxed;

    #[tokio::test]
    async fn frames_are_cut_at_newlines_and_bounded() {
        let text = r#"{"type":"ADDED","object":{"kind":"Event","apiVersion":"v1","metadata":{"name":"a"}}}
{"type":"BOOKMARK","object":{"kind":"Event","apiVersion":"v1","metadata":{"resourceVersion":"7"}}}
{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"m","reason":"Expired","code":410}}
{"type":"ADDED","object":{}}
"#;
        let mut frames = Frames::new(ApiGroup::Core, boxed(Body::from(text.as_bytes().to_vec())));
        let events = frames.next().await.unwrap();
        let labels: Vec<_> = events.iter().map(WatchEvent::label).collect();
        assert_eq!(labels, ["ADDED", "BOOKMARK", "ERROR"]);
        assert!(matches!(&events[2], WatchEvent::Error(status) if status.code == 410));
        assert_eq!(frames.next().await, None);

        let mut frames = Frames::new(ApiGroup::Core, boxed(Body::from(vec![b' '; READ_BYTES_MAX + 1])));
        assert!(matches!(&frames.next().await.unwrap()[..], [WatchEvent::Error(status)] if status.code == 500));
        assert_eq!(frames.next().await, None);
        let mut frames = Frames::new(ApiGroup::Core, boxed(Body::from(b"{\"type\":\"ADD".to_vec())));
        assert_eq!(frames.next().await, None, "cut in the middle");
    }

    /// Fault: a watch ended at every event of more than 4 MiB, which a tenant may create.
    #[tokio::test]
    async fn the_longest_event_does_not_end_a_watch() {
        let message = r"\u003c".repeat(3 << 19);
        let frame = format!("{{\"type\":\"ADDED\",\"object\":{{\"message\":\"{message}\"}}}}\n");
        let mut frames = Frames::new(ApiGroup::Core, boxed(Body::from(frame.into_bytes())));
        let events = frames.next().await.unwrap();
        assert!(matches!(&events[..], [WatchEvent::Added(event)] if event.message.len() == 3 << 19));
    }
}
