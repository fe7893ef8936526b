//! Where a string in a JSON document first needs to be looked at closely. Hot: most of a body stands in strings, so eight bytes
//! are tried at once.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

/// The offset of the first quote, backslash or control character.
#[inline]
pub(super) fn plain(bytes: &[u8]) -> Option<usize> {
    let hits = |word: u64| {
        let borrowed = less(word, 0x20) | less(word ^ all(b'"'), 1) | less(word ^ all(b'\\'), 1);
        borrowed & !word
    };
    first(bytes, hits, |byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))
}

/// The offset of the first byte that Go escapes when it writes a text, or that may begin such a character; the length where
/// there is none.
#[inline]
pub(super) fn verbatim(bytes: &[u8]) -> usize {
    let hits = |word: u64| {
        // `<` and `>` differ in one bit, and so do `"` and `&`.
        let angle = word & all(!(b'<' ^ b'>')) ^ all(b'<' & b'>');
        let quote = word & all(!(b'"' ^ b'&')) ^ all(b'"' & b'&');
        let separator = word ^ all(0xe2);
        let borrowed = less(word, 0x20) | less(angle, 1) | less(quote, 1) | less(word ^ all(b'\\'), 1);
        borrowed & !word | less(separator, 1) & !separator
    };
    first(bytes, hits, is_special).unwrap_or(bytes.len())
}

/// The offset of the first byte that is searched for: `hits` sets the high bits of such bytes in a word, and perhaps of some
/// above the first. What is searched for has borrowed into its high bit; bits above the first hit may be wrong, for what is borrowed
/// goes upwards. Bytes from 128 on have the bit anyway, and are no hits.
#[inline]
fn first(bytes: &[u8], hits: impl Fn(u64) -> u64, is_hit: impl Fn(u8) -> bool) -> Option<usize> {
    let mut rest = bytes;
    while let Some((word, after)) = rest.split_first_chunk() {
        let hits = hits(u64::from_le_bytes(*word)) & HIGHS;
        if hits != 0 {
            let before = bytes.len().saturating_sub(rest.len());
            return Some(before.saturating_add(hits.trailing_zeros() as usize / 8));
        }
        rest = after;
    }
    let found = rest.iter().position(|&byte| is_hit(byte))?;
    Some(bytes.len().saturating_sub(rest.len()).saturating_add(found))
}

const fn is_special(byte: u8) -> bool {
    matches!(byte, 0..=0x1f | b'"' | b'\\' | b'<' | b'>' | b'&' | 0xe2)
}

/// A word of this byte alone.
const fn all(byte: u8) -> u64 {
    ONES.wrapping_mul(byte as u64)
}

/// A word whose high bits tell which bytes of `word` below 128 are below `limit`.
const fn less(word: u64, limit: u8) -> u64 {
    word.wrapping_sub(all(limit))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn eight_at_once_find_what_one_by_one_finds(
            plain_before in proptest::collection::vec(prop_oneof![any::<u8>(), 0x1e..0x24_u8, 0x5a..0x5e_u8], 0..40),
        ) {
            let expected = plain_before.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
            prop_assert_eq!(plain(&plain_before), expected);
        }

        #[test]
        fn eight_at_once_find_what_is_escaped(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), 0x1e..0x28_u8, 0x3a..0x40_u8, 0xe0..0xe4_u8, b'a'..b'f'], 0..40),
        ) {
            let expected = bytes.iter().position(|&byte| is_special(byte)).unwrap_or(bytes.len());
            prop_assert_eq!(verbatim(&bytes), expected);
        }

        #[test]
        fn a_long_way_is_gone_too(before in "[a-z\u{80}-\u{ffff}]{0,40}", hit in "[\"\\\\\u{0}-\u{1f}]?", after in ".{0,20}") {
            let text = format!("{before}{hit}{after}");
            let expected = text.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
            prop_assert_eq!(plain(text.as_bytes()), expected);
        }
    }
}
