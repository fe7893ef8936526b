//! Reads a section key by key: one line per key has its name, its member and its form.
//!
//! A section records which keys are read, so that every other key is an error, with the nearest known key. A
//! value that is not allowed is reported and its member keeps its default, so that one run finds all errors. Reading
//! also shows the effective values and the JSON schema. An empty file, read over a configuration, shows that
//! configuration.

use std::cell::RefCell;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::error::{Error, Errors, Problem, cut, near_match};
use super::raw::{Entry, Node, Origin, Value};
use super::values::Form;
use super::{Files, RawConfig, read_file};

/// Keys and sections that a simulation uses.
const SIMULATED: [&str; 5] = ["correlation", "outbox", "upstream.qps", "upstream.burst", "upstream.backoff"];

/// Collects errors during one reading of a file.
#[derive(Debug)]
pub(super) struct Collector {
    file: String,
    errors: RefCell<Errors>,
    files: Files,
    /// Whether to build the schema, which takes longer than reading.
    builds_schema: bool,
}

/// The result of reading a section: the values that its members have afterwards, and the JSON schemas of its keys.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) values: Map<String, Json>,
    properties: Map<String, Json>,
}

/// One map of the file, or nothing where the file has none.
#[derive(Debug)]
pub(super) struct Section<'a> {
    collector: &'a Collector,
    path: String,
    origin: Origin,
    entries: &'a [Entry],
    asked: Vec<&'static str>,
    shown: Shown,
}

impl Shown {
    pub(super) fn schema(self, types: &Json) -> Json {
        json!({ "type": types, "additionalProperties": false, "properties": self.properties })
    }
}

impl Collector {
    /// Begins with errors that are known already.
    pub(super) fn new(file: &str, errors: Errors, files: Files) -> Self {
        Self { file: file.to_owned(), errors: RefCell::new(errors), files, builds_schema: false }
    }

    /// Builds the schema while reading an empty file, and ignores the errors.
    pub(super) fn of_schema() -> Self {
        Self { builds_schema: true, ..Self::new("", Errors::default(), Files::Ignored) }
    }

    /// Returns the errors in the order of the file, then those of flags and of other files.
    pub(super) fn into_errors(self) -> Errors {
        let mut errors = self.errors.into_inner();
        errors.sort(&self.file);
        errors
    }

    fn push(&self, origin: Origin, path: String, problem: Problem) {
        self.errors.borrow_mut().push(Error::new(&self.file, origin, path, problem));
    }

    fn refuse(&self, node: &Node, path: String, allowed: String) {
        self.push(node.origin, path, Problem::Value { value: shown(&node.value), allowed });
    }

    /// Reports a value that may be a secret, without repeating it.
    fn refuse_secret(&self, node: &Node, path: String, allowed: &str) {
        self.push(node.origin, path, Problem::Value { value: "the value".to_owned(), allowed: allowed.to_owned() });
    }

    /// Reads a value, or reports that it is not allowed: the members that are wrong by themselves, or all of it.
    fn read_value<T>(&self, node: &Node, path: impl FnOnce() -> String, form: &Form<'_, T>) -> Option<T> {
        let value = form.read(&node.value);
        if value.is_none() {
            let (path, is_wrong) = (path(), |part: Value| form.read(&part).is_none());
            let (number, wrong): (usize, Vec<_>) = match &node.value {
                Value::List(members) => {
                    let wrong =
                        members.iter().enumerate().filter(|(_, node)| is_wrong(Value::List(vec![(*node).clone()])));
                    (members.len(), wrong.map(|(number, node)| (format!("{path}[{number}]"), node)).collect())
                }
                Value::Map(entries) => {
                    let wrong = entries.iter().filter(|entry| is_wrong(Value::Map(vec![(*entry).clone()])));
                    (entries.len(), wrong.map(|entry| (format!("{path}.{}", entry.key), &entry.node)).collect())
                }
                Value::Null | Value::Scalar(_) => (0, Vec::new()),
            };
            // If every member is wrong, the form is probably not one of several members.
            let parts = if wrong.len() < number { wrong } else { Vec::new() };
            if parts.is_empty() {
                self.refuse(node, path, form.allowed().to_owned());
            }
            parts.into_iter().for_each(|(path, node)| self.refuse(node, path, form.allowed().to_owned()));
        }
        value
    }

    /// Reads the map `node` through `read`, then reports the keys that `read` did not ask for.
    pub(super) fn read<T>(&self, node: &Node, path: String, read: impl FnOnce(&mut Section<'_>) -> T) -> (T, Shown) {
        let entries: &[Entry] = match &node.value {
            Value::Map(entries) => entries,
            Value::Null => &[],
            // A file that is no configuration may be a token or a key.
            Value::Scalar(_) | Value::List(_) if path.is_empty() => {
                self.refuse_secret(node, path.clone(), SECTION);
                &[]
            }
            Value::Scalar(_) | Value::List(_) => {
                self.refuse(node, path.clone(), SECTION.to_owned());
                &[]
            }
        };
        let (asked, shown) = (Vec::new(), Shown::default());
        let mut section = Section { collector: self, path, origin: node.origin, entries, asked, shown };
        let value = read(&mut section);
        section.report_unknown_keys();
        (value, section.shown)
    }
}

/// The text of what is allowed instead of a value that is no section.
const SECTION: &str = "a section of keys and values";

impl<'a> Section<'a> {
    /// The value of `key`; `None` when it is absent, or reported as not allowed. It is not shown as an effective value.
    pub(super) fn given<T>(&mut self, key: &'static str, form: &Form<'_, T>) -> Option<T> {
        if self.collector.builds_schema {
            self.shown.properties.insert(key.to_owned(), form.schema());
        }
        let node = self.take(key)?;
        self.collector.read_value(node, || self.path_of(key), form)
    }

    /// Sets `member` to the value of `key`; leaves it when the key is absent, or reported as not allowed.
    pub(super) fn set<T>(&mut self, key: &'static str, member: &mut T, form: &Form<'_, T>) {
        if let Some(given) = self.given(key, form) {
            *member = given;
        }
        self.show(key, form.write(member));
    }

    /// Sets a member that may be absent.
    pub(super) fn set_optional<T>(&mut self, key: &'static str, member: &mut Option<T>, form: &Form<'_, T>) {
        if let Some(given) = self.given(key, form) {
            *member = Some(given);
        }
        if let Some(member) = member {
            self.show(key, form.write(member));
        }
    }

    /// Sets a list that is not shown while it is empty.
    pub(super) fn set_list<T>(&mut self, key: &'static str, list: &mut Vec<T>, form: &Form<'_, Vec<T>>) {
        if let Some(given) = self.given(key, form) {
            *list = given;
        }
        if !list.is_empty() {
            self.show(key, form.write(list));
        }
    }

    pub(super) fn within<T>(&mut self, key: &'static str, read: impl FnOnce(&mut Section<'_>) -> T) -> T {
        let nothing = Node::default();
        let node = self.take(key).unwrap_or(&nothing);
        let (value, mut shown) = self.collector.read(node, self.path_of(key), read);
        self.show(key, Json::Object(std::mem::take(&mut shown.values)));
        // Null is a key whose members are all comments.
        self.shown.properties.insert(key.to_owned(), shown.schema(&json!(["object", "null"])));
        value
    }

    /// Reads each section of the list under `key`, of which there may be at most `most`, over a copy of `new`.
    pub(super) fn each<T: Clone>(
        &mut self,
        key: &'static str,
        most: usize,
        list: &mut Vec<T>,
        new: &T,
        mut read: impl FnMut(&mut Section<'_>, &mut T),
    ) {
        let (path, nothing) = (self.path_of(key), Node::default());
        if self.collector.builds_schema {
            let (_, sample) = self.collector.read(&nothing, path.clone(), |section| read(section, &mut new.clone()));
            let schema =
                json!({ "type": ["array", "null"], "maxItems": most, "items": sample.schema(&json!("object")) });
            self.shown.properties.insert(key.to_owned(), schema);
        }
        let nodes = match self.take(key) {
            None => vec![&nothing; list.len()],
            Some(Node { value: Value::List(members), .. }) if members.len() <= most => {
                *list = vec![new.clone(); members.len()];
                members.iter().collect()
            }
            Some(node) => {
                self.collector.refuse(node, path.clone(), format!("a list of at most {most} sections"));
                list.clear();
                Vec::new()
            }
        };
        let members = list.iter_mut().zip(nodes).enumerate().map(|(number, (member, node))| {
            let path = format!("{path}[{number}]");
            Json::Object(self.collector.read(node, path, |section| read(section, member)).1.values)
        });
        let members = members.collect();
        self.show(key, members);
    }

    /// Reads each secret of the map under `key`, whose keys are free. Errors do not repeat the values.
    pub(super) fn secrets<T>(&mut self, key: &'static str, form: &Form<'_, T>) -> Vec<(String, T)> {
        let Some(node) = self.take(key) else { return Vec::new() };
        let path = self.path_of(key);
        let Value::Map(entries) = &node.value else {
            self.collector.refuse_secret(node, path, SECTION);
            return Vec::new();
        };
        let read = |Entry { key, node, .. }: &Entry| {
            let value = form.read(&node.value);
            if value.is_none() {
                self.collector.refuse_secret(node, format!("{path}.{key}"), form.allowed());
            }
            Some((key.clone(), value?))
        };
        entries.iter().filter_map(read).collect()
    }

    /// Extends the schema of `key` by the members of another form.
    pub(super) fn extend_schema(&mut self, key: &str, form: Json) {
        if let (Some(Json::Object(schema)), Json::Object(form)) = (self.shown.properties.get_mut(key), form) {
            schema.extend(form);
        }
    }

    fn show(&mut self, key: &str, value: Json) {
        self.shown.values.insert(key.to_owned(), value);
    }

    /// Whether to check the files that are named.
    pub(super) const fn checks_files(&self) -> bool {
        matches!(self.collector.files, Files::Checked)
    }

    /// Reads the file that `key` names through `read`, unless files are ignored. Reports what is wrong with it.
    pub(super) fn file<T>(
        &self,
        key: &str,
        path: &Path,
        read: impl FnOnce(RawConfig) -> Result<T, Errors>,
    ) -> Option<T> {
        if matches!(self.collector.files, Files::Foreign | Files::Ignored) {
            return None;
        }
        let is_pipe = || std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo());
        let text = if self.collector.files == Files::ReadAgain && is_pipe() {
            Err("is a pipe, so it was read at the start only".to_owned())
        } else {
            read_file(path)
        };
        let raw = match text {
            Ok(text) => RawConfig::parse(&path.display().to_string(), &text),
            Err(reason) => {
                self.fault(key, &format!("{reason}; allowed: a file of at most 1 MiB that can be read"), Problem::File);
                return None;
            }
        };
        raw.and_then(read).map_err(|errors| self.collector.errors.borrow_mut().append(errors)).ok()
    }

    /// Whether the file or a flag gives `key`. Does not count as asking for it.
    pub(super) fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Reports that the value of `key` conflicts with another one; `key` may lead into a section below, as
    /// `tls.certFile`. `reason` continues the sentence that the value begins. Without a value, or with an empty `key`
    /// for the section itself, it is the whole sentence.
    pub(super) fn conflict(&self, key: &str, reason: &str) {
        if self.collector.files == Files::Foreign && !is_within(&self.path_of(key), &SIMULATED) {
            return;
        }
        self.fault(key, reason, Problem::Conflict);
    }

    fn fault(&self, key: &str, reason: &str, problem: fn(String) -> Problem) {
        let (origin, value) = match self.find(key) {
            Some(node) => (node.origin, format!("{} ", cut(&shown(&node.value)))),
            None => (self.origin, String::new()),
        };
        self.collector.push(origin, self.path_of(key), problem(format!("{value}{reason}")));
    }

    /// Path of `key` in this section; of the section itself when `key` is empty.
    fn path_of(&self, key: &str) -> String {
        match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{key}", self.path),
        }
    }

    /// Returns what the file or a flag gives for a key, or for a path of keys. Does not count as asking for it.
    pub(super) fn find(&self, path: &str) -> Option<&'a Node> {
        let (mut entries, mut found) = (self.entries, None);
        for key in path.split('.') {
            let node = &entries.iter().find(|entry| entry.key == key)?.node;
            entries = if let Value::Map(entries) = &node.value { entries } else { &[] };
            found = Some(node);
        }
        found.filter(|node| node.value != Value::Null)
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

/// Whether a path is one of `keys`, or below one of them.
pub(super) fn is_within(path: &str, keys: &[&str]) -> bool {
    keys.iter().any(|key| path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

/// A value as errors repeat it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Scalar(text) => format!("`{text}`"),
        Value::List(members) => {
            // A few are enough: the error cuts long values off anyway.
            let texts = members.iter().take(20).map(|member| match &member.value {
                Value::Scalar(text) if text.is_empty() => "''",
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
