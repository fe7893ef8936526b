//! Limits of lists in memory: those that are made, and those that wait for their clients.

use axum::body::HttpBody as _;
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
/// Bytes of an answer above which it counts. The limit of connections bounds shorter ones.
const LONG: u64 = 64 << 10;

/// The caller of a request, among the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct CallerName(pub(super) SmolStr);

impl Face {
    /// Waits until another list may be made.
    pub(super) async fn list_turn(&self) -> Result<SemaphorePermit<'_>, Status> {
        let turn = timeout(self.0.settings.request_timeout, self.0.lists.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(too_many)
    }

    /// Counts a long answer until its client has taken it. Refuses it if too many bytes wait already.
    pub(super) async fn counted_until_read(&self, response: Response) -> Response {
        let Some(size) = response.body().size_hint().exact().filter(|size| *size > LONG) else { return response };
        let caller = response.extensions().get().map_or("", |CallerName(name)| name);
        let Some(place) = self.0.list_bytes.take(caller, size) else { return respond::refusal(&too_many()) };
        let (parts, body) = response.into_parts();
        match body.collect().await {
            Ok(whole) => Response::from_parts(parts, place.hold(whole.to_bytes())),
            Err(_) => respond::refusal(&Status::new(500, "InternalError", "the answer broke off")),
        }
    }
}

fn too_many() -> Status {
    Status::too_many_requests("Too many lists wait for their clients, please try again later", 1)
}
