//! Authorisation attributes of a request (`authorizer.Attributes`), and its refusal.

use smol_str::SmolStr;

use super::Purpose;
use crate::status::{Status, StatusDetails};

/// Verbs that report events.
const REPORTS: [&str; 3] = ["create", "patch", "update"];

/// Verb and target of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// `create`, `get`, `list` and so on; for a path the method in lower case.
    pub verb: SmolStr,
    /// Object, collection or path.
    pub target: Target,
}

/// Target of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Target {
    /// An object or a collection.
    Resource {
        /// The API group; empty for core.
        group: &'static str,
        /// `events` or `namespaces`.
        resource: &'static str,
        /// The namespace; empty for all of them.
        namespace: SmolStr,
        /// The object; empty for a collection.
        name: SmolStr,
    },
    /// Anything else: discovery, health.
    Path(SmolStr),
}

impl Attributes {
    /// Attributes of a create of events in a namespace.
    pub fn to_create(group: &'static str, namespace: &str) -> Self {
        let (namespace, name) = (namespace.into(), SmolStr::default());
        Self {
            verb: SmolStr::new_static("create"),
            target: Target::Resource { group, resource: "events", namespace, name },
        }
    }

    /// Returns the purpose of a request with these attributes.
    pub fn purpose(&self) -> Purpose {
        match &self.target {
            Target::Resource { resource: "events", .. } if REPORTS.contains(&&*self.verb) => Purpose::Report,
            Target::Resource { .. } | Target::Path(_) => Purpose::Other,
        }
    }

    /// Returns the same attributes without the object's name; `None` if there is no name.
    pub(super) fn of_any_name(&self) -> Option<Self> {
        let mut any = self.clone();
        match &mut any.target {
            Target::Resource { name, .. } if !name.is_empty() => *name = SmolStr::default(),
            Target::Resource { .. } | Target::Path(_) => return None,
        }
        Some(any)
    }

    /// Returns a 403 in the apiserver's words (`responsewriters.ForbiddenStatusError`).
    pub fn forbidden(&self, user: &str, reason: &str) -> Status {
        let Self { verb, target } = self;
        let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
        match target {
            Target::Path(path) => {
                let message = format!("forbidden: User {user:?} cannot {verb} path {path:?}{reason}");
                Status::new(403, "Forbidden", message).with_details(StatusDetails::default())
            }
            Target::Resource { group, resource, namespace, name } => {
                let place = match namespace.as_str() {
                    "" => "at the cluster scope".to_owned(),
                    namespace => format!("in the namespace {namespace:?}"),
                };
                let cannot =
                    format!("User {user:?} cannot {verb} resource {resource:?} in API group {group:?} {place}");
                refused(group, resource, name, &format!("{cannot}{reason}"))
            }
        }
    }
}

/// Returns a 403 about an object or a collection (`errors.NewForbidden`).
pub(super) fn refused(group: &str, resource: &str, name: &str, why: &str) -> Status {
    Status::about(403, "Forbidden", [group, resource, name], |resource| {
        let object = if name.is_empty() { resource.to_owned() } else { format!("{resource} {name:?}") };
        format!("{object} is forbidden: {why}")
    })
}
