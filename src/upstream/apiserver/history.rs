//! Lists the API server's events in pages and then watches them, with kube's watcher. It resumes, requests bookmarks,
//! lists again after a 410 and backs off.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use http::Request;
use kube::client::Body;
use kube::core::ObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tower::{BoxError, ServiceExt as _};
use tower_http::timeout::TimeoutBody;

use super::{Apiserver, Exchange, cause_of};
use crate::event::{ApiGroup, Event, json};

/// LIMIT: events of one page of the list.
const PAGE: u32 = 500;
/// LIMIT: seconds after which the API server ends a watch, which then restarts; kube's default.
const WATCH_SECONDS: u32 = 290;

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
        let meta = ObjectMeta {
            name: Some(event.metadata.name.to_string()),
            namespace: Some(event.metadata.namespace.to_string()),
            resource_version: Some(event.metadata.resource_version.to_string()),
            ..ObjectMeta::default()
        };
        Ok(Self { event, meta })
    }
}

impl Resource for Watched {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Cow::Borrowed("Event")
    }

    fn group((): &()) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn version((): &()) -> Cow<'_, str> {
        Cow::Borrowed("v1")
    }

    fn plural((): &()) -> Cow<'_, str> {
        Cow::Borrowed("events")
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl Apiserver {
    /// Lists all events and watches them without end.
    pub fn history(&self) -> impl Stream<Item = News> + Send + use<> {
        self.history_of(None)
    }

    /// Lists the events of one namespace or of all and watches them without end.
    pub fn history_of(&self, namespace: Option<&str>) -> impl Stream<Item = News> + Send + use<> {
        let client = impatient(self.exchange.clone(), self.timeout);
        let api: Api<Watched> = match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let config = watcher::Config::default().page_size(PAGE).timeout(WATCH_SECONDS);
        watcher(api, config).default_backoff().map(|news| match news {
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

/// Returns a client of kube with deadlines, which kube's own does not have: a missing answer to a list would block it
/// for ever. `timeout` limits the head of an answer and each chunk of a list; a watch may be silent until its end.
fn impatient(exchange: Exchange, timeout: Duration) -> kube::Client {
    let watch = Duration::from_secs(WATCH_SECONDS.into()) + timeout;
    kube::Client::new(
        tower::service_fn(move |request: Request<Body>| {
            let exchange = exchange.clone();
            async move {
                let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
                let answer = tokio::time::timeout(timeout, exchange.oneshot(request)).await??;
                let silence = if is_watch { watch } else { timeout };
                Ok::<_, BoxError>(answer.map(|body| TimeoutBody::new(silence, body)))
            }
        }),
        "default",
    )
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
