//! Policy of the configuration file: rules that allow or deny. The first rule that matches decides. Pure.

use smol_str::SmolStr;

use super::attributes::{Attributes, Target};
use super::caller::Caller;
use crate::correlator::Pattern;

/// A rule of the policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Names of callers.
    pub users: Vec<Pattern>,
    /// Groups of callers. A rule matches a caller by its name or by one of its groups.
    pub groups: Vec<Pattern>,
    /// Verbs; empty for all.
    pub verbs: Vec<SmolStr>,
    /// Namespaces; empty for all. A rule with namespaces matches requests over all namespaces only if it denies.
    pub namespaces: Vec<Pattern>,
    /// Decision of the rule.
    pub effect: Effect,
}

/// Decision of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effect {
    /// The request is allowed.
    #[default]
    Allow,
    /// The request is denied.
    Deny,
}

/// Verbs that a rule can name.
pub const VERBS: [&str; 8] = ["create", "patch", "update", "get", "list", "watch", "delete", "deletecollection"];

impl Rule {
    /// Whether the rule matches a request for events.
    fn matches(&self, caller: &Caller, attributes: &Attributes) -> bool {
        let Target::Resource { resource: "events", namespace, .. } = &attributes.target else { return false };
        let any = |patterns: &[Pattern], text: &str| patterns.iter().any(|pattern| pattern.matches(text));
        let is_about = any(&self.users, &caller.name) || caller.groups.iter().any(|group| any(&self.groups, group));
        let is_there = if namespace.is_empty() {
            // A request over all namespaces reads also what a rule denies, and more than a rule allows.
            self.namespaces.is_empty() || self.effect == Effect::Deny
        } else {
            self.namespaces.is_empty() || any(&self.namespaces, namespace)
        };
        is_about && is_there && (self.verbs.is_empty() || self.verbs.contains(&attributes.verb))
    }
}

/// Returns the decision of the first rule that matches.
pub(super) fn decide(policy: &[Rule], caller: &Caller, attributes: &Attributes) -> Option<Effect> {
    policy.iter().find(|rule| rule.matches(caller, attributes)).map(|rule| rule.effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_matches_decides() {
        let exact = |text: &str| vec![Pattern::Exact(text.into())];
        let prefix = |text: &str| vec![Pattern::Prefix(text.into())];
        let policy = [
            Rule { users: exact("eve"), effect: Effect::Deny, ..Rule::default() },
            Rule { groups: exact("system:nodes"), verbs: vec!["create".into(), "patch".into()], ..Rule::default() },
            Rule { users: prefix("system:serviceaccount:shop:"), namespaces: prefix("shop"), ..Rule::default() },
            Rule { users: exact("carol"), namespaces: exact("secret"), effect: Effect::Deny, ..Rule::default() },
            Rule { users: vec![Pattern::Exact("root".into()), Pattern::Exact("carol".into())], ..Rule::default() },
        ];
        let check = |name: &str, groups: &[&str], verb: &'static str, namespace: &str| {
            let groups = groups.iter().map(|group| SmolStr::new(*group)).collect();
            let caller = Caller { name: name.into(), groups, ..Caller::default() };
            let attributes = Attributes { verb: verb.into(), ..Attributes::to_create("", namespace) };
            decide(&policy, &caller, &attributes)
        };
        assert_eq!(check("eve", &["system:nodes"], "create", "shop"), Some(Effect::Deny));
        assert_eq!(check("system:node:a", &["system:nodes"], "create", "any"), Some(Effect::Allow));
        assert_eq!(check("system:node:a", &["system:nodes"], "list", "any"), None);
        assert_eq!(check("system:serviceaccount:shop:x", &[], "delete", "shop-2"), Some(Effect::Allow));
        assert_eq!(check("system:serviceaccount:shop:x", &[], "list", ""), None);
        assert_eq!(check("system:serviceaccount:shop:x", &[], "list", "bank"), None);
        assert_eq!(check("root", &[], "list", ""), Some(Effect::Allow));
        assert_eq!(check("carol", &[], "list", "shop"), Some(Effect::Allow));
        assert_eq!(check("carol", &[], "list", "secret"), Some(Effect::Deny));
        assert_eq!(check("carol", &[], "list", ""), Some(Effect::Deny), "it would show the events of `secret`");
        assert_eq!(check("another", &[], "get", "shop"), None);
        let root = Caller { name: "root".into(), ..Caller::default() };
        let path = Attributes { verb: "get".into(), target: Target::Path("/metrics".into()) };
        assert_eq!(decide(&policy, &root, &path), None);
    }
}
