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

use super::negotiate::AnswerFormat;
use super::rejection::Rejection;
use super::request_head::RequestHead;
use super::{Ingest, apply, decode, options, respond};
use crate::access::{Extent, check_operations, check_removals};
use crate::event::Event;
use crate::event::json::{self, FieldValidation};
use crate::event::patching::PatchType;
use crate::ledger::RejectReason;
use crate::outbox::Line;
use crate::status::{Status, StatusDetails};
use crate::upstream::{ClientPatch, WriteOptions};
use growth::Meaning;

/// `PATCH …/namespaces/{namespace}/events/{name}`
pub(super) async fn patch(State(ingest): State<Ingest>, head: RequestHead, body: Body) -> Result<Response, Status> {
    if apply::is_apply(decode::media_type(&head.headers)) {
        return Ok(apply::apply(&ingest, &head, body).await.into_response());
    }
    let RequestHead { group, namespace, name, .. } = &head;
    let correlates = correlates(&ingest, namespace, name);
    if correlates {
        head.check_sender()?;
    }
    let (format, patch, options, body) = match read(&ingest, &head, body).await {
        Ok(read) => read,
        // A possible occurrence.
        Err(rejection) if correlates && !options::is_dry_run(head.query()) => {
            return Ok(growth::reject(&ingest, ingest.0.aliases.get(namespace, name).as_ref(), &rejection));
        }
        Err(rejection) => return Err(rejection.into()),
    };
    // client-go sends an empty patch for an event that it receives with a count, and expects a 404.
    if correlates && patch.body.is_empty() && ingest.0.aliases.get(namespace, name).is_none() {
        return Err(Status::not_found(group.name(), "events", name));
    }
    let meaning = if correlates && !options.dry_run {
        growth::meaning(patch.patch_type, *group, &patch.body)
    } else {
        Meaning::Plain
    };
    if meaning != Meaning::Plain
        && let Some(refusal) = ingest.passed_on(&head).await
    {
        return Ok(refusal);
    }
    match meaning {
        Meaning::Growth(grown) => Ok(growth::grow(&ingest, &head, format, &grown).await),
        Meaning::Whole(document) => {
            Ok(growth::upsert(&ingest, &head, format, &patch, &document, options.validation).await)
        }
        Meaning::Plain => {
            let is_dry = options.dry_run;
            let note = |status: &Status| {
                if let Some(posted) = ingest.0.aliases.get(namespace, name).filter(|_| !is_dry) {
                    ingest.note_refused_change(&posted, "PATCH", status);
                }
            };
            passes(&ingest, &head, &patch, is_dry).await.map_err(Status::from).inspect_err(note)?;
            let patching = {
                let (ingest, namespace, name) = (ingest.clone(), namespace.clone(), name.clone());
                async move { plain::apply(&ingest, &namespace, &name, patch, options).await }
            };
            let patched = ingest.to_the_end(head.turn.clone(), body, patching).await.inspect_err(note)?;
            Ok(respond::warned(respond::event(format, StatusCode::OK, &patched.event, None), &patched.warnings))
        }
    }
}

/// Checks that a plain patch neither changes an event of a foreign source nor sets one, and takes tokens of the rate limits.
async fn passes(ingest: &Ingest, head: &RequestHead, patch: &ClientPatch, dry_run: bool) -> Result<(), Rejection> {
    let RequestHead { group, namespace, name, .. } = head;
    let caller = head.caller.as_ref();
    if let Some(caller) = caller.filter(|_| ingest.binds(head.caller.as_ref())) {
        // The upstream may accept what cannot be read here, such as an array that is nested 128 deep.
        let document = serde_json::from_slice(&patch.body).map_err(|fault| unreadable(&fault))?;
        let checked = if patch.patch_type == PatchType::Json {
            check_operations(caller, *group, name, &document)
        } else {
            let decoded = json::decode(*group, &patch.body, FieldValidation::Ignore);
            let event = decoded.map_err(Rejection::invalid)?.event;
            ingest.check_source(Some(caller), *group, &event, Extent::Part)?;
            check_removals(caller, *group, name, &document)
        };
        checked.map_err(|status| Rejection::new(RejectReason::Denied, status))?;
    }
    ingest.check_changed(caller, (*group, namespace, name)).await?;
    if dry_run { Ok(()) } else { ingest.limit(caller, namespace, ingest.0.aliases.get(namespace, name).as_ref()) }
}

/// Whether the event of this name is correlated. For an unknown name only the namespace decides.
fn correlates(ingest: &Ingest, namespace: &str, name: &str) -> bool {
    let event = ingest.0.aliases.get(namespace, name).unwrap_or_else(|| {
        let mut event = Event::default();
        event.metadata.namespace = namespace.into();
        event
    });
    ingest.0.shards.correlates(&event)
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
async fn read(
    ingest: &Ingest,
    head: &RequestHead,
    body: Body,
) -> Result<(AnswerFormat, ClientPatch, WriteOptions, Bytes), Rejection> {
    let media_type = decode::media_type(&head.headers);
    let Some(patch_type) = PatchType::named(media_type) else {
        let accepted = "application/json-patch+json, application/merge-patch+json, \
                        application/strategic-merge-patch+json, application/apply-patch+yaml";
        let status = decode::unknown_format("patch", media_type, accepted);
        return Err(Rejection::new(RejectReason::MediaType, status.with_details(StatusDetails::default())));
    };
    let format = head.format(ingest)?;
    let body = decode::read(body, &ingest.0.settings, (&ingest.0.bodies, head.user())).await?;
    let too_large = |status| Rejection::new(RejectReason::TooLarge, status);
    json::check_values(&body).map_err(too_large)?;
    let repaired = match json::repaired(&body) {
        Cow::Owned(text) => Some(text),
        Cow::Borrowed(_) => None,
    };
    let patch = ClientPatch { patch_type, body: repaired.map_or_else(|| body.clone(), Bytes::from) };
    let options::Options { validation, dry_run } = options::of_patch(head.query()).map_err(Rejection::invalid)?;
    let options = WriteOptions { dry_run, validation, ..head.write_options() };
    Ok((format, patch, options, body))
}
