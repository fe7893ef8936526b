//! `explain --in-cluster` against an API server of the test, which is also the pod behind its port forwarding.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(clippy::disallowed_methods, reason = "a test has no drain")]

use std::process::{Command, Output};
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use futures_util::{SinkExt as _, StreamExt as _};
use http::{Request, header};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::support::behind::{Behind, answer};

const SERVICE: &str = "/api/v1/namespaces/eventweir/services/eventweir";
const PODS: &str = "/api/v1/namespaces/eventweir/pods";

/// What the pod receives.
type Received = Arc<Mutex<String>>;

/// Messages that the API server sends before it reads: the port on both channels, and then a fault or nothing.
fn messages(fault: &str) -> Vec<Vec<u8>> {
    let mut messages = vec![vec![0, 0x90, 0x1f], vec![1, 0x90, 0x1f]];
    messages.extend(Some([&[1], fault.as_bytes()].concat()).filter(|_| !fault.is_empty()));
    messages
}

/// Forwards a port to a pod that answers every request likewise.
fn forward(mut request: Request<Incoming>, fault: &'static str, received: Received) -> Response {
    let accept = derive_accept_key(request.headers()[header::SEC_WEBSOCKET_KEY].as_bytes());
    tokio::spawn(async move {
        let upgraded = TokioIo::new(hyper::upgrade::on(&mut request).await.unwrap());
        let mut socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
        for message in messages(fault) {
            socket.send(Message::binary(message)).await.unwrap();
        }
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let Some(Ok(message)) = socket.next().await else { return };
            asked.extend_from_slice(&message.into_data()[1..]);
        }
        received.lock().push_str(&String::from_utf8_lossy(&asked));
        let body = json!({ "answer": { "text": "3 of 3 are shown.", "action": "" }, "objects": [{ "kind": "Pod" }] });
        let body = body.to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len());
        // In two messages, as a network splits them.
        for part in [head.as_bytes(), body.as_bytes()] {
            socket.send(Message::binary([&[0], part].concat())).await.unwrap();
        }
        socket.next().await;
    });
    let mut response = answer(101, Body::empty());
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-protocol", "v4.channel.k8s.io"),
        ("sec-websocket-accept", &accept),
    ] {
        response.headers_mut().insert(name, value.parse().unwrap());
    }
    response
}

fn refusal(code: u16, message: &str) -> Response {
    answer(code, json!({ "kind": "Status", "status": "Failure", "message": message, "code": code }).to_string())
}

/// Starts an API server with a Service whose port is named `scheme`, and these pods with their phases.
async fn cluster(
    scheme: &'static str,
    pods: &'static [(&'static str, &'static str)],
    fault: &'static str,
) -> (Behind, Received) {
    let received = Received::default();
    let of_pod = Arc::clone(&received);
    let handler = move |request: Request<Incoming>| {
        let response = match request.uri().path() {
            SERVICE => {
                let port = json!({ "name": scheme, "port": 80, "targetPort": "api" });
                let spec =
                    json!({ "selector": { "app": "eventweir" }, "ports": [{ "name": "admin", "port": 9090 }, port] });
                answer(200, json!({ "metadata": {}, "spec": spec }).to_string())
            }
            PODS if request.uri().query() == Some("&labelSelector=app%3Deventweir") => {
                let ports =
                    json!([{ "name": "admin", "containerPort": 9090 }, { "name": "api", "containerPort": 8080 }]);
                let spec = json!({ "containers": [{ "name": "proxy" }, { "name": "eventweir", "ports": ports }] });
                let pod = |(name, phase): &(_, _)| json!({ "metadata": { "name": name }, "spec": spec, "status": { "phase": phase } });
                let items: Vec<_> = pods.iter().map(pod).collect();
                answer(200, json!({ "metadata": {}, "items": items }).to_string())
            }
            path if path.ends_with("/weir-forbidden/portforward") => refusal(403, "pods is forbidden"),
            path if path.ends_with("/portforward") => forward(request, fault, Arc::clone(&of_pod)),
            _ => refusal(404, "none here"),
        };
        std::future::ready(response)
    };
    (Behind::plain(handler).await, received)
}

/// Asks with a kubeconfig that has the token `secret`.
async fn explain(behind: &Behind, more: &[&str]) -> (Output, String) {
    explain_as("secret", behind, more).await
}

async fn explain_as(token: &str, behind: &Behind, more: &[&str]) -> (Output, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let kubeconfig = json!({
        "current-context": "x", "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u", "namespace": "shop" } }],
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", behind.address) } }],
        "users": [{ "name": "u", "user": { "token": token } }],
    });
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_eventweir"));
    command.args(["explain", "pod/web", "--kubeconfig"]).arg(&path).args(more);
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap();
    (output, text)
}

#[tokio::test]
async fn every_running_replica_is_asked_by_its_forwarded_port() {
    let pods = &[("weir-0", "Running"), ("weir-1", "Pending"), ("weir-2", "Running"), ("weir-3", "Succeeded")];
    let (behind, received) = cluster("http", pods, "").await;
    let (output, text) = explain(&behind, &["--in-cluster"]).await;
    assert!(output.status.success(), "{text}");
    let named: Vec<_> = text.lines().filter(|line| line.starts_with("eventweir/")).collect();
    assert_eq!(named, ["eventweir/weir-0", "eventweir/weir-2"]);
    assert_eq!(text.matches("3 of 3 are shown.").count(), 2, "{text}");
    let lines: Vec<_> = behind.seen().into_iter().map(|seen| seen.line).collect();
    assert!(lines.contains(&format!("GET {PODS}/weir-2/portforward?ports=8080")), "{lines:?}");

    // The API server gets the token, and a pod without TLS does not.
    assert!(behind.seen().iter().all(|seen| seen.header("authorization") == Some("Bearer secret")));
    let received = received.lock().to_lowercase();
    assert!(received.contains("host: localhost\r\n") && !received.contains("secret"), "{received}");
    assert!(received.contains("?object=pod%2fweb&namespace=shop http"), "the context's namespace: {received}");

    let (output, text) = explain(&behind, &["--in-cluster", "--pod", "weir-2", "-o", "json"]).await;
    assert!(output.status.success() && !text.contains("weir"), "{text}");
    let (output, text) = explain(&behind, &["--in-cluster", "--pod", "weir-1"]).await;
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(text.ends_with("--pod weir-1: not running; these are: weir-0, weir-2\n"), "{text}");
}

#[tokio::test]
async fn the_authority_of_a_service_with_a_long_name_is_asked_for_as_the_chart_names_it() {
    let chars = |many: usize| "x".repeat(many);
    for (service, expected) in [
        ("eventweir".into(), "eventweir-ca".into()),
        (chars(60), chars(60) + "-ca"),
        (chars(63), chars(60) + "-ca"),
        (chars(59) + "-weir", chars(59) + "-ca"),
    ] {
        let handler = |request: Request<Incoming>| {
            let spec = json!({ "selector": { "app": "x" }, "ports": [{ "name": "https", "port": 80 }] });
            let body = json!({ "metadata": {}, "spec": spec, "items": [] }).to_string();
            let is_map = request.uri().path().contains("/configmaps/");
            std::future::ready(if is_map { refusal(404, "none here") } else { answer(200, body) })
        };
        let behind = Behind::plain(handler).await;
        let (_output, text) = explain(&behind, &[&format!("--in-cluster=shop/{service}")]).await;
        let lines: Vec<_> = behind.seen().into_iter().map(|seen| seen.line).collect();
        let line = format!("GET /api/v1/namespaces/shop/configmaps/{expected}");
        assert!(lines.contains(&line), "{lines:?} {text}");
    }
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let running: &[_] = &[("weir-0", "Running")];
    let ours = "--in-cluster";
    for (scheme, pods, fault, flag, says) in [
        ("http", running, "lost\u{1b}", ours, "eventweir/weir-0: lost\u{fffd}\n"),
        ("https", running, "dial: refused", ours, "eventweir/weir-0: dial: refused\n"),
        ("http", &[("weir-forbidden", "Running")], "", ours, "port forwarding: 403 Forbidden: pods is forbidden\n"),
        ("http", &[("weir-0", "Failed")], "", ours, "=eventweir/eventweir: no pod of this Service is running\n"),
        ("grpc", &[], "", ours, "=eventweir/eventweir: the Service has no port with the name `https` or `http`\n"),
        ("http", &[], "", "--in-cluster=shop", "--in-cluster=shop/eventweir: none here\n"),
    ] {
        let (behind, _received) = cluster(scheme, pods, fault).await;
        let (output, text) = explain(&behind, &[flag]).await;
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.starts_with("error: ") && text.ends_with(says), "{text}");
    }
    let (behind, _received) = cluster("http", running, "").await;
    let (output, text) = explain_as("a\n", &behind, &[ours]).await;
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.ends_with("token has characters that a header cannot have\n"), "{text}");
}
