//! Decoder of an Event's fields in either group, by a walk over the schema.
//!
//! A message field that occurs twice is merged, as in Go's generated code: the fields of the second message win. See
//! `k8s.io/api/{core,events}/v1/generated.proto`.

use std::collections::BTreeMap;

use smol_str::SmolStr;

use super::managed_fields;
use super::reader::{DecodeError, WireField, fields};
use crate::event::schema::{Object, with_access};
use crate::event::{ApiGroup, ELEMENTS_MAX, EventSeries, ManagedFields, MicroTime, ObjectReference, Time};

/// Decodes a message into an object.
pub(super) fn object<T: Object>(group: ApiGroup, data: &[u8], object: &mut T) -> Result<(), DecodeError> {
    let members = T::members(group);
    // Index of the next member, if the fields have the order of the list.
    let mut next = 0_usize;
    fields(data, |field| {
        let mut places = members.iter().enumerate().cycle().skip(next).take(members.len());
        let Some((place, member)) = places.find(|(_, member)| member.number(group).cast_signed() == field.number)
        else {
            return field.skip();
        };
        next = place.saturating_add(1);
        with_access!(&member.slot, access => (access.get_mut)(object).read(group, field))
    })?;
    object.settle();
    Ok(())
}

trait Read {
    fn read(&mut self, group: ApiGroup, field: &mut WireField<'_, '_>) -> Result<(), DecodeError>;
}

impl<T: Object> Read for T {
    fn read(&mut self, group: ApiGroup, field: &mut WireField<'_, '_>) -> Result<(), DecodeError> {
        object(group, field.bytes()?, self)
    }
}

/// Implements [`Read`] for types that one expression decodes.
macro_rules! by_value {
    ($($value:ty: |$slot:ident, $group:ident, $field:ident| $read:expr);+ $(;)?) => {
        $(impl Read for $value {
            fn read(&mut self, $group: ApiGroup, $field: &mut WireField<'_, '_>) -> Result<(), DecodeError> {
                let $slot = self;
                $read
            }
        })+
    };
}
by_value!(
    SmolStr: |slot, _group, field| field.string(slot);
    i32: |slot, _group, field| field.integer().map(|number| *slot = number);
    i64: |slot, _group, field| field.long().map(|number| *slot = number);
    Option<i64>: |slot, _group, field| field.long().map(|number| *slot = Some(number));
    Option<bool>: |slot, _group, field| field.boolean().map(|flag| *slot = Some(flag));
    Option<Time>: |slot, _group, field| time(field.bytes()?, slot);
    Option<MicroTime>: |slot, _group, field| micro_time(field.bytes()?, slot);
    BTreeMap<SmolStr, SmolStr>: |slot, _group, field| field.entry().map(|(key, value)| drop(slot.insert(key, value)));
    Option<Box<ObjectReference>>: |slot, group, field| slot.get_or_insert_default().as_mut().read(group, field);
    Option<EventSeries>: |slot, group, field| slot.get_or_insert_default().read(group, field);
);

/// Decodes all entries of the message at the first one.
impl Read for ManagedFields {
    fn read(&mut self, _group: ApiGroup, field: &mut WireField<'_, '_>) -> Result<(), DecodeError> {
        if self.is_none() {
            *self = managed_fields::read(field.message())?;
        }
        field.skip()
    }
}

impl<T: Read + Default> Read for Vec<T> {
    fn read(&mut self, group: ApiGroup, field: &mut WireField<'_, '_>) -> Result<(), DecodeError> {
        if self.len() >= ELEMENTS_MAX {
            return Err(DecodeError::Elements(field.number));
        }
        let mut item = T::default();
        item.read(group, field)?;
        self.push(item);
        Ok(())
    }
}

/// Decodes a `metav1.Time`. Ignores the nanoseconds.
pub(super) fn time(data: &[u8], slot: &mut Option<Time>) -> Result<(), DecodeError> {
    let time = timestamp(data)?.map(|(seconds, _nanos)| Time(seconds).within_years());
    *slot = time.filter(|&time| time != Time::ZERO);
    Ok(())
}

/// Decodes a `metav1.MicroTime`.
// COMPAT(apiserver): an explicit zero time is kept and counts as set, as in JSON.
fn micro_time(data: &[u8], slot: &mut Option<MicroTime>) -> Result<(), DecodeError> {
    *slot = timestamp(data)?.map(|(seconds, nanos)| {
        // Go truncates towards zero. Nanoseconds beyond one second carry, also into the range of years and out of it.
        MicroTime(seconds.saturating_mul(1_000_000).saturating_add(i64::from(nanos / 1_000))).within_years()
    });
    Ok(())
}

/// Decodes seconds and nanoseconds. An empty message is no time; one without seconds is in 1970.
fn timestamp(data: &[u8]) -> Result<Option<(i64, i32)>, DecodeError> {
    if data.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanos) = (0, 0);
    fields(data, |field| match field.number {
        1 => field.long().map(|number| seconds = number),
        2 => field.integer().map(|number| nanos = number),
        _ => field.skip(),
    })?;
    Ok(Some((seconds, nanos)))
}
