//! The result lines of a batch, one per event, written as bytes.

use crate::shard::Outcome;
use crate::status::Status;

/// Appends the result of an accepted event.
pub(super) fn success(number: u64, outcome: Outcome, reached: &str, lines: &mut Vec<u8>) {
    head(number, lines);
    for part in ["\"outcome\":\"", outcome.label(), "\",\"ack\":\"", reached, "\"}\n"] {
        lines.extend_from_slice(part.as_bytes());
    }
}

/// Appends the result of a refused event.
pub(super) fn failure(number: u64, status: &Status, lines: &mut Vec<u8>) {
    head(number, lines);
    lines.extend_from_slice(b"\"status\":");
    lines.extend_from_slice(&status.to_json());
    lines.extend_from_slice(b"}\n");
}

/// Appends the beginning of a result.
fn head(number: u64, lines: &mut Vec<u8>) {
    lines.extend_from_slice(b"{\"event\":");
    lines.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    lines.push(b',');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn results_are_json() {
        let mut lines = Vec::new();
        success(7, Outcome::Counted, "durable", &mut lines);
        let status = Status::not_found("", "namespaces", "a\"<\u{2028}\n");
        failure(u64::MAX, &status, &mut lines);
        let document: Value = serde_json::from_slice(&status.to_json()).unwrap();
        let expected = [
            json!({ "event": 7, "outcome": "counted", "ack": "durable" }),
            json!({ "event": u64::MAX, "status": document }),
        ];
        assert_eq!(String::from_utf8(lines).unwrap(), expected.map(|line| format!("{line}\n")).concat());
    }
}
