//! The result lines of a batch, one per event.

use serde::Serialize;

use crate::shard::Outcome;
use crate::status::Status;

/// Appends the result of an accepted event.
pub(super) fn success(event: u64, outcome: Outcome, ack: &str, lines: &mut Vec<u8>) {
    #[derive(Serialize)]
    struct Accepted<'a> {
        event: u64,
        outcome: &'a str,
        ack: &'a str,
    }
    append(&Accepted { event, outcome: outcome.label(), ack }, lines);
}

/// Appends the result of a refused event.
pub(super) fn failure(event: u64, status: &Status, lines: &mut Vec<u8>) {
    #[derive(Serialize)]
    struct Refused<S> {
        event: u64,
        status: S,
    }
    append(&Refused { event, status: status.document() }, lines);
}

fn append(result: &impl Serialize, lines: &mut Vec<u8>) {
    // Memory takes every line.
    serde_json::to_writer(&mut *lines, result).unwrap_or_default();
    lines.push(b'\n');
}
