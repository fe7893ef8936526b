//! Options and results of requests to the upstream. Plain values.

use bytes::Bytes;
use smol_str::SmolStr;

use super::{FieldSelector, LabelSelector};
use crate::event::json::FieldValidation;
use crate::event::patching::PatchType;
use crate::event::{ApiGroup, Event};

/// How to list events. Build it with `..ListOptions::default()`, because options may be added.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Maximum number of events of one page; 0 lists all.
    pub limit: usize,
    /// The token of the previous page; empty for the first page.
    pub continue_token: String,
    /// Selects events by fields; empty for all.
    pub field_selector: FieldSelector,
    /// Selects events by labels; empty for all.
    pub label_selector: LabelSelector,
    /// The version of the list; must be `Newest` with a continue token.
    pub version: Version,
}

/// The version of a list (`resourceVersion` and `resourceVersionMatch`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// The newest: no resourceVersion, or "0", because apiservers have no watch cache for events.
    #[default]
    Newest,
    /// This version or a newer one: a resourceVersion without a match. With a limit, exactly this version.
    AtLeast(u64),
    /// This version or a newer one, also with a limit: a resourceVersion with `NotOlderThan`.
    NotOlderThan(u64),
    /// Exactly this version.
    Exact(u64),
}

/// How to delete an event (those `DeleteOptions` that apply to events).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// The uid that the event must have.
    pub uid: Option<SmolStr>,
    /// The version that the event must have.
    pub resource_version: Option<SmolStr>,
    /// Answers without storing anything.
    pub dry_run: bool,
}

/// The result of a deletion.
#[derive(Debug, Clone, PartialEq)]
pub enum Deleted {
    /// The event was deleted. Its uid, if the answer had it.
    Gone(SmolStr),
    /// The event has finalizers, and was marked with a deletionTimestamp.
    Marked(Box<Event>),
}

/// How to write an event: by PUT, PATCH or server-side apply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteOptions {
    /// The manager for managedFields: `?fieldManager`, or the beginning of the User-Agent. May be empty for a patch.
    pub manager: SmolStr,
    /// The API group of the request, whose rules apply.
    pub group: ApiGroup,
    /// Answers without storing anything.
    pub dry_run: bool,
    /// How unknown and duplicate members of a patch are treated.
    pub validation: FieldValidation,
    /// Whether an apply takes fields from other managers.
    pub force: bool,
}

impl WriteOptions {
    /// Returns the options of a write without any parameters.
    pub fn new(manager: impl Into<SmolStr>, group: ApiGroup) -> Self {
        Self { manager: manager.into(), group, dry_run: false, validation: FieldValidation::Warn, force: false }
    }
}

/// A client's own patch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientPatch {
    /// The kind of patch.
    pub patch_type: PatchType,
    /// The body of the request.
    pub body: Bytes,
}

/// An event after a PUT or an apply.
#[derive(Debug, Clone, PartialEq)]
pub struct Updated {
    /// The stored event.
    pub event: Event,
    /// Whether it was created.
    pub created: bool,
    /// The upstream's warnings.
    pub warnings: Vec<String>,
}

/// How to watch events.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WatchOptions {
    /// Selects events by fields; empty for all.
    pub field_selector: FieldSelector,
    /// Selects events by labels; empty for all.
    pub label_selector: LabelSelector,
    /// The version after which changes are sent; 0 for none.
    pub resource_version: u64,
    /// Whether existing events are sent first. By default they are if `resource_version` is 0.
    pub send_initial_events: Option<bool>,
    /// Whether bookmarks are sent.
    pub bookmarks: bool,
    /// Seconds after which the stream ends; 0 leaves it to the upstream.
    pub timeout_seconds: u64,
}

impl WatchOptions {
    /// Whether the selectors match the event.
    pub fn matches(&self, event: &Event) -> bool {
        self.field_selector.matches(event) && self.label_selector.matches(event)
    }
}
