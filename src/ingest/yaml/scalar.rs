//! How a text is written: plain, in quotes or as a block (`yaml_emitter_analyze_scalar`, `yaml_emitter_write_*_scalar`).

use super::Writer;
use super::resolve::{Plain, resolve};

/// The column behind which a line is broken at the next blank.
const WIDTH: usize = 80;

/// A text and its style.
#[derive(Debug)]
pub(super) struct Scalar<'t> {
    text: &'t str,
    style: Style,
    /// Keys are not folded.
    folds: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Plain,
    Single,
    Double,
    Literal,
}

impl<'t> Scalar<'t> {
    /// A value.
    pub(super) fn of(text: &'t str) -> Self {
        Self { text, style: style(text), folds: true }
    }

    /// A key; it must have no line break.
    pub(super) fn of_key(text: &'t str) -> Self {
        Self { text, style: style(text), folds: false }
    }

    pub(super) fn write(&self, writer: &mut Writer, indent: usize) {
        match self.style {
            Style::Plain => self.folded(writer, indent, Writer::put),
            Style::Single => {
                writer.put('\'');
                self.folded(writer, indent, |writer, character| {
                    writer.put(character);
                    if character == '\'' {
                        writer.put('\'');
                    }
                });
                writer.put('\'');
            }
            Style::Double => {
                writer.put('"');
                self.double_quoted(writer, indent);
                writer.put('"');
            }
            Style::Literal => self.literal(writer, indent),
        }
    }

    /// Characters, with a line break in place of a lone blank behind the width.
    fn folded(&self, writer: &mut Writer, indent: usize, put: impl Fn(&mut Writer, char)) {
        let mut after_blank = false;
        let mut rest = self.text.chars().peekable();
        while let Some(character) = rest.next() {
            let next = rest.peek().copied();
            let breaks = self.folds && !after_blank && writer.column > WIDTH && next.is_some_and(|next| next != ' ');
            if character == ' ' && breaks {
                writer.indent(indent);
            } else {
                put(writer, character);
            }
            after_blank = character == ' ';
        }
    }

    fn double_quoted(&self, writer: &mut Writer, indent: usize) {
        let (mut after_blank, mut first) = (false, true);
        let mut rest = self.text.chars().peekable();
        while let Some(character) = rest.next() {
            let next = rest.peek().copied();
            if character == ' ' && self.folds && !after_blank && !first && writer.column > WIDTH && next.is_some() {
                writer.indent(indent);
                if next == Some(' ') {
                    writer.put('\\');
                }
            } else {
                escaped(character, writer);
            }
            after_blank = character == ' ';
            first = false;
        }
    }

    fn literal(&self, writer: &mut Writer, indent: usize) {
        writer.put('|');
        if self.text.starts_with([' ', '\n']) {
            writer.put('2');
        }
        match self.text.strip_suffix('\n') {
            None => writer.put('-'),
            Some("") => writer.put('+'),
            Some(rest) if rest.ends_with('\n') => writer.put('+'),
            Some(_) => {}
        }
        writer.break_line();
        let mut at_start = true;
        for character in self.text.chars() {
            if character == '\n' {
                writer.break_line();
                at_start = true;
                continue;
            }
            if at_start {
                writer.indent(indent);
                at_start = false;
            }
            writer.put(character);
        }
    }
}

/// What `encode.go` asks for and what the emitter makes of it.
fn style(text: &str) -> Style {
    let special = text.chars().any(|character| !is_printable(character) || is_rare_break(character));
    let (blank_break, break_blank) = (text.contains(" \n"), text.contains("\n "));
    if text.contains('\n') {
        let block = !(special || blank_break || text.ends_with(' '));
        return if block { Style::Literal } else { Style::Double };
    }
    if special || break_blank || resolve(text) != Plain::Text {
        return Style::Double;
    }
    let plain = !(text.starts_with(' ') || text.ends_with(' ') || has_indicator(text));
    if plain { Style::Plain } else { Style::Single }
}

/// Whether the text would be read as something else than text.
fn has_indicator(text: &str) -> bool {
    if text.starts_with("---") || text.starts_with("...") {
        return true;
    }
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    let mut first = true;
    while let Some(character) = rest.next() {
        let blank_follows = rest.peek().is_none_or(|next| *next == ' ');
        let indicates = match character {
            '#' | ',' | '[' | ']' | '{' | '}' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' if first => {
                true
            }
            '?' | '-' if first => blank_follows,
            ':' => blank_follows,
            '#' => before == ' ',
            _ => false,
        };
        if indicates {
            return true;
        }
        (before, first) = (character, false);
    }
    false
}

const fn is_printable(character: char) -> bool {
    matches!(character, '\n' | ' '..='~' | '\u{a0}'..='\u{fefe}' | '\u{ff00}'..='\u{fffd}')
}

/// Line breaks that YAML 1.1 knows and Go's emitter copies; we escape them.
const fn is_rare_break(character: char) -> bool {
    matches!(character, '\u{2028}' | '\u{2029}')
}

fn escaped(character: char, writer: &mut Writer) {
    let short = match character {
        '\0' => '0',
        '\u{7}' => 'a',
        '\u{8}' => 'b',
        '\t' => 't',
        '\n' => 'n',
        '\u{b}' => 'v',
        '\u{c}' => 'f',
        '\r' => 'r',
        '\u{1b}' => 'e',
        '"' => '"',
        '\\' => '\\',
        '\u{85}' => 'N',
        '\u{2028}' => 'L',
        '\u{2029}' => 'P',
        plain if is_printable(plain) => return writer.put(plain),
        other => {
            let code = u32::from(other);
            return match code {
                0..=0xff => writer.put_all(&format!("\\x{code:02X}")),
                0x100..=0xffff => writer.put_all(&format!("\\u{code:04X}")),
                _ => writer.put_all(&format!("\\U{code:08X}")),
            };
        }
    };
    writer.put('\\');
    writer.put(short);
}
