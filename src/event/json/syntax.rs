//! Go's JSON scanner, for its words only: the slow path of a malformed body. Mirrors `encoding/json/scanner.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use super::go::quote_byte;
use super::reader::DEPTH_MAX;

const END: &str = "unexpected end of JSON input";

/// Go's text for the first syntax fault of a malformed document.
pub(super) fn fault(body: &[u8]) -> String {
    let mut scanner = Scanner { rest: body, open: Vec::new() };
    match scanner.document() {
        Err(fault) => fault,
        // Not reached: the reader and this scanner accept the same documents. The text is Go's most frequent one.
        Ok(()) => END.to_owned(),
    }
}

#[cfg(test)]
pub(super) fn is_malformed(body: &[u8]) -> bool {
    Scanner { rest: body, open: Vec::new() }.document().is_err()
}

struct Scanner<'a> {
    rest: &'a [u8],
    /// The closer of each open object and array.
    open: Vec<u8>,
}

type Step<T = ()> = Result<T, String>;

fn invalid<T>(byte: u8, context: &str) -> Step<T> {
    Err(format!("invalid character {} {context}", quote_byte(byte)))
}

impl Scanner<'_> {
    fn next(&mut self) -> Step<u8> {
        let (&byte, rest) = self.rest.split_first().ok_or(END)?;
        self.rest = rest;
        Ok(byte)
    }

    /// The next byte where white space is a fault. Go tells the end of a body by feeding the scanner one more blank.
    fn next_tight(&mut self) -> u8 {
        self.next().unwrap_or(b' ')
    }

    fn next_visible(&mut self) -> Step<u8> {
        loop {
            let byte = self.next()?;
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Ok(byte);
            }
        }
    }

    fn document(&mut self) -> Step {
        let first = self.next_visible()?;
        self.begin_value(first)?;
        while let Some(&closer) = self.open.last() {
            self.after_value(closer)?;
        }
        match self.next_visible() {
            Ok(byte) => invalid(byte, "after top-level value"),
            Err(_end) => Ok(()),
        }
    }

    /// Reads a scalar, or opens an object or array up to its first scalar or its end.
    fn begin_value(&mut self, first: u8) -> Step {
        let mut byte = first;
        loop {
            match byte {
                b'{' => {
                    self.push(byte, b'}')?;
                    let next = self.next_visible()?;
                    if next == b'}' {
                        self.open.pop();
                        return Ok(());
                    }
                    self.key(next)?;
                    byte = self.next_visible()?;
                }
                b'[' => {
                    self.push(byte, b']')?;
                    byte = self.next_visible()?;
                    if byte == b']' {
                        self.open.pop();
                        return Ok(());
                    }
                }
                b'"' => return self.string(),
                b'-' => {
                    return match self.next_tight() {
                        digit @ b'0'..=b'9' => self.number(digit),
                        other => invalid(other, "in numeric literal"),
                    };
                }
                b'0'..=b'9' => return self.number(byte),
                b't' => return self.word("true"),
                b'f' => return self.word("false"),
                b'n' => return self.word("null"),
                _ => return invalid(byte, "looking for beginning of value"),
            }
        }
    }

    fn push(&mut self, byte: u8, closer: u8) -> Step {
        self.open.push(closer);
        if self.open.len() > DEPTH_MAX { invalid(byte, "exceeded max depth") } else { Ok(()) }
    }

    fn after_value(&mut self, closer: u8) -> Step {
        let byte = self.next_visible()?;
        if byte == closer {
            self.open.pop();
            return Ok(());
        }
        if byte != b',' {
            let context = if closer == b'}' { "after object key:value pair" } else { "after array element" };
            return invalid(byte, context);
        }
        let mut next = self.next_visible()?;
        if closer == b'}' {
            self.key(next)?;
            next = self.next_visible()?;
        }
        self.begin_value(next)
    }

    fn key(&mut self, first: u8) -> Step {
        if first != b'"' {
            return invalid(first, "looking for beginning of object key string");
        }
        self.string()?;
        match self.next_visible()? {
            b':' => Ok(()),
            other => invalid(other, "after object key"),
        }
    }

    fn string(&mut self) -> Step {
        loop {
            match self.next()? {
                b'"' => return Ok(()),
                b'\\' => match self.next_tight() {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                    b'u' => {
                        for _digit in 0..4 {
                            let digit = self.next_tight();
                            if !digit.is_ascii_hexdigit() {
                                return invalid(digit, "in \\u hexadecimal character escape");
                            }
                        }
                    }
                    other => return invalid(other, "in string escape code"),
                },
                control @ 0..=0x1f => return invalid(control, "in string literal"),
                _ => {}
            }
        }
    }

    fn digits(&mut self) {
        while let Some((b'0'..=b'9', rest)) = self.rest.split_first() {
            self.rest = rest;
        }
    }

    fn one_digit(&mut self, context: &str) -> Step {
        let digit = self.next_tight();
        if digit.is_ascii_digit() { Ok(()) } else { invalid(digit, context) }
    }

    fn number(&mut self, first: u8) -> Step {
        if first != b'0' {
            self.digits();
        }
        if let Some((b'.', rest)) = self.rest.split_first() {
            self.rest = rest;
            self.one_digit("after decimal point in numeric literal")?;
            self.digits();
        }
        if let Some((b'e' | b'E', rest)) = self.rest.split_first() {
            self.rest = rest;
            if let Some((b'+' | b'-', rest)) = self.rest.split_first() {
                self.rest = rest;
            }
            self.one_digit("in exponent of numeric literal")?;
            self.digits();
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Step {
        for expected in word.bytes().skip(1) {
            let byte = self.next_tight();
            if byte != expected {
                return invalid(byte, &format!("in literal {word} (expecting '{}')", char::from(expected)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_gos_scanner() {
        let check = |body: &str, text: &str| assert_eq!(fault(body.as_bytes()), text, "{body}");
        check("", END);
        check("{", END);
        check("{\"a\"", END);
        check("[1,", END);
        check("\"a", END);
        check("tr", "invalid character ' ' in literal true (expecting 'u')");
        check("-", "invalid character ' ' in numeric literal");
        check("\"\\", "invalid character ' ' in string escape code");
        check("hello", "invalid character 'h' looking for beginning of value");
        check("{a", "invalid character 'a' looking for beginning of object key string");
        check("{\"a\" 1}", "invalid character '1' after object key");
        check("{\"a\":1 2}", "invalid character '2' after object key:value pair");
        check("{\"a\":1,}", "invalid character '}' looking for beginning of object key string");
        check("[1 2]", "invalid character '2' after array element");
        check("[1,]", "invalid character ']' looking for beginning of value");
        check("{}x", "invalid character 'x' after top-level value");
        check("01", "invalid character '1' after top-level value");
        check("-x", "invalid character 'x' in numeric literal");
        check("1.x", "invalid character 'x' after decimal point in numeric literal");
        check("1ex", "invalid character 'x' in exponent of numeric literal");
        check("tru3", "invalid character '3' in literal true (expecting 'e')");
        check("\"\n\"", "invalid character '\\n' in string literal");
        check("\"\\x\"", "invalid character 'x' in string escape code");
        check("\"\\u12x4\"", "invalid character 'x' in \\u hexadecimal character escape");
        check(&"[".repeat(10_001), "invalid character '[' exceeded max depth");
    }
}
