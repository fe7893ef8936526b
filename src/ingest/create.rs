//! POST of an event: decodes, validates, passes it to the shard, and answers.

use std::borrow::Cow;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use smol_str::SmolStr;
use tokio::time::timeout;

use super::aliases::Entered;
use super::negotiate::AnswerFormat;
use super::occurrence::Taken;
use super::rejection::Rejection;
use super::request_head::RequestHead;
use super::{Ack, Ingest, Unable, ack, decode, options, respond};
use crate::access::{Caller, Extent};
use crate::event::json::Decoded;
use crate::event::repair::{self, Repair};
use crate::event::{ApiGroup, Event, validate};
use crate::ledger::RejectReason;
use crate::shard::{Full, Outcome, TicketOutcome};
use crate::status::Status;
use crate::upstream::store;

/// `POST /api/v1/namespaces/{namespace}/events`
pub(super) async fn create(State(ingest): State<Ingest>, head: RequestHead, body: Body) -> Response {
    let mut warnings = Vec::new();
    let received = receive(&ingest, &head, body, &mut warnings).await;
    let refuse = |rejection: Rejection| {
        if options::is_dry_run(head.query()) { respond::refusal(&rejection.status) } else { ingest.reject(&rejection) }
    };
    respond::warned(received.unwrap_or_else(refuse), &warnings)
}

async fn receive(
    ingest: &Ingest,
    head: &RequestHead,
    body: Body,
    warnings: &mut Vec<String>,
) -> Result<Response, Rejection> {
    let format = head.format(ingest)?;
    let media = decode::media(&head.headers)?;
    let options = options::of_write("CreateOptions", head.query()).map_err(Rejection::invalid)?;
    let body = decode::read(body, &ingest.0.settings, (&ingest.0.bodies, head.user())).await;
    let body = body.map_err(Rejection::of_post)?;
    let Decoded { mut event, warnings: of_members } = decode::event(head.group, media, &body, options.validation)?;
    *warnings = of_members;
    warnings.extend(validate::drop_duplicate_owners(&mut event));
    let note = |event: &Event, fault: &Rejection| {
        // An event that names another namespace than the path leaves no trace there, where its caller may have no rights.
        if !options.dry_run && event.metadata.namespace == head.namespace {
            ingest.note_rejection(event, 1, fault);
        }
    };
    let repairs = validate_new(ingest, head.group, &head.namespace, &mut event);
    let repairs = repairs.inspect_err(|fault| note(&event, fault))?;
    warnings.extend(repairs.iter().map(|repair| repair.warning().to_owned()));
    let note = |fault: &Rejection| note(&event, fault);
    if ingest.0.shards.correlates(&event) {
        head.check_sender().inspect_err(note)?;
    }
    ingest.check_source(head.caller.as_ref(), head.group, &event, Extent::Whole).inspect_err(note)?;
    ingest.check_name(head.caller.as_ref(), head.group, &event).inspect_err(note)?;
    if options.dry_run {
        return Ok(dry_run(ingest, head, format, event).await);
    }
    ingest.limit(head.caller.as_ref(), &event.metadata.namespace, Some(&event)).inspect_err(note)?;
    ingest.annotate(head.caller.as_ref(), &mut event);
    ingest.0.metrics.count_repairs(&repairs);
    Ok(take(ingest, head, format, StatusCode::CREATED, event).await)
}

/// Validates a caller's event, checks its source and its limits, and annotates it. Returns the repairs.
pub(super) fn pass(
    ingest: &Ingest,
    caller: Option<&Caller>,
    group: ApiGroup,
    namespace: &str,
    event: &mut Event,
) -> Result<Vec<Repair>, Rejection> {
    let repairs = validate_new(ingest, group, namespace, event)?;
    ingest.check_source(caller, group, event, Extent::Whole)?;
    ingest.limit(caller, &event.metadata.namespace, Some(event))?;
    ingest.annotate(caller, event);
    ingest.0.metrics.count_repairs(&repairs);
    Ok(repairs)
}

/// Applies the API server's checks in its order, and sets or drops what it sets or drops before storing. Returns the
/// repairs.
pub(super) fn validate_new(
    ingest: &Ingest,
    group: ApiGroup,
    namespace: &str,
    event: &mut Event,
) -> Result<Vec<Repair>, Rejection> {
    validate::adopt_namespace(event, namespace).map_err(Rejection::invalid)?;
    if !ingest.0.upstream.has_namespace(namespace) {
        return Err(Rejection::new(RejectReason::NamespaceMissing, Status::not_found("", "namespaces", namespace)));
    }
    let generate_name = event.metadata.rare.as_ref().map(|rare| rare.generate_name.clone()).unwrap_or_default();
    if event.metadata.name.is_empty() && !generate_name.is_empty() {
        event.metadata.name = store::generated_name(&generate_name, &mut fastrand::Rng::new());
    }
    let repairs = match ingest.0.settings.repair {
        Some(message_bytes) => repair::repair(group, event, message_bytes.get(), || ingest.0.shards.clock().now().wall),
        None => Vec::new(),
    };
    validate::create(group, event).map_err(Rejection::invalid)?;
    strip(event);
    Ok(repairs)
}

/// Answers a dry run as the upstream would. It is no occurrence, so ledger and correlator do not see it.
async fn dry_run(ingest: &Ingest, head: &RequestHead, format: AnswerFormat, mut event: Event) -> Response {
    event.metadata.managed_fields = head.claim();
    match ingest.0.upstream.try_create(&event).await {
        Ok(shown) => respond::event(format, StatusCode::CREATED, &shown, None),
        // A correlated event may have a name that exists already.
        Err(status) if status.reason == "AlreadyExists" && ingest.0.shards.correlates(&event) => {
            event.metadata.managed_fields = None;
            respond::event(format, StatusCode::CREATED, &event, None)
        }
        Err(status) => respond::refusal(&through(format.group, status)),
    }
}

/// Drops the members that only the upstream assigns. eventweir neither invents them nor accepts them from a client.
///
/// DIFFERENCE(apiserver): a resourceVersion in a create is dropped instead of refused with a bare 500
/// (`docs/semantics.md`).
pub(super) fn strip(event: &mut Event) {
    event.metadata.uid = SmolStr::default();
    event.metadata.resource_version = SmolStr::default();
    event.metadata.creation_timestamp = None;
    store::drop_server_owned(&mut event.metadata);
}

/// Passes a valid event to its shard and answers.
pub(super) async fn take(
    ingest: &Ingest,
    head: &RequestHead,
    format: AnswerFormat,
    code: StatusCode,
    event: Event,
) -> Response {
    let ack = match ack::wanted(ingest, &head.headers) {
        Ok(ack) => ack,
        Err(rejection) => {
            ingest.note_rejection(&event, 1, &rejection);
            return ingest.reject(&rejection);
        }
    };
    ingest.until_listed(std::slice::from_ref(&event)).await;
    // The alias is set first, so that a concurrent POST of the same name counts only what this one does not.
    let earlier = match ingest.0.aliases.enter(&event) {
        Entered::New(earlier) => earlier,
        // COMPAT(apiserver): without correlation, each POST is a create. The event may have expired since.
        Entered::Included(series) if !ingest.0.shards.correlates(&event) => Some(series),
        // What it repeats may wait for its commit.
        Entered::Included(series) => {
            return ack::once_kept(ingest, ack, respond::event(format, code, &series, None)).await;
        }
    };
    let occurrences = ingest.brings(&event, earlier.as_ref());
    if occurrences == 0 {
        return ack::once_kept(ingest, ack, respond::event(format, code, &event, None)).await;
    }
    // The shard has counted the refusal in its ledger already.
    let Ok(taken) = ingest.accept(&event, occurrences, ack, head.user(), || head.claim()) else {
        ingest.0.aliases.leave(&event, earlier.as_ref());
        return full();
    };
    let outcome = taken.outcome;
    answered(ingest, format, code, ack, &event, taken, outcome).await.unwrap_or_else(|status| {
        ingest.take_back(&event, occurrences);
        ingest.0.aliases.leave(&event, earlier.as_ref());
        respond::refusal(&status)
    })
}

/// Answers accepted occurrences of an event once they have reached the client's `ack`. `outcome` is theirs for the client,
/// which sees the whole record only if they have begun it.
///
/// # Errors
/// The upstream's refusal.
pub(super) async fn answered(
    ingest: &Ingest,
    format: AnswerFormat,
    code: StatusCode,
    ack: Ack,
    event: &Event,
    taken: Taken,
    outcome: Outcome,
) -> Result<Response, Status> {
    let fate = match taken.waiting {
        // LIMIT: the request timeout; after it the client gets the answer of `ack: accepted`.
        Some(mut waiting) => timeout(ingest.0.settings.request_timeout, waiting.fate()).await.ok().flatten(),
        None => None,
    };
    let shown = match fate {
        Some(TicketOutcome::Refused(refusal)) => return Err(through(format.group, *refusal.status)),
        Some(TicketOutcome::Written(stored)) => Cow::Owned(as_stored(event, *stored, outcome)),
        None => Cow::Borrowed(event),
    };
    let response = respond::event(format, code, &shown, Some(taken.outcome));
    Ok(ack::once_kept(ingest, ack, response).await)
}

/// Returns the event as its client sees it, with the members that only the upstream assigns.
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

/// Converts an upstream's refusal to the client's API group: eventweir may write in the other one, which changes the
/// words about an existing name.
fn through(group: ApiGroup, status: Status) -> Status {
    if status.reason != "AlreadyExists" {
        return status;
    }
    Status::already_exists(group.name(), "events", &status.details.unwrap_or_default().name)
}

/// Returns 429 with `Retry-After`: client-go retries it, and gives up on every other refusal.
pub(super) fn full() -> Response {
    let status = Status::too_many_requests(format!("Too many requests: {Full}, please try again later"), 1);
    Rejection { unable: Some(Unable), ..Rejection::new(RejectReason::Full, status) }.refusal()
}
