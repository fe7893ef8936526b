//! Reads who may use the listener, and how much: `auth`, `limits` and `fairness`.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::json;
use smol_str::SmolStr;

use super::Backend;
use super::raw::{Entry, Node, Value};
use super::section::Section;
use super::values::{self, Form};
use crate::access::{AccessReview, Effect, Fairness, Kind, Limit, Rule, SERVICE_ACCOUNT, Settings, TokenReview, VERBS};
use crate::correlator::Pattern;
use crate::event::validate::label_key_faults;

/// LIMIT: rules of a policy, as of `correlation.rules`.
const RULES_MAX: usize = 200;
/// LIMIT: limits; the plugin has four types, and each may be given several times.
const LIMITS_MAX: usize = 16;
/// LIMIT: upper end of the budgets of one limit.
const CACHE_MAX: usize = 10_000_000;
/// LIMIT: upper end of the rates of one limit.
const RATE_MAX: NonZeroU32 = const { NonZeroU32::new(1_000_000).unwrap() };
/// How long answers of the apiserver may be cached.
const TTL: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3600);
/// The plugin's default.
const CACHE_SIZE: NonZeroUsize = const { NonZeroUsize::new(4096).unwrap() };
const EFFECTS: [(&str, Effect); 2] = [("allow", Effect::Allow), ("deny", Effect::Deny)];
const WITHOUT_APISERVER: &str =
    "asks the API server, and needs upstream.kind: apiserver (--upstream apiserver); allowed without it: false";
const WITHOUT_CALLERS: &str =
    "callers are not known; allowed with auth.tokenReview.enabled: true or auth.clientCAFile (--client-ca-file)";

/// Reads `auth`, but for its `clientCAFile`.
pub(super) fn auth(section: &mut Section<'_>, settings: &mut Settings, backend: Backend) {
    settings.certificates = section.has("clientCAFile");
    section.within("tokenReview", |section| tokens(section, &mut settings.tokens, backend));
    section.set("anonymous", &mut settings.anonymous, &values::truth());
    section.within("subjectAccessReview", |section| reviews(section, &mut settings.reviews, backend));
    let (users, groups, verbs, namespaces) = Default::default();
    let new = Rule { users, groups, verbs, namespaces, effect: Effect::Allow };
    section.set("outageTTL", &mut settings.outage_ttl.0, &values::duration(TTL));
    section.each("policy", RULES_MAX, &mut settings.policy, &new, rule);
    section.set("allowPaths", &mut settings.allow_paths.0, &values::paths());
    section.set_optional("callerAnnotation", &mut settings.annotation, &annotation());
    section.within("sourceBinding", |section| {
        section.set("enabled", &mut settings.binding.is_on, &values::truth());
        section.set("components", &mut settings.binding.components, &components());
    });
    if !settings.authenticates() {
        let default = Settings::default();
        for (key, is_set) in [
            ("tokenReview", settings.tokens != default.tokens),
            ("anonymous", settings.anonymous),
            ("subjectAccessReview", settings.reviews != default.reviews),
            ("outageTTL", settings.outage_ttl != default.outage_ttl),
            ("policy", !settings.policy.is_empty()),
            ("allowPaths", settings.allow_paths != default.allow_paths),
            ("callerAnnotation", settings.annotation.is_some()),
            ("sourceBinding", settings.binding != default.binding),
        ] {
            if is_set {
                section.conflict(key, &format!("has no effect, because {WITHOUT_CALLERS}"));
            }
        }
    }
}

fn tokens(section: &mut Section<'_>, tokens: &mut TokenReview, backend: Backend) {
    enabled(section, &mut tokens.is_on, backend);
    section.set("audiences", &mut tokens.audiences, &values::texts_of("a string or a list of strings"));
    section.set("cacheTTL", &mut tokens.cache_ttl, &values::duration(TTL));
}

fn reviews(section: &mut Section<'_>, reviews: &mut AccessReview, backend: Backend) {
    enabled(section, &mut reviews.is_on, backend);
    section.set("allowTTL", &mut reviews.allow_ttl, &values::duration(TTL));
    section.set("denyTTL", &mut reviews.deny_ttl, &values::duration(TTL));
}

/// Reads the switch of a feature that asks the apiserver.
fn enabled(section: &mut Section<'_>, is_on: &mut bool, backend: Backend) {
    section.set("enabled", is_on, &values::truth());
    if *is_on && backend == Backend::Embedded {
        section.conflict("enabled", WITHOUT_APISERVER);
    }
}

fn rule(section: &mut Section<'_>, rule: &mut Rule) {
    section.set_list("users", &mut rule.users, &values::patterns());
    section.set_list("groups", &mut rule.groups, &values::patterns());
    section.set_list("verbs", &mut rule.verbs, &verbs());
    section.set_list("namespaces", &mut rule.namespaces, &values::patterns());
    section.set("effect", &mut rule.effect, &values::choice(&EFFECTS));
    if !section.has("users") && !section.has("groups") {
        section.conflict("", "a rule needs users or groups; allowed: one of them, or both");
    }
}

fn verbs() -> Form<'static, Vec<SmolStr>> {
    let verb = |text: &str| VERBS.contains(&text).then(|| text.into());
    let allowed = format!("a list of {}", VERBS.join(", "));
    values::list(allowed, values::texts, verb, SmolStr::to_string, |verbs| !verbs.is_empty())
}

fn annotation() -> Form<'static, SmolStr> {
    let read = |key: &str| label_key_faults(key).is_empty().then(|| SmolStr::new(key));
    let allowed = "the key of an annotation, such as example.com/reported-by";
    Form::of_text(values::mixed(), allowed, read, |key| key.as_str().into())
}

fn components() -> Form<'static, BTreeMap<SmolStr, Vec<Pattern>>> {
    let component = |Entry { key, node, .. }: &Entry| {
        let account = key.strip_prefix(SERVICE_ACCOUNT).and_then(|account| account.split_once(':'));
        let is_account = account.is_some_and(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
        let patterns = values::patterns().read(&node.value).filter(|_| is_account)?;
        Some((SmolStr::new(key), patterns))
    };
    let allowed = "names of service accounts, such as system:serviceaccount:shop:controller, each with a list of components, \
        with * only at the end";
    let read = move |value: &Value| {
        let Value::Map(entries) = value else { return None };
        entries.iter().map(component).collect()
    };
    let write = |components: &BTreeMap<SmolStr, Vec<Pattern>>| {
        components.iter().map(|(account, known)| (account.to_string(), values::patterns().write(known))).collect()
    };
    Form::new(json!({}), allowed, read, write)
}

/// Reads `limits`: a list, or the whole configuration file of the EventRateLimit plugin.
pub(super) fn limits(section: &mut Section<'_>, limits: &mut Vec<Limit>) {
    if let Some(Node { value: Value::Map(_), .. }) = section.find("limits") {
        section.within("limits", |section| plugin(section, limits));
    } else {
        list(section, limits);
    }
    let text = json!({ "type": "string" });
    let members = json!({ "apiVersion": text, "kind": text, "limits": { "type": "array" } });
    let plugin = json!({ "type": ["array", "object", "null"], "additionalProperties": false, "properties": members });
    section.extend_schema("limits", plugin);
}

/// Reads the configuration file of the EventRateLimit plugin.
pub(super) fn plugin(section: &mut Section<'_>, limits: &mut Vec<Limit>) {
    section.given("apiVersion", &values::choice(&[("eventratelimit.admission.k8s.io/v1alpha1", ())]));
    section.given("kind", &values::choice(&[("Configuration", ())]));
    list(section, limits);
}

fn list(section: &mut Section<'_>, limits: &mut Vec<Limit>) {
    let mut read = limits.iter().copied().map(Some).collect();
    section.each("limits", LIMITS_MAX, &mut read, &None, limit);
    *limits = read.into_iter().flatten().collect();
}

fn limit(section: &mut Section<'_>, limit: &mut Option<Limit>) {
    let kinds = Kind::ALL.map(|kind| (kind.label(), kind));
    let (mut kind, mut qps, mut burst) = (limit.map(|l| l.kind), limit.map(|l| l.qps), limit.map(|l| l.burst));
    let rate = || values::whole(NonZeroU32::MIN..=RATE_MAX);
    section.set_optional("type", &mut kind, &values::choice(&kinds));
    section.set_optional("qps", &mut qps, &rate());
    section.set_optional("burst", &mut burst, &rate());
    let mut cache_size = limit.map_or(CACHE_SIZE, |limit| limit.cache_size).get();
    section.set("cacheSize", &mut cache_size, &values::whole(0..=CACHE_MAX));
    // As in the plugin, whose file works unchanged.
    let cache_size = NonZeroUsize::new(cache_size).unwrap_or(CACHE_SIZE);
    if !["type", "qps", "burst"].iter().all(|key| section.has(key)) {
        section.conflict("", "a limit needs type, qps and burst; allowed: with all three");
    }
    *limit = kind.zip(qps.zip(burst)).map(|(kind, (qps, burst))| Limit { kind, qps, burst, cache_size });
}

pub(super) fn fairness(section: &mut Section<'_>, fairness: &mut Fairness) {
    section.set("maxInFlight", &mut fairness.max_in_flight, &values::positive(1_000_000));
    section.set("callerPercent", &mut fairness.caller_percent, &values::whole(1..=100));
    section.set("maxWaiting", &mut fairness.max_waiting, &values::whole(0..=1_000_000));
}
