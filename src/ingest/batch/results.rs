//! The result lines of a batch, one per event.

use serde::Serialize;

use crate::shard::Outcome;
use crate::status::Status;

/// Appends the result of an accepted event.
pub(super) fn success(event: u64, outcome: Outcome, ack: &str, warnings: &[String], lines: &mut Vec<u8>) {
    #[derive(Serialize)]
    struct Accepted<'a> {
        event: u64,
        outcome: &'a str,
        ack: &'a str,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        warnings: &'a [String],
    }
    append(&Accepted { event, outcome: outcome.label(), ack, warnings }, lines);
}

/// Appends the result of a refused event.
pub(super) fn failure(event: u64, status: &Status, warnings: &[String], lines: &mut Vec<u8>) {
    #[derive(Serialize)]
    struct Refused<'a, S> {
        event: u64,
        status: S,
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        warnings: &'a [String],
    }
    append(&Refused { event, status: status.document(), warnings }, lines);
}

fn append(result: &impl Serialize, lines: &mut Vec<u8>) {
    // Memory takes every line.
    serde_json::to_writer(&mut *lines, result).unwrap_or_default();
    lines.push(b'\n');
}
