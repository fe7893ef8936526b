//! Repairs the text of a body as Go's decoder does, so that `serde_json` accepts what the API server accepts.

use std::borrow::Cow;

use crate::status::Status;

/// Replaces each byte that is not UTF-8, and each half of a surrogate pair, by U+FFFD, as Go's decoder does.
pub fn repaired(body: &[u8]) -> Cow<'_, str> {
    let text = std::str::from_utf8(body).map_or_else(|_invalid| Cow::Owned(lossy(body)), Cow::Borrowed);
    match without_half_pairs(&text) {
        Some(repaired) => Cow::Owned(repaired),
        None => text,
    }
}

/// LIMIT: values of a client's document, which takes some 70 bytes for each as a tree.
const VALUES_MAX: usize = 100_000;

/// Refuses a document with more than 100,000 values. Reads nothing of one that is too short for so many.
///
/// # Errors
/// 413.
pub fn check_values(json: &[u8]) -> Result<(), Box<Status>> {
    if json.len() / 2 < VALUES_MAX || values(json) <= VALUES_MAX {
        return Ok(());
    }
    let message = format!("Request entity too large: limit is {VALUES_MAX} values");
    Err(Status::new(413, "RequestEntityTooLarge", message).into())
}

/// Returns the number of values in a JSON document. An empty object or array counts as two.
fn values(json: &[u8]) -> usize {
    let (mut values, mut bytes) = (1_usize, json.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b',' | b'[' | b'{' => values = values.saturating_add(1),
            b'"' => skip_text(&mut bytes),
            _ => {}
        }
    }
    values
}

/// Skips the rest of a text and its final quote.
fn skip_text<'a>(bytes: &mut impl Iterator<Item = &'a u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                let _escaped = bytes.next();
            }
            _ => {}
        }
    }
}

/// Converts bytes to text as Go does: every byte that is not part of valid UTF-8 becomes one U+FFFD. Rust's lossy
/// conversion makes one of each truncated sequence.
pub(in crate::event) fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for _invalid in chunk.invalid() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

/// Quotes text as Go's `%q` does. Rust's `{:?}` has other escapes, and escapes combining characters.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    for character in text.chars() {
        let code = u32::from(character);
        quoted.push_str(&match character {
            '"' | '\\' => format!("\\{character}"),
            '\x07' => r"\a".to_owned(),
            '\x08' => r"\b".to_owned(),
            '\t' => r"\t".to_owned(),
            '\n' => r"\n".to_owned(),
            '\x0b' => r"\v".to_owned(),
            '\x0c' => r"\f".to_owned(),
            '\r' => r"\r".to_owned(),
            _ if is_printable(character) => character.to_string(),
            '\0'..='\x7f' => format!(r"\x{code:02x}"),
            '\u{80}'..='\u{ffff}' => format!(r"\u{code:04x}"),
            _ => format!(r"\U{code:08x}"),
        });
    }
    quoted.push('"');
    quoted
}

/// Whether Go prints a character as it is (`unicode.IsPrint`), as far as the standard library knows: `escape_debug` keeps
/// printable characters, and combining ones after another character.
pub fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return !character.is_ascii_control();
    }
    ['a', character].iter().collect::<String>().escape_debug().nth(1) == Some(character)
}

/// Replaces each escaped half of a surrogate pair by U+FFFD; `None` if there is none.
fn without_half_pairs(json: &str) -> Option<String> {
    /// `\uXXXX`
    const ESCAPE_BYTES: usize = 6;
    let mut repaired = String::new();
    // The part that is not copied yet, and the offset in it from which to search for the next escape.
    let (mut rest, mut from) = (json, 0_usize);
    while let Some(found) = rest.as_bytes().get(from..).and_then(|bytes| memchr::memchr(b'\\', bytes)) {
        let escape = from.saturating_add(found);
        let behind = escape.saturating_add(ESCAPE_BYTES);
        match unit(rest, escape) {
            Some(0xd800..0xdc00) if matches!(unit(rest, behind), Some(0xdc00..0xe000)) => {
                from = behind.saturating_add(ESCAPE_BYTES);
            }
            Some(0xd800..0xe000) => {
                repaired.push_str(rest.get(..escape)?);
                repaired.push(char::REPLACEMENT_CHARACTER);
                (rest, from) = (rest.get(behind..)?, 0);
            }
            Some(_) => from = behind,
            // Another escape, of one letter.
            None => from = escape.saturating_add(2),
        }
    }
    if repaired.is_empty() {
        return None;
    }
    Some(repaired + rest)
}

/// Parses the escaped UTF-16 code unit at `start`.
fn unit(json: &str, start: usize) -> Option<u16> {
    let digits = json.get(start..)?.strip_prefix("\\u")?.get(..4)?;
    // `from_str_radix` also accepts a sign.
    if digits.starts_with('+') { None } else { u16::from_str_radix(digits, 16).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_outside_texts() {
        for (json, expected) in [
            ("1", 1),
            ("[1,2]", 3),
            (r#"{"a":[{},"x"],"b":null}"#, 6),
            (r#"{"a,[{":"\"[,{","b\\":"{"}"#, 3),
            ("\"[", 1),
        ] {
            assert_eq!(values(json.as_bytes()), expected, "{json}");
        }
        let list = |values: usize| format!("[{}0]", "0,".repeat(values - 2));
        assert_eq!(check_values(list(VALUES_MAX).as_bytes()), Ok(()));
        assert_eq!(check_values(list(VALUES_MAX + 1).as_bytes()).unwrap_err().code, 413);
        assert_eq!(check_values(format!("\"{}\"", ",".repeat(3 << 20)).as_bytes()), Ok(()));
    }

    #[test]
    fn each_byte_is_repaired_by_itself() {
        assert_eq!(repaired(b"a\xe4\xb8b"), "a\u{fffd}\u{fffd}b");
        assert_eq!(repaired(b"\"\xed\xa0\x80\xff\""), "\"\u{fffd}\u{fffd}\u{fffd}\u{fffd}\"");
        assert!(matches!(repaired("世".as_bytes()), Cow::Borrowed("世")));
    }

    #[test]
    fn text_is_quoted_as_go_quotes_it() {
        for (text, expected) in [
            ("a'b\"c\\", r#""a'b\"c\\""#),
            ("\0\x07\x08\t\n\x0b\x0c\r\x1b\x7f", r#""\x00\a\b\t\n\v\f\r\x1b\x7f""#),
            ("\u{308}a\u{308}é世😀\u{fffd}", "\"\u{308}a\u{308}é世😀\u{fffd}\""),
            ("\u{85}\u{a0}\u{200b}\u{2028}\u{e0001}", r#""\u0085\u00a0\u200b\u2028\U000e0001""#),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn halves_of_surrogate_pairs_are_repaired_and_pairs_are_kept() {
        let check = |json: &str, expected: &str| assert_eq!(repaired(json.as_bytes()), expected, "{json}");
        check(r"\ud83d\ude00\u0041\n", r"\ud83d\ude00\u0041\n");
        check(r"\uD83D\u0041\uDC00\t\/x", "\u{fffd}\\u0041\u{fffd}\\t\\/x");
        check(r"\ud83d\ud83d\ude00", "\u{fffd}\\ud83d\\ude00");
        check(r"\ude00\ud83d", "\u{fffd}\u{fffd}");
        // An escaped backslash; and invalid escapes, which no parser accepts.
        check(r"\\ud800\\\ud800", "\\\\ud800\\\\\u{fffd}");
        for broken in [r"\ud8", r"\u+800", r"\", r"\ud8é0", r"\uD83Dé\", "\\é"] {
            assert!(repaired(broken.as_bytes()).ends_with(broken.chars().next_back().unwrap()), "{broken}");
        }
    }
}
