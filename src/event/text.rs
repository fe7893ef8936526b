//! A text of an event: one of its own, or one that is lent by the body that the event was read from.
//!
//! Hot: most occurrences only count, and nothing of them is kept. So their texts are copied where a record takes them over
//! ([`Text::kept`]), and not before.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use smol_str::SmolStr;

/// A text, its own or lent.
#[derive(Clone)]
pub struct Text<'a>(Owner<'a>);

#[derive(Clone)]
enum Owner<'a> {
    /// Somebody else, who is there for `'a`.
    Other(&'a str),
    /// The text itself.
    Own(SmolStr),
}

/// Bytes of a text that lie in the text itself.
const INLINE: usize = 23;

// An event has twenty of them.
const _: () = assert!(size_of::<Text<'_>>() == size_of::<SmolStr>(), "a text is no larger than one that is not lent");

impl<'a> Text<'a> {
    /// A text that is lent: nothing is copied.
    #[must_use]
    pub const fn lent(text: &'a str) -> Self {
        Self(Owner::Other(text))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Owner::Other(text) => text,
            Owner::Own(text) => text,
        }
    }

    /// Bytes that the text holds beside itself, once it is kept.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        if self.len() > INLINE { self.len().saturating_add(16) } else { 0 }
    }

    /// The text for itself, copied if it was lent.
    #[must_use]
    pub fn kept(self) -> Text<'static> {
        Text(Owner::Own(self.into()))
    }

    /// The text for somebody else: shared, or copied if it was lent.
    #[must_use]
    pub fn to_smolstr(&self) -> SmolStr {
        match &self.0 {
            Owner::Other(text) => SmolStr::new(text),
            Owner::Own(text) => text.clone(),
        }
    }

    /// Keeps the text, and returns it: both share it.
    pub fn keep(&mut self) -> SmolStr {
        let kept = SmolStr::from(std::mem::take(self));
        *self = kept.clone().into();
        kept
    }
}

impl Text<'static> {
    /// Becomes `newer`, copied if it was lent; what it was is left there. A text that is equal stays.
    pub fn take_over(&mut self, newer: &mut Text<'_>) {
        if *self != *newer {
            let kept = std::mem::take(newer).kept();
            *newer = std::mem::replace(self, kept);
        }
    }
}

impl Default for Text<'_> {
    fn default() -> Self {
        Self::lent("")
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl<'a> From<Cow<'a, str>> for Text<'a> {
    /// Lent where it is borrowed.
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => Self::lent(text),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<SmolStr> for Text<'_> {
    fn from(text: SmolStr) -> Self {
        Self(Owner::Own(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        SmolStr::from(text).into()
    }
}

impl From<&str> for Text<'_> {
    /// Copied: what is to be lent says so ([`Text::lent`]).
    fn from(text: &str) -> Self {
        SmolStr::new(text).into()
    }
}

impl From<Text<'_>> for SmolStr {
    fn from(text: Text<'_>) -> Self {
        match text.0 {
            Owner::Other(text) => Self::new(text),
            Owner::Own(text) => text,
        }
    }
}

impl PartialEq for Text<'_> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text<'_> {}

impl PartialEq<str> for Text<'_> {
    fn eq(&self, other: &str) -> bool {
        **self == *other
    }
}

impl PartialEq<&str> for Text<'_> {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialEq<SmolStr> for Text<'_> {
    fn eq(&self, other: &SmolStr) -> bool {
        **self == **other
    }
}

impl PartialOrd for Text<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}
