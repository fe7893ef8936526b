//! A change of a record that a client asks for and eventweir does not make: a DELETE, a PUT or a PATCH. Pass-through sends
//! it on with the client's own rights, and then the record follows: otherwise its next write would create the deleted
//! event again, or add occurrences that the change includes. If the API server has refused eventweir's own PUT or DELETE,
//! the record stays paused meanwhile. After other refusals it does not, because a caller without any right could keep it
//! paused.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::request::Parts;
use axum::http::{Extensions, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use smol_str::SmolStr;

use super::rejection::Rejection;
use super::request_head::RequestHead;
use super::{Ingest, QUIET, Unable, ack, apply, decode, guard, options, patch, respond};
use crate::access::Target;
use crate::event::ApiGroup;
use crate::outbox::{self, Line};
use crate::shard::{Lookup, PausedRecord};
use crate::status::Status;

/// The record of a refused change, in the extensions of the refusal. Dropped, the record continues.
#[derive(Debug, Clone)]
pub struct Undone(Arc<Mutex<Option<Left>>>);

/// What a refused change does with the event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    Delete,
    /// Sets its state. `total` is the total that the client states.
    Set {
        line: Line,
        total: Option<i64>,
    },
    /// Sets its state by a patch of this media type, which was not read.
    Unread(SmolStr),
}

/// Marks the refusal of a change that only eventweir can make. Either its event counts on a record with another name: the
/// API server has no event of the name that the client knows, and a PUT would create one. Or the client is to repeat it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept;

/// Marks a patch of an event that pass-through has sent on, and its refusal if eventweir does not count on the event:
/// then the patch is sent on as well, and no record follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedOn;

#[derive(Debug)]
struct Left {
    paused: Option<PausedRecord>,
    ingest: Ingest,
    change: Change,
}

impl Undone {
    pub(super) fn new(ingest: &Ingest, paused: Option<PausedRecord>, change: Change) -> Self {
        Self(Arc::new(Mutex::new(Some(Left { paused, ingest: ingest.clone(), change }))))
    }

    /// Whether eventweir or a replica is known to count on the event. Then the client is to repeat the change.
    pub async fn is_counted(&self) -> bool {
        let of_change = |left: &Left| (left.ingest.clone(), left.change.namespace.clone(), left.change.name.clone());
        let Some((ingest, namespace, name)) = self.0.lock().as_ref().map(of_change) else { return false };
        ingest.counts_on(&namespace, &name).await == Ok(true)
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
    /// Follows the change with this body after an answer with this code, and ends the pause.
    pub async fn end(mut self, code: StatusCode, body: &Bytes) {
        let is_in_doubt = code == StatusCode::REQUEST_TIMEOUT || code.is_server_error();
        if is_in_doubt && self.0.as_ref().is_some_and(|left| left.change.effect == Effect::Delete) {
            return;
        }
        let Some(Left { paused, ingest, change }) = self.0.take() else { return };
        let Change { group, namespace, name, effect } = change;
        let is_done = code.is_success() || (code == StatusCode::NOT_FOUND && effect == Effect::Delete);
        let paused = match paused {
            None if is_done && effect == Effect::Delete => ingest.pause_deleted(group, &namespace, &name).await,
            None if is_done => {
                let mut paused = ingest.pause(group, &namespace, &name).await.ok().flatten();
                if let Some(paused) = &mut paused {
                    // What was read includes the change.
                    paused.quiet(QUIET).await;
                }
                paused
            }
            paused => paused,
        };
        let Some(paused) = paused.filter(|paused| paused.name() == name) else { return };
        let effect = match effect {
            Effect::Unread(media) => Effect::Set { line: patch::line_of(&media, body), total: None },
            effect => effect,
        };
        match effect {
            Effect::Delete if is_done => {
                paused.forget();
                ingest.0.aliases.remove(&namespace, &name);
            }
            Effect::Set { total, .. } if is_in_doubt => {
                let status = Status::new(code.as_u16(), "", "");
                return ingest.doubt(paused, (&namespace, &name), total, &status).await;
            }
            Effect::Set { line, .. } if code.is_success() => {
                // Unread, the record continues, as after a change by another writer.
                let Ok(stored) = ingest.0.upstream.get(&namespace, &name).await else { return };
                let created = (code == StatusCode::CREATED && line == Line::Stated).then_some(Line::Created);
                ingest.0.aliases.set(&stored, paused.stated(&stored, line));
                paused.follow(&stored, created.unwrap_or(line));
            }
            Effect::Delete | Effect::Set { .. } | Effect::Unread(_) => return,
        }
        ack::followed(&ingest).await;
    }
}

impl Drop for Retried {
    fn drop(&mut self) {
        if let Some(Left { paused: Some(paused), change: Change { effect: Effect::Delete, .. }, .. }) = self.0.take() {
            paused.doubt();
        }
    }
}

#[derive(Debug)]
pub(super) struct Change {
    pub(super) group: ApiGroup,
    pub(super) namespace: SmolStr,
    pub(super) name: SmolStr,
    pub(super) effect: Effect,
}

impl Change {
    /// Returns the change that a request asks for, if it does, and without a dry run in its query.
    pub(super) fn of(head: &Parts) -> Option<Self> {
        let effect = match head.method {
            Method::DELETE => Effect::Delete,
            Method::PUT => Effect::Set { line: Line::Stated, total: None },
            Method::PATCH => Effect::Unread(decode::media_type(&head.headers).into()),
            _ => return None,
        };
        if options::is_dry_run(head.uri.query()) {
            return None;
        }
        match guard::attributes(&head.method, &head.uri).target {
            Target::Resource { group, resource: "events", namespace, name } if !name.is_empty() => {
                let group = if group.is_empty() { ApiGroup::Core } else { ApiGroup::Events };
                Some(Self { group, namespace, name, effect })
            }
            Target::Resource { .. } | Target::Path(_) => None,
        }
    }

    /// Marks a refusal of the change for pass-through.
    pub(super) fn mark(self, ingest: &Ingest, response: &mut Response) {
        let code = response.status();
        let extensions = response.extensions_mut();
        let is_marked = extensions.get::<Undone>().is_some()
            || extensions.get::<Kept>().is_some()
            || extensions.get::<PassedOn>().is_some();
        if code.is_success() || is_marked {
            return;
        }
        let Self { namespace, name, effect, .. } = &self;
        let posted = ingest.0.aliases.get(namespace, name).filter(|event| ingest.0.shards.correlates(event));
        // The client repeats it, with the total of all occurrences. After a 404 of the API server, which may have the event
        // under another name, it would post the event again, which would count once more.
        let is_repeated = code.is_server_error() || extensions.get::<Unable>().is_some();
        // After a 404 to its patch, a client posts its event.
        let posts = matches!(effect, Effect::Unread(media) if !apply::is_apply(media));
        let is_elsewhere = posted.as_ref().is_some_and(|posted| {
            let found = ingest.0.shards.find_named(posted, Lookup::Alias).filter(|found| !found.is_gone);
            found.is_some_and(|found| found.name != *name)
        });
        if posted.is_some() && is_repeated || is_elsewhere && !posts {
            extensions.insert(Kept);
            return;
        }
        extensions.insert(Undone::new(ingest, None, self));
    }
}

impl Ingest {
    /// Whether the upstream's event of this name counts occurrences of this eventweir or of a replica, or some wait for
    /// it here. The event is read with eventweir's own right, and nothing of it is shown.
    async fn counts_on(&self, namespace: &str, name: &str) -> Result<bool, Status> {
        let stored = self.0.upstream.get(namespace, name).await?;
        let waits = || self.0.shards.find_named(&stored, Lookup::Name).is_some_and(|found| found.unsettled.is_some());
        Ok(outbox::has_any_tag(&stored) || waits())
    }

    /// Returns the refusal of a patch of occurrences that is to be passed on, because its event counts those of its
    /// client only. Without the right to read the event, it is taken for such an event.
    pub(super) async fn passed_on(&self, head: &RequestHead) -> Option<Response> {
        let RequestHead { namespace, name, .. } = head;
        if !head.is_passed_on || self.0.aliases.get(namespace, name).is_some() {
            return None;
        }
        match self.counts_on(namespace, name).await {
            Ok(true) | Err(Status { code: 404, .. }) => None,
            Ok(false) | Err(_) => {
                let message = "Too many requests: the API server, which counts this event, cannot be asked now";
                let mut response = respond::refusal(&Status::too_many_requests(message, 1));
                response.extensions_mut().insert(PassedOn);
                Some(response)
            }
        }
    }
}

/// A refusal of a change, marked for pass-through: with the record that it has left, or as [`Kept`].
#[derive(Debug)]
pub(super) struct ChangeRefusal {
    pub(super) status: Status,
    pub(super) marks: Extensions,
}

impl From<Status> for ChangeRefusal {
    fn from(status: Status) -> Self {
        Self { status, marks: Extensions::new() }
    }
}

impl From<Box<Status>> for ChangeRefusal {
    fn from(status: Box<Status>) -> Self {
        (*status).into()
    }
}

impl From<Rejection> for ChangeRefusal {
    fn from(rejection: Rejection) -> Self {
        rejection.status.into()
    }
}

impl IntoResponse for ChangeRefusal {
    fn into_response(self) -> Response {
        let mut response = respond::refusal(&self.status);
        response.extensions_mut().extend(self.marks);
        response
    }
}
