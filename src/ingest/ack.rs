//! When a client is answered: what it asks for, and the wait for the spool.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::rejection::Rejection;
use super::{Ack, Face};
use crate::ledger::RejectReason;
use crate::status::Status;

/// When this request wants its answer.
const ACK: HeaderName = HeaderName::from_static("eventweir-ack");

/// What a client is told whose event is taken in but not in the spool: refusing would have it counted twice.
const UNKEPT: &str = "the event was accepted, but could not be made durable";

/// When this client wants to be answered. Refused, before anything is counted, when what it wants cannot be had.
pub(super) fn wanted(face: &Face, headers: &HeaderMap) -> Result<Ack, Rejection> {
    let ack = match headers.get(ACK).map(HeaderValue::as_bytes) {
        Some(b"accepted") => Ack::Accepted,
        Some(b"durable") => Ack::Durable,
        Some(b"written") => Ack::Written,
        // A misspelt one must not be taken for a promise.
        Some(other) => {
            let other = String::from_utf8_lossy(other);
            let message = format!("Eventweir-Ack: {other:?} is not allowed; allowed: accepted, durable, written");
            return Err(Rejection::invalid(Status::bad_request(message)));
        }
        None => face.0.settings.ack,
    };
    match (ack, &face.0.spool) {
        (Ack::Durable, None) => {
            let status = Status::bad_request("Eventweir-Ack: durable needs a spool (spool.dir), and there is none");
            Err(Rejection::invalid(status))
        }
        // 429, because client-go repeats that, and gives up on everything else.
        (Ack::Durable, Some(spool)) if spool.is_degraded() => {
            let status = Status::too_many_requests("the event cannot be made durable now, please try again later", 1);
            Err(Rejection::new(RejectReason::NotDurable, status))
        }
        (ack, _) => Ok(ack),
    }
}

/// Waits until a record that was just forgotten is out of the spool too, so that no crash brings it back.
pub(super) async fn forgotten(face: &Face) {
    // A spool that cannot be used keeps its last state, and nobody knows for how long.
    let Some(spool) = face.0.spool.as_ref().filter(|spool| !spool.is_degraded()) else { return };
    // LIMIT: the request's time; the upstream has deleted it in any case.
    let _in_time = tokio::time::timeout(face.0.settings.request_timeout, spool.durable()).await;
}

/// Waits until what was just accepted is as safe as its client wants it; otherwise says what to warn of.
pub(super) async fn kept(face: &Face, ack: Ack) -> Option<String> {
    let (Ack::Durable, Some(spool)) = (ack, &face.0.spool) else { return None };
    // LIMIT: the request's time.
    let durable = tokio::time::timeout(face.0.settings.request_timeout, spool.durable()).await;
    (durable != Ok(true)).then(|| UNKEPT.to_owned())
}
