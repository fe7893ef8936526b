//! Questions to the apiserver and their answers: TokenReview (`authentication.k8s.io/v1`), whose token it is, and
//! SubjectAccessReview (`authorization.k8s.io/v1`), whether a caller may do what it asks.

use std::sync::atomic::{AtomicU16, Ordering};

use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use serde::Deserialize as _;
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::attributes::{Attributes, Target};
use super::cache::Unanswered;
use super::caller::Caller;
use crate::event::cut;
use crate::status::Status;

/// LIMIT: bytes of a refusal's reason, which is cached, and of a message in the log; the rest is cut.
const REASON_BYTES_MAX: usize = 1024;

labelled! {
    /// Kind of question to the apiserver.
    pub enum Review {
        /// The user of a token: TokenReview.
        Token = "token",
        /// Whether a caller may do what it asks: SubjectAccessReview.
        Access = "access",
    }
}

impl Review {
    /// Returns the path of the resource in the apiserver.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Token => "/apis/authentication.k8s.io/v1/tokenreviews",
            Self::Access => "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        }
    }
}

/// Answer of a SubjectAccessReview.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Decision {
    pub(super) allowed: bool,
    /// Reason in the authoriser's words; often empty.
    pub(super) reason: SmolStr,
}

/// The failure of a review, for the log, and the reason for which there is no answer.
pub(super) type NoAnswer = (Status, Unanswered);

/// Returns the failure of a review whose answer is none, such as an object of another kind.
#[expect(clippy::needless_pass_by_value, reason = "the signature that map_err asks for")]
fn unreadable(fault: serde_json::Error) -> NoAnswer {
    // The position of the fault, not the text.
    tracing::debug!(line = fault.line(), column = fault.column(), "a review's answer cannot be read");
    (Status::new(502, "BadGateway", "the answer cannot be read"), Unanswered::Fault)
}

/// Builds a TokenReview.
pub(super) fn token_question(token: &str, audiences: &[SmolStr]) -> Value {
    let mut spec = json!({ "token": token });
    if !audiences.is_empty() {
        spec["audiences"] = audiences.iter().map(SmolStr::as_str).collect();
    }
    json!({ "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": spec })
}

/// Returns the caller in the answer; `None` if the token is not valid, or not for any of the audiences.
///
/// # Errors
/// When it is not an answer.
pub(super) fn caller(answer: Value, audiences: &[SmolStr]) -> Result<Option<Caller>, NoAnswer> {
    let status = TokenReview::deserialize(answer).map_err(unreadable)?.status.unwrap_or_default();
    let (caller, granted) = (Caller::from(status.user.unwrap_or_default()), status.audiences.unwrap_or_default());
    let is_meant = audiences.is_empty() || audiences.iter().any(|ours| granted.iter().any(|other| ours == other));
    if status.authenticated != Some(true) || !is_meant || caller.name.is_empty() {
        return Ok(None);
    }
    Ok(Some(caller.authenticated()))
}

/// Builds a SubjectAccessReview.
pub(super) fn access_question(caller: &Caller, attributes: &Attributes) -> Value {
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

/// Returns the decision in the answer. Without an explicit permission it is a refusal.
///
/// # Errors
/// When it is not an answer, or an authoriser has failed: the apiserver itself then answers 500 to a request
/// (`endpoints/filters/authorization.go`). RBAC names missing roles in the reason only. After a denial with an error,
/// as of a webhook with `failurePolicy: Deny`, expired answers are not used either.
pub(super) fn decision(answer: Value) -> Result<Decision, NoAnswer> {
    let status = SubjectAccessReview::deserialize(answer).map_err(unreadable)?.status.unwrap_or_default();
    let is_denied = status.denied == Some(true);
    let allowed = status.allowed && !is_denied;
    if !allowed && status.evaluation_error.is_some_and(|error| !error.is_empty()) {
        let failure = Status::new(500, "EvaluationError", "an authoriser of the API server has failed");
        return Err((failure, if is_denied { Unanswered::Fault } else { Unanswered::Unevaluated }));
    }
    // Only a refusal shows it.
    let reason = status.reason.filter(|_| !allowed).unwrap_or_default();
    Ok(Decision { allowed, reason: cut(&reason, REASON_BYTES_MAX) })
}

/// Logs the failure of a review once, and a missing right also after another failure.
pub(super) fn log_failure(review: Review, failure: &Status, token: Option<&str>, logged: &AtomicU16) {
    let Status { code, reason, message, .. } = failure;
    let (last, review) = (logged.load(Ordering::Relaxed), review.label());
    if *code == 403 && last != 403 {
        // The right is checked before the question is read, but another server between may repeat the token.
        let message = if token.is_some_and(|token| message.contains(token)) { "" } else { message };
        let message = &*cut(message, REASON_BYTES_MAX);
        tracing::warn!(
            review,
            code,
            reason,
            ?message,
            "eventweir may not ask the API server for reviews; bind its user to system:auth-delegator"
        );
    } else if last == 0 {
        // Without the message, which may repeat the question.
        tracing::warn!(review, code, reason, "the API server does not answer reviews");
    } else {
        return;
    }
    logged.store(*code, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_review_names_caller_and_object() {
        let mut caller = Caller { name: "x".into(), uid: "u".into(), groups: vec!["g".into()], ..Caller::default() };
        caller.extra.insert("k".to_owned(), vec!["v".to_owned()]);
        let review = access_question(&caller, &Attributes::to_create("events.k8s.io", "shop"));
        let expected = json!({
            "user": "x", "uid": "u", "groups": ["g"], "extra": { "k": ["v"] },
            "resourceAttributes": {
                "verb": "create", "version": "v1", "resource": "events", "group": "events.k8s.io", "namespace": "shop",
            },
        });
        assert_eq!(review["spec"], expected);
        let path = Attributes { verb: "get".into(), target: Target::Path("/version".into()) };
        let review = access_question(&Caller { name: "x".into(), ..Caller::default() }, &path);
        let expected = json!({ "user": "x", "nonResourceAttributes": { "verb": "get", "path": "/version" } });
        assert_eq!(review["spec"], expected);
    }

    #[test]
    fn only_an_explicit_permission_allows() {
        let allowed = |answer: Value| decision(answer).map(|decision| decision.allowed).unwrap();
        assert!(allowed(json!({ "status": { "allowed": true, "reason": "r" } })));
        assert!(!allowed(json!({ "status": { "allowed": true, "denied": true } })));
        assert!(!allowed(json!({ "status": {} })) && !allowed(json!({})));
        assert!(decision(json!({ "status": { "allowed": "yes" } })).is_err());
        // Another object, and contradictions.
        for kind in ["SelfSubjectAccessReview", "Status"] {
            assert!(decision(json!({ "kind": kind, "status": { "allowed": true } })).is_err());
        }
        assert!(!allowed(json!({ "status": { "allowed": false, "evaluationError": "" } })));
        // Another authoriser may have allowed it.
        assert!(allowed(json!({ "status": { "allowed": true, "evaluationError": "e" } })));
        for (denied, expected) in [(false, Unanswered::Unevaluated), (true, Unanswered::Fault)] {
            let fault = decision(json!({ "status": { "denied": denied, "evaluationError": "e" } })).unwrap_err();
            assert_eq!(fault.1, expected, "{denied}");
        }
    }

    /// Fault: the cache of 100,000 decisions kept reasons of any length.
    #[test]
    fn a_reason_is_kept_for_refusals_and_cut() {
        let reason = |allowed: bool| {
            decision(json!({ "status": { "allowed": allowed, "reason": "r".repeat(4 << 20) } })).unwrap().reason.len()
        };
        assert_eq!((reason(true), reason(false)), (0, REASON_BYTES_MAX));
    }

    #[test]
    fn a_token_review_names_audiences_and_its_answer_the_caller() {
        let spec = |audiences: &[SmolStr]| token_question("t", audiences)["spec"].clone();
        assert_eq!(spec(&[]), json!({ "token": "t" }));
        assert_eq!(spec(&["a".into()]), json!({ "token": "t", "audiences": ["a"] }));
        let answer = |status: Value| json!({ "kind": "TokenReview", "status": status });
        let user =
            json!({ "username": "system:serviceaccount:a:b", "uid": "u", "groups": ["g"], "extra": { "k": ["v"] } });
        let ours = [SmolStr::new("eventweir")];
        let known = answer(json!({ "authenticated": true, "user": user, "audiences": ["eventweir"] }));
        let of = |answer: Value, audiences: &[SmolStr]| caller(answer, audiences).unwrap();
        let expected = of(known.clone(), &ours).unwrap();
        assert_eq!((expected.name.as_str(), expected.uid.as_str()), ("system:serviceaccount:a:b", "u"));
        assert_eq!(expected.groups, ["g", "system:authenticated"]);
        assert_eq!(expected.extra["k"], ["v"]);
        assert_eq!(of(known.clone(), &[]), Some(expected));
        assert_eq!(of(known, &[SmolStr::new("another")]), None);
        // An authenticator that does not know audiences confirms none.
        assert_eq!(of(answer(json!({ "authenticated": true, "user": user })), &ours), None);
        assert_eq!(of(answer(json!({ "user": user, "error": "expired" })), &[]), None);
        assert_eq!(of(answer(json!({ "authenticated": true, "user": { "username": "" } })), &[]), None);
        assert_eq!(of(json!({}), &[]), None);
        assert!(caller(json!({ "status": 1 }), &[]).is_err());
        // Another object, and an answer without a user. An error beside a user is ignored, as by the apiserver.
        assert!(caller(json!({ "kind": "Status", "status": { "authenticated": true, "user": user } }), &[]).is_err());
        assert_eq!(of(answer(json!({ "authenticated": true })), &[]), None);
        assert!(of(answer(json!({ "authenticated": true, "user": user, "error": "e" })), &[]).is_some());
        assert!(
            caller(answer(json!({ "authenticated": true, "user": { "username": "x", "groups": 1 } })), &[]).is_err()
        );
    }
}
