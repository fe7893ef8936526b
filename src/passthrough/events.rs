//! Requests for events: ingest answers, and what it cannot take is forwarded.

use std::hash::BuildHasher as _;
use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use foldhash::quality::RandomState;
use futures_util::stream;
use http::header::{CONTENT_LENGTH, RETRY_AFTER};
use http::request::Parts;
use http::{Method, Request, StatusCode};
use http_body_util::BodyExt as _;
use lru::LruCache;
use parking_lot::Mutex;
use serde::Deserialize;
use smol_str::SmolStr;

use super::body::{begun, streamed, whole};
use super::metrics::Kind;
use super::{Answered, Events, Passthrough, Unanswered, refuse, unanswered};
use crate::access::{Caller, lru};
use crate::event::{ApiGroup, protobuf};
use crate::ingest::{self, Kept, PassedOn, Retried, Unable, Undone};
use crate::server::{Answer, Read, Unread, read};
use crate::status::Status;
use crate::upstream::apiserver::Outgoing;

/// LIMIT: names of forwarded events; beyond it the least recently used one is evicted. Its client is then answered 404
/// and posts the event again.
const NAMES_MAX: NonZeroUsize = NonZeroUsize::new(16_384).unwrap();

/// Magic bytes of a protobuf body.
const PROTOBUF: &[u8] = b"k8s\0";

impl Passthrough {
    /// Answers a write of events.
    pub(super) async fn write<S: Answer>(&self, ingest: &Arc<S>, request: Request<Body>) -> Answered {
        let (mut parts, body) = request.into_parts();
        let (settings, access) = (&self.0.settings, &self.0.callers.access);
        let mut caller = SmolStr::default();
        if access.authenticates() {
            let purpose = ingest::purpose(&parts.method, &parts.uri);
            let identified = access.identify(parts.extensions.get(), &parts.headers, purpose).await;
            let known = self.known(&identified, &parts);
            parts.extensions.insert(identified);
            let Some(known) = known else {
                // Ingest refuses it. A body that it does not read takes no room from other callers' events.
                let answer = S::clone(ingest).run(Request::from_parts(parts.clone(), Body::empty())).await;
                if !self.falls_back(&parts, &answer) {
                    ingest::discard(parts.version, body).await;
                    return (Kind::Events, answer);
                }
                return self.fall_back(answer, parts, streamed(body), &Bytes::new()).await;
            };
            caller = known;
        }
        let places = (&self.0.bodies, &*caller);
        let body = match read(body, settings.max_body_bytes, settings.body_timeout, places).await {
            Read::Whole(body) => body,
            Read::Begun(why, first, rest) => return self.begun(parts, why, first, rest, &caller).await,
            Read::Broken(fault) => {
                let message = format!("the body of the request could not be read: {fault}");
                return refuse(&Status::bad_request(message));
            }
        };
        let path = parts.uri.path().to_owned();
        let events = Events::of(&path);
        let mut asked = Request::from_parts(parts.clone(), Body::from(body.clone()));
        if events.is_some_and(|events| self.0.forwarded.has(events)) {
            asked.extensions_mut().insert(PassedOn);
        }
        let is_delete = parts.method == Method::DELETE;
        let answer = S::clone(ingest).run(asked).await;
        let undone =
            answer.extensions().get::<Undone>().filter(|_| answer.headers().contains_key(RETRY_AFTER)).cloned();
        // Its client repeats it. Only for known callers, because it costs a read and shows that there is such an event.
        if let Some(undone) = undone
            && self.falls_back(&parts, &answer)
            && undone.is_counted().await
        {
            return (Kind::Events, answer);
        }
        let (kind, answer) = self.fall_back(answer, parts, whole(body.clone()), &body).await;
        let code = answer.status();
        match events {
            Some(Events { group, namespace, name: None }) => {
                let is_new = kind == Kind::Fallback && code == StatusCode::CREATED;
                if is_new && !self.0.forwarded.insert(group, namespace, &body) {
                    return (kind, self.note_name(group, namespace, answer, &caller).await);
                }
            }
            // An event that is posted under the name afterwards may be ingest's.
            Some(Events { namespace, name: Some(name), .. })
                if code == StatusCode::NOT_FOUND || (is_delete && code.is_success()) =>
            {
                self.0.forwarded.remove(namespace, name);
            }
            Some(_) | None => {}
        }
        (kind, answer)
    }

    /// Answers a write whose body was not read to its end: forwards it, except for a change without room or in time.
    ///
    /// Ingest may count the event of the change for several clients. The apiserver would replace their count by the total
    /// of this client, which sends it again after the refusal.
    async fn begun(&self, parts: Parts, why: Unread, first: Bytes, rest: Body, caller: &str) -> Answered {
        let path = parts.uri.path().to_owned();
        let events = Events::of(&path);
        if why != Unread::TooLarge && parts.method != Method::POST {
            drop(first);
            ingest::discard(parts.version, rest).await;
            return refuse(&ingest::incomplete(why, self.0.settings.max_body_bytes));
        }
        match (self.send(parts, begun(first, rest)).await, events) {
            (Ok(answer), Some(Events { group, namespace, name: None })) if answer.status() == StatusCode::CREATED => {
                (Kind::Fallback, self.note_name(group, namespace, answer, caller).await)
            }
            (Ok(answer), _) => (Kind::Fallback, answer),
            (Err(refusal), _) => unanswered(refusal),
        }
    }

    /// Notes the name of a forwarded event from the apiserver's answer, and returns the answer.
    async fn note_name(&self, group: ApiGroup, namespace: &str, answer: Response, caller: &str) -> Response {
        let (parts, body) = answer.into_parts();
        let (most, time) = (self.0.settings.max_body_bytes, self.0.settings.body_timeout);
        let body = match read(body, most, time, (&self.0.bodies, caller)).await {
            Read::Whole(body) => {
                self.0.forwarded.insert(group, namespace, &body);
                Body::from(body)
            }
            Read::Begun(_, mut first, mut rest) => {
                let frame = if first.is_empty() { rest.frame().await.transpose() } else { Ok(None) };
                match frame {
                    Ok(frame) => {
                        first = frame.and_then(|frame| frame.into_data().ok()).unwrap_or(first);
                        if let Some(name) = name_at_start(&first) {
                            self.0.forwarded.note(namespace, &name);
                        }
                        Body::new(begun(first, rest))
                    }
                    Err(fault) => broken(fault),
                }
            }
            Read::Broken(fault) => broken(fault),
        };
        Response::from_parts(parts, body)
    }

    /// Returns the name under which a known caller of events has its share. While its token cannot be reviewed, it is
    /// known if the token was accepted before: the name of its event is needed, and so the body, because later writes of
    /// the event must be forwarded as well.
    fn known(&self, identified: &Result<Caller, Status>, parts: &Parts) -> Option<SmolStr> {
        let tokens = &self.0.tokens;
        let shown = tokens.shown(&parts.headers);
        match identified {
            Ok(caller) => {
                shown.inspect(|shown| tokens.note_reviewed(shown.hash));
                Some(caller.name.clone())
            }
            Err(status) if status.code == 401 => None,
            Err(_) => shown.filter(|shown| tokens.knows(shown.hash)).map(|shown| tokens.share(shown.text)),
        }
    }

    /// Forwards a write to which ingest gives this answer, if the apiserver might accept it. `read` is its body, unless that
    /// is streamed.
    async fn fall_back(&self, answer: Response, parts: Parts, body: Outgoing, read: &Bytes) -> Answered {
        if !self.falls_back(&parts, &answer) {
            return (Kind::Events, answer);
        }
        // eventweir lacks only a right: nothing remains uncounted that it could count.
        let is_of_rights = matches!(answer.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let kind = if is_of_rights { Kind::Forwarded } else { Kind::Fallback };
        // The record that the write has changed follows the answer.
        let left = answer.extensions().get::<Undone>().map(Undone::retried);
        let sent = match left {
            Some(left) => self.follow(left, answer.status(), parts, body, read.clone()).await,
            None => self.send(parts, body).await,
        };
        match sent {
            Ok(forwarded) => (kind, forwarded),
            // The apiserver may have stored the event. After the answer of ingest, its client would send it again.
            Err((kind, status)) if status.code == StatusCode::BAD_GATEWAY => unanswered((kind, status)),
            // If the apiserver does not answer either, the answer of ingest says more.
            Err((kind, _)) => (kind, answer),
        }
    }

    /// Sends a write that ingest has `refused`, and has the record that it was about follow the answer: to the end, also
    /// if the client leaves, because the apiserver may carry out what it was sent.
    async fn follow(
        &self,
        left: Retried,
        refused: StatusCode,
        parts: Parts,
        body: Outgoing,
        read: Bytes,
    ) -> Result<Response, Unanswered> {
        let sender = self.clone();
        // LIMIT: `max_in_flight`, by the place that its answer has.
        let task = async move {
            let sent = sender.send(parts, body).await;
            let code = match &sent {
                Ok(forwarded) => forwarded.status(),
                Err((_, status)) if status.code == StatusCode::BAD_GATEWAY => StatusCode::BAD_GATEWAY,
                // Nothing was sent, so the refusal of ingest remains.
                Err(_) => refused,
            };
            left.end(code, &read).await;
            sent
        };
        let ended = self.0.tasks.spawn(task).await;
        ended
            .unwrap_or_else(|error| Err((Kind::Events, Box::new(Status::new(500, "InternalError", error.to_string())))))
    }

    /// Whether a write to which ingest gives this answer is forwarded.
    fn falls_back(&self, parts: &Parts, answer: &Response) -> bool {
        is_forwarded(&parts.method, answer) && self.is_forwardable(parts)
    }

    /// Answers a GET of one event: the apiserver, or ingest if the apiserver has none. The caller may read events of
    /// the namespace, because otherwise the apiserver would not have answered 404.
    pub(super) async fn read_event<S: Answer>(&self, ingest: &Arc<S>, request: Request<Body>) -> Answered {
        let (mut parts, _body) = request.into_parts();
        // The body is not sent, and a body that is announced would be waited for.
        parts.headers.remove(CONTENT_LENGTH);
        let asked = Request::from_parts(parts.clone(), Body::empty());
        let answer = match self.send(parts, whole(Bytes::new())).await {
            Ok(answer) => answer,
            Err(refusal) => return unanswered(refusal),
        };
        if answer.status() != StatusCode::NOT_FOUND {
            return (Kind::Forwarded, answer);
        }
        let known = S::clone(ingest).run(asked).await;
        (Kind::Forwarded, if known.status().is_success() { known } else { answer })
    }
}

/// Whether a write that ingest has refused is forwarded, because the apiserver might accept it.
///
/// A change in doubt is not forwarded, because the upstream may have carried it out, or may still do so: a 504, and a 5xx
/// without `Retry-After` (`upstream/answer.rs`). With it, the client would send the change again itself.
///
/// After a 401 or 403 a POST is not forwarded. A change of an event is, because ingest makes it with eventweir's rights,
/// which may be fewer than the caller's.
fn is_forwarded(method: &Method, answer: &Response) -> bool {
    match answer.status() {
        _ if answer.extensions().get::<Kept>().is_some() => false,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => method != Method::POST,
        StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::NOT_ACCEPTABLE => true,
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE => {
            method == Method::POST || answer.headers().contains_key(RETRY_AFTER)
        }
        _ => answer.extensions().get::<Unable>().is_some() || answer.extensions().get::<PassedOn>().is_some(),
    }
}

/// Names of forwarded events. Their patches are forwarded as well until eventweir counts on the events: ingest does not
/// know them and would make their clients post them again.
#[derive(Debug)]
pub(super) struct Names {
    hasher: RandomState,
    // LIMIT: `NAMES_MAX`.
    names: Mutex<LruCache<u64, ()>>,
}

impl Names {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::default(), names: Mutex::new(lru(NAMES_MAX)) }
    }

    /// Inserts the name of the event in `body`. Returns whether it has one.
    fn insert(&self, group: ApiGroup, namespace: &str, body: &[u8]) -> bool {
        let Some(name) = name_of(group, body).filter(|name| !name.is_empty()) else { return false };
        self.note(namespace, &name);
        true
    }

    fn note(&self, namespace: &str, name: &str) {
        let key = self.key(namespace, name);
        self.names.lock().put(key, ());
    }

    /// Whether an event of this name was forwarded.
    fn contains(&self, namespace: &str, name: &str) -> bool {
        self.names.lock().get(&self.key(namespace, name)).is_some()
    }

    /// Whether the path names an event that was forwarded.
    fn has(&self, Events { namespace, name, .. }: Events<'_>) -> bool {
        name.is_some_and(|name| self.contains(namespace, name))
    }

    fn remove(&self, namespace: &str, name: &str) {
        self.names.lock().pop(&self.key(namespace, name));
    }

    fn key(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }
}

/// Returns the event's name in a JSON or protobuf body.
fn name_of(group: ApiGroup, body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
    }
    if body.starts_with(PROTOBUF) {
        return Some(protobuf::decode(group, body).ok()?.event.metadata.name.to_string());
    }
    Some(serde_json::from_slice::<Named>(body).ok()?.metadata.name)
}

/// Returns a body that ends with this fault.
fn broken(fault: axum::Error) -> Body {
    Body::from_stream(stream::iter([Err::<Bytes, _>(fault)]))
}

/// Returns the event's name at the start of a long JSON answer: the apiserver writes the name first.
fn name_at_start(start: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(start);
    let (_, mut rest) = text.split_once("\"metadata\":")?;
    for token in ["{", "\"name\"", ":", "\""] {
        rest = rest.trim_start().strip_prefix(token)?;
    }
    Some(rest.split_once('"')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;

    #[test]
    fn names_are_read_from_json_and_protobuf() {
        let names = Names::new();
        assert!(!names.contains("shop", "a"));
        names.insert(ApiGroup::Core, "shop", br#"{"metadata":{"name":"a","x":1},"count":2}"#);
        let mut event = Event::default();
        event.metadata.name = "b".into();
        let mut body = Vec::new();
        protobuf::write(ApiGroup::Events, &event, &mut body);
        names.insert(ApiGroup::Events, "shop", &body);
        names.insert(ApiGroup::Core, "shop", b"metadata: {name: c}");
        names.insert(ApiGroup::Core, "shop", br#"{"metadata":{"generateName":"d."}}"#);
        let known = ["a", "b", "c", "d.", ""].map(|name| names.contains("shop", name));
        assert_eq!(known, [true, true, false, false, false]);
        assert!(!names.contains("other", "a"));
        names.remove("shop", "a");
        assert!(!names.contains("shop", "a"));
    }

    #[test]
    fn a_name_is_read_from_the_start_of_an_answer() {
        for (start, name) in [
            (r#"{"kind":"Event","apiVersion":"v1","metadata":{"name":"a.1","namespace":"shop","#, Some("a.1")),
            ("{\n  \"kind\": \"Event\",\n  \"metadata\": {\n    \"name\": \"a.1\",", Some("a.1")),
            (r#"{"kind":"Event","metadata":{"name":"a."#, None),
            (r#"{"kind":"Status","metadata":{},"message":"x"}"#, None),
            ("k8s\0", None),
        ] {
            assert_eq!(name_at_start(start.as_bytes()).as_deref(), name, "{start}");
        }
    }

    #[test]
    fn at_the_limit_the_least_recently_used_name_is_evicted() {
        let names = Names::new();
        let body = |number: usize| format!(r#"{{"metadata":{{"name":"{number}"}}}}"#);
        for number in 0..NAMES_MAX.get() {
            names.insert(ApiGroup::Core, "shop", body(number).as_bytes());
        }
        assert!(names.contains("shop", "0"));
        names.insert(ApiGroup::Core, "shop", body(NAMES_MAX.get()).as_bytes());
        assert_eq!((names.contains("shop", "0"), names.contains("shop", "1")), (true, false));
    }
}
