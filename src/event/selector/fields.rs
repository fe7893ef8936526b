//! Field selectors of events. After `k8s.io/apimachinery/pkg/fields/selector.go` and
//! `k8s.io/kubernetes/pkg/registry/core/event/strategy.go` (`ToSelectableFields`).

use smol_str::{SmolStr, format_smolstr};

use crate::event::schema::{Object, text};
use crate::event::{ApiGroup, Event};
use crate::status::Status;

/// A conjunction of terms on fields; an empty one selects every event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    /// The path of the field in core/v1.
    field: SmolStr,
    /// Whether the field must have the value, or must not.
    is_equal: bool,
    value: SmolStr,
}

/// Returns the path, from the names of one group, in the names of another. Only the names of an Event's own members
/// differ.
fn renamed(path: &str, from: ApiGroup, to: ApiGroup) -> Option<SmolStr> {
    let (name, rest) = path.split_at_checked(path.find('.').unwrap_or(path.len()))?;
    let member = Event::members(from).iter().find(|member| member.name(from) == name)?;
    Some(format_smolstr!("{}{rest}", member.name(to)))
}

/// Whether clients of `group` can select by this field of core/v1.
fn is_selectable(field: &str, group: ApiGroup) -> bool {
    match field {
        "metadata.name" | "metadata.namespace" | "reason" | "reportingComponent" | "type" => true,
        "source" => group == ApiGroup::Core,
        _ => value(&Event::default(), field).is_some() && field.starts_with("involvedObject."),
    }
}

/// Returns the text in a field of core/v1; `None` where there is none.
fn value<'e>(event: &'e Event, field: &str) -> Option<&'e str> {
    match field.split_once('.') {
        // COMPAT(apiserver): a source without a component has the reporting controller as its value.
        None if field == "source" => Some(event.component()),
        None => text(event, field),
        Some(("metadata", name)) => text(&event.metadata, name),
        Some(("involvedObject", name)) => text(&event.involved_object, name),
        Some(_) => None,
    }
}

impl FieldSelector {
    /// Parses a selector that uses the field names of `group`.
    ///
    /// # Errors
    /// 400 for an unknown field or an invalid selector.
    pub fn parse(text: &str, group: ApiGroup) -> Result<Self, Status> {
        let mut terms = Vec::new();
        // COMPAT(apiserver): a term of nothing but an operator selects everything.
        for part in split_terms(text).filter(|part| !matches!(*part, "" | "=" | "==" | "!=")) {
            let refused = |fault: &str| Status::bad_request(format!("fieldSelector: {part:?} {fault}"));
            let (name, is_equal, value) =
                split_term(part).ok_or_else(|| refused("is not a term such as type=Warning or type!=Normal"))?;
            let value =
                unescape(value).ok_or_else(|| refused(r"has a value in which \, = and , need a \ before them"))?;
            let field = renamed(name, group, ApiGroup::Core)
                .filter(|field| is_selectable(field, group))
                .ok_or_else(|| refused("names a field that events cannot be selected by"))?;
            terms.push(Term { field, is_equal, value: value.into() });
        }
        Ok(Self { terms })
    }

    /// Returns the selector of the event with this name.
    pub fn of_name(name: &str) -> Self {
        Self { terms: vec![Term { field: "metadata.name".into(), is_equal: true, value: name.into() }] }
    }

    /// Returns the name that an event must have, if the selector requires one.
    pub fn name(&self) -> Option<&str> {
        let mut terms = self.terms.iter().filter(|term| term.is_equal);
        terms.find(|term| term.field == "metadata.name").map(|term| term.value.as_str())
    }

    /// Whether the selector requires one involved object.
    pub fn is_of_object(&self) -> bool {
        let is_object = |field: &str| matches!(field, "involvedObject.name" | "involvedObject.uid");
        self.terms.iter().any(|term| term.is_equal && is_object(&term.field))
    }

    /// Whether the event meets every term.
    pub fn matches(&self, event: &Event) -> bool {
        self.terms.iter().all(|term| (value(event, &term.field) == Some(term.value.as_str())) == term.is_equal)
    }

    /// Returns the number of conditions.
    pub const fn conditions(&self) -> usize {
        self.terms.len()
    }

    /// Whether every event is selected.
    pub const fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// Returns the selector in the field names of `group`. A field that the group lacks keeps its name; the upstream
    /// refuses it.
    pub fn text(&self, group: ApiGroup) -> String {
        let terms = self.terms.iter().map(|term| {
            let relation = if term.is_equal { "=" } else { "!=" };
            let value = term.value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            let field = renamed(&term.field, ApiGroup::Core, group).filter(|_| is_selectable(&term.field, group));
            format!("{}{relation}{value}", field.as_ref().unwrap_or(&term.field))
        });
        terms.collect::<Vec<_>>().join(",")
    }
}

/// Splits at unescaped commas.
fn split_terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c| {
        let separates = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        separates
    })
}

/// Splits at the first operator: `!=`, `==` or `=`. The middle is whether it is one for equal values.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let (left, right) = term.split_once('=')?;
    if let Some(left) = left.strip_suffix('!') {
        return Some((left, false, right));
    }
    Some((left, true, right.strip_prefix('=').unwrap_or(right)))
}

fn unescape(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => plain.push(chars.next().filter(|escaped| matches!(escaped, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/api` replays other selectors.
    #[test]
    fn commas_and_equal_signs_are_escaped_and_empty_terms_ignored() {
        let event = Event { reason: "BackOff,=".into(), ..Event::default() };
        for text in [",", "=,!=,==", r"reason=BackOff\,\="] {
            assert!(FieldSelector::parse(text, ApiGroup::Core).unwrap().matches(&event), "{text}");
        }
        for value in ["a=b", r"a\b", "a\\"] {
            let status = FieldSelector::parse(&format!("type={value}"), ApiGroup::Core).unwrap_err();
            assert!(status.message.contains(r"need a \ before them"), "{status:?}");
        }
    }

    #[test]
    fn wrong_selectors_are_refused() {
        let check = |text: &str, expected: &str| {
            let status = FieldSelector::parse(text, ApiGroup::Events).unwrap_err();
            assert_eq!((status.code, status.message), (400, format!("fieldSelector: {text:?} {expected}")));
        };
        for field in ["deprecatedSource", "regarding", "regarding.x", "related.kind", "metadata.uid", "note"] {
            check(&format!("{field}=x"), "names a field that events cannot be selected by");
        }
        check("type in (Normal)", "is not a term such as type=Warning or type!=Normal");
    }

    #[test]
    fn selectors_are_written_in_the_names_of_either_group() {
        let selector = FieldSelector::parse(r"regarding.kind=Pod,reason!=a\,b", ApiGroup::Events).unwrap();
        assert_eq!(selector.text(ApiGroup::Core), r"involvedObject.kind=Pod,reason!=a\,b");
        assert_eq!(FieldSelector::parse(&selector.text(ApiGroup::Core), ApiGroup::Core).unwrap(), selector);
        assert_eq!(selector.text(ApiGroup::Events), r"regarding.kind=Pod,reason!=a\,b");
        let selector = FieldSelector::parse("source=kubelet,reportingComponent=c", ApiGroup::Core).unwrap();
        assert_eq!(selector.text(ApiGroup::Events), "source=kubelet,reportingController=c");
    }
}
