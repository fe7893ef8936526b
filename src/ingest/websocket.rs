//! A watch over a WebSocket: each event one message, JSON as text and protobuf as binary. After `WatchServer.HandleWS`
//! (`k8s.io/apiserver/pkg/endpoints/handlers/watch.go`).
//!
//! fabric8's client asks for it first. It waits without end where that is ignored, and 20 s where it gets 503.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::http::request::Parts;
use axum::response::Response;
use tokio_util::sync::CancellationToken;

use super::Face;
use super::form::Media;
use super::watch::Stream;

/// How long a client may take to let go: for the message on its way when the server stops, and for its own close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// LIMIT: bytes of a message from the client, which has nothing to say.
const MAX_RECEIVED: usize = 4096;

/// The request's wish for a WebSocket, if it has one.
pub(super) struct Upgrade {
    asked: Option<WebSocketUpgrade>,
}

impl<S: Send + Sync> FromRequestParts<S> for Upgrade {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let asked = WebSocketUpgrade::from_request_parts(parts, state).await.ok();
        Ok(Self { asked })
    }
}

impl Upgrade {
    /// Answers with the stream over a WebSocket; gives the stream back where none was asked for.
    pub(super) fn accept(self, face: &Face, stream: Stream) -> Result<Response, Box<Stream>> {
        let Some(mut upgrade) = self.asked else { return Err(Box::new(stream)) };
        // COMPAT(apiserver): a protocol is not looked at, and agreed to if it is the only one.
        let offered: Vec<_> = upgrade.requested_protocols().cloned().collect();
        if let [only] = offered.as_slice() {
            upgrade.set_selected_protocol(only.clone());
        }
        let stop = face.0.watches.stop();
        // The end of the program waits for the close frame.
        let token = face.0.tasks.token();
        let upgrade = upgrade.max_message_size(MAX_RECEIVED).max_frame_size(MAX_RECEIVED);
        Ok(upgrade.on_upgrade(async move |socket| {
            carry(socket, stream, stop).await;
            drop(token);
        }))
    }
}

async fn carry(mut socket: WebSocket, stream: Stream, stop: CancellationToken) {
    let stalled = async {
        stop.cancelled().await;
        tokio::time::sleep(CLOSE_TIMEOUT).await;
    };
    tokio::select! {
        () = send_all(&mut socket, stream) => {}
        () = stalled => {}
    }
    let close = async {
        let normal = CloseFrame { code: close_code::NORMAL, reason: Utf8Bytes::default() };
        // It fails when the client was the first to close; the answer to that goes out as its last frames are read.
        let _closed = socket.send(Message::Close(Some(normal))).await;
        while let Some(Ok(_)) = socket.recv().await {}
    };
    let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
}

/// Sends what the stream has, until its end or the client's.
async fn send_all(socket: &mut WebSocket, stream: Stream) {
    let mut next = Box::pin(stream.events());
    loop {
        tokio::select! {
            received = socket.recv() => match received {
                // What it says is not looked at; pings are answered by the library.
                Some(Ok(Message::Text(_) | Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            made = &mut next => {
                let Some((events, mut stream)) = made else { return };
                for event in &events {
                    let mut frame = Vec::new();
                    stream.write(event, &mut frame);
                    if socket.send(message(stream.media(), frame)).await.is_err() {
                        return;
                    }
                }
                next = Box::pin(stream.events());
            }
        }
    }
}

/// A frame as a message, which has a beginning and an end without a length or a line's end.
fn message(media: Media, mut frame: Vec<u8>) -> Message {
    match media {
        Media::Protobuf => Message::Binary(Bytes::from(frame).slice(4..)),
        Media::Json | Media::Yaml => {
            frame.pop();
            let frame = Bytes::from(frame);
            Utf8Bytes::try_from(frame.clone()).map_or(Message::Binary(frame), Message::Text)
        }
    }
}
