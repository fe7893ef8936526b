//! GET and LIST: answered by the upstream, with aliases resolved.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use super::rejection::as_asked;
use super::request_head::RequestHead;
use super::websocket::Upgrade;
use super::{Ingest, options, respond, watch};
use crate::event::json::EventList;
use crate::event::{Event, conversion};
use crate::shard::{Found, Lookup};
use crate::status::Status;
use crate::upstream::{ListOptions, Version};

/// LIMIT: events folded into storm records that a list shows.
const FOLDED_SHOWN: usize = 500;

/// LIMIT: conditions of a list that shows them. Each is checked for each folded event under the lock of a shard.
const FOLDED_CONDITIONS: usize = 32;

/// `GET /api/v1/namespaces/{namespace}/events/{name}`
pub(super) async fn get(State(ingest): State<Ingest>, head: RequestHead) -> Result<Response, Status> {
    let format = head.format(&ingest)?;
    let version = options::version_of_get(head.query())?;
    let RequestHead { group, namespace, name, .. } = head;
    let event = ingest.event_of(&namespace, &name, version).await.map_err(|status| as_asked(group, &name, status))?;
    Ok(respond::event(format, StatusCode::OK, &event, None))
}

impl Ingest {
    /// Returns the event of a client's name, from a state of the upstream that is not older than `version`.
    ///
    /// An alias leads to the record that counts its event, which is shown under the alias. While the upstream does not
    /// have the newest state of the record, the state in the outbox is shown.
    pub(super) async fn event_of(&self, namespace: &str, name: &str, version: u64) -> Result<Event, Status> {
        let posted = self.0.aliases.get(namespace, name);
        let find = |by| posted.as_ref().and_then(|posted| Some((posted, self.0.shards.find_named(posted, by)?)));
        let found = find(Lookup::Alias);
        let may_be_combined = found.is_none();
        let mut event = self.event_of_record((namespace, name), version, found).await;
        if let Err(Status { code: 404, .. }) = event
            && may_be_combined
            && let Some(found) = find(Lookup::Unstored)
        {
            event = self.event_of_record((namespace, name), version, Some(found)).await;
        }
        let event = match event {
            // An event folded into a storm record is not in the upstream.
            Err(status) if status.code == 404 => {
                posted.and_then(|posted| self.0.shards.folded_like(&posted)).ok_or(status)
            }
            event => event,
        };
        event.map(|mut event| {
            event.metadata.name = name.into();
            event
        })
    }

    /// Returns the event of a record to which the client's event has led, or without one the upstream's event of that
    /// name.
    async fn event_of_record(
        &self,
        (namespace, name): (&str, &str),
        version: u64,
        found: Option<(&Event, Found)>,
    ) -> Result<Event, Status> {
        let upstream = &self.0.upstream;
        let Some((posted, found)) = found else { return upstream.get_not_older(namespace, name, version).await };
        // Another record may have the name of one that is not stored.
        if let Some(owed) = found.unsettled.as_ref().filter(|_| !found.stored) {
            return Ok(owed.clone());
        }
        let answer = upstream.get_not_older(namespace, &found.name, version).await;
        let is_its = answer.as_ref().is_ok_and(|stored| self.0.shards.is_of(posted, &found, stored));
        let record = found.record;
        match (found.unsettled, answer) {
            // The stored event, updated with the pending write.
            (Some(mut owed), Ok(mut stored)) if is_its => {
                owed.count = self.0.shards.count_on(posted, record, &stored).unwrap_or(owed.count);
                conversion::advance(&mut stored, &owed);
                Ok(stored)
            }
            // It is gone, and another event may have its name.
            (Some(owed), Ok(_) | Err(_)) => Ok(owed),
            (None, Ok(_)) if !is_its && found.name != name => upstream.get_not_older(namespace, name, version).await,
            (None, answer) => answer,
        }
    }
}

/// `GET /api/v1/namespaces/{namespace}/events`, and `GET /api/v1/events` of all namespaces.
pub(super) async fn list(
    State(ingest): State<Ingest>,
    upgrade: Upgrade,
    head: RequestHead,
) -> Result<Response, Status> {
    if options::sets(head.query(), "watch") {
        return watch::watch(State(ingest), upgrade, head).await;
    }
    let format = head.format(&ingest)?;
    let options = options::of_list(head.group, head.query())?;
    let turn = ingest.list_turn(head.user()).await?;
    let mut list = ingest.0.upstream.list(head.namespace(), &options).await?;
    add_folded(&ingest, &head, &options, &mut list);
    Ok(ingest.encoded(turn, format, list).await)
}

/// Adds folded events to the last page of a list of one object's events. They have neither uid nor version, and are in
/// no watch.
fn add_folded(ingest: &Ingest, head: &RequestHead, options: &ListOptions, list: &mut EventList) {
    let ListOptions { limit, field_selector, label_selector, version, .. } = options;
    let conditions = field_selector.conditions() + label_selector.conditions();
    if conditions > FOLDED_CONDITIONS
        || !field_selector.is_of_object()
        || *version != Version::Newest
        || !list.continue_token.is_empty()
    {
        return;
    }
    let room = if *limit == 0 { FOLDED_SHOWN } else { limit.saturating_sub(list.items.len()).min(FOLDED_SHOWN) };
    let is_asked = |event: &Event| {
        head.namespace().is_none_or(|namespace| event.metadata.namespace == namespace)
            && field_selector.matches(event)
            && label_selector.matches(event)
    };
    list.items.extend(ingest.0.shards.folded(room, is_asked));
}
