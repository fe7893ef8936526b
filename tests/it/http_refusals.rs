//! Refusals of ingest: status, reason and causes equal the apiserver's, and nothing is written.

use eventweir::ledger::RejectReason;
use serde_json::{Value, json};

use super::support::app::start;
use super::support::events::plain;
use super::support::http::{Client, EVENTS, json as json_of};

const JSON: (&str, &str) = ("Content-Type", "application/json");

/// Checks the refusal of a POST.
async fn refused(client: &mut Client, headers: &[(&str, &str)], body: &[u8], code: u16, reason: &str, message: &str) {
    let reply = client.send("POST", EVENTS, headers, body).await;
    let status = reply.json();
    assert_eq!((reply.status, &status["reason"], &status["code"]), (code, &json!(reason), &json!(code)), "{status}");
    assert_eq!(status["message"], message);
    assert_eq!((&status["kind"], &status["status"]), (&json!("Status"), &json!("Failure")));
    assert_eq!(reply.header("Content-Type"), Some("application/json"));
    assert_eq!(reply.outcome(), None);
}

#[tokio::test]
async fn bad_posts_are_refused_and_not_recorded() {
    let program = start("ingest: {maxBodyBytes: 4096}\n").await;
    let client = &mut program.client().await;
    let of = |change: &dyn Fn(&mut Value)| {
        let mut body: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
        body["metadata"]["name"] = json!("e");
        change(&mut body);
        body.to_string().into_bytes()
    };
    let namespace = "does not match event.namespace";
    let cut = "the body is not JSON: EOF while parsing a string at line 1 column 3";
    refused(client, &[JSON], b"{\"k", 400, "BadRequest", cut).await;
    let kind = of(&|body| body["kind"] = json!("Foo"));
    let unknown = "expected an object of kind Event and apiVersion v1, found kind \"Foo\" and apiVersion \"v1\"";
    refused(client, &[JSON], &kind, 400, "BadRequest", unknown).await;
    let lost = of(&|body| body["involvedObject"]["namespace"] = json!(null));
    let invalid = format!("Event \"e\" is invalid: involvedObject.namespace: Invalid value: \"\": {namespace}");
    refused(client, &[JSON], &lost, 422, "Invalid", &invalid).await;
    let elsewhere = of(&|body| body["metadata"]["namespace"] = json!("other"));
    let told = "the namespace of the provided object does not match the namespace sent on the request";
    refused(client, &[JSON], &elsewhere, 400, "BadRequest", told).await;
    let large = of(&|body| body["message"] = json!("x".repeat(5_000)));
    refused(client, &[JSON], &large, 413, "RequestEntityTooLarge", "Request entity too large: limit is 4096").await;
    // The rest of a too large body is not read, so the connection ends.
    let client = &mut program.client().await;
    let unknown = "the body of the request was in an unknown format, \"text/csv\" - accepted media types include: application/json, \
                   application/yaml, application/vnd.kubernetes.protobuf";
    refused(client, &[("Content-Type", "text/csv")], &of(&|_| {}), 415, "UnsupportedMediaType", unknown).await;
    let formats = "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
                   application/vnd.kubernetes.protobuf";
    let accept = ("Accept", "text/html");
    refused(client, &[JSON, accept], &of(&|_| {}), 406, "NotAcceptable", formats).await;
    refused(client, &[JSON, accept], b"{", 406, "NotAcceptable", formats).await;

    let ledger = program.balance().ledger;
    assert_eq!((ledger.received(), ledger.total_rejected()), (8, 8));
    let counts = [RejectReason::Malformed, RejectReason::Invalid, RejectReason::TooLarge, RejectReason::MediaType];
    assert_eq!(counts.map(|reason| ledger.rejected(reason)), [2, 2, 1, 3]);
    assert_eq!(program.app.shards().sizes(), eventweir::shard::Sizes::default());
    assert!(program.stored().await.is_empty());
    program.stop().await;
}

/// Fault: only accepted events had the warnings of their decoder.
#[tokio::test]
async fn a_refusal_after_decoding_has_the_warnings() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut body: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    body["colour"] = json!("red");
    body["metadata"]["name"] = json!("e");
    body["metadata"]["namespace"] = json!("elsewhere");
    let body = body.to_string();
    let item = format!("{EVENTS}/e");
    for (method, path) in [("POST", EVENTS), ("PUT", &item)] {
        let reply = client.send(method, path, &[JSON], body.as_bytes()).await;
        let warnings: Vec<_> = reply.headers("Warning").collect();
        assert_eq!((reply.status, warnings), (400, vec![r#"299 - "unknown field \"colour\"""#]), "{method}");
        let path = format!("{path}?fieldValidation=Strict");
        let reply = client.send(method, &path, &[JSON], body.as_bytes()).await;
        assert_eq!((reply.status, reply.header("Warning")), (400, None), "{method}: the faults are the refusal");
    }
    program.stop().await;
}

#[tokio::test]
async fn a_name_that_no_event_can_have_is_refused() {
    let program = start("").await;
    let client = &mut program.client().await;
    let merge = ("Content-Type", "application/merge-patch+json");
    for (name, code) in [("..", 400), ("%2e", 400), ("a%25b", 400), ("%zz", 400), ("a%2Fb", 404), ("%2F", 404)] {
        for (method, header, body) in
            [("GET", JSON, ""), ("DELETE", JSON, ""), ("PUT", JSON, "{}"), ("PATCH", merge, "{}")]
        {
            let reply = client.send(method, &format!("{EVENTS}/{name}"), &[header], body.as_bytes()).await;
            assert_eq!(reply.status, code, "{method} {name}");
        }
    }
    program.stop().await;
}

#[tokio::test]
async fn an_invalid_event_is_refused_with_all_faults_as_causes() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut body: Value = serde_json::from_slice(&json_of(&plain())).unwrap();
    body["eventTime"] = json!("2026-03-01T08:00:00.000000Z");
    let reply = client.send("POST", EVENTS, &[JSON], body.to_string().as_bytes()).await;
    assert_eq!(reply.status, 422);
    let fields: Vec<_> = reply.json()["details"]["causes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|cause| (cause["reason"].as_str().unwrap().to_owned(), cause["field"].as_str().unwrap().to_owned()))
        .collect();
    let required = ("FieldValueRequired".to_owned(), "reportingComponent".to_owned());
    assert!(fields.contains(&required) && fields.len() >= 4, "{fields:?}");
    assert_eq!(program.balance().ledger.rejected(RejectReason::Invalid), 1);
    program.stop().await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let program = start("").await;
    let client = &mut program.client().await;
    for path in ["/apis/apps/v1/deployments", "/metrics"] {
        let reply = client.get(path).await;
        assert_eq!((reply.status, reply.text().as_str()), (404, "404 page not found\n"), "{path}");
    }
    for path in ["/api/v1/pods", "/api/v1/namespaces/shop/events/a/b"] {
        let reply = client.get(path).await;
        let message = "the server could not find the requested resource";
        assert_eq!((reply.status, reply.json()["message"].as_str()), (404, Some(message)), "{path}");
    }
    let item = format!("{EVENTS}/x");
    for (method, path) in [
        ("HEAD", EVENTS),
        ("HEAD", &item),
        ("HEAD", "/api/v1/events"),
        ("OPTIONS", EVENTS),
        ("PUT", EVENTS),
        ("PATCH", EVENTS),
        ("POST", &item),
        ("POST", "/api/v1/events"),
    ] {
        let reply = client.send(method, path, &[JSON], &json_of(&plain())).await;
        assert_eq!(reply.status, 405, "{method} {path}");
        if method != "HEAD" {
            let status = reply.json();
            assert_eq!(status["message"], "the server does not allow this method on the requested resource");
            assert_eq!(status["reason"], "MethodNotAllowed");
        }
    }
    assert_eq!(program.balance().ledger.received(), 0);
    program.stop().await;
}

/// Fault: the answer was a line of text, and the ledger did not count the event.
#[tokio::test]
async fn names_that_are_not_utf_8_are_refused_with_a_status() {
    let program = start("").await;
    let item = format!("{EVENTS}/a%ff");
    for (method, path, key) in [
        ("POST", "/api/v1/namespaces/%ff/events", "namespace"),
        ("POST", "/apis/events.k8s.io/v1/namespaces/%ff/events", "namespace"),
        ("GET", "/api/v1/namespaces/%ff/events", "namespace"),
        ("GET", &item, "name"),
        ("PATCH", &item, "name"),
        ("DELETE", &item, "name"),
    ] {
        let reply = program.client().await.send(method, path, &[JSON], &json_of(&plain())).await;
        let status = reply.json();
        assert_eq!((reply.status, &status["kind"], &status["reason"]), (400, &json!("Status"), &json!("BadRequest")));
        assert_eq!(status["message"], format!("Invalid URL: Invalid UTF-8 in `{key}`"), "{method} {path}");
    }
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.rejected(RejectReason::Invalid)), (2, 2));
}

#[tokio::test]
async fn bad_options_are_refused() {
    let program = start("").await;
    let client = &mut program.client().await;
    let reply = client.post_with(&plain(), "?fieldValidation=Loud").await;
    assert_eq!((reply.status, reply.json()["reason"].as_str()), (422, Some("Invalid")));
    assert_eq!(reply.json()["details"]["causes"][0]["field"], "fieldValidation");
    let reply = client.post_with(&plain(), "?dryRun=Some").await;
    assert_eq!((reply.status, reply.json()["details"]["causes"][0]["field"].as_str()), (422, Some("dryRun")));
    assert_eq!(program.balance().ledger.rejected(RejectReason::Invalid), 2);
    program.stop().await;
}

#[tokio::test]
async fn an_event_of_a_missing_namespace_is_refused() {
    let program = start("upstream: {embedded: {namespaces: [other]}}\n").await;
    let client = &mut program.client().await;
    let reply = client.post(&plain()).await;
    assert_eq!((reply.status, reply.json()["message"].as_str()), (404, Some("namespaces \"shop\" not found")));
    assert_eq!(program.balance().ledger.rejected(RejectReason::NamespaceMissing), 1);
    assert_eq!(client.get(EVENTS).await.status, 200);
    program.stop().await;
}

/// Sends every recorded refusal of a POST; `tests/api` compares the answers.
#[tokio::test]
async fn every_recorded_refusal_of_a_post_is_counted_once() {
    let program = start("ingest: {repair: off}\n").await;
    let mut rejected = 0;
    for file in ["create-body", "create-core", "create-times"] {
        let path = format!("{}/tests/vectors/api/{file}.jsonl", env!("CARGO_MANIFEST_DIR"));
        for line in std::fs::read_to_string(path).unwrap().lines().filter(|line| !line.contains("<run:")) {
            let case: Value = serde_json::from_str(line).unwrap();
            let steps = case["steps"].as_array().unwrap();
            let (request, recorded) = (&steps[0]["request"], steps[0]["response"]["status"].as_u64());
            if steps.len() != 1 || request["method"] != "POST" || recorded < Some(400) {
                continue;
            }
            let query = request["query"].as_str().map(|query| format!("?{query}")).unwrap_or_default();
            let body = match (request["bodyText"].as_str(), &request["body"]) {
                (Some(text), _) => text.to_owned(),
                (None, Value::Null) => continue,
                (None, body) => body.to_string(),
            };
            // A bad timeout is refused before the request is a possible occurrence.
            if query.contains("timeout=") {
                continue;
            }
            let target = format!("{}{query}", request["path"].as_str().unwrap());
            let headers = request["headers"].as_object().unwrap().iter();
            let headers: Vec<_> = headers.map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
            let reply = program.client().await.send("POST", &target, &headers, body.as_bytes()).await;
            // Requests to other paths, and dry runs, are not occurrences.
            let is_one = ![404, 405].contains(&reply.status) && !query.contains("dryRun=All");
            rejected += u64::from(reply.status >= 400 && is_one);
        }
    }
    assert!(rejected > 40, "only {rejected}");
    assert_eq!(program.stop().await.ledger.total_rejected(), rejected);
}

/// Fault: it was read as all namespaces, and a DELETE answered 200 without deleting anything.
#[tokio::test]
async fn an_empty_namespace_in_a_path_is_not_found() {
    let program = start("").await;
    let client = &mut program.client().await;
    let body = json_of(&plain());
    for group in ["/api/v1", "/apis/events.k8s.io/v1"] {
        for path in ["namespaces//events", "namespaces//events/web-0.a", "watch/namespaces//events"] {
            assert_eq!(client.get(&format!("{group}/{path}")).await.status, 404, "{path}");
            for method in ["POST", "DELETE", "PATCH"] {
                let reply = client.send(method, &format!("{group}/{path}"), &[JSON], &body).await;
                assert!([404, 405].contains(&reply.status), "{method} {group}/{path}: {}", reply.status);
            }
        }
    }
    assert_eq!(program.balance().ledger.received(), 0);
    program.stop().await;
}
