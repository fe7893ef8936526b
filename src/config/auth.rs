//! Who may use the listener, and how much: `auth`, `limits` and `fairness`, both ways.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value as Json, json};
use smol_str::SmolStr;

use super::raw::{Entry, Value};
use super::section::Section;
use super::units::duration_text;
use super::{Auth, Backend, values};
use crate::access::{
    AccessReview, AllowPaths, Binding, Effect, Fairness, Kind, Limit, Rule, Settings, TokenReview, VERBS,
};
use crate::correlator::Pattern;

/// LIMIT: rules of a policy, as of `correlation.rules`.
const RULES_MAX: usize = 200;
/// LIMIT: limits; the plugin has four types, and each may be given several times.
const LIMITS_MAX: usize = 16;
/// LIMIT: upper end of the budgets of one limit.
const CACHE_MAX: usize = 10_000_000;
/// The plugin's default.
const CACHE_SIZE: NonZeroUsize = const { NonZeroUsize::new(4096).unwrap() };
const EFFECTS: [(&str, Effect); 2] = [("allow", Effect::Allow), ("deny", Effect::Deny)];
const WITHOUT_APISERVER: &str =
    "needs upstream.kind: apiserver (--upstream apiserver), which is asked; allowed without it: false";
const WITHOUT_CALLERS: &str =
    "callers are not known; allowed with auth.tokenReview.enabled: true or auth.clientCAFile (--client-ca-file)";

/// `auth`.
pub(super) fn auth(section: &mut Section<'_>, backend: Backend) -> Settings {
    let mut settings = Settings {
        certificates: section.has("clientCAFile"),
        tokens: section.within("tokenReview", |section| tokens(section, backend)),
        anonymous: section.value("anonymous", false, values::truth),
        reviews: section.within("subjectAccessReview", |section| reviews(section, backend)),
        policy: section.each("policy", RULES_MAX, rule),
        ..Settings::default()
    };
    settings.allow_paths = section.value("allowPaths", settings.allow_paths, paths);
    settings.annotation = section.optional("callerAnnotation", annotation);
    settings.binding = section.within("sourceBinding", binding);
    if !settings.authenticates() {
        for (key, is_set) in [
            ("subjectAccessReview", settings.reviews.is_on),
            ("policy", !settings.policy.is_empty()),
            ("callerAnnotation", settings.annotation.is_some()),
            ("sourceBinding", settings.binding.is_on),
        ] {
            if is_set {
                section.conflict(key, &format!("has no effect, because {WITHOUT_CALLERS}"));
            }
        }
    }
    settings
}

fn tokens(section: &mut Section<'_>, backend: Backend) -> TokenReview {
    let default = TokenReview::default();
    let is_on = section.value("enabled", default.is_on, values::truth);
    if is_on && backend == Backend::Embedded {
        section.conflict("enabled", WITHOUT_APISERVER);
    }
    TokenReview {
        is_on,
        audiences: section.value("audiences", default.audiences, values::texts_of("a text or a list of texts")),
        cache_ttl: section.value("cacheTTL", default.cache_ttl, values::duration(ttl())),
    }
}

fn reviews(section: &mut Section<'_>, backend: Backend) -> AccessReview {
    let default = AccessReview::default();
    let is_on = section.value("enabled", default.is_on, values::truth);
    if is_on && backend == Backend::Embedded {
        section.conflict("enabled", WITHOUT_APISERVER);
    }
    AccessReview {
        is_on,
        allow_ttl: section.value("allowTTL", default.allow_ttl, values::duration(ttl())),
        deny_ttl: section.value("denyTTL", default.deny_ttl, values::duration(ttl())),
    }
}

const fn ttl() -> RangeInclusive<Duration> {
    Duration::ZERO..=Duration::from_secs(3600)
}

fn rule(section: &mut Section<'_>) -> Rule {
    let rule = Rule {
        users: section.value("users", Vec::new(), values::patterns),
        groups: section.value("groups", Vec::new(), values::patterns),
        verbs: section.value("verbs", Vec::new(), verbs),
        namespaces: section.value("namespaces", Vec::new(), values::patterns),
        effect: section.value("effect", Effect::Allow, values::choice(&EFFECTS)),
    };
    if !section.has("users") && !section.has("groups") {
        section.conflict("", "a rule needs users or groups");
    }
    rule
}

fn verbs(value: &Value) -> Result<Vec<SmolStr>, String> {
    let allowed = format!("a list of {}", VERBS.join(", "));
    let verbs = values::texts_of("")(value).map_err(|_other| allowed.clone())?;
    let is_fine = !verbs.is_empty() && verbs.iter().all(|verb| VERBS.contains(&verb.as_str()));
    is_fine.then_some(verbs).ok_or(allowed)
}

fn paths(value: &Value) -> Result<AllowPaths, String> {
    let allowed = "a list of paths that begin with /, with * only at the end";
    if matches!(value, Value::List(members) if members.is_empty()) {
        return Ok(AllowPaths(Vec::new()));
    }
    let patterns = values::patterns(value).map_err(|_other| allowed.to_owned())?;
    let is_path = |pattern: &Pattern| match pattern {
        Pattern::Exact(path) | Pattern::Prefix(path) => path.starts_with('/'),
    };
    if patterns.iter().all(is_path) { Ok(AllowPaths(patterns)) } else { Err(allowed.to_owned()) }
}

fn annotation(value: &Value) -> Result<SmolStr, String> {
    let allowed = || "the key of an annotation, such as example.com/reported-by".to_owned();
    let key = values::text(317)(value).map_err(|_other| allowed())?;
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("x", &key));
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let ends = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let is_domain = prefix.chars().all(|c| is_plain(c) && c != '_' && !c.is_ascii_uppercase());
    let is_name = name.len() <= 63 && name.chars().all(is_plain);
    if is_domain && is_name && ends(prefix) && ends(name) { Ok(key) } else { Err(allowed()) }
}

fn binding(section: &mut Section<'_>) -> Binding {
    Binding {
        is_on: section.value("enabled", false, values::truth),
        components: section.value("components", BTreeMap::new(), components),
    }
}

fn components(value: &Value) -> Result<BTreeMap<SmolStr, Vec<Pattern>>, String> {
    let allowed = || {
        "names of service accounts, such as system:serviceaccount:shop:controller, each with a list of components, with * \
         only at the end"
            .to_owned()
    };
    let Value::Map(entries) = value else { return Err(allowed()) };
    let component = |Entry { key, node, .. }: &Entry| {
        let account = key.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
        let is_account = account.is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
        let patterns = values::patterns(&node.value).ok().filter(|_| is_account)?;
        Some((SmolStr::new(key), patterns))
    };
    entries.iter().map(component).collect::<Option<_>>().ok_or_else(allowed)
}

/// `limits`: a list, or the whole configuration file of the EventRateLimit plugin.
pub(super) fn limits(section: &mut Section<'_>) -> Vec<Limit> {
    if section.is_section("limits") { section.within("limits", plugin) } else { list(section) }
}

/// The configuration file of the EventRateLimit plugin.
pub(super) fn plugin(section: &mut Section<'_>) -> Vec<Limit> {
    let versions = [("eventratelimit.admission.k8s.io/v1alpha1", ())];
    section.value("apiVersion", (), values::choice(&versions));
    section.value("kind", (), values::choice(&[("Configuration", ())]));
    list(section)
}

fn list(section: &mut Section<'_>) -> Vec<Limit> {
    section.each("limits", LIMITS_MAX, limit).into_iter().flatten().collect()
}

fn limit(section: &mut Section<'_>) -> Option<Limit> {
    let rate = |value: &Value| {
        let number = values::whole_32(1..=1_000_000)(value)?;
        NonZeroU32::new(number).ok_or_else(|| "a whole number".to_owned())
    };
    let kinds = Kind::ALL.map(|kind| (kind.label(), kind));
    let kind = section.optional("type", values::choice(&kinds));
    let (qps, burst) = (section.optional("qps", rate), section.optional("burst", rate));
    let cache_size = section.value("cacheSize", CACHE_SIZE, values::positive(CACHE_MAX));
    if !["type", "qps", "burst"].iter().all(|key| section.has(key)) {
        section.conflict("", "a limit needs type, qps and burst");
    }
    Some(Limit { kind: kind?, qps: qps?, burst: burst?, cache_size })
}

/// `fairness`.
pub(super) fn fairness(section: &mut Section<'_>) -> Fairness {
    let default = Fairness::default();
    Fairness {
        max_in_flight: section.value("maxInFlight", default.max_in_flight, values::positive(1_000_000)),
        caller_percent: section.value("callerPercent", default.caller_percent, values::whole(1..=100)),
        max_waiting: section.value("maxWaiting", default.max_waiting, values::whole(0..=1_000_000)),
    }
}

/// The tree of `auth`.
pub(super) fn auth_tree(settings: &Settings, auth: &Auth) -> Json {
    let Settings {
        certificates: _, // the CA file says it
        tokens: TokenReview { is_on, audiences, cache_ttl },
        anonymous,
        reviews,
        policy,
        allow_paths,
        annotation,
        binding,
        limits: _,   // a section of its own
        fairness: _, // the same
    } = settings;
    let mut tree = Map::new();
    let mut put = |key: &str, value: Json| tree.insert(key.to_owned(), value);
    if let Some(file) = &auth.client_ca_file {
        put("clientCAFile", json!(file.display().to_string()));
    }
    let audiences: Vec<&str> = audiences.iter().map(SmolStr::as_str).collect();
    put("tokenReview", json!({ "enabled": is_on, "audiences": audiences, "cacheTTL": duration_text(*cache_ttl) }));
    put("anonymous", json!(anonymous));
    let (allow_ttl, deny_ttl) = (duration_text(reviews.allow_ttl), duration_text(reviews.deny_ttl));
    put("subjectAccessReview", json!({ "enabled": reviews.is_on, "allowTTL": allow_ttl, "denyTTL": deny_ttl }));
    put("policy", policy.iter().map(rule_tree).collect());
    put("allowPaths", patterns(&allow_paths.0));
    if let Some(key) = annotation {
        put("callerAnnotation", json!(key.as_str()));
    }
    let components: Map<String, Json> =
        binding.components.iter().map(|(account, known)| (account.to_string(), patterns(known))).collect();
    put("sourceBinding", json!({ "enabled": binding.is_on, "components": components }));
    Json::Object(tree)
}

fn rule_tree(rule: &Rule) -> Json {
    let Rule { users, groups, verbs, namespaces, effect } = rule;
    let mut tree = Map::new();
    for (key, list) in [("users", users), ("groups", groups), ("namespaces", namespaces)] {
        if !list.is_empty() {
            tree.insert(key.to_owned(), patterns(list));
        }
    }
    if !verbs.is_empty() {
        tree.insert("verbs".to_owned(), verbs.iter().map(SmolStr::as_str).collect());
    }
    let effect = EFFECTS.iter().find(|(_, known)| known == effect).map_or("allow", |(name, _)| name);
    tree.insert("effect".to_owned(), json!(effect));
    Json::Object(tree)
}

pub(super) fn patterns(list: &[Pattern]) -> Json {
    let text = |pattern: &Pattern| match pattern {
        Pattern::Exact(text) => text.to_string(),
        Pattern::Prefix(text) => format!("{text}*"),
    };
    list.iter().map(text).collect()
}

/// The tree of `limits`.
pub(super) fn limits_tree(limits: &[Limit]) -> Json {
    let limit = |Limit { kind, qps, burst, cache_size }: &Limit| json!({ "type": kind.label(), "qps": qps, "burst": burst, "cacheSize": cache_size });
    limits.iter().map(limit).collect()
}

/// The tree of `fairness`.
pub(super) fn fairness_tree(fairness: &Fairness) -> Json {
    let Fairness { max_in_flight, caller_percent, max_waiting } = fairness;
    json!({ "maxInFlight": max_in_flight, "callerPercent": caller_percent, "maxWaiting": max_waiting })
}
