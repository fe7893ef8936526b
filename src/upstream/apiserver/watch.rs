//! WATCH of an API server: splits the answer into frames at newlines, as fast as the client reads.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;

use super::AnswerBody;
use crate::event::ApiGroup;
use crate::event::json;
use crate::status::Status;
use crate::upstream::WatchEvent;

/// LIMIT: bytes of one frame; a longer one ends the watch with an ERROR.
pub(super) const FRAME_BYTES_MAX: usize = 4 << 20;

/// The frames of an answer. The buffer holds less than one frame and one chunk of the connection.
#[derive(Debug)]
pub struct Frames {
    group: ApiGroup,
    body: AnswerBody,
    buffer: BytesMut,
    ended: bool,
}

impl Frames {
    pub(super) fn new(group: ApiGroup, body: AnswerBody) -> Self {
        Self { group, body, buffer: BytesMut::new(), ended: false }
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
            let end = self.buffer.iter().position(|byte| *byte == b'\n');
            if end.unwrap_or(self.buffer.len()) > FRAME_BYTES_MAX {
                events.push(self.fail("a frame of the upstream's watch is too long"));
                break;
            }
            let Some(end) = end else { break };
            let frame: Bytes = self.buffer.split_to(end + 1).freeze();
            if frame.trim_ascii().is_empty() {
                continue;
            }
            let event = read(self.group, &frame)
                .unwrap_or_else(|fault| self.fail(&format!("a frame of the upstream's watch cannot be read: {fault}")));
            self.ended |= matches!(event, WatchEvent::Error(_));
            events.push(event);
        }
        events
    }

    fn fail(&mut self, message: &str) -> WatchEvent {
        self.ended = true;
        WatchEvent::Error(Box::new(Status::new(500, "InternalError", message)))
    }
}

fn read(group: ApiGroup, frame: &[u8]) -> Result<WatchEvent, String> {
    let frame: serde_json::Value = serde_json::from_slice(frame).map_err(|error| error.to_string())?;
    let object = frame.get("object").ok_or("no object")?;
    let event = || {
        let text = object.to_string();
        json::decode_event(group, text.as_bytes()).map(Arc::new).map_err(|error| error.to_string())
    };
    match frame.get("type").and_then(serde_json::Value::as_str) {
        Some("ADDED") => Ok(WatchEvent::Added(event()?)),
        Some("MODIFIED") => Ok(WatchEvent::Modified(event()?)),
        Some("DELETED") => Ok(WatchEvent::Deleted(event()?)),
        Some("BOOKMARK") => Ok(WatchEvent::Bookmark(event()?)),
        Some("ERROR") => {
            let status = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
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

        let mut frames = Frames::new(ApiGroup::Core, boxed(Body::from(vec![b' '; FRAME_BYTES_MAX + 1])));
        assert!(matches!(&frames.next().await.unwrap()[..], [WatchEvent::Error(status)] if status.code == 500));
        assert_eq!(frames.next().await, None);
        let mut frames = Frames::new(ApiGroup::Core, boxed(Body::from(b"{\"type\":\"ADD".to_vec())));
        assert_eq!(frames.next().await, None, "cut in the middle");
    }
}
