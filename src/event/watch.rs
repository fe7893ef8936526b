//! One event of a watch stream (`metav1.WatchEvent`).

use std::sync::Arc;

use super::Event;
use crate::status::Status;

/// An event of a watch stream.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// An event that was missing or did not match before, or that exists when the watch begins.
    Added(Arc<Event>),
    /// A change of an event that matched before.
    Modified(Arc<Event>),
    /// The last state of an event that was deleted or no longer matches, with the resource version of the change.
    Deleted(Arc<Event>),
    /// An event with nothing but a resource version to resume from, and annotations.
    Bookmark(Arc<Event>),
    /// The failure that ends the stream.
    Error(Box<Status>),
}

impl WatchEvent {
    /// Returns the event, or the failure that ends the stream.
    pub(crate) fn shown(&self) -> Result<&Event, &Status> {
        match self {
            Self::Added(event) | Self::Modified(event) | Self::Deleted(event) | Self::Bookmark(event) => Ok(event),
            Self::Error(status) => Err(status),
        }
    }

    /// Returns the `type` of the event on the wire.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Added(_) => "ADDED",
            Self::Modified(_) => "MODIFIED",
            Self::Deleted(_) => "DELETED",
            Self::Bookmark(_) => "BOOKMARK",
            Self::Error(_) => "ERROR",
        }
    }
}
