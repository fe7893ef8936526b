//! DELETE of one event and of a collection: deletes the record in the upstream and in the outbox.
//!
//! The record is paused first, so that no pending write follows the delete (`shard/pause.rs`). Once the upstream has
//! deleted it, its waiting occurrences are lost with reason `deleted`, and the next occurrence creates a new record.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use smol_str::SmolStr;

use super::forwarded_change::{Change, ChangeRefusal, Effect, Kept, Undone};
use super::negotiate::Media;
use super::options::{Faults, Parameters};
use super::pause::is_in_doubt;
use super::rejection::{as_asked, under};
use super::request_head::RequestHead;
use super::{Ingest, QUIET, ack, decode, options, respond, yaml};
use crate::access::Turn;
use crate::event::json::{self, EventList};
use crate::event::protobuf::{self, DeleteOptions as Given};
use crate::event::{ApiGroup, Event};
use crate::shard::{Found, Lookup, PausedRecord};
use crate::status::{Status, StatusDetails};
use crate::upstream::{DeleteOptions, Deleted, ListOptions, Version};

/// LIMIT: duration of a deletecollection; then the client is asked to repeat it for the rest. An API server's own limit.
const LONGEST: Duration = Duration::from_secs(60);
/// LIMIT: bytes of the deleted events that the answer to a deletecollection shows. Further ones are deleted too.
const SHOWN_BYTES: usize = 16 << 20;

/// `DELETE …/namespaces/{namespace}/events/{name}`
pub(super) async fn delete(
    State(ingest): State<Ingest>,
    head: RequestHead,
    body: Body,
) -> Result<Response, ChangeRefusal> {
    let format = head.format(&ingest).map_err(Status::from)?;
    let options = read(&ingest, &head, body).await?;
    let RequestHead { group, namespace, name, turn, .. } = head;
    let deleting = {
        let (ingest, namespace, name) = (ingest.clone(), namespace.clone(), name.clone());
        async move {
            let deleted = delete_one(&ingest, (group, &namespace, &name), &options).await;
            if !options.dry_run {
                ack::followed(&ingest).await;
            }
            Ok(deleted)
        }
    };
    let refused = |refusal: ChangeRefusal| ChangeRefusal { status: as_asked(group, &name, refusal.status), ..refusal };
    match ingest.to_the_end(turn, Bytes::new(), deleting).await?.map_err(refused)? {
        Deleted::Gone(uid) => Ok(respond::success(
            format,
            StatusDetails {
                name,
                group: group.name().to_owned(),
                kind: "events".to_owned(),
                uid: uid.into(),
                ..StatusDetails::default()
            },
        )),
        Deleted::Marked(mut event) => {
            event.metadata.name = name.into();
            Ok(respond::event(format, StatusCode::OK, &event, None))
        }
    }
}

async fn delete_one(
    ingest: &Ingest,
    (group, namespace, name): (ApiGroup, &str, &str),
    options: &DeleteOptions,
) -> Result<Deleted, ChangeRefusal> {
    let upstream = &ingest.0.upstream;
    let posted = ingest.0.aliases.get(namespace, name);
    if options.dry_run {
        return Ok(dry_run(ingest, (namespace, name), posted.as_ref(), options).await?);
    }
    let unconditional = is_unconditional(options);
    // Preconditions are about an event that is stored.
    let of_alias = |by| {
        let paused = ingest.0.shards.pause(posted.as_ref()?, name, by);
        paused.filter(|paused| unconditional || paused.is_stored())
    };
    let mut found = None;
    let paused = match of_alias(Lookup::Alias) {
        // The record of that very name, also if the alias leads to a record that is gone.
        None => match upstream.get(namespace, name).await {
            Err(status) if status.code == 404 => {
                let paused = of_alias(Lookup::Unstored);
                if paused.is_none() {
                    ingest.0.aliases.remove(namespace, name);
                    return Err(status.into());
                }
                paused
            }
            stored => ingest.0.shards.pause(found.insert(stored?), name, Lookup::Name),
        },
        paused => paused,
    };
    let Some(mut paused) = paused else {
        return Ok(delete_unknown(ingest, (namespace, name), options, posted.as_ref(), found.as_ref()).await?);
    };
    if let Some(event) = found.as_ref().or(posted.as_ref()) {
        paused.pause_others(event);
    }
    paused.quiet(QUIET).await;
    if unconditional && !paused.is_found_by_name() && !ingest.has_its_name(namespace, &mut paused).await? {
        // Not yet created upstream, where another record has its name.
        paused.forget();
        ingest.0.aliases.remove(namespace, name);
        delete_former(ingest, namespace, name).await?;
        return Ok(Deleted::Gone(SmolStr::default()));
    }
    let record = paused.name();
    paused.expect_deletion();
    let deleted = match upstream.delete(namespace, &record, options).await {
        Ok(deleted) => Ok(deleted),
        Err(status) if status.code == 404 && posted.is_some() && unconditional => {
            // Not yet created upstream: a client can delete an event whose create was answered with 201. Or another
            // client has deleted it before.
            if paused.is_unsettled() {
                Ok(Deleted::Gone(SmolStr::default()))
            } else {
                Err(under(name, &record, status).into())
            }
        }
        Err(status) => {
            let mut refusal = ChangeRefusal::from(under(name, &record, status));
            if is_in_doubt(&refusal.status) {
                paused.doubt();
            } else if record == name {
                let (namespace, name, effect) = (namespace.into(), name.into(), Effect::Delete);
                refusal.marks.insert(Undone::new(ingest, Some(paused), Change { group, namespace, name, effect }));
            } else {
                refusal.marks.insert(Kept);
            }
            return Err(refusal);
        }
    };
    paused.forget();
    ingest.0.aliases.remove(namespace, name);
    if record != name && delete_former(ingest, namespace, name).await? {
        return Ok(deleted.unwrap_or_else(|_gone| Deleted::Gone(SmolStr::default())));
    }
    deleted
}

/// Deletes an event of which no record is known here: `found`, or the one to which the alias of the `posted` one led.
async fn delete_unknown(
    ingest: &Ingest,
    (namespace, name): (&str, &str),
    options: &DeleteOptions,
    posted: Option<&Event>,
    found: Option<&Event>,
) -> Result<Deleted, Status> {
    let led = posted.and_then(|posted| ingest.0.shards.find_named(posted, Lookup::Alias));
    let stored_name = led.map_or_else(|| name.into(), |found| found.name);
    let deleted = ingest.0.upstream.delete(namespace, &stored_name, options).await;
    let deleted = deleted.map_err(|status| under(name, &stored_name, status))?;
    if let Some(event) = found.filter(|_| stored_name == name) {
        ingest.0.shards.note_deleted(event);
    }
    ingest.0.aliases.remove(namespace, name);
    Ok(deleted)
}

/// Answers a dry run: about the record that the DELETE would delete.
async fn dry_run(
    ingest: &Ingest,
    (namespace, name): (&str, &str),
    posted: Option<&Event>,
    options: &DeleteOptions,
) -> Result<Deleted, Status> {
    let find = |by| posted.and_then(|posted| ingest.0.shards.find_named(posted, by));
    let upstream = &ingest.0.upstream;
    let delete = async |found: Option<Found>| {
        let record = found.as_ref().map_or(name, |found| &found.name);
        let deleted = upstream.delete(namespace, record, options).await;
        let is_missing = is_unconditional(options) && deleted.as_ref().is_err_and(|status| status.code == 404);
        let deleted = match &found {
            // Not yet created upstream.
            Some(Found { unsettled: Some(_), .. }) if is_missing => Ok(Deleted::Gone(SmolStr::default())),
            Some(_) if is_missing && record != name => upstream.delete(namespace, name, options).await,
            _ => deleted,
        };
        deleted.map_err(|status| under(name, record, status))
    };
    let found = find(Lookup::Alias);
    let may_be_combined = found.is_none();
    let deleted = delete(found).await;
    if may_be_combined
        && let Err(Status { code: 404, .. }) = deleted
        && let Some(found) = find(Lookup::Unstored)
    {
        return delete(Some(found)).await;
    }
    deleted
}

fn is_unconditional(options: &DeleteOptions) -> bool {
    options.uid.is_none() && options.resource_version.is_none()
}

/// Deletes the record with the client's own name, after the alias's record was deleted. It exists if the client has
/// changed its event, or had posted another one under that name. As `kubectl delete` expects, nothing of the name is
/// left. Returns whether it has existed.
async fn delete_former(ingest: &Ingest, namespace: &str, name: &str) -> Result<bool, Status> {
    let upstream = &ingest.0.upstream;
    let stored = match upstream.get(namespace, name).await {
        Ok(stored) => stored,
        Err(status) if status.code == 404 => return Ok(false),
        Err(status) => return Err(status),
    };
    let mut paused = ingest.0.shards.pause(&stored, name, Lookup::Name);
    if let Some(paused) = &mut paused {
        paused.pause_others(&stored);
        paused.quiet(QUIET).await;
        paused.expect_deletion();
    }
    let deleted = upstream.delete(namespace, name, &DeleteOptions::default()).await;
    let has_existed = deleted.is_ok();
    let fault = deleted.err().filter(|status| status.code != 404);
    match (&fault, paused) {
        (None, Some(paused)) => paused.forget(),
        (Some(status), Some(paused)) if is_in_doubt(status) => paused.doubt(),
        _ => {}
    }
    fault.map_or(Ok(has_existed), Err)
}

/// `DELETE …/namespaces/{namespace}/events`
pub(super) async fn delete_collection(
    State(ingest): State<Ingest>,
    head: RequestHead,
    body: Body,
) -> Result<Response, Status> {
    let format = head.format(&ingest)?;
    let list = options::of_list(head.group, head.query())?;
    let options = read(&ingest, &head, body).await?;
    let deleting = {
        let (ingest, user, namespace) = (ingest.clone(), head.user().to_owned(), head.namespace);
        async move {
            let deleted = delete_pages(&ingest, &user, &namespace, &list, &options).await;
            if !options.dry_run {
                ack::followed(&ingest).await;
            }
            deleted
        }
    };
    let (turn, list) = ingest.to_the_end(head.turn, Bytes::new(), deleting).await?;
    Ok(ingest.encoded(turn, format, list).await)
}

/// Deletes the events that `list` selects, in pages. As an API server does, which has pages too, it deletes those that
/// existed at the first one. The answer lists all pages, and continues after the last one if `list` has a limit.
///
/// Each page has a turn of its own, because a deletion takes long. Returns that of the last one, for the answer.
async fn delete_pages(
    ingest: &Ingest,
    user: &str,
    namespace: &str,
    list: &ListOptions,
    options: &DeleteOptions,
) -> Result<(Turn, EventList), Status> {
    let most = ingest.0.upstream.deletion_page();
    let clock = ingest.0.shards.clock();
    let end = clock.now().mono.after(LONGEST);
    let mut page = list.clone();
    if let (0, Version::AtLeast(version)) = (list.limit, list.version) {
        // With a limit, it would be exactly this version.
        page.version = Version::NotOlderThan(version);
    }
    let (mut whole, mut number, mut room) = (EventList::default(), 0, SHOWN_BYTES);
    loop {
        page.limit = list.limit.checked_sub(number).filter(|left| *left > 0).map_or(most, |left| left.min(most));
        let turn = ingest.list_turn(user).await?;
        let part = delete_page(ingest, namespace, &page, options).await?;
        number += part.items.len();
        if whole.resource_version.is_empty() {
            whole.resource_version = part.resource_version;
        }
        (whole.continue_token, whole.remaining_item_count) = (part.continue_token, part.remaining_item_count);
        show(&mut whole.items, part.items, &mut room);
        if whole.continue_token.is_empty() || (list.limit != 0 && number >= list.limit) {
            return Ok((turn, whole));
        }
        if clock.now().mono >= end {
            let message = format!("eventweir: {number} events are deleted; please repeat the request for the rest");
            return Err(Status::new(504, "Timeout", message).with_retry_after(1));
        }
        page.continue_token = whole.continue_token.to_string();
        page.version = Version::Newest;
    }
}

/// Adds deleted events to those of the answer, until one has no room.
fn show(shown: &mut Vec<Event>, deleted: Vec<Event>, room: &mut usize) {
    for event in deleted {
        *room = room.saturating_sub(event.approximate_size());
        if *room > 0 {
            shown.push(event);
        }
    }
}

/// Deletes one page of events. Their records are paused before, as for a DELETE of each.
async fn delete_page(
    ingest: &Ingest,
    namespace: &str,
    page: &ListOptions,
    options: &DeleteOptions,
) -> Result<EventList, Status> {
    let upstream = &ingest.0.upstream;
    if options.dry_run {
        return upstream.delete_collection(namespace, page, options).await;
    }
    let listed = match upstream.list(Some(namespace), page).await {
        Ok(list) => list.items,
        // eventweir may not list. Then a failure cannot be followed.
        Err(status) if status.code == 403 => Vec::new(),
        Err(status) => return Err(status),
    };
    let mut paused = ingest.pause_listed(namespace, &listed);
    drop(listed);
    let quiet = async {
        for paused in &mut paused {
            paused.quiet(QUIET).await;
        }
    };
    let _in_time = tokio::time::timeout(QUIET, quiet).await;
    paused.iter().for_each(PausedRecord::expect_deletion);
    let deleted = upstream.delete_collection(namespace, page, options).await;
    match &deleted {
        // Only stored events: a record that is not yet created is not in the list.
        Ok(list) => {
            ingest.pause_listed(namespace, &list.items).into_iter().for_each(PausedRecord::forget);
            for event in &list.items {
                ingest.0.shards.note_deleted(event);
                ingest.0.aliases.remove(namespace, &event.metadata.name);
            }
        }
        Err(status) => doubt_each(ingest, namespace, paused, status).await,
    }
    deleted
}

/// Follows a deletion of records that was refused or got no answer. Some of them may be deleted even after a refusal,
/// which is that of the first event that could not be deleted.
async fn doubt_each(ingest: &Ingest, namespace: &str, paused: Vec<PausedRecord>, status: &Status) {
    for paused in paused {
        if is_in_doubt(status) {
            paused.doubt();
            continue;
        }
        match ingest.0.upstream.get(namespace, &paused.name()).await {
            Ok(_) => drop(paused),
            Err(status) if status.code == 404 => {
                ingest.0.aliases.remove(namespace, &paused.name());
                paused.forget();
            }
            Err(_) => paused.doubt(),
        }
    }
}

impl Ingest {
    /// Pauses the records of listed events: those of their names, even if their aliases lead to other ones.
    fn pause_listed(&self, namespace: &str, events: &[Event]) -> Vec<PausedRecord> {
        let paused = self.0.shards.pause_listed(events, Lookup::Name);
        let others = events.iter().zip(&paused).filter(|(_, paused)| paused.is_none());
        let posted = others.filter_map(|(event, _)| self.0.aliases.get(namespace, &event.metadata.name));
        let others = self.0.shards.pause_listed(&posted.collect::<Vec<_>>(), Lookup::Unstored);
        paused.into_iter().chain(others).flatten().collect()
    }
}

/// Reads the request, checked in the apiserver's order.
async fn read(ingest: &Ingest, head: &RequestHead, body: Body) -> Result<DeleteOptions, Status> {
    let body = decode::read(body, &ingest.0.settings, (&ingest.0.bodies, head.user())).await?;
    if body.is_empty() {
        return checked(of_query(head.query())?);
    }
    checked(match decode::media(&head.headers)? {
        Media::Json => of_json(&body)?,
        Media::Yaml => of_json(&yaml::to_json(&body).map_err(Status::bad_request)?)?,
        Media::Protobuf => protobuf::decode_delete_options(&body)?,
    })
}

/// Reads the options of a request without a body. `uid` and `resourceVersion` are preconditions.
fn of_query(query: Option<&str>) -> Result<Given, Status> {
    let parameters = Parameters::of(query);
    let text = |name| parameters.first(name).filter(|text| !text.is_empty()).map(Into::into);
    Ok(Given {
        grace_period_seconds: parameters.number("gracePeriodSeconds")?,
        uid: text("uid"),
        resource_version: text("resourceVersion"),
        orphan_dependents: parameters.truth("orphanDependents"),
        propagation_policy: parameters.first("propagationPolicy").map(Into::into),
        dry_run: parameters.all("dryRun").map(Into::into).collect(),
    })
}

/// Decodes the options in a body. A member of a wrong type is refused: an event must not be deleted because
/// `"dryRun": "All"` is no list.
fn of_json(body: &[u8]) -> Result<Given, Status> {
    json::check_values(body)?;
    let document: Option<Map<String, Value>> = serde_json::from_str(&json::repaired(body))
        .map_err(|fault| Status::bad_request(format!("the body is not JSON: {fault}")))?;
    let document = document.unwrap_or_default();
    let kind: String = member(&document, "kind")?.unwrap_or_default();
    let version: String = member(&document, "apiVersion")?.unwrap_or_default();
    if !matches!(kind.as_str(), "" | "DeleteOptions") || version.matches('/').count() > 1 {
        let message = format!("the body is of the kind {kind:?} of {version:?}; allowed is DeleteOptions");
        return Err(Status::bad_request(message));
    }
    let preconditions: Map<String, Value> = member(&document, "preconditions")?.unwrap_or_default();
    // No event is malformed, so this member is without effect.
    member::<bool>(&document, "ignoreStoreReadErrorWithClusterBreakingPotential")?;
    let dry_run: Vec<Option<SmolStr>> = member(&document, "dryRun")?.unwrap_or_default();
    Ok(Given {
        grace_period_seconds: member(&document, "gracePeriodSeconds")?,
        uid: member(&preconditions, "uid")?,
        resource_version: member(&preconditions, "resourceVersion")?,
        orphan_dependents: member(&document, "orphanDependents")?,
        propagation_policy: member(&document, "propagationPolicy")?,
        dry_run: dry_run.into_iter().map(Option::unwrap_or_default).collect(),
    })
}

/// Returns a member; `None` if it is missing or null.
fn member<T: DeserializeOwned>(object: &Map<String, Value>, name: &str) -> Result<Option<T>, Status> {
    let Some(value) = object.get(name) else { return Ok(None) };
    Option::deserialize(value).map_err(|fault| Status::bad_request(format!("{name}: {fault}")))
}

/// `ValidateDeleteOptions`. Every propagation policy is equal, because events have no dependents.
fn checked(given: Given) -> Result<DeleteOptions, Status> {
    let mut faults = Faults::default();
    if let Some(policy) = given.propagation_policy.as_deref() {
        if given.orphan_dependents.is_some() {
            faults.invalid("propagationPolicy", "is not allowed together with orphanDependents");
        }
        if !matches!(policy, "Foreground" | "Background" | "Orphan") {
            faults.unsupported("propagationPolicy", policy, &["Foreground", "Background", "Orphan"]);
        }
    }
    let dry_run: Vec<&str> = given.dry_run.iter().map(AsRef::as_ref).collect();
    options::check_dry_run(&dry_run, &mut faults);
    faults.refuse("DeleteOptions")?;
    Ok(DeleteOptions { uid: given.uid, resource_version: given.resource_version, dry_run: !dry_run.is_empty() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_shows_as_many_events_as_have_room() {
        let (mut shown, event) = (Vec::new(), Event::default());
        let mut room = 5 * event.approximate_size();
        for number in [3, 3, 3] {
            show(&mut shown, vec![event.clone(); number], &mut room);
        }
        assert_eq!((shown.len(), room), (4, 0));
    }

    /// `tests/api` replays recorded bodies and queries.
    #[test]
    fn what_states_nothing_has_no_options_and_a_query_has_preconditions() {
        let options = of_query(Some("uid=u&resourceVersion=7&dryRun=All")).and_then(checked);
        let expected = DeleteOptions { uid: Some("u".into()), resource_version: Some("7".into()), dry_run: true };
        assert_eq!(options, Ok(expected));
        for nothing in [of_query(Some("uid=&resourceVersion=")), of_json(b"null"), of_json(br#"{"DryRun":["x"]}"#)] {
            assert_eq!(nothing.and_then(checked), Ok(DeleteOptions::default()));
        }
        // Fault: they were refused, where other bodies with such text are read.
        for odd in [&b"{\"apiVersion\":\"\xff\"}"[..], br#"{"apiVersion":"\ud800"}"#] {
            assert_eq!(of_json(odd).and_then(checked), Ok(DeleteOptions::default()));
        }
    }
}
