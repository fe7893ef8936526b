//! The decoder's bookkeeping: what `sigs.k8s.io/json` does between the fields. Paths, unknown and duplicate members, type
//! faults with Go's words, and the leaf values (strings, integers, booleans, times).
//!
//! Like Go's decoder it goes on after a value of the wrong type and reports the first such fault at the end, while a fault
//! from a type's own `UnmarshalJSON` (the times) ends the decode at once and wins over faults kept from before.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::borrow::Cow;
use std::collections::HashSet;

use super::path::Path;
use super::reader::{Kind, Malformed, Reader};
use super::{StrictFault, StrictFaultKind};
use crate::event::{MicroTime, Time};

/// LIMIT: `sigs.k8s.io/json` keeps this many strict faults and forgets the rest, and so do we.
const STRICT_FAULTS_MAX: usize = 100;

/// A Go struct as it is decoded.
#[derive(Debug)]
pub(super) struct Struct<M: 'static> {
    /// Its name in Go.
    pub(super) name: &'static str,
    /// Its members in the order in which Go writes them. LIMIT: 32.
    pub(super) members: &'static [Member<M>],
}

/// A member of a [`Struct`].
#[derive(Debug)]
pub(super) struct Member<M> {
    pub(super) key: &'static str,
    /// The key with its quotes and colon: how it is mostly spelled.
    pub(super) quoted: &'static str,
    pub(super) meaning: M,
}

/// The members of a [`Struct`] by their keys.
macro_rules! members {
    ($($key:literal => $meaning:expr),+ $(,)?) => {
        &[$($crate::event::json::decoder::Member { key: $key, quoted: concat!("\"", $key, "\":"), meaning: $meaning }),+]
    };
}
pub(super) use members;

/// One decode of one body.
#[derive(Debug)]
pub(super) struct Decoder<'a> {
    pub(super) reader: Reader<'a>,
    strict: Vec<StrictFault>,
    strict_seen: HashSet<StrictFault>,
    /// The first value of a wrong type.
    saved: Option<String>,
    /// The fault that ended the decode; the reader goes on for the sake of the syntax only.
    aborted: Option<String>,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(body: &'a [u8]) -> Self {
        Self { reader: Reader::new(body), strict: Vec::new(), strict_seen: HashSet::new(), saved: None, aborted: None }
    }

    /// The fault to report, if any, and the strict faults.
    pub(super) fn finish(self) -> (Option<String>, Vec<StrictFault>) {
        (self.aborted.or(self.saved), self.strict)
    }

    /// Calls `member` for each member of the object that stands next, with its key; it must take the value.
    pub(super) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, &str) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let mut more = self.reader.enter_object()?;
        while more {
            let key = self.reader.key()?;
            member(self, &key)?;
            more = self.reader.next_member()?;
        }
        Ok(())
    }

    /// Calls `take` for each member of the struct that stands next, with its path and what it means, if it is known; it must
    /// take the value. Duplicates are noted before.
    // Hot. Whoever writes events writes their members in the order of Go's structs, so the next key mostly is the next one or
    // one of the few after that, letter for letter: then it is neither scanned nor looked up.
    #[inline]
    pub(super) fn fields<M: Copy>(
        &mut self,
        at: &Path<'_>,
        known: &'static Struct<M>,
        mut take: impl FnMut(&mut Self, &Path<'_>, Option<M>) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let (mut seen, mut next) = (0_u32, 0_usize);
        let mut more = self.reader.enter_object()?;
        while more {
            let spelled: Cow<'_, str>;
            let (found, key) = if let Some((place, member)) = self.likely_member(known, next) {
                (Some((place, member)), member.key)
            } else {
                spelled = self.reader.key()?;
                (known.members.iter().enumerate().find(|(_, member)| member.key == spelled), spelled.as_ref())
            };
            let path = Path::field(at, known.name, key);
            if let Some((place, _)) = found {
                let bit = u32::try_from(place).ok().and_then(|place| 1_u32.checked_shl(place)).unwrap_or_default();
                if seen & bit != 0 {
                    self.duplicate(&path);
                }
                seen |= bit;
                next = place.saturating_add(1);
            }
            take(self, &path, found.map(|(_, member)| member.meaning))?;
            more = self.reader.next_member()?;
        }
        Ok(())
    }

    /// Takes the key that stands next, if it is spelled as one of the members from `next` on.
    #[inline]
    fn likely_member<M>(&mut self, known: &'static Struct<M>, next: usize) -> Option<(usize, &'static Member<M>)> {
        let mut likely = known.members.iter().enumerate().skip(next);
        likely.find(|(_, member)| self.reader.take_key(member.quoted))
    }

    /// Opens a struct: true when an object stands next. `null` leaves the struct as it is, anything else is a fault.
    pub(super) fn is_object(&mut self, at: &Path<'_>, go_type: &str) -> Result<bool, Malformed> {
        match self.reader.kind()? {
            Kind::Object => Ok(true),
            Kind::Null => self.null().map(|()| false),
            _ => self.mismatch(at, go_type).map(|()| false),
        }
    }

    /// Notes an unknown member and passes over its value.
    pub(super) fn unknown(&mut self, at: &Path<'_>) -> Result<(), Malformed> {
        self.strict_fault(at, StrictFaultKind::Unknown);
        self.reader.skip()
    }

    /// Notes a member seen twice.
    #[cold]
    pub(super) fn duplicate(&mut self, at: &Path<'_>) {
        self.strict_fault(at, StrictFaultKind::Duplicate);
    }

    fn strict_fault(&mut self, at: &Path<'_>, kind: StrictFaultKind) {
        if self.strict.len() >= STRICT_FAULTS_MAX || self.aborted.is_some() {
            return;
        }
        let mut path = String::new();
        at.strict(&mut path);
        let fault = StrictFault { kind, path };
        if self.strict_seen.insert(fault.clone()) {
            self.strict.push(fault);
        }
    }

    /// Notes that the next value does not fit `go_type`, and passes over it.
    pub(super) fn mismatch(&mut self, at: &Path<'_>, go_type: &str) -> Result<(), Malformed> {
        let value = self.reader.kind()?.go_name();
        self.save(at, value, go_type);
        self.reader.skip()
    }

    fn save(&mut self, at: &Path<'_>, value: &str, go_type: &str) {
        if self.saved.is_none() {
            self.saved = Some(type_fault(at, value, go_type));
        }
    }

    fn abort(&mut self, fault: String) {
        if self.aborted.is_none() {
            self.aborted = Some(fault);
        }
    }

    pub(super) fn string(&mut self, at: &Path<'_>, slot: &mut impl From<Cow<'a, str>>) -> Result<(), Malformed> {
        self.string_of(at, "string", slot)
    }

    /// A string of a named Go type such as `types.UID`.
    pub(super) fn string_of<T: From<Cow<'a, str>>>(
        &mut self,
        at: &Path<'_>,
        go_type: &str,
        slot: &mut T,
    ) -> Result<(), Malformed> {
        if let Some(text) = self.reader.plain_string() {
            *slot = Cow::Borrowed(text).into();
            return Ok(());
        }
        match self.reader.kind()? {
            Kind::String => {
                *slot = self.reader.string()?.into();
                Ok(())
            }
            Kind::Null => self.null(),
            _ => self.mismatch(at, go_type),
        }
    }

    /// A string that is written even where it is empty.
    pub(super) fn string_or_empty<T: From<Cow<'a, str>>>(
        &mut self,
        at: &Path<'_>,
        slot: &mut T,
    ) -> Result<(), Malformed> {
        if let Some(text) = self.reader.plain_string() {
            *slot = Cow::Borrowed(text).into();
            return Ok(());
        }
        self.string(at, slot)
    }

    /// Takes a `null` where none would be written.
    fn null(&mut self) -> Result<(), Malformed> {
        self.reader.null()
    }

    /// A number of Go's type `int32` or `int64`: digits only, in range.
    pub(super) fn integer<N: std::str::FromStr>(
        &mut self,
        at: &Path<'_>,
        go_type: &str,
        slot: &mut N,
    ) -> Result<(), Malformed> {
        match self.reader.kind()? {
            Kind::Number => {
                let literal = self.reader.number()?;
                match literal.parse() {
                    Ok(number) => *slot = number,
                    Err(_) => self.save(at, &format!("number {literal}"), go_type),
                }
                Ok(())
            }
            Kind::Null => self.null(),
            _ => self.mismatch(at, go_type),
        }
    }

    /// A `*int64`: `null` unsets it.
    pub(super) fn optional_integer(&mut self, at: &Path<'_>, slot: &mut Option<i64>) -> Result<(), Malformed> {
        if self.is_null()? {
            *slot = None;
            return Ok(());
        }
        self.integer(at, "int64", slot.get_or_insert_default())
    }

    /// A `*bool`: `null` unsets it.
    pub(super) fn optional_boolean(&mut self, at: &Path<'_>, slot: &mut Option<bool>) -> Result<(), Malformed> {
        if self.is_null()? {
            *slot = None;
            return Ok(());
        }
        if self.reader.kind()? == Kind::Bool {
            *slot = Some(self.reader.boolean()?);
            return Ok(());
        }
        self.mismatch(at, "bool")
    }

    /// Takes a `null`, if one stands next.
    pub(super) fn is_null(&mut self) -> Result<bool, Malformed> {
        if self.reader.kind()? == Kind::Null {
            self.null()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// A `metav1.Time`; the zero time is "not set".
    pub(super) fn time(&mut self, at: &Path<'_>, slot: &mut Option<Time>) -> Result<(), Malformed> {
        let parse = |text: &str| Time::parse(text).map(|time| Some(time).filter(|&time| time != Time::ZERO));
        self.time_text(at, slot, Time::is_as_written, parse)
    }

    /// A `metav1.MicroTime`.
    // COMPAT(apiserver): an explicit zero time is kept and counts as set, because Go's validation compares it with a zero
    // time of another location. It is written as `null`.
    pub(super) fn micro_time(&mut self, at: &Path<'_>, slot: &mut Option<MicroTime>) -> Result<(), Malformed> {
        self.time_text(at, slot, MicroTime::is_as_written, |text| MicroTime::parse(text).map(Some))
    }

    fn time_text<T>(
        &mut self,
        at: &Path<'_>,
        slot: &mut Option<T>,
        _is_as_written: impl FnOnce(&str) -> bool,
        parse: impl FnOnce(&str) -> Result<Option<T>, crate::event::TimeError>,
    ) -> Result<(), Malformed> {
        match self.reader.kind()? {
            Kind::Null => {
                *slot = None;
                self.reader.null()
            }
            Kind::String => {
                let text = self.reader.string()?;
                match parse(&text) {
                    Ok(time) => *slot = time,
                    Err(error) => self.abort(error.to_string()),
                }
                Ok(())
            }
            kind => {
                self.abort(type_fault(at, kind.go_name(), "string"));
                self.reader.skip()
            }
        }
    }
}

fn type_fault(at: &Path<'_>, value: &str, go_type: &str) -> String {
    let (innermost, fields) = at.context();
    if fields.is_empty() {
        format!("json: cannot unmarshal {value} into Go value of type {go_type}")
    } else {
        format!("json: cannot unmarshal {value} into Go struct field {innermost}.{fields} of type {go_type}")
    }
}
