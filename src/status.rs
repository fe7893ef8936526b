//! `metav1.Status`: how the Kubernetes API says no. Constructors give the apiserver's own words
//! (`k8s.io/apimachinery/pkg/api/errors/errors.go`). Pure values.

use serde::{Deserialize, Serialize};

/// A failure in the apiserver's own form. Field order is the apiserver's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Human-readable description.
    #[serde(default)]
    pub message: String,
    /// Machine-readable reason, `NotFound` for example; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// HTTP status code.
    #[serde(default)]
    pub code: u16,
    /// Where a list that cannot be consistent any more can go on (`metadata.continue`).
    #[serde(skip)]
    pub continue_token: String,
}

/// Details of a [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDetails {
    /// Name of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its API group.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Its kind, or the resource's plural.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Uid of the object.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One entry per fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<StatusCause>,
    /// Seconds after which the client may try again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// One fault of a [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusCause {
    /// `FieldValueInvalid`, `FieldValueRequired`, …
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde asks for")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Status {
    /// A failure with a code, a reason and a message.
    #[must_use]
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { message: message.into(), reason: reason.to_owned(), details: None, code, continue_token: String::new() }
    }

    /// The same with details.
    #[must_use]
    pub fn with_details(mut self, details: StatusDetails) -> Self {
        self.details = Some(details);
        self
    }

    /// 404 `events "x" not found` (`resource` is `events` or `events.events.k8s.io`, as the API group words it).
    #[must_use]
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        Self::new(404, "NotFound", format!("{qualified} \"{name}\" not found")).with_details(StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..StatusDetails::default()
        })
    }

    /// 409 `events "x" already exists`.
    #[must_use]
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        Self::new(409, "AlreadyExists", format!("{qualified} \"{name}\" already exists")).with_details(StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..StatusDetails::default()
        })
    }

    /// 409 `Operation cannot be fulfilled on events "x": …`.
    #[must_use]
    pub fn conflict(group: &str, resource: &str, name: &str, text: &str) -> Self {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {qualified} \"{name}\": {text}"))
            .with_details(StatusDetails {
                name: name.to_owned(),
                group: group.to_owned(),
                kind: resource.to_owned(),
                ..StatusDetails::default()
            })
    }

    /// 400 `BadRequest`.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 429 with `retryAfterSeconds`; the HTTP face adds the `Retry-After` header, without which clients give up.
    #[must_use]
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message)
            .with_details(StatusDetails { retry_after_seconds, ..StatusDetails::default() })
    }

    /// True when one of the causes has this reason (`NamespaceTerminating` for example).
    #[must_use]
    pub fn has_cause(&self, reason: &str) -> bool {
        self.details.as_ref().is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
    }

    /// The complete document, `kind` and `apiVersion` first, as the apiserver orders it.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Document<'a> {
            kind: &'static str,
            #[serde(rename = "apiVersion")]
            api_version: &'static str,
            metadata: ListMeta<'a>,
            status: &'static str,
            #[serde(flatten)]
            status_fields: &'a Status,
        }
        #[derive(Serialize)]
        struct ListMeta<'a> {
            #[serde(rename = "continue", skip_serializing_if = "str::is_empty")]
            continue_token: &'a str,
        }
        let metadata = ListMeta { continue_token: &self.continue_token };
        let document = Document { kind: "Status", api_version: "v1", metadata, status: "Failure", status_fields: self };
        serde_json::to_vec(&document).unwrap_or_default()
    }
}

/// A `Status` that tells of a success, as a DELETE is answered.
#[must_use]
pub fn success_json(details: &StatusDetails) -> Vec<u8> {
    let document = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    document.to_string().into_bytes()
}
