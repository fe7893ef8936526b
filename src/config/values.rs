//! What a value may be: each function makes a parser whose error text says what is allowed.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::time::Duration;

use smol_str::SmolStr;

use super::raw::Value;
use super::units::{duration_text, parse_duration, parse_rate, parse_size, size_text};
use crate::correlator::Field;
use crate::correlator::Pattern;
use crate::server::tls::CipherSuite;
use crate::server::{Address, Origins};

/// LIMIT: bytes of a text value; longer ones are refused.
const TEXT_MAX: usize = 4096;
/// LIMIT: patterns of one condition, and names of one list; more are refused.
const LIST_MAX: usize = 256;

type Parsed<T> = Result<T, String>;

fn scalar(value: &Value) -> Option<&str> {
    match value {
        Value::Scalar(text) => Some(text),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}

/// A list of texts, or one text alone.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Scalar(text) => Some(vec![text]),
        Value::List(members) if members.len() <= LIST_MAX => members.iter().map(|node| scalar(&node.value)).collect(),
        Value::Null | Value::List(_) | Value::Map(_) => None,
    }
}

/// A text, where YAML 1.1 has made truth values of `off` and `on`: Helm reads that, and hands on what it has read.
fn switch(value: &Value) -> Option<&str> {
    scalar(value).map(|text| match text {
        "false" => "off",
        "true" => "on",
        other => other,
    })
}

/// One of the named choices.
pub(super) fn choice<T: Copy>(choices: &[(&'static str, T)]) -> impl Fn(&Value) -> Parsed<T> {
    move |value| {
        let named = |text: &str| choices.iter().find(|(name, _)| *name == text);
        let found = scalar(value).and_then(named).or_else(|| switch(value).and_then(named));
        found.map(|(_, choice)| *choice).ok_or_else(|| {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            names.join(", ")
        })
    }
}

/// `true` or `false`.
pub(super) fn truth(value: &Value) -> Parsed<bool> {
    choice(&[("true", true), ("false", false)])(value)
}

/// A whole number within `range`.
pub(super) fn whole(range: RangeInclusive<usize>) -> impl Fn(&Value) -> Parsed<usize> {
    move |value| {
        let number = scalar(value).and_then(|text| text.parse::<usize>().ok());
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
    }
}

/// A whole number from 1 to `most`.
pub(super) fn positive(most: usize) -> impl Fn(&Value) -> Parsed<NonZeroUsize> {
    move |value| {
        let refused = || format!("a whole number from 1 to {most}");
        whole(1..=most)(value).and_then(|number| NonZeroUsize::new(number).ok_or_else(refused))
    }
}

/// A whole number from `least` to `most`, in 32 bits.
pub(super) fn whole_32(range: RangeInclusive<u32>) -> impl Fn(&Value) -> Parsed<u32> {
    move |value| {
        let number = scalar(value).and_then(|text| text.parse::<u32>().ok());
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| format!("a whole number from {} to {}", range.start(), range.end()))
    }
}

/// A duration within `range`.
pub(super) fn duration(range: RangeInclusive<Duration>) -> impl Fn(&Value) -> Parsed<Duration> {
    move |value| {
        let text = scalar(value).unwrap_or_default();
        parse_duration(text).filter(|duration| range.contains(duration)).ok_or_else(|| {
            let (least, most) = (duration_text(*range.start()), duration_text(*range.end()));
            let number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let hint = if number { format!("; a number needs its unit: {text}s?") } else { String::new() };
            format!("a duration such as 1h30m, 10s or 500ms, from {least} to {most}{hint}")
        })
    }
}

/// A size within `range`, in bytes.
pub(super) fn size(range: RangeInclusive<usize>) -> impl Fn(&Value) -> Parsed<NonZeroUsize> {
    move |value| {
        let bytes = scalar(value).and_then(parse_size).and_then(|bytes| usize::try_from(bytes).ok());
        let text = |bytes: usize| size_text(u64::try_from(bytes).unwrap_or(u64::MAX));
        bytes.filter(|bytes| range.contains(bytes)).and_then(NonZeroUsize::new).ok_or_else(|| {
            format!("bytes such as 65536, 64Ki or 3Mi, from {} to {}", text(*range.start()), text(*range.end()))
        })
    }
}

/// A rate per second: a number or a fraction, up to `most`; zero only where `zero` says what it means.
pub(super) fn rate(most: f32, zero: Option<&'static str>) -> impl Fn(&Value) -> Parsed<f32> {
    move |value| {
        let rate = scalar(value).and_then(parse_rate);
        rate.filter(|rate| *rate <= most && (*rate > 0.0 || zero.is_some())).ok_or_else(|| match zero {
            Some(meaning) => format!("a rate per second such as 0.5 or 1/300, from 0 ({meaning}) to {most}"),
            None => format!("a rate per second such as 50 or 1/300, above 0 and up to {most}"),
        })
    }
}

/// An IP address and a port, or a Unix domain socket.
pub(super) fn listen_address(value: &Value) -> Parsed<Address> {
    scalar(value).and_then(|text| text.parse().ok()).ok_or_else(|| {
        "an IP address and a port such as 127.0.0.1:8080 or [::]:8080, or unix: and an absolute path".to_owned()
    })
}

/// A list of texts, or one text with commas between them.
pub(super) fn listed(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::Scalar(text) => Some(text.split(',').map(str::trim).filter(|text| !text.is_empty()).collect()),
        Value::Null | Value::List(_) | Value::Map(_) => texts(value),
    }
}

/// Regular expressions.
pub(super) fn expressions(value: &Value) -> Parsed<Vec<SmolStr>> {
    let expressions = listed(value).filter(|texts| Origins::hosts(texts).is_ok());
    expressions.map(|texts| texts.into_iter().map(SmolStr::new).collect()).ok_or_else(|| {
        format!(
            "a list of up to {LIST_MAX} regular expressions such as ^localhost$, or one text with commas between them"
        )
    })
}

/// Cipher suites by Go's names.
pub(super) fn cipher_suites(value: &Value) -> Parsed<Vec<CipherSuite>> {
    let suites = listed(value).and_then(|names| names.into_iter().map(CipherSuite::of).collect::<Option<Vec<_>>>());
    suites.ok_or_else(|| {
        let known: Vec<String> = CipherSuite::all().map(CipherSuite::name).collect();
        format!("a list of, or one text with commas between, {}", known.join(", "))
    })
}

/// Names of hosts and IP addresses; one at least.
pub(super) fn hosts(value: &Value) -> Parsed<Vec<SmolStr>> {
    let is_host = |text: &&str| text.parse::<IpAddr>().is_ok() || is_host_name(text);
    let hosts = listed(value).filter(|hosts| !hosts.is_empty() && hosts.iter().all(is_host));
    hosts
        .map(|hosts| hosts.into_iter().map(SmolStr::new).collect())
        .ok_or_else(|| format!("a list of 1 to {LIST_MAX} names of hosts and IP addresses"))
}

fn is_host_name(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '*'))
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// An IP address and a port.
pub(super) fn address(value: &Value) -> Parsed<SocketAddr> {
    scalar(value)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| "an IP address and a port such as 127.0.0.1:8080 or [::]:8080".to_owned())
}

/// A text that is not empty, of at most `most` bytes.
pub(super) fn text(most: usize) -> impl Fn(&Value) -> Parsed<SmolStr> {
    move |value| {
        let text = scalar(value).filter(|text| !text.is_empty() && text.len() <= most.min(TEXT_MAX));
        text.map(SmolStr::new).ok_or_else(|| format!("a text of 1 to {most} bytes"))
    }
}

/// Fields of an event that make up a key; one at least, none twice.
pub(super) fn fields(value: &Value) -> Parsed<Vec<Field>> {
    let fields: Option<Vec<Field>> = texts(value).and_then(|texts| texts.into_iter().map(Field::from_path).collect());
    let distinct = |fields: &Vec<Field>| {
        !fields.is_empty()
            && fields.iter().enumerate().all(|(number, field)| !fields.iter().take(number).any(|f| f == field))
    };
    fields.filter(distinct).ok_or_else(|| {
        let known = Field::ALL.map(Field::path).join(", ");
        format!("a list of one field or more, none twice, of {known}")
    })
}

/// Texts, none empty; `allowed` says so in an error.
pub(super) fn texts_of(allowed: &'static str) -> impl Fn(&Value) -> Parsed<Vec<SmolStr>> {
    move |value| {
        let fine = |texts: &Vec<&str>| texts.iter().all(|text| !text.is_empty() && text.len() <= TEXT_MAX);
        let texts = texts(value).filter(fine).ok_or_else(|| allowed.to_owned())?;
        Ok(texts.into_iter().map(SmolStr::new).collect())
    }
}

/// Patterns to match: exact, or a prefix with a trailing `*`.
pub(super) fn patterns(value: &Value) -> Parsed<Vec<Pattern>> {
    let pattern = |text: &str| {
        let (body, prefix) = text.strip_suffix('*').map_or((text, false), |body| (body, true));
        let fine = !text.is_empty() && text.len() <= TEXT_MAX && !body.contains('*');
        let body = SmolStr::new(body);
        fine.then_some(if prefix { Pattern::Prefix(body) } else { Pattern::Exact(body) })
    };
    let patterns: Option<Vec<Pattern>> = texts(value).and_then(|texts| texts.into_iter().map(pattern).collect());
    patterns
        .filter(|patterns| !patterns.is_empty())
        .ok_or_else(|| format!("a text or a list of 1 to {LIST_MAX} texts, none empty, with * only at the end"))
}

/// Names of namespaces.
pub(super) fn namespaces(value: &Value) -> Option<Vec<SmolStr>> {
    let label = |text: &&str| {
        let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        (1..=63).contains(&text.len()) && text.chars().all(fine) && !text.starts_with('-') && !text.ends_with('-')
    };
    let Value::List(members) = value else { return None };
    let names = texts(value)?;
    (!members.is_empty() && names.iter().all(label)).then(|| names.into_iter().map(SmolStr::new).collect())
}

/// What is logged: levels and `target=level` directives, separated by commas.
pub(super) fn log_level(value: &Value) -> Parsed<SmolStr> {
    let level = |text: &str| {
        ["off", "error", "warn", "info", "debug", "trace"].iter().any(|level| level.eq_ignore_ascii_case(text))
    };
    let target = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '-'))
    };
    let directive = |text: &str| match text.trim().split_once('=') {
        Some((name, of)) => target(name) && level(of),
        None => level(text.trim()),
    };
    let text = switch(value).filter(|text| text.len() <= TEXT_MAX && text.split(',').all(directive));
    text.map(SmolStr::new).ok_or_else(|| {
        "off, error, warn, info, debug or trace, or directives such as info,eventweir::upstream=debug".to_owned()
    })
}
