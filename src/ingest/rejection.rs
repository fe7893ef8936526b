//! Refusals: the `Status` for the client and, for a possible occurrence, the reason for the ledger.

use axum::response::{IntoResponse, Response};

use super::{Unable, respond};
use crate::event::ApiGroup;
use crate::ledger::RejectReason;
use crate::status::Status;

/// Refusal of a possible occurrence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejection {
    /// Reason under which the ledger counts it, if it may have been an occurrence.
    pub(super) reason: RejectReason,
    pub(super) status: Box<Status>,
    /// Set if the upstream might take the event.
    pub(super) unable: Option<Unable>,
}

impl Rejection {
    pub(super) fn new(reason: RejectReason, status: impl Into<Box<Status>>) -> Self {
        Self { reason, status: status.into(), unable: None }
    }

    /// Marks the refusal of a posted event whose body found no room.
    pub(super) fn of_post(self) -> Self {
        Self { unable: (self.reason == RejectReason::Limited).then_some(Unable), ..self }
    }

    /// Rejects an event that the apiserver would refuse.
    pub(super) fn invalid(status: impl Into<Box<Status>>) -> Self {
        Self::new(RejectReason::Invalid, status)
    }

    /// Returns the answer to the client, marked if the upstream might take the event.
    pub(super) fn refusal(&self) -> Response {
        let mut response = respond::refusal(&self.status);
        if let Some(unable) = self.unable {
            response.extensions_mut().insert(unable);
        }
        response
    }
}

impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        *rejection.status
    }
}

/// Answers a request that is not an occurrence, so that the ledger does not count its refusal. Handlers return it as
/// error.
impl IntoResponse for Status {
    fn into_response(self) -> Response {
        respond::refusal(&self)
    }
}

/// Replaces a 404 of the upstream by one about the name that the client knows, in the words of its API group.
pub(super) fn as_asked(group: ApiGroup, name: &str, status: Status) -> Status {
    if status.code == 404 { Status::not_found(group.name(), "events", name) } else { status }
}

/// Replaces the record's name in a refusal of the upstream by the name that the client knows.
pub(super) fn under(name: &str, stored_name: &str, mut status: Status) -> Status {
    if name != stored_name {
        status.message = status.message.replace(&format!("\"{stored_name}\""), &format!("\"{name}\""));
        if let Some(details) = status.details.as_mut().filter(|details| details.name == stored_name) {
            name.clone_into(&mut details.name);
        }
    }
    status
}
