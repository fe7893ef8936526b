//! Plays one recorded case against a program of its own, with a clock that only the case moves.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use eventweir::event::{Event, Time};
use eventweir::upstream::DeleteOptions;
use eventweir::upstream::store::{Namespaces, Settings, Store};
use futures_util::future::join_all;
use http::Version;
use serde_json::Value;

use super::case;
use super::client::{Answer, Asked};
use super::compare::{Known, Order, watch_event};
use super::differences::ABSENT_HEADERS;
use super::program::Program;

/// 933 days after the recorded events: `2y203d`.
const NOW: &str = "2026-11-20T15:00:00Z";
/// The headers that every recording has.
const ALWAYS_SHOWN: [&str; 9] = [
    "Content-Type",
    "Content-Encoding",
    "Vary",
    "Retry-After",
    "Www-Authenticate",
    "Allow",
    "Location",
    "Etag",
    "Transfer-Encoding",
];
/// Longer than any watch of a case, and shorter than any TTL.
const END_OF_WATCHES: Duration = Duration::from_secs(15);

/// Starts the program of this configuration; `namespace` exists in its store.
pub(crate) async fn start(yaml: &str, namespace: Option<&str>, ttl: Option<u64>) -> Program {
    let namespaces = Namespaces::List(namespace.into_iter().map(Into::into).collect());
    let wall = Time::parse(NOW).unwrap().0 * 1_000_000_000;
    Program::start(yaml, wall, |settings, _clock| {
        let ttl = ttl.map_or(settings.ttl, Duration::from_secs);
        // Some recorded requests name a version that is too large; it would not be in a store that is started now.
        Store::new(Settings { namespaces, ttl, ..settings }, 1)
    })
    .await
}

/// Plays a case and returns its first difference.
pub(crate) async fn play(yaml: &str, correlates: bool, case: &Value) -> Result<(), String> {
    let steps = case["steps"].as_array().unwrap();
    let ttl = steps.iter().any(|step| step["server"] == "ttl").then_some(4);
    let program = start(yaml, case["namespace"].as_str(), ttl).await;
    // Other cases preceded the recorded one: no version of a case is the first of the store.
    program.embedded.access(|store, now| {
        for number in 0..3 {
            let mut event = Event::default();
            event.metadata.namespace = "kube-system".into();
            event.metadata.name = format!("e{number}").into();
            store.create(event, now).unwrap();
            store.delete("kube-system", &format!("e{number}"), &DeleteOptions::default(), now).unwrap();
        }
    });
    let mut player = Player { program, known: Known::new(correlates), correlates };
    let mut result = Ok(());
    for (index, step) in steps.iter().enumerate() {
        result = player.step(step).await.map_err(|fault| format!("step {index}: {fault}"));
        if result.is_err() {
            break;
        }
    }
    player.program.app.stop().await;
    result
}

struct Player {
    program: Program,
    known: Known,
    correlates: bool,
}

impl Player {
    async fn step(&mut self, step: &Value) -> Result<(), String> {
        if let Some(action) = step["action"].as_str() {
            self.act(action);
            return Ok(());
        }
        let (request, response) = (&step["request"], &step["response"]);
        let mut answer = match step["burst"].as_u64() {
            Some(copies) => self.burst(step, copies).await?,
            None => Answer::of(self.program.app.address(), &self.asked(step, 0)).await?,
        };
        if response["status"] != answer.status {
            // Also ends a watch that was opened by mistake.
            self.program.clock.advance(Duration::from_hours(2));
            let rest = answer.rest().await?;
            let rest: String = String::from_utf8_lossy(&rest).chars().take(2000).collect();
            let wanted = ["status", "body", "bodyText"].map(|name| response[name].to_string()).join(" ");
            return Err(format!("{} instead of {wanted}\n    {rest}", answer.status));
        }
        self.head(response, &answer)?;
        // A PUT or an apply states the whole event and is not an occurrence.
        let states = request["method"] == "PUT" || request["headers"]["Content-Type"] == "application/apply-patch+yaml";
        self.known.expect_records(self.correlates && !states);
        let frames = response["frames"].as_array().cloned().unwrap_or_default();
        // A GET of one event ignores `watch`: its only "frame" is the event.
        let is_stream = !response["endedBy"].is_null()
            && frames.iter().all(|frame| frame["object"].is_object() || frame["base64"].is_string());
        if !is_stream {
            return self.body(response.get("body").or(frames.first()), response, &mut answer).await;
        }
        for step in step["during"].as_array().into_iter().flatten() {
            Box::pin(self.step(step)).await.map_err(|fault| format!("during: {fault}"))?;
        }
        self.stream(&frames, answer).await
    }

    fn act(&self, action: &str) {
        if action == "compact" {
            return self.program.embedded.access(|store, _| store.compact());
        }
        let time = action.strip_prefix("sleep-").unwrap();
        let time = match time.strip_suffix("ms") {
            Some(millis) => Duration::from_millis(millis.parse().unwrap()),
            None => Duration::from_secs(time.strip_suffix('s').unwrap().parse().unwrap()),
        };
        self.program.clock.advance(time);
    }

    /// Returns the request; `number` is its index in a burst.
    fn asked(&self, step: &Value, number: usize) -> Asked {
        let request = &step["request"];
        let mut target = request["path"].as_str().unwrap().to_owned();
        if let Some(query) = request["query"].as_str() {
            target = format!("{target}?{query}");
        }
        let given = request["headers"].as_object().unwrap().iter();
        let mut headers: Vec<(String, String)> =
            given.map(|(name, value)| (name.clone(), self.known.fill(value.as_str().unwrap()))).collect();
        if !headers.iter().any(|(name, _)| name == "User-Agent") {
            headers.push(("User-Agent".to_owned(), "golden-client/1.0".to_owned()));
        }
        let user = step["as"].as_str().unwrap();
        if user != "anonymous" && !headers.iter().any(|(name, _)| name == "Authorization") {
            headers.push(("Authorization".to_owned(), format!("Bearer {user}-token")));
        }
        Asked {
            method: request["method"].as_str().unwrap().to_owned(),
            target: self.known.fill(&target),
            headers,
            body: case::body(request, |text| self.known.fill(text), number),
            http1: request["proto"] == "HTTP/1.1",
        }
    }

    /// Sends copies at once. Returns the first refusal, or the last answer if there is none.
    async fn burst(&self, step: &Value, copies: u64) -> Result<Answer, String> {
        let address = self.program.app.address();
        let asked: Vec<Asked> = (0..usize::try_from(copies).unwrap()).map(|number| self.asked(step, number)).collect();
        let answers = join_all(asked.iter().map(|asked| Answer::of(address, asked))).await;
        let mut answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        let shown = answers.iter().position(|answer| answer.status >= 400).unwrap_or(answers.len() - 1);
        Ok(answers.swap_remove(shown))
    }

    fn head(&mut self, response: &Value, answer: &Answer) -> Result<(), String> {
        let recorded = response["headers"].as_object().unwrap();
        for (name, value) in
            recorded.iter().filter(|(name, _)| !ABSENT_HEADERS.iter().any(|(absent, _)| absent == name))
        {
            let given = answer.header(name).ok_or_else(|| format!("{name} is missing"))?;
            self.known.text(value.as_str().unwrap(), given).map_err(|fault| format!("{name}: {fault}"))?;
        }
        for name in ALWAYS_SHOWN.iter().filter(|name| !recorded.contains_key(**name)) {
            if let Some(given) = answer.header(name) {
                return Err(format!("{name}: {given} is too much"));
            }
        }
        let warnings: Vec<&str> = answer.headers.get_all("Warning").iter().map(|text| text.to_str().unwrap()).collect();
        let recorded: Vec<&str> =
            response["warnings"].as_array().into_iter().flatten().map(|text| text.as_str().unwrap()).collect();
        if warnings != recorded {
            return Err(format!("warnings {warnings:?} instead of {recorded:?}"));
        }
        let version = if answer.version == Version::HTTP_2 { "HTTP/2.0" } else { "HTTP/1.1" };
        match response["proto"].as_str() {
            Some(proto) if proto != version => Err(format!("over {version}")),
            _ => Ok(()),
        }
    }

    async fn body(&mut self, document: Option<&Value>, response: &Value, answer: &mut Answer) -> Result<(), String> {
        let mut bytes = answer.rest().await?;
        if answer.header("Content-Encoding") == Some("gzip") {
            let packed = std::mem::take(&mut bytes);
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut bytes).unwrap();
        }
        if response["decoded"].is_object() {
            return self.known.protobuf(&response["decoded"], &bytes);
        }
        let text = String::from_utf8(bytes).map_err(|error| error.to_string())?;
        if let Some(expected) = response["bodyText"].as_str() {
            return match answer.header("Content-Type") {
                Some("application/yaml") => self.known.yaml(expected, &text),
                _ => self.known.answer_text(expected, &text),
            };
        }
        let Some(document) = document else {
            return if text.is_empty() { Ok(()) } else { Err(format!("{text:?} is too much")) };
        };
        let given: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text:?}"))?;
        if response["filter"] == "paths" {
            let all = given["paths"].as_array().unwrap();
            let missing = document["paths"].as_array().unwrap().iter().find(|path| !all.contains(path));
            return missing.map_or(Ok(()), |path| Err(format!("{path} is missing")));
        }
        // A refusal for an unacceptable Accept is indented, which the recording does not show.
        if answer.status < 400 && (!text.ends_with('\n') || text.trim_end().contains('\n')) {
            return Err(format!("not one line: {text:?}"));
        }
        let order = if response["filter"].is_null() { Order::Kept } else { Order::Any };
        self.known.document(document, &given, order)
    }

    /// Compares the frames of a watch, and that no more follow.
    async fn stream(&mut self, frames: &[Value], mut answer: Answer) -> Result<(), String> {
        let is_protobuf = answer.header("Content-Type").is_some_and(|value| value.contains("protobuf"));
        for (index, frame) in frames.iter().enumerate() {
            let fault = |fault: String| format!("frame {index}: {fault}");
            let given = if is_protobuf { answer.frame().await? } else { answer.line().await? };
            let given = given.ok_or_else(|| fault("the stream ends before".to_owned()))?;
            if is_protobuf {
                let (label, object) = watch_event(&given).ok_or_else(|| fault("no watch event".to_owned()))?;
                if frame["type"] != label {
                    return Err(fault(format!("{label} instead of {}", frame["type"])));
                }
                self.known.protobuf(&frame["decoded"], &object).map_err(fault)?;
            } else {
                let given = serde_json::from_slice(&given).map_err(|error| fault(error.to_string()))?;
                self.known.document(frame, &given, Order::Kept).map_err(fault)?;
            }
        }
        // Further frames would come before the watch ends at its timeout.
        self.program.clock.advance(END_OF_WATCHES);
        let rest = answer.rest().await?;
        if rest.is_empty() { Ok(()) } else { Err(format!("one frame too much: {}", String::from_utf8_lossy(&rest))) }
    }
}
