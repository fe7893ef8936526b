//! Label selectors. After `k8s.io/apimachinery/pkg/labels/selector.go`.

use std::collections::BTreeSet;
use std::fmt;
use std::iter::Peekable;
use std::vec::IntoIter;

use smol_str::SmolStr;

use crate::event::Event;
use crate::event::validate::{label_key_faults, label_value_faults};
use crate::status::Status;

/// A conjunction of requirements on labels; an empty one selects every event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: SmolStr,
    relation: Relation,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Relation {
    Exists,
    Missing,
    /// `=`, `==` and `in`: the label exists and has one of these values.
    In(BTreeSet<SmolStr>),
    /// `!=` and `notin`: the label is missing or has none of these values.
    NotIn(BTreeSet<SmolStr>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Parses a selector.
    ///
    /// # Errors
    /// 400 for an invalid selector.
    pub fn parse(text: &str) -> Result<Self, Status> {
        let mut parser = Parser(tokens(text).into_iter().peekable());
        let refused = |fault| Status::bad_request(format!("labelSelector: {fault}"));
        parser.selector().map(|requirements| Self { requirements }).map_err(refused)
    }

    /// Whether the event meets every requirement.
    pub fn matches(&self, event: &Event) -> bool {
        let rare = event.metadata.rare.as_deref();
        self.requirements
            .iter()
            .all(|requirement| requirement.relation.matches(rare.and_then(|rare| rare.labels.get(&requirement.key))))
    }

    /// Returns the number of conditions.
    pub const fn conditions(&self) -> usize {
        self.requirements.len()
    }

    /// Whether every event is selected.
    pub const fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

impl Relation {
    fn matches(&self, value: Option<&SmolStr>) -> bool {
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Above(limit) => number().is_some_and(|number| number > *limit),
            Self::Below(limit) => number().is_some_and(|number| number < *limit),
        }
    }
}

/// Writes the selector as an apiserver parses it.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, relation }) in self.requirements.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let list = |values: &BTreeSet<SmolStr>| values.iter().map(SmolStr::as_str).collect::<Vec<_>>().join(",");
            match relation {
                Relation::Exists => write!(f, "{comma}{key}")?,
                Relation::Missing => write!(f, "{comma}!{key}")?,
                Relation::In(values) => write!(f, "{comma}{key} in ({})", list(values))?,
                Relation::NotIn(values) => write!(f, "{comma}{key} notin ({})", list(values))?,
                Relation::Above(limit) => write!(f, "{comma}{key}>{limit}")?,
                Relation::Below(limit) => write!(f, "{comma}{key}<{limit}")?,
            }
        }
        Ok(())
    }
}

/// Splits into words and symbols.
fn tokens(text: &str) -> Vec<&str> {
    let is_symbol = |c: char| "=!(),><".contains(c);
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches([' ', '\t', '\r', '\n']);
    while !rest.is_empty() {
        let symbol =
            ["==", "!=", "=", "!", "(", ")", ",", ">", "<"].into_iter().find(|symbol| rest.starts_with(symbol));
        let end =
            symbol.map_or_else(|| rest.find(|c| is_symbol(c) || " \t\r\n".contains(c)), |symbol| Some(symbol.len()));
        let (token, after) = rest.split_at_checked(end.unwrap_or(rest.len())).unwrap_or((rest, ""));
        tokens.push(token);
        rest = after.trim_start_matches([' ', '\t', '\r', '\n']);
    }
    tokens
}

fn is_word(token: &str) -> bool {
    !token.is_empty() && !token.starts_with(['=', '!', '(', ')', ',', '>', '<'])
}

struct Parser<'t>(Peekable<IntoIter<&'t str>>);

impl<'t> Parser<'t> {
    /// Returns the next token, which stays; an empty one at the end.
    fn peek(&mut self) -> &'t str {
        self.0.peek().copied().unwrap_or_default()
    }

    /// Takes the next token; an empty one at the end.
    fn next(&mut self) -> &'t str {
        self.0.next().unwrap_or_default()
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        if self.peek().is_empty() {
            return Ok(requirements);
        }
        loop {
            requirements.push(self.requirement()?);
            match self.next() {
                "" => return Ok(requirements),
                "," => {}
                token => return Err(expected("a comma or the end", token)),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let missing = self.peek() == "!";
        if missing {
            self.next();
        }
        let key = match self.next() {
            key if is_word(key) => key,
            token => return Err(expected("a label's name", token)),
        };
        if let Some(fault) = label_key_faults(key).first() {
            return Err(format!("{key:?} is not a label's name: {fault}"));
        }
        let relation = match (missing, self.peek()) {
            (true, _) => Relation::Missing,
            (false, "" | ",") => Relation::Exists,
            (false, _) => self.relation()?,
        };
        Ok(Requirement { key: key.into(), relation })
    }

    fn relation(&mut self) -> Result<Relation, String> {
        let operator = self.next();
        let values = match operator {
            "in" | "notin" => self.values()?,
            "=" | "==" | "!=" | ">" | "<" => BTreeSet::from([self.value(&["", ","])?]),
            other => return Err(expected("one of =, ==, !=, in, notin, >, <", other)),
        };
        for value in &values {
            if let Some(fault) = label_value_faults(value).first() {
                return Err(format!("{value:?} is not a label's value: {fault}"));
            }
        }
        let number = || {
            let value = values.first().map_or("", SmolStr::as_str);
            value.parse().map_err(|_fault| format!("{value:?} is not a whole number, which > and < require"))
        };
        Ok(match operator {
            ">" => Relation::Above(number()?),
            "<" => Relation::Below(number()?),
            "notin" | "!=" => Relation::NotIn(values),
            _ => Relation::In(values),
        })
    }

    /// Parses a value; before one of `ends` it is empty.
    fn value(&mut self, ends: &[&str]) -> Result<SmolStr, String> {
        match self.peek() {
            token if ends.contains(&token) => Ok(SmolStr::default()),
            token if is_word(token) => Ok(self.next().into()),
            token => Err(expected("a value", token)),
        }
    }

    /// Parses a list in parentheses.
    fn values(&mut self) -> Result<BTreeSet<SmolStr>, String> {
        match self.next() {
            "(" => {}
            token => return Err(expected("a list in parentheses", token)),
        }
        let mut values = BTreeSet::new();
        loop {
            values.insert(self.value(&[",", ")"])?);
            match self.next() {
                "," => {}
                ")" => return Ok(values),
                token => return Err(expected("a comma or a closing parenthesis", token)),
            }
        }
    }
}

fn expected(what: &str, found: &str) -> String {
    let found = if found.is_empty() { "the end".to_owned() } else { format!("{found:?}") };
    format!("expected {what}, found {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        let mut event = Event::default();
        let labels = [("app", "x"), ("tier", "web"), ("n", "7")];
        let rare = event.metadata.rare.get_or_insert_default();
        rare.labels = labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        event
    }

    #[test]
    fn selectors_match_as_the_apiserver_matches() {
        let check = |text: &str, expected: bool| {
            let selector = LabelSelector::parse(text).unwrap();
            assert_eq!(selector.matches(&event()), expected, "{text}");
            let again = LabelSelector::parse(&selector.to_string()).unwrap();
            assert_eq!(again, selector, "written and parsed again");
        };
        check("app=x", true);
        check("app==x,tier=web", true);
        check("other!=x", true);
        check("app", true);
        check("! other", true);
        check("app in (x, y),!other", true);
        check("app notin (x,y)", false);
        check("other notin (x,y)", true);
        check("app in (,y)", false);
        check("n>6,n<8", true);
        check("n>7", false);
        check("app=", false);
        check("in in (in)", false);
    }

    #[test]
    fn wrong_selectors_are_refused() {
        let check = |text: &str, expected: &str| {
            let status = LabelSelector::parse(text).unwrap_err();
            assert_eq!((status.code, status.message), (400, format!("labelSelector: {expected}")));
        };
        check("a=x,", "expected a label's name, found the end");
        check("a b", "expected one of =, ==, !=, in, notin, >, <, found \"b\"");
        check("!a=x", "expected a comma or the end, found \"=\"");
        check("a in x", "expected a list in parentheses, found \"x\"");
        check("a in (x", "expected a comma or a closing parenthesis, found the end");
        check("a in (=)", "expected a value, found \"=\"");
        check("a>x", "\"x\" is not a whole number, which > and < require");
        for (text, start) in [("-a", "\"-a\" is not a label's name: "), ("a=-", "\"-\" is not a label's value: ")] {
            let message = LabelSelector::parse(text).unwrap_err().message;
            assert!(message.starts_with(&format!("labelSelector: {start}")), "{message}");
        }
    }
}
