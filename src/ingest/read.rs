//! GET and LIST: answered by the upstream; the names that clients know are resolved.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use smol_str::SmolStr;

use super::asked::Asked;
use super::websocket::Upgrade;
use super::{Face, not_found, options, respond, watch};
use crate::event::core_v1::EventList;
use crate::event::{Event, spelling};
use crate::upstream::{ListOptions, Version};

/// LIMIT: events that a list shows of those that have folded into storm records.
const FOLDED_SHOWN: usize = 500;

/// `GET /api/v1/namespaces/{namespace}/events/{name}`
///
/// A name that a client chose leads to the record that counts its event, shown under that name. While the upstream does not
/// hold the record's newest state, what is known here is shown.
pub(super) async fn get(State(face): State<Face>, asked: Asked) -> Response {
    let form = match asked.form(&face) {
        Ok(form) => form,
        Err(rejection) => return respond::refusal(&rejection.status),
    };
    let version = match options::version_of_get(asked.query()) {
        Ok(version) => version,
        Err(status) => return respond::refusal(&status),
    };
    let Asked { group, namespace, name, .. } = asked;
    let told = face.0.aliases.get(&namespace, &name);
    let found = told.as_ref().and_then(|told| face.0.shards.find(told));
    let (stored_name, unsettled) = found.map_or((SmolStr::from(&name), None), |found| (found.name, found.unsettled));
    let event = match (unsettled, face.0.upstream.get_not_older(&namespace, &stored_name, version).await) {
        // The upstream's own members, with what is owed to it laid over them.
        (Some(owed), Ok(mut stored)) => {
            spelling::advance(&mut stored, &owed);
            Ok(stored)
        }
        (Some(owed), Err(_)) => Ok(owed),
        // In a storm the upstream has no event of this object.
        (None, Err(status)) if status.code == 404 => {
            told.and_then(|told| face.0.shards.folded_like(&told)).ok_or(status)
        }
        (None, answer) => answer,
    };
    match event {
        Ok(mut event) => {
            event.metadata.name = name.into();
            respond::event(form, StatusCode::OK, &event, None, &[])
        }
        Err(status) if status.code == 404 => respond::refusal(&not_found(group, &name)),
        Err(status) => respond::refusal(&status),
    }
}

/// `GET /api/v1/namespaces/{namespace}/events`, and `GET /api/v1/events` of all namespaces.
pub(super) async fn list(State(face): State<Face>, upgrade: Upgrade, asked: Asked) -> Response {
    if options::asks_for_watch(asked.query()) {
        return watch::watch(State(face), upgrade, asked).await;
    }
    let form = match asked.form(&face) {
        Ok(form) => form,
        Err(rejection) => return respond::refusal(&rejection.status),
    };
    let options = match options::of_list(asked.group, asked.query()) {
        Ok(options) => options,
        Err(status) => return respond::refusal(&status),
    };
    match face.0.upstream.list(asked.namespace(), &options).await {
        Ok(mut list) => {
            add_folded(&face, &asked, &options, &mut list);
            respond::list(form, &list)
        }
        Err(status) => respond::refusal(&status),
    }
}

/// Adds folded events to the last page of a list of an object's events. They have neither uid nor version, and no watch has
/// them.
fn add_folded(face: &Face, asked: &Asked, options: &ListOptions, list: &mut EventList) {
    let ListOptions { limit, field_selector, label_selector, version, .. } = options;
    if !field_selector.is_of_object() || *version != Version::Newest || !list.continue_token.is_empty() {
        return;
    }
    let room = if *limit == 0 { FOLDED_SHOWN } else { limit.saturating_sub(list.items.len()).min(FOLDED_SHOWN) };
    let is_asked = |event: &Event| {
        asked.namespace().is_none_or(|namespace| event.metadata.namespace == namespace)
            && field_selector.matches(event)
            && label_selector.matches(event)
    };
    list.items.extend(face.0.shards.folded(room, is_asked));
}
