//! Label selectors: equality and sets. After `k8s.io/apimachinery/pkg/labels/selector.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt;

use smol_str::SmolStr;

use crate::event::Event;
use crate::status::Status;

/// A conjunction of terms on labels; the empty one selects every event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    /// As it was given, for an upstream that reads it itself.
    text: String,
    terms: Vec<(SmolStr, Test)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Missing,
    /// One of these; a missing label is none of them.
    In(Vec<SmolStr>),
    /// None of these; a missing label is none of them.
    NotIn(Vec<SmolStr>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// 400 for a text that is no selector.
    pub fn parse(text: &str) -> Result<Self, Status> {
        let mut terms = Vec::new();
        for part in split_terms(text) {
            let part = part.trim();
            if part.is_empty() && text.trim().is_empty() {
                continue;
            }
            terms.push(term(part).ok_or_else(|| {
                let message = format!("unable to parse requirement: found '{part}', expected: a label selector");
                Status::bad_request(message)
            })?);
        }
        Ok(Self { text: text.to_owned(), terms })
    }

    /// True when the event meets every term.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        self.terms.iter().all(|(key, test)| {
            let value = event.metadata.rare.as_ref().and_then(|rare| rare.labels.get(key));
            let number = || value.and_then(|value| value.parse::<i64>().ok());
            match test {
                Test::Exists => value.is_some(),
                Test::Missing => value.is_none(),
                Test::In(values) => value.is_some_and(|value| values.contains(value)),
                Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Test::Above(bound) => number().is_some_and(|number| number > *bound),
                Test::Below(bound) => number().is_some_and(|number| number < *bound),
            }
        })
    }

    /// True when every event is selected.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }
}

/// The selector as it was given.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Splits at commas outside parentheses.
fn split_terms(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        inside = match c {
            '(' => true,
            ')' => false,
            _ => inside,
        };
        c == ',' && !inside
    })
}

fn term(text: &str) -> Option<(SmolStr, Test)> {
    if let Some(name) = text.strip_prefix('!') {
        return Some((key(name)?, Test::Missing));
    }
    if let Some((head, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().into()).collect();
        let mut words = head.split_whitespace();
        let (name, relation) = (words.next()?, words.next()?);
        return match (relation, words.next()) {
            ("in", None) => Some((key(name)?, Test::In(values))),
            ("notin", None) => Some((key(name)?, Test::NotIn(values))),
            _ => None,
        };
    }
    if let Some((name, value)) = text.split_once("!=") {
        return Some((key(name)?, Test::NotIn(vec![label(value)?])));
    }
    if let Some((name, value)) = text.split_once('=') {
        return Some((key(name)?, Test::In(vec![label(value.strip_prefix('=').unwrap_or(value))?])));
    }
    if let Some((name, value)) = text.split_once('>') {
        return Some((key(name)?, Test::Above(value.trim().parse().ok()?)));
    }
    if let Some((name, value)) = text.split_once('<') {
        return Some((key(name)?, Test::Below(value.trim().parse().ok()?)));
    }
    Some((key(text)?, Test::Exists))
}

fn key(text: &str) -> Option<SmolStr> {
    label(text).filter(|key| !key.is_empty())
}

fn label(text: &str) -> Option<SmolStr> {
    let text = text.trim();
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/'));
    plain.then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_selected_as_the_apiserver_selects_them() {
        let mut event = Event::default();
        let mut rare = crate::event::RareMeta::default();
        rare.labels.insert("app".into(), "x".into());
        rare.labels.insert("n".into(), "7".into());
        event.metadata.rare = Some(Box::new(rare));
        for (text, expected) in [
            ("", true),
            ("app=x", true),
            ("app==x,n=7", true),
            ("app!=x", false),
            ("other!=x", true),
            ("app in (x, y)", true),
            ("app notin (x,y),n", false),
            ("other notin (x)", true),
            ("!app", false),
            ("app", true),
            ("n>6,n<8", true),
            ("app=", false),
        ] {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches(&event), expected, "{text}");
            assert_eq!(selector.to_string(), text);
        }
        for text in ["app in x", "=x", "app=a b", "n>x", "a,,b"] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().code, 400, "{text}");
        }
    }
}
