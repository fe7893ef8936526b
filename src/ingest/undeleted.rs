//! A record that a client deletes and eventweir may not delete. Pass-through sends the DELETE on with the client's own
//! rights. The record stays paused until the API server has answered: otherwise its next write would create the deleted
//! event again.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;

use super::{Face, ack, respond};
use crate::shard::Held;
use crate::status::Status;

/// The record of a refused DELETE, in the extensions of the refusal. Dropped, the record continues.
#[derive(Debug, Clone)]
pub struct Undeleted(Arc<Mutex<Option<Left>>>);

#[derive(Debug)]
struct Left {
    held: Held,
    face: Face,
    namespace: String,
    name: String,
}

impl Undeleted {
    pub(super) fn new(face: &Face, held: Held, namespace: &str, name: &str) -> Self {
        let (face, namespace, name) = (face.clone(), namespace.to_owned(), name.to_owned());
        Self(Arc::new(Mutex::new(Some(Left { held, face, namespace, name }))))
    }

    /// Returns the record for another try of the DELETE.
    #[must_use]
    pub fn retried(&self) -> Retried {
        Retried(self.0.lock().take())
    }
}

/// A record whose DELETE is tried again. Dropped without an answer, it may be deleted.
#[derive(Debug)]
pub struct Retried(Option<Left>);

impl Retried {
    /// Ends the pause after an answer to the DELETE with this code.
    pub async fn end(mut self, code: StatusCode) {
        if code == StatusCode::REQUEST_TIMEOUT || code.is_server_error() {
            return;
        }
        let is_gone = code.is_success() || code == StatusCode::NOT_FOUND;
        let Some(Left { held, face, namespace, name }) = self.0.take().filter(|_| is_gone) else { return };
        held.forget();
        face.0.aliases.remove(&namespace, &name);
        ack::followed(&face).await;
    }
}

impl Drop for Retried {
    fn drop(&mut self) {
        if let Some(left) = self.0.take() {
            left.held.doubt();
        }
    }
}

/// A refusal of a DELETE, with the record that it has left.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) left: Option<Undeleted>,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, left: None }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = respond::refusal(&self.status);
        if let Some(left) = self.left {
            response.extensions_mut().insert(left);
        }
        response
    }
}
