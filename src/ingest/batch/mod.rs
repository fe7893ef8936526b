//! `POST /eventweir/v1/events`: many events in one request, for tools that are no Kubernetes client.
//!
//! NDJSON is read as it comes: one result line an event, in order, in bounded memory. A JSON array or an EventList is read
//! whole, up to the size of a body. Each event meets the same rules as in a POST of its own; what a client is to wait for
//! (`Eventweir-Ack`) is waited for once for some hundred events that have arrived by then.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod results;
mod sniff;

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt as _;
use smol_str::SmolStr;
use tokio::sync::mpsc;

use self::results::{failure, success};
use self::sniff::{group_of, is_document};
use super::asked::Asked;
use super::{Ack, Face, ack, create, decode};
use crate::correlator::Policy;
use crate::event::json::{self, Many, Strictness};
use crate::event::{ApiGroup, LentEvent, managed_fields};
use crate::ledger::RejectReason;
use crate::shard::{Accepted, Fate, Full, Waiting};
use crate::status::Status;

/// LIMIT: chunks of results that wait for a slow reader; then no more of its request is read.
const RESULTS: usize = 16;

/// LIMIT: bytes of a chunk of results, but for its last line.
const CHUNK_BYTES: usize = 64 << 10;

/// LIMIT: events that are answered together, so that what is known of each until then takes a bounded room.
const PIECE: usize = 512;

/// LIMIT: events of a batch that are decoded before they are accepted: so few that they stay in the processor's cache. Those whose shard
/// was locked wait for the next ([`Together`](crate::shard::Together)).
const TOGETHER: usize = 64;

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

/// What the event log is told of an event that was read.
type Read<'t> = Result<Option<Box<LentEvent<'t>>>, Box<Status>>;

/// What was done with an event, and the wait for the upstream.
type Answered = Result<(Accepted, Option<Waiting>), Full>;

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
                    let beginning = self.joined(data);
                    whole = is_document(&beginning);
                    if whole == Some(false) {
                        self.take_lines(&beginning).await
                    } else {
                        self.buffer = beginning.into();
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
        } else {
            let _last = self.take_texts(std::iter::once(rest.as_slice()), ApiGroup::Core).await;
        }
    }

    /// What has been read, with `data`. Copied only where it came in several pieces.
    fn joined(&mut self, data: Bytes) -> Bytes {
        if self.buffer.is_empty() {
            return data;
        }
        let mut joined = std::mem::take(&mut self.buffer);
        joined.extend_from_slice(&data);
        joined.into()
    }

    /// Takes the lines that are complete with `data`. Only the one that is not yet is copied.
    async fn take_lines(&mut self, data: &[u8]) -> Flow {
        let complete = memchr::memrchr(b'\n', data).map_or(0, |end| end.saturating_add(1));
        let (lines, rest) = data.split_at_checked(complete).unwrap_or_default();
        if lines.is_empty() {
            self.buffer.extend_from_slice(rest);
            return Flow::Continue(());
        }
        let mut first = std::mem::take(&mut self.buffer);
        let (end, mut others) = split_line(lines);
        first.extend_from_slice(end);
        // One after the other, so that each is still in the processor's cache when it is decoded.
        let others = std::iter::from_fn(|| {
            if others.is_empty() {
                return None;
            }
            let (line, rest) = split_line(others);
            others = rest;
            Some(line)
        });
        let flow = self.take_texts(std::iter::once(first.as_slice()).chain(others), ApiGroup::Core).await;
        first.clear();
        first.extend_from_slice(rest);
        self.buffer = first;
        flow
    }

    /// Takes the items of an array or an `EventList`.
    async fn take_document(&mut self, text: &[u8]) {
        match Many::read(text) {
            Ok(Many { group, items }) => {
                let _last = self.take_texts(items, group.unwrap_or(ApiGroup::Core)).await;
            }
            Err(fault) => {
                let message = format!("neither an array nor an EventList: {fault}");
                self.refuse_rest(RejectReason::Malformed, &Status::bad_request(message)).await;
            }
        }
    }

    /// Takes events, of this group where they do not say themselves, and answers: some, then some more.
    async fn take_texts<'t>(&mut self, texts: impl Iterator<Item = &'t [u8]> + Send, group: ApiGroup) -> Flow {
        let mut texts = texts.filter(|text| !text.trim_ascii().is_empty());
        loop {
            let results = self.take_events(texts.by_ref().take(PIECE), group);
            let is_last = results.len() < PIECE;
            let flow = self.answer(results).await;
            if is_last || flow.is_break() {
                return flow;
            }
        }
    }

    /// Takes events, for which an answer is owed then: a few are decoded, then they are accepted, and so on.
    fn take_events<'t>(&mut self, mut texts: impl Iterator<Item = &'t [u8]>, group: ApiGroup) -> Vec<Taken> {
        let shards = &self.face.0.shards;
        let policy = shards.policy();
        let (mut together, mut awaited) = (shards.together(&policy), Vec::new());
        let mut read = Vec::new();
        loop {
            let mut occurrences = Vec::with_capacity(TOGETHER);
            let before = read.len();
            read.extend(
                texts.by_ref().take(TOGETHER).map(|text| self.read_next(text, group, &policy, &mut occurrences)),
            );
            if read.len() == before {
                break;
            }
            match self.ack {
                Ack::Accepted | Ack::Durable => together.accept(&mut occurrences),
                Ack::Written => {
                    awaited
                        .extend(occurrences.into_iter().map(|event| shards.accept_and_wait(event.kept(), 1, &policy)));
                }
            }
        }
        let accepted = together.finish().into_iter().map(|taken| taken.map(|accepted| (accepted, None)));
        self.tell(read, accepted.chain(awaited))
    }

    /// Says of each event that was read what was done with it.
    fn tell(&mut self, read: Vec<Read<'_>>, mut accepted: impl Iterator<Item = Answered>) -> Vec<Taken> {
        let mut outcomes = Vec::with_capacity(read.len());
        let mut results = Vec::with_capacity(read.len());
        for read in read {
            self.number = self.number.saturating_add(1);
            let result = read.and_then(|logged| {
                // As many as were read.
                let taken = accepted.next().unwrap_or(Err(Full));
                let (accepted, waiting) =
                    taken.map_err(|full| Box::new(Status::too_many_requests(full.to_string(), 1)))?;
                self.face.log(logged.as_deref(), 1, accepted.outcome);
                outcomes.push(accepted.outcome);
                Ok((accepted, waiting))
            });
            results.push(Taken { number: self.number, result });
        }
        self.face.0.metrics.count_outcomes(outcomes.into_iter());
        results
    }

    /// Reads an event, and appends it if there is one.
    fn read_next<'t>(
        &self,
        text: &'t [u8],
        group: ApiGroup,
        policy: &Policy,
        events: &mut Vec<LentEvent<'t>>,
    ) -> Read<'t> {
        // In its place, because it is large.
        events.push(LentEvent::default());
        let read = events.last_mut().map_or(Ok(None), |event| self.read_event(text, group, policy, event));
        if read.is_err() {
            events.pop();
        }
        read
    }

    /// Reads an event into an empty one; it will be accepted under these rules.
    fn read_event<'t>(
        &self,
        text: &'t [u8],
        otherwise: ApiGroup,
        policy: &Policy,
        event: &mut LentEvent<'t>,
    ) -> Read<'t> {
        let face = &self.face;
        let reject = |(reason, status): decode::Refusal| {
            face.0.shards.reject(reason, 1);
            status
        };
        let group = group_of(text, otherwise);
        json::decode_into(group, text, Strictness::Report, event)
            .map_err(|error| reject((RejectReason::Malformed, Box::new(error.status))))?;
        if event.metadata.namespace.is_empty() {
            event.metadata.namespace = "default".into();
        }
        let namespace = event.metadata.namespace.clone();
        create::admit(face, group, &namespace, event).map_err(reject)?;
        let logged = face.0.event_log.is_kept().then(|| Box::new(event.clone()));
        create::make_occurrence(policy.correlates(event), event, || managed_fields::claim(&self.manager));
        Ok(logged)
    }

    /// Waits until what was taken is as safe as its client wants it, and says what became of it.
    async fn answer(&self, taken: Vec<Taken>) -> Flow {
        if taken.is_empty() {
            return Flow::Continue(());
        }
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
            if lines.len() >= CHUNK_BYTES && self.send(std::mem::take(&mut lines)).await.is_break() {
                return Flow::Break(());
            }
        }
        if lines.is_empty() { Flow::Continue(()) } else { self.send(lines).await }
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

/// The first line, without its end, and what comes after it.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let (line, rest) = memchr::memchr(b'\n', text).and_then(|end| text.split_at_checked(end)).unwrap_or((text, &[]));
    (line, rest.get(1..).unwrap_or_default())
}
