//! The short way of a POST and the table of paths answer alike.

use serde_json::{Value, json};

use super::support::app::start;
use super::support::events::plain;
use super::support::http::{Client, EVENTS, Reply, json as json_of};

/// The same paths with a letter escaped, or with a slash at the end: those go by the table.
const BY_TABLE: [(&str, &str); 4] = [
    (EVENTS, "/api/v1/namespaces/sho%70/events"),
    (EVENTS, "/api/v1/namespaces/shop/events/"),
    ("/apis/events.k8s.io/v1/namespaces/shop/events", "/apis/events.k8s.io/v1/namespaces/sho%70/events"),
    ("/apis/events.k8s.io/v1/namespaces/shop/events", "/apis/events.k8s.io/v1/namespaces/shop/events/"),
];

fn shown(reply: &Reply) -> (u16, Vec<Option<String>>, Vec<u8>) {
    let names =
        ["Content-Type", "Cache-Control", "Warning", "Eventweir-Outcome", "Retry-After", "Allow", "Content-Length"];
    (reply.status, names.iter().map(|name| reply.header(name).map(str::to_owned)).collect(), reply.bytes().to_vec())
}

async fn answer(path: &str, query: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Vec<Option<String>>, Vec<u8>) {
    let program = start("upstream: {embedded: {namespaces: [shop]}}\ningest: {maxBodyBytes: 4096}\n").await;
    let mut client: Client = program.client().await;
    let reply = client.send("POST", &format!("{path}{query}"), headers, body).await;
    assert!(program.balance().is_exact());
    shown(&reply)
}

#[tokio::test]
async fn a_post_is_answered_alike_by_the_short_way_and_by_the_table_of_paths() {
    let event = json_of(&plain());
    let mut strange: Value = serde_json::from_slice(&event).unwrap();
    strange["stranger"] = json!(1);
    let strange = strange.to_string().into_bytes();
    let json = ("Content-Type", "application/json");
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [u8]);
    let cases: [Case<'_>; 12] = [
        ("", &[json], &event),
        ("?pretty=true", &[json], &event),
        ("", &[], &strange),
        ("?fieldValidation=Strict", &[json], &strange),
        ("?fieldValidation=Ignore&timeout=5s", &[json], &strange),
        ("?timeout=abc", &[json], &event),
        ("", &[json], b"{"),
        ("", &[("Content-Type", "text/csv")], &event),
        ("", &[json, ("Accept", "application/yaml")], &event),
        ("", &[json, ("Accept", "text/html")], &event),
        ("", &[json, ("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], b"[]"),
        ("", &[json], &[b' '; 5000]),
    ];
    for (short, by_table) in BY_TABLE {
        for (query, headers, body) in cases {
            let (one, other) =
                (answer(short, query, headers, body).await, answer(by_table, query, headers, body).await);
            assert_eq!(one, other, "{short} {by_table} {query} {headers:?}");
        }
    }
}

#[tokio::test]
async fn paths_that_only_look_like_a_post_of_an_event_go_by_the_table() {
    let program = start("").await;
    let mut client = program.client().await;
    for path in ["/api/v1/namespaces/a/b/events", "/api/v1/namespaces/events", "/api/v1/events"] {
        let reply = client.send("POST", path, &[], b"{}").await;
        assert!(matches!(reply.status, 404 | 405), "{path}: {}", reply.status);
    }
}
