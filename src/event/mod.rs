//! The noun: one Kubernetes Event, whichever API group it came through. Pure values, no I/O.
//!
//! core/v1 and events.k8s.io/v1 are two spellings of one stored object (`docs/semantics.md`, "One object, two API groups"); this
//! type holds every field of either under core/v1's names. Wire forms live in [`core_v1`] and [`events_v1`], the apiserver's
//! rules in [`validate`].

pub mod core_v1;
pub mod events_v1;
pub mod json;
pub mod managed_fields;
pub mod patching;
pub mod protobuf;
pub mod repair;
mod schema;
pub mod spelling;
mod time;
pub mod validate;

pub use managed_fields::ManagedFields;
pub use time::{MicroTime, Time, TimeError};

use smol_str::SmolStr;

/// Which of the two API groups a wire form belongs to: the one that an event came by or is shown in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApiGroup {
    /// `v1`, the legacy core group: `/api/v1`.
    Core,
    /// `events.k8s.io/v1`: `/apis/events.k8s.io/v1`.
    Events,
}

impl ApiGroup {
    /// The group's name: empty for the core group.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Core => "",
            Self::Events => "events.k8s.io",
        }
    }

    /// The `apiVersion` of objects in this group.
    #[must_use]
    pub const fn api_version(self) -> &'static str {
        match self {
            Self::Core => "v1",
            Self::Events => "events.k8s.io/v1",
        }
    }
}

/// An Event. Empty strings, `0` and `None` stand for absent fields, as in Kubernetes' own Go type.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Event {
    /// First occurrence, whole seconds.
    pub first_timestamp: Option<Time>,
    /// Newest occurrence, whole seconds.
    pub last_timestamp: Option<Time>,
    /// Number of occurrences; 0 when absent.
    pub count: i32,
    /// The `kind` and `apiVersion` the body carried, as the group they name; `None` when it carried neither.
    /// client-go's correlator keeps them on plain events and loses them on combined ones.
    pub type_meta: Option<ApiGroup>,
    /// Standard object metadata.
    pub metadata: ObjectMeta,
    /// What the event is about (`regarding` in events.k8s.io/v1).
    pub involved_object: ObjectReference,
    /// Short, machine-readable cause.
    pub reason: SmolStr,
    /// Human-readable description (`note` in events.k8s.io/v1).
    pub message: SmolStr,
    /// Who reports, old style (`deprecatedSource` in events.k8s.io/v1).
    pub source: EventSource,
    /// `Normal` or `Warning`; free text through core/v1.
    pub event_type: SmolStr,
    /// When the event was first observed; its presence makes the event "new style".
    pub event_time: Option<MicroTime>,
    /// The series the event represents, if any.
    pub series: Option<EventSeries>,
    /// What was attempted or failed (new style).
    pub action: SmolStr,
    /// A second object (new style).
    pub related: Option<Box<ObjectReference>>,
    /// Who reports, new style: `reportingComponent` in core/v1, `reportingController` in events.k8s.io/v1.
    pub reporting_controller: SmolStr,
    /// Which instance reports, new style.
    pub reporting_instance: SmolStr,
}

/// Object metadata, with the rarely used members boxed away.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectMeta {
    /// Name, unique within the namespace.
    pub name: SmolStr,
    /// Namespace.
    pub namespace: SmolStr,
    /// Version of the stored object, opaque; empty when not stored yet.
    pub resource_version: SmolStr,
    /// Unique id given by the apiserver.
    pub uid: SmolStr,
    /// When the apiserver stored the object.
    pub creation_timestamp: Option<Time>,
    /// Which manager set which field.
    pub managed_fields: ManagedFields,
    /// Everything that events seldom carry.
    pub rare: Option<Box<RareMeta>>,
}

/// The members of object metadata that events seldom carry. Maps are sorted by key, as the apiserver writes them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RareMeta {
    /// Prefix for a server-made name.
    pub generate_name: SmolStr,
    /// Old link to the object itself; dropped by the apiserver.
    pub self_link: SmolStr,
    /// Generation of the desired state.
    pub generation: i64,
    /// When deletion was asked for.
    pub deletion_timestamp: Option<Time>,
    /// Grace period of a deletion.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Labels.
    // LIMIT: here and below what the body had, which is read up to `max_body_bytes`.
    pub labels: std::collections::BTreeMap<SmolStr, SmolStr>,
    /// Annotations.
    pub annotations: std::collections::BTreeMap<SmolStr, SmolStr>,
    /// Owners.
    pub owner_references: Vec<OwnerReference>,
    /// Finalizers.
    pub finalizers: Vec<SmolStr>,
}

/// An owner of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
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
    /// Whether the owner's foreground deletion waits for this object.
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
    /// Version of the object the event was made for.
    pub resource_version: SmolStr,
    /// Part of the object, such as `spec.containers{web}`.
    pub field_path: SmolStr,
}

/// Who reports, old style.
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

/// LIMIT: bytes of a new-style event's message that the apiserver takes.
pub const NEW_STYLE_MESSAGE_MAX: usize = 1024;

/// The longest beginning of `text` that ends on a character boundary and has at most `limit` bytes.
#[must_use]
pub fn cut(text: &str, limit: usize) -> SmolStr {
    if text.len() <= limit {
        return text.into();
    }
    let end = (0..=limit).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0);
    text.split_at(end).0.into()
}

impl Event {
    /// Whether the apiserver takes this event without an eventTime: an old-style event lives in its object's namespace, or
    /// in `default` (`validation/events.go`, `legacyValidateEvent`).
    #[must_use]
    pub fn can_be_old_style(&self) -> bool {
        let (object, own) = (&self.involved_object.namespace, &self.metadata.namespace);
        if object.is_empty() { own == "default" } else { object == own }
    }

    /// True for an event whose type asks for attention first.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        self.event_type == "Warning"
    }

    /// The reporting component: `source.component`, or the reporting controller where that is empty.
    #[must_use]
    pub fn component(&self) -> &str {
        if self.source.component.is_empty() { &self.reporting_controller } else { &self.source.component }
    }

    /// The reporting instance: `source.host`, or the reporting instance where no source is given.
    #[must_use]
    pub fn host(&self) -> &str {
        if self.source.component.is_empty() && self.source.host.is_empty() {
            &self.reporting_instance
        } else {
            &self.source.host
        }
    }

    /// Rough bytes this event holds on the heap and inline; what memory limits are counted in.
    #[must_use]
    pub fn approximate_size(&self) -> usize {
        // A text on the heap has two counters beside it.
        let heap = |text: &SmolStr| if text.is_heap_allocated() { text.len().saturating_add(16) } else { 0 };
        let reference = |object: &ObjectReference| {
            [
                &object.kind,
                &object.namespace,
                &object.name,
                &object.uid,
                &object.api_version,
                &object.resource_version,
                &object.field_path,
            ]
            .into_iter()
            .map(heap)
            .sum::<usize>()
        };
        let rare = self.metadata.rare.as_deref().map_or(0, |rare| {
            let pairs = rare
                .labels
                .iter()
                .chain(&rare.annotations)
                .map(|(key, value)| 64 + key.len() + value.len())
                .sum::<usize>();
            let owners = rare.owner_references.len().saturating_mul(256);
            let finalizers = rare.finalizers.iter().map(|text| 24 + text.len()).sum::<usize>();
            size_of::<RareMeta>() + pairs + owners + finalizers
        });
        let strings = [
            &self.metadata.name,
            &self.metadata.namespace,
            &self.metadata.resource_version,
            &self.metadata.uid,
            &self.reason,
            &self.message,
            &self.source.component,
            &self.source.host,
            &self.event_type,
            &self.action,
            &self.reporting_controller,
            &self.reporting_instance,
        ];
        size_of::<Self>()
            + self.metadata.managed_fields.as_deref().map_or(0, str::len)
            + strings.into_iter().map(heap).sum::<usize>()
            + reference(&self.involved_object)
            + self.related.as_deref().map_or(0, |object| size_of::<ObjectReference>() + reference(object))
            + rare
    }
}
