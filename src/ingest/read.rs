//! GET and LIST: answered by the upstream; the names that clients know are resolved.

use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use smol_str::SmolStr;

use super::websocket::Upgrade;
use super::{Face, not_found, options, respond, watch};
use crate::event::{ApiGroup, spelling};

/// `GET /api/v1/namespaces/{namespace}/events/{name}`
///
/// A name that a client chose leads to the record that counts its event, shown under that name. While the upstream does not
/// hold the record's newest state, what is known here is shown.
pub(super) async fn get(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    Path((namespace, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let form = match face.form(group, query.as_deref(), &headers) {
        Ok(form) => form,
        Err((_, status)) => return respond::refusal(&status),
    };
    let version = match options::version_of_get(query.as_deref()) {
        Ok(version) => version,
        Err(status) => return respond::refusal(&status),
    };
    let found = face.0.aliases.get(&namespace, &name).and_then(|told| face.0.shards.find(&told));
    let (stored_name, unsettled) = found.map_or((SmolStr::from(&name), None), |found| (found.name, found.unsettled));
    let event = match (unsettled, face.0.upstream.get_not_older(&namespace, &stored_name, version).await) {
        // The upstream's own members, with what is owed to it laid over them.
        (Some(owed), Ok(mut stored)) => {
            spelling::advance(&mut stored, &owed);
            Ok(stored)
        }
        (Some(owed), Err(_)) => Ok(owed),
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

/// `GET /api/v1/namespaces/{namespace}/events`
pub(super) async fn list(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    Path(namespace): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Response {
    list_events(&face, group, Some(&namespace), query.as_deref(), &headers, upgrade).await
}

/// `GET /api/v1/events`
pub(super) async fn list_all(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Response {
    list_events(&face, group, None, query.as_deref(), &headers, upgrade).await
}

async fn list_events(
    face: &Face,
    group: ApiGroup,
    namespace: Option<&str>,
    query: Option<&str>,
    headers: &HeaderMap,
    upgrade: Upgrade,
) -> Response {
    if options::asks_for_watch(query) {
        return watch::watch(face, group, namespace, query, headers, upgrade).await;
    }
    let form = match face.form(group, query, headers) {
        Ok(form) => form,
        Err((_, status)) => return respond::refusal(&status),
    };
    let options = match options::of_list(group, query) {
        Ok(options) => options,
        Err(status) => return respond::refusal(&status),
    };
    match face.0.upstream.list(namespace, &options).await {
        Ok(list) => respond::list(form, &list),
        Err(status) => respond::refusal(&status),
    }
}
