//! Acknowledgement: when a request is answered, and the wait for the spool.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;

use super::rejection::Rejection;
use super::{Ack, Ingest, Unable, respond};
use crate::ledger::RejectReason;
use crate::status::Status;

/// Header that selects the acknowledgement.
const ACK: HeaderName = HeaderName::from_static("eventweir-ack");

/// Warning for an event that is accepted but not in the spool. A refusal would have it counted twice.
const UNKEPT: &str = "the event was accepted, but could not be made durable";

/// Returns the acknowledgement that a request asks for. Refuses, before anything is counted, one that is not available.
pub(super) fn wanted(ingest: &Ingest, headers: &HeaderMap) -> Result<Ack, Rejection> {
    let ack = match headers.get(ACK).map(HeaderValue::as_bytes) {
        Some(b"accepted") => Ack::Accepted,
        Some(b"durable") => Ack::Durable,
        Some(b"written") => Ack::Written,
        // A misspelt value must not weaken the acknowledgement.
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            let message = format!("Eventweir-Ack: {other:?} is not allowed; allowed: accepted, durable, written");
            return Err(Rejection::invalid(Status::bad_request(message)));
        }
        None => ingest.0.settings.ack,
    };
    match (ack, &ingest.0.shared.spool) {
        (Ack::Durable, None) => {
            let status = Status::bad_request("Eventweir-Ack: durable needs a spool (spool.dir), and there is none");
            Err(Rejection::invalid(status))
        }
        // 429, because client-go retries it and gives up on all other codes.
        (Ack::Durable, Some(spool)) if spool.is_degraded() => {
            let status = Status::too_many_requests("the spool cannot store the event now, please try again later", 1);
            Err(Rejection { unable: Some(Unable), ..Rejection::new(RejectReason::NotDurable, status) })
        }
        (ack, _) => Ok(ack),
    }
}

/// Waits until the spool has a record as a client has deleted or replaced it, so that no crash restores its earlier
/// state.
pub(super) async fn followed(ingest: &Ingest) {
    // A degraded spool keeps its last state for an unknown time.
    let Some(spool) = ingest.0.shared.spool.as_ref().filter(|spool| !spool.is_degraded()) else { return };
    // LIMIT: the request timeout; the upstream has deleted or replaced the record in any case.
    let _in_time = tokio::time::timeout(ingest.0.settings.request_timeout, spool.durable()).await;
}

/// Returns an answer once what it acknowledges is as durable as its client has asked for; otherwise with a warning.
pub(super) async fn once_kept(ingest: &Ingest, ack: Ack, mut response: Response) -> Response {
    if let Some(unkept) = kept(ingest, ack).await {
        respond::warn(&mut response, &unkept);
    }
    response
}

/// Waits until an accepted event is as durable as its client has asked for; otherwise returns a warning.
pub(super) async fn kept(ingest: &Ingest, ack: Ack) -> Option<String> {
    let (Ack::Durable, Some(spool)) = (ack, &ingest.0.shared.spool) else { return None };
    // LIMIT: the request timeout.
    let durable = tokio::time::timeout(ingest.0.settings.request_timeout, spool.durable()).await;
    (durable != Ok(true)).then(|| UNKEPT.to_owned())
}
