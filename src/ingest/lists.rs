//! Limits of lists in memory: those that are made, and those that wait for their clients.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::body::HttpBody as _;
use axum::http::Method;
use axum::response::Response;
use http_body_util::BodyExt as _;
use smol_str::SmolStr;
use tokio::time::timeout;

use super::negotiate::AnswerFormat;
use super::{Ingest, respond};
use crate::access::{Access, FairQueue, Fairness, Turn};
use crate::event::json::EventList;
use crate::status::Status;

/// Bytes of a long answer, which is refused if too many of them wait.
const LONG: u64 = 64 << 10;
/// Bytes of an answer above which it counts. Shorter ones take no more memory than their request.
const SHORT: u64 = 4 << 10;
/// LIMIT: bytes of answers that wait for their clients, except long ones to a GET. A change was made, so its answer is
/// not refused, but further requests are: at all of these bytes, or of a known caller that has half of them. Requests that
/// run meanwhile add their answers.
pub(super) const ANSWER_BYTES: NonZeroUsize = NonZeroUsize::new(16 << 20).unwrap();

/// The turn in which a list was made, among the extensions of its answer, until that counts.
#[derive(Debug, Clone)]
struct Made(Arc<Turn>);

/// The caller of a request, among the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct CallerName(pub(super) SmolStr);

impl Ingest {
    /// Waits until a caller may have another list made; an empty name stands for all whose name is not known.
    pub(super) async fn list_turn(&self, caller: &str) -> Result<Turn, Status> {
        let turn = timeout(self.0.settings.request_timeout, self.0.lists.take(&caller.into())).await;
        turn.ok().and_then(Result::ok).ok_or_else(too_many)
    }

    /// Encodes a list. YAML of a long one takes seconds, so it is encoded on a thread for blocking work, in the turn in
    /// which it was read. The turn ends when the answer is compressed and counts.
    pub(super) async fn encoded(&self, turn: Turn, format: AnswerFormat, list: EventList) -> Response {
        let encoding = tokio::task::spawn_blocking(move || {
            let mut response = respond::list(format, &list);
            response.extensions_mut().insert(Made(Arc::new(turn)));
            response
        });
        let failed =
            |error: tokio::task::JoinError| respond::refusal(&Status::new(500, "InternalError", error.to_string()));
        encoding.await.unwrap_or_else(failed)
    }

    /// Counts an answer until its client has taken it. Refuses a long one to a GET if too many bytes wait already.
    pub(super) async fn counted_until_read(&self, method: &Method, mut response: Response) -> Response {
        let _until_it_counts = response.extensions_mut().remove::<Made>().map(|Made(turn)| turn);
        let Some(size) = counted(&response) else { return response };
        let caller = response.extensions().get().map_or("", |CallerName(name)| name);
        let place = if *method == Method::GET && size > LONG {
            let Some(place) = self.0.list_bytes.take(caller, size) else { return respond::refusal(&too_many()) };
            place
        } else {
            self.0.answer_bytes.force(caller, size)
        };
        let (parts, body) = response.into_parts();
        match body.collect().await {
            Ok(whole) => Response::from_parts(parts, place.hold(whole.to_bytes())),
            Err(_) => respond::refusal(&Status::new(500, "InternalError", "the answer broke off")),
        }
    }
}

/// Creates the queue of lists. Without authentication all callers have the same name.
pub(super) fn turns(access: &Access, max_in_flight: NonZeroUsize) -> FairQueue {
    let caller_percent = if access.authenticates() { 50 } else { 100 };
    FairQueue::unshown(Fairness { max_in_flight, caller_percent, ..Fairness::default() })
}

/// Returns the size of an answer that counts until its client has taken it.
pub(super) fn counted(response: &Response) -> Option<u64> {
    response.body().size_hint().exact().filter(|size| *size > SHORT)
}

fn too_many() -> Status {
    Status::too_many_requests("Too many lists wait for their clients, please try again later", 1)
}
