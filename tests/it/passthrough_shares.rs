//! Pass-through between callers: what one of them, or a client without valid credentials, can take from others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use http::header::UPGRADE;
use http::{Method, Request};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::passthrough_streams::{exec_over, shout};
use super::support::app::Program;
use super::support::behind::{Behind, answer};
use super::support::http::{Client, Reply};

const IN_FLIGHT: &str = "eventweir_passthrough_in_flight";

async fn send(client: &mut Client, method: &str, path: &str, authorization: &str) -> Reply {
    let header = [("Authorization", authorization)];
    client.send(method, path, if authorization.is_empty() { &[] } else { &header }, b"").await
}

/// Fault: an apiserver ends the connection of a request without valid credentials, and with it other callers' writes.
#[tokio::test]
async fn requests_without_valid_credentials_share_no_connection_with_others() {
    let is_revoked = Arc::new(AtomicBool::new(false));
    let revoked = Arc::clone(&is_revoked);
    let behind = Behind::tls(&["h2"], move |request| {
        let scheme = request.headers().get("Authorization").map(|value| value.to_str().unwrap().to_owned());
        let code = match scheme.as_deref() {
            // What an apiserver answers before it authenticates.
            _ if request.method() == Method::OPTIONS => 204,
            _ if request.uri().query().is_some() => 400,
            Some("Bearer a") => 200,
            Some("Bearer b") if !revoked.load(Ordering::Relaxed) => 200,
            Some(bearer) if bearer.starts_with("Bearer ") => 401,
            // Anonymous.
            _ => 403,
        };
        async move { answer(code, "") }
    })
    .await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    for token in ["Bearer a", "Bearer b"] {
        assert_eq!(send(client, "GET", "/api", token).await.status, 200);
    }
    for (method, authorization, path, code) in [
        ("GET", "", "/api", 403),
        ("PUT", "", "/api", 403),
        ("GET", "Basic a", "/api", 403),
        ("GET", "Bearer c", "/api?timeout=a", 400),
        ("OPTIONS", "Bearer c", "/api", 204),
        ("GET", "Bearer c", "/api", 401),
        ("PUT", "Bearer c", "/api/v1/namespaces/a/pods/b/proxy", 401),
    ] {
        for (authorization, code) in [(authorization, code), ("Bearer a", 200), ("Bearer b", 200)] {
            let (method, path) = if code == 200 { ("PUT", "/api") } else { (method, path) };
            assert_eq!(send(client, method, path, authorization).await.status, code, "{method} {path}");
        }
    }
    is_revoked.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(send(client, "GET", "/api", "Bearer b").await.status, 401);
    }
    let mut seen = behind.seen();
    let last = seen.pop().unwrap();
    let (first, rest) = seen.split_at(2);
    let is_known = |authorization: Option<&str>| ["Bearer a", "Bearer b"].map(Some).contains(&authorization);
    let (known, other): (Vec<_>, Vec<_>) = rest.iter().partition(|seen| is_known(seen.header("authorization")));
    assert!(known.iter().all(|seen| seen.connection == known[0].connection), "{known:?}");
    for seen in first.iter().chain(other).chain([&last]) {
        assert_ne!(seen.connection, known[0].connection, "{seen:?}");
    }
    program.stop().await;
}

/// Fault: a token that the client had listed as hop-by-hop was not sent, and the anonymous answer marked it as accepted.
#[tokio::test]
async fn a_token_that_is_not_sent_is_not_accepted() {
    let behind = Behind::tls(&["h2"], |request| {
        let authorization = request.headers().get("Authorization").cloned();
        async move { answer(if authorization.is_none_or(|value| value == "Bearer a") { 200 } else { 401 }, "") }
    })
    .await;
    let program = behind.program("maxInFlight: 2, maxUpgrades: 2", "").await;
    let client = &mut program.client().await;
    for _ in 0..2 {
        assert_eq!(send(client, "GET", "/api", "Bearer a").await.status, 200);
    }
    let listed = [("Authorization", "Bearer bogus"), ("Connection", "keep-alive, authorization")];
    assert_eq!(client.send("GET", "/version", &listed, b"").await.status, 200);
    let upgrade = [("Authorization", "Bearer a"), ("Connection", "Upgrade, Authorization"), ("Upgrade", "websocket")];
    assert_eq!(client.send("GET", "/version", &upgrade, b"").await.status, 200);
    assert_eq!(send(client, "GET", "/api", "Bearer bogus").await.status, 401);
    let seen = behind.seen();
    let sent: Vec<_> = seen.iter().map(|seen| seen.header("authorization")).collect();
    assert_eq!(sent, [Some("Bearer a"), Some("Bearer a"), None, None, Some("Bearer bogus")]);
    let known = seen[1].connection;
    assert!(seen[2..].iter().all(|seen| seen.connection != known), "{seen:?}");
    program.stop().await;
}

/// Fault: the API server ignores whitespace in a JWT, so each spelling of a token had a share of its own.
#[tokio::test]
async fn a_token_with_whitespace_inside_is_refused() {
    let behind = Behind::plain(|_request| async { answer(200, "") }).await;
    let program = behind.program("", "").await;
    let client = &mut program.client().await;
    assert_eq!(send(client, "GET", "/api", "Bearer a\tb").await.status, 401);
    let upgrade = [("Authorization", "Bearer a\tb"), ("Connection", "Upgrade"), ("Upgrade", "websocket")];
    assert_eq!(client.send("GET", "/api", &upgrade, b"").await.status, 401);
    assert!(behind.seen().is_empty(), "{:?}", behind.seen());
    assert_eq!(send(client, "GET", "/api", "Bearer ab").await.status, 200);
    program.stop().await;
}

/// Fault: clients without credentials took all places with answers that they did not read.
#[tokio::test]
async fn a_short_answer_that_is_not_read_keeps_no_place() {
    let behind = Behind::plain(|request| async move {
        if request.uri().path() == "/long" { answer(200, vec![b'x'; 5000]) } else { answer(401, "who are you?") }
    })
    .await;
    let program = behind.program("maxInFlight: 4", "").await;
    let stream = TokioIo::new(TcpStream::connect(program.app.address()).await.unwrap());
    let handshake = http2::Builder::new(TokioExecutor::new()).initial_stream_window_size(0_u32).handshake(stream);
    let (sender, connection) = handshake.await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { connection.await.is_ok() });
    let get = |path: &str| {
        let request = Request::get(format!("http://{}{path}", program.app.address())).body(Body::empty()).unwrap();
        let mut sender = sender.clone();
        async move { sender.send_request(request).await.unwrap() }
    };
    let mut unread = Vec::new();
    for _ in 0..8 {
        unread.push(get("/api").await);
        assert_eq!(unread.last().unwrap().status(), 401);
        program.until_metric(IN_FLIGHT, |taken| taken == 0.0).await;
    }
    unread.push(get("/long").await);
    assert_eq!(program.metrics().await[IN_FLIGHT], 1.0);
    drop((unread, sender, tasks));
    program.until_metric(IN_FLIGHT, |taken| taken == 0.0).await;
    program.stop().await;
}

/// Holds as many requests as one caller may have in flight.
async fn hold(program: &Program, behind: &Behind, authorization: &'static str, number: usize) -> JoinSet<()> {
    let mut held = JoinSet::new();
    let before = behind.seen().len();
    for _ in 0..number {
        let mut client = program.client().await;
        held.spawn(async move {
            send(&mut client, "GET", "/held", authorization).await;
        });
    }
    program.until("they are held", || behind.seen().len() == before + number).await;
    held
}

/// Fault: one caller's watches, or its tunnels, took all places.
#[tokio::test]
async fn a_caller_has_half_of_the_places_and_of_the_tunnels() {
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let behind = Behind::plain(move |request| {
        let gate = Arc::clone(&opened);
        async move {
            if request.headers().contains_key(UPGRADE) {
                return shout(request).await;
            }
            if request.uri().path() == "/held" {
                gate.acquire().await.unwrap().forget();
            }
            answer(200, "{}")
        }
    })
    .await;
    let program = behind.program("maxInFlight: 6, maxUpgrades: 2", "").await;
    let client = &mut program.client().await;
    for token in ["Bearer a", "Bearer b"] {
        assert_eq!(send(client, "GET", "/api", token).await.status, 200);
    }
    let held = hold(&program, &behind, "Bearer a", 3).await;
    let reply = send(client, "GET", "/api", "Bearer a").await;
    assert_eq!((reply.status, reply.header("Retry-After")), (429, Some("1")));
    assert_eq!(send(client, "GET", "/api", "Bearer b").await.status, 200);
    // Those whose credentials are not known share by their address.
    let unknown = hold(&program, &behind, "Bearer c", 3).await;
    // The first ones are answered first.
    gate.add_permits(3);
    held.join_all().await;
    program.until_metric(IN_FLIGHT, |taken| taken == 3.0).await;
    for (authorization, code) in [("Bearer d", 429), ("", 429), ("Bearer a", 200), ("Bearer b", 200)] {
        assert_eq!(send(client, "GET", "/api", authorization).await.status, code, "{authorization}");
    }
    let (tunnel, head) = exec_over(TcpStream::connect(program.app.address()).await.unwrap()).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    for (authorization, code) in [("Bearer d", 429), ("Bearer b", 400)] {
        let headers = [("Connection", "Upgrade"), ("Upgrade", "websocket"), ("Authorization", authorization)];
        assert_eq!(client.send("GET", "/api", &headers, b"").await.status, code, "{authorization}");
    }
    gate.add_permits(3);
    unknown.join_all().await;
    drop(tunnel);
    program.stop().await;
}
