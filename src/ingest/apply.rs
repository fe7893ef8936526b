//! Server-side apply: PATCH with `application/apply-patch+yaml`. As a PUT it states how things are, so it passes by the
//! correlators and the ledger; the record's count goes on from it.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::asked::Asked;
use super::{Face, QUIET, create, decode, respond, yaml};
use crate::shard::Lead;
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{ApplyOptions, Updated};

const APPLY: &str = "application/apply-patch+yaml";

/// Whether a PATCH is an apply.
pub(super) fn is_apply(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    decode::media_type(content_type).eq_ignore_ascii_case(APPLY)
}

/// Answers an apply.
pub(super) async fn apply(face: &Face, asked: &Asked, body: Body) -> Response {
    match merge(face, asked, body).await {
        Ok(response) => response,
        // Not an occurrence: the ledger hears nothing of it.
        Err(status) => respond::refusal(&status),
    }
}

async fn merge(face: &Face, asked: &Asked, body: Body) -> Result<Response, Status> {
    let Asked { namespace, name, .. } = asked;
    let form = asked.form(face).map_err(|(_, status)| *status)?;
    let options = options(asked)?;
    let body = decode::read(body, &face.0.settings).await.map_err(|(_, status)| *status)?;
    let json = yaml::to_json(&body).map_err(|fault| undecodable(&fault))?;
    let document: Value = serde_json::from_slice(&json).map_err(|fault| undecodable(&fault.to_string()))?;
    if !document.is_object() {
        return Err(undecodable("not an object"));
    }
    let merging = {
        let (face, namespace, name) = (face.clone(), namespace.to_owned(), name.to_owned());
        let options = options.clone();
        async move { put(&face, &namespace, &name, document, &options).await }
    };
    let Updated { event: mut stored, created } = face.to_the_end(merging).await?;
    stored.metadata.name = name.into();
    if !options.dry_run {
        // What its client patches from now on grows from here.
        face.0.metrics.aliases(face.0.aliases.insert(stored.clone()));
    }
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok(respond::event(form, code, &stored, None, &[]))
}

async fn put(
    face: &Face,
    namespace: &str,
    name: &str,
    mut document: Value,
    options: &ApplyOptions,
) -> Result<Updated, Status> {
    let upstream = &face.0.upstream;
    let told = face.0.aliases.get(namespace, name);
    let held = match &told {
        Some(told) => face.0.shards.hold(told, name, Lead::Alias),
        None => match upstream.get(namespace, name).await {
            Ok(stored) => face.0.shards.hold(&stored, name, Lead::Name),
            Err(_missing) => None,
        },
    };
    let Some(mut held) = held else { return upstream.apply(namespace, name, &document, options).await };
    let stored_name = held.name();
    if let Some(given) = document.get_mut("metadata").and_then(|metadata| metadata.get_mut("name"))
        && given == name
    {
        *given = stored_name.as_str().into();
    }
    held.quiet(QUIET).await;
    let updated = upstream.apply(namespace, &stored_name, &document, options).await?;
    if !options.dry_run {
        held.follow(&updated.event);
    }
    Ok(updated)
}

fn options(asked: &Asked) -> Result<ApplyOptions, Status> {
    let query = asked.query();
    let dry_run = create::options(query).map_err(|(_, status)| *status)?.dry_run;
    let parameter = |name: &str| {
        let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    if parameter("fieldManager").is_empty() {
        let message = "Required value: is required for apply patch";
        let cause = StatusCause {
            reason: "FieldValueRequired".to_owned(),
            message: message.to_owned(),
            field: "fieldManager".to_owned(),
        };
        let text = format!("PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: {message}");
        return Err(Status::new(422, "Invalid", text).with_details(StatusDetails {
            group: "meta.k8s.io".to_owned(),
            kind: "PatchOptions".to_owned(),
            causes: vec![cause],
            ..StatusDetails::default()
        }));
    }
    // Whatever is neither empty, `false` nor `0` (`Convert_Slice_string_To_bool`).
    let force = !matches!(parameter("force").to_lowercase().as_str(), "" | "false" | "0");
    Ok(ApplyOptions { writer: asked.writer(), force, dry_run })
}

fn undecodable(fault: &str) -> Status {
    Status::bad_request(format!("error decoding YAML: {fault}"))
}
