//! TokenReview: the question whose token it is (`authentication.k8s.io/v1`).

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};
use smol_str::SmolStr;

use super::caller::Caller;

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    authenticated: bool,
    user: User,
    audiences: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct User {
    username: String,
    uid: String,
    // LIMIT: here and below an answer, which is read up to a limit of bytes.
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// The question.
pub(super) fn question(token: &str, audiences: &[SmolStr]) -> Value {
    let mut spec = json!({ "token": token });
    if !audiences.is_empty() {
        spec["audiences"] = audiences.iter().map(SmolStr::as_str).collect();
    }
    json!({ "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": spec })
}

/// The caller that the answer names; `None` when the token is not valid, or not meant for any of the audiences.
///
/// # Errors
/// When it is no answer.
pub(super) fn caller(answer: Value, audiences: &[SmolStr]) -> Result<Option<Caller>, serde_json::Error> {
    let Review { status } = serde_json::from_value(answer)?;
    let is_meant =
        audiences.is_empty() || audiences.iter().any(|audience| status.audiences.iter().any(|other| audience == other));
    if !status.authenticated || !is_meant || status.user.username.is_empty() {
        return Ok(None);
    }
    let User { username, uid, groups, extra } = status.user;
    let groups = groups.into_iter().map(SmolStr::from).collect();
    Ok(Some(Caller { name: username.into(), uid: uid.into(), groups, extra }.authenticated()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_name_callers() {
        let answer = |status: Value| json!({ "kind": "TokenReview", "status": status });
        let user =
            json!({ "username": "system:serviceaccount:a:b", "uid": "u", "groups": ["g"], "extra": { "k": ["v"] } });
        let ours = [SmolStr::new("eventweir")];
        let known = answer(json!({ "authenticated": true, "user": user, "audiences": ["eventweir"] }));
        let caller = caller(known.clone(), &ours).unwrap().unwrap();
        assert_eq!((caller.name.as_str(), caller.uid.as_str()), ("system:serviceaccount:a:b", "u"));
        assert_eq!(caller.groups, ["g", "system:authenticated"]);
        assert_eq!(caller.extra["k"], ["v"]);
        let of = |answer: Value, audiences: &[SmolStr]| super::caller(answer, audiences).unwrap();
        assert_eq!(of(known.clone(), &[]), Some(caller));
        assert_eq!(of(known, &[SmolStr::new("another")]), None);
        // An authenticator that does not know audiences vouches for none.
        assert_eq!(of(answer(json!({ "authenticated": true, "user": user })), &ours), None);
        assert_eq!(of(answer(json!({ "user": user, "error": "expired" })), &[]), None);
        assert_eq!(of(answer(json!({ "authenticated": true, "user": { "username": "" } })), &[]), None);
        assert_eq!(of(json!({}), &[]), None);
        assert!(super::caller(json!({ "status": 1 }), &[]).is_err());
    }

    #[test]
    fn questions_name_audiences() {
        let spec = |audiences: &[SmolStr]| question("t", audiences)["spec"].clone();
        assert_eq!(spec(&[]), json!({ "token": "t" }));
        assert_eq!(spec(&["a".into()]), json!({ "token": "t", "audiences": ["a"] }));
    }
}
