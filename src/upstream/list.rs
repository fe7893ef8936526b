//! What can be asked of a list of events. Plain values.

use super::{FieldSelector, LabelSelector};

/// How to list events. Build it with `..ListOptions::default()`: more may be added.
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
    /// Not older than this one: a resourceVersion alone, or with `NotOlderThan`. With a limit, exactly this one.
    AtLeast(u64),
    /// Exactly this one.
    Exact(u64),
}
