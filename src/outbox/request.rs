//! What the outbox asks of the upstream, and the sorted answers it understands. Plain values.

use std::time::Duration;

use smol_str::SmolStr;

use super::tag::Claim;
use crate::correlator::{Patch, RecordId};
use crate::event::{ApiGroup, Event};
use crate::ledger::RefusalReason;
use crate::status::Status;

/// One request owed to the upstream for one record.
#[derive(Debug, Clone, PartialEq)]
pub struct Write {
    /// The record it is for; handed back with the answer.
    pub record: RecordId,
    /// What to ask.
    pub request: Request,
}

/// The requests a record can need.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// POST of the whole event.
    Create {
        /// The API group to ask.
        group: ApiGroup,
        /// The event as that group takes it; `metadata.resourceVersion` is empty.
        event: Box<Event>,
    },
    /// Strategic merge PATCH.
    Patch {
        /// The API group to ask. Through events.k8s.io/v1 the patch's count and time move the series, and its message stays
        /// behind: nothing else may change there.
        group: ApiGroup,
        /// Namespace of the record.
        namespace: SmolStr,
        /// Name of the record upstream.
        name: SmolStr,
        /// What to change.
        patch: Patch,
        /// What lets it count exactly once; `None` without lost answers and other writers.
        claim: Option<Box<Claim>>,
    },
    /// GET of a record whose create was answered "already exists".
    Read {
        /// The API group to ask.
        group: ApiGroup,
        /// Namespace of the record.
        namespace: SmolStr,
        /// Name in question.
        name: SmolStr,
    },
    /// DELETE of what a client has deleted before it arrived.
    Delete {
        /// The API group to ask.
        group: ApiGroup,
        /// Namespace of the record.
        namespace: SmolStr,
        /// Its name.
        name: SmolStr,
        /// The version that was read.
        resource_version: SmolStr,
    },
}

/// What the upstream's reply means for the record.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The write was stored, or the read found this.
    Stored(Box<Event>),
    /// A patch or read of an event that is not there (any more): create it.
    Missing,
    /// A create of a name that is taken: read it, then adopt or rename.
    Exists,
    /// Final: repeating would not help.
    Refused(Refusal),
    /// Worth repeating.
    Retry(Retry),
}

/// A final refusal by the upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The reason under which its occurrences are counted as lost.
    pub reason: RefusalReason,
    /// The upstream's own words, for the log and for a client that waits for them.
    pub status: Box<Status>,
}

/// A write worth repeating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// The upstream's `Retry-After`, if it named one.
    pub after: Option<Duration>,
    /// Whether the write may have been applied although no good answer came: a timeout, a lost connection, a 5xx.
    pub applied: Applied,
    /// What went wrong.
    pub fault: Fault,
}

/// Whether an unacknowledged write may have reached the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// Certainly not: refused before it was looked at (429, 401, no connection).
    No,
    /// Unknown: a timeout, a lost connection, a 5xx.
    Perhaps,
}

labelled! {
    /// The kind of a passing fault.
    pub enum Fault {
        /// No connection, connection lost, TLS failure.
        Transport = "transport",
        /// No answer within the request's deadline, or 504.
        Timeout = "timeout",
        /// 429.
        Overloaded = "overloaded",
        /// 5xx other than those that are final.
        ServerError = "server_error",
        /// 401: credentials are renewed and the write repeated.
        Unauthorized = "unauthorized",
        /// 409 Conflict: a precondition failed because of another writer.
        Conflict = "conflict",
        /// An answer that could not be read.
        BadAnswer = "bad_answer",
        /// An answer that is no apiserver's, or does not fit what was asked: a page of a proxy, a redirect.
        NotApiserver = "not_apiserver",
    }
}
