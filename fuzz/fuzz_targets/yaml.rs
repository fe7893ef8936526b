//! YAML at the HTTP face: an event that is taken is shown as YAML that is taken as the same event.
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
            assert_eq!(String::from_utf8_lossy(first.body()), String::from_utf8_lossy(again.body()));
        }
        assert_eq!(fixture.shards.balance().total_waiting(), 0, "a dry run owes something");
    });
});

async fn post(fixture: &Fixture, path: &str, kind: &str, body: &[u8]) -> Response<Vec<u8>> {
    let request = Request::post(path).header("Content-Type", kind).header("Accept", kind);
    fixture.send(request.body(Body::from(body.to_vec())).expect("a request")).await
}
