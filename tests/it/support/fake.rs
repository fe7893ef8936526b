//! A kube-apiserver in this process: a tower service over the embedded store that injects faults and records every
//! request.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use eventweir::clock::{Clock, Mono};
use eventweir::correlator::MESSAGE_PREFIX;
use eventweir::event::json::{self, FieldValidation};
use eventweir::event::patching::PatchType;
use eventweir::event::{ApiGroup, Event, conversion, validate};
use eventweir::outbox::DIGEST_REASON;
use eventweir::status::{Status, StatusDetails};
use eventweir::upstream::store::{self, Store};
use eventweir::upstream::{
    Apiserver, ClientPatch, DeleteOptions, ListOptions, Metrics, Upstream, WriteOptions, apiserver,
};
use http::{Method, Response};
use kube::client::Body;
use parking_lot::Mutex;
use prometheus::Registry;
use serde_json::{Value, json};

use super::events::{START, event};
use super::lists::Reading;

/// Fault of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None: the request is carried out.
    None,
    /// 429 in plain text, as from an overloaded apiserver, with these seconds of `Retry-After`.
    TooMany(Option<u64>),
    /// 503 with these seconds of `Retry-After`; not carried out.
    Unavailable(u64),
    /// A load balancer's page with this code; not carried out.
    Page(u16),
    /// Another server's JSON with code 200; not carried out.
    Json,
    /// A Status with this code; not carried out.
    Before(u16),
    /// The same after these seconds.
    LateBefore(u16, u64),
    /// A Status with this code; carried out.
    After(u16),
    /// Carried out, and answered a second later.
    Slow,
    /// No answer; carried out.
    HangAfter,
    /// No answer; not carried out.
    Hang,
    /// No answer; carried out these seconds later.
    LateAfter(u64),
    /// A broken connection; carried out.
    ResetAfter,
    /// An unreadable answer; carried out.
    GarbledAfter,
    /// Another writer has taken the name of the new event.
    Taken,
    /// Another writer deletes the event just before.
    Deleted,
    /// The client's task panics while it waits for the answer; carried out.
    PanicAfter,
}

/// A received request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) at: Mono,
    pub(crate) method: Method,
    /// API group of its path.
    pub(crate) group: ApiGroup,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// `?fieldManager`.
    pub(crate) manager: String,
    /// Involved object of a create.
    pub(crate) object: String,
    /// Reason of a create.
    pub(crate) reason: String,
    pub(crate) is_warning: bool,
}

/// Chooses the fault of each request.
type Plan = Box<dyn FnMut(&Seen) -> Fault + Send>;

#[derive(Clone)]
pub(crate) struct FakeApiserver(Arc<Mutex<State>>);

struct State {
    clock: Clock,
    store: Store,
    /// Faults of the next requests, one each; then `plan` chooses.
    next: VecDeque<Fault>,
    plan: Plan,
    up: bool,
    latency: Duration,
    /// Tokens and their users, who may only create.
    tokens: HashMap<String, String>,
    seen: Vec<Seen>,
    in_flight: HashMap<String, usize>,
    most_in_flight: usize,
    most_per_record: usize,
}

/// A request in flight; dropped when it is answered or abandoned.
struct OnItsWay(FakeApiserver, String);

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        if let Some(number) = state.in_flight.get_mut(&self.1) {
            *number -= 1;
        }
        state.in_flight.retain(|_, number| *number > 0);
    }
}

/// A parsed request.
struct Request {
    group: ApiGroup,
    manager: String,
    namespace: String,
    name: String,
    event: Option<Event>,
    reading: Reading,
    dry_run: bool,
    /// A patch and its options.
    patch: Option<(ClientPatch, WriteOptions)>,
}

impl FakeApiserver {
    pub(crate) fn new(clock: Clock) -> Self {
        // Events do not expire, so that counts can be compared after days.
        let settings = store::Settings { ttl: Duration::ZERO, ..store::Settings::default() };
        Self(Arc::new(Mutex::new(State {
            clock,
            store: Store::new(settings, 1),
            next: VecDeque::new(),
            plan: Box::new(|_| Fault::None),
            up: true,
            latency: Duration::from_millis(1),
            tokens: HashMap::new(),
            seen: Vec::new(),
            in_flight: HashMap::new(),
            most_in_flight: 0,
            most_per_record: 0,
        })))
    }

    /// Creates one on a clock that only the test advances.
    pub(crate) fn manual() -> Self {
        Self::new(Clock::manual(START))
    }

    /// Returns this server as upstream.
    pub(crate) fn upstream(&self) -> Upstream {
        self.upstream_with(&apiserver::Settings::default(), &Registry::new())
    }

    /// Returns this server as upstream, with settings, and registers its metrics.
    pub(crate) fn upstream_with(&self, settings: &apiserver::Settings, registry: &Registry) -> Upstream {
        let fake = self.clone();
        let service = tower::service_fn(move |request| fake.clone().handle(request));
        let metrics = Metrics::new(registry);
        let clock = self.clock();
        Upstream::Apiserver(Apiserver::behind(service, settings, clock, metrics))
    }

    pub(crate) fn clock(&self) -> Clock {
        self.0.lock().clock.clone()
    }

    /// Sets the faults of the next requests, one each.
    pub(crate) fn fail_next(&self, faults: &[Fault]) {
        self.0.lock().next.extend(faults);
    }

    /// Sets the plan.
    pub(crate) fn plan(&self, plan: impl FnMut(&Seen) -> Fault + Send + 'static) {
        self.0.lock().plan = Box::new(plan);
    }

    /// Accepts connections, or refuses all.
    pub(crate) fn set_up(&self, up: bool) {
        self.0.lock().up = up;
    }

    /// Adds a token and its user.
    pub(crate) fn know(&self, token: &str, user: &str) {
        self.0.lock().tokens.insert(token.to_owned(), user.to_owned());
    }

    /// Answers a review of a token or of a permission.
    fn review(&self, question: &Value) -> io::Result<Response<String>> {
        let state = self.0.lock();
        if !state.up {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        }
        let spec = &question["spec"];
        let status = match spec["token"].as_str() {
            Some(token) => match state.tokens.get(token) {
                Some(user) => json!({ "authenticated": true, "user": { "username": user } }),
                None => json!({ "error": "unknown" }),
            },
            None => json!({ "allowed": spec["resourceAttributes"]["verb"] == "create" }),
        };
        Ok(respond(Ok(json!({ "status": status }).to_string().into_bytes())))
    }

    /// Sets the latency of answers.
    pub(crate) fn set_latency(&self, latency: Duration) {
        self.0.lock().latency = latency;
    }

    /// Accepts connections and answers at once, or as before. Returns what it did before.
    pub(crate) fn set_condition(&self, (up, latency): (bool, Duration)) -> (bool, Duration) {
        let mut state = self.0.lock();
        (std::mem::replace(&mut state.up, up), std::mem::replace(&mut state.latency, latency))
    }

    /// Returns the requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.0.lock().seen.clone()
    }

    /// Returns the methods of the requests since the last call.
    pub(crate) fn take_methods(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().seen).iter().map(|seen| seen.method.to_string()).collect()
    }

    /// Returns the number of requests in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.0.lock().in_flight.values().sum()
    }

    pub(crate) fn most_in_flight(&self) -> usize {
        self.0.lock().most_in_flight
    }

    pub(crate) fn most_per_record(&self) -> usize {
        self.0.lock().most_per_record
    }

    /// Returns the stored events, except those of other writers.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.all().into_iter().filter(|event| event.source.component != "stranger").collect()
    }

    /// Returns the stored events.
    pub(crate) fn all(&self) -> Vec<Event> {
        let mut state = self.0.lock();
        let now = state.clock.now();
        let page = state.store.list(None, &ListOptions::default(), now).unwrap();
        page.items.into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// Whether another writer's event has this name.
    pub(crate) fn is_taken(&self, name: &str) -> bool {
        let mut state = self.0.lock();
        let now = state.clock.now();
        state.store.get("shop", name, now).is_ok_and(|event| event.source.component == "stranger")
    }

    /// Returns the sum of the counts of stored events.
    pub(crate) fn shown(&self) -> u64 {
        self.events().iter().map(|event| u64::try_from(conversion::occurrences(event)).unwrap()).sum()
    }

    /// Changes an event as another writer.
    pub(crate) fn change(&self, event: &Event, change: impl Fn(&mut Event)) {
        let mut state = self.0.lock();
        let now = state.clock.now();
        state.store.update(&event.metadata.namespace, &event.metadata.name, now, change).unwrap();
    }

    /// Creates an event as another writer. Returns `false` if its name is taken.
    pub(crate) fn create(&self, event: Event) -> bool {
        let mut state = self.0.lock();
        let now = state.clock.now();
        state.store.create(event, now).is_ok()
    }

    /// Adds occurrences to an event as another writer.
    pub(crate) fn count_on(&self, event: &Event, more: i32) {
        self.change(event, |event| event.count += more);
    }

    /// Replaces an event by a new one of the same name, content and this count, as another writer.
    pub(crate) fn create_again(&self, event: &Event, count: i32) {
        self.delete(event);
        let mut event = Event { count, ..event.clone() };
        event.metadata.rare = None;
        (event.metadata.uid, event.metadata.resource_version) = Default::default();
        event.metadata.creation_timestamp = None;
        assert!(self.create(event));
    }

    /// Returns the newest resource version.
    pub(crate) fn revision(&self) -> u64 {
        self.0.lock().store.revision()
    }

    /// Returns the changes after a resource version, oldest first.
    pub(crate) fn changes_since(&self, revision: u64) -> Vec<store::Change> {
        self.0.lock().store.changes_since(revision).unwrap().cloned().collect()
    }

    /// Deletes an event as another writer.
    pub(crate) fn delete(&self, event: &Event) {
        let mut state = self.0.lock();
        let now = state.clock.now();
        state.store.delete(&event.metadata.namespace, &event.metadata.name, &DeleteOptions::default(), now).unwrap();
    }

    pub(crate) async fn handle(self, request: http::Request<Body>) -> io::Result<Response<String>> {
        let (parts, body) = request.into_parts();
        // Lists and watches are forbidden here; `history.rs` has an apiserver that allows them.
        if ["/api/v1/events", "/apis/events.k8s.io/v1/events"].contains(&parts.uri.path()) {
            if !self.0.lock().up {
                return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
            }
            return Ok(respond(Err(told(403))));
        }
        let body = body.collect_bytes().await.unwrap();
        if parts.uri.path().ends_with("reviews") {
            return self.review(&serde_json::from_slice(&body).unwrap());
        }
        self.meet(&parts, Request::read(&parts, body)).await
    }

    /// Answers a request for events, with the fault of the plan.
    async fn meet(self, parts: &http::request::Parts, request: Request) -> io::Result<Response<String>> {
        let (fault, latency, _on_its_way) = self.arrive(&parts.method, &request);
        let Some(fault) = fault else { return Err(io::Error::from(io::ErrorKind::ConnectionRefused)) };
        let answer = || self.answer(&parts.method, &request);
        tokio::time::sleep(latency).await;
        match fault {
            Fault::None => Ok(respond(answer())),
            Fault::TooMany(_) | Fault::Unavailable(_) | Fault::Page(_) | Fault::Json => Ok(put_off(fault)),
            Fault::Before(code) => Ok(respond(Err(told(code)))),
            Fault::LateBefore(code, seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                Ok(respond(Err(told(code))))
            }
            Fault::After(code) => {
                let _done = answer();
                Ok(respond(Err(told(code))))
            }
            Fault::Slow => {
                let answer = answer();
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(respond(answer))
            }
            Fault::HangAfter => {
                let _done = answer();
                std::future::pending().await
            }
            Fault::LateAfter(seconds) => {
                let (fake, method) = (self.clone(), parts.method.clone());
                #[expect(
                    clippy::disallowed_methods,
                    reason = "outlives the connection, as an apiserver's own work does"
                )]
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    let _done = fake.answer(&method, &request);
                });
                std::future::pending().await
            }
            Fault::Hang => std::future::pending().await,
            Fault::ResetAfter => {
                let _done = answer();
                Err(io::Error::from(io::ErrorKind::ConnectionReset))
            }
            Fault::GarbledAfter => {
                answer().map(|_| Response::new("{\"kind\":\"Ev".to_owned())).or_else(|status| Ok(respond(Err(status))))
            }
            Fault::Taken => {
                self.take_name(&request);
                Ok(respond(answer()))
            }
            Fault::Deleted => {
                let mut state = self.0.lock();
                let now = state.clock.now();
                let _deleted = state.store.delete(&request.namespace, &request.name, &DeleteOptions::default(), now);
                drop(state);
                Ok(respond(answer()))
            }
            Fault::PanicAfter => {
                let _done = answer();
                panic!("a panic that the test asked for")
            }
        }
    }

    /// Records the request and chooses its fault; `None` if connections are refused.
    fn arrive(&self, method: &Method, request: &Request) -> (Option<Fault>, Duration, OnItsWay) {
        let mut state = self.0.lock();
        let key = state.record_of(method, request);
        let seen = Seen {
            at: state.clock.now().mono,
            method: method.clone(),
            group: request.group,
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            manager: request.manager.clone(),
            object: request.event.as_ref().map(|event| event.involved_object.name.to_string()).unwrap_or_default(),
            reason: request.event.as_ref().map(|event| event.reason.to_string()).unwrap_or_default(),
            is_warning: request.event.as_ref().is_some_and(Event::is_warning),
        };
        let fault = match state.next.pop_front() {
            _ if !state.up => None,
            Some(fault) => Some(fault),
            None => Some((state.plan)(&seen)),
        };
        state.seen.push(seen);
        let per_record = state.in_flight.entry(key.clone()).or_default();
        *per_record += 1;
        let (per_record, all) = (*per_record, state.in_flight.values().sum());
        state.most_per_record = state.most_per_record.max(per_record);
        state.most_in_flight = state.most_in_flight.max(all);
        (fault, state.latency, OnItsWay(self.clone(), key))
    }

    fn answer(&self, method: &Method, request: &Request) -> Result<Vec<u8>, Status> {
        let mut state = self.0.lock();
        let now = state.clock.now();
        let (namespace, name) = (&request.namespace, &request.name);
        if let Some((patch, options)) = &request.patch {
            let patched = state.store.patch(namespace, name, patch, options, now)?;
            return Ok(shown(options.group, patched.event));
        }
        let event = match *method {
            Method::POST => {
                let event = request.event.clone().unwrap();
                validate::create(request.group, &event)?;
                state.store.create(event, now)?
            }
            Method::GET if name.is_empty() => {
                return request.reading.answer(&mut state.store, request.group, namespace, now);
            }
            Method::GET => state.store.get(namespace, name, now)?,
            Method::PUT => {
                let options = WriteOptions { dry_run: request.dry_run, ..WriteOptions::new("fake", request.group) };
                state.store.replace(request.event.clone().unwrap(), &options, now)?.event
            }
            Method::DELETE if name.is_empty() => {
                let page = state.store.list(Some(namespace), &request.reading.list, now)?;
                let listed = request.reading.answer(&mut state.store, request.group, namespace, now);
                for event in &page.items {
                    state.store.delete(namespace, &event.metadata.name, &DeleteOptions::default(), now)?;
                }
                return listed;
            }
            Method::DELETE => {
                state.store.delete(namespace, name, &DeleteOptions::default(), now)?;
                let details = json!({ "name": name, "kind": "events" });
                let success = json!({ "kind": "Status", "apiVersion": "v1", "status": "Success", "details": details });
                return Ok(success.to_string().into_bytes());
            }
            _ => panic!("the upstream is never asked to {method}"),
        };
        Ok(shown(request.group, event))
    }

    /// Stores another writer's event under the name, unless it is taken.
    fn take_name(&self, request: &Request) {
        let mut stranger = event("elsewhere", "stranger", "Stranger", "here first");
        stranger.metadata.namespace = request.namespace.as_str().into();
        stranger.metadata.name = request.name.as_str().into();
        stranger.source.component = "stranger".into();
        let mut state = self.0.lock();
        let now = state.clock.now();
        let _taken_by_somebody_else = state.store.create(stranger, now);
    }
}

impl State {
    /// Identifies the program's record of a write. A name is not enough: under paused time several records get names
    /// at the same time, and one of two with equal names is renamed. A read may be about another writer's event.
    fn record_of(&mut self, method: &Method, request: &Request) -> String {
        let now = self.clock.now();
        let stored = self.store.get(&request.namespace, &request.name, now).ok();
        let event = if *method == Method::POST { request.event.as_ref() } else { stored.as_ref() };
        let content = event.map(|event| {
            let told_by_count = event.message.starts_with(MESSAGE_PREFIX) || event.reason == DIGEST_REASON;
            let message = if told_by_count { "" } else { event.message.as_str() };
            format!("{} {} {} {message}", event.source.host, event.event_type, event.reason)
        });
        let role = if *method == Method::GET { "read" } else { "write" };
        format!("{role} {} {}", request.name, content.unwrap_or_default())
    }
}

impl Request {
    fn read(head: &http::request::Parts, body: Bytes) -> Self {
        let (path, method) = (head.uri.path(), &head.method);
        let (group, rest) = match path.strip_prefix("/api/v1/namespaces/") {
            Some(rest) => (ApiGroup::Core, rest),
            None => (ApiGroup::Events, path.strip_prefix("/apis/events.k8s.io/v1/namespaces/").unwrap()),
        };
        let mut parts = rest.splitn(3, '/');
        let namespace = parts.next().unwrap().to_owned();
        assert_eq!(parts.next(), Some("events"));
        let has_event = [Method::POST, Method::PUT].contains(method);
        let event = has_event.then(|| json::decode(group, &body, FieldValidation::Strict).unwrap().event);
        let name = event.as_ref().map(|event| event.metadata.name.to_string());
        let name = name.or_else(|| parts.next().map(str::to_owned)).unwrap_or_default();
        let query = head.uri.query().unwrap_or_default();
        let dry_run = query.contains("dryRun=All");
        let patch = (*method == Method::PATCH).then(|| {
            // An apply is carried out as a merge patch, which is enough for the tests.
            let content_type = head.headers["content-type"].to_str().unwrap();
            let is_apply = content_type == "application/apply-patch+yaml";
            let patch_type = if is_apply { PatchType::Merge } else { PatchType::named(content_type).unwrap() };
            (ClientPatch { patch_type, body }, WriteOptions { dry_run, ..WriteOptions::new("fake", group) })
        });
        let manager =
            query.split('&').find_map(|pair| pair.strip_prefix("fieldManager=")).unwrap_or_default().to_owned();
        let reading = Reading::read(group, query);
        Self { group, manager, namespace, name, event, reading, dry_run, patch }
    }
}

/// Adds the members that an apiserver shows in every event and the store does not have.
pub(crate) const MANAGED: &str =
    r#"[{"manager":"m","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:count":{}}}]"#;

pub(crate) fn managed(mut event: Event) -> Event {
    event.metadata.managed_fields = Some(MANAGED.into());
    event
}

fn shown(group: ApiGroup, event: Event) -> Vec<u8> {
    let mut body = Vec::new();
    json::write_json(group, &managed(event), &mut body);
    body
}

fn told(code: u16) -> Status {
    let reason = match code {
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        413 => "RequestEntityTooLarge",
        422 => "Invalid",
        504 => "Timeout",
        _ => "InternalError",
    };
    let kind = if code == 404 { "namespaces" } else { "events" };
    let details = StatusDetails { kind: kind.to_owned(), ..StatusDetails::default() };
    Status::new(code, reason, "as the test asked").with_details(details)
}

/// Returns the answer to a request before it is parsed.
fn put_off(fault: Fault) -> Response<String> {
    let (code, after, media_type, body) = match fault {
        Fault::TooMany(after) => {
            (429, after, "text/plain; charset=utf-8", "Too many requests, please try again later.\n".to_owned())
        }
        Fault::Unavailable(after) => {
            (503, Some(after), "application/json", String::from_utf8(told(503).to_json()).unwrap())
        }
        Fault::Page(code) => (code, None, "text/html", "<html><body><h1>default backend</h1></body></html>".to_owned()),
        Fault::Json => (200, None, "application/json", "{\"status\":\"ok\"}".to_owned()),
        _ => unreachable!("the others look at the request"),
    };
    let response = Response::builder().status(code).header("Content-Type", media_type);
    let seconds = after.map(|seconds| seconds.to_string());
    let response = seconds.into_iter().fold(response, |response, text| response.header("Retry-After", text));
    response.body(body).unwrap()
}

fn respond(answer: Result<Vec<u8>, Status>) -> Response<String> {
    let (code, body) = match answer {
        Ok(body) => (200, body),
        Err(status) => (status.code, status.to_json()),
    };
    let response = Response::builder().status(code).header("Content-Type", "application/json");
    response.body(String::from_utf8(body).unwrap()).unwrap()
}
