//! The Kubernetes Event, in either API group. Pure values, no I/O.
//!
//! core/v1 and events.k8s.io/v1 are two forms of one stored object (`docs/semantics.md`, "One object, two API groups").
//! [`Event`] holds the fields of both, under core/v1's names where they differ. `schema` lists them for everything that
//! reads or writes all fields: [`json`], [`protobuf`], [`selector`] and [`validate`].

pub mod conversion;
pub mod json;
pub mod managed_fields;
pub mod patching;
pub mod protobuf;
pub mod repair;
mod schema;
pub mod selector;
mod time;
pub mod validate;
mod watch;

pub use managed_fields::ManagedFields;
pub use time::{MicroTime, Time, TimeError};
pub use watch::WatchEvent;

use schema::text_bytes;
use smol_str::SmolStr;

/// The API group of a wire form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiGroup {
    /// `v1`, the legacy core group: `/api/v1`.
    Core,
    /// `events.k8s.io/v1`: `/apis/events.k8s.io/v1`.
    Events,
}

impl ApiGroup {
    /// Returns the group's name, which is empty for the core group.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "",
            Self::Events => "events.k8s.io",
        }
    }

    /// Returns the `apiVersion` of objects in this group.
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Core => "v1",
            Self::Events => "events.k8s.io/v1",
        }
    }
}

/// An Event. Empty strings, `0` and `None` are absent fields, as in Kubernetes' Go type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event {
    /// First occurrence, whole seconds.
    pub first_timestamp: Option<Time>,
    /// Newest occurrence, whole seconds.
    pub last_timestamp: Option<Time>,
    /// Number of occurrences; 0 when absent.
    pub count: i32,
    /// The API group that `kind` and `apiVersion` of the body state; `None` if it had neither. client-go's correlator
    /// keeps them on plain events and drops them on combined ones.
    pub type_meta: Option<ApiGroup>,
    /// Standard object metadata.
    pub metadata: ObjectMeta,
    /// The involved object (`regarding` in events.k8s.io/v1).
    pub involved_object: ObjectReference,
    /// Short, machine-readable reason.
    pub reason: SmolStr,
    /// Human-readable description (`note` in events.k8s.io/v1).
    pub message: SmolStr,
    /// The source, old style (`deprecatedSource` in events.k8s.io/v1).
    pub source: EventSource,
    /// `Normal` or `Warning`; free text through core/v1.
    pub event_type: SmolStr,
    /// First observation. An event with it is "new style".
    pub event_time: Option<MicroTime>,
    /// The series the event represents, if any.
    pub series: Option<EventSeries>,
    /// The action that was taken or failed (new style).
    pub action: SmolStr,
    /// A second object (new style).
    pub related: Option<Box<ObjectReference>>,
    /// The reporting controller (new style): `reportingComponent` in core/v1, `reportingController` in
    /// events.k8s.io/v1.
    pub reporting_controller: SmolStr,
    /// The instance of the reporting controller (new style).
    pub reporting_instance: SmolStr,
}

/// Object metadata. Rarely used members are in a box of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectMeta {
    /// Name, unique within the namespace.
    pub name: SmolStr,
    /// Namespace.
    pub namespace: SmolStr,
    /// Version of the stored object, opaque; empty before it is stored.
    pub resource_version: SmolStr,
    /// Unique id given by the API server.
    pub uid: SmolStr,
    /// When the API server stored the object.
    pub creation_timestamp: Option<Time>,
    /// The fields that each manager set.
    pub managed_fields: ManagedFields,
    /// The rarely used members; `None` when all are empty.
    pub rare: Option<Box<RareMeta>>,
}

impl ObjectMeta {
    /// Changes the rarely used members, and drops their box if all of them are empty afterwards.
    pub fn change_rare(&mut self, change: impl FnOnce(&mut RareMeta)) {
        change(self.rare.get_or_insert_default());
        schema::Object::settle(self);
    }
}

/// The rarely used members of object metadata. Maps are sorted by key, as the API server writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RareMeta {
    /// Prefix for a server-made name.
    pub generate_name: SmolStr,
    /// Obsolete link to the object; dropped by the API server.
    pub self_link: SmolStr,
    /// Generation of the desired state.
    pub generation: i64,
    /// Time of the deletion request.
    pub deletion_timestamp: Option<Time>,
    /// Grace period of the deletion.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels.
    // LIMIT: maps are as long as the body had them, which is read up to `max_body_bytes`.
    pub labels: std::collections::BTreeMap<SmolStr, SmolStr>,
    /// Annotations.
    pub annotations: std::collections::BTreeMap<SmolStr, SmolStr>,
    /// Owners.
    pub owner_references: Vec<OwnerReference>,
    /// Finalizers.
    pub finalizers: Vec<SmolStr>,
}

/// An owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct OwnerReference {
    /// API version of the owner.
    pub api_version: SmolStr,
    /// Kind of the owner.
    pub kind: SmolStr,
    /// Name of the owner.
    pub name: SmolStr,
    /// Uid of the owner.
    pub uid: SmolStr,
    /// Whether the owner is the managing controller.
    pub controller: Option<bool>,
    /// Whether a foreground deletion of the owner waits for this object.
    pub block_owner_deletion: Option<bool>,
}

/// A reference to an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectReference {
    /// Kind.
    pub kind: SmolStr,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: SmolStr,
    /// Name.
    pub name: SmolStr,
    /// Uid.
    pub uid: SmolStr,
    /// API version.
    pub api_version: SmolStr,
    /// Version of the object when the event was made.
    pub resource_version: SmolStr,
    /// Part of the object, such as `spec.containers{web}`.
    pub field_path: SmolStr,
}

/// The source of an event, old style.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventSource {
    /// Component, such as `kubelet`.
    pub component: SmolStr,
    /// Node name.
    pub host: SmolStr,
}

/// A series of the same event, new style.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EventSeries {
    /// Occurrences in the series so far.
    pub count: i32,
    /// Newest occurrence.
    pub last_observed_time: Option<MicroTime>,
}

/// LIMIT: elements of each list in the metadata of a client's event (owners, finalizers, managed fields). An event with
/// more is refused: an empty element takes up to sixty times its bytes.
const ELEMENTS_MAX: usize = 10_000;

/// LIMIT: bytes of a new-style event's message that the API server accepts.
pub const NEW_STYLE_MESSAGE_MAX: usize = 1024;

/// LIMIT: bytes of a new-style event's reportingInstance, action and reason that the API server accepts.
const NEW_STYLE_TEXT_MAX: usize = 128;

/// Returns the longest prefix of `text` that ends at a character boundary and has at most `limit` bytes.
pub fn cut(text: &str, limit: usize) -> SmolStr {
    text.split_at(text.floor_char_boundary(limit)).0.into()
}

impl Event {
    /// Whether the API server accepts this event without an eventTime. Its namespace must be that of the involved
    /// object, or `default` if that has none (`validation/events.go`, `legacyValidateEvent`).
    pub fn can_be_old_style(&self) -> bool {
        let (object, own) = (&self.involved_object.namespace, &self.metadata.namespace);
        if object.is_empty() { own == "default" } else { object == own }
    }

    /// Whether the event has this name in this namespace.
    pub fn is_named(&self, namespace: &str, name: &str) -> bool {
        self.metadata.name == name && self.metadata.namespace == namespace
    }

    /// Puts an event that names no namespace into `default`.
    pub fn default_namespace(&mut self) {
        if self.metadata.namespace.is_empty() {
            self.metadata.namespace = SmolStr::new_static("default");
        }
    }

    /// Whether the type is `Warning`.
    pub fn is_warning(&self) -> bool {
        self.event_type == "Warning"
    }

    /// Returns the reporting component: `source.component`, or the reporting controller if that is empty.
    pub fn component(&self) -> &str {
        if self.source.component.is_empty() { &self.reporting_controller } else { &self.source.component }
    }

    /// Returns the reporting instance: `source.host`, or the reporting instance if there is no source.
    pub fn host(&self) -> &str {
        if self.source.component.is_empty() && self.source.host.is_empty() {
            &self.reporting_instance
        } else {
            &self.source.host
        }
    }

    /// Returns roughly the bytes of this event, inline and on the heap. Memory limits count in these.
    pub fn approximate_size(&self) -> usize {
        let Self { metadata, involved_object, source, related, .. } = self;
        let rare = metadata.rare.as_deref().map_or(0, |rare| {
            let pairs = rare.labels.iter().chain(&rare.annotations);
            let pairs = pairs.map(|(key, value)| 64 + key.len() + value.len()).sum::<usize>();
            let owners = rare.owner_references.iter().map(|owner| 256 + text_bytes(owner)).sum::<usize>();
            let finalizers = rare.finalizers.iter().map(|text| 24 + text.len()).sum::<usize>();
            size_of::<RareMeta>() + pairs + owners + finalizers
        });
        let related = related.as_deref().map_or(0, |object| size_of::<ObjectReference>() + text_bytes(object));
        let texts = text_bytes(self) + text_bytes(metadata) + text_bytes(involved_object) + text_bytes(source);
        size_of::<Self>() + metadata.managed_fields.as_deref().map_or(0, str::len) + texts + related + rare
    }
}
