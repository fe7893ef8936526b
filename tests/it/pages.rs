//! Requests that a web page makes a browser send are refused on both listeners.

use super::support::app::{Program, start};
use super::support::events::plain;
use super::support::http::{EVENTS, json};

const BATCH: &str = "/eventweir/v1/events";

/// Returns the answers to a request with these headers: of the listener for clients and of the admin port.
async fn answers(program: &Program, headers: &[(&str, &str)]) -> (u16, u16) {
    let body = json(&plain());
    let main = program.client().await.send("POST", BATCH, headers, &body).await;
    let admin = program.admin().await.send("POST", "/-/reload", headers, b"").await;
    if main.status == 403 {
        let status = main.json();
        assert_eq!(
            (&status["kind"], &status["reason"], &status["code"]),
            (&"Status".into(), &"Forbidden".into(), &403.into())
        );
        assert!(admin.text().ends_with('\n') && !admin.text().contains('{'), "{}", admin.text());
    }
    (main.status, admin.status)
}

#[tokio::test]
async fn requests_of_other_pages_are_refused() {
    let program = start("").await;
    let foreign = [
        // DNS rebinding: the page's host resolves to this listener.
        vec![("Host", "evil.example")],
        vec![("Host", "evil.example:8080"), ("Origin", "http://evil.example:8080")],
        // Sent by a page without a preflight request.
        vec![("Origin", "http://evil.example"), ("Content-Type", "text/plain")],
        vec![("Origin", "null"), ("Content-Type", "application/x-www-form-urlencoded")],
        vec![("Host", "localhost:8080"), ("Origin", "http://localhost:3000")],
        vec![("Sec-Fetch-Site", "cross-site")],
        vec![("Sec-Fetch-Site", "same-site")],
    ];
    for headers in &foreign {
        assert_eq!(answers(&program, headers).await, (403, 403), "{headers:?}");
    }
    for (method, path) in
        [("GET", EVENTS), ("GET", "/version"), ("POST", EVENTS), ("DELETE", EVENTS), ("OPTIONS", EVENTS)]
    {
        let reply = program.client().await.send(method, path, &foreign[0], b"").await;
        assert_eq!(reply.status, 403, "{method} {path}");
    }
    for path in ["/", "/metrics", "/config", "/livez", "/nothing"] {
        assert_eq!(program.admin().await.send("GET", path, &foreign[0], b"").await.status, 403, "{path}");
    }
    assert_eq!(program.stop().await.ledger.received(), 0);
}

#[tokio::test]
async fn clients_other_than_pages_are_accepted() {
    let program = start("").await;
    let ours = [
        vec![],
        // Python's client sends no Content-Type.
        vec![("User-Agent", "OpenAPI-Generator/37.0.0/python")],
        vec![("Host", "127.0.0.1:8080"), ("Content-Type", "application/json")],
        vec![("Host", "[::1]:8080")],
        vec![("Host", "localhost:8080"), ("Origin", "http://localhost:8080"), ("Sec-Fetch-Site", "same-origin")],
    ];
    for headers in &ours {
        assert_eq!(answers(&program, headers).await, (200, 202), "{headers:?}");
        assert_eq!(
            program.client().await.send("POST", EVENTS, headers, &json(&plain())).await.status,
            201,
            "{headers:?}"
        );
    }
    program.settle().await;
    program.stop().await;
    let program = start("acceptHosts: ['^eventweir[.]test$']\n").await;
    assert_eq!(answers(&program, &[("Host", "eventweir.test:8080")]).await, (200, 202));
    assert_eq!(answers(&program, &[("Host", "localhost")]).await, (403, 403));
    program.settle().await;
    program.stop().await;
}
