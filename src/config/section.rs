//! Reading a section key by key: default, what is allowed and the error stand together in one line a key.
//!
//! A section remembers which keys it was asked for, so that every other key is an error, with the nearest known key beside
//! it. A value that is not allowed is reported and read as its default, so that one run finds all errors.

use std::cell::RefCell;

use super::error::{Error, Errors, Problem, near_match};
use super::raw::{Entry, Node, Origin, Value};
use super::schema::Asked;

/// Where errors are collected during one reading of a file.
#[derive(Debug)]
pub(super) struct Collector {
    file: String,
    errors: RefCell<Errors>,
    /// Whether the files that the configuration names are looked at.
    checks_files: bool,
    /// Everything that is asked for, where that is to be known.
    asked: Option<RefCell<Vec<(String, Asked)>>>,
}

/// One map of the file, or nothing where the file has none.
#[derive(Debug)]
pub(super) struct Section<'a> {
    collector: &'a Collector,
    path: String,
    origin: Origin,
    entries: &'a [Entry],
    asked: Vec<&'static str>,
}

impl Collector {
    /// With what is known to be wrong already.
    pub(super) fn new(file: &str, errors: Errors, checks_files: bool) -> Self {
        Self { file: file.to_owned(), errors: RefCell::new(errors), checks_files, asked: None }
    }

    /// For an empty file, of which only what the reader asks for is of interest.
    pub(super) fn of_questions() -> Self {
        Self { asked: Some(RefCell::default()), ..Self::new("", Errors::default(), false) }
    }

    /// What the reader asked for, in that order.
    pub(super) fn into_asked(self) -> Vec<(String, Asked)> {
        self.asked.map(RefCell::into_inner).unwrap_or_default()
    }

    fn note(&self, path: String, asked: impl FnOnce() -> Asked) {
        if let Some(all) = &self.asked {
            all.borrow_mut().push((path, asked()));
        }
    }

    /// The errors in the order of the file, then those of flags.
    pub(super) fn into_errors(self) -> Errors {
        let mut errors = self.errors.into_inner();
        errors.sort();
        errors
    }

    fn push(&self, origin: Origin, path: String, problem: Problem) {
        self.errors.borrow_mut().push(Error::new(&self.file, origin, path, problem));
    }

    /// Reads the map `node` through `read`, then reports the keys that `read` did not ask for.
    pub(super) fn read<T>(&self, node: &Node, path: String, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let entries: &[Entry] = match &node.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            Value::Scalar(_) | Value::List(_) => {
                let value = shown(&node.value);
                let allowed = "a section of keys and values".to_owned();
                self.push(node.origin, path.clone(), Problem::Value { value, allowed });
                &[]
            }
        };
        let mut section = Section { collector: self, path, origin: node.origin, entries, asked: Vec::new() };
        let value = read(&mut section);
        section.report_unknown_keys();
        value
    }
}

impl<'a> Section<'a> {
    /// The value of `key` as `parse` understands it; `default` when it is absent, or reported as not allowed.
    pub(super) fn value<T>(&mut self, key: &'static str, default: T, parse: impl Fn(&Value) -> Result<T, String>) -> T {
        self.optional(key, parse).unwrap_or(default)
    }

    /// The value of `key` as `parse` understands it; `None` when it is absent, or reported as not allowed.
    pub(super) fn optional<T>(&mut self, key: &'static str, parse: impl Fn(&Value) -> Result<T, String>) -> Option<T> {
        // No single value is a section, so the error says what is allowed.
        self.collector.note(self.path_of(key), || Asked::Value(parse(&Value::Map(Vec::new())).err()));
        let node = self.take(key)?;
        match parse(&node.value) {
            Ok(value) => Some(value),
            Err(allowed) => {
                let value = shown(&node.value);
                self.collector.push(node.origin, self.path_of(key), Problem::Value { value, allowed });
                None
            }
        }
    }

    /// Reads the section under `key`.
    pub(super) fn within<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let nothing = Node::default();
        let node = self.take(key).unwrap_or(&nothing);
        self.collector.read(node, self.path_of(key), read)
    }

    /// Reads each member of the list of sections under `key`, of which there may be at most `most`.
    pub(super) fn each<T>(
        &mut self,
        key: &'static str,
        most: usize,
        mut read: impl FnMut(&mut Section<'_>) -> T,
    ) -> Vec<T> {
        self.collector.note(self.path_of(key), || Asked::List(most));
        if self.collector.asked.is_some() {
            self.collector.read(&Node::default(), format!("{}[]", self.path_of(key)), &mut read);
        }
        let Some(node) = self.take(key) else { return Vec::new() };
        let path = self.path_of(key);
        match &node.value {
            Value::List(members) if members.len() <= most => members
                .iter()
                .enumerate()
                .map(|(number, member)| self.collector.read(member, format!("{path}[{number}]"), &mut read))
                .collect(),
            value => {
                let problem =
                    Problem::Value { value: shown(value), allowed: format!("a list of at most {most} sections") };
                self.collector.push(node.origin, path, problem);
                Vec::new()
            }
        }
    }

    /// Reads each value of the map under `key`, whose keys are free.
    pub(super) fn entries<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&Value) -> Result<T, String>,
    ) -> Vec<(String, T)> {
        self.collector.note(self.path_of(key), || Asked::Entries(parse(&Value::Map(Vec::new())).err()));
        let Some(node) = self.take(key) else { return Vec::new() };
        let path = self.path_of(key);
        let Value::Map(entries) = &node.value else {
            let allowed = "a section of keys and values".to_owned();
            self.collector.push(node.origin, path, Problem::Value { value: shown(&node.value), allowed });
            return Vec::new();
        };
        let mut read = Vec::new();
        for Entry { key, node, .. } in entries {
            match parse(&node.value) {
                Ok(value) => read.push((key.clone(), value)),
                Err(allowed) => {
                    let problem = Problem::Value { value: shown(&node.value), allowed };
                    self.collector.push(node.origin, format!("{path}.{key}"), problem);
                }
            }
        }
        read
    }

    /// Whether the files that are named are to be looked at.
    pub(super) const fn checks_files(&self) -> bool {
        self.collector.checks_files
    }

    /// Reports what is wrong with another file.
    pub(super) fn report(&self, errors: Errors) {
        self.collector.errors.borrow_mut().append(errors);
    }

    /// Whether the file or a flag gives `key`. Does not count as asking for it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Whether `key` has one value, and not a section or a list. Does not count as asking for it.
    pub(super) fn is_scalar(&self, key: &str) -> bool {
        self.find(key).is_some_and(|node| matches!(node.value, Value::Scalar(_)))
    }

    /// Whether `key` has keys and values of its own. Does not count as asking for it.
    pub(super) fn is_section(&self, key: &str) -> bool {
        self.find(key).is_some_and(|node| matches!(node.value, Value::Map(_)))
    }

    /// Reports that the value of `key` does not go together with another one; `reason` continues the sentence that the
    /// value begins. Without a value, or with an empty `key` for the section itself, it is the whole sentence.
    pub(super) fn conflict(&self, key: &str, reason: &str) {
        let (origin, value) = match self.find(key) {
            Some(node) => (node.origin, format!("{} ", shown(&node.value))),
            None => (self.origin, String::new()),
        };
        self.collector.push(origin, self.path_of(key), Problem::Conflict(format!("{value}{reason}")));
    }

    /// Reports the same of a value in a section below this one.
    pub(super) fn conflict_at(&self, keys: &[&str], reason: &str) {
        let mut found = None;
        let mut entries = self.entries;
        for key in keys {
            found = entries.iter().find(|entry| entry.key == *key).map(|entry| &entry.node);
            entries = match found.map(|node| &node.value) {
                Some(Value::Map(entries)) => entries,
                _ => &[],
            };
        }
        let (origin, value) = match found {
            Some(node) => (node.origin, format!("{} ", shown(&node.value))),
            None => (self.origin, String::new()),
        };
        self.collector.push(origin, self.path_of(&keys.join(".")), Problem::Conflict(format!("{value}{reason}")));
    }

    /// Path of `key` in this section; of the section itself when `key` is empty.
    fn path_of(&self, key: &str) -> String {
        match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{key}", self.path),
        }
    }

    fn find(&self, key: &str) -> Option<&'a Node> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (entry.node.value != Value::Null).then_some(&entry.node)
    }

    fn take(&mut self, key: &'static str) -> Option<&'a Node> {
        self.asked.push(key);
        self.find(key)
    }

    fn report_unknown_keys(&self) {
        for entry in self.entries {
            if !self.asked.contains(&entry.key.as_str()) {
                let near = near_match(&entry.key, &self.asked);
                let problem = Problem::UnknownKey { near, known: self.asked.clone() };
                self.collector.push(Origin::Line(entry.line), self.path_of(&entry.key), problem);
            }
        }
    }
}

/// A value as errors repeat it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Scalar(text) => format!("`{text}`"),
        Value::List(members) => {
            // A few are enough: the error cuts long values off anyway.
            let texts = members.iter().take(20).map(|member| match &member.value {
                Value::Scalar(text) => text.as_str(),
                Value::Null => "~",
                Value::List(_) => "[…]",
                Value::Map(_) => "{…}",
            });
            format!("`[{}]`", texts.collect::<Vec<_>>().join(", "))
        }
        Value::Map(_) => "a section".to_owned(),
    }
}
