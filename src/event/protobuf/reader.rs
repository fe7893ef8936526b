//! Reading protobuf: fields of a message one after another, as the generated Go code of `k8s.io/api` reads them.
//! Nothing here recurses: how deep a body nests is up to the schema, not to the client.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;

use smol_str::SmolStr;

use crate::event::json::lossy;

/// Why a body cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    /// The four bytes in front of every object are missing.
    #[error("it does not begin with the bytes 6b 38 73 00")]
    NoPrefix,
    /// The four bytes and no more.
    #[error("nothing follows the bytes 6b 38 73 00")]
    OnlyPrefix,
    /// A value goes on behind the end of its message.
    #[error("a value is cut off")]
    Eof,
    /// A number of more than ten bytes.
    #[error("a number has more than 64 bits")]
    Overflow,
    /// A length of 2^63 or more.
    #[error("a length has more than 63 bits")]
    Length,
    /// The end of a group that did not begin.
    #[error("a group ends that did not begin")]
    EndOfGroup,
    /// A field number below 1.
    #[error("{0} is no field number")]
    Number(i32),
    /// A wire type that there is not, or a known field of another one than its own.
    #[error("field {number} has wire type {wire_type}")]
    WireType {
        /// The field number.
        number: i32,
        /// What it has.
        wire_type: u8,
    },
}

const VARINT: u8 = 0;
const LENGTH: u8 = 2;

/// Hands the fields of a message to `read` in the body's order. `read` must take or skip each.
pub(super) fn fields<'b>(
    data: &'b [u8],
    mut read: impl FnMut(&mut Field<'_, 'b>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut reader = Reader { data, at: 0 };
    while reader.at < data.len() {
        let start = reader.at;
        let (number, wire_type) = split(reader.varint()?);
        if wire_type == 4 {
            return Err(Fault::EndOfGroup);
        }
        if number <= 0 {
            return Err(Fault::Number(number));
        }
        read(&mut Field { reader: &mut reader, start, number, wire_type })?;
    }
    Ok(())
}

/// One field of a message, about to be read.
#[derive(Debug)]
pub(super) struct Field<'r, 'b> {
    reader: &'r mut Reader<'b>,
    /// Where its tag stands.
    start: usize,
    /// The field number.
    pub(super) number: i32,
    wire_type: u8,
}

impl<'b> Field<'_, 'b> {
    fn expect(&self, wire_type: u8) -> Result<(), Fault> {
        if self.wire_type == wire_type {
            return Ok(());
        }
        Err(Fault::WireType { number: self.number, wire_type: self.wire_type })
    }

    /// The whole message that it is a field of.
    pub(super) fn message(&self) -> &'b [u8] {
        self.reader.data
    }

    /// A message or bytes, still to be read.
    pub(super) fn bytes(&mut self) -> Result<&'b [u8], Fault> {
        self.expect(LENGTH)?;
        self.reader.bytes()
    }

    /// A string.
    pub(super) fn text(&mut self) -> Result<Cow<'b, str>, Fault> {
        self.bytes().map(text)
    }

    /// A string into its place; the last one counts.
    pub(super) fn string(&mut self, slot: &mut impl From<Cow<'b, str>>) -> Result<(), Fault> {
        *slot = self.text()?.into();
        Ok(())
    }

    /// An `int64`.
    pub(super) fn long(&mut self) -> Result<i64, Fault> {
        self.expect(VARINT)?;
        self.reader.varint().map(u64::cast_signed)
    }

    /// An `int32`: like Go, of a larger number the low bits.
    pub(super) fn integer(&mut self) -> Result<i32, Fault> {
        self.long().map(|number| low_bits(number.cast_unsigned()))
    }

    /// A `bool`.
    pub(super) fn boolean(&mut self) -> Result<bool, Fault> {
        self.long().map(|number| number != 0)
    }

    /// An entry of a `map<string, string>`.
    // COMPAT(gogo): key and value are bounded by the message around the map, not by their entry, and their wire types are
    // not looked at. The generated code does so, and what it accepts we accept.
    pub(super) fn entry(&mut self) -> Result<(SmolStr, SmolStr), Fault> {
        let entry = self.bytes()?;
        let end = self.reader.at;
        self.reader.at = end.saturating_sub(entry.len());
        let (mut key, mut value) = (SmolStr::default(), SmolStr::default());
        while self.reader.at < end {
            let start = self.reader.at;
            match split(self.reader.varint()?).0 {
                1 => key = text(self.reader.bytes()?).into(),
                2 => value = text(self.reader.bytes()?).into(),
                _ => {
                    self.reader.skip(start)?;
                    if self.reader.at > end {
                        return Err(Fault::Eof);
                    }
                }
            }
        }
        self.reader.at = end;
        Ok((key, value))
    }

    /// Passes over an unknown field.
    pub(super) fn skip(&mut self) -> Result<(), Fault> {
        self.reader.skip(self.start)
    }
}

#[derive(Debug)]
struct Reader<'b> {
    data: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = *self.data.get(self.at).ok_or(Fault::Eof)?;
            self.at = self.at.saturating_add(1);
            value |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Fault::Overflow)
    }

    fn bytes(&mut self) -> Result<&'b [u8], Fault> {
        let Ok(length) = isize::try_from(self.varint()?) else { return Err(Fault::Length) };
        self.advance(length)
    }

    fn advance(&mut self, length: isize) -> Result<&'b [u8], Fault> {
        let end = self.at.cast_signed().checked_add(length).ok_or(Fault::Length)?.cast_unsigned();
        let bytes = self.data.get(self.at..end).ok_or(Fault::Eof)?;
        self.at = end;
        Ok(bytes)
    }

    /// Passes over the field whose tag stands at `start`; a group with all that is in it.
    fn skip(&mut self, start: usize) -> Result<(), Fault> {
        self.at = start;
        let mut depth: usize = 0;
        while self.at < self.data.len() {
            let (number, wire_type) = split(self.varint()?);
            match wire_type {
                VARINT => {
                    self.varint()?;
                }
                1 => {
                    self.advance(8)?;
                }
                LENGTH => {
                    self.bytes()?;
                }
                3 => depth = depth.saturating_add(1),
                4 => depth = depth.checked_sub(1).ok_or(Fault::EndOfGroup)?,
                5 => {
                    self.advance(4)?;
                }
                _ => return Err(Fault::WireType { number, wire_type }),
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(Fault::Eof)
    }
}

/// A tag's field number and wire type.
const fn split(tag: u64) -> (i32, u8) {
    let [low, ..] = tag.to_le_bytes();
    (low_bits(tag >> 3), low & 7)
}

const fn low_bits(number: u64) -> i32 {
    let [first, second, third, fourth, ..] = number.to_le_bytes();
    i32::from_le_bytes([first, second, third, fourth])
}

/// Go keeps what is no UTF-8 until it is shown, and shows U+FFFD for each such byte; ours is repaired at once.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => lossy(bytes).into(),
    }
}
