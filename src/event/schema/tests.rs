//! Events made by walking over the schema, and the proof that nothing of an Event is missing in it.

use proptest::prelude::*;

use super::*;
use crate::event::json::{self, Strictness};
use crate::event::protobuf;

/// Numbers that decide what a made value is. 0 is an empty one.
pub(in crate::event) struct Choices {
    given: std::vec::IntoIter<u64>,
    otherwise: u64,
}

impl Choices {
    /// The same choice again and again.
    pub(in crate::event) fn all(choice: u64) -> Self {
        Self { given: Vec::new().into_iter(), otherwise: choice }
    }

    fn next(&mut self) -> u64 {
        self.given.next().unwrap_or(self.otherwise)
    }

    /// A number in the range, or none.
    fn within(&mut self, range: std::ops::Range<i64>) -> Option<i64> {
        let choice = i64::try_from(self.next() >> 1).unwrap();
        (choice != 0).then(|| range.start + choice % (range.end - range.start))
    }
}

/// What can be made.
pub(in crate::event) trait Make: Default {
    fn make(choices: &mut Choices) -> Self;
}

impl<T: Object> Make for T {
    fn make(choices: &mut Choices) -> Self {
        let mut object = T::default();
        for member in T::members(ApiGroup::Core) {
            with_access!(&member.slot, access => *(access.get_mut)(&mut object) = Make::make(choices));
        }
        object.settle();
        object
    }
}

impl Make for SmolStr {
    fn make(choices: &mut Choices) -> Self {
        const LETTERS: [char; 12] =
            ['a', 'Z', '"', '\\', '\n', '\u{1}', '<', '&', 'é', '\u{2028}', '\u{fffd}', '\u{1f600}'];
        let length = choices.next() % 40;
        let letters = (0..length).map(|_| {
            let choice = choices.next();
            let any = char::from_u32(u32::try_from(choice >> 8 & 0x1f_ffff).unwrap());
            any.filter(|_| choice.is_multiple_of(2))
                .unwrap_or(LETTERS[usize::try_from(choice >> 8 & 0xff).unwrap() % LETTERS.len()])
        });
        letters.collect()
    }
}

impl Make for i32 {
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    fn make(choices: &mut Choices) -> Self {
        choices.next() as i32
    }
}

impl Make for i64 {
    fn make(choices: &mut Choices) -> Self {
        choices.next().cast_signed()
    }
}

impl Make for Option<i64> {
    fn make(choices: &mut Choices) -> Self {
        (choices.next() != 0).then(|| i64::make(choices))
    }
}

impl Make for Option<bool> {
    fn make(choices: &mut Choices) -> Self {
        [None, Some(true), Some(false)][usize::try_from(choices.next() % 3).unwrap()]
    }
}

/// Years 1 to 9999 without the zero time, which is "not set".
impl Make for Option<Time> {
    fn make(choices: &mut Choices) -> Self {
        choices.within(Time::ZERO.0 + 1..253_402_300_800).map(Time)
    }
}

impl Make for Option<MicroTime> {
    fn make(choices: &mut Choices) -> Self {
        choices.within(MicroTime::ZERO.0 + 1..253_402_300_800_000_000).map(MicroTime)
    }
}

impl<T: Make> Make for Vec<T> {
    fn make(choices: &mut Choices) -> Self {
        (0..choices.next() % 3).map(|_| T::make(choices)).collect()
    }
}

impl Make for BTreeMap<SmolStr, SmolStr> {
    fn make(choices: &mut Choices) -> Self {
        (0..choices.next() % 3).map(|_| (SmolStr::make(choices), SmolStr::make(choices))).collect()
    }
}

impl Make for Option<Box<ObjectReference>> {
    fn make(choices: &mut Choices) -> Self {
        (choices.next() != 0).then(|| Box::new(Make::make(choices)))
    }
}

impl Make for Option<EventSeries> {
    fn make(choices: &mut Choices) -> Self {
        (choices.next() != 0).then(|| Make::make(choices))
    }
}

/// An empty list is none in protobuf.
impl Make for ManagedFields {
    fn make(choices: &mut Choices) -> Self {
        let entry = "{\"manager\":\"m\",\"fieldsV1\":{\"f:reason\":{},\"z\":[1,null,\"<\u{2028}é\"]}}";
        let number = choices.next() % 3;
        (number > 0).then(|| format!("[{}]", vec![entry; usize::try_from(number).unwrap()].join(",")).into())
    }
}

/// Any event that can be written.
pub(in crate::event) fn event() -> impl Strategy<Value = Event> {
    let choice = prop_oneof![Just(0), any::<u64>()];
    let given = prop::collection::vec(choice, 0..400);
    given.prop_map(|given| Event::make(&mut Choices { given: given.into_iter(), otherwise: 0 }))
}

/// An object whose members are all set.
fn filled<T: Object>() -> T {
    T::make(&mut Choices::all(7))
}

fn is_set<T: Default + PartialEq>(field: &T) -> bool {
    *field != T::default()
}

/// Fails where a field is not set, and so has no row.
macro_rules! assert_set {
    ($($field:ident),+ $(,)?) => {
        $(assert!(is_set(&$field), stringify!($field));)+
    };
}

#[test]
fn every_field_has_a_row() {
    // Without `..`, so that a new field does not compile before it is asked for here.
    let Event {
        first_timestamp,
        last_timestamp,
        count,
        // `kind` and `apiVersion`, which are no members of what is stored.
        type_meta: _,
        metadata,
        involved_object,
        reason,
        message,
        source,
        event_type,
        event_time,
        series,
        action,
        related,
        reporting_controller,
        reporting_instance,
    } = filled();
    assert_set!(first_timestamp, last_timestamp, count, reason, message, event_type, event_time, action);
    assert_set!(reporting_controller, reporting_instance);
    let ObjectMeta { name, namespace, resource_version, uid, creation_timestamp, managed_fields, rare } = metadata;
    assert_set!(name, namespace, resource_version, uid, creation_timestamp, managed_fields);
    let RareMeta {
        generate_name,
        self_link,
        generation,
        deletion_timestamp,
        deletion_grace_period_seconds,
        labels,
        annotations,
        owner_references,
        finalizers,
    } = *rare.unwrap();
    assert_set!(generate_name, self_link, generation, deletion_timestamp, deletion_grace_period_seconds);
    assert_set!(labels, annotations, finalizers);
    let OwnerReference { api_version, kind, name, uid, controller, block_owner_deletion } = owner_references[0].clone();
    assert_set!(api_version, kind, name, uid, controller, block_owner_deletion);
    for object in [involved_object, *related.unwrap()] {
        let ObjectReference { kind, namespace, name, uid, api_version, resource_version, field_path } = object;
        assert_set!(kind, namespace, name, uid, api_version, resource_version, field_path);
    }
    let EventSource { component, host } = source;
    assert_set!(component, host);
    let EventSeries { count, last_observed_time } = series.unwrap();
    assert_set!(count, last_observed_time);
}

#[test]
fn an_event_with_all_members_survives_every_form() {
    let event: Event = filled();
    for group in [ApiGroup::Core, ApiGroup::Events] {
        let expected = Event { type_meta: Some(group), ..event.clone() };
        let mut body = Vec::new();
        json::write_json(group, &event, &mut body);
        assert_eq!(json::decode(group, &body, Strictness::Refuse).unwrap().event, expected);
        let mut body = Vec::new();
        protobuf::write(group, &event, &mut body);
        assert_eq!(protobuf::decode(group, &body).unwrap().event, expected);
    }
}

#[test]
fn each_group_lists_each_member_once_and_by_number() {
    fn check<T: Object>() {
        for group in [ApiGroup::Core, ApiGroup::Events] {
            let members = T::members(group);
            assert!(members.len() <= 32, "a bit for each");
            let mut names: Vec<&str> = members.iter().map(|member| member.name(group)).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), members.len());
            let mut numbers: Vec<u32> = T::by_number(group).iter().map(|member| member.number(group)).collect();
            assert!(numbers.is_sorted(), "{numbers:?}");
            numbers.dedup();
            assert_eq!(numbers.len(), members.len());
        }
    }
    check::<Event>();
    check::<ObjectMeta>();
    check::<ObjectReference>();
    check::<EventSource>();
    check::<EventSeries>();
    check::<OwnerReference>();
}
