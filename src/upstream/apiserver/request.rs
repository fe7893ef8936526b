//! Requests for the apiserver's Events API, as client-go writes them.

use std::fmt::Write as _;

use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{Method, Request as HttpRequest};
use kube::client::Body;
use serde_json::Value;

use crate::event::json::{self, FieldValidation};
use crate::event::{ApiGroup, Event, managed_fields};
use crate::outbox::Request;
use crate::upstream::patch::document;
use crate::upstream::{
    ApplyOptions, ClientPatch, DeleteOptions, ListOptions, PatchOptions, UpdateOptions, Version, WatchOptions, Writer,
};

/// How we introduce ourselves; the part before the `/` is also what managedFields would name us by.
const AGENT: &str = concat!("eventweir/", env!("CARGO_PKG_VERSION"));
const JSON: &str = "application/json";
/// Room for most events.
const USUAL_BYTES: usize = 1024;

/// POST, PATCH, GET or DELETE: what a record needs.
pub(super) fn of_write(request: &Request) -> http::Result<HttpRequest<Body>> {
    match request {
        Request::Create { group, event } => create(*group, event, ""),
        Request::Patch { group, namespace, name, patch, claim } => {
            let path = through(*group, item(namespace, name)) + "?fieldManager=eventweir";
            let body = document(patch, claim.as_deref(), *group).into();
            with_body(Method::PATCH, path, "application/strategic-merge-patch+json", body)
        }
        Request::Read { group, namespace, name } => {
            start(Method::GET, through(*group, item(namespace, name))).body(Body::empty())
        }
        Request::Delete { group, namespace, name, resource_version } => {
            let resource_version = Some(resource_version.clone());
            delete(*group, namespace, name, &DeleteOptions { resource_version, ..DeleteOptions::default() })
        }
    }
}

/// POST of an event that is not to be stored.
pub(super) fn try_create(group: ApiGroup, event: &Event) -> http::Result<HttpRequest<Body>> {
    create(group, event, "&dryRun=All")
}

fn create(group: ApiGroup, event: &Event, query: &str) -> http::Result<HttpRequest<Body>> {
    let mut body = Vec::with_capacity(USUAL_BYTES);
    let path = through(group, events(Some(&event.metadata.namespace)));
    let manager = managed_fields::claimed(&event.metadata.managed_fields);
    let path = format!("{path}?fieldManager={}{query}", encoded(manager.as_deref().unwrap_or("eventweir")));
    match event.metadata.managed_fields {
        None => json::write_json(group, event, &mut body),
        Some(_) => {
            // A copy, because the outbox keeps its own: the claim is told in the query.
            let mut event = Event::clone(event);
            event.metadata.managed_fields = None;
            json::write_json(group, &event, &mut body);
        }
    }
    with_body(Method::POST, path, JSON, body)
}

/// GET of one event in a state not older than this.
pub(super) fn get_not_older(
    group: ApiGroup,
    namespace: &str,
    name: &str,
    version: u64,
) -> http::Result<HttpRequest<Body>> {
    let query = if version == 0 { Vec::new() } else { vec![format!("resourceVersion={version}")] };
    start(Method::GET, with_query(through(group, item(namespace, name)), &query)).body(Body::empty())
}

/// GET of one event.
pub(super) fn get(group: ApiGroup, namespace: &str, name: &str) -> http::Result<HttpRequest<Body>> {
    start(Method::GET, through(group, item(namespace, name))).body(Body::empty())
}

/// POST of a question about a token or a permission.
pub(super) fn review(path: &str, question: &Value) -> http::Result<HttpRequest<Body>> {
    with_body(Method::POST, path.to_owned(), JSON, question.to_string().into_bytes())
}

/// PUT of an event in the API group that it came by, whose rules the apiserver then keeps.
pub(super) fn update(event: &Event, options: &UpdateOptions) -> http::Result<HttpRequest<Body>> {
    let mut body = Vec::new();
    let Writer { manager, group } = &options.writer;
    json::write_json(*group, event, &mut body);
    let path = through(*group, item(&event.metadata.namespace, &event.metadata.name));
    let dry_run = if options.dry_run { "&dryRun=All" } else { "" };
    with_body(Method::PUT, format!("{path}?fieldManager={}{dry_run}", encoded(manager)), JSON, body)
}

/// PATCH that applies an event in the API group that it came by. JSON is YAML.
pub(super) fn apply(
    namespace: &str,
    name: &str,
    document: &Value,
    options: &ApplyOptions,
) -> http::Result<HttpRequest<Body>> {
    let Writer { manager, group } = &options.writer;
    let path = through(*group, item(namespace, name));
    let force = if options.force { "&force=true" } else { "" };
    let dry_run = if options.dry_run { "&dryRun=All" } else { "" };
    let path = format!("{path}?fieldManager={}{force}{dry_run}", encoded(manager));
    with_body(Method::PATCH, path, "application/apply-patch+yaml", document.to_string().into_bytes())
}

/// A client's own PATCH, in the API group that it came by and under its client's name as a manager of fields.
pub(super) fn patch(
    namespace: &str,
    name: &str,
    patch: &ClientPatch,
    options: &PatchOptions,
) -> http::Result<HttpRequest<Body>> {
    let mut query = Vec::new();
    let Writer { manager, group } = &options.writer;
    if !manager.is_empty() {
        query.push(format!("fieldManager={}", encoded(manager)));
    }
    match options.validation {
        FieldValidation::Ignore => query.push("fieldValidation=Ignore".to_owned()),
        FieldValidation::Strict => query.push("fieldValidation=Strict".to_owned()),
        FieldValidation::Warn => {}
    }
    if options.dry_run {
        query.push("dryRun=All".to_owned());
    }
    let path = with_query(through(*group, item(namespace, name)), &query);
    with_body(Method::PATCH, path, patch.patch_type.media_type(), patch.body.to_vec())
}

/// DELETE of one event.
pub(super) fn delete(
    group: ApiGroup,
    namespace: &str,
    name: &str,
    options: &DeleteOptions,
) -> http::Result<HttpRequest<Body>> {
    with_body(Method::DELETE, through(group, item(namespace, name)), JSON, delete_options(options))
}

/// DELETE of what a list shows.
pub(super) fn delete_collection(
    group: ApiGroup,
    namespace: &str,
    list: &ListOptions,
    options: &DeleteOptions,
) -> http::Result<HttpRequest<Body>> {
    let path = with_query(through(group, events(Some(namespace))), &list_query(group, list));
    with_body(Method::DELETE, path, JSON, delete_options(options))
}

fn delete_options(options: &DeleteOptions) -> Vec<u8> {
    let mut document = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    if options.uid.is_some() || options.resource_version.is_some() {
        let mut preconditions = serde_json::Map::new();
        for (name, value) in [("uid", &options.uid), ("resourceVersion", &options.resource_version)] {
            if let Some(value) = value {
                preconditions.insert(name.to_owned(), value.as_str().into());
            }
        }
        document["preconditions"] = preconditions.into();
    }
    if options.dry_run {
        document["dryRun"] = serde_json::json!(["All"]);
    }
    document.to_string().into_bytes()
}

/// GET of a watch.
pub(super) fn watch(
    group: ApiGroup,
    namespace: Option<&str>,
    options: &WatchOptions,
) -> http::Result<HttpRequest<Body>> {
    let mut query = vec!["watch=true".to_owned()];
    if !options.field_selector.is_empty() {
        query.push(format!("fieldSelector={}", encoded(&options.field_selector.text(group))));
    }
    if !options.label_selector.is_empty() {
        query.push(format!("labelSelector={}", encoded(&options.label_selector.to_string())));
    }
    if options.resource_version != 0 {
        query.push(format!("resourceVersion={}", options.resource_version));
    }
    if let Some(send) = options.send_initial_events {
        query.push(format!("sendInitialEvents={send}&resourceVersionMatch=NotOlderThan"));
    }
    if options.bookmarks {
        query.push("allowWatchBookmarks=true".to_owned());
    }
    if options.timeout_seconds != 0 {
        query.push(format!("timeoutSeconds={}", options.timeout_seconds));
    }
    start(Method::GET, with_query(through(group, events(namespace)), &query)).body(Body::empty())
}

/// GET of a list.
pub(super) fn list(group: ApiGroup, namespace: Option<&str>, options: &ListOptions) -> http::Result<HttpRequest<Body>> {
    start(Method::GET, with_query(through(group, events(namespace)), &list_query(group, options))).body(Body::empty())
}

fn with_query(path: String, query: &[String]) -> String {
    if query.is_empty() { path } else { path + "?" + &query.join("&") }
}

fn list_query(group: ApiGroup, options: &ListOptions) -> Vec<String> {
    let mut query = Vec::new();
    if options.limit != 0 {
        query.push(format!("limit={}", options.limit));
    }
    if !options.continue_token.is_empty() {
        query.push(format!("continue={}", encoded(&options.continue_token)));
    }
    if !options.field_selector.is_empty() {
        query.push(format!("fieldSelector={}", encoded(&options.field_selector.text(group))));
    }
    if !options.label_selector.is_empty() {
        query.push(format!("labelSelector={}", encoded(&options.label_selector.to_string())));
    }
    match options.version {
        Version::Newest => {}
        // Alone, since with a limit it means something else than with resourceVersionMatch=NotOlderThan.
        Version::AtLeast(version) => query.push(format!("resourceVersion={version}")),
        Version::NotOlderThan(version) => {
            query.push(format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan"));
        }
        Version::Exact(version) => query.push(format!("resourceVersion={version}&resourceVersionMatch=Exact")),
    }
    query
}

/// GET of the apiserver's own readiness.
pub(super) fn readyz() -> http::Result<HttpRequest<Body>> {
    start(Method::GET, "/readyz".to_owned()).body(Body::empty())
}

fn start(method: Method, path: String) -> http::request::Builder {
    HttpRequest::builder().method(method).uri(path).header(USER_AGENT, AGENT).header(ACCEPT, JSON)
}

fn with_body(method: Method, path: String, media_type: &str, body: Vec<u8>) -> http::Result<HttpRequest<Body>> {
    start(method, path).header(CONTENT_TYPE, media_type).body(Body::from(body))
}

fn events(namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("/api/v1/namespaces/{}/events", encoded(namespace)),
        None => "/api/v1/events".to_owned(),
    }
}

/// The same path at `group`.
fn through(group: ApiGroup, path: String) -> String {
    match group {
        ApiGroup::Core => path,
        ApiGroup::Events => path.replacen("/api/v1/", "/apis/events.k8s.io/v1/", 1),
    }
}

fn item(namespace: &str, name: &str) -> String {
    events(Some(namespace)) + "/" + &encoded(name)
}

/// Percent-encoded but for RFC 3986's unreserved characters: good for a path segment and for a query's value.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            other => write!(encoded, "%{other:02X}").unwrap_or_default(), // a String takes every write
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ApiGroup;
    use crate::upstream::FieldSelector;

    #[test]
    fn names_cannot_leave_their_path_segment() {
        let check = |namespace: &str, name: &str, expected: &str| {
            let request = get(ApiGroup::Core, namespace, name).unwrap();
            assert_eq!(request.uri().to_string(), expected);
        };
        check("shop", "web-0.17c", "/api/v1/namespaces/shop/events/web-0.17c");
        check("shop", "A b:é?x#y", "/api/v1/namespaces/shop/events/A%20b%3A%C3%A9%3Fx%23y");
        check("a/b", "../x", "/api/v1/namespaces/a%2Fb/events/..%2Fx");
    }

    #[test]
    fn dry_runs_and_least_versions_are_passed_on() {
        let mut event = Event::default();
        event.metadata.namespace = "shop".into();
        let request = try_create(ApiGroup::Core, &event).unwrap();
        let path = "/api/v1/namespaces/shop/events?fieldManager=eventweir&dryRun=All";
        assert_eq!((request.method(), request.uri().to_string().as_str()), (&Method::POST, path));
        let path = |version| get_not_older(ApiGroup::Core, "shop", "a", version).unwrap().uri().to_string();
        assert_eq!(path(7), "/api/v1/namespaces/shop/events/a?resourceVersion=7");
        assert_eq!(path(0), "/api/v1/namespaces/shop/events/a");
    }

    #[test]
    fn lists_ask_for_what_the_options_say() {
        let check = |namespace, options: ListOptions, expected: &str| {
            let request = list(ApiGroup::Core, namespace, &options).unwrap();
            assert_eq!(request.uri().to_string(), expected);
        };
        check(None, ListOptions::default(), "/api/v1/events");
        let field_selector = FieldSelector::parse("regarding.kind=Pod,type!=Normal", ApiGroup::Events).unwrap();
        let options = ListOptions { limit: 500, continue_token: "a=".into(), field_selector, ..ListOptions::default() };
        let query = "limit=500&continue=a%3D&fieldSelector=involvedObject.kind%3DPod%2Ctype%21%3DNormal";
        let request = list(ApiGroup::Events, Some("shop"), &options).unwrap();
        let regarding = query.replace("involvedObject", "regarding");
        let expected = format!("/apis/events.k8s.io/v1/namespaces/shop/events?{regarding}");
        assert_eq!(request.uri().to_string(), expected);
        check(Some("shop"), options, &format!("/api/v1/namespaces/shop/events?{query}"));
        let exact = ListOptions { version: Version::Exact(7), ..ListOptions::default() };
        check(None, exact, "/api/v1/events?resourceVersion=7&resourceVersionMatch=Exact");
        let at_least = ListOptions { version: Version::AtLeast(7), ..ListOptions::default() };
        check(None, at_least, "/api/v1/events?resourceVersion=7");
        let newer = ListOptions { limit: 9, version: Version::NotOlderThan(7), ..ListOptions::default() };
        check(None, newer, "/api/v1/events?limit=9&resourceVersion=7&resourceVersionMatch=NotOlderThan");
    }
}
