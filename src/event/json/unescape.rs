//! The escapes in a JSON string, undone as Go undoes them.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::reader::Malformed;
use super::{go, scan};

/// What stands between the quotes of a string. No quote and no control character may stand in it but behind a backslash.
pub(super) fn unescape(raw: &[u8]) -> Result<String, Malformed> {
    let mut text = String::with_capacity(raw.len());
    let mut rest = raw;
    loop {
        // Stops at a backslash, as nothing else is left to stop at.
        let plain = scan::plain(rest).unwrap_or(rest.len());
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
