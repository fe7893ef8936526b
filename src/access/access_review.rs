//! SubjectAccessReview: the question whether a caller may (`authorization.k8s.io/v1`).

use serde::Deserialize;
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::attributes::{Attributes, Target};
use super::caller::Caller;

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Decision {
    pub(super) allowed: bool,
    /// Why, in the authoriser's words; often empty.
    pub(super) reason: SmolStr,
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    allowed: bool,
    denied: bool,
    reason: String,
}

/// The question.
pub(super) fn question(caller: &Caller, attributes: &Attributes) -> Value {
    let mut spec = json!({ "user": caller.name.as_str() });
    if !caller.uid.is_empty() {
        spec["uid"] = caller.uid.as_str().into();
    }
    if !caller.groups.is_empty() {
        spec["groups"] = caller.groups.iter().map(SmolStr::as_str).collect();
    }
    if !caller.extra.is_empty() {
        spec["extra"] = json!(caller.extra);
    }
    let verb = attributes.verb.as_str();
    match &attributes.target {
        Target::Resource { group, resource, namespace, name } => {
            let mut resource = json!({ "verb": verb, "version": "v1", "resource": resource });
            for (member, value) in [("group", *group), ("namespace", namespace), ("name", name)] {
                if !value.is_empty() {
                    resource[member] = value.into();
                }
            }
            spec["resourceAttributes"] = resource;
        }
        Target::Path(path) => spec["nonResourceAttributes"] = json!({ "verb": verb, "path": path.as_str() }),
    }
    json!({ "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec })
}

/// The decision in an answer.
///
/// # Errors
/// When it is no answer.
pub(super) fn decision(answer: Value) -> Result<Decision, serde_json::Error> {
    let Review { status: Status { allowed, denied, reason } } = serde_json::from_value(answer)?;
    Ok(Decision { allowed: allowed && !denied, reason: reason.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_name_caller_and_object() {
        let mut caller = Caller { name: "x".into(), uid: "u".into(), groups: vec!["g".into()], ..Caller::default() };
        caller.extra.insert("k".to_owned(), vec!["v".to_owned()]);
        let review = question(&caller, &Attributes::to_create("events.k8s.io", "shop"));
        let expected = json!({
            "user": "x", "uid": "u", "groups": ["g"], "extra": { "k": ["v"] },
            "resourceAttributes": {
                "verb": "create", "version": "v1", "resource": "events", "group": "events.k8s.io", "namespace": "shop",
            },
        });
        assert_eq!(review["spec"], expected);
        let path = Attributes { verb: "get".into(), target: Target::Path("/version".into()) };
        let review = question(&Caller { name: "x".into(), ..Caller::default() }, &path);
        assert_eq!(
            review["spec"],
            json!({ "user": "x", "nonResourceAttributes": { "verb": "get", "path": "/version" } })
        );
    }

    #[test]
    fn what_is_not_said_is_not_allowed() {
        let allowed = |answer: Value| decision(answer).map(|decision| decision.allowed).unwrap();
        assert!(allowed(json!({ "status": { "allowed": true, "reason": "r" } })));
        assert!(!allowed(json!({ "status": { "allowed": true, "denied": true } })));
        assert!(!allowed(json!({ "status": {} })) && !allowed(json!({})));
        assert!(decision(json!({ "status": { "allowed": "yes" } })).is_err());
    }
}
