//! GET and LIST: answered by the upstream; the names that clients know are resolved.

use axum::Extension;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use smol_str::SmolStr;

use super::{Face, not_found, respond, watch};
use crate::event::{ApiGroup, spelling};
use crate::status::Status;
use crate::upstream::{FieldSelector, LabelSelector, ListOptions, Version};

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
    let found = face.0.aliases.get(&namespace, &name).and_then(|told| face.0.shards.find(&told));
    let (stored_name, unsettled) = found.map_or((SmolStr::from(&name), None), |found| (found.name, found.unsettled));
    let event = match (unsettled, face.0.upstream.get(&namespace, &stored_name).await) {
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
) -> Response {
    list_events(&face, group, Some(&namespace), query.as_deref(), &headers).await
}

/// `GET /api/v1/events`
pub(super) async fn list_all(
    State(face): State<Face>,
    Extension(group): Extension<ApiGroup>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    list_events(&face, group, None, query.as_deref(), &headers).await
}

async fn list_events(
    face: &Face,
    group: ApiGroup,
    namespace: Option<&str>,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Response {
    if watch::is_asked(query) {
        return watch::watch(face, group, namespace, query, headers).await;
    }
    let form = match face.form(group, query, headers) {
        Ok(form) => form,
        Err((_, status)) => return respond::refusal(&status),
    };
    let options = match options(group, query) {
        Ok(options) => options,
        Err(status) => return respond::refusal(&status),
    };
    match face.0.upstream.list(namespace, &options).await {
        Ok(list) => respond::list(form, &list),
        Err(status) => respond::refusal(&status),
    }
}

pub(super) fn options(group: ApiGroup, query: Option<&str>) -> Result<ListOptions, Status> {
    let mut options = ListOptions::default();
    let (mut resource_version, mut exact) = (0, false);
    for (key, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        let number =
            || value.parse::<u64>().map_err(|error| Status::bad_request(format!("{key}: \"{value}\": {error}")));
        match key.as_ref() {
            "limit" => options.limit = usize::try_from(number()?).unwrap_or(usize::MAX),
            "continue" => options.continue_token = value.into_owned(),
            "fieldSelector" => options.field_selector = FieldSelector::parse(&value, group)?,
            "resourceVersion" if !value.is_empty() => resource_version = number()?,
            "resourceVersionMatch" => exact = value == "Exact",
            "labelSelector" => options.label_selector = LabelSelector::parse(&value)?,
            _ => {}
        }
    }
    options.version = match (resource_version, exact) {
        (0, _) => Version::Newest,
        (version, true) => Version::Exact(version),
        (version, false) => Version::AtLeast(version),
    };
    Ok(options)
}
