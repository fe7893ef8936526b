//! PUT: replaces the record that the name leads to. A PUT sets the state of an event and is not an occurrence, so it
//! bypasses the correlators and the ledger. Later occurrences are added to the count of the PUT.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};

use super::asked::Asked;
use super::form::Form;
use super::{Face, ack, aliases, decode, options, respond};
use crate::access::Extent;
use crate::event::json::Decoded;
use crate::event::{Event, validate};
use crate::outbox::Line;
use crate::status::Status;
use crate::upstream::{UpdateOptions, Updated};

/// `PUT …/namespaces/{namespace}/events/{name}`
pub(super) async fn update(State(face): State<Face>, asked: Asked, body: Body) -> Response {
    let mut warnings = Vec::new();
    let received = receive(&face, &asked, body, &mut warnings).await;
    respond::warned(received.into_response(), &warnings)
}

async fn receive(face: &Face, asked: &Asked, body: Body, warnings: &mut Vec<String>) -> Result<Response, Status> {
    let Asked { group, namespace, name, .. } = asked;
    let form = asked.form(face)?;
    let options = options::of_write("UpdateOptions", asked.query())?;
    let media = decode::media(&asked.headers)?;
    let body = decode::read(body, &face.0.settings, &face.0.bodies).await?;
    let Decoded { mut event, warnings: of_members } = decode::event(*group, media, &body, options.validation)?;
    *warnings = of_members;
    validate::adopt_path(&mut event, namespace, name).map_err(Status::from)?;
    let caller = asked.caller.as_ref();
    let note = |status: &Status| {
        if !options.dry_run {
            face.note_refused_change(&event, "PUT", status);
        }
    };
    face.check_source(caller, *group, &event, Extent::Whole).map_err(Status::from).inspect_err(note)?;
    face.check_changed(caller, (*group, namespace, name)).await.map_err(Status::from).inspect_err(note)?;
    face.may_put(caller, (*group, namespace, name)).await.inspect_err(note)?;
    if !options.dry_run {
        face.limit(caller, namespace, Some(&event)).map_err(Status::from).inspect_err(note)?;
    }
    let update = UpdateOptions { writer: asked.writer(), dry_run: options.dry_run };
    let putting = {
        // A copy, because a refusal is recorded with the original event.
        let (face, name, event) = (face.clone(), name.to_owned(), event.clone());
        async move { put(&face, event, &name, &update).await }
    };
    let updated = face.to_the_end(putting).await.inspect_err(note)?;
    Ok(answer(face, asked, form, updated, (!options.dry_run).then_some(Line::Stated)))
}

/// Answers a PUT or an apply with the updated record, under the client's name. `line` is `None` for a dry run.
pub(super) fn answer(face: &Face, asked: &Asked, form: Form, updated: Updated, line: Option<Line>) -> Response {
    let Updated { event: mut stored, created } = updated;
    stored.metadata.name = asked.name.as_str().into();
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    let response = respond::event(form, code, &stored, None);
    match line {
        // The client's next patches count on from its own total.
        Some(Line::Unstated) => face.0.aliases.relabel(&asked.namespace, &asked.name, &stored, Line::Unstated),
        // The client's next patches count on from this state.
        Some(Line::Stated | Line::Created) => face.0.aliases.insert(&stored),
        None => {}
    }
    response
}

async fn put(face: &Face, mut event: Event, name: &str, options: &UpdateOptions) -> Result<Updated, Status> {
    let upstream = &face.0.upstream;
    let Some(held) = face.hold(options.writer.group, &event.metadata.namespace, name).await? else {
        return upstream.update(event, options).await;
    };
    event.metadata.name = held.name();
    let (namespace, stated) = (event.metadata.namespace.clone(), aliases::total(&event));
    let updated = match upstream.update(event, options).await {
        Err(status) if !options.dry_run => {
            face.doubt(held, (&namespace, name), Some(stated), &status).await;
            return Err(status);
        }
        answer => answer?,
    };
    if !options.dry_run {
        held.follow(&updated.event, if updated.created { Line::Created } else { Line::Stated });
        ack::followed(face).await;
    }
    Ok(updated)
}
