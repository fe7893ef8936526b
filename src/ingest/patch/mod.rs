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
use crate::access::{Extent, check_operations};
use crate::event::patching::PatchType;
use crate::event::{Event, json};
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
        Err(rejection) if correlates => {
            return growth::reject(&face, face.0.aliases.get(namespace, name).as_ref(), &rejection);
        }
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
            let is_dry = options.dry_run;
            let refused = |status: &Status| {
                if let Some(told) = face.0.aliases.get(namespace, name).filter(|_| !is_dry) {
                    face.note_refused_change(&told, "PATCH", status);
                }
                respond::refusal(status)
            };
            if let Err(rejection) = passes(&face, &asked, &patch, options.dry_run) {
                return refused(&rejection.status);
            }
            let patching = {
                let (face, namespace, name) = (face.clone(), namespace.clone(), name.clone());
                async move { plain::apply(&face, &namespace, &name, patch, options).await }
            };
            match face.to_the_end(patching).await {
                Ok(patched) => respond::event(form, StatusCode::OK, &patched.event, None, &patched.warnings),
                // Not an occurrence: the ledger hears nothing of it.
                Err(status) => refused(&status),
            }
        }
    }
}

/// Checks that a patch of any member makes no event of another source, and the limits. What of the event is not patched stays.
fn passes(face: &Face, asked: &Asked, patch: &ClientPatch, dry_run: bool) -> Result<(), Rejection> {
    let Asked { group, namespace, name, .. } = asked;
    let caller = asked.caller.as_ref();
    if let Some(caller) = caller.filter(|_| face.binds(asked.caller.as_ref())) {
        match patch.patch_type {
            PatchType::Json => {
                let operations = serde_json::from_slice(&patch.body).unwrap_or_default();
                check_operations(caller, *group, name, &operations)
                    .map_err(|status| Rejection::new(RejectReason::Denied, status))?;
            }
            PatchType::Merge | PatchType::StrategicMerge => {
                let event = json::decode_event(*group, &patch.body);
                let event = event.map_err(|error| Rejection::invalid(error.status))?;
                face.check_source(Some(caller), *group, &event, Extent::Part)?;
            }
        }
    }
    if dry_run { Ok(()) } else { face.limit(caller, namespace, face.0.aliases.get(namespace, name).as_ref()) }
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
