//! Changes of events that run to their end, whatever their clients do.

use std::num::NonZeroUsize;
use std::sync::Arc;

use axum::body::Bytes;

use super::Ingest;
use crate::access::Turn;
use crate::status::Status;

/// LIMIT: changes in progress for callers that are not known; further ones are refused with 429. Those of known callers
/// have places of `fairness`.
pub(super) const CHANGES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

impl Ingest {
    /// Runs a task to completion even if its client disconnects, because its effect upstream must be followed here. Until
    /// then it keeps the request's place among the running ones, and those of its body.
    ///
    /// # Errors
    /// The task's. 429 if the caller is not known, and too many tasks run for such callers.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        turn: Option<Arc<Turn>>,
        body: Bytes,
        task: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let place = match turn {
            Some(_) => None,
            None => Some(self.0.changes.take("", 1).ok_or_else(too_many)?),
        };
        let task = async move {
            let _until_the_end = (turn, place, body);
            task.await
        };
        let ended = self.0.shared.tasks.spawn(task).await;
        ended.unwrap_or_else(|error| Err(Status::new(500, "InternalError", error.to_string())))
    }
}

fn too_many() -> Status {
    Status::too_many_requests("Too many requests: too many changes are in progress, please try again later", 1)
}
