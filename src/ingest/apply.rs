//! Server-side apply: PATCH with `application/apply-patch+yaml`. Like a PUT it sets the state of an event, so it
//! bypasses the correlators and the ledger. The record counts on from its count.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use serde_json::Value;

use super::asked::Asked;
use super::options::{self, Options};
use super::{Face, ack, aliases, decode, update, yaml};
use crate::access::{Extent, check_removals};
use crate::event::json;
use crate::outbox::Line;
use crate::status::Status;
use crate::upstream::{ApplyOptions, Updated};

const APPLY: &str = "application/apply-patch+yaml";

pub(super) fn is_apply(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    decode::media_type(content_type).eq_ignore_ascii_case(APPLY)
}

pub(super) async fn apply(face: &Face, asked: &Asked, body: Body) -> Result<Response, Status> {
    let Asked { namespace, name, .. } = asked;
    let form = asked.form(face)?;
    let (Options { dry_run, .. }, force) = options::of_apply(asked.query())?;
    let options = ApplyOptions { writer: asked.writer(), force, dry_run };
    let body = decode::read(body, &face.0.settings, &face.0.bodies).await?;
    let json = yaml::to_json(&body).map_err(|fault| undecodable(&fault))?;
    let document: Value = serde_json::from_slice(&json).map_err(|fault| undecodable(&fault.to_string()))?;
    if !document.is_object() {
        return Err(undecodable("not an object"));
    }
    let caller = asked.caller.as_ref();
    let note = |status: &Status| {
        let applied = || json::decode_event(asked.group, &json).ok();
        let event = face.0.aliases.get(namespace, name).or_else(applied);
        if let Some(mut event) = event.filter(|_| !dry_run) {
            event.metadata.namespace = namespace.as_str().into();
            face.note_refused_change(&event, "apply", status);
        }
    };
    if let Some(caller) = caller.filter(|_| face.binds(caller)) {
        let event = json::decode_event(asked.group, &json).map_err(Status::from)?;
        // Whole, because an apply removes the members that it omits, or creates an event without them.
        let checked = face.check_source(Some(caller), asked.group, &event, Extent::Whole).map_err(Status::from);
        checked.and_then(|()| check_removals(caller, asked.group, name, &document)).inspect_err(note)?;
    }
    face.check_changed(caller, (asked.group, namespace, name)).await.map_err(Status::from).inspect_err(note)?;
    face.may_put(caller, (asked.group, namespace, name)).await.inspect_err(note)?;
    if !dry_run {
        face.limit(caller, namespace, None).map_err(Status::from).inspect_err(note)?;
    }
    let line = aliases::stated(&document);
    let merging = {
        let (face, namespace, name) = (face.clone(), namespace.to_owned(), name.to_owned());
        async move { put(&face, &namespace, &name, document, &options).await }
    };
    let updated = face.to_the_end(merging).await.inspect_err(note)?;
    Ok(update::answer(face, asked, form, updated, (!dry_run).then_some(line)))
}

async fn put(
    face: &Face,
    namespace: &str,
    name: &str,
    mut document: Value,
    options: &ApplyOptions,
) -> Result<Updated, Status> {
    let upstream = &face.0.upstream;
    let Some(held) = face.hold(options.writer.group, namespace, name).await? else {
        return upstream.apply(namespace, name, &document, options).await;
    };
    let stored_name = held.name();
    if let Some(given) = document.get_mut("metadata").and_then(|metadata| metadata.get_mut("name"))
        && given == name
    {
        *given = stored_name.as_str().into();
    }
    let updated = match upstream.apply(namespace, &stored_name, &document, options).await {
        Err(status) if !options.dry_run => {
            face.doubt(held, (namespace, name), aliases::stated_total(&document), &status).await;
            return Err(status);
        }
        answer => answer?,
    };
    if !options.dry_run {
        let line = match aliases::stated(&document) {
            Line::Stated if updated.created => Line::Created,
            line => line,
        };
        held.follow(&updated.event, line);
        ack::followed(face).await;
    }
    Ok(updated)
}

fn undecodable(fault: &str) -> Status {
    Status::bad_request(format!("error decoding YAML: {fault}"))
}
