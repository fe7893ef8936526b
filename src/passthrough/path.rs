//! Who answers a request, by its method and path alone.

use http::Method;

use crate::event::ApiGroup;

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The event half: an event is written. Where it cannot take it, the apiserver.
    Write,
    /// The apiserver, and the event half where that has no event of this name: a client may have been told a name that
    /// only we know.
    Event,
    /// The event half alone: paths that no apiserver has.
    Ours,
    /// The apiserver.
    Apiserver,
}

impl Place {
    /// Of a request.
    pub(super) fn of(method: &Method, path: &str) -> Self {
        if path.starts_with("/eventweir/") {
            return Self::Ours;
        }
        let Some(events) = Events::of(path) else { return Self::Apiserver };
        let is_one = events.name.is_some();
        match *method {
            Method::POST if !is_one => Self::Write,
            Method::DELETE => Self::Write,
            Method::PATCH | Method::PUT if is_one => Self::Write,
            Method::GET if is_one => Self::Event,
            _ => Self::Apiserver,
        }
    }
}

/// The events, or the one event, that a path names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Events<'a> {
    pub(super) group: ApiGroup,
    pub(super) namespace: &'a str,
    pub(super) name: Option<&'a str>,
}

impl<'a> Events<'a> {
    /// In a namespace; `None` for every other path. Escapes are not resolved, as they are not in the event half's table.
    pub(super) fn of(path: &'a str) -> Option<Self> {
        let (group, rest) =
            [(ApiGroup::Core, "/api/v1/namespaces/"), (ApiGroup::Events, "/apis/events.k8s.io/v1/namespaces/")]
                .into_iter()
                .find_map(|(group, prefix)| Some((group, path.strip_prefix(prefix)?)))?;
        let (namespace, rest) = rest.split_once('/').filter(|(namespace, _)| !namespace.is_empty())?;
        let rest = rest.strip_prefix("events")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let name = match rest.strip_prefix('/') {
            None if rest.is_empty() => None,
            Some(name) if !name.is_empty() && !name.contains('/') => Some(name),
            _ => return None,
        };
        Some(Self { group, namespace, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_events_are_ours_and_all_else_is_the_apiservers() {
        let check = |method: Method, path: &str, place| assert_eq!(Place::of(&method, path), place, "{method} {path}");
        for group in ["/api/v1", "/apis/events.k8s.io/v1"] {
            let events = format!("{group}/namespaces/shop/events");
            check(Method::POST, &events, Place::Write);
            check(Method::POST, &format!("{events}/"), Place::Write);
            check(Method::DELETE, &events, Place::Write);
            check(Method::GET, &events, Place::Apiserver);
            check(Method::GET, &format!("{group}/watch/namespaces/shop/events"), Place::Apiserver);
            check(Method::GET, &format!("{group}/events"), Place::Apiserver);
            check(Method::PUT, &events, Place::Apiserver);
            for method in [Method::PATCH, Method::PUT, Method::DELETE] {
                check(method, &format!("{events}/a.b"), Place::Write);
            }
            check(Method::GET, &format!("{events}/a.b"), Place::Event);
            check(Method::HEAD, &format!("{events}/a.b"), Place::Apiserver);
            check(Method::POST, &format!("{events}/a.b"), Place::Apiserver);
            check(Method::PATCH, &format!("{events}/a.b/status"), Place::Apiserver);
            check(Method::POST, &format!("{events}2"), Place::Apiserver);
            check(Method::POST, &format!("{events}//"), Place::Apiserver);
            check(Method::POST, &format!("{group}/namespaces//events"), Place::Apiserver);
        }
        check(Method::POST, "/api/v1/namespaces/shop/pods", Place::Apiserver);
        check(Method::POST, "/apis/apps/v1/namespaces/shop/events", Place::Apiserver);
        check(Method::GET, "/apis", Place::Apiserver);
        check(Method::POST, "/eventweir/v1/events", Place::Ours);
    }
}
