//! Limits of lists in memory: those that are made, and those that wait for their clients.

use std::collections::HashMap;

use axum::body::HttpBody as _;
use axum::response::Response;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use smol_str::SmolStr;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::{Face, respond};
use crate::server::{Place, Places};
use crate::status::Status;

/// LIMIT: lists that are read from the upstream and encoded at once; further ones wait, at most for the request
/// timeout.
pub(super) const LISTS: usize = 4;
/// Bytes of an answer above which it counts. The limit of connections bounds shorter ones.
const LONG: u64 = 64 << 10;

/// Limits of lists and long answers.
#[derive(Debug)]
pub(super) struct Answers {
    lists: Semaphore,
    // LIMIT: `max_list_bytes`; beyond it a long answer is replaced by 429. One that is longer needs all of them.
    bytes: Places,
    /// The part of each caller, which is half of `bytes`: a client may read for hours.
    // LIMIT: callers with answers that wait.
    parts: Mutex<HashMap<SmolStr, Places>>,
}

/// The caller of a request, among the extensions of its answer.
#[derive(Debug, Clone)]
pub(super) struct CallerName(pub(super) SmolStr);

impl Answers {
    pub(super) fn new(bytes: Places) -> Self {
        Self { lists: Semaphore::const_new(LISTS), bytes, parts: Mutex::default() }
    }

    /// Takes places for an answer of `size` bytes, of all and of the caller's part.
    fn take(&self, caller: Option<&CallerName>, size: u64) -> Option<(Place, Option<Place>)> {
        let mut parts = self.parts.lock();
        parts.retain(|_, part| !part.are_free());
        let own = match caller {
            Some(CallerName(name)) => {
                let part = parts.entry(name.clone()).or_insert_with(|| self.bytes.half());
                Some(part.take_many(size)?)
            }
            None => None,
        };
        Some((self.bytes.take_many(size)?, own))
    }
}

impl Face {
    /// Waits until another list may be made.
    pub(super) async fn list_turn(&self) -> Result<SemaphorePermit<'_>, Status> {
        let turn = timeout(self.0.settings.request_timeout, self.0.answers.lists.acquire()).await;
        turn.ok().and_then(Result::ok).ok_or_else(too_many)
    }

    /// Counts a long answer until its client has taken it. Refuses it if too many bytes wait already.
    pub(super) async fn counted_until_read(&self, response: Response) -> Response {
        let Some(size) = response.body().size_hint().exact().filter(|size| *size > LONG) else { return response };
        let caller = response.extensions().get::<CallerName>();
        let Some((place, own)) = self.0.answers.take(caller, size) else { return respond::refusal(&too_many()) };
        let (parts, body) = response.into_parts();
        match body.collect().await {
            Ok(whole) => Response::from_parts(parts, place.hold(whole.to_bytes(), own)),
            Err(_) => respond::refusal(&Status::new(500, "InternalError", "the answer broke off")),
        }
    }
}

fn too_many() -> Status {
    Status::too_many_requests("Too many lists wait for their clients, please try again later", 1)
}

#[cfg(test)]
mod tests {
    use prometheus::IntGauge;

    use super::*;

    /// Fault: two connections that read 16 KiB a minute kept every other client's list out for hours.
    #[test]
    fn a_caller_has_half_of_the_bytes() {
        let most = std::num::NonZeroUsize::new(100).unwrap();
        let answers = Answers::new(Places::new(most, IntGauge::new("bytes", "a test's").unwrap()));
        let take = |caller: &str, size| answers.take(Some(&CallerName(caller.into())), size);
        let (first, second) = (take("a", 30).unwrap(), take("a", 20).unwrap());
        assert!(take("a", 1).is_none());
        let other = take("b", 50).unwrap();
        assert!(answers.take(None, 1).is_none());
        drop((first, second));
        let long = take("a", 500);
        assert!(long.is_none() && answers.take(None, 50).is_some(), "it needs all");
        drop(other);
        assert!(take("c", 500).is_some());
        assert!(answers.parts.lock().len() <= 3);
    }
}
