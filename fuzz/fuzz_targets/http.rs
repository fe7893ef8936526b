//! Any HTTP request: paths, queries, headers and bodies of all verbs, with patches. After it the ledger balances, and
//! an answer with the content type JSON is JSON.
//!
//! The input is a request as text: `VERB path?query`, one header per line, an empty line, the body.
#![no_main]

mod face;

use axum::body::Body;
use face::{Fixture, run};
use http::Request;
use libfuzzer_sys::fuzz_target;

/// An event that is stored before the request.
const EVENT: &str = r#"{"metadata":{"name":"web-0.1","namespace":"shop","labels":{"app":"web"}},"reason":"BackOff",
"involvedObject":{"kind":"Pod","name":"web-0","namespace":"shop"},"message":"restarting","count":1,"type":"Normal",
"source":{"component":"kubelet","host":"node-1"},"firstTimestamp":"2026-03-01T08:00:00Z"}"#;

fuzz_target!(|input: &[u8]| {
    let Some(request) = read(input) else { return };
    let what = format!("{} {}", request.method(), request.uri());
    run(async {
        let fixture = Fixture::new();
        let create = Request::post("/api/v1/namespaces/shop/events").header("Content-Type", "application/json");
        let created = fixture.send(create.body(Body::from(EVENT)).expect("a request")).await;
        assert_eq!(created.status(), 201, "{}", String::from_utf8_lossy(created.body()));
        let answer = fixture.send(request).await;
        let balance = fixture.shards.balance();
        assert!(balance.is_exact(), "{what}: {balance:?}");
        assert!(answer.status().as_u16() >= 200, "{what}");
        let is_json = answer.headers().get("Content-Type").is_some_and(|kind| kind == "application/json");
        if is_json && !answer.body().is_empty() {
            // A watch has several documents.
            let documents = serde_json::Deserializer::from_slice(answer.body()).into_iter::<serde_json::Value>();
            for document in documents {
                assert!(document.is_ok(), "{what}: {}", String::from_utf8_lossy(answer.body()));
            }
        }
    });
});

fn read(input: &[u8]) -> Option<Request<Body>> {
    let end = input.windows(2).position(|window| window == b"\n\n")?;
    let (head, body) = (std::str::from_utf8(&input[..end]).ok()?, &input[end + 2..]);
    let mut lines = head.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    if !target.starts_with('/') {
        return None;
    }
    let mut request = Request::builder().method(method).uri(target);
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        request = request.header(name, value);
    }
    request.body(Body::from(body.to_vec())).ok()
}
