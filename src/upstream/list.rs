//! What can be asked of a list of events, of a deletion, an update and a watch; and what they answer. Plain values.

use std::sync::Arc;

use bytes::Bytes;
use smol_str::SmolStr;

use super::{FieldSelector, LabelSelector};
use crate::event::json::FieldValidation;
use crate::event::patching::PatchType;
use crate::event::{ApiGroup, Event};
use crate::status::Status;

/// How to list events. Build it with `..ListOptions::default()`: more will be added.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Most events of one page; 0 lists all.
    pub limit: usize,
    /// Where to go on, from the page before; empty for the first page.
    pub continue_token: String,
    /// Which events; empty for all.
    pub field_selector: FieldSelector,
    /// Which events, by their labels; empty for all.
    pub label_selector: LabelSelector,
    /// Which version of the list; must be `Newest` when there is a continue token.
    pub version: Version,
}

/// The version of a list (`resourceVersion` and `resourceVersionMatch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// The newest: no resourceVersion, or "0", since there is no watch cache for events.
    #[default]
    Newest,
    /// Not older than this one: a resourceVersion alone. With a limit, exactly this one.
    AtLeast(u64),
    /// Not older than this one, with a limit too: a resourceVersion with `NotOlderThan`.
    NotOlderThan(u64),
    /// Exactly this one.
    Exact(u64),
}

/// How to delete an event (`DeleteOptions`, as far as they mean something for events).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Only an event with this uid.
    pub uid: Option<SmolStr>,
    /// Only an event in this version.
    pub resource_version: Option<SmolStr>,
    /// Answer as if it were done.
    pub dry_run: bool,
}

/// What became of an event that was to be deleted.
#[derive(Debug, Clone, PartialEq)]
pub enum Deleted {
    /// It is no more. Its uid, as far as it was told.
    Gone(SmolStr),
    /// Its finalizers hold it; it carries a deletionTimestamp now.
    Marked(Box<Event>),
}

/// Who writes: what an apiserver's managedFields remember.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// The manager: `?fieldManager`, or the beginning of the User-Agent.
    pub manager: SmolStr,
    /// The API group, whose rules apply.
    pub group: ApiGroup,
}

/// How to replace an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpdateOptions {
    /// In whose name, and in which API group.
    pub writer: Writer,
    /// Answer as if it were done.
    pub dry_run: bool,
}

/// How to apply an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApplyOptions {
    /// In whose name, and in which API group.
    pub writer: Writer,
    /// Take fields from other managers.
    pub force: bool,
    /// Answer as if it were done.
    pub dry_run: bool,
}

/// A patch as its client wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPatch {
    /// How it is to be read.
    pub patch_type: PatchType,
    /// What came.
    pub body: Bytes,
}

/// How to patch an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchOptions {
    /// In whose name, and in which API group; the name is empty when nobody says.
    pub writer: Writer,
    /// Answer as if it were done.
    pub dry_run: bool,
    /// What becomes of unknown and duplicate members.
    pub validation: FieldValidation,
}

/// An event after a PUT or an apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Updated {
    /// As it is stored now.
    pub event: Event,
    /// It was missing and has been created.
    pub created: bool,
}

/// What to watch, and from where.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchOptions {
    /// Which events; empty for all.
    pub field_selector: FieldSelector,
    /// Which events; empty for all.
    pub label_selector: LabelSelector,
    /// Changes after this version; 0 for none given.
    pub resource_version: u64,
    /// What is there first, or not; `None` leaves it to `resource_version`.
    pub send_initial_events: Option<bool>,
    /// The client understands bookmarks.
    pub bookmarks: bool,
    /// The stream ends after so many seconds.
    pub timeout_seconds: u64,
}

impl WatchOptions {
    /// Whether the stream begins with what is there.
    #[must_use]
    pub fn starts_with_events(&self) -> bool {
        self.send_initial_events.unwrap_or(self.resource_version == 0)
    }

    /// Whether the event is watched.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        self.field_selector.matches(event) && self.label_selector.matches(event)
    }
}

/// One thing that a watch tells.
#[derive(Debug, Clone, PartialEq)]
pub enum WatchEvent {
    /// An event that was not there, or was not watched, before.
    Added(Arc<Event>),
    /// A watched event has changed.
    Modified(Arc<Event>),
    /// An event is no more, or is watched no longer: as it was last, under the version of the change.
    Deleted(Arc<Event>),
    /// Nothing but a version to go on from, and annotations.
    Bookmark(Arc<Event>),
    /// The watch cannot go on; the last of the stream.
    Error(Box<Status>),
}

impl WatchEvent {
    /// The word for the wire.
    #[must_use]
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
