//! Decoders of an API server's answers, beside those of `event/json`.

use http::HeaderMap;
use http::header::WARNING;
use http::response::Parts;
use serde_json::Value;

use crate::event::ApiGroup;
use crate::event::json;
use crate::event::patching::Patched;
use crate::status::Status;
use crate::upstream::{Deleted, Updated};

/// LIMIT: warnings of one answer that are passed on, as many as the API server's decoder reports; more are dropped.
const WARNINGS_MAX: usize = 100;

/// Returns the decoder of an answer to a PUT or an apply.
pub(in crate::upstream) fn updated(group: ApiGroup) -> impl FnOnce(&Parts, &[u8]) -> Result<Updated, Box<Status>> {
    move |head, body| {
        let event = json::decode_event(group, body)?;
        let created = head.status == http::StatusCode::CREATED;
        Ok(Updated { event, created, warnings: warnings(&head.headers) })
    }
}

/// Returns the decoder of an answer to a client's own PATCH.
pub(in crate::upstream) fn patched(group: ApiGroup) -> impl FnOnce(&Parts, &[u8]) -> Result<Patched, Box<Status>> {
    move |head, body| Ok(Patched { event: json::decode_event(group, body)?, warnings: warnings(&head.headers) })
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
