//! A pull reader over JSON bytes: the good path of every decode. One pass, no tree.
//!
//! It knows *that* a document is malformed, never *how*: the exact words of Go's scanner are made by [`super::syntax`], which
//! reads the body again. Nesting is bounded as Go bounds it, and skipping a value uses no recursion.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;

use super::{go, scan};

/// The document is malformed; [`super::syntax::fault`] has the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// What kind of value stands next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

impl Kind {
    /// Go's word in `cannot unmarshal … into`.
    pub(super) const fn go_name(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Number => "number",
            Self::Bool => "bool",
            Self::Null => "null",
        }
    }
}

/// LIMIT: as many open objects and arrays as Go's scanner allows; one more is malformed.
pub(super) const DEPTH_MAX: usize = 10_000;

/// Position in a body.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    data: &'a [u8],
    /// The same, where all of it is UTF-8: then no string has to be checked by itself.
    text: Option<&'a str>,
    at: usize,
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, text: std::str::from_utf8(data).ok(), at: 0, depth: 0 }
    }

    /// Offset of the next byte.
    pub(super) const fn offset(&self) -> usize {
        self.at
    }

    /// The bytes from an earlier offset up to here.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        self.data.get(start..self.at).unwrap_or_default()
    }

    fn byte(&self) -> Option<u8> {
        self.data.get(self.at).copied()
    }

    const fn advance(&mut self, bytes: usize) {
        self.at = self.at.saturating_add(bytes);
    }

    fn skip_space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.advance(1);
        }
    }

    /// The kind of the next value, by its first byte.
    pub(super) fn kind(&mut self) -> Result<Kind, Malformed> {
        self.skip_space();
        match self.byte() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::String),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            _ => Err(Malformed),
        }
    }

    /// The document must end here.
    pub(super) fn end(&mut self) -> Result<(), Malformed> {
        self.skip_space();
        if self.byte().is_none() { Ok(()) } else { Err(Malformed) }
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Malformed> {
        self.skip_space();
        if self.byte() == Some(wanted) {
            self.advance(1);
            Ok(())
        } else {
            Err(Malformed)
        }
    }

    fn open(&mut self) -> Result<(), Malformed> {
        self.depth = self.depth.saturating_add(1);
        if self.depth > DEPTH_MAX { Err(Malformed) } else { Ok(()) }
    }

    const fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// Enters an object: false when it is empty (and then already left).
    pub(super) fn enter_object(&mut self) -> Result<bool, Malformed> {
        self.expect(b'{')?;
        self.open()?;
        self.skip_space();
        if self.byte() == Some(b'}') {
            self.advance(1);
            self.close();
            return Ok(false);
        }
        Ok(true)
    }

    /// The next key; the value follows.
    pub(super) fn key(&mut self) -> Result<Cow<'a, str>, Malformed> {
        self.skip_space();
        let key = self.string()?;
        self.expect(b':')?;
        Ok(key)
    }

    /// After a member: true when another follows, false when the object has been left.
    pub(super) fn next_member(&mut self) -> Result<bool, Malformed> {
        self.more(b'}')
    }

    /// Enters an array: false when it is empty (and then already left).
    pub(super) fn enter_array(&mut self) -> Result<bool, Malformed> {
        self.expect(b'[')?;
        self.open()?;
        self.skip_space();
        if self.byte() == Some(b']') {
            self.advance(1);
            self.close();
            return Ok(false);
        }
        Ok(true)
    }

    /// After an element: true when another follows, false when the array has been left.
    pub(super) fn next_element(&mut self) -> Result<bool, Malformed> {
        self.more(b']')
    }

    fn more(&mut self, closer: u8) -> Result<bool, Malformed> {
        self.skip_space();
        match self.byte() {
            Some(b',') => {
                self.advance(1);
                Ok(true)
            }
            Some(byte) if byte == closer => {
                self.advance(1);
                self.close();
                Ok(false)
            }
            _ => Err(Malformed),
        }
    }

    /// A string, unquoted as Go does it: what is not UTF-8 becomes U+FFFD byte by byte, and so does half a surrogate.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, Malformed> {
        let start = self.at.saturating_add(1);
        let (raw, escaped) = self.raw_string()?;
        if escaped {
            return unescape(raw).map(Cow::Owned);
        }
        let text = self.text.and_then(|text| text.get(start..start.saturating_add(raw.len())));
        Ok(text.map_or_else(|| Cow::Owned(go::lossy(raw)), Cow::Borrowed))
    }

    /// The bytes between the quotes, and whether any escape stands among them.
    fn raw_string(&mut self) -> Result<(&'a [u8], bool), Malformed> {
        if self.byte() != Some(b'"') {
            return Err(Malformed);
        }
        self.advance(1);
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = self.data.get(self.at..).unwrap_or_default();
            let plain = scan::plain(rest).ok_or(Malformed)?;
            self.advance(plain);
            match self.byte() {
                Some(b'"') => {
                    let raw = self.since(start);
                    self.advance(1);
                    return Ok((raw, escaped));
                }
                // What follows the backslash is checked by `unescape`; here it only must not end the string.
                Some(b'\\') => {
                    escaped = true;
                    self.advance(2);
                }
                _ => return Err(Malformed),
            }
        }
    }

    /// A number, as written.
    pub(super) fn number(&mut self) -> Result<&'a str, Malformed> {
        let start = self.at;
        if self.byte() == Some(b'-') {
            self.advance(1);
        }
        match self.byte() {
            Some(b'0') => self.advance(1),
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(Malformed),
        }
        if self.byte() == Some(b'.') {
            self.advance(1);
            self.digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.advance(1);
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.advance(1);
            }
            self.digits()?;
        }
        std::str::from_utf8(self.since(start)).map_err(|_not_ascii| Malformed)
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.advance(count);
        if count == 0 { Err(Malformed) } else { Ok(()) }
    }

    /// `true` or `false`.
    pub(super) fn boolean(&mut self) -> Result<bool, Malformed> {
        if self.byte() == Some(b't') {
            self.literal(b"true")?;
            Ok(true)
        } else {
            self.literal(b"false")?;
            Ok(false)
        }
    }

    /// `null`.
    pub(super) fn null(&mut self) -> Result<(), Malformed> {
        self.literal(b"null")
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), Malformed> {
        if self.data.get(self.at..).unwrap_or_default().starts_with(word) {
            self.advance(word.len());
            Ok(())
        } else {
            Err(Malformed)
        }
    }

    /// Passes over one value, checking its syntax.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        // One entry an open object (true) or array (false).
        let mut open: Vec<bool> = Vec::new();
        loop {
            if open.last() == Some(&true) {
                self.skip_space();
                self.key_skipped()?;
            }
            let entered = match self.kind()? {
                Kind::Object => self.enter_object()?.then_some(true),
                Kind::Array => self.enter_array()?.then_some(false),
                Kind::String => {
                    self.string_skipped()?;
                    None
                }
                Kind::Number => {
                    self.number()?;
                    None
                }
                Kind::Bool => {
                    self.boolean()?;
                    None
                }
                Kind::Null => {
                    self.null()?;
                    None
                }
            };
            if let Some(object) = entered {
                open.push(object);
                continue;
            }
            loop {
                let Some(object) = open.last().copied() else { return Ok(()) };
                if self.more(if object { b'}' } else { b']' })? {
                    break;
                }
                open.pop();
            }
        }
    }

    fn key_skipped(&mut self) -> Result<(), Malformed> {
        self.string_skipped()?;
        self.expect(b':')
    }

    fn string_skipped(&mut self) -> Result<(), Malformed> {
        let (raw, escaped) = self.raw_string()?;
        if escaped {
            unescape(raw)?;
        }
        Ok(())
    }
}

fn unescape(raw: &[u8]) -> Result<String, Malformed> {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    loop {
        let plain = rest.iter().position(|&byte| byte == b'\\').unwrap_or(rest.len());
        let (before, escape) = rest.split_at_checked(plain).ok_or(Malformed)?;
        match std::str::from_utf8(before) {
            Ok(valid) => text.push_str(valid),
            Err(_) => text.push_str(&go::lossy(before)),
        }
        let Some((b'\\', after)) = escape.split_first() else { return Ok(text) };
        let (&letter, after) = after.split_first().ok_or(Malformed)?;
        rest = after;
        let plain = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (unit, after) = hex4(rest)?;
                rest = after;
                let (decoded, after) = surrogate(unit, rest);
                rest = after;
                decoded
            }
            _ => return Err(Malformed),
        };
        text.push(plain);
    }
}

fn hex4(rest: &[u8]) -> Result<(u32, &[u8]), Malformed> {
    let (digits, after) = rest.split_at_checked(4).ok_or(Malformed)?;
    let mut unit = 0_u32;
    for &digit in digits {
        let value = char::from(digit).to_digit(16).ok_or(Malformed)?;
        unit = (unit << 4) | value;
    }
    Ok((unit, after))
}

/// Joins a surrogate pair; a half one is U+FFFD, and what follows it is left alone.
fn surrogate(unit: u32, rest: &[u8]) -> (char, &[u8]) {
    if let Some(decoded) = char::from_u32(unit) {
        return (decoded, rest);
    }
    if let Some(escape) = rest.strip_prefix(b"\\u")
        && let Ok((low, after)) = hex4(escape)
        && (0xd800..0xdc00).contains(&unit)
        && (0xdc00..0xe000).contains(&low)
    {
        let code = 0x1_0000_u32.saturating_add(((unit & 0x3ff) << 10) | (low & 0x3ff));
        if let Some(decoded) = char::from_u32(code) {
            return (decoded, after);
        }
    }
    (char::REPLACEMENT_CHARACTER, rest)
}
