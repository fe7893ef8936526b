//! A refusal of what may have been an occurrence: the reason for the ledger, and the `Status` for the client.

use crate::ledger::RejectReason;
use crate::status::Status;

/// Why a request was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rejection {
    /// Under which the ledger counts it, if it may have been an occurrence.
    pub(super) reason: RejectReason,
    /// What the client is answered.
    pub(super) status: Box<Status>,
}

impl Rejection {
    pub(super) fn new(reason: RejectReason, status: impl Into<Box<Status>>) -> Self {
        Self { reason, status: status.into() }
    }

    /// As an event that the apiserver would refuse.
    pub(super) fn invalid(status: impl Into<Box<Status>>) -> Self {
        Self::new(RejectReason::Invalid, status)
    }
}

impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        *rejection.status
    }
}
