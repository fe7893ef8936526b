//! Decoding: `serde` visitors that iterate over the schema and write straight into the members of an Event, without a
//! tree.
//!
//! Follows Go's decoder: `null` is no value, and the last duplicate of a member wins (objects, lists and maps are
//! merged into the existing value). Unknown members are ignored. Faults that strict decoding refuses are collected in
//! [`Pass`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use smol_str::SmolStr;

use super::text::{check_values, quoted};
use crate::event::schema::{Member, Object, with_access};
use crate::event::{ApiGroup, EventSeries, ManagedFields, MicroTime, ObjectReference, Time, cut};

/// LIMIT: strict faults that are reported, as many as by `sigs.k8s.io/json`; further ones are dropped.
pub(in crate::event) const STRICT_FAULTS_MAX: usize = 100;

/// LIMIT: bytes of the paths of all strict faults, approximately, repeated ones included; further ones are dropped. The
/// name of a member can be as long as the body, and have 100,000s of duplicates below it.
const STRICT_BYTES_MAX: usize = 1 << 20;
/// LIMIT: bytes of the path in a strict fault; the rest is cut.
const PATH_BYTES: usize = 4 << 10;

/// LIMIT: bytes of an invalid value that its error shows.
const SHOWN_BYTES: usize = 40;

/// Decodes a whole JSON document into `target`; `null` leaves an object unchanged.
pub(super) fn document<T: Read>(json: &str, target: &mut T, pass: &mut Pass) -> Result<(), serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(json);
    Seed { into: target, at: &Path::Root, pass }.deserialize(&mut reader)?;
    reader.end()
}

/// The state of decoding one body.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) group: ApiGroup,
    /// `kind` and `apiVersion` of the document; empty when absent.
    pub(super) stated: [SmolStr; 2],
    /// Whether `kind` and `apiVersion` are present.
    has_stated: [bool; 2],
    /// The most elements of a list.
    pub(super) elements_max: usize,
    /// The path of the invalid value.
    pub(super) fault_at: Option<String>,
    /// The members that strict decoding refuses, and the same as a set.
    pub(super) strict: Vec<String>,
    strict_seen: HashSet<String>,
    /// Bytes of the paths of strict faults so far.
    strict_bytes: usize,
}

impl Pass {
    pub(super) fn new(group: ApiGroup) -> Self {
        let (stated, has_stated) = (<[SmolStr; 2]>::default(), [false; 2]);
        let (elements_max, strict_seen) = (usize::MAX, HashSet::new());
        let (strict, strict_bytes) = (Vec::new(), 0);
        Self { group, stated, has_stated, elements_max, fault_at: None, strict, strict_seen, strict_bytes }
    }

    /// Adds an `unknown` or `duplicate` member to the strict faults.
    #[cold]
    pub(super) fn strict_fault(&mut self, what: &str, at: &Path<'_>) {
        if self.strict.len() >= STRICT_FAULTS_MAX || self.strict_bytes >= STRICT_BYTES_MAX {
            return;
        }
        let path = at.to_string();
        self.strict_bytes = self.strict_bytes.saturating_add(path.len());
        let fault = format!("{what} field {}", quoted(&cut(&path, PATH_BYTES)));
        if self.strict_seen.insert(fault.clone()) {
            self.strict.push(fault);
        }
    }

    /// Decodes the value of `kind` or `apiVersion`; returns false if `name` is another member of the document. The API
    /// server finds them regardless of case, but decodes them with regard to case.
    fn take_stated<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error> {
        const NAMES: [&str; 2] = ["kind", "apiVersion"];
        let Some(place) = NAMES.iter().position(|known| known.eq_ignore_ascii_case(name)) else { return Ok(false) };
        let (Some(known), Some(has_stated)) = (NAMES.get(place), self.has_stated.get_mut(place)) else {
            return Ok(false);
        };
        let at = Path::Name(&Path::Root, name);
        if *known != name {
            self.strict_fault("unknown", &at);
        } else if std::mem::replace(has_stated, true) {
            self.strict_fault("duplicate", &at);
        }
        let mut text = self.stated.get_mut(place).map(std::mem::take).unwrap_or_default();
        map.next_value_seed(Seed { into: &mut text, at: &at, pass: self })?;
        if let Some(stated) = self.stated.get_mut(place) {
            *stated = text;
        }
        Ok(true)
    }
}

/// The path of a value in the document.
#[derive(Debug, Clone, Copy)]
pub(super) enum Path<'p> {
    Root,
    Name(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
}

/// Writes a path such as `metadata.ownerReferences[0].name`.
impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Name(Self::Root, name) => f.write_str(name),
            Self::Name(parent, name) => write!(f, "{parent}.{name}"),
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// The target of the next value.
#[derive(Debug)]
pub(super) struct Seed<'s, M> {
    pub(super) into: &'s mut M,
    pub(super) at: &'s Path<'s>,
    pub(super) pass: &'s mut Pass,
}

pub(super) trait Read: Sized {
    fn read<'de, D: Deserializer<'de>>(seed: Seed<'_, Self>, from: D) -> Result<(), D::Error>;
}

impl<'de, M: Read> DeserializeSeed<'de> for Seed<'_, M> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        let Self { into, at, pass } = self;
        M::read(Seed { into, at, pass: &mut *pass }, from).inspect_err(|_error| {
            pass.fault_at.get_or_insert_with(|| at.to_string());
        })
    }
}

impl<T: Object> Read for T {
    fn read<'de, D: Deserializer<'de>>(seed: Seed<'_, Self>, from: D) -> Result<(), D::Error> {
        from.deserialize_any(seed)
    }
}

/// The beginning of a visitor: what it expects, and what `null` does to its target, if anything.
macro_rules! expects {
    ($what:expr $(, |$into:ident| $null:expr)?) => {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str($what)
        }

        fn visit_unit<E: Error>(self) -> Result<(), E> {
            $(
                let $into = self.into;
                $null;
            )?
            Ok(())
        }
    };
}

impl<'de, T: Object> Visitor<'de> for Seed<'_, T> {
    expects!("an object");

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { into, at: parent, pass } = self;
        let members = T::members(pass.group);
        let (mut seen, mut next) = (0_u32, 0_usize);
        while let Some(key) = map.next_key_seed(Key { members, next, group: pass.group })? {
            match key {
                MemberName::Member(place, member) => {
                    let at = Path::Name(parent, member.name(pass.group));
                    let bit = u32::try_from(place).ok().and_then(|place| 1_u32.checked_shl(place)).unwrap_or_default();
                    if seen & bit != 0 {
                        pass.strict_fault("duplicate", &at);
                    }
                    seen |= bit;
                    next = place.saturating_add(1);
                    with_access!(&member.slot, access => {
                        map.next_value_seed(Seed { into: (access.get_mut)(into), at: &at, pass: &mut *pass })?;
                    });
                }
                MemberName::Other(name) => {
                    if !(matches!(parent, Path::Root) && pass.take_stated(&name, &mut map)?) {
                        pass.strict_fault("unknown", &Path::Name(parent, &name));
                        map.next_value::<IgnoredAny>()?;
                    }
                }
            }
        }
        into.settle();
        Ok(())
    }
}

/// The lookup of the next name.
struct Key<T: 'static> {
    members: &'static [&'static Member<T>],
    /// The index of the member that comes next, if the members are in schema order.
    next: usize,
    group: ApiGroup,
}

enum MemberName<T: 'static> {
    /// A member, and its index.
    Member(usize, &'static Member<T>),
    /// A name that no member has.
    Other(SmolStr),
}

impl<'de, T> DeserializeSeed<'de> for Key<T> {
    type Value = MemberName<T>;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<MemberName<T>, D::Error> {
        from.deserialize_str(self)
    }
}

impl<T> Visitor<'_> for Key<T> {
    type Value = MemberName<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<MemberName<T>, E> {
        // Usually it is the expected member, or one soon after it.
        let (before, after) = self.members.split_at_checked(self.next).unwrap_or_default();
        let mut members = (self.next..).zip(after).chain((0..).zip(before));
        let found = members.find(|(_, member)| member.name(self.group) == name);
        Ok(found.map_or_else(|| MemberName::Other(name.into()), |(place, member)| MemberName::Member(place, member)))
    }
}

/// Types that are decoded by the kind of the value.
macro_rules! by_value {
    ($($value:ty),+ $(,)?) => {
        $(impl Read for $value {
            fn read<'de, D: Deserializer<'de>>(seed: Seed<'_, Self>, from: D) -> Result<(), D::Error> {
                from.deserialize_any(seed)
            }
        })+
    };
}
by_value!(
    SmolStr,
    Option<Time>,
    Option<MicroTime>,
    BTreeMap<SmolStr, SmolStr>,
    Option<Box<ObjectReference>>,
    Option<EventSeries>,
    Value,
);

impl Visitor<'_> for Seed<'_, SmolStr> {
    expects!("a string");

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        *self.into = SmolStr::new(text);
        Ok(())
    }
}

/// Types that one expression decodes.
macro_rules! by_expression {
    ($($value:ty: |$slot:ident, $from:ident| $read:expr);+ $(;)?) => {
        $(impl Read for $value {
            fn read<'de, D: Deserializer<'de>>(seed: Seed<'_, Self>, $from: D) -> Result<(), D::Error> {
                let $slot = seed.into;
                *$slot = $read;
                Ok(())
            }
        })+
    };
}
by_expression!(
    i32: |slot, from| whole_number(from)?.unwrap_or(*slot);
    i64: |slot, from| whole_number(from)?.unwrap_or(*slot);
    Option<i64>: |slot, from| whole_number(from)?;
    Option<bool>: |slot, from| Self::deserialize(from)?;
);

/// Decodes an integer by its digits, as Go does, so that `2.0` and `1e2` are invalid. `None` for `null`.
fn whole_number<'de, D: Deserializer<'de>, N: FromStr>(from: D) -> Result<Option<N>, D::Error> {
    match <&RawValue>::deserialize(from)?.get() {
        "null" => Ok(None),
        text => text.parse().map(Some).map_err(|_not_whole| {
            let bits = size_of::<N>().saturating_mul(8);
            D::Error::custom(format_args!("expected a whole number of {bits} bits, found {}", cut(text, SHOWN_BYTES)))
        }),
    }
}

/// Decodes any list and keeps it as text. LIMIT: a list that nests deeper than `serde_json` reads (128), or has very many
/// values, is dropped; the API server makes no such list.
impl Read for ManagedFields {
    fn read<'de, D: Deserializer<'de>>(seed: Seed<'_, Self>, from: D) -> Result<(), D::Error> {
        let given = <&RawValue>::deserialize(from)?.get();
        if given != "null" && !given.starts_with('[') {
            return Err(D::Error::custom(format_args!("expected a list, found {}", cut(given, SHOWN_BYTES))));
        }
        // Its elements are not kept.
        let elements: Option<Vec<IgnoredAny>> = serde_json::from_str(given).map_err(D::Error::custom)?;
        if elements.map_or(0, |elements| elements.len()) > seed.pass.elements_max {
            return Err(too_many(seed.pass.elements_max));
        }
        let given = Some(given).filter(|given| check_values(given.as_bytes()).is_ok());
        let value: Option<Value> = given.and_then(|given| serde_json::from_str(given).unwrap_or_default());
        *seed.into = value.map(|value| value.to_string().into());
        Ok(())
    }
}

macro_rules! times {
    ($($time:ident, $example:literal, $keeps:expr);+) => {
        $(impl Visitor<'_> for Seed<'_, Option<$time>> {
            expects!($example, |into| *into = None);

            fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
                let time = $time::parse(text).map_err(E::custom)?;
                *self.into = Some(time).filter($keeps);
                Ok(())
            }
        })+
    };
}
// Go's zero time means "not set".
// COMPAT(apiserver): an explicit zero time with microseconds is kept and counts as set, because Go's validation
// compares it with a zero time of another location. It is written as `null`.
times!(
    Time, "a time such as \"2026-01-02T15:04:05Z\"", |time| *time != Time::ZERO;
    MicroTime, "a time such as \"2026-01-02T15:04:05.000000Z\"", |_| true
);

fn too_many<E: Error>(most: usize) -> E {
    E::custom(format_args!("a list has more than {most} elements"))
}

impl<T: Read + Default> Read for Vec<T> {
    fn read<'de, D: Deserializer<'de>>(seed: Seed<'_, Self>, from: D) -> Result<(), D::Error> {
        from.deserialize_any(seed)
    }
}

impl<'de, T: Read + Default> Visitor<'de> for Seed<'_, Vec<T>> {
    expects!("a list", |into| into.clear());

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        for index in 0.. {
            if index == self.pass.elements_max && list.next_element::<IgnoredAny>()?.is_some() {
                return Err(too_many(index));
            }
            if index == self.into.len() {
                self.into.push(T::default());
            }
            let Some(into) = self.into.get_mut(index) else { break };
            let at = Path::Index(self.at, index);
            if list.next_element_seed(Seed { into, at: &at, pass: &mut *self.pass })?.is_none() {
                self.into.truncate(index);
                break;
            }
        }
        Ok(())
    }
}

impl<'de> Visitor<'de> for Seed<'_, BTreeMap<SmolStr, SmolStr>> {
    expects!("an object of strings", |into| into.clear());

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut given = BTreeMap::new();
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            let at = Path::Name(self.at, &key);
            let mut value = SmolStr::default();
            map.next_value_seed(Seed { into: &mut value, at: &at, pass: &mut *self.pass })?;
            if given.insert(SmolStr::new(&key), value).is_some() {
                self.pass.strict_fault("duplicate", &at);
            }
        }
        if self.into.is_empty() {
            *self.into = given;
        } else {
            // Not `append`, which takes time for all that is there, for each of 100,000s of repeated members.
            self.into.extend(given);
        }
        Ok(())
    }
}

/// Decodes the target of a pointer in Go; `null` unsets it.
macro_rules! optional {
    ($($target:ty: $object:ty),+) => {
        $(impl<'de> Visitor<'de> for Seed<'_, Option<$target>> {
            expects!("an object", |into| *into = None);

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
                let Self { into, at, pass } = self;
                let into: &mut $object = into.get_or_insert_default();
                Seed { into, at, pass }.visit_map(map)
            }
        })+
    };
}
optional!(Box<ObjectReference>: ObjectReference, EventSeries: EventSeries);
