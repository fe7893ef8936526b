//! DELETE of one event and of a collection: carried out upstream, and forgotten here.
//!
//! The record is kept back first, so that nothing owed to it goes out after the delete (`shard/hold.rs`); when the upstream
//! has deleted it, what still waits for it is lost with reason `deleted`, and its next occurrence begins a new record.

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::form::{Form, Media};
use super::{Face, QUIET, decode, not_found, read, respond, yaml};
use crate::event::{ApiGroup, json, protobuf};
use crate::shard::Lead;
use crate::status::{Status, StatusCause, StatusDetails};
use crate::upstream::{DeleteOptions, Deleted};

/// `DELETE …/namespaces/{namespace}/events/{name}`
pub(super) async fn delete(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let (form, options) = match asked(&face, group, query.as_deref(), &headers, body).await {
        Ok(asked) => asked,
        Err(status) => return respond::refusal(&status),
    };
    let deleting = {
        let (face, namespace, name) = (face.clone(), namespace.clone(), name.clone());
        async move { delete_one(&face, &namespace, &name, &options).await }
    };
    match face.to_the_end(deleting).await {
        Ok(Deleted::Gone(uid)) => {
            let details = StatusDetails {
                name,
                group: group.name().to_owned(),
                kind: "events".to_owned(),
                uid: uid.into(),
                ..StatusDetails::default()
            };
            respond::success(&details)
        }
        Ok(Deleted::Marked(mut event)) => {
            event.metadata.name = name.into();
            respond::event(form, StatusCode::OK, &event, None, &[])
        }
        Err(status) if status.code == 404 => respond::refusal(&not_found(group, &name)),
        Err(status) => respond::refusal(&status),
    }
}

async fn delete_one(face: &Face, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
    let upstream = &face.0.upstream;
    let told = face.0.aliases.get(namespace, name);
    let held = if options.dry_run {
        None
    } else if let Some(told) = &told {
        face.0.shards.hold(told, name, Lead::Alias)
    } else {
        // The record's own name: what it says tells which record it is.
        face.0.shards.hold(&upstream.get(namespace, name).await?, name, Lead::Name)
    };
    let Some(mut held) = held else {
        let stored_name = told.and_then(|told| face.0.shards.find(&told)).map(|found| found.name);
        let deleted = upstream.delete(namespace, stored_name.as_deref().unwrap_or(name), options).await?;
        if !options.dry_run {
            face.0.aliases.remove(namespace, name);
        }
        return Ok(deleted);
    };
    held.quiet(QUIET).await;
    let unconditional = options.uid.is_none() && options.resource_version.is_none();
    let deleted = match upstream.delete(namespace, &held.name(), options).await {
        Ok(deleted) => deleted,
        // It was only owed to the upstream, and what a client was told is there can be deleted.
        Err(status) if status.code == 404 && told.is_some() && unconditional => {
            Deleted::Gone(smol_str::SmolStr::default())
        }
        Err(status) => return Err(status),
    };
    held.forget();
    face.0.metrics.aliases(face.0.aliases.remove(namespace, name));
    Ok(deleted)
}

/// `DELETE …/namespaces/{namespace}/events`
pub(super) async fn delete_collection(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    Path(namespace): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let (form, options) = match asked(&face, group, query.as_deref(), &headers, body).await {
        Ok(asked) => asked,
        Err(status) => return respond::refusal(&status),
    };
    let list = match read::options(group, query.as_deref()) {
        Ok(list) => list,
        Err(status) => return respond::refusal(&status),
    };
    match face.0.upstream.delete_collection(&namespace, &list, &options).await {
        Ok(list) => {
            // Only those that were there: what is owed and was not yet written is not in the list either.
            for event in list.items.iter().filter(|_| !options.dry_run) {
                let name = &event.metadata.name;
                let told = face.0.aliases.get(&namespace, name);
                let lead = if told.is_some() { Lead::Alias } else { Lead::Name };
                if let Some(held) = face.0.shards.hold(told.as_ref().unwrap_or(event), name, lead) {
                    held.forget();
                }
                face.0.metrics.aliases(face.0.aliases.remove(&namespace, name));
            }
            respond::list(form, &list)
        }
        Err(status) => respond::refusal(&status),
    }
}

async fn asked(
    face: &Face,
    group: ApiGroup,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Form, DeleteOptions), Status> {
    let form = face.form(group, query, headers).map_err(|(_, status)| *status)?;
    let body = decode::read(body, &face.0.settings).await.map_err(|(_, status)| *status)?;
    if body.is_empty() {
        return Ok((form, options(query, &body)?));
    }
    let options = match decode::media(headers).map_err(|(_, status)| *status)? {
        Media::Json => options(query, &body)?,
        Media::Yaml => options(query, &yaml::to_json(&body).map_err(Status::bad_request)?.into())?,
        Media::Protobuf => protobuf_options(&body)?,
    };
    Ok((form, options))
}

fn protobuf_options(body: &[u8]) -> Result<DeleteOptions, Status> {
    let decoded = protobuf::decode_delete_options(body).map_err(|error| error.status)?;
    if let Some(policy) = &decoded.propagation_policy {
        check_policy(policy)?;
    }
    let dry_run = decoded.dry_run.first().map_or(Ok(false), |scope| dry_run(scope))?;
    let (uid, resource_version) = (decoded.uid, decoded.resource_version);
    Ok(DeleteOptions { uid, resource_version, dry_run })
}

/// The options of the body, or of the query where there is none.
fn options(query: Option<&str>, body: &Bytes) -> Result<DeleteOptions, Status> {
    let mut options = DeleteOptions::default();
    if body.is_empty() {
        for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match key.as_ref() {
                "dryRun" => options.dry_run = dry_run(&value)?,
                "propagationPolicy" => check_policy(&value)?,
                _ => {}
            }
        }
        return Ok(options);
    }
    let document: Value = serde_json::from_slice(body).map_err(|_fault| {
        let fault = json::syntax_fault(body);
        Status::bad_request(format!("couldn't get version/kind; json parse error: {fault}"))
    })?;
    let text = |value: &Value| value.as_str().map(Into::into);
    options.uid = text(&document["preconditions"]["uid"]);
    options.resource_version = text(&document["preconditions"]["resourceVersion"]);
    if let Some(value) = document["dryRun"].get(0) {
        options.dry_run = dry_run(value.as_str().unwrap_or_default())?;
    }
    if let Some(policy) = document["propagationPolicy"].as_str() {
        check_policy(policy)?;
    }
    Ok(options)
}

fn dry_run(value: &str) -> Result<bool, Status> {
    match value {
        "All" => Ok(true),
        "" => Ok(false),
        other => Err(unsupported("dryRun", &format!("[\"{other}\"]"), r#""All""#)),
    }
}

/// Events have no dependents, so that every policy does the same.
fn check_policy(value: &str) -> Result<(), Status> {
    match value {
        "" | "Foreground" | "Background" | "Orphan" => Ok(()),
        other => {
            let supported = r#""Foreground", "Background", "Orphan", "nil""#;
            Err(unsupported("propagationPolicy", &format!("\"{other}\""), supported))
        }
    }
}

fn unsupported(field: &str, value: &str, supported: &str) -> Status {
    let message = format!("Unsupported value: {value}: supported values: {supported}");
    let text = format!("DeleteOptions.meta.k8s.io \"\" is invalid: {field}: {message}");
    let cause = StatusCause { reason: "FieldValueNotSupported".to_owned(), message, field: field.to_owned() };
    Status::new(422, "Invalid", text).with_details(StatusDetails {
        group: "meta.k8s.io".to_owned(),
        kind: "DeleteOptions".to_owned(),
        causes: vec![cause],
        ..StatusDetails::default()
    })
}
