//! The strategic merge patch of a repeated event: its JSON, byte for byte as client-go sends it, and its effect.

use serde_json::{Map, Value};

use crate::event::json::go;
use crate::event::{Event, Time};
use crate::outbox::Patch;

/// The value of lastTimestamp that client-go compares with, and therefore leaves out.
const LEFT_OUT: Time = Time(0);

impl Patch {
    /// The patch document: `count`, `lastTimestamp` and `message`, in this order, as far as they are told.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut document = Map::new();
        if self.count != 0 {
            document.insert("count".to_owned(), self.count.into());
        }
        match self.last_timestamp {
            Some(LEFT_OUT) => None,
            time => document.insert("lastTimestamp".to_owned(), time.map(|time| time.to_string()).into()),
        };
        if !self.message.is_empty() {
            document.insert("message".to_owned(), self.message.as_str().into());
        }
        go::escaped(&Value::Object(document).to_string())
    }
}

/// Does to `event` what the apiserver does when it receives [`Patch::to_json`].
pub(super) fn apply(patch: &Patch, event: &mut Event) {
    if patch.count != 0 {
        event.count = patch.count;
    }
    if patch.last_timestamp != Some(LEFT_OUT) {
        event.last_timestamp = patch.last_timestamp;
    }
    if !patch.message.is_empty() {
        event.message = patch.message.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_read_as_client_go_writes_them() {
        let check = |count, last_timestamp, message: &str, expected: &str| {
            let patch = Patch { count, last_timestamp, message: message.into() };
            assert_eq!(patch.to_json(), expected);
        };
        let time = Some(Time(1_772_352_000));
        check(2, time, "m", r#"{"count":2,"lastTimestamp":"2026-03-01T08:00:00Z","message":"m"}"#);
        check(2, None, "m", r#"{"count":2,"lastTimestamp":null,"message":"m"}"#);
        check(-5, Some(Time(0)), "", r#"{"count":-5}"#);
        check(0, Some(Time(0)), "", "{}");
        check(0, Some(Time(0)), "a<b>&\"\u{2028}é", r#"{"message":"a\u003cb\u003e\u0026\"\u2028é"}"#);
    }

    #[test]
    fn absent_members_change_nothing_and_null_deletes() {
        let before = Event { count: 3, last_timestamp: Some(Time(9)), message: "m".into(), ..Event::default() };
        let check = |count, last_timestamp, message: &str, expected: (i32, Option<Time>, &str)| {
            let mut event = before.clone();
            apply(&Patch { count, last_timestamp, message: message.into() }, &mut event);
            assert_eq!((event.count, event.last_timestamp, event.message.as_str()), expected);
        };
        check(0, Some(Time(0)), "", (3, Some(Time(9)), "m"));
        check(4, Some(Time(10)), "n", (4, Some(Time(10)), "n"));
        check(4, None, "", (4, None, "m"));
    }
}
