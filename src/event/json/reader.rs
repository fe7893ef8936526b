//! A pull reader over JSON bytes: the good path of every decode. One pass, no tree.
//!
//! It knows *that* a document is malformed, never *how*: the exact words of Go's scanner are made by [`super::syntax`], which
//! reads the body again. Nesting is bounded as Go bounds it, and skipping a value uses no recursion.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;

use super::go;
use super::scan;
use super::unescape::unescape;

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

/// Room for the text of most strings.
const USUAL_BYTES: usize = 256;

/// Position in a body.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    data: &'a [u8],
    /// The same, where all of it is UTF-8: then no string has to be checked by itself.
    text: Option<&'a str>,
    /// What has not been read yet.
    rest: &'a [u8],
    depth: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { data, text: simdutf8::basic::from_utf8(data).ok(), rest: data, depth: 0 }
    }

    /// Offset of the next byte.
    pub(super) const fn offset(&self) -> usize {
        self.data.len().saturating_sub(self.rest.len())
    }

    /// The bytes from an earlier offset up to here.
    pub(super) fn since(&self, start: usize) -> &'a [u8] {
        self.data.get(start..self.offset()).unwrap_or_default()
    }

    #[inline]
    const fn byte(&self) -> Option<u8> {
        match self.rest {
            [byte, ..] => Some(*byte),
            [] => None,
        }
    }

    /// Takes the next byte, if it is this one.
    #[inline]
    fn take(&mut self, wanted: u8) -> bool {
        match self.rest.split_first() {
            Some((&byte, rest)) if byte == wanted => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    #[inline]
    fn skip_space(&mut self) {
        while let [b' ' | b'\t' | b'\r' | b'\n', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// The kind of the next value, by its first byte.
    #[inline]
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
        // Go ends a document so.
        self.take(b'\n');
        self.skip_space();
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }

    fn expect(&mut self, wanted: u8) -> Result<(), Malformed> {
        self.skip_space();
        if self.take(wanted) { Ok(()) } else { Err(Malformed) }
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
        self.enter(b'{', b'}')
    }

    /// Enters an array: false when it is empty (and then already left).
    pub(super) fn enter_array(&mut self) -> Result<bool, Malformed> {
        self.enter(b'[', b']')
    }

    fn enter(&mut self, opener: u8, closer: u8) -> Result<bool, Malformed> {
        self.expect(opener)?;
        self.open()?;
        self.skip_space();
        if self.take(closer) {
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

    /// Takes the next key with its quotes and colon, if it is spelled just like this.
    #[inline]
    pub(super) fn take_key(&mut self, quoted: &str) -> bool {
        let quoted = quoted.as_bytes();
        // The first letter tells most names apart.
        if self.rest.get(1) != quoted.get(1) {
            return false;
        }
        let Some((key, rest)) = self.rest.split_at_checked(quoted.len()) else { return false };
        if !scan::is_same(key, quoted) {
            return false;
        }
        self.rest = rest;
        true
    }

    /// After a member: true when another follows, false when the object has been left.
    #[inline]
    pub(super) fn next_member(&mut self) -> Result<bool, Malformed> {
        self.more(b'}')
    }

    /// After an element: true when another follows, false when the array has been left.
    pub(super) fn next_element(&mut self) -> Result<bool, Malformed> {
        self.more(b']')
    }

    #[inline]
    fn more(&mut self, closer: u8) -> Result<bool, Malformed> {
        self.skip_space();
        if self.take(b',') {
            return Ok(true);
        }
        if self.take(closer) {
            self.close();
            return Ok(false);
        }
        Err(Malformed)
    }

    /// A string, unquoted as Go does it: what is not UTF-8 becomes U+FFFD byte by byte, and so does half a surrogate.
    #[inline]
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, Malformed> {
        match self.plain_string() {
            Some(text) => Ok(Cow::Borrowed(text)),
            None => self.any_string().map(Cow::Owned),
        }
    }

    /// Takes the string that stands next, if it can be taken as it is: no escapes, and UTF-8 around.
    #[inline]
    pub(super) fn plain_string(&mut self) -> Option<&'a str> {
        let text = self.text?;
        let [b'"', string @ ..] = self.rest else { return None };
        let plain = scan::plain(string)?;
        let [b'"', rest @ ..] = string.get(plain..)? else { return None };
        let start = self.data.len().saturating_sub(string.len());
        let found = text.get(start..start.saturating_add(plain))?;
        self.rest = rest;
        Some(found)
    }

    /// The slow way of [`string`](Self::string).
    #[inline(never)]
    fn any_string(&mut self) -> Result<String, Malformed> {
        let mut rest = self.rest.strip_prefix(b"\"").ok_or(Malformed)?;
        let mut text = String::with_capacity(rest.len().min(USUAL_BYTES));
        loop {
            let plain = scan::plain(rest).ok_or(Malformed)?;
            let start = self.data.len().saturating_sub(rest.len());
            let (before, after) = rest.split_at_checked(plain).ok_or(Malformed)?;
            let checked = self.text.and_then(|text| text.get(start..start.saturating_add(plain)));
            match checked.map_or_else(|| std::str::from_utf8(before), Ok) {
                Ok(valid) => text.push_str(valid),
                Err(_) => {
                    text.push_str(&go::lossy(before));
                }
            }
            match after {
                [b'"', after @ ..] => {
                    self.rest = after;
                    return Ok(text);
                }
                [b'\\', letter, after @ ..] => {
                    let decoded;
                    (decoded, rest) = unescape(*letter, after)?;
                    text.push(decoded);
                }
                _ => return Err(Malformed),
            }
        }
    }

    /// A number, as written.
    pub(super) fn number(&mut self) -> Result<&'a str, Malformed> {
        let start = self.offset();
        self.take(b'-');
        if !self.take(b'0') {
            self.digits()?;
        }
        if self.take(b'.') {
            self.digits()?;
        }
        if self.take(b'e') || self.take(b'E') {
            let _sign = self.take(b'+') || self.take(b'-');
            self.digits()?;
        }
        std::str::from_utf8(self.since(start)).map_err(|_not_ascii| Malformed)
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let before = self.rest.len();
        while let [b'0'..=b'9', rest @ ..] = self.rest {
            self.rest = rest;
        }
        if self.rest.len() == before { Err(Malformed) } else { Ok(()) }
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
        self.rest = self.rest.strip_prefix(word).ok_or(Malformed)?;
        Ok(())
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
        if self.plain_string().is_none() {
            self.any_string()?;
        }
        Ok(())
    }
}
