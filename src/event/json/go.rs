//! Small pieces of Go's standard library whose exact results show in the apiserver's answers: quoting, byte-wise repair of
//! UTF-8, and the handler's summary of a body it could not read.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt::Write as _;

/// JSON with the characters escaped that Go's `json.Marshal` escapes for HTML. They occur in strings only.
pub(crate) fn escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        match letter {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => escaped.push_str(&format!("\\u{:04x}", u32::from(letter))),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Bytes of a body that the apiserver shows in `couldn't get version/kind` errors.
const SUMMARY_BYTES: usize = 30;

/// Go's conversion of bytes to text: every byte that is not part of valid UTF-8 becomes one U+FFFD (Rust's own lossy
/// conversion makes one of each cut-off sequence).
pub(crate) fn lossy(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for _invalid in chunk.invalid() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    text
}

/// `strconv.Quote`.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len().saturating_add(2));
    quoted.push('"');
    for letter in text.chars() {
        push_quoted(&mut quoted, letter, '"');
    }
    quoted.push('"');
    quoted
}

/// The scanner's `quoteChar`: a byte, taken as Latin-1, in single quotes.
pub(super) fn quote_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        _ => {
            let mut quoted = String::from("'");
            push_quoted(&mut quoted, char::from(byte), '"');
            quoted.push('\'');
            quoted
        }
    }
}

fn push_quoted(out: &mut String, letter: char, quote: char) {
    match letter {
        '\\' => out.push_str("\\\\"),
        _ if letter == quote => {
            out.push('\\');
            out.push(letter);
        }
        '\u{7}' => out.push_str("\\a"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{b}' => out.push_str("\\v"),
        _ if is_print(letter) => out.push(letter),
        _ => {
            let code = u32::from(letter);
            let written = match code {
                0..0x80 => write!(out, "\\x{code:02x}"),
                0x80..0x1_0000 => write!(out, "\\u{code:04x}"),
                _ => write!(out, "\\U{code:08x}"),
            };
            debug_assert!(written.is_ok(), "writing to a string cannot fail");
        }
    }
}

/// `unicode.IsPrint`, as near as the standard library knows it: its escaping of a letter that follows another one tells
/// printable letters (combining marks among them) from the rest.
pub(crate) fn is_print(letter: char) -> bool {
    if letter.is_ascii() {
        return !letter.is_ascii_control();
    }
    !format!("a{letter}").escape_debug().to_string().contains('\\')
}

/// The handler's `summarizeData(body, 30)`.
pub(crate) fn summary(body: &[u8]) -> String {
    let (shown, more) = match body.split_at_checked(SUMMARY_BYTES) {
        Some((shown, rest)) if !rest.is_empty() => (shown, " ..."),
        _ => (body, ""),
    };
    match body.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", lossy(shown)),
        Some(_) => {
            let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{hex}{more}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_as_strconv_does() {
        let check = |text: &str, quoted: &str| assert_eq!(quote(text), quoted);
        check("a\"b\\c", r#""a\"b\\c""#);
        check("\u{0}\u{7}\n\u{1f}\u{7f}", r#""\x00\a\n\x1f\x7f""#);
        check("é\u{301}世", "\"é\u{301}世\"");
        check("\u{a0}\u{ad}\u{2028}\u{fffd}", "\"\\u00a0\\u00ad\\u2028\u{fffd}\"");
        assert_eq!(quote_byte(b'\''), r"'\''");
        assert_eq!(quote_byte(0xef), "'ï'");
        assert_eq!(quote_byte(0x80), r"'\u0080'");
    }

    #[test]
    fn repairs_each_byte_by_itself() {
        assert_eq!(lossy(b"a\xe4\xb8b"), "a\u{fffd}\u{fffd}b");
        assert_eq!(lossy("世".as_bytes()), "世");
    }

    #[test]
    fn summaries_are_text_for_objects_and_hex_otherwise() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b" \n"), "200a");
        assert_eq!(summary(b"{"), "{");
        assert_eq!(summary(b"{23456789012345678901234567890"), "{23456789012345678901234567890");
        assert_eq!(summary(b"{234567890123456789012345678901"), "{23456789012345678901234567890 ...");
    }
}
