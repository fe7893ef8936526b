//! Head of a request to one of the API groups.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::header::USER_AGENT;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::Response;
use serde::Deserialize;
use smol_str::SmolStr;

use super::forwarded_change::PassedOn;
use super::negotiate::AnswerFormat;
use super::options::{self, FIELD_MANAGER_MAX};
use super::rejection::Rejection;
use super::{Ingest, respond, unknown_path};
use crate::access::{Caller, Turn};
use crate::event::validate::is_valid_name;
use crate::event::{ApiGroup, ManagedFields, cut, json, managed_fields};
use crate::ledger::RejectReason;
use crate::status::Status;
use crate::upstream::WriteOptions;
use crate::upstream::apiserver::is_of_eventweir;

/// Seconds after which another eventweir may try its write again. By then, its kubeconfig may have been corrected.
const SENDER_PAUSE: u32 = 10;

/// A request without its body. Must be the last extractor of the head, because it takes the headers.
#[derive(Debug)]
pub(super) struct RequestHead {
    pub(super) group: ApiGroup,
    /// Namespace in the path; may be empty.
    pub(super) namespace: String,
    /// Event name in the path; may be empty.
    pub(super) name: String,
    pub(super) headers: HeaderMap,
    /// Caller, if callers are authenticated.
    pub(super) caller: Option<Caller>,
    /// Place among the running requests, if the caller is known.
    pub(super) turn: Option<Arc<Turn>>,
    /// Whether pass-through has sent its event on.
    pub(super) is_passed_on: bool,
    uri: Uri,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Names {
    namespace: String,
    name: String,
}

impl FromRequestParts<Ingest> for RequestHead {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, ingest: &Ingest) -> Result<Self, Response> {
        let names = Path::from_request_parts(parts, ingest).await;
        let Path(Names { namespace, name }) = names.map_err(|fault: PathRejection| {
            // A name that is not UTF-8 (`%ff`).
            let status = Status::bad_request(fault.body_text());
            match parts.method {
                // A possible occurrence.
                Method::POST => ingest.reject(&Rejection::invalid(status)),
                _ => respond::refusal(&status),
            }
        })?;
        check_path(parts.uri.path(), &namespace, &name).map_err(|status| respond::refusal(&status))?;
        let (headers, uri) = (std::mem::take(&mut parts.headers), parts.uri.clone());
        let group = if uri.path().starts_with("/apis/") { ApiGroup::Events } else { ApiGroup::Core };
        let (caller, turn) = (parts.extensions.remove::<Caller>(), parts.extensions.remove::<Arc<Turn>>());
        let is_passed_on = parts.extensions.get::<PassedOn>().is_some();
        Ok(Self { group, namespace, name, headers, caller, turn, is_passed_on, uri })
    }
}

/// Refuses a name that no event can have, and an empty namespace, which would mean all of them.
///
/// DIFFERENCE(apiserver): an encoded slash is no separator, so that `DELETE …/events/%2F` deletes no collection
/// (`docs/semantics.md`).
fn check_path(path: &str, namespace: &str, name: &str) -> Result<(), Status> {
    if path.contains("/namespaces//") || namespace.contains('/') || name.contains('/') {
        return Err(unknown_path());
    }
    if !name.is_empty() && !is_valid_name(ApiGroup::Core, name) {
        return Err(Status::bad_request(format!(
            "the name {name:?} must not be \".\" or \"..\", and must not contain \"%\""
        )));
    }
    Ok(())
}

impl RequestHead {
    pub(super) fn query(&self) -> Option<&str> {
        self.uri.query()
    }

    /// Returns the namespace in the path, if there is one.
    pub(super) fn namespace(&self) -> Option<&str> {
        Some(self.namespace.as_str()).filter(|namespace| !namespace.is_empty())
    }

    /// Returns the caller's name; empty if callers are not authenticated.
    pub(super) fn user(&self) -> &str {
        self.caller.as_ref().map_or("", |caller| &caller.name)
    }

    pub(super) fn format(&self, ingest: &Ingest) -> Result<AnswerFormat, Rejection> {
        AnswerFormat::negotiate(self.group, || ingest.0.shards.clock().now().wall, self.query(), &self.headers)
    }

    /// Refuses a write of an eventweir whose upstream this is. It waits for an answer with a version, which an accepted
    /// event does not have yet, and each of its tries would count.
    pub(super) fn check_sender(&self) -> Result<(), Rejection> {
        if !is_of_eventweir(&self.headers) {
            return Ok(());
        }
        let message = "an eventweir cannot write to this one: its kubeconfig must name an API server, or an eventweir \
                       with passthrough: on";
        let status = Status::new(503, "ServiceUnavailable", message).with_retry_after(SENDER_PAUSE);
        Err(Rejection::new(RejectReason::Denied, status))
    }

    /// Returns managed fields that mark an event as the client's own.
    pub(super) fn claim(&self) -> ManagedFields {
        managed_fields::claim(&self.manager())
    }

    pub(super) fn manager(&self) -> SmolStr {
        manager(self.query(), &self.headers)
    }

    /// Returns options with the client's manager and its API group.
    pub(super) fn write_options(&self) -> WriteOptions {
        WriteOptions::new(self.manager(), self.group)
    }
}

/// Returns the `fieldManager` of the query, or else the User-Agent up to its first `/`, for managedFields
/// (`k8s.io/apiserver/pkg/endpoints/handlers`, `managerOrUserAgent`). Of neither the API server makes `unknown`.
fn manager(query: Option<&str>, headers: &HeaderMap) -> SmolStr {
    let named = options::first(query, "fieldManager").filter(|name| !name.is_empty());
    named.map(SmolStr::new).unwrap_or_else(|| {
        let agent = headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default();
        // `prefixFromUserAgent`: without unprintable characters, and cut at the limit.
        let name = agent.split('/').next().unwrap_or_default().chars().filter(|letter| json::is_printable(*letter));
        let name = cut(&name.collect::<String>(), FIELD_MANAGER_MAX);
        if name.is_empty() { SmolStr::new_static("unknown") } else { name }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_query_names_the_manager_or_else_the_user_agent() {
        let check = |query, agent: &str, expected: &str| {
            let headers = [(USER_AGENT, agent.parse().unwrap())].into_iter().collect();
            assert_eq!(manager(query, &headers), expected);
        };
        check(Some("dryRun=All&fieldManager=my%2Fproxy"), "golden-client/1.0", "my/proxy");
        check(Some("fieldManager="), "golden-client/1.0", "golden-client");
        check(None, "kubectl/v1.36 (linux)", "kubectl");
        check(None, "a\tb", "ab");
        assert_eq!(manager(None, &[(USER_AGENT, "a\u{a0}\u{ad}b".parse().unwrap())].into_iter().collect()), "ab");
        check(None, &"x".repeat(200), &"x".repeat(128));
        // Fault: eventweir itself was the manager.
        for agent in ["", "/v1", "\t"] {
            check(None, agent, "unknown");
        }
        assert_eq!(manager(None, &HeaderMap::new()), "unknown");
    }
}
