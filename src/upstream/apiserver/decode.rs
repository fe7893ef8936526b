//! Decoders of an API server's answers, beside those of `event/json`.

use http::HeaderMap;
use http::header::WARNING;
use http::response::Parts;
use serde_json::Value;

use crate::event::json::{self, EventList};
use crate::event::patching::Patched;
use crate::event::{ApiGroup, Event};
use crate::upstream::{Deleted, Updated, WriteOptions};

/// LIMIT: warnings of one answer that are passed on, as many as the API server's decoder reports; more are dropped.
const WARNINGS_MAX: usize = 100;

/// Decodes an answer with the stored event, for which `is_asked` holds. Another server's JSON has nothing about the event:
/// its missing name and count would be taken for the event's.
pub(in crate::upstream) fn stored(
    group: ApiGroup,
    body: &[u8],
    is_asked: impl FnOnce(&Event) -> bool,
) -> Result<Event, String> {
    asked(group, body, |event| !event.metadata.resource_version.is_empty() && is_asked(event))
}

fn asked(group: ApiGroup, body: &[u8], is_asked: impl FnOnce(&Event) -> bool) -> Result<Event, String> {
    let event = json::decode_event(group, body).map_err(|fault| fault.to_string())?;
    if is_asked(&event) { Ok(event) } else { Err("it is not the event".to_owned()) }
}

/// Decodes the answer to a client's write of an event. A dry run may create an event, which then has no version.
fn written(namespace: &str, name: &str, options: &WriteOptions, body: &[u8]) -> Result<Event, String> {
    let is_named = |event: &Event| event.is_named(namespace, name);
    if options.dry_run { asked(options.group, body, is_named) } else { stored(options.group, body, is_named) }
}

/// Returns the decoder of an answer to a PUT or an apply.
pub(in crate::upstream) fn updated(
    namespace: &str,
    name: &str,
    options: &WriteOptions,
) -> impl FnOnce(&Parts, &[u8]) -> Result<Updated, String> {
    move |head, body| {
        let event = written(namespace, name, options, body)?;
        let created = head.status == http::StatusCode::CREATED;
        Ok(Updated { event, created, warnings: warnings(&head.headers) })
    }
}

/// Returns the decoder of an answer to a client's own PATCH.
pub(in crate::upstream) fn patched(
    namespace: &str,
    name: &str,
    options: &WriteOptions,
) -> impl FnOnce(&Parts, &[u8]) -> Result<Patched, String> {
    move |head, body| Ok(Patched { event: written(namespace, name, options, body)?, warnings: warnings(&head.headers) })
}

/// Decodes a list. One without a version is another server's JSON, and would show that there are no events.
pub(in crate::upstream) fn list(group: ApiGroup, body: &[u8]) -> Result<EventList, String> {
    let list = json::list_from_json(group, body).map_err(|fault| fault.to_string())?;
    if list.resource_version.is_empty() { Err("it is not a list of events".to_owned()) } else { Ok(list) }
}

/// Decodes the answer to a DELETE: a Status, or the event if its finalizers hold it.
pub(in crate::upstream) fn deleted(group: ApiGroup, body: &[u8]) -> Result<Deleted, String> {
    let document: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if document["kind"] == "Status" {
        return Ok(Deleted::Gone(document["details"]["uid"].as_str().unwrap_or_default().into()));
    }
    let event = json::decode_event(group, body).map_err(|error| error.to_string())?;
    if event.metadata.name.is_empty() {
        return Err("it is neither a Status nor the event".to_owned());
    }
    Ok(Deleted::Marked(Box::new(event)))
}

/// Returns the texts of the `Warning` headers: the quoted part after code and agent.
fn warnings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(WARNING).iter().take(WARNINGS_MAX).filter_map(|value| value.to_str().ok());
    values.filter_map(warning).collect()
}

fn warning(value: &str) -> Option<String> {
    let (_, quoted) = value.split_once('"')?;
    let mut letters = quoted.chars();
    let mut text = String::new();
    loop {
        match letters.next()? {
            '"' => return Some(text),
            '\\' => text.push(letters.next()?),
            letter => text.push(letter),
        }
    }
}
