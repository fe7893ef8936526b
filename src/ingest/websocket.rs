//! WATCH over a WebSocket: one message per event, JSON as text and protobuf as binary. Mirrors `WatchServer.HandleWS`
//! (`k8s.io/apiserver/pkg/endpoints/handlers/watch.go`).
//!
//! fabric8's client tries a WebSocket first. If the request is ignored, it waits forever; after a 503, 20 s.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use tokio_util::sync::CancellationToken;

use super::Ingest;
use super::negotiate::Media;
use super::watch::Stream;

/// Timeout for the message in flight when the server stops, and for the client's close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// LIMIT: bytes of a message from the client, whose messages are ignored.
const MAX_RECEIVED: usize = 4096;

/// WebSocket upgrade of a request, if it asks for one.
pub(super) type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// Answers with the stream over a WebSocket.
pub(super) fn accept(mut upgrade: WebSocketUpgrade, ingest: &Ingest, stream: Stream) -> Response {
    // COMPAT(apiserver): any protocol is accepted if it is the only one.
    let offered: Vec<_> = upgrade.requested_protocols().cloned().collect();
    if let [only] = offered.as_slice() {
        upgrade.set_selected_protocol(only.clone());
    }
    let stop = ingest.0.shared.stop.clone();
    // Shutdown waits for the close frame.
    let token = ingest.0.shared.tasks.token();
    let upgrade = upgrade.max_message_size(MAX_RECEIVED).max_frame_size(MAX_RECEIVED);
    upgrade.on_upgrade(async move |socket| {
        carry(socket, stream, stop).await;
        drop(token);
    })
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
        // This fails if the client closed first; the answer to its close frame is sent while its last frames are read.
        let _closed = socket.send(Message::Close(Some(normal))).await;
        while let Some(Ok(_)) = socket.recv().await {}
    };
    let _in_time = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
}

/// Sends the events of the stream, until it ends or the client closes.
async fn send_all(socket: &mut WebSocket, stream: Stream) {
    let mut next = Box::pin(stream.events());
    loop {
        tokio::select! {
            received = socket.recv() => match received {
                // Messages are ignored; the library answers pings.
                Some(Ok(Message::Text(_) | Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(Message::Close(_)) | Err(_)) | None => return,
            },
            made = &mut next => {
                let Some((events, mut stream)) = made else { return };
                for event in &events {
                    let Some((frame, room)) = stream.frame(event).await else { return };
                    let sent = socket.send(message(stream.media(), frame)).await;
                    // The library keeps the memory of the longest message, so the watch ends after a long one.
                    if sent.is_err() || room.is_some() {
                        return;
                    }
                }
                next = Box::pin(stream.events());
            }
        }
    }
}

/// Converts a frame into a message, which needs neither a length nor a line end.
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
