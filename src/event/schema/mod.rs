//! The list of an Event's members: name and protobuf number in each group, type, and whether an empty member is
//! written. All code that reads or writes every member walks over it, so a new member is one row here and one field of
//! its struct.
//!
//! After the Go types of `k8s.io/api/{core,events}/v1` and `k8s.io/apimachinery/pkg/apis/meta/v1`.

#[cfg(test)]
pub(super) mod tests;

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::{
    ApiGroup, Event, EventSeries, EventSource, ManagedFields, MicroTime, ObjectMeta, ObjectReference, OwnerReference,
    RareMeta, Time,
};

/// A struct with a list of its members.
pub(super) trait Object: Default + PartialEq + 'static {
    /// Returns the members in the order in which a group writes them. LIMIT: 32, because decoders mark them in a `u32`.
    fn members(group: ApiGroup) -> &'static [&'static Member<Self>];

    /// Returns the members in the order of their protobuf numbers.
    fn by_number(group: ApiGroup) -> &'static [&'static Member<Self>] {
        Self::members(group)
    }

    /// Restores the invariants of the struct after members were read into it.
    fn settle(&mut self) {}
}

/// A member of `T`. Arrays have one element per API group, core/v1 first.
#[derive(Debug)]
pub(super) struct Member<T: 'static> {
    names: [&'static str; 2],
    numbers: [u32; 2],
    always: [bool; 2],
    is_pointer: bool,
    /// Type and access.
    pub(super) slot: Slot<T>,
}

/// Access to a member of type `M`.
#[derive(Debug)]
pub(super) struct Access<T: 'static, M: 'static> {
    pub(super) get: fn(&T) -> &M,
    pub(super) get_mut: fn(&mut T) -> &mut M,
}

/// The types of members.
#[derive(Debug)]
pub(super) enum Slot<T: 'static> {
    Text(Access<T, SmolStr>),
    Int32(Access<T, i32>),
    Int64(Access<T, i64>),
    OptionalInt64(Access<T, Option<i64>>),
    OptionalBool(Access<T, Option<bool>>),
    Time(Access<T, Option<Time>>),
    MicroTime(Access<T, Option<MicroTime>>),
    Texts(Access<T, Vec<SmolStr>>),
    TextMap(Access<T, BTreeMap<SmolStr, SmolStr>>),
    Meta(Access<T, ObjectMeta>),
    Owners(Access<T, Vec<OwnerReference>>),
    Reference(Access<T, ObjectReference>),
    OptionalReference(Access<T, Option<Box<ObjectReference>>>),
    Source(Access<T, EventSource>),
    OptionalSeries(Access<T, Option<EventSeries>>),
    ManagedFields(Access<T, ManagedFields>),
}

/// Evaluates `$body` with the access to a member of any type.
macro_rules! with_access {
    ($slot:expr, $access:ident => $body:expr) => {
        match $slot {
            $crate::event::schema::Slot::Text($access) => $body,
            $crate::event::schema::Slot::Int32($access) => $body,
            $crate::event::schema::Slot::Int64($access) => $body,
            $crate::event::schema::Slot::OptionalInt64($access) => $body,
            $crate::event::schema::Slot::OptionalBool($access) => $body,
            $crate::event::schema::Slot::Time($access) => $body,
            $crate::event::schema::Slot::MicroTime($access) => $body,
            $crate::event::schema::Slot::Texts($access) => $body,
            $crate::event::schema::Slot::TextMap($access) => $body,
            $crate::event::schema::Slot::Meta($access) => $body,
            $crate::event::schema::Slot::Owners($access) => $body,
            $crate::event::schema::Slot::Reference($access) => $body,
            $crate::event::schema::Slot::OptionalReference($access) => $body,
            $crate::event::schema::Slot::Source($access) => $body,
            $crate::event::schema::Slot::OptionalSeries($access) => $body,
            $crate::event::schema::Slot::ManagedFields($access) => $body,
        }
    };
}
pub(super) use with_access;

impl<T> Member<T> {
    pub(super) const fn name(&self, group: ApiGroup) -> &'static str {
        self.names[group as usize]
    }

    pub(super) const fn number(&self, group: ApiGroup) -> u32 {
        self.numbers[group as usize]
    }

    /// Whether a group writes an empty member.
    pub(super) const fn is_always_written(&self, group: ApiGroup) -> bool {
        self.always[group as usize]
    }

    /// Whether protobuf leaves out an empty member although it writes its type always.
    pub(super) const fn is_pointer(&self) -> bool {
        self.is_pointer
    }
}

/// Makes a member with name and number in core/v1 and in events.k8s.io/v1.
const fn each<T>(core: (&'static str, u32), events: (&'static str, u32), slot: Slot<T>) -> Member<T> {
    Member { names: [core.0, events.0], numbers: [core.1, events.1], always: [false; 2], is_pointer: false, slot }
}

/// Makes a member with the same name and number in both groups.
const fn both<T>(name: &'static str, number: u32, slot: Slot<T>) -> Member<T> {
    each((name, number), (name, number), slot)
}

/// Marks a member as written when it is empty.
const fn always<T>(member: Member<T>) -> Member<T> {
    always_in(ApiGroup::Core, always_in(ApiGroup::Events, member))
}

/// Marks a member as written by one group when it is empty.
const fn always_in<T>(group: ApiGroup, mut member: Member<T>) -> Member<T> {
    member.always[group as usize] = true;
    member
}

/// Marks a member as a pointer in Go.
const fn pointer<T>(mut member: Member<T>) -> Member<T> {
    member.is_pointer = true;
    member
}

/// Makes the access to a field.
macro_rules! field {
    (rare.$field:ident) => {
        Access { get: |meta| &rare(meta).$field, get_mut: |meta| &mut meta.rare.get_or_insert_default().$field }
    };
    ($field:ident) => {
        Access { get: |object| &object.$field, get_mut: |object| &mut object.$field }
    };
}

static EVENT: [Member<Event>; 15] = [
    always(both("metadata", 1, Slot::Meta(field!(metadata)))),
    always(each(("involvedObject", 2), ("regarding", 8), Slot::Reference(field!(involved_object)))),
    each(("reason", 3), ("reason", 7), Slot::Text(field!(reason))),
    each(("message", 4), ("note", 10), Slot::Text(field!(message))),
    always(each(("source", 5), ("deprecatedSource", 12), Slot::Source(field!(source)))),
    always(each(("firstTimestamp", 6), ("deprecatedFirstTimestamp", 13), Slot::Time(field!(first_timestamp)))),
    always(each(("lastTimestamp", 7), ("deprecatedLastTimestamp", 14), Slot::Time(field!(last_timestamp)))),
    each(("count", 8), ("deprecatedCount", 15), Slot::Int32(field!(count))),
    each(("type", 9), ("type", 11), Slot::Text(field!(event_type))),
    always(each(("eventTime", 10), ("eventTime", 2), Slot::MicroTime(field!(event_time)))),
    each(("series", 11), ("series", 3), Slot::OptionalSeries(field!(series))),
    each(("action", 12), ("action", 6), Slot::Text(field!(action))),
    each(("related", 13), ("related", 9), Slot::OptionalReference(field!(related))),
    always_in(
        ApiGroup::Core,
        each(("reportingComponent", 14), ("reportingController", 4), Slot::Text(field!(reporting_controller))),
    ),
    always_in(
        ApiGroup::Core,
        each(("reportingInstance", 15), ("reportingInstance", 5), Slot::Text(field!(reporting_instance))),
    ),
];

static META: [Member<ObjectMeta>; 15] = [
    both("name", 1, Slot::Text(field!(name))),
    both("generateName", 2, Slot::Text(field!(rare.generate_name))),
    both("namespace", 3, Slot::Text(field!(namespace))),
    both("selfLink", 4, Slot::Text(field!(rare.self_link))),
    both("uid", 5, Slot::Text(field!(uid))),
    both("resourceVersion", 6, Slot::Text(field!(resource_version))),
    both("generation", 7, Slot::Int64(field!(rare.generation))),
    both("creationTimestamp", 8, Slot::Time(field!(creation_timestamp))),
    pointer(both("deletionTimestamp", 9, Slot::Time(field!(rare.deletion_timestamp)))),
    both("deletionGracePeriodSeconds", 10, Slot::OptionalInt64(field!(rare.deletion_grace_period_seconds))),
    both("labels", 11, Slot::TextMap(field!(rare.labels))),
    both("annotations", 12, Slot::TextMap(field!(rare.annotations))),
    both("ownerReferences", 13, Slot::Owners(field!(rare.owner_references))),
    both("finalizers", 14, Slot::Texts(field!(rare.finalizers))),
    both("managedFields", 17, Slot::ManagedFields(field!(managed_fields))),
];

static OWNER: [Member<OwnerReference>; 6] = [
    always(both("apiVersion", 5, Slot::Text(field!(api_version)))),
    always(both("kind", 1, Slot::Text(field!(kind)))),
    always(both("name", 3, Slot::Text(field!(name)))),
    always(both("uid", 4, Slot::Text(field!(uid)))),
    both("controller", 6, Slot::OptionalBool(field!(controller))),
    both("blockOwnerDeletion", 7, Slot::OptionalBool(field!(block_owner_deletion))),
];

static REFERENCE: [Member<ObjectReference>; 7] = [
    both("kind", 1, Slot::Text(field!(kind))),
    both("namespace", 2, Slot::Text(field!(namespace))),
    both("name", 3, Slot::Text(field!(name))),
    both("uid", 4, Slot::Text(field!(uid))),
    both("apiVersion", 5, Slot::Text(field!(api_version))),
    both("resourceVersion", 6, Slot::Text(field!(resource_version))),
    both("fieldPath", 7, Slot::Text(field!(field_path))),
];

static SOURCE: [Member<EventSource>; 2] =
    [both("component", 1, Slot::Text(field!(component))), both("host", 2, Slot::Text(field!(host)))];

static SERIES: [Member<EventSeries>; 2] = [
    always_in(ApiGroup::Events, both("count", 1, Slot::Int32(field!(count)))),
    always(both("lastObservedTime", 2, Slot::MicroTime(field!(last_observed_time)))),
];

/// Implements [`Object`] for structs whose list is in the order of JSON.
macro_rules! objects {
    ($($object:ty: $members:ident),+ $(,)?) => {
        $(impl Object for $object {
            fn members(_group: ApiGroup) -> &'static [&'static Member<Self>] {
                static ORDER: [&Member<$object>; $members.len()] = $members.each_ref();
                &ORDER
            }

            fn by_number(_group: ApiGroup) -> &'static [&'static Member<Self>] {
                static ORDER: [&Member<$object>; $members.len()] = by_number(&$members);
                &ORDER
            }
        })+
    };
}

objects! {
    OwnerReference: OWNER,
    ObjectReference: REFERENCE,
    EventSource: SOURCE,
    EventSeries: SERIES,
}

impl Object for Event {
    fn members(group: ApiGroup) -> &'static [&'static Member<Self>] {
        static CORE: [&Member<Event>; EVENT.len()] = EVENT.each_ref();
        static EVENTS: [&Member<Event>; EVENT.len()] = by_number(&EVENT);
        match group {
            ApiGroup::Core => &CORE,
            ApiGroup::Events => &EVENTS,
        }
    }
}

impl Object for ObjectMeta {
    fn members(_group: ApiGroup) -> &'static [&'static Member<Self>] {
        static ORDER: [&Member<ObjectMeta>; META.len()] = META.each_ref();
        &ORDER
    }

    /// Drops the box of rarely used members if it is empty.
    fn settle(&mut self) {
        if self.rare.as_deref() == Some(&RareMeta::default()) {
            self.rare = None;
        }
    }
}

/// Whether a member has the value of an absent one.
pub(super) fn is_empty<M: Default + PartialEq>(value: &M) -> bool {
    *value == M::default()
}

/// Returns the texts of an object with their members.
fn texts<T: Object>(object: &T) -> impl Iterator<Item = (&'static Member<T>, &SmolStr)> {
    T::members(ApiGroup::Core).iter().filter_map(move |member| {
        if let Slot::Text(access) = &member.slot { Some((*member, (access.get)(object))) } else { None }
    })
}

/// Returns the text in the member of this name in core/v1; `None` where there is no such text.
pub(super) fn text<'o, T: Object>(object: &'o T, name: &str) -> Option<&'o str> {
    texts(object).find(|(member, _)| member.name(ApiGroup::Core) == name).map(|(_, text)| text.as_str())
}

/// Returns the bytes of an object's texts on the heap, where each has two reference counts beside it.
pub(super) fn text_bytes<T: Object>(object: &T) -> usize {
    texts(object).filter(|(_, text)| text.is_heap_allocated()).map(|(_, text)| text.len() + 16).sum()
}

/// Returns the rarely used members; empty ones if there is no box.
fn rare(meta: &ObjectMeta) -> &RareMeta {
    static NOTHING: RareMeta = RareMeta {
        generate_name: SmolStr::new_static(""),
        self_link: SmolStr::new_static(""),
        generation: 0,
        deletion_timestamp: None,
        deletion_grace_period_seconds: None,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        owner_references: Vec::new(),
        finalizers: Vec::new(),
    };
    meta.rare.as_deref().unwrap_or(&NOTHING)
}

/// Returns the members by their numbers in events.k8s.io/v1, which is the order of that group.
const fn by_number<T, const N: usize>(members: &'static [Member<T>; N]) -> [&'static Member<T>; N] {
    let (mut order, mut place) = (members.each_ref(), 0);
    while place < N {
        let (mut before, mut other) = (0, 0);
        while other < N {
            if members[other].number(ApiGroup::Events) < members[place].number(ApiGroup::Events) {
                before += 1;
            }
            other += 1;
        }
        order[before] = &members[place];
        place += 1;
    }
    order
}
