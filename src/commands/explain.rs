//! `explain` and `tap`: query a running eventweir.

use std::io::Write as _;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use serde_json::Value;

use super::remote::{STRANGER, Server};
use super::report::plural;
use super::{Error, end, print, print_document, printable, runtime, table};
use crate::cli::{Explain, Format, Tap};
use crate::explain::clean;
use crate::upstream::apiserver::cause_of;

/// Most characters of a text in a table.
pub(super) const WIDTH: usize = 60;

/// Most characters of a part of a line that the tap prints.
const LINE_WIDTH: usize = 200;

/// LIMIT: replicas that are asked at the same time.
const AT_ONCE: usize = 16;

/// Pause before the next tap, if the last one ended without a line.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest wait for the next line of a tap. The server sends a ping every 15 s.
const QUIET: Duration = Duration::from_secs(45);

/// Prints the lines of the tap until `time` has passed or Ctrl-C.
pub(super) async fn print_tap(
    server: &Server,
    query: &[(&str, &str)],
    output: Format,
    time: Option<Duration>,
) -> Result<(), Error> {
    tokio::select! {
        () = end(time) => Ok(()),
        ended = follow(server, query, output) => ended,
    }
}

async fn follow(server: &Server, query: &[(&str, &str)], output: Format) -> Result<(), Error> {
    loop {
        let mut body = server.ask("tap", query, "application/x-ndjson").await?.into_body();
        let (mut rest, mut is_empty) = (Vec::new(), true);
        while let Some(frame) = read(&mut body).await.map_err(|why| server.broken(why))? {
            rest.extend_from_slice(&frame);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=end).collect();
                let value: Value = serde_json::from_slice(&line).map_err(|_not_json| server.silent(STRANGER))?;
                is_empty = false;
                match output {
                    Format::Json => print_document(&String::from_utf8_lossy(&line))?,
                    Format::Yaml => print_document(&yaml_document(&value))?,
                    Format::Table => print(&tap_line(&value, LINE_WIDTH).unwrap_or_default())?,
                    Format::Wide => print(&tap_line(&value, usize::MAX).unwrap_or_default())?,
                }
            }
        }
        // The server ends a tap after an hour, and when it stops; another replica may go on.
        if is_empty {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Returns the next part of the stream; `None` at its end. The error says why there is none.
async fn read<B>(body: &mut B) -> Result<Option<Bytes>, String>
where
    B: http_body_util::BodyExt<Data = Bytes> + Unpin,
    B::Error: std::error::Error + 'static,
{
    match tokio::time::timeout(QUIET, body.frame()).await {
        Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
        Ok(Some(Err(error))) => Err(cause_of(&error)),
        Ok(None) => Ok(None),
        Err(_elapsed) => Err(format!("no line within {} s", QUIET.as_secs())),
    }
}

/// Formats a document as one of several in YAML.
fn yaml_document(line: &Value) -> String {
    format!("---\n{}", serde_saphyr::to_string(line).unwrap_or_default())
}

/// Formats a line of the tap with at most `width` characters of each text; `None` for a line that only keeps the
/// connection alive.
fn tap_line(line: &Value, width: usize) -> Option<String> {
    if let Some(skipped) = line["skipped"].as_u64() {
        let why = match line["why"].as_str() {
            Some("max-rate") => "more than --max-rate per second",
            _ => "this reader is slower than the stream",
        };
        return Some(format!("-- {} skipped: {why} --\n", plural(skipped, "line")));
    }
    let text = |member: &str| clean(line[member].as_str().unwrap_or_default(), width);
    let time = text("time");
    let time = time.split_once('T').map(|(_, time)| format!("{}Z", time.get(..12).unwrap_or(time)))?;
    let (verdict, object) = (text("verdict"), format!("{}/{}", text("kind"), text("name")));
    let why = if text("why").is_empty() { String::new() } else { format!("  ({})", text("why")) };
    let number = line["occurrences"].as_u64().filter(|number| *number != 1);
    let number = number.map(|number| format!(" x{number}")).unwrap_or_default();
    let (namespace, reason, source, message) = (text("namespace"), text("reason"), text("source"), text("message"));
    Some(format!("{time} {verdict:<9} {namespace} {object} {reason}{number}  {source}{why}  {message}\n"))
}

/// Runs `explain`.
///
/// # Errors
/// When nothing is known, or the server does not answer.
pub fn explain(explain: &Explain) -> Result<(), Error> {
    let runtime = runtime()?;
    let [source, reason] = [&explain.source, &explain.reason].map(|option| option.as_deref().unwrap_or_default());
    runtime.block_on(async {
        let servers = Server::all(&explain.remote).await?;
        let of_context = servers.first().map(|server| server.namespace().to_owned()).unwrap_or_default();
        let namespace = explain.namespace.as_deref().unwrap_or(&of_context);
        let query = [
            ("object", explain.object.as_deref().unwrap_or_default()),
            ("namespace", namespace),
            ("uid", explain.uid.as_deref().unwrap_or_default()),
            ("event", explain.event.as_deref().unwrap_or_default()),
            ("source", source),
            ("reason", reason),
        ];
        let is_one = servers.len() == 1;
        let (mut answers, silent) = ask_all(servers, &query).await;
        let knows = |(_, document): &(Server, Value)| !document["objects"][0].is_null();
        let is_known = answers.iter().any(knows);
        answers.retain(|answer| !is_known || knows(answer));
        for (server, document) in &answers {
            let name = Some(&*server.name).filter(|_| !is_one);
            let print = if explain.output.is_table() { print } else { print_document };
            print(&shown(name, document.clone(), explain.output))?;
        }
        let Some((server, document)) = answers.first().filter(|_| is_known || explain.follow) else {
            return Err(silent.unwrap_or(Error::NothingKnown));
        };
        if !explain.follow {
            return Ok(());
        }
        let first = &document["objects"][0];
        let object = followed(explain, first).ok_or(Error::NothingKnown)?;
        if !is_one {
            let said = format!("following {} only; --server and --pod choose another one", server.name);
            // A closed standard error is no failure.
            drop(writeln!(std::io::stderr(), "{}", printable(&said)));
        }
        let query = [("namespace", namespace), ("object", &object), ("source", source), ("reason", reason)];
        print_tap(server, &query, explain.output, None).await
    })
}

/// Returns the object whose occurrences `--follow` prints; empty for all of a source. `None` if the object is not known
/// yet, because the tap selects neither by uid nor by an event's name.
fn followed(explain: &Explain, first: &Value) -> Option<String> {
    if explain.object.is_none() && explain.uid.is_none() && explain.event.is_none() {
        return Some(String::new());
    }
    let known = first["kind"].as_str().zip(first["name"].as_str()).map(|(kind, name)| format!("{kind}/{name}"));
    known.or_else(|| explain.object.clone())
}

/// Returns the replicas' answers, and the error of the last one that did not answer.
async fn ask_all(servers: Vec<Server>, query: &[(&str, &str)]) -> (Vec<(Server, Value)>, Option<Error>) {
    let (mut answers, mut silent, is_one) = (Vec::new(), None, servers.len() == 1);
    let asked = servers.into_iter().map(async |server| (server.document("explain", query).await, server));
    let mut asked = pin!(futures_util::stream::iter(asked).buffered(AT_ONCE));
    while let Some((answer, server)) = asked.next().await {
        match answer {
            Ok(document) => answers.push((server, document)),
            // Another replica may know the object.
            Err(error) => {
                if !is_one {
                    drop(writeln!(std::io::stderr(), "{error}"));
                }
                silent = Some(error);
            }
        }
    }
    (answers, silent)
}

/// Formats one answer, with the server's name if there are several.
fn shown(name: Option<&str>, mut document: Value, output: Format) -> String {
    if let Some(name) = name.filter(|_| !output.is_table()) {
        document["server"] = name.into();
    }
    let heading = name.map(|name| format!("{name}\n")).unwrap_or_default();
    match output {
        Format::Json => format!("{document:#}\n"),
        Format::Yaml if name.is_some() => yaml_document(&document),
        Format::Yaml => serde_saphyr::to_string(&document).unwrap_or_default(),
        Format::Table => heading + &explained(&document, WIDTH),
        Format::Wide => heading + &explained(&document, usize::MAX),
    }
}

fn cell(value: &Value, width: usize) -> String {
    match value {
        Value::String(text) => clean(text, width),
        Value::Null => "-".to_owned(),
        Value::Object(members) if members.is_empty() => "0".to_owned(),
        Value::Object(members) => {
            let numbers = members.iter().map(|(name, number)| format!("{} {number}", clean(name, width)));
            numbers.collect::<Vec<_>>().join(", ")
        }
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" / "),
        other => other.to_string(),
    }
}

/// Returns the time of day, which is UTC.
fn time(value: &Value) -> String {
    let text = value.as_str().unwrap_or("-");
    text.split_once('T').map_or(text.to_owned(), |(_, time)| format!("{}Z", time.get(..8).unwrap_or(time)))
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Formats the rate at which a budget gets tokens.
fn refill(seconds_per_token: f64) -> String {
    let rounded = |number: f64| (number * 10.0).round() / 10.0;
    if seconds_per_token > 1.0 {
        format!("one each {} s", rounded(seconds_per_token))
    } else {
        format!("{} per second", rounded(1.0 / seconds_per_token))
    }
}

fn budgets(object: &Value, width: usize) -> String {
    let mut text = String::new();
    for budget in list(&object["budgets"]) {
        // While tokens are left, a write waits for none.
        let has_next = budget["tokens"] == 0 && budget["nextToken"].is_string();
        let next = if has_next { format!(", next {}", time(&budget["nextToken"])) } else { String::new() };
        let refill = budget["secondsPerToken"].as_f64().map_or("never refilled".to_owned(), refill);
        text += &format!(
            "\n  BUDGET   {}\n           {} of {} tokens, {refill}{next}; spent: {}\n",
            clean(&cell(&budget["key"], width), width.max(200)),
            budget["tokens"],
            budget["burst"],
            cell(&budget["spentOn"], width)
        );
    }
    text
}

/// Lists the messages of records that have several, the newest first.
fn messages(object: &Value, width: usize) -> String {
    let mut text = String::new();
    for record in list(&object["records"]) {
        let messages = list(&record["messages"]);
        if messages.len() > 1 {
            text += &format!("\n  MESSAGES of {}, the newest first\n", cell(&record["name"], width));
            let lines = messages.iter().rev().map(|message| format!("  {}\n", cell(message, width)));
            text.extend(lines);
        }
    }
    text
}

/// Formats an answer: the first sentence, then the evidence, then what to do. Cuts texts of the evidence to `width`
/// characters.
pub(super) fn explained(document: &Value, width: usize) -> String {
    let cell = |value: &Value| cell(value, width);
    let mut text = clean(document["answer"]["text"].as_str().unwrap_or_default(), 4000) + "\n";
    for object in list(&document["objects"]) {
        text += &format!("\n{} {}/{}\n", cell(&object["kind"]), cell(&object["namespace"]), cell(&object["name"]));
        let rows = list(&object["reasons"]).into_iter().map(|part| {
            let members =
                ["reason", "type", "source", "caller", "received", "shown", "inSummary", "waiting", "lost", "rejected"];
            let rule = part["rule"].as_u64().map_or("-".to_owned(), |rule| format!("rules[{rule}]"));
            members.into_iter().map(|member| cell(&part[member])).chain([rule, time(&part["lastShown"])]).collect()
        });
        let optional = ["CALLER", "SUMMARY", "REJECTED", "RULE"];
        let headings = [
            "REASON", "TYPE", "SOURCE", "CALLER", "RECEIVED", "SHOWN", "SUMMARY", "WAITING", "LOST", "REJECTED", "RULE",
        ];
        let mut rows = rows.collect::<Vec<Vec<String>>>();
        let headings = table::without_empty(&[&headings[..], &["LAST SHOWN"]].concat(), &optional, &mut rows);
        let texts = headings.iter().position(|heading| *heading == "RECEIVED").unwrap_or(0);
        text += &table::render(usize::MAX, &headings, texts, &rows);
        text += &budgets(&object, width);
        let rows = list(&object["records"]).into_iter().map(|record| {
            let messages = list(&record["messages"]);
            let newest = messages.last().map_or(String::new(), cell);
            let members = ["name", "form", "count", "pending", "state"].map(|member| cell(&record[member]));
            members.into_iter().chain([newest]).collect()
        });
        text += "\n";
        text += &table::render(
            usize::MAX,
            &["RECORD", "FORM", "COUNT", "WAITING", "STATE", "NEWEST MESSAGE"],
            6,
            &rows.collect::<Vec<_>>(),
        );
        text += &messages(&object, width);
        let forgotten = object["forgottenDecisions"].as_u64().unwrap_or_default();
        text += &format!("\n  DECISIONS, the newest first; {} forgotten\n", plural(forgotten, "older one"));
        let rows = list(&object["decisions"]).into_iter().rev().map(|decision| {
            let next = decision["nextToken"].as_str().map(|_| format!("next token {}", time(&decision["nextToken"])));
            let why = next.unwrap_or_else(|| cell(&decision["why"]));
            // A failed try decides about no occurrence.
            let number = decision["occurrences"].as_u64().filter(|number| *number > 0);
            let number = number.map(|number| format!("x{number}")).unwrap_or_default();
            let texts = ["reason", "verdict"].map(|member| cell(&decision[member]));
            [time(&decision["last"])].into_iter().chain(texts).chain([number, why, cell(&decision["text"])]).collect()
        });
        text +=
            &table::render(usize::MAX, &["TIME", "REASON", "VERDICT", "", "WHY", "TEXT"], 6, &rows.collect::<Vec<_>>());
    }
    for stored in list(&document["upstream"]) {
        text += &format!(
            "  {}  {} x{}  {}\n",
            cell(&stored["name"]),
            cell(&stored["reason"]),
            stored["count"],
            cell(&stored["source"])
        );
    }
    match document["answer"]["action"].as_str() {
        Some(action) if !action.is_empty() => text + &format!("\nDO  {action}\n"),
        _ => text,
    }
}

/// Runs `tap`.
///
/// # Errors
/// When the server does not answer.
pub fn tap(tap: &Tap) -> Result<(), Error> {
    let (server, runtime) = Server::of(&tap.remote)?;
    let max_rate = Some(tap.max_rate.to_string());
    let query = [
        ("namespace", &tap.namespace),
        ("object", &tap.object),
        ("reason", &tap.reason),
        ("source", &tap.source),
        ("type", &tap.event_type),
        ("verdict", &tap.verdict),
        ("message", &tap.message),
        ("max-rate", &max_rate),
    ]
    .map(|(key, value)| (key, value.as_deref().unwrap_or_default()));
    runtime.block_on(print_tap(&server, &query, tap.output, tap.time))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_of_events_cannot_control_a_terminal() {
        let document = json!({
            "answer": { "text": "a\u{1b}[2J", "action": "" },
            "objects": [{ "kind": "Pod", "namespace": "shop", "name": "web\u{1b}[31m", "reasons": [], "budgets": [],
                "records": [{ "name": "n", "messages": ["\u{7}\u{202e}"] }], "decisions": [{ "text": "\u{9b}1m" }] }],
        });
        let line = json!({ "time": "2026-03-01T08:00:00.000000Z", "message": "\u{1b}]0;x", "occurrences": 1 });
        for (text, part) in [(explained(&document, WIDTH), "[31m"), (tap_line(&line, WIDTH).unwrap(), "]0;x")] {
            assert!(text.contains(part), "{text}");
            assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}', '\u{9b}']), "{text:?}");
        }
        assert_eq!(tap_line(&json!({ "ping": true }), WIDTH), None);
    }

    /// Fault: only JSON had the messages of a combined record, which the answer promises.
    #[test]
    fn the_messages_of_a_record_that_has_several_are_listed() {
        let records = json!([{ "name": "one", "messages": ["a"] }, { "name": "two", "messages": ["b", "c"] }]);
        let text = explained(&json!({ "objects": [{ "records": records }] }), WIDTH);
        assert!(text.contains("\n\n  MESSAGES of two, the newest first\n  c\n  b\n\n"), "{text}");
        assert!(!text.contains("MESSAGES of one"), "{text}");
    }

    #[test]
    fn an_explanation_has_columns_for_what_there_is() {
        let headings = |part: Value| {
            let text = explained(&json!({ "objects": [{ "reasons": [part] }] }), WIDTH);
            text.lines().nth(3).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let part = json!({ "reason": "BackOff", "received": 3, "inSummary": 0, "rule": null, "rejected": 0 });
        assert_eq!(headings(part), "REASON TYPE SOURCE RECEIVED SHOWN WAITING LOST LAST SHOWN");
        let part = json!({ "reason": "B", "caller": "c", "received": 3, "inSummary": 2, "rule": 0, "rejected": 1 });
        let all = "REASON TYPE SOURCE CALLER RECEIVED SHOWN SUMMARY WAITING LOST REJECTED RULE LAST SHOWN";
        assert_eq!(headings(part), all);
        let text =
            explained(&json!({ "objects": [{ "reasons": [{ "caller": "kubelet" }, { "caller": "zz" }] }] }), WIDTH);
        let column = |name| text.lines().find_map(|line| line.find(name)).unwrap();
        assert_eq!(column("kubelet"), column("zz"), "a text is on the left:\n{text}");
    }

    #[test]
    fn wide_texts_are_not_cut() {
        let document =
            json!({ "objects": [{ "reasons": [{ "reason": "R".repeat(300) }], "budgets": [], "records": [] }] });
        let longest = |output| shown(None, document.clone(), output).split_whitespace().map(str::len).max();
        assert!(longest(Format::Table) < Some(100) && longest(Format::Wide) == Some(300));
    }

    fn explain_of(arguments: &[&str]) -> Explain {
        use clap::Parser as _;
        let cli = crate::cli::Cli::try_parse_from(["eventweir", "explain"].iter().chain(arguments)).unwrap();
        let crate::cli::Command::Explain(explain) = cli.command else { unreachable!() };
        explain
    }

    #[test]
    fn follow_prints_nothing_about_other_objects() {
        let (known, unknown) = (json!({ "kind": "Pod", "name": "a" }), Value::Null);
        for (arguments, first, object) in [
            (["po/a", "--follow"], &known, Some("Pod/a")),
            (["po/a", "--follow"], &unknown, Some("po/a")),
            (["--event=e", "--follow"], &known, Some("Pod/a")),
            (["--event=e", "--follow"], &unknown, None),
            (["--uid=u", "--follow"], &unknown, None),
            (["--source=s", "--follow"], &known, Some("")),
        ] {
            assert_eq!(followed(&explain_of(&arguments), first).as_deref(), object, "{arguments:?} {first}");
        }
    }

    #[test]
    fn a_line_of_the_tap_is_one_yaml_document() {
        assert_eq!(
            yaml_document(&json!({ "verdict": "counted", "occurrences": 2 })),
            "---\nverdict: counted\noccurrences: 2\n"
        );
    }

    #[test]
    fn a_budget_with_tokens_has_no_next_one() {
        let budget = |tokens| json!({ "budgets": [{ "tokens": tokens, "nextToken": "2026-03-01T08:00:00.000000Z" }] });
        assert!(budgets(&budget(0), WIDTH).contains("next 08:00:00Z"));
        assert!(!budgets(&budget(1), WIDTH).contains("next"));
    }

    /// Fault: a budget that is never refilled, or several times in a second, had "one each 0 s".
    #[test]
    fn a_budget_says_how_often_it_is_refilled() {
        for (seconds, said) in [
            (json!(300.0), "one each 300 s"),
            (json!(1.4285715), "one each 1.4 s"),
            (json!(1.0), "1 per second"),
            (json!(0.025), "40 per second"),
            (json!(0.4), "2.5 per second"),
            (Value::Null, "never refilled"),
        ] {
            let text = budgets(&json!({ "budgets": [{ "tokens": 0, "secondsPerToken": seconds }] }), WIDTH);
            assert!(text.contains(&format!(" tokens, {said}")), "{text}");
            assert!(!text.contains("next"), "no token is expected: {text}");
        }
    }

    /// Fault: the tap waited for ever for a server that had stopped to answer.
    #[tokio::test(start_paused = true)]
    async fn a_tap_without_pings_ends() {
        let frames = futures_util::stream::pending::<Result<hyper::body::Frame<Bytes>, std::io::Error>>();
        let mut body = http_body_util::StreamBody::new(frames);
        let ended = tokio::time::timeout(Duration::from_secs(600), read(&mut body)).await.unwrap();
        assert_eq!(ended.unwrap_err(), "no line within 45 s");
    }

    #[test]
    fn lines_that_the_tap_skips_are_counted_with_the_cause() {
        for (why, said) in [("max-rate", "--max-rate"), ("slow", "slower than the stream")] {
            let line = tap_line(&json!({ "skipped": 4, "why": why }), WIDTH).unwrap();
            assert!(line.starts_with("-- 4 lines skipped: ") && line.contains(said), "{line}");
        }
    }
}
