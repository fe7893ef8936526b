//! Strange targets, methods, headers and origins.

use super::super::support::events::plain;
use super::super::support::http::{Client, EVENTS, json};
use super::super::support::ways::{Entry, Way};
use super::PODS;

/// A method, a target, and the code of ingest. The last is the target at the API server, if pass-through forwards it.
type Row = (&'static str, &'static str, u16, Option<&'static str>);

const fn kept(method: &'static str, target: &'static str, code: u16) -> Row {
    (method, target, code, Some(target))
}

const fn refused(method: &'static str, target: &'static str, code: u16) -> Row {
    (method, target, code, None)
}

/// No escape or dot is resolved before a path is forwarded, so that the API server decides about what the client named.
const TARGETS: [Row; 36] = [
    kept("GET", "/..", 404),
    kept("GET", "/%2e%2e/x", 404),
    kept("POST", "/api/v1/%2e%2e/v1/namespaces/shop/events", 404),
    kept("POST", "/api/v1/namespaces/shop%2fevents", 405),
    kept("POST", "/api/v1/namespaces/shop/%65vents", 404),
    kept("POST", "/api/v1/namespaces/shop/events/..", 405),
    kept("POST", "/api/v1/namespaces/shop/events/../pods", 404),
    kept("POST", "/api/v1/namespaces/shop/events;x", 404),
    kept("POST", "/api/v1/namespaces/shop/events/%ff", 405),
    kept("POST", "//api/v1/namespaces/shop/events", 404),
    kept("POST", "/api/v1//namespaces/shop/events", 404),
    kept("GET", "/api/v1/namespaces/shop/events/..", 400),
    kept("GET", "/api/v1/namespaces/shop/events/%00", 404),
    kept("GET", "/api/v1/namespaces/shop/events/%ff", 400),
    kept("GET", "/api/v1/namespaces/%00/events", 200),
    kept("GET", "/api/v1/namespaces/%ff/events", 400),
    refused("POST", "/api/v1/namespaces/%00/events", 422),
    refused("POST", "/api/v1/namespaces/%ff/events", 400),
    refused("POST", "/eventweir/../api/v1/pods", 404),
    refused("POST", "/eventweir/%2e%2e/api/v1/pods", 404),
    kept("GET", "//evil.example/x", 404),
    kept("GET", "/api/v1/pods?%zz&a=\\", 404),
    kept("GET", "/%zz", 404),
    kept("GET", "/a\\b", 404),
    kept("GET", "/\u{e4}", 404),
    kept("OPTIONS", "*", 404),
    ("GET", "http://localhost/api/v1/pods", 404, Some("/api/v1/pods")),
    ("GET", "http://localhost", 200, Some("/")),
    refused("GET", "http://evil.example/api/v1/pods", 403),
    refused("GET", "api", 403),
    refused("GET", "?a", 400),
    refused("GET", "/a b", 400),
    refused("GET", "/a<b>", 400),
    kept("TRACE", EVENTS, 405),
    kept("PROPFIND", PODS, 404),
    refused("G@T", PODS, 400),
];

#[tokio::test]
async fn a_strange_target_is_refused_or_forwarded_as_it_is() {
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for (method, target, code, forwarded) in TARGETS {
            let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
            let answers = entry.send(format!("{head}Content-Length: 2\r\n\r\n{{}}").as_bytes()).await;
            let lines: Vec<String> = entry.take_arrived().into_iter().map(|arrived| arrived.line).collect();
            let forwarded = forwarded.filter(|_| way == Way::Passthrough).map(|target| format!("{method} {target}"));
            let expected = (vec![if forwarded.is_some() { 200 } else { code }], Vec::from_iter(forwarded));
            assert_eq!((answers.codes(), lines), expected, "{way:?} {method} {target}");
        }
        entry.close().await;
    }
}

#[tokio::test]
async fn a_head_beyond_the_limits_is_refused() {
    let get = |target: &str, headers: &str| format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    let rows = [
        ("a path of 70 kB", get(&format!("/{}", "a".repeat(70_000)), ""), 414),
        ("a header of 20 MB", get("/", &format!("A: {}\r\n", "a".repeat(20_000_000))), 431),
        ("a header without an end", format!("GET / HTTP/1.1\r\nA: {}", "a".repeat(200 << 10)), 431),
        (
            "a header of 70 KiB",
            get("/eventweir/x", &format!("Connection: close\r\nA: {}\r\n", "a".repeat(70 << 10))),
            404,
        ),
        ("1,000 headers", get("/", &"A: b\r\n".repeat(1_000)), 431),
        ("no version", format!("GET {PODS}\r\n\r\n"), 400),
        ("HTTP/1.2", get("/", "").replace("1.1", "1.2"), 400),
        ("HTTP/2.0", get("/", "").replace("1.1", "2.0"), 400),
        ("no host", "GET / HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), 403),
        ("another host behind", get("/", "Host: evil.example\r\nConnection: close\r\n"), 403),
        ("a tunnel", get("x", "Connection: close\r\n").replace("GET x", "CONNECT localhost:443"), 404),
        ("a tunnel elsewhere", get("x", "Connection: close\r\n").replace("GET x", "CONNECT evil.example:443"), 403),
    ];
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        for (name, sent, code) in &rows {
            let code = if way == Way::Passthrough && *name == "a tunnel" { 405 } else { *code };
            assert_eq!(entry.send(sent.as_bytes()).await.codes(), [code], "{way:?}, {name}");
        }
        assert_eq!(entry.take_arrived(), []);
        entry.close().await;
    }
}

/// What a page of another site can make a browser send without a preflight request, and what DNS rebinding lets it read.
#[tokio::test]
async fn a_web_page_of_another_origin_is_refused() {
    let batch = "/eventweir/v1/events";
    for way in Way::ALL {
        let entry = Entry::open(way, "").await;
        let client = &mut Client::over(entry.connect().await);
        for foreign in [
            ("Host", "evil.example"),
            ("Host", "localhost.evil.example"),
            ("Origin", "http://evil.example"),
            ("Origin", "null"),
            ("Origin", "http://localhost:3000"),
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Site", "same-site"),
        ] {
            for (method, path) in [("GET", PODS), ("GET", EVENTS), ("POST", EVENTS), ("POST", batch), ("POST", PODS)] {
                for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json"] {
                    let headers = [foreign, ("Host", "localhost:8080"), ("Content-Type", kind)];
                    let headers = if foreign.0 == "Host" { &[foreign, headers[2]][..] } else { &headers[..] };
                    let reply = client.send(method, path, headers, &json(&plain())).await;
                    assert_eq!(reply.status, 403, "{way:?} {method} {path} {headers:?}");
                }
            }
        }
        assert_eq!((entry.take_arrived(), entry.program.balance().ledger.total_written()), (vec![], 0));
        // A client that is no browser sends neither, and Python's client no type.
        assert_eq!(client.send("POST", EVENTS, &[], &json(&plain())).await.status, 201);
        entry.close().await;
    }
}
