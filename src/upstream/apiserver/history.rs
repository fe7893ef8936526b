//! Lists the API server's events in pages and then watches them, with kube's watcher. It resumes, requests bookmarks,
//! lists again after a 410 and backs off.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Collected, Limited, StreamBody};
use hyper::body::{Body as HttpBody, Frame};
use kube::Api;
use kube::client::Body;
use kube::core::ObjectMeta;
use kube::runtime::utils::Backoff;
use kube::runtime::{WatchStreamExt, watcher};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tower::{BoxError, ServiceExt as _};
use tower_http::timeout::TimeoutBody;

use super::{AnswerBody, Apiserver, BODY_BYTES_MAX, Exchange, READ_BYTES_MAX, boxed, cause_of};
use crate::clock::Clock;
use crate::event::{ApiGroup, Event, json};
use crate::status::Status;

/// LIMIT: events of one page of the list. A page whose answer is too long is asked for again with fewer.
const PAGE: u32 = 500;
/// Content type of a watch; a page of another server has another one.
const JSON: &[u8] = b"application/json";
/// Divisor of the number of events after an answer that was too long: three of them lead to pages of one event.
const FEWER: u32 = 8;
/// LIMIT: seconds after which the API server ends a watch, which then restarts; kube's default.
const WATCH_SECONDS: u32 = 290;
/// Shortest duration of a watch; a shorter one has failed, as in client-go. kube's watcher pauses only after a watch that
/// has failed.
const WATCH_MIN: Duration = Duration::from_secs(1);

/// One step of the list or the watch.
#[derive(Debug)]
pub enum News {
    /// A list begins. Events that it does not have are deleted.
    Begins,
    /// An event of the list.
    Listed(Box<Event>),
    /// The list is complete.
    Complete,
    /// An event was created or changed.
    Stored(Box<Event>),
    /// An event was deleted, or has expired.
    Gone(Box<Event>),
    /// The API server did not answer as it should; it is asked again after a pause.
    Trouble {
        /// The fault, as text.
        error: String,
        /// Whether it is a missing permission, which is unlikely to change by itself.
        is_forbidden: bool,
        /// Whether the version to resume from is too old. The list that follows recovers from that.
        is_expired: bool,
    },
}

/// An event for kube's watcher: our decoder's event, and the metadata that the watcher reads.
#[derive(Debug, Clone)]
struct Watched {
    event: Event,
    meta: ObjectMeta,
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = Box::<RawValue>::deserialize(deserializer)?;
        // Also bookmarks: an event with nothing but metadata.
        let event = json::decode_event(ApiGroup::Core, document.get().as_bytes()).map_err(serde::de::Error::custom)?;
        let meta =
            ObjectMeta { resource_version: Some(event.metadata.resource_version.to_string()), ..ObjectMeta::default() };
        Ok(Self { event, meta })
    }
}

impl k8s_openapi::Resource for Watched {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Event";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "events";
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Watched {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.meta
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

/// The pauses after faults. kube starts again from the shortest one after each step that is no fault, even the one before
/// a list is asked for; these do so only after an event of a watch, or two minutes without a fault.
struct Pauses {
    pauses: watcher::DefaultBackoff,
    has_followed: Arc<AtomicBool>,
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        if self.has_followed.swap(false, Ordering::Relaxed) {
            self.pauses.reset();
        }
        self.pauses.next()
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}

impl Apiserver {
    /// Lists the events of one namespace or of all and watches them without end. Calls `watching` when a watch has
    /// opened, which may be long before its first event.
    pub fn history(
        &self,
        namespace: Option<&str>,
        watching: Arc<dyn Fn() + Send + Sync>,
    ) -> impl Stream<Item = News> + Send + use<> {
        let client = impatient(self.exchange.clone(), self.timeout, watching, self.clock.clone());
        let api: Api<Watched> = match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let config = watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS);
        let has_followed = Arc::new(AtomicBool::new(false));
        let pauses = Pauses { pauses: watcher::DefaultBackoff::default(), has_followed: Arc::clone(&has_followed) };
        let steps = watcher(api, config).inspect_ok(move |step| {
            if matches!(step, watcher::Event::Apply(_) | watcher::Event::Delete(_)) {
                has_followed.store(true, Ordering::Relaxed);
            }
        });
        steps.backoff(pauses).map(|news| match news {
            Ok(watcher::Event::Init) => News::Begins,
            Ok(watcher::Event::InitApply(watched)) => News::Listed(Box::new(watched.event)),
            Ok(watcher::Event::InitDone) => News::Complete,
            Ok(watcher::Event::Apply(watched)) => News::Stored(Box::new(watched.event)),
            Ok(watcher::Event::Delete(watched)) => News::Gone(Box::new(watched.event)),
            Err(error) => News::Trouble {
                is_forbidden: code(&error) == Some(403),
                is_expired: code(&error) == Some(410),
                error: cause_of(&error),
            },
        })
    }
}

/// Returns a kube client with deadlines and limits of bytes. kube's own client has neither, so a missing answer to a
/// list would block it for ever. `timeout` limits the head of an answer, a refusal's body and each chunk of a list; a
/// watch may be silent until its end, and kube's watcher ends it.
fn impatient(
    exchange: Exchange,
    timeout: Duration,
    watching: Arc<dyn Fn() + Send + Sync>,
    clock: Clock,
) -> kube::Client {
    let page = Arc::new(AtomicU32::new(PAGE));
    let listed = Arc::new(Mutex::new(None));
    kube::Client::new(
        tower::service_fn(move |mut request: Request<Body>| {
            let (exchange, page, listed) = (exchange.clone(), Arc::clone(&page), Arc::clone(&listed));
            let (watching, clock) = (Arc::clone(&watching), clock.clone());
            async move {
                let is_watch = is_watch(&request);
                if is_watch {
                    // The list is complete.
                    page.store(PAGE, Ordering::Relaxed);
                } else {
                    let token = continued(request.uri());
                    // A list that begins again may have the tokens of one that has failed.
                    let before = std::mem::replace(&mut *listed.lock(), token.clone());
                    if token.is_some() && before == token {
                        return Err("the list repeats a page".into());
                    }
                    let limit = format!("limit={}", page.load(Ordering::Relaxed));
                    *request.uri_mut() = request.uri().to_string().replace(&format!("limit={PAGE}"), &limit).parse()?;
                }
                let mut answer = tokio::time::timeout(timeout, exchange.oneshot(request)).await??;
                if is_watch && answer.status() == StatusCode::GONE {
                    answer = expired();
                }
                let status = answer.status();
                let is_refused = status.is_client_error() || status.is_server_error();
                let is_open = is_watch && !is_refused;
                if is_refused {
                    answer = whole_refusal(answer, timeout).await;
                }
                if is_open && !(status.is_success() && is_json(&answer)) {
                    // kube would read a page of another server as a watch, with a fault and a pause for each line.
                    return Err("the answer is not an API server's".into());
                }
                if is_open {
                    watching();
                }
                let silence = if is_open { Duration::MAX } else { timeout };
                let page = (!is_watch).then_some(page);
                let opened = clock.now().mono;
                let is_too_short = move || is_open && clock.now().mono.since(opened) < WATCH_MIN;
                Ok::<_, BoxError>(answer.map(|body| TimeoutBody::new(silence, bounded(body, page, is_too_short))))
            }
        }),
        "default",
    )
}

fn is_watch(request: &Request<Body>) -> bool {
    request.uri().query().is_some_and(|query| query.contains("watch=true"))
}

fn is_json(answer: &Response<AnswerBody>) -> bool {
    answer.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(JSON))
}

/// Returns a refusal with its body, which kube reads to its end, or without one that is too long or not read in time.
async fn whole_refusal(answer: Response<AnswerBody>, timeout: Duration) -> Response<AnswerBody> {
    let (head, body) = answer.into_parts();
    let body = tokio::time::timeout(timeout, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
    Response::from_parts(head, boxed(Body::from(body)))
}

/// Returns the token of the page that a request asks for; `None` for the first page.
fn continued(uri: &Uri) -> Option<String> {
    uri.query()?.split('&').find_map(|pair| pair.strip_prefix("continue=")).map(str::to_owned)
}

/// Returns the answer of an API server to a watch from a version that is too old: an ERROR, after which kube's watcher
/// lists again. The API also allows the code 410, after which it would try the same version for ever.
fn expired() -> Response<AnswerBody> {
    let status = Status::new(410, "Expired", "the resourceVersion of the watch is too old").to_json();
    let frame = [br#"{"type":"ERROR","object":"#, &status[..], b"}\n"].concat();
    let mut answer = Response::new(boxed(Body::from(frame)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// Limits the bytes of a list's answer, or without `page` of each line of a watch. After a list that is too long, the
/// next one has smaller pages. A line may be as long as a page of one event: etcd's 1.5 MiB are up to 9 MiB of JSON, which
/// escapes characters. After a longer line the watch would resume before it again and again. An answer that is too
/// short at its end has failed.
fn bounded(
    body: AnswerBody,
    page: Option<Arc<AtomicU32>>,
    is_too_short: impl Fn() -> bool,
) -> impl HttpBody<Data = Bytes, Error = BoxError> {
    let mut length = 0;
    let end = stream::once(async move { is_too_short().then(|| Err("the watch ended at once".into())) });
    let data = body.into_data_stream().map(move |data| {
        let data = data?;
        let line_end = memchr::memrchr(b'\n', &data).filter(|_| page.is_none());
        length = line_end.map_or(length + data.len(), |end| data.len() - end - 1);
        match &page {
            Some(page) if length > READ_BYTES_MAX => {
                let fewer = page.load(Ordering::Relaxed) / FEWER;
                page.store(fewer.max(1), Ordering::Relaxed);
                Err("a page of the list is too long".into())
            }
            None if length > READ_BYTES_MAX => Err("a frame of the watch is too long".into()),
            Some(_) | None => Ok(Frame::data(data)),
        }
    });
    StreamBody::new(data.chain(end.filter_map(ready)))
}

/// Returns the API server's code of an error.
fn code(error: &watcher::Error) -> Option<u16> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return None;
    };
    Some(status.code)
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    const LIST: &str = r#"{"kind":"EventList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#;

    fn behind<A>(answer: A, clock: Clock) -> Apiserver
    where
        A: Fn(Request<Body>) -> Response<AnswerBody> + Clone + Send + Sync + 'static,
    {
        let service = tower::service_fn(move |request| {
            let mut answer = answer(request);
            answer.headers_mut().entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            std::future::ready(Ok::<_, BoxError>(answer))
        });
        let (registry, settings) = (prometheus::Registry::new(), Settings::default());
        Apiserver::behind(service, &settings, clock, crate::upstream::Metrics::new(&registry))
    }

    async fn first(apiserver: &Apiserver, number: usize) -> Vec<String> {
        let news = apiserver.history(None, Arc::new(|| ())).take(number).map(|news| match news {
            News::Trouble { error, .. } => error,
            other => format!("{other:?}"),
        });
        news.collect().await
    }

    /// Fault: behind a load balancer that ends each watch at once, thousands of watches were begun per second.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_ends_at_once_has_failed() {
        let (watches, clock) = (Arc::new(AtomicU32::new(0)), Clock::manual(0));
        let (begun, time) = (Arc::clone(&watches), clock.clone());
        let answer = move |request: Request<Body>| {
            let body = match is_watch(&request).then(|| begun.fetch_add(1, Ordering::Relaxed)) {
                None => LIST,
                // It lasts long enough.
                Some(0) => "",
                Some(1..=8) => "\n",
                Some(_) => "another watch",
            };
            let clock = time.clone();
            let pieces =
                stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from(body)))]).chain(stream::poll_fn(move |_| {
                    if body.is_empty() {
                        clock.advance(WATCH_MIN);
                    }
                    std::task::Poll::Ready(None)
                }));
            Response::new(boxed(StreamBody::new(pieces)))
        };
        let shown = first(&behind(answer, clock), 4).await;
        let too_short = "the watch ended at once";
        assert_eq!(shown[..], ["Begins", "Complete", too_short, too_short]);
        assert_eq!(watches.load(Ordering::Relaxed), 3);
    }

    /// Fault: the watch ended at every event of more than 4 MiB, which a tenant may create, and began before it again.
    #[tokio::test(start_paused = true)]
    async fn the_longest_event_does_not_end_a_watch() {
        let clock = Clock::manual(0);
        let time = clock.clone();
        let answer = move |request: Request<Body>| {
            let message = r"\u003c".repeat(3 << 19);
            let event = format!(r#"{{"metadata":{{"name":"a","resourceVersion":"8"}},"message":"{message}"}}"#);
            let added = format!("{{\"type\":\"ADDED\",\"object\":{event}}}\n");
            let body = if is_watch(&request) { added } else { LIST.to_owned() };
            time.advance(WATCH_MIN);
            let pieces: Vec<_> = body.into_bytes().chunks(1 << 16).map(Bytes::copy_from_slice).collect();
            let pieces = stream::iter(pieces).map(|piece| Ok::<_, BoxError>(Frame::data(piece)));
            Response::new(boxed(StreamBody::new(pieces)))
        };
        let shown = first(&behind(answer, clock), 3).await;
        assert!(shown[2].starts_with("Stored"), "{:.99}", shown[2]);
    }

    /// Faults: the same page was listed again and again, without a pause; and then the next list could not get beyond it.
    #[tokio::test(start_paused = true)]
    async fn a_list_that_repeats_a_page_has_failed() {
        let asked = Arc::new(AtomicU32::new(0));
        let pages = Arc::clone(&asked);
        let answer = move |_: Request<Body>| {
            assert!(asked.fetch_add(1, Ordering::Relaxed) < 9);
            let list = r#"{"metadata":{"resourceVersion":"7","continue":"x"},"items":[]}"#;
            Response::new(boxed(Body::from(list.as_bytes().to_vec())))
        };
        let shown = first(&behind(answer, Clock::manual(0)), 4).await;
        let repeats = "the list repeats a page";
        assert_eq!(shown[..], ["Begins", repeats, "Begins", repeats]);
        assert_eq!(pages.load(Ordering::Relaxed), 4);
    }

    /// Fault: the pause between failing lists never grew, so every process listed all events once per second.
    #[tokio::test(start_paused = true)]
    async fn pauses_between_lists_grow_while_no_watch_holds() {
        for is_list_answered in [false, true] {
            let asked = Arc::new(AtomicU32::new(0));
            let requests = Arc::clone(&asked);
            let answer = move |request: Request<Body>| {
                asked.fetch_add(1, Ordering::Relaxed);
                let (code, body) = match (is_watch(&request), is_list_answered) {
                    (false, true) => (200, LIST),
                    (false, false) => (500, "{}"),
                    (true, _) => (410, "{}"),
                };
                let mut answer = Response::new(boxed(Body::from(body.as_bytes().to_vec())));
                *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                answer
            };
            let apiserver = behind(answer, Clock::manual(0));
            let follow = apiserver.history(None, Arc::new(|| ())).for_each(|_| ready(()));
            tokio::time::timeout(Duration::from_secs(600), follow).await.unwrap_err();
            let number = requests.load(Ordering::Relaxed);
            assert!((8..60).contains(&number), "{number} requests; the list is answered: {is_list_answered}");
        }
    }

    /// Pauses start from the shortest one again after an event of a watch: a load balancer may end each watch.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_breaks_off_after_an_event_is_soon_begun_again() {
        let (asked, clock) = (Arc::new(AtomicU32::new(0)), Clock::manual(0));
        let (begun, time) = (Arc::clone(&asked), clock.clone());
        let answer = move |request: Request<Body>| {
            let watch = is_watch(&request).then(|| begun.fetch_add(1, Ordering::Relaxed));
            let body = watch.map_or(LIST.to_owned(), |number| {
                let meta = format!(r#"{{"name":"a","resourceVersion":"{}"}}"#, number + 8);
                format!("{{\"type\":\"ADDED\",\"object\":{{\"metadata\":{meta}}}}}\n")
            });
            time.advance(WATCH_MIN);
            let end = watch.map(|_| Err::<Frame<Bytes>, BoxError>("the connection was closed".into()));
            let pieces = stream::iter([Ok(Frame::data(Bytes::from(body)))].into_iter().chain(end));
            Response::new(boxed(StreamBody::new(pieces)))
        };
        let apiserver = behind(answer, clock);
        let follow = apiserver.history(None, Arc::new(|| ())).for_each(|_| ready(()));
        tokio::time::timeout(Duration::from_secs(600), follow).await.unwrap_err();
        let number = asked.load(Ordering::Relaxed);
        assert!((370..=760).contains(&number), "{number} watches");
    }

    /// Fault: the version was tried again without an end, and nothing showed that the events were not followed.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_refused_as_too_old_leads_to_a_list() {
        let answer = |request: Request<Body>| {
            let gone = Status::new(410, "Expired", "too old resource version: 7 (9)").to_json();
            let mut answer = Response::new(boxed(Body::from(if is_watch(&request) { gone } else { LIST.into() })));
            if is_watch(&request) {
                *answer.status_mut() = StatusCode::GONE;
            }
            answer
        };
        let shown = first(&behind(answer, Clock::manual(0)), 5).await;
        assert_eq!([&shown[0], &shown[1], &shown[3], &shown[4]], ["Begins", "Complete", "Begins", "Complete"]);
        assert!(shown[2].contains("too old"), "{shown:?}");
    }

    /// Faults: after a refusal of the watch without the end of its body, nothing of history happened any more, and it
    /// showed as followed; and the body could have any length.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_of_the_watch_is_limited_in_time_and_bytes() {
        for is_silent in [true, false] {
            let answer = move |request: Request<Body>| {
                if !is_watch(&request) {
                    return Response::new(boxed(Body::from(LIST.as_bytes().to_vec())));
                }
                let lines = stream::iter([Bytes::from("x\n".repeat(BODY_BYTES_MAX))]);
                let body = if is_silent { stream::pending().boxed() } else { lines.boxed() };
                let mut answer =
                    Response::new(boxed(StreamBody::new(body.map(|data| Ok::<_, BoxError>(Frame::data(data))))));
                *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                answer
            };
            let apiserver = behind(answer, Clock::manual(0));
            let shown = tokio::time::timeout(Duration::from_secs(600), first(&apiserver, 4)).await.unwrap();
            assert_eq!(shown[..], ["Begins", "Complete", "503", "503"]);
        }
    }

    /// Fault: each line of another server's page was a fault with a pause, for a quarter of an hour.
    #[tokio::test(start_paused = true)]
    async fn a_page_of_another_server_is_one_fault() {
        for (code, kind) in [(200, "text/html"), (302, "text/html"), (302, "application/json")] {
            let watches = Arc::new(AtomicU32::new(0));
            let answer = move |request: Request<Body>| {
                let event = r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}"#;
                let watch = is_watch(&request).then(|| watches.fetch_add(1, Ordering::Relaxed));
                let body = match watch {
                    None => LIST.to_owned(),
                    Some(0) => "<p>\n".repeat(40),
                    Some(_) => format!("{event}\n"),
                };
                let body = stream::iter([Ok::<_, BoxError>(Frame::data(Bytes::from(body)))]);
                let is_open = watch.is_some_and(|number| number > 0);
                let rest = stream::iter(is_open.then_some(())).then(|()| std::future::pending());
                let mut answer = Response::new(boxed(StreamBody::new(body.chain(rest))));
                if watch == Some(0) {
                    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
                    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
                }
                answer
            };
            let apiserver = behind(answer, Clock::manual(0));
            let shown = tokio::time::timeout(Duration::from_secs(60), first(&apiserver, 4)).await.unwrap();
            assert_eq!(shown[..2], ["Begins", "Complete"]);
            assert_eq!(shown[2], "the answer is not an API server's");
            assert!(shown[3].starts_with("Stored"), "{}", shown[3]);
        }
    }

    /// Fault: the list's pages and the watch's lines could have any length. 500 events of 1 MiB, which every tenant may
    /// create, took a GiB at each start.
    #[tokio::test(start_paused = true)]
    async fn answers_are_limited_and_a_page_that_is_too_long_is_asked_for_again_with_fewer_events() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&asked);
        let answer = move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let pieces = match query.split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse::<u32>().ok()) {
                Some(limit) if limit > 100 => 17,
                Some(_) => 0,
                None => 17,
            };
            let long = stream::iter((0..pieces).map(|_| Ok(Frame::data(Bytes::from(vec![b'x'; 1 << 20])))));
            let list = stream::iter((pieces == 0).then(|| Ok::<_, BoxError>(Frame::data(Bytes::from(LIST)))));
            seen.lock().push(query);
            Response::new(boxed(StreamBody::new(long.chain(list).chain(stream::pending()).take(pieces.max(1)))))
        };
        let shown = first(&behind(answer, Clock::manual(0)), 5).await;
        assert!(shown[1].contains("a page of the list is too long"), "{shown:?}");
        assert!(shown[4].contains("a frame of the watch is too long"), "{shown:?}");
        assert_eq!([&shown[0], &shown[2], &shown[3]], ["Begins", "Begins", "Complete"]);
        let limits = asked.lock().iter().map(|query| query.contains("limit=62")).collect::<Vec<_>>();
        assert_eq!(limits, [false, true, false]);
    }
}
