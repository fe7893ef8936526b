//! An event in one piece of memory, for whoever keeps many that are seldom looked at again: whole, its dozen strings take 2 kB
//! in as many places.
//!
//! Hot: every POST packs one. What has only the members that nearly every event has is laid out by hand; everything else as
//! core/v1 protobuf, which takes nearly three times the instructions. Not a wire form: nothing of it leaves the process.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::{ApiGroup, Event, EventSource, LentEvent, MicroTime, ObjectMeta, Time, protobuf};

/// A packed event.
#[derive(Debug)]
pub struct Packed {
    type_meta: Option<ApiGroup>,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// Numbers, the lengths of all texts, and the texts.
    Plain(Box<[u8]>),
    /// core/v1, which has all members.
    Protobuf(Box<[u8]>),
}

/// Texts that plain events have.
const TEXTS: usize = 17;
/// Bytes of a plain event's numbers: each time and whether it is there, and the count.
const NUMBERS: usize = 3 * 9 + 4;
/// Bytes of a text's length.
const LENGTH: usize = 2;

/// The texts of a plain event, borrowed in one way or the other.
macro_rules! texts {
    ($event:expr, $($borrow:tt)+) => {
        [
            $($borrow)+ $event.metadata.name,
            $($borrow)+ $event.metadata.namespace,
            $($borrow)+ $event.involved_object.kind,
            $($borrow)+ $event.involved_object.namespace,
            $($borrow)+ $event.involved_object.name,
            $($borrow)+ $event.involved_object.uid,
            $($borrow)+ $event.involved_object.api_version,
            $($borrow)+ $event.involved_object.resource_version,
            $($borrow)+ $event.involved_object.field_path,
            $($borrow)+ $event.reason,
            $($borrow)+ $event.message,
            $($borrow)+ $event.source.component,
            $($borrow)+ $event.source.host,
            $($borrow)+ $event.event_type,
            $($borrow)+ $event.action,
            $($borrow)+ $event.reporting_controller,
            $($borrow)+ $event.reporting_instance,
        ]
    };
}

impl Packed {
    /// Packs an event.
    #[must_use]
    pub fn new(event: &LentEvent<'_>) -> Self {
        let bytes = plain(event).map_or_else(|| Bytes::Protobuf(protobuf_of(event)), Bytes::Plain);
        Self { type_meta: event.type_meta, bytes }
    }

    /// Bytes that it takes, but for a few.
    #[must_use]
    pub fn size(&self) -> usize {
        let (Bytes::Plain(bytes) | Bytes::Protobuf(bytes)) = &self.bytes;
        bytes.len()
    }

    /// The event again; `None` never happens to what was packed here.
    #[must_use]
    pub fn unpack(&self) -> Option<Event> {
        let event = match &self.bytes {
            Bytes::Plain(bytes) => unpack_plain(bytes)?,
            Bytes::Protobuf(bytes) => protobuf::decode(ApiGroup::Core, bytes).ok()?.event.kept(),
        };
        Some(Event { type_meta: self.type_meta, ..event })
    }
}

fn protobuf_of(event: &LentEvent<'_>) -> Box<[u8]> {
    let mut bytes = Vec::with_capacity(1024);
    protobuf::write(ApiGroup::Core, event, &mut bytes);
    // Not shortened in place, which would leave the rest of its room unused.
    Box::from(bytes.as_slice())
}

/// Whether an event has no members beside those.
fn is_plain(event: &LentEvent<'_>) -> bool {
    // All members are named, so that none is left out that comes to be.
    let LentEvent {
        type_meta: _,
        metadata: ObjectMeta { name: _, namespace: _, resource_version, uid, creation_timestamp, managed_fields, rare },
        involved_object: _,
        reason: _,
        message: _,
        source: EventSource { component: _, host: _ },
        first_timestamp: _,
        last_timestamp: _,
        count: _,
        event_type: _,
        event_time: _,
        series,
        action: _,
        related,
        reporting_controller: _,
        reporting_instance: _,
    } = event;
    resource_version.is_empty()
        && uid.is_empty()
        && creation_timestamp.is_none()
        && managed_fields.is_none()
        && rare.is_none()
        && series.is_none()
        && related.is_none()
}

/// Bytes of a plain event.
fn plain_size(event: &LentEvent<'_>) -> usize {
    let numbers = NUMBERS.saturating_add(TEXTS.saturating_mul(LENGTH));
    texts!(event, &).iter().fold(numbers, |size, text| size.saturating_add(text.len()))
}

/// `None` for an event that is not, or has a text that is too long.
fn plain(event: &LentEvent<'_>) -> Option<Box<[u8]>> {
    if !is_plain(event) {
        return None;
    }
    let texts = texts!(event, &);
    let mut lengths = [[0; LENGTH]; TEXTS];
    for (length, text) in lengths.iter_mut().zip(texts) {
        *length = u16::try_from(text.len()).ok()?.to_le_bytes();
    }
    let mut bytes = Vec::with_capacity(plain_size(event));
    let times = [
        event.first_timestamp.map(|time| time.0),
        event.last_timestamp.map(|time| time.0),
        event.event_time.map(|time| time.0),
    ];
    for time in times {
        bytes.push(u8::from(time.is_some()));
        bytes.extend_from_slice(&time.unwrap_or_default().to_le_bytes());
    }
    bytes.extend_from_slice(&event.count.to_le_bytes());
    bytes.extend_from_slice(lengths.as_flattened());
    for text in texts {
        bytes.extend_from_slice(text.as_bytes());
    }
    Some(bytes.into_boxed_slice())
}

fn unpack_plain(bytes: &[u8]) -> Option<Event> {
    let mut event = Event::default();
    let mut rest = bytes;
    event.first_timestamp = take_time(&mut rest)?.map(Time);
    event.last_timestamp = take_time(&mut rest)?.map(Time);
    event.event_time = take_time(&mut rest)?.map(MicroTime);
    event.count = i32::from_le_bytes(take(&mut rest)?);
    let (mut lengths, mut rest) = rest.split_at_checked(TEXTS.saturating_mul(LENGTH))?;
    for slot in texts!(event, &mut) {
        let length = u16::from_le_bytes(take(&mut lengths)?);
        let text;
        (text, rest) = rest.split_at_checked(length.into())?;
        *slot = std::str::from_utf8(text).ok()?.into();
    }
    Some(event)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*taken)
}

fn take_time(rest: &mut &[u8]) -> Option<Option<i64>> {
    let [is_there] = take(rest)?;
    let time = i64::from_le_bytes(take(rest)?);
    Some((is_there != 0).then_some(time))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::json::any_event;

    /// The event without the members that plain ones do not have.
    fn without_the_rest(event: Event) -> Event {
        let ObjectMeta { name, namespace, .. } = event.metadata;
        let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
        Event { metadata, series: None, related: None, ..event }
    }

    proptest! {
        #[test]
        fn an_event_comes_out_as_it_went_in(event in any_event(), group in prop::sample::select(vec![None, Some(ApiGroup::Core)])) {
            let event = Event { type_meta: group, ..event };
            prop_assert_eq!(Packed::new(&event).unpack(), Some(event.clone()));
            let plain = without_the_rest(event.clone());
            let packed = Packed::new(&plain);
            prop_assert!(matches!(packed.bytes, Bytes::Plain(_)));
            prop_assert_eq!(packed.unpack(), Some(plain));
        }
    }

    #[test]
    fn a_text_that_is_too_long_for_its_length_is_kept_too() {
        for length in [u16::MAX.into(), usize::from(u16::MAX) + 1] {
            let event = Event { message: "m".repeat(length).into(), ..Event::default() };
            let packed = Packed::new(&event);
            assert_eq!(matches!(packed.bytes, Bytes::Plain(_)), length == usize::from(u16::MAX));
            assert_eq!(packed.unpack(), Some(event));
        }
    }
}
