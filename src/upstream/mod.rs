//! Upstream: where records live. Either the kube-apiserver, or the embedded store, which serves the same API from
//! memory.
//!
//! Delivery sends a [`Request`] and gets an [`Answer`], classified by the table in `answer.rs`. Readers get events,
//! lists and the API's `Status`. This module sends each request once; the outbox decides what follows from the answer.

mod answer;
pub mod apiserver;
mod embedded;
mod list;
mod metrics;
mod patch;
pub mod store;
mod watch;

pub use crate::event::WatchEvent;
pub use crate::event::selector::{FieldSelector, LabelSelector};
pub use apiserver::{Apiserver, News};
pub use embedded::{Embedded, answer_from_store};
pub use list::{ClientPatch, DeleteOptions, Deleted, ListOptions, Updated, Version, WatchOptions, WriteOptions};
pub use metrics::Metrics;
pub use patch::patch_document;
pub use watch::{EmbeddedWatch, Step, Watch};

use serde_json::Value;

use crate::event::json::{EventList, decode_event};
use crate::event::patching::Patched;
use crate::event::{ApiGroup, Event, ObjectMeta, conversion};
use crate::outbox::{Answer, Request};
use crate::status::{Status, StatusDetails};
use apiserver::{decode, request};

/// Where records live. Clones share one connection pool or one store.
#[derive(Debug, Clone)]
pub enum Upstream {
    /// The embedded store, in memory.
    Embedded(Embedded),
    /// A kube-apiserver.
    Apiserver(Apiserver),
}

labelled! {
    /// The verb of a request to the upstream, and of an RBAC rule.
    pub enum Verb {
        /// POST.
        Create = "create",
        /// PATCH, server-side apply included.
        Patch = "patch",
        /// GET of one event.
        Get = "get",
        /// GET of a list.
        List = "list",
        /// PUT.
        Update = "update",
        /// DELETE of one event or of a collection.
        Delete = "delete",
        /// GET of a watch.
        Watch = "watch",
    }
}

/// The embedded store's answer to a server-side apply.
const NO_APPLY: &str = "the embedded store does not do server-side apply; started with --upstream apiserver, eventweir passes \
                        it on to a real API server";

/// Each request is sent once, in the API group that its client used or, without one, that of the settings.
///
/// # Errors
/// The upstream's refusals, or 503 and 504 when there is no answer. A write without an answer may have been
/// carried out.
impl Upstream {
    /// Sends the request of a record once. Dropping the future abandons the request, which may still be carried out.
    pub async fn write(&self, request: &Request) -> Answer {
        match self {
            Self::Embedded(embedded) => embedded.write(request),
            Self::Apiserver(apiserver) => apiserver.write(request).await,
        }
    }

    /// Reads one event.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Event, Status> {
        self.get_not_older(namespace, name, 0).await
    }

    /// Reads one event from a state that is not older than `version`; 0 accepts any state. Fails with 504 while the
    /// upstream has not reached the version.
    pub async fn get_not_older(&self, namespace: &str, name: &str, version: u64) -> Result<Event, Status> {
        match self {
            Self::Embedded(embedded) => embedded.with(Verb::Get, |store, now| {
                store.reached(version)?;
                store.get(namespace, name, now)
            }),
            Self::Apiserver(apiserver) => {
                let group = apiserver.group;
                let request = request::get_not_older(group, namespace, name, version);
                let is_named = |found: &Event| found.is_named(namespace, name);
                apiserver.ask(Verb::Get, request, |_, body| decode::stored(group, body, is_named)).await
            }
        }
    }

    /// Returns what a create would store, as a dry run.
    pub async fn try_create(&self, event: &Event) -> Result<Event, Status> {
        match self {
            // A copy, because the caller keeps its event.
            Self::Embedded(embedded) => embedded.with(Verb::Create, |store, now| store.try_create(event.clone(), now)),
            Self::Apiserver(apiserver) => {
                let group = apiserver.group;
                let request = match group {
                    ApiGroup::Core => request::try_create(group, event),
                    ApiGroup::Events => {
                        request::try_create(group, &conversion::to_events_v1(event, apiserver.clock.now().wall))
                    }
                };
                apiserver.ask(Verb::Create, request, |_, body| decode_event(group, body)).await
            }
        }
    }

    /// Lists the events of one namespace or of all.
    pub async fn list(&self, namespace: Option<&str>, options: &ListOptions) -> Result<EventList, Status> {
        match self {
            Self::Embedded(embedded) => embedded.list(namespace, options),
            Self::Apiserver(apiserver) => {
                let request = request::list(apiserver.group, namespace, options);
                apiserver.ask_list(Verb::List, request).await
            }
        }
    }

    /// Replaces the event of the same name, or creates it if it is missing.
    pub async fn update(&self, event: Event, options: &WriteOptions) -> Result<Updated, Status> {
        match self {
            Self::Embedded(embedded) => embedded.with(Verb::Update, |store, now| store.replace(event, options, now)),
            Self::Apiserver(apiserver) => {
                let request = request::update(&event, options);
                let ObjectMeta { namespace, name, .. } = &event.metadata;
                apiserver.ask(Verb::Update, request, decode::updated(namespace, name, options)).await
            }
        }
    }

    /// Applies an event by server-side apply: merges it into the one of its name, or creates it if it is missing. The
    /// embedded store refuses it with 415.
    pub async fn apply(
        &self,
        namespace: &str,
        name: &str,
        document: &Value,
        options: &WriteOptions,
    ) -> Result<Updated, Status> {
        match self {
            Self::Embedded(_) => {
                Err(Status::new(415, "UnsupportedMediaType", NO_APPLY).with_details(StatusDetails::default()))
            }
            Self::Apiserver(apiserver) => {
                let request = request::apply(namespace, name, document, options);
                apiserver.ask(Verb::Patch, request, decode::updated(namespace, name, options)).await
            }
        }
    }

    /// Applies a client's own patch to one event.
    pub async fn patch(
        &self,
        namespace: &str,
        name: &str,
        patch: &ClientPatch,
        options: &WriteOptions,
    ) -> Result<Patched, Status> {
        match self {
            Self::Embedded(embedded) => {
                embedded.with(Verb::Patch, |store, now| store.patch(namespace, name, patch, options, now))
            }
            Self::Apiserver(apiserver) => {
                let request = request::patch(namespace, name, patch, options);
                apiserver.ask(Verb::Patch, request, decode::patched(namespace, name, options)).await
            }
        }
    }

    /// Deletes one event.
    pub async fn delete(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
        match self {
            Self::Embedded(embedded) => {
                embedded.with(Verb::Delete, |store, now| store.delete(namespace, name, options, now))
            }
            Self::Apiserver(apiserver) => {
                let group = apiserver.group;
                let request = request::delete(group, namespace, name, options);
                apiserver.ask(Verb::Delete, request, |_, body| decode::deleted(group, body)).await
            }
        }
    }

    /// Returns the number of events that one deletecollection should delete.
    // LIMIT: an API server deletes one after the other. At 20 ms each, a page takes 4 s of the timeout.
    pub const fn deletion_page(&self) -> usize {
        match self {
            Self::Embedded(_) => usize::MAX,
            Self::Apiserver(_) => 200,
        }
    }

    /// Deletes the events that `list` selects, and returns them. After an error, some events may have been deleted.
    pub async fn delete_collection(
        &self,
        namespace: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<EventList, Status> {
        match self {
            Self::Embedded(embedded) => embedded.delete_collection(namespace, list, options),
            Self::Apiserver(apiserver) => {
                let request = request::delete_collection(apiserver.group, namespace, list, options);
                apiserver.ask_list(Verb::Delete, request).await
            }
        }
    }

    /// Watches the events of one namespace or of all.
    pub async fn watch(&self, namespace: Option<&str>, options: WatchOptions) -> Result<Watch, Status> {
        match self {
            Self::Embedded(embedded) => Ok(Watch::Embedded(Box::new(embedded.watch(namespace, options)?))),
            Self::Apiserver(apiserver) => Ok(Watch::Apiserver(Box::new(apiserver.watch(namespace, &options).await?))),
        }
    }

    /// Whether this namespace can hold events, as far as that is known without a request.
    pub fn has_namespace(&self, namespace: &str) -> bool {
        match self {
            Self::Embedded(embedded) => embedded.has_namespace(namespace),
            // A request per event would be too many; the create itself fails in a missing namespace.
            Self::Apiserver(_) => true,
        }
    }
}

impl Verb {
    /// The verbs of delivery.
    pub const OF_DELIVERY: [Self; 3] = [Self::Create, Self::Patch, Self::Get];

    /// Returns the verb of a record's request.
    pub const fn of(request: &Request) -> Self {
        match request {
            Request::Create { .. } => Self::Create,
            Request::Patch { .. } => Self::Patch,
            Request::Read { .. } => Self::Get,
            Request::Delete { .. } => Self::Delete,
        }
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Patch | Self::Update | Self::Delete)
    }
}
