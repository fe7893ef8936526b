//! Where a string in a JSON document first needs to be looked at closely, and whether a key is the one that should come. Hot: most of
//! a body stands in strings, so eight bytes are tried at once.
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

/// Whether two keys of one length are the same. Most have 8 to 24 bytes, and for them three words at most are compared, of which the
/// last one may overlap another; that takes less than a call of what compares any bytes.
#[inline]
pub(super) fn is_same(left: &[u8], right: &[u8]) -> bool {
    let word = |bytes: &[u8], start: usize| bytes.get(start..)?.first_chunk().map(|word| u64::from_le_bytes(*word));
    let last = |bytes: &[u8]| bytes.last_chunk().map(|word| u64::from_le_bytes(*word));
    match left.len() {
        8..=24 => {
            last(left) == last(right)
                && word(left, 0) == word(right, 0)
                && (left.len() <= 16 || word(left, 8) == word(right, 8))
        }
        _ => left == right,
    }
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

    #[test]
    fn keys_are_the_same_where_all_their_bytes_are() {
        let letters = b"abcdefghijklmnopqrstuvwxyzabcdefgh";
        for length in 0..=letters.len() {
            let key = &letters[..length];
            assert!(is_same(key, key));
            for place in 0..length {
                let mut other = key.to_vec();
                other[place] = b'!';
                assert!(!is_same(key, &other), "{length} {place}");
            }
        }
    }

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
