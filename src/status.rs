//! `metav1.Status`, the failure document of the Kubernetes API. Constructors use the apiserver's words
//! (`k8s.io/apimachinery/pkg/api/errors/errors.go`). Pure values.

use serde::{Deserialize, Serialize};

/// A failure, with its fields in the apiserver's order.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Human-readable description.
    #[serde(default)]
    pub message: String,
    /// Machine-readable reason, `NotFound` for example; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Details about its object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<StatusDetails>,
    /// HTTP status code.
    #[serde(default)]
    pub code: u16,
    /// The token to continue a list that is no longer consistent (`metadata.continue`).
    #[serde(skip)]
    pub continue_token: String,
}

/// Details of a [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the members of the object")]
pub struct StatusDetails {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Kind of the object, or the plural of its resource.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
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
    /// Description of the fault.
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
    /// Returns a failure with a code, a reason and a message.
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { message: message.into(), reason: reason.to_owned(), details: None, code, continue_token: String::new() }
    }

    /// Adds details.
    pub fn with_details(mut self, details: StatusDetails) -> Self {
        self.details = Some(details);
        self
    }

    /// Returns the 404 `events "x" not found`. `resource` is `events` or `namespaces`, `group` its API group.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        Self::about(404, "NotFound", [group, resource, name], |resource| format!("{resource} \"{name}\" not found"))
    }

    /// Returns the 409 `events "x" already exists`.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let say = |resource: &str| format!("{resource} \"{name}\" already exists");
        Self::about(409, "AlreadyExists", [group, resource, name], say)
    }

    /// Returns the 409 `Operation cannot be fulfilled on events "x": …`.
    pub fn conflict(group: &str, name: &str, text: &str) -> Self {
        let say = |resource: &str| format!("Operation cannot be fulfilled on {resource} \"{name}\": {text}");
        Self::about(409, "Conflict", [group, "events", name], say)
    }

    /// Returns the 409 of a write that states another version than the stored one.
    pub fn outdated(group: &str, name: &str) -> Self {
        let text = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(group, name, text)
    }

    /// Returns a failure about one object. `say` makes the message from the resource, qualified by its API group.
    pub(crate) fn about(
        code: u16,
        reason: &str,
        [group, resource, name]: [&str; 3],
        say: impl FnOnce(&str) -> String,
    ) -> Self {
        let qualified = if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") };
        Self::new(code, reason, say(&qualified)).with_details(StatusDetails {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: resource.to_owned(),
            ..StatusDetails::default()
        })
    }

    /// Returns the 400 `BadRequest`.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// Returns a 429 with `retryAfterSeconds`.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::new(429, "TooManyRequests", message).with_retry_after(retry_after_seconds)
    }

    /// Sets `retryAfterSeconds`. Ingest adds the `Retry-After` header, without which clients do not retry.
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    /// Returns the failure with a message of at most so many bytes, and its first causes, together of at most as many.
    pub fn cut(mut self, bytes: usize) -> Self {
        self.message.truncate(self.message.floor_char_boundary(bytes));
        let mut room = bytes;
        if let Some(details) = &mut self.details {
            details.causes.retain_mut(|cause| {
                let has_room = room > 0;
                cause.message.truncate(cause.message.floor_char_boundary(room));
                room = room.saturating_sub(cause.reason.len() + cause.message.len() + cause.field.len());
                has_room
            });
        }
        self
    }

    /// Whether one of the causes has this reason, such as `NamespaceTerminating`.
    pub fn has_cause(&self, reason: &str) -> bool {
        self.details.as_ref().is_some_and(|details| details.causes.iter().any(|cause| cause.reason == reason))
    }

    /// Returns the whole document, with `kind` and `apiVersion` first, as the apiserver does.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(&self.document()).unwrap_or_default()
    }

    /// Returns the whole document for a serialiser.
    pub fn document(&self) -> impl Serialize {
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
        Document { kind: "Status", api_version: "v1", metadata, status: "Failure", status_fields: self }
    }
}

impl From<Box<Self>> for Status {
    fn from(status: Box<Self>) -> Self {
        *status
    }
}

/// Returns the `Status` of a success, which answers a DELETE.
pub fn success_json(details: &StatusDetails) -> Vec<u8> {
    let document = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
    });
    document.to_string().into_bytes()
}
