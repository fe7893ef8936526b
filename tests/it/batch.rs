//! Batches: NDJSON, an array or an `EventList` in one request, with one result per event and the rules of a POST.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use eventweir::ledger::RejectReason;
use serde_json::{Value, json};

use super::support::app::{start, start_before};
use super::support::fake::{FakeApiserver, Fault};
use super::support::http::{Client, EVENTS, Reply};

const PATH: &str = "/eventweir/v1/events";
const MERGE: &str = "application/merge-patch+json";

fn event(object: &str, message: &str) -> Value {
    json!({
        "metadata": { "namespace": "shop", "generateName": "e-" }, "reason": "R", "message": message, "type": "Normal",
        "involvedObject": { "kind": "Pod", "name": object, "namespace": "shop" }, "source": { "component": "tool" },
    })
}

async fn post(client: &mut Client, body: &str) -> Vec<Value> {
    post_with(client, body, &[]).await
}

async fn post_with(client: &mut Client, body: &str, headers: &[(&str, &str)]) -> Vec<Value> {
    results(&client.send("POST", PATH, headers, body.as_bytes()).await)
}

fn results(reply: &Reply) -> Vec<Value> {
    assert_eq!((reply.status, reply.header("Content-Type")), (200, Some("application/x-ndjson")), "{}", reply.text());
    reply.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn each_line_has_its_result_in_order() {
    let program = start("").await;
    let client = &mut program.client().await;
    let new_style = json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": "n", "namespace": "shop" },
        "regarding": { "kind": "Pod", "name": "p", "namespace": "shop" }, "reason": "R", "note": "m", "type": "Normal",
        "action": "A", "eventTime": "2026-03-01T08:00:00.000000Z", "reportingController": "c", "reportingInstance": "i",
    });
    let mut elsewhere = event("a", "m");
    elsewhere["involvedObject"]["namespace"] = json!("other");
    let lines = [
        event("a", "m").to_string(),
        event("a", "m").to_string(),
        String::new(),
        "{nonsense".to_owned(),
        elsewhere.to_string(),
        new_style.to_string(),
    ];
    let results = post(client, &lines.join("\n")).await;
    let words: Vec<Value> = results
        .iter()
        .map(
            |result| {
                if result["outcome"].is_null() { result["status"]["code"].clone() } else { result["outcome"].clone() }
            },
        )
        .collect();
    assert_eq!(words, [json!("created"), json!("counted"), json!(400), json!(422), json!("created")]);
    assert_eq!(results.iter().map(|result| result["event"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    program.settle().await;
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_rejected(), ledger.total_written()), (5, 2, 3));
}

/// Fault: a batch said nothing of a misspelt member, or of a message that it had cut.
#[tokio::test]
async fn a_line_has_the_warnings_of_a_single_post() {
    let program = start("ingest: {messageBytes: 128}\n").await;
    let client = &mut program.client().await;
    let (mut misspelt, long) = (event("a", "m"), event("b", &"m".repeat(200)));
    (misspelt["reasn"], misspelt["source"]["hosts"]) = (json!("R"), json!("node-1"));
    let mut refused = long.clone();
    (refused["lable"], refused["type"]) = (json!("x"), json!("bad"));
    refused["involvedObject"]["namespace"] = json!("other");
    let lines = [misspelt, long, refused, event("b", "m")].map(|line| line.to_string());
    let mut single = Vec::new();
    for line in &lines {
        let reply = client.send("POST", EVENTS, &[("Content-Type", "application/json")], line.as_bytes()).await;
        let texts = reply.headers("Warning").map(|text| text.strip_prefix("299 - ").unwrap());
        single.push(texts.map(|text| serde_json::from_str(text).unwrap()).collect::<Vec<String>>());
    }
    let results = post(client, &lines.join("\n")).await;
    let warnings = |result: &Value| result["warnings"].as_array().cloned().unwrap_or_default();
    let batch: Vec<_> = results.iter().map(|result| json!(warnings(result))).collect();
    assert_eq!(json!(batch), json!(single));
    assert_eq!(single.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 0], "{single:?}");
    assert!(results[3].get("warnings").is_none());
    program.settle().await;
    program.stop().await;
}

/// Fault: the events of a batch have one time, and with it the combined records of two objects had one name. Those of the
/// second object were shown in the event of the first.
#[tokio::test]
async fn combined_records_of_objects_with_one_name_are_two_events() {
    let program = start("").await;
    let client = &mut program.client().await;
    let kinds = ["Deployment", "Service"];
    for message in 0..12 {
        let lines = kinds.map(|kind| {
            let mut event = event("web", &format!("message {message}"));
            event["involvedObject"]["kind"] = json!(kind);
            event.to_string()
        });
        post(client, &lines.join("\n")).await;
    }
    program.settle().await;
    let list: Value = client.send("GET", EVENTS, &[], b"").await.json();
    let is_combined = |event: &&Value| event["message"].as_str().unwrap().starts_with("(combined");
    let shown = list["items"].as_array().unwrap().iter().filter(is_combined);
    let shown = shown.map(|event| (event["involvedObject"]["kind"].as_str().unwrap(), event["count"].as_u64()));
    let mut shown: Vec<_> = shown.collect();
    shown.sort_unstable();
    assert_eq!(shown, kinds.map(|kind| (kind, Some(3))));
    program.stop().await;
}

#[tokio::test]
async fn durable_lines_are_answered_after_their_commit() {
    let folder = tempfile::tempdir().unwrap();
    let (spool, copy) = (folder.path().join("spool"), folder.path().join("copy"));
    // Only the waiting client triggers a commit.
    let yaml = |dir| format!("spool: {{dir: {dir:?}, commitInterval: 1m}}\nshutdown: {{drainTimeout: 0s}}\n");
    let fake = FakeApiserver::manual();
    fake.set_up(false);
    let program = start_before(&fake, &yaml(&spool)).await;
    let client = &mut program.client().await;
    let lines = format!("{}\n{{nonsense\n{}\n{}\n", event("a", "m"), event("a", "m"), event("b", "m"));
    let results = post_with(client, &lines, &[("Eventweir-Ack", "durable")]).await;
    let reached: Vec<&Value> = results.iter().map(|result| &result["ack"]).collect();
    assert_eq!(reached, [&json!("durable"), &Value::Null, &json!("durable"), &json!("durable")], "{results:?}");
    assert_eq!(post(client, &event("c", "m").to_string()).await[0]["ack"], "accepted");
    // The state after a crash.
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(spool.join("spool.redb"), copy.join("spool.redb")).unwrap();
    program.app.stop().await;
    fake.set_up(true);
    let program = start_before(&fake, &yaml(&copy)).await;
    program.settle().await;
    assert_eq!((fake.shown(), fake.events().len()), (3, 2));
    program.stop().await;
}

#[tokio::test]
async fn written_lines_are_answered_with_the_upstreams_answer() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "ingest: {ack: written}\ncorrelation: {burstSize: 1, qps: 0}\nshards: 1\n").await;
    let client = &mut program.client().await;
    fake.plan(|seen| if seen.object == "bad" { Fault::Before(422) } else { Fault::None });
    let mut other = event("a", "m");
    other["reason"] = json!("Other");
    let lines = format!("{}\n{}\n", event("a", "m"), event("bad", "m"));
    let results = post(client, &lines).await;
    assert_eq!((&results[0]["ack"], &results[1]["status"]["code"]), (&json!("written"), &json!(422)), "{results:?}");
    let deferred = &post(client, &other.to_string()).await[0];
    assert_eq!((&deferred["ack"], &deferred["outcome"]), (&json!("accepted"), &json!("deferred")));
    assert_eq!(fake.shown(), 1);
    program.stop().await;
}

/// Fault: each counted as a whole, or from the total of the client's last request of its own.
#[tokio::test]
async fn totals_of_one_name_count_by_their_growth() {
    let fake = FakeApiserver::manual();
    let program = start_before(&fake, "").await;
    let client = &mut program.client().await;
    let named = |name: &str, count: i32| {
        let mut event = event(name, "m");
        (event["metadata"], event["count"]) = (json!({ "namespace": "shop", "name": name }), json!(count));
        event.to_string()
    };
    post(client, &format!("{}\n{}\n", named("a", 3), named("a", 5))).await;
    let reply = client.send("POST", EVENTS, &[], named("b", 2).as_bytes()).await;
    assert_eq!(reply.status, 201, "{}", reply.text());
    for total in [5, 6] {
        post(client, &named("b", total)).await;
    }
    let reply = client.send("PATCH", &format!("{EVENTS}/b"), &[("Content-Type", MERGE)], br#"{"count": 9}"#).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(program.stop().await.ledger.received(), 5 + 9);
    assert_eq!(fake.shown(), 5 + 9);
}

#[tokio::test]
async fn a_batch_with_an_unavailable_acknowledgement_is_refused_as_a_whole() {
    let program = start("").await;
    let body = event("a", "m").to_string();
    let reply = program.client().await.send("POST", PATH, &[("Eventweir-Ack", "durable")], body.as_bytes()).await;
    assert_eq!(reply.status, 400);
    // Fault: the events of a dry run were counted and written.
    let reply = program.client().await.send("POST", &format!("{PATH}?dryRun=All"), &[], body.as_bytes()).await;
    assert_eq!(
        (reply.status, reply.json()["message"].as_str()),
        (400, Some("dryRun: a batch has no dry run; post one event"))
    );
    // Fault: a manager that the upstream refuses was accepted, and the events were lost.
    let manager = "m".repeat(129);
    let reply =
        program.client().await.send("POST", &format!("{PATH}?fieldManager={manager}"), &[], body.as_bytes()).await;
    assert_eq!((reply.status, &reply.json()["details"]["causes"][0]["field"]), (422, &json!("fieldManager")));
    assert_eq!(program.stop().await.ledger.total_written(), 0);
}

#[tokio::test]
async fn each_event_follows_the_rules_of_a_single_post() {
    let program = start("").await;
    let client = &mut program.client().await;
    let mut unknown = event("a", "m");
    unknown["colour"] = json!("red");
    let strict =
        client.send("POST", &format!("{PATH}?fieldValidation=Strict"), &[], unknown.to_string().as_bytes()).await;
    assert_eq!(strict.json()["status"]["code"], 400, "{}", strict.text());
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "controller": true});
    let mut owned = event("a", "m");
    owned["metadata"]["ownerReferences"] = json!([owner, owner]);
    let results = post(client, &owned.to_string()).await;
    assert!(results[0]["warnings"][0].as_str().unwrap().ends_with("duplicate UID(s) observed: 1"), "{results:?}");
    program.settle().await;
    let stored = &program.stored().await[0];
    assert_eq!(stored.metadata.rare.as_ref().unwrap().owner_references.len(), 1);
    program.stop().await;
}

/// Fault: the refusal of an event of 45 KiB took 2 MiB of memory and of the answer.
#[tokio::test]
async fn a_refusal_in_a_batch_is_short() {
    let program = start("").await;
    let mut many = event("a", "m");
    for number in 0..11 {
        let key = format!("{number}{}/{}", "\u{7f}".repeat(2048), "\u{7f}".repeat(2048));
        many["metadata"]["labels"][key] = json!("v");
    }
    let results = post(&mut program.client().await, &many.to_string()).await;
    let status = &results[0]["status"];
    assert_eq!((&status["code"], &status["details"]["causes"][0]["field"]), (&json!(422), &json!("metadata.labels")));
    let length = results[0].to_string().len();
    assert!(length < 24 << 10, "{length}");
    program.stop().await;
}

#[tokio::test]
async fn arrays_and_lists_are_accepted_and_ten_thousand_lines_are_streamed() {
    let program = start("").await;
    let client = &mut program.client().await;
    let array = json!([event("a", "m"), event("a", "m")]);
    assert_eq!(post(client, &array.to_string()).await.len(), 2);
    let list = json!({ "kind": "EventList", "apiVersion": "v1", "items": [event("a", "m")] });
    assert_eq!(post(client, &list.to_string()).await.len(), 1);
    assert_eq!(post(client, &serde_json::to_string_pretty(&list).unwrap()).await.len(), 1);
    let line = event("a", "m").to_string() + "\n";
    // Larger than the limit of a body, because it is streamed.
    let results = post(client, &line.repeat(20_000)).await;
    assert_eq!(results.len(), 20_000);
    program.settle().await;
    assert_eq!(program.stored().await[0].count, 20_004);
    program.stop().await;
}

#[tokio::test]
async fn a_batch_is_equal_however_it_is_chunked() {
    let program = start("").await;
    let client = &mut program.client().await;
    let (one, other) = (event("a", "m"), event("b", "m"));
    let list = json!({ "kind": "EventList", "items": [one, other] });
    let bodies = [
        format!("{one}\n{other}\n"),
        format!("\r\n{one}\r\n\r\n{other}"),
        json!([one, other]).to_string(),
        list.to_string(),
        serde_json::to_string_pretty(&list).unwrap(),
    ];
    for body in bodies {
        assert_eq!(post(client, &body).await.len(), 2, "{body}");
        for size in [1, 2, 7, 100] {
            let (first, rest) = body.as_bytes().split_at(1);
            let reply = client.post_pieces(PATH, std::iter::once(first).chain(rest.chunks(size))).await;
            let taken = results(&reply).iter().filter(|result| result["outcome"] == "counted").count();
            assert_eq!(taken, 2, "{body} by {size}: {}", reply.text());
        }
    }
    let ledger = program.stop().await.ledger;
    assert_eq!((ledger.received(), ledger.total_rejected()), (50, 0));
}

#[tokio::test]
async fn items_of_a_list_have_its_group_unless_they_name_another() {
    let program = start("").await;
    let client = &mut program.client().await;
    // As from a typed client: only the list has kind and version.
    let new_style = json!({
        "metadata": { "namespace": "shop", "name": "n.1" }, "reason": "R", "note": "a note", "type": "Normal",
        "regarding": { "kind": "Pod", "name": "a", "namespace": "shop" }, "action": "A", "eventTime": "2026-03-01T08:00:30.000000Z",
        "reportingController": "tool", "reportingInstance": "tool-1",
    });
    // An item that is of another group by its members has that one.
    let mut other = new_style.clone();
    (other["metadata"]["name"], other["note"]) = (json!("n.2"), json!("another note"));
    for (version, items) in
        [("events.k8s.io/v1", json!([new_style, event("b", "m")])), ("v1", json!([event("b", "m"), other]))]
    {
        let list = json!({ "kind": "EventList", "apiVersion": version, "items": items });
        let results = post(client, &list.to_string()).await;
        assert!(results.iter().all(|result| result["outcome"] != Value::Null), "{results:?}");
    }
    program.settle().await;
    let mut stored = program.stored().await;
    stored.sort_by(|one, other| one.message.cmp(&other.message));
    let shown: Vec<_> =
        stored.iter().map(|event| (&*event.message, &*event.involved_object.name, event.count)).collect();
    assert_eq!(shown, [("a note", "a", 1), ("another note", "a", 1), ("m", "b", 2)]);
    assert_eq!(post(client, r#"{"kind":"EventList","apiVersion":"v1","items":null}"#).await.len(), 0);
    program.stop().await;
}

#[tokio::test]
async fn a_bad_item_does_not_reject_the_others() {
    let program = start("").await;
    let client = &mut program.client().await;
    let odd = |member: &str| event("a", "MESSAGE").to_string().replacen('{', &format!("{{{member},"), 1);
    let deep = format!("\"unknown\":{}{}", "[".repeat(200), "]".repeat(200));
    let items =
        [odd(r#""unknown":1e999"#), odd(&deep), odd(r#""note":"\ud83d""#), "7".to_owned(), event("a", "m").to_string()];
    let mut body = format!("[{}]", items.join(",")).into_bytes();
    // Invalid UTF-8 is replaced as by Go.
    let at = body.windows(7).position(|window| window == b"MESSAGE").unwrap();
    body[at] = 0xe9;
    let results = results(&client.send("POST", PATH, &[], &body).await);
    let taken: Vec<bool> = results.iter().map(|result| result["outcome"] != Value::Null).collect();
    assert_eq!(taken, [true, true, true, false, true], "{results:?}");
    assert_eq!(results[3]["status"]["code"], 400);
    let none = post(client, r#"{"kind":"EventList"}"#).await;
    assert_eq!(none[0]["status"]["message"], "neither an array nor an EventList: there are no items");
    program.settle().await;
    program.stop().await;
}

#[tokio::test]
async fn an_endless_line_and_a_full_outbox_are_refused_and_the_rest_is_accepted() {
    let program =
        start("ingest: {maxBodyBytes: 2048}\noutbox: {maxRecords: 1, coalesceInterval: 1h}\nshards: 1\n").await;
    let client = &mut program.client().await;
    let lines = format!("{}\n{}\n{}\n", event("a", "m"), event("b", "m"), event("a", "m"));
    let results = post(client, &lines).await;
    assert_eq!((&results[0]["outcome"], &results[1]["status"]["code"]), (&json!("created"), &json!(429)));
    assert_eq!(results[2]["outcome"], "counted", "repeats of known records are always taken");
    let endless = format!("{}\n{}", event("a", "m"), "x".repeat(5000));
    let results = post(client, &endless).await;
    assert_eq!((&results[0]["outcome"], &results[1]["status"]["code"]), (&json!("counted"), &json!(413)));
    assert_eq!(program.balance().ledger.rejected(RejectReason::TooLarge), 1);
    program.stop().await;
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused_from_there() {
    let program = start("").await;
    let line = format!("{}\n", event("a", "m"));
    let broken = format!("{:x}\r\n{line}\r\nno length\r\n", line.len());
    let chunked = [("Transfer-Encoding", "chunked")];
    let results = results(&program.client().await.send("POST", PATH, &chunked, broken.as_bytes()).await);
    assert_eq!((&results[0]["outcome"], &results[1]["status"]["code"]), (&json!("created"), &json!(400)));
    assert_eq!(program.balance().ledger.rejected(RejectReason::Unread), 1);
    program.stop().await;
}

#[tokio::test]
async fn a_line_for_which_all_bodies_leave_no_room_is_refused() {
    use tokio::io::AsyncWriteExt as _;
    let program = start("ingest: {maxBodyBytes: 4096, maxReadBytes: 4096}\n").await;
    // Two lines whose ends do not arrive take all that two bodies may have.
    let begun = format!("POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4096\r\n\r\n{}", "x".repeat(4000));
    let mut others = Vec::new();
    for number in 1..=2 {
        let mut other = tokio::net::TcpStream::connect(program.app.address()).await.unwrap();
        other.write_all(begun.as_bytes()).await.unwrap();
        program.until_metric("eventweir_ingest_read_bytes", |bytes| bytes >= f64::from(number) * 4000.0).await;
        others.push(other);
    }
    let mut client = program.client().await;
    let lines = format!("{}\n{}", event("a", "m"), "x".repeat(1000));
    let results = post(&mut client, &lines).await;
    assert_eq!((&results[0]["outcome"], &results[1]["status"]["code"]), (&json!("created"), &json!(429)));
    assert_eq!(program.balance().ledger.rejected(RejectReason::Limited), 1);
    drop(others);
    program.until_metric("eventweir_ingest_read_bytes", |bytes| bytes == 0.0).await;
    program.stop().await;
}

/// Fault: a list on one line was taken for a line if its kind followed its items, or had a space before it.
#[tokio::test]
async fn a_list_on_one_line_is_a_list_in_any_order_of_its_members() {
    let program = start("").await;
    let client = &mut program.client().await;
    let items = format!(r#""items":[{},{}]"#, event("a", "m"), event("b", "m"));
    for list in [
        format!(r#"{{{items},"kind":"List","apiVersion":"v1"}}"#),
        format!(r#"{{"kind": "List", {items}}}"#),
        format!(r#"{{"metadata":{{}},{items}}}"#),
    ] {
        let results = post(client, &list).await;
        let taken = results.iter().filter(|result| result["outcome"] != Value::Null).count();
        assert_eq!((results.len(), taken), (2, 2), "{list}: {results:?}");
    }
    program.settle().await;
    program.stop().await;
}
