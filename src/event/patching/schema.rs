//! What a strategic merge patch has to know of an Event's Go types: which members are structs, and which lists are merged
//! (`patchStrategy` and `patchMergeKey` in `k8s.io/apimachinery/pkg/apis/meta/v1/types.go`; the Event itself has none).

/// A type whose members can be looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Schema {
    Event,
    ObjectMeta,
    ObjectReference,
    EventSource,
    EventSeries,
    OwnerReference,
    /// Something without members of its own: labels, managed fields, texts.
    Opaque,
}

/// What becomes of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListStrategy {
    /// The patch's list is taken.
    Replace,
    /// A set of plain values.
    MergeSet,
    /// Objects are matched by this member.
    MergeBy(&'static str),
}

impl Schema {
    /// The type's name in Go.
    pub(super) const fn go_name(self) -> &'static str {
        match self {
            Self::Event => "Event",
            Self::ObjectMeta => "ObjectMeta",
            Self::ObjectReference => "ObjectReference",
            Self::EventSource => "EventSource",
            Self::EventSeries => "EventSeries",
            Self::OwnerReference => "OwnerReference",
            Self::Opaque => "string",
        }
    }

    /// The type of a member, and what becomes of it where it is a list; `None` for a member that the type does not have.
    pub(super) fn member(self, name: &str) -> Option<(Self, ListStrategy)> {
        let plain = |schema| Some((schema, ListStrategy::Replace));
        match (self, name) {
            (Self::Event, "metadata") => plain(Self::ObjectMeta),
            (Self::Event, "involvedObject" | "regarding" | "related") => plain(Self::ObjectReference),
            (Self::Event, "source" | "deprecatedSource") => plain(Self::EventSource),
            (Self::Event, "series") => plain(Self::EventSeries),
            (Self::ObjectMeta, "ownerReferences") => Some((Self::OwnerReference, ListStrategy::MergeBy("uid"))),
            (Self::ObjectMeta, "finalizers") => Some((Self::Opaque, ListStrategy::MergeSet)),
            (Self::ObjectMeta, "labels" | "annotations" | "managedFields") => plain(Self::Opaque),
            _ => None,
        }
    }
}
