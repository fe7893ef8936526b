//! PATCH: what a client's patch means, and who carries it out.
//!
//! Where events are correlated, a count or a series that grows tells of occurrences (`growth`). Everything else is an order to
//! change an event (`plain`), and so is every patch where correlation is off.

mod growth;
mod plain;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

use super::asked::Asked;
use super::form::Form;
use super::rejection::Rejection;
use super::{Face, apply, decode, not_found, options, respond};
use crate::event::Event;
use crate::event::patching::PatchType;
use crate::ledger::RejectReason;
use crate::status::{Status, StatusDetails};
use crate::upstream::{ClientPatch, PatchOptions};
use growth::Meaning;

/// `PATCH …/namespaces/{namespace}/events/{name}`
pub(super) async fn patch(State(face): State<Face>, asked: Asked, body: Body) -> Response {
    if apply::is_apply(&asked.headers) {
        return apply::apply(&face, &asked, body).await;
    }
    let Asked { group, namespace, name, .. } = &asked;
    let correlates = correlates(&face, namespace, name);
    let (form, patch, options) = match read(&face, &asked, body).await {
        Ok(read) => read,
        // It may have told of an occurrence.
        Err(rejection) if correlates => return face.reject(&rejection),
        Err(rejection) => return respond::refusal(&rejection.status),
    };
    // client-go patches an event that arrives with a count with nothing at all, and waits for the 404.
    if correlates && patch.body.is_empty() && face.0.aliases.get(namespace, name).is_none() {
        return respond::refusal(&not_found(*group, name));
    }
    let meaning = if correlates && !options.dry_run {
        growth::meaning(patch.patch_type, *group, &patch.body)
    } else {
        Meaning::Plain
    };
    match meaning {
        Meaning::Growth(grown) => growth::grow(&face, &asked, form, &grown, &[]).await,
        Meaning::Whole(document) => growth::upsert(&face, &asked, form, &patch, &document, options.validation).await,
        Meaning::Plain => {
            let patching = {
                let (face, namespace, name) = (face.clone(), namespace.clone(), name.clone());
                async move { plain::apply(&face, &namespace, &name, patch, options).await }
            };
            match face.to_the_end(patching).await {
                Ok(patched) => respond::event(form, StatusCode::OK, &patched.event, None, &patched.warnings),
                // Not an occurrence: the ledger hears nothing of it.
                Err(status) => respond::refusal(&status),
            }
        }
    }
}

/// Whether the event of this name is correlated. Of a name that is not known here only the namespace is.
fn correlates(face: &Face, namespace: &str, name: &str) -> bool {
    let event = face.0.aliases.get(namespace, name).unwrap_or_else(|| {
        let mut event = Event::default();
        event.metadata.namespace = namespace.into();
        event
    });
    face.0.shards.correlates(&event)
}

/// What is asked, checked in the apiserver's order.
async fn read(face: &Face, asked: &Asked, body: Body) -> Result<(Form, ClientPatch, PatchOptions), Rejection> {
    let content_type = asked.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(patch_type) = PatchType::named(decode::media_type(content_type)) else {
        let status = Status::new(415, "UnsupportedMediaType", "415: Unsupported Media Type");
        return Err(Rejection::new(RejectReason::MediaType, status.with_details(StatusDetails::default())));
    };
    let form = asked.form(face)?;
    let body = decode::read(body, &face.0.settings).await?;
    let options::Options { validation, dry_run } = options::of_patch(asked.query()).map_err(Rejection::invalid)?;
    let options = PatchOptions { writer: asked.writer(), dry_run, validation };
    Ok((form, ClientPatch { patch_type, body }, options))
}
