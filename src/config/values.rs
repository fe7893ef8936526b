//! The forms of values. A form reads one value, or returns what is allowed. It also writes the value for
//! `--print-config`.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value as Json, json};
use smol_str::SmolStr;

use super::raw::Value;
use super::units::{DURATION, duration_text, is_octal, parse_duration, parse_rate, parse_size, size_text};
use crate::correlator::{Field, Pattern};
use crate::event::validate::namespace_faults;
use crate::server::tls::CipherSuite;
use crate::server::{Address, Origins};

/// LIMIT: bytes of a text value; longer ones are refused.
pub(super) const TEXT_MAX: usize = 4096;
/// LIMIT: patterns of one condition, and names of one list; more are refused.
const LIST_MAX: usize = 256;

type Read<'f, T> = Box<dyn Fn(&Value) -> Option<T> + 'f>;

/// A form of values: what is allowed, how a value is read and written, and its JSON schema.
pub(super) struct Form<'f, T> {
    schema: Json,
    allowed: String,
    read: Read<'f, T>,
    write: Box<dyn Fn(&T) -> Json + 'f>,
}

impl<'f, T: 'f> Form<'f, T> {
    pub(super) fn new(
        schema: Json,
        allowed: impl Into<String>,
        read: impl Fn(&Value) -> Option<T> + 'f,
        write: impl Fn(&T) -> Json + 'f,
    ) -> Self {
        Self { schema, allowed: allowed.into(), read: Box::new(read), write: Box::new(write) }
    }

    /// Returns the form of a single text.
    pub(super) fn of_text(
        schema: Json,
        allowed: impl Into<String>,
        read: impl Fn(&str) -> Option<T> + 'f,
        write: impl Fn(&T) -> Json + 'f,
    ) -> Self {
        Self::new(schema, allowed, move |value| scalar(value).and_then(&read), write)
    }

    pub(super) fn read(&self, value: &Value) -> Option<T> {
        (self.read)(value)
    }

    pub(super) fn write(&self, value: &T) -> Json {
        (self.write)(value)
    }

    /// What is allowed, for errors.
    pub(super) fn allowed(&self) -> &str {
        &self.allowed
    }

    /// The JSON schema of a value, described by the text of what is allowed.
    pub(super) fn schema(&self) -> Json {
        let mut schema = self.schema.clone();
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), json!(self.allowed));
        }
        schema
    }

    /// The same form with another text for what is allowed.
    pub(super) fn but(self, allowed: impl FnOnce(String) -> String) -> Self {
        Self { allowed: allowed(self.allowed), ..self }
    }
}

impl<'f, T: 'f> Form<'f, Vec<T>> {
    /// The same form, in which a list may be empty.
    pub(super) fn or_empty(self) -> Self {
        let is_empty = |value: &Value| matches!(value, Value::List(members) if members.is_empty());
        let read = self.read;
        Self { read: Box::new(move |value| if is_empty(value) { Some(Vec::new()) } else { read(value) }), ..self }
    }
}

/// The schema of values that have several forms.
pub(super) fn mixed() -> Json {
    json!({ "type": ["array", "boolean", "number", "string"] })
}

/// The schema of a text that is not empty.
fn string() -> Json {
    json!({ "type": "string", "minLength": 1 })
}

/// The schema of a list of texts, or one text alone.
fn strings() -> Json {
    json!({ "type": ["array", "string"], "items": { "type": "string" } })
}

fn scalar(value: &Value) -> Option<&str> {
    match value {
        Value::Scalar(text) => Some(text),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}

/// A list of texts, or one text alone.
pub(super) fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Scalar(text) => Some(vec![text]),
        Value::List(members) if members.len() <= LIST_MAX => members.iter().map(|node| scalar(&node.value)).collect(),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}

/// A list of texts, or one text with commas between them.
fn listed(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Scalar(text) => Some(text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect()),
        Value::Null | Value::List(_) | Value::Map(_) => texts(value),
    }
}

/// Maps YAML 1.1's truth values back to `on` and `off`: Helm reads those, and writes `true` and `false`.
fn switch(text: &str) -> &str {
    match text {
        "false" => "off",
        "true" => "on",
        other => other,
    }
}

/// A list of values, or one alone, each written as a text; `split` returns the texts.
pub(super) fn list<T: 'static>(
    allowed: impl Into<String>,
    split: fn(&Value) -> Option<Vec<&str>>,
    read: impl Fn(&str) -> Option<T> + 'static,
    write: impl Fn(&T) -> String + 'static,
    is_fine: impl Fn(&[T]) -> bool + 'static,
) -> Form<'static, Vec<T>> {
    let read = move |value: &Value| {
        let values: Option<Vec<T>> = split(value)?.into_iter().map(&read).collect();
        values.filter(|values| is_fine(values))
    };
    Form::new(strings(), allowed, read, move |values: &Vec<T>| values.iter().map(&write).collect())
}

/// One of the named choices.
pub(super) fn choice<'f, T: Copy + PartialEq>(choices: &'f [(&'static str, T)]) -> Form<'f, T> {
    let named = |text: &str| choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice);
    // YAML 1.1 reads these two as booleans.
    let truths = [("on", true), ("off", false)].into_iter().filter(|(word, _)| named(word).is_some());
    let names = choices.iter().map(|(name, _)| json!(name)).chain(truths.map(|(_, truth)| json!(truth)));
    Form::of_text(
        json!({ "enum": names.collect::<Vec<_>>() }),
        choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        move |text| named(text).or_else(|| named(switch(text))),
        |chosen| choices.iter().find(|(_, choice)| choice == chosen).map_or(Json::Null, |(name, _)| json!(name)),
    )
}

/// `true` or `false`.
pub(super) fn truth() -> Form<'static, bool> {
    let choice = choice(&[("true", true), ("false", false)]);
    Form { schema: json!({ "type": "boolean" }), write: Box::new(|value| json!(value)), ..choice }
}

/// A whole number within `range`.
pub(super) fn whole<N>(range: RangeInclusive<N>) -> Form<'static, N>
where
    N: FromStr + PartialOrd + Display + Serialize + Clone + 'static,
{
    let allowed = format!("a whole number from {} to {}", range.start(), range.end());
    let schema = json!({ "type": "integer", "minimum": range.start(), "maximum": range.end() });
    let read = move |text: &str| text.parse().ok().filter(|number| range.contains(number) && !is_octal(text));
    Form::of_text(schema, allowed, read, |number| json!(number))
}

pub(super) fn positive(most: usize) -> Form<'static, NonZeroUsize> {
    whole(NonZeroUsize::MIN..=NonZeroUsize::new(most).unwrap_or(NonZeroUsize::MIN))
}

pub(super) fn duration(range: RangeInclusive<Duration>) -> Form<'static, Duration> {
    let [least, most] = [range.start(), range.end()].map(|end| duration_text(*end));
    Form::of_text(
        json!({ "type": "string", "pattern": DURATION }),
        format!("a duration such as 1h30m, 10s or 500ms, from {least} to {most}"),
        move |text| parse_duration(text).filter(|duration| range.contains(duration)),
        |duration| json!(duration_text(*duration)),
    )
}

/// A size within `range`, in bytes.
pub(super) fn size(range: RangeInclusive<usize>) -> Form<'static, NonZeroUsize> {
    let shown = |bytes: usize| size_text(u64::try_from(bytes).unwrap_or(u64::MAX));
    Form::of_text(
        json!({ "type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+([KMGT]i|[kMGT])?$" }),
        format!("bytes such as 65536, 64Ki or 3Mi, from {} to {}", shown(*range.start()), shown(*range.end())),
        move |text| {
            let bytes = parse_size(text).and_then(|bytes| usize::try_from(bytes).ok());
            bytes.filter(|bytes| range.contains(bytes)).and_then(NonZeroUsize::new)
        },
        move |bytes| json!(shown(bytes.get())),
    )
}

/// A rate per second: a number or a fraction, up to `most`; zero only if `zero` gives its meaning.
pub(super) fn rate(most: f32, zero: Option<&'static str>) -> Form<'static, f32> {
    Form::of_text(
        json!({ "type": ["number", "string"], "minimum": 0, "pattern": r"^[0-9.eE+-]+( */ *[0-9.eE+-]+)?$" }),
        match zero {
            Some(meaning) => format!("a rate per second such as 0.5 or 1/300, from 0 ({meaning}) to {most}"),
            None => format!("a rate per second such as 50 or 1/300, above 0 and up to {most}"),
        },
        move |text| parse_rate(text).filter(|rate| *rate <= most && (*rate > 0.0 || zero.is_some())),
        // The shortest decimal that reads back as this 32-bit number.
        |rate| rate.to_string().parse::<f64>().map_or(Json::Null, |rate| json!(rate)),
    )
}

/// An address that `FromStr` reads and `Display` writes; `localhost` is 127.0.0.1.
fn address_of<T: FromStr + Display + 'static>(allowed: &'static str) -> Form<'static, T> {
    let read = |text: &str| match text.strip_prefix("localhost:") {
        Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST).parse().ok(),
        None => text.parse().ok(),
    };
    Form::of_text(string(), allowed, read, |value: &T| json!(value.to_string()))
}

/// An IP address and a port, or a Unix domain socket.
pub(super) fn listen_address() -> Form<'static, Address> {
    address_of(
        "localhost or an IP address, and a port, such as 127.0.0.1:8080 or [::]:8080, or unix: and an absolute path of at most 107 bytes",
    )
}

/// An IP address and a port.
pub(super) fn address() -> Form<'static, SocketAddr> {
    address_of("localhost or an IP address, and a port, such as 127.0.0.1:8080 or [::]:8080")
}

pub(super) fn expressions() -> Form<'static, Vec<SmolStr>> {
    let allowed =
        format!("a list of 1 to {LIST_MAX} regular expressions such as ^localhost$, or one comma-separated string");
    let are_expressions = |texts: &[SmolStr]| !texts.is_empty() && Origins::hosts(texts).is_ok();
    list(allowed, listed, |text| Some(text.into()), SmolStr::to_string, are_expressions)
}

/// Cipher suites by Go's names.
pub(super) fn cipher_suites() -> Form<'static, Vec<CipherSuite>> {
    let known: Vec<String> = CipherSuite::all().map(CipherSuite::name).collect();
    let allowed = format!("a list or one comma-separated string, of {}", known.join(", "));
    list(allowed, listed, CipherSuite::of, |suite| suite.name(), |_suites| true)
}

/// Names of hosts and IP addresses; one at least.
pub(super) fn hosts() -> Form<'static, Vec<SmolStr>> {
    let host = |text: &str| (text.parse::<IpAddr>().is_ok() || is_host_name(text)).then(|| text.into());
    let allowed = format!("a list of 1 to {LIST_MAX} names of hosts and IP addresses");
    list(allowed, listed, host, SmolStr::to_string, |hosts| !hosts.is_empty())
}

fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '*'))
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// A text that is not empty, of at most `most` bytes.
pub(super) fn text<T: Serialize + for<'t> From<&'t str> + 'static>(most: usize) -> Form<'static, T> {
    Form::of_text(
        string(),
        format!("a string of 1 to {most} bytes"),
        move |text| (1..=most).contains(&text.len()).then(|| T::from(text)),
        |text| serde_json::to_value(text).unwrap_or_default(),
    )
}

/// The path of a file or folder.
pub(super) fn path() -> Form<'static, PathBuf> {
    text(TEXT_MAX)
}

/// Fields of an event that make up a key; one at least, none twice.
pub(super) fn fields() -> Form<'static, Vec<Field>> {
    let are_distinct = |fields: &[Field]| {
        !fields.is_empty()
            && fields.iter().enumerate().all(|(number, field)| !fields.iter().take(number).any(|f| f == field))
    };
    let allowed = format!("a list of one field or more, none twice, of {}", Field::ALL.map(Field::label).join(", "));
    let named = |text: &str| Field::ALL.into_iter().find(|field| field.label() == text);
    list(allowed, texts, named, |field| field.label().to_owned(), are_distinct)
}

/// Texts, none empty; `allowed` is the text of an error.
pub(super) fn texts_of(allowed: &str) -> Form<'static, Vec<SmolStr>> {
    let text = |text: &str| (1..=TEXT_MAX).contains(&text.len()).then(|| text.into());
    list(allowed, texts, text, SmolStr::to_string, |_texts| true)
}

/// Patterns to match: exact, or a prefix with a trailing `*`.
pub(super) fn patterns() -> Form<'static, Vec<Pattern>> {
    let allowed = format!("a string or a list of 1 to {LIST_MAX} strings, none empty, with * only at the end");
    list(allowed, texts, pattern, Pattern::to_string, |patterns| !patterns.is_empty())
}

/// Paths of requests, as patterns; there may be none.
pub(super) fn paths() -> Form<'static, Vec<Pattern>> {
    let allowed = "a list of paths that begin with /, with * only at the end";
    list(allowed, texts, |text| pattern(text).filter(|_| text.starts_with('/')), Pattern::to_string, |_paths| true)
}

fn pattern(text: &str) -> Option<Pattern> {
    let (body, prefix) = text.strip_suffix('*').map_or((text, false), |body| (body, true));
    let fine = !text.is_empty() && text.len() <= TEXT_MAX && !body.contains('*');
    let body = SmolStr::new(body);
    fine.then_some(if prefix { Pattern::Prefix(body) } else { Pattern::Exact(body) })
}

/// Names of namespaces, in a list.
pub(super) fn namespaces(value: &Value) -> Option<Vec<SmolStr>> {
    let Value::List(_) = value else { return None };
    let names = texts(value)?;
    let are_namespaces = !names.is_empty() && names.iter().all(|name| namespace_faults(name).is_empty());
    are_namespaces.then(|| names.into_iter().map(SmolStr::new).collect())
}

/// Levels and `target=level` directives of the log, separated by commas.
pub(super) fn log_level() -> Form<'static, SmolStr> {
    let level = |text: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].iter().any(|level| level.eq_ignore_ascii_case(text))
    };
    let target = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-'))
    };
    let directive = move |text: &str| match text.trim().split_once('=') {
        Some((name, of)) => target(name) && level(of),
        None => level(text.trim()),
    };
    Form::of_text(
        mixed(),
        "off, error, warn, info, debug or trace, or directives such as info,eventweir::upstream=debug",
        move |text| {
            let text = switch(text);
            let is_valid = text.len() <= TEXT_MAX && text.split(',').all(directive);
            // tracing would take a space for a part of the directive.
            is_valid.then(|| SmolStr::new(text.split(',').map(str::trim).collect::<Vec<_>>().join(",")))
        },
        |text| json!(text.as_str()),
    )
}
