//! `POST /eventweir/v1/events`: many events in one request, for tools that are not Kubernetes clients.
//!
//! NDJSON is processed while it arrives, in bounded memory, with one result line per event, in order. A JSON array or
//! an EventList is read whole, up to the size limit of a body. Each event is checked like a single POST. With
//! `Eventweir-Ack` the batch waits once per piece of up to some hundred events.
#![warn(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

mod results;
mod sniff;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt as _};
use http_body_util::BodyExt as _;
use smol_str::SmolStr;
use tokio::sync::mpsc;
use tower::BoxError;

use self::results::{failure, success};
use self::sniff::{group_of, is_document};
use super::occurrence::Taken;
use super::options::{self, Parameters};
use super::rejection::Rejection;
use super::request_head::RequestHead;
use super::{Ack, Ingest, ack, create, decode, guard, respond};
use crate::access::Caller;
use crate::event::json::{self, Decoded, FieldValidation, Many};
use crate::event::{ApiGroup, Event, managed_fields, validate};
use crate::ledger::RejectReason;
use crate::server::Reading;
use crate::shard::{Full, TicketOutcome};
use crate::status::Status;

/// LIMIT: batches at once, each until its last result is taken; further ones are refused with 429. They may last for
/// long, so they have places of their own, and one of the running requests only while events are taken.
pub(super) const BATCHES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// LIMIT: chunks of results that wait for a slow reader; beyond it, no more of its request is read.
const RESULTS: usize = 2;

/// LIMIT: bytes of a chunk of results, without its last line.
const CHUNK_BYTES: usize = 16 << 10;

/// LIMIT: bytes of the message of an event's refusal, and of all its causes; the rest is cut. A whole refusal may have
/// 2 MiB for an event of 45 KiB, and a batch has many.
const STATUS_BYTES: usize = 4 << 10;

/// LIMIT: events that are decoded, accepted and answered together, which bounds their memory.
const PIECE: usize = 512;

/// As `PIECE`, for `ack: accepted`, where no answer waits: decoded events are still in the CPU's cache when accepted.
const SHORT_PIECE: usize = 32;

/// `POST /eventweir/v1/events`
pub(super) async fn batch(State(ingest): State<Ingest>, head: RequestHead, body: Body) -> Response {
    let ack = match ack::wanted(&ingest, &head.headers) {
        Ok(ack) => ack,
        Err(rejection) => return ingest.reject(&rejection),
    };
    // Otherwise the events of a dry run would be counted and written.
    if Parameters::of(head.query()).all("dryRun").next().is_some() {
        return ingest
            .reject(&Rejection::invalid(Status::bad_request("dryRun: a batch has no dry run; post one event")));
    }
    let validation = match options::of_write("CreateOptions", head.query()) {
        Ok(options) => options.validation,
        Err(status) => return ingest.reject(&Rejection::invalid(status)),
    };
    let Some(place) = ingest.0.batches.take(head.user(), 1).map(Arc::new) else {
        let status = Status::too_many_requests("Too many batches are open, please try again later", 1);
        return ingest.reject(&Rejection::new(RejectReason::Limited, status));
    };
    let until_read = Arc::clone(&place);
    let (results, mut lines) = mpsc::channel::<Bytes>(RESULTS);
    let (reader, manager) = (ingest.clone(), head.manager());
    let reading = Reading::new(ingest.bodies(), head.user().into());
    let caller = head.caller;
    // The answer begins while the request is still being read. If the client reads no results, no more of its request
    // is read.
    let task = async move {
        let (buffer, ended) = (Vec::new(), Ok(()));
        let ingest = reader;
        let mut batch = Batch { ingest, ack, validation, manager, caller, number: 0, buffer, reading, results, ended };
        batch.run(body).await;
        drop(place);
        batch.ended
    };
    let task = ingest.0.shared.tasks.spawn(task);
    let lines = stream::poll_fn(move |context| {
        let _until_all_are_read = &until_read;
        lines.poll_recv(context)
    })
    .map(Ok);
    // After a panic, or without further results, the client must not take the answer for complete.
    let end = stream::once(task).filter_map(async |ended| match ended {
        Ok(ended) => ended.err().map(|fault| Err(BoxError::from(fault))),
        Err(fault) => Some(Err(fault.into())),
    });
    let body = Body::from_stream(lines.chain(end));
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/x-ndjson")], body).into_response()
}

struct Batch {
    ingest: Ingest,
    ack: Ack,
    validation: FieldValidation,
    /// The field manager of events that are not correlated.
    manager: SmolStr,
    /// The caller, if callers are authenticated.
    caller: Option<Caller>,
    /// Number of events so far.
    number: u64,
    /// The incomplete last line. LIMIT: the size limit of a body.
    buffer: Vec<u8>,
    /// Places for the bytes of `buffer`.
    reading: Reading,
    results: mpsc::Sender<Bytes>,
    /// Whether all results could be sent.
    ended: std::result::Result<(), ResultsUnread>,
}

/// Ends the answer to a batch whose results are not read.
#[derive(Debug, thiserror::Error)]
#[error("the results of the batch were not read in time")]
struct ResultsUnread;

/// The result of an event: its acceptance or the refusal, and warnings.
#[derive(Debug)]
struct Result {
    taken: std::result::Result<Taken, Box<Status>>,
    warnings: Vec<String>,
}

/// The refusals of creates that were asked about, by group and namespace; `None` for one that is allowed.
// LIMIT: one per event of a piece.
type Verdicts = HashMap<(ApiGroup, SmolStr), Option<Status>>;

/// Whether to continue.
type Flow = std::ops::ControlFlow<()>;

impl Batch {
    async fn run(&mut self, mut body: Body) {
        let mut whole: Option<bool> = None;
        loop {
            let frame = match tokio::time::timeout(self.ingest.0.settings.request_timeout, body.frame()).await {
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
                    let beginning = joined(std::mem::take(&mut self.buffer), &data);
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
            if self.buffer.len() > self.ingest.0.settings.max_body_bytes.get() {
                let message = format!("Request entity too large: limit is {}", self.ingest.0.settings.max_body_bytes);
                self.refuse_rest(RejectReason::TooLarge, &Status::new(413, "RequestEntityTooLarge", message)).await;
                return;
            }
            if !self.reading.covers(self.buffer.len()) {
                self.refuse_rest(RejectReason::Limited, &decode::no_room()).await;
                return;
            }
            // A batch may last for hours after one long line.
            if self.reading.shrinks(self.buffer.len()) {
                self.buffer.shrink_to_fit();
            }
        }
        let rest = std::mem::take(&mut self.buffer);
        if whole == Some(true) {
            self.take_document(&rest).await;
        } else {
            let _last = self.take_texts(std::iter::once(rest.as_slice()), ApiGroup::Core).await;
        }
    }

    /// Processes the lines that are complete with `data`. Copies only the incomplete one.
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
        // Lazily, so that each line is still in the CPU's cache when it is decoded.
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

    /// Processes the items of an array or an `EventList`.
    async fn take_document(&mut self, text: &[u8]) {
        let json = json::repaired(text);
        match Many::read(&json) {
            Ok(many) => {
                let texts = many.items().map(str::as_bytes);
                let _last = self.take_texts(texts, many.group.unwrap_or(ApiGroup::Core)).await;
            }
            Err(fault) => {
                let message = format!("neither an array nor an EventList: {fault}");
                self.refuse_rest(RejectReason::Malformed, &Status::bad_request(message)).await;
            }
        }
    }

    /// Processes events, of this group unless they state another, and answers them piece by piece.
    async fn take_texts<'t>(&mut self, texts: impl Iterator<Item = &'t [u8]> + Send, group: ApiGroup) -> Flow {
        let mut texts = texts.filter(|text| !text.trim_ascii().is_empty());
        let mut lines = Vec::new();
        let piece = if self.ack == Ack::Accepted { SHORT_PIECE } else { PIECE };
        loop {
            let results = self.take_events(texts.by_ref().take(piece), group).await;
            let is_last = results.len() < piece;
            let flow = self.answer(results, &mut lines).await;
            if flow.is_break() {
                return flow;
            }
            if is_last {
                return if lines.is_empty() { Flow::Continue(()) } else { self.send(lines).await };
            }
        }
    }

    /// Processes a piece of events, in a turn of their own, and returns their results.
    async fn take_events<'t>(&mut self, texts: impl Iterator<Item = &'t [u8]> + Send, group: ApiGroup) -> Vec<Result> {
        let turn = match &self.caller {
            Some(caller) => self.ingest.turn(caller).await.map(Some),
            None => Ok(None),
        };
        let _turn = match turn {
            Ok(turn) => turn,
            Err(status) => {
                let refuse = |_text| Result { taken: Err(Box::new(status.clone())), warnings: Vec::new() };
                let refused: Vec<Result> = texts.map(refuse).collect();
                self.ingest.0.shards.reject(RejectReason::Limited, refused.len() as u64);
                return refused;
            }
        };
        let (mut events, mut read, mut verdicts) = (Vec::new(), Vec::new(), Verdicts::new());
        for text in texts {
            let mut warnings = Vec::new();
            let passed = self.passed(text, group, &mut verdicts, &mut warnings).await;
            let passed = passed.map_err(|rejection| {
                let status = Box::new(rejection.status.cut(STATUS_BYTES));
                Rejection { status, ..rejection }
            });
            read.push((passed.map(|event| events.push(event)), warnings));
        }
        self.ingest.until_listed(&events).await;
        let claim = || managed_fields::claim(&self.manager);
        let user = self.caller.as_ref().map_or("", |caller| &caller.name);
        let mut taken = self.ingest.accept_all(events, self.ack, user, claim).into_iter();
        let mut take = |passed| match passed {
            Ok(()) => {
                // There is one result per decoded event.
                let taken = taken.next().unwrap_or(Err(Full));
                taken.map_err(|full| Box::new(Status::too_many_requests(full.to_string(), 1)))
            }
            Err(Rejection { reason, status, .. }) => {
                self.ingest.0.shards.reject(reason, 1);
                Err(status)
            }
        };
        read.into_iter().map(|(passed, warnings)| Result { taken: take(passed), warnings }).collect()
    }

    /// Decodes an event, of this group unless it states another, and passes it through the checks of a single POST.
    /// Authorizes each namespace once.
    async fn passed(
        &self,
        text: &[u8],
        group: ApiGroup,
        verdicts: &mut Verdicts,
        warnings: &mut Vec<String>,
    ) -> std::result::Result<Event, Rejection> {
        let group = group_of(text, group);
        let decoded = json::decode(group, text, self.validation);
        let decoded = decoded.map_err(|error| Rejection::new(RejectReason::Malformed, error))?;
        let Decoded { mut event, warnings: of_members } = decoded;
        let of_owners = validate::drop_duplicate_owners(&mut event);
        // LIMIT: as many as a header carries.
        *warnings = respond::carried(&of_members.into_iter().chain(of_owners).collect::<Vec<_>>());
        event.default_namespace();
        let (caller, namespace) = (self.caller.as_ref(), event.metadata.namespace.clone());
        if caller.is_some() {
            // A review of any text could be too long for the API server.
            if !validate::namespace_faults(&namespace).is_empty() {
                validate::create(group, &event).map_err(Rejection::invalid)?;
            }
            let verdict = match verdicts.entry((group, namespace.clone())) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(self.ingest.may_create(caller, group, &namespace).await.err()),
            };
            // Not recorded for `explain`: a caller without permission for a namespace leaves no trace in it.
            if let Some(status) = verdict {
                return Err(guard::rejection(status.clone()));
            }
        }
        let passed = create::pass(&self.ingest, caller, group, &namespace, &mut event);
        let repairs = passed.inspect_err(|rejection| self.ingest.note_rejection(&event, 1, rejection))?;
        warnings.extend(repairs.iter().map(|repair| repair.warning().to_owned()));
        Ok(event)
    }

    /// Waits until the events have reached the requested `ack`, and appends their results to `lines`. Sends `lines`
    /// when they fill a chunk, or at the end if the client waits for them.
    async fn answer(&mut self, mut results: Vec<Result>, lines: &mut Vec<u8>) -> Flow {
        let is_taken = results.iter().any(|result| result.taken.is_ok());
        let unkept = if is_taken { ack::kept(&self.ingest, self.ack).await } else { None };
        let fates = if self.ack == Ack::Written { self.fates(&mut results).await } else { Vec::new() };
        let mut fates = fates.into_iter();
        for Result { taken, warnings } in results {
            self.number = self.number.saturating_add(1);
            match taken {
                Ok(Taken { outcome, .. }) => {
                    let fate = fates.next().flatten();
                    if let Some(TicketOutcome::Refused(refusal)) = fate {
                        failure(self.number, &refusal.status.cut(STATUS_BYTES), &warnings, lines);
                    } else {
                        let reached = match self.ack {
                            Ack::Written if fate.is_some() => "written",
                            Ack::Durable if unkept.is_none() => "durable",
                            Ack::Accepted | Ack::Durable | Ack::Written => "accepted",
                        };
                        success(self.number, outcome, reached, &warnings, lines);
                    }
                }
                Err(status) => failure(self.number, &status, &warnings, lines),
            }
            if lines.len() >= CHUNK_BYTES && self.send(std::mem::take(lines)).await.is_break() {
                return Flow::Break(());
            }
        }
        if self.ack == Ack::Accepted || lines.is_empty() {
            return Flow::Continue(());
        }
        self.send(std::mem::take(lines)).await
    }

    /// Waits for the upstream's answers to the accepted events of a piece. What it refuses of a total is taken back,
    /// because the client sends the total again.
    async fn fates(&self, results: &mut [Result]) -> Vec<Option<TicketOutcome>> {
        // LIMIT: one request timeout for the whole piece; after it the results say how far the events have come.
        let mut patience = std::pin::pin!(tokio::time::sleep(self.ingest.0.settings.request_timeout));
        let mut fates = Vec::with_capacity(results.len());
        for Taken { waiting, .. } in results.iter_mut().filter_map(|result| result.taken.as_mut().ok()) {
            fates.push(match waiting {
                Some(waiting) => tokio::select! {
                    biased;
                    fate = waiting.fate() => fate,
                    () = &mut patience => None,
                },
                None => None,
            });
        }
        // The last one first: a total was compared with those before it.
        let taken = results.iter().filter_map(|result| result.taken.as_ref().ok());
        for (fate, taken) in fates.iter().rev().zip(taken.rev()) {
            if let (Some(TicketOutcome::Refused(_)), Some(total)) = (fate, &taken.total) {
                self.ingest.take_back(&total.0, total.1);
            }
        }
        fates
    }

    /// Refuses the rest of a request that cannot be read on.
    async fn refuse_rest(&mut self, reason: RejectReason, status: &Status) {
        self.number = self.number.saturating_add(1);
        self.ingest.0.shards.reject(reason, 1);
        let mut line = Vec::new();
        failure(self.number, status, &[], &mut line);
        let _last = self.send(line).await;
    }

    /// Sends result lines. Ends the batch if the client has disconnected or does not read in time; then the rest of its
    /// request counts as one occurrence.
    async fn send(&mut self, lines: Vec<u8>) -> Flow {
        let patience: Duration = self.ingest.0.settings.request_timeout;
        match tokio::time::timeout(patience, self.results.send(lines.into())).await {
            Ok(Ok(())) => Flow::Continue(()),
            Ok(Err(_)) => Flow::Break(()),
            Err(_) => {
                self.ingest.0.shards.reject(RejectReason::Unread, 1);
                self.ended = Err(ResultsUnread);
                Flow::Break(())
            }
        }
    }
}

/// Returns the text read so far and `data`, without the space at its beginning, which would be searched again with each
/// piece. Copies only if the text came in several pieces.
fn joined(mut read: Vec<u8>, data: &Bytes) -> Bytes {
    if read.is_empty() {
        let space = data.len().saturating_sub(data.trim_ascii_start().len());
        return data.slice(space..);
    }
    read.extend_from_slice(data);
    read.into()
}

/// Splits text into its first line, without the newline, and the rest.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let (line, rest) = memchr::memchr(b'\n', text).and_then(|end| text.split_at_checked(end)).unwrap_or((text, &[]));
    (line, rest.get(1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a body of spaces, in pieces of one byte, was searched from its beginning for each of them.
    #[test]
    fn space_at_the_beginning_is_not_kept() {
        let (mut text, pieces) = (Vec::new(), [" ", "\n\t", "", "\r\n  {", " ", "\"kind\""]);
        let kept = pieces.map(|piece| {
            text = joined(std::mem::take(&mut text), &piece.into()).into();
            text.len()
        });
        assert_eq!(kept, [0, 0, 0, 1, 2, 8]);
    }
}
