//! Pass-through between callers: what one of them, or a client without valid credentials, can take from others.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;

use super::support::behind::{Behind, answer};
use super::support::http::{Client, Reply};

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
