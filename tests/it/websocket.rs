//! Watches over WebSockets.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use eventweir::event::Event;
use futures_util::StreamExt as _;
use http::Request;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{
    Error, Message, handshake::client::generate_key, protocol::frame::coding::CloseCode,
};

use super::support::app::{DEADLINE, Program, start};
use super::support::events::{event, plain};
use super::support::http::{EVENTS, json};

type Socket = WebSocketStream<TcpStream>;

/// Opens a watch; returns the code of a refusal.
async fn open(program: &Program, path: &str, headers: &[(&str, &str)]) -> Result<Socket, u16> {
    let address = program.app.address();
    let mut request = Request::get(format!("ws://{address}{path}"))
        .header("Host", address.to_string())
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", generate_key());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let stream = TcpStream::connect(address).await.unwrap();
    match tokio_tungstenite::client_async(request.body(()).unwrap(), stream).await {
        Ok((socket, _)) => Ok(socket),
        Err(Error::Http(reply)) => Err(reply.status().as_u16()),
        Err(error) => panic!("{error}"),
    }
}

async fn message(socket: &mut Socket) -> Message {
    tokio::time::timeout(DEADLINE, socket.next()).await.unwrap().unwrap().unwrap()
}

/// Returns type and name of the next event.
async fn next(socket: &mut Socket) -> (String, String) {
    let message = message(socket).await;
    let text = message.to_text().unwrap();
    assert!(message.is_text() && text.ends_with('}'), "{text}");
    let told: Value = serde_json::from_str(text).unwrap();
    let text = |pointer: &str| told.pointer(pointer).and_then(Value::as_str).unwrap().to_owned();
    (text("/type"), text("/object/metadata/name"))
}

async fn ends(socket: &mut Socket) {
    match message(socket).await {
        Message::Close(Some(frame)) => assert_eq!(frame.code, CloseCode::Normal),
        other => panic!("{other:?}"),
    }
    assert!(tokio::time::timeout(DEADLINE, socket.next()).await.unwrap().is_none_or(|last| last.is_err()));
}

#[tokio::test]
async fn each_event_is_one_message_until_the_stop() {
    let program = start("").await;
    let client = &mut program.client().await;
    let (first, second) = (plain(), event("node-1", "web-1", "BackOff", "again"));
    let name = |event: &Event| event.metadata.name.to_string();
    client.post(&first).await;
    program.settle().await;
    // As fabric8's client sends it.
    let origin = format!("http://{}", program.app.address());
    let mut socket = open(&program, &format!("{EVENTS}?watch=true"), &[("Origin", &origin)]).await.unwrap();
    assert_eq!(next(&mut socket).await, ("ADDED".to_owned(), name(&first)));
    client.post(&second).await;
    program.settle().await;
    assert_eq!(next(&mut socket).await, ("ADDED".to_owned(), name(&second)));
    client.send("DELETE", &format!("{EVENTS}/{}", name(&second)), &[], b"").await;
    assert_eq!(next(&mut socket).await, ("DELETED".to_owned(), name(&second)));
    let ((), _balance) = tokio::join!(ends(&mut socket), program.stop());
}

#[tokio::test]
async fn a_websocket_watch_ends_at_its_timeout_and_frees_its_place() {
    let program = start("ingest: {maxWatches: 1}\n").await;
    let watch = format!("{EVENTS}?watch=true&timeoutSeconds=5");
    let mut socket = open(&program, &watch, &[]).await.unwrap();
    assert_eq!(open(&program, &watch, &[]).await.unwrap_err(), 429);
    program.clock.advance(std::time::Duration::from_secs(6));
    ends(&mut socket).await;
    drop(socket);
    // The place is free again, even if the client closes first.
    for _ in 0..3 {
        let opening = async {
            loop {
                if let Ok(socket) = open(&program, &watch, &[]).await {
                    return socket;
                }
                tokio::task::yield_now().await;
            }
        };
        let mut socket = tokio::time::timeout(DEADLINE, opening).await.unwrap();
        socket.close(None).await.unwrap();
        while let Some(Ok(_)) = tokio::time::timeout(DEADLINE, socket.next()).await.unwrap() {}
    }
    program.stop().await;
}

/// Fault: a watch kept the memory of its longest message until its end.
#[tokio::test]
async fn a_watch_ends_after_a_long_event_and_its_client_resumes() {
    let program = start("").await;
    let client = &mut program.client().await;
    let (mut long, short) = (event("node-1", "web-1", "BackOff", &"x".repeat(100_000)), plain());
    long.metadata.name = "a-long-event".into();
    let reply = client.send("PUT", &format!("{EVENTS}/a-long-event"), &[], &json(&long)).await;
    let version = reply.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    client.post(&short).await;
    program.settle().await;
    let mut socket = open(&program, &format!("{EVENTS}?watch=true"), &[]).await.unwrap();
    assert_eq!(next(&mut socket).await, ("ADDED".to_owned(), "a-long-event".to_owned()));
    ends(&mut socket).await;
    let mut socket = open(&program, &format!("{EVENTS}?watch=true&resourceVersion={version}"), &[]).await.unwrap();
    assert_eq!(next(&mut socket).await, ("ADDED".to_owned(), short.metadata.name.to_string()));
    program.stop().await;
}

#[tokio::test]
async fn protobuf_is_binary_and_a_silent_client_does_not_delay_the_stop() {
    let program = start("").await;
    program.client().await.post(&plain()).await;
    program.settle().await;
    let accept = ("Accept", "application/vnd.kubernetes.protobuf;stream=watch");
    let protocol = ("Sec-WebSocket-Protocol", "any");
    let mut socket = open(&program, "/api/v1/watch/events", &[accept, protocol]).await.unwrap();
    let message = message(&mut socket).await;
    // Field 1, a text of five bytes, without a length prefix.
    assert!(message.is_binary() && message.into_data().starts_with(b"\x0a\x05ADDED"));
    program.stop().await;
}

#[tokio::test]
async fn refusals_come_before_the_upgrade() {
    let program = start("").await;
    let path = format!("{EVENTS}?watch=true");
    // A page of another site.
    assert_eq!(open(&program, &path, &[("Origin", "http://example.com")]).await.unwrap_err(), 403);
    assert_eq!(open(&program, &path, &[("Origin", "null")]).await.unwrap_err(), 403);
    assert_eq!(open(&program, &format!("{path}&fieldSelector=nonsense%3D1"), &[]).await.unwrap_err(), 400);
    program.stop().await;
}
