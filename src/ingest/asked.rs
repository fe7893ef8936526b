//! What stands in the head of a request at one of the API groups.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use serde::Deserialize;

use super::form::Form;
use super::guard::Place;
use super::rejection::Rejection;
use super::{Face, manager, respond};
use crate::access::Caller;
use crate::event::{ApiGroup, ManagedFields, managed_fields};
use crate::status::Status;
use crate::upstream::Writer;

/// What a client asks, but for the body. Stands behind all other extractors of a request's head: it takes the headers instead
/// of copying them.
#[derive(Debug)]
pub(super) struct Asked {
    /// The API group.
    pub(super) group: ApiGroup,
    /// The path's namespace; empty where it names none.
    pub(super) namespace: String,
    /// The path's event; empty where it names none.
    pub(super) name: String,
    pub(super) headers: HeaderMap,
    /// Who asks, where callers are known.
    pub(super) caller: Option<Caller>,
    /// Its place among the requests that run.
    pub(super) place: Option<Place>,
    uri: Uri,
}

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Names {
    namespace: String,
    name: String,
}

impl FromRequestParts<Face> for Asked {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, face: &Face) -> Result<Self, Response> {
        let names = Path::from_request_parts(parts, face).await;
        let Path(Names { namespace, name }) = names.map_err(|fault: PathRejection| {
            // A name that is no text (`%ff`).
            let status = Status::bad_request(fault.body_text());
            match parts.method {
                // It would have told of an occurrence.
                Method::POST => face.reject(&Rejection::invalid(status)),
                _ => respond::refusal(&status),
            }
        })?;
        let (headers, uri) = (std::mem::take(&mut parts.headers), parts.uri.clone());
        let group = if uri.path().starts_with("/apis/") { ApiGroup::Events } else { ApiGroup::Core };
        let (caller, place) = (parts.extensions.remove::<Caller>(), parts.extensions.remove::<Place>());
        Ok(Self { group, namespace, name, headers, caller, place, uri })
    }
}

impl Asked {
    /// The query, as it came.
    pub(super) fn query(&self) -> Option<&str> {
        self.uri.query()
    }

    /// The path's namespace, if it names one.
    pub(super) fn namespace(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }

    /// Who asks; empty where callers are not known.
    pub(super) fn user(&self) -> &str {
        self.caller.as_ref().map_or("", |caller| &caller.name)
    }

    /// The form that the answer takes.
    pub(super) fn form(&self, face: &Face) -> Result<Form, Rejection> {
        Form::negotiate(self.group, || face.0.shards.clock().now().wall, self.query(), &self.headers)
    }

    /// Marks an event as its client's own.
    pub(super) fn claim(&self) -> ManagedFields {
        managed_fields::claim(&self.writer().manager)
    }

    /// In whose name it writes.
    pub(super) fn writer(&self) -> Writer {
        manager::writer(self.group, self.query(), &self.headers)
    }
}
