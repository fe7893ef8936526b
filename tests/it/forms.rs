//! Media types of requests and answers without a recorded case; `tests/api` replays the recorded ones.

use eventweir::event::{ApiGroup, Event, protobuf};

use crate::support::app::start;

#[tokio::test]
async fn refusals_are_negotiated_and_never_hidden() {
    let program = start("").await;
    let client = &mut program.client().await;
    let path = "/api/v1/namespaces/shop/events/none";
    let mut get = async |accept| client.send("GET", path, &[("Accept", accept)], b"").await;
    let reply = get("application/vnd.kubernetes.protobuf").await;
    assert_eq!((reply.status, reply.header("Content-Type")), (404, Some("application/vnd.kubernetes.protobuf")));
    assert!(reply.bytes().starts_with(b"k8s\0"));
    // Only a Table is accepted: the refusal is indented JSON.
    let reply = get("application/json;as=Table;v=v1;g=meta.k8s.io").await;
    assert_eq!((reply.status, reply.header("Content-Type")), (404, Some("application/json")));
    assert!(reply.text().starts_with("{\n  \"kind\": \"Status\""), "{}", reply.text());
    let reply = get("application/yaml").await;
    assert!(reply.text().starts_with("apiVersion: v1\ncode: 404\ndetails:\n  kind: events\n"), "{}", reply.text());
}

#[tokio::test]
async fn protobuf_is_accepted_and_answered() {
    const MEDIA: &str = "application/vnd.kubernetes.protobuf";
    let program = start("").await;
    let client = &mut program.client().await;
    let mut event = Event { reason: "R".into(), message: "m".into(), ..Event::default() };
    event.metadata.name = "p".into();
    event.involved_object.namespace = "shop".into();
    let mut body = Vec::new();
    protobuf::write(ApiGroup::Core, &event, &mut body);
    let headers = [("Content-Type", MEDIA), ("Accept", "application/vnd.kubernetes.protobuf,application/json")];
    let path = "/api/v1/namespaces/shop/events";
    let reply = client.send("POST", path, &headers, &body).await;
    assert_eq!((reply.status, reply.header("Content-Type")), (201, Some(MEDIA)));
    let told = protobuf::decode(ApiGroup::Core, reply.bytes()).unwrap().event;
    assert_eq!((told.metadata.name.as_str(), told.message.as_str()), ("p", "m"));
    let reply = client.send("POST", path, &headers, b"k8s\0garbage").await;
    assert_eq!((reply.status, reply.header("Content-Type")), (400, Some(MEDIA)));
    let reply = client.send("POST", path, &[("Content-Type", "text/plain")], b"{}").await;
    assert_eq!(reply.status, 415);
}
