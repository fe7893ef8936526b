//! Arbitrary events, made by a walk over the schema, and the check that every field has a row in it.

use proptest::prelude::*;

use super::*;

/// Numbers that determine a made value; 0 makes an empty one.
pub(in crate::event) struct Choices {
    given: std::vec::IntoIter<u64>,
    otherwise: u64,
}

impl Choices {
    /// Returns the same choice without end.
    pub(in crate::event) fn all(choice: u64) -> Self {
        Self { given: Vec::new().into_iter(), otherwise: choice }
    }

    fn next(&mut self) -> u64 {
        self.given.next().unwrap_or(self.otherwise)
    }

    /// Returns a number in the range, or none.
    fn within(&mut self, range: std::ops::Range<i64>) -> Option<i64> {
        let choice = i64::try_from(self.next() >> 1).unwrap();
        (choice != 0).then(|| range.start + choice % (range.end - range.start))
    }
}

/// A value that can be made.
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
        // A message of 128 bytes or more has a length of two bytes in protobuf.
        let choice = choices.next();
        let length = choice % if choice % 16 == 15 { 300 } else { 40 };
        let letters = (0..length).map(|_| {
            let choice = choices.next();
            let any = char::from_u32(u32::try_from(choice >> 8 & 0x1f_ffff).unwrap());
            any.filter(|_| choice.is_multiple_of(2))
                .unwrap_or(LETTERS[usize::try_from(choice >> 8 & 0xff).unwrap() % LETTERS.len()])
        });
        letters.collect()
    }
}

/// Types that one expression makes.
macro_rules! by_expression {
    ($($(#[$meta:meta])* $value:ty: |$choices:ident| $made:expr);+ $(;)?) => {
        $(impl Make for $value {
            $(#[$meta])*
            fn make($choices: &mut Choices) -> Self {
                $made
            }
        })+
    };
}
by_expression!(
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    i32: |choices| choices.next() as i32;
    i64: |choices| choices.next().cast_signed();
    Option<i64>: |choices| (choices.next() != 0).then(|| i64::make(choices));
    Option<bool>: |choices| [None, Some(true), Some(false)][usize::try_from(choices.next() % 3).unwrap()];
    Option<Box<ObjectReference>>: |choices| (choices.next() != 0).then(|| Box::new(Make::make(choices)));
    Option<EventSeries>: |choices| (choices.next() != 0).then(|| Make::make(choices));
    BTreeMap<SmolStr, SmolStr>: |choices| {
        (0..choices.next() % 3).map(|_| (SmolStr::make(choices), SmolStr::make(choices))).collect()
    };
);

/// Years 0 to 9999 without the zero time, which is "not set".
impl Make for Option<Time> {
    fn make(choices: &mut Choices) -> Self {
        choices.within(-62_167_219_200..253_402_300_800).map(Time).filter(|time| *time != Time::ZERO)
    }
}

impl Make for Option<MicroTime> {
    fn make(choices: &mut Choices) -> Self {
        let micros = choices.within(-62_167_219_200_000_000..253_402_300_800_000_000);
        micros.map(MicroTime).filter(|time| *time != MicroTime::ZERO)
    }
}

impl<T: Make> Make for Vec<T> {
    fn make(choices: &mut Choices) -> Self {
        (0..choices.next() % 3).map(|_| T::make(choices)).collect()
    }
}

/// Protobuf has no empty list, so none is made.
impl Make for ManagedFields {
    fn make(choices: &mut Choices) -> Self {
        const ENTRIES: [&str; 3] = [
            r#"{"manager":"m","operation":"Update","apiVersion":"v1","time":"2024-05-01T10:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:count":{},"f:aé<":{".":{}}}}"#,
            "{\"fieldsV1\":{\"z\":[1,null,\"<\u{2028}é\"]},\"subresource\":\"status\"}",
            "{}",
        ];
        let entries = (0..choices.next() % 3).map(|_| ENTRIES[usize::try_from(choices.next() % 3).unwrap()]);
        let entries = entries.collect::<Vec<_>>().join(",");
        (!entries.is_empty()).then(|| format!("[{entries}]").into())
    }
}

/// Generates any event that can be written; often one whose members are all set.
pub(in crate::event) fn event() -> impl Strategy<Value = Event> {
    let choice = prop_oneof![Just(0), any::<u64>()];
    let given = prop::collection::vec(choice, 0..400);
    let any = given.prop_map(|given| Event::make(&mut Choices { given: given.into_iter(), otherwise: 0 }));
    prop_oneof![1 => Just(filled::<Event>()), 7 => any]
}

/// Returns an object whose members are all set.
fn filled<T: Object>() -> T {
    T::make(&mut Choices::all(7))
}

fn is_set<T: Default + PartialEq>(field: &T) -> bool {
    *field != T::default()
}

/// Fails for a field that is not set, which means that it has no row.
macro_rules! assert_set {
    ($($field:ident),+ $(,)?) => {
        $(assert!(is_set(&$field), stringify!($field));)+
    };
}

#[test]
fn every_field_has_a_row() {
    // Without `..`, so that a new field does not compile until it is checked here.
    let Event {
        first_timestamp,
        last_timestamp,
        count,
        // `kind` and `apiVersion`, which are not members of the stored object.
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

/// Checks that the size of an event contains each text of the part that `part` returns.
fn assert_sized<T: Object>(part: impl Fn(&mut Event) -> &mut T) {
    for member in T::members(ApiGroup::Core) {
        if let Slot::Text(access) = &member.slot {
            let mut event = Event::default();
            *(access.get_mut)(part(&mut event)) = "x".repeat(4096).into();
            assert!(event.approximate_size() > 4096, "{}", member.name(ApiGroup::Core));
        }
    }
}

/// Fault: generateName, selfLink and the texts of owners were not in the size, and so in no limit of memory.
#[test]
fn every_text_is_in_the_size_of_an_event() {
    assert_sized(|event| event);
    assert_sized(|event| &mut event.metadata);
    assert_sized(|event| &mut event.involved_object);
    assert_sized(|event| event.related.get_or_insert_default().as_mut());
    assert_sized(|event| &mut event.source);
    assert_sized(|event| {
        let owners = &mut event.metadata.rare.get_or_insert_default().owner_references;
        owners.push(OwnerReference::default());
        owners.last_mut().unwrap()
    });
}

#[test]
fn each_group_lists_each_member_once_and_by_number() {
    fn check<T: Object>() {
        for group in [ApiGroup::Core, ApiGroup::Events] {
            let members = T::members(group);
            assert!(members.len() <= 32, "one bit per member");
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
