//! `admission.k8s.io/v1`: decodes the apiserver's review of an event and encodes the answer.

use axum::http::StatusCode;
use axum::response::Response;
use k8s_openapi::api::authentication::v1::UserInfo;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::event::{ApiGroup, Event, json};
use crate::ingest::negotiate::Media;
use crate::ingest::respond;
use crate::status::Status;

const API_VERSION: &str = "admission.k8s.io/v1";

/// An AdmissionReview, with the members that are used here.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Review<'a> {
    #[serde(default)]
    api_version: String,
    #[serde(borrow)]
    pub(super) request: Request<'a>,
}

/// Request of a client to the apiserver.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    pub(super) uid: String,
    pub(super) operation: String,
    kind: Kind,
    #[serde(default)]
    sub_resource: String,
    /// The client of the apiserver.
    #[serde(default)]
    pub(super) user_info: UserInfo,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    old_object: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) dry_run: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    #[serde(default)]
    group: String,
    kind: String,
}

impl<'a> Review<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Status> {
        let review: Self = serde_json::from_slice(body)
            .map_err(|fault| Status::bad_request(format!("the body is not an AdmissionReview: {fault}")))?;
        if review.api_version != API_VERSION {
            let message = format!("apiVersion: {:?} is not served; allowed: {API_VERSION}", review.api_version);
            return Err(Status::bad_request(message));
        }
        Ok(review)
    }
}

impl Request<'_> {
    /// Returns the event before and after the request. `None` for other objects, and if an UPDATE lacks the old object or
    /// a CREATE has one.
    pub(super) fn events(&self) -> Option<(Option<Event>, Event)> {
        let group = [ApiGroup::Core, ApiGroup::Events].into_iter().find(|group| group.name() == self.kind.group)?;
        if self.kind.kind != "Event" || !self.sub_resource.is_empty() {
            return None;
        }
        let decode = |object: &RawValue| json::decode_event(group, object.get().as_bytes()).ok();
        let new = decode(self.object?)?;
        let old = match self.old_object {
            Some(old) => Some(decode(old)?),
            None => None,
        };
        (old.is_some() == (self.operation == "UPDATE")).then_some((old, new))
    }
}

/// Encodes the answer: allowed, or refused with this status.
pub(super) fn answer(uid: &str, refusal: Option<&Status>) -> Response {
    let mut response = json!({ "uid": uid, "allowed": refusal.is_none() });
    if let (Some(refusal), Some(members)) = (refusal, response.as_object_mut()) {
        let status: Value = serde_json::from_slice(&refusal.to_json()).unwrap_or_default();
        members.insert("status".to_owned(), status);
    }
    let review = json!({ "kind": "AdmissionReview", "apiVersion": API_VERSION, "response": response });
    respond::document(StatusCode::OK, Media::Json, false, review.to_string().into_bytes())
}
