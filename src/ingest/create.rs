//! POST: decode, validate, hand to the shard, answer.
//!
//! Hot, and so written that most requests wait for nothing but their body.

use std::future::ready;
use std::pin::Pin;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use futures_util::future::Either;
use smol_str::{SmolStr, format_smolstr};
use tokio::time::timeout;

use super::asked::Asked;
use super::decode::{Refusal, RequestBody};
use super::form::{Form, Media};
use super::options::Options;
use super::{Ack, Face, ack, decode, options, respond};
use crate::event::json::{self, Decoded};
use crate::event::repair::{self, Repair};
use crate::event::{ApiGroup, Event, LentEvent, ManagedFields, Text, Time, validate};
use crate::ledger::RejectReason;
use crate::shard::{Fate, Full, Outcome, Waiting};
use crate::status::Status;
use crate::upstream::store;

/// `POST /api/v1/namespaces/{namespace}/events`
pub(super) async fn create(State(face): State<Face>, asked: Asked, mut body: Body) -> Response {
    answer(&face, &asked, &mut body).await
}

/// The same, by the short way.
pub(super) async fn answer(face: &Face, asked: &Asked, body: &mut impl RequestBody) -> Response {
    match receive(face, asked, body).await {
        Ok(response) => response,
        Err((reason, status)) => face.reject(reason, &status),
    }
}

async fn receive(face: &Face, asked: &Asked, body: &mut impl RequestBody) -> Result<Response, Refusal> {
    let form = asked.form(face)?;
    let media = decode::media(&asked.headers)?;
    let options =
        options::of_write("CreateOptions", asked.query()).map_err(|status| (RejectReason::Invalid, status.into()))?;
    let body = decode::read(body, &face.0.settings).await?;
    Ok(begin(face, asked, form, media, options, &body)?.end().await)
}

/// An answer, or the way to it that only few requests go. Boxed, and what leads here is no future, so that no event is part of
/// every request's future: those are moved several times.
pub(super) enum Begun<'a> {
    Answered(Response),
    Pending(Pin<Box<dyn Future<Output = Response> + Send + 'a>>),
}

impl<'a> Begun<'a> {
    pub(super) fn end(self) -> impl Future<Output = Response> + Send + 'a {
        match self {
            Self::Answered(response) => Either::Left(ready(response)),
            Self::Pending(rest) => Either::Right(rest),
        }
    }
}

fn begin<'a>(
    face: &'a Face,
    asked: &'a Asked,
    form: Form,
    media: Media,
    options: Options,
    body: &[u8],
) -> Result<Begun<'a>, Refusal> {
    // An event is large, so it is moved as little as can be.
    let Decoded { event, strict_faults, layout, .. } =
        &mut decode::event(asked.group, media, body, options.strictness())?;
    let has_namespace = !event.metadata.namespace.is_empty();
    let mut warnings = options.warnings(strict_faults);
    let repairs = admit(face, asked.group, &asked.namespace, event)?;
    let is_unchanged = has_namespace && repairs.is_empty();
    warnings.extend(repairs.into_iter().map(|repair| repair.warning().to_owned()));
    if options.dry_run {
        return Ok(Begun::Pending(Box::pin(dry_run(face, asked, form, std::mem::take(event).kept(), warnings))));
    }
    // Most clients spell their events just as they are answered.
    let document = if is_unchanged && form.is_json() { layout.document(body) } else { None };
    Ok(take(face, asked, form, StatusCode::CREATED, event, document, &warnings))
}

/// The apiserver's checks in its order, and what it sets or drops before an event is stored. Returns what was mended.
pub(super) fn admit(
    face: &Face,
    group: ApiGroup,
    namespace: &str,
    event: &mut LentEvent<'_>,
) -> Result<Vec<Repair>, Refusal> {
    validate::adopt_namespace(event, namespace).map_err(|status| (RejectReason::Invalid, status))?;
    if !face.0.upstream.has_namespace(namespace) {
        return Err((RejectReason::NamespaceMissing, Box::new(Status::not_found("", "namespaces", namespace))));
    }
    let generate_name = event.metadata.rare.as_ref().map(|rare| rare.generate_name.clone()).unwrap_or_default();
    if event.metadata.name.is_empty() && !generate_name.is_empty() {
        event.metadata.name = store::generated_name(&generate_name, &mut fastrand::Rng::new()).into();
    }
    let repairs = match face.0.settings.repair {
        super::Repair::On { message_bytes } => {
            repair::repair(group, event, message_bytes, || face.0.shards.clock().now().wall)
        }
        super::Repair::Off => Vec::new(),
    };
    validate::create(group, event).map_err(|status| (RejectReason::Invalid, status))?;
    face.0.metrics.count_repairs(&repairs);
    strip(event);
    Ok(repairs)
}

/// What the upstream would answer. Nothing has occurred, so neither ledger nor correlator hear of it.
async fn dry_run(face: &Face, asked: &Asked, form: Form, mut event: Event, warnings: Vec<String>) -> Response {
    let warnings = &warnings;
    event.metadata.managed_fields = asked.claim();
    match face.0.upstream.try_create(&event).await {
        Ok(shown) => respond::event(form, StatusCode::CREATED, &shown, None, warnings),
        // To a correlator a name that is taken is no hindrance.
        Err(status) if status.reason == "AlreadyExists" && face.0.shards.correlates(&event) => {
            event.metadata.managed_fields = None;
            respond::event(form, StatusCode::CREATED, &event, None, warnings)
        }
        Err(status) => respond::refusal(&through(form.group, status)),
    }
}

/// Drops what only the upstream can assign: nothing of it is invented or believed.
///
/// DIFFERENCE(apiserver): a resourceVersion in a create is dropped instead of refused with a bare 500
/// (`docs/semantics.md`).
fn strip(event: &mut LentEvent<'_>) {
    event.metadata.uid = Text::default();
    event.metadata.resource_version = Text::default();
    event.metadata.creation_timestamp = None;
    event.metadata.managed_fields = None;
    if let Some(rare) = &mut event.metadata.rare {
        rare.self_link = SmolStr::default();
        rare.deletion_timestamp = None;
        rare.deletion_grace_period_seconds = None;
    }
}

/// How a client is answered whose event is taken in.
#[derive(Debug, Clone, Copy)]
struct Answer<'w> {
    form: Form,
    code: StatusCode,
    ack: Ack,
    warnings: &'w [String],
}

/// Hands a valid event to its shard and answers. Who has the event's JSON at hand spares writing it.
pub(super) fn take<'a>(
    face: &'a Face,
    asked: &'a Asked,
    form: Form,
    code: StatusCode,
    event: &mut LentEvent<'_>,
    document: Option<Vec<u8>>,
    warnings: &[String],
) -> Begun<'a> {
    debug_assert!(document.as_ref().is_none_or(|document| *document == written_anew(form, event)));
    let ack = match ack::wanted(face, &asked.headers) {
        Ok(ack) => ack,
        Err((reason, status)) => return Begun::Answered(face.reject(reason, &status)),
    };
    let answer = Answer { form, code, ack, warnings };
    match ack {
        Ack::Accepted | Ack::Durable => take_at_once(face, asked, event, document, answer),
        Ack::Written => take_and_wait(face, asked, event, answer),
    }
}

/// The answer is made before, so that the shard gets the event itself.
fn take_at_once<'a>(
    face: &'a Face,
    asked: &Asked,
    event: &mut LentEvent<'_>,
    document: Option<Vec<u8>>,
    Answer { form, code, ack, warnings }: Answer<'_>,
) -> Begun<'a> {
    let response = match document {
        Some(document) => respond::document(code, form.media, form.pretty, document),
        None => respond::event(form, code, event, None, &[]),
    };
    let alias = face.0.aliases.pack(event);
    let logged = face.0.event_log.is_kept().then(|| event.clone());
    let policy = face.0.shards.policy();
    make_occurrence(policy.correlates(event), event, || asked.claim());
    // The shard's ledger has the refusal already.
    let Ok(accepted) = face.0.shards.accept_under(&policy, event, 1) else { return Begun::Answered(full()) };
    face.note(logged.as_ref(), 1, accepted.outcome);
    face.0.aliases.keep(alias);
    let mut response = respond::taken(response, accepted.outcome, warnings);
    if ack != Ack::Durable {
        return Begun::Answered(response);
    }
    Begun::Pending(Box::pin(async move {
        if let Some(unkept) = ack::kept(face, ack).await {
            respond::warn(&mut response, &unkept);
        }
        response
    }))
}

/// The answer is made when the upstream's is there, from the client's event and that.
fn take_and_wait<'a>(face: &'a Face, asked: &Asked, event: &mut LentEvent<'_>, answer: Answer<'_>) -> Begun<'a> {
    let Answer { form, code, ack: _, warnings } = answer;
    let event = std::mem::take(event).kept();
    // Their strings are shared.
    let mut copy = event.clone();
    let policy = face.0.shards.policy();
    make_occurrence(policy.correlates(&copy), &mut copy, || asked.claim());
    // The shard's ledger has the refusal already.
    let Ok((accepted, waiting)) = face.0.shards.accept_and_wait(copy, 1, &policy) else {
        return Begun::Answered(full());
    };
    let outcome = accepted.outcome;
    face.note(Some(&event), 1, outcome);
    if let Some(waiting) = waiting {
        let warnings = warnings.to_vec();
        return Begun::Pending(Box::pin(written(face, form, code, event, outcome, waiting, warnings)));
    }
    face.0.aliases.insert(&event);
    Begun::Answered(respond::event(form, code, &event, Some(outcome), warnings))
}

/// The long way to an event's JSON.
fn written_anew(form: Form, event: &LentEvent<'_>) -> Vec<u8> {
    let mut document = Vec::new();
    json::write_json(form.group, event, &mut document);
    document
}

/// Answers when the upstream has.
async fn written(
    face: &Face,
    form: Form,
    code: StatusCode,
    event: Event,
    outcome: Outcome,
    waiting: Waiting,
    warnings: Vec<String>,
) -> Response {
    match as_written(face, form.group, &event, outcome, waiting).await {
        Ok(shown) => {
            face.0.aliases.insert(&event);
            respond::event(form, code, &shown, Some(outcome), &warnings)
        }
        Err(status) => respond::refusal(&status),
    }
}

/// The event as its client sees it when the upstream has answered, or the upstream's refusal.
pub(super) async fn as_written(
    face: &Face,
    group: ApiGroup,
    event: &Event,
    outcome: Outcome,
    mut waiting: Waiting,
) -> Result<Event, Status> {
    // LIMIT: the request's time; a client that has waited so long is answered as if it had not asked to.
    match timeout(face.0.settings.request_timeout, waiting.fate()).await {
        Ok(Some(Fate::Refused(refusal))) => Err(through(group, *refusal.status)),
        Ok(Some(Fate::Written(stored))) => Ok(as_stored(event, *stored, outcome)),
        Ok(None) | Err(_) => Ok(event.clone()),
    }
}

/// The event as its client sees it, with what only the upstream can tell laid over it.
fn as_stored(event: &Event, mut stored: Event, outcome: Outcome) -> Event {
    stored.type_meta = event.type_meta;
    stored.metadata.name = event.metadata.name.clone();
    match outcome {
        Outcome::Created => stored,
        Outcome::Counted | Outcome::Combined | Outcome::Deferred | Outcome::Dropped => {
            let mut shown = event.clone();
            shown.metadata.uid = stored.metadata.uid;
            shown.metadata.resource_version = stored.metadata.resource_version;
            shown.metadata.creation_timestamp = stored.metadata.creation_timestamp;
            shown
        }
    }
}

/// The upstream is asked through a door of its own; its words about a taken name follow the client's.
fn through(group: ApiGroup, status: Status) -> Status {
    let name = status.details.as_ref().map(|details| details.name.clone()).unwrap_or_default();
    match (group, status.reason.as_str()) {
        (group, "AlreadyExists") => Status::already_exists(group.name(), "events", &name),
        _ => status,
    }
}

/// Makes a client's event what its shard gets. Where events are not correlated it is the record, and its client's own.
pub(super) fn make_occurrence(correlates: bool, event: &mut LentEvent<'_>, claim: impl FnOnce() -> ManagedFields) {
    if correlates {
        tell_last_seen(event);
    } else {
        event.metadata.managed_fields = claim();
    }
}

/// A record shows when it was seen last, which new-style events tell in other members, and stands for a series by its count.
pub(super) fn tell_last_seen(event: &mut LentEvent<'_>) {
    let observed = event.series.take().and_then(|series| series.last_observed_time).or(event.event_time);
    event.last_timestamp = event.last_timestamp.or_else(|| observed.map(|time| Time(time.0.div_euclid(1_000_000))));
}

/// 429 with `Retry-After`: client-go repeats that, and gives up on everything else.
pub(super) fn full() -> Response {
    let message = format_smolstr!("Too many requests: {Full}, please try again later");
    respond::refusal(&Status::too_many_requests(message, 1))
}
