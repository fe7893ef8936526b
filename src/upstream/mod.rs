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

pub use apiserver::Apiserver;
pub use embedded::{Embedded, answer_from_store};
pub use labels::LabelSelector;
pub use list::{ListOptions, Version};
pub use metrics::Metrics;
pub use selector::FieldSelector;

use crate::event::Event;
use crate::event::core_v1::EventList;
use crate::outbox::{Answer, Request};
use crate::status::Status;

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
enum Verb {
    Create,
    Patch,
    Get,
    List,
}

/// Why the upstream is not ready.
#[derive(Debug, thiserror::Error)]
#[error("the upstream is not ready: {0}")]
pub struct NotReady(String);

impl Upstream {
    /// Asks once for what a record needs. Dropping the future abandons the request, which may then still be carried out.
    pub async fn write(&self, request: &Request) -> Answer {
        match self {
            Self::Embedded(embedded) => embedded.write(request),
            Self::Apiserver(apiserver) => apiserver.write(request).await,
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
    const ALL: [Self; 4] = [Self::Create, Self::Patch, Self::Get, Self::List];

    const fn of(request: &Request) -> Self {
        match request {
            Request::Create(_) => Self::Create,
            Request::Patch { .. } => Self::Patch,
            Request::Read { .. } => Self::Get,
        }
    }

    const fn label(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Patch => "patch",
            Self::Get => "get",
            Self::List => "list",
        }
    }

    const fn writes(self) -> bool {
        matches!(self, Self::Create | Self::Patch)
    }
}
