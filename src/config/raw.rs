//! The raw configuration: the YAML file as a tree with line numbers, overridden by the flags.
//!
//! Built from the events of serde-saphyr's parser and not through serde, which stops at the first error, loses line and
//! path, and turns `0.1` into a double. Here every value stays the text that was written. Anchors, aliases and tags are
//! refused: a configuration does not need them, and without them a small file is a small tree.

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span, StrInput};

use super::Overrides;
use super::error::{Error, Errors, Problem};

/// LIMIT: nesting of a configuration file; deeper files are refused. The deepest key has seven levels.
const DEPTH_MAX: usize = 16;
/// LIMIT: keys of one section; longer ones are refused. `auth.sourceBinding.components` has one for each service account.
const KEYS_MAX: usize = 1000;
/// LIMIT: members of one list; longer ones are refused.
const MEMBERS_MAX: usize = 1000;

/// The unchecked configuration: everything is optional, every value is a text with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawConfig {
    /// Name of the file in errors.
    pub(super) file: String,
    root: Node,
    /// Errors of keys that are given twice, reported with all other errors.
    twice: Errors,
}

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) value: Value,
}

/// Where a value was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Origin {
    /// Nowhere: an empty file.
    #[default]
    Nowhere,
    /// On this line of the file, from 1.
    Line(usize),
    /// On the command line.
    Flag(&'static str),
}

/// The kinds of YAML nodes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Value {
    /// Nothing, `~` or `null`: the same as an absent key.
    #[default]
    Null,
    /// A text, number or boolean, as it was written.
    Scalar(String),
    /// A list.
    List(Vec<Node>),
    /// Keys and values in the order of the file.
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) node: Node,
}

impl RawConfig {
    /// Parses YAML; errors name it `file`. The error is the first syntax error, with all duplicate keys before it.
    /// Duplicate keys alone are reported by [`Config::from_raw`](super::Config::from_raw) with all other errors.
    ///
    /// # Errors
    /// When `text` is not one YAML document of plain maps, lists and scalars within the limits.
    pub fn parse(file: &str, text: &str) -> Result<Self, Errors> {
        let mut options = granit_parser::Options::default();
        options.emit_comments = false;
        options.flow_nesting_limit = DEPTH_MAX;
        options.block_nesting_limit = DEPTH_MAX;
        let mut tree = Tree {
            parser: Parser::new_from_str_with_options(text, options),
            text,
            file,
            path: Vec::new(),
            errors: Errors::default(),
        };
        match tree.document() {
            Ok(root) => Ok(Self { file: file.to_owned(), root, twice: tree.errors }),
            Err(error) => {
                tree.errors.push(error);
                Err(tree.errors)
            }
        }
    }

    /// Returns the tree with the flags applied, and the errors of duplicate keys. A flag's section that is no map in
    /// the file stays as it is, and is reported later.
    pub(super) fn overlaid(mut self, overrides: &Overrides) -> (Node, Errors) {
        for (flag, path, text) in &overrides.flags {
            let node = Node { origin: Origin::Flag(flag), value: Value::Scalar(text.clone()) };
            overlay(&mut self.root, &path.split('.').collect::<Vec<_>>(), node);
        }
        (self.root, self.twice)
    }
}

fn overlay(at: &mut Node, path: &[&str], node: Node) {
    let Some((key, rest)) = path.split_first() else {
        *at = node;
        return;
    };
    if at.value == Value::Null {
        at.value = Value::Map(Vec::new());
    }
    let Value::Map(entries) = &mut at.value else { return };
    if let Some(entry) = entries.iter_mut().find(|entry| entry.key == *key) {
        overlay(&mut entry.node, rest, node);
    } else {
        let mut child = Node { origin: node.origin, value: Value::Null };
        overlay(&mut child, rest, node);
        entries.push(Entry { key: (*key).to_owned(), line: 0, node: child });
    }
}

/// Builds the tree; `path` is that of the current value, for errors.
struct Tree<'t> {
    parser: Parser<'t, StrInput<'t>>,
    text: &'t str,
    file: &'t str,
    path: Vec<String>,
    errors: Errors,
}

type Next<'t> = (Event<'t>, Span);

impl<'t> Tree<'t> {
    fn document(&mut self) -> Result<Node, Error> {
        let mut root = Node::default();
        let mut documents = 0_usize;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd => {}
                event => {
                    documents = documents.saturating_add(1);
                    if documents > 1 {
                        return Err(self.error(&span, "a second YAML document; one file holds one configuration"));
                    }
                    root = self.node((event, span))?;
                }
            }
        }
    }

    fn next(&mut self) -> Result<Next<'t>, Error> {
        match self.parser.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => {
                let (line, column) = (error.marker().line().max(1), error.marker().col().saturating_add(1));
                // The parser names the beginning of the value before it.
                let is_tab = error.info().contains("found a tab");
                let (line, column) = self.tab(line).filter(|_| is_tab).unwrap_or((line, column));
                let origin = Origin::Line(line);
                let text = format!("not valid YAML at column {column}: {}", error.info());
                Err(Error::new(self.file, origin, self.path.concat(), Problem::Syntax(text)))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// Returns line and column of the first tab that indents a line, from this line on.
    fn tab(&self, from: usize) -> Option<(usize, usize)> {
        let mut lines = (1_usize..).zip(self.text.lines()).skip(from.saturating_sub(1));
        lines.find_map(|(number, line)| {
            let spaces = line.chars().take_while(|c| *c == ' ').count();
            line.trim_start_matches(' ').starts_with('\t').then(|| (number, spaces.saturating_add(1)))
        })
    }

    fn node(&mut self, (event, span): Next<'t>) -> Result<Node, Error> {
        let origin = Origin::Line(line(&span));
        let value = match event {
            Event::Scalar(text, style, 0, None) => {
                let plain = style == ScalarStyle::Plain;
                if plain && matches!(text.as_ref(), "" | "~" | "null" | "Null" | "NULL") {
                    Value::Null
                } else {
                    Value::Scalar(text.into_owned())
                }
            }
            Event::SequenceStart(_, 0, None) => Value::List(self.list()?),
            Event::MappingStart(_, 0, None) => Value::Map(self.map()?),
            Event::Alias(_)
            | Event::UnresolvedAlias(_)
            | Event::Scalar(_, _, 1.., _)
            | Event::SequenceStart(_, 1.., _)
            | Event::MappingStart(_, 1.., _) => {
                return Err(self.error(&span, "anchors and aliases are not supported; write the value out"));
            }
            _ => return Err(self.error(&span, "YAML tags are not supported; write the plain value")),
        };
        Ok(Node { origin, value })
    }

    fn list(&mut self) -> Result<Vec<Node>, Error> {
        let mut members = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd | Event::StreamEnd) {
                return Ok(members);
            }
            if members.len() == MEMBERS_MAX {
                return Err(self.error(&span, &format!("a list may have at most {MEMBERS_MAX} members")));
            }
            self.path.push(format!("[{}]", members.len()));
            members.push(self.node((event, span))?);
            self.path.pop();
        }
    }

    fn map(&mut self) -> Result<Vec<Entry>, Error> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let key = match event {
                Event::MappingEnd | Event::StreamEnd => return Ok(entries),
                Event::Scalar(key, _, 0, None) => key.into_owned(),
                _ => return Err(self.error(&span, "a key must be a plain string")),
            };
            if entries.len() == KEYS_MAX {
                return Err(self.error(&span, &format!("a section may have at most {KEYS_MAX} keys")));
            }
            let dot = if self.path.is_empty() { "" } else { "." };
            self.path.push(format!("{dot}{key}"));
            if let Some(first) = entries.iter().find(|entry| entry.key == key) {
                let text = format!("this key is given twice; first on line {}", first.line);
                let error = self.error(&span, &text);
                self.errors.push(error);
            }
            let value = self.next()?;
            let node = self.node(value)?;
            self.path.pop();
            entries.push(Entry { key, line: line(&span), node });
        }
    }

    fn error(&self, span: &Span, text: &str) -> Error {
        Error::new(self.file, Origin::Line(line(span)), self.path.concat(), Problem::Syntax(text.to_owned()))
    }
}

fn line(span: &Span) -> usize {
    span.start.line().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        RawConfig::parse("f", text).unwrap_err().to_string()
    }

    #[test]
    fn values_stay_as_written() {
        let raw = RawConfig::parse("f", "a: 0.10\nb: [yes, '1']\nc:\nd: ~\n").unwrap();
        let Value::Map(entries) = raw.root.value else { panic!("no map") };
        assert_eq!(entries[0].node.value, Value::Scalar("0.10".into()));
        let Value::List(members) = &entries[1].node.value else { panic!("no list") };
        assert_eq!(members[0].value, Value::Scalar("yes".into()));
        assert_eq!(members[1].origin, Origin::Line(2));
        assert_eq!((&entries[2].node.value, &entries[3].node.value), (&Value::Null, &Value::Null));
    }

    #[test]
    fn duplicate_keys_come_before_the_first_syntax_error() {
        assert_eq!(
            fault("a:\n  b: 1\n  b: 2\n[c]: 1\n"),
            "f:3: a.b: this key is given twice; first on line 2\nf:4: a key must be a plain string"
        );
    }

    /// Fault: the error named the line of the value before the tab.
    #[test]
    fn a_tab_is_reported_on_its_line() {
        let reason = "not valid YAML at column 3: while scanning a plain scalar, found a tab";
        assert_eq!(fault("log:\n  level: info\n\n  \tformat: text\n"), format!("f:4: log.level: {reason}"));
    }

    #[test]
    fn limits_are_reached() {
        let many: String = (0..=KEYS_MAX).map(|number| format!("k{number}: 1\n")).collect();
        assert_eq!(fault(&many), "f:1001: a section may have at most 1000 keys");
        let long = format!("a: [{}]", "1,".repeat(MEMBERS_MAX + 1));
        assert_eq!(fault(&long), "f:1: a: a list may have at most 1000 members");
        assert!(fault(&"[".repeat(1000)).contains("not valid YAML"));
    }
}
