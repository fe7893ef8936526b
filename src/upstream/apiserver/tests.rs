//! The API server as an upstream, over an in-process tower service.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use http::{HeaderMap, Response};
use http_body_util::StreamBody;
use hyper::body::Frame;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};

use super::*;
use crate::clock::Now;
use crate::event::json::{self, FieldValidation};
use crate::event::patching::PatchType;
use crate::event::{Event, Time};
use crate::outbox::{Applied, Fault, LostReason, Patch, Refusal, Retry};
use crate::upstream::store::{self, Store};
use crate::upstream::{
    ClientPatch, DeleteOptions, Deleted, LabelSelector, ListOptions, Step, Upstream, WatchEvent, WatchOptions,
    WriteOptions,
};

/// One request to the fake API server.
#[derive(Debug, Clone)]
struct Seen {
    line: String,
    headers: HeaderMap,
    body: String,
}

/// The reply of the fake API server.
enum Reply {
    Http(Response<String>),
    Hang,
}

type Log = Arc<Mutex<Vec<Seen>>>;

fn apiserver(reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> (Upstream, Log, Registry) {
    let log = Log::default();
    let (seen, reply) = (Arc::clone(&log), Arc::new(reply));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (seen, reply) = (Arc::clone(&seen), Arc::clone(&reply));
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let line = format!("{} {}", parts.method, parts.uri);
            let request = Seen { line, headers: parts.headers, body: String::from_utf8(body.into()).unwrap() };
            seen.lock().push(request.clone());
            match reply(&request) {
                Reply::Http(response) => Ok::<_, Infallible>(response),
                Reply::Hang => std::future::pending().await,
            }
        }
    });
    let registry = Registry::new();
    let metrics = Metrics::new(&registry);
    let apiserver = Apiserver::behind(service, &Settings::default(), Clock::simulated(0), metrics);
    (Upstream::Apiserver(apiserver), log, registry)
}

fn http(code: u16, body: impl Into<String>) -> Reply {
    Reply::Http(Response::builder().status(code).body(body.into()).unwrap())
}

fn event() -> Event {
    let mut event = Event { count: 1, message: "Back-off".into(), ..Event::default() };
    event.metadata.namespace = "shop".into();
    event.metadata.name = "web-0.1".into();
    event
}

pub(super) fn stored() -> Event {
    Store::new(store::Settings::default(), 1).create(event(), Now::at(0)).unwrap()
}

pub(super) fn stored_json() -> String {
    let mut body = Vec::new();
    json::write_json(ApiGroup::Core, &stored(), &mut body);
    String::from_utf8(body).unwrap()
}

pub(super) fn create() -> Request {
    Request::Create { group: ApiGroup::Core, event: Box::new(event()) }
}

fn patch() -> Request {
    let patch = Patch { count: 2, last_timestamp: Some(Time(0)), message: "m".into() };
    Request::Patch { group: ApiGroup::Core, namespace: "shop".into(), name: "web-0.1".into(), patch, claim: None }
}

fn read() -> Request {
    Request::Read { group: ApiGroup::Core, namespace: "shop".into(), name: "web-0.1".into() }
}

/// Returns an answer without the cause of a failure, which may have addresses and ports.
pub(super) fn without_cause(mut answer: Answer) -> Answer {
    if let Answer::Retry(retry) = &mut answer {
        assert_ne!(std::mem::take(&mut retry.cause), "");
    }
    answer
}

pub(super) fn retry(fault: Fault, applied: Applied) -> Answer {
    Answer::Retry(Retry::new(fault, applied))
}

fn counted(registry: &Registry, verb: &str, answer: &str) -> u64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == "eventweir_upstream_requests_total").unwrap();
    let labels = |metric: &&prometheus::proto::Metric| {
        let has = |value: &str| metric.get_label().iter().any(|pair| pair.value() == value);
        has(verb) && has(answer)
    };
    let value = family.get_metric().iter().find(labels).unwrap().get_counter().get_value();
    format!("{value}").parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn writes_are_sent_as_client_go_sends_them() {
    let (apiserver, log, registry) = apiserver(|_| http(201, stored_json()));
    for request in [create(), patch(), read()] {
        assert_eq!(apiserver.write(&request).await, Answer::Stored(Box::new(stored())));
    }
    let log = log.lock();
    let lines: Vec<_> = log.iter().map(|seen| seen.line.as_str()).collect();
    assert_eq!(
        lines,
        [
            "POST /api/v1/namespaces/shop/events?fieldManager=eventweir",
            "PATCH /api/v1/namespaces/shop/events/web-0.1?fieldManager=eventweir",
            "GET /api/v1/namespaces/shop/events/web-0.1",
        ]
    );
    let types: Vec<_> =
        log.iter().map(|seen| seen.headers.get("content-type").map(|value| value.to_str().unwrap())).collect();
    assert_eq!(types, [Some("application/json"), Some("application/strategic-merge-patch+json"), None]);
    assert!(log.iter().all(|seen| seen.headers["user-agent"] == concat!("eventweir/", env!("CARGO_PKG_VERSION"))));
    assert!(log.iter().all(|seen| seen.headers["accept"] == "application/json"));
    assert_eq!(json::decode_event(ApiGroup::Core, log[0].body.as_bytes()).unwrap().message, "Back-off");
    assert_eq!(log[1].body, r#"{"count":2,"message":"m"}"#);
    assert_eq!(["create", "patch", "get"].map(|verb| counted(&registry, verb, "stored")), [1, 1, 1]);
}

/// Fault: hundreds of requests had an event of 9 MiB in memory at once, in several forms.
#[tokio::test]
async fn few_long_answers_are_read_at_once() {
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&begun);
    let service = tower::service_fn(move |_: http::Request<Body>| {
        let counted = Arc::clone(&counted);
        let rest = async move {
            counted.fetch_add(1, Ordering::Relaxed);
            std::future::pending().await
        };
        let pieces = stream::iter([Bytes::from(vec![b' '; LONG_BYTES + 1])]).chain(stream::once(rest));
        let body = StreamBody::new(pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece))));
        async { Ok::<_, Infallible>(Response::new(body)) }
    });
    let metrics = Metrics::new(&Registry::new());
    let apiserver = Apiserver::behind(service, &Settings::default(), Clock::simulated(0), metrics);
    let upstream = Upstream::Apiserver(apiserver);
    let mut asking: Vec<_> = (0..100).map(|_| Box::pin(upstream.get("shop", "web-0.1"))).collect();
    for asked in &mut asking {
        assert!(asked.as_mut().now_or_never().is_none());
    }
    assert_eq!(begun.load(Ordering::Relaxed), LONG_ANSWERS);
    drop(asking.remove(0));
    assert!(asking[LONG_ANSWERS - 1].as_mut().now_or_never().is_none());
    assert_eq!(begun.load(Ordering::Relaxed), LONG_ANSWERS + 1);
}

#[tokio::test(start_paused = true)]
async fn unreadable_and_too_long_answers_may_have_written() {
    let bad = || retry(Fault::BadAnswer, Applied::Perhaps);
    let of_another = r#"{"metadata":{"namespace":"shop","name":"another","resourceVersion":"7"},"count":3}"#;
    let (namespace, name, resource_version) = ("shop".into(), "web-0.1".into(), "7".into());
    let delete = Request::Delete { group: ApiGroup::Core, namespace, name, resource_version };
    for body in ["", "ok", r#"{"kind":"Status","apiVersion":"v1"}"#, r#"{"kind":"#, "null", "{}", of_another] {
        let (apiserver, ..) = apiserver(move |_| http(200, body));
        assert_eq!(without_cause(apiserver.write(&create()).await), bad(), "{body}");
        if ["ok", "null", "{}"].contains(&body) {
            assert_eq!(without_cause(apiserver.write(&delete).await), bad(), "{body}");
        }
    }
    let (namespace, name, write) = ("shop", "web-0.1", WriteOptions::new("m", ApiGroup::Core));
    for body in ["{}", r#"{"status":"ok"}"#, of_another] {
        let (apiserver, ..) = apiserver(move |_| http(200, body));
        let patch = ClientPatch { patch_type: PatchType::Merge, body: "{}".into() };
        let dry = WriteOptions { dry_run: true, ..write.clone() };
        for answer in [
            apiserver.get(namespace, name).await.map(drop),
            apiserver.update(event(), &write).await.map(drop),
            apiserver.update(event(), &dry).await.map(drop),
            apiserver.apply(namespace, name, &json!({}), &write).await.map(drop),
            apiserver.patch(namespace, name, &patch, &write).await.map(drop),
        ] {
            let words = "the upstream's answer cannot be read: it is not the event";
            assert_eq!(answer.map_err(|status| (status.code, status.message)), Err((500, words.to_owned())), "{body}");
        }
    }
    let (no_content, ..) = apiserver(|_| http(204, ""));
    assert_eq!(without_cause(no_content.write(&create()).await), bad());
    // Faults: an event of more than 4 MiB of JSON, which other clients may create, could not be read, and its record was
    // never delivered.
    let (long, ..) = apiserver(|_| http(201, format!("{}{}", stored_json(), " ".repeat(BODY_BYTES_MAX))));
    assert!(matches!(long.write(&create()).await, Answer::Stored(_)));
    assert!(long.get("shop", "web-0.1").await.is_ok());
    let (too_long, ..) = apiserver(|_| http(201, format!("{}{}", stored_json(), " ".repeat(READ_BYTES_MAX))));
    assert_eq!(without_cause(too_long.write(&create()).await), bad());
    let (too_many, ..) = apiserver(|_| http(200, " ".repeat(READ_BYTES_MAX + 1)));
    let status = too_many.list(None, &ListOptions::default()).await.unwrap_err();
    let words = "the upstream's answer cannot be read: it is longer than 16 MiB; list it in pages, with `limit`";
    assert_eq!((status.code, status.message.as_str()), (500, words));
}

#[tokio::test(start_paused = true)]
async fn names_too_long_for_a_url_are_refused_for_good() {
    let (apiserver, log, _) = apiserver(|_| http(200, stored_json()));
    let name = "x".repeat(70_000).into();
    let answer = apiserver.write(&Request::Read { group: ApiGroup::Core, namespace: "shop".into(), name }).await;
    assert!(matches!(answer, Answer::Refused(Refusal { reason: LostReason::Invalid, .. })), "{answer:?}");
    assert!(log.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn lists_are_read_with_their_metadata() {
    let (apiserver, log, _) = apiserver(|_| {
        let list = r#"{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"5","continue":"t","remainingItemCount":3}"#;
        http(200, format!(r#"{list},"items":[{}]}}"#, stored_json()))
    });
    let list = apiserver.list(None, &ListOptions { limit: 1, ..ListOptions::default() }).await.unwrap();
    assert_eq!((list.resource_version.as_str(), list.continue_token.as_str()), ("5", "t"));
    assert_eq!((list.items.len(), list.remaining_item_count), (1, Some(3)));
    assert_eq!(log.lock()[0].line, "GET /api/v1/events?limit=1");
}

/// Returns an API server that expects requests with `line` and answers all of them alike.
fn answering(line: &'static str, code: u16, body: &'static str) -> Upstream {
    let reply = move |seen: &Seen| {
        assert_eq!(seen.line, line);
        http(code, body)
    };
    apiserver(reply).0
}

#[tokio::test(start_paused = true)]
async fn deletes_and_puts_are_passed_through_with_their_refusals() {
    let line = "DELETE /api/v1/namespaces/shop/events/a";
    let gone = r#"{"kind":"Status","apiVersion":"v1","status":"Success","details":{"name":"a","uid":"u"}}"#;
    let options = DeleteOptions::default();
    let deleted = answering(line, 200, gone).delete("shop", "a", &options).await;
    assert_eq!(deleted, Ok(Deleted::Gone("u".into())));
    let marked = r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a"}}"#;
    let deleted = answering(line, 200, marked).delete("shop", "a", &options).await;
    assert!(matches!(deleted, Ok(Deleted::Marked(event)) if event.metadata.name == "a"));
    let refused =
        answering(line, 409, r#"{"kind":"Status","status":"Failure","message":"m","reason":"Conflict","code":409}"#);
    assert_eq!(refused.delete("shop", "a", &options).await.unwrap_err().reason, "Conflict");

    let label_selector = LabelSelector::parse("app=x").unwrap();
    let list = ListOptions { limit: 1, label_selector, ..ListOptions::default() };
    let line = "DELETE /api/v1/namespaces/shop/events?limit=1&labelSelector=app%20in%20%28x%29";
    let body = r#"{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;
    let deleted = answering(line, 200, body).delete_collection("shop", &list, &options).await.unwrap();
    assert_eq!(deleted.resource_version, "7");

    let mut event = Event::default();
    event.metadata.namespace = "shop".into();
    event.metadata.name = "a".into();
    let line = "PUT /apis/events.k8s.io/v1/namespaces/shop/events/a?fieldManager=a%2Fb&dryRun=All";
    let body =
        r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"namespace":"shop","name":"a","uid":"u"}}"#;
    let options = WriteOptions { dry_run: true, ..WriteOptions::new("a/b", ApiGroup::Events) };
    let updated = answering(line, 201, body).update(event, &options).await.unwrap();
    assert!(updated.created && updated.event.metadata.uid == "u");
}

#[tokio::test(start_paused = true)]
async fn applies_are_passed_through() {
    let line = "PATCH /api/v1/namespaces/shop/events/a?fieldManager=m&force=true";
    let body = r#"{"kind":"Event","apiVersion":"v1","metadata":{"namespace":"shop","name":"a","resourceVersion":"7"}}"#;
    let options = WriteOptions { force: true, ..WriteOptions::new("m", ApiGroup::Core) };
    let updated = answering(line, 200, body).apply("shop", "a", &json!({}), &options).await.unwrap();
    assert!(!updated.created && updated.event.metadata.name == "a");
}

#[tokio::test(start_paused = true)]
async fn watches_are_passed_through_with_their_refusals() {
    let options = WatchOptions { resource_version: 7, bookmarks: true, timeout_seconds: 9, ..WatchOptions::default() };
    let line = "GET /api/v1/events?watch=true&resourceVersion=7&allowWatchBookmarks=true&timeoutSeconds=9";
    let body =
        "{\"type\":\"ADDED\",\"object\":{\"kind\":\"Event\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"a\"}}}\n";
    let mut frames = answering(line, 200, body).watch(None, options.clone()).await.unwrap();
    let Some(Step::Events(events)) = frames.next().await else { panic!("the watch has ended") };
    assert!(matches!(&events[..], [WatchEvent::Added(event)] if event.metadata.name == "a"));
    assert_eq!(frames.next().await, None);
    let status =
        answering(line, 403, r#"{"kind":"Status","status":"Failure","message":"m","reason":"Forbidden","code":403}"#);
    assert_eq!(status.watch(None, options).await.unwrap_err().code, 403);
}

#[tokio::test(start_paused = true)]
async fn a_patch_is_passed_through_as_it_came_and_its_warnings_come_back() {
    let (apiserver, ..) = apiserver(|seen| {
        assert_eq!(
            seen.line,
            "PATCH /apis/events.k8s.io/v1/namespaces/shop/events/a%20b?fieldManager=k%2F1&fieldValidation=Strict&dryRun=All"
        );
        assert_eq!(seen.headers["content-type"], "application/json-patch+json");
        assert_eq!(seen.body, " []\n");
        let response = Response::builder().header("Warning", r#"299 - "unknown field \"f\\\"""#);
        let body = r#"{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"namespace":"shop","name":"a b"},"note":"n"}"#;
        Reply::Http(response.header("Warning", "nonsense").body(body.to_owned()).unwrap())
    });
    let patch = ClientPatch { patch_type: PatchType::Json, body: " []\n".into() };
    let given = WriteOptions::new("k/1", ApiGroup::Events);
    let options = WriteOptions { dry_run: true, validation: FieldValidation::Strict, ..given };
    let patched = apiserver.patch("shop", "a b", &patch, &options).await.unwrap();
    assert_eq!((patched.event.message.as_str(), patched.warnings), ("n", vec![r#"unknown field "f\""#.to_owned()]));
}

pub(super) fn write_kubeconfig(path: &Path, cluster: &Value, user: &Value) {
    let text = json!({
        "clusters": [{ "name": "c", "cluster": cluster }],
        "users": [{ "name": "u", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    });
    std::fs::write(path, text.to_string()).unwrap();
}

fn kubeconfig(server: &str, user: &Value) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    write_kubeconfig(file.path(), &json!({ "server": server }), user);
    file
}

/// Returns the settings with this kubeconfig.
fn of_file(kubeconfig: impl Into<std::path::PathBuf>) -> Settings {
    Settings { kubeconfig: Some(kubeconfig.into()), ..Settings::default() }
}

async fn connected(server: &str) -> Apiserver {
    as_user(server, &json!({"token": "t"})).await.unwrap()
}

async fn as_user(server: &str, user: &Value) -> Result<Apiserver, Error> {
    let file = kubeconfig(server, user);
    connect(of_file(file.path())).await
}

pub(super) async fn connect(settings: Settings) -> Result<Apiserver, Error> {
    Apiserver::connect(&settings, Clock::system(), Metrics::new(&Registry::new())).await
}

/// Through the whole client: a closed port, and peers that close the connection before and after reading.
#[tokio::test]
async fn connections_that_fail_before_the_request_have_written_nothing() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let hang_up = async {
        loop {
            drop(listener.accept().await);
        }
    };
    let exchange = async {
        let tls = connected(&format!("https://{address}")).await.write(&create()).await;
        let plain = connected(&format!("http://{address}")).await.write(&create()).await;
        (tls, plain)
    };
    let (tls, plain) = tokio::select! { never = hang_up => never, answers = exchange => answers };
    assert_eq!(without_cause(tls), retry(Fault::Transport, Applied::No), "the TLS handshake failed");
    assert_eq!(without_cause(plain), retry(Fault::Transport, Applied::Perhaps), "the request may have left");
    drop(listener);
    let closed = connected(&format!("https://{address}")).await.write(&create()).await;
    assert_eq!(without_cause(closed), retry(Fault::Transport, Applied::No), "a closed port");
}

/// Through the whole client, which must not retry.
#[tokio::test]
async fn a_request_goes_out_once_with_the_token_of_the_kubeconfig() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let requests = Mutex::new(Vec::new());
    let serve = async {
        loop {
            let (mut peer, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                assert_ne!(peer.read_buf(&mut request).await.unwrap(), 0);
            }
            requests.lock().push(String::from_utf8(request).unwrap().to_ascii_lowercase());
            let head =
                "HTTP/1.1 503 Service Unavailable\r\nretry-after: 0\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            peer.write_all(head.as_bytes()).await.unwrap();
        }
    };
    let exchange = async { connected(&server).await.write(&patch()).await };
    let answer = tokio::select! { never = serve => never, answer = exchange => answer };
    let expected = Retry { after: Some(Duration::ZERO), ..Retry::new(Fault::NotApiserver, Applied::Perhaps) };
    assert_eq!(without_cause(answer), Answer::Retry(expected));
    let requests = requests.into_inner();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].contains("\r\nauthorization: bearer t\r\n"), "{}", requests[0]);
    assert!(requests[0].contains("\r\nuser-agent: eventweir/"), "{}", requests[0]);
}

#[tokio::test]
async fn an_unusable_kubeconfig_is_named() {
    let fault = connect(of_file("/nonexistent/kubeconfig")).await.unwrap_err();
    assert_eq!(fault.to_string(), "reading the kubeconfig /nonexistent/kubeconfig");
    let cause = std::error::Error::source(&fault).unwrap().to_string();
    assert!(cause.starts_with("No such file"), "{cause}");
    let file = kubeconfig("https://127.0.0.1:1", &json!({}));
    let settings = Settings { context: Some("other".into()), ..of_file(file.path()) };
    assert!(matches!(connect(settings).await.unwrap_err(), Error::Kubeconfig { .. }));
    let fault = as_user("apiserver.test", &json!({})).await.unwrap_err();
    assert_eq!(fault.to_string(), "the API server's URL apiserver.test names no host");
}

/// Fault: the error quoted the lines around the fault.
#[tokio::test]
async fn the_error_of_a_broken_kubeconfig_has_none_of_its_tokens() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "users:\n- name: a\n  user:\n    token: SECRET\n      client: x\n").unwrap();
    let fault = connect(of_file(file.path())).await.unwrap_err();
    let cause = std::error::Error::source(&fault).unwrap().to_string();
    assert!(cause.contains("line 5 column 13") && !format!("{fault:?}").contains("SECRET"), "{cause}");
}

pub(super) fn plugin(script: &str) -> Value {
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never", "command": "sh", "args": ["-c", script],
    }})
}

/// A plugin with expired credentials that fails when it runs again.
#[tokio::test]
async fn without_credentials_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"t","expirationTimestamp":"2020-01-01T00:00:00Z"}}"#;
    let script = format!("test -e {0} && exit 1; touch {0}; echo '{credential}'", asked.display());
    let apiserver = as_user("http://127.0.0.1:1", &plugin(&script)).await.unwrap();
    assert!(asked.exists());
    assert_eq!(without_cause(apiserver.write(&create()).await), retry(Fault::Unauthorized, Applied::No));
}

/// Faults: the output of an exec plugin, which may have a token, was in the error, and such a token was a panic.
#[tokio::test]
async fn wrong_credentials_are_not_repeated() {
    let credential =
        r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"SECRET\n"}}"#;
    let lasting = format!("printf %s '{credential}'");
    for (user, expected) in [
        (plugin("echo SECRET"), "the output of the kubeconfig's exec plugin is no ExecCredential"),
        (plugin("echo SECRET; echo no >&2; exit 1"), "the kubeconfig's exec plugin failed (exit status: 1): no"),
        (plugin(&lasting), "the kubeconfig's token has characters that a header cannot have"),
        (json!({"token": "SECRET\n"}), "the kubeconfig's token has characters that a header cannot have"),
    ] {
        let fault = as_user("http://127.0.0.1:1", &user).await.unwrap_err();
        assert_eq!(std::error::Error::source(&fault).unwrap().to_string(), expected);
        assert!(!format!("{fault:?}").contains("SECRET"), "{fault:?}");
    }
}

/// Fault: without a deadline, a list without an answer blocked history for ever.
#[tokio::test(start_paused = true)]
async fn history_asks_again_when_an_answer_does_not_come() {
    let list = r#"{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let (apiserver, log, _) = apiserver(move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
        0 => Reply::Hang,
        1 => http(200, list),
        _ => Reply::Hang,
    });
    let Upstream::Apiserver(apiserver) = apiserver else { unreachable!() };
    let mut history = Box::pin(apiserver.history(None, std::sync::Arc::new(|| ())));
    let mut steps = Vec::new();
    while steps.len() < 5 {
        steps.push(match futures_util::StreamExt::next(&mut history).await.unwrap() {
            News::Begins => "begins",
            News::Complete => "complete",
            News::Trouble { is_forbidden: false, .. } => "trouble",
            _ => "else",
        });
    }
    assert_eq!(steps, ["begins", "trouble", "begins", "complete", "trouble"]);
    let lines: Vec<_> = log.lock().iter().map(|seen| seen.line.contains("watch=true")).collect();
    assert_eq!(lines, [false, false, true]);
}
