//! PUT: replaces the record that the name leads to. A PUT sets the state of an event and is not an occurrence, so it
//! bypasses the correlators and the ledger. Later occurrences are added to the count of the PUT.

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Extensions, StatusCode};
use axum::response::{IntoResponse as _, Response};
use smol_str::SmolStr;

use super::forwarded_change::{self, ChangeRefusal, Effect, Kept, Undone};
use super::negotiate::AnswerFormat;
use super::rejection::under;
use super::request_head::RequestHead;
use super::{Ingest, ack, aliases, decode, options, respond};
use crate::access::Extent;
use crate::event::json::Decoded;
use crate::event::{Event, validate};
use crate::outbox::Line;
use crate::shard::PausedRecord;
use crate::status::Status;
use crate::upstream::{Updated, WriteOptions};

/// `PUT …/namespaces/{namespace}/events/{name}`
pub(super) async fn update(State(ingest): State<Ingest>, head: RequestHead, body: Body) -> Response {
    let mut warnings = Vec::new();
    let received = receive(&ingest, &head, body, &mut warnings).await;
    respond::warned(received.into_response(), &warnings)
}

async fn receive(
    ingest: &Ingest,
    head: &RequestHead,
    body: Body,
    warnings: &mut Vec<String>,
) -> Result<Response, ChangeRefusal> {
    let RequestHead { group, namespace, name, .. } = head;
    let format = head.format(ingest)?;
    let options = options::of_write("UpdateOptions", head.query())?;
    let media = decode::media(&head.headers)?;
    let body = decode::read(body, &ingest.0.settings, (&ingest.0.bodies, head.user())).await?;
    let Decoded { mut event, warnings: of_members } = decode::event(*group, media, &body, options.validation)?;
    *warnings = of_members;
    warnings.extend(validate::drop_duplicate_owners(&mut event));
    validate::adopt_path(&mut event, namespace, name)?;
    let dry_run = options.dry_run;
    let put = async {
        ingest.check_source(head.caller.as_ref(), *group, &event, Extent::Whole)?;
        let (total, body) = (Some(aliases::total(&event)), body.clone());
        let change = Change { event: Some(&event), line: Line::Stated, total, dry_run, body };
        let options = WriteOptions { dry_run, ..head.write_options() };
        // A copy, because a refusal is recorded with the original event.
        let (upstream, mut event) = (ingest.0.upstream.clone(), event.clone());
        let write = async move |stored_name| {
            event.metadata.name = stored_name;
            upstream.update(event, &options).await
        };
        set(ingest, head, format, change, write).await
    };
    let (response, of_upstream) = put.await.inspect_err(|refusal| {
        if !dry_run {
            ingest.note_refused_change(&event, "PUT", &refusal.status);
        }
    })?;
    warnings.extend(of_upstream);
    Ok(response)
}

/// A change that sets the state of an event: a PUT or an apply.
pub(super) struct Change<'a> {
    /// The whole event, if it is known.
    pub(super) event: Option<&'a Event>,
    /// Whether the client states its count.
    pub(super) line: Line,
    /// The total that it states.
    pub(super) total: Option<i64>,
    pub(super) dry_run: bool,
    /// The body of its request, which counts until its last clone is dropped.
    pub(super) body: Bytes,
}

/// Checks that the caller may change the event, lets `write` change it under the record's name, and answers with it under
/// the client's name, and with the upstream's warnings.
pub(super) async fn set<W: Future<Output = Result<Updated, Status>> + Send + 'static>(
    ingest: &Ingest,
    head: &RequestHead,
    format: AnswerFormat,
    change: Change<'_>,
    write: impl FnOnce(SmolStr) -> W + Send + 'static,
) -> Result<(Response, Vec<String>), ChangeRefusal> {
    let RequestHead { group, namespace, name, .. } = head;
    let Change { event, line, total, dry_run, body } = change;
    let (caller, changed) = (head.caller.as_ref(), (*group, namespace.as_str(), name.as_str()));
    ingest.check_changed(caller, changed).await?;
    ingest.may_put(caller, changed).await?;
    if !dry_run {
        ingest.limit(caller, namespace, event)?;
    }
    let setting = {
        let (ingest, group, namespace, name) = (ingest.clone(), *group, namespace.clone(), name.clone());
        async move {
            let paused = ingest.pause(group, &namespace, &name).await?;
            let stored_name = paused.as_ref().map_or_else(|| name.as_str().into(), PausedRecord::name);
            let updated = write(stored_name.clone()).await.map_err(|status| under(&name, &stored_name, status));
            let mut marks = Extensions::new();
            match (&updated, paused) {
                (Ok(Updated { event, created, .. }), paused) if !dry_run => {
                    let mut shown = event.clone();
                    shown.metadata.name = name.into();
                    let stated = paused.as_ref().map_or(line, |paused| paused.stated(event, line));
                    ingest.0.aliases.set(&shown, stated);
                    if let Some(paused) = paused {
                        paused.follow(event, if *created && line == Line::Stated { Line::Created } else { line });
                        ack::followed(&ingest).await;
                    }
                }
                (Err(Status { code: 401 | 403, .. }), Some(paused)) if !dry_run => {
                    if stored_name == name {
                        let effect = Effect::Set { line, total };
                        let (namespace, name) = (namespace.into(), name.into());
                        let change = forwarded_change::Change { group, namespace, name, effect };
                        marks.insert(Undone::new(&ingest, Some(paused), change));
                    } else {
                        marks.insert(Kept);
                    }
                }
                (Err(status), Some(paused)) if !dry_run => {
                    ingest.doubt(paused, (&namespace, &name), total, status).await;
                }
                (Ok(_) | Err(_), _) => {}
            }
            Ok(updated.map_err(|status| ChangeRefusal { status, marks }))
        }
    };
    let Updated { event: mut stored, created, warnings } =
        ingest.to_the_end(head.turn.clone(), body, setting).await??;
    stored.metadata.name = name.into();
    let code = if created { StatusCode::CREATED } else { StatusCode::OK };
    Ok((respond::event(format, code, &stored, None), warnings))
}
