//! Who a request says it is, for managedFields (`k8s.io/apiserver/pkg/endpoints/handlers`, `managerOrUserAgent`).

use axum::http::HeaderMap;
use axum::http::header::USER_AGENT;
use smol_str::SmolStr;

use crate::event::ApiGroup;
use crate::upstream::Writer;

/// LIMIT: bytes of a manager's name (`FieldManagerMaxLength`); what an option names is checked with the others.
const MANAGER_BYTES_MAX: usize = 128;

/// In whose name a request writes: `?fieldManager`, or the User-Agent up to its first `/`.
pub(super) fn writer(group: ApiGroup, query: Option<&str>, headers: &HeaderMap) -> Writer {
    let mut pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let named = pairs.find(|(key, _)| key == "fieldManager").map(|(_, value)| SmolStr::new(value));
    let manager = named.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        let agent = headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default();
        from_agent(agent.split('/').next().unwrap_or_default())
    });
    Writer { manager, group }
}

/// `prefixFromUserAgent`: without what cannot be printed, cut where it becomes too long.
fn from_agent(agent: &str) -> SmolStr {
    let mut name = String::new();
    for c in agent.chars().filter(|c| !c.is_control()) {
        if name.len().saturating_add(c.len_utf8()) > MANAGER_BYTES_MAX {
            break;
        }
        name.push(c);
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_names_the_manager_and_else_the_user_agent() {
        let check = |query, agent: &str, expected: &str| {
            let headers = [(USER_AGENT, agent.parse().unwrap())].into_iter().collect();
            assert_eq!(writer(ApiGroup::Core, query, &headers).manager, expected);
        };
        check(Some("dryRun=All&fieldManager=my%2Fproxy"), "golden-client/1.0", "my/proxy");
        check(Some("fieldManager="), "golden-client/1.0", "golden-client");
        check(None, "kubectl/v1.36 (linux)", "kubectl");
        check(None, "a\tb", "ab");
        check(None, &"x".repeat(200), &"x".repeat(128));
        assert_eq!(writer(ApiGroup::Core, None, &HeaderMap::new()).manager, "");
    }
}
