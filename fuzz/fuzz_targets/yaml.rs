//! YAML over HTTP: an accepted event is returned as YAML that is accepted as the same event.
#![no_main]

mod face;

use axum::body::Body;
use face::{Fixture, run};
use http::{Request, Response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    run(async {
        let fixture = Fixture::new();
        for (events, version) in [("/api/v1", "v1"), ("/apis/events.k8s.io/v1", "events.k8s.io/v1")] {
            let path = format!("{events}/namespaces/shop/events?dryRun=All&fieldValidation=Ignore");
            let first = post(&fixture, &path, "application/yaml", body).await;
            if first.status() != 201 {
                continue;
            }
            let again = post(&fixture, &path, "application/yaml", first.body()).await;
            assert_eq!(again.status(), 201, "{version}: {}", String::from_utf8_lossy(again.body()));
            assert_eq!(without_uid(first.body()), without_uid(again.body()));
        }
        assert_eq!(fixture.shards.balance().total_waiting(), 0, "a dry run has waiting occurrences");
    });
});

async fn post(fixture: &Fixture, path: &str, kind: &str, body: &[u8]) -> Response<Vec<u8>> {
    let request = Request::post(path).header("Content-Type", kind).header("Accept", kind);
    fixture.send(request.body(Body::from(body.to_vec())).expect("a request")).await
}

/// Returns the event without the uid, which the upstream generates for each request.
fn without_uid(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let Some((head, metadata)) = text.split_once("\nmetadata:\n") else { return text.to_string() };
    let Some((before, uid)) = metadata.split_once("\n  uid: ") else { return text.to_string() };
    let rest = uid.split_once('\n').map_or("", |(_, rest)| rest);
    format!("{head}\nmetadata:\n{before}\n{rest}")
}
