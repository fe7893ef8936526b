//! The escapes in a JSON string, undone as Go undoes them.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::reader::Malformed;

/// The letter that an escape stands for, and what follows it; `letter` is behind its backslash, and then comes `rest`.
pub(super) fn unescape(letter: u8, rest: &[u8]) -> Result<(char, &[u8]), Malformed> {
    let plain = match letter {
        b'"' | b'\\' | b'/' => char::from(letter),
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => {
            let (unit, rest) = hex4(rest)?;
            return Ok(surrogate(unit, rest));
        }
        _ => return Err(Malformed),
    };
    Ok((plain, rest))
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
