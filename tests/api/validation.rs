//! Replays the answers of Kubernetes' own code to creates and updates of Events (`vectors/validation`), over HTTP.
//!
//! `040_event_rate_limit` is not replayed: it records an admission plugin of the apiserver, which eventweir does not have. The
//! correlator's budgets replace it, and refuse no client. Delivery retries the plugin's 429.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use eventweir::event::json;
use serde_json::Value;

use super::PLAIN;
use super::case;
use super::client::{Answer, Asked};
use super::compare::take_messages;
use super::player;

const NOT_OURS: &str = "040_event_rate_limit";
/// Over HTTP, a uid is a precondition, which is checked before the object is validated (`put-uid-*` of the API's vectors).
const PRECONDITION: &str = "core: uid change";

/// The generated name in the recording.
const MADE: &str = "web-0.xxxxx";

/// Returns status and body of the answer to one case.
async fn answer(case: &Value) -> (u16, Value) {
    let namespace = case["namespace"].as_str().unwrap();
    let program = player::start(PLAIN, Some(namespace), None).await;
    let api = case["api"].as_str().unwrap();
    let root = if api == "v1" { "/api/v1".to_owned() } else { format!("/apis/{api}") };
    let mut target = format!("{root}/namespaces/{namespace}/events");
    let is_update = case["verb"] == "update";
    if is_update {
        let old = json::decode_event(case::group_of(&root), case["old"].to_string().as_bytes());
        let mut old = old.unwrap();
        old.metadata.namespace = namespace.into();
        target = format!("{target}/{}", old.metadata.name);
        program.embedded.access(|store, now| store.create(old, now)).unwrap();
    }
    let asked = Asked {
        method: if is_update { "PUT" } else { "POST" }.to_owned(),
        target,
        headers: vec![("Content-Type".to_owned(), "application/json".to_owned())],
        body: case["object"].to_string().into_bytes(),
        http1: false,
    };
    let mut answer = Answer::of(program.app.address(), &asked).await.unwrap();
    let body = answer.rest().await.unwrap();
    program.app.stop().await;
    (answer.status, serde_json::from_slice(&body).unwrap())
}

fn compare(case: &Value, code: u16, body: &Value) -> Result<(), String> {
    let is_as_recorded = match case["outcome"].as_str().unwrap() {
        "ok" => (code == 201) == (case["verb"] == "create") && code / 100 == 2,
        "rejected" => {
            let mut expected = serde_json::json!({ "kind": "Status", "apiVersion": "v1" });
            let members = expected.as_object_mut().unwrap();
            members.extend(case["status"].as_object().unwrap().clone());
            // As texts, to compare the order of members. A generated name ends with random letters.
            let mut given = body.to_string();
            if let Some(made) = body["details"]["name"].as_str().filter(|_| expected["details"]["name"] == MADE) {
                given = given.replace(made, MADE);
            }
            take_messages(&mut expected, &serde_json::from_str(&given).unwrap());
            let wanted = expected.to_string();
            wanted == given && expected["code"] == code
        }
        _undecodable => {
            let is_said = body["message"].as_str().is_some_and(|message| !message.is_empty());
            code == 400 && body["reason"] == "BadRequest" && is_said
        }
    };
    let wanted = || ["outcome", "status", "decodeError"].map(|name| case[name].to_string()).join(" ");
    if is_as_recorded { Ok(()) } else { Err(format!("{}: {code} {body}\n  instead of {}", case["name"], wanted())) }
}

#[tokio::test]
async fn creates_and_updates_are_answered_as_kubernetes_answers_them() {
    let cases: Vec<_> = case::lines("validation")
        .into_iter()
        .filter(|(file, case)| file != NOT_OURS && case.get("outcome").is_some())
        .collect();
    let mut faults = Vec::new();
    for (file, case) in &cases {
        let (code, body) = answer(case).await;
        if case["name"] == PRECONDITION {
            assert_eq!((code, &body["reason"]), (409, &Value::from("Conflict")));
            continue;
        }
        faults.extend(compare(case, code, &body).err().map(|fault| format!("{file}: {fault}")));
    }
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
    assert!(cases.len() >= 150, "only {} cases were found", cases.len());
}
