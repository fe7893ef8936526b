//! DELETE of one event and of a collection: carried out upstream, and forgotten here.
//!
//! The record is kept back first, so that nothing owed to it goes out after the delete (`shard/hold.rs`); when the upstream
//! has deleted it, what still waits for it is lost with reason `deleted`, and its next occurrence begins a new record.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::Value;

use super::asked::Asked;
use super::form::{Form, Media};
use super::options::Faults;
use super::{Face, QUIET, ack, decode, not_found, options, respond, yaml};
use crate::event::json::EventList;
use crate::event::{Event, protobuf};
use crate::shard::Lead;
use crate::status::{Status, StatusDetails};
use crate::upstream::{DeleteOptions, Deleted, ListOptions};

/// `DELETE …/namespaces/{namespace}/events/{name}`
pub(super) async fn delete(State(face): State<Face>, asked: Asked, body: Body) -> Response {
    let (form, options) = match read(&face, &asked, body).await {
        Ok(read) => read,
        Err(status) => return respond::refusal(&status),
    };
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
    let record = held.name();
    let deleted = match upstream.delete(namespace, &record, options).await {
        Ok(deleted) => deleted,
        // It was only owed to the upstream, and what a client was told is there can be deleted.
        Err(status) if status.code == 404 && told.is_some() && unconditional => {
            Deleted::Gone(smol_str::SmolStr::default())
        }
        Err(status) => return Err(status),
    };
    held.forget();
    face.0.aliases.remove(namespace, name);
    if let Some(told) = told
        && record != name
    {
        delete_former(face, namespace, name, &told).await?;
    }
    Ok(deleted)
}

/// Deletes the record under a client's own name, which counted its event until the client changed that so much that another
/// record began (a new message). Nothing of this name is there afterwards, which `kubectl delete` waits for.
async fn delete_former(face: &Face, namespace: &str, name: &str, told: &Event) -> Result<(), Status> {
    let upstream = &face.0.upstream;
    let stored = match upstream.get(namespace, name).await {
        // A stranger's event of this name stays: ours had to take another one.
        Ok(stored) if is_former(&stored, told) => stored,
        Ok(_) => return Ok(()),
        Err(status) if status.code == 404 => return Ok(()),
        Err(status) => return Err(status),
    };
    let mut held = face.0.shards.hold(&stored, name, Lead::Name);
    if let Some(held) = &mut held {
        held.quiet(QUIET).await;
    }
    match upstream.delete(namespace, name, &DeleteOptions::default()).await {
        Err(status) if status.code != 404 => Err(status),
        Ok(_) | Err(_) => {
            if let Some(held) = held {
                held.forget();
            }
            Ok(())
        }
    }
}

/// Whether an event can have been the client's: patches of a correlator leave its object, its reporter and its reason.
fn is_former(stored: &Event, told: &Event) -> bool {
    let of = |event: &Event| {
        let object = &event.involved_object;
        (object.uid.clone(), object.kind.clone(), object.name.clone(), event.reason.clone())
    };
    of(stored) == of(told) && (stored.component(), stored.host()) == (told.component(), told.host())
}

/// `DELETE …/namespaces/{namespace}/events`
pub(super) async fn delete_collection(State(face): State<Face>, asked: Asked, body: Body) -> Response {
    let (form, options) = match read(&face, &asked, body).await {
        Ok(read) => read,
        Err(status) => return respond::refusal(&status),
    };
    let list = match options::of_list(asked.group, asked.query()) {
        Ok(list) => list,
        Err(status) => return respond::refusal(&status),
    };
    let deleting = {
        let (face, namespace) = (face.clone(), asked.namespace);
        async move { delete_listed(&face, &namespace, &list, &options).await }
    };
    match face.to_the_end(deleting).await {
        Ok(list) => respond::list(form, &list),
        Err(status) => respond::refusal(&status),
    }
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
    // Only those that were there: what is owed and was not yet written is not in the list either.
    for event in &list.items {
        let name = &event.metadata.name;
        let told = face.0.aliases.get(namespace, name);
        // The record of this name, whatever its client counts on by now.
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

/// What is asked, checked in the apiserver's order.
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
    check(&dry_run, policy)?;
    let (uid, resource_version) = (decoded.uid, decoded.resource_version);
    Ok(DeleteOptions { uid, resource_version, dry_run: !dry_run.is_empty() })
}

/// The options of the body, or of the query where there is none.
fn delete_options(query: Option<&str>, body: &Bytes) -> Result<DeleteOptions, Status> {
    if body.is_empty() {
        let pairs: Vec<_> = form_urlencoded::parse(query.unwrap_or_default().as_bytes()).collect();
        let given =
            |name: &'static str| pairs.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_ref());
        let dry_run: Vec<&str> = given("dryRun").collect();
        check(&dry_run, given("propagationPolicy").next().unwrap_or_default())?;
        return Ok(DeleteOptions { dry_run: !dry_run.is_empty(), ..DeleteOptions::default() });
    }
    let document: Value =
        serde_json::from_slice(body).map_err(|fault| Status::bad_request(format!("the body is not JSON: {fault}")))?;
    let text = |value: &Value| value.as_str().map(Into::into);
    let scopes = document["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default();
    let dry_run: Vec<&str> = scopes.iter().map(|scope| scope.as_str().unwrap_or_default()).collect();
    check(&dry_run, document["propagationPolicy"].as_str().unwrap_or_default())?;
    let (uid, resource_version) =
        (text(&document["preconditions"]["uid"]), text(&document["preconditions"]["resourceVersion"]));
    Ok(DeleteOptions { uid, resource_version, dry_run: !dry_run.is_empty() })
}

/// `ValidateDeleteOptions`. Events have no dependents, so that every policy does the same.
fn check(dry_run: &[&str], policy: &str) -> Result<(), Status> {
    let mut faults = Faults::default();
    if !matches!(policy, "" | "Foreground" | "Background" | "Orphan") {
        faults.unsupported("propagationPolicy", policy, &["Foreground", "Background", "Orphan"]);
    }
    options::check_dry_run(dry_run, &mut faults);
    faults.refuse("DeleteOptions")
}
