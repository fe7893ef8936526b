//! Binds callers to sources: a node may report its own host only, a service account its configured components only.
//! Other callers are not bound. Pure.

use std::collections::BTreeMap;

use serde_json::Value;
use smol_str::SmolStr;

use super::attributes::refused;
use super::caller::Caller;
use crate::correlator::Pattern;
use crate::event::{ApiGroup, Event};
use crate::status::{Status, StatusCause};

const NODE: &str = "system:node:";
pub(crate) const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Settings of source binding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Binding {
    /// Whether callers are bound.
    pub is_on: bool,
    /// Components of service accounts, by the account's full name. An account that is missing may report none.
    // LIMIT: the configuration file, whose keys are limited when it is read.
    pub components: BTreeMap<SmolStr, Vec<Pattern>>,
}

/// Whether an event must name its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// A whole event.
    Whole,
    /// A change of an event, which may leave out the source.
    Part,
}

impl Binding {
    /// Whether the sources of this caller are checked.
    pub(crate) fn binds(&self, caller: &Caller) -> bool {
        self.is_on && (caller.name.starts_with(NODE) || caller.name.starts_with(SERVICE_ACCOUNT))
    }

    /// Checks the source of an event.
    ///
    /// # Errors
    /// 403 with a cause that names the field.
    pub(crate) fn check(&self, caller: &Caller, group: ApiGroup, event: &Event, extent: Extent) -> Result<(), Status> {
        if !self.binds(caller) {
            return Ok(());
        }
        let source = &event.source;
        let [host, component, controller] = match group {
            ApiGroup::Core => ["source.host", "source.component", "reportingComponent"],
            ApiGroup::Events => ["deprecatedSource.host", "deprecatedSource.component", "reportingController"],
        };
        match caller.name.strip_prefix(NODE) {
            Some(node) => {
                let fields = [(host, &source.host), ("reportingInstance", &event.reporting_instance)];
                check(caller, group, event, extent, fields, |text| text == node)?;
                // The host of a source of the old style is source.host alone, and not reportingInstance.
                let has_host = source.component.is_empty() || !source.host.is_empty();
                if has_host { Ok(()) } else { Err(foreign(caller, group, event, host, &source.host)) }
            }
            None => {
                let components = self.components.get(&caller.name).map(Vec::as_slice).unwrap_or_default();
                let fields = [(component, &source.component), (controller, &event.reporting_controller)];
                check(caller, group, event, extent, fields, |text| components.iter().any(|known| known.matches(text)))
            }
        }
    }
}

/// Members of an event that say its source, in both API groups.
const SOURCES: [&str; 5] =
    ["source", "deprecatedSource", "reportingComponent", "reportingController", "reportingInstance"];

/// Checks that a JSON patch does not change the source of an event.
///
/// # Errors
/// 403 with a cause that names the field.
pub(crate) fn check_operations(caller: &Caller, group: ApiGroup, name: &str, patch: &Value) -> Result<(), Status> {
    let operations = patch.as_array().map(Vec::as_slice).unwrap_or_default();
    let changes = operations.iter().filter(|operation| operation["op"] != "test");
    // A move removes what is at its `from`.
    let paths = changes.flat_map(|change| [&change["path"], &change["from"]]).filter_map(Value::as_str);
    // COMPAT(apiserver): what comes before the first slash is ignored.
    let mut fields = paths.map(|path| path.split_once('/').map_or("", |(_, field)| field));
    let touched = |field: &str| {
        let member = field.split('/').next().unwrap_or_default();
        member.is_empty() || SOURCES.contains(&member)
    };
    let path = fields.find(|field| touched(field)).map(|field| field.replace('/', "."));
    path.map_or(Ok(()), |field| Err(unpatchable(caller, group, name, &field)))
}

/// Checks that a merge patch does not remove the source of an event: by `null`, by an empty text, or by a directive of
/// strategic merge.
///
/// # Errors
/// 403 with a cause that names the field.
pub(crate) fn check_removals(caller: &Caller, group: ApiGroup, name: &str, patch: &Value) -> Result<(), Status> {
    let is_removed = |name: &str, text: &Value| name.starts_with('$') || text.as_str().is_none_or(str::is_empty);
    let field = patch.as_object().into_iter().flatten().find_map(|(name, value)| match value {
        _ if name.starts_with('$') => Some(name.clone()),
        _ if !SOURCES.contains(&name.as_str()) => None,
        Value::Object(parts) => {
            let removed = parts.iter().find(|(part, text)| is_removed(part, text));
            removed.map(|(part, _)| format!("{name}.{part}"))
        }
        text => is_removed(name, text).then(|| name.clone()),
    });
    field.map_or(Ok(()), |field| Err(unpatchable(caller, group, name, &field)))
}

fn unpatchable(caller: &Caller, group: ApiGroup, name: &str, field: &str) -> Status {
    let why = format!("User {:?} cannot patch {field}", caller.name);
    with_cause(refused(group.name(), "events", name, &why), "may not be patched by this user", field)
}

fn with_cause(mut status: Status, message: &str, field: &str) -> Status {
    if let Some(details) = &mut status.details {
        let (reason, message, field) = ("FieldValueForbidden".to_owned(), message.to_owned(), field.to_owned());
        details.causes.push(StatusCause { reason, message, field });
    }
    status
}

fn check(
    caller: &Caller,
    group: ApiGroup,
    event: &Event,
    extent: Extent,
    fields: [(&str, &SmolStr); 2],
    allows: impl Fn(&str) -> bool,
) -> Result<(), Status> {
    let is_nameless = extent == Extent::Whole && fields.iter().all(|(_, text)| text.is_empty());
    let wrong = fields.iter().find(|(_, text)| is_nameless || (!text.is_empty() && !allows(text)));
    wrong.map_or(Ok(()), |(field, text)| Err(foreign(caller, group, event, field, text)))
}

fn foreign(caller: &Caller, group: ApiGroup, event: &Event, field: &str, text: &str) -> Status {
    let why = format!("User {:?} cannot report {field} {text:?}", caller.name);
    let message = format!("{text:?}: not a source of this user");
    with_cause(refused(group.name(), "events", &event.metadata.name, &why), &message, field)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding() -> Binding {
        let components = [Pattern::Exact("shop-controller".into()), Pattern::Prefix("shop.io/".into())];
        let account = SmolStr::new("system:serviceaccount:shop:a");
        Binding { is_on: true, components: BTreeMap::from([(account, components.to_vec())]) }
    }

    /// Returns the field at fault.
    fn fault(caller: &str, group: ApiGroup, extent: Extent, event: &Event) -> Option<String> {
        let caller = Caller { name: caller.into(), ..Caller::default() };
        let status = binding().check(&caller, group, event, extent).err()?;
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        Some(status.details.unwrap().causes[0].field.clone())
    }

    fn event(component: &str, host: &str, controller: &str, instance: &str) -> Event {
        let mut event = Event::default();
        (event.source.component, event.source.host) = (component.into(), host.into());
        (event.reporting_controller, event.reporting_instance) = (controller.into(), instance.into());
        event
    }

    #[test]
    fn a_node_may_report_its_own_host_only() {
        let check = |event: Event| fault("system:node:a", ApiGroup::Core, Extent::Whole, &event);
        assert_eq!(check(event("kubelet", "a", "kubelet", "a")), None);
        assert_eq!(check(event("kubelet", "a", "", "")), None);
        assert_eq!(check(event("kubelet", "b", "", "")).as_deref(), Some("source.host"));
        assert_eq!(check(event("kubelet", "a", "kubelet", "b")).as_deref(), Some("reportingInstance"));
        assert_eq!(check(event("", "", "kubelet", "a")), None);
        assert_eq!(check(event("kubelet", "", "", "")).as_deref(), Some("source.host"));
        // Fault: a node reported as a component without a host, because it was named as the instance.
        let hostless = event("scheduler", "", "kubelet", "a");
        assert_eq!(check(hostless.clone()).as_deref(), Some("source.host"));
        assert!(fault("system:node:a", ApiGroup::Core, Extent::Part, &hostless).is_some());
        let other = event("", "b", "", "");
        let field = fault("system:node:a", ApiGroup::Events, Extent::Whole, &other);
        assert_eq!(field.as_deref(), Some("deprecatedSource.host"));
        assert_eq!(fault("system:node:a", ApiGroup::Core, Extent::Part, &Event::default()), None);
        assert!(fault("system:node:a", ApiGroup::Core, Extent::Part, &other).is_some());
    }

    #[test]
    fn a_json_patch_may_not_change_the_source() {
        let caller = Caller { name: "system:node:a".into(), ..Caller::default() };
        let check = |op: &str, path: &str| {
            let patch = serde_json::json!([{ "op": "add", "path": "/metadata/labels", "value": {} }, { "op": op, "path": path }]);
            check_operations(&caller, ApiGroup::Core, "e", &patch).is_ok()
        };
        assert!(check("add", "/message") && check("add", "/sources") && check("test", "/source/host"));
        for path in ["", "/source", "/source/host", "/reportingInstance", "x/source/host", "source"] {
            assert!(!check("replace", path), "{path}");
        }
        assert!(!check("replace", "/deprecatedSource/component"));
        let moved = serde_json::json!([{ "op": "move", "from": "/source/host", "path": "/message" }]);
        assert!(check_operations(&caller, ApiGroup::Core, "e", &moved).is_err());
    }

    #[test]
    fn a_merge_patch_may_not_remove_the_source() {
        let caller = Caller { name: "system:node:a".into(), ..Caller::default() };
        for (patch, field) in [
            (r#"{"source":{"host":"a"},"reportingInstance":"a","message":null,"related":{"name":""}}"#, None),
            (r#"{"source":null}"#, Some("source")),
            (r#"{"deprecatedSource":{"component":"c","host":null}}"#, Some("deprecatedSource.host")),
            (r#"{"source":{"host":""}}"#, Some("source.host")),
            (r#"{"source":{"$patch":"replace","component":"c"}}"#, Some("source.$patch")),
            (r#"{"reportingInstance":""}"#, Some("reportingInstance")),
            (r#"{"$retainKeys":["message"],"message":"m"}"#, Some("$retainKeys")),
        ] {
            let patch = serde_json::from_str(patch).unwrap();
            let refused = check_removals(&caller, ApiGroup::Core, "e", &patch).err();
            let causes = refused.and_then(|status| status.details).map(|details| details.causes).unwrap_or_default();
            assert_eq!(causes.first().map(|cause| cause.field.as_str()), field, "{patch}");
        }
    }

    #[test]
    fn a_service_account_may_report_its_components_only() {
        let check = |name: &str, event: Event| fault(name, ApiGroup::Core, Extent::Whole, &event);
        let a = "system:serviceaccount:shop:a";
        assert_eq!(check(a, event("shop-controller", "anywhere", "", "")), None);
        assert_eq!(check(a, event("", "", "shop.io/x", "x-0")), None);
        assert_eq!(check(a, event("kubelet", "", "", "")).as_deref(), Some("source.component"));
        assert_eq!(check(a, event("shop-controller", "", "kubelet", "")).as_deref(), Some("reportingComponent"));
        assert_eq!(check(a, Event::default()).as_deref(), Some("source.component"));
        let other = "system:serviceaccount:shop:b";
        assert_eq!(check(other, event("shop-controller", "", "", "")).as_deref(), Some("source.component"));
        assert_eq!(check("system:kube-scheduler", event("anything", "b", "", "")), None);
        let caller = Caller { name: other.into(), ..Caller::default() };
        assert_eq!(Binding::default().check(&caller, ApiGroup::Core, &Event::default(), Extent::Whole), Ok(()));
    }
}
