//! Field selectors of events. After `k8s.io/apimachinery/pkg/fields/selector.go` and
//! `k8s.io/kubernetes/pkg/registry/core/event/strategy.go` (`ToSelectableFields`).
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use smol_str::SmolStr;

use crate::event::{ApiGroup, Event};
use crate::status::Status;

/// A conjunction of terms on fields; the empty one selects every event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    field: Field,
    relation: Relation,
    value: SmolStr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Equal,
    NotEqual,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Name,
    Namespace,
    ObjectKind,
    ObjectNamespace,
    ObjectName,
    ObjectUid,
    ObjectApiVersion,
    ObjectResourceVersion,
    ObjectFieldPath,
    Reason,
    ReportingComponent,
    Source,
    Type,
}

impl Field {
    /// The fields under their names in core/v1 and events.k8s.io/v1; `None` where a group does not have one.
    const TABLE: [(Self, &'static str, Option<&'static str>); 13] = [
        (Self::Name, "metadata.name", Some("metadata.name")),
        (Self::Namespace, "metadata.namespace", Some("metadata.namespace")),
        (Self::ObjectKind, "involvedObject.kind", Some("regarding.kind")),
        (Self::ObjectNamespace, "involvedObject.namespace", Some("regarding.namespace")),
        (Self::ObjectName, "involvedObject.name", Some("regarding.name")),
        (Self::ObjectUid, "involvedObject.uid", Some("regarding.uid")),
        (Self::ObjectApiVersion, "involvedObject.apiVersion", Some("regarding.apiVersion")),
        (Self::ObjectResourceVersion, "involvedObject.resourceVersion", Some("regarding.resourceVersion")),
        (Self::ObjectFieldPath, "involvedObject.fieldPath", Some("regarding.fieldPath")),
        (Self::Reason, "reason", Some("reason")),
        (Self::ReportingComponent, "reportingComponent", Some("reportingController")),
        (Self::Source, "source", None),
        (Self::Type, "type", Some("type")),
    ];

    fn parse(name: &str, group: ApiGroup) -> Option<Self> {
        let found = Self::TABLE.into_iter().find(|(_, core, events)| match group {
            ApiGroup::Core => *core == name,
            ApiGroup::Events => *events == Some(name),
        });
        found.map(|(field, ..)| field)
    }

    /// Its name in a group; core/v1's where the group has none, which the upstream then refuses in its own words.
    fn name(self, group: ApiGroup) -> &'static str {
        let found = Self::TABLE.into_iter().find(|(field, ..)| *field == self);
        found.map_or("", |(_, core, events)| match group {
            ApiGroup::Core => core,
            ApiGroup::Events => events.unwrap_or(core),
        })
    }

    fn value(self, event: &Event) -> &str {
        let object = &event.involved_object;
        match self {
            Self::Name => &event.metadata.name,
            Self::Namespace => &event.metadata.namespace,
            Self::ObjectKind => &object.kind,
            Self::ObjectNamespace => &object.namespace,
            Self::ObjectName => &object.name,
            Self::ObjectUid => &object.uid,
            Self::ObjectApiVersion => &object.api_version,
            Self::ObjectResourceVersion => &object.resource_version,
            Self::ObjectFieldPath => &object.field_path,
            Self::Reason => &event.reason,
            Self::ReportingComponent => &event.reporting_controller,
            Self::Source => event.component(),
            Self::Type => &event.event_type,
        }
    }
}

impl FieldSelector {
    /// Reads a selector that uses the field names of `group`.
    ///
    /// # Errors
    /// 400 for an unknown field or a text that is no selector.
    pub fn parse(text: &str, group: ApiGroup) -> Result<Self, Status> {
        let mut terms = Vec::new();
        for part in split_terms(text).filter(|part| !part.is_empty()) {
            let refused = |fault: &str| Status::bad_request(format!("fieldSelector: {part:?} {fault}"));
            let (name, relation, value) =
                split_term(part).ok_or_else(|| refused("is not a term such as type=Warning or type!=Normal"))?;
            let value =
                unescape(value).ok_or_else(|| refused(r"has a value in which \, = and , need a \ before them"))?;
            let field =
                Field::parse(name, group).ok_or_else(|| refused("names a field that events cannot be selected by"))?;
            terms.push(Term { field, relation, value: value.into() });
        }
        Ok(Self { terms })
    }

    /// The event of this name only.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        Self { terms: vec![Term { field: Field::Name, relation: Relation::Equal, value: name.into() }] }
    }

    /// The only name that can be selected, where the selector says it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        let mut terms = self.terms.iter().filter(|term| term.relation == Relation::Equal);
        terms.find(|term| term.field == Field::Name).map(|term| term.value.as_str())
    }

    /// Whether the events of one object are selected.
    #[must_use]
    pub fn is_of_object(&self) -> bool {
        let is_object = |field| matches!(field, Field::ObjectName | Field::ObjectUid);
        self.terms.iter().any(|term| term.relation == Relation::Equal && is_object(term.field))
    }

    /// True when the event meets every term.
    #[must_use]
    pub fn matches(&self, event: &Event) -> bool {
        self.terms.iter().all(|term| {
            let equal = term.field.value(event) == term.value;
            match term.relation {
                Relation::Equal => equal,
                Relation::NotEqual => !equal,
            }
        })
    }

    /// True when every event is selected.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The selector in the field names of `group`.
    #[must_use]
    pub fn text(&self, group: ApiGroup) -> String {
        let terms = self.terms.iter().map(|term| {
            let relation = match term.relation {
                Relation::Equal => "=",
                Relation::NotEqual => "!=",
            };
            let value = term.value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            format!("{}{relation}{value}", term.field.name(group))
        });
        terms.collect::<Vec<_>>().join(",")
    }
}

/// Splits at commas that no backslash escapes.
fn split_terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |c| {
        let separates = c == ',' && !escaped;
        escaped = c == '\\' && !escaped;
        separates
    })
}

/// Splits at the first operator: `!=`, `==` or `=`.
fn split_term(term: &str) -> Option<(&str, Relation, &str)> {
    let (left, right) = term.split_once('=')?;
    if let Some(left) = left.strip_suffix('!') {
        return Some((left, Relation::NotEqual, right));
    }
    Some((left, Relation::Equal, right.strip_prefix('=').unwrap_or(right)))
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

    fn event() -> Event {
        let mut event = Event::default();
        event.metadata.name = "web-0.1".into();
        event.metadata.namespace = "shop".into();
        event.involved_object.kind = "Pod".into();
        event.involved_object.uid = "u1".into();
        event.reason = "BackOff,=".into();
        event.reporting_controller = "example.com/ctl".into();
        event.event_type = "Warning".into();
        event
    }

    #[test]
    fn selectors_match_as_the_apiserver_matches() {
        let check = |text: &str, group, expected: bool| {
            let selector = FieldSelector::parse(text, group).unwrap();
            assert_eq!(selector.matches(&event()), expected, "{text}");
        };
        check("", ApiGroup::Core, true);
        check(",", ApiGroup::Core, true);
        check("type=Warning", ApiGroup::Core, true);
        check("type==Warning", ApiGroup::Core, true);
        check("type!=Warning", ApiGroup::Core, false);
        check("type=Warning,involvedObject.uid=u2", ApiGroup::Core, false);
        check("metadata.name=web-0.1,metadata.namespace=shop,involvedObject.kind=Pod", ApiGroup::Core, true);
        check("regarding.kind=Pod,reportingController=example.com/ctl", ApiGroup::Events, true);
        check(r"reason=BackOff\,\=", ApiGroup::Core, true);
        check("source=example.com/ctl", ApiGroup::Core, true);
    }

    #[test]
    fn wrong_selectors_are_refused() {
        let check = |text: &str, group, expected: &str| {
            let status = FieldSelector::parse(text, group).unwrap_err();
            assert_eq!((status.code, status.message), (400, format!("fieldSelector: {expected}")));
        };
        let unknown = "names a field that events cannot be selected by";
        check("message=x", ApiGroup::Core, &format!("\"message=x\" {unknown}"));
        check("involvedObject.kind=Pod", ApiGroup::Events, &format!("\"involvedObject.kind=Pod\" {unknown}"));
        check("source=kubelet", ApiGroup::Events, &format!("\"source=kubelet\" {unknown}"));
        let term = "\"type in (Normal)\" is not a term such as type=Warning or type!=Normal";
        check("type in (Normal)", ApiGroup::Core, term);
        for value in ["a=b", r"a\b", "a\\"] {
            let status = FieldSelector::parse(&format!("type={value}"), ApiGroup::Core).unwrap_err();
            assert!(status.message.contains(r"need a \ before them"), "{status:?}");
        }
    }

    #[test]
    fn selectors_are_told_to_the_upstream_in_core_names() {
        let selector = FieldSelector::parse(r"regarding.kind=Pod,reason!=a\,b", ApiGroup::Events).unwrap();
        assert_eq!(selector.text(ApiGroup::Core), r"involvedObject.kind=Pod,reason!=a\,b");
        assert_eq!(FieldSelector::parse(&selector.text(ApiGroup::Core), ApiGroup::Core).unwrap(), selector);
        assert_eq!(selector.text(ApiGroup::Events), r"regarding.kind=Pod,reason!=a\,b");
    }
}
