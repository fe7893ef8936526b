//! Requests of the outbox to the upstream, and classified answers. Plain values.

use std::time::Duration;

use smol_str::SmolStr;

use super::tag::Claim;
use crate::correlator::{Patch, RecordId};
use crate::event::{ApiGroup, Event};
use crate::ledger::LostReason;
use crate::status::Status;

/// A request to the upstream for a record.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The record, which [`Outbox::settle`](super::Outbox::settle) needs with the answer.
    pub record: RecordId,
    /// The request.
    pub request: Request,
}

/// The kinds of requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// POST of the whole event.
    Create {
        /// The API group of the request.
        group: ApiGroup,
        /// The event in the form of that group, without a `metadata.resourceVersion`.
        event: Box<Event>,
    },
    /// Strategic merge PATCH.
    Patch {
        /// The API group of the request. Through events.k8s.io/v1 the patch changes the series to its count and time,
        /// and not the message, because nothing else may change there.
        group: ApiGroup,
        /// Namespace of the record.
        namespace: SmolStr,
        /// Name of the record upstream.
        name: SmolStr,
        /// The changed members.
        patch: Patch,
        /// Version and tag, which make it count exactly once; `None` for plain writes.
        claim: Option<Box<Claim>>,
    },
    /// GET of a record whose create was answered "already exists".
    Read {
        /// The API group of the request.
        group: ApiGroup,
        /// Namespace of the record.
        namespace: SmolStr,
        /// Name in question.
        name: SmolStr,
    },
    /// DELETE of a record that a client has deleted before it was stored.
    Delete {
        /// The API group of the request.
        group: ApiGroup,
        /// Namespace of the record.
        namespace: SmolStr,
        /// Its name.
        name: SmolStr,
        /// The version that was read.
        resource_version: SmolStr,
    },
}

/// An answer of the upstream, classified for the record.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The event after a write, or the event that a read found.
    Stored(Box<Event>),
    /// A patch or read of an event that does not exist: create it.
    Missing,
    /// A create under a name that is taken: read it, then adopt or rename.
    Exists,
    /// A final refusal.
    Refused(Refusal),
    /// A temporary failure.
    Retry(Retry),
}

/// A final refusal by the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason under which its occurrences are counted as lost.
    pub reason: LostReason,
    /// The upstream's status, for the log and for a waiting client.
    pub status: Box<Status>,
}

/// A temporary failure of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    /// The upstream's `Retry-After`, if any.
    pub after: Option<Duration>,
    /// Whether the write may have been executed.
    pub applied: Applied,
    /// The kind of failure.
    pub fault: Fault,
    /// The upstream's message, or what broke the connection; may be empty.
    pub cause: SmolStr,
}

impl Retry {
    /// A failure without further circumstances.
    pub const fn new(fault: Fault, applied: Applied) -> Self {
        Self { after: None, applied, fault, cause: SmolStr::new_static("") }
    }
}

/// Whether an unacknowledged write may have been executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Certainly not: refused before it was processed (429, 401, no connection).
    No,
    /// Unknown: a timeout, a lost connection, a 5xx.
    Perhaps,
}

labelled! {
    /// The kind of a temporary failure.
    pub enum Fault {
        /// No connection, connection lost, TLS failure.
        Transport = "transport",
        /// No answer within the request's deadline, or 504.
        Timeout = "timeout",
        /// 429.
        Overloaded = "overloaded",
        /// A 5xx that is not final.
        ServerError = "server_error",
        /// 401: the credentials are renewed and the write is repeated.
        Unauthorized = "unauthorized",
        /// 409 Conflict: a precondition failed because of another writer.
        Conflict = "conflict",
        /// An answer that could not be read.
        BadAnswer = "bad_answer",
        /// An answer that is not an API server's or not one to this request, such as a proxy's page or a redirect.
        NotApiserver = "not_apiserver",
    }
}

impl Fault {
    /// Whether the upstream has answered, and not accepted the request.
    pub const fn is_answer(self) -> bool {
        match self {
            Self::Overloaded | Self::ServerError | Self::Conflict => true,
            Self::Transport | Self::Timeout | Self::Unauthorized | Self::BadAnswer | Self::NotApiserver => false,
        }
    }
}
