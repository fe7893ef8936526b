//! Limits of lists in memory: those that are made, and those that wait for their clients.

use std::num::NonZeroUsize;

use axum::body::HttpBody as _;
use axum::http::Method;
use axum::response::Response;
use http_body_util::BodyExt as _;
use smol_str::SmolStr;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::{Face, respond};
use crate::status::Status;

/// LIMIT: lists that are read from the upstream and encoded at once; further ones wait, at most for the request
/// timeout.
pub(super) const LISTS: usize = 4;
/// Bytes of a long answer, which is refused if too many of them wait.
const LONG: u64 = 64 << 10;
/// Bytes of an answer above which it counts. Shorter ones take no more memory than their request.
const SHORT: u64 = 4 << 10;
/// LIMIT: bytes of answers that wait for their clients, except long ones to a GET. A change was made, so its answer is
/// not refused, but further requests of a caller that has half of these bytes are.
pub(super) const ANSWER_BYTES: NonZeroUsize = NonZeroUsize::new(16 << 20).unwrap();

/// The caller of a request, among the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct CallerName(pub(super) SmolStr);

impl Face {
    /// Waits until another list may be made.
    pub(super) async fn list_turn(&self) -> Result<SemaphorePermit<'_>, Status> {
        let turn = timeout(self.0.settings.request_timeout, self.0.lists.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(too_many)
    }

    /// Counts an answer until its client has taken it. Refuses a long one to a GET if too many bytes wait already.
    pub(super) async fn counted_until_read(&self, method: &Method, response: Response) -> Response {
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

/// Returns the size of an answer that counts until its client has taken it.
pub(super) fn counted(response: &Response) -> Option<u64> {
    response.body().size_hint().exact().filter(|size| *size > SHORT)
}

fn too_many() -> Status {
    Status::too_many_requests("Too many lists wait for their clients, please try again later", 1)
}
