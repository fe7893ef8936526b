//! A change of a record that a client asks for and eventweir may not make: a DELETE, a PUT or an apply. Pass-through sends
//! it on with the client's own rights. The record stays paused until the API server has answered: otherwise its next
//! write would create the deleted event again, or add occurrences that the PUT includes.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;

use super::rejection::Rejection;
use super::{Face, ack, respond};
use crate::outbox::Line;
use crate::shard::Held;
use crate::status::Status;

/// The record of a refused change, in the extensions of the refusal. Dropped, the record continues.
#[derive(Debug, Clone)]
pub struct Undone(Arc<Mutex<Option<Left>>>);

/// What a refused change does with the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Delete,
    /// Sets its state. `total` is the total that the client states.
    Set {
        line: Line,
        total: Option<i64>,
    },
}

/// Marks the refusal of a change of an event that counts on a record with another name. The API server has no event of
/// the name that the client knows, and a PUT would create one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elsewhere;

#[derive(Debug)]
struct Left {
    held: Held,
    face: Face,
    namespace: String,
    name: String,
    effect: Effect,
}

impl Undone {
    pub(super) fn new(face: &Face, held: Held, (namespace, name): (&str, &str), effect: Effect) -> Self {
        let (face, namespace, name) = (face.clone(), namespace.to_owned(), name.to_owned());
        Self(Arc::new(Mutex::new(Some(Left { held, face, namespace, name, effect }))))
    }

    /// Returns the record for another try of the change.
    #[must_use]
    pub fn retried(&self) -> Retried {
        Retried(self.0.lock().take())
    }
}

/// A record whose change is tried again. Dropped without an answer, it may be deleted.
#[derive(Debug)]
pub struct Retried(Option<Left>);

impl Retried {
    /// Ends the pause after an answer to the change with this code.
    pub async fn end(mut self, code: StatusCode) {
        let is_in_doubt = code == StatusCode::REQUEST_TIMEOUT || code.is_server_error();
        if is_in_doubt && self.0.as_ref().is_some_and(|left| left.effect == Effect::Delete) {
            return;
        }
        let Some(Left { held, face, namespace, name, effect }) = self.0.take() else { return };
        match effect {
            Effect::Delete if code.is_success() || code == StatusCode::NOT_FOUND => {
                held.forget();
                face.0.aliases.remove(&namespace, &name);
            }
            Effect::Set { total, .. } if is_in_doubt => {
                let status = Status::new(code.as_u16(), "", "");
                return face.doubt(held, (&namespace, &name), total, &status).await;
            }
            Effect::Set { line, .. } if code.is_success() => {
                // Unread, the record continues, as after a change by another writer.
                let Ok(stored) = face.0.upstream.get(&namespace, &name).await else { return };
                let created = (code == StatusCode::CREATED && line == Line::Stated).then_some(Line::Created);
                if line == Line::Unstated {
                    face.0.aliases.relabel(&namespace, &name, &stored, line);
                } else {
                    face.0.aliases.insert(&stored);
                }
                held.follow(&stored, created.unwrap_or(line));
            }
            Effect::Delete | Effect::Set { .. } => return,
        }
        ack::followed(&face).await;
    }
}

impl Drop for Retried {
    fn drop(&mut self) {
        if let Some(left) = self.0.take().filter(|left| left.effect == Effect::Delete) {
            left.held.doubt();
        }
    }
}

/// A refusal of a change, with the record that it has left.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: Status,
    pub(super) left: Option<Undone>,
    pub(super) elsewhere: Option<Elsewhere>,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self { status, left: None, elsewhere: None }
    }
}

impl From<Box<Status>> for Refusal {
    fn from(status: Box<Status>) -> Self {
        (*status).into()
    }
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Self {
        rejection.status.into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = respond::refusal(&self.status);
        if let Some(left) = self.left {
            response.extensions_mut().insert(left);
        }
        if let Some(elsewhere) = self.elsewhere {
            response.extensions_mut().insert(elsewhere);
        }
        response
    }
}
