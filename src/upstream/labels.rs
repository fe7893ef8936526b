//! Label selectors. After `k8s.io/apimachinery/pkg/labels/selector.go`.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::collections::BTreeSet;
use std::fmt;

use smol_str::SmolStr;

use crate::event::Event;
use crate::event::json::go;
use crate::event::validate::{label_key_faults, label_value_faults};
use crate::status::Status;

/// A conjunction of requirements on labels; the empty one selects every event.
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
    /// `=`, `==` and `in`: the label is there and has one of these.
    In(BTreeSet<SmolStr>),
    /// `!=` and `notin`: the label is missing or has none of these.
    NotIn(BTreeSet<SmolStr>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// 400 in the apiserver's words for a text that is none.
    pub fn parse(text: &str) -> Result<Self, Status> {
        let mut parser = Parser { tokens: tokens(text), position: 0 };
        parser.selector().map(|requirements| Self { requirements }).map_err(Status::bad_request)
    }

    /// True when the event meets every requirement.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        let rare = event.metadata.rare.as_deref();
        self.requirements
            .iter()
            .all(|requirement| requirement.relation.matches(rare.and_then(|rare| rare.labels.get(&requirement.key))))
    }

    /// True when every event is selected.
    #[must_use]
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

/// The selector as an apiserver reads it.
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

/// Words and symbols; the end is an empty token.
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

struct Parser<'t> {
    tokens: Vec<&'t str>,
    position: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> &'t str {
        self.tokens.get(self.position).copied().unwrap_or_default()
    }

    fn next(&mut self) -> &'t str {
        let token = self.peek();
        self.position = self.position.saturating_add(1);
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                "" => return Ok(requirements),
                token if token == "!" || is_word(token) => {}
                token => return Err(format!("found '{token}', expected: !, identifier, or 'end of string'")),
            }
            let requirement = self.requirement().map_err(|fault| format!("unable to parse requirement: {fault}"))?;
            requirements.push(requirement);
            match self.next() {
                "" => return Ok(requirements),
                "," => {
                    let token = self.peek();
                    if token != "!" && !is_word(token) {
                        return Err(format!("found '{token}', expected: identifier after ','"));
                    }
                }
                token => return Err(format!("found '{token}', expected: ',' or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let missing = self.peek() == "!";
        if missing {
            self.next();
        }
        let key = self.next();
        if !is_word(key) {
            return Err(format!("found '{key}', expected: identifier"));
        }
        let faults = label_key_faults(key);
        if !faults.is_empty() {
            return Err(format!("<nil>: Invalid value: {}: {}", go::quote(key), faults.join("; ")));
        }
        let relation = match (missing, self.peek()) {
            (true, _) => Relation::Missing,
            (false, "" | ",") => Relation::Exists,
            (false, _) => self.relation(key)?,
        };
        Ok(Requirement { key: key.into(), relation })
    }

    fn relation(&mut self, key: &str) -> Result<Relation, String> {
        let operator = self.next();
        let values = match operator {
            "in" | "notin" => self.values()?,
            "=" | "==" | "!=" | ">" | "<" => BTreeSet::from([self.value()?]),
            other => return Err(format!("found '{other}', expected: in, notin, =, ==, !=, gt, lt")),
        };
        for (index, value) in values.iter().enumerate() {
            let faults = label_value_faults(value);
            if !faults.is_empty() {
                let value = go::quote(value);
                return Err(format!("values[{index}][{key}]: Invalid value: {value}: {}", faults.join("; ")));
            }
        }
        let number = || {
            let value = values.first().map_or("", SmolStr::as_str);
            let fault = "for 'Gt', 'Lt' operators, the value must be an integer";
            value.parse().map_err(|_fault| format!("values[0]: Invalid value: {}: {fault}", go::quote(value)))
        };
        Ok(match operator {
            ">" => Relation::Above(number()?),
            "<" => Relation::Below(number()?),
            "notin" | "!=" => Relation::NotIn(values),
            _ => Relation::In(values),
        })
    }

    /// What follows `=`; nothing is the empty value.
    fn value(&mut self) -> Result<SmolStr, String> {
        match self.peek() {
            "" | "," => Ok(SmolStr::default()),
            token if is_word(token) => Ok(self.next().into()),
            token => Err(format!("found '{token}', expected: identifier")),
        }
    }

    /// A list in parentheses; nothing between two commas is the empty value.
    fn values(&mut self) -> Result<BTreeSet<SmolStr>, String> {
        let open = self.next();
        if open != "(" {
            return Err(format!("found '{open}' expected: '('"));
        }
        let mut values = BTreeSet::new();
        loop {
            let value = self.value_in_list()?;
            values.insert(value);
            match self.next() {
                "," => {}
                ")" => return Ok(values),
                token => return Err(format!("found '{token}', expected: ',' or ')'")),
            }
        }
    }

    fn value_in_list(&mut self) -> Result<SmolStr, String> {
        match self.peek() {
            "," | ")" => Ok(SmolStr::default()),
            token if is_word(token) => Ok(self.next().into()),
            token => Err(format!("found '{token}', expected: ',', ')' or identifier")),
        }
    }
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
            assert_eq!(again, selector, "told to the upstream");
        };
        check("", true);
        check("app=x", true);
        check("app==x,tier=web", true);
        check("app!=x", false);
        check("other!=x", true);
        check("app", true);
        check("!app", false);
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
    fn wrong_selectors_are_refused_in_the_apiservers_words() {
        let check = |text: &str, expected: &str| {
            let status = LabelSelector::parse(text).unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (400, expected));
        };
        check("=x", "found '=', expected: !, identifier, or 'end of string'");
        check("a=x,", "found '', expected: identifier after ','");
        check("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt");
        check("a in x", "unable to parse requirement: found 'x' expected: '('");
        check(
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
        );
    }
}
