//! DELETE of one event and of a collection: deletes the record in the upstream and in the outbox.
//!
//! The record is paused first, so that no pending write follows the delete (`shard/hold.rs`). Once the upstream has
//! deleted it, its waiting occurrences are lost with reason `deleted`, and the next occurrence creates a new record.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;
use smol_str::SmolStr;

use super::asked::Asked;
use super::form::{Form, Media};
use super::options::Faults;
use super::rejection::{StatusError, as_asked};
use super::{Face, QUIET, ack, decode, options, respond, yaml};
use crate::event::json::EventList;
use crate::event::protobuf;
use crate::shard::Lead;
use crate::status::{Status, StatusDetails};
use crate::upstream::{DeleteOptions, Deleted, ListOptions};

/// `DELETE …/namespaces/{namespace}/events/{name}`
pub(super) async fn delete(State(face): State<Face>, asked: Asked, body: Body) -> Result<Response, StatusError> {
    let (form, options) = read(&face, &asked, body).await?;
    let Asked { group, namespace, name, .. } = asked;
    let deleting = {
        let (face, namespace, name) = (face.clone(), namespace.clone(), name.clone());
        async move {
            let deleted = delete_one(&face, &namespace, &name, &options).await;
            if deleted.is_ok() && !options.dry_run {
                ack::forgotten(&face).await;
            }
            deleted
        }
    };
    match face.to_the_end(deleting).await.map_err(|status| as_asked(group, &name, status))? {
        Deleted::Gone(uid) => Ok(respond::success(
            form,
            StatusDetails {
                name,
                group: group.name().to_owned(),
                kind: "events".to_owned(),
                uid: uid.into(),
                ..StatusDetails::default()
            },
        )),
        Deleted::Marked(mut event) => {
            event.metadata.name = name.into();
            Ok(respond::event(form, StatusCode::OK, &event, None, &[]))
        }
    }
}

async fn delete_one(face: &Face, namespace: &str, name: &str, options: &DeleteOptions) -> Result<Deleted, Status> {
    let upstream = &face.0.upstream;
    let told = face.0.aliases.get(namespace, name);
    let unconditional = options.uid.is_none() && options.resource_version.is_none();
    // Preconditions are about an event that is stored.
    let of_alias =
        told.as_ref().filter(|_| !options.dry_run).and_then(|told| face.0.shards.hold(told, name, Lead::Alias));
    let held = match of_alias.filter(|held| unconditional || held.is_stored()) {
        // The record of that very name, also if the alias leads to a record that is gone.
        None if !options.dry_run => face.hold_stored(namespace, name).await.inspect_err(|status| {
            if status.code == 404 {
                face.0.aliases.remove(namespace, name);
            }
        })?,
        held => held,
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
    if unconditional && !face.has_its_name(namespace, &held).await {
        // Not yet created upstream, where another record has its name.
        held.forget();
        face.0.aliases.remove(namespace, name);
        delete_former(face, namespace, name).await?;
        return Ok(Deleted::Gone(SmolStr::default()));
    }
    let record = held.name();
    let deleted = match upstream.delete(namespace, &record, options).await {
        Ok(deleted) => deleted,
        // Not yet created upstream. A client can delete an event whose create was answered with 201.
        Err(status) if status.code == 404 && told.is_some() && unconditional => Deleted::Gone(SmolStr::default()),
        Err(status) => {
            if is_in_doubt(&status) {
                held.doubt();
            }
            return Err(status);
        }
    };
    held.forget();
    face.0.aliases.remove(namespace, name);
    if record != name {
        delete_former(face, namespace, name).await?;
    }
    Ok(deleted)
}

/// Whether the upstream may have deleted the record despite this answer.
const fn is_in_doubt(status: &Status) -> bool {
    status.code == 408 || status.code >= 500
}

/// Deletes the record with the client's own name, after the alias's record was deleted. It exists if the client has
/// changed its event, or had posted another one under that name. As `kubectl delete` expects, nothing of the name is
/// left.
async fn delete_former(face: &Face, namespace: &str, name: &str) -> Result<(), Status> {
    let upstream = &face.0.upstream;
    let mut held = match face.hold_stored(namespace, name).await {
        Ok(held) => held,
        Err(status) if status.code == 404 => return Ok(()),
        Err(status) => return Err(status),
    };
    if let Some(held) = &mut held {
        held.quiet(QUIET).await;
    }
    match (upstream.delete(namespace, name, &DeleteOptions::default()).await, held) {
        (Err(status), held) if status.code != 404 => {
            if let Some(held) = held.filter(|_| is_in_doubt(&status)) {
                held.doubt();
            }
            Err(status)
        }
        (Ok(_) | Err(_), held) => {
            if let Some(held) = held {
                held.forget();
            }
            Ok(())
        }
    }
}

/// `DELETE …/namespaces/{namespace}/events`
pub(super) async fn delete_collection(
    State(face): State<Face>,
    asked: Asked,
    body: Body,
) -> Result<Response, StatusError> {
    let (form, options) = read(&face, &asked, body).await?;
    let list = options::of_list(asked.group, asked.query())?;
    let deleting = {
        let (face, namespace) = (face.clone(), asked.namespace);
        async move { delete_listed(&face, &namespace, &list, &options).await }
    };
    Ok(respond::list(form, &face.to_the_end(deleting).await?))
}

async fn delete_listed(
    face: &Face,
    namespace: &str,
    list: &ListOptions,
    options: &DeleteOptions,
) -> Result<EventList, Status> {
    let list = face.0.upstream.delete_collection(namespace, list, options).await?;
    if options.dry_run {
        return Ok(list);
    }
    // Only stored events: a record that is not yet created is not in the list.
    for event in &list.items {
        let name = &event.metadata.name;
        let told = face.0.aliases.get(namespace, name);
        // The record of this name, even if its alias leads to another one.
        let held = face.0.shards.hold(event, name, Lead::Name);
        let held = held.or_else(|| face.0.shards.hold(&told?, name, Lead::Name));
        if let Some(held) = held {
            held.forget();
        }
        face.0.aliases.remove(namespace, name);
    }
    ack::forgotten(face).await;
    Ok(list)
}

/// Reads the request, checked in the apiserver's order.
async fn read(face: &Face, asked: &Asked, body: Body) -> Result<(Form, DeleteOptions), Status> {
    let query = asked.query();
    let form = asked.form(face).map_err(Status::from)?;
    let body = decode::read(body, &face.0.settings).await.map_err(Status::from)?;
    if body.is_empty() {
        return Ok((form, delete_options(query, &body)?));
    }
    let options = match decode::media(&asked.headers).map_err(Status::from)? {
        Media::Json => delete_options(query, &body)?,
        Media::Yaml => delete_options(query, &yaml::to_json(&body).map_err(Status::bad_request)?.into())?,
        Media::Protobuf => protobuf_options(&body)?,
    };
    Ok((form, options))
}

fn protobuf_options(body: &[u8]) -> Result<DeleteOptions, Status> {
    let decoded = protobuf::decode_delete_options(body).map_err(|error| error.status)?;
    let dry_run: Vec<&str> = decoded.dry_run.iter().map(AsRef::as_ref).collect();
    let policy = decoded.propagation_policy.as_deref().unwrap_or_default();
    checked(&dry_run, policy, decoded.uid, decoded.resource_version)
}

/// Reads the options from the body, or without a body from the query.
fn delete_options(query: Option<&str>, body: &Bytes) -> Result<DeleteOptions, Status> {
    if body.is_empty() {
        let pairs: Vec<_> = form_urlencoded::parse(query.unwrap_or_default().as_bytes()).collect();
        let given =
            |name: &'static str| pairs.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_ref());
        let dry_run: Vec<&str> = given("dryRun").collect();
        return checked(&dry_run, given("propagationPolicy").next().unwrap_or_default(), None, None);
    }
    let document: Value =
        serde_json::from_slice(body).map_err(|fault| Status::bad_request(format!("the body is not JSON: {fault}")))?;
    let text = |value: &Value| value.as_str().map(Into::into);
    let scopes = document["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default();
    let dry_run: Vec<&str> = scopes.iter().map(|scope| scope.as_str().unwrap_or_default()).collect();
    let (policy, preconditions) = (&document["propagationPolicy"], &document["preconditions"]);
    let policy = policy.as_str().unwrap_or_default();
    checked(&dry_run, policy, text(&preconditions["uid"]), text(&preconditions["resourceVersion"]))
}

/// `ValidateDeleteOptions`. Every propagation policy is equal, because events have no dependents.
fn checked(
    dry_run: &[&str],
    policy: &str,
    uid: Option<SmolStr>,
    resource_version: Option<SmolStr>,
) -> Result<DeleteOptions, Status> {
    let mut faults = Faults::default();
    if !matches!(policy, "" | "Foreground" | "Background" | "Orphan") {
        faults.unsupported("propagationPolicy", policy, &["Foreground", "Background", "Orphan"]);
    }
    options::check_dry_run(dry_run, &mut faults);
    faults.refuse("DeleteOptions")?;
    Ok(DeleteOptions { uid, resource_version, dry_run: !dry_run.is_empty() })
}
