//! Reader of protobuf fields, like the generated Go code of `k8s.io/api`. It does not recurse: the schema, not the
//! client, determines the depth.

use std::borrow::Cow;

use smol_str::SmolStr;

use crate::event::ELEMENTS_MAX;
use crate::event::json::lossy;

/// Why a body cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DecodeError {
    #[error("it does not begin with the bytes 6b 38 73 00")]
    NoPrefix,
    #[error("nothing follows the bytes 6b 38 73 00")]
    OnlyPrefix,
    #[error("a value is cut off")]
    Eof,
    #[error("a number has more than 64 bits")]
    Overflow,
    #[error("a length has more than 63 bits")]
    Length,
    #[error("a group ends that did not begin")]
    EndOfGroup,
    #[error("{0} is not a field number")]
    Number(i32),
    #[error("field {0} has more than {ELEMENTS_MAX} elements")]
    Elements(i32),
    #[error("field {number} has wire type {wire_type}")]
    WireType { number: i32, wire_type: u8 },
}

// Wire types.
const VARINT: u8 = 0;
const FIXED_64: u8 = 1;
const LENGTH: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED_32: u8 = 5;

/// Calls `read` for each field of a message in order. `read` must consume or skip the field.
pub(super) fn fields<'b>(
    data: &'b [u8],
    mut read: impl FnMut(&mut WireField<'_, 'b>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut reader = Reader { data, at: 0 };
    while reader.at < data.len() {
        let start = reader.at;
        let (number, wire_type) = split(reader.varint()?);
        if wire_type == GROUP_END {
            return Err(DecodeError::EndOfGroup);
        }
        if number <= 0 {
            return Err(DecodeError::Number(number));
        }
        read(&mut WireField { reader: &mut reader, start, number, wire_type })?;
    }
    Ok(())
}

/// A field of a message, before its value is read.
#[derive(Debug)]
pub(super) struct WireField<'r, 'b> {
    reader: &'r mut Reader<'b>,
    /// Offset of its tag.
    start: usize,
    pub(super) number: i32,
    wire_type: u8,
}

impl<'b> WireField<'_, 'b> {
    fn expect(&self, wire_type: u8) -> Result<(), DecodeError> {
        if self.wire_type == wire_type {
            return Ok(());
        }
        Err(DecodeError::WireType { number: self.number, wire_type: self.wire_type })
    }

    /// Returns the whole message of this field.
    pub(super) fn message(&self) -> &'b [u8] {
        self.reader.data
    }

    pub(super) fn bytes(&mut self) -> Result<&'b [u8], DecodeError> {
        self.expect(LENGTH)?;
        self.reader.bytes()
    }

    pub(super) fn text(&mut self) -> Result<Cow<'b, str>, DecodeError> {
        self.bytes().map(text)
    }

    /// Reads a string into `slot`; the last one wins.
    pub(super) fn string(&mut self, slot: &mut impl From<Cow<'b, str>>) -> Result<(), DecodeError> {
        *slot = self.text()?.into();
        Ok(())
    }

    pub(super) fn long(&mut self) -> Result<i64, DecodeError> {
        self.expect(VARINT)?;
        self.reader.varint().map(u64::cast_signed)
    }

    /// Reads an `int32`. Keeps the low bits of a larger number, as Go does.
    pub(super) fn integer(&mut self) -> Result<i32, DecodeError> {
        self.long().map(|number| low_bits(number.cast_unsigned()))
    }

    pub(super) fn boolean(&mut self) -> Result<bool, DecodeError> {
        self.long().map(|number| number != 0)
    }

    /// Reads an entry of a `map<string, string>`.
    // COMPAT(gogo): the generated code ignores the wire types of key and value.
    // DIFFERENCE(apiserver): it bounds key and value by the message around the map, not by their entry. Then each entry
    // could contain the rest of the body.
    pub(super) fn entry(&mut self) -> Result<(SmolStr, SmolStr), DecodeError> {
        let mut entry = Reader { data: self.bytes()?, at: 0 };
        let (mut key, mut value) = (SmolStr::default(), SmolStr::default());
        while entry.at < entry.data.len() {
            let start = entry.at;
            match split(entry.varint()?).0 {
                1 => key = text(entry.bytes()?).into(),
                2 => value = text(entry.bytes()?).into(),
                _ => entry.skip(start)?,
            }
        }
        Ok((key, value))
    }

    /// Skips an unknown field.
    pub(super) fn skip(&mut self) -> Result<(), DecodeError> {
        self.reader.skip(self.start)
    }
}

#[derive(Debug)]
struct Reader<'b> {
    data: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = *self.data.get(self.at).ok_or(DecodeError::Eof)?;
            self.at = self.at.saturating_add(1);
            value |= u64::from(byte & 0x7f).wrapping_shl(shift);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Overflow)
    }

    fn bytes(&mut self) -> Result<&'b [u8], DecodeError> {
        let Ok(length) = isize::try_from(self.varint()?) else { return Err(DecodeError::Length) };
        self.advance(length)
    }

    fn advance(&mut self, length: isize) -> Result<&'b [u8], DecodeError> {
        let end = self.at.cast_signed().checked_add(length).ok_or(DecodeError::Length)?.cast_unsigned();
        let bytes = self.data.get(self.at..end).ok_or(DecodeError::Eof)?;
        self.at = end;
        Ok(bytes)
    }

    /// Skips the field with its tag at `start`; a group with its content.
    fn skip(&mut self, start: usize) -> Result<(), DecodeError> {
        self.at = start;
        let mut depth: usize = 0;
        while self.at < self.data.len() {
            let (number, wire_type) = split(self.varint()?);
            match wire_type {
                VARINT => drop(self.varint()?),
                FIXED_64 => drop(self.advance(8)?),
                LENGTH => drop(self.bytes()?),
                GROUP_START => depth = depth.saturating_add(1),
                GROUP_END => depth = depth.checked_sub(1).ok_or(DecodeError::EndOfGroup)?,
                FIXED_32 => drop(self.advance(4)?),
                _ => return Err(DecodeError::WireType { number, wire_type }),
            }
            if depth == 0 {
                return Ok(());
            }
        }
        Err(DecodeError::Eof)
    }
}

/// Splits a tag into field number and wire type.
const fn split(tag: u64) -> (i32, u8) {
    let [low, ..] = tag.to_le_bytes();
    (low_bits(tag >> 3), low & 7)
}

const fn low_bits(number: u64) -> i32 {
    let [first, second, third, fourth, ..] = number.to_le_bytes();
    i32::from_le_bytes([first, second, third, fourth])
}

/// Decodes text. Replaces each invalid byte by U+FFFD at once; Go does so when it writes JSON.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => lossy(bytes).into(),
    }
}
