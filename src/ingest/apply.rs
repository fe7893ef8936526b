//! Server-side apply: PATCH with `application/apply-patch+yaml`. Like a PUT it sets the state of an event, so it
//! bypasses the correlators and the ledger. The record counts on from its count.

use axum::body::Body;
use axum::response::Response;
use serde_json::Value;
use smol_str::SmolStr;

use super::forwarded_change::ChangeRefusal;
use super::options::{self, Options};
use super::request_head::RequestHead;
use super::update::{self, Change};
use super::{Ingest, aliases, decode, respond, yaml};
use crate::access::{Extent, check_removals};
use crate::event::json::{self, FieldValidation};
use crate::outbox::Line;
use crate::status::Status;
use crate::upstream::WriteOptions;

const APPLY: &str = "application/apply-patch+yaml";

pub(super) fn is_apply(media: &str) -> bool {
    media.eq_ignore_ascii_case(APPLY)
}

/// Returns whether the body of an apply sets the count or the series.
pub(super) fn line_of(body: &[u8]) -> Line {
    let document = yaml::to_json(body).ok().and_then(|json| serde_json::from_slice(&json).ok());
    aliases::stated(&document.unwrap_or_default())
}

pub(super) async fn apply(ingest: &Ingest, head: &RequestHead, body: Body) -> Result<Response, ChangeRefusal> {
    let format = head.format(ingest)?;
    let (Options { dry_run, .. }, force) = options::of_apply(head.query())?;
    let options = WriteOptions { force, dry_run, ..head.write_options() };
    let body = decode::read(body, &ingest.0.settings, (&ingest.0.bodies, head.user())).await?;
    let json = yaml::to_json(&body).map_err(|fault| undecodable(&fault))?;
    let mut document: Value = serde_json::from_slice(&json).map_err(|fault| undecodable(&fault.to_string()))?;
    if !document.is_object() {
        return Err(undecodable("not an object").into());
    }
    let RequestHead { group, namespace, name, .. } = head;
    let applied = async {
        if let Some(caller) = head.caller.as_ref().filter(|caller| ingest.binds(Some(caller))) {
            let event = json::decode(*group, &json, FieldValidation::Ignore)?.event;
            // Whole, because an apply removes the members that it omits, or creates an event without them.
            ingest.check_source(Some(caller), *group, &event, Extent::Whole)?;
            check_removals(caller, *group, name, &document)?;
        }
        let (line, total) = (aliases::stated(&document), aliases::stated_total(&document));
        let (upstream, namespace, given) = (ingest.0.upstream.clone(), namespace.clone(), name.clone());
        let write = async move |stored_name: SmolStr| {
            if let Some(name) = document.pointer_mut("/metadata/name").filter(|name| **name == given) {
                *name = stored_name.as_str().into();
            }
            upstream.apply(&namespace, &stored_name, &document, &options).await
        };
        update::set(ingest, head, format, Change { event: None, line, total, dry_run, body: body.clone() }, write).await
    };
    let (response, warnings) = applied.await.inspect_err(|refusal: &ChangeRefusal| {
        let stated = || Some(json::decode(*group, &json, FieldValidation::Ignore).ok()?.event);
        let known = ingest.0.aliases.get(namespace, name).or_else(stated);
        if let Some(mut event) = known.filter(|_| !dry_run) {
            event.metadata.namespace = namespace.as_str().into();
            ingest.note_refused_change(&event, "apply", &refusal.status);
        }
    })?;
    Ok(respond::warned(response, &warnings))
}

fn undecodable(fault: &str) -> Status {
    Status::bad_request(format!("error decoding YAML: {fault}"))
}
