//! Requests for the API server's Events API, as client-go writes them.

use std::fmt::Write as _;

use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, Method, Request as HttpRequest};
use kube::client::Body;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::event::json::{self, FieldValidation};
use crate::event::selector::{FieldSelector, LabelSelector};
use crate::event::{ApiGroup, Event, managed_fields};
use crate::outbox::Request;
use crate::upstream::{ClientPatch, DeleteOptions, ListOptions, Version, WatchOptions, WriteOptions, patch_document};

/// The User-Agent; the part before the `/` is the default manager in managedFields.
const AGENT: &str = concat!("eventweir/", env!("CARGO_PKG_VERSION"));

/// Whether an eventweir has sent a request with these headers.
pub fn is_of_eventweir(headers: &HeaderMap) -> bool {
    headers.get(USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"eventweir/"))
}

const JSON: &str = "application/json";
/// Initial capacity for an event's JSON, enough for most.
const USUAL_BYTES: usize = 1024;
/// Characters to encode in a path segment or a query's value: all but RFC 3986's unreserved ones.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

type Result = http::Result<HttpRequest<Body>>;

/// Returns the POST, PATCH, GET or DELETE of a record.
pub(in crate::upstream) fn of_write(request: &Request) -> Result {
    match request {
        Request::Create { group, event } => create(*group, event, None),
        Request::Patch { group, namespace, name, patch, claim } => {
            let path = item(*group, namespace, name) + "?fieldManager=eventweir";
            let body = patch_document(patch, claim.as_deref(), *group).into();
            with_body(Method::PATCH, path, "application/strategic-merge-patch+json", body)
        }
        Request::Read { group, namespace, name } => get_not_older(*group, namespace, name, 0),
        Request::Delete { group, namespace, name, resource_version } => {
            let resource_version = Some(resource_version.clone());
            delete(*group, namespace, name, &DeleteOptions { resource_version, ..DeleteOptions::default() })
        }
    }
}

/// Returns the dry run of a POST.
pub(in crate::upstream) fn try_create(group: ApiGroup, event: &Event) -> Result {
    create(group, event, Some(dry_run()))
}

fn create(group: ApiGroup, event: &Event, dry_run: Option<String>) -> Result {
    let mut body = Vec::with_capacity(USUAL_BYTES);
    let manager = managed_fields::claimed(&event.metadata.managed_fields);
    match event.metadata.managed_fields {
        None => json::write_json(group, event, &mut body),
        Some(_) => {
            // A copy, because the outbox keeps its event. The query carries the manager.
            let mut event = Event::clone(event);
            event.metadata.managed_fields = None;
            json::write_json(group, &event, &mut body);
        }
    }
    let query = [manager_query(manager.as_deref().unwrap_or("eventweir")), dry_run];
    with_body(Method::POST, with_query(events(group, Some(&event.metadata.namespace)), query), JSON, body)
}

/// Returns the GET of one event, in a state not older than `version`; 0 accepts any state.
pub(in crate::upstream) fn get_not_older(group: ApiGroup, namespace: &str, name: &str, version: u64) -> Result {
    let query = [(version != 0).then(|| format!("resourceVersion={version}"))];
    get(with_query(item(group, namespace, name), query))
}

/// Returns the POST of a review of a token or of a permission.
pub(in crate::upstream) fn review(path: &str, question: &Value) -> Result {
    with_body(Method::POST, path.to_owned(), JSON, question.to_string().into_bytes())
}

/// Returns the PUT of an event in its client's API group, whose rules the API server then applies.
pub(in crate::upstream) fn update(event: &Event, options: &WriteOptions) -> Result {
    let mut body = Vec::new();
    let WriteOptions { manager, group, .. } = options;
    json::write_json(*group, event, &mut body);
    let path = item(*group, &event.metadata.namespace, &event.metadata.name);
    let query = [manager_query(manager), options.dry_run.then(dry_run)];
    with_body(Method::PUT, with_query(path, query), JSON, body)
}

/// Returns the PATCH of a server-side apply in its client's API group. JSON is valid YAML.
pub(in crate::upstream) fn apply(namespace: &str, name: &str, document: &Value, options: &WriteOptions) -> Result {
    let WriteOptions { manager, group, .. } = options;
    let force = options.force.then(|| "force=true".to_owned());
    let path =
        with_query(item(*group, namespace, name), [manager_query(manager), force, options.dry_run.then(dry_run)]);
    with_body(Method::PATCH, path, "application/apply-patch+yaml", in_yaml(&document.to_string()).into_bytes())
}

/// Escapes what YAML takes for a line break or refuses (go.yaml.in/yaml/v2, `is_break` and readerc.go). In JSON, all of
/// this is in texts.
fn in_yaml(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
                let _infallible = write!(escaped, "\\u{:04x}", u32::from(letter));
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Returns a client's own PATCH, in its API group and under its name as a field manager.
pub(in crate::upstream) fn patch(namespace: &str, name: &str, patch: &ClientPatch, options: &WriteOptions) -> Result {
    let WriteOptions { manager, group, .. } = options;
    let manager = manager_query(manager).filter(|_| !manager.is_empty());
    let validation = match options.validation {
        FieldValidation::Ignore => Some("fieldValidation=Ignore".to_owned()),
        FieldValidation::Strict => Some("fieldValidation=Strict".to_owned()),
        FieldValidation::Warn => None,
    };
    let path = with_query(item(*group, namespace, name), [manager, validation, options.dry_run.then(dry_run)]);
    with_body(Method::PATCH, path, patch.patch_type.label(), patch.body.to_vec())
}

pub(in crate::upstream) fn delete(group: ApiGroup, namespace: &str, name: &str, options: &DeleteOptions) -> Result {
    with_body(Method::DELETE, item(group, namespace, name), JSON, delete_options(options))
}

pub(in crate::upstream) fn delete_collection(
    group: ApiGroup,
    namespace: &str,
    list: &ListOptions,
    options: &DeleteOptions,
) -> Result {
    let path = with_query(events(group, Some(namespace)), list_query(group, list));
    with_body(Method::DELETE, path, JSON, delete_options(options))
}

fn delete_options(options: &DeleteOptions) -> Vec<u8> {
    let mut document = serde_json::json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    for (name, value) in [("uid", &options.uid), ("resourceVersion", &options.resource_version)] {
        if let Some(value) = value {
            document["preconditions"][name] = value.as_str().into();
        }
    }
    if options.dry_run {
        document["dryRun"] = serde_json::json!(["All"]);
    }
    document.to_string().into_bytes()
}

pub(in crate::upstream) fn watch(group: ApiGroup, namespace: Option<&str>, options: &WatchOptions) -> Result {
    let WatchOptions { resource_version, timeout_seconds, .. } = options;
    let initial = |send| format!("sendInitialEvents={send}&resourceVersionMatch=NotOlderThan");
    let [fields, labels] = selectors(group, &options.field_selector, &options.label_selector);
    get(with_query(
        events(group, namespace),
        [
            Some("watch=true".to_owned()),
            fields,
            labels,
            (*resource_version != 0).then(|| format!("resourceVersion={resource_version}")),
            options.send_initial_events.map(initial),
            options.bookmarks.then(|| "allowWatchBookmarks=true".to_owned()),
            (*timeout_seconds != 0).then(|| format!("timeoutSeconds={timeout_seconds}")),
        ],
    ))
}

pub(in crate::upstream) fn list(group: ApiGroup, namespace: Option<&str>, options: &ListOptions) -> Result {
    get(with_query(events(group, namespace), list_query(group, options)))
}

fn list_query(group: ApiGroup, options: &ListOptions) -> [Option<String>; 5] {
    let ListOptions { limit, continue_token, .. } = options;
    let [fields, labels] = selectors(group, &options.field_selector, &options.label_selector);
    let version = match options.version {
        Version::Newest => None,
        // Without resourceVersionMatch: with a limit, NotOlderThan means something else.
        Version::AtLeast(version) => Some(format!("resourceVersion={version}")),
        Version::NotOlderThan(version) => Some(format!("resourceVersion={version}&resourceVersionMatch=NotOlderThan")),
        Version::Exact(version) => Some(format!("resourceVersion={version}&resourceVersionMatch=Exact")),
    };
    [
        (*limit != 0).then(|| format!("limit={limit}")),
        (!continue_token.is_empty()).then(|| format!("continue={}", encoded(continue_token))),
        fields,
        labels,
        version,
    ]
}

fn get(path: String) -> Result {
    start(Method::GET, path).body(Body::empty())
}

fn start(method: Method, path: String) -> http::request::Builder {
    HttpRequest::builder().method(method).uri(path).header(USER_AGENT, AGENT).header(ACCEPT, JSON)
}

fn with_body(method: Method, path: String, media_type: &str, body: Vec<u8>) -> Result {
    start(method, path).header(CONTENT_TYPE, media_type).body(Body::from(body))
}

/// Appends the parts of the query that are there.
fn with_query(path: String, query: impl IntoIterator<Item = Option<String>>) -> String {
    let query: Vec<String> = query.into_iter().flatten().collect();
    if query.is_empty() { path } else { path + "?" + &query.join("&") }
}

fn manager_query(manager: &str) -> Option<String> {
    Some(format!("fieldManager={}", encoded(manager)))
}

fn dry_run() -> String {
    "dryRun=All".to_owned()
}

fn selectors(group: ApiGroup, fields: &FieldSelector, labels: &LabelSelector) -> [Option<String>; 2] {
    let fields = (!fields.is_empty()).then(|| format!("fieldSelector={}", encoded(&fields.text(group))));
    let labels = (!labels.is_empty()).then(|| format!("labelSelector={}", encoded(&labels.to_string())));
    [fields, labels]
}

/// Returns the path of the events of one namespace or of all.
fn events(group: ApiGroup, namespace: Option<&str>) -> String {
    let root = match group {
        ApiGroup::Core => "/api/v1",
        ApiGroup::Events => "/apis/events.k8s.io/v1",
    };
    match namespace {
        Some(namespace) => format!("{root}/namespaces/{}/events", encoded(namespace)),
        None => format!("{root}/events"),
    }
}

/// Returns the path of one event.
fn item(group: ApiGroup, namespace: &str, name: &str) -> String {
    format!("{}/{}", events(group, Some(namespace)), encoded(name))
}

fn encoded(text: &str) -> impl std::fmt::Display {
    utf8_percent_encode(text, RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::FieldSelector;

    #[test]
    fn names_cannot_leave_their_path_segment() {
        let check = |namespace: &str, name: &str, expected: &str| {
            let request = get_not_older(ApiGroup::Core, namespace, name, 0).unwrap();
            assert_eq!(request.uri().to_string(), expected);
        };
        check("shop", "web-0.17c", "/api/v1/namespaces/shop/events/web-0.17c");
        check("shop", "A b:é?x#y", "/api/v1/namespaces/shop/events/A%20b%3A%C3%A9%3Fx%23y");
        check("a/b", "../x", "/api/v1/namespaces/a%2Fb/events/..%2Fx");
    }

    /// Fault: YAML took these for line breaks, which changed the text, or refused them.
    #[test]
    fn an_apply_has_no_letters_that_yaml_changes_or_refuses() {
        let text = "a \u{2028} b\u{85}c\u{80}\u{7f}\u{2029}\u{feff}\u{ffff}";
        let document = serde_json::json!({ "message": text, "reason": "\u{e9}\u{1f600}" });
        let body = in_yaml(&document.to_string());
        assert!(
            body.contains(r"a \u2028 b\u0085c\u0080\u007f\u2029\ufeff\uffff") && body.contains("\u{e9}\u{1f600}"),
            "{body}"
        );
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), document);
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
