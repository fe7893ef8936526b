//! What the apiserver holds, listed page by page and then watched, by kube's own watcher: it resumes, asks for bookmarks, lists
//! again after a 410 and backs off.

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

use super::{Apiserver, Exchange};
use crate::event::{Event, core_v1};

/// LIMIT: events of one page of the list.
const PAGE: u32 = 500;
/// LIMIT: seconds after which the apiserver ends a watch, which then is begun again; kube's own choice.
const WATCH_SECONDS: u32 = 290;

/// One piece of news.
#[derive(Debug)]
pub enum News {
    /// A list begins: what it does not show is gone.
    Begins,
    /// The list shows this event.
    Listed(Box<Event>),
    /// The list is whole.
    Complete,
    /// An event was created or changed.
    Stored(Box<Event>),
    /// An event was deleted, or has expired.
    Gone(Box<Event>),
    /// The apiserver did not answer as it should; it is asked again after a pause.
    Trouble {
        /// What went wrong.
        error: String,
        /// Whether it is because we may not ask, which will hardly change by itself.
        is_forbidden: bool,
        /// Whether it is only that the version to go on from is too old: the list that follows heals it.
        is_expired: bool,
    },
}

/// An event as kube's watcher wants it: decoded by our own decoder, with the metadata that the watcher looks at.
#[derive(Debug, Clone)]
struct Watched {
    event: Event,
    meta: ObjectMeta,
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let document = Box::<RawValue>::deserialize(deserializer)?;
        // Bookmarks, too, come this way: an event with nothing but metadata.
        let event = core_v1::from_json(document.get().as_bytes()).map_err(serde::de::Error::custom)?;
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
                error: error.to_string(),
            },
        })
    }
}

/// A client of kube's with deadlines, which it has not by itself: a list whose answer does not come would else be waited for without end. An
/// answer's head has to come in `timeout`, and so does each piece of a list; a watch may be silent for as long as it lasts.
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

/// The apiserver's own code for an error.
fn code(error: &watcher::Error) -> Option<u16> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return None;
    };
    Some(status.code)
}
