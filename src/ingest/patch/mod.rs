//! PATCH: separates occurrences from changes.
//!
//! If the event is correlated, growth of its count or series is new occurrences (`growth`). Any other patch changes an
//! event (`plain`), and so does every patch of an event that is not correlated.

mod growth;
mod plain;

use std::borrow::Cow;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

use super::asked::Asked;
use super::form::Form;
use super::rejection::Rejection;
use super::{Face, apply, decode, options, respond};
use crate::access::{Extent, check_operations, check_removals};
use crate::event::Event;
use crate::event::json::{self, FieldValidation};
use crate::event::patching::PatchType;
use crate::ledger::RejectReason;
use crate::outbox::Line;
use crate::status::{Status, StatusDetails};
use crate::upstream::{ClientPatch, PatchOptions};
use growth::Meaning;

/// `PATCH …/namespaces/{namespace}/events/{name}`
pub(super) async fn patch(State(face): State<Face>, asked: Asked, body: Body) -> Result<Response, Status> {
    if apply::is_apply(decode::media_type(&asked.headers)) {
        return Ok(apply::apply(&face, &asked, body).await.into_response());
    }
    let Asked { group, namespace, name, .. } = &asked;
    let correlates = correlates(&face, namespace, name);
    if correlates {
        asked.check_sender()?;
    }
    let (form, patch, options, body) = match read(&face, &asked, body).await {
        Ok(read) => read,
        // A possible occurrence.
        Err(rejection) if correlates && !options::is_dry_run(asked.query()) => {
            return Ok(growth::reject(&face, face.0.aliases.get(namespace, name).as_ref(), &rejection));
        }
        Err(rejection) => return Err(rejection.into()),
    };
    // client-go sends an empty patch for an event that it receives with a count, and expects a 404.
    if correlates && patch.body.is_empty() && face.0.aliases.get(namespace, name).is_none() {
        return Err(Status::not_found(group.name(), "events", name));
    }
    let meaning = if correlates && !options.dry_run {
        growth::meaning(patch.patch_type, *group, &patch.body)
    } else {
        Meaning::Plain
    };
    match meaning {
        Meaning::Growth(grown) => Ok(growth::grow(&face, &asked, form, &grown).await),
        Meaning::Whole(document) => {
            Ok(growth::upsert(&face, &asked, form, &patch, &document, options.validation).await)
        }
        Meaning::Plain => {
            let is_dry = options.dry_run;
            let note = |status: &Status| {
                if let Some(told) = face.0.aliases.get(namespace, name).filter(|_| !is_dry) {
                    face.note_refused_change(&told, "PATCH", status);
                }
            };
            passes(&face, &asked, &patch, is_dry).await.map_err(Status::from).inspect_err(note)?;
            let patching = {
                let (face, namespace, name) = (face.clone(), namespace.clone(), name.clone());
                async move { plain::apply(&face, &namespace, &name, patch, options).await }
            };
            let patched = face.to_the_end(asked.turn.clone(), body, patching).await.inspect_err(note)?;
            Ok(respond::warned(respond::event(form, StatusCode::OK, &patched.event, None), &patched.warnings))
        }
    }
}

/// Checks that a plain patch neither changes an event of a foreign source nor sets one, and takes tokens of the rate limits.
async fn passes(face: &Face, asked: &Asked, patch: &ClientPatch, dry_run: bool) -> Result<(), Rejection> {
    let Asked { group, namespace, name, .. } = asked;
    let caller = asked.caller.as_ref();
    if let Some(caller) = caller.filter(|_| face.binds(asked.caller.as_ref())) {
        // The upstream may accept what cannot be read here, such as an array that is nested 128 deep.
        let document = serde_json::from_slice(&patch.body).map_err(|fault| unreadable(&fault))?;
        let checked = if patch.patch_type == PatchType::Json {
            check_operations(caller, *group, name, &document)
        } else {
            let decoded = json::decode(*group, &patch.body, FieldValidation::Ignore);
            let event = decoded.map_err(Rejection::invalid)?.event;
            face.check_source(Some(caller), *group, &event, Extent::Part)?;
            check_removals(caller, *group, name, &document)
        };
        checked.map_err(|status| Rejection::new(RejectReason::Denied, status))?;
    }
    face.check_changed(caller, (*group, namespace, name)).await?;
    if dry_run { Ok(()) } else { face.limit(caller, namespace, face.0.aliases.get(namespace, name).as_ref()) }
}

/// Whether the event of this name is correlated. For an unknown name only the namespace decides.
fn correlates(face: &Face, namespace: &str, name: &str) -> bool {
    let event = face.0.aliases.get(namespace, name).unwrap_or_else(|| {
        let mut event = Event::default();
        event.metadata.namespace = namespace.into();
        event
    });
    face.0.shards.correlates(&event)
}

/// Returns whether a patch of this media type sets the count or the series.
pub(super) fn line_of(media: &str, body: &Bytes) -> Line {
    match PatchType::named(media) {
        Some(_) if json::check_values(body).is_err() => Line::Unstated,
        Some(patch_type) => plain::stated(&ClientPatch { patch_type, body: body.clone() }).0,
        None => apply::line_of(body),
    }
}

fn unreadable(fault: &serde_json::Error) -> Rejection {
    Rejection::new(RejectReason::Malformed, Status::bad_request(format!("the patch cannot be read: {fault}")))
}

/// Reads the request, checked in the apiserver's order. Repairs text in the patch as Go's decoder does.
/// Also returns the body as it came, which counts until its last clone is dropped.
async fn read(face: &Face, asked: &Asked, body: Body) -> Result<(Form, ClientPatch, PatchOptions, Bytes), Rejection> {
    let media_type = decode::media_type(&asked.headers);
    let Some(patch_type) = PatchType::named(media_type) else {
        let accepted = "application/json-patch+json, application/merge-patch+json, \
                        application/strategic-merge-patch+json, application/apply-patch+yaml";
        let status = decode::unknown_format("patch", media_type, accepted);
        return Err(Rejection::new(RejectReason::MediaType, status.with_details(StatusDetails::default())));
    };
    let form = asked.form(face)?;
    let body = decode::read(body, &face.0.settings, (&face.0.bodies, asked.user())).await?;
    let too_large = |status| Rejection::new(RejectReason::TooLarge, status);
    json::check_values(&body).map_err(too_large)?;
    let repaired = match json::repaired(&body) {
        Cow::Owned(text) => Some(text),
        Cow::Borrowed(_) => None,
    };
    let patch = ClientPatch { patch_type, body: repaired.map_or_else(|| body.clone(), Bytes::from) };
    let options::Options { validation, dry_run } = options::of_patch(asked.query()).map_err(Rejection::invalid)?;
    let options = PatchOptions { writer: asked.writer(), dry_run, validation };
    Ok((form, patch, options, body))
}
