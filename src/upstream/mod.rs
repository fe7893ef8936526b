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
pub use list::{
    ApplyOptions, ClientPatch, DeleteOptions, Deleted, ListOptions, PatchOptions, UpdateOptions, Updated, Version,
    WatchOptions, Writer,
};
pub use metrics::Metrics;
pub use patch::patch_document;
pub use watch::{EmbeddedWatch, Watch};

use std::sync::Arc;

use serde_json::Value;

use crate::event::Event;
use crate::event::json::EventList;
use crate::event::patching::Patched;
use crate::outbox::{Answer, Request};
use crate::status::{Status, StatusDetails};

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
                        it on to a real apiserver";

/// Calls the method of the same name on the upstream, whichever it is.
macro_rules! ask {
    ($upstream:ident.$method:ident($($argument:expr),*)) => {
        match $upstream {
            Self::Embedded(embedded) => embedded.$method($($argument),*),
            Self::Apiserver(apiserver) => apiserver.$method($($argument),*).await,
        }
    };
}

/// Errors are the upstream's refusals, or 503 and 504 when there is no answer. A write without an answer may have been
/// carried out.
impl Upstream {
    /// Sends the request of a record once. Dropping the future abandons the request, which may still be carried out.
    pub async fn write(&self, request: &Request) -> Answer {
        ask!(self.write(request))
    }

    /// Returns the most recent retryable failure, as text for the log.
    pub fn newest_fault(&self) -> Option<Arc<String>> {
        match self {
            Self::Embedded(_) => None,
            Self::Apiserver(apiserver) => apiserver.newest_fault(),
        }
    }

    /// Reads one event.
    ///
    /// # Errors
    /// The upstream's refusal.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Event, Status> {
        self.get_not_older(namespace, name, 0).await
    }

    /// Reads one event from a state that is not older than `version`; 0 accepts any state.
    ///
    /// # Errors
    /// The upstream's refusal, and 504 when the upstream has not reached the version yet.
    pub async fn get_not_older(&self, namespace: &str, name: &str, version: u64) -> Result<Event, Status> {
        ask!(self.get_not_older(namespace, name, version))
    }

    /// Returns what a create would store, as a dry run.
    ///
    /// # Errors
    /// The upstream's refusal.
    pub async fn try_create(&self, event: &Event) -> Result<Event, Status> {
        ask!(self.try_create(event))
    }

    /// Lists the events of one namespace or of all.
    ///
    /// # Errors
    /// The upstream's refusal.
    pub async fn list(&self, namespace: Option<&str>, options: &ListOptions) -> Result<EventList, Status> {
        ask!(self.list(namespace, options))
    }

    /// Replaces the event of the same name, or creates it if it is missing.
    ///
    /// # Errors
    /// The upstream's refusal.
    pub async fn update(&self, event: Event, options: &UpdateOptions) -> Result<Updated, Status> {
        match self {
            Self::Embedded(embedded) => embedded.update(event, options),
            Self::Apiserver(apiserver) => apiserver.update(&event, options).await,
        }
    }

    /// Applies an event by server-side apply: merges it into the one of its name, or creates it if it is missing.
    ///
    /// # Errors
    /// 415 from the embedded store; the apiserver's refusal.
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
    /// The upstream's refusal.
    pub async fn patch(
        &self,
        namespace: &str,
        name: &str,
        patch: &ClientPatch,
        options: &PatchOptions,
    ) -> Result<Patched, Status> {
        ask!(self.patch(namespace, name, patch, options))
    }

    /// Deletes one event.
    ///
    /// # Errors
    /// The upstream's refusal.
    pub async fn delete(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
        ask!(self.delete(namespace, name, options))
    }

    /// Deletes the events that `list` selects, and returns them.
    ///
    /// # Errors
    /// The upstream's refusal; then some events may have been deleted.
    pub async fn delete_collection(
        &self,
        namespace: &str,
        list: &ListOptions,
        options: &DeleteOptions,
    ) -> Result<EventList, Status> {
        ask!(self.delete_collection(namespace, list, options))
    }

    /// Watches the events of one namespace or of all.
    ///
    /// # Errors
    /// The upstream's refusal.
    pub async fn watch(&self, namespace: Option<&str>, options: WatchOptions) -> Result<Watch, Status> {
        match self {
            Self::Embedded(embedded) => Ok(Watch::Embedded(Box::new(embedded.watch(namespace, options)))),
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
