//! What the apiserver holds, listed page by page and then watched, by kube's own watcher: it resumes, asks for bookmarks, lists
//! again after a 410 and backs off.

use std::borrow::Cow;

use futures_util::{Stream, StreamExt};
use kube::core::ObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::Apiserver;
use crate::event::{Event, core_v1};

/// LIMIT: events of one page of the list.
const PAGE: u32 = 500;

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
        let api: Api<Watched> = Api::all(self.client.clone());
        let config = watcher::Config::default().page_size(PAGE);
        watcher(api, config).default_backoff().map(|news| match news {
            Ok(watcher::Event::Init) => News::Begins,
            Ok(watcher::Event::InitApply(watched)) => News::Listed(Box::new(watched.event)),
            Ok(watcher::Event::InitDone) => News::Complete,
            Ok(watcher::Event::Apply(watched)) => News::Stored(Box::new(watched.event)),
            Ok(watcher::Event::Delete(watched)) => News::Gone(Box::new(watched.event)),
            Err(error) => News::Trouble { is_forbidden: is_forbidden(&error), error: error.to_string() },
        })
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return false;
    };
    status.code == 403
}
