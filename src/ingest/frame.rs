//! One event of a watch as it goes over the wire, in the form that its client asked for.

use axum::http::HeaderValue;

use super::asked::Asked;
use super::form::{Form, Media, View, not_acceptable};
use super::rejection::Rejection;
use super::table::{self, Columns};
use super::{Face, partial, respond};
use crate::event::{Event, json, protobuf};
use crate::ledger::RejectReason;
use crate::upstream::WatchEvent;

/// What the client accepts of a stream: YAML has no frames.
pub(super) fn form(face: &Face, asked: &Asked) -> Result<Form, Rejection> {
    let form = asked.form(face)?;
    match form.media {
        Media::Json | Media::Protobuf => Ok(form),
        Media::Yaml => Err(Rejection::new(RejectReason::MediaType, not_acceptable())),
    }
}

/// The Content-Type of a stream.
pub(super) const fn content_type(form: Form) -> HeaderValue {
    match form.media {
        Media::Json | Media::Yaml => HeaderValue::from_static("application/json"),
        Media::Protobuf => HeaderValue::from_static("application/vnd.kubernetes.protobuf;stream=watch"),
    }
}

/// Appends a frame: a line of JSON, or a length and protobuf.
pub(super) fn write(form: Form, event: &WatchEvent, columns: Columns, out: &mut Vec<u8>) {
    match form.media {
        Media::Protobuf => protobuf::write_watch_frame(form.group, event, out),
        Media::Json | Media::Yaml => {
            out.extend_from_slice(br#"{"type":""#);
            out.extend_from_slice(event.label().as_bytes());
            out.extend_from_slice(br#"","object":"#);
            match event {
                WatchEvent::Added(event)
                | WatchEvent::Modified(event)
                | WatchEvent::Deleted(event)
                | WatchEvent::Bookmark(event) => write_object(form, event, columns, out),
                WatchEvent::Error(status) => out.extend_from_slice(&respond::go_escaped(&status.to_json())),
            }
            out.extend_from_slice(b"}\n");
        }
    }
}

fn write_object(form: Form, event: &Event, columns: Columns, out: &mut Vec<u8>) {
    match form.view {
        View::Whole => json::write_json(form.group, event, out),
        View::Partial(version) | View::PartialList(version) => partial::write(version, event, out),
        View::Table(version, include) => {
            let table = table::Table { group: form.group, version, include, columns, now: form.now };
            table::write(&table, &respond::one(event), out);
        }
    }
}
