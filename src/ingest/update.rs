//! PUT: a whole object, put in the place of the record that its name leads to. It states how things are instead of telling of
//! an occurrence, so it passes by the correlators and the ledger; the record's count goes on from it.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::asked::Asked;
use super::{Face, QUIET, create, decode, respond};
use crate::event::json::{self, FieldValidation, Strictness};
use crate::event::{Event, validate};
use crate::shard::Lead;
use crate::status::Status;
use crate::upstream::{UpdateOptions, Updated};

/// `PUT …/namespaces/{namespace}/events/{name}`
pub(super) async fn update(State(face): State<Face>, asked: Asked, body: Body) -> Response {
    match replace(&face, &asked, body).await {
        Ok(response) => response,
        // Not an occurrence: the ledger hears nothing of it.
        Err(status) => respond::refusal(&status),
    }
}

async fn replace(face: &Face, asked: &Asked, body: Body) -> Result<Response, Status> {
    let Asked { group, namespace, name, .. } = asked;
    let form = asked.form(face).map_err(|(_, status)| *status)?;
    let media = decode::media(&asked.headers).map_err(|(_, status)| *status)?;
    let options = create::options(asked.query()).map_err(|(_, status)| *status)?;
    let body = decode::read(body, &face.0.settings).await.map_err(|(_, status)| *status)?;
    let decoded = decode::event(*group, media, &body, options.strictness()).map_err(|(_, status)| *status)?;
    let warnings = options.warnings(&decoded.strict_faults);
    let mut event = decoded.event;
    check_name(&mut event, namespace, name)?;
    let update = UpdateOptions { writer: asked.writer(), dry_run: options.dry_run };
    let putting = {
        let (face, name) = (face.clone(), name.to_owned());
        async move { put(&face, event, &name, &update).await }
    };
    let Updated { event: mut stored, created } = face.to_the_end(putting).await?;
    stored.metadata.name = name.into();
    if !options.dry_run {
        // What its client patches from now on grows from here.
        face.0.metrics.aliases(face.0.aliases.insert(stored.clone()));
    }
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(respond::event(form, code, &stored, None, &warnings))
}

async fn put(face: &Face, mut event: Event, name: &str, options: &UpdateOptions) -> Result<Updated, Status> {
    let namespace = event.metadata.namespace.clone();
    let upstream = &face.0.upstream;
    let told = face.0.aliases.get(&namespace, name);
    let held = match &told {
        Some(told) => face.0.shards.hold(told, name, Lead::Alias),
        None => match upstream.get(&namespace, name).await {
            Ok(stored) => face.0.shards.hold(&stored, name, Lead::Name),
            Err(_missing) => None,
        },
    };
    let Some(mut held) = held else { return upstream.update(event, options).await };
    event.metadata.name = held.name();
    held.quiet(QUIET).await;
    let updated = upstream.update(event, options).await?;
    if !options.dry_run {
        held.follow(&updated.event);
    }
    Ok(updated)
}

/// The body's namespace may be missing, its name may not.
fn check_name(event: &mut Event, namespace: &str, name: &str) -> Result<(), Status> {
    validate::adopt_namespace(event, namespace).map_err(|status| *status)?;
    match event.metadata.name.as_str() {
        given if given == name => Ok(()),
        "" => Err(Status::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        ))),
        given => Err(Status::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        ))),
    }
}

impl create::Options {
    fn strictness(self) -> Strictness {
        match self.validation {
            FieldValidation::Strict => Strictness::Refuse,
            FieldValidation::Warn | FieldValidation::Ignore => Strictness::Report,
        }
    }

    fn warnings(self, faults: &[json::StrictFault]) -> Vec<String> {
        match self.validation {
            FieldValidation::Warn => faults.iter().map(ToString::to_string).collect(),
            FieldValidation::Ignore | FieldValidation::Strict => Vec::new(),
        }
    }
}
