//! `POST /eventweir/v1/events`: many events in one request, for tools that are no Kubernetes client.
//!
//! NDJSON is read as it comes: one result line an event, in order, in bounded memory. A JSON array or an EventList is read
//! whole, up to the size of a body. Each event meets the same rules as in a POST of its own; what a client is to wait for
//! (`Eventweir-Ack`) is waited for once for all events that have arrived by then.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::sync::LazyLock;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use memchr::memmem::Finder;
use smol_str::SmolStr;
use tokio::sync::mpsc;

use super::asked::Asked;
use super::{Ack, Face, ack, create, decode};
use crate::event::json::{self, Strictness};
use crate::event::{ApiGroup, managed_fields};
use crate::ledger::RejectReason;
use crate::shard::{Accepted, Fate, Outcome, Waiting};
use crate::status::Status;

/// LIMIT: chunks of results that wait for a slow reader; then no more of its request is read.
const RESULTS: usize = 16;

/// LIMIT: bytes of a batch that are looked at to tell what it is.
const LOOK_BYTES: usize = 4096;

/// About how many bytes the result of an event takes that was taken.
const LINE_BYTES: usize = 64;

/// `POST /eventweir/v1/events`
pub(super) async fn batch(State(face): State<Face>, asked: Asked, body: Body) -> Response {
    let ack = match ack::wanted(&face, &asked.headers) {
        Ok(ack) => ack,
        Err((reason, status)) => return face.reject(reason, &status),
    };
    let (results, mut lines) = mpsc::channel::<Bytes>(RESULTS);
    let (reader, manager) = (face.clone(), asked.writer().manager);
    // The answer begins while the request is still being read; a client that reads no results stops us from reading on.
    let task = async move {
        let mut batch = Batch { face: reader, ack, manager, number: 0, buffer: Vec::new(), results };
        batch.run(body).await;
    };
    face.0.tasks.spawn(task);
    let stream = futures_util::stream::poll_fn(move |context| {
        lines.poll_recv(context).map(|line| line.map(Ok::<_, std::convert::Infallible>))
    });
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(stream)).into_response()
}

/// A batch that is being read.
struct Batch {
    face: Face,
    /// What the client wants to wait for.
    ack: Ack,
    /// In whose name events are stored that are not correlated.
    manager: SmolStr,
    /// Events so far.
    number: u64,
    /// What has been read of the line that is not complete yet. LIMIT: the size of a body.
    buffer: Vec<u8>,
    results: mpsc::Sender<Bytes>,
}

/// One event of a batch.
struct Taken {
    /// Its place in the batch, from 1.
    number: u64,
    /// What was done with it, and the wait for the upstream.
    result: Result<(Accepted, Option<Waiting>), Box<Status>>,
}

/// Whether to go on.
type Flow = std::ops::ControlFlow<()>;

impl Batch {
    async fn run(&mut self, mut body: Body) {
        let mut whole: Option<bool> = None;
        loop {
            let frame = match tokio::time::timeout(self.face.0.settings.request_timeout, body.frame()).await {
                Ok(Some(Ok(frame))) => frame,
                Ok(None) => break,
                Ok(Some(Err(_))) | Err(_) => {
                    self.refuse_rest(
                        RejectReason::Unread,
                        &Status::bad_request("the body could not be read to its end"),
                    )
                    .await;
                    return;
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            let flow = match whole {
                Some(false) => self.take_lines(&data).await,
                Some(true) => {
                    self.buffer.extend_from_slice(&data);
                    Flow::Continue(())
                }
                None => {
                    self.buffer.extend_from_slice(&data);
                    whole = is_document(&self.buffer);
                    if whole == Some(false) {
                        let beginning = std::mem::take(&mut self.buffer);
                        self.take_lines(&beginning).await
                    } else {
                        Flow::Continue(())
                    }
                }
            };
            if flow.is_break() {
                return;
            }
            if self.buffer.len() > self.face.0.settings.max_body_bytes {
                let message = format!("Request entity too large: limit is {}", self.face.0.settings.max_body_bytes);
                self.refuse_rest(RejectReason::TooLarge, &Status::new(413, "RequestEntityTooLarge", message)).await;
                return;
            }
        }
        let rest = std::mem::take(&mut self.buffer);
        if whole == Some(true) {
            self.take_document(&rest).await;
        } else if !rest.trim_ascii().is_empty() {
            let result = self.take_event(&rest);
            let _last = self.answer(vec![result]).await;
        }
    }

    /// Takes the lines that are complete with `data`. Only the one that is not yet is copied.
    async fn take_lines(&mut self, data: &[u8]) -> Flow {
        let (mut rest, mut results) = (data, Vec::new());
        while let Some((line, after)) = memchr::memchr(b'\n', rest).and_then(|end| rest.split_at_checked(end)) {
            let mut begun = std::mem::take(&mut self.buffer);
            let line = if begun.is_empty() {
                line
            } else {
                begun.extend_from_slice(line);
                &begun
            };
            if !line.trim_ascii().is_empty() {
                results.push(self.take_event(line));
            }
            rest = after.get(1..).unwrap_or_default();
        }
        self.buffer.extend_from_slice(rest);
        if results.is_empty() { Flow::Continue(()) } else { self.answer(results).await }
    }

    /// Takes the items of an array or an `EventList`.
    async fn take_document(&mut self, text: &[u8]) {
        let document: Result<Document, _> = serde_json::from_slice(text);
        let items = match document {
            Ok(Document::Array(items) | Document::List { items }) => items,
            Err(error) => {
                self.refuse_rest(
                    RejectReason::Malformed,
                    &Status::bad_request(format!("neither an array nor an EventList: {error}")),
                )
                .await;
                return;
            }
        };
        let results: Vec<_> = items.iter().map(|item| self.take_event(item.to_string().as_bytes())).collect();
        let _last = self.answer(results).await;
    }

    /// Takes one event.
    fn take_event(&mut self, text: &[u8]) -> Taken {
        self.number = self.number.saturating_add(1);
        Taken { number: self.number, result: self.try_event(text) }
    }

    fn try_event(&self, text: &[u8]) -> Result<(Accepted, Option<Waiting>), Box<Status>> {
        let face = &self.face;
        let reject = |(reason, status): decode::Refusal| {
            face.0.shards.reject(reason, 1);
            status
        };
        let group = group_of(text);
        let decoded = json::decode(group, text, Strictness::Report);
        let mut event = decoded.map_err(|error| reject((RejectReason::Malformed, Box::new(error.status))))?.event;
        if event.metadata.namespace.is_empty() {
            event.metadata.namespace = "default".into();
        }
        let namespace = event.metadata.namespace.clone();
        create::admit(face, group, &namespace, &mut event).map_err(reject)?;
        let logged = face.0.event_log.is_kept().then(|| event.clone());
        let occurrence = if face.0.shards.correlates(&event) {
            create::as_occurrence(event)
        } else {
            event.metadata.managed_fields = managed_fields::claim(&self.manager, group);
            event
        };
        let taken = match self.ack {
            Ack::Accepted | Ack::Durable => face.0.shards.accept(occurrence, 1).map(|accepted| (accepted, None)),
            Ack::Written => face.0.shards.accept_and_wait(occurrence, 1),
        };
        let (accepted, waiting) = taken.map_err(|full| Box::new(Status::too_many_requests(full.to_string(), 1)))?;
        match logged {
            Some(event) => face.note(&event, 1, accepted.outcome),
            None => face.0.metrics.count_outcome(accepted.outcome, 1),
        }
        Ok((accepted, waiting))
    }

    /// Waits until what was taken is as safe as its client wants it, and says what became of it.
    async fn answer(&self, taken: Vec<Taken>) -> Flow {
        let is_taken = taken.iter().any(|taken| taken.result.is_ok());
        let unkept = if is_taken { ack::kept(&self.face, self.ack).await } else { None };
        // LIMIT: one request's time for all of them; a client that has waited so long is told that it has not been so far.
        let mut patience = std::pin::pin!(tokio::time::sleep(self.face.0.settings.request_timeout));
        let mut lines = Vec::with_capacity(taken.len().saturating_mul(LINE_BYTES));
        for Taken { number, result } in taken {
            match result {
                Ok((accepted, waiting)) => {
                    let fate = match waiting {
                        Some(mut waiting) => tokio::select! {
                            biased;
                            fate = waiting.fate() => fate,
                            () = &mut patience => None,
                        },
                        None => None,
                    };
                    if let Some(Fate::Refused(refusal)) = fate {
                        failure(number, &refusal.status, &mut lines);
                    } else {
                        let reached = match self.ack {
                            Ack::Written if fate.is_some() => "written",
                            Ack::Durable if unkept.is_none() => "durable",
                            Ack::Accepted | Ack::Durable | Ack::Written => "accepted",
                        };
                        success(number, accepted.outcome, reached, &mut lines);
                    }
                }
                Err(status) => failure(number, &status, &mut lines),
            }
        }
        self.send(lines).await
    }

    /// Refuses what is left of a request that cannot be read on.
    async fn refuse_rest(&mut self, reason: RejectReason, status: &Status) {
        self.number = self.number.saturating_add(1);
        self.face.0.shards.reject(reason, 1);
        let mut line = Vec::new();
        failure(self.number, status, &mut line);
        let _last = self.send(line).await;
    }

    /// Sends result lines; a client that has gone away ends the batch.
    async fn send(&self, lines: Vec<u8>) -> Flow {
        let patience: Duration = self.face.0.settings.request_timeout;
        match tokio::time::timeout(patience, self.results.send(lines.into())).await {
            Ok(Ok(())) => Flow::Continue(()),
            Ok(Err(_)) | Err(_) => Flow::Break(()),
        }
    }
}

/// A body that is not NDJSON.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Document {
    Array(Vec<serde_json::Value>),
    List { items: Vec<serde_json::Value> },
}

/// Whether a body is one document: an array, or an object whose kind is `EventList`; `None` while that cannot be told.
fn is_document(beginning: &[u8]) -> Option<bool> {
    let text = beginning.trim_ascii_start();
    let text = text.get(..LOOK_BYTES).unwrap_or(text);
    match text.first()? {
        b'[' => Some(true),
        b'{' => {
            // An EventList by its own word, before its first line is complete or in it.
            let first_line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
            if memchr::memmem::find(first_line, b"\"EventList\"").is_some() {
                return Some(true);
            }
            // A pretty-printed document opens with a brace alone.
            if first_line.trim_ascii() == b"{" {
                return Some(true);
            }
            (text.contains(&b'\n') || text.len() == LOOK_BYTES).then_some(false)
        }
        _ => Some(false),
    }
}

/// Which group an event says it is of; core/v1 where it says nothing.
fn group_of(text: &[u8]) -> ApiGroup {
    static EVENTS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"events.k8s.io/v1\""));
    static OLD_STYLE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"involvedObject\""));
    if EVENTS.find(text).is_some() && OLD_STYLE.find(text).is_none() { ApiGroup::Events } else { ApiGroup::Core }
}

/// Appends the result of an event that was taken.
fn success(number: u64, outcome: Outcome, reached: &str, lines: &mut Vec<u8>) {
    head(number, lines);
    for part in ["\"outcome\":\"", outcome.label(), "\",\"ack\":\"", reached, "\"}\n"] {
        lines.extend_from_slice(part.as_bytes());
    }
}

/// Appends the result of an event that was refused.
fn failure(number: u64, status: &Status, lines: &mut Vec<u8>) {
    head(number, lines);
    lines.extend_from_slice(b"\"status\":");
    lines.extend_from_slice(&status.to_json());
    lines.extend_from_slice(b"}\n");
}

/// The beginning of a result.
fn head(number: u64, lines: &mut Vec<u8>) {
    lines.extend_from_slice(b"{\"event\":");
    lines.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    lines.push(b',');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn results_are_json() {
        let mut lines = Vec::new();
        success(7, Outcome::Counted, "durable", &mut lines);
        let status = Status::not_found("", "namespaces", "a\"<\u{2028}\n");
        failure(u64::MAX, &status, &mut lines);
        let document: Value = serde_json::from_slice(&status.to_json()).unwrap();
        let expected = [
            json!({ "event": 7, "outcome": "counted", "ack": "durable" }),
            json!({ "event": u64::MAX, "status": document }),
        ];
        assert_eq!(String::from_utf8(lines).unwrap(), expected.map(|line| format!("{line}\n")).concat());
    }

    #[test]
    fn groups_are_told_by_what_an_event_names() {
        let check = |text: &str, group: ApiGroup| assert_eq!(group_of(text.as_bytes()), group, "{text}");
        check("{}", ApiGroup::Core);
        check(r#"{"apiVersion":"events.k8s.io/v1"}"#, ApiGroup::Events);
        check(r#"{"apiVersion":"events.k8s.io/v1","involvedObject":{}}"#, ApiGroup::Core);
        check(r#"{"note":"events.k8s.io/v1 "}"#, ApiGroup::Core);
    }

    #[test]
    fn documents_are_told_from_lines_by_their_beginning() {
        for (beginning, document) in [
            ("  [", Some(true)),
            (r#"{"kind":"EventList","items":["#, Some(true)),
            ("{\n  \"kind\": \"EventList\"", Some(true)),
            ("{\"reason\":\"R\"}\n", Some(false)),
            (r#"{"reason":"R"}"#, None),
            ("", None),
            ("x", Some(false)),
        ] {
            assert_eq!(is_document(beginning.as_bytes()), document, "{beginning}");
        }
    }
}
