//! Whether a body is laid out as our own writer would lay its event out again: then the answer to a create is the body itself,
//! without a look at what stands in it.
//!
//! Most are, as Go writes them like that. It is better too strict than too lenient: what few events have, and every text that is
//! not ASCII, is written again.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::event::ApiGroup;

/// What may stand in a field.
enum Part {
    /// A text.
    Text,
    /// No text, no time, the number 0: what only the upstream assigns, or few events have.
    Nothing,
    /// A number of 31 bits.
    Number,
    /// A time, if there is one; its nanoseconds are a multiple of this, or none.
    Time(u64),
    /// A message of these fields: the tag of each, and what stands in it. All of them, in this order.
    Message(&'static [(u8, Part)]),
}

use Part::{Message, Nothing, Number, Text, Time};

const SECONDS: Part = Time(u64::MAX);
const MICROS: Part = Time(1_000);

/// A field of this number; a number's tag has no 2 in it.
const fn tag(number: u8) -> u8 {
    number << 3 | 2
}

const METADATA: Part = Message(&[
    (tag(1), Text),
    (tag(2), Nothing),
    (tag(3), Text),
    (tag(4), Nothing),
    (tag(5), Nothing),
    (tag(6), Nothing),
    (7 << 3, Nothing),
    (tag(8), Nothing),
]);
const REFERENCE: Part = Message(&[
    (tag(1), Text),
    (tag(2), Text),
    (tag(3), Text),
    (tag(4), Text),
    (tag(5), Text),
    (tag(6), Text),
    (tag(7), Text),
]);
const SOURCE: Part = Message(&[(tag(1), Text), (tag(2), Text)]);

const CORE: &[(u8, Part)] = &[
    (tag(1), METADATA),
    (tag(2), REFERENCE),
    (tag(3), Text),
    (tag(4), Text),
    (tag(5), SOURCE),
    (tag(6), SECONDS),
    (tag(7), SECONDS),
    (8 << 3, Number),
    (tag(9), Text),
    (tag(10), MICROS),
    (tag(12), Text),
    (tag(14), Text),
    (tag(15), Text),
];
const EVENTS: &[(u8, Part)] = &[
    (tag(1), METADATA),
    (tag(2), MICROS),
    (tag(4), Text),
    (tag(5), Text),
    (tag(6), Text),
    (tag(7), Text),
    (tag(8), REFERENCE),
    (tag(10), Text),
    (tag(11), Text),
    (tag(12), SOURCE),
    (tag(13), SECONDS),
    (tag(14), SECONDS),
    (15 << 3, Number),
];

/// Whether [`write`](super::write) makes just this body of the event in it, for the door of `group`.
pub(super) fn is_as_written(group: ApiGroup, body: &[u8]) -> bool {
    let (head, fields) = match group {
        ApiGroup::Core => (b"k8s\0\x0a\x0b\x0a\x02v1\x12\x05Event".as_slice(), CORE),
        ApiGroup::Events => (b"k8s\0\x0a\x19\x0a\x10events.k8s.io/v1\x12\x05Event".as_slice(), EVENTS),
    };
    let Some(rest) = body.strip_prefix(head) else { return false };
    let mut reader = Reader { rest, high: 0 };
    let is_laid_out = reader.field(tag(2), &Message(fields)).is_some() && reader.rest == b"\x1a\0\x22\0";
    // What is above ASCII is of the numbers, so none of it of a text.
    is_laid_out && rest.iter().filter(|byte| **byte >= 0x80).count() == reader.high
}

struct Reader<'b> {
    rest: &'b [u8],
    /// How many bytes of numbers were above ASCII.
    high: usize,
}

impl<'b> Reader<'b> {
    /// Goes past a field; `None` where it is laid out in another way.
    fn field(&mut self, tag: u8, part: &Part) -> Option<()> {
        if self.byte()? != tag {
            return None;
        }
        match part {
            Text => self.bytes().map(drop),
            Nothing => (self.byte()? == 0).then_some(()),
            Number => (self.number()? <= u64::from(i32::MAX.unsigned_abs())).then_some(()),
            Time(unit) => self.message(|time| {
                if time.rest.is_empty() {
                    return Some(());
                }
                // Times before 1970 are left to the writer, and with them the one that is no time.
                let is_usual =
                    time.byte()? == 1 << 3 && (1..=super::fields::SECONDS_MAX.unsigned_abs()).contains(&time.number()?);
                let nanos = if time.byte()? == 2 << 3 { time.number()? } else { return None };
                (is_usual && nanos < 1_000_000_000 && nanos.is_multiple_of(*unit)).then_some(())
            }),
            Message(fields) => {
                self.message(|message| fields.iter().try_for_each(|(tag, part)| message.field(*tag, part)))
            }
        }
    }

    /// Goes past a message of nothing but what `read` goes past.
    fn message(&mut self, read: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        let message = self.bytes()?;
        let after = std::mem::replace(&mut self.rest, message);
        read(self)?;
        let is_whole = self.rest.is_empty();
        self.rest = after;
        is_whole.then_some(())
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let length = self.number()?;
        let (bytes, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    /// A number in as few bytes as can be, up to 63 bits.
    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return (byte > 0 || shift == 0).then_some(value);
            }
            self.high = self.high.saturating_add(1);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::json::{any_event, write_json};
    use crate::event::protobuf::{decode, write};
    use crate::event::{Event, MicroTime, ObjectMeta, Time};

    /// An event that has no more than most have.
    fn usual(event: Event) -> Event {
        let ObjectMeta { name, namespace, .. } = event.metadata;
        let metadata = ObjectMeta { name, namespace, ..ObjectMeta::default() };
        Event { metadata, series: None, related: None, ..event }
    }

    fn written(group: ApiGroup, event: &Event) -> Vec<u8> {
        let mut body = Vec::new();
        write(group, event, &mut body);
        body
    }

    fn group() -> impl Strategy<Value = ApiGroup> {
        prop::sample::select(vec![ApiGroup::Core, ApiGroup::Events])
    }

    /// What is said to be laid out as the writer does is what it makes of it.
    fn holds(group: ApiGroup, body: &[u8]) -> Result<(), TestCaseError> {
        if is_as_written(group, body) {
            let event = decode(group, body).unwrap().event;
            prop_assert_eq!(written(group, &event), body);
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn a_body_is_told_only_where_it_is_written_again(
            event in any_event(),
            group in group(),
            is_usual in any::<bool>(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 0..3),
        ) {
            let mut body = written(group, &if is_usual { usual(event) } else { event });
            holds(group, &body)?;
            for (index, byte, edit) in edits {
                let at = index.index(body.len());
                match edit {
                    0 => body[at] = byte,
                    1 => body.insert(at, byte),
                    _ => drop(body.remove(at)),
                }
                holds(group, &body)?;
            }
        }

        #[test]
        fn most_bodies_are_told(event in any_event(), group in group(), seconds in 1..4_000_000_000_i64, count in 0..i32::MAX) {
            let micros = Some(MicroTime(seconds.saturating_mul(1_000_001)));
            let (first_timestamp, last_timestamp) = (Some(Time(seconds)), None);
            let event = Event { first_timestamp, last_timestamp, event_time: micros, count, ..usual(event) };
            let is_ascii = |event: &Event| {
                let mut json = Vec::new();
                write_json(group, event, &mut json);
                json.is_ascii()
            };
            prop_assert_eq!(is_as_written(group, &written(group, &event)), is_ascii(&event));
            let other = if group == ApiGroup::Core { ApiGroup::Events } else { ApiGroup::Core };
            prop_assert!(!is_as_written(other, &written(group, &event)));
        }
    }
}
