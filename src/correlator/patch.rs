//! The patch of a repeated event.

use smol_str::SmolStr;

use crate::event::{Event, Time};

/// The two-way strategic merge patch of a repeated event, as client-go computes it: old is the event with count 0, an
/// empty message and lastTimestamp 1970-01-01T00:00:00Z (`tools/record/events_cache.go`, `eventObserve`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Patch {
    /// New count; absent from the patch when 0.
    pub count: i32,
    /// New lastTimestamp; `None` is written as `null`, which deletes the field; absent when exactly
    /// 1970-01-01T00:00:00Z.
    pub last_timestamp: Option<Time>,
    /// New message; absent when empty.
    pub message: SmolStr,
}

impl Patch {
    /// The patch that brings a stored record to the state of `event`.
    pub fn of(event: &Event) -> Self {
        Self { count: event.count, last_timestamp: event.last_timestamp, message: event.message.clone() }
    }
}
