//! Where records live: the kube-apiserver, or the embedded store that speaks the same API. The end of the path.
//!
//! The shard hands over a [`Request`] and gets an [`Answer`], sorted by one table (`answer.rs`); readers get events, lists and
//! the API's own `Status`. Nothing here repeats a request or decides what follows from an answer: the outbox does.

mod answer;
pub mod apiserver;
mod embedded;
mod labels;
mod list;
mod metrics;
mod patch;
mod selector;
pub mod store;
mod watch;

pub use apiserver::{Apiserver, News};
pub use embedded::{Embedded, answer_from_store};
pub use labels::LabelSelector;
pub use list::{
    ApplyOptions, ClientPatch, DeleteOptions, Deleted, ListOptions, PatchOptions, UpdateOptions, Updated, Version,
    WatchEvent, WatchOptions, Writer,
};
pub use metrics::Metrics;
pub use selector::FieldSelector;
pub use watch::{EmbeddedWatch, Watch};

use std::sync::Arc;

use serde_json::Value;

use crate::event::Event;
use crate::event::core_v1::EventList;
use crate::event::patching::Patched;
use crate::outbox::{Answer, Request};
use crate::status::{Status, StatusDetails};

/// Where records live. Clones share one connection pool or one store.
#[derive(Debug, Clone)]
pub enum Upstream {
    /// In this process's memory.
    Embedded(Embedded),
    /// In a cluster.
    Apiserver(Apiserver),
}

/// What can be asked of an upstream; also the metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// POST.
    Create,
    /// PATCH, server-side apply included.
    Patch,
    /// GET of one event.
    Get,
    /// GET of many.
    List,
    /// PUT.
    Update,
    /// DELETE of one event or of many.
    Delete,
    /// GET of changes as they come.
    Watch,
}

/// Why the upstream is not ready.
#[derive(Debug, thiserror::Error)]
#[error("the upstream is not ready: {0}")]
pub struct NotReady(String);

/// The embedded store's answer to a server-side apply.
const NO_APPLY: &str = "the embedded store does not do server-side apply; started with --upstream apiserver, eventweir passes \
                        it on to a real apiserver";

impl Upstream {
    /// Asks once for what a record needs. Dropping the future abandons the request, which may then still be carried out.
    pub async fn write(&self, request: &Request) -> Answer {
        match self {
            Self::Embedded(embedded) => embedded.write(request),
            Self::Apiserver(apiserver) => apiserver.write(request).await,
        }
    }

    /// What happened to the newest request that is worth repeating, in words for a log.
    #[must_use]
    pub fn newest_fault(&self) -> Option<Arc<String>> {
        match self {
            Self::Embedded(_) => None,
            Self::Apiserver(apiserver) => apiserver.newest_fault(),
        }
    }

    /// Reads one event.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Event, Status> {
        match self {
            Self::Embedded(embedded) => embedded.get(namespace, name),
            Self::Apiserver(apiserver) => apiserver.get(namespace, name).await,
        }
    }

    /// Reads one event from a state that is not older than this version; 0 for any.
    ///
    /// # Errors
    /// As [`Self::get`], and 504 when the upstream has not reached the version yet.
    pub async fn get_not_older(&self, namespace: &str, name: &str, version: u64) -> Result<Event, Status> {
        match self {
            Self::Embedded(embedded) => embedded.get_not_older(namespace, name, version),
            Self::Apiserver(apiserver) => apiserver.get_not_older(namespace, name, version).await,
        }
    }

    /// Shows what a create would store, and stores nothing.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer.
    pub async fn try_create(&self, event: &Event) -> Result<Event, Status> {
        match self {
            Self::Embedded(embedded) => embedded.try_create(event),
            Self::Apiserver(apiserver) => apiserver.try_create(event).await,
        }
    }

    /// Lists the events of one namespace or of all.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer.
    pub async fn list(&self, namespace: Option<&str>, options: &ListOptions) -> Result<EventList, Status> {
        match self {
            Self::Embedded(embedded) => embedded.list(namespace, options),
            Self::Apiserver(apiserver) => apiserver.list(namespace, options).await,
        }
    }

    /// Puts an event in the place of the one of its name; a missing one is created.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer; then it may have been done.
    pub async fn update(&self, event: Event, options: &UpdateOptions) -> Result<Updated, Status> {
        match self {
            Self::Embedded(embedded) => embedded.update(event, options),
            Self::Apiserver(apiserver) => apiserver.update(&event, options).await,
        }
    }

    /// Merges an event into the one of its name as its manager wants it (server-side apply); a missing one is created.
    ///
    /// # Errors
    /// 415 by the embedded store; the apiserver's refusal, or 503 and 504 when there is no answer: then it may have been done.
    pub async fn apply(
        &self,
        namespace: &str,
        name: &str,
        document: &Value,
        options: &ApplyOptions,
    ) -> Result<Updated, Status> {
        match self {
            Self::Embedded(_) => {
                Err(Status::new(415, "UnsupportedMediaType", NO_APPLY).with_details(StatusDetails::default()))
            }
            Self::Apiserver(apiserver) => apiserver.apply(namespace, name, document, options).await,
        }
    }

    /// Applies a client's own patch to one event.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer; then it may have been done.
    pub async fn patch(
        &self,
        namespace: &str,
        name: &str,
        patch: &ClientPatch,
        options: &PatchOptions,
    ) -> Result<Patched, Status> {
        match self {
            Self::Embedded(embedded) => embedded.patch(namespace, name, patch, options),
            Self::Apiserver(apiserver) => apiserver.patch(namespace, name, patch, options).await,
        }
    }

    /// Deletes one event.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer; then it may have been done.
    pub async fn delete(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
        match self {
            Self::Embedded(embedded) => embedded.delete(namespace, name, options),
            Self::Apiserver(apiserver) => apiserver.delete(namespace, name, options).await,
        }
    }

    /// Deletes the events that a list of these options would show, and returns that list.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer; then some may have been deleted.
    pub async fn delete_collection(
        &self,
        namespace: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<EventList, Status> {
        match self {
            Self::Embedded(embedded) => embedded.delete_collection(namespace, list, options),
            Self::Apiserver(apiserver) => apiserver.delete_collection(namespace, list, options).await,
        }
    }

    /// Watches the events of one namespace or of all.
    ///
    /// # Errors
    /// The upstream's refusal, or 503 and 504 when there is no answer.
    pub async fn watch(&self, namespace: Option<&str>, options: WatchOptions) -> Result<Watch, Status> {
        match self {
            Self::Embedded(embedded) => Ok(Watch::Embedded(Box::new(embedded.watch(namespace, options)))),
            Self::Apiserver(apiserver) => Ok(Watch::Apiserver(Box::new(apiserver.watch(namespace, &options).await?))),
        }
    }

    /// Whether this namespace can hold events, as far as it is known without asking.
    #[must_use]
    pub fn has_namespace(&self, namespace: &str) -> bool {
        match self {
            Self::Embedded(embedded) => embedded.has_namespace(namespace),
            // Asking would cost a request for each event; the create itself will tell.
            Self::Apiserver(_) => true,
        }
    }

    /// Asks whether the upstream would answer now.
    ///
    /// # Errors
    /// When it cannot be reached, does not accept our credentials or says that it is not ready.
    pub async fn check(&self) -> Result<(), NotReady> {
        match self {
            Self::Embedded(_) => Ok(()),
            Self::Apiserver(apiserver) => apiserver.check().await,
        }
    }
}

impl Verb {
    const ALL: [Self; 7] = [Self::Create, Self::Patch, Self::Get, Self::List, Self::Update, Self::Delete, Self::Watch];

    /// What records are delivered with.
    pub const OF_DELIVERY: [Self; 3] = [Self::Create, Self::Patch, Self::Get];

    /// How a record's request asks.
    #[must_use]
    pub const fn of(request: &Request) -> Self {
        match request {
            Request::Create { .. } => Self::Create,
            Request::Patch { .. } => Self::Patch,
            Request::Read { .. } => Self::Get,
            Request::Delete { .. } => Self::Delete,
        }
    }

    /// The metric label, and the verb of an RBAC rule.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Get => "get",
            Self::List => "list",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Watch => "watch",
        }
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Patch | Self::Update | Self::Delete)
    }
}
