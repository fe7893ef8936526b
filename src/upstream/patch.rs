//! The strategic merge patch of a repeated event: its JSON, byte for byte as client-go sends it, and its effect.

use serde_json::{Map, Value};

use crate::event::{ApiGroup, Event, EventSeries, MicroTime, Time};
use crate::outbox::Patch;

/// The value of lastTimestamp that client-go compares with, and therefore leaves out.
const LEFT_OUT: Time = Time(0);

/// The patch document through `group`.
pub(super) fn document(patch: &Patch, group: ApiGroup) -> String {
    match (group, series(patch)) {
        (ApiGroup::Core, _) => patch.to_json(),
        (ApiGroup::Events, None) => "{}".to_owned(),
        (ApiGroup::Events, Some(series)) => {
            let last = series.last_observed_time.map(|time| time.to_string());
            serde_json::json!({"series": {"count": series.count, "lastObservedTime": last}}).to_string()
        }
    }
}

/// Does to `event` what the apiserver does when it receives that document through events.k8s.io/v1.
pub(super) fn apply_series(patch: &Patch, event: &mut Event) {
    event.series = series(patch).or_else(|| event.series.take());
}

/// What a patch can tell through events.k8s.io/v1: a series, which begins with 2.
fn series(patch: &Patch) -> Option<EventSeries> {
    let time = patch.last_timestamp?;
    let last_observed_time = Some(MicroTime(time.0.saturating_mul(1_000_000)));
    (patch.count >= 2).then_some(EventSeries { count: patch.count, last_observed_time })
}

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
        go_escaped(&Value::Object(document).to_string())
    }
}

/// JSON with the characters escaped that Go's `json.Marshal` escapes for HTML. They occur in strings only.
fn go_escaped(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => escaped.push_str(&format!("\\u{:04x}", u32::from(c))),
            other => escaped.push(other),
        }
    }
    escaped
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
    fn through_events_v1_only_the_series_moves() {
        let patch = |count| Patch { count, last_timestamp: Some(Time(1_772_352_000)), message: "m".into() };
        let document = document(&patch(2), ApiGroup::Events);
        assert_eq!(document, r#"{"series":{"count":2,"lastObservedTime":"2026-03-01T08:00:00.000000Z"}}"#);
        assert_eq!(super::document(&patch(1), ApiGroup::Events), "{}");
        let mut event = Event { message: "first".into(), ..Event::default() };
        apply_series(&patch(2), &mut event);
        apply_series(&patch(1), &mut event);
        assert_eq!(event.series.unwrap().count, 2);
        assert_eq!((event.count, event.message.as_str()), (0, "first"));
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
